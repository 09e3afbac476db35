//! Encodes bytes as text that any PMI carries: hexadecimal digits, in pieces no longer than the launcher
//! allows.
//!
//! ```text
//!   piece 0   LLLLLLLL dd dd dd …     the length of all bytes, then the first of them
//!   piece 1   dd dd dd …
//! ```
//!
//! The key of a piece is `db-KEY-RANK-PIECE`, since the keys of a PMI are shared by the whole job.

use std::fmt::Write as _;

use super::LONGEST_VALUE;

/// Number of digits of the length.
const HEAD: usize = 8;

/// Returns the key of one piece of a value.
pub(crate) fn key_of(key: &str, rank: u32, piece: usize) -> String {
    format!("db-{key}-{rank}-{piece}")
}

/// Whether a key has only characters that every protocol allows.
pub(crate) fn is_key(key: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
    !key.is_empty() && key.bytes().all(plain)
}

/// Encodes a value in one piece.
pub(crate) fn written(value: &[u8]) -> String {
    let mut text = String::with_capacity(HEAD + 2 * value.len());
    // Writing into a String cannot fail.
    let _ = write!(text, "{:08x}", value.len());
    for byte in value {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Collects the pieces of a value until it is complete.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    text: Vec<u8>,
}

impl Collected {
    /// Takes the next piece; returns the value after the last one.
    ///
    /// # Errors
    /// When the text is malformed.
    pub(crate) fn take(&mut self, piece: &str) -> Result<Option<Vec<u8>>, &'static str> {
        if piece.is_empty() {
            return Err("it has an empty piece");
        }
        self.text.extend_from_slice(piece.as_bytes());
        let Some(head) = self.text.get(..HEAD) else {
            return Ok(None);
        };
        let mut length = 0usize;
        for digit in head {
            length = length << 4 | digit_of(*digit).ok_or("its length is not a number")?;
        }
        if length > LONGEST_VALUE {
            return Err("its length exceeds the limit");
        }
        match self.text.len() - HEAD {
            have if have > 2 * length => Err("it is longer than its length field"),
            have if have == 2 * length => decoded(&self.text[HEAD..]).map(Some),
            _ => Ok(None),
        }
    }
}

fn decoded(digits: &[u8]) -> Result<Vec<u8>, &'static str> {
    let byte = |pair: &[u8]| Some((digit_of(pair[0])? << 4 | digit_of(pair[1])?) as u8);
    let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
    bytes.ok_or("it has characters other than hexadecimal digits")
}

fn digit_of(digit: u8) -> Option<usize> {
    match digit {
        b'0'..=b'9' => Some(usize::from(digit - b'0')),
        b'a'..=b'f' => Some(usize::from(digit - b'a') + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_is_this() {
        assert_eq!(written(b""), "00000000");
        assert_eq!(written(&[0, 255, 16]), "0000000300ff10");
        assert_eq!(key_of("hello", 12, 0), "db-hello-12-0");
        assert!(is_key("hello") && !is_key("") && !is_key("a b") && !is_key("a=b") && !is_key("ä"));
    }

    #[test]
    fn damaged_texts_are_distinguished() {
        let take = |pieces: &[&str]| {
            let mut all = Collected::default();
            pieces.iter().map(|piece| all.take(piece)).last().unwrap()
        };
        assert_eq!(take(&["0000000", "1", "a", "b"]), Ok(Some(vec![0xab])));
        assert_eq!(take(&["00000001a"]), Ok(None));
        assert_eq!(take(&[""]), Err("it has an empty piece"));
        assert_eq!(take(&["0000000g"]), Err("its length is not a number"));
        assert_eq!(
            take(&["00000001", "abc"]),
            Err("it is longer than its length field")
        );
        assert_eq!(
            take(&["00000001AB"]),
            Err("it has characters other than hexadecimal digits")
        );
        assert_eq!(take(&["ffffffff"]), Err("its length exceeds the limit"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_the_pieces(value: Vec<u8>, step in 1usize..40) {
            let text = written(&value);
            let mut all = Collected::default();
            let mut read = None;
            for piece in text.as_bytes().chunks(step) {
                prop_assert_eq!(&read, &None);
                read = all.take(std::str::from_utf8(piece).unwrap()).unwrap();
            }
            prop_assert_eq!(read, Some(value));
        }
    }
}

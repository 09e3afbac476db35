//! The messages of the control plane itself: bodies of messages with reserved tags.
//!
//! All numbers are in network byte order. Readers accept what is well-formed and reject the rest: the sender
//! has proved that it belongs to the job, not that it is correct.

use crate::bytes::Bytes;
use crate::contact::take;
use crate::name::{Epoch, Name};

/// A child requests that an ancestor be its parent.
pub(super) const ATTACH: u32 = 1;
/// The ancestor agrees to be its parent.
pub(super) const ATTACHED: u32 = 2;
/// A child has found another parent.
pub(super) const DETACH: u32 = 3;
/// A report to the root that a rank is lost, or back.
pub(super) const REPORT: u32 = 4;
/// A notice from the root of the ranks that are lost, and of those that are back.
pub(super) const NEWS: u32 = 5;
/// A check whether a process lives; its delivery is the answer.
pub(super) const CHECK: u32 = 6;
/// A request to the root for a broadcast.
pub(super) const CAST_REQUEST: u32 = 7;
/// Down the tree: a broadcast.
pub(super) const CAST: u32 = 8;
/// Up the tree: which ranks have a broadcast.
pub(super) const REACHED: u32 = 9;
/// A notice from the root that a broadcast has ended.
pub(super) const CAST_ENDED: u32 = 10;
/// Up the tree: contributions to an all-gather.
pub(super) const GATHER: u32 = 11;
/// A look-up of the receiver's addresses, with those of the sender.
pub(super) const LOOK_UP: u32 = 12;
/// The answer to a look-up.
pub(super) const CONTACT: u32 = 13;
/// Our new addresses, for all peers with a link to us.
pub(super) const MOVED: u32 = 14;

/// Maximum length of a list of ranks.
const LIST_MAX: u32 = 1 << 24;

/// Encodes a body.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    pub(super) fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend_from_slice(&word.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, long: u64) -> &mut Self {
        self.0.extend_from_slice(&long.to_be_bytes());
        self
    }

    pub(super) fn name(&mut self, name: Name) -> &mut Self {
        self.long(name.job).word(name.rank)
    }

    pub(super) fn list<'a>(&mut self, ranks: impl ExactSizeIterator<Item = &'a u32>) -> &mut Self {
        self.word(ranks.len() as u32);
        for rank in ranks {
            self.word(*rank);
        }
        self
    }

    pub(super) fn rest(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn done(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// Decodes a body; `None` where it is malformed.
pub(super) struct Reader<'a> {
    whole: &'a Bytes,
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a Bytes) -> Self {
        Self {
            whole: body,
            rest: body,
        }
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        take::<1>(&mut self.rest).map(|[byte]| byte)
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        take(&mut self.rest).map(u32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        take(&mut self.rest).map(u64::from_be_bytes)
    }

    pub(super) fn name(&mut self) -> Option<Name> {
        Some(Name::new(self.long()?, self.word()?))
    }

    pub(super) fn epoch(&mut self) -> Option<Epoch> {
        self.long().map(Epoch)
    }

    pub(super) fn list(&mut self) -> Option<Vec<u32>> {
        let count = self.word()?;
        if count > LIST_MAX || self.rest.len() < count as usize * 4 {
            return None;
        }
        (0..count).map(|_| self.word()).collect()
    }

    /// Returns the next bytes, without copying them.
    pub(super) fn bytes(&mut self, length: usize) -> Option<Bytes> {
        let at = self.whole.len() - self.rest.len();
        let bytes = self.whole.slice(at, length)?;
        self.rest = self.rest.get(length..)?;
        Some(bytes)
    }

    /// Returns the remaining bytes.
    pub(super) fn all(&mut self) -> Bytes {
        self.bytes(self.rest.len()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_is_refused() {
        let body = Writer::default()
            .byte(1)
            .word(2)
            .long(3)
            .name(Name::new(4, 5))
            .list([6, 7].iter())
            .rest(b"rest")
            .done();
        let read = |body: &Bytes| {
            let mut reader = Reader::new(body);
            let head = (reader.byte()?, reader.word()?, reader.epoch()?, reader.name()?);
            Some((
                head,
                reader.list()?,
                reader.bytes(2)?.to_vec(),
                reader.all().to_vec(),
            ))
        };
        let all = (
            (1, 2, Epoch(3), Name::new(4, 5)),
            vec![6, 7],
            b"re".to_vec(),
            b"st".to_vec(),
        );
        assert_eq!(read(&body), Some(all));
        for length in 0..body.len() - 2 {
            assert_eq!(
                read(&body.slice(0, length).expect("inside")),
                None,
                "cut at {length}"
            );
        }
        let endless = Writer::default().word(u32::MAX).done();
        assert_eq!(Reader::new(&endless).list(), None);
    }
}

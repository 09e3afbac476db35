//! The checks that a guest reported, and the files that it brought out: lines that `guest/tell.sh` writes to
//! the console.

use serde::{Deserialize, Serialize};

/// The words that begin these lines.
pub(super) const GOOD: &str = "LAB ok";
pub(super) const BAD: &str = "LAB failed";
/// The words that begin a piece of a file: its name, the piece's number from 1 and its bytes as hexadecimal
/// digits; at last its name, `end` and the number of pieces.
const PIECE: &str = "LAB file ";

/// One check of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// What was checked.
    pub(crate) what: String,
    /// What was found instead, where it does not hold.
    pub(crate) failure: Option<String>,
}

impl Check {
    /// Returns the check as one of the machine of this name; the first machine has none.
    pub(super) fn of(self, machine: &str) -> Self {
        Self {
            what: of(machine, self.what),
            ..self
        }
    }
}

/// Returns a text about the machine of this name.
pub(super) fn of(machine: &str, text: String) -> String {
    if machine.is_empty() {
        return text;
    }
    format!("{machine}: {text}")
}

/// Returns a name with that of one of its machines behind it.
pub(super) fn behind(name: &str, machine: &str) -> String {
    if machine.is_empty() {
        return name.to_owned();
    }
    format!("{name}, {machine}")
}

/// Returns the checks on a console, in their order.
pub(super) fn checks(console: &str) -> Vec<Check> {
    let lines = console.lines().map(|line| line.trim_end());
    lines.filter_map(check).collect()
}

fn check(line: &str) -> Option<Check> {
    // Output of the kernel may precede it on the same line.
    let after = |word: &str| {
        let (_, rest) = line.split_once(word)?;
        rest.strip_prefix(": ")
    };
    if let Some(what) = after(GOOD) {
        return Some(Check {
            what: what.to_owned(),
            failure: None,
        });
    }
    let (what, found) =
        after(BAD).map(|rest| rest.split_once(" -- ").unwrap_or((rest, "it does not hold")))?;
    Some(Check {
        what: what.to_owned(),
        failure: Some(found.to_owned()),
    })
}

/// Returns the bytes of a file that a guest brought out.
///
/// # Errors
///
/// The reason why the file is not whole.
pub(super) fn file(console: &str, name: &str) -> Result<Vec<u8>, String> {
    let (mut bytes, mut pieces) = (Vec::new(), 0_usize);
    // Output of the kernel may precede it on the same line; within it, it spoils it.
    let words = console.lines().filter_map(|line| line.split_once(PIECE));
    for (_, piece) in words {
        let mut words = piece.split_whitespace();
        let (Some(of), Some(number), Some(digits)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if of != name {
            continue;
        }
        if number == "end" {
            let whole = digits.parse() == Ok(pieces);
            return whole
                .then_some(bytes)
                .ok_or_else(|| format!("{pieces} pieces of it came, and not {digits}"));
        }
        pieces += 1;
        let piece = hexadecimal(digits).filter(|_| number.parse() == Ok(pieces));
        bytes.extend(piece.ok_or_else(|| format!("piece {number} is spoilt"))?);
    }
    Err("it was not brought out to its end".to_owned())
}

fn hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_found_among_whatever_else_is_on_the_console() {
        let console = "[ 1.0] booted\r\nLAB ok: eth0 is up\r\n[ 2.0] igb: LAB failed: zero-copy works -- exit 3: no\r\n\
                       LAB failed: bare\nLAB okay: no check\nLAB ok\n";
        let found = checks(console);
        let pairs: Vec<_> = found
            .iter()
            .map(|check| (check.what.as_str(), check.failure.as_deref()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("eth0 is up", None),
                ("zero-copy works", Some("exit 3: no")),
                ("bare", Some("it does not hold")),
            ]
        );
    }
    #[test]
    fn a_file_comes_out_whole_or_not_at_all() {
        let good = "LAB file a.pcap 1 00ff\r\nLAB file b 1 11\r\n[1.0] LAB file a.pcap 2 7f\r\nLAB file a.pcap end 2\r\n";
        assert_eq!(file(good, "a.pcap"), Ok(vec![0, 255, 127]));
        assert!(file(good, "b").unwrap_err().contains("to its end"));
        let spoilt = "LAB file a 1 00f[ 1.0] igb: reset\nLAB file a end 1\n";
        assert!(file(spoilt, "a").unwrap_err().contains("piece 1 is spoilt"));
        let short = "LAB file a 1 00\nLAB file a end 2\n";
        assert!(file(short, "a").unwrap_err().contains("1 pieces"));
        let gap = "LAB file a 1 00\nLAB file a 3 00\nLAB file a end 2\n";
        assert!(file(gap, "a").unwrap_err().contains("piece 3"));
    }
}

//! Lines with the rank in front: whole lines only, so that ranks do not write into each other's.

use std::io::{self, Write};

/// A line longer than this is passed on in pieces, each with its prefix.
const LINE_MAX: usize = 64 << 10;

/// One stream of one rank.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(rank: u32) -> Self {
        Self {
            prefix: format!("[{rank}] ").into_bytes(),
            partial: Vec::new(),
        }
    }

    /// Takes bytes of the rank and passes on the lines that are whole now, in one write.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        let mut whole = Vec::with_capacity(bytes.len() + 64);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in piece.chunks(LINE_MAX) {
                self.partial.extend_from_slice(part);
                if self.partial.ends_with(b"\n") || self.partial.len() >= LINE_MAX {
                    self.line(&mut whole);
                }
            }
        }
        out.write_all(&whole)?;
        out.flush()
    }

    /// The stream has ended: passes on the last line, with the line end that it lacks.
    pub(super) fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut whole = Vec::new();
        if !self.partial.is_empty() {
            self.line(&mut whole);
        }
        out.write_all(&whole)?;
        out.flush()
    }

    fn line(&mut self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.prefix);
        into.append(&mut self.partial);
        if !into.ends_with(b"\n") {
            into.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(3), Vec::new());
        for piece in pieces {
            lines.push(piece, &mut out).unwrap();
        }
        lines.end(&mut out).unwrap();
        out
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(
            passed(&[b"one\ntw", b"o\n", b"", b"three"]),
            b"[3] one\n[3] two\n[3] three\n"
        );
        assert_eq!(passed(&[b"\n\n"]), b"[3] \n[3] \n");
        assert_eq!(passed(&[]), b"");
    }

    #[test]
    fn nothing_of_a_line_is_shown_before_its_end() {
        let (mut lines, mut out) = (Lines::new(0), Vec::new());
        lines.push(b"half", &mut out).unwrap();
        assert!(out.is_empty());
        lines.push(b" done\nnext", &mut out).unwrap();
        assert_eq!(out, b"[0] half done\n");
    }

    #[test]
    fn endless_lines_and_odd_bytes_are_passed_on() {
        let out = passed(&[&[0xff; 3 * LINE_MAX]]);
        assert_eq!(out.iter().filter(|byte| **byte == 0xff).count(), 3 * LINE_MAX);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 3);
    }
}

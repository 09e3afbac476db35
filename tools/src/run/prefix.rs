//! Lines with the rank in front: whole lines only, so that ranks do not write into each other's.
//!
//! A line ends with a line feed, or with a carriage return: text to be overwritten (`50 %\r`) is shown when
//! it is written. Text without an end, such as a prompt, is shown after a pause. The line on the terminal is
//! then unfinished: the rank that began it continues in it, and any other output begins the next line.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// A line longer than this is passed on in pieces, each with its prefix.
const LINE_MAX: usize = 64 << 10;
/// The start of a line is shown after this time without a further byte.
const PAUSE: Duration = Duration::from_millis(250);

/// A stream of a rank: the rank's number, and 0 for its standard output or 1 for its standard error.
pub(super) type Source = (u32, usize);

/// The unfinished lines on the launcher's outputs.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// The stream of the unfinished line on each output.
    of: [Option<Source>; 2],
    /// Whether both outputs are one terminal.
    is_one: bool,
}

impl Unfinished {
    /// Describes this process's standard output and standard error.
    pub(super) fn here() -> Self {
        let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let [out, err] = [rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())];
        Self {
            is_one: matches!((out, err), (Ok(out), Ok(err)) if place(out) == place(err)),
            ..Self::default()
        }
    }

    fn at(&mut self, stream: usize) -> &mut Option<Source> {
        &mut self.of[if self.is_one { 0 } else { stream }]
    }

    /// Ends an unfinished line before the launcher itself writes to its standard error.
    pub(super) fn end(&mut self) {
        if self.at(1).take().is_some() {
            // There is nowhere to report a failure.
            let _ = io::stderr().lock().write_all(b"\n");
        }
    }
}

/// One stream of one rank.
#[derive(Debug)]
pub(super) struct Lines {
    source: Source,
    /// `None` for bytes that are passed on unchanged.
    prefix: Option<Vec<u8>>,
    partial: Vec<u8>,
    /// Whether the last byte was a carriage return whose line feed may still come.
    is_returned: bool,
    /// When the content of `partial` is to be shown.
    due: Option<Instant>,
}

impl Lines {
    /// Passes on whole lines, with the number of the rank in front.
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            prefix: Some(format!("[{}] ", source.0).into_bytes()),
            partial: Vec::new(),
            is_returned: false,
            due: None,
        }
    }

    /// Passes on bytes unchanged.
    pub(super) fn plain(source: Source) -> Self {
        Self {
            prefix: None,
            ..Self::new(source)
        }
    }

    /// Returns when [`Lines::show`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes bytes of the rank and passes on the lines that are whole now, in one write.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        now: Instant,
        unfinished: &mut Unfinished,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if self.prefix.is_none() {
            return out.write_all(bytes).and_then(|()| out.flush());
        }
        let mut whole = Vec::with_capacity(bytes.len() + 64);
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            for part in piece.chunks(LINE_MAX) {
                self.partial.extend_from_slice(part);
                if matches!(self.partial.last(), Some(b'\n' | b'\r')) {
                    self.line(unfinished, &mut whole);
                } else if self.partial.len() >= LINE_MAX {
                    self.partial.push(b'\n');
                    self.line(unfinished, &mut whole);
                }
            }
        }
        self.due = (!self.partial.is_empty()).then(|| now + PAUSE);
        out.write_all(&whole)?;
        out.flush()
    }

    /// Passes on the start of a line whose rest has not come for a while.
    pub(super) fn show(
        &mut self,
        now: Instant,
        unfinished: &mut Unfinished,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if self.due.take_if(|due| now >= *due).is_none() {
            return Ok(());
        }
        let mut begun = Vec::new();
        self.line(unfinished, &mut begun);
        out.write_all(&begun)?;
        out.flush()
    }

    /// Handles the end of the stream: passes on the last line, with the line end that it lacks.
    pub(super) fn end(&mut self, unfinished: &mut Unfinished, out: &mut impl Write) -> io::Result<()> {
        self.due = None;
        let mut whole = Vec::new();
        if !self.partial.is_empty() {
            self.line(unfinished, &mut whole);
        }
        let at = unfinished.at(self.source.1);
        if at.take_if(|source| *source == self.source).is_some() {
            whole.push(b'\n');
        }
        out.write_all(&whole)?;
        out.flush()
    }

    /// Moves the present part of a line into `into`, behind the prefix unless it continues a line that is
    /// shown already.
    fn line(&mut self, unfinished: &mut Unfinished, into: &mut Vec<u8>) {
        let at = unfinished.at(self.source.1);
        let goes_on = *at == Some(self.source);
        // Other output has already ended the line that this line feed would end.
        if self.is_returned && self.partial == b"\n" && !goes_on {
            self.partial.clear();
            self.is_returned = false;
            return;
        }
        if !goes_on && at.is_some() {
            into.push(b'\n');
        }
        // After a carriage return the line begins again, unless this is its line feed.
        if !goes_on || (self.is_returned && self.partial != b"\n") {
            into.extend_from_slice(self.prefix.as_deref().unwrap_or_default());
        }
        into.append(&mut self.partial);
        self.is_returned = into.ends_with(b"\r");
        *at = (!into.ends_with(b"\n")).then_some(self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&[u8]]) -> String {
        let (mut lines, mut unfinished, mut out) = (Lines::new((3, 0)), Unfinished::default(), Vec::new());
        for piece in pieces {
            lines
                .push(piece, Instant::now(), &mut unfinished, &mut out)
                .unwrap();
        }
        lines.end(&mut unfinished, &mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(
            passed(&[b"one\ntw", b"o\n", b"", b"three"]),
            "[3] one\n[3] two\n[3] three\n"
        );
        assert_eq!(passed(&[b"\n\n"]), "[3] \n[3] \n");
        assert_eq!(passed(&[]), "");
    }

    #[test]
    fn nothing_of_a_line_is_shown_before_its_end_or_a_pause() {
        let (mut lines, mut unfinished, mut out) = (Lines::new((0, 0)), Unfinished::default(), Vec::new());
        let now = Instant::now();
        lines.push(b"half", now, &mut unfinished, &mut out).unwrap();
        assert_eq!(lines.due(), Some(now + PAUSE));
        lines.show(now, &mut unfinished, &mut out).unwrap();
        assert!(out.is_empty());
        lines
            .push(b" done\nnext", now, &mut unfinished, &mut out)
            .unwrap();
        assert_eq!(out, b"[0] half done\n");
        lines.show(now + PAUSE, &mut unfinished, &mut out).unwrap();
        assert_eq!(out, b"[0] half done\n[0] next");
        assert_eq!(lines.due(), None);
        lines.push(b" one\n", now, &mut unfinished, &mut out).unwrap();
        assert_eq!(out, b"[0] half done\n[0] next one\n");
    }

    #[test]
    fn a_carriage_return_ends_a_line() {
        assert_eq!(passed(&[b"1 %\r2 %\r"]), "[3] 1 %\r[3] 2 %\r\n");
        assert_eq!(passed(&[b"1 %\r", b"2 %\r", b"\n"]), "[3] 1 %\r[3] 2 %\r\n");
        assert_eq!(passed(&[b"\r1 %", b"\r2 %"]), "[3] \r[3] 1 %\r[3] 2 %\n");
        assert_eq!(passed(&[b"a\r\nb\r", b"\nc\r\n"]), "[3] a\r\n[3] b\r\n[3] c\r\n");
    }

    #[test]
    fn other_output_begins_the_next_line() {
        let mut unfinished = Unfinished::default();
        let (mut asks, mut other, mut out) = (Lines::new((0, 0)), Lines::new((1, 0)), Vec::new());
        let (now, later) = (Instant::now(), Instant::now() + 2 * PAUSE);
        asks.push(b"name? ", now, &mut unfinished, &mut out).unwrap();
        asks.show(later, &mut unfinished, &mut out).unwrap();
        other.push(b"hello\n", now, &mut unfinished, &mut out).unwrap();
        asks.push(b"thanks\n", now, &mut unfinished, &mut out).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out),
            "[0] name? \n[1] hello\n[0] thanks\n"
        );
        // On two different outputs nothing interferes.
        let mut error = Lines::new((1, 1));
        asks.push(b"again? ", now, &mut unfinished, &mut out).unwrap();
        asks.show(later, &mut unfinished, &mut out).unwrap();
        let mut elsewhere = Vec::new();
        error
            .push(b"trouble\n", now, &mut unfinished, &mut elsewhere)
            .unwrap();
        assert_eq!(elsewhere, b"[1] trouble\n");
        let mut one = Unfinished {
            is_one: true,
            ..unfinished
        };
        error.push(b"trouble\n", now, &mut one, &mut elsewhere).unwrap();
        assert_eq!(elsewhere, b"[1] trouble\n\n[1] trouble\n");
    }

    #[test]
    fn a_line_feed_behind_other_output_is_no_line_of_its_own() {
        let (mut unfinished, now, mut out) = (Unfinished::default(), Instant::now(), Vec::new());
        let (mut returns, mut other) = (Lines::new((0, 0)), Lines::new((1, 0)));
        returns.push(b"50 %\r", now, &mut unfinished, &mut out).unwrap();
        other.push(b"hello\n", now, &mut unfinished, &mut out).unwrap();
        returns.push(b"\n\n", now, &mut unfinished, &mut out).unwrap();
        let shown = String::from_utf8_lossy(&out);
        assert_eq!(shown, "[0] 50 %\r\n[1] hello\n[0] \n");
    }

    #[test]
    fn endless_lines_and_odd_bytes_are_passed_on() {
        let (mut lines, mut unfinished, mut out) = (Lines::new((3, 0)), Unfinished::default(), Vec::new());
        let now = Instant::now();
        lines
            .push(&[0xff; 3 * LINE_MAX], now, &mut unfinished, &mut out)
            .unwrap();
        lines.end(&mut unfinished, &mut out).unwrap();
        assert_eq!(out.iter().filter(|byte| **byte == 0xff).count(), 3 * LINE_MAX);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 3);
    }

    #[test]
    fn plain_bytes_are_passed_on_at_once() {
        let (mut lines, mut unfinished, mut out) = (Lines::plain((0, 0)), Unfinished::default(), Vec::new());
        lines
            .push(b"a\rb", Instant::now(), &mut unfinished, &mut out)
            .unwrap();
        lines.end(&mut unfinished, &mut out).unwrap();
        assert_eq!((out, lines.due()), (b"a\rb".to_vec(), None));
    }
}

//! The standard output and error, for people and pipes: nothing here panics because a reader went away.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use doorbell_bench::report::printable;
use rustix::event::PollFlags;

use crate::error::ToolError;

/// Writes a text to the standard output.
pub fn print(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(ToolError::Output)
}

/// Whether the standard output has no reader any more: it is a pipe or a socket whose other end is closed.
pub fn is_closed() -> bool {
    let out = io::stdout();
    // A descriptor that cannot be examined now fails when something is written.
    doorbell_fabric::poll::state(&out, PollFlags::empty())
        .is_ok_and(|state| state.intersects(PollFlags::ERR | PollFlags::NVAL))
}

/// Writes one line to the standard error. A failure is ignored: there is nowhere to report it.
pub fn say(line: &str) {
    // Names of files and hosts are others' words: a terminal is not to obey them. A sentence may have lines
    // behind it.
    let lines: Vec<String> = line.split('\n').map(printable).collect();
    // In one write: several ranks may write at once.
    let _ = io::stderr()
        .lock()
        .write_all(format!("{}\n", lines.join("\n")).as_bytes());
}

/// Shows a passing line on the standard error when a person looks at it: the next one is written over it.
pub fn pass(line: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let _ = err.write_all(format!("\r\x1b[K{line}").as_bytes());
    }
}

/// The steps of long work, shown on the standard error when a person looks: which one it is, of how many, and
/// about how long all take from here.
#[derive(Debug)]
pub struct Steps {
    begun: Instant,
    done: u64,
    of: u64,
    /// Seconds that one takes, where that is known before.
    each: Option<f64>,
}

impl Steps {
    /// Counts `of` steps; how long they take is estimated from those that are done.
    pub fn new(of: u64) -> Self {
        Self {
            begun: Instant::now(),
            done: 0,
            of,
            each: None,
        }
    }

    /// Counts `of` steps of `each` seconds.
    pub fn timed(of: u64, each: f64) -> Self {
        Self {
            each: Some(each),
            ..Self::new(of)
        }
    }

    /// Shows the step that begins now.
    pub fn begin(&mut self, what: &str) {
        pass(&self.line(what, self.begun.elapsed().as_secs_f64()));
        self.done += 1;
    }

    /// Returns the line of a step that begins `elapsed` seconds after the first.
    fn line(&self, what: &str, elapsed: f64) -> String {
        let left = self.of.saturating_sub(self.done) as f64;
        let each = self.each.or((self.done > 0).then(|| elapsed / self.done as f64));
        let left = each.map_or_else(String::new, |each| format!(", {}", about(each * left)));
        format!("{} of {}: {what}{left}", self.done + 1, self.of)
    }
}

/// Formats the time that is left.
pub fn about(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        seconds @ 0..120 => format!("about {seconds} s left"),
        seconds @ 120..7_200 => format!("about {} min left", seconds.div_ceil(60)),
        seconds => {
            let minutes = seconds.div_ceil(60);
            format!("about {} h {} min left", minutes / 60, minutes % 60)
        }
    }
}

/// The width for tables: the terminal's, `COLUMNS`, or wide when the output is not read by a person.
pub fn width() -> usize {
    const UNKNOWN: usize = 120;
    known_width().unwrap_or(UNKNOWN)
}

/// The width to wrap at: `COLUMNS`, or the terminal's; none when the output goes elsewhere.
pub fn known_width() -> Option<usize> {
    const LEAST: usize = 40;
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|columns: &usize| *columns > 0);
    let seen = || {
        let out = io::stdout();
        let size = out
            .is_terminal()
            .then(|| rustix::termios::tcgetwinsize(&out).ok())
            .flatten()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    asked.or_else(seen).map(|width| width.max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_say_where_they_are_and_how_long_it_takes() {
        let mut steps = Steps::new(33);
        assert_eq!(steps.line("ranks, 2", 0.0), "1 of 33: ranks, 2");
        steps.begin("ranks, 2");
        assert_eq!(
            steps.line("ranks, 4", 10.0),
            "2 of 33: ranks, 4, about 6 min left"
        );
        let known = Steps::timed(10, 3_600.0);
        assert_eq!(known.line("8 B", 0.0), "1 of 10: 8 B, about 10 h 0 min left");
        assert_eq!(
            (about(461.0), about(0.2)),
            ("about 8 min left".into(), "about 1 s left".into())
        );
    }
}

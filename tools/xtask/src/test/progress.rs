//! One line on the terminal that shows what the running step is doing; nothing without a terminal.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much of the end of a log is read to find its last line.
const TAIL: u64 = 512;

/// How wide the line may be.
const WIDTH: usize = 78;

/// The status line of one step.
#[derive(Debug)]
pub(super) struct Progress {
    step: &'static str,
    log: PathBuf,
    began: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(step: &'static str, log: &Path) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self {
            step,
            log: log.to_owned(),
            began: Instant::now(),
            shown: None,
            terminal,
        }
    }

    /// Shows the last line of the log, at most twice a second.
    pub(super) fn show(&mut self) {
        let recent = self
            .shown
            .is_some_and(|shown| shown.elapsed() < Duration::from_millis(500));
        if !self.terminal || recent {
            return;
        }
        self.shown = Some(Instant::now());
        let line = status(
            self.step,
            self.began.elapsed(),
            &last_line(&self.log).unwrap_or_default(),
        );
        // A terminal that is gone is no reason to end the run.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    /// Takes the line away.
    pub(super) fn clear(&self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn status(step: &str, elapsed: Duration, last: &str) -> String {
    let seconds = elapsed.as_secs();
    let line = format!("{step} {}:{:02}  {}", seconds / 60, seconds % 60, last.trim());
    line.chars()
        .filter(|character| !character.is_control())
        .take(WIDTH)
        .collect()
}

fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_text_is_shown_and_cut_to_the_terminal() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{}\n   Compiling doorbell-ring\n", "x".repeat(2000)).unwrap();
        let last = last_line(file.path()).unwrap();
        assert_eq!(
            status("test", Duration::from_secs(65), &last),
            "test 1:05  Compiling doorbell-ring"
        );
        assert_eq!(
            status("test", Duration::ZERO, &"é\x1b".repeat(200))
                .chars()
                .count(),
            WIDTH
        );
    }
}

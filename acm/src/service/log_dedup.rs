//! The service's log: each warning once, all again after the files changed, and more if `log_level` enables
//! it.

use std::collections::BTreeSet;

use super::LogSink;

/// Distinct errors remembered for de-duplication; bounded, since remote input can create them.
const TROUBLES: usize = 64;

/// Writes log lines, and remembers which it has written.
pub(super) struct Log {
    tell: LogSink,
    /// Warnings that were logged and still hold.
    said: BTreeSet<String>,
    /// Errors that were logged.
    troubles: BTreeSet<String>,
}

impl Log {
    /// Returns a log that takes the warnings in `said` as written already.
    pub(super) fn new(tell: LogSink, said: Vec<String>) -> Self {
        Self {
            tell,
            said: said.into_iter().collect(),
            troubles: BTreeSet::new(),
        }
    }

    /// Writes one line.
    pub(super) fn log(&self, line: &str) {
        (self.tell)(line);
    }

    /// Logs an error, once.
    pub(super) fn trouble(&mut self, line: &str) {
        if self.troubles.len() < TROUBLES && self.troubles.insert(line.to_owned()) {
            (self.tell)(line);
        }
    }

    /// Forgets the errors, so that those that recur after a change are logged again.
    pub(super) fn forget_troubles(&mut self) {
        self.troubles.clear();
    }

    /// Takes all warnings that hold now, and logs those that are new, or all of them with `again`.
    pub(super) fn warn(&mut self, warnings: Vec<String>, again: bool) {
        for line in &warnings {
            if again || !self.said.contains(line) {
                (self.tell)(line);
            }
        }
        self.said = warnings.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn warnings_are_said_once_and_again_when_they_came_back() {
        let (send, heard) = channel();
        let tell = Box::new(move |line: &str| send.send(line.to_owned()).unwrap());
        let mut log = Log::new(tell, vec!["a".to_owned()]);
        let mut warn = |all: &[&str], again| {
            log.warn(all.iter().map(|&line| line.to_owned()).collect(), again);
            heard.try_iter().collect::<Vec<String>>().join(" ")
        };
        assert_eq!(warn(&["a", "b"], false), "b");
        assert_eq!(warn(&["a", "b"], false), "");
        assert_eq!(warn(&["a", "b"], true), "a b");
        assert_eq!(warn(&["a"], false), "");
        assert_eq!(warn(&["a", "b"], false), "b");
    }

    #[test]
    fn what_goes_wrong_is_said_once_and_not_for_ever() {
        let (send, heard) = channel();
        let mut log = Log::new(
            Box::new(move |line: &str| send.send(line.to_owned()).unwrap()),
            Vec::new(),
        );
        for turn in 0..3 * TROUBLES {
            log.trouble("the same");
            log.trouble(&format!("another {turn}"));
        }
        assert_eq!(heard.try_iter().count(), TROUBLES);
        log.forget_troubles();
        log.trouble("the same");
        assert_eq!(heard.try_iter().count(), 1);
    }
}

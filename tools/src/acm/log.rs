//! The destination of the lines of `doorbell acm serve`: `log_file` of its configuration, or standard error.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_acm::config::Logging;
use doorbell_bench::report::printable;

use crate::console;

/// The system's log (syslog(3)).
const SYSLOG: &str = "/dev/log";
/// The priority of a daemon's warning (syslog(3)): facility 3, severity 4.
const WARNING: u8 = 3 << 3 | 4;

/// The destination of log lines.
#[derive(Debug)]
pub(super) struct Log {
    to: Logging,
    /// Whether a write failure has been reported.
    is_lost: AtomicBool,
}

impl Log {
    pub(super) fn of(named: Option<&Logging>) -> Self {
        Self {
            to: named.cloned().unwrap_or(Logging::Stderr),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Writes a line. On failure it goes to standard error, once with the reason.
    pub(super) fn say(&self, line: &str) {
        let line = printable(line);
        let done = match &self.to {
            Logging::Stderr => return console::say(&format!("doorbell: {line}")),
            Logging::Stdout => {
                console::print(&format!("doorbell: {line}\n")).map_err(|error| error.to_string())
            }
            Logging::File(path) => append(path, &line).map_err(|error| error.to_string()),
            Logging::Syslog => send(&line).map_err(|error| error.to_string()),
        };
        if let Err(error) = done {
            if !self.is_lost.swap(true, Ordering::Relaxed) {
                let place = match &self.to {
                    Logging::File(path) => path.display().to_string(),
                    Logging::Syslog => SYSLOG.to_owned(),
                    _ => "stdout".to_owned(),
                };
                console::say(&format!(
                    "doorbell: cannot write the log to {place} ({error}); it continues here, check log_file"
                ));
            }
            console::say(&format!("doorbell: {line}"));
        }
    }
}

/// Opens the file for each line, so that it can be rotated. A pipe without a reader is not waited for.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).custom_flags(flags).open(path)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A single write, so that lines of two services do not mix.
    file.write_all(format!("{}.{:03} doorbell: {line}\n", now.as_secs(), now.subsec_millis()).as_bytes())
}

fn send(line: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let text = format!("<{WARNING}>doorbell-acm[{}]: {line}", std::process::id());
    socket.send_to(text.as_bytes(), SYSLOG).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_to_a_file_and_obeyed_by_no_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::of(Some(&Logging::File(path.clone())));
        log.say("one\u{1b}[2J");
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        log.say("two");
        let old = std::fs::read_to_string(folder.path().join("old")).unwrap();
        assert!(old.contains(" doorbell: one") && !old.contains('\u{1b}'), "{old}");
        let new = std::fs::read_to_string(&path).unwrap();
        assert!(
            new.ends_with(" doorbell: two\n") && new.lines().count() == 1,
            "{new}"
        );
        assert!(!log.is_lost.load(Ordering::Relaxed));
        let nowhere = Log::of(Some(&Logging::File(folder.path().join("no/log"))));
        nowhere.say("three");
        assert!(nowhere.is_lost.load(Ordering::Relaxed));
    }
}

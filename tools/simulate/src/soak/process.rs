//! A process that is watched: its output, its memory and its descriptors. Dropped, it is ended.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// More time than anything takes that is waited for, on a machine with much else to do.
pub(super) const AMPLE: Duration = Duration::from_secs(60);

pub(super) struct Process {
    pub(super) name: String,
    child: Child,
    lines: Receiver<String>,
}

/// What it has at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds {
    /// Resident memory, in KiB.
    pub(super) kib: u64,
    /// Descriptors that are open.
    pub(super) descriptors: usize,
}

impl Process {
    /// Starts it; its errors are shown as they come.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
        let (tell, lines) = channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            name: name.to_owned(),
            child,
            lines,
        })
    }

    /// Waits for the next line of its output.
    pub(super) fn says(&self) -> Result<String, String> {
        self.lines.recv_timeout(AMPLE).map_err(|why| match why {
            RecvTimeoutError::Timeout => format!("{} prints nothing", self.name),
            RecvTimeoutError::Disconnected => format!("{} has ended, for the reason above", self.name),
        })
    }

    /// Returns the last line of its output since the last call.
    pub(super) fn last(&self) -> Option<String> {
        self.lines.try_iter().last()
    }

    /// Its memory and descriptors; nothing of one that has ended.
    pub(super) fn holds(&self) -> Option<Holds> {
        let root = format!("/proc/{}", self.child.id());
        let status = std::fs::read_to_string(format!("{root}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib = line.split_whitespace().next()?.parse().ok()?;
        let descriptors = std::fs::read_dir(format!("{root}/fd")).ok()?.count();
        Some(Holds { kib, descriptors })
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<i32>, String> {
        let status = self
            .child
            .try_wait()
            .map_err(|error| format!("{}: {error}", self.name))?;
        Ok(status.map(|status| status.code().unwrap_or(-1)))
    }

    pub(super) fn terminate(&self) {
        // One that has ended gets no signal.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Its exit status, which is there soon.
    pub(super) fn end(&mut self) -> Result<i32, String> {
        let by = Instant::now() + AMPLE;
        while Instant::now() < by {
            if let Some(code) = self.ended()? {
                return Ok(code);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{} does not end", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

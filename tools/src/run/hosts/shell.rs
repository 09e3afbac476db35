//! Daemons on other hosts, by `ssh` or whatever does as it does: words, then the host, then the command.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use doorbell_fabric::error::advice;
use doorbell_fabric::process::spawn;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::plane;
use super::protocol::{Birth, write};
use crate::error::ToolError;
use crate::run::{limits, stopped};

/// One of our daemons, as far as this host knows it.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) rank: u32,
    child: Child,
    /// Readable when it has ended; nothing where the system gives no such descriptor: then SIGCHLD reports
    /// the end.
    end: Option<OwnedFd>,
    host: String,
    /// The words of the remote shell.
    words: String,
    is_buried: bool,
    /// Passes the birth on, and keeps the line open: its end is the daemon's, too.
    writer: Option<JoinHandle<Option<std::process::ChildStdin>>>,
}

impl Shell {
    /// Starts the daemon `birth.rank`, without a remote shell if `is_here` returns true for its host.
    pub(super) fn start(birth: &Birth, is_here: impl FnOnce(&str) -> bool) -> Result<Self, ToolError> {
        let host = plane::host(birth).to_owned();
        let mut command = match birth.shell.split_first() {
            Some((program, words)) if !is_here(&host) => {
                let mut command = Command::new(program);
                command.args(words).arg(&host).args([&birth.doorbell, "daemon"]);
                command
            }
            _ => {
                let mut command = Command::new(&birth.doorbell);
                command.arg("daemon");
                command
            }
        };
        let shown = format!("{command:?}");
        command
            // Ctrl-C is for the launcher, which passes it on; it would end the remote shells at once.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = spawn(&mut command).map_err(|error| {
            let advice = advice(&error).unwrap_or("--rsh names another remote shell");
            ToolError::Usage(format!(
                "could not run `{shown}` for host `{host}`: {error}; {advice}"
            ))
        })?;
        let process = Pid::from_child(&child);
        // Before it has its identity.
        limits::restore_of(process);
        let end = pidfd_open(process, PidfdFlags::empty())
            .map_err(limits::say_unwatched)
            .ok();
        let stdin = child.stdin.take();
        let mut line = write(birth);
        line.push(b'\n');
        let writer = std::thread::Builder::new()
            .name("birth".to_owned())
            .spawn(move || {
                // A shell that does not read it has ended, or its end will give the reason.
                stdin.and_then(|mut stdin| stdin.write_all(&line).ok().map(|()| stdin))
            });
        let writer = writer.map_err(|source| ToolError::System {
            what: "start a thread",
            source,
        })?;
        Ok(Self {
            rank: birth.rank,
            child,
            end,
            host,
            words: birth.shell.join(" "),
            is_buried: false,
            writer: Some(writer),
        })
    }

    /// Returns how it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        self.is_buried = true;
        Some(status.to_string())
    }

    /// Whether [`Shell::ended`] has returned its end.
    pub(super) fn is_buried(&self) -> bool {
        self.is_buried
    }

    /// Readable when it has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(AsFd::as_fd)
    }

    /// A child of this process was stopped by this signal: the sentence about it, if it is this one.
    pub(super) fn stopped(&self, process: Pid, signal: i32) -> Option<String> {
        let own = Pid::from_child(&self.child);
        let is_this = own == process && !self.is_buried;
        is_this.then(|| stopped::shell(&self.host, &self.words, own, signal))
    }

    /// Kills the remote shell.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.hang_up();
    }

    /// Closes its standard input: a daemon that has not ended does so then.
    pub(super) fn hang_up(&mut self) {
        if let Some(writer) = self.writer.take().filter(JoinHandle::is_finished) {
            drop(writer.join());
        }
    }
}

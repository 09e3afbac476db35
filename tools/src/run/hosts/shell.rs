//! Daemons on other hosts, by `ssh` or whatever does as it does: words, then the host, then the command.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::words::{Birth, write};
use crate::error::ToolError;

/// A daemon of ours, as far as this host knows it.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) rank: u32,
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    is_buried: bool,
    /// Passes the birth on, and keeps the line open: its end is the daemon's, too.
    writer: Option<JoinHandle<Option<std::process::ChildStdin>>>,
}

/// Hosts that are this one, where no remote shell is needed.
pub(super) fn is_here(host: &str) -> bool {
    let own = rustix::system::uname();
    host == "localhost" || own.nodename().to_str().is_ok_and(|own| own == host)
}

impl Shell {
    /// Starts the daemon `birth.rank`.
    pub(super) fn start(birth: &Birth) -> Result<Self, ToolError> {
        let host = birth
            .hosts
            .get(birth.rank as usize - 1)
            .cloned()
            .unwrap_or_default();
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
        let mut child = command
            // Ctrl-C is for the launcher, which passes it on; it would end the remote shells at once.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                ToolError::Usage(format!(
                    "could not run `{shown}` for host `{host}`: {error}; --rsh names another remote shell"
                ))
            })?;
        let end = Pid::from_raw(child.id() as i32)
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let end = end.map_err(|errno| {
            let _ = child.kill();
            let _ = child.wait();
            ToolError::System {
                what: "watch a remote shell",
                source: errno.into(),
            }
        })?;
        let stdin = child.stdin.take();
        let mut line = write(birth);
        line.push(b'\n');
        let writer = std::thread::Builder::new()
            .name("birth".to_owned())
            .spawn(move || {
                // One that does not read it has ended, or will say why it does.
                stdin.and_then(|mut stdin| stdin.write_all(&line).ok().map(|()| stdin))
            });
        let writer = writer.map_err(|source| ToolError::System {
            what: "start a thread (check `ulimit -u`)",
            source,
        })?;
        Ok(Self {
            rank: birth.rank,
            child,
            end,
            is_buried: false,
            writer: Some(writer),
        })
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        self.is_buried = true;
        Some(status.to_string())
    }

    /// Whether [`Shell::ended`] has told its end.
    pub(super) fn is_buried(&self) -> bool {
        self.is_buried
    }

    /// Readable when it has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Ends it, now.
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

//! One rank of this host: its process, from its start to its end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use doorbell_fabric::process::spawn;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGXCPU, SIGXFSZ};

use super::{limits, stopped};
use crate::error::ToolError;

/// Variables of an outer launcher that would mislead a rank about its PMI line.
pub(super) const STRANGE: [&str; 8] = [
    "DOORBELL_SPAWNED",
    "DOORBELL_INVITATION",
    "PMI_SPAWNED",
    "PMI_PORT",
    "PMI_ID",
    "PMI_JOBID",
    "PMI2_FD",
    "HYDI_CONTROL_FD",
];
/// Variables that are removed for ranks identified only by their PMI line.
pub(super) const STRANGE_TO_SPAWNED: [&str; 13] = [
    STRANGE[0],
    STRANGE[1],
    STRANGE[2],
    STRANGE[3],
    STRANGE[4],
    STRANGE[5],
    STRANGE[6],
    STRANGE[7],
    "DOORBELL_RANK",
    "DOORBELL_SIZE",
    "DOORBELL_LAUNCH",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
];

/// A process to be started.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    pub(super) rank: u32,
    pub(super) program: &'a OsString,
    pub(super) args: &'a [OsString],
    /// Variables to add.
    pub(super) variables: Vec<(String, OsString)>,
    /// Variables to remove.
    pub(super) without: &'a [&'a str],
    /// The cores it is bound to, if any.
    pub(super) cores: Vec<usize>,
    /// Its working directory; `None` for ours.
    pub(super) folder: Option<PathBuf>,
    pub(super) stdin: Stdio,
    /// Whether its output comes to us.
    pub(super) is_piped: bool,
    /// A descriptor that it inherits, under the same number.
    pub(super) inherits: Option<OwnedFd>,
}

/// A rank that was started.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) number: u32,
    child: Child,
    pub(super) group: Pid,
    /// Readable when the process has ended; or the reason why the system gives no such descriptor: then
    /// SIGCHLD reports the end.
    pub(super) end: Result<OwnedFd, Errno>,
    /// Its standard input, if that is one of our pipes.
    pub(super) input: Option<ChildStdin>,
    pub(super) out: Option<ChildStdout>,
    pub(super) err: Option<ChildStderr>,
    pub(super) ended: bool,
    /// Whether it was stopped, and may still be.
    is_stopped: bool,
}

/// How a rank failed, or the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) how: String,
}

impl Rank {
    pub(super) fn start(spec: Spec<'_>) -> Result<Self, ToolError> {
        let rank = spec.rank;
        let failed = |what| move |source| ToolError::Start { rank, what, source };
        let own = std::env::current_exe().map_err(failed("find this program"))?;
        // This path works even if the program's file was replaced or removed since the start.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(own)
            .arg("exec-rank")
            .args(["--launcher", &std::process::id().to_string()]);
        if !spec.cores.is_empty() {
            let cores: Vec<String> = spec.cores.iter().map(usize::to_string).collect();
            command.args(["--cores", &cores.join(",")]);
        }
        if let Some(files) = limits::open_files() {
            command.args(["--open-files", &files.to_string()]);
        }
        command.arg("--").arg(spec.program).args(spec.args);
        for name in spec.without {
            command.env_remove(name);
        }
        command
            .envs(doorbell::config::warned_variables())
            .envs(spec.variables)
            .process_group(0)
            .stdin(spec.stdin);
        if let Some(folder) = spec.folder {
            command.current_dir(folder);
        }
        if spec.is_piped {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if let Some(inherits) = &spec.inherits {
            rustix::io::fcntl_setfd(inherits, FdFlags::empty())
                .map_err(|errno| failed("pass a descriptor to it")(errno.into()))?;
        }
        let mut child = spawn(&mut command).map_err(failed("create a process"))?;
        // No other process inherits it.
        drop(spec.inherits);
        let group = Pid::from_child(&child);
        let end = rustix::process::pidfd_open(group, PidfdFlags::empty());
        Ok(Self {
            number: rank,
            input: child.stdin.take(),
            out: child.stdout.take(),
            err: child.stderr.take(),
            child,
            group,
            end,
            ended: false,
            is_stopped: false,
        })
    }

    /// Returns what to wait for, until it has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        let end = self.end.as_ref().ok().filter(|_| !self.ended);
        end.map(AsFd::as_fd)
    }

    /// Records a stop; returns the message about it, if the process is this one.
    pub(super) fn stopped(&mut self, process: Pid, signal: i32) -> Option<String> {
        let is_this = process == self.group && !self.ended;
        self.is_stopped |= is_this;
        is_this.then(|| stopped::rank(self.number, self.group, signal))
    }

    /// Takes its end, if it has ended: `None` for a regular one.
    pub(super) fn reap(&mut self) -> io::Result<Option<Failure>> {
        let peeked = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = match self.ended {
            true => None,
            false => rustix::process::waitid(WaitId::Pid(self.group), peeked)?,
        };
        let Some(ended) = ended else { return Ok(None) };
        if ended.exit_status() != Some(0) {
            // End what a failed rank started, before the wait, while the number is still its own.
            let _ = rustix::process::kill_process_group(self.group, Signal::TERM);
        }
        let status = self.child.wait()?;
        self.ended = true;
        let code = code_of(status);
        Ok((code != 0).then(|| Failure {
            code,
            how: format!("rank {} {}", self.number, how(status)),
        }))
    }

    /// Waits for its end, whatever it is.
    pub(super) fn bury(&mut self) {
        let _ = self.child.wait();
        self.ended = true;
    }

    /// Sends a signal to it and to what it started, if it has not ended.
    pub(super) fn signal(&self, signal: Signal) {
        if !self.ended {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process_group(self.group, signal);
            // A stopped process ends only by SIGKILL.
            if self.is_stopped && ![Signal::STOP, Signal::KILL, Signal::CONT].contains(&signal) {
                let _ = rustix::process::kill_process_group(self.group, Signal::CONT);
            }
        }
    }
}

/// Returns the limit that the system enforces by this signal.
fn limit_of(signal: i32) -> &'static str {
    match signal {
        SIGXFSZ => ": it wrote a file beyond the limit of file sizes (`ulimit -f`)",
        SIGXCPU => ": it used more processor time than it may (`ulimit -t`)",
        _ => "",
    }
}

/// Returns the exit status that a shell would show.
fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("an unnamed signal");
            let core = if status.core_dumped() {
                " and left a core file"
            } else {
                ""
            };
            format!("was killed by {name} ({signal}){core}{}", limit_of(signal))
        }
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

//! The reaper: a sleeping process beside the launcher that ends what the ranks started when the launcher is
//! killed.
//!
//! The kernel ends the ranks with the launcher (by their parent-death signal), but what they started lives
//! on. The reaper holds the other end of a pipe: if it closes without a message, the launcher is gone. Then
//! every process of the job is ended, found by the process group of a rank, or by the job's name in its
//! environment, which `fork`, `setsid` and daemons' double forks all inherit. Not found are processes that
//! left both, processes of another user, and processes on a machine without /proc.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_fabric::process::spawn;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::ToolError;
use crate::process::FOLDER;
use crate::run::args::KeepArgs;

/// Message: the number of a process group that has ended.
const FORGET_WORD: &str = "forget ";
/// Message: the path of a folder.
const FOLDER_WORD: &str = "folder ";
/// Message: the launcher has cleaned up itself.
const DONE: &str = "done";
/// A process that cannot be ended, such as one in the middle of a system call, is given up after this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between two checks for remaining processes.
const LOOK: Duration = Duration::from_millis(20);

/// The launcher's end of the reaper.
#[derive(Debug)]
pub(crate) struct Reaper {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Reaper {
    /// Starts the reaper of a job.
    pub(crate) fn start(root: &str) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["keep-job", "--root", root])
            // Signals to the launcher's group, and the reaper of an outer job, must not reach it.
            .process_group(0)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = spawn(&mut command)?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Adds a rank's process group to the job.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.send(&group.as_raw_nonzero().to_string());
    }

    /// Removes a rank's process group that has ended, since its number may be reused.
    pub(crate) fn forget(&mut self, group: Pid) {
        self.send(&format!("{FORGET_WORD}{}", group.as_raw_nonzero()));
    }

    /// Adds a folder to the job: it is removed when the launcher is killed.
    pub(crate) fn watch_folder(&mut self, folder: &Path) {
        // A name that the reaper could misread is left out.
        if let Some(name) = folder.to_str().filter(|name| !name.contains('\n')) {
            self.send(&format!("{FOLDER_WORD}{name}"));
        }
    }

    fn send(&mut self, word: &str) {
        if let Some(pipe) = &mut self.pipe {
            // If the reaper was killed, nothing is cleaned up; the job itself does not need it.
            let _ = pipe.write_all(format!("{word}\n").as_bytes());
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.send(DONE);
        self.pipe = None;
        let _ = self.child.wait();
    }
}

/// `keep-job`: waits for the launcher's end.
pub(crate) fn keep_job(args: &KeepArgs) -> Result<ExitCode, ToolError> {
    let (mut groups, mut folders) = (Vec::new(), Vec::new());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if line == DONE {
            return Ok(Exit::Done.into());
        }
        if let Some(folder) = line.strip_prefix(FOLDER_WORD) {
            folders.push(PathBuf::from(folder));
        } else if let Some(gone) = line.strip_prefix(FORGET_WORD) {
            groups.retain(|group| Some(*group) != number(gone));
        } else {
            groups.extend(number(&line));
        }
    }
    let until = Instant::now() + PATIENCE;
    let kept = JobProcesses::new(&args.root, groups);
    while kept.signal(Signal::KILL) > 0 && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    for folder in folders.iter().filter(|folder| is_temporary(folder)) {
        // There is nowhere to report a failure.
        let _ = fs::remove_dir_all(folder);
    }
    Ok(Exit::Done.into())
}

/// Whether a folder is one that the launcher creates for itself.
fn is_temporary(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str);
    folder.is_absolute() && name.is_some_and(|name| name.starts_with(FOLDER))
}

/// Identifies the processes of a job.
#[derive(Debug)]
pub(crate) struct JobProcesses {
    /// The job's entry in their environment.
    mark: Vec<u8>,
    /// The process groups of the ranks, and their session.
    groups: Vec<Pid>,
    session: Option<Pid>,
}

impl JobProcesses {
    pub(crate) fn new(root: &str, groups: Vec<Pid>) -> Self {
        Self {
            mark: format!("DOORBELL_ROOT={root}").into_bytes(),
            groups,
            session: own_session(),
        }
    }

    /// Ends what is left of the job, with SIGTERM and after `grace` with SIGKILL.
    pub(crate) fn end(&self, grace: Duration) {
        let begun = Instant::now();
        let mut signal = Signal::TERM;
        while self.signal(signal) > 0 && begun.elapsed() < grace + PATIENCE {
            std::thread::sleep(LOOK);
            if begun.elapsed() >= grace {
                signal = Signal::KILL;
            }
        }
    }

    /// Sends a signal to every process of the job; returns their number.
    fn signal(&self, signal: Signal) -> usize {
        let Ok(entries) = fs::read_dir("/proc") else {
            return 0;
        };
        let own = rustix::process::getpid();
        entries
            .flatten()
            .filter_map(|entry| number(entry.file_name().to_str()?))
            .filter(|pid| *pid != own && self.is_ours(*pid))
            .filter(|pid| {
                // Open the descriptor first, then check again: the number may have been reused.
                match rustix::process::pidfd_open(*pid, PidfdFlags::empty()) {
                    Ok(process) => {
                        self.is_ours(*pid) && rustix::process::pidfd_send_signal(process, signal).is_ok()
                    }
                    // It has ended meanwhile.
                    Err(Errno::SRCH) => false,
                    // The system has no descriptors for processes.
                    Err(_) => rustix::process::kill_process(*pid, signal).is_ok(),
                }
            })
            .count()
    }

    fn is_ours(&self, pid: Pid) -> bool {
        let pid = pid.as_raw_nonzero();
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            return false;
        };
        let Some((state, group, session)) = fields(&stat) else {
            return false;
        };
        if matches!(state, 'Z' | 'X') {
            return false;
        }
        let grouped = session == self.session && group.is_some_and(|group| self.groups.contains(&group));
        let marked = || {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == self.mark)
        };
        grouped || marked()
    }
}

/// Parses the number of a process or a group; rejects the -1 of a process that is exiting.
fn number(text: &str) -> Option<Pid> {
    let number = text.parse().ok().filter(|number: &i32| *number > 0)?;
    Pid::from_raw(number)
}

/// Returns the session, which the ranks share since they are started in it. `None` if its leader is outside
/// of the pid namespace, as in a container: the kernel then returns 0, which rustix's `getsid` takes for an
/// error.
fn own_session() -> Option<Pid> {
    let (_, _, session) = fields(&fs::read_to_string("/proc/self/stat").ok()?)?;
    session
}

/// Parses state, process group and session from /proc/PID/stat, whose second field may contain anything.
fn fields(stat: &str) -> Option<(char, Option<Pid>, Option<Pid>)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let mut number = |skipped| fields.nth(skipped).and_then(number);
    Some((state, number(1), number(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_of_processes_do_not_confuse() {
        let found = fields("7 (a) S 1 (x) S 3 42 41 0 -1\n");
        assert_eq!(found, Some(('S', Pid::from_raw(42), Pid::from_raw(41))));
        assert_eq!(fields("7 (sh"), None);
        assert_eq!(fields("7 (sh) X 1 -1 -1 0"), Some(('X', None, None)));
    }

    #[test]
    fn only_folders_of_our_own_are_removed() {
        assert!(is_temporary(Path::new("/tmp/doorbell-place-x1")));
        for other in [
            "/tmp",
            "/",
            "doorbell-place-x1",
            "/home/doorbell-place-x1/..",
            "/tmp/doorbell",
        ] {
            assert!(!is_temporary(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_process_is_known_by_its_environment_alone() {
        let root = format!("@doorbell-test-{}", std::process::id());
        let mut child = Command::new("setsid")
            .args(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.05; done"])
            .env("DOORBELL_ROOT", &root)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        io::BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let other = JobProcesses::new("@doorbell-of-somebody-else", Vec::new());
        assert_eq!(other.signal(Signal::KILL), 0);
        JobProcesses::new(&root, Vec::new()).end(Duration::from_millis(100));
        assert!(!child.wait().unwrap().success());
    }
}

//! Running a program under a time limit, its output in a file, and nothing of it left behind.
//!
//! A child gets a process group of its own, and we are the subreaper: whatever it leaves running, even in a session
//! of its own, becomes our child and is ended with it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::Error;

/// How often a running child is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Exit(ExitStatus),
    /// It was still running at its limit, and was killed.
    TimedOut,
}

/// Starts children, one at a time.
///
/// At the end of each child, all other children of this process are ended too: a process has one nursery, and starts
/// nothing beside it.
#[derive(Debug)]
pub struct Nursery {
    interrupted: Arc<AtomicBool>,
}

impl Nursery {
    /// Takes over SIGINT, SIGTERM and SIGHUP, so that children die with us.
    pub fn new() -> Result<Self, Error> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(Error::Signals)?;
        }
        // Where this is refused, processes in foreign sessions are not swept; nothing else is lost.
        let _ = process::set_child_subreaper(Some(process::getpid()));
        Ok(Self { interrupted })
    }

    /// Runs `command` with no input and with both outputs in `log`, for at most `bound`.
    ///
    /// `watch` is called every 50 ms with the time since the start.
    pub fn run(
        &self,
        command: &mut Command,
        log: &File,
        bound: Duration,
        watch: &mut dyn FnMut(Duration),
    ) -> Result<Ended, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let start = |source| Error::Start { program, source };
        let (out, err) = match (log.try_clone(), log.try_clone()) {
            (Ok(out), Ok(err)) => (out, err),
            (Err(error), _) | (_, Err(error)) => return Err(start(error)),
        };
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let began = Instant::now();
        let mut child = command.spawn().map_err(start)?;
        let group = Pid::from_child(&child);
        let timed_out = loop {
            if has_ended(group) {
                break false;
            }
            if began.elapsed() >= bound {
                break true;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                sweep(&mut child, group);
                return Err(Error::Interrupted(began.elapsed()));
            }
            watch(began.elapsed());
            std::thread::sleep(LOOK);
        };
        let status = sweep(&mut child, group);
        match status {
            Some(status) if !timed_out => Ok(Ended::Exit(status)),
            _ => Ok(Ended::TimedOut),
        }
    }
}

/// Whether the child has ended; it is not reaped, so that its group's number stays its own.
fn has_ended(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(process::waitid(WaitId::Pid(child), options), Ok(None))
}

/// Kills the child's whole group, reaps the child, then kills whatever it left to us.
fn sweep(child: &mut Child, group: Pid) -> Option<ExitStatus> {
    // Failing means that the group is empty already.
    let _ = process::kill_process_group(group, Signal::KILL);
    let status = child.wait().ok();
    // Each killed orphan may hand us its own children: a few rounds, never without end.
    for _ in 0..20 {
        while let Ok(Some(_)) = process::wait(WaitOptions::NOHANG) {}
        let orphans = children();
        if orphans.is_empty() {
            break;
        }
        for orphan in orphans {
            let _ = process::kill_process(orphan, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    status
}

/// The processes whose parent we are.
fn children() -> Vec<Pid> {
    let us = process::getpid().as_raw_nonzero().get();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // proc(5): the name in parentheses may hold anything; state and parent follow it.
            let parent: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            (parent == us).then(|| Pid::from_raw(pid)).flatten()
        })
        .collect()
}

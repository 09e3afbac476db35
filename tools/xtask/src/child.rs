//! Running a program under a time limit, its output in a file, and nothing of it left behind.
//!
//! A child gets a process group of its own, and we are the subreaper: whatever it leaves running, even in a
//! session of its own, becomes our child and is ended with it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::signals::{self, ENDS, IGNORED};
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions, WaitOptions};

use crate::error::Error;

/// How often a running child is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long a child beside others may take to end what it started, when no caller waits for it any more.
const LEAVE: Duration = Duration::from_secs(5);

/// How a child ended.
#[derive(Debug)]
pub enum Ended {
    /// It ended by itself.
    Exit(ExitStatus),
    /// It was still running at its limit, and was killed.
    TimedOut,
}

/// Starts children, one at a time, and some that run beside them.
///
/// At the end of each child, all other children of this process are ended too, except those that run beside
/// it: a process has one nursery, and starts nothing by other means.
#[derive(Debug)]
pub struct Nursery {
    interrupted: Arc<AtomicBool>,
    /// The children that are not ended with the others.
    spared: Mutex<Vec<Pid>>,
}

/// One of several programs that run side by side.
#[derive(Debug)]
pub struct Lane {
    /// The program with its arguments.
    pub command: Command,
    /// The file to which both of its outputs go.
    pub log: File,
    /// How much it gives way to the others, as nice(1) counts: 0 is not at all.
    pub nice: i32,
}

/// A child that runs beside others, until it is waited for or dropped.
#[derive(Debug)]
pub struct Beside<'n> {
    nursery: &'n Nursery,
    child: Child,
    began: Instant,
    bound: Duration,
}

impl Nursery {
    /// Takes over SIGINT, SIGTERM and SIGHUP, so that children die with us. What we ignore ourselves, as a
    /// command in the background does, has its effect in children: they are tested by it.
    pub fn new() -> Result<Self, Error> {
        let interrupted = Arc::new(AtomicBool::new(false));
        signals::set_flag_on(&ENDS, &interrupted).map_err(Error::Signals)?;
        signals::default_in_children(&IGNORED).map_err(Error::Signals)?;
        // If this is refused, processes in foreign sessions are not swept; nothing else is lost.
        let _ = process::set_child_subreaper(Some(process::getpid()));
        Ok(Self {
            interrupted,
            spared: Mutex::new(Vec::new()),
        })
    }

    /// Starts `command` as [`Nursery::run`] does, and does not wait for it.
    pub fn beside(&self, command: &mut Command, log: &File, bound: Duration) -> Result<Beside<'_>, Error> {
        let child = start(command, log)?;
        self.list().push(Pid::from_child(&child));
        Ok(Beside {
            nursery: self,
            child,
            began: Instant::now(),
            bound,
        })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.spared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spared(&self) -> Vec<Pid> {
        self.list().clone()
    }

    /// Removes a child from those that are spared.
    fn claim(&self, child: &Child) {
        let pid = Pid::from_child(child);
        self.list().retain(|spared| *spared != pid);
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
        let began = Instant::now();
        let mut child = start(command, log)?;
        self.wait(&mut child, (began, bound), watch)
    }

    /// Runs programs side by side, each as [`Nursery::run`] does; returns how each ended. Processes that they
    /// started and left to us are ended when the last of them has ended.
    ///
    /// `watch` is called every 50 ms with the number of those that still run.
    pub fn together(
        &self,
        lanes: Vec<Lane>,
        bound: Duration,
        watch: &mut dyn FnMut(usize),
    ) -> Result<Vec<Ended>, Error> {
        self.side_by_side(lanes, (bound, bound), watch)
    }

    /// Runs programs side by side as [`Nursery::together`] does. Those that still run `grace` after the first
    /// lane ended are killed.
    pub fn led(
        &self,
        lanes: Vec<Lane>,
        (bound, grace): (Duration, Duration),
        watch: &mut dyn FnMut(usize),
    ) -> Result<Vec<Ended>, Error> {
        self.side_by_side(lanes, (bound, grace), watch)
    }

    fn side_by_side(
        &self,
        lanes: Vec<Lane>,
        (bound, grace): (Duration, Duration),
        watch: &mut dyn FnMut(usize),
    ) -> Result<Vec<Ended>, Error> {
        let mut deadline = Instant::now() + bound;
        let mut is_led = true;
        let mut running = Vec::new();
        for Lane {
            mut command,
            log,
            nice,
        } in lanes
        {
            let child = self.beside(&mut command, &log, bound)?;
            child.yield_to_others(nice);
            running.push((child, None));
        }
        while running.iter().any(|(_, ended)| ended.is_none()) {
            if self.interrupted.load(Ordering::Relaxed) {
                // Each that is dropped is ended.
                return Err(Error::Interrupted(bound.saturating_sub(left(deadline))));
            }
            let is_late = left(deadline).is_zero();
            for (lane, ended) in running.iter_mut().filter(|(_, ended)| ended.is_none()) {
                *ended = lane.look(is_late);
            }
            if is_led && running.first().is_some_and(|(_, ended)| ended.is_some()) {
                is_led = false;
                deadline = deadline.min(Instant::now() + grace);
            }
            watch(running.iter().filter(|(_, ended)| ended.is_none()).count());
            std::thread::sleep(LOOK);
        }
        sweep(&self.spared());
        Ok(running.into_iter().filter_map(|(_, ended)| ended).collect())
    }

    fn wait(
        &self,
        child: &mut Child,
        (began, bound): (Instant, Duration),
        watch: &mut dyn FnMut(Duration),
    ) -> Result<Ended, Error> {
        let group = Pid::from_child(child);
        let timed_out = loop {
            if has_ended(group) {
                break false;
            }
            if began.elapsed() >= bound {
                break true;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                end(child, group);
                sweep(&self.spared());
                return Err(Error::Interrupted(began.elapsed()));
            }
            watch(began.elapsed());
            std::thread::sleep(LOOK);
        };
        let status = end(child, group);
        sweep(&self.spared());
        Ok(Ended::of(status, timed_out))
    }
}

impl Ended {
    fn of(status: Option<ExitStatus>, timed_out: bool) -> Self {
        match status {
            Some(status) if !timed_out => Self::Exit(status),
            _ => Self::TimedOut,
        }
    }
}

impl Beside<'_> {
    /// Lets it, and what it starts from now on, yield to others, as nice(1) counts.
    pub fn yield_to_others(&self, nice: i32) {
        // If this is refused, it does not yield to others.
        let _ = process::setpriority_process(Some(Pid::from_child(&self.child)), nice);
    }

    /// Waits for it, as [`Nursery::run`] does; its time counts from its start.
    pub fn wait(mut self, watch: &mut dyn FnMut(Duration)) -> Result<Ended, Error> {
        self.nursery.claim(&self.child);
        self.nursery
            .wait(&mut self.child, (self.began, self.bound), watch)
    }

    /// Whether it has ended, or has to, and how; what it left to us stays.
    fn look(&mut self, is_late: bool) -> Option<Ended> {
        let group = Pid::from_child(&self.child);
        let has_ended = has_ended(group);
        if !has_ended && !is_late {
            return None;
        }
        self.nursery.claim(&self.child);
        Some(Ended::of(end(&mut self.child, group), !has_ended))
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.nursery.claim(&self.child);
        // Once it was waited for, nothing is left, and its number may be another's.
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = Pid::from_child(&self.child);
            // It had better end its own children.
            let _ = process::kill_process_group(group, Signal::TERM);
            let asked = Instant::now();
            while !has_ended(group) && asked.elapsed() < LEAVE {
                std::thread::sleep(LOOK);
            }
            end(&mut self.child, group);
            sweep(&self.nursery.spared());
        }
    }
}

/// Starts a program in a group of its own, without input.
fn start(command: &mut Command, log: &File) -> Result<Child, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |source| Error::Start {
        program: program.clone(),
        source,
    };
    let out = log.try_clone().map_err(failed)?;
    let err = log.try_clone().map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0);
    command.spawn().map_err(failed)
}

/// Whether the child has ended; it is not reaped, so that its group's number stays its own.
fn has_ended(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(process::waitid(WaitId::Pid(child), options), Ok(None))
}

/// Returns the time that is left until `deadline`.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Kills the child's whole group, and reaps the child.
fn end(child: &mut Child, group: Pid) -> Option<ExitStatus> {
    // Failing means that the group is empty already.
    let _ = process::kill_process_group(group, Signal::KILL);
    child.wait().ok()
}

/// How long what was killed may take to be gone.
const SWEEP: Duration = Duration::from_secs(5);

/// Kills whatever children left to us, but for those.
fn sweep(spared: &[Pid]) {
    // Each killed orphan may hand us its own children, and on a busy machine takes its time to die: never
    // without end.
    let begun = Instant::now();
    while begun.elapsed() < SWEEP {
        let mut orphans = children();
        orphans.retain(|orphan| !spared.contains(orphan));
        if orphans.is_empty() {
            break;
        }
        for orphan in orphans {
            let _ = process::kill_process(orphan, Signal::KILL);
            // One that takes longer is looked at again in the next round.
            let _ = process::waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the processes whose parent we are.
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

//! What a job waits for, in one poll: ends and stops of ranks, their output, and signals to the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use doorbell_fabric::poll::timespec;
use doorbell_fabric::signals;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

/// Signals that end the job.
const ENDS: [(i32, Signal); 4] = [
    (SIGINT, Signal::INT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGQUIT, Signal::QUIT),
];

/// The signals that the launcher passes on.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, UnixStream)>);

impl Signals {
    /// Catches the signals from now on, except those that are ignored already.
    pub(crate) fn catch() -> io::Result<Self> {
        let stop = [(SIGTSTP, Signal::TSTP)];
        Self::catch_all(ENDS.into_iter().chain(stop))
    }

    /// Catches the signals except Ctrl-Z, which keeps its default action.
    pub(crate) fn catch_ends() -> io::Result<Self> {
        Self::catch_all(ENDS.into_iter())
    }

    fn catch_all(all: impl Iterator<Item = (i32, Signal)>) -> io::Result<Self> {
        let mut caught = Vec::new();
        for (number, signal) in all {
            let (ours, handlers) = pair()?;
            if signals::write_to(number, handlers)?.is_some() {
                caught.push((signal, ours));
            }
        }
        Ok(Self(caught))
    }

    /// Returns the descriptors to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(_, stream)| stream.as_fd())
    }

    /// Returns the signals that arrived since the last call.
    pub(crate) fn arrived(&mut self) -> Vec<Signal> {
        self.0
            .iter_mut()
            .filter_map(|(signal, stream)| drained(stream).then_some(*signal))
            .collect()
    }
}

/// Children of this process, whose ends and stops the system reports by SIGCHLD.
#[derive(Debug)]
pub(crate) struct Children(UnixStream);

impl Children {
    /// Starts to receive their reports.
    pub(crate) fn watch() -> io::Result<Self> {
        let (ours, handlers) = pair()?;
        signals::on_children(handlers)?;
        Ok(Self(ours))
    }

    /// Readable when one has ended or was stopped.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns those that were stopped since the last call and have not continued, each with the number of
    /// the signal.
    pub(crate) fn stopped(&mut self) -> Vec<(Pid, i32)> {
        drained(&mut self.0);
        let mut stopped = Vec::new();
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        while let Ok(WaitStatus::Stopped(pid, signal)) = waitid(Id::All, flags) {
            stopped.extend(Pid::from_raw(pid.as_raw()).map(|pid| (pid, signal as i32)));
        }
        stopped
    }
}

/// Creates the end to be read, and the one that a handler writes to.
fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours, handlers))
}

/// Reads everything; returns whether there was anything.
fn drained(stream: &mut UnixStream) -> bool {
    let mut any = false;
    while matches!(io::Read::read(stream, &mut [0; 64]), Ok(1..)) {
        any = true;
    }
    any
}

/// Waits until one of the descriptors is ready or the time is over; returns which are ready, in order.
pub(crate) fn wait(descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    match poll(&mut polled, left.map(timespec).as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; descriptors.len()]),
        Err(errno) => Err(errno.into()),
    }
}

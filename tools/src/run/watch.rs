//! What a job waits for, in one poll: ends of ranks, their output, and signals to the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The signals that the launcher passes on.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: UnixStream,
    terminate: UnixStream,
}

impl Signals {
    /// From now on the two signals are caught.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: caught(SIGINT)?,
            terminate: caught(SIGTERM)?,
        })
    }

    /// The descriptors to wait for.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.interrupt.as_fd(), self.terminate.as_fd()]
    }

    /// The signals that arrived since the last call.
    pub(super) fn arrived(&mut self) -> Vec<Signal> {
        let both = [
            (&mut self.interrupt, Signal::INT),
            (&mut self.terminate, Signal::TERM),
        ];
        both.into_iter()
            .filter_map(|(stream, signal)| drained(stream).then_some(signal))
            .collect()
    }
}

fn caught(signal: i32) -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, handlers)?;
    Ok(ours)
}

/// Whether there was anything.
fn drained(stream: &mut UnixStream) -> bool {
    let mut any = false;
    while matches!(io::Read::read(stream, &mut [0; 64]), Ok(1..)) {
        any = true;
    }
    any
}

/// Waits until one of the descriptors is ready or the time is over; which are ready, in their order.
pub(super) fn wait(descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<bool>> {
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

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

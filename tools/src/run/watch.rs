//! What a job waits for, in one poll: ends of ranks, their output, and signals to the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

/// Signals that want us to end.
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
    /// From now on the signals are caught. The first two are, even when whoever started us ignores them: a job can be
    /// ended. The others stay ignored then, as `nohup` and shells without job control want it.
    pub(crate) fn catch() -> io::Result<Self> {
        let stop = [(SIGTSTP, Signal::TSTP)];
        Self::catch_all(ENDS.into_iter().chain(stop))
    }

    /// The same without the one that stops and does not end (Ctrl-Z): it does what it always does.
    pub(crate) fn catch_ends() -> io::Result<Self> {
        Self::catch_all(ENDS.into_iter())
    }

    fn catch_all(all: impl Iterator<Item = (i32, Signal)>) -> io::Result<Self> {
        let ignored = ignored();
        all.filter(|(number, _)| matches!(*number, SIGINT | SIGTERM) || ignored >> (number - 1) & 1 == 0)
            .map(|(number, signal)| Ok((signal, caught(number)?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The descriptors to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(_, stream)| stream.as_fd())
    }

    /// The signals that arrived since the last call.
    pub(crate) fn arrived(&mut self) -> Vec<Signal> {
        self.0
            .iter_mut()
            .filter_map(|(signal, stream)| drained(stream).then_some(*signal))
            .collect()
    }
}

/// The signals that this process ignores, as a mask; none when the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
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

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

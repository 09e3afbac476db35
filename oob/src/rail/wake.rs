//! How a thread that sleeps in its event library hears of a rail: by the rail's own descriptor, where it has one.
//!
//! ```text
//!   Free ── nothing there: arm ──► Armed: the descriptor is in epoll ── readable, or a turn ── disarm ──► Free
//!     └──── no descriptor: Polled, from a timer
//! ```

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use doorbell_fabric::rail::Armed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Endpoint;

/// A rail's wake-up.
#[derive(Debug, Default)]
pub(super) struct Wake {
    /// The descriptor that it named last, by its number there, and our copy of it in the thread's epoll.
    watched: Option<(RawFd, AsyncFd<OwnedFd>)>,
    armed: bool,
    /// It cannot be slept on.
    pub(super) polled: bool,
}

/// What came of an attempt to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It sleeps, and wakes the task.
    Asleep,
    /// There is something: look again.
    Awake,
    /// It has no descriptor (any more): it has to be looked at from a timer.
    Cannot,
}

impl Wake {
    /// Ends the sleep, if there is one.
    pub(super) fn end(&mut self, rail: &mut dyn Endpoint) {
        if std::mem::replace(&mut self.armed, false) {
            rail.disarm();
        }
    }

    /// The rail's descriptors may be others from here on.
    pub(super) fn forget(&mut self) {
        self.watched = None;
        self.polled = false;
    }

    /// Arms the rail, and has the task woken by its descriptor.
    pub(super) fn sleep(&mut self, rail: &mut dyn Endpoint, cx: &mut Context<'_>) -> Sleep {
        let slept = match rail.arm() {
            Ok(Armed::Ready) => return Sleep::Awake,
            Ok(Armed::Sleep(fd)) => watch(&mut self.watched, fd).and_then(|watched| is_pending(watched, cx)),
            Err(_) => None,
        };
        match slept {
            Some(true) => {
                self.armed = true;
                Sleep::Asleep
            }
            Some(false) => {
                rail.disarm();
                Sleep::Awake
            }
            None => {
                rail.disarm();
                self.polled = true;
                Sleep::Cannot
            }
        }
    }
}

/// Our copy of the descriptor: made once, for as long as the rail names the same one.
fn watch<'a>(
    watched: &'a mut Option<(RawFd, AsyncFd<OwnedFd>)>,
    fd: BorrowedFd<'_>,
) -> Option<&'a AsyncFd<OwnedFd>> {
    let number = fd.as_raw_fd();
    if watched.as_ref().is_none_or(|(known, _)| *known != number) {
        *watched = None;
        let copy = fd.try_clone_to_owned().ok()?;
        *watched = Some((number, registered(copy).ok()?));
    }
    watched.as_ref().map(|(_, copy)| copy)
}

/// What tokio asks of those who register a descriptor (`AsyncFd::register`) is that it is theirs, open, and the same for as
/// long as they have it: the copy is owned, and nobody else knows its number. The newer call says so by being unsafe.
#[allow(deprecated)]
fn registered(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Whether nothing is there, and the task will be woken when something is. tokio hears of changes only, and remembers the
/// last one: so the descriptor itself is asked before that is forgotten.
fn is_pending(watched: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> Option<bool> {
    loop {
        match watched.poll_read_ready(cx) {
            Poll::Pending => return Some(true),
            Poll::Ready(Err(_)) => return None,
            Poll::Ready(Ok(_)) if is_readable(watched.get_ref()) => return Some(false),
            Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
        }
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Whatever the kernel has against it, the rail is looked at.
    !matches!(poll(&mut asked, Some(&at_once)), Ok(0))
}

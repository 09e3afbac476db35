//! Wakes a thread that sleeps in its event loop when a rail has something: by the rail's own descriptor, if
//! it has one.
//!
//! ```text
//!   Free ── nothing there: arm ──► Armed: in epoll ── readable, or a turn ── disarm ──► Free
//!     └──── no descriptor: Polled, from a timer
//! ```

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use doorbell_fabric::rail::Armed;
use rustix::event::PollFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Endpoint;

/// The wake-up of a rail.
#[derive(Debug, Default)]
pub(super) struct Wake {
    /// The rail's last descriptor, by its number, and our duplicate of it in the thread's epoll set.
    watched: Option<(RawFd, AsyncFd<OwnedFd>)>,
    armed: bool,
    /// Whether it cannot be slept on.
    pub(super) polled: bool,
}

/// The outcome of an attempt to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It sleeps, and will wake the task.
    Asleep,
    /// There is something: poll again.
    Awake,
    /// It has no descriptor (any more), and has to be polled by a timer.
    Cannot,
}

impl Wake {
    /// Ends the sleep, if there is one.
    pub(super) fn end(&mut self, rail: &mut dyn Endpoint) {
        if std::mem::replace(&mut self.armed, false) {
            rail.disarm();
        }
    }

    /// Forgets the descriptor, which may be another from now on.
    pub(super) fn forget(&mut self) {
        self.watched = None;
        self.polled = false;
    }

    /// Arms the rail, and registers the task with its descriptor.
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

/// Duplicates the descriptor, once for as long as the rail names the same one.
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

/// `AsyncFd::register` requires that the value owns its descriptor, keeps it open and never changes it: the
/// duplicate is owned, and nothing else knows its number. The newer call states that by being unsafe.
#[allow(deprecated)]
fn registered(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Whether nothing is there, and the task will be woken when something is. tokio caches readiness: so the
/// descriptor itself is polled before the cache is cleared.
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
    // On any error the rail is polled.
    doorbell_fabric::poll::state(fd, PollFlags::IN) != Ok(PollFlags::empty())
}

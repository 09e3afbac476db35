//! What wakes a client that sleeps until an object has something: a descriptor that becomes readable.
//!
//! ```text
//!   set (the client's descriptor) ─┬─ bell of this object: its entries, fi_cq_signal
//!                                  └─ the member's set: rails, listener, timer (see `watch`)
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::errno::Result as Answer;
use crate::object::Held;
use crate::wait::WaitSet;

/// The bell of an object; a silent one for objects that no client waits on.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    descriptors: Option<Descriptors>,
    /// Whether a client sleeps, is about to, or has slept: it rings once too often rather than never.
    awaited: bool,
    /// Whether the descriptor is readable.
    rung: bool,
}

#[derive(Debug)]
struct Descriptors {
    set: OwnedFd,
    bell: OwnedFd,
    /// The client's wait set, where the bell is in one.
    wait_set: Option<Held<WaitSet>>,
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        if let Some(wait_set) = &self.wait_set {
            wait_set.unwatch(self.set.as_fd());
        }
    }
}

impl Bell {
    /// A bell that never rings.
    pub(crate) fn silent() -> Self {
        Self::default()
    }

    /// Makes a bell, whose set also wakes by what `member` does.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new(member: BorrowedFd<'_>) -> Result<Self, Errno> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &bell, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&set, member, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Self {
            descriptors: Some(Descriptors {
                set,
                bell,
                wait_set: None,
            }),
            awaited: false,
            rung: false,
        })
    }

    /// Adds the bell to a client's wait set, which it leaves when it is dropped. A silent one is in none.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn enter(&mut self, wait_set: &WaitSet) -> Answer<()> {
        if let Some(both) = &mut self.descriptors {
            wait_set.watch(both.set.as_fd())?;
            both.wait_set = Some(Held::new(wait_set));
        }
        Ok(())
    }

    /// The descriptor for the client's own event loop, where there is one.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.as_ref().map(|both| both.set.as_fd())
    }

    /// A copy of the descriptor, to be slept on without the domain's lock.
    ///
    /// # Errors
    /// `BADF` for a silent bell; when the process has no descriptor left.
    pub(crate) fn copy(&self) -> Result<OwnedFd, Errno> {
        let both = self.descriptors.as_ref().ok_or(Errno::BADF)?;
        rustix::io::fcntl_dupfd_cloexec(both.set.as_fd(), 0)
    }

    /// Whether it can be waited on.
    pub(crate) fn is_silent(&self) -> bool {
        self.descriptors.is_none()
    }

    /// A client is going to sleep: it is to ring from now on. It is quiet again if it was rung.
    pub(crate) fn await_next(&mut self) {
        self.hush();
        self.awaited = true;
    }

    /// There is something: wakes who sleeps.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        if self.awaited {
            self.ring_now();
        }
    }

    /// Wakes who sleeps now or next.
    #[cold]
    pub(crate) fn ring_now(&mut self) {
        self.awaited = false;
        if let Some(both) = &self.descriptors {
            self.rung = true;
            // A count that is full wakes as well.
            let _ = rustix::io::write(&both.bell, &1_u64.to_ne_bytes());
        }
    }

    fn hush(&mut self) {
        if std::mem::take(&mut self.rung)
            && let Some(both) = &self.descriptors
        {
            let _ = rustix::io::read(&both.bell, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::PollFlags;

    use super::*;

    fn is_readable(bell: &Bell) -> bool {
        let copy = bell.copy().unwrap();
        doorbell_fabric::poll::state(&copy, PollFlags::IN) == Ok(PollFlags::IN)
    }

    #[test]
    fn it_rings_once_for_who_waits_and_wakes_by_the_member_too() {
        let member = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut bell = Bell::new(member.as_fd()).unwrap();
        bell.ring();
        assert!(!is_readable(&bell), "nobody waits");
        bell.await_next();
        assert!(!is_readable(&bell));
        bell.ring();
        assert!(is_readable(&bell));
        bell.await_next();
        assert!(!is_readable(&bell), "it is quiet again");
        rustix::io::write(&member, &1_u64.to_ne_bytes()).unwrap();
        assert!(is_readable(&bell));
    }

    #[test]
    fn a_silent_bell_has_nothing_to_wait_on() {
        let mut bell = Bell::silent();
        bell.await_next();
        bell.ring();
        assert!(bell.descriptor().is_none());
        assert_eq!(bell.copy().unwrap_err(), Errno::BADF);
    }
}

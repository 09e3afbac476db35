//! Notices from a thread beside the rails to the owner of the rails: lost ranks, and results of look-ups.
//!
//! The owner checks one flag in its housekeeping, never while it sends or receives a message, and takes the
//! list when the flag is set. An eventfd, which exists once the thread has work, wakes an owner that sleeps.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::Error;

/// A list of notices, shared by the thread that sends them and the owner that takes them.
#[derive(Debug)]
pub struct Notices<T> {
    any: AtomicBool,
    list: Mutex<Vec<T>>,
    wake: OnceLock<OwnedFd>,
}

impl<T> Default for Notices<T> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            list: Mutex::default(),
            wake: OnceLock::new(),
        }
    }
}

impl<T> Notices<T> {
    /// Makes the eventfd, so that notices wake sleepers. `step` names this in the error.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn begin(&self, step: &'static str) -> Result<(), Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            let remedy = "raise the limit of open files (ulimit -n)";
            Error::io(step, "this process", error.into(), remedy)
        })?;
        let _ = self.wake.set(wake);
        Ok(())
    }

    /// Adds notices, and wakes the owner.
    pub fn send(&self, notices: impl IntoIterator<Item = T>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.extend(notices);
        drop(list);
        self.any.store(true, Ordering::Release);
        if let Some(wake) = self.wake.get() {
            // A write to a full counter fails, and the counter wakes the sleeper all the same.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether notices were added since the last [`Notices::take`].
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes the notices that were added since the last call.
    #[cold]
    pub fn take(&self) -> Vec<T> {
        self.any.store(false, Ordering::Release);
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        mem::take(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the descriptor for a sleeper to poll.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.wake.get().map(OwnedFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::poll::state;
    use rustix::event::PollFlags;

    use super::*;

    fn is_ready(notices: &Notices<u32>) -> bool {
        let fd = notices.arm().expect("begun");
        state(fd, PollFlags::IN) == Ok(PollFlags::IN)
    }

    #[test]
    fn a_notice_is_taken_once_and_wakes() {
        let notices = Notices::default();
        assert!(notices.arm().is_none() && !notices.any());
        notices.begin("make an eventfd").unwrap();
        assert!(!is_ready(&notices));
        std::thread::scope(|scope| {
            for number in [3, 1] {
                let notices = &notices;
                scope.spawn(move || notices.send([number]));
            }
        });
        assert!(notices.any() && is_ready(&notices));
        let mut taken = notices.take();
        taken.sort_unstable();
        assert_eq!(taken, [1, 3]);
        assert!(!notices.any() && !is_ready(&notices) && notices.take().is_empty());
    }
}

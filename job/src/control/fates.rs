//! The ranks that the control plane has lost, on their way from its thread to the owner of the rails.
//!
//! The owner checks one flag in its housekeeping, never while it sends or receives a message, and takes the
//! list when the flag is set. An eventfd, which exists as soon as there is a control plane, wakes an owner
//! that sleeps.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use doorbell_pml::Rank;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::Error;

#[derive(Debug, Default)]
struct Shared {
    any: AtomicBool,
    lost: Mutex<Vec<Rank>>,
    wake: OnceLock<OwnedFd>,
}

/// The list of lost ranks, shared by both threads; clones refer to the same list.
#[derive(Clone, Debug, Default)]
pub struct Fates(Arc<Shared>);

impl Fates {
    /// Makes the eventfd, so that a loss wakes sleepers.
    pub(super) fn begin(&self) -> Result<(), Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            let step = "make an eventfd for the control plane";
            Error::io(
                step,
                "this process",
                error.into(),
                "raise the limit of open files (ulimit -n)",
            )
        })?;
        let _ = self.0.wake.set(wake);
        Ok(())
    }

    /// Adds ranks that are lost.
    pub(super) fn tell(&self, lost: impl IntoIterator<Item = Rank>) {
        self.0
            .lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(lost);
        self.0.any.store(true, Ordering::Release);
        if let Some(wake) = self.0.wake.get() {
            // A write to a full counter fails, and the counter wakes the sleeper all the same.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether ranks were added since the last [`Fates::take`].
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }

    /// Takes the ranks that were added since the last call.
    #[cold]
    pub fn take(&self) -> Vec<Rank> {
        self.0.any.store(false, Ordering::Release);
        if let Some(wake) = self.0.wake.get() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        mem::take(&mut self.0.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the descriptor for a sleeper to poll.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.0.wake.get().map(OwnedFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_ready(fates: &Fates) -> bool {
        let fd = fates.arm().expect("begun");
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn who_is_lost_is_told_once_and_wakes() {
        let fates = Fates::default();
        assert!(fates.arm().is_none() && !fates.any());
        fates.begin().unwrap();
        assert!(!is_ready(&fates));
        std::thread::scope(|scope| {
            for rank in [3, 1] {
                let fates = fates.clone();
                scope.spawn(move || fates.tell([Rank(rank)]));
            }
        });
        assert!(fates.any() && is_ready(&fates));
        let mut taken = fates.take();
        taken.sort_unstable();
        assert_eq!(taken, [Rank(1), Rank(3)]);
        assert!(!fates.any() && !is_ready(&fates) && fates.take().is_empty());
    }
}

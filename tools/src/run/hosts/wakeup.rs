//! Wakes a loop that sleeps in `poll` from the thread of the control plane, by an eventfd.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that wakes the loop.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    pub(super) fn ring(&self) {
        // If the counter is full, the loop is woken anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the event.
    pub(super) fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}
/// A mailbox whose messages wake the loop.
#[derive(Debug)]
pub(super) struct Told<T> {
    queue: Arc<Mutex<VecDeque<T>>>,
    bell: Arc<Bell>,
}

impl<T> Clone for Told<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            bell: self.bell.clone(),
        }
    }
}

impl<T> Told<T> {
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        Self {
            queue: Arc::default(),
            bell,
        }
    }

    pub(super) fn tell(&self, what: T) {
        self.lock().push_back(what);
        self.bell.ring();
    }

    pub(super) fn take(&self) -> Option<T> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

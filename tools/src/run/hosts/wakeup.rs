//! Wakes a loop that sleeps in `poll` from the thread of the control plane, by an eventfd.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that wakes the loop.
#[derive(Debug)]
pub(super) struct Wakeup(OwnedFd);

impl Wakeup {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Arc::new(Self(eventfd(0, flags)?)))
    }

    pub(super) fn notify(&self) {
        // If the counter is full, the loop is woken anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the event.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}
/// A mailbox whose messages wake the loop.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    queue: Arc<Mutex<VecDeque<T>>>,
    wakeup: Arc<Wakeup>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            wakeup: self.wakeup.clone(),
        }
    }
}

impl<T> Mailbox<T> {
    pub(super) fn new(wakeup: Arc<Wakeup>) -> Self {
        Self {
            queue: Arc::default(),
            wakeup,
        }
    }

    pub(super) fn post(&self, message: T) {
        self.lock().push_back(message);
        self.wakeup.notify();
    }

    pub(super) fn take(&self) -> Option<T> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

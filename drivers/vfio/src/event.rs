//! A counter in the kernel that a device raises and we wait for: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::error::Error;

/// An eventfd for interrupts and other events of a device. Closed on `exec`; only [`Event::wait`] blocks.
#[derive(Debug)]
pub struct Event {
    descriptor: OwnedFd,
}

impl Event {
    /// Makes one that has not happened.
    ///
    /// # Errors
    /// [`Error::System`] where descriptors run out.
    pub fn new() -> Result<Self, Error> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|descriptor| Self { descriptor })
            .map_err(|errno| Error::system("make an eventfd", "for an interrupt", errno.into()))
    }

    /// Returns how often it has happened since the last call; never waits.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.descriptor, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            // Not raised; a read of our own eventfd has no other error.
            _ => 0,
        }
    }

    /// Waits until it happens; returns how often it has, 0 when `limit` has passed.
    ///
    /// # Errors
    /// Where the kernel refuses to wait.
    pub fn wait(&self, limit: Duration) -> io::Result<u64> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !readable(self.as_fd(), left)? {
                return Ok(0);
            }
            match self.take() {
                0 => {}
                count => return Ok(count),
            }
        }
    }

    /// Raises the event, as a device would.
    ///
    /// # Errors
    /// When it was raised 2⁶⁴ − 2 times without being read.
    pub fn raise(&self) -> io::Result<()> {
        rustix::io::write(&self.descriptor, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Waits until there is something to read, or the other end is gone; false when `limit` has passed.
pub(crate) fn readable(descriptor: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    poll(descriptor, PollFlags::IN, limit)
}

pub(crate) fn poll(descriptor: BorrowedFd<'_>, what: PollFlags, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = timespec(left);
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(descriptor, what)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_and_waited_for() {
        let event = Event::new().unwrap();
        assert_eq!(event.take(), 0);
        assert_eq!(event.wait(Duration::from_millis(5)).unwrap(), 0);
        event.raise().unwrap();
        event.raise().unwrap();
        assert_eq!(event.wait(Duration::from_secs(10)).unwrap(), 2);
        assert_eq!(event.take(), 0);
    }
}

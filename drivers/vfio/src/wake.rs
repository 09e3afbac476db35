//! What can wake the owner of a device that sleeps: one epoll set for its interrupts, and for the events by
//! which it is wanted back or has failed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::claim::Claim;
use crate::error::Error;
use crate::event::Event;

/// The events of a device.
#[derive(Debug)]
pub struct WakeSet {
    epoll: OwnedFd,
    vectors: Vec<Event>,
    /// Where the kernel requests the device back, and where the device reports a failure.
    request: Option<Event>,
    error: Option<Event>,
}

impl WakeSet {
    /// Lets the first `vectors` MSI-X vectors of a device wake.
    ///
    /// # Errors
    /// Where descriptors run out, or the device refuses.
    pub fn new(claim: &Claim, vectors: usize) -> Result<Self, Error> {
        let refused =
            |errno: Errno| Error::system("make an epoll set", "for a device's events", errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let mut this = Self {
            epoll,
            vectors: Vec::with_capacity(vectors),
            request: claim.watch_request()?,
            error: claim.watch_error()?,
        };
        for _ in 0..vectors {
            this.vectors.push(Event::new()?);
        }
        if vectors > 0 {
            this.enable(claim)?;
        }
        for event in this.vectors.iter().chain(&this.request).chain(&this.error) {
            let data = EventData::new_u64(0);
            epoll::add(&this.epoll, event.as_fd(), data, EventFlags::IN).map_err(refused)?;
        }
        Ok(this)
    }

    /// Connects the vectors to their events, also after a reset of the device, which forgets them.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn enable(&self, claim: &Claim) -> Result<(), Error> {
        let events: Vec<_> = self.vectors.iter().collect();
        if events.is_empty() {
            return Ok(());
        }
        claim.enable_msix(&events)
    }

    /// Lets something else wake, too.
    pub fn watch(&self, fd: BorrowedFd<'_>) {
        // One that is watched already, or a set that is full: then the next poll finds what there is.
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN);
    }

    /// Returns how many vectors wake.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.vectors.len()
    }

    /// Forgets the interrupts that came.
    pub fn drain(&self) {
        self.vectors.iter().for_each(|event| _ = event.take());
    }

    /// Whether the device has to be given back, or has failed: a call each.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let has = |event: &Option<Event>| event.as_ref().is_some_and(|event| event.take() > 0);
        has(&self.request) | has(&self.error)
    }

    /// Whether the first vector's interrupt arrives when it is raised, within `limit`. To be called while
    /// nothing sleeps.
    pub fn check(&self, limit: Duration, raise: impl FnOnce() -> bool) -> bool {
        let Some(event) = self.vectors.first() else {
            return false;
        };
        event.take();
        raise() && event.wait(limit).unwrap_or(0) > 0
    }

    /// Takes all events of the device out of the set: a model has them open, so closing them here would not.
    pub fn release(&mut self) {
        let events = self.vectors.drain(..);
        for event in events.chain(self.request.take()).chain(self.error.take()) {
            // One that cannot be taken out was never in.
            let _ = epoll::delete(&self.epoll, event.as_fd());
        }
    }
}

impl AsFd for WakeSet {
    /// The set itself, to sleep on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

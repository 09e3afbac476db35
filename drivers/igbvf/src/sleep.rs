//! Sleeping: one epoll set for everything that can wake a rail's owner: received frames, the mailbox, the device's leave.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use doorbell_vfio::{Block, Claim, Error, Event, Put};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::regs::{Interrupts, VECTOR_VALID};

/// Vectors: of the receive queue and of the mailbox.
const QUEUE: u32 = 0;
const MAILBOX: u32 = 1;
const BOTH: u32 = 1 << QUEUE | 1 << MAILBOX;

/// The events of a function.
pub(crate) struct Sleep {
    epoll: OwnedFd,
    /// `None` after the end.
    registers: Option<Block<Interrupts>>,
    vectors: [Event; 2],
    /// Where the device can tell: somebody wants it back; it has failed.
    request: Option<Event>,
    error: Option<Event>,
    pub(crate) armed: bool,
}

/// Why there is none.
pub(crate) enum Trouble {
    Device(Error),
    System(Errno),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl Sleep {
    pub(crate) fn new(claim: &Claim, registers: Block<Interrupts>) -> Result<Self, Trouble> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let vectors = [Event::new()?, Event::new()?];
        claim.enable_msix(&[&vectors[0], &vectors[1]])?;
        let (request, error) = (claim.watch_request()?, claim.watch_error()?);
        let all = vectors.iter().chain(&request).chain(&error);
        for event in all {
            epoll::add(&epoll, event.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
        }
        let this = Self {
            epoll,
            registers: Some(registers),
            vectors,
            request,
            error,
            armed: false,
        };
        this.begin();
        Ok(this)
    }

    /// Says which vector is whose; none is let through yet. To be called after each reset.
    pub(crate) fn begin(&self) {
        let Some(registers) = &self.registers else { return };
        registers.mask_clear.put(u32::MAX);
        registers.of_queues.put(VECTOR_VALID | QUEUE);
        registers.of_mailbox.put(VECTOR_VALID | MAILBOX);
        // One that was raised is over, and is not let through again before it is asked for.
        registers.auto_clear.put(BOTH);
        registers.auto_mask.put(BOTH);
        registers.throttle.iter().for_each(|throttle| throttle.put(0));
    }

    /// From here on, what comes makes the set readable; so does what came before and was not looked at.
    pub(crate) fn arm(&mut self) {
        self.armed = true;
        if let Some(registers) = &self.registers {
            registers.mask_set.put(BOTH);
        }
    }

    /// Awake: no interrupt costs anything.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            if let Some(registers) = &self.registers {
                registers.mask_clear.put(BOTH);
            }
            self.vectors.iter().for_each(|event| _ = event.take());
        }
    }

    /// Whether the device has to be given back, and whether it has failed: a call each.
    pub(crate) fn is_over(&self) -> (bool, bool) {
        let has = |event: &Option<Event>| event.as_ref().is_some_and(|event| event.take() > 0);
        (has(&self.request), has(&self.error))
    }

    /// The set itself, to sleep on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether the receive queue's interrupt arrives: raises it by hand and waits for it. To be called while nothing is armed.
    pub(crate) fn check(&self, limit: std::time::Duration) -> bool {
        let Some(registers) = &self.registers else {
            return false;
        };
        self.vectors[0].take();
        registers.mask_set.put(1 << QUEUE);
        registers.set.put(1 << QUEUE);
        let came = self.vectors[0].wait(limit).unwrap_or(0) > 0;
        registers.mask_clear.put(1 << QUEUE);
        came
    }

    /// Lets go of the registers.
    pub(crate) fn release(&mut self) {
        self.registers = None;
    }
}

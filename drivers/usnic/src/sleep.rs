//! Sleeping: one epoll set for everything that can wake a rail's owner: received frames, the agent's news, the device's leave.
//!
//! Interrupts are optional: whether a function's completion queues have any depends on its firmware. Without them a timer wakes who
//! sleeps every millisecond. (usNIC's provider sleeps 1 µs to 5 ms between two looks.)
//!
//! Source: libfabric `usd_queues.c` and `vnic_intr.c`: no timer, no credits, masked when raised, let through again by `mask = 0`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_vfio::{Claim, Error, Event, Irq};
use memoffset::offset_of;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::regs::Interrupt;
use crate::window::Window;

/// How long one who sleeps without interrupts sleeps at a time.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};
const NEVER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The events of a function.
pub(crate) struct Sleep {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// One for each receive completion queue, or one for both; none where there are no interrupts.
    registers: Vec<Window>,
    vectors: Vec<Event>,
    /// Where the device can tell: somebody wants it back; it has failed.
    request: Option<Event>,
    error: Option<Event>,
    armed: Option<By>,
    /// Nothing is woken any more.
    is_released: bool,
}

/// What wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Interrupts,
    Timer,
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
    /// With an interrupt for each of these blocks of registers, as far as the device has vectors.
    pub(crate) fn new(claim: &Claim, mut registers: Vec<Window>) -> Result<Self, Trouble> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // One vector serves all queues where there are not as many.
        registers.truncate(claim.device().irq(Irq::Msix)?.count as usize);
        let mut vectors = Vec::with_capacity(registers.len());
        for _ in 0..registers.len() {
            vectors.push(Event::new()?);
        }
        let wanted: Vec<_> = vectors.iter().collect();
        if vectors.is_empty() || claim.enable_msix(&wanted).is_err() {
            // Polling is what a rail is for.
            vectors.clear();
            registers.clear();
        }
        let (request, error) = (claim.watch_request()?, claim.watch_error()?);
        for event in vectors.iter().chain(&request).chain(&error) {
            epoll::add(&epoll, event.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
        }
        epoll::add(&epoll, timer.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
        let this = Self {
            epoll,
            timer,
            registers,
            vectors,
            request,
            error,
            armed: None,
            is_released: false,
        };
        this.program()?;
        Ok(this)
    }

    /// How many interrupts there are.
    pub(crate) fn count(&self) -> usize {
        self.vectors.len()
    }

    /// What else wakes: the agent's line.
    pub(crate) fn watch(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            // One that is watched already, or a set that is full: then the next look finds what there is.
            let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN);
        }
    }

    /// Tells the device how its interrupts behave; none is let through yet.
    pub(crate) fn program(&self) -> Result<(), Error> {
        for window in &self.registers {
            for (at, value) in [
                (offset_of!(Interrupt, coalescing_timer), 0),
                (offset_of!(Interrupt, coalescing_type), 0),
                (offset_of!(Interrupt, mask_on_assertion), 1),
                (offset_of!(Interrupt, credits), 0),
                (offset_of!(Interrupt, mask), 1),
            ] {
                window.write32(at, value)?;
            }
        }
        Ok(())
    }

    /// After a reset of the device: its vectors lead to us again.
    pub(crate) fn again(&self, claim: &Claim) -> Result<(), Error> {
        if !self.vectors.is_empty() {
            let wanted: Vec<_> = self.vectors.iter().collect();
            claim.enable_msix(&wanted)?;
        }
        self.program()
    }

    fn mask(&self, value: u32) {
        for window in &self.registers {
            // A device that is gone is found at the next look.
            let _ = window.write32(offset_of!(Interrupt, mask), value);
        }
    }

    /// From here on, what comes makes the set readable. What came before does not: it is looked for after this. A device that may not
    /// be touched raises nothing.
    pub(crate) fn arm(&mut self, may_touch: bool) {
        if self.is_released {
            return;
        }
        if self.registers.is_empty() || !may_touch {
            self.armed = Some(By::Timer);
            self.set_timer(NAP);
            return;
        }
        self.armed = Some(By::Interrupts);
        self.mask(0);
        for window in &self.registers {
            // What is looked for after this comes after the device has seen the mask.
            let _ = window.read32(offset_of!(Interrupt, mask));
        }
    }

    fn set_timer(&self, value: Timespec) {
        let once = Itimerspec {
            it_interval: NEVER,
            it_value: value,
        };
        // It fails for times that cannot be, and this one can.
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Awake: no interrupt costs anything. A device that may not be touched any more is masked when it is programmed anew.
    pub(crate) fn disarm(&mut self, may_touch: bool) {
        match self.armed.take() {
            None => {}
            Some(By::Timer) => {
                self.set_timer(NEVER);
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            }
            Some(By::Interrupts) => {
                if may_touch {
                    self.mask(1);
                }
                self.vectors.iter().for_each(|event| _ = event.take());
            }
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

    /// Whether an interrupt that is raised by hand arrives. To be called while nothing is armed.
    pub(crate) fn check(&self, claim: &Claim, limit: Duration) -> bool {
        let Some(event) = self.vectors.first() else {
            return false;
        };
        event.take();
        claim.device().raise(Irq::Msix, 0).is_ok() && event.wait(limit).unwrap_or(0) > 0
    }

    /// Lets go of the registers. Nothing of the device wakes anybody any more: a model has its events open, so that closing them here
    /// would not take them out of the set.
    pub(crate) fn release(&mut self) {
        self.registers.clear();
        let events = self.vectors.drain(..);
        for event in events.chain(self.request.take()).chain(self.error.take()) {
            // One that cannot be taken out was never in.
            let _ = epoll::delete(&self.epoll, event.as_fd());
        }
        self.is_released = true;
    }
}

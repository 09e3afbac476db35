//! Sleeping: which interrupts are let through, and when; and what else wakes a rail's owner, the agent's news
//! and a timer.
//!
//! Interrupts are optional: whether a function's completion queues have any depends on its firmware. Without
//! them a timer wakes who sleeps every millisecond. (usNIC's provider sleeps 1 µs to 5 ms between two polls.)
//!
//! Source: libfabric `usd_queues.c` and `vnic_intr.c`: no timer, no credits, masked when raised, let through
//! again by `mask = 0`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_vfio::{Claim, Error, Irq, WakeSet};
use memoffset::offset_of;
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

/// The interrupts of a function.
pub(crate) struct Sleep {
    wake: WakeSet,
    timer: OwnedFd,
    /// The registers of the interrupts: one for each receive completion queue, or one for both; none where
    /// there are no interrupts.
    registers: Vec<Window>,
    armed: Option<By>,
    /// Whether the registers were released: nothing is woken any more.
    is_released: bool,
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Interrupts,
    Timer,
}

impl Sleep {
    /// Makes an interrupt for each of these blocks of registers, as far as the device has vectors.
    pub(crate) fn new(claim: &Claim, mut registers: Vec<Window>) -> Result<Self, Error> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| Error::system("make a timer", "for one who sleeps", errno.into()))?;
        // One vector serves all queues where there are not as many.
        registers.truncate(claim.device().irq(Irq::Msix)?.count as usize);
        let wake = WakeSet::new(claim, registers.len()).or_else(|_| {
            // Polling is what a rail is for.
            registers.clear();
            WakeSet::new(claim, 0)
        })?;
        wake.watch(timer.as_fd());
        let this = Self {
            wake,
            timer,
            registers,
            armed: None,
            is_released: false,
        };
        this.program()?;
        Ok(this)
    }

    /// Returns how many interrupts there are.
    pub(crate) fn count(&self) -> usize {
        self.wake.vectors()
    }

    /// Adds what else wakes: the agent's line.
    pub(crate) fn watch(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            self.wake.watch(fd);
        }
    }

    /// Programs how the device's interrupts behave; all are masked yet.
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

    /// Directs the vectors to us again after a reset of the device.
    pub(crate) fn again(&self, claim: &Claim) -> Result<(), Error> {
        self.wake.enable(claim)?;
        self.program()
    }

    fn mask(&self, value: u32) {
        for window in &self.registers {
            // A device that is gone is found by the next check.
            let _ = window.write32(offset_of!(Interrupt, mask), value);
        }
    }

    /// Arms the set: frames that arrive from here on make it readable. The caller checks for earlier ones
    /// after this. A device that may not be touched raises no interrupt.
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
            // The check after this comes after the device has seen the mask.
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

    /// Awake: no interrupt costs anything. A device that may not be touched any more is masked when it is
    /// programmed again.
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
                self.wake.drain();
            }
        }
    }

    /// Whether the device has to be given back, or has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.wake.is_over()
    }

    /// The set itself, to sleep on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether an interrupt that is raised by hand arrives. To be called while nothing is armed.
    pub(crate) fn check(&self, claim: &Claim, limit: Duration) -> bool {
        self.wake
            .check(limit, || claim.device().raise(Irq::Msix, 0).is_ok())
    }

    /// Releases the registers. No interrupt of the device wakes a sleeper any more.
    pub(crate) fn release(&mut self) {
        self.registers.clear();
        self.wake.release();
        self.is_released = true;
    }
}

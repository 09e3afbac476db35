//! Sleeping: which interrupts are let through, and when.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use doorbell_vfio::{Block, Claim, Error, Put, WakeSet};

use crate::regs::{Interrupts, VECTOR_VALID};

/// Vectors: of the receive queue and of the mailbox.
const QUEUE: u32 = 0;
const MAILBOX: u32 = 1;
const BOTH: u32 = 1 << QUEUE | 1 << MAILBOX;

/// The interrupts of a function.
pub(crate) struct Sleep {
    wake: WakeSet,
    /// `None` after the end.
    registers: Option<Block<Interrupts>>,
    pub(crate) armed: bool,
}

impl Sleep {
    pub(crate) fn new(claim: &Claim, registers: Block<Interrupts>) -> Result<Self, Error> {
        let this = Self {
            wake: WakeSet::new(claim, 2)?,
            registers: Some(registers),
            armed: false,
        };
        this.begin();
        Ok(this)
    }

    /// Assigns the vectors; all are masked yet. To be called after each reset.
    pub(crate) fn begin(&self) {
        let Some(registers) = &self.registers else { return };
        registers.mask_clear.put(u32::MAX);
        registers.of_queues.put(VECTOR_VALID | QUEUE);
        registers.of_mailbox.put(VECTOR_VALID | MAILBOX);
        // One that was raised is over, and stays masked until the next sleep.
        registers.auto_clear.put(BOTH);
        registers.auto_mask.put(BOTH);
        registers.throttle.iter().for_each(|throttle| throttle.put(0));
    }

    /// Arms the set: from here on, what comes makes it readable; so does what came before and was not looked
    /// at.
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
            self.wake.drain();
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

    /// Whether the receive queue's interrupt arrives: raises it by hand and waits for it. To be called while
    /// nothing is armed.
    pub(crate) fn check(&self, limit: Duration) -> bool {
        let Some(registers) = &self.registers else {
            return false;
        };
        let came = self.wake.check(limit, || {
            registers.mask_set.put(1 << QUEUE);
            registers.set.put(1 << QUEUE);
            true
        });
        registers.mask_clear.put(1 << QUEUE);
        came
    }

    /// Lets go of the registers.
    pub(crate) fn release(&mut self) {
        self.registers = None;
    }
}

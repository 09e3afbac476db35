//! The command block: 128 bytes of registers, one command at a time.
//!
//! ```text
//!   status ─► not busy ─► 15 arguments ─► barrier ─► command       then: status ─► not busy ─► 15 results
//! ```
//!
//! Sources: DPDK `enic/base/vnic_dev.c`; libfabric's `vnic_dev.c` and Linux's enic alike.

use doorbell_vfio::before_doorbell;
use memoffset::offset_of;

use super::words::Command;
use super::{Answer, Arguments};
use crate::errno::{Errno, Fault};
use crate::regs::{ARGUMENTS, BUSY, Commands, ERROR, GONE};
use crate::window::Window;

const STATUS: usize = offset_of!(Commands, status);
const COMMAND: usize = offset_of!(Commands, command);
const FIRST: usize = offset_of!(Commands, arguments);

/// The command block of a function.
#[derive(Debug)]
pub(super) struct Block {
    window: Window,
}

impl Block {
    pub(super) fn new(window: Window) -> Self {
        Self { window }
    }

    /// Whether the device works on a command.
    pub(super) fn is_busy(&self) -> Result<bool, Fault> {
        match self.window.read32(STATUS)? {
            GONE => Err(Fault::Gone),
            status => Ok(status & BUSY != 0),
        }
    }

    /// Hands a command over. To be called while it is not busy.
    pub(super) fn put(&self, command: Command, arguments: &Arguments) -> Result<(), Fault> {
        if command.writes() {
            for (number, argument) in arguments.iter().enumerate() {
                self.window.write64(FIRST + 8 * number, *argument)?;
            }
            before_doorbell();
        }
        Ok(self.window.write32(COMMAND, command.word)?)
    }

    /// Polls the outcome of a command once.
    pub(super) fn look(&self, command: Command) -> Option<Answer> {
        match self.window.read32(STATUS) {
            Err(error) => Some(Err(error.into())),
            Ok(GONE) => Some(Err(Fault::Gone)),
            Ok(status) if status & BUSY != 0 => None,
            Ok(status) if status & ERROR != 0 => Some(self.refusal(command)),
            Ok(_) if command.reads() => Some(self.results()),
            Ok(_) => Some(Ok([0; ARGUMENTS])),
        }
    }

    fn refusal(&self, command: Command) -> Answer {
        let number = self.window.read64(FIRST)?;
        Err(Fault::Refused(
            command.name,
            Errno(u32::try_from(number).unwrap_or(u32::MAX)),
        ))
    }

    fn results(&self) -> Answer {
        doorbell_vfio::after_completion();
        let mut results = [0; ARGUMENTS];
        for (number, result) in results.iter_mut().enumerate() {
            *result = self.window.read64(FIRST + 8 * number)?;
        }
        Ok(results)
    }
}

//! The device command block: BUSY, arguments, results (3.1 to 3.3).
//!
//! ```text
//!   cmd is written ─► BUSY, arguments taken ─► later: done ─► results or an error's number, BUSY clear
//! ```

mod own;
pub(crate) mod run;
pub(crate) mod second;
pub(crate) mod table;

use std::time::Duration;

use crate::devcmd::table::Word;
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Wrong};
use crate::map::Shared;
use crate::registers::devcmd as register;
use crate::violation::Kind;

/// The arguments of a command, and its results.
pub(crate) type Args = [u64; register::ARG_COUNT];

/// Error numbers (3.5).
pub(crate) mod errno {
    pub(crate) const INVALID: u8 = 1;
    pub(crate) const BAD_ADDRESS: u8 = 2;
    pub(crate) const NO_PERMISSION: u8 = 3;
    pub(crate) const UNKNOWN: u8 = 5;
    pub(crate) const BAD_STATE: u8 = 6;
    pub(crate) const LINK_DOWN: u8 = 9;
    pub(crate) const NO_RESOURCES: u8 = 10;
}

/// A command that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) command: u32,
    pub(crate) args: Args,
    /// When it is done.
    pub(crate) due: u64,
    /// What goes wrong with it.
    pub(crate) fault: Option<Action>,
}

/// The device command block of a function.
#[derive(Debug)]
pub(crate) struct Devcmd {
    at: usize,
    /// The block is messages: a write to it is reported, instead of being looked for.
    trapped: bool,
    pub(crate) busy: Option<Busy>,
}

impl Devcmd {
    pub(crate) fn new(at: usize, trapped: bool) -> Self {
        Self {
            at,
            trapped,
            busy: None,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.busy = None;
    }

    /// Looks for a command in memory. What was found is taken away, so that the same command is seen again.
    #[inline]
    pub(crate) fn look(&mut self, io: &mut Io, context: &Context) {
        if self.trapped || io.registers.get(self.at + register::CMD) == 0 {
            return;
        }
        if self.busy.is_none() {
            // A client that finds the command taken away finds BUSY, or the end.
            io.registers.put(self.at + register::STATUS, register::BUSY);
        }
        let command = io.registers.swap(self.at + register::CMD, 0);
        self.command(io, context, command);
    }

    /// A word of the block was written by a message, at this offset of the block.
    pub(crate) fn written(&mut self, io: &mut Io, context: &Context, at: usize, value: u32) {
        if at == register::STATUS {
            self.violation(
                io,
                context,
                Kind::ReadOnly,
                "status can only be read",
                "status",
                value,
            );
        } else if self.busy.is_some() {
            self.violation(
                io,
                context,
                Kind::DevcmdBusy,
                "the block was written while it was busy",
                "args",
                value,
            );
        } else {
            io.registers.put(self.at + at, value);
            if at == register::CMD {
                self.command(io, context, value);
            }
        }
    }

    fn command(&mut self, io: &mut Io, context: &Context, command: u32) {
        if self.busy.is_some() {
            let what = "a command was written while another one was under way";
            self.violation(io, context, Kind::DevcmdBusy, what, "cmd", command);
            return;
        }
        // BUSY stays until the command is done; ERROR of the last one goes.
        io.registers.put(self.at + register::STATUS, register::BUSY);
        let args = self.args(&io.registers);
        let fault = context
            .faults
            .action(Point::Command, io.index, usize::from(Word(command).number()));
        let due = match fault {
            Some(Action::Busy(Duration::MAX)) => u64::MAX,
            Some(Action::Busy(time)) => context.after(time),
            _ if Word(command).is_nowait() && context.options.timing.nowait.is_zero() => 0,
            _ if Word(command).is_nowait() => context.after(context.options.timing.nowait),
            _ => context.after(context.options.timing.devcmd),
        };
        self.busy = Some(Busy {
            command,
            args,
            due,
            fault,
        });
    }

    fn args(&self, registers: &Shared) -> Args {
        std::array::from_fn(|index| registers.get64(self.at + register::ARGS + 8 * index))
    }

    fn violation(
        &self,
        io: &Io,
        context: &Context,
        kind: Kind,
        what: &'static str,
        name: &'static str,
        value: u32,
    ) {
        let wrong = Wrong::new(kind, what).at(name).values(value.into(), 0);
        io.violation(context, Some(("devcmd", 0)), wrong);
    }

    /// The command whose time has come.
    #[inline]
    pub(crate) fn due(&self, now: u64) -> Option<Busy> {
        self.busy.filter(|busy| busy.due <= now)
    }

    /// Ends a command. Results are written before BUSY is cleared.
    pub(crate) fn finish(&mut self, io: &mut Io, result: Result<Args, u8>) {
        self.busy = None;
        let (status, results) = match result {
            Ok(results) => (0, results),
            Err(number) => {
                let mut args = self.args(&io.registers);
                args[0] = number.into();
                (register::ERROR, args)
            }
        };
        for (index, value) in results.into_iter().enumerate() {
            io.registers.put64(self.at + register::ARGS + 8 * index, value);
        }
        io.registers.put(self.at + register::STATUS, status);
    }
}

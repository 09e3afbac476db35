//! devcmd2: commands in a ring of the client's, results in another (3.10).
//!
//! ```text
//!   block like a WQ's: ring_base, ring_size, posted_index ─► command of 128 bytes
//!     ─► a while later: result of 128 bytes, colour last
//! ```

use crate::devcmd::{Args, Busy};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Who, Wrong};
use crate::registers::queue;
use crate::violation::Kind;

use super::table::Word;

/// Bytes of a command, and of a result.
const ENTRY: usize = 128;
/// The most commands of a ring.
const MOST: u32 = 4096;
/// The command's flag: no result is wanted.
const NO_RESULT: u16 = 1;
const WHO: Who = ("devcmd2", 0);

/// Where results go.
#[derive(Clone, Copy, Debug)]
struct Results {
    at: u64,
    entries: u32,
    next: u32,
    color: u8,
}

/// The devcmd2 block of a function.
#[derive(Debug)]
pub(crate) struct Devcmd2 {
    at: usize,
    fetch: u32,
    was_enabled: bool,
    results: Option<Results>,
    pub(crate) busy: Option<Busy>,
    /// The command under way needs no result.
    is_silent: bool,
}

impl Devcmd2 {
    pub(crate) fn new(at: usize) -> Self {
        Self {
            at,
            fetch: 0,
            was_enabled: false,
            results: None,
            busy: None,
            is_silent: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.at);
    }

    /// Looks for the next command.
    pub(crate) fn look(&mut self, io: &mut Io, context: &Context) {
        let get = |register: usize| io.registers.get(self.at + register);
        let is_enabled = get(queue::ENABLE) & 1 != 0;
        if is_enabled != self.was_enabled {
            self.was_enabled = is_enabled;
            self.fetch = get(queue::FETCH);
            io.registers.put(self.at + queue::RUNNING, is_enabled.into());
            if !is_enabled {
                (self.results, self.busy) = (None, None);
            }
        }
        let (posted, size) = (get(queue::POSTED), get(queue::RING_SIZE));
        if !is_enabled || self.busy.is_some() || posted == self.fetch {
            return;
        }
        if posted >= size || self.fetch >= size || size > MOST {
            let wrong =
                Wrong::new(Kind::PostedBeyondRing, "the index is no slot of the ring").at("posted_index");
            io.violation(context, Some(WHO), wrong.values(posted.into(), size.into()));
            self.stop(io);
            return;
        }
        self.take(io, context);
    }

    /// Fetches a command.
    fn take(&mut self, io: &mut Io, context: &Context) {
        let base = io.registers.get64(self.at + queue::RING_BASE);
        let mut entry = [0; ENTRY];
        let at = base.wrapping_add(u64::from(self.fetch) * ENTRY as u64);
        if !io.read(context, WHO, at, &mut entry) {
            self.stop(io);
            return;
        }
        let command = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        self.is_silent = u16::from_le_bytes([entry[2], entry[3]]) & NO_RESULT != 0;
        let mut args = Args::default();
        for (arg, bytes) in args.iter_mut().zip(entry[8..].chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            *arg = u64::from_le_bytes(word);
        }
        let fault = context
            .faults
            .action(Point::Command, io.index, usize::from(Word(command).number()));
        let due = match fault {
            Some(Action::Busy(std::time::Duration::MAX)) => u64::MAX,
            Some(Action::Busy(time)) => context.after(time),
            _ => context.after(context.options.timing.devcmd),
        };
        self.busy = Some(Busy {
            command,
            args,
            due,
            fault,
        });
    }

    /// The ring cannot be used: it stops until it is enabled again. \[M\]
    fn stop(&mut self, io: &mut Io) {
        io.registers.put(self.at + queue::RUNNING, 0);
        io.registers.put(self.at + queue::ENABLE, 0);
        self.was_enabled = false;
    }

    /// The command whose time has come.
    pub(crate) fn due(&self, now: u64) -> Option<Busy> {
        self.busy.filter(|busy| busy.due <= now)
    }

    /// Results go to this ring from now on.
    pub(crate) fn set_results(&mut self, at: u64, entries: u64) -> bool {
        let Some(entries) = u32::try_from(entries)
            .ok()
            .filter(|entries| (1..=MOST).contains(entries))
        else {
            return false;
        };
        self.results = Some(Results {
            at,
            entries,
            next: 0,
            color: 1,
        });
        true
    }

    /// Ends a command: its result, then the next one may be fetched.
    pub(crate) fn finish(&mut self, io: &mut Io, context: &Context, result: Result<Args, u8>) {
        self.busy = None;
        let completed = self.fetch;
        let size = io.registers.get(self.at + queue::RING_SIZE).max(1);
        self.fetch = (self.fetch + 1) % size;
        io.registers.put(self.at + queue::FETCH, self.fetch);
        let Some(results) = self.results.as_mut().filter(|_| !self.is_silent) else {
            return;
        };
        let mut entry = [0; ENTRY];
        let (args, error) = match result {
            Ok(args) => (args, 0),
            Err(number) => (Args::default(), number),
        };
        for (bytes, arg) in entry.chunks_exact_mut(8).zip(args) {
            bytes.copy_from_slice(&arg.to_le_bytes());
        }
        entry[124..126].copy_from_slice(&(completed as u16).to_le_bytes());
        entry[126] = error;
        entry[127] = results.color;
        let at = results.at.wrapping_add(u64::from(results.next) * ENTRY as u64);
        results.next += 1;
        if results.next == results.entries {
            (results.next, results.color) = (0, results.color ^ 1);
        }
        // All but the last sixteen bytes, then those, their last one last.
        let mut last = [0; 16];
        last.copy_from_slice(&entry[112..]);
        if io.write(context, WHO, at, &entry[..112]) {
            io.publish(context, WHO, at.wrapping_add(112), &last);
        }
    }
}

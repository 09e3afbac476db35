//! Completion queues: the colour, the wrap, and the interrupt (4.3, 4.6, 8.6).
//!
//! The device does not know how far its entries were read. The model knows some of it: a driver that posts a
//! slot again has read the completion of that slot. An entry that is written over one of which that is not
//! known is recorded as an overrun.

use crate::desc::{Entry, LENGTH};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Who, Wrong};
use crate::registers::cq;
use crate::violation::Kind;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    index: usize,
    at: usize,
    base: u64,
    size: u32,
    tail: u32,
    color: u32,
    /// Entries written since it was set up, and how many of them were read for certain.
    written: u64,
    proved: u64,
    /// An entry that comes late, by a fault: when, where, what.
    late: Option<(u64, u64, [u8; LENGTH])>,
}

impl Cq {
    pub(crate) fn new(index: usize, at: usize) -> Self {
        Self {
            index,
            at,
            base: 0,
            size: 0,
            tail: 0,
            color: 0,
            written: 0,
            proved: 0,
            late: None,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.index, self.at);
    }

    fn who(&self) -> Who {
        ("cq", self.index)
    }

    /// Takes what the driver wrote since the last entry. What the device changes is in the registers,
    /// too, so a driver that writes where it should begin is seen. \[M\] The cursor is loaded by that.
    #[inline]
    fn load(&mut self, io: &Io) {
        let get = |register: usize| io.registers.get(self.at + register);
        let base = io.registers.get64(self.at + cq::RING_BASE);
        let (size, tail, color) = (get(cq::RING_SIZE), get(cq::TAIL), get(cq::TAIL_COLOR) & 1);
        if (base, size, tail, color) != (self.base, self.size, self.tail, self.color) {
            *self = Self {
                base,
                size,
                tail,
                color,
                written: 0,
                proved: 0,
                ..*self
            };
        }
    }

    /// Whether it takes an entry: only with flow control it may not.
    #[inline]
    pub(crate) fn has_room(&mut self, io: &Io) -> bool {
        if io.registers.get(self.at + cq::FLOW_CONTROL) & 1 == 0 {
            return true;
        }
        self.load(io);
        self.size == 0 || (self.tail + 1) % self.size != io.registers.get(self.at + cq::HEAD)
    }

    /// Writes an entry; its number, by which it is known to have been read later.
    pub(crate) fn write(&mut self, io: &mut Io, context: &Context, entry: Entry) -> u64 {
        self.load(io);
        let get = |register: usize| io.registers.get(self.at + register);
        let (by_entry, by_message) = (get(cq::ENTRY_ENABLE) & 1 != 0, get(cq::MESSAGE_ENABLE) & 1 != 0);
        let (tells, interrupt) = (get(cq::INTR_ENABLE) & 1 != 0, get(cq::INTR_OFFSET));
        if self.size == 0 || self.tail >= self.size || !(by_entry || by_message) {
            let what = "the completion queue is not set up: its size, its tail, and entries or messages";
            let wrong = Wrong::new(Kind::CqIndex, what).at("ring_size");
            io.violation(
                context,
                Some(self.who()),
                wrong.values(self.size.into(), self.tail.into()),
            );
            return 0;
        }
        if by_message {
            let index = u32::from(u16::from_le_bytes([entry.0[0], entry.0[1]]));
            let to = io.registers.get64(self.at + cq::MESSAGE_ADDR);
            // [U] The content of the upper half of the word: zeroes here.
            io.write(context, self.who(), to, &index.to_le_bytes());
        }
        if by_entry {
            self.put(io, context, entry);
        }
        if tells {
            io.raise(context, self.who(), interrupt);
        }
        self.written
    }

    fn put(&mut self, io: &mut Io, context: &Context, mut entry: Entry) {
        if self.written - self.proved >= u64::from(self.size) {
            let wrong = Wrong::new(
                Kind::CqOverrun,
                "an entry is written over one that is not known to have been read",
            );
            io.violation(
                context,
                Some(self.who()),
                wrong
                    .at("ring_size")
                    .values(self.written - self.proved + 1, self.size.into()),
            );
            // Once a lap.
            self.proved = self.written;
        }
        let fault = context.faults.action(Point::Completion, io.index, self.index);
        match fault {
            Some(Action::WrongQueue(queue)) => entry.0[2..4].copy_from_slice(&queue.to_le_bytes()),
            Some(Action::WrongType(kind)) => entry.0[15] = kind & 0x7f,
            _ => {}
        }
        if fault == Some(Action::Overrun) {
            return self.overrun(io, context, entry);
        }
        self.place(io, context, entry, fault);
        if fault == Some(Action::DuplicateEntry) {
            self.place(io, context, entry, None);
        }
    }

    /// Writes as if completions had come faster than they are read: a lap of entries and one more, over
    /// whatever its value.
    fn overrun(&mut self, io: &mut Io, context: &Context, entry: Entry) {
        for _ in 0..=self.size {
            self.place(io, context, entry, None);
        }
        // It was none of the driver's doing.
        self.proved = self.written;
    }

    /// Writes an entry where the next one belongs; only the colour is missing.
    fn place(&mut self, io: &mut Io, context: &Context, mut entry: Entry, fault: Option<Action>) {
        let colors = io.registers.get(self.at + cq::COLOR_ENABLE) & 1;
        let color = self.color ^ u32::from(fault == Some(Action::WrongColor));
        entry.0[15] = entry.0[15] & 0x7f | ((color & colors) as u8) << 7;
        let at = self.base.wrapping_add(u64::from(self.tail) * LENGTH as u64);
        // Entries stay in order.
        self.hurry(io, context);
        match fault {
            Some(Action::ColorLate(wait)) => {
                let mut early = entry.0;
                early[15] ^= 0x80;
                io.publish(context, self.who(), at, &early);
                self.late = Some((context.after(wait), at, entry.0));
            }
            Some(Action::ColorEarly(wait)) => {
                // A fault that hardware would not produce: the colour before the entry.
                io.write(context, self.who(), at.wrapping_add(15), &entry.0[15..]);
                self.late = Some((context.after(wait), at, entry.0));
            }
            Some(Action::InterruptFirst(wait)) => self.late = Some((context.after(wait), at, entry.0)),
            _ => {
                io.publish(context, self.who(), at, &entry.0);
            }
        }
        self.advance(io);
    }

    /// Writes the entry that is late, if its time has come.
    pub(crate) fn look(&mut self, io: &mut Io, context: &Context) {
        if self.late.is_some_and(|(due, ..)| due <= context.now) {
            self.hurry(io, context);
        }
    }

    fn hurry(&mut self, io: &mut Io, context: &Context) {
        if let Some((_, at, entry)) = self.late.take() {
            io.publish(context, self.who(), at, &entry);
        }
    }

    fn advance(&mut self, io: &Io) {
        self.written += 1;
        self.tail += 1;
        if self.tail == self.size {
            self.tail = 0;
            self.color ^= 1;
            io.registers.put(self.at + cq::TAIL_COLOR, self.color);
        }
        io.registers.put(self.at + cq::TAIL, self.tail);
    }

    /// The entry of this number, and all before it, have been read.
    #[inline]
    pub(crate) fn prove(&mut self, number: u64) {
        self.proved = self.proved.max(number.min(self.written));
    }
}

//! A completion queue as the host sees it: entries in the order in which the device wrote them, distinguished
//! from old ones by their colour.
//!
//! ```text
//!   pass 1:  ●●●●●●○○  new entries have colour 1 …   pass 2:  ○○●●●●●●  … then 0, and so on; none is cleared
//!                  ▲ next                                       ▲ next
//! ```
//!
//! Source: libfabric `usd_poll.c` and `cq_desc.h`. The device does not know how far we are: the ring has to
//! have room for every completion that can be outstanding, or unread ones are overwritten `[I]`.

use doorbell_fabric::memory::RegionSlice;
use doorbell_vfio::{Error, after_completion};
use memoffset::offset_of;
use zerocopy::FromBytes;

use crate::desc::{COLOR, Completion, ENTRY, KIND};
use crate::regs::CompletionQueue;
use crate::window::Window;

/// A completion queue that the device writes.
pub struct CompletionRing {
    window: Window,
    memory: RegionSlice,
    /// Where in the memory it lies, and for the device.
    at: usize,
    bus: u64,
    entries: usize,
    next: usize,
    /// The colour of the pass before.
    last: u8,
}

impl CompletionRing {
    pub(crate) fn new(window: Window, memory: RegionSlice, (at, bus): (usize, u64), entries: usize) -> Self {
        Self {
            window,
            memory,
            at,
            bus,
            entries,
            next: 0,
            last: 0,
        }
    }

    /// Entries of the ring.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    #[inline]
    fn place(&self, entry: usize) -> usize {
        self.at + entry * ENTRY
    }

    #[inline]
    fn kind(&self, entry: usize) -> u8 {
        let byte = self.memory.as_shared().read::<1>(self.place(entry) + KIND);
        byte.map_or(self.last, |[kind]| kind)
    }

    /// Whether there is a new entry.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.kind(self.next) & COLOR != self.last
    }

    /// Takes the next entry, if there is one.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Completion> {
        let kind = self.kind(self.next);
        if kind & COLOR == self.last {
            return None;
        }
        // The colour is written last; the rest is read after it.
        after_completion();
        let bytes: [u8; ENTRY] = self.memory.as_shared().read(self.place(self.next))?;
        self.next += 1;
        if self.next == self.entries {
            self.next = 0;
            self.last ^= COLOR;
        }
        let read = Completion::read_from_bytes(&bytes).ok()?;
        // The kind that showed it to be new is the one that counts.
        Some(Completion { kind, ..read })
    }

    /// Whether entries wait behind one that never came: the device has written a wrong colour, or passed one
    /// over. Nothing would ever be read from here again.
    pub(crate) fn is_stuck(&self) -> bool {
        let behind = self.next + 1;
        let (behind, last) = if behind == self.entries {
            (0, self.last ^ COLOR)
        } else {
            (behind, self.last)
        };
        !self.is_ready() && self.kind(behind) & COLOR != last
    }

    /// Starts over: the ring is empty, and its address is written to the device. To be called while no queue
    /// reports to it.
    pub(crate) fn program(&mut self, interrupt: Option<u32>) -> Result<(), Error> {
        for entry in 0..self.entries {
            self.memory.write(self.place(entry), &[0; ENTRY]);
        }
        (self.next, self.last) = (0, 0);
        let set = |at, value| self.window.write32(at, value);
        self.window
            .write64(offset_of!(CompletionQueue, ring_base), self.bus)?;
        set(offset_of!(CompletionQueue, ring_size), self.entries as u32)?;
        set(offset_of!(CompletionQueue, flow_control_enable), 0)?;
        set(offset_of!(CompletionQueue, color_enable), 1)?;
        set(offset_of!(CompletionQueue, head), 0)?;
        set(offset_of!(CompletionQueue, tail), 0)?;
        set(offset_of!(CompletionQueue, tail_color), 1)?;
        set(
            offset_of!(CompletionQueue, interrupt_enable),
            u32::from(interrupt.is_some()),
        )?;
        set(offset_of!(CompletionQueue, entry_enable), 1)?;
        set(offset_of!(CompletionQueue, message_enable), 0)?;
        set(
            offset_of!(CompletionQueue, interrupt_offset),
            interrupt.unwrap_or(0),
        )?;
        self.window
            .write64(offset_of!(CompletionQueue, message_address), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use doorbell_fabric::memory::Region;

    fn ring(entries: usize) -> (CompletionRing, RegionSlice) {
        let memory = Region::new((entries * ENTRY).max(4096)).unwrap().whole();
        let window = Window::new(&Fake::new().space(), 0);
        (
            CompletionRing::new(window, memory.clone(), (0, 0), entries),
            memory,
        )
    }

    /// The device's side: entry number `count` from the beginning.
    fn write(memory: &RegionSlice, entries: usize, count: usize, color: Option<u8>) {
        let pass = (count / entries) as u8;
        let color = color.unwrap_or(if pass.is_multiple_of(2) { COLOR } else { 0 });
        let mut bytes = [0; ENTRY];
        bytes[..2].copy_from_slice(&((count % 4096) as u16).to_le_bytes());
        bytes[KIND] = color | 7;
        memory.write(count % entries * ENTRY, &bytes);
    }

    #[test]
    fn ring_wrap_and_colour_flip_at_sizes_64_4096_65536_for_cqs() {
        for entries in [64, 4096, 65536] {
            let (mut ring, memory) = ring(entries);
            assert!(ring.take().is_none() && !ring.is_ready());
            for count in 0..3 * entries + 5 {
                write(&memory, entries, count, None);
                assert!(ring.is_ready() && !ring.is_stuck());
                let entry = ring.take().unwrap();
                assert_eq!(entry.descriptor(), count % 4096, "{entries}: {count}");
                assert!(ring.take().is_none(), "nothing is read twice: {entries}: {count}");
            }
        }
    }

    #[test]
    fn a_whole_ring_of_entries_is_read_in_order() {
        let (mut ring, memory) = ring(64);
        for round in 0..5 {
            (0..64).for_each(|at| write(&memory, 64, round * 64 + at, None));
            for at in 0..64 {
                assert_eq!(ring.take().unwrap().descriptor(), round * 64 + at);
            }
            assert!(ring.take().is_none());
        }
    }

    #[test]
    fn an_entry_of_the_wrong_colour_is_found_by_those_behind_it() {
        for wrong in [0, 30, 63] {
            let (mut ring, memory) = ring(64);
            (0..wrong).for_each(|at| write(&memory, 64, at, None));
            while ring.take().is_some() {}
            assert!(!ring.is_stuck(), "{wrong}: nothing came yet");
            write(&memory, 64, wrong, Some(0));
            assert!(
                !ring.is_ready() && !ring.is_stuck(),
                "{wrong}: as if it had not come"
            );
            write(&memory, 64, wrong + 1, None);
            assert!(!ring.is_ready() && ring.is_stuck(), "{wrong}");
        }
    }
}

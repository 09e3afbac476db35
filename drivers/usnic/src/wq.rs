//! A work queue: descriptors and the chunks behind them, used round and round.
//!
//! ```text
//!   done ──────► told ──────► posted          all count up; a place is a count modulo the size
//!   chunk free   the device's  ours
//! ```
//!
//! The doorbell is the index one past the last filled descriptor; at most all but one may be outstanding, as an index equal to the
//! device's means "empty". The device reports on descriptors that ask for it, and a report covers all before it: the last of each
//! batch asks, and each 32nd (as DPDK's).
//!
//! Sources: libfabric `vnic_wq.{h,c}` and `usd_post.h`.

use std::collections::VecDeque;

use doorbell_fabric::memory::RegionSlice;
use doorbell_vfio::{Block, Error, Put, before_doorbell};
use memoffset::offset_of;
use zerocopy::IntoBytes;

use crate::desc::{ENTRY, SEND_FLAGS, SendDescriptor, hinted};
use crate::regs::{Hinted, WorkQueue};
use crate::window::Window;

/// So many descriptors go without a report.
const REPORT_EVERY: u64 = 32;

/// Where a ring lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Entries: a power of two.
    pub(crate) entries: usize,
    /// Of the descriptors and of the chunks, in the memory.
    pub(crate) ring: usize,
    pub(crate) chunks: usize,
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    /// The bus addresses of the same.
    pub(crate) bus_ring: u64,
    pub(crate) bus: u64,
}

/// Frames of both channels that were posted before and with an entry.
pub(crate) type Posted = [u64; 2];

/// How the doorbell is rung.
enum Bell {
    /// By a store: 32 bits, or 64 with a hint.
    Mapped(Block<WorkQueue>, Block<Hinted>),
    /// By a call, where the model keeps its registers to itself.
    Called(Window),
}

/// One work queue.
pub(crate) struct SendRing {
    window: Window,
    bell: Bell,
    memory: RegionSlice,
    place: Place,
    cq: u32,
    checksums: bool,
    posted: u64,
    told: u64,
    done: u64,
    /// The entries that the device reports on, oldest first.
    reports: VecDeque<u64>,
    ids: Box<[Posted]>,
    /// What the last entry says, which the device does not know of yet and reports nothing on: it is not read back from memory
    /// that others may write.
    tail: Option<SendDescriptor>,
    hint: (u64, usize),
    /// Frames that the device has let go of.
    pub(crate) reaped: Posted,
    last: Posted,
}

impl SendRing {
    pub(crate) fn new(window: Window, memory: RegionSlice, place: Place, cq: u32, checksums: bool) -> Self {
        let posted = offset_of!(WorkQueue, posted);
        let bell = match (window.block(0), window.block(posted)) {
            (Some(plain), Some(wide)) => Bell::Mapped(plain, wide),
            _ => Bell::Called(window.clone()),
        };
        Self {
            window,
            bell,
            memory,
            place,
            cq,
            checksums,
            posted: 0,
            told: 0,
            done: 0,
            reports: VecDeque::with_capacity(place.entries),
            ids: vec![[0; 2]; place.entries].into(),
            tail: None,
            hint: (0, 0),
            reaped: [0; 2],
            last: [0; 2],
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.bell, Bell::Mapped(..))
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Begins anew, disabled: the device has let go of everything, and of all frames that were `posted`.
    pub(crate) fn program(&mut self, posted: Posted) -> Result<(), Error> {
        (self.posted, self.told, self.done) = (0, 0, 0);
        self.reports.clear();
        self.tail = None;
        (self.last, self.reaped) = (posted, posted);
        for slot in 0..self.place.entries {
            self.memory.write(self.place.ring + slot * ENTRY, &[0; ENTRY]);
        }
        let set = |at, value| self.window.write32(at, value);
        self.window
            .write64(offset_of!(WorkQueue, ring_base), self.place.bus_ring)?;
        set(offset_of!(WorkQueue, ring_size), self.place.entries as u32)?;
        set(offset_of!(WorkQueue, fetch), 0)?;
        set(offset_of!(WorkQueue, posted), 0)?;
        set(offset_of!(WorkQueue, cq_index), self.cq)?;
        set(offset_of!(WorkQueue, error_interrupt_enable), 0)?;
        set(offset_of!(WorkQueue, error_interrupt_offset), 0)?;
        set(offset_of!(WorkQueue, error_status), 0)?;
        // The Sereno ASIC takes a new fetch index in with this.
        set(offset_of!(WorkQueue, enable), 0)
    }

    #[inline]
    fn slot(&self, count: u64) -> usize {
        count as usize & (self.place.entries - 1)
    }

    pub(crate) fn entries(&self) -> usize {
        self.place.entries
    }

    /// Entries that are free. One is never used, or a full ring would look like an empty one.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        (self.place.entries - 1).saturating_sub((self.posted - self.done) as usize)
    }

    /// Whether the device has let go of everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted == self.done
    }

    /// What the device was told of, and how much of it is done.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.told, self.done)
    }

    /// Where in the memory the next frame is written. There has to be a free entry.
    #[inline]
    pub(crate) fn next(&self) -> usize {
        self.place.chunks + self.slot(self.posted) * self.place.chunk
    }

    /// Posts the frame of `length` bytes that was written there; `last` are the frames posted with it.
    #[inline]
    pub(crate) fn post(&mut self, length: usize, checksums: bool, last: Posted) {
        let slot = self.slot(self.posted);
        let at = self.place.bus + (slot * self.place.chunk) as u64;
        let mut descriptor = SendDescriptor::frame(at, length as u16, checksums && self.checksums);
        self.posted += 1;
        self.tail = if self.posted.is_multiple_of(REPORT_EVERY) {
            descriptor = descriptor.reported();
            self.reports.push_back(self.posted - 1);
            None
        } else {
            Some(descriptor)
        };
        self.memory
            .write(self.place.ring + slot * ENTRY, descriptor.as_bytes());
        (self.ids[slot], self.last, self.hint) = (last, last, (at, length));
    }

    /// Frames posted here that never reach the device: it has let go of them when it has of those before.
    #[inline]
    pub(crate) fn skip(&mut self, last: Posted) {
        self.last = last;
        if self.is_empty() {
            self.reaped = last;
        } else {
            let slot = self.slot(self.posted - 1);
            self.ids[slot] = last;
        }
    }

    /// Tells the device of everything posted, and has it report when it is done with the last; returns whether it was told
    /// anything.
    #[inline]
    pub(crate) fn doorbell(&mut self) -> bool {
        if self.posted == self.told {
            return false;
        }
        if let Some(descriptor) = self.tail.take() {
            let last = self.posted - 1;
            let at = self.place.ring + self.slot(last) * ENTRY + SEND_FLAGS;
            let flags = descriptor.reported().flags;
            self.memory.write(at, flags.as_bytes());
            self.reports.push_back(last);
        }
        let is_single = self.posted - self.told == 1;
        self.told = self.posted;
        self.ring(is_single);
        true
    }

    /// Tells the device once more what it was told: one that has lost the doorbell would wait for ever. That writing the same
    /// index again does nothing else is inferred `[I]`.
    #[cold]
    pub(crate) fn ring_again(&self) {
        self.ring(false);
    }

    #[inline]
    fn ring(&self, is_single: bool) {
        let index = self.slot(self.told) as u32;
        before_doorbell();
        match &self.bell {
            // For one frame, with what it is about to read; usNIC does the same.
            Bell::Mapped(_, wide) if is_single => wide.put(hinted(index, self.hint.0, self.hint.1)),
            Bell::Mapped(plain, _) => plain.posted.put(index),
            // A device that is gone is found at the next look.
            Bell::Called(window) => {
                let at = offset_of!(WorkQueue, posted);
                let _ = if is_single {
                    window.write64(at, hinted(index, self.hint.0, self.hint.1))
                } else {
                    window.write32(at, index)
                };
            }
        }
    }

    /// The device has reported on this descriptor; false where it was not asked to, or has already.
    #[inline]
    pub(crate) fn complete(&mut self, descriptor: usize) -> bool {
        let asked = |count: &u64| *count as usize & (self.place.entries - 1) == descriptor;
        let Some(at) = self.reports.iter().position(asked) else {
            return false;
        };
        let count = self.reports[at];
        if count >= self.told {
            return false;
        }
        // One report covers all before it.
        self.reports.drain(..=at);
        self.done = count + 1;
        self.reaped = self.ids[self.slot(count)];
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{END, REPORT};
    use crate::fake::Fake;
    use doorbell_fabric::memory::Region;
    use zerocopy::FromBytes;

    fn ring(entries: usize) -> (SendRing, RegionSlice) {
        let memory = Region::new(entries * ENTRY + entries * 64).unwrap().whole();
        let place = Place {
            entries,
            ring: 0,
            chunks: entries * ENTRY,
            chunk: 64,
            bus_ring: 0x10_0000,
            bus: 0x20_0000,
        };
        let window = Window::new(&Fake::new().space(), 0);
        (SendRing::new(window, memory.clone(), place, 0, true), memory)
    }

    fn descriptor(memory: &RegionSlice, slot: usize) -> SendDescriptor {
        let bytes: [u8; ENTRY] = memory.as_shared().read(slot * ENTRY).unwrap();
        SendDescriptor::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn ring_wrap_at_sizes_32_and_4096_for_wqs_and_at_most_count_minus_one_outstanding() {
        for entries in [32, 4096] {
            let (mut ring, memory) = ring(entries);
            for round in 0..3u64 {
                for at in 0..entries as u64 - 1 {
                    assert_eq!(ring.free() as u64, entries as u64 - 1 - at);
                    let slot = ring.next();
                    ring.post(60, true, [0, round * 10_000 + at + 1]);
                    assert_eq!(
                        (slot - entries * ENTRY) / 64,
                        (round as usize * (entries - 1) + at as usize) % entries
                    );
                }
                assert_eq!(ring.free(), 0, "posted never wraps onto fetch");
                assert!(ring.doorbell() && !ring.doorbell());
                // The device reports on what it was asked to, in order.
                for at in 0..entries as u64 - 1 {
                    let count = round * (entries as u64 - 1) + at;
                    let slot = count as usize % entries;
                    if descriptor(&memory, slot).flags.get() & REPORT != 0 {
                        assert!(ring.complete(slot), "{count}");
                        assert!(!ring.complete(slot), "twice");
                    }
                }
                assert_eq!(ring.free(), entries - 1);
                assert_eq!(ring.reaped[1], round * 10_000 + entries as u64 - 1);
            }
        }
    }

    #[test]
    fn unsignalled_sends_return_credits_on_the_next_signalled_one() {
        let (mut ring, memory) = ring(64);
        for at in 0..10 {
            ring.post(60, true, [0, at + 1]);
        }
        ring.doorbell();
        for slot in 0..9 {
            assert_eq!(descriptor(&memory, slot).flags.get(), END, "{slot}");
            assert!(!ring.complete(slot), "nobody asked for a report on it");
        }
        assert_eq!(
            (descriptor(&memory, 9).flags.get(), ring.free()),
            (END | REPORT, 53)
        );
        assert!(ring.complete(9));
        assert_eq!((ring.free(), ring.reaped), (63, [0, 10]));
    }

    #[test]
    fn reports_on_what_was_never_told_are_none() {
        let (mut ring, _) = ring(64);
        for at in 0..32 {
            ring.post(60, true, [0, at + 1]);
        }
        // The 32nd asks for a report when it is posted; the device does not know of it.
        assert!(!ring.complete(31));
        ring.doorbell();
        assert!(!ring.complete(4095) && !ring.complete(30) && ring.complete(31));
    }

    #[test]
    fn a_frame_that_is_skipped_is_let_go_of_with_those_before_it() {
        let (mut ring, _) = ring(64);
        ring.skip([0, 1]);
        assert_eq!(ring.reaped, [0, 1]);
        ring.post(60, true, [0, 2]);
        ring.skip([0, 3]);
        assert_eq!(ring.reaped, [0, 1]);
        ring.doorbell();
        assert!(ring.complete(0));
        assert_eq!(ring.reaped, [0, 3]);
    }
}

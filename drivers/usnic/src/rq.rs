//! A receive queue: room for frames that the device has, in the order in which it uses it.
//!
//! Source: libfabric `vnic_rq.{h,c}`.

use doorbell_fabric::memory::RegionSlice;
use doorbell_packet::Lent;
use doorbell_vfio::{Block, Error, Put, before_doorbell};
use memoffset::offset_of;
use zerocopy::IntoBytes;

use crate::desc::{ENTRY, ReceiveDescriptor};
use crate::regs::ReceiveQueue;
use crate::window::Window;

/// Chunks that are given back at a time while frames come in: each time is a write of a register. (Open MPI's
/// BTL: 16.)
const GIVE_BACK: u64 = 32;

/// Where a ring lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLocation {
    /// Entries: a power of two.
    pub(crate) entries: usize,
    pub(crate) ring: usize,
    pub(crate) bus_ring: u64,
    /// Bytes of a chunk, and how many of them the device may write.
    pub(crate) chunk: usize,
    pub(crate) room: usize,
    /// The bus address of the first chunk of all.
    pub(crate) bus: u64,
}

enum Bell {
    Mapped(Block<ReceiveQueue>),
    Called(Window),
}

/// What an entry of a completion queue means for a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The chunk with this number is ours again.
    Chunk(u32),
    /// The device has nothing like it: completed twice, or never given.
    Nothing,
    /// It has, but others before it were not completed: something was lost, and what those chunks are is not
    /// known.
    Gap,
}

/// A receive queue of the function.
pub(crate) struct ReceiveRing {
    window: Window,
    bell: Bell,
    memory: RegionSlice,
    place: RingLocation,
    cq: u32,
    lent: Lent,
}

impl ReceiveRing {
    pub(crate) fn new(window: Window, memory: RegionSlice, place: RingLocation, cq: u32) -> Self {
        let bell = window
            .block(0)
            .map_or_else(|| Bell::Called(window.clone()), Bell::Mapped);
        Self {
            window,
            bell,
            memory,
            place,
            cq,
            lent: Lent::new(place.entries),
        }
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// The completion queue that reports on it.
    pub(crate) fn cq(&self) -> u32 {
        self.cq
    }

    /// Resets the ring, disabled: the device has released everything, which goes back to `fresh`.
    pub(crate) fn program(&mut self, fresh: &mut Vec<u32>) -> Result<(), Error> {
        self.lent.restart(fresh);
        for slot in 0..self.place.entries {
            self.memory.write(self.place.ring + slot * ENTRY, &[0; ENTRY]);
        }
        let set = |at, value| self.window.write32(at, value);
        self.window
            .write64(offset_of!(ReceiveQueue, ring_base), self.place.bus_ring)?;
        set(offset_of!(ReceiveQueue, ring_size), self.place.entries as u32)?;
        set(offset_of!(ReceiveQueue, cq_index), self.cq)?;
        set(offset_of!(ReceiveQueue, error_interrupt_enable), 0)?;
        set(offset_of!(ReceiveQueue, error_interrupt_offset), 0)?;
        set(offset_of!(ReceiveQueue, error_status), 0)?;
        set(offset_of!(ReceiveQueue, data_ring), 0)?;
        set(offset_of!(ReceiveQueue, header_split), 0)?;
        set(offset_of!(ReceiveQueue, fetch), 0)?;
        set(offset_of!(ReceiveQueue, posted), 0)?;
        // The Sereno ASIC takes a new fetch index in with this.
        set(offset_of!(ReceiveQueue, enable), 0)
    }

    /// Writes descriptors for free chunks.
    #[inline]
    pub(crate) fn give(&mut self, fresh: &mut Vec<u32>) {
        let (place, memory) = (self.place, &self.memory);
        self.lent.give(fresh, |slot, chunk| {
            let at = place.bus + u64::from(chunk) * place.chunk as u64;
            let descriptor = ReceiveDescriptor::frame(at, place.room as u16);
            memory.write(place.ring + slot * ENTRY, descriptor.as_bytes());
        });
    }

    /// Whether enough has been given for a write of the register while frames come in.
    #[inline]
    pub(crate) fn has_batch(&self) -> bool {
        self.lent.pending() >= GIVE_BACK.min(self.place.entries as u64 / 4)
    }

    /// Rings the doorbell for everything given.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.lent.pending() > 0 {
            let tail = self.lent.announce();
            self.ring(tail);
        }
    }

    /// Rings the doorbell again: a device that has lost it would drop everything `[I]`.
    #[cold]
    pub(crate) fn ring_again(&self) {
        self.ring(self.lent.tail());
    }

    #[inline]
    fn ring(&self, tail: usize) {
        before_doorbell();
        let index = tail as u32;
        match &self.bell {
            Bell::Mapped(queue) => queue.posted.put(index),
            // A device that is gone is found by the next check.
            Bell::Called(window) => _ = window.write32(offset_of!(ReceiveQueue, posted), index),
        }
    }

    /// The device is done with this descriptor.
    #[inline]
    pub(crate) fn take(&mut self, descriptor: usize) -> Taken {
        match self.lent.ahead(descriptor) {
            Some(0) => Taken::Chunk(self.lent.take()),
            Some(_) => Taken::Gap,
            None => Taken::Nothing,
        }
    }

    /// Returns how many chunks the device has given back since it began.
    pub(crate) fn count(&self) -> u64 {
        self.lent.taken()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use doorbell_fabric::memory::Region;

    fn ring(entries: usize) -> (ReceiveRing, Vec<u32>) {
        let memory = Region::new(entries * ENTRY).unwrap().whole();
        let place = RingLocation {
            entries,
            ring: 0,
            bus_ring: 0,
            chunk: 2048,
            room: 1600,
            bus: 0,
        };
        let window = Window::new(&Fake::new().space(), 0);
        let fresh = (0..entries as u32).collect();
        (ReceiveRing::new(window, memory, place, 0), fresh)
    }

    #[test]
    fn ring_wrap_at_sizes_32_and_4096_for_rqs() {
        for entries in [32, 4096] {
            let (mut ring, mut fresh) = ring(entries);
            ring.give(&mut fresh);
            ring.publish();
            assert_eq!(fresh.len(), 1, "at most all but one are the device's");
            for count in 0..3 * entries {
                let Taken::Chunk(chunk) = ring.take(count % entries) else {
                    panic!("{entries}: {count}");
                };
                fresh.insert(0, chunk);
                ring.give(&mut fresh);
                ring.publish();
                assert_eq!(fresh.len(), 1);
            }
        }
    }

    #[test]
    fn what_was_not_given_or_is_said_twice_is_nothing_and_a_gap_is_seen() {
        let (mut ring, mut fresh) = ring(64);
        assert_eq!(ring.take(0), Taken::Nothing, "nothing was given");
        fresh.truncate(10);
        ring.give(&mut fresh);
        assert_eq!(ring.take(0), Taken::Nothing, "nor told");
        ring.publish();
        assert!(matches!(ring.take(0), Taken::Chunk(_)));
        for wrong in [0, 63, 10, 64, 4095] {
            assert_eq!(ring.take(wrong), Taken::Nothing, "{wrong}");
        }
        assert_eq!(ring.take(2), Taken::Gap);
        assert!(
            matches!(ring.take(1), Taken::Chunk(_)),
            "nothing has changed by it"
        );
    }
}

//! A work queue: its descriptors and its doorbell.
//!
//! The doorbell is the index one past the last filled descriptor; at most all but one may be outstanding, as
//! an index equal to the device's means "empty". The device reports on descriptors with a flag for it, and a
//! report covers all before it: that of the last of each batch, and of each 32nd (as DPDK's).
//!
//! Sources: libfabric `vnic_wq.{h,c}` and `usd_post.h`.

use doorbell_fabric::ether::{Headers, Packed};
use doorbell_fabric::memory::RegionSlice;
use doorbell_packet::{Place, Posted, Slots};
use doorbell_vfio::{Block, Error, Put, before_doorbell};
use memoffset::offset_of;
use zerocopy::IntoBytes;

use crate::cq::CompletionRing;
use crate::desc::{ENTRY, SEND_FLAGS, SENT, SendDescriptor, hinted};
use crate::regs::{Hinted, WorkQueue};
use crate::window::Window;

/// One descriptor out of this many requests a report.
const REPORT_EVERY: u64 = 32;

/// How the doorbell is rung.
enum Bell {
    /// The doorbell is a store: 32 bits, or 64 with a hint.
    Mapped(Block<WorkQueue>, Block<Hinted>),
    /// The doorbell is a call, where the model does not share its registers.
    Called(Window),
}

/// A send queue of the function.
pub struct SendRing {
    window: Window,
    bell: Bell,
    memory: RegionSlice,
    /// Where the descriptors are: in the memory, and for the device.
    ring: (usize, u64),
    slots: Slots,
    cq: u32,
    checksums: bool,
    /// The last entry, which the device has not been notified of yet and which requests no report: it is not
    /// read back from memory that others may write.
    tail: Option<SendDescriptor>,
    hint: (u64, usize),
}

impl SendRing {
    /// A ring with descriptors at `ring`, in the memory and for the device; disabled.
    pub(crate) fn new(
        window: Window,
        memory: RegionSlice,
        (ring, place): ((usize, u64), Place),
        cq: u32,
        checksums: bool,
    ) -> Self {
        let posted = offset_of!(WorkQueue, posted);
        let bell = match (window.block(0), window.block(posted)) {
            (Some(plain), Some(wide)) => Bell::Mapped(plain, wide),
            _ => Bell::Called(window.clone()),
        };
        Self {
            window,
            bell,
            memory,
            ring,
            // One entry is never used, or a full ring would look like an empty one.
            slots: Slots::new(place, 1),
            cq,
            checksums,
            tail: None,
            hint: (0, 0),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.bell, Bell::Mapped(..))
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Resets the ring, disabled: the device has released everything, and of all frames that were `posted`.
    pub(crate) fn program(&mut self, posted: Posted) -> Result<(), Error> {
        self.slots.restart(posted);
        self.tail = None;
        for slot in 0..self.slots.entries() {
            self.memory.write(self.ring.0 + slot * ENTRY, &[0; ENTRY]);
        }
        let set = |at, value| self.window.write32(at, value);
        self.window
            .write64(offset_of!(WorkQueue, ring_base), self.ring.1)?;
        set(offset_of!(WorkQueue, ring_size), self.slots.entries() as u32)?;
        set(offset_of!(WorkQueue, fetch), 0)?;
        set(offset_of!(WorkQueue, posted), 0)?;
        set(offset_of!(WorkQueue, cq_index), self.cq)?;
        set(offset_of!(WorkQueue, error_interrupt_enable), 0)?;
        set(offset_of!(WorkQueue, error_interrupt_offset), 0)?;
        set(offset_of!(WorkQueue, error_status), 0)?;
        // The Sereno ASIC takes a new fetch index in with this.
        set(offset_of!(WorkQueue, enable), 0)
    }

    /// Rings the doorbell again: a device that has lost it would wait for ever. That writing the same index
    /// again does nothing else is inferred `[I]`.
    #[cold]
    pub(crate) fn ring_again(&self) {
        self.ring(self.slots.tail(), false);
    }

    #[inline]
    fn ring(&self, tail: usize, is_single: bool) {
        let index = tail as u32;
        before_doorbell();
        match &self.bell {
            // For one frame, with what it is about to read; usNIC does the same.
            Bell::Mapped(_, wide) if is_single => wide.put(hinted(index, self.hint.0, self.hint.1)),
            Bell::Mapped(plain, _) => plain.posted.put(index),
            // A device that is gone is found by the next check.
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
}

impl doorbell_packet::SendRing for SendRing {
    type Completions = CompletionRing;

    #[inline]
    fn slots(&self) -> &Slots {
        &self.slots
    }

    #[inline]
    fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    // Called for frames, and for the rail's own packets in a second place: a call costs 20 instructions a
    // frame.
    #[inline(always)]
    fn post(&mut self, length: usize, checksums: bool, posted: Posted) {
        let at = self.slots.bus();
        let mut descriptor = SendDescriptor::frame(at, length as u16, checksums && self.checksums);
        let slot = self.slots.push(posted);
        self.tail = if self.slots.is_multiple_of(REPORT_EVERY) {
            descriptor = descriptor.reported();
            self.slots.report();
            None
        } else {
            Some(descriptor)
        };
        self.memory
            .write(self.ring.0 + slot * ENTRY, descriptor.as_bytes());
        self.hint = (at, length);
    }

    #[inline(always)]
    fn doorbell(&mut self) -> bool {
        let pending = self.slots.pending();
        if pending == 0 {
            return false;
        }
        if let Some(descriptor) = self.tail.take() {
            let at = self.ring.0 + self.slots.last() * ENTRY + SEND_FLAGS;
            let flags = descriptor.reported().flags;
            self.memory.write(at, flags.as_bytes());
            self.slots.report();
        }
        let tail = self.slots.announce();
        self.ring(tail, pending == 1);
        true
    }

    #[inline]
    fn reap(rings: &mut [Self], _: usize, completions: &mut CompletionRing) -> u64 {
        let mut nonsense = 0;
        // No more than there are entries: a device that writes without end is not listened to for ever.
        for _ in 0..completions.entries() {
            let Some(entry) = completions.take() else { break };
            let ring = rings.get_mut(entry.number()).filter(|_| entry.kind() == SENT);
            nonsense += u64::from(!ring.is_some_and(|ring| ring.slots.complete(entry.descriptor())));
        }
        nonsense
    }

    #[inline]
    fn headers(headers: &Headers, length: usize) -> Packed {
        // Both checksums are made from scratch by the device, whatever is there.
        headers.without_checksums(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{END, REPORT};
    use crate::fake::Fake;
    use doorbell_fabric::memory::Region;
    use doorbell_packet::SendRing as _;
    use zerocopy::FromBytes;

    fn ring(entries: usize) -> (SendRing, RegionSlice) {
        let memory = Region::new(entries * ENTRY + entries * 64).unwrap().whole();
        let place = Place {
            entries,
            buffers: entries * ENTRY,
            size: 64,
            bus: 0x20_0000,
        };
        let window = Window::new(&Fake::new().space(), 0);
        let ring = ((0, 0x10_0000), place);
        (SendRing::new(window, memory.clone(), ring, 0, true), memory)
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
                    assert_eq!(ring.slots.free() as u64, entries as u64 - 1 - at);
                    let slot = ring.slots.buffer();
                    ring.post(60, true, [0, round * 10_000 + at + 1]);
                    assert_eq!(
                        (slot - entries * ENTRY) / 64,
                        (round as usize * (entries - 1) + at as usize) % entries
                    );
                }
                assert_eq!(ring.slots.free(), 0, "posted never wraps onto fetch");
                assert!(ring.doorbell() && !ring.doorbell());
                // The device reports on the descriptors that request it, in order.
                for at in 0..entries as u64 - 1 {
                    let count = round * (entries as u64 - 1) + at;
                    let slot = count as usize % entries;
                    if descriptor(&memory, slot).flags.get() & REPORT != 0 {
                        assert!(ring.slots.complete(slot), "{count}");
                        assert!(!ring.slots.complete(slot), "twice");
                    }
                }
                assert_eq!(ring.slots.free(), entries - 1);
                assert_eq!(ring.slots.reaped(1), round * 10_000 + entries as u64 - 1);
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
            assert!(!ring.slots.complete(slot), "no report was requested on it");
        }
        assert_eq!(
            (descriptor(&memory, 9).flags.get(), ring.slots.free()),
            (END | REPORT, 53)
        );
        assert!(ring.slots.complete(9));
        assert_eq!((ring.slots.free(), ring.slots.reaped(1)), (63, 10));
    }

    #[test]
    fn completions_of_unreported_descriptors_are_none() {
        let (mut ring, _) = ring(64);
        for at in 0..32 {
            ring.post(60, true, [0, at + 1]);
        }
        // The 32nd requests a report when it is posted; the device has not been notified of it.
        assert!(!ring.slots.complete(31));
        ring.doorbell();
        assert!(!ring.slots.complete(4095) && !ring.slots.complete(30) && ring.slots.complete(31));
    }

    #[test]
    fn a_frame_that_is_skipped_is_let_go_of_with_those_before_it() {
        let (mut ring, _) = ring(64);
        ring.slots.skip([0, 1]);
        assert_eq!(ring.slots.reaped(1), 1);
        ring.post(60, true, [0, 2]);
        ring.slots.skip([0, 3]);
        assert_eq!(ring.slots.reaped(1), 1);
        ring.doorbell();
        assert!(ring.slots.complete(0));
        assert_eq!(ring.slots.reaped(1), 3);
    }
}

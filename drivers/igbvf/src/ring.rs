//! A send ring: descriptors and the tail register.

use doorbell_fabric::ether::{Headers, Packed};
use doorbell_fabric::memory::RegionSlice;
use doorbell_packet::{Place, Posted, Slots};
use doorbell_vfio::{Block, Put, after_completion, before_doorbell};
use zerocopy::IntoBytes;

use crate::desc::{ContextDescriptor, DESCRIPTOR, DONE, REPORT, SEND_COMMAND, SEND_STATUS, SendDescriptor};
use crate::regs::TransmitQueue;

/// Entries that are never in use: one, or a full ring would look like an empty one; and one more, as the
/// description of packets may not have been read yet, which nothing reports.
const UNUSED: usize = 2;

/// A send ring of the function.
pub struct SendRing {
    queue: Block<TransmitQueue>,
    memory: RegionSlice,
    /// Where the descriptors are in the memory.
    at: usize,
    slots: Slots,
    /// Whether the device makes the checksums of these packets: of IPv4 or IPv6.
    checksums: Option<bool>,
    /// The command word of the last entry, which the device has not been notified of yet: it is not read back
    /// from memory that others may write.
    command: Option<u32>,
}

impl SendRing {
    /// An empty ring, with descriptors at `at`. `checksums`: the device makes UDP's, over IPv4 (true) or
    /// IPv6.
    pub(crate) fn new(
        queue: Block<TransmitQueue>,
        memory: RegionSlice,
        at: usize,
        place: Place,
        checksums: Option<bool>,
    ) -> Self {
        let mut ring = Self {
            queue,
            memory,
            at,
            slots: Slots::new(place, UNUSED),
            checksums,
            command: None,
        };
        ring.describe_packets();
        ring
    }

    /// Starts over with an empty ring, as the device does.
    pub(crate) fn restart(&mut self, posted: Posted) {
        self.slots.restart(posted);
        self.command = None;
        self.describe_packets();
    }

    /// Uses the memory of another ring from now on, by the same queue. To be called before it is turned on.
    pub(crate) fn move_to(&mut self, other: &Self) {
        self.at = other.at;
        self.slots.move_to(&other.slots);
        self.command = None;
        self.describe_packets();
    }

    pub(crate) fn queue(&self) -> &Block<TransmitQueue> {
        &self.queue
    }

    /// Writes the description that all packets share, before the first of them.
    fn describe_packets(&mut self) {
        if let Some(is_ipv4) = self.checksums {
            let context = ContextDescriptor::udp(is_ipv4);
            // Nothing is reported of it: the device has read it before any packet, and its slot is used again
            // after those.
            let slot = self.slots.push_silent();
            self.memory.write(self.descriptor(slot), context.as_bytes());
        }
    }

    #[inline]
    fn descriptor(&self, slot: usize) -> usize {
        self.at + slot * DESCRIPTOR
    }

    /// Returns where its descriptors lie, and how many there are.
    pub(crate) fn lies(&self) -> (usize, usize) {
        (self.at, self.slots.entries())
    }
}

impl doorbell_packet::SendRing for SendRing {
    type Completions = ();

    const MAY_SHARE: bool = true;

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
        let descriptor =
            SendDescriptor::packet(self.slots.bus(), length, checksums && self.checksums.is_some());
        self.command = Some(descriptor.command.get());
        let slot = self.slots.push(posted);
        self.memory.write(self.descriptor(slot), descriptor.as_bytes());
    }

    #[inline]
    fn doorbell(&mut self) -> bool {
        if self.slots.pending() == 0 {
            return false;
        }
        // The description of packets is no packet: nothing is reported of it, and packets follow.
        if let Some(command) = self.command.take() {
            let at = self.descriptor(self.slots.last()) + SEND_COMMAND;
            self.memory.write(at, &(command | REPORT).to_le_bytes());
            self.slots.report();
        }
        let tail = self.slots.announce();
        before_doorbell();
        self.queue.tail.put(tail as u32);
        true
    }

    #[inline]
    fn reap(rings: &mut [Self], at: usize, (): &mut ()) -> u64 {
        let Some(ring) = rings.get_mut(at) else { return 0 };
        while let Some(slot) = ring.slots.oldest() {
            let status = ring.memory.as_shared().read(ring.descriptor(slot) + SEND_STATUS);
            if status.map_or(0, u32::from_le_bytes) & DONE == 0 {
                break;
            }
            after_completion();
            ring.slots.complete_oldest();
        }
        0
    }

    #[inline]
    fn headers(headers: &Headers, length: usize) -> Packed {
        headers.with_partial_checksum(length)
    }
}

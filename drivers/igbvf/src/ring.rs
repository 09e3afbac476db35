//! A send ring: descriptors and the chunks behind them, used round and round.
//!
//! ```text
//!   done ──────► told ──────► posted          all count up; a place is a count modulo the size
//!   chunk free   the device's  ours
//! ```

use std::collections::VecDeque;

use doorbell_fabric::memory::RegionSlice;
use doorbell_vfio::{Block, Put, after_completion, before_doorbell};
use zerocopy::IntoBytes;

use crate::desc::{ContextDescriptor, DESCRIPTOR, DONE, REPORT, SEND_COMMAND, SEND_STATUS, SendDescriptor};
use crate::regs::TransmitQueue;

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
    /// The bus address of the first chunk.
    pub(crate) bus: u64,
}

/// Frames of both channels that were posted before and with an entry.
type Posted = [u64; 2];

/// One send ring.
pub(crate) struct SendRing {
    queue: Block<TransmitQueue>,
    memory: RegionSlice,
    place: Place,
    /// Whether the device makes the checksums of these packets: of IPv4 or IPv6.
    checksums: Option<bool>,
    posted: u64,
    told: u64,
    done: u64,
    /// The entries that the device reports on, oldest first.
    reports: VecDeque<u64>,
    ids: Box<[Posted]>,
    /// What the last entry that the device does not know of says: it is not read back from memory that others may write.
    command: Option<u32>,
    /// Frames that the device has let go of.
    pub(crate) reaped: Posted,
    last: Posted,
}

impl SendRing {
    /// An empty ring. `checksums`: the device makes UDP's, over IPv4 (true) or IPv6.
    pub(crate) fn new(
        queue: Block<TransmitQueue>,
        memory: RegionSlice,
        place: Place,
        checksums: Option<bool>,
    ) -> Self {
        let mut ring = Self {
            queue,
            memory,
            place,
            checksums,
            posted: 0,
            told: 0,
            done: 0,
            reports: VecDeque::with_capacity(place.entries),
            ids: vec![[0; 2]; place.entries].into(),
            command: None,
            reaped: [0; 2],
            last: [0; 2],
        };
        ring.describe_packets();
        ring
    }

    /// Begins anew, as the device does: it has let go of everything, and of all frames that were `posted`, here or in another
    /// ring that may not be there any more.
    pub(crate) fn restart(&mut self, posted: Posted) {
        (self.posted, self.told, self.done) = (0, 0, 0);
        self.reports.clear();
        self.command = None;
        (self.last, self.reaped) = (posted, posted);
        self.describe_packets();
    }

    /// Another ring's memory from now on, by the same queue. To be called before it is turned on.
    pub(crate) fn move_to(&mut self, other: &Self) {
        self.place = other.place;
        self.ids = vec![self.last; self.place.entries].into();
        self.reports = VecDeque::with_capacity(self.place.entries);
        self.restart(self.last);
    }

    pub(crate) fn queue(&self) -> &Block<TransmitQueue> {
        &self.queue
    }

    /// What all packets have in common stands before the first of them.
    fn describe_packets(&mut self) {
        if let Some(is_ipv4) = self.checksums {
            let context = ContextDescriptor::udp(is_ipv4);
            self.put(context.as_bytes());
            // Nobody waits for it: the device has read it before any packet, and its place is used again after those.
            self.done = self.posted;
        }
    }

    #[inline]
    fn slot(&self, count: u64) -> usize {
        count as usize & (self.place.entries - 1)
    }

    #[inline]
    fn descriptor(&self, count: u64) -> usize {
        self.place.ring + self.slot(count) * DESCRIPTOR
    }

    #[inline]
    fn put(&mut self, descriptor: &[u8]) {
        self.memory.write(self.descriptor(self.posted), descriptor);
        let slot = self.slot(self.posted);
        self.ids[slot] = self.last;
        self.posted += 1;
    }

    /// Where its descriptors lie, and how many there are.
    pub(crate) fn lies(&self) -> (usize, usize) {
        (self.place.ring, self.place.entries)
    }

    /// Entries that are free. One is never used, or a full ring would look like an empty one; and one more, as the description of
    /// packets may not have been read yet, which nothing tells.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        (self.place.entries - 2).saturating_sub((self.posted - self.done) as usize)
    }

    /// Whether the device has let go of everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted == self.done
    }

    /// Where in the memory the next packet is written. There has to be a free entry.
    #[inline]
    pub(crate) fn next(&self) -> usize {
        self.place.chunks + self.slot(self.posted) * self.place.chunk
    }

    /// Posts the packet of `length` bytes that was written there; `last` are the frames posted with it.
    #[inline]
    pub(crate) fn post(&mut self, length: usize, checksum: bool, last: Posted) {
        let at = self.place.bus + (self.slot(self.posted) * self.place.chunk) as u64;
        let descriptor = SendDescriptor::packet(at, length, checksum && self.checksums.is_some());
        (self.last, self.command) = (last, Some(descriptor.command.get()));
        self.put(descriptor.as_bytes());
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
        let last = self.posted - 1;
        // The description of packets is no packet: nothing is reported of it, and packets follow.
        if let Some(command) = self.command.take() {
            let at = self.descriptor(last) + SEND_COMMAND;
            self.memory.write(at, &(command | REPORT).to_le_bytes());
            self.reports.push_back(last);
        }
        self.told = self.posted;
        before_doorbell();
        self.queue.tail.put(self.slot(self.posted) as u32);
        true
    }

    /// Takes back what the device has let go of.
    #[inline]
    pub(crate) fn reap(&mut self) {
        while let Some(&last) = self.reports.front() {
            let status = self.memory.as_shared().read(self.descriptor(last) + SEND_STATUS);
            if status.map_or(0, u32::from_le_bytes) & DONE == 0 {
                break;
            }
            after_completion();
            self.reports.pop_front();
            self.done = last + 1;
            self.reaped = self.ids[self.slot(last)];
        }
    }
}

//! The receive ring.

use doorbell_fabric::memory::RegionSlice;
use doorbell_packet::{Arrivals, Lent, Packet, Place, ReceiveQueues, Shown};
use doorbell_vfio::{Block, Put, after_completion, before_doorbell};
use zerocopy::{FromBytes, IntoBytes};

use crate::desc::{
    CHECKED_TRANSPORT, DESCRIPTOR, DONE, END, RECEIVED_STATUS, ReceiveDescriptor, Received, WRONG_FRAME,
    WRONG_IP, WRONG_TRANSPORT,
};
use crate::regs::ReceiveQueue;

/// Buffers that are given back at a time while frames come in: each time is a write of a register.
const GIVE_BACK: u64 = 32;
/// The bits about checksums in a descriptor's status.
const VERDICT: u32 = CHECKED_TRANSPORT | WRONG_TRANSPORT | WRONG_IP;

/// The receive ring of a function: what comes in comes by its first queue alone.
pub struct Queues {
    /// `None` after the end.
    queue: Option<Block<ReceiveQueue>>,
    memory: RegionSlice,
    /// Where the descriptors are in the memory.
    at: usize,
    place: Place,
    lent: Lent,
    /// Buffers that the device may have next.
    free: Vec<u32>,
    /// The last entry was not the end of its packet, which is longer than a buffer: what follows is no
    /// beginning.
    amid: bool,
    /// What of a descriptor's status is believed of checksums: nothing, where they are checked here.
    believes: u32,
}

impl Queues {
    pub(crate) fn new(
        queue: Block<ReceiveQueue>,
        memory: RegionSlice,
        (at, place): (usize, Place),
        by_device: bool,
    ) -> Self {
        Self {
            queue: Some(queue),
            memory,
            at,
            place,
            lent: Lent::new(place.entries),
            free: (0..place.entries as u32).rev().collect(),
            amid: false,
            believes: if by_device { VERDICT } else { 0 },
        }
    }

    pub(crate) fn queue(&self) -> Option<&Block<ReceiveQueue>> {
        self.queue.as_ref()
    }

    /// Starts over with an empty ring, as the device does.
    pub(crate) fn restart(&mut self) {
        self.lent.restart(&mut self.free);
        self.amid = false;
    }

    /// Gives the device all free buffers.
    pub(crate) fn start(&mut self) {
        self.give();
        self.publish();
    }

    /// Gives up the queue.
    pub(crate) fn release(&mut self) {
        self.queue = None;
    }

    /// Writes descriptors for free buffers.
    #[inline]
    fn give(&mut self) {
        let (at, place, memory) = (self.at, self.place, &self.memory);
        self.lent.give(&mut self.free, |slot, buffer| {
            let descriptor = ReceiveDescriptor {
                packet: (place.bus + buffer as u64 * place.size as u64).into(),
                header: 0.into(),
            };
            memory.write(at + slot * DESCRIPTOR, descriptor.as_bytes());
        });
    }

    #[inline]
    fn publish(&mut self) {
        if let Some(queue) = self.queue.as_ref().filter(|_| self.lent.pending() > 0) {
            before_doorbell();
            queue.tail.put(self.lent.announce() as u32);
        }
    }

    /// The slot that the device has written next, if it has.
    #[inline]
    fn ready(&self) -> Option<usize> {
        let slot = self.lent.next()?;
        let at = self.at + slot * DESCRIPTOR + RECEIVED_STATUS;
        let status = self.memory.as_shared().read(at).map_or(0, u32::from_le_bytes);
        (status & DONE != 0).then_some(slot)
    }

    /// Takes an entry that the device is done with.
    #[inline]
    fn take(&mut self, slot: usize, arrivals: &mut Arrivals) {
        after_completion();
        let buffer = self.lent.take();
        let bytes = self.memory.as_shared().read(self.at + slot * DESCRIPTOR);
        let told = bytes.and_then(|bytes: [u8; DESCRIPTOR]| Received::read_from_bytes(&bytes).ok());
        let (status, length) =
            told.map_or((0, 0), |told| (told.status.get(), usize::from(told.length.get())));
        let goes_on = std::mem::replace(&mut self.amid, status & END == 0);
        let is_whole = status & (DONE | END) == DONE | END && length <= self.place.size && !goes_on;
        if !is_whole {
            arrivals.counts.nonsense += 1;
        } else if status & WRONG_FRAME != 0 {
            arrivals.counts.malformed += 1;
        } else {
            let shown = arrivals.packet(Packet {
                buffer,
                queue: 0,
                at: self.place.buffers + buffer as usize * self.place.size,
                length,
                is_checked: status & self.believes == CHECKED_TRANSPORT,
                is_joined: false,
            });
            match shown {
                Shown::Taken => return,
                Shown::Dropped => {}
                Shown::Malformed => arrivals.counts.malformed += 1,
            }
        }
        self.free.push(buffer);
    }
}

impl ReceiveQueues for Queues {
    #[inline]
    fn poll(&mut self, _: usize, arrivals: &mut Arrivals) {
        while arrivals.wants_more()
            && let Some(slot) = self.ready()
        {
            arrivals.count();
            self.take(slot, arrivals);
        }
        self.give();
        if !arrivals.has_any() || self.lent.pending() >= GIVE_BACK {
            self.publish();
        }
    }

    #[inline]
    fn is_ready(&mut self) -> bool {
        self.ready().is_some()
    }

    #[inline]
    fn fill(&mut self, buffer: u32, _: u16) {
        self.free.push(buffer);
    }
}

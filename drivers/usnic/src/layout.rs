//! Layout of the memory that the device reaches.
//!
//! ```text
//!   │ notify, filter │ devcmd2's rings │ 2 send rings │ 2 receive rings │ completions: sent, received │
//!   │ chunks: sent ×2 │ chunks: received and kept │
//! ```
//!
//! A frame to send lies in the chunk of its place in the ring: they come back in the order in which they
//! left. Received frames are looked at in place and given back in any order, so their chunks move.

use crate::desc::ENTRY;
use crate::devcmd;

/// Rings need 512; page alignment costs the IOMMU no more.
const RING_ALIGN: usize = 4096;
/// The shortest rings: usNIC's rules for work and receive queues, and for completion queues.
pub(crate) const RING_LEAST: usize = 32;
const CQ_LEAST: usize = 64;
/// The longest work and receive queues: their indices have 12 bits.
pub(crate) const RING_MOST: usize = 4096;
/// Entries of the work queue of the priority channel.
pub(crate) const PRIORITY_RING: usize = 128;
/// Where the filter's buffer is, after the notify area.
pub(crate) const FILTER_AT: usize = 256;
/// Where devcmd2's two rings are.
pub(crate) const COMMANDS_AT: usize = RING_ALIGN;

/// The places of everything, in bytes from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Entries of the rings, by channel, and bytes of a chunk: all are powers of two.
    pub(crate) sends: [usize; 2],
    pub(crate) receives: [usize; 2],
    pub(crate) spare: usize,
    pub(crate) chunk: usize,
}

fn ring(entries: usize) -> usize {
    (entries * ENTRY).next_multiple_of(RING_ALIGN)
}

impl Layout {
    /// The layout for frames of up to `longest` bytes with all headers.
    pub(crate) fn new(send_ring: usize, receive_ring: usize, spare: usize, longest: usize) -> Self {
        Self {
            sends: [PRIORITY_RING, send_ring],
            receives: [(receive_ring / 2).max(RING_LEAST), receive_ring],
            spare,
            chunk: longest.next_power_of_two().max(2048),
        }
    }

    pub(crate) fn send_ring(&self, channel: usize) -> usize {
        let first = COMMANDS_AT + devcmd::ring::BYTES;
        first + if channel == 0 { 0 } else { ring(self.sends[0]) }
    }

    pub(crate) fn receive_ring(&self, channel: usize) -> usize {
        let first = self.send_ring(1) + ring(self.sends[1]);
        first + if channel == 0 { 0 } else { ring(self.receives[0]) }
    }

    /// Entries of a completion queue that has room for everything in these rings at once: else unread entries
    /// would be overwritten.
    pub(crate) fn completions(rings: &[usize]) -> usize {
        rings.iter().sum::<usize>().next_power_of_two().max(CQ_LEAST)
    }

    /// The completion queue of both work queues.
    pub(crate) fn sent(&self) -> (usize, usize) {
        let at = self.receive_ring(1) + ring(self.receives[1]);
        (at, Self::completions(&self.sends))
    }

    /// The completion queues of the receive queues: the second one may stay unused, and the first is long
    /// enough for both.
    pub(crate) fn received(&self, number: usize) -> (usize, usize) {
        let (at, entries) = self.sent();
        let first = at + ring(entries);
        let both = Self::completions(&self.receives);
        if number == 0 {
            (first, both)
        } else {
            (first + ring(both), Self::completions(&self.receives[1..]))
        }
    }

    /// The chunks of a send ring.
    pub(crate) fn send_chunks(&self, channel: usize) -> usize {
        let (at, entries) = self.received(1);
        let first = (at + ring(entries)).next_multiple_of(self.chunk);
        first
            + if channel == 0 {
                0
            } else {
                self.sends[0] * self.chunk
            }
    }

    /// The chunks of received frames.
    pub(crate) fn receive_chunks(&self) -> usize {
        self.send_chunks(1) + self.sends[1] * self.chunk
    }

    /// Returns how many of those there are in the rings.
    pub(crate) fn in_rings(&self) -> usize {
        self.receives[0] + self.receives[1]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.receive_chunks() + (self.in_rings() + self.spare) * self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_everything_is_aligned() {
        for (longest, sends, receives) in [(1518, 512, 1024), (2049, 64, 64), (9018, 4096, 4096)] {
            let layout = Layout::new(sends, receives, 16, longest);
            let cq = |(at, entries): (usize, usize)| (at, entries * ENTRY);
            let places = [
                (0, FILTER_AT + 128),
                (COMMANDS_AT, devcmd::ring::BYTES),
                (layout.send_ring(0), layout.sends[0] * ENTRY),
                (layout.send_ring(1), layout.sends[1] * ENTRY),
                (layout.receive_ring(0), layout.receives[0] * ENTRY),
                (layout.receive_ring(1), layout.receives[1] * ENTRY),
                cq(layout.sent()),
                cq(layout.received(0)),
                cq(layout.received(1)),
                (layout.send_chunks(0), layout.sends[0] * layout.chunk),
                (layout.send_chunks(1), layout.sends[1] * layout.chunk),
                (layout.receive_chunks(), (layout.in_rings() + 16) * layout.chunk),
            ];
            for pair in places.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            assert_eq!(places[11].0 + places[11].1, layout.bytes());
            assert!(places[1..9].iter().all(|(at, _)| at.is_multiple_of(512)));
            assert!(layout.chunk >= longest && layout.send_chunks(0).is_multiple_of(layout.chunk));
            assert!(layout.received(0).1 >= layout.in_rings() && layout.received(1).1 >= layout.receives[1]);
        }
    }
}

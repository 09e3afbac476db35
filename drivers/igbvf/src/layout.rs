//! Layout of the memory that the device reaches.
//!
//! ```text
//!   │ send ring 0 │ send ring 1 │ receive ring │ chunks of ring 0 │ of ring 1 │ received and kept │
//! ```
//!
//! A frame to send lies in the chunk of its place in the ring: they come back in the order in which they
//! left. Received frames are looked at in place and given back in any order, so their chunks move.

use doorbell_vfio::SharedSlab;

use crate::desc::DESCRIPTOR;

/// The datasheet requires 128.
const RING_ALIGN: usize = 4096;

/// The places of everything, in bytes from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Entries and bytes of a chunk: all are powers of two.
    pub(crate) sends: [usize; 2],
    pub(crate) receives: usize,
    pub(crate) spare: usize,
    pub(crate) chunk: usize,
}

/// Entries of the ring of short urgent frames.
pub(crate) const PRIORITY_RING: usize = 128;

impl Layout {
    /// The layout for packets of up to `longest` bytes with all headers.
    pub(crate) fn new(send_ring: usize, receives: usize, spare: usize, longest: usize) -> Self {
        Self {
            sends: [PRIORITY_RING, send_ring],
            receives,
            spare,
            // The device counts in units of 1 KiB.
            chunk: longest.next_power_of_two().max(2048),
        }
    }

    pub(crate) fn send_ring(&self, ring: usize) -> usize {
        if ring == 0 {
            0
        } else {
            (self.sends[0] * DESCRIPTOR).next_multiple_of(RING_ALIGN)
        }
    }

    pub(crate) fn receive_ring(&self) -> usize {
        self.send_ring(1) + (self.sends[1] * DESCRIPTOR).next_multiple_of(RING_ALIGN)
    }

    /// The chunks of a send ring.
    pub(crate) fn send_chunks(&self, ring: usize) -> usize {
        let first = self.receive_ring() + (self.receives * DESCRIPTOR).next_multiple_of(RING_ALIGN);
        let first = first.next_multiple_of(self.chunk);
        if ring == 0 {
            first
        } else {
            first + self.sends[0] * self.chunk
        }
    }

    /// The chunks of received frames.
    pub(crate) fn receive_chunks(&self) -> usize {
        self.send_chunks(1) + self.sends[1] * self.chunk
    }

    pub(crate) fn bytes(&self) -> usize {
        self.receive_chunks() + (self.receives + self.spare) * self.chunk
    }
}

/// The bus address of an offset. All offsets of a layout are inside the slab that was made for it.
pub(crate) fn bus(slab: &SharedSlab, at: usize) -> u64 {
    slab.iova() + at as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_chunks_are_aligned() {
        for longest in [1518, 2049, 9216] {
            let layout = Layout::new(512, 1024, 16, longest);
            let places = [
                (layout.send_ring(0), 128 * 16),
                (layout.send_ring(1), 512 * 16),
                (layout.receive_ring(), 1024 * 16),
                (layout.send_chunks(0), 128 * layout.chunk),
                (layout.send_chunks(1), 512 * layout.chunk),
                (layout.receive_chunks(), 1040 * layout.chunk),
            ];
            for pair in places.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            assert_eq!(places[5].0 + places[5].1, layout.bytes());
            assert!(layout.chunk >= longest && layout.send_chunks(0).is_multiple_of(layout.chunk));
            assert!(places[..3].iter().all(|(at, _)| at.is_multiple_of(128)));
        }
    }
}

//! How the memory of frames is cut up: chunks for each queue's frames, for those that are sent, and for those that are kept.

use std::ops::Range;

use doorbell_fabric::ether::ETHERNET;
use doorbell_inet::{Interface, headers};

use crate::config::{Mode, XdpConfig};

/// The least entries of one queue's ring: a flow comes in by one queue, and its peer may have a burst under way.
const RING_LEAST: usize = 512;
/// Bytes that the kernel keeps free before each frame that it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// The coarsest unit in which devices count a buffer's bytes (`SRRCTL.BSIZEPKT` of Intel's 82576, 82599 and I225).
const DEVICE_UNIT: usize = 1024;
/// Bytes of the chunks: a power of two, at most a page.
const CHUNKS: [usize; 2] = [2048, 4096];

/// How the memory is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) chunk: usize,
    pub(crate) ring: usize,
    pub(crate) queues: u32,
    pub(crate) sends: usize,
    pub(crate) spare: usize,
}

impl Layout {
    pub(crate) fn of(config: &XdpConfig, chunk: usize, queues: u32) -> Self {
        let least = RING_LEAST.min(config.receive_ring);
        let share = (config.receive_ring / queues as usize).max(least);
        Self {
            chunk,
            ring: share.next_power_of_two(),
            queues,
            sends: config.send_ring,
            spare: config.spare,
        }
    }

    /// Entries of the ring by which one queue's chunks are given back: twice the chunks (see [`Source`](crate::rx::Source)).
    pub(crate) fn fill(&self) -> usize {
        2 * self.ring
    }

    pub(crate) fn received(&self) -> usize {
        self.ring * self.queues as usize
    }

    /// Bytes of all chunks.
    pub(crate) fn bytes(&self) -> usize {
        (self.received() + self.sends + self.spare) * self.chunk
    }

    /// The chunks that a queue's fill ring begins with.
    pub(crate) fn of_queue(&self, queue: usize) -> Range<u32> {
        (queue * self.ring) as u32..((queue + 1) * self.ring) as u32
    }
}

/// The chunk for frames of this MTU in this mode, and the longest frame of the layer above that fits.
pub(crate) fn chunk_and_limit(interface: &Interface, config: &XdpConfig, mode: Mode) -> (usize, usize) {
    let around = ETHERNET + headers(interface.address);
    chunk_for(interface.limit(&config.wanted()), around, mode)
}

fn chunk_for(limit: usize, around: usize, mode: Mode) -> (usize, usize) {
    let fits = |chunk: &&usize| limit + around <= room(**chunk, mode);
    let chunk = *CHUNKS.iter().find(fits).unwrap_or(&CHUNKS[1]);
    (chunk, limit.min(room(chunk, mode) - around))
}

/// Bytes of a frame that fit a chunk. A device that writes chunks itself is told how long they are in its own units, and what
/// is longer does not come at all.
fn room(chunk: usize, mode: Mode) -> usize {
    let bytes = chunk - HEADROOM;
    match mode {
        Mode::ZeroCopy => bytes - bytes % DEVICE_UNIT,
        Mode::Native | Mode::Generic => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 and UDP.
    const AROUND: usize = ETHERNET + 20 + 8;

    #[test]
    fn a_device_gets_chunks_that_hold_whole_frames_in_its_own_units() {
        let usual = 1500 - 28;
        for mode in [Mode::Native, Mode::Generic] {
            assert_eq!(chunk_for(usual, AROUND, mode), (2048, usual));
        }
        assert_eq!(
            chunk_for(usual, AROUND, Mode::ZeroCopy),
            (4096, usual),
            "of 1,792 bytes a device sees one unit"
        );
        assert_eq!(chunk_for(900, AROUND, Mode::ZeroCopy), (2048, 900));
        let (jumbo, longest) = (9000 - 28, 4096 - HEADROOM - AROUND);
        assert_eq!(chunk_for(jumbo, AROUND, Mode::Native), (4096, longest));
        assert_eq!(
            chunk_for(jumbo, AROUND, Mode::ZeroCopy),
            (4096, 3 * 1024 - AROUND)
        );
    }
}

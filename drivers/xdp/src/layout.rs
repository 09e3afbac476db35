//! How the memory of frames is cut up: chunks for each queue's frames, for those that are sent, and for those that are kept.

use std::ops::Range;

use doorbell_fabric::ether::ETHERNET;
use doorbell_inet::{Interface, headers};

use crate::config::XdpConfig;

/// The least entries of one queue's ring: a flow comes in by one queue, and its peer may have a burst under way.
const RING_LEAST: usize = 512;
/// Bytes that the kernel keeps free before each frame that it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
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

/// The chunk for frames of this MTU, and the longest frame of the layer above that fits.
pub(crate) fn chunk_and_limit(interface: &Interface, config: &XdpConfig) -> (usize, usize) {
    let limit = interface.limit(&config.wanted());
    let around = HEADROOM + ETHERNET + headers(interface.address);
    let fits = |chunk: &&usize| limit + around <= **chunk;
    let chunk = *CHUNKS.iter().find(fits).unwrap_or(&CHUNKS[1]);
    (chunk, limit.min(chunk - around))
}

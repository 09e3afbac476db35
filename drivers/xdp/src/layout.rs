//! Layout of the memory of frames: chunks for each queue's frames, for those that are sent, and for those
//! that are kept; and behind the part that is registered with the kernel, buffers in which frames of several
//! chunks are put together.

use std::ops::Range;

use doorbell_fabric::ether::ETHERNET;
use doorbell_inet::{Interface, headers};

use crate::config::{Mode, XdpConfig};

/// The least entries of one queue's ring: a flow comes in by one queue, and its peer may have a burst under
/// way.
const RING_LEAST: usize = 512;
/// Bytes that the kernel keeps free before each frame that it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// The coarsest unit in which devices count a buffer's bytes (`SRRCTL.BSIZEPKT` of Intel's 82576, 82599 and
/// I225).
const DEVICE_UNIT: usize = 1024;
/// Bytes of the chunks: a power of two, at most a page.
const CHUNKS: [usize; 2] = [2048, 4096];
/// Bytes that a kernel may keep free behind each piece of a frame that has several (`skb_shared_info`).
const TAILROOM: usize = 512;
/// Most chunks of one frame: what every kernel can have in a packet (`MAX_SKB_FRAGS`), one of them for its
/// beginning.
pub(crate) const PIECES_MAX: u32 = 17;
/// Buffers for frames of several chunks, beside those that are for kept ones: more than one batch can fill,
/// and than there are queues, each of which may have a frame that is not whole yet.
pub(crate) const BUFFERS: usize = 128;

/// How the memory is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) chunk: usize,
    pub(crate) ring: usize,
    pub(crate) queues: u32,
    pub(crate) sends: usize,
    pub(crate) spare: usize,
    /// Bytes of a buffer for a frame of several chunks; 0: there are none.
    pub(crate) buffer: usize,
}

impl Layout {
    pub(crate) fn of(config: &XdpConfig, shape: &Shape, queues: u32) -> Self {
        let least = RING_LEAST.min(config.receive_ring);
        let share = (config.receive_ring / queues as usize).max(least);
        Self {
            chunk: shape.chunk,
            ring: share.next_power_of_two(),
            queues,
            sends: config.send_ring,
            spare: config.spare,
            buffer: shape.buffer,
        }
    }

    /// Entries of the ring by which one queue's chunks are given back: twice the chunks (see
    /// [`Source`](crate::rx::Source)).
    pub(crate) fn fill(&self) -> usize {
        2 * self.ring
    }

    pub(crate) fn received(&self) -> usize {
        self.ring * self.queues as usize
    }

    pub(crate) fn chunks(&self) -> usize {
        self.received() + self.sends + self.spare
    }

    /// Bytes of all chunks, which the kernel locks.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks() * self.chunk
    }

    /// Buffers for frames of several chunks.
    pub(crate) fn buffers(&self) -> usize {
        if self.buffer == 0 { 0 } else { BUFFERS + self.spare }
    }

    /// Bytes of everything.
    pub(crate) fn whole(&self) -> usize {
        self.bytes() + self.buffers() * self.buffer
    }

    /// The chunks that a queue's fill ring begins with.
    pub(crate) fn of_queue(&self, queue: usize) -> Range<u32> {
        (queue * self.ring) as u32..((queue + 1) * self.ring) as u32
    }
}

/// How frames of an interface fit chunks in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) chunk: usize,
    /// Longest frame of the layer above, as it is.
    pub(crate) limit: usize,
    /// The longest packet where each is in one chunk.
    pub(crate) in_one: usize,
    /// The most chunks of a packet that is sent.
    pub(crate) pieces: u32,
    /// Bytes of the longest packet where there are several; else 0.
    pub(crate) buffer: usize,
}

impl Shape {
    /// The layout for this interface's MTU; `most`: into how many chunks the kernel takes and gives a packet
    /// here.
    pub(crate) fn of(interface: &Interface, config: &XdpConfig, mode: Mode, most: u32) -> Self {
        let around = ETHERNET + headers(interface.address);
        Self::for_frames(interface.limit(&config.interface_query()), around, mode, most)
    }

    fn for_frames(wanted: usize, around: usize, mode: Mode, most: u32) -> Self {
        let fits = |chunk: &&usize| wanted + around <= room(**chunk, mode);
        let chunk = *CHUNKS.iter().find(fits).unwrap_or(&CHUNKS[1]);
        let in_one = wanted.min(room(chunk, mode) - around);
        // Several chunks only where the MTU needs them: what is put together is copied.
        if in_one == wanted || most < 2 {
            return Self {
                chunk,
                limit: in_one,
                in_one,
                pieces: 1,
                buffer: 0,
            };
        }
        let longest = most.min(PIECES_MAX) as usize * part(chunk, mode);
        let packet = (wanted + around).min(longest);
        Self {
            chunk,
            limit: packet - around,
            in_one,
            pieces: packet.div_ceil(chunk) as u32,
            buffer: packet.next_multiple_of(LINE),
        }
    }

    /// Returns the same layout with each packet in one chunk.
    pub(crate) fn all_in_one(self) -> Self {
        Self {
            limit: self.in_one,
            pieces: 1,
            buffer: 0,
            ..self
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes of a packet of several chunks that are at least in each but the last.
fn part(chunk: usize, mode: Mode) -> usize {
    room(chunk - TAILROOM, mode)
}

/// Bytes of a frame that fit a chunk. A device that writes chunks itself gets their length in its own units,
/// and what is longer does not come at all.
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

    fn one(wanted: usize, mode: Mode) -> (usize, usize) {
        let shape = Shape::for_frames(wanted, AROUND, mode, 1);
        assert_eq!((shape.limit, shape.pieces, shape.buffer), (shape.in_one, 1, 0));
        (shape.chunk, shape.limit)
    }

    #[test]
    fn a_device_gets_chunks_that_hold_whole_frames_in_its_own_units() {
        let usual = 1500 - 28;
        for mode in [Mode::Native, Mode::Generic] {
            assert_eq!(one(usual, mode), (2048, usual));
        }
        assert_eq!(
            one(usual, Mode::ZeroCopy),
            (4096, usual),
            "of 1,792 bytes a device sees one unit"
        );
        assert_eq!(one(900, Mode::ZeroCopy), (2048, 900));
        let (jumbo, longest) = (9000 - 28, 4096 - HEADROOM - AROUND);
        assert_eq!(one(jumbo, Mode::Native), (4096, longest));
        assert_eq!(one(jumbo, Mode::ZeroCopy), (4096, 3 * 1024 - AROUND));
    }

    #[test]
    fn several_chunks_only_where_the_mtu_needs_them_and_no_more_than_a_packet_can_have() {
        for mode in [Mode::ZeroCopy, Mode::Native, Mode::Generic] {
            let usual = Shape::for_frames(1500 - 28, AROUND, mode, PIECES_MAX);
            assert_eq!((usual.pieces, usual.buffer), (1, 0), "{mode}");
        }
        let jumbo = Shape::for_frames(9000 - 28, AROUND, Mode::Generic, PIECES_MAX);
        assert_eq!((jumbo.chunk, jumbo.limit, jumbo.pieces), (4096, 9000 - 28, 3));
        assert_eq!(jumbo.buffer, 9024, "a packet of 9,014 bytes in lines");
        assert_eq!(
            jumbo.all_in_one(),
            Shape::for_frames(9000 - 28, AROUND, Mode::Generic, 1)
        );
        let longest = Shape::for_frames(65_507, AROUND, Mode::Generic, u32::MAX);
        assert_eq!(longest.limit, 17 * (4096 - 512 - HEADROOM) - AROUND);
        // A device that takes five pieces.
        let five = Shape::for_frames(65_507, AROUND, Mode::ZeroCopy, 5);
        assert_eq!((five.limit, five.pieces), (5 * 3072 - AROUND, 4));
    }
}

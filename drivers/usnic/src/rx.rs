//! The receive queues with their completion queues.
//!
//! Each channel has a receive queue of its own, which a filter steers its frames to; where the function has
//! three completion queues, each also has one of those. (usNIC gives each channel one completion queue for
//! what is sent and received. Here the two halves of a rail are looked at apart, so what is sent has its own;
//! the rule behind, room for everything at once, is kept.)
//!
//! Source: libfabric `usd_poll.c`.

use doorbell_fabric::memory::RegionSlice;
use doorbell_packet::{Arrivals, Packet, ReceiveQueues, Shown};

use crate::cq::CompletionRing;
use crate::desc::{CLASSIFIED, Completion, RECEIVED, State};
use crate::rq::{ReceiveRing, Taken};

/// Ethernet's addresses, and the tag that may follow.
const MACS: usize = 12;
const TAG: usize = 4;

/// Where the chunks are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkLayout {
    pub(crate) chunks: usize,
    pub(crate) chunk: usize,
    /// Bytes of a chunk that the device may write.
    pub(crate) room: usize,
    pub(crate) in_rings: usize,
}

/// The receive queues of a function.
pub struct Queues {
    /// The rings of the channels; none after the end.
    pub(crate) rings: Vec<ReceiveRing>,
    /// The completion queues: one for each channel, or one for both.
    pub(crate) done: Vec<CompletionRing>,
    memory: RegionSlice,
    place: ChunkLayout,
    /// An ordinary vNIC reports frames by another type.
    accepts_plain: bool,
    /// The device's word on checksums counts.
    believes: bool,
    /// Chunks that the device may have next.
    fresh: Vec<u32>,
    /// The device has reported completions that cannot be: the queues have to be set up again.
    pub(crate) is_astray: bool,
    /// Packets longer than the room for them, and those that were not as on the wire.
    pub(crate) cut: u64,
    pub(crate) spoilt: u64,
}

impl Queues {
    pub(crate) fn new(
        rings: Vec<ReceiveRing>,
        done: Vec<CompletionRing>,
        memory: RegionSlice,
        place: ChunkLayout,
        (believes, accepts_plain): (bool, bool),
    ) -> Self {
        Self {
            rings,
            done,
            memory,
            place,
            accepts_plain,
            believes,
            fresh: (0..place.in_rings as u32).rev().collect(),
            is_astray: false,
            cut: 0,
            spoilt: 0,
        }
    }

    /// Resets everything, with all queues disabled.
    pub(crate) fn program(&mut self, interrupts: &[Option<u32>]) -> Result<(), doorbell_vfio::Error> {
        for (number, done) in self.done.iter_mut().enumerate() {
            done.program(interrupts.get(number).copied().flatten())?;
        }
        for ring in &mut self.rings {
            ring.program(&mut self.fresh)?;
        }
        self.is_astray = false;
        Ok(())
    }

    /// Gives the device all chunks that are free, and rings the doorbell.
    pub(crate) fn start(&mut self) {
        self.give();
        self.rings.iter_mut().for_each(ReceiveRing::publish);
    }

    /// The shorter ring first: what is left over goes to the longer one, however many chunks each has lent.
    #[inline]
    fn give(&mut self) {
        for ring in &mut self.rings {
            ring.give(&mut self.fresh);
        }
    }

    /// Whether a completion queue stands still with entries behind.
    pub(crate) fn is_stuck(&self) -> bool {
        self.done.iter().any(CompletionRing::is_stuck)
    }

    /// Gives up the queues.
    pub(crate) fn release(&mut self) {
        self.rings.clear();
        self.done.clear();
    }

    #[inline]
    fn pull_from(&mut self, number: usize, arrivals: &mut Arrivals) {
        while arrivals.wants_more()
            && let Some(entry) = self.done[number].take()
        {
            arrivals.count();
            self.take(number, &entry, arrivals);
        }
    }

    /// Takes an entry that the device wrote.
    #[inline]
    fn take(&mut self, number: usize, entry: &Completion, arrivals: &mut Arrivals) {
        let is_frame = entry.kind() == CLASSIFIED || self.accepts_plain && entry.kind() == RECEIVED;
        let queue = entry.number();
        let of_this = |ring: &&mut ReceiveRing| ring.cq() as usize == number;
        let ring = self.rings.get_mut(queue).filter(of_this).filter(|_| is_frame);
        let chunk = match ring.map(|ring| ring.take(entry.descriptor())) {
            Some(Taken::Chunk(chunk)) => chunk,
            other => return self.strange(other, arrivals),
        };
        if !entry.is_whole() || entry.length() > self.place.room {
            arrivals.counts.nonsense += 1;
        } else {
            let is_taken = match entry.state() {
                State::Good => self.show(chunk, entry.length(), self.believes, arrivals),
                // ARP and neighbour discovery have no checksums that the device checks. All others are
                // checked here.
                State::Unchecked | State::Doubtful => self.show(chunk, entry.length(), false, arrivals),
                State::Cut => {
                    self.cut += 1;
                    false
                }
                State::Spoilt => {
                    self.spoilt += 1;
                    false
                }
            };
            if is_taken {
                return;
            }
        }
        self.fresh.push(chunk);
    }

    /// An entry that cannot be. Where frames are missing before it, the device and we do not mean the same
    /// chunks any more.
    #[cold]
    fn strange(&mut self, taken: Option<Taken>, arrivals: &mut Arrivals) {
        arrivals.counts.nonsense += 1;
        self.is_astray |= taken == Some(Taken::Gap);
    }

    /// A packet in a chunk; returns whether it is a frame.
    #[inline]
    fn show(&self, chunk: u32, length: usize, is_checked: bool, arrivals: &mut Arrivals) -> bool {
        let packet = Packet {
            buffer: chunk,
            queue: 0,
            at: self.place.chunks + chunk as usize * self.place.chunk,
            length,
            is_checked,
            is_joined: false,
        };
        match arrivals.packet(packet) {
            Shown::Taken => true,
            Shown::Dropped => false,
            Shown::Malformed => self.show_untagged(packet, arrivals),
        }
    }

    /// A packet that came with the tag of VLAN 0, which a vNIC in trunk mode puts on everything, is moved
    /// together over it.
    #[cold]
    fn show_untagged(&self, packet: Packet, arrivals: &mut Arrivals) -> bool {
        let bytes = self.memory.as_shared().skip(packet.at).take(packet.length);
        let head = bytes.read::<{ MACS + TAG }>(0).filter(|head| {
            head[MACS..MACS + 2] == [0x81, 0] && head[MACS + 2] & 0xf == 0 && head[MACS + 3] == 0
        });
        let shown = head.map_or(Shown::Malformed, |head| {
            let at = packet.at + TAG;
            self.memory.write(at, &head[..MACS]);
            // The device has not looked at it behind the tag.
            arrivals.packet(Packet {
                at,
                length: packet.length - TAG,
                is_checked: false,
                ..packet
            })
        });
        arrivals.counts.malformed += u64::from(shown == Shown::Malformed);
        shown == Shown::Taken
    }
}

impl ReceiveQueues for Queues {
    /// Takes what has come by a channel's completion queue, and by the other one where nothing has.
    #[inline]
    fn poll(&mut self, channel: usize, arrivals: &mut Arrivals) {
        let count = self.done.len();
        for turn in 0..count {
            self.pull_from((channel + turn) % count, arrivals);
            if arrivals.has_any() {
                break;
            }
        }
        self.give();
        for ring in &mut self.rings {
            if !arrivals.has_any() || ring.has_batch() {
                ring.publish();
            }
        }
    }

    #[inline]
    fn is_ready(&mut self) -> bool {
        self.done.iter().any(CompletionRing::is_ready)
    }

    #[inline]
    fn fill(&mut self, chunk: u32, _: u16) {
        self.fresh.push(chunk);
    }
}

//! What we know of each peer: one cache line for the fast paths, the rest beside it.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::message::PeerIndex;
use doorbell_paths::{Ahead, PATHS_MAX, Seq};

use crate::config::{PmlConfig, Protocol};
use crate::error::LostReason;
use crate::paths::Watch;
use crate::rails::RailId;
use crate::request::RequestId;
use crate::unexpected::UnexpectedIndex;
use crate::wire::{self, Head};

/// What one envelope counts against the window, in bytes, beside its payload.
pub(crate) const ENVELOPE: u64 = 64;

/// The flags of a peer.
pub(crate) mod about {
    /// It is on the list of peers with work.
    pub(crate) const LISTED: u8 = 1;
    /// Messages wait for an earlier one.
    pub(crate) const HELD: u8 = 2;
    /// It has no rail left.
    pub(crate) const LOST: u8 = 4;
    /// It is ourselves.
    pub(crate) const SELF: u8 = 8;
    /// It was not met yet ([`PmlConfig::lazy`](crate::PmlConfig::lazy)): no rail is opened to it.
    pub(crate) const UNMET: u8 = 16;
    /// Something waits for it to be met, and the owner was told or will be.
    pub(crate) const WANTED: u8 = 32;
}

/// The cache line of a peer.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Hot {
    /// The rail that small messages take.
    pub(crate) rail: RailId,
    pub(crate) about: u8,
    /// The peer on that rail.
    pub(crate) peer: PeerIndex,
    /// The sequence number of the next message to it.
    pub(crate) next: Seq,
    /// Payloads shorter than this may take the fast path. Zero: none may.
    pub(crate) below: u32,
    /// Bytes charged by sending, since the start.
    pub(crate) charged: u64,
    /// Charged may reach this on the fast path: the end of the window, or of this rail's turn.
    pub(crate) limit: u64,
    /// Charged may reach this before the window is full.
    pub(crate) window_end: u64,
    /// The first eight bytes of the MATCH header that is expected next, without the context; a value that no
    /// header has, when none is welcome.
    pub(crate) expected: u64,
    /// Bytes consumed by receiving, since the start.
    pub(crate) consumed: u64,
    /// Consumed is reported when it reaches this.
    pub(crate) report_at: u64,
}
const _: () = assert!(size_of::<Hot>() == 64);

/// The bits of a header's first eight bytes that [`Hot::expected`] is compared with: all but the context.
pub(crate) const EXPECTED_MASK: u64 = 0xffff_ffff_0000_ffff;
/// No MATCH has these: kind 255.
const UNWELCOME: u64 = 0xffff;

impl Hot {
    pub(crate) fn new(config: &PmlConfig, is_self: bool) -> Self {
        Self {
            rail: RailId(0),
            about: match (is_self, config.lazy) {
                (true, _) => about::SELF,
                (false, true) => about::UNMET,
                (false, false) => 0,
            },
            peer: PeerIndex(0),
            next: Seq(0),
            below: 0,
            charged: 0,
            limit: config.window,
            window_end: config.window,
            expected: u64::from(wire::kind::MATCH),
            consumed: 0,
            report_at: config.window / 4,
        }
    }

    /// The sequence number expected next.
    #[inline]
    pub(crate) fn expected_seq(&self) -> Seq {
        Seq((self.expected >> 32) as u32)
    }

    /// Goes on to the next sequence number.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1 << 32);
    }

    /// Nothing is welcome any more.
    pub(crate) fn refuse(&mut self) {
        self.expected |= UNWELCOME;
        self.below = 0;
        self.about |= about::LOST;
    }

    #[inline]
    pub(crate) fn is(&self, about: u8) -> bool {
        self.about & about != 0
    }
}

/// A peer over one rail.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) rail: RailId,
    pub(crate) peer: PeerIndex,
    pub(crate) up: bool,
    /// Longest payload that is sent at once.
    pub(crate) eager: usize,
    /// Bytes that travel with an announcement.
    pub(crate) first_part: usize,
    /// Of the rail: all its paths share them, as idle peers are many.
    pub(crate) can: Arc<Capabilities>,
}

impl Path {
    pub(crate) fn new(config: &PmlConfig, rail: RailId, peer: PeerIndex, can: &Arc<Capabilities>) -> Self {
        let head = if config.checksum {
            wire::CHECKED_LEN
        } else {
            wire::MATCH_LEN
        };
        let room = can.limits.message.saturating_sub(head);
        let by_rail = can.limits.eager.saturating_sub(head);
        let eager = config.eager_limit.unwrap_or(by_rail).min(room);
        let first_room = can.limits.message.saturating_sub(wire::RNDV_LEN);
        let first_part = config.first_part.unwrap_or(eager).min(first_room);
        Self {
            rail,
            peer,
            up: true,
            eager,
            first_part,
            can: Arc::clone(can),
        }
    }

    /// Whether a contiguous message of `length` bytes should be read by its receiver.
    pub(crate) fn wants_get(&self, protocol: Protocol, length: u64) -> bool {
        let get = self.can.features.get;
        match protocol {
            // Both limits are of a whole message, so that no length falls between them and goes by fragments.
            Protocol::Auto => get && length + wire::MATCH_LEN as u64 >= self.can.limits.get_from as u64,
            Protocol::Get => get,
            Protocol::Put | Protocol::Fragments => false,
        }
    }

    /// Whether a contiguous message should be written by its sender.
    pub(crate) fn wants_put(&self, protocol: Protocol) -> bool {
        let features = self.can.features;
        match protocol {
            Protocol::Auto => features.put && !features.get,
            Protocol::Put => features.put,
            Protocol::Get | Protocol::Fragments => false,
        }
    }

    /// Payload bytes of one fragment.
    pub(crate) fn fragment(&self) -> usize {
        let limits = &self.can.limits;
        limits
            .fragment
            .min(limits.message)
            .saturating_sub(wire::FRAG_LEN)
            .max(1)
    }
}

/// A message of the PML itself, waiting for a rail.
#[derive(Debug)]
pub(crate) enum Control {
    /// A header without a body.
    Head(Head),
    /// A header with a body.
    Long(Vec<u8>),
    /// A whole message that a rail gave back: header and body.
    Again(Vec<u8>),
}

/// Something that a request wants of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Read the next part of the sender's memory.
    Get(RequestId),
    /// Expose the room and ask the sender to write.
    Expose(RequestId),
    /// Write the next part into the receiver's memory.
    Put(RequestId),
    /// Send the next fragments.
    Stream(RequestId),
    /// Go on with the restart of a send.
    Restart(RequestId),
}

/// The rest about a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) paths: Vec<Path>,
    pub(crate) control: VecDeque<Control>,
    pub(crate) tasks: VecDeque<Task>,
    /// Sends of which nothing has left, in order.
    pub(crate) sends: VecDeque<RequestId>,
    /// The record numbers of messages that arrived ahead.
    pub(crate) held: Ahead<UnexpectedIndex>,
    /// What the peer reported as consumed.
    pub(crate) reported: u64,
    /// What kept and held messages were charged.
    pub(crate) kept: u64,
    pub(crate) lost: Option<LostReason>,
    /// The path in use, or next in turn: a byte, as idle peers are many.
    current: u8,
    /// With several paths, or after trouble.
    pub(crate) watch: Option<Box<Watch>>,
}
// Memory per idle peer (design, section 10): at most 1 KiB in `btl` and `pml`.
const _: () = assert!(size_of::<Hot>() + size_of::<Peer>() + 2 * size_of::<Path>() <= 384);

impl Peer {
    /// The first path that is up.
    pub(crate) fn first_up(&self) -> Option<usize> {
        self.paths.iter().position(|path| path.up)
    }

    /// The path in use, or next in turn.
    pub(crate) fn current(&self) -> usize {
        usize::from(self.current)
    }

    /// Small messages take this path.
    pub(crate) fn take(&mut self, at: usize) {
        const { assert!(PATHS_MAX <= 256) };
        self.current = at as u8;
    }

    /// The path over this rail.
    pub(crate) fn path_of(&self, rail: RailId) -> Option<usize> {
        self.paths.iter().position(|path| path.rail == rail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    #[test]
    fn the_expected_header_goes_on_and_wraps() {
        let mut hot = Hot::new(&PmlConfig::new(Rank(0), 2, 1), false);
        assert_eq!(hot.expected, 1);
        hot.advance();
        assert_eq!((hot.expected, hot.expected_seq()), (1 | 1 << 32, Seq(1)));
        hot.expected = 1 | 0xffff_ffff << 32;
        hot.advance();
        assert_eq!((hot.expected, hot.expected_seq()), (1, Seq(0)));
        hot.refuse();
        assert_eq!(hot.expected & 0xffff, 0xffff);
    }
}

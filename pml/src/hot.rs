//! The cache line of a peer: what the fast paths of sending and receiving need.

use doorbell_fabric::message::PeerIndex;
use doorbell_paths::Seq;

use crate::config::PmlConfig;
use crate::credit::ENVELOPE;
use crate::rails::RailId;
use crate::wire;

/// Facts about a peer; see [`Hot::is`].
pub(crate) mod about {
    /// It is in the list of peers with work.
    pub(crate) const LISTED: u8 = 1;
    /// Messages wait for an earlier one.
    pub(crate) const HELD: u8 = 2;
    /// It has no rail left.
    pub(crate) const LOST: u8 = 4;
    /// It is our own rank.
    pub(crate) const SELF: u8 = 8;
    /// It was not connected yet ([`PmlConfig::lazy`](crate::PmlConfig::lazy)): no rail is opened to it.
    pub(crate) const UNMET: u8 = 16;
    /// Something waits for it to be connected, which was or will be reported to the owner.
    pub(crate) const WANTED: u8 = 32;
    /// It has sent immediate data: each of its messages takes what holds at its turn.
    pub(crate) const DATA: u8 = 64;
    /// Its messages name the endpoint that sent them ([`PmlConfig::sources`](crate::PmlConfig::sources)).
    pub(crate) const ENDPOINTS: u8 = 128;
    /// An expected message of it takes more than the shortest way.
    pub(crate) const UNUSUAL: u8 = HELD | DATA | ENDPOINTS;
}

/// The bits of a header's first eight bytes that are compared with the expected ones: all but the context.
const EXPECTED_MASK: u64 = 0xffff_ffff_0000_ffff;
/// No MATCH has these: kind 255.
const UNWELCOME: u64 = 0xffff;

/// The cache line of a peer.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Hot {
    /// The rail that small messages take.
    rail: RailId,
    about: u8,
    /// The peer on that rail.
    peer: PeerIndex,
    /// The sequence number of the next message to it.
    next: Seq,
    /// Payloads shorter than this may take the fast path. Zero: none may.
    below: u32,
    /// Bytes charged by sending, since the start.
    charged: u64,
    /// Charged may reach this on the fast path: the end of the window, or of this rail's turn.
    limit: u64,
    /// Charged may reach this before the window is full.
    window_end: u64,
    /// The first eight bytes of the MATCH header that is expected next, without the context; a value that no
    /// header has, when none is welcome.
    expected: u64,
    /// Bytes consumed by receiving, since the start.
    consumed: u64,
    /// Consumed is reported when it reaches this.
    report_at: u64,
}
const _: () = assert!(size_of::<Hot>() == 64);

impl Hot {
    /// A peer that was sent nothing; `is_self` for our own rank.
    pub(crate) fn new(config: &PmlConfig, is_self: bool) -> Self {
        Self {
            rail: RailId(0),
            about: match (is_self, config.lazy) {
                (true, _) => about::SELF,
                (false, true) => about::UNMET,
                (false, false) => 0,
            } | match config.sources {
                0 => 0,
                _ => about::ENDPOINTS,
            },
            peer: PeerIndex(0),
            next: Seq(0),
            below: 0,
            charged: 0,
            limit: config.window,
            window_end: config.window,
            expected: u64::from(wire::kind::MATCH),
            consumed: 0,
            // Nothing is reported to ourselves.
            report_at: if is_self { u64::MAX } else { config.window / 4 },
        }
    }

    /// Whether one of these facts holds, of [`about`].
    #[inline]
    pub(crate) fn is(&self, about: u8) -> bool {
        self.about & about != 0
    }

    /// These facts hold from now on.
    #[inline]
    pub(crate) fn set(&mut self, about: u8) {
        self.about |= about;
    }

    /// These facts do not hold any more.
    #[inline]
    pub(crate) fn clear(&mut self, about: u8) {
        self.about &= !about;
    }

    /// The rail that small messages take, and the peer's number there.
    #[inline]
    pub(crate) fn route(&self) -> (RailId, PeerIndex) {
        (self.rail, self.peer)
    }

    /// Small messages take this rail from now on.
    pub(crate) fn set_route(&mut self, (rail, peer): (RailId, PeerIndex)) {
        (self.rail, self.peer) = (rail, peer);
    }

    // Sending.

    /// The sequence number of the next message to the peer.
    #[inline]
    pub(crate) fn next_seq(&self) -> Seq {
        self.next
    }

    /// Whether a payload of this length, which counts `charge` bytes, may take the fast path.
    #[inline(always)]
    pub(crate) fn is_fast(&self, length: usize, charge: u64) -> bool {
        length < self.below as usize && self.charged + charge <= self.limit
    }

    /// No payload takes the fast path until it is opened again.
    pub(crate) fn close_fast_path(&mut self) {
        self.below = 0;
    }

    /// Payloads of at most this length may take the fast path.
    pub(crate) fn open_fast_path(&mut self, longest: usize) {
        self.below = u32::try_from(longest + 1).unwrap_or(u32::MAX);
    }

    /// A message that counts `charge` bytes has left.
    #[inline]
    pub(crate) fn sent(&mut self, charge: u64) {
        self.next = self.next.next();
        self.charged += charge;
    }

    /// Bytes charged by sending, since the start.
    #[inline]
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Takes back bytes that were charged, except for those that the peer has `reported` as consumed.
    pub(crate) fn uncharge(&mut self, bytes: u64, reported: u64) {
        self.charged = self.charged.saturating_sub(bytes).max(reported.min(self.charged));
    }

    /// Whether the window has room for that many more bytes, envelope included.
    #[inline]
    pub(crate) fn has_room(&self, charge: u64) -> bool {
        self.charged + charge <= self.window_end
    }

    /// Whether an announcement without bytes may leave.
    #[inline]
    pub(crate) fn may_announce(&self, config: &PmlConfig) -> bool {
        self.charged + ENVELOPE <= self.window_end - config.window + config.hard_window
    }

    /// Whether a message that counts this much may leave that its receiver does not keep.
    #[inline]
    pub(crate) fn may_charge(&self, config: &PmlConfig, charge: u64) -> bool {
        self.charged + charge <= self.window_end - config.window + config.hard_window
    }

    /// The window ends here from now on.
    pub(crate) fn set_window_end(&mut self, end: u64) {
        self.window_end = end;
    }

    /// The fast path has to look again when this much is charged, or the window is full.
    pub(crate) fn set_turn_end(&mut self, end: u64) {
        self.limit = self.window_end.min(end);
    }

    // Receiving.

    /// Whether a header is the expected one, by its first eight bytes.
    #[inline(always)]
    pub(crate) fn expects(&self, first: u64) -> bool {
        first & EXPECTED_MASK == self.expected
    }

    /// The header of the expected message with this context and tag, as the two words that it is.
    #[inline(always)]
    pub(crate) fn expected_head(&self, context: u16, tag: u64) -> [u64; 2] {
        [(self.expected | u64::from(context) << 16).to_le(), tag.to_le()]
    }

    /// The sequence number expected next.
    #[inline]
    pub(crate) fn expected_seq(&self) -> Seq {
        Seq((self.expected >> 32) as u32)
    }

    /// Whether the message with this number is the next one, and nothing waits for it, nor holds for it.
    #[inline]
    pub(crate) fn is_plainly_next(&self, seq: u32) -> bool {
        self.expected_seq() == Seq(seq) && !self.is(about::HELD | about::DATA)
    }

    /// Goes on to the next sequence number.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1 << 32);
    }

    /// Counts bytes that were consumed. Returns whether a report is due.
    #[inline(always)]
    pub(crate) fn consume(&mut self, charge: u64) -> bool {
        self.consumed += charge;
        self.consumed >= self.report_at
    }

    /// Returns the bytes that were consumed, which are reported; the next report is due a quarter of the
    /// window later.
    pub(crate) fn report(&mut self, window: u64) -> u64 {
        self.report_at = self.consumed + window / 4;
        self.consumed
    }

    /// Bytes sent and received: a number that changes while there is traffic.
    pub(crate) fn traffic(&self) -> u64 {
        self.charged.wrapping_add(self.consumed)
    }

    /// The sequences to the peer and from it begin here.
    #[cfg(test)]
    pub(crate) fn begin_at(&mut self, first: u32) {
        self.next = Seq(first);
        self.expected = u64::from(wire::kind::MATCH) | u64::from(first) << 32;
    }

    /// The peer is lost: its messages are dropped, and nothing is sent to it.
    pub(crate) fn refuse(&mut self) {
        self.expected |= UNWELCOME;
        self.below = 0;
        self.about |= about::LOST;
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

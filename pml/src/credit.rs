//! Back-pressure: how many bytes of a peer may be here that no receive has taken.
//!
//! Every message counts its eager bytes and 64 for its envelope, at the sender when a rail takes it, at the
//! receiver when a receive takes it. The receiver reports its sum after each quarter of the window; sums only
//! grow, so a report that is lost with a rail and sent again does no harm. The messages of the PML itself
//! never wait for credit: whatever has been matched goes on to its end, and that is why this cannot deadlock.
//!
//! Where the two do not count the same, because an announcement was sent again over a rail that takes less of
//! it, or none, the receiver's answer to it contains the bytes that it has counted, and the sender takes back
//! the rest.
//!
//! * below `window`: as the protocol likes;
//! * above: announcements without bytes;
//! * above `hard_window`: sends wait at the sender.

use crate::core::Core;
use crate::error::LostReason;
use crate::hot::about;
use crate::rank::Rank;
use crate::request::RequestIndex;
use crate::wire::{self, CreditHeader, Head, kind};

/// What one envelope counts against the window, in bytes, beside its payload.
pub(crate) const ENVELOPE: u64 = 64;

impl Core {
    /// A message of `rank` was consumed.
    #[inline]
    pub(crate) fn consume(&mut self, rank: Rank, charge: u64) {
        if self.hot[rank].consume(charge) {
            self.report(rank);
        }
    }

    #[cold]
    pub(crate) fn report(&mut self, rank: Rank) {
        let consumed = self.hot[rank].report(self.config.window);
        let head = Head::new(&CreditHeader {
            kind: kind::CREDIT,
            flags: 0,
            reserved: 0.into(),
            reserved2: 0.into(),
            consumed: consumed.into(),
        });
        self.counters.credits_sent += 1;
        self.queue_head(rank, head);
    }

    /// A report of `rank`.
    pub(crate) fn on_credit(&mut self, rank: Rank, bytes: [u8; size_of::<CreditHeader>()]) {
        let header: CreditHeader = wire::parse(bytes);
        let (hot, peer) = (&mut self.hot[rank], &mut self.peers[rank]);
        let consumed = header.consumed.get();
        if consumed > hot.charged() {
            self.counters.drops.bad_range += 1;
            return;
        }
        self.counters.credits_received += 1;
        if !peer.take_report(consumed) {
            return;
        }
        hot.set_window_end(consumed + self.config.window);
        hot.set_turn_end(peer.paths.turn_end());
        if peer.backlog.has_sends() {
            self.list(rank);
        }
    }

    /// Bytes that were counted, and then did not arrive in the message that they were counted with.
    pub(crate) fn uncharge(&mut self, rank: Rank, bytes: u64) {
        // A peer that reported them as well gets them once.
        let peer = &self.peers[rank];
        self.hot[rank].uncharge(bytes, peer.reported());
        if peer.backlog.has_sends() {
            self.list(rank);
        }
    }

    /// The window is full for a send, which counts once.
    #[cold]
    pub(crate) fn held_back(&mut self, index: RequestIndex) {
        if !self.requests.record(index).hold_back() {
            self.counters.window_full += 1;
        }
    }

    /// Whether an announcement without bytes may leave.
    #[inline]
    pub(crate) fn may_announce(&self, rank: Rank) -> bool {
        self.hot[rank].may_announce(&self.config)
    }

    /// Counts bytes that are kept for `rank`. A peer that sends more than was agreed is cut off, because the
    /// only other choices are to lose a message or to fill our memory.
    pub(crate) fn keep_charge(&mut self, rank: Rank, charge: u64) {
        let peer = &mut self.peers[rank];
        peer.keep(charge);
        let most = self.config.hard_window + self.config.window + self.rma.solicited(rank);
        if peer.kept() > most && !self.hot[rank].is(about::SELF) {
            self.fail_peer(rank, LostReason::Flood);
        }
    }

    /// Messages that may be under way from one peer at a time, by the agreed limits, with the replies that we
    /// have requested.
    #[inline]
    pub(crate) fn reorder_limit(&self, rank: Rank) -> u64 {
        (self.config.hard_window + self.config.window + self.rma.solicited(rank)) / ENVELOPE
    }
}

//! Counters of events, as plain numbers that only grow.

/// Why an arrival was dropped, and how often. See [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Drops {
    /// Shorter than the header of its kind.
    pub runt: u64,
    /// No kind of ours, or one that this side never expects.
    pub unknown_kind: u64,
    /// The message came from a rail peer that belongs to no rank.
    pub unknown_peer: u64,
    /// Its sequence number was taken already.
    pub duplicate: u64,
    /// Its sequence number is further ahead than the agreed limits allow.
    pub too_far_ahead: u64,
    /// It names a request that is not, or not any more.
    pub stale_request: u64,
    /// It names a request of another peer.
    pub wrong_peer: u64,
    /// It names a live request that waits for something else.
    pub wrong_state: u64,
    /// Its match identity is not that of the request it names.
    pub wrong_identity: u64,
    /// Its range or length cannot be.
    pub bad_range: u64,
    /// Bytes that had arrived before (after a failover).
    pub repeated_bytes: u64,
    /// A word of a restart, or a fragment, whose number shows that it is late or came twice.
    pub late_word: u64,
    /// The message came from a lost peer.
    pub lost_peer: u64,
    /// An operation ended that no request waits for.
    pub unknown_operation: u64,
}

impl Drops {
    /// Those that no honest peer's rails bring about, whatever fails.
    #[must_use]
    pub const fn impossible(&self) -> u64 {
        self.runt
            + self.unknown_kind
            + self.too_far_ahead
            + self.wrong_peer
            + self.wrong_identity
            + self.bad_range
    }

    /// Returns the sum of all.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.runt
            + self.unknown_kind
            + self.unknown_peer
            + self.duplicate
            + self.too_far_ahead
            + self.stale_request
            + self.wrong_peer
            + self.wrong_state
            + self.wrong_identity
            + self.bad_range
            + self.repeated_bytes
            + self.late_word
            + self.lost_peer
            + self.unknown_operation
    }
}

/// The counters of one PML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Messages sent at once.
    pub sent_eager: u64,
    /// Messages announced, to go by fragments or by the receiver's choice.
    pub sent_rndv: u64,
    /// Messages announced with exposed memory, to be read by the receiver.
    pub sent_rget: u64,
    /// Messages to ourselves.
    pub sent_self: u64,
    /// Operations on windows of peers that left as one message, or were announced so.
    pub sent_operations: u64,
    /// Operations of peers on our windows that were refused, or cut off.
    pub operations_refused: u64,
    /// Sends that had to wait before anything of them left: for room in a rail, for a path that may come
    /// back, for the peer's window, or for an earlier send that does.
    pub sends_queued: u64,
    /// Messages taken from rails in order, whatever their protocol.
    pub arrived: u64,
    /// Of these, messages for which a receive was waiting.
    pub matched: u64,
    /// Of these, messages that were kept because no receive was waiting.
    pub unexpected: u64,
    /// Messages that arrived ahead of an earlier one and were held.
    pub held: u64,
    /// Fragments that were sent.
    pub frags_sent: u64,
    /// Fragments that were received.
    pub frags_received: u64,
    /// One-sided reads started.
    pub gets: u64,
    /// Messages that were taken in place: read where their senders have them.
    pub taken_in_place: u64,
    /// One-sided writes started.
    pub puts: u64,
    /// Transfers that began one-sided and went on as fragments.
    pub fallbacks: u64,
    /// Sends that were announced without bytes, or kept, because the peer's window was full: each once,
    /// however often it was tried.
    pub window_full: u64,
    /// Credit reports sent.
    pub credits_sent: u64,
    /// Credit reports received.
    pub credits_received: u64,
    /// Bytes packed into a buffer because a rail cannot gather.
    pub packed_bytes: u64,
    /// Messages given back by a rail that went down and sent over another, as they were or as what takes
    /// their place there.
    pub resent: u64,
    /// Rendezvous that were restarted over another path.
    pub restarts: u64,
    /// Bytes that a restarted transfer had already.
    pub resumed_bytes: u64,
    /// Messages received whole that came with a checksum.
    pub checked: u64,
    /// Of these, messages whose bytes are not those that were sent.
    pub corrupt: u64,
    /// Paths (a peer over a rail) that went down.
    pub paths_down: u64,
    /// Paths that were taken back after they had been down.
    pub paths_returned: u64,
    /// Calls of peers over paths that are down.
    pub calls: u64,
    /// Probes of paths sent.
    pub probes: u64,
    /// Peers that were lost.
    pub peers_lost: u64,
    /// Arrivals that were dropped, by reason.
    pub drops: Drops,
}

//! What a rail of reliable connections counts.

use crate::rc::record::{DROPS, Drop};

/// What a rail of reliable connections counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RcStats {
    /// Messages accepted, and sends that carried them.
    pub sent: u64,
    /// Sends: several messages may share one.
    pub sends: u64,
    /// Messages shown to the layer above.
    pub received: u64,
    /// How often a doorbell was rung.
    pub doorbells: u64,
    /// Bodies sent from where they lay.
    pub zero_copy: u64,
    /// Counters written to peers.
    pub told: u64,
    /// Peers tried while they were idle.
    pub probes: u64,
    /// Sends whose bytes went with the request.
    pub inline: u64,
    /// Messages that shared a send with one before them.
    pub coalesced: u64,
    /// Times that a send had to wait for a credit.
    pub stalls: u64,
    /// Registrations of regions that were sent from where they lay, and their bytes.
    pub registrations: u64,
    /// Bytes of those registrations.
    pub registered_bytes: u64,
    /// Credits granted, besides those that connections begin with.
    pub granted: u64,
    /// Sends whose head requests more credits.
    pub asked: u64,
    /// Times that idle credits were requested back.
    pub recalled: u64,
    /// Times that idle credits were given back.
    pub returned: u64,
    /// Times that a peer had no slot for a send: a promise was broken.
    pub rnr: u64,
    /// Requests flushed at the end of connections.
    pub flushed: u64,
    /// Completions of connections that are over.
    pub stale: u64,
    /// Completions that cannot be true.
    pub nonsense: u64,
    /// Times that few receives were left and more were posted, or there were no more.
    pub grown: u64,
    /// Times that few receives were left, and the limit was reached.
    pub at_limit: u64,
    /// Times that the queues were made again.
    pub renewed: u64,
    /// Asynchronous events that mean nothing here.
    pub other_events: u64,
    /// Requests that the device repeated in vain, of messages and of one-sided operations. What it repeats
    /// with success only its own counters report.
    pub retries: u64,
    /// Registrations of borrowed memory for one operation or exposure.
    pub pinned: u64,
    /// Bytes of those registrations.
    pub pinned_bytes: u64,
    /// Sends that were dropped as a rule of the wire was broken, by reasons.
    pub(crate) dropped: [u64; DROPS],
    /// Messages that were sent over rings of peers.
    pub ring: u64,
    /// Messages that came over rings of this end.
    pub ring_received: u64,
    /// Rings that peers were given.
    pub rings: u64,
    /// Connections that may have ended in the middle of a send, and cost a slot until the queue of receives
    /// was replaced.
    pub doubtful: u64,
}

impl RcStats {
    /// Every counter with its name. Names and order never change.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent),
            ("sends", self.sends),
            ("received", self.received),
            ("doorbells", self.doorbells),
            ("zero_copy", self.zero_copy),
            ("told", self.told),
            ("probes", self.probes),
            ("rnr", self.rnr),
            ("flushed", self.flushed),
            ("stale", self.stale),
            ("nonsense", self.nonsense),
            ("grown", self.grown),
            ("at_limit", self.at_limit),
            ("other_events", self.other_events),
            ("inline", self.inline),
            ("coalesced", self.coalesced),
            ("stalls", self.stalls),
            ("asked", self.asked),
            ("granted", self.granted),
            ("recalled", self.recalled),
            ("returned", self.returned),
            ("registrations", self.registrations),
            ("registered_bytes", self.registered_bytes),
            ("renewed", self.renewed),
            ("retries", self.retries),
            ("pinned", self.pinned),
            ("pinned_bytes", self.pinned_bytes),
            ("ring", self.ring),
            ("ring_received", self.ring_received),
            ("rings", self.rings),
            ("doubtful", self.doubtful),
        ]
        .into_iter()
        .chain(Drop::NAMES.into_iter().zip(self.dropped))
    }
}

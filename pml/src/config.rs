//! The settings of one PML.

use std::time::Duration;

use crate::rank::Rank;

/// Which protocol carries messages that are too long to be sent at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Chosen by the rail's capabilities: get, else put, else fragments (reference: bfo, section 5).
    #[default]
    Auto,
    /// The receiver reads the sender's memory, where the rail can; fragments otherwise.
    Get,
    /// The sender writes the receiver's memory, where the rail can; fragments otherwise.
    Put,
    /// Fragments, whatever the rail can do.
    Fragments,
}

/// The bytes with which a transfer goes on after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resume {
    /// The bytes that the receiver lacks.
    #[default]
    Missing,
    /// All bytes from the first, as Open MPI's BFO does.
    FromZero,
}

/// The settings of one [`Pml`](crate::Pml). Everything about bytes is in bytes.
#[derive(Clone, Debug)]
pub struct PmlConfig {
    /// Our rank; below `size`.
    pub rank: Rank,
    /// Number of ranks in the job; of a member without one, which learns its peers later
    /// ([`Pml::add_peer`](crate::Pml::add_peer)), 1.
    pub size: u32,
    /// The most ranks that there may be at a time, our own included, when peers are added; at most 2^24. A
    /// number below `size` means `size`.
    pub peers_most: u32,
    /// The bits of a context that name the endpoint of the message's sender, among the lowest eight; zero:
    /// senders have no endpoints. Receives are posted with contexts in which these bits are zero, and name
    /// the endpoint in their [`Source`](crate::Source). The same at all peers.
    pub sources: u16,
    /// Seed of the matching hash: random, and unknown to the peers.
    pub seed: u64,
    /// Longest payload that is sent at once. `None`: the limit of the chosen rail. A larger value than the
    /// rail can carry in one message is cut to that.
    pub eager_limit: Option<usize>,
    /// How many bytes travel with the announcement of a message that goes by fragments. `None`: as many as
    /// the eager limit.
    pub first_part: Option<usize>,
    /// The protocol of messages above the eager limit.
    pub protocol: Protocol,
    /// Use all rails of the peer in turn, message by message, instead of those that are as quick as the
    /// quickest, for a while each.
    pub spread: bool,
    /// Restart the rendezvous also for fragments that a rail gives back, instead of sending just those again.
    /// A send then completes when the peer has taken its fragments, not when the rails have.
    pub handshake: bool,
    /// The bytes with which a transfer goes on after a restart.
    pub resume: Resume,
    /// Give every message to another rank a checksum over its bytes, computed in the sender's memory and
    /// checked in the receiver's. Costs a pass over the bytes at either end, and the fast path of short ones.
    /// Messages that come with one are checked whatever is set here.
    pub checksum: bool,
    /// How long a peer is waited for when no path to it is up and one may come back: the last one lost its
    /// link, the peer gave it up, or another one that broke before is called; zero: not at all. When the link
    /// is back, it is waited for the answer as long again.
    pub patience: Duration,
    /// Eager bytes (payload, and 64 for each envelope) that one peer may have sent us and we have not
    /// consumed. Above it, that peer sends announcements only. The same on all ranks of a job.
    pub window: u64,
    /// Above this many bytes, counted in the same way, a peer keeps its sends to itself. At least `window`;
    /// the same on all ranks of a job.
    pub hard_window: u64,
    /// Fragments of one message that may be under way at a time; 1 to 16.
    pub pipeline: usize,
    /// Bytes of injected messages that may wait for one peer at a time, where a shorter one than 64 bytes
    /// counts as much; for all peers together, sixteen times as many.
    pub inject_limit: usize,
    /// Arrivals shown by one rail in one poll, at most.
    pub poll_budget: usize,
    /// Peers are opened when they are needed, and not all at the start: what is sent to one that is not open
    /// waits, and the owner is notified ([`Pml::wanted`](crate::Pml::wanted)).
    pub lazy: bool,
    /// Requests to make room for up front. More are made when needed.
    pub requests: usize,
    /// Unexpected messages to make room for up front. More are made when needed.
    pub unexpected: usize,
}

impl PmlConfig {
    /// The defaults for `rank` of a job of `size` ranks.
    #[must_use]
    pub const fn new(rank: Rank, size: u32, seed: u64) -> Self {
        Self {
            rank,
            size,
            peers_most: size,
            sources: 0,
            seed,
            eager_limit: None,
            first_part: None,
            protocol: Protocol::Auto,
            spread: false,
            handshake: false,
            resume: Resume::Missing,
            checksum: false,
            patience: Duration::from_secs(5),
            window: 4 << 20,
            hard_window: 64 << 20,
            pipeline: 8,
            inject_limit: 1 << 20,
            poll_budget: 16,
            lazy: false,
            requests: 256,
            unexpected: 256,
        }
    }
}

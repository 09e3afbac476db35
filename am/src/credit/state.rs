//! The credit state of one process: its bank, its peers, its epoch, and its counters.

use super::config::{CreditConfig, CreditConfigError, Limits, Memory};
use super::mutants::Mutants;
use super::peer::{Dense, EPOCH_ENDED, NO_PEER, Peer, Peers};
use super::shares::Shares;

/// The credits that one process lends and has borrowed. Sans-IO: each message sent or received is one call,
/// and what is to be sent is its result.
#[derive(Debug)]
pub struct CreditState<P = Dense> {
    pub(super) peers: P,
    pub(super) me: u32,
    pub(super) nodes: u32,
    /// The least that a peer ever has: credits of a full message.
    pub(super) least: u16,
    pub(super) counts: bool,
    pub(super) dynamic: bool,
    pub(super) limits: Limits,
    pub(super) bank: u32,
    /// Epochs that have ended here; wraps.
    pub(super) epoch: u32,
    /// Requests that arrived in this one.
    pub(super) arrivals: u32,
    /// Where the next search starts, and the length of the list.
    pub(super) head: u32,
    pub(super) listed: u32,
    /// Entries that the present search has still to look at.
    pub(super) search: u32,
    /// Revocations that are not answered.
    pub(super) revoking: u32,
    pub(super) mutants: Mutants,
    pub(super) counters: Counters,
    shares: Shares,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that took credits.
    pub taken: u64,
    /// Requests that stalled for lack of credits.
    pub stalls: u64,
    /// Requests that arrived and lacked credits when they were first tried.
    pub asked: u64,
    /// Grants of at least one credit.
    pub grants: u64,
    /// Credits granted in all.
    pub granted: u64,
    /// Requests for more that a limit refused.
    pub limited: u64,
    /// Requests for more that found the bank empty.
    pub dry: u64,
    /// Revocations sent in all.
    pub revocations: u64,
    /// Revocations that were answered with nothing.
    pub refusals: u64,
    /// Credits returned to this process.
    pub returned: u64,
    /// Credits returned to other processes.
    pub given_back: u64,
    /// Epochs that ended here.
    pub epochs: u64,
}

impl CreditState<Dense> {
    /// Creates the state, with all that it ever allocates: 32 bytes for each process of the job.
    ///
    /// # Errors
    /// [`CreditConfigError`], where the settings contradict each other.
    pub fn new(terms: &CreditConfig) -> Result<Self, CreditConfigError> {
        Self::with(terms)
    }
}

impl<P: Peers> CreditState<P> {
    /// Makes a state with another kind of table.
    ///
    /// # Errors
    /// [`CreditConfigError`], where the settings contradict each other.
    pub fn with(terms: &CreditConfig) -> Result<Self, CreditConfigError> {
        let shares = Shares::new(terms)?;
        let counts = terms.counts();
        let CreditConfig { nodes, me, .. } = *terms;
        let least = terms.chunk.least();
        let listed = counts && terms.dynamic;
        let fresh = move |rank: u32| fresh(&shares, (nodes, me), rank, least, listed);
        let listed = (0..nodes).filter(|&rank| fresh(rank).is_listed()).count() as u32;
        Ok(Self {
            head: (0..nodes)
                .find(|&rank| fresh(rank).is_listed())
                .unwrap_or(NO_PEER),
            peers: P::new(nodes, fresh),
            me,
            nodes,
            least,
            counts,
            dynamic: counts && terms.dynamic,
            limits: terms.limits,
            bank: shares.banked,
            epoch: 0,
            arrivals: 0,
            listed,
            search: 0,
            revoking: 0,
            mutants: Mutants::NONE,
            counters: Counters::default(),
            shares,
        })
    }

    /// Whether requests take credits: flow control is on, and there are other processes.
    pub const fn counts(&self) -> bool {
        self.counts
    }

    /// Processes of the job.
    pub const fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The rank of this one.
    pub const fn me(&self) -> u32 {
        self.me
    }

    /// The least that a peer ever has, and so the most that one request may take.
    pub const fn least(&self) -> u16 {
        self.least
    }

    /// The distribution at the start: buffers and events to be made.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The limits in use.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Credits that are not lent: BankedCredits. Bank and loans add up to the initial total.
    pub const fn bank(&self) -> u32 {
        self.bank
    }

    /// Epochs that have ended here; wraps after 2³².
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Peers that have more than the least.
    pub const fn listed(&self) -> u32 {
        self.listed
    }

    /// Revocations that are not answered.
    pub const fn revoking(&self) -> u32 {
        self.revoking
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the entry of a peer; `None` for this process and for invalid ranks.
    pub fn peer(&self, rank: u32) -> Option<Peer> {
        if rank == self.me {
            return None;
        }
        self.peers.get(rank)
    }

    /// Bytes of all that is known of peers.
    pub fn bytes(&self) -> usize {
        self.peers.bytes()
    }

    /// The peer of a message, with all its counters up to date; `None` for this process and for invalid
    /// ranks.
    #[inline]
    pub(super) fn settled(&mut self, rank: u32) -> Option<&mut Peer> {
        if rank == self.me {
            return None;
        }
        let (epoch, memory) = (self.epoch, self.limits.memory);
        let peer = self.peers.get_mut(rank)?;
        if peer.epoch != epoch {
            settle(peer, epoch, memory);
        }
        Some(peer)
    }
}

/// Applies the ends of our epochs to a peer when it is next accessed, with the same result as visiting all
/// peers at each end, but at a cost that does not depend on their number.
#[cold]
fn settle(peer: &mut Peer, epoch: u32, memory: Memory) {
    let ends = epoch.wrapping_sub(peer.epoch);
    let by = (ends.min(8) * 2).min(15);
    peer.given >>= by;
    let forget = memory == Memory::Flags;
    peer.requested = if forget { 0 } else { peer.requested >> by };
    peer.refused = match memory {
        Memory::Flags | Memory::Mixed => 0,
        Memory::Counters => peer.refused.checked_shr(by).unwrap_or(0),
    };
    peer.flags |= EPOCH_ENDED;
    peer.epoch = epoch;
}

/// The initial state of a peer. Those that start above the minimum are all on the list, in rank order.
fn fresh(shares: &Shares, (nodes, me): (u32, u32), rank: u32, least: u16, dynamic: bool) -> Peer {
    if rank == me || shares.total == 0 {
        return Peer::new(0, 0);
    }
    let mut peer = Peer::new(shares.of(me, rank), shares.of(rank, me));
    // Where credits migrate, all peers start with equally many.
    if dynamic && peer.loan > least {
        peer.next = neighbour(rank, 1, nodes, me);
        peer.previous = neighbour(rank, nodes - 1, nodes, me);
    }
    peer
}

/// The next one around the circle that is not this process.
fn neighbour(rank: u32, step: u32, nodes: u32, me: u32) -> u32 {
    let once = |rank: u32| ((u64::from(rank) + u64::from(step)) % u64::from(nodes)) as u32;
    let next = once(rank);
    if next == me { once(next) } else { next }
}

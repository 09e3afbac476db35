//! The record of one peer in the credit state, and the table of all peers: 32 bytes a peer, allocated once at
//! the start.
//!
//! ```text
//!   as lender      loan      lent to it; what is on its way there or back counts
//!                  held      of that, in requests that arrived and are not answered
//!                  given     granted recently        ┐ decay at the end
//!                  requested lacked recently         │ of our epochs
//!                  refused   had nothing to give     ┘
//!   as borrower    send      lent by it
//!                  in_use    of that, in requests that are not answered
//!                  stalls    requests that waited recently     ┐ decay when it
//!                  peak      most in use recently              │ reports that its
//!                  revoked   given back recently               ┘ epoch ended
//!   both           epoch, flags, links of the list of those who have more than the least
//! ```

use super::mutants::Mutants;

/// The most that a peer may take (design.md section 10).
const MOST_BYTES: usize = 40;
/// No peer: the end of a link.
pub(super) const NO_PEER: u32 = u32::MAX;

/// A revocation is in flight: SYS_MSG_INFLIGHT.
pub(super) const REVOKING: u8 = 1;
/// Our epoch ended, and the peer has not been notified: REACHED_EPOCH.
pub(super) const EPOCH_ENDED: u8 = 2;

/// The credit counters of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub(super) loan: u16,
    pub(super) held: u16,
    pub(super) given: u16,
    pub(super) requested: u16,
    pub(super) send: u16,
    pub(super) in_use: u16,
    pub(super) stalls: u16,
    pub(super) peak: u16,
    pub(super) revoked: u16,
    pub(super) refused: u8,
    pub(super) flags: u8,
    /// Our epoch up to which `given`, `requested` and `refused` have decayed.
    pub(super) epoch: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
}

const _: () = assert!(size_of::<Peer>() == 32 && size_of::<Peer>() <= MOST_BYTES);

impl Peer {
    /// A peer at the start, outside the list.
    pub(super) const fn new(loan: u16, send: u16) -> Self {
        Self {
            loan,
            held: 0,
            given: 0,
            requested: 0,
            send,
            in_use: 0,
            stalls: 0,
            peak: 0,
            revoked: 0,
            refused: 0,
            flags: 0,
            epoch: 0,
            next: NO_PEER,
            previous: NO_PEER,
        }
    }

    /// Our credits that it has, or that are in flight to or from it: LoanCredits.
    pub const fn loan(&self) -> u16 {
        self.loan
    }

    /// Credits of that loan which its requests hold that arrived and are not answered.
    pub const fn held(&self) -> u16 {
        self.held
    }

    /// Granted to it recently: LoanGiven. Decayed when the peer was last dealt with.
    pub const fn given(&self) -> u16 {
        self.given
    }

    /// Requests of it that lacked credits recently: LoanRequested. Decayed when the peer was last dealt with.
    pub const fn requested(&self) -> u16 {
        self.requested
    }

    /// Credits of its that we have: SendCredits.
    pub const fn send(&self) -> u16 {
        self.send
    }

    /// Credits of those which our unanswered requests use: SendInuse.
    pub const fn in_use(&self) -> u16 {
        self.in_use
    }

    /// Our requests to it that waited for credits recently: SendStalls.
    pub const fn stalls(&self) -> u16 {
        self.stalls
    }

    /// The most in use recently: SendMax; never less than what is in use.
    pub const fn peak(&self) -> u16 {
        self.peak
    }

    /// Returns what it took back recently: SendRevoked.
    pub const fn revoked(&self) -> u16 {
        self.revoked
    }

    /// Whether a revocation is in flight to it.
    pub const fn is_being_revoked(&self) -> bool {
        self.flags & REVOKING != 0
    }

    /// Whether it is on the list of possible victims of revocations.
    pub const fn is_listed(&self) -> bool {
        self.next != NO_PEER
    }

    /// Returns what may be used now.
    pub(super) const fn available(&self) -> u16 {
        self.send.saturating_sub(self.in_use)
    }

    /// Whether the next message has to report the end of our epoch; clears the flag.
    pub(super) const fn tell(&mut self) -> bool {
        let ended = self.flags & EPOCH_ENDED != 0;
        self.flags &= !EPOCH_ENDED;
        ended
    }

    /// Handles the end of the peer's epoch: our counters as its borrower decay. The peak stays at what is in
    /// use; the original let it fall below, and returned credits that were in use.
    pub(super) fn fade(&mut self, forget: bool, mutants: Mutants) {
        self.stalls = if forget { 0 } else { self.stalls >> 2 };
        self.revoked >>= 2;
        self.peak >>= 2;
        if !mutants.is(Mutants::REVOKES_WHAT_IS_IN_USE) {
            self.peak = self.peak.max(self.in_use);
        }
    }
}

/// The storage of a [`CreditState`](super::CreditState)'s peers. [`Dense`] is the one for programs; a
/// simulation of ten thousand processes keeps only the peers that have left their initial state.
pub trait Peers {
    /// A table of `count` peers, each as the pure function `fresh` returns it for its rank.
    fn new(count: u32, fresh: impl Fn(u32) -> Peer + Send + Sync + 'static) -> Self;
    /// Returns the entry of a peer.
    fn get(&self, rank: u32) -> Option<Peer>;
    /// Returns the entry of a peer, to be changed.
    fn get_mut(&mut self, rank: u32) -> Option<&mut Peer>;
    /// Bytes that the table takes now.
    fn bytes(&self) -> usize;
}

/// All peers in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense(Box<[Peer]>);

impl Peers for Dense {
    fn new(count: u32, fresh: impl Fn(u32) -> Peer + Send + Sync + 'static) -> Self {
        Self((0..count).map(fresh).collect())
    }

    #[inline]
    fn get(&self, rank: u32) -> Option<Peer> {
        self.0.get(rank as usize).copied()
    }

    #[inline]
    fn get_mut(&mut self, rank: u32) -> Option<&mut Peer> {
        self.0.get_mut(rank as usize)
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

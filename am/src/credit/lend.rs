//! The lender's side: on a request's arrival it decides what the reply grants, ends its epochs, and revokes
//! credits (gasnet.md sections 8 to 10).

use super::byte::CreditByte;
use super::config::Memory;
use super::error::Violation;
use super::mutants::Mutants;
use super::peer::{EPOCH_ENDED, Peers, REVOKING};
use super::state::CreditState;

/// What a request's reply owes its sender. Made on arrival, before the handler runs, and kept in its token;
/// becomes the reply's byte with [`CreditState::answer`], and a request that is never answered would keep its
/// credits for good.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the credits of a request go back with its reply"]
pub struct Due {
    pub(super) credits: u8,
    pub(super) granted: u8,
}

impl Due {
    /// Credits that are returned.
    pub const fn credits(&self) -> u8 {
        self.credits
    }

    /// Credits that are granted on top.
    pub const fn granted(&self) -> u8 {
        self.granted
    }
}

impl<P: Peers> CreditState<P> {
    /// Handles the arrival of a request: decides what its reply grants, which is lent from now on. Afterwards
    /// [`next_revoke`](Self::next_revoke) may have revocations to send.
    ///
    /// # Errors
    /// [`Violation`], without effect: the peer used more than it was lent, and may have overrun the buffers.
    #[inline]
    pub fn arrived(&mut self, rank: u32, byte: CreditByte) -> Result<Due, Violation> {
        if !self.counts {
            return Ok(Due {
                credits: 0,
                granted: 0,
            });
        }
        let (forget, mutants, me) = (self.limits.memory == Memory::Flags, self.mutants, self.me);
        let used = u16::from(byte.credits());
        let peer = self.settled(rank).ok_or(Violation::NoPeer(rank))?;
        let held = peer.held + used;
        if used == 0 || held > peer.loan {
            return Err(Violation::Overdrawn {
                rank,
                used,
                held: peer.held,
                loan: peer.loan,
            });
        }
        peer.held = held;
        if byte.epoch() {
            if mutants.is(Mutants::OWN_INDEX) {
                if let Some(own) = self.peers.get_mut(me) {
                    own.fade(forget, mutants);
                }
            } else {
                peer.fade(forget, mutants);
            }
        }
        self.count_arrival();
        let granted = match byte.extra() {
            0 => 0,
            need => self.asked(rank, need),
        };
        Ok(Due {
            credits: byte.credits(),
            granted,
        })
    }

    /// The byte of a reply when it is sent, with the end of our epoch if the peer has not been notified of
    /// it.
    #[inline]
    pub fn answer(&mut self, rank: u32, due: Due) -> CreditByte {
        if !self.counts {
            return CreditByte::NOTHING;
        }
        let own = self.mutants.is(Mutants::OWN_INDEX);
        let Some(peer) = self.settled(rank) else {
            return CreditByte::NOTHING;
        };
        peer.held = peer.held.saturating_sub(due.credits.into());
        let ended = if own { false } else { peer.tell() };
        CreditByte::packed(ended, due.granted, due.credits)
    }

    /// Handles a CREDIT_RETURN, the reply to a revocation.
    ///
    /// # Errors
    /// [`Violation`], without effect.
    pub fn returned(&mut self, rank: u32, give: u16, epoch: bool) -> Result<(), Violation> {
        let (limits, least, mutants) = (self.limits, self.least, self.mutants);
        if !self.dynamic {
            return Err(Violation::NotDynamic { rank });
        }
        let peer = self.settled(rank).ok_or(Violation::NoPeer(rank))?;
        if peer.flags & REVOKING == 0 {
            return Err(Violation::NotRevoked { rank });
        }
        let left = peer.loan.checked_sub(give);
        let left = left.filter(|&left| give == 0 || left >= least.max(peer.held));
        let left = left.ok_or(Violation::TooMuchReturned {
            rank,
            give,
            loan: peer.loan,
        })?;
        peer.flags &= !REVOKING;
        peer.loan = left;
        if epoch {
            peer.fade(limits.memory == Memory::Flags, mutants);
        }
        if give == 0 {
            peer.refused = REFUSED;
        } else {
            peer.refused = 0;
        }
        let leaves = give > 0 && left == least;
        self.revoking = self.revoking.saturating_sub(1);
        if give == 0 {
            self.counters.refusals += 1;
        }
        self.bank += u32::from(give);
        self.counters.returned += u64::from(give);
        if leaves {
            self.unlist(rank);
        }
        Ok(())
    }

    /// A request for more: grants what limits and bank allow, `need` at most.
    #[cold]
    fn asked(&mut self, rank: u32, need: u8) -> u8 {
        self.counters.asked += 1;
        if !self.dynamic {
            return 0;
        }
        let (limits, least, bank, mutants) = (self.limits, self.least, self.bank, self.mutants);
        let Some(peer) = self.settled(rank) else {
            return 0;
        };
        peer.requested = peer.requested.saturating_add(1);
        let need = u16::from(need);
        // All of it, or nothing: the limits do not cut a request short.
        let lent = peer
            .loan
            .checked_add(need)
            .filter(|&loan| loan <= limits.most_per_node);
        let given = match mutants.is(Mutants::LIMIT_BEFORE) {
            false => peer.given.saturating_add(need) <= limits.lend,
            true => peer.given <= limits.lend,
        };
        if lent.is_none() || !given {
            self.counters.limited += 1;
            return 0;
        }
        // The bank does: what there is. At most 7.
        let granted = u32::from(need).min(bank) as u16;
        if granted == 0 {
            self.counters.dry += 1;
            self.search_for_victims();
            return 0;
        }
        let joins = peer.loan == least;
        peer.given = peer.given.saturating_add(granted);
        if !mutants.is(Mutants::LOAN_NOT_RAISED) {
            peer.loan += granted;
        }
        self.bank -= u32::from(granted);
        self.counters.grants += 1;
        self.counters.granted += u64::from(granted);
        if joins {
            self.list(rank);
        }
        granted as u8
    }

    /// Epochs are counted in requests that arrive. That ours ended reaches each peer's counters when it is
    /// next dealt with.
    #[inline]
    fn count_arrival(&mut self) {
        self.arrivals += 1;
        if self.arrivals < self.limits.epoch {
            return;
        }
        self.arrivals = 0;
        self.epoch = self.epoch.wrapping_add(1);
        self.counters.epochs += 1;
        if self.mutants.is(Mutants::TWO_EPOCHS) {
            self.fade_all();
        }
        if self.mutants.is(Mutants::OWN_INDEX)
            && let Some(own) = self.peers.get_mut(self.me)
        {
            own.flags |= EPOCH_ENDED;
        }
    }

    /// The seed's second scheme, for the tests.
    #[cold]
    fn fade_all(&mut self) {
        for rank in 0..self.nodes {
            let mutants = self.mutants;
            if let Some(peer) = self.settled(rank) {
                peer.fade(false, mutants);
            }
        }
    }
}

/// How a refusal is remembered: as a counter it is gone after two ends of our epochs.
const REFUSED: u8 = 4;

//! The borrower's side: takes credits for requests, gets them back with replies, and returns some when they
//! are revoked (gasnet.md sections 8 and 10).

use super::byte::{CreditByte, MOST_EXTRA};
use super::config::Memory;
use super::error::{NoCredits, Violation};
use super::mutants::Mutants;
use super::peer::Peers;
use super::state::CreditState;

/// A request that needs credits: how many, and, once it has been refused, how many it lacked then. Kept while
/// it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    credits: u8,
    need: u8,
    stalled: bool,
}

impl Ask {
    /// A request of `credits` credits ([`credits_for`](super::credits_for)).
    #[inline]
    pub const fn new(credits: u8) -> Self {
        Self {
            credits,
            need: 0,
            stalled: false,
        }
    }

    /// Changes the request to another form, with its new number of credits; that it stalled, and what it
    /// lacked, is kept.
    #[inline]
    pub const fn renew(&mut self, credits: u8) {
        self.credits = credits;
    }

    /// Whether it was refused once.
    #[inline]
    pub const fn has_stalled(&self) -> bool {
        self.stalled
    }

    /// Returns what it lacked when it stalled; 7 means 7 or more.
    #[inline]
    pub const fn need(&self) -> u8 {
        self.need
    }

    /// Credits that it takes.
    #[inline]
    pub const fn credits(&self) -> u8 {
        self.credits
    }
}

/// The reply to a revocation: the arguments of CREDIT_RETURN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Credits returned; 0 if there are none to spare.
    pub give: u16,
    /// Whether our epoch ended.
    pub epoch: bool,
}

impl<P: Peers> CreditState<P> {
    /// Whether a request of `credits` credits would succeed now. Counts no stall; for requests that fail
    /// instead of waiting.
    pub fn has(&self, rank: u32, credits: u8) -> bool {
        if !self.counts {
            return rank < self.nodes;
        }
        self.peer(rank)
            .is_some_and(|peer| u16::from(credits) <= peer.available())
    }

    /// Takes the credits of a request, and returns the byte that it carries. A refused request is tried again
    /// after a poll with the same `ask`: the stall counts once, and the request reports to the peer what it
    /// lacked. With nothing else in use the minimum is available, so every stall ends with the replies of
    /// earlier requests.
    ///
    /// # Errors
    /// [`NoCredits::Stalled`] while too few are available; the others are mistakes of the caller.
    #[inline]
    pub fn take(&mut self, rank: u32, ask: &mut Ask) -> Result<CreditByte, NoCredits> {
        if !self.counts && rank < self.nodes {
            return Ok(CreditByte::NOTHING);
        }
        let (least, mutants) = (self.least, self.mutants);
        if ask.credits == 0 || u16::from(ask.credits) > least {
            return Err(NoCredits::TooMany {
                asked: ask.credits,
                most: least,
            });
        }
        let peer = self.settled(rank).ok_or(NoCredits::NoPeer(rank))?;
        let wanted = u16::from(ask.credits);
        let stall = match mutants.is(Mutants::INVERTED_STALL) {
            false => wanted > peer.available(),
            true => wanted < peer.available(),
        };
        if stall {
            if !ask.stalled {
                ask.stalled = true;
                // At most 15.
                ask.need = (wanted.saturating_sub(peer.available()) as u8).min(MOST_EXTRA);
                peer.stalls = peer.stalls.saturating_add(1);
                self.counters.stalls += 1;
            }
            return Err(NoCredits::Stalled);
        }
        // Not above `send`, unless the request had stalled.
        peer.in_use = peer.in_use.saturating_add(wanted);
        peer.peak = peer.peak.max(peer.in_use);
        let byte = CreditByte::packed(peer.tell(), ask.need, ask.credits);
        self.counters.taken += 1;
        Ok(byte)
    }

    /// Cancels a request that took credits and is not sent; only its stall stays counted.
    pub fn untake(&mut self, rank: u32, byte: CreditByte) {
        if !self.counts {
            return;
        }
        if let Some(peer) = self.settled(rank) {
            peer.in_use = peer.in_use.saturating_sub(byte.credits().into());
            if byte.epoch() {
                peer.flags |= super::peer::EPOCH_ENDED;
            }
            self.counters.taken = self.counters.taken.saturating_sub(1);
        }
    }

    /// Handles a reply: the request's credits are returned, and more may be granted. Returns how many more.
    ///
    /// # Errors
    /// [`Violation`], without effect: the peer broke the protocol.
    #[inline]
    pub fn replied(&mut self, rank: u32, byte: CreditByte) -> Result<u8, Violation> {
        if !self.counts {
            return Ok(0);
        }
        let (forget, mutants) = (self.limits.memory == Memory::Flags, self.mutants);
        let peer = self.settled(rank).ok_or(Violation::NoPeer(rank))?;
        let back = u16::from(byte.credits());
        let in_use = peer.in_use.checked_sub(back);
        let in_use = in_use.ok_or(Violation::NotInUse {
            rank,
            back,
            in_use: peer.in_use,
        })?;
        let send = peer.send.checked_add(byte.extra().into());
        let send = send.ok_or(Violation::TooManyGranted { rank })?;
        (peer.in_use, peer.send) = (in_use, send);
        if byte.epoch() {
            peer.fade(forget, mutants);
        }
        Ok(byte.extra())
    }

    /// Handles a CREDIT_REVOKE, with or without the end of its sender's epoch. The result always has to be
    /// sent.
    ///
    /// A borrower that stalled recently returns nothing. Others return what they did not use recently, down
    /// to the minimum, never what is in use, and no more than the limit in one epoch of the lender.
    ///
    /// # Errors
    /// [`Violation`], without effect.
    pub fn revoked(&mut self, rank: u32, epoch: bool) -> Result<Return, Violation> {
        if !self.counts {
            return Err(Violation::NotDynamic { rank });
        }
        let (limits, least, mutants) = (self.limits, self.least, self.mutants);
        let peer = self.settled(rank).ok_or(Violation::NoPeer(rank))?;
        if epoch {
            peer.fade(limits.memory == Memory::Flags, mutants);
        }
        let mut give = 0;
        if peer.stalls == 0 && peer.revoked < limits.revoke {
            let floor = match mutants.is(Mutants::BELOW_LEAST) {
                false => least.max(peer.peak),
                true => peer.peak,
            };
            give = peer.send.saturating_sub(floor).min(limits.revoke - peer.revoked);
        }
        peer.send -= give;
        peer.revoked += give;
        let told = Return {
            give,
            epoch: peer.tell(),
        };
        self.counters.given_back += u64::from(give);
        Ok(told)
    }
}

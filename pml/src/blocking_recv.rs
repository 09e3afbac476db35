//! The blocking receive: a caller that waits, in a call, for one message into one buffer, with nothing else
//! posted and nothing kept. Then the next message that matches is the one, and there is nothing to look up
//! and nothing to free.
//!
//! The fast-path receive of the usNIC BTL goes as far: the first completion straight to the call that waits
//! for it. What is different here is that matching stays exact: as soon as another receive is posted, or any
//! message was kept, the general way is taken.

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{Between, Inbound, Look, Message, Watch};

use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::hot::about;
use crate::pml::Pml;
use crate::rails::NO_RANK;
use crate::rank::Rank;
use crate::wire::MATCH_LEN;

/// Messages received directly in a row, since the last one was sent.
#[derive(Debug, Default)]
pub(crate) struct Streak(u32);

impl Streak {
    /// More messages than these make a stream.
    const STREAM: u32 = 32;

    /// A message was sent.
    #[inline(always)]
    pub(crate) fn sent(&mut self) {
        self.0 = 0;
    }

    /// A message was received.
    #[inline(always)]
    fn received(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    /// Whether they make a stream.
    #[inline(always)]
    fn is_stream(&self) -> bool {
        self.0 > Self::STREAM
    }
}

/// The looks between two polls of everything: one to two microseconds, longer than a round trip between cores
/// that are far apart, so that an answer that comes at once is not met in the middle of a poll.
const ANSWERING: Watch = Watch {
    looks: 64,
    between: Between::Pauses(1),
    answer: true,
};
/// The looks of a stream. Their pauses are longer: the sender then fills some lines undisturbed, instead of
/// losing its line to a look after every message.
const STREAMING: Watch = Watch {
    looks: 8,
    between: Between::Pauses(8),
    answer: false,
};

/// The receive of a waiting call: it lives on the stack of that call, so that nothing of it is left when the
/// call ends, in whatever way.
#[derive(Debug)]
pub(crate) struct BlockingRecv {
    /// The rank waited for; [`NO_RANK`] when no call waits, or no longer.
    rank: Rank,
    context: u16,
    tag: u64,
    room: MutLoan,
    /// The message's length, once it is there.
    length: Option<usize>,
}

impl BlockingRecv {
    /// No call waits.
    #[inline]
    pub(crate) fn none() -> Self {
        Self {
            rank: NO_RANK,
            context: 0,
            tag: 0,
            room: MutLoan::EMPTY,
            length: None,
        }
    }

    /// Takes the message, when it is the one waited for and fits; the caller has checked that it is its turn.
    #[inline]
    pub(crate) fn take(
        &mut self,
        core: &mut Core,
        (rank, context, tag): (Rank, u16, u64),
        inbound: &Inbound<'_>,
    ) -> bool {
        let length = inbound.len() - MATCH_LEN;
        if self.rank != rank || self.tag != tag || self.context != context || length > self.room.len() {
            return false;
        }
        inbound.copy_to_loan(MATCH_LEN, &self.room, 0);
        self.rank = NO_RANK;
        self.length = Some(length);
        core.counters.arrived += 1;
        core.counters.matched += 1;
        core.consume(rank, length as u64 + ENVELOPE);
        true
    }
}

/// The looks of a caller that shares its core. A turn lasts as long as those of all others, so each is one
/// look at what is waited for and nothing else.
const SHARING: Watch = Watch {
    looks: 16,
    between: Between::Yield,
    answer: false,
};

impl<M: Message> Pml<M> {
    /// Looks a few times at nothing but what small messages of `from` come by, and gives the core away in
    /// between: for a caller that shares it, and polls after each call that took nothing. `None`: the
    /// simplest case is over, as for [`Pml::recv_directly`].
    #[inline]
    pub fn recv_in_turns(&mut self, from: Rank, context: u16, tag: u64, room: MutLoan) -> Option<Look> {
        self.look_directly(from, context, tag, room, Some(SHARING))
    }

    /// Looks up to `looks` times for a message of `from` with this context and tag, and takes it into `room`,
    /// which is not touched any more when the call returns; its length. `None` decides nothing about the
    /// message: [`Pml::recv_loan`] always works, and finds it wherever it is by then.
    #[inline(always)]
    pub fn recv_directly(
        &mut self,
        from: Rank,
        context: u16,
        tag: u64,
        room: MutLoan,
        looks: u32,
    ) -> Option<usize> {
        self.flush_gathered();
        match self.look_directly(from, context, tag, room, None)? {
            Look::Taken(length) => Some(length),
            _ => {
                let waiting = BlockingRecv {
                    rank: from,
                    context,
                    tag,
                    room,
                    length: None,
                };
                self.recv_by_polling(waiting, looks)
            }
        }
    }

    /// The next checks, with a poll of everything before each.
    #[inline(never)]
    fn recv_by_polling(&mut self, mut waiting: BlockingRecv, looks: u32) -> Option<usize> {
        let (from, context, tag, room) = (waiting.rank, waiting.context, waiting.tag, waiting.room);
        for _ in 0..looks.div_ceil(ANSWERING.looks) {
            // Credits and answers do not wait for a poll that may not come for long.
            if !self.core.work.is_empty() {
                self.drain();
            }
            self.poll_for(1, &mut waiting);
            if waiting.length.is_some() {
                return waiting.length;
            }
            if self.core.clock.is_old() {
                return None;
            }
            if let Look::Taken(length) = self.look_directly(from, context, tag, room, None)? {
                return Some(length);
            }
        }
        None
    }

    /// Looks at the rail that small messages take, which is where they usually come from. `None`: the general
    /// way has to be taken.
    ///
    /// Between a look and the caller's answer lies what counts for a round trip, so everything that is not
    /// for the message in hand is done before or at another time.
    #[inline(always)]
    fn look_directly(
        &mut self,
        from: Rank,
        context: u16,
        tag: u64,
        room: MutLoan,
        watch: Option<Watch>,
    ) -> Option<Look> {
        let core = &mut self.core;
        // A kept message may be the one: an announcement, or one that does not fit.
        let others = core.matcher.posted_len() != 0 || core.matcher.unexpected_load().messages != 0;
        let hot = core.hot.get_mut(from)?;
        if others || hot.is(about::LOST | about::SELF | about::UNMET | about::UNUSUAL) {
            return None;
        }
        if !core.work.is_empty() {
            return Some(Look::Other);
        }
        let (rail, peer) = hot.route();
        let rail = self.rails.get_mut(rail)?;
        let head = hot.expected_head(context, tag);
        let watch = watch.unwrap_or(if core.streak.is_stream() {
            STREAMING
        } else {
            ANSWERING
        });
        let look = rail.look(peer, head, room.into(), watch);
        if let Look::Taken(length) = look {
            hot.advance();
            core.streak.received();
            core.counters.arrived += 1;
            core.counters.matched += 1;
            if hot.consume(length as u64 + ENVELOPE) {
                core.report(from);
            }
        }
        Some(look)
    }
}

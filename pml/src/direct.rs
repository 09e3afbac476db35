//! The direct receive: a caller that waits, in a call, for one message into one buffer, with nothing else posted and
//! nothing kept. Then the next message that matches is the one, and there is nothing to look up and nothing to free.
//!
//! The fast-path receive of the usNIC BTL goes as far: the first completion straight to the one who waits for it. What
//! is different here is that matching stays exact: as soon as another receive is posted, or any message was kept, the
//! general way is taken.

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{Inbound, Look, Message};

use crate::args::Status;
use crate::core::Core;
use crate::dispatch::NOBODY;
use crate::peer::{ENVELOPE, about};
use crate::pml::Pml;
use crate::rank::Rank;
use crate::wire::MATCH_LEN;

/// Messages received in a row, without one sent, that make a stream.
const STREAM: u32 = 32;
/// Pauses between two looks then: some hundred nanoseconds.
const STREAM_PAUSES: u32 = 8;
/// Looks between two polls of everything.
const POLL_EVERY: u32 = 16;

/// Who waits: lives on the stack of the waiting call, so that nothing of it is left when that call ends, however.
#[derive(Debug)]
pub(crate) struct Direct {
    /// The rank waited for; [`NOBODY`] when nobody waits, or no more.
    rank: u32,
    context: u16,
    tag: u64,
    room: MutLoan,
    /// The message's length, once it is there.
    length: Option<usize>,
}

impl Direct {
    /// Nobody waits.
    #[inline]
    pub(crate) fn nobody() -> Self {
        Self {
            rank: NOBODY,
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
        (rank, context, tag): (u32, u16, u64),
        inbound: &Inbound<'_>,
    ) -> bool {
        let length = inbound.len() - MATCH_LEN;
        if self.rank != rank || self.tag != tag || self.context != context || length > self.room.len() {
            return false;
        }
        inbound.copy_to_loan(MATCH_LEN, &self.room, 0);
        self.rank = NOBODY;
        self.length = Some(length);
        core.counters.arrived += 1;
        core.counters.matched += 1;
        core.consume(rank, length as u64 + ENVELOPE);
        if core.hot[rank as usize].is(about::HELD) {
            core.release_held(rank);
        }
        true
    }
}

impl<M: Message> Pml<M> {
    /// Looks up to `looks` times for a message of `from` with this context and tag, and takes it into `room`, which is
    /// not touched any more when the call returns. `None` says nothing about the message: [`Pml::recv_loan`] is the
    /// way that always works, and from which it is found, wherever it is by then.
    #[inline]
    pub fn recv_directly(
        &mut self,
        from: Rank,
        context: u16,
        tag: u64,
        room: MutLoan,
        looks: u32,
    ) -> Option<Status> {
        let hot = self.core.hot.get(from.index())?;
        if hot.is(about::LOST | about::SELF) || self.core.matcher.posted_len() != 0 {
            return None;
        }
        if !self.core.listed.is_empty() {
            // Credits and answers do not wait for a poll that may not come for long.
            self.drain();
        }
        let mut direct = Direct {
            rank: from.0,
            context,
            tag,
            room,
            length: None,
        };
        for look in 1..=looks {
            // A kept message may be the one: an announcement, or one that does not fit.
            if self.core.matcher.unexpected_load().messages != 0 {
                return None;
            }
            match self.look_for(from.index(), context, tag, room) {
                Look::Taken(length) => return Some(self.taken(from, tag, length)),
                Look::Nothing if !look.is_multiple_of(POLL_EVERY) => {
                    // Without a pause, loads run ahead of the one that counts and compete for the line. In a stream
                    // (many received, nothing sent) the pause is longer: the sender then fills some lines in peace,
                    // instead of losing its line to a look after every message.
                    let pauses = if self.core.in_a_row > STREAM {
                        STREAM_PAUSES
                    } else {
                        1
                    };
                    for _ in 0..pauses {
                        std::hint::spin_loop();
                    }
                    continue;
                }
                _ => {}
            }
            self.poll_for(1, &mut direct);
            if let Some(length) = direct.length {
                return Some(Status {
                    source: from,
                    tag,
                    length: length as u64,
                });
            }
        }
        None
    }
    /// Asks the rail that small messages go to, which is where they usually come from.
    #[inline(always)]
    fn look_for(&mut self, from: usize, context: u16, tag: u64, room: MutLoan) -> Look {
        let Some(hot) = self.core.hot.get(from) else {
            return Look::Other;
        };
        let head = [(hot.expected | u64::from(context) << 16).to_le(), tag.to_le()];
        match self.rails.get_mut(usize::from(hot.rail)) {
            Some(slot) => slot.rail.look(hot.peer, head, room),
            None => Look::Other,
        }
    }

    /// The message was taken off the rail and is in the buffer: keeps the books.
    #[inline(always)]
    fn taken(&mut self, from: Rank, tag: u64, length: usize) -> Status {
        let hot = &mut self.core.hot[from.index()];
        hot.advance();
        let held = hot.is(about::HELD);
        self.core.in_a_row = self.core.in_a_row.saturating_add(1);
        self.core.counters.arrived += 1;
        self.core.counters.matched += 1;
        self.core.consume(from.0, length as u64 + ENVELOPE);
        if held {
            self.core.release_held(from.0);
        }
        Status {
            source: from,
            tag,
            length: length as u64,
        }
    }
}

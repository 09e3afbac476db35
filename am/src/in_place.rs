//! Messages that are handled where they arrived: their handlers read the rail's memory, and nothing is copied
//! before.
//!
//! The interface shows arrivals while it is polled ([`TakePut`]). A Short, a Medium or a packed Long is taken
//! there if its handler can run now. Of requests that is one in each poll, and only while all that a reply
//! needs is in hand; what is left is copied into a receive buffer, as it would be without this, and handled
//! behind it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use doorbell_fabric::ni::{ArrivedPut, Ni, TakePut};

use crate::chunks::{ChunkUse, Chunks};
use crate::conduit::Conduit;
use crate::config::{AM_INDEX, RAR_INDEX};
use crate::match_bits::{AmHeader, Id};
use crate::receive::asked;
use crate::receiver::{Answered, Arrived, Came, Owed, Receiver, is_unpacked, receiver};

/// What takes messages while the interface is polled.
struct Taker<'a> {
    receiver: Receiver<'a>,
    reqsb: &'a mut Chunks,
    uses: &'a mut [ChunkUse],
    /// Whether a request may be taken.
    requests: bool,
    /// The reply to the one that was.
    owed: Option<Owed>,
    /// The panic of a handler: it goes on when the poll has ended.
    panic: Option<Box<dyn Any + Send>>,
}

impl<N: Ni> Conduit<N> {
    /// Polls the interface, and handles what can be handled in place; returns the work done. Request handlers
    /// run with `requests` only.
    #[inline]
    pub(crate) fn poll_interface(&mut self, budget: usize, requests: bool) -> usize {
        let mut taker = Taker {
            receiver: receiver!(self),
            reqsb: &mut self.reqsb,
            uses: &mut self.uses,
            requests: requests && self.held.complete,
            owed: None,
            panic: None,
        };
        let work = self.ni.poll_in_place(budget, &mut taker);
        let Taker { owed, panic, .. } = taker;
        // The reply first: what has panicked is another message's handler.
        if let Some(owed) = owed {
            self.send_reply(owed);
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        work
    }
}

impl TakePut for Taker<'_> {
    #[inline]
    fn take(&mut self, put: &ArrivedPut<'_>) -> bool {
        if self.panic.is_some() || AmHeader::of(put.match_bits).is_none_or(|header| is_unpacked(&header)) {
            return false;
        }
        let message = Arrived {
            initiator: put.initiator,
            match_bits: put.match_bits,
            hdr_data: put.hdr_data,
            bytes: put.bytes,
        };
        let id = Id::of(put.match_bits);
        let handled = match put.pt_index {
            AM_INDEX if self.requests && id == Some(Id::ReqRb) => {
                catch_unwind(AssertUnwindSafe(|| self.request(&message)))
            }
            RAR_INDEX if id == Some(Id::ReqSb) => {
                catch_unwind(AssertUnwindSafe(|| self.reply(&message, put.remote_offset)))
            }
            _ => return false,
        };
        match handled {
            Ok(handled) => handled,
            Err(panic) => {
                self.panic = Some(panic);
                true
            }
        }
    }
}

impl Taker<'_> {
    #[inline]
    fn request(&mut self, message: &Arrived<'_>) -> bool {
        match self.receiver.request(message) {
            Came::Handled(owed) => {
                self.receiver.stats.in_place += 1;
                self.requests = false;
                self.owed = Some(owed);
                true
            }
            // It is counted when it has landed.
            Came::Half(..) | Came::Hostile => false,
        }
    }

    #[inline]
    fn reply(&mut self, message: &Arrived<'_>, place: u64) -> bool {
        let Some(chunk) = self.reqsb.at(place) else {
            return false;
        };
        if message.bytes.len() > self.reqsb.size() as usize {
            return false;
        }
        match self.receiver.reply(message, asked(self.uses, chunk)) {
            Answered::Handled => self.receiver.stats.in_place += 1,
            Answered::Misplaced => self.receiver.stats.hostile += 1,
            Answered::Half { .. } | Answered::Hostile => return false,
        }
        if let Some(slot) = self.uses.get_mut(chunk as usize) {
            *slot = ChunkUse::Free;
            self.reqsb.give(chunk);
        }
        true
    }
}

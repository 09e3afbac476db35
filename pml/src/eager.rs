//! Sending: the fast path, and the entry to all others.

use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{Body, Message, PeerIndex};
use zerocopy::IntoBytes;

use crate::args::{Payload, SendArgs, SendMode, Sent};
use crate::convertor::{Cursor, Origin, to_usize};
use crate::credit::ENVELOPE;
use crate::error::PmlError;
use crate::hot::about;
use crate::launch::Launch;
use crate::local::Outgoing;
use crate::pml::Pml;
use crate::pool::{Buffer, Pool};
use crate::rank::Rank;
use crate::request::{Event, mark};
use crate::wire::MatchHeader;

/// When the doorbell rings for a message that the rail took: perhaps with those that follow; when the caller
/// requests it.
const SOON: u8 = 1;
const LATER: u8 = 2;

/// All peers together may hold as many injected bytes as this many of them.
const INJECT_PEERS: usize = 16;

/// What became of a message that was to leave at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// The rail's device has it.
    Left,
    /// The rail has a copy, and holds it back ([`Pml::holds_back`]): it leaves in later calls only.
    Held,
    /// Nothing has happened.
    Refused,
}

impl<M: Message> Pml<M> {
    /// Sends one piece of borrowed memory in standard mode: the fast path. A message that the rail takes at
    /// once costs no request and no copy but the rail's.
    ///
    /// # Errors
    /// [`PmlError::NoSuchRank`], [`PmlError::NoRail`], [`PmlError::PeerLost`].
    #[inline]
    pub fn send_loan(
        &mut self,
        to: Rank,
        context: u16,
        tag: u64,
        bytes: ConstLoan,
    ) -> Result<Sent, PmlError> {
        if self.at_once::<LATER>(to, context, tag, bytes.len(), Body::Loan(bytes)) {
            return Ok(Sent::Done);
        }
        self.send_loan_slowly(to, context, tag, bytes)
    }

    /// Sends as [`Pml::send_loan`] does, where more sends may follow: it rings the doorbell itself, or leaves
    /// that to the next send, to [`Pml::flush`] or to a poll, as [`Message::flush_soon`] decides.
    ///
    /// # Errors
    /// Those of [`Pml::send_loan`].
    #[inline]
    pub fn post_loan(
        &mut self,
        to: Rank,
        context: u16,
        tag: u64,
        bytes: ConstLoan,
    ) -> Result<Sent, PmlError> {
        if self.at_once::<SOON>(to, context, tag, bytes.len(), Body::Loan(bytes)) {
            return Ok(Sent::Done);
        }
        let sent = self.send_loan_slowly(to, context, tag, bytes);
        self.flush();
        sent
    }

    fn send_loan_slowly(
        &mut self,
        to: Rank,
        context: u16,
        tag: u64,
        bytes: ConstLoan,
    ) -> Result<Sent, PmlError> {
        self.send_slowly(Outgoing {
            to,
            context,
            tag,
            origin: Origin::User(Payload::Loan(bytes)),
            marks: 0,
        })
    }

    /// The short half of [`Pml::send_loan`]: what became of the bytes, for which the doorbell was rung.
    #[inline]
    pub fn send_at_once(&mut self, to: Rank, context: u16, tag: u64, bytes: ConstLoan) -> AtOnce {
        let Some((rail, peer)) = self.accepted(to, context, tag, bytes.len(), Body::Loan(bytes)) else {
            return AtOnce::Refused;
        };
        match rail.flush_for(peer) {
            true => AtOnce::Left,
            false => AtOnce::Held,
        }
    }

    /// Sends as [`Pml::send_at_once`] does, but leaves the doorbell to [`Pml::flush`], a poll, or a full
    /// rail. Returns whether the rail took the bytes; if not, nothing has happened.
    #[inline]
    pub fn send_with_more(&mut self, to: Rank, context: u16, tag: u64, bytes: ConstLoan) -> bool {
        let sent = self.at_once::<LATER>(to, context, tag, bytes.len(), Body::Loan(bytes));
        self.rails.note_gathered(sent);
        sent
    }

    /// Sends.
    ///
    /// # Errors
    /// Those of [`Pml::send_loan`]; [`PmlError::BadLayout`]; in buffered mode also those of [`Pml::inject`].
    pub fn send(&mut self, args: SendArgs) -> Result<Sent, PmlError> {
        let notify = if args.notify { mark::NOTIFY } else { 0 };
        let marks = match args.mode {
            SendMode::Delivered if self.leads_out(args.to) => notify | mark::DELIVERED,
            SendMode::Standard | SendMode::Delivered => notify,
            SendMode::Synchronous => notify | mark::SYNC,
            SendMode::Buffered => mark::DETACHED,
            SendMode::Lent => notify | mark::LENT,
        };
        if let Payload::Loan(bytes) = &args.payload
            && marks & (mark::SYNC | mark::DELIVERED) == 0
            && self.at_once::<LATER>(args.to, args.context, args.tag, bytes.len(), Body::Loan(*bytes))
        {
            return Ok(Sent::Done);
        }
        let buffered = args.mode == SendMode::Buffered;
        let mut origin = Origin::User(args.payload.checked()?);
        if buffered {
            origin = self.buffered(args.to, &origin)?;
        }
        let sent = self.send_slowly(Outgoing {
            to: args.to,
            context: args.context,
            tag: args.tag,
            origin,
            marks,
        })?;
        Ok(if buffered { Sent::Done } else { sent })
    }

    /// Sends bytes that are taken before the call returns; there is never a request.
    ///
    /// # Errors As [`Pml::send_loan`]; [`PmlError::InjectFull`] when too many injected bytes wait for rails
    /// already: poll, and try again; [`PmlError::InjectTooLong`] for more bytes than may wait.
    #[inline]
    pub fn inject(&mut self, to: Rank, context: u16, tag: u64, bytes: &[u8]) -> Result<(), PmlError> {
        if self.at_once::<LATER>(to, context, tag, bytes.len(), Body::Bytes(bytes)) {
            return Ok(());
        }
        self.inject_slowly(to, context, tag, bytes)
    }

    /// The fast path: the rail takes it now, or nothing has happened.
    #[inline(always)]
    fn at_once<const DOORBELL: u8>(
        &mut self,
        to: Rank,
        context: u16,
        tag: u64,
        length: usize,
        body: Body<'_>,
    ) -> bool {
        let Some((rail, peer)) = self.accepted(to, context, tag, length, body) else {
            return false;
        };
        if DOORBELL == SOON {
            let left = rail.flush_soon(peer);
            self.rails.note_gathered(!left);
        }
        true
    }

    /// Has the rail accept a message, without a doorbell; which rail that was, and the peer as it numbers it.
    /// `None`: nothing has happened.
    #[inline(always)]
    fn accepted(
        &mut self,
        to: Rank,
        context: u16,
        tag: u64,
        length: usize,
        body: Body<'_>,
    ) -> Option<(&mut M, PeerIndex)> {
        let hot = self.core.hot.get_mut(to)?;
        // It does not wrap for a length that is fast, and another one is refused by the length.
        let charge = (length as u64).wrapping_add(ENVELOPE);
        if !hot.is_fast(length, charge) {
            return None;
        }
        let (rail, peer) = hot.route();
        let rail = self.rails.get_mut(rail)?;
        let head = MatchHeader::plain_words(context, hot.next_seq().0, tag);
        rail.send(peer, head.as_bytes(), body).ok()?;
        hot.sent(charge);
        self.core.counters.sent_eager += 1;
        self.core.streak.sent();
        Some((rail, peer))
    }

    #[cold]
    #[inline(never)]
    fn inject_slowly(&mut self, to: Rank, context: u16, tag: u64, bytes: &[u8]) -> Result<(), PmlError> {
        let mut buffer = self.take_buffer(to, bytes.len() as u64)?;
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let outgoing = Outgoing {
            to,
            context,
            tag,
            origin: Origin::Own(buffer, bytes.len()),
            marks: mark::DETACHED,
        };
        self.send_slowly(outgoing).map(|_| ())
    }

    /// A copy of the bytes of a send, to be sent from.
    pub(crate) fn buffered(&mut self, to: Rank, origin: &Origin) -> Result<Origin, PmlError> {
        let mut buffer = self.take_buffer(to, origin.len())?;
        let length = to_usize(origin.len());
        origin.pack(&mut Cursor::default(), 0, &mut buffer.bytes_mut()[..length]);
        Ok(Origin::Own(buffer, length))
    }

    /// A buffer for bytes that are taken before a call returns, of which a limited number may wait for each
    /// peer, so that one that does not receive stops those alone that send to it.
    fn take_buffer(&mut self, to: Rank, length: u64) -> Result<Buffer, PmlError> {
        if self.core.hot.get(to).is_none() {
            return Err(self.no_such_rank(to));
        }
        // One that is refused by the bound below is sent again by its caller, when the peer is met.
        self.core.want(to);
        let (length, limit) = (to_usize(length), self.core.config.inject_limit);
        if length > limit {
            return Err(PmlError::InjectTooLong { length, limit });
        }
        let (charge, waiting) = (Pool::charge(length), self.core.pool.waiting(to));
        let all = self.core.pool.held() + charge;
        if waiting + charge > limit || all > limit.saturating_mul(INJECT_PEERS) {
            return Err(PmlError::InjectFull { waiting });
        }
        Ok(self.core.pool.hold(to, length))
    }

    /// Everything that the fast path does not do.
    #[inline(never)]
    pub(crate) fn send_slowly(&mut self, outgoing: Outgoing) -> Result<Sent, PmlError> {
        let rank = outgoing.to;
        let Some(hot) = self.core.hot.get(rank) else {
            self.core.drop_origin(rank, outgoing.origin);
            return Err(self.no_such_rank(rank));
        };
        if hot.is(about::SELF) {
            return Ok(self.core.send_self(outgoing));
        }
        if let Err(error) = self.reachable(rank) {
            self.core.drop_origin(rank, outgoing.origin);
            return Err(error);
        }
        let (id, slot) = self.core.requests.take();
        let (marks, length) = (outgoing.marks | mark::RECORD, outgoing.origin.len());
        slot.send(Event::Sent, marks, rank, (outgoing.context, outgoing.tag), length);
        let record = self.core.requests.record(id.index());
        record.memory.set_origin(outgoing.origin);
        if !self.core.peers[rank].backlog.has_sends() {
            match self.launch(rank, id) {
                Launch::Complete if marks & mark::DELIVERED != 0 => {
                    self.core.await_hand_over(id.index());
                    self.mark_hand_overs(rank);
                    return Ok(Sent::Pending(id));
                }
                Launch::Complete => {
                    self.core.free(id.index());
                    return Ok(Sent::Done);
                }
                Launch::Announced | Launch::Requested => return Ok(Sent::Pending(id)),
                Launch::Full => self.core.list(rank),
                Launch::NoCredit => {}
            }
            if self.core.hot[rank].is(about::LOST) {
                self.core.free(id.index());
                self.reachable(rank)?;
            }
        }
        self.core.counters.sends_queued += 1;
        self.core.peers[rank].backlog.push_send(id);
        self.core.hot[rank].close_fast_path();
        Ok(Sent::Pending(id))
    }

    /// Whether a rail leads to a rank of the job, or will once it is connected.
    pub(crate) fn reachable(&mut self, rank: Rank) -> Result<(), PmlError> {
        self.core.want(rank);
        let met = !self.core.hot[rank].is(about::UNMET);
        let peer = &self.core.peers[rank];
        match peer.lost() {
            Some(reason) => Err(PmlError::PeerLost { rank, reason }),
            None if met && peer.paths.is_empty() => Err(PmlError::NoRail { rank }),
            None => Ok(()),
        }
    }

    #[cold]
    pub(crate) fn no_such_rank(&self, rank: Rank) -> PmlError {
        PmlError::NoSuchRank {
            rank: rank.0,
            size: self.core.hot.len(),
        }
    }
}

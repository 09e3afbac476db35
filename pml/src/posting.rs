//! Receives: the fast path, layouts, and multi-receives.

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::Message;
use doorbell_matching::{Entry, MatchKey, Posted};

use crate::args::{Delivery, MultiArgs, RecvArgs, Target};
use crate::core::Core;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::rank::{Source, number};
use crate::receive::{Landing, pattern};
use crate::request::RequestIndex;
use crate::request::{Event, Outcome, RequestId, mark};
use crate::rma::args::OperationError;
use crate::unexpected::UnexpectedIndex;

impl<M: Message> Pml<M> {
    /// Receives into one piece of borrowed memory: the fast path.
    ///
    /// # Errors
    /// [`PmlError::NoSuchRank`]. That the peer is lost is reported by the request.
    #[inline]
    pub fn recv_loan(
        &mut self,
        from: Source,
        context: u16,
        tag: u64,
        ignore: u64,
        room: MutLoan,
    ) -> Result<RequestId, PmlError> {
        self.recv_piece::<0>(from, context, tag, ignore, room)
    }

    /// Receives as [`Pml::recv_loan`] does, and puts the request on the completion queue when it ends
    /// ([`Pml::next_completion`]).
    ///
    /// # Errors
    /// Those of [`Pml::recv_loan`].
    #[inline]
    pub fn recv_loan_notified(
        &mut self,
        from: Source,
        context: u16,
        tag: u64,
        ignore: u64,
        room: MutLoan,
    ) -> Result<RequestId, PmlError> {
        self.recv_piece::<{ mark::NOTIFY }>(from, context, tag, ignore, room)
    }

    #[inline(always)]
    fn recv_piece<const MARKS: u16>(
        &mut self,
        from: Source,
        context: u16,
        tag: u64,
        ignore: u64,
        room: MutLoan,
    ) -> Result<RequestId, PmlError> {
        if let Source::Rank(rank) | Source::Endpoint(rank, _) = from
            && self.core.hot.get(rank).is_none()
        {
            return Err(self.no_such_rank(rank));
        }
        let (id, slot) = self.core.requests.take();
        slot.post(MARKS, context, tag, room);
        let length = room.len() as u64;
        match from {
            // By value all the way: a pattern that is built in memory and read back by other words stalls the
            // processor.
            Source::Rank(rank) if ignore == 0 => {
                let key = MatchKey::new(u32::from(context), rank.0, tag);
                self.core.post_exact(id, key, length);
            }
            Source::Endpoint(rank, endpoint) if ignore == 0 => {
                let key = MatchKey::new(u32::from(context), number(rank, endpoint), tag);
                self.core.post_exact(id, key, length);
            }
            _ => self.core.post(id, pattern(from, context, tag, ignore), length),
        }
        Ok(id)
    }

    /// Receives.
    ///
    /// # Errors
    /// Those of [`Pml::recv_loan`], and [`PmlError::BadLayout`].
    pub fn recv(&mut self, args: RecvArgs) -> Result<RequestId, PmlError> {
        self.check_source(args.from)?;
        let id = self.prepare(args.context, args.tag, args.target, args.notify)?;
        let room = self.core.capacity(id.index());
        self.core
            .post(id, pattern(args.from, args.context, args.tag, args.ignore), room);
        Ok(id)
    }

    /// Posts a buffer that takes many messages, one behind the other, until fewer than `min_free` bytes are
    /// left. Each is returned by [`Pml::next_delivery`]; the request ends when the buffer is released, of
    /// which [`Pml::next_completion`] notifies when all of its messages were taken.
    ///
    /// # Errors [`PmlError::NoSuchRank`]; [`PmlError::MultiPieces`] for a target of several pieces, and
    /// [`PmlError::BadLayout`].
    pub fn recv_multi(&mut self, args: MultiArgs) -> Result<RequestId, PmlError> {
        self.check_source(args.from)?;
        let target = args.target.checked()?;
        if !target.is_contiguous() {
            let pieces = target.pieces();
            return Err(PmlError::MultiPieces { pieces });
        }
        let room = target.len();
        let id = self.prepare(args.context, args.tag, target, args.notify)?;
        let slot = self.core.requests.slot(id.index());
        slot.turn(Event::Opened);
        slot.set(mark::MULTI | mark::RECORD);
        slot.set_peer(self.core.config.rank);
        let pattern = pattern(args.from, args.context, args.tag, args.ignore);
        let mut entry = Entry::persistent(pattern, room, id.to_bits()).managed(args.min_free.max(1));
        // As if a transfer went into it: one that ends at once does not end it before it is linked.
        self.core.requests.record(id.index()).multi.child_begins();
        loop {
            match self.core.matcher.post(&entry) {
                Posted::Linked(handle) => {
                    self.core.requests.slot(id.index()).link(handle);
                    break;
                }
                Posted::Found(kept) => {
                    // A managed entry without `no_truncate` takes every message.
                    let Some(place) = entry.take(0, kept.length) else {
                        break;
                    };
                    let landing = Landing {
                        request: id,
                        offset: place.offset,
                        length: place.length,
                        unlinked: place.unlinked,
                    };
                    self.core
                        .deliver_recorded(&landing, UnexpectedIndex::of_token(kept.token));
                    if place.unlinked {
                        break;
                    }
                }
            }
        }
        self.core.requests.record(id.index()).multi.child_ended();
        if self.core.requests.slot(id.index()).entry().is_none() {
            self.core.release_multi(id.index(), Outcome::Ok);
        }
        if self.core.lazy.any_apart() && self.core.requests.get(id).is_some() {
            self.core.look_apart(id, pattern);
        }
        Ok(id)
    }

    /// The next message that a multi-receive took, oldest first.
    #[inline]
    pub fn next_delivery(&mut self) -> Option<Delivery> {
        if self.core.deliveries.is_empty() {
            return None;
        }
        self.next_delivery_unless(|_| None)
    }

    /// The next message that a multi-receive took and that the owner has room for, oldest first. `waits_for`
    /// returns, for a request, the number of what its messages wait for; `None` where there is room. Messages
    /// that wait for the same keep their order, and each counts against its sender's window until it is
    /// taken.
    #[inline(never)]
    pub fn next_delivery_unless(
        &mut self,
        waits_for: impl Fn(RequestId) -> Option<usize>,
    ) -> Option<Delivery> {
        let (delivery, charge) = self.core.deliveries.pop(waits_for)?;
        if charge > 0 {
            self.core.consume(delivery.status.source, charge);
        }
        self.core.delivery_taken(delivery.request);
        Some(delivery)
    }

    /// Whether [`Pml::next_delivery`] would return one.
    #[inline]
    #[must_use]
    pub fn has_deliveries(&self) -> bool {
        !self.core.deliveries.is_empty()
    }

    pub(crate) fn check_source(&self, from: Source) -> Result<(), PmlError> {
        match from {
            Source::Rank(rank) | Source::Endpoint(rank, _) if self.core.hot.get(rank).is_none() => {
                Err(self.no_such_rank(rank))
            }
            _ => Ok(()),
        }
    }

    /// A receive request with its layout, not yet posted.
    pub(crate) fn prepare(
        &mut self,
        context: u16,
        tag: u64,
        target: Target,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let target = target.checked()?;
        let (id, slot) = self.core.requests.take();
        let marks = if notify { mark::NOTIFY } else { 0 };
        match target {
            Target::Loan(room) => slot.post(marks, context, tag, room),
            target => {
                slot.post(marks | mark::APART | mark::RECORD, context, tag, MutLoan::EMPTY);
                let record = self.core.requests.record(id.index());
                record.memory.set_target(target);
                record.progress.set_unbounded();
            }
        }
        Ok(id)
    }
}

impl Core {
    /// The room of a receive.
    pub(crate) fn capacity(&self, index: RequestIndex) -> u64 {
        let slot = self.requests.peek(index);
        self.requests.peek_record(index).memory.capacity(slot)
    }

    /// Returns how a request ended, in words for the user; the slot is not freed.
    pub(crate) fn verdict(&self, index: RequestIndex) -> Result<crate::args::Status, PmlError> {
        let slot = self.requests.peek(index);
        let source = slot.peer();
        match slot.outcome() {
            Outcome::Ok => Ok(self.status(index)),
            Outcome::Truncated => {
                let status = self.status(index);
                Err(PmlError::Truncated {
                    source_rank: source,
                    endpoint: status.endpoint,
                    tag: status.tag,
                    data: status.data,
                    length: status.length,
                    room: self.requests.peek_record(index).progress.until(),
                })
            }
            Outcome::Corrupt => {
                let record = self.requests.peek_record(index);
                Err(PmlError::Corrupt {
                    source_rank: source,
                    tag: slot.tag(),
                    length: slot.length(),
                    announced: record.checksums.announced().unwrap_or_default(),
                    found: record.checksums.found(),
                })
            }
            Outcome::Cancelled => Err(PmlError::Cancelled {
                request: self.requests.id(index),
                context: slot.context(),
                tag: slot.tag(),
            }),
            Outcome::SendAborted => Err(PmlError::SendAborted {
                source_rank: source,
                tag: slot.tag(),
            }),
            Outcome::Rejected => Err(PmlError::Rejected {
                rank: source,
                tag: slot.tag(),
            }),
            Outcome::UnknownKey
            | Outcome::NoAccess
            | Outcome::OutOfRange
            | Outcome::Unmapped
            | Outcome::Invalid
            | Outcome::WindowClosed
            | Outcome::Damaged => {
                // Each of these is one.
                let reason = OperationError::of(slot.outcome()).unwrap_or(OperationError::Invalid);
                Err(PmlError::Operation { rank: source, reason })
            }
            Outcome::PeerLost => {
                let reason = self.peers[source].lost();
                // A request ends this way only after its peer was given a reason.
                let reason = reason.unwrap_or(crate::error::LostReason::NotReclaimable);
                Err(PmlError::PeerLost { rank: source, reason })
            }
        }
    }
}

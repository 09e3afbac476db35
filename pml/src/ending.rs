//! The end of requests: test, cancel, abort, detach.

use doorbell_fabric::message::Message;

use crate::args::{Aborted, LostSends, Status};
use crate::core::Core;
use crate::error::PmlError;
use crate::hot::about;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::rendezvous::receiver::ack;
use crate::request::{Outcome, RequestId, State, mark};
use crate::unexpected::UnexpectedIndex;

impl Core {
    /// Whether a send that was reported as done still needs its peer: it was announced, or waits for the
    /// peer's window. `of` selects sends by their contexts. It is looked up by a close alone, so that no
    /// message has to count.
    #[cold]
    pub(crate) fn has_promised(&self, of: impl Fn(u16) -> bool) -> bool {
        self.requests.each_live().any(|slot| {
            slot.is(mark::DETACHED)
                && of(slot.context())
                && !slot.is(mark::ABORTED)
                && slot.state().is_send()
                && !self.hot[slot.peer()].is(about::LOST)
        })
    }
}

impl<M: Message> Pml<M> {
    /// Whether sends of an endpoint that were reported as done still need their peers: they were announced,
    /// or wait for a peer's window. Not for the data path: it looks at every request.
    #[must_use]
    pub fn has_promised(&self, endpoint: u8) -> bool {
        let sources = self.core.config.sources;
        self.core
            .has_promised(|context| context & sources == u16::from(endpoint) & sources)
    }

    /// Whether a request has ended. A stale id has.
    #[inline]
    #[must_use]
    pub fn is_done(&self, id: RequestId) -> bool {
        match self.core.requests.get(id) {
            Some(slot) => slot.state() == State::Done || slot.is(mark::ABORTED),
            None => true,
        }
    }

    /// Whether a request needs no further call of ours: it has ended, or its receiver has only to read the
    /// memory that was announced to it. A stale id needs none.
    #[inline]
    #[must_use]
    pub fn is_left_to_peer(&self, id: RequestId) -> bool {
        self.core.requests.get(id).is_none_or(|slot| {
            let state = slot.state();
            matches!(state, State::Done | State::AwaitFin | State::SelfWait)
        })
    }

    /// The status of a request that has ended well, and frees it. `None`: it is under way, or ended in
    /// another way, which [`Pml::test`] reports.
    #[inline(always)]
    pub fn take_well_ended(&mut self, id: RequestId) -> Option<Status> {
        if !self.core.requests.get(id)?.is_well_ended() {
            return None;
        }
        let status = self.core.status(id.index());
        self.core.requests.free(id.index());
        Some(status)
    }

    /// Returns how a request ended, and frees it; `None` while it is under way. A stale id ends with
    /// [`PmlError::StaleRequest`].
    #[inline]
    pub fn test(&mut self, id: RequestId) -> Option<Result<Status, PmlError>> {
        if let Some(status) = self.take_well_ended(id) {
            return Some(Ok(status));
        }
        let Some(slot) = self.core.requests.get(id) else {
            return Some(Err(PmlError::StaleRequest(id)));
        };
        if slot.state() != State::Done {
            return self.unfinished(id);
        }
        self.verdict(id)
    }

    #[cold]
    fn unfinished(&self, id: RequestId) -> Option<Result<Status, PmlError>> {
        let aborted = self
            .core
            .requests
            .get(id)
            .is_some_and(|slot| slot.is(mark::ABORTED));
        aborted.then_some(Err(PmlError::StaleRequest(id)))
    }

    #[cold]
    fn verdict(&mut self, id: RequestId) -> Option<Result<Status, PmlError>> {
        let verdict = self.core.verdict(id.index());
        self.core.free(id.index());
        Some(verdict)
    }

    /// The next request that ended, of those that were made with `notify`. It has still to be tested. A
    /// multi-receive comes behind its messages ([`Pml::next_delivery`]).
    #[inline]
    pub fn next_completion(&mut self) -> Option<RequestId> {
        loop {
            let id = self.core.reports.pop_request()?;
            if self.core.requests.get(id).is_some() {
                return Some(id);
            }
        }
    }

    /// Whether a request has ended that [`Pml::next_completion`] has not returned.
    #[inline]
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.core.reports.has_requests()
    }

    /// The next messages that were reported as sent when they were accepted ([`Pml::inject`],
    /// [`SendMode::Buffered`](crate::SendMode::Buffered)), and whose peer was lost before all of their bytes
    /// had left. A message that a rail had taken is not among them, whether or not it arrived. An owner that
    /// does not look loses nothing else: what waits is bounded.
    pub fn next_lost_sends(&mut self) -> Option<LostSends> {
        self.core.reports.pop_lost()
    }

    /// Cancels a receive that has not been matched, or a send of which nothing has left. `true`: it ends now,
    /// as [`PmlError::Cancelled`]. `false`: it ends, or ended, in the ordinary way.
    ///
    /// A cancelled multi-receive ends when the transfers into it have ended.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.core.requests.get_mut(id) else {
            return false;
        };
        let (state, peer) = (slot.state(), slot.peer());
        match state {
            State::Posted | State::Multi => {
                let Some(entry) = slot.unlink() else {
                    return false;
                };
                if self.core.matcher.cancel(entry).is_err() {
                    return false;
                }
                if state == State::Multi {
                    self.core.release_multi(id.index(), Outcome::Cancelled);
                } else {
                    self.core.finish(id.index(), Outcome::Cancelled);
                }
                true
            }
            State::Queued => {
                self.unqueue(peer, id);
                self.core.finish(id.index(), Outcome::Cancelled);
                true
            }
            State::SelfWait if self.take_from_matching(id) => {
                self.core.finish(id.index(), Outcome::Cancelled);
                true
            }
            _ => false,
        }
    }

    /// Ends a request at once, whatever its state, and makes its id stale. After [`Aborted::Now`] the PML
    /// never touches the request's memory again. After [`Aborted::Wait`] a rail may still do so: poll, and
    /// call it again.
    ///
    /// A message that was under way is lost: a receive that it was matched with ends as
    /// [`PmlError::SendAborted`] at the other side; a send to an aborted receive completes.
    pub fn abort(&mut self, id: RequestId) -> Aborted {
        let Some(slot) = self.core.requests.get(id) else {
            return Aborted::Now;
        };
        if slot.is(mark::ABORTED) && slot.state() != State::Done && slot.state() != State::Multi {
            // A send that was aborted lives on without its memory; everything else waits for its operation.
            let busy = self.core.requests.peek_record(id.index()).one_sided.is_busy();
            return if busy { Aborted::Wait } else { Aborted::Now };
        }
        let aborted = self.abort_live(id);
        self.apply_withdrawals();
        aborted
    }

    fn abort_live(&mut self, id: RequestId) -> Aborted {
        let index = id.index();
        let (slot, record) = self.core.requests.both(index);
        slot.set(mark::ABORTED | mark::RECORD);
        let (state, peer) = (slot.state(), slot.peer());
        let operation = record.one_sided.is_busy();
        match state {
            State::Free => {}
            State::Done => {
                if slot.is(mark::MULTI) {
                    self.core.drop_deliveries(id);
                }
                self.core.free(index);
            }
            State::Posted => {
                if let Some(entry) = slot.unlink() {
                    // Linked, because nothing has matched it.
                    let _ = self.core.matcher.cancel(entry);
                }
                self.core.free(index);
            }
            State::Multi => return self.abort_multi(id),
            State::Queued => {
                self.unqueue(peer, id);
                self.core.free(index);
            }
            State::SelfWait => {
                self.take_from_matching(id);
                self.core.free(index);
            }
            State::Getting | State::Putting | State::RecvRestart | State::SendRestart if operation => {
                record.one_sided.doom(Outcome::Cancelled);
                return Aborted::Wait;
            }
            State::Getting | State::Held => {
                self.core.queue_fin(index, 0);
                self.core.free(index);
            }
            State::PutExposed if !record.one_sided.is_exposed() => {
                // The sender has not been answered yet: it is to send nothing.
                let (sender, until) = (record.remote_request(), record.progress.until());
                let (identity, restart) = (
                    (slot.context(), slot.tag(), record.seq()),
                    record.handshake.attempt(),
                );
                let head = ack(
                    identity,
                    sender,
                    RequestId::NONE,
                    until..until,
                    restart,
                    record.progress.counted(),
                );
                self.core.queue_head(peer, head);
                self.core.free(index);
            }
            State::PutExposed | State::Fragments | State::RecvRestart => {
                self.core.withdraw(index);
                self.core.free(index);
            }
            State::AwaitAnswer | State::Replying => self.core.free(index),
            State::AwaitReply => {
                self.core.peers[peer].backlog.remove_send(id);
                self.core.refresh(peer);
                self.core.free(index);
            }
            State::Streaming | State::Putting => {
                self.core.give_up(index);
                self.core.free(index);
            }
            State::AwaitAck | State::AwaitFin | State::SendRestart => {
                // Lives on without its memory, until the receiver requests it.
                self.core.withdraw(index);
                let origin = self.core.requests.record(index).memory.take_origin();
                self.core.drop_origin(peer, origin);
            }
        }
        Aborted::Now
    }

    fn abort_multi(&mut self, id: RequestId) -> Aborted {
        let index = id.index();
        if let Some(entry) = self.core.requests.slot(index).unlink() {
            // Linked, because the buffer is not released.
            let _ = self.core.matcher.cancel(entry);
        }
        for child in self.core.requests.indices() {
            let (slot, record) = self.core.requests.both(child);
            if slot.state() != State::Free
                && record.multi.parent().is_some_and(|(parent, _)| parent == id)
                && !slot.is(mark::ABORTED)
            {
                let child = self.core.requests.id(child);
                if self.abort_live(child) == Aborted::Now {
                    self.core.requests.record(index).multi.child_ended();
                }
            }
        }
        self.core.drop_deliveries(id);
        if self.core.requests.record(index).multi.children() > 0 {
            return Aborted::Wait;
        }
        self.core.free(index);
        Aborted::Now
    }

    /// Lets a request run on by itself; it frees itself when it ends. Only for requests whose memory is
    /// regions, or lives for ever.
    pub fn detach(&mut self, id: RequestId) {
        let Some(slot) = self.core.requests.get_mut(id) else {
            return;
        };
        if slot.state() == State::Done {
            self.core.free(id.index());
        } else {
            slot.set(mark::DETACHED);
        }
    }

    /// Takes a send out of the queue of those of which nothing has left.
    fn unqueue(&mut self, rank: Rank, id: RequestId) {
        self.core.withdraw(id.index());
        self.core.peers[rank].backlog.remove_send(id);
        self.core.refresh(rank);
        self.apply_withdrawals();
    }

    /// Takes a message to ourselves, whose bytes are still with its sender, out of matching.
    fn take_from_matching(&mut self, id: RequestId) -> bool {
        let record = self.core.requests.record(id.index());
        let Some(kept) = record.take_kept() else {
            return false;
        };
        let origin = match self.core.matcher.remove_unexpected(kept) {
            Ok(found) => {
                let (envelope, _) = self.core.unexpected.take(UnexpectedIndex::of_token(found.token));
                self.core.peers[envelope.rank].release(envelope.charge());
                self.core.requests.record(id.index()).memory.take_origin()
            }
            // Claimed: its receiver will find that we are gone.
            Err(_) => return false,
        };
        let me = self.core.me();
        self.core.drop_origin(me, origin);
        true
    }
}

//! The end of a peer: everything that needs it ends with a typed error, everything else goes on.

use crate::core::Core;
use crate::error::LostReason;
use crate::hot::about;
use crate::rank::Rank;
use crate::request::RequestIndex;
use crate::request::{Outcome, RequestId, State, mark};
use crate::withdrawals::Withdrawal;

impl Core {
    /// A peer has no rail left, or broke the agreement.
    ///
    /// Whole messages of it that were kept can still be received. Receives from any rank stay.
    #[cold]
    pub(crate) fn fail_peer(&mut self, rank: Rank, reason: LostReason) {
        if self.hot[rank].is(about::LOST) {
            return;
        }
        self.counters.peers_lost += 1;
        self.end_peer(rank, reason);
    }

    /// Ends everything that needs a peer.
    pub(crate) fn end_peer(&mut self, rank: Rank, reason: LostReason) {
        self.hot[rank].refuse();
        self.lazy.set_apart();
        self.no_more_meeting(rank);
        let peer = &mut self.peers[rank];
        peer.lose(reason);
        for path in peer.paths.iter() {
            let (rail, index) = path.route();
            self.withdrawals.push(Withdrawal::Peer(rail, index));
        }
        let sends = peer.backlog.clear();
        let held = peer.held.take();
        for index in held {
            let (envelope, buffer) = self.unexpected.take(index);
            self.pool.give(buffer);
            self.peers[rank].release(envelope.charge());
        }
        for id in sends {
            if self.requests.get(id).is_some() {
                self.report_lost(id.index());
                self.withdraw(id.index());
                self.finish(id.index(), Outcome::PeerLost);
            }
        }
        let mut posted = Vec::new();
        for source in self.senders_of(rank) {
            self.matcher.cancel_source(source, |token| posted.push(token));
        }
        for token in posted {
            self.fail_posted(RequestId::from_bits(token), rank);
        }
        for index in self.requests.indices() {
            self.fail_transfer(index, rank);
        }
    }

    fn fail_posted(&mut self, id: RequestId, rank: Rank) {
        let Some(slot) = self.requests.get_mut(id) else {
            return;
        };
        slot.set_peer(rank);
        slot.unlink();
        if slot.state() == State::Multi {
            self.release_multi(id.index(), Outcome::PeerLost);
        } else {
            self.finish(id.index(), Outcome::PeerLost);
        }
    }

    /// The peer of a request is lost. If it is a send that was reported as done, and bytes of it have
    /// certainly not left, its owner is notified. One that was announced with all of its bytes may have been
    /// received, and so may one whose peer was to read them.
    fn report_lost(&mut self, index: RequestIndex) {
        let (slot, record) = self.requests.both(index);
        let stays = match slot.state() {
            State::Queued => true,
            State::Streaming | State::Putting => !record.progress.is_done(),
            State::AwaitAck => record.progress.counted() < slot.length(),
            _ => false,
        };
        let (rank, context) = (slot.peer(), slot.context());
        if !stays || !slot.is(mark::DETACHED) || slot.is(mark::ABORTED) {
            return;
        }
        if let Some(reason) = self.peers[rank].lost() {
            self.reports.push_lost(rank, reason, context);
        }
    }

    fn fail_transfer(&mut self, index: RequestIndex, rank: Rank) {
        let slot = self.requests.peek(index);
        if !slot.state().is_transfer() || slot.peer() != rank {
            return;
        }
        let aborted = slot.is(mark::ABORTED);
        self.report_lost(index);
        let record = self.requests.record(index);
        if record.one_sided.is_busy() {
            // Its rail ends the operation; until then memory may be written.
            let outcome = record.one_sided.doomed().unwrap_or(Outcome::PeerLost);
            record.one_sided.doom(outcome);
            return;
        }
        self.withdraw(index);
        let child = self.requests.peek(index).is(mark::CHILD);
        if aborted && !child {
            self.free(index);
        } else {
            self.finish(index, Outcome::PeerLost);
        }
    }
}

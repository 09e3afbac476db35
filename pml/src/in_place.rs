//! Messages that their receiver reads where the sender has them: no byte is copied.
//!
//! ```text
//!   sender ── RGET, exposed memory ──►  receiver takes the message: its rail maps it (`Message::view`)
//!                                       its owner reads, and releases it
//!         ◄── FIN ───────────────────
//! ```
//!
//! It is the rendezvous by get, with a view in the place of the read, and a FIN that waits for the owner. A
//! message is claimed first ([`Pml::claim`]); one that cannot be viewed is received as any claimed one.
//!
//! The sender keeps the memory until the FIN, whatever breaks in between: where its path breaks it begins a
//! restart, whose answer is the FIN of the release. A view outlives its peer; the release of a message whose
//! peer was lost does nothing.

use doorbell_fabric::memory::{MutLoan, View};
use doorbell_fabric::message::{Message, Remote};

use crate::args::MessageId;
use crate::core::Core;
use crate::hot::about;
use crate::pml::Pml;
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::unexpected::{Envelope, UnexpectedIndex};
use crate::wire::kind;

impl<M: Message> Pml<M> {
    /// Takes a claimed message in place: its bytes where the sender has them, and what releases them
    /// ([`Pml::release`]). `None`, and nothing changed, where they cannot be read so: the message is received
    /// into a buffer ([`Pml::recv_claimed`]).
    pub fn take_in_place(&mut self, message: MessageId) -> Option<(RequestId, View)> {
        let index = self.core.unexpected.claimed(message.0)?;
        let envelope = *self.core.unexpected.envelope(index);
        let remote = self.core.viewable(&envelope)?;
        let paths = &self.core.peers[envelope.rank].paths;
        let path = &paths[paths.over(envelope.rail)?];
        let (rail, peer) = path.route();
        let view = self.rails[rail].view(peer, &remote).filter(|_| path.is_up())?;
        Some((self.core.begin_hold(index), view))
    }

    /// The bytes of a message that was taken in place are not read any more: notifies its sender. Without
    /// effect where the sender was lost meanwhile.
    pub fn release(&mut self, id: RequestId) {
        let held = self.core.requests.get(id);
        if held.is_none_or(|slot| slot.state() != State::Held) {
            return;
        }
        self.core.queue_fin(id.index(), 0);
        self.core.finish(id.index(), Outcome::Ok);
        // The sender may wait for it, and no other call of ours may follow.
        self.drain();
    }
}

impl Core {
    /// The memory of a message that may be read in place: all of it was announced, by a peer that is not
    /// lost, in no restart, and without a checksum, which only a copy is compared with.
    fn viewable(&self, envelope: &Envelope) -> Option<Remote> {
        let remote = envelope.remote.filter(|_| envelope.kind == kind::RGET)?;
        let whole = remote.length.get() == envelope.length;
        let plain = envelope.restart == 0 && envelope.checksum.is_none();
        (whole && plain && !self.hot[envelope.rank].is(about::LOST)).then_some(remote)
    }

    /// A claimed message is read in place. It frees itself when it ends: its owner has nothing to test.
    fn begin_hold(&mut self, index: UnexpectedIndex) -> RequestId {
        let (envelope, buffer) = self.unexpected.take(index);
        self.pool.give(buffer);
        self.peers[envelope.rank].release(envelope.charge());
        let (id, slot) = self.requests.take();
        slot.post(
            mark::RECORD | mark::DETACHED,
            envelope.context,
            envelope.tag,
            MutLoan::EMPTY,
        );
        slot.matched(envelope.rank, envelope.tag, envelope.length);
        slot.turn(Event::Holds);
        let record = self.requests.record(id.index());
        record.set_remote_request(envelope.sender);
        record.set_seq(envelope.seq);
        record.one_sided.set_rail(envelope.rail);
        self.counters.matched += 1;
        self.counters.taken_in_place += 1;
        self.consume(envelope.rank, envelope.charge());
        id
    }
}

//! Contexts whose messages are not received any more: what comes to one is dropped when it comes, and a
//! sender that waits for its receiver is notified. Looked at where no receive waits for a message, and
//! nowhere else.
//!
//! ```text
//!   sender                               receiver
//!     MATCH  ─────────────────────────►    dropped
//!     RNDV, RGET  ────────────────────►    dropped
//!       rejected, or done  ◄──── NACK ──
//! ```

use doorbell_fabric::message::Message;

use crate::args::MessageId;
use crate::core::Core;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::rank::Source;
use crate::receive::SELF_WAIT;
use crate::request::{Outcome, RequestId, mark};
use crate::unexpected::{Envelope, UnexpectedIndex};
use crate::wire::{FinHeader, Head, MatchHeader, kind};

/// The contexts that are closed, without the bits of the senders' endpoints: one bit for each, as far as one
/// was ever closed.
#[derive(Debug, Default)]
pub(crate) struct ClosedContexts(Vec<u64>);

impl ClosedContexts {
    fn close(&mut self, context: u16) {
        let at = usize::from(context / 64);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (context % 64);
    }

    fn open(&mut self, context: u16) {
        if let Some(word) = self.0.get_mut(usize::from(context / 64)) {
            *word &= !(1 << (context % 64));
        }
    }

    fn holds(&self, context: u16) -> bool {
        let word = self.0.get(usize::from(context / 64));
        word.is_some_and(|word| word & 1 << (context % 64) != 0)
    }
}

impl<M: Message> Pml<M> {
    /// Drops the messages of a context that no receive has matched, and those that come from now on and that
    /// no receive waits for. Synchronous sends of such messages end with [`PmlError::Rejected`]; others end
    /// as if they had been received. `context` is that of receives.
    pub fn close_context(&mut self, context: u16) {
        self.core.closed.close(context & !self.core.config.sources);
        while let Some(found) = self.claim(Source::Any, context, 0, u64::MAX) {
            // It was claimed just now, so it is there.
            let _ = self.reject(found.message);
        }
    }

    /// Messages of a context are kept again until they are received.
    pub fn open_context(&mut self, context: u16) {
        self.core.closed.open(context & !self.core.config.sources);
    }

    /// Throws a claimed message away, as [`Pml::close_context`] does.
    ///
    /// # Errors
    /// [`PmlError::StaleMessage`].
    pub fn reject(&mut self, message: MessageId) -> Result<(), PmlError> {
        let index = self.core.unexpected.claimed(message.0);
        self.core.reject_recorded(index.ok_or(PmlError::StaleMessage)?);
        Ok(())
    }
}

impl Core {
    /// Whether messages of a context are dropped that no receive waits for.
    pub(crate) fn is_closed(&self, context: u16) -> bool {
        self.closed.holds(context & !self.config.sources)
    }

    /// Drops a message that was recorded.
    pub(crate) fn reject_recorded(&mut self, index: UnexpectedIndex) {
        let (envelope, buffer) = self.unexpected.take(index);
        self.pool.give(buffer);
        self.peers[envelope.rank].release(envelope.charge());
        self.reject(&envelope);
    }

    /// Drops a message that no receive takes.
    pub(crate) fn reject(&mut self, envelope: &Envelope) {
        self.consume(envelope.rank, envelope.charge());
        match envelope.kind {
            SELF_WAIT => self.reject_own(envelope.own_request()),
            kind::RNDV | kind::RGET => self.reject_announcement(envelope),
            _ => {}
        }
    }

    /// Notifies the sender of an announcement that its message is not received.
    pub(crate) fn reject_announcement(&mut self, envelope: &Envelope) {
        let head = Head::new(&FinHeader {
            matching: MatchHeader::new(kind::NACK, 0, envelope.context, envelope.seq, envelope.tag),
            sender: envelope.sender.into(),
            receiver: RequestId::NONE.to_bits().into(),
            // No rail takes 4 GiB in one message.
            status: u32::try_from(envelope.body).unwrap_or(u32::MAX).into(),
            restart: envelope.restart.into(),
        });
        self.queue_answer(envelope.rank, head);
    }

    /// Returns how a send ends whose message was rejected. Only a synchronous one has promised that it was
    /// received.
    pub(crate) fn rejected(&self, id: RequestId) -> Outcome {
        match self.requests.peek(id.index()).is(mark::SYNC) {
            true => Outcome::Rejected,
            false => Outcome::Ok,
        }
    }

    /// A message to ourselves is rejected.
    fn reject_own(&mut self, id: RequestId) {
        if self
            .requests
            .get(id)
            .is_some_and(|slot| slot.state() == crate::request::State::SelfWait)
        {
            let outcome = self.rejected(id);
            self.finish(id.index(), outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_closed_until_it_is_opened() {
        let mut closed = ClosedContexts::default();
        assert!(!closed.holds(0) && !closed.holds(u16::MAX));
        closed.close(u16::MAX);
        closed.close(64);
        assert!(closed.holds(u16::MAX) && closed.holds(64) && !closed.holds(63) && !closed.holds(65));
        closed.open(64);
        assert!(closed.holds(u16::MAX) && !closed.holds(64));
    }
}

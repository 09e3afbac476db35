//! Messages that have arrived and are not received yet: probe (peek), claim, receive of a claimed one,
//! discard.

use doorbell_fabric::message::Message;

use crate::args::{Claimed, Envelope, MessageId, Target};
use crate::core::Core;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::rank::Source;
use crate::receive::{Landing, SELF_WAIT, pattern};
use crate::rendezvous::receiver::ack;
use crate::request::RequestId;
use crate::unexpected::UnexpectedIndex;
use crate::unexpected::{self, Station};
use crate::wire::{FinHeader, Head, MatchHeader, kind};

impl<M: Message> Pml<M> {
    /// The earliest message that a receive with these arguments would get now; it stays where it is
    /// (`MPI_Iprobe`, `FI_PEEK`). Does not poll.
    #[doc(alias = "peek")]
    #[doc(alias = "iprobe")]
    pub fn probe(&mut self, from: Source, context: u16, tag: u64, ignore: u64) -> Option<Envelope> {
        let found = self.core.matcher.peek(&pattern(from, context, tag, ignore))?;
        let index = UnexpectedIndex::of_token(found.token);
        Some(self.core.public(self.core.unexpected.envelope(index)))
    }

    /// Takes that message out of matching: no other receive or probe finds it (`MPI_Improbe`, `FI_CLAIM`). It
    /// has to be received or discarded.
    #[doc(alias = "mprobe")]
    pub fn claim(&mut self, from: Source, context: u16, tag: u64, ignore: u64) -> Option<Claimed> {
        let found = self.core.matcher.claim(&pattern(from, context, tag, ignore))?;
        let index = UnexpectedIndex::of_token(found.token);
        self.core.unexpected.station(index, Station::Claimed);
        Some(Claimed {
            message: MessageId(self.core.unexpected.name(index)),
            envelope: self.core.public(self.core.unexpected.envelope(index)),
        })
    }

    /// Receives a claimed message (`MPI_Imrecv`).
    ///
    /// # Errors
    /// [`PmlError::StaleMessage`] when it was received or discarded before; [`PmlError::BadLayout`].
    #[doc(alias = "mrecv")]
    pub fn recv_claimed(
        &mut self,
        message: MessageId,
        target: Target,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let index = self.core.unexpected.claimed(message.0);
        let index = index.ok_or(PmlError::StaleMessage)?;
        let envelope = *self.core.unexpected.envelope(index);
        let id = self.prepare(envelope.context, envelope.tag, target, notify)?;
        self.core
            .deliver_recorded(&Landing::of(id, envelope.length), index);
        Ok(id)
    }

    /// Throws a claimed message away; its sender completes as if it had been received (`FI_DISCARD`).
    ///
    /// # Errors
    /// [`PmlError::StaleMessage`].
    pub fn discard(&mut self, message: MessageId) -> Result<Envelope, PmlError> {
        let index = self.core.unexpected.claimed(message.0);
        let index = index.ok_or(PmlError::StaleMessage)?;
        let (envelope, buffer) = self.core.unexpected.take(index);
        self.core.pool.give(buffer);
        self.core.peers[envelope.rank].release(envelope.charge());
        self.core.consume(envelope.rank, envelope.charge());
        self.core.release_sender(&envelope);
        Ok(self.core.public(&envelope))
    }
}

impl Core {
    /// A message as its owner is shown it.
    fn public(&self, envelope: &unexpected::Envelope) -> Envelope {
        Envelope {
            source: envelope.rank,
            endpoint: self.endpoint(envelope.context),
            tag: envelope.tag,
            length: envelope.length,
            data: envelope.data,
        }
    }

    /// Notifies the sender of a message that will not be received that it is done with.
    fn release_sender(&mut self, envelope: &unexpected::Envelope) {
        let head = match envelope.kind {
            SELF_WAIT => return self.discard_own(envelope.own_request()),
            kind::RNDV => {
                let identity = (envelope.context, envelope.tag, envelope.seq);
                let all = envelope.length..envelope.length;
                let counted = envelope.body as u64;
                ack(
                    identity,
                    envelope.sender,
                    RequestId::NONE,
                    all,
                    envelope.restart,
                    counted,
                )
            }
            kind::RGET => Head::new(&FinHeader {
                matching: MatchHeader::new(kind::FIN, 0, envelope.context, envelope.seq, envelope.tag),
                sender: envelope.sender.into(),
                receiver: RequestId::NONE.to_bits().into(),
                status: 0.into(),
                restart: envelope.restart.into(),
            }),
            _ => return,
        };
        self.queue_head(envelope.rank, head);
    }
}

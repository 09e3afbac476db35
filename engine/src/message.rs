//! Messages that a probe has taken out of matching, to be received or dropped.

use std::time::Duration;

use doorbell_job::error::Error;
use doorbell_job::types::Status;
use doorbell_pml::MessageId;

use crate::progress::Envelope;
use crate::scope;
use crate::world::World;

/// A matched message (MPI's matched probe): no other receive can get it. Dropping it discards it.
///
/// ```
/// # let world = doorbell::init()?;
/// world.send(0, 5, b"any length")?;
/// let message = world.mprobe(0, 5)?;
/// let mut bytes = vec![0; message.status().len];
/// message.recv(&mut bytes)?;
/// assert_eq!(bytes, b"any length");
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a matched message discards it"]
pub struct Message<'w> {
    world: &'w World,
    id: Option<MessageId>,
    envelope: Envelope,
    status: Status,
}

impl<'w> Message<'w> {
    pub(crate) fn claim(world: &'w World, envelope: Envelope) -> Result<Option<Self>, Error> {
        let claimed = world.engine().call(move |core| {
            core.poll_or_progress();
            core.claim(envelope)
        })?;
        Ok(claimed.map(|claimed| Self {
            world,
            id: Some(claimed.message),
            envelope,
            status: claimed.envelope.into(),
        }))
    }

    /// Returns its sender, tag and length.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives the message.
    ///
    /// # Errors
    /// [`Error::Truncated`] when it is longer than `into`; [`Error::PeerLost`]; [`Error::Timeout`].
    pub fn recv(self, into: &mut [u8]) -> Result<Status, Error> {
        let limit = self.world.limit();
        self.recv_within(into, limit)
    }

    /// Receives the message, waiting for at most `limit`.
    ///
    /// # Errors
    /// Those of [`Message::recv`].
    pub fn recv_within(mut self, into: &mut [u8], limit: Duration) -> Result<Status, Error> {
        match self.id.take() {
            Some(id) => scope::recv_claimed(self.world, id, self.envelope, into, limit),
            None => Err(Error::Cancelled),
        }
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // Discarding fails only if the message is gone already.
            let _ = self.world.engine().call(move |core| core.pml.discard(id).is_ok());
        }
    }
}

//! The blocking calls with a deadline of their own.

use std::time::Duration;

use doorbell_job::error::Error;
use doorbell_job::types::{Source, Status, Tag};

use crate::collect;
use crate::lend::{self, InPlace};
use crate::message::Message;
use crate::progress::Envelope;
use crate::request::{self, Request};
use crate::scope::{self, Scope};
use crate::world::{USER, World};

/// A world with another deadline, made by [`World::within`]. Its calls are those of [`World`].
#[derive(Clone, Copy, Debug)]
pub struct Within<'w> {
    pub(crate) world: &'w World,
    pub(crate) limit: Duration,
}

impl<'w> Within<'w> {
    /// Sends with this deadline; see [`World::send`].
    ///
    /// # Errors
    /// Those of [`World::send`].
    #[inline]
    pub fn send(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self.world, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// Sends with this deadline and announces that more follows; see [`World::send_more`].
    ///
    /// # Errors
    /// Those of [`World::send_more`].
    #[inline]
    pub fn send_more(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<true>(self.world, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// Sends synchronously with this deadline; see [`World::ssend`].
    ///
    /// # Errors
    /// Those of [`World::ssend`].
    pub fn ssend(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self.world, Envelope::to(USER, to, tag, true), data, self.limit)
    }

    /// Receives with this deadline; see [`World::recv`].
    ///
    /// # Errors
    /// Those of [`World::recv`].
    #[inline]
    pub fn recv(
        self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &mut [u8],
    ) -> Result<Status, Error> {
        scope::recv(
            self.world,
            Envelope::from(USER, from.into(), tag.into()),
            into,
            self.limit,
        )
    }

    /// Receives in place with this deadline; see [`World::recv_in_place`].
    ///
    /// # Errors
    /// Those of [`World::recv_in_place`].
    pub fn recv_in_place(self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<InPlace<'w>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        lend::recv_in_place(self.world, envelope, self.limit)
    }

    /// Waits with this deadline for a matching message; see [`World::probe`].
    ///
    /// # Errors
    /// Those of [`World::probe`].
    pub fn probe(self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        self.world
            .wait_probe(Envelope::from(USER, from.into(), tag.into()), self.limit)
    }

    /// Waits with this deadline for a matching message and claims it; see [`World::mprobe`].
    ///
    /// # Errors
    /// Those of [`World::mprobe`].
    pub fn mprobe(self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message<'w>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        loop {
            // Only this thread receives, so the message that the probe found is still there; the loop covers
            // the case that it is not.
            self.world.wait_probe(envelope, self.limit)?;
            if let Some(message) = Message::claim(self.world, envelope)? {
                return Ok(message);
            }
        }
    }

    /// Waits with this deadline until one request has ended; see [`World::wait_any`].
    ///
    /// # Errors
    /// Those of [`World::wait_any`].
    pub fn wait_any(self, requests: &mut [Request<'_>]) -> Result<Option<(usize, Status)>, Error> {
        request::wait_any(self.world, requests, self.limit)
    }

    /// Waits with this deadline until all requests have ended; see [`World::wait_all`].
    ///
    /// # Errors
    /// Those of [`World::wait_all`].
    pub fn wait_all(self, requests: &mut [Request<'_>]) -> Result<(), Error> {
        request::wait_all(self.world, requests, self.limit)
    }

    /// Runs a scope whose end waits with this deadline; see [`World::scope`].
    ///
    /// # Errors
    /// Those of [`World::scope`].
    pub fn scope<T>(
        self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'w>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        scope::run(self.world, self.limit, work)
    }

    /// Waits with this deadline for all ranks; see [`World::barrier`].
    ///
    /// # Errors
    /// Those of [`World::barrier`].
    pub fn barrier(self) -> Result<(), Error> {
        collect::barrier(self.world, self.limit)
    }

    /// Broadcasts with this deadline; see [`World::broadcast`].
    ///
    /// # Errors
    /// Those of [`World::broadcast`].
    pub fn broadcast(self, root: u32, data: &mut [u8]) -> Result<(), Error> {
        collect::broadcast(self.world, root, data, self.limit)
    }

    /// Gathers with this deadline; see [`World::allgather`].
    ///
    /// # Errors
    /// Those of [`World::allgather`].
    pub fn allgather(self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        collect::allgather(self.world, own, all, self.limit)
    }
}

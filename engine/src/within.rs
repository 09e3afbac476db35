//! The blocking calls, with a deadline of their own.

use std::time::Duration;

use doorbell_job::error::Error;
use doorbell_job::types::{Source, Status, Tag};

use crate::collect;
use crate::message::Message;
use crate::progress::Envelope;
use crate::request::{self, Request};
use crate::scope::{self, Scope};
use crate::world::{USER, World};

/// A world with another deadline: made by [`World::within`]. Every call is as on [`World`].
#[derive(Clone, Copy, Debug)]
pub struct Within<'w> {
    pub(crate) world: &'w World,
    pub(crate) limit: Duration,
}

impl<'w> Within<'w> {
    /// As [`World::send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self.world, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// As [`World::send_more`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_more(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<true>(self.world, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// As [`World::ssend`].
    ///
    /// # Errors
    /// As there.
    pub fn ssend(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self.world, Envelope::to(USER, to, tag, true), data, self.limit)
    }

    /// As [`World::recv`].
    ///
    /// # Errors
    /// As there.
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

    /// As [`World::probe`].
    ///
    /// # Errors
    /// As there.
    pub fn probe(self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        self.world
            .wait_probe(Envelope::from(USER, from.into(), tag.into()), self.limit)
    }

    /// As [`World::mprobe`].
    ///
    /// # Errors
    /// As there.
    pub fn mprobe(self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message<'w>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        loop {
            // Only this thread receives, so what was seen is still there; the loop is for the case that it is not.
            self.world.wait_probe(envelope, self.limit)?;
            if let Some(message) = Message::claim(self.world, envelope)? {
                return Ok(message);
            }
        }
    }

    /// As [`World::wait_any`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_any(self, requests: &mut [Request<'_>]) -> Result<Option<(usize, Status)>, Error> {
        request::wait_any(self.world, requests, self.limit)
    }

    /// As [`World::wait_all`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_all(self, requests: &mut [Request<'_>]) -> Result<(), Error> {
        request::wait_all(self.world, requests, self.limit)
    }

    /// As [`World::scope`].
    ///
    /// # Errors
    /// As there.
    pub fn scope<T>(
        self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'w>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        scope::run(self.world, self.limit, work)
    }

    /// As [`World::barrier`].
    ///
    /// # Errors
    /// As there.
    pub fn barrier(self) -> Result<(), Error> {
        collect::barrier(self.world, self.limit)
    }

    /// As [`World::broadcast`].
    ///
    /// # Errors
    /// As there.
    pub fn broadcast(self, root: u32, data: &mut [u8]) -> Result<(), Error> {
        collect::broadcast(self.world, root, data, self.limit)
    }

    /// As [`World::allgather`].
    ///
    /// # Errors
    /// As there.
    pub fn allgather(self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        collect::allgather(self.world, own, all, self.limit)
    }
}

//! The interface for foreign front ends (a libfabric provider, reference: ofi, section P9): 64-bit match bits
//! with ignore masks, peek, claim and discard, cancel, multi-receives, inject, one completion queue and
//! regions. No call waits unless its description mentions a wait, and every outcome is data. Windows are
//! those of the world ([`World::window`]).
//!
//! Buffers are regions or loans. A front end with raw pointers makes the loans itself ([`ConstLoan::new`],
//! [`MutLoan::new`]: `unsafe`, with the promise that the memory stays valid until the completion has been
//! taken out of the queue, or [`Raw::abort`] has returned [`Aborted::Now`]).
//!
//! ```
//! use doorbell::raw::{Completion, Target};
//! use doorbell::{Source, Tag};
//! # let world = doorbell::init()?;
//! let raw = world.raw(16)?;
//! let region = world.region(64)?;
//! let into = Target::Region(region.slice(0, 32).unwrap());
//! let receive = raw.recv(Source::Any, Tag::masked(0xff00, 0xff), into)?;
//! raw.inject(0, 0xff17, b"bits")?;
//! match raw.wait(std::time::Duration::from_secs(1))? {
//!     Completion::Request { id, outcome } => {
//!         assert_eq!((id, outcome?.tag), (receive, 0xff17));
//!     }
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), doorbell::Error>(())
//! ```

use std::os::fd::OwnedFd;
use std::time::Duration;

use doorbell_job::error::Error;
use doorbell_job::types::{Source, Status, Tag};
use doorbell_pml::{MultiArgs, Rank, RecvArgs, SendArgs};

pub use doorbell_fabric::memory::{ConstLoan, MutLoan, Region, RegionSlice};
pub use doorbell_pml::{
    Aborted, Claimed, Delivery, MessageId, Payload, RequestId, SendMode, Sent, Strided, Target,
};

pub use crate::progress::Completion;
use crate::progress::{Core, Envelope};
use crate::world::World;

/// The raw interface of one context: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Raw<'w> {
    world: &'w World,
    context: u16,
}

impl<'w> Raw<'w> {
    /// The lowest context number for front ends.
    pub const FIRST_CONTEXT: u16 = 16;

    pub(crate) fn new(world: &'w World, context: u16) -> Result<Self, Error> {
        if context < Self::FIRST_CONTEXT {
            return Err(Error::Unsupported {
                what: "a context below 16",
                by: "the raw interface: the world itself uses them".to_owned(),
            });
        }
        Ok(Self::of(world, context))
    }

    /// Makes the interface of any context, including those of the world itself.
    pub(crate) fn of(world: &'w World, context: u16) -> Self {
        Self { world, context }
    }

    fn call<R: Send + 'static>(self, step: impl FnOnce(&mut Core) -> R + Send + 'static) -> Result<R, Error> {
        self.world.engine().call(step)
    }

    fn envelope(self, from: Source, tag: Tag) -> Envelope {
        Envelope::from(self.context, from, tag)
    }

    /// Starts a send. `Sent::Done`: the bytes were taken, and no completion follows.
    ///
    /// # Errors
    /// An unknown or lost rank, a layout that does not fit.
    pub fn send(self, to: u32, tag: u64, payload: Payload, mode: SendMode) -> Result<Sent, Error> {
        let args = SendArgs {
            to: Rank(to),
            context: self.context,
            tag,
            payload,
            mode,
            notify: true,
        };
        self.call(move |core| {
            let sent = core.pml.send(args).map_err(|error| core.explained(error))?;
            core.pml.flush();
            Ok(sent)
        })?
    }

    /// Sends bytes, which are copied before the call returns; there is no request and no completion.
    ///
    /// # Errors
    /// [`Error::Full`]: make progress and try again; [`Error::Layout`] for more bytes than `pml.buffer`.
    pub fn inject(self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        let context = self.context;
        let data: Box<[u8]> = data.into();
        self.call(move |core| {
            let sent = core.pml.inject(Rank(to), context, tag, &data);
            sent.map_err(|error| core.explained(error))?;
            core.pml.flush();
            Ok(())
        })?
    }

    /// Starts a receive.
    ///
    /// # Errors
    /// An unknown or lost rank, a layout that does not fit.
    pub fn recv(self, from: Source, tag: Tag, target: Target) -> Result<RequestId, Error> {
        let args: RecvArgs = self.envelope(from, tag).recv(target);
        self.call(move |core| core.pml.recv(args).map_err(|error| core.explained(error)))?
    }

    /// Starts a receive of many messages into one buffer, until fewer than `min_free` bytes of it are left.
    ///
    /// # Errors
    /// Those of [`Raw::recv`].
    pub fn recv_multi(
        self,
        from: Source,
        tag: Tag,
        target: Target,
        min_free: u64,
    ) -> Result<RequestId, Error> {
        let one = self.envelope(from, tag).recv(target);
        let RecvArgs {
            from,
            context,
            tag,
            ignore,
            target,
            notify,
        } = one;
        self.call(move |core| {
            Ok(core.pml.recv_multi(MultiArgs {
                from,
                context,
                tag,
                ignore,
                target,
                min_free,
                notify,
            })?)
        })?
    }

    /// Returns the status of a matching message and leaves it to be received (FI_PEEK).
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn peek(self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        let envelope = self.envelope(from, tag);
        self.call(move |core| {
            core.poll_or_progress();
            core.probe(envelope)
        })
    }

    /// Takes a matching message out of matching (FI_PEEK with FI_CLAIM), to be received or discarded.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn claim(self, from: Source, tag: Tag) -> Result<Option<Claimed>, Error> {
        let envelope = self.envelope(from, tag);
        self.call(move |core| {
            core.poll_or_progress();
            core.claim(envelope)
        })
    }

    /// Starts receiving a claimed message (FI_CLAIM).
    ///
    /// # Errors
    /// [`Error::Stale`] when it is gone.
    pub fn recv_claimed(self, message: MessageId, target: Target) -> Result<RequestId, Error> {
        self.call(move |core| {
            let id = core.pml.recv_claimed(message, target, true);
            id.map_err(|error| core.explained(error))
        })?
    }

    /// Discards a claimed message (FI_DISCARD).
    ///
    /// # Errors
    /// [`Error::Stale`] when it is gone.
    pub fn discard(self, message: MessageId) -> Result<Status, Error> {
        self.call(move |core| Ok(core.pml.discard(message)?.into()))?
    }

    /// Tries to cancel a request; `true`: it completes as [`Error::Cancelled`].
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn cancel(self, id: RequestId) -> Result<bool, Error> {
        self.call(move |core| core.pml.cancel(id))
    }

    /// Ends a request by force. After [`Aborted::Now`] its memory is not accessed any more and no completion
    /// follows; after [`Aborted::Wait`], make progress and call it again.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn abort(self, id: RequestId) -> Result<Aborted, Error> {
        self.call(move |core| core.pml.abort(id))
    }

    /// Makes one bounded pass of progress (inline mode); returns the amount of work done.
    pub fn progress(self) -> usize {
        self.world.progress()
    }

    /// Returns the next completion, if there is one; makes progress if there is none.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn next_completion(self) -> Result<Option<Completion>, Error> {
        self.call(|core| {
            core.next_completion().or_else(|| {
                core.poll_or_progress();
                core.next_completion()
            })
        })
    }

    /// Waits for the next completion, for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait(self, limit: Duration) -> Result<Completion, Error> {
        self.world
            .engine()
            .wait_completion(limit, &mut |waiting| self.world.complain(waiting))
    }

    /// Returns a descriptor for a foreign event loop (FI_WAIT_FD): always the same one, and meaningful only
    /// between [`Raw::arm`] and [`Raw::disarm`].
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn descriptor(self) -> Result<OwnedFd, Error> {
        self.world.engine().descriptor()
    }

    /// Prepares a sleep on the descriptor. `Some(longest)`: nothing has completed, and the descriptor becomes
    /// readable when something may have; sleep at most that long, then call [`Raw::disarm`] before anything
    /// else. `None`: do not sleep, call [`Raw::next_completion`]. No wake-up is lost: this call sees what
    /// completes between the last check and the arming. Spurious wake-ups are possible.
    ///
    /// # Errors
    /// When the system refuses to watch a rail's descriptor; [`Error::Ended`], [`Error::Busy`].
    pub fn arm(self) -> Result<Option<Duration>, Error> {
        self.world.engine().arm()
    }

    /// Ends the sleep that [`Raw::arm`] prepared.
    pub fn disarm(self) {
        self.world.engine().disarm();
    }
}

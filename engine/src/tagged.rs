//! Tagged messages: the calls of a world that send, receive and wait.

use std::time::Duration;

use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_job::error::Error;
use doorbell_job::types::{Source, Status, Tag};

use crate::message::Message;
use crate::progress::Envelope;
use crate::raw::Raw;
use crate::request::{Phase, Request, RequestKind};
use crate::scope::{self, Scope};
use crate::within::Within;
use crate::world::{USER, World};

impl World {
    /// Returns the same blocking calls with a deadline other than `wait.deadline`.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// use std::time::Duration;
    /// let mut buffer = [0; 8];
    /// let error = world.within(Duration::from_millis(10)).recv(0, 1, &mut buffer).unwrap_err();
    /// assert_eq!(error.code(), "timeout");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    #[inline]
    pub fn within(&self, limit: Duration) -> Within<'_> {
        Within { world: self, limit }
    }

    #[inline]
    fn usual(&self) -> Within<'_> {
        self.within(self.limit())
    }

    /// Sends `data` to rank `to`. Returns when `data` may be changed again and no later call is needed for it
    /// to leave this process, which does not mean that it was received. Waits for a rank that does not answer
    /// yet, for the call's limit at most; after that, the message stays queued, and each later call pushes it
    /// on.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Timeout`].
    #[inline(always)]
    pub fn send(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self, Envelope::to(USER, to, tag, false), data, self.limit())
    }

    /// Sends `data` with the promise that another message follows at once (`FI_MORE` of libfabric, `MSG_MORE`
    /// of sockets). The message may stay with the rail until the next call other than `send_more` (a send, a
    /// receive, [`World::progress`], …), so that a rail whose doorbell is a system call takes many messages
    /// with one. It leaves earlier when the rail has no room for another. In dedicated mode the progress
    /// thread batches by itself, and there is no difference to [`World::send`].
    ///
    /// ```
    /// use doorbell::World;
    /// # fn example(world: &World) -> Result<(), doorbell::Error> {
    /// for (n, line) in ["one", "two", "three"].iter().enumerate() {
    ///     world.send_more(1, n as u64, line.as_bytes())?;
    /// }
    /// world.send(1, 3, b"and that was it")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`World::send`].
    #[inline(always)]
    pub fn send_more(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<true>(self, Envelope::to(USER, to, tag, false), data, self.limit())
    }

    /// Sends `data` and returns when a receive at rank `to` has matched it.
    ///
    /// # Errors
    /// Those of [`World::send`].
    pub fn ssend(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        self.usual().ssend(to, tag, data)
    }

    /// Sends `data` in buffered mode: what no rail accepts now is copied, and the call returns at once.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Full`] when `pml.buffer` bytes are queued already: make progress and
    /// try again; [`Error::Layout`] for more bytes than that.
    pub fn bsend(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        Raw::of(self, USER).inject(to, tag, data)
    }

    /// Receives a matching message into `into`.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// use doorbell::{Source, Tag};
    /// let mut buffer = [0; 64];
    /// world.send(0, 7, b"to myself")?;
    /// let status = world.recv(Source::Any, Tag::any(), &mut buffer)?;
    /// assert_eq!((status.source, status.tag, &buffer[..status.len]), (0, 7, &b"to myself"[..]));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Truncated`] when the message is longer than `into`;
    /// [`Error::Timeout`].
    #[inline(always)]
    pub fn recv(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &mut [u8],
    ) -> Result<Status, Error> {
        scope::recv(
            self,
            Envelope::from(USER, from.into(), tag.into()),
            into,
            self.limit(),
        )
    }

    /// Waits until a matching message has arrived, and leaves it to be received.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`] when the only rank that it may come from is lost.
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        self.usual().probe(from, tag)
    }

    /// Checks once whether a matching message has arrived.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn iprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Option<Status>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        self.engine().call(move |core| {
            core.poll_or_progress();
            core.probe(envelope)
        })
    }

    /// Waits until a matching message has arrived, and takes it out of matching: no other receive can get it.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn mprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message<'_>, Error> {
        self.usual().mprobe(from, tag)
    }

    /// Checks once for a matching message, and takes it out of matching.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn improbe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Message<'_>>, Error> {
        Message::claim(self, Envelope::from(USER, from.into(), tag.into()))
    }

    /// Runs `work` with a [`Scope`] in which buffers may be lent to requests. When `work` returns (or
    /// panics), waits for every request of the scope, for at most `wait.deadline` (after an error of `work`:
    /// `wait.close`), then ends those that are left by force, and only then returns. So it does not matter
    /// what happens to the handles:
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// let (out, mut into) = (*b"eight by", [0; 8]);
    /// world.scope(|s| {
    ///     let receive = s.irecv(0, 1, &mut into)?;
    ///     std::mem::forget(s.isend(0, 1, &out)?); // even this is sound
    ///     receive.wait()?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(into, out);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// A buffer cannot be used while a request holds it:
    ///
    /// ```compile_fail,E0502
    /// # let world = doorbell::init()?;
    /// let mut into = [0; 8];
    /// world.scope(|s| {
    ///     let receive = s.irecv(0, 1, &mut into)?;
    ///     println!("{into:?}"); // still lent
    ///     receive.wait()
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// a request cannot leave its scope:
    ///
    /// ```compile_fail
    /// # let world = doorbell::init()?;
    /// let mut into = [0; 8];
    /// let escaped = world.scope(|s| s.irecv(0, 1, &mut into))?;
    /// escaped.wait()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// and a buffer that lives shorter than the scope cannot be lent:
    ///
    /// ```compile_fail,E0597
    /// # let world = doorbell::init()?;
    /// world.scope(|s| {
    ///     let mut into = [0; 8];
    ///     s.irecv(0, 1, &mut into)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, otherwise the first error of a request that was not waited for;
    /// [`Error::Timeout`]; [`Error::Busy`] in a hook, and then `work` is not called.
    pub fn scope<'env, T>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        scope::run(self, self.limit(), work)
    }

    /// Allocates `length` bytes of memory that the engine may share: for requests that outlive any scope, and
    /// for peers.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn region(&self, length: usize) -> Result<Region, Error> {
        Ok(Region::new(length)?)
    }

    /// Starts sending a region's slice, outside any scope. Do not change the bytes before the request has
    /// ended: the receiver would get a mixture.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// let region = world.region(64)?;
    /// region.write(0, b"shared");
    /// let receive = world.irecv_region(0, 3, region.slice(32, 6).unwrap())?;
    /// world.isend_region(0, 3, region.slice(0, 6).unwrap())?.wait()?;
    /// receive.wait()?;
    /// let mut bytes = [0; 6];
    /// region.read(32, &mut bytes);
    /// assert_eq!(&bytes, b"shared");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown or lost rank.
    pub fn isend_region(&self, to: u32, tag: u64, slice: RegionSlice) -> Result<Request<'_>, Error> {
        self.send_region(Envelope::to(USER, to, tag, false), slice)
    }

    /// Starts a synchronous send of a region's slice: it ends when a receive has matched it.
    ///
    /// # Errors
    /// Those of [`World::isend_region`].
    pub fn issend_region(&self, to: u32, tag: u64, slice: RegionSlice) -> Result<Request<'_>, Error> {
        self.send_region(Envelope::to(USER, to, tag, true), slice)
    }

    fn send_region(&self, envelope: Envelope, slice: RegionSlice) -> Result<Request<'_>, Error> {
        let len = slice.len();
        let phase = match self.engine().send_region(envelope, slice)? {
            Some(token) => Phase::Open(token),
            None => Phase::Done(Status {
                source: envelope.peer(),
                tag: envelope.tag,
                len,
            }),
        };
        Ok(Request {
            world: self,
            phase,
            lent: None,
            envelope,
            kind: RequestKind::Send,
        })
    }

    /// Starts receiving into a region's slice, outside any scope.
    ///
    /// # Errors
    /// An unknown or lost rank.
    pub fn irecv_region(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        slice: RegionSlice,
    ) -> Result<Request<'_>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        let token = self.engine().recv_region(envelope, slice)?;
        Ok(Request {
            world: self,
            phase: Phase::Open(token),
            lent: None,
            envelope,
            kind: RequestKind::Receive,
        })
    }

    /// Waits until one of `requests` has ended and returns its index and status; `None` when none of them is
    /// in progress any more.
    ///
    /// # Errors
    /// Those of the request that ended; [`Error::Timeout`], after which all of them go on.
    pub fn wait_any(&self, requests: &mut [Request<'_>]) -> Result<Option<(usize, Status)>, Error> {
        self.usual().wait_any(requests)
    }

    /// Waits until all of `requests` have ended; [`Request::status`] then returns how each of them did.
    ///
    /// # Errors
    /// The first error among them; [`Error::Timeout`], after which those in progress go on.
    pub fn wait_all(&self, requests: &mut [Request<'_>]) -> Result<(), Error> {
        self.usual().wait_all(requests)
    }

    /// Waits until every rank has called it: a dissemination barrier of ⌈log₂ n⌉ steps.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`], which names the rank and the step.
    pub fn barrier(&self) -> Result<(), Error> {
        self.usual().barrier()
    }

    /// Copies `data` of rank `root` to every rank, by a binomial tree of ⌈log₂ n⌉ steps. `data` has the same
    /// length everywhere.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`]; [`Error::Truncated`] when the lengths differ.
    pub fn broadcast(&self, root: u32, data: &mut [u8]) -> Result<(), Error> {
        self.usual().broadcast(root, data)
    }

    /// Gathers every rank's `own` bytes at every rank, in the order of ranks: Bruck's algorithm, ⌈log₂ n⌉
    /// steps. `all` is `size()` times as long as `own`, which has the same length everywhere.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`]; [`Error::Layout`] when the lengths do not fit.
    pub fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        self.usual().allgather(own, all)
    }

    /// Returns the interface for foreign front ends: contexts, match bits, claims, multi-receives.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the contexts below [`Raw::FIRST_CONTEXT`], which the world itself uses.
    pub fn raw(&self, context: u16) -> Result<Raw<'_>, Error> {
        Raw::new(self, context)
    }
}

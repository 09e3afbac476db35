//! The engine as a world uses it: two modes of progress over the same core.
//!
//! ```text
//!   inline       caller ──► Core (rails + PML)                       one thread, no hand-over
//!   dedicated    caller ──► mailbox ──► thread: Core                 commands
//!                caller ◄── slots  ◄──                               one cache line per request
//! ```

mod completion_slots;
mod completions;
mod core;
mod dedicated;
mod meeting;
mod one_sided;
mod pinned;
mod thread_handle;
mod watch;

use std::cell::{RefCell, RefMut};
use std::time::Duration;

use doorbell_fabric::map::process::Maker;
use doorbell_fabric::memory::{ConstLoan, MutLoan, RegionSlice};
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::types::{Source, Status, Tag};
use doorbell_pml::{
    self as pml, AtOnce, Claimed, MessageId, Payload, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent,
    Target,
};

pub use self::completions::Completion;
pub(crate) use self::core::Core;
pub(crate) use self::dedicated::Bell;
use self::dedicated::{Command, ThreadState};
pub(crate) use self::meeting::Meeting;
pub(crate) use self::one_sided::{Operation, OperationKind, RegionOperation, WindowAddress};
pub(crate) use self::thread_handle::{ThreadHandle, narrow};
pub(crate) use self::watch::Watch;
pub(crate) use doorbell_job::wait::turns::LATE;

/// The handle of an open request: the PML's own number in inline mode, the number of a slot in dedicated
/// mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestToken(pub(crate) u64);

impl RequestToken {
    /// A send that was complete when it was started. No request has this number.
    pub(crate) const DONE: Self = Self(u64::MAX);

    #[inline]
    fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// A check whether requests have ended, for waits on several of them.
pub(crate) trait Look {
    fn is_done(&mut self, token: RequestToken) -> bool;

    /// Returns the status of a request that has ended with success, and frees it; `None` while it is in
    /// progress or if it failed.
    fn take_well_ended(&mut self, token: RequestToken) -> Option<Status>;
}

/// Several requests that are waited for together.
pub(crate) trait Each {
    /// Checks the requests that are left; `Some` when none is in progress any more.
    fn look(&mut self, at: &mut impl Look) -> Option<()>;

    /// Describes what is left.
    fn awaited(&self) -> Awaited;
}

/// The envelope of a send, receive or probe: peer, context and tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    /// The peer's rank; [`Envelope::ANY`] for any.
    peer: u32,
    pub(crate) context: u16,
    pub(crate) synchronous: bool,
}

impl Envelope {
    const ANY: u32 = u32::MAX;

    /// The envelope of a send.
    #[inline]
    pub(crate) fn to(context: u16, to: u32, tag: u64, synchronous: bool) -> Self {
        Self {
            tag,
            ignore: 0,
            peer: to,
            context,
            synchronous,
        }
    }

    /// The envelope of a receive or a probe.
    #[inline]
    pub(crate) fn from(context: u16, source: Source, tag: Tag) -> Self {
        let peer = match source {
            // No job has this many ranks: the number that stands for "any" is replaced by another rank that
            // does not exist.
            Source::Rank(rank) => rank.min(Self::ANY - 1),
            Source::Any => Self::ANY,
        };
        Self {
            tag: tag.bits,
            ignore: tag.ignore,
            peer,
            context,
            synchronous: false,
        }
    }

    /// The peer's rank; for "any rank", one that does not exist.
    #[inline]
    pub(crate) fn peer(&self) -> u32 {
        self.peer
    }

    /// The peer's rank; `None` for any.
    #[inline]
    pub(crate) fn named_peer(&self) -> Option<u32> {
        (self.peer != Self::ANY).then_some(self.peer)
    }

    #[inline]
    fn source(&self) -> pml::Source {
        if self.peer == Self::ANY {
            pml::Source::Any
        } else {
            pml::Source::Rank(Rank(self.peer))
        }
    }

    #[inline]
    fn send(self, payload: Payload) -> SendArgs {
        let mode = if self.synchronous {
            SendMode::Synchronous
        } else {
            SendMode::Standard
        };
        SendArgs {
            to: Rank(self.peer),
            context: self.context,
            tag: self.tag,
            payload,
            mode,
            notify: true,
        }
    }

    #[inline]
    pub(crate) fn recv(self, target: Target) -> RecvArgs {
        RecvArgs {
            from: self.source(),
            context: self.context,
            tag: self.tag,
            ignore: self.ignore,
            target,
            notify: true,
        }
    }

    /// Describes a wait for this send.
    pub(crate) fn awaited_send(&self) -> Awaited {
        Awaited::Send {
            to: self.peer,
            tag: self.tag,
        }
    }

    /// Describes a wait for this receive.
    pub(crate) fn awaited_receive(&self) -> Awaited {
        let (from, tag) = self.asked();
        Awaited::Receive { from, tag }
    }

    /// Describes a wait for this probe.
    pub(crate) fn awaited_probe(&self) -> Awaited {
        let (from, tag) = self.asked();
        Awaited::Probe { from, tag }
    }

    fn asked(&self) -> (Source, Tag) {
        let from = if self.peer == Self::ANY {
            Source::Any
        } else {
            Source::Rank(self.peer)
        };
        (from, Tag::masked(self.tag, self.ignore))
    }
}

/// The core, for use in the process that made it. A copy of it in a child of `fork` cannot work: the memory
/// of its rails is not mapped there.
pub(crate) struct InlineCore {
    core: RefCell<Core>,
    maker: Maker,
}

/// The reason for which the core cannot be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unheld {
    /// A call below this one is using it.
    Busy,
    /// Another process made it.
    Forked,
}

impl From<Unheld> for Error {
    #[cold]
    fn from(why: Unheld) -> Self {
        match why {
            Unheld::Busy => Self::Busy,
            Unheld::Forked => Self::Forked,
        }
    }
}

impl InlineCore {
    /// Borrows the core for one call.
    #[inline]
    pub(crate) fn hold(&self) -> Result<RefMut<'_, Core>, Unheld> {
        if !self.maker.is_running() {
            return Err(Unheld::Forked);
        }
        self.core.try_borrow_mut().map_err(|_| Unheld::Busy)
    }
}

/// The engine as a world sees it. The core is stored inline and not behind a pointer: that saves one load per
/// message.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Engine {
    Inline(InlineCore),
    Dedicated(ThreadHandle),
}

impl Engine {
    /// Makes an engine whose core the callers poll themselves.
    pub(crate) fn inline(core: Core) -> Self {
        let maker = core.maker;
        Self::Inline(InlineCore {
            core: RefCell::new(core),
            maker,
        })
    }

    /// Holds the engine for as long as a blocking call's memory is lent to it.
    ///
    /// # Errors
    /// [`Error::Busy`] inside another call, that is, in a hook.
    #[inline]
    pub(crate) fn hold(&self) -> Result<Held<'_>, Error> {
        match self {
            Self::Inline(core) => Ok(Held::Inline(core.hold()?)),
            Self::Dedicated(link) => Ok(Held::Dedicated(link)),
        }
    }

    /// Sends if the rail accepts the message at once (inline mode only). [`AtOnce::Refused`]: nothing has
    /// happened, and [`Held::send_loan`] is the call that always works. [`AtOnce::Held`]: sent, and the
    /// caller waits until the rail's device has it ([`Engine::hand_over`]). With `MORE`, the doorbell is left
    /// to the next call.
    #[inline(always)]
    pub(crate) fn send_now<const MORE: bool>(&self, envelope: Envelope, loan: ConstLoan) -> AtOnce {
        let Self::Inline(core) = self else {
            return AtOnce::Refused;
        };
        let Ok(mut core) = core.hold() else {
            return AtOnce::Refused;
        };
        let (to, context, tag) = (Rank(envelope.peer), envelope.context, envelope.tag);
        if envelope.synchronous {
            return AtOnce::Refused;
        }
        if MORE {
            if !core.pml.send_with_more(to, context, tag, loan) {
                return AtOnce::Refused;
            }
            core.now_and_then();
            return AtOnce::Left;
        }
        match core.pml.send_at_once(to, context, tag, loan) {
            AtOnce::Left => {
                core.now_and_then();
                AtOnce::Left
            }
            other => other,
        }
    }

    /// Waits until the devices have what their rails accepted for a rank (`None`: for any), for at most
    /// `limit`. A dedicated thread pushes it out without the caller.
    pub(crate) fn hand_over(
        &self,
        to: Option<u32>,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) {
        if let Self::Inline(core) = self
            && let Ok(mut core) = core.hold()
        {
            core.pml.flush_gathered();
            core.hand_over(to.map(Rank), limit, what, notice);
        }
    }

    /// Starts a send out of a region.
    pub(crate) fn send_region(
        &self,
        envelope: Envelope,
        slice: RegionSlice,
    ) -> Result<Option<RequestToken>, Error> {
        match self {
            Self::Inline(_) => self.send_other(envelope, Payload::Region(slice)),
            Self::Dedicated(link) => link
                .start_request(|slot| Command::SendRegion {
                    slot,
                    envelope,
                    slice,
                })
                .map(Some),
        }
    }

    /// Starts a send of any other layout.
    pub(crate) fn send_other(
        &self,
        envelope: Envelope,
        payload: Payload,
    ) -> Result<Option<RequestToken>, Error> {
        self.send_args(envelope.send(payload))
    }

    fn send_args(&self, args: SendArgs) -> Result<Option<RequestToken>, Error> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                let sent = core.pml.send(SendArgs {
                    notify: false,
                    ..args
                });
                let sent = sent.map_err(|error| core.explained(error))?;
                core.pml.flush();
                Ok(token_of(sent))
            }
            Self::Dedicated(link) => link
                .start_request(|slot| Command::SendOther(slot, Box::new(args)))
                .map(Some),
        }
    }

    /// Starts a send of lent memory.
    pub(crate) fn send_lent(
        &self,
        envelope: Envelope,
        slice: RegionSlice,
    ) -> Result<Option<RequestToken>, Error> {
        let args = envelope.send(Payload::Region(slice));
        self.send_args(SendArgs {
            mode: SendMode::Lent,
            ..args
        })
    }

    /// Waits until a send needs no further call of this rank: it has ended, or its receiver has only to read
    /// what was announced to it. A dedicated thread pushes it on without the caller.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub(crate) fn hand_to_peer(
        &self,
        token: RequestToken,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<(), Error> {
        let Self::Inline(core) = self else {
            return Ok(());
        };
        let mut core = core.hold()?;
        let id = RequestId::from_bits(token.0);
        core.now_and_then();
        core.wait(limit, what, notice, |core| {
            core.pml.is_left_to_peer(id).then_some(())
        })
    }

    /// Starts a receive into a region.
    pub(crate) fn recv_region(&self, envelope: Envelope, slice: RegionSlice) -> Result<RequestToken, Error> {
        match self {
            Self::Inline(_) => self.recv_other(envelope, Target::Region(slice)),
            Self::Dedicated(link) => link.start_request(|slot| Command::RecvRegion {
                slot,
                envelope,
                slice,
            }),
        }
    }

    /// Starts a receive of any other layout.
    pub(crate) fn recv_other(&self, envelope: Envelope, target: Target) -> Result<RequestToken, Error> {
        let args = envelope.recv(target);
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                let id = core.pml.recv(RecvArgs {
                    notify: false,
                    ..args
                });
                let id = id.map_err(|error| core.explained(error))?;
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(link) => link.start_request(|slot| Command::RecvOther(slot, Box::new(args))),
        }
    }

    /// Receives a message that arrives soon and fits, without a request (inline mode only). When it returns,
    /// the memory is not accessed any more. After `None`, which implies nothing about the message, the caller
    /// posts a receive.
    #[inline(always)]
    pub(crate) fn recv_soon(&self, envelope: Envelope, loan: MutLoan) -> Option<Status> {
        match self {
            Self::Inline(core) => core.hold().ok()?.recv_soon(envelope, loan),
            Self::Dedicated(_) => None,
        }
    }

    /// Waits until `done` returns something. It may check any number of requests.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub(crate) fn wait_until<R>(
        &self,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
        done: &mut dyn FnMut(&mut dyn Look) -> Option<R>,
    ) -> Result<R, Error> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                core.wait(limit, what, notice, |core| done(core))
            }
            Self::Dedicated(link) => link.wait(limit, what, notice, |link| done(link)),
        }
    }

    /// Starts a send of one borrowed piece, which may leave together with sends that follow it;
    /// [`RequestToken::DONE`]: complete already.
    ///
    /// Its arguments and its result are in registers, here and in [`Engine::post_recv`]. A processor that
    /// reads back what it has just written, in pieces of another size, stalls until all of its stores are
    /// done, and one store of a send goes to a cache line that another core owns.
    #[inline(never)]
    pub(crate) fn post_send(
        &self,
        context: u16,
        to: u32,
        tag: u64,
        loan: ConstLoan,
    ) -> Result<RequestToken, Box<Error>> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold().map_err(Error::from)?;
                let sent = core.pml.post_loan(Rank(to), context, tag, loan);
                let sent = sent.map_err(|error| core.explained(error))?;
                core.posted(Rank(to), loan.len());
                Ok(token_of(sent).unwrap_or(RequestToken::DONE))
            }
            Self::Dedicated(link) => {
                let envelope = Envelope::to(context, to, tag, false);
                Ok(link.start_request(|slot| Command::Send { slot, envelope, loan })?)
            }
        }
    }

    /// Starts a receive into one borrowed piece.
    #[inline(never)]
    pub(crate) fn post_recv(
        &self,
        (context, peer): (u16, u32),
        tag: u64,
        ignore: u64,
        loan: MutLoan,
    ) -> Result<RequestToken, Box<Error>> {
        let envelope = Envelope {
            tag,
            ignore,
            peer,
            context,
            synchronous: false,
        };
        Ok(self.hold()?.recv_loan(envelope, loan)?)
    }

    /// Waits until all requests in `left` have ended, and settles those that succeeded.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub(crate) fn wait_each(
        &self,
        limit: Duration,
        left: &mut impl Each,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<(), Error> {
        // `awaited` is called between two checks, so the borrows do not overlap.
        let left = RefCell::new(left);
        let what = || left.borrow().awaited();
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                core.wait(limit, what, notice, |core| left.borrow_mut().look(core))
            }
            Self::Dedicated(link) => link.wait(limit, what, notice, |link| left.borrow_mut().look(link)),
        }
    }

    /// Waits until a matching message has arrived.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`] when the only rank that it may come from is lost.
    pub(crate) fn probe(
        &self,
        envelope: Envelope,
        limit: Duration,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<Status, Error> {
        let what = || envelope.awaited_probe();
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                core.wait(limit, what, notice, |core| core.probe_or_lost(envelope))?
            }
            Self::Dedicated(link) => {
                let token = link.start_request(|slot| Command::Watch { slot, envelope })?;
                let found = Held::Dedicated(link).wait(token, limit, what, notice);
                if matches!(found, Err(Error::Timeout(_))) {
                    link.end(token);
                }
                found
            }
        }
    }

    /// Waits until a matching message has arrived, and takes it out of matching.
    ///
    /// # Errors
    /// Those of [`Engine::probe`].
    pub(crate) fn claim(
        &self,
        envelope: Envelope,
        limit: Duration,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<Claimed, Error> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                let what = || envelope.awaited_receive();
                core.wait(limit, what, notice, |core| core.claim_or_lost(envelope))?
            }
            Self::Dedicated(_) => loop {
                // Only this thread receives, so the message that the probe found is still there; the loop
                // covers the case that it is not.
                self.probe(envelope, limit, notice)?;
                if let Some(claimed) = self.call(move |core| core.claim(envelope))? {
                    return Ok(claimed);
                }
            },
        }
    }

    /// Waits for a completion of the raw interface.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub(crate) fn wait_completion(
        &self,
        limit: Duration,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<Completion, Error> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                core.wait(
                    limit,
                    completions::awaited_completion,
                    notice,
                    Core::next_completion,
                )
            }
            Self::Dedicated(link) => {
                let what = completions::awaited_completion();
                link.wait_asking(limit, what, notice, |desk| desk.core.next_completion())
            }
        }
    }

    /// Whether a request has ended.
    #[inline]
    pub(crate) fn is_done(&self, token: RequestToken) -> bool {
        match self {
            Self::Inline(core) => core.hold().is_ok_and(|mut core| core.is_done(token)),
            Self::Dedicated(link) => Look::is_done(&mut &*link, token),
        }
    }

    /// Returns the outcome of a request that has ended; `None` while it is open. Makes progress.
    #[inline]
    pub(crate) fn test(&self, token: RequestToken) -> Option<Result<Status, Error>> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold().ok()?;
                if core.is_done(token) {
                    core.pml.flush_gathered();
                } else {
                    core.poll_or_progress();
                }
                core.take(token)
            }
            Self::Dedicated(link) => link.take(token),
        }
    }

    /// Lets a request on owned memory run on without its handle.
    #[cold]
    pub(crate) fn detach(&self, token: RequestToken) {
        match self {
            Self::Inline(core) => {
                if let Ok(mut core) = core.hold() {
                    core.pml.detach(RequestId::from_bits(token.0));
                }
            }
            Self::Dedicated(link) => link.detach(token),
        }
    }

    /// Tries to cancel a request; `true` when it then ends as cancelled.
    #[cold]
    pub(crate) fn cancel(&self, token: RequestToken) -> bool {
        match self {
            Self::Inline(core) => core
                .hold()
                .is_ok_and(|mut core| core.pml.cancel(RequestId::from_bits(token.0))),
            Self::Dedicated(link) => {
                let slot = token.slot();
                let cancel = move |desk: &mut ThreadState| {
                    desk.request(slot).is_some_and(|id| desk.core.pml.cancel(id))
                };
                link.call(cancel).unwrap_or(false)
            }
        }
    }

    /// Runs a rare step on the thread that owns the core.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Ended`].
    pub(crate) fn call<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> Result<R, Error> {
        match self {
            Self::Inline(core) => Ok(step(&mut *core.hold()?)),
            Self::Dedicated(link) => link.call(move |desk| step(&mut desk.core)),
        }
    }

    /// Whether a rail holds back messages that it has accepted.
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        match self {
            Self::Inline(core) => core.hold().is_ok_and(|mut core| core.pml.holds_back(None)),
            Self::Dedicated(_) => false,
        }
    }

    /// Sends what waits for further messages to leave with: a test that finds everything done makes no
    /// progress.
    #[inline]
    pub(crate) fn flush_gathered(&self) {
        if let Self::Inline(core) = self
            && let Ok(mut core) = core.hold()
        {
            core.pml.flush_gathered();
        }
    }

    /// Makes one bounded pass of progress (inline; a dedicated thread needs none).
    pub(crate) fn progress(&self) -> usize {
        match self {
            Self::Inline(core) => core.hold().map_or(0, |mut core| core.progress()),
            Self::Dedicated(_) => 0,
        }
    }

    /// Returns why the progress thread lost the core that it was bound to, if it did.
    pub(crate) fn lost_core(&self) -> Option<String> {
        match self {
            Self::Inline(_) => None,
            Self::Dedicated(link) => link.lost_core(),
        }
    }

    /// Closes the connections to the peers, for at most `limit`.
    pub(crate) fn close(&mut self, limit: Duration) {
        match self {
            Self::Inline(own) => own.core.get_mut().close(limit),
            Self::Dedicated(link) => link.close(limit),
        }
    }
}

/// The engine, held by one call on this thread. In inline mode it is the borrowed core, and memory is lent
/// only to a core that is held: the holder can end what it started, whatever happens in between, because no
/// other call can borrow it.
pub(crate) enum Held<'w> {
    Inline(RefMut<'w, Core>),
    Dedicated(&'w ThreadHandle),
}

impl Held<'_> {
    /// Starts a send of one borrowed piece. `None`: complete already.
    #[inline]
    pub(crate) fn send_loan(
        &mut self,
        envelope: Envelope,
        loan: ConstLoan,
    ) -> Result<Option<RequestToken>, Error> {
        match self {
            Self::Inline(core) => {
                let sent = if envelope.synchronous {
                    let args = SendArgs {
                        notify: false,
                        ..envelope.send(Payload::Loan(loan))
                    };
                    core.pml.send(args)
                } else {
                    core.pml
                        .send_loan(Rank(envelope.peer), envelope.context, envelope.tag, loan)
                };
                let sent = sent.map_err(|error| core.explained(error))?;
                core.pml.flush();
                core.now_and_then();
                Ok(token_of(sent))
            }
            Self::Dedicated(link) => link
                .start_request(|slot| Command::Send { slot, envelope, loan })
                .map(Some),
        }
    }

    /// Starts a receive into one borrowed piece.
    #[inline(always)]
    pub(crate) fn recv_loan(&mut self, envelope: Envelope, loan: MutLoan) -> Result<RequestToken, Error> {
        match self {
            Self::Inline(core) => {
                let (source, context) = (envelope.source(), envelope.context);
                let id = core
                    .pml
                    .recv_loan(source, context, envelope.tag, envelope.ignore, loan);
                let id = id.map_err(|error| core.explained(error))?;
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(link) => link.start_request(|slot| Command::Recv { slot, envelope, loan }),
        }
    }

    /// Starts receiving a claimed message.
    pub(crate) fn recv_claimed(&mut self, message: MessageId, target: Target) -> Result<RequestToken, Error> {
        match self {
            Self::Inline(core) => {
                let id = core.pml.recv_claimed(message, target, false);
                let id = id.map_err(|error| core.explained(error))?;
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(link) => link.start_request(|slot| {
                Command::Call(Box::new(move |desk| desk.recv_claimed(slot, message, target)))
            }),
        }
    }

    /// Waits for one request and takes its outcome.
    ///
    /// # Errors
    /// Those of the request; [`Error::Timeout`], after which it is still open.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        token: RequestToken,
        limit: Duration,
        what: impl Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<Status, Error> {
        match self {
            Self::Inline(core) => core.wait(limit, what, notice, |core| {
                core.is_done(token).then(|| core.take(token))
            })?,
            Self::Dedicated(link) => link.wait(limit, what, notice, |link| {
                link.is_done(token).then(|| link.take(token))
            })?,
        }
        // Only the owner of a token takes its outcome, and once; should that be wrong, it is an error and
        // not a hang.
        .unwrap_or(Err(Error::Cancelled))
    }

    /// Waits until the rail's device has what was accepted for a rank; see [`Engine::hand_over`].
    #[inline]
    pub(crate) fn hand_over(
        &mut self,
        to: u32,
        limit: Duration,
        what: impl Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) {
        if let Self::Inline(core) = self {
            core.hand_over(Some(Rank(to)), limit, &what, notice);
        }
    }

    /// Takes the outcome of a request, if it has ended.
    pub(crate) fn take_done(&mut self, token: RequestToken) -> Option<Result<Status, Error>> {
        match self {
            Self::Inline(core) => core.is_done(token).then(|| core.take(token)).flatten(),
            Self::Dedicated(link) => Look::is_done(&mut &**link, token)
                .then(|| link.take(token))
                .flatten(),
        }
    }

    /// Ends a request: when it returns, the engine does not access its memory any more.
    #[cold]
    pub(crate) fn end(&mut self, token: RequestToken) {
        match self {
            Self::Inline(core) => core.end(token),
            Self::Dedicated(link) => link.end(token),
        }
    }
}

#[inline]
fn token_of(sent: Sent) -> Option<RequestToken> {
    match sent {
        Sent::Done => None,
        Sent::Pending(id) => Some(RequestToken(id.to_bits())),
    }
}

//! Borrowed memory: the only module that lends users' buffers to the engine, and takes them back.
//!
//! Everything below works with loans: a pointer and a length, without a lifetime. This module makes loans of
//! slices and keeps one promise, on which all of its `unsafe` rests:
//!
//! > **A loan is not used any more when the borrow that it was made of ends.**
//!
//! It is kept in two ways. A blocking call owns a [`Loaned`] guard, which ends the request before the call
//! returns, whatever way it returns; the guard holds the engine from before the loan is made, so that it can.
//! A request of a [`Scope`] is written into the world's ledger; [`World::scope`] does not return (nor unwind)
//! before every entry of the scope has ended or was ended by force. Neither depends on the user's handles:
//! they may be dropped, leaked or forgotten. "Ended" means that the PML has released the memory
//! (`Pml::test`, or `Pml::abort` with the answer `Now`), or that the thread that held it has ended.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use doorbell_fabric::atomics::Arithmetic;
use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_job::error::{Awaited, Error};
use doorbell_job::types::{Source, Status, Tag};
use doorbell_pml::{AtOnce, MessageId, Payload, Strided, Target};

use crate::progress::{Envelope, Held, Operation, OperationKind, RequestToken, WindowAddress};
use crate::request::{Lent, Phase, Request, RequestKind};
use crate::window::{Atomic, RemoteWindow, without_comparison};
use crate::world::{USER, World};

/// Blocks at equal distances in a buffer: `count` blocks of `block` bytes, their starts `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// Bytes of one block.
    pub block: usize,
    /// From the start of one block to the next, in bytes; at least `block`.
    pub stride: usize,
    /// The number of blocks.
    pub count: usize,
}

/// The requests of a blocking call: one send, one receive at most. Dropped while one is open (by an error or
/// a panic), it ends that one before the drop returns.
struct Loaned<'w> {
    world: &'w World,
    held: Held<'w>,
    sending: Option<RequestToken>,
    receiving: Option<RequestToken>,
}

impl<'w> Loaned<'w> {
    /// Takes hold of the engine. Nothing is lent before this has succeeded.
    fn hold(world: &'w World) -> Result<Self, Error> {
        Ok(Self {
            world,
            held: world.engine().hold()?,
            sending: None,
            receiving: None,
        })
    }

    /// Waits for the send, if one is open.
    fn sent(&mut self, limit: Duration, what: impl Fn() -> Awaited) -> Result<(), Error> {
        let Some(token) = self.sending else {
            return Ok(());
        };
        let outcome = self.wait(token, limit, what);
        if !matches!(outcome, Err(Error::Timeout(_))) {
            self.sending = None;
        }
        outcome.map(|_| ())
    }

    /// Waits until the rail's device has the messages that were accepted for `to`.
    fn hand_over(&mut self, to: u32, limit: Duration, what: impl Fn() -> Awaited) {
        let world = self.world;
        self.held
            .hand_over(to, limit, what, &mut |waiting| world.complain(waiting));
    }

    /// Waits for the receive.
    fn received(&mut self, limit: Duration, what: impl Fn() -> Awaited) -> Result<Status, Error> {
        let Some(token) = self.receiving else {
            return Err(Error::Cancelled);
        };
        let outcome = self.wait(token, limit, what);
        if !matches!(outcome, Err(Error::Timeout(_))) {
            self.receiving = None;
        }
        outcome
    }

    fn wait(
        &mut self,
        token: RequestToken,
        limit: Duration,
        what: impl Fn() -> Awaited,
    ) -> Result<Status, Error> {
        let world = self.world;
        self.held
            .wait(token, limit, what, &mut |waiting| world.complain(waiting))
    }
}

impl Drop for Loaned<'_> {
    fn drop(&mut self) {
        for token in [self.sending.take(), self.receiving.take()].into_iter().flatten() {
            self.held.end(token);
        }
    }
}

/// # Safety
/// The conditions of [`MutLoan::new`]: the request that the loan is given to ends before the borrow does.
#[inline]
unsafe fn lend_mut(into: &mut [u8]) -> MutLoan {
    let length = into.len();
    // SAFETY: the caller's promise.
    unsafe { MutLoan::new(into.as_mut_ptr(), length) }
}

/// Sends and waits until `data` may be changed again. With `MORE`, the doorbell may wait for the next call.
#[inline(always)]
pub(crate) fn send<const MORE: bool>(
    world: &World,
    envelope: Envelope,
    data: &[u8],
    limit: Duration,
) -> Result<(), Error> {
    // SAFETY: `data` is borrowed for this whole call, and the request ends before it: at once, or with
    // `Loaned`.
    let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
    match world.engine().send_now::<MORE>(envelope, loan) {
        AtOnce::Left => Ok(()),
        AtOnce::Refused => send_slowly(world, envelope, loan, limit),
        AtOnce::Held => {
            world.hand_over(Some(envelope.peer()), limit, &|| envelope.awaited_send());
            Ok(())
        }
    }
}

/// Kept out of the short path, which then reserves no stack for it. The caller's borrow outlives the call.
#[cold]
#[inline(never)]
fn send_slowly(world: &World, envelope: Envelope, loan: ConstLoan, limit: Duration) -> Result<(), Error> {
    let begun = Instant::now();
    let mut loaned = Loaned::hold(world)?;
    loaned.sending = loaned.held.send_loan(envelope, loan)?;
    loaned.sent(limit, || envelope.awaited_send())?;
    let left = limit.saturating_sub(begun.elapsed());
    loaned.hand_over(envelope.peer(), left, || envelope.awaited_send());
    Ok(())
}

/// Sends `data`, and returns when it may be changed again. Handing over the messages that the rail holds back
/// is left to the caller.
pub(crate) fn post(
    world: &World,
    (envelope, data): (Envelope, &[u8]),
    limit: Duration,
    what: impl Fn() -> Awaited,
) -> Result<(), Error> {
    let mut loaned = Loaned::hold(world)?;
    // SAFETY: as in `send`; the guard is a local of this call.
    let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
    loaned.sending = loaned.held.send_loan(envelope, loan)?;
    loaned.sent(limit, what)
}

/// Receives into `into` and waits for it.
#[inline(always)]
pub(crate) fn recv(
    world: &World,
    envelope: Envelope,
    into: &mut [u8],
    limit: Duration,
) -> Result<Status, Error> {
    // SAFETY: `into` is borrowed exclusively for this whole call, and `Loaned` ends the request before its
    // end.
    let loan = unsafe { lend_mut(into) };
    if let Some(status) = world.engine().recv_soon(envelope, loan) {
        return Ok(status);
    }
    recv_slowly(world, envelope, loan, limit)
}

/// Posts the receive, and ends it before it returns. Kept out of the short path, as [`send_slowly`] is.
#[cold]
#[inline(never)]
fn recv_slowly(world: &World, envelope: Envelope, loan: MutLoan, limit: Duration) -> Result<Status, Error> {
    let mut loaned = Loaned::hold(world)?;
    loaned.receiving = Some(loaned.held.recv_loan(envelope, loan)?);
    loaned.received(limit, || envelope.awaited_receive())
}

/// Receives a claimed message into `into` and waits for it.
pub(crate) fn recv_claimed(
    world: &World,
    message: MessageId,
    envelope: Envelope,
    into: &mut [u8],
    limit: Duration,
) -> Result<Status, Error> {
    // SAFETY: as in `recv`.
    let loan = unsafe { lend_mut(into) };
    let mut loaned = Loaned::hold(world)?;
    loaned.receiving = Some(loaned.held.recv_claimed(message, Target::Loan(loan))?);
    loaned.received(limit, || envelope.awaited_receive())
}

/// Sends and receives at the same time: one step of a collective operation. Returns the length received.
pub(crate) fn exchange(
    world: &World,
    send: Option<(Envelope, &[u8])>,
    recv: Option<(Envelope, &mut [u8])>,
    limit: Duration,
    what: impl Fn(u32) -> Awaited,
) -> Result<usize, Error> {
    let (to, from) = (
        send.as_ref().map(|(envelope, _)| envelope.peer()),
        recv.as_ref().map(|(envelope, _)| envelope.peer()),
    );
    // Short steps need no request: what leaves at once, and arrives soon.
    let left = send.as_ref().map_or(AtOnce::Left, |(envelope, data)| {
        // SAFETY: as in `send`: without a request, nothing of it is used any more when the call returns.
        let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        world.engine().send_now::<false>(*envelope, loan)
    });
    let into = recv.map(|(envelope, into)| {
        // SAFETY: as in `recv`; the guard is a local of this call.
        (envelope, unsafe { lend_mut(into) })
    });
    if left == AtOnce::Left {
        let Some((envelope, loan)) = into else {
            return Ok(0);
        };
        if let Some(status) = world.engine().recv_soon(envelope, loan) {
            return Ok(status.len);
        }
    }
    let mut loaned = Loaned::hold(world)?;
    if let Some((envelope, loan)) = into {
        loaned.receiving = Some(loaned.held.recv_loan(envelope, loan)?);
    }
    if left == AtOnce::Refused
        && let Some((envelope, data)) = send
    {
        // SAFETY: as in `send`; the guard is a local of this call.
        let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        loaned.sending = loaned.held.send_loan(envelope, loan)?;
    }
    let received = match from {
        Some(peer) => loaned.received(limit, || what(peer))?.len,
        None => 0,
    };
    if let Some(peer) = to {
        loaned.sent(limit, || what(peer))?;
        loaned.hand_over(peer, limit, || what(peer));
    }
    Ok(received)
}

/// Does an operation on a window, and waits for its end. `from`: the bytes that it takes; `into`: room for
/// those that it returns.
pub(crate) fn operate(
    world: &World,
    (kind, at): (OperationKind, WindowAddress),
    from: &[u8],
    into: &mut [u8],
    limit: Duration,
) -> Result<(), Error> {
    let mut loaned = Loaned::hold(world)?;
    let operation = Operation {
        kind,
        at,
        // SAFETY: as in `send`; the guard is a local of this call.
        from: unsafe { ConstLoan::new(from.as_ptr(), from.len()) },
        // SAFETY: as in `recv`; the guard is a local of this call.
        into: unsafe { lend_mut(into) },
    };
    loaned.sending = Some(loaned.held.operate(operation)?);
    loaned.sent(limit, || Awaited::OneSided {
        peer: at.rank,
        name: kind.name(),
    })
}

/// A scope in which buffers can be lent, made by [`World::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    world: &'env World,
    serial: u64,
    /// The number of this scope's entries in the ledger.
    open: Cell<usize>,
    /// Whether it has sent something.
    sends: Cell<bool>,
    // Invariant in both, as in `std::thread::scope`: neither can be made shorter or longer by the user.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `work` in a scope; see [`World::scope`].
pub(crate) fn run<'env, T>(
    world: &'env World,
    limit: Duration,
    work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, Error>,
) -> Result<T, Error> {
    // In a hook no request could be started, nor ended when the scope ends: see `cannot_take_back`.
    drop(world.engine().hold()?);
    let serial = world.ledger().open_scope();
    let scope = Scope {
        world,
        serial,
        open: Cell::new(0),
        sends: Cell::new(false),
        scope: PhantomData,
        env: PhantomData,
    };
    let mut closing = Closing {
        scope: &scope,
        wait: Some(limit),
    };
    let result = work(&scope);
    // From here on the guard no longer waits: it ends the requests that are left, should the wait itself
    // panic (in a user's hook).
    closing.wait = None;
    let limit = if result.is_ok() {
        limit
    } else {
        limit.min(*world.config().wait.close.get())
    };
    let left = scope.wait(limit).and(scope.collect());
    drop(closing);
    result.and_then(|value| left.map(|()| value))
}

/// A scope ends with loans out while the core is held on this thread. This cannot happen: `run` begins only
/// when the core is free, and what holds it later is a call from inside the scope, so that it has returned or
/// unwound by now, and the handle is a local of that call, which no other code can keep or leak.
///
/// It is checked all the same, and ends the process, since nothing less would be sound. To return (or unwind)
/// would give memory back that a rail may still write. To wait would be forever: the call that holds the core
/// is below this one on the stack, and goes on only after this one has returned. The memory cannot be leaked
/// instead: it is the caller's, perhaps on its stack. (The standard library aborts the process, too, where
/// `thread::scope` could not keep its promise.)
#[cold]
#[inline(never)]
fn cannot_take_back() -> ! {
    use std::io::Write as _;
    // If stderr is closed, there is nowhere to report this.
    let _ = std::io::stderr().write_all(
        b"doorbell: a scope ends with buffers lent to requests that cannot be ended, because the engine is in use \
          below it; this is an error in doorbell, and going on would corrupt memory\n",
    );
    std::process::abort()
}

/// A guard that keeps the promise on every way out of the scope.
struct Closing<'g, 'scope, 'env> {
    scope: &'g Scope<'scope, 'env>,
    /// The limit of the wait before requests are ended by force, if the closure panicked.
    wait: Option<Duration>,
}

impl Drop for Closing<'_, '_, '_> {
    #[inline]
    fn drop(&mut self) {
        // The panic is more informative than any error of a request that was left behind.
        if let Some(limit) = self.wait {
            let _ = self.scope.wait(limit);
        }
        let _ = self.scope.collect();
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts sending `data` to rank `to`. The first two sends in a row to one rank leave at once; the
    /// following ones may leave together (a rail's doorbell may be a system call), at the latest with the
    /// next call that waits, tests, receives or makes progress.
    ///
    /// # Errors
    /// An unknown or lost rank.
    #[inline(always)]
    pub fn isend(&'scope self, to: u32, tag: u64, data: &'scope [u8]) -> Result<Request<'scope>, Error> {
        // SAFETY: `data` is borrowed for `'scope`, and `run` ends the request before `'scope` ends.
        let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        let token = match self.world.engine().post_send(USER, to, tag, loan) {
            Ok(RequestToken::DONE) => None,
            Ok(token) => Some(token),
            Err(error) => return Err(*error),
        };
        Ok(self.sent(Envelope::to(USER, to, tag, false), data.len(), token))
    }

    /// Starts a synchronous send of `data` to rank `to`: it ends when a receive there has matched it.
    ///
    /// # Errors
    /// Those of [`Scope::isend`].
    pub fn issend(&'scope self, to: u32, tag: u64, data: &'scope [u8]) -> Result<Request<'scope>, Error> {
        // SAFETY: as in `isend`.
        let loan = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        let envelope = Envelope::to(USER, to, tag, true);
        let token = self.world.engine().hold()?.send_loan(envelope, loan)?;
        Ok(self.sent(envelope, data.len(), token))
    }

    /// Starts sending several pieces as one message (an I/O vector).
    ///
    /// # Errors
    /// Those of [`Scope::isend`].
    pub fn isend_parts(
        &'scope self,
        to: u32,
        tag: u64,
        parts: impl IntoIterator<Item = &'scope [u8]>,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: every piece is borrowed for `'scope`; as in `send_piece`.
        let lend = |part: &'scope [u8]| unsafe { ConstLoan::new(part.as_ptr(), part.len()) };
        let loans: Box<[ConstLoan]> = parts.into_iter().map(lend).collect();
        let length = loans.iter().map(ConstLoan::len).sum();
        let envelope = Envelope::to(USER, to, tag, false);
        let token = self.world.engine().send_other(envelope, Payload::Parts(loans))?;
        Ok(self.sent(envelope, length, token))
    }

    /// Starts sending blocks of `data` at equal distances as one message.
    ///
    /// # Errors
    /// Those of [`Scope::isend`]; [`Error::Layout`] when the blocks overlap or exceed `data`.
    pub fn isend_strided(
        &'scope self,
        to: u32,
        tag: u64,
        data: &'scope [u8],
        blocks: Stride,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: as in `send_piece`.
        let base = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        let Stride { block, stride, count } = blocks;
        let envelope = Envelope::to(USER, to, tag, false);
        let payload = Payload::Strided(Strided {
            base,
            block,
            stride,
            count,
        });
        let token = self.world.engine().send_other(envelope, payload)?;
        Ok(self.sent(envelope, block.saturating_mul(count), token))
    }

    /// Starts receiving into `into`.
    ///
    /// # Errors
    /// An unknown or lost rank.
    #[inline(always)]
    pub fn irecv(
        &'scope self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &'scope mut [u8],
    ) -> Result<Request<'scope>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        // One pointer for the loan and for returning the buffer: a second one would invalidate the first.
        let (length, start) = (into.len(), into.as_mut_ptr());
        // SAFETY: `into` is borrowed exclusively for `'scope`, and `run` ends the request before `'scope`
        // ends.
        let loan = unsafe { MutLoan::new(start, length) };
        match self
            .world
            .engine()
            .post_recv((USER, envelope.peer()), envelope.tag, envelope.ignore, loan)
        {
            Ok(token) => Ok(self.request(envelope, RequestKind::Receive, token, Some((start, length)))),
            Err(error) => Err(*error),
        }
    }

    /// Starts receiving one message into several pieces, which are filled in order.
    ///
    /// # Errors
    /// Those of [`Scope::irecv`].
    pub fn irecv_parts(
        &'scope self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        parts: impl IntoIterator<Item = &'scope mut [u8]>,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: every piece is borrowed exclusively for `'scope`, so they do not overlap; as in `irecv`.
        let lend = |part: &'scope mut [u8]| unsafe { lend_mut(part) };
        let target = Target::Parts(parts.into_iter().map(lend).collect());
        self.recv_other(Envelope::from(USER, from.into(), tag.into()), target)
    }

    /// Starts receiving one message into blocks of `into` at equal distances.
    ///
    /// # Errors
    /// Those of [`Scope::irecv`]; [`Error::Layout`] when the blocks overlap or exceed `into`.
    pub fn irecv_strided(
        &'scope self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &'scope mut [u8],
        blocks: Stride,
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: as in `irecv`.
        let base = unsafe { lend_mut(into) };
        let Stride { block, stride, count } = blocks;
        let target = Target::Strided(Strided {
            base,
            block,
            stride,
            count,
        });
        self.recv_other(Envelope::from(USER, from.into(), tag.into()), target)
    }

    /// Starts putting `data` into a window, from its byte `at` on: see [`World::put`]. The first two
    /// operations in a row on windows of one rank leave at once; the following ones may leave together, as
    /// with [`Scope::isend`].
    ///
    /// # Errors
    /// An unknown or lost rank. What the owner of the window refuses is the error of the request.
    #[inline]
    pub fn iput(
        &'scope self,
        window: RemoteWindow,
        at: u64,
        data: &'scope [u8],
    ) -> Result<Request<'scope>, Error> {
        // SAFETY: as in `isend`.
        let from = unsafe { ConstLoan::new(data.as_ptr(), data.len()) };
        self.operation(OperationKind::Put, window.at(at), from, MutLoan::EMPTY, None)
    }

    /// Starts getting bytes out of a window, from its byte `at` on: see [`World::get`].
    ///
    /// # Errors
    /// Those of [`Scope::iput`].
    #[inline]
    pub fn iget(
        &'scope self,
        window: RemoteWindow,
        at: u64,
        into: &'scope mut [u8],
    ) -> Result<Request<'scope>, Error> {
        // One pointer, as in `irecv`.
        let (length, start) = (into.len(), into.as_mut_ptr());
        // SAFETY: as in `irecv`.
        let loan = unsafe { MutLoan::new(start, length) };
        let buffer = Some((start, length));
        self.operation(OperationKind::Get, window.at(at), ConstLoan::EMPTY, loan, buffer)
    }

    /// Starts computing in a window, from its byte `at` on: see [`World::accumulate`]. One request is for at
    /// most 4,096 bytes of elements.
    ///
    /// # Errors
    /// Those of [`Scope::iput`]; [`Error::Layout`] for more elements, and for an operation that there is not
    /// on this type.
    pub fn iaccumulate<T: Atomic>(
        &'scope self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operands: &'scope [T],
    ) -> Result<Request<'scope>, Error> {
        without_comparison(arithmetic)?;
        let bytes = T::bytes(operands);
        // SAFETY: as in `isend`.
        let from = unsafe { ConstLoan::new(bytes.as_ptr(), bytes.len()) };
        let kind = OperationKind::Accumulate(arithmetic, T::ELEMENT);
        self.operation(kind, window.at(at), from, MutLoan::EMPTY, None)
    }

    /// Starts computing in a window, from its byte `at` on, and getting what was there before each element
    /// was changed into `before`: see [`World::fetch_accumulate`]. One request is for at most 4,096 bytes of
    /// elements. For [`Arithmetic::Read`] there are no operands.
    ///
    /// # Errors
    /// Those of [`Scope::iaccumulate`]; [`Error::Layout`] where `before` has another length.
    pub fn ifetch_accumulate<T: Atomic>(
        &'scope self,
        window: RemoteWindow,
        at: u64,
        arithmetic: Arithmetic,
        operands: &'scope [T],
        before: &'scope mut [T],
    ) -> Result<Request<'scope>, Error> {
        without_comparison(arithmetic)?;
        let bytes = T::bytes(operands);
        // SAFETY: as in `isend`.
        let from = unsafe { ConstLoan::new(bytes.as_ptr(), bytes.len()) };
        // SAFETY: as in `irecv`.
        let into = unsafe { lend_mut(T::bytes_mut(before)) };
        let kind = OperationKind::Fetch(arithmetic, T::ELEMENT);
        self.operation(kind, window.at(at), from, into, None)
    }

    #[inline]
    fn operation(
        &'scope self,
        kind: OperationKind,
        at: WindowAddress,
        from: ConstLoan,
        into: MutLoan,
        buffer: Option<(*mut u8, usize)>,
    ) -> Result<Request<'scope>, Error> {
        let operation = Operation { kind, at, from, into };
        match self.world.engine().post_operation(operation) {
            Ok(token) => {
                let envelope = Envelope::to(USER, at.rank, 0, false);
                Ok(self.request(envelope, RequestKind::Operation(kind.name()), token, buffer))
            }
            Err(error) => Err(*error),
        }
    }

    fn recv_other(&'scope self, envelope: Envelope, target: Target) -> Result<Request<'scope>, Error> {
        let token = self.world.engine().recv_other(envelope, target)?;
        Ok(self.request(envelope, RequestKind::Receive, token, None))
    }

    #[inline(always)]
    fn sent(&'scope self, envelope: Envelope, len: usize, token: Option<RequestToken>) -> Request<'scope> {
        self.sends.set(true);
        match token {
            Some(token) => self.request(envelope, RequestKind::Send, token, None),
            None => Request {
                world: self.world,
                phase: Phase::Done(Status {
                    source: envelope.peer(),
                    tag: envelope.tag,
                    len,
                }),
                lent: None,
                envelope,
                kind: RequestKind::Send,
            },
        }
    }

    #[inline(always)]
    fn request(
        &'scope self,
        envelope: Envelope,
        kind: RequestKind,
        token: RequestToken,
        buffer: Option<(*mut u8, usize)>,
    ) -> Request<'scope> {
        let (ledger, peer) = (self.world.ledger(), envelope.named_peer());
        let slot = ledger.enter(token, self.serial, peer);
        self.open.set(self.open.get() + 1);
        let lent = Some(Lent {
            slot,
            open: &self.open,
            buffer,
        });
        Request {
            world: self.world,
            phase: Phase::Open(token),
            lent,
            envelope,
            kind,
        }
    }

    /// Describes a wait for the open requests, of which those from slot `from` on are left.
    #[cold]
    fn awaited(&self, from: usize) -> Awaited {
        Awaited::Requests {
            count: self.open.get(),
            peers: self.world.ledger().peers(self.serial, from),
        }
    }

    /// Waits for every request that is still open, for at most `limit`.
    fn wait(&self, limit: Duration) -> Result<(), Error> {
        if self.open.get() == 0 {
            self.hand_over(limit);
            return Ok(());
        }
        let ledger = self.world.ledger();
        let from = Cell::new(0);
        self.world
            .wait_look(limit, &|| self.awaited(from.get()), &mut |look| {
                while let Some((slot, token)) = ledger.next(self.serial, from.get()) {
                    if !look.is_done(token) {
                        return None;
                    }
                    from.set(slot as usize + 1);
                }
                Some(())
            })?;
        self.hand_over(limit);
        Ok(())
    }

    /// Makes a scope that has sent wait until no rail holds its messages back.
    fn hand_over(&self, limit: Duration) {
        match self.sends.get() {
            true => self.world.hand_over(None, limit, &|| self.awaited(0)),
            false => self.world.engine().flush_gathered(),
        }
    }

    /// Takes the outcome of every request that has ended, and ends the others by force. Returns the first
    /// error.
    fn collect(&self) -> Result<(), Error> {
        if self.open.get() == 0 {
            return Ok(());
        }
        let ledger = self.world.ledger();
        let mut held = match self.world.engine().hold() {
            Ok(held) => held,
            Err(Error::Forked) => {
                // No rail in a child of `fork` accesses the memory.
                while let Some((slot, _)) = ledger.next(self.serial, 0) {
                    ledger.strike(slot);
                }
                self.open.set(0);
                return Err(Error::Forked);
            }
            Err(_) => cannot_take_back(),
        };
        let mut first = Ok(());
        let mut from = 0;
        while self.open.get() > 0 {
            let Some((slot, token)) = ledger.next(self.serial, from) else {
                break;
            };
            from = slot as usize + 1;
            match held.take_done(token) {
                Some(outcome) => first = first.and(outcome.map(|_| ())),
                None => held.end(token),
            }
            ledger.strike(slot);
            self.open.set(self.open.get() - 1);
        }
        first
    }
}

impl<'a> Request<'a> {
    /// Waits as [`Request::wait`], and returns the whole receive buffer, so that it can be used again inside
    /// the scope.
    ///
    /// # Errors
    /// Those of [`Request::wait`]; [`Error::Unsupported`] for anything but a receive or a get into
    /// one borrowed piece.
    pub fn wait_buffer(mut self) -> Result<(Status, &'a mut [u8]), Error> {
        let Some((start, length)) = self.lent.as_ref().and_then(|lent| lent.buffer) else {
            return Err(Error::Unsupported {
                what: "giving a buffer back",
                by: "this kind of request".to_owned(),
            });
        };
        let limit = self.world.limit();
        let status = self.finish(limit)?;
        // SAFETY: `start` and `length` are the slice that `irecv` borrowed exclusively for `'a`; the request
        // has ended, so the loan is not used any more, and consuming the only handle makes this the only way
        // to the bytes.
        Ok((status, unsafe { std::slice::from_raw_parts_mut(start, length) }))
    }
}

#[cfg(test)]
mod fork_tests;
#[cfg(test)]
mod tests;

//! Handles of open requests: wait, test, cancel, and what dropping one does.

use std::cell::Cell;
use std::time::{Duration, Instant};

use doorbell_job::error::{Awaited, Error};
use doorbell_job::types::Status;

use crate::progress::{Each, Envelope, Held, Look, RequestToken};
use crate::world::World;

/// A send, a receive or an operation on a window that was started and may still be under way.
///
/// The status of an operation has the rank of the window, the tag zero, and the bytes that were moved.
///
/// * From a [`Scope`](crate::Scope): dropping (or leaking) the handle changes nothing; the scope waits for
///   the request before it returns the buffers.
/// * From [`World::isend_region`] and its like: when the handle is dropped, the request runs on; the region
///   is kept alive until it has ended.
#[must_use = "the outcome of a request is lost unless it is waited for or tested"]
pub struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) phase: Phase,
    /// The ledger entry of borrowed memory; `None` for owned memory.
    pub(crate) lent: Option<Lent<'a>>,
    pub(crate) envelope: Envelope,
    pub(crate) kind: RequestKind,
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Send,
    Receive,
    /// An operation on a window, by its name.
    Operation(&'static str),
}

/// What a request of a scope has borrowed: its slot in the ledger, and the buffer to return.
pub(crate) struct Lent<'a> {
    pub(crate) slot: u32,
    pub(crate) open: &'a Cell<usize>,
    /// The start and length of a contiguous receive buffer.
    pub(crate) buffer: Option<(*mut u8, usize)>,
}

impl Lent<'_> {
    /// Removes the entry of a request that has ended.
    #[inline]
    pub(crate) fn settle(&self, world: &World) {
        world.ledger().strike(self.slot);
        self.open.set(self.open.get() - 1);
    }
}

/// The progress of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// It is in progress.
    Open(RequestToken),
    /// It has ended with success.
    Done(Status),
    /// It has failed, or its outcome was taken.
    Over,
}

impl<'a> Request<'a> {
    /// Waits until it has ended, for at most the world's deadline (`wait.deadline`).
    ///
    /// # Errors
    /// Those of the request; [`Error::Timeout`], after which a request on borrowed memory is ended
    /// and one on a region runs on. An operation on a window that was ended so may be done all the same,
    /// once. [`Error::Busy`] in a hook: then it runs on, and its scope waits for it.
    #[inline]
    pub fn wait(self) -> Result<Status, Error> {
        let limit = self.world.limit();
        self.wait_within(limit)
    }

    /// Waits until it has ended, for at most `limit`.
    ///
    /// # Errors
    /// Those of [`Request::wait`].
    #[inline]
    pub fn wait_within(mut self, limit: Duration) -> Result<Status, Error> {
        self.finish(limit)
    }

    pub(crate) fn finish(&mut self, limit: Duration) -> Result<Status, Error> {
        match self.phase {
            Phase::Open(token) => {
                // Nothing can be ended without the engine: in a hook the request runs on, and its scope waits
                // for it.
                let mut held = self.world.engine().hold()?;
                let outcome = held.wait(token, limit, || self.awaited(), &mut |waiting| {
                    self.world.complain(waiting)
                });
                match outcome {
                    Err(Error::Timeout(waiting)) => {
                        self.give_up(&mut held, token);
                        Err(Error::Timeout(waiting))
                    }
                    outcome => {
                        drop(held);
                        let status = self.settle(outcome)?;
                        self.hand_over(limit);
                        Ok(status)
                    }
                }
            }
            Phase::Done(status) => {
                self.hand_over(limit);
                Ok(status)
            }
            Phase::Over => Err(Error::Cancelled),
        }
    }

    /// Makes the wait for a send last until the rail no longer holds the message back.
    fn hand_over(&self, limit: Duration) {
        match self.kind {
            RequestKind::Send => self
                .world
                .hand_over(Some(self.envelope.peer()), limit, &|| self.awaited()),
            RequestKind::Receive | RequestKind::Operation(_) => self.world.engine().flush_gathered(),
        }
    }

    /// Takes borrowed memory back after a timeout. A request on owned memory may go on using it.
    #[cold]
    fn give_up(&mut self, held: &mut Held<'_>, token: RequestToken) {
        if let Some(lent) = &self.lent {
            held.end(token);
            lent.settle(self.world);
            self.phase = Phase::Over;
        }
    }

    /// Checks once, making progress: `None` while it is in progress. An error is returned once; the status of
    /// a success can be read again with [`Request::status`].
    pub fn test(&mut self) -> Option<Result<Status, Error>> {
        match self.phase {
            Phase::Open(token) => {
                let outcome = self.world.engine().test(token)?;
                Some(self.settle(outcome))
            }
            Phase::Done(status) => {
                self.world.engine().flush_gathered();
                Some(Ok(status))
            }
            Phase::Over => Some(Err(Error::Cancelled)),
        }
    }

    /// Whether it has ended, with success or not. Makes no progress.
    #[inline]
    pub fn is_done(&self) -> bool {
        match self.phase {
            Phase::Open(token) => self.world.engine().is_done(token),
            _ => true,
        }
    }

    /// Returns the status, after a wait or test that succeeded.
    pub fn status(&self) -> Option<Status> {
        match self.phase {
            Phase::Done(status) => Some(status),
            _ => None,
        }
    }

    /// Tries to cancel it: a receive that has found no message, or a send or an operation on a window of
    /// which nothing has left. If it returns `true`, the request ends as [`Error::Cancelled`]; otherwise it
    /// goes on.
    pub fn cancel(&mut self) -> bool {
        match self.phase {
            Phase::Open(token) => self.world.engine().cancel(token),
            _ => false,
        }
    }

    pub(crate) fn settle(&mut self, outcome: Result<Status, Error>) -> Result<Status, Error> {
        if let Some(lent) = &self.lent {
            lent.settle(self.world);
        }
        let outcome = outcome.map(|status| self.shown(status));
        self.phase = outcome
            .as_ref()
            .map_or(Phase::Over, |status| Phase::Done(*status));
        outcome
    }

    /// A status as the user sees it: that of an operation has no tag.
    #[inline]
    fn shown(&self, status: Status) -> Status {
        match self.kind {
            RequestKind::Operation(_) => Status { tag: 0, ..status },
            RequestKind::Send | RequestKind::Receive => status,
        }
    }

    pub(crate) fn token(&self) -> Option<RequestToken> {
        match self.phase {
            Phase::Open(token) => Some(token),
            _ => None,
        }
    }

    fn awaited(&self) -> Awaited {
        match self.kind {
            RequestKind::Send => self.envelope.awaited_send(),
            RequestKind::Receive => self.envelope.awaited_receive(),
            RequestKind::Operation(name) => Awaited::OneSided {
                peer: self.envelope.peer(),
                name,
            },
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if let (Phase::Open(token), None) = (self.phase, &self.lent) {
            self.world.engine().detach(token);
        }
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Request({}: {:?})", self.awaited(), self.phase)
    }
}

/// Describes a wait for `open` requests, of which `requests` are left.
#[cold]
fn several(open: usize, requests: &[Request<'_>]) -> Awaited {
    let peers = requests
        .iter()
        .filter(|request| request.token().is_some())
        .map(|request| request.envelope.named_peer())
        .collect();
    Awaited::Requests { count: open, peers }
}

/// Waits until one of `requests` has ended; `None` when none of them is in progress.
pub(crate) fn wait_any(
    world: &World,
    requests: &mut [Request<'_>],
    limit: Duration,
) -> Result<Option<(usize, Status)>, Error> {
    let open = requests
        .iter()
        .filter(|request| request.token().is_some())
        .count();
    if open == 0 {
        world.engine().flush_gathered();
        return Ok(None);
    }
    let at = world.wait_look(limit, &|| several(open, requests), &mut |look| {
        requests
            .iter()
            .position(|request| request.token().is_some_and(|token| look.is_done(token)))
    })?;
    match requests[at].test() {
        Some(outcome) => {
            let status = outcome?;
            requests[at].hand_over(limit);
            Ok(Some((at, status)))
        }
        None => Err(Error::Cancelled),
    }
}

/// Waits until all of `requests` have ended, then returns the first error among them.
pub(crate) fn wait_all(world: &World, requests: &mut [Request<'_>], limit: Duration) -> Result<(), Error> {
    if requests.iter().all(|request| request.token().is_none()) {
        hand_all_over(world, requests, limit);
        return Ok(());
    }
    let mut all = All {
        world,
        requests,
        at: 0,
        badly: false,
    };
    world.wait_each(limit, &mut all)?;
    if all.badly {
        first_error(requests)?;
    }
    hand_all_over(world, requests, limit);
    Ok(())
}

/// Waits until the rails' devices have the messages of the sends among `requests`.
fn hand_all_over(world: &World, requests: &[Request<'_>], limit: Duration) {
    world.engine().flush_gathered();
    if world.engine().holds_back() {
        let begun = Instant::now();
        let sends = requests
            .iter()
            .filter(|request| request.kind == RequestKind::Send);
        sends.for_each(|request| request.hand_over(limit.saturating_sub(begun.elapsed())));
    }
}

/// Takes the outcomes of the requests that failed, and returns the first error.
#[cold]
fn first_error(requests: &mut [Request<'_>]) -> Result<(), Error> {
    let mut first = Ok(());
    for request in requests {
        if let (Some(_), Some(Err(error))) = (request.token(), request.test()) {
            first = first.and(Err(error));
        }
    }
    first
}

/// A wait for several requests that never checks one again that has ended, so that its cost is linear and not
/// quadratic.
struct All<'r, 'a> {
    world: &'r World,
    requests: &'r mut [Request<'a>],
    /// The requests before this index have ended; their peers are of no interest any more.
    at: usize,
    /// Whether one of them failed, and still has its outcome.
    badly: bool,
}

impl Each for All<'_, '_> {
    #[inline(always)]
    fn look(&mut self, look: &mut impl Look) -> Option<()> {
        for request in &mut self.requests[self.at..] {
            if let Phase::Open(token) = request.phase {
                if let Some(status) = look.take_well_ended(token) {
                    if let Some(lent) = &request.lent {
                        lent.settle(self.world);
                    }
                    request.phase = Phase::Done(request.shown(status));
                } else if look.is_done(token) {
                    self.badly = true;
                } else {
                    return None;
                }
            }
            self.at += 1;
        }
        Some(())
    }

    #[cold]
    fn awaited(&self) -> Awaited {
        let left = &self.requests[self.at..];
        let count = left.iter().filter(|request| request.token().is_some()).count();
        several(count, left)
    }
}

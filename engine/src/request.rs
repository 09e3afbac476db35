//! Handles of open requests: wait, test, cancel; and what becomes of them when they are dropped.

use std::cell::Cell;
use std::time::{Duration, Instant};

use doorbell_job::error::{Awaited, Error};
use doorbell_job::types::Status;

use crate::progress::{Each, Envelope, Held, Look, Ticket};
use crate::world::World;

/// A send or receive that was started and may still be under way.
///
/// * From a [`Scope`](crate::Scope): dropping (or leaking) the handle changes nothing; the scope waits for the request
///   before it returns the buffers.
/// * From [`World::isend_region`] and its like: dropping the handle lets the request run on; the region is kept alive
///   until it has ended.
#[must_use = "a request that nobody waits for tells nobody how it ended"]
pub struct Request<'a> {
    pub(crate) world: &'a World,
    pub(crate) phase: Phase,
    /// What was lent for it; `None` for owned memory.
    pub(crate) lent: Option<Lent<'a>>,
    pub(crate) envelope: Envelope,
    pub(crate) sends: bool,
}

/// What a request of a scope has borrowed: its entry in the ledger, and the buffer to be given back.
pub(crate) struct Lent<'a> {
    pub(crate) slot: u32,
    pub(crate) open: &'a Cell<usize>,
    /// A contiguous receive buffer.
    pub(crate) buffer: Option<(*mut u8, usize)>,
}

impl Lent<'_> {
    /// The request has ended: strikes it out.
    #[inline]
    pub(crate) fn settle(&self, world: &World) {
        world.ledger().strike(self.slot);
        self.open.set(self.open.get() - 1);
    }
}

/// Where a request is in its life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// Under way.
    Open(Ticket),
    /// Ended well.
    Done(Status),
    /// Ended badly, or its outcome was taken.
    Over,
}

impl<'a> Request<'a> {
    /// Waits for the end, at most for the world's deadline (`wait.deadline`).
    ///
    /// # Errors
    /// Those of the request; [`Error::Timeout`]. After a timeout the request is ended (with borrowed memory) or runs
    /// on by itself (with a region). [`Error::Busy`] in a hook: then it runs on, and its scope waits for it.
    pub fn wait(self) -> Result<Status, Error> {
        let limit = self.world.limit();
        self.wait_within(limit)
    }

    /// Waits for the end, at most for `limit`.
    ///
    /// # Errors
    /// As [`Request::wait`].
    pub fn wait_within(mut self, limit: Duration) -> Result<Status, Error> {
        self.finish(limit)
    }

    pub(crate) fn finish(&mut self, limit: Duration) -> Result<Status, Error> {
        match self.phase {
            Phase::Open(ticket) => {
                // Without the engine nothing can be ended: in a hook the request goes on, and its scope waits for it.
                let mut held = self.world.front().hold()?;
                let outcome = held.wait(ticket, limit, || self.awaited(), &mut |waiting| {
                    self.world.complain(waiting)
                });
                match outcome {
                    Err(Error::Timeout(waiting)) => {
                        self.give_up(&mut held, ticket);
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

    /// A wait for a send does not return while the rail holds it back.
    fn hand_over(&self, limit: Duration) {
        match self.sends {
            true => self
                .world
                .hand_over(Some(self.envelope.peer()), limit, &|| self.awaited()),
            false => self.world.front().flush_gathered(),
        }
    }

    /// After a timeout: borrowed memory goes back to its owner at once, owned memory may go on being used.
    #[cold]
    fn give_up(&mut self, held: &mut Held<'_>, ticket: Ticket) {
        if let Some(lent) = &self.lent {
            held.end(ticket);
            lent.settle(self.world);
            self.phase = Phase::Over;
        }
    }

    /// Looks once, making progress: `None` while it is under way. The outcome is told once; a success can be asked for
    /// again with [`Request::status`].
    pub fn test(&mut self) -> Option<Result<Status, Error>> {
        match self.phase {
            Phase::Open(ticket) => {
                let outcome = self.world.front().test(ticket)?;
                Some(self.settle(outcome))
            }
            Phase::Done(status) => {
                self.world.front().flush_gathered();
                Some(Ok(status))
            }
            Phase::Over => Some(Err(Error::Cancelled)),
        }
    }

    /// Whether it has ended, well or badly. Looks only; makes no progress.
    #[inline]
    pub fn is_done(&self) -> bool {
        match self.phase {
            Phase::Open(ticket) => self.world.front().is_done(ticket),
            _ => true,
        }
    }

    /// The status, after a wait or test that succeeded.
    pub fn status(&self) -> Option<Status> {
        match self.phase {
            Phase::Done(status) => Some(status),
            _ => None,
        }
    }

    /// Asks to cancel it: a receive that has found no message, or a send of which nothing has left. When the answer is
    /// `true`, it ends as [`Error::Cancelled`]; otherwise it goes on.
    pub fn cancel(&mut self) -> bool {
        match self.phase {
            Phase::Open(ticket) => self.world.front().cancel(ticket),
            _ => false,
        }
    }

    pub(crate) fn settle(&mut self, outcome: Result<Status, Error>) -> Result<Status, Error> {
        if let Some(lent) = &self.lent {
            lent.settle(self.world);
        }
        self.phase = outcome
            .as_ref()
            .map_or(Phase::Over, |status| Phase::Done(*status));
        outcome
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self.phase {
            Phase::Open(ticket) => Some(ticket),
            _ => None,
        }
    }

    fn awaited(&self) -> Awaited {
        if self.sends {
            self.envelope.awaited_send()
        } else {
            self.envelope.awaited_receive()
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if let (Phase::Open(ticket), None) = (self.phase, &self.lent) {
            self.world.front().detach(ticket);
        }
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Request({}: {:?})", self.awaited(), self.phase)
    }
}

/// What a wait for some of `open` requests says, of which `requests` are left.
#[cold]
fn several(open: usize, requests: &[Request<'_>]) -> Awaited {
    let peers = requests
        .iter()
        .filter(|request| request.ticket().is_some())
        .map(|request| request.envelope.named_peer())
        .collect();
    Awaited::Requests { count: open, peers }
}

/// Waits until one of `requests` has ended; `None` when none of them is under way.
pub(crate) fn wait_any(
    world: &World,
    requests: &mut [Request<'_>],
    limit: Duration,
) -> Result<Option<(usize, Status)>, Error> {
    let open = requests
        .iter()
        .filter(|request| request.ticket().is_some())
        .count();
    if open == 0 {
        world.front().flush_gathered();
        return Ok(None);
    }
    let at = world.wait_look(limit, &|| several(open, requests), &mut |look| {
        requests
            .iter()
            .position(|request| request.ticket().is_some_and(|ticket| look.is_done(ticket)))
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

/// Waits until all of `requests` have ended, then reports the first error among them.
pub(crate) fn wait_all(world: &World, requests: &mut [Request<'_>], limit: Duration) -> Result<(), Error> {
    if requests.iter().all(|request| request.ticket().is_none()) {
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

/// Waits until the rails' devices have what the sends among `requests` sent.
fn hand_all_over(world: &World, requests: &[Request<'_>], limit: Duration) {
    world.front().flush_gathered();
    if world.front().holds_back() {
        let begun = Instant::now();
        let sends = requests.iter().filter(|request| request.sends);
        sends.for_each(|request| request.hand_over(limit.saturating_sub(begun.elapsed())));
    }
}

/// The outcomes of those that did not end well.
#[cold]
fn first_error(requests: &mut [Request<'_>]) -> Result<(), Error> {
    let mut first = Ok(());
    for request in requests {
        if let (Some(_), Some(Err(error))) = (request.ticket(), request.test()) {
            first = first.and(Err(error));
        }
    }
    first
}

/// Requests of which each is looked at until it has ended, then never again: the cost is linear, not quadratic.
struct All<'r, 'a> {
    world: &'r World,
    requests: &'r mut [Request<'a>],
    /// Those before have ended; nobody is to look at their peers.
    at: usize,
    /// One of them not well: it still has its outcome.
    badly: bool,
}

impl Each for All<'_, '_> {
    #[inline(always)]
    fn look(&mut self, look: &mut impl Look) -> Option<()> {
        for request in &mut self.requests[self.at..] {
            if let Phase::Open(ticket) = request.phase {
                if let Some(status) = look.take_well_ended(ticket) {
                    if let Some(lent) = &request.lent {
                        lent.settle(self.world);
                    }
                    request.phase = Phase::Done(status);
                } else if look.is_done(ticket) {
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
        let count = left.iter().filter(|request| request.ticket().is_some()).count();
        several(count, left)
    }
}

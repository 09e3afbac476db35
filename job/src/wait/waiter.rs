//! The wait loop that all handles share: for the PML of a world, a Portals node, or active messages over one.
//!
//! ```text
//!   until it is done:  poll ── nothing ─► spin, yield, sleep on the rails' descriptors   (progress.wait)
//!                        │
//!                        └─ from time to time with the clock: losses, connection to another host, deadline
//! ```

use std::thread;
use std::time::Duration;

use doorbell_am_portals::Seen;
use doorbell_fabric::time::Time;

use super::turns::{Clock, Turn, Waiter, move_on};
use crate::error::{Awaited, Error, Waiting};

/// What a wait moves, sleeps on and explains.
pub trait Pollable {
    /// Whether a wait looks repeatedly in a way of its own before it polls.
    const LINGERS: bool;

    /// Makes one bounded pass without the clock; returns the work found.
    fn poll(&mut self) -> usize;

    /// Makes one bounded pass of what depends on the time; returns the work done.
    fn progress_at(&mut self, now: Time) -> usize;

    /// Whether a rail needs a later time than that of the last [`Pollable::progress_at`].
    fn wants_time(&self) -> bool;

    /// Returns when [`Pollable::progress_at`] has something to do next.
    fn next_deadline(&self) -> Option<Time>;

    /// Whether a rail has to be polled, so that a wait must not sleep.
    fn must_poll(&self) -> bool;

    /// Arms all rails and sleeps for at most `longest`; `false` when it did not sleep.
    fn sleep(&mut self, longest: Duration) -> bool;

    /// Ends what a sleep has prepared.
    fn disarm(&mut self);

    /// Returns what is known about the peers concerned.
    fn explain(&self, what: Awaited, waited: Duration) -> Waiting;

    /// Returns the error of a wait that has reached its limit.
    fn expired(&self, what: Awaited, waited: Duration) -> Error;

    /// Reports that a wait takes long.
    fn notice(&mut self, waiting: &Waiting);

    /// Checks that this is the process that owns the rails.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of it.
    fn here(&self) -> Result<(), Error>;

    /// Returns the error of a wait for `what` that cannot succeed any more.
    fn hopeless(&self, what: Awaited) -> Option<Error>;
}

/// Waits until `done` returns something; `linger` looks repeatedly for what is waited for.
///
/// # Errors
/// [`Error::Timeout`] when the limit passes first; what [`Pollable::hopeless`] returns.
#[inline(always)]
pub fn wait<P: Pollable, R>(
    at: &mut P,
    mut waiter: Waiter<'_>,
    what: impl Fn() -> Awaited,
    mut linger: impl FnMut(&mut P, u32) -> Seen,
    mut done: impl FnMut(&mut P) -> Option<R>,
) -> Result<R, Error> {
    let looks = if P::LINGERS { waiter.looks() } else { 0 };
    loop {
        let mut turns = 1;
        if looks > 0 {
            match linger(at, looks) {
                Seen::Something => {}
                Seen::Nothing => turns = looks,
                Seen::Counted(_) => {
                    if let Some(result) = done(at) {
                        return Ok(result);
                    }
                }
            }
        }
        let work = at.poll();
        if let Some(result) = done(at) {
            return Ok(result);
        }
        match waiter.turn_after(turns, work > 0) {
            Turn::Again if !at.wants_time() => {}
            Turn::Again => _ = at.progress_at(waiter.now()),
            Turn::Pass => pass(at, &waiter),
            turn => {
                slow_turn(at, turn, &waiter, &what)?;
                if let Some(error) = at.hopeless(what()) {
                    // What a lost rank sent before its end counts.
                    return done(at).ok_or(error);
                }
            }
        }
    }
}

/// Polls while `holds` finds that rails hold messages back; `false` when the limit passes first.
#[cold]
#[inline(never)]
pub fn push_out<P: Pollable>(
    at: &mut P,
    mut waiter: Waiter<'_>,
    what: &dyn Fn() -> Awaited,
    holds: &mut dyn FnMut(&mut P) -> bool,
) -> bool {
    if let Clock::Virtual(_) = waiter.clock() {
        // One thread drives all ranks of a simulation: no other rank can act while this one waits.
        return true;
    }
    while holds(at) {
        let turn = waiter.turn(at.poll() > 0);
        if slow_turn(at, turn, &waiter, what).is_err() {
            return false;
        }
    }
    true
}

/// Gives the core away once.
#[cold]
fn pass<P: Pollable>(at: &mut P, waiter: &Waiter<'_>) {
    if at.wants_time() {
        at.progress_at(waiter.now());
    }
    thread::yield_now();
}

#[cold]
fn slow_turn<P: Pollable>(
    at: &mut P,
    turn: Turn,
    waiter: &Waiter<'_>,
    what: &dyn Fn() -> Awaited,
) -> Result<(), Error> {
    match turn {
        Turn::Again => {}
        Turn::Pass => pass(at, waiter),
        Turn::Housekeep(now) => _ = at.progress_at(now),
        Turn::Yield(now) => {
            if at.progress_at(now) == 0 {
                thread::yield_now();
            }
        }
        Turn::Sleep(now, until) => {
            if at.progress_at(now) == 0 {
                sleep(at, waiter.clock(), now, until);
            }
        }
        Turn::Quiet(now) => {
            let waiting = at.explain(what(), waiter.waited(now));
            at.notice(&waiting);
            // The callback may have forked, and this may be the child.
            at.here()?;
        }
        Turn::Expired(now) => return Err(at.expired(what(), waiter.waited(now))),
    }
    Ok(())
}

/// Sleeps until a rail has something, a deadline of the rails comes, or `until`.
#[cold]
pub fn sleep<P: Pollable>(at: &mut P, clock: &Clock, now: Time, until: Time) {
    if at.must_poll() {
        thread::yield_now();
        return;
    }
    let until = at.next_deadline().map_or(until, |due| due.min(until));
    if let Clock::Virtual(net) = clock {
        // One thread drives all ranks of a simulation: no other rank can act, so the time simply passes.
        let next = net.next_event().map_or(until, |event| event.min(until));
        net.advance_to(next);
        return;
    }
    if !at.sleep(until.since(now)) {
        thread::yield_now();
    }
    at.disarm();
}

/// Makes one bounded pass with everything, for rank `rank`. It moves a simulated network's clock on, which
/// stops where the rank has something to do next (`stopped` is the time of its last stop).
pub fn progress<P: Pollable>(
    at: &mut P,
    clock: &Clock,
    rank: u32,
    stopped: &mut Option<Time>,
    pass: impl FnOnce(&mut P, Time) -> usize,
) -> usize {
    let Clock::Virtual(net) = clock else {
        return pass(at, clock.now());
    };
    move_on(net, rank, at.next_deadline(), stopped);
    let work = pass(at, net.now());
    net.set_alarm(rank, at.next_deadline());
    work
}

/// Repeats `close`, which sends what was accepted and returns whether that is all, for at most `limit`.
pub fn close(clock: &Clock, limit: Duration, mut close: impl FnMut(Time, Time) -> bool) {
    let by = clock.now() + limit;
    loop {
        let now = clock.now();
        if close(now, by) || now >= by {
            return;
        }
        match clock {
            Clock::Virtual(net) => {
                let next = net.next_event().map_or(by, |event| event.min(by));
                net.advance_to(next);
            }
            Clock::Machine(_) => thread::yield_now(),
        }
    }
}

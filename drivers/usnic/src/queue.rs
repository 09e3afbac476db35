//! Turning queues on and off: each takes its time, which is bounded, and none of it is waited for here.
//!
//! A receive queue is turned off twice, as usNIC's library does: once may leave stale entries in the
//! adapter's cache.
//!
//! Sources: libfabric `vnic_wq.c` and `vnic_rq.c` (a work queue: 1000 looks of 10 µs; a receive queue: 20 000
//! looks, twice).

use std::time::{Duration, Instant};

use memoffset::offset_of;

use crate::errno::Fault;
use crate::regs::{GONE, ReceiveQueue, WorkQueue};
use crate::window::Window;

/// A queue of either kind: the registers used here are at the same places.
const ENABLE: usize = offset_of!(WorkQueue, enable);
const RUNNING: usize = offset_of!(WorkQueue, running);
const _: () =
    assert!(ENABLE == offset_of!(ReceiveQueue, enable) && RUNNING == offset_of!(ReceiveQueue, running));

/// How long a work queue, and each of the two times a receive queue, may take to stop; then how long both may
/// take to start, which the drivers do not specify `[I]`.
const STOP_LOOKS: u32 = 1_000;
const STOP_LOOKS_RQ: u32 = 20_000;
const BETWEEN: Duration = Duration::from_micros(10);
const LIMIT: Duration = Duration::from_millis(100);
/// A queue gets at least this time, and a few polls, however often it is polled: a caller that polls seldom
/// does not wait longer for that. (A receive queue's polls have no pause between them in the library.)
const LIMIT_STOP: Duration = Duration::from_millis(20);
const FEW_LOOKS: u32 = 20;

/// The kind of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// A queue on its way on or off.
#[derive(Debug)]
pub(crate) struct Turning {
    side: Side,
    goal: u32,
    rounds: u32,
    looks: u32,
    since: Instant,
    next: Instant,
}

impl Turning {
    /// Begins to turn a queue off.
    pub(crate) fn off(window: &Window, side: Side) -> Result<Self, Fault> {
        let rounds = if side == Side::Receive { 2 } else { 1 };
        Self::begin(window, side, 0, rounds)
    }

    /// Begins to turn a queue on.
    pub(crate) fn on(window: &Window, side: Side) -> Result<Self, Fault> {
        Self::begin(window, side, 1, 1)
    }

    fn begin(window: &Window, side: Side, goal: u32, rounds: u32) -> Result<Self, Fault> {
        window.write32(ENABLE, goal)?;
        let now = Instant::now();
        Ok(Self {
            side,
            goal,
            rounds,
            looks: 0,
            since: now,
            next: now,
        })
    }

    fn is_late(&self) -> bool {
        match self.side {
            _ if self.goal == 1 => self.since.elapsed() >= LIMIT && self.looks >= STOP_LOOKS / 10,
            side => {
                let most = if side == Side::Send {
                    STOP_LOOKS
                } else {
                    STOP_LOOKS_RQ
                };
                self.looks >= most || self.since.elapsed() >= LIMIT_STOP && self.looks >= FEW_LOOKS
            }
        }
    }

    /// Looks once, if it is time; true when the queue is where it should be.
    pub(crate) fn poll(&mut self, window: &Window) -> Result<bool, Fault> {
        let now = Instant::now();
        if now < self.next {
            return Ok(false);
        }
        (self.looks, self.next) = (self.looks + 1, now + BETWEEN);
        let running = window.read32(RUNNING)?;
        if running == GONE {
            return Err(Fault::Gone);
        }
        if running != self.goal {
            return match (self.is_late(), self.goal) {
                (false, _) => Ok(false),
                (true, 0) => Err(Fault::TimedOut("disable (a queue does not stop)")),
                (true, _) => Err(Fault::TimedOut("enable (a queue does not start)")),
            };
        }
        self.rounds -= 1;
        if self.rounds == 0 {
            return Ok(true);
        }
        *self = Self::begin(window, self.side, self.goal, self.rounds)?;
        Ok(false)
    }
}

//! The end of the job: any rank may request it, at any time (gasnet.md section 12).
//!
//! A rank that exits sends SHUTDOWN_REQUEST to the rank 1, 2, 4 … above it, each once the one from as far
//! below has come, with the largest status so far: after the last all know the largest. A rank that receives
//! one while it runs begins its own exit. All that waits otherwise ends with
//! [`AmError::ShuttingDown`](crate::AmError::ShuttingDown).
//!
//! If it does not end within the time of the settings, it is [`Unclean`]. The original then gives SIGINT its
//! default action back and raises it, so that the launcher kills the job: that is the caller's to do. A
//! signal handler must not exit itself (it may have interrupted anything): it sets an [`ExitFlag`], which is
//! one store, and polls look at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::time::Time;
use thiserror::Error;

/// Largest number of steps: ranks have 32 bits.
const STEPS: usize = 32;

/// A flag that a signal handler may set to end the job; async-signal-safe, since it is one atomic store. Its
/// default status is 130 (a shell's status for SIGINT).
#[derive(Clone, Debug)]
pub struct ExitFlag {
    flag: Arc<AtomicBool>,
    status: u8,
}

impl Default for ExitFlag {
    fn default() -> Self {
        Self::new(Arc::default(), 130)
    }
}

impl ExitFlag {
    /// Over a flag that something else sets, with the status that the job ends with then.
    #[must_use]
    pub const fn new(flag: Arc<AtomicBool>, status: u8) -> Self {
        Self { flag, status }
    }

    /// Has the job end.
    pub fn set(&self) {
        // Nothing else is published with it.
        self.flag.store(true, Ordering::Relaxed);
    }

    /// The status that the job ends with then.
    #[must_use]
    pub const fn status(&self) -> u8 {
        self.status
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

/// Why an exit did not end in order.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unclean {
    /// A rank did not respond in time.
    #[error("the exit with status {code} got no response from rank {rank} within {} s: it does not poll, or hangs", waited.as_secs())]
    Silent {
        /// The largest status so far.
        code: u8,
        /// The rank that was waited for.
        rank: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A rank is lost.
    #[error("the exit with status {code} found that rank {rank} is lost ({reason:?})")]
    Lost {
        /// The largest status so far.
        code: u8,
        /// The rank that is lost.
        rank: u32,
        /// Why it is lost.
        reason: DownReason,
    },
}

/// How far the end of the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The end of the job was not requested.
    No,
    /// An exit is in progress.
    Underway {
        /// The largest status so far.
        code: u8,
        /// The rank that requested it, as far as this rank knows.
        by: u32,
    },
    /// Over: with the largest status of all, or not in order.
    Over(Result<u8, Unclean>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Requested; the time is not known yet.
    Asked,
    Leaving {
        step: u32,
        began: Time,
    },
    /// The result is known; messages to the others may still wait for room.
    Telling {
        began: Time,
    },
    Over(Result<u8, Unclean>),
}

/// The exit of one rank.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) flag: ExitFlag,
    state: State,
    me: u32,
    nodes: u32,
    wait: Duration,
    code: u8,
    by: u32,
    arrived: [Option<u8>; STEPS],
}

/// A SHUTDOWN_REQUEST that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tell {
    pub(crate) to: u32,
    pub(crate) step: u32,
    pub(crate) code: u8,
}

impl Exit {
    pub(crate) fn new(me: u32, nodes: u32, wait: Duration, flag: ExitFlag) -> Self {
        Self {
            flag,
            state: State::Running,
            me,
            nodes,
            wait,
            code: 0,
            by: me,
            arrived: [None; STEPS],
        }
    }

    /// Whether no exit is in progress.
    #[inline]
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Returns how far it is.
    pub(crate) const fn leaving(&self) -> Leaving {
        match self.state {
            State::Running => Leaving::No,
            State::Asked | State::Leaving { .. } | State::Telling { .. } => Leaving::Underway {
                code: self.code,
                by: self.by,
            },
            State::Over(how) => Leaving::Over(how),
        }
    }

    /// Requests the end with this status. Later requests only raise it, as long as it has not been sent.
    pub(crate) fn request(&mut self, code: u8) {
        self.begin(code, self.me);
    }

    /// Handles a SHUTDOWN_REQUEST; returns whether it is valid.
    #[must_use]
    pub(crate) fn message(&mut self, from: u32, step: u32, code: u8) -> bool {
        let expected = self.from(step);
        let Some(slot) = self.arrived.get_mut(step as usize) else {
            return false;
        };
        if expected != Some(from) || slot.is_some() {
            return false;
        }
        *slot = Some(code);
        if self.is_running() {
            self.begin(code, from);
        }
        true
    }

    fn begin(&mut self, code: u8, by: u32) {
        match self.state {
            State::Running => {
                self.state = State::Asked;
                self.by = by;
                self.code = code;
            }
            State::Asked | State::Leaving { .. } => self.code = self.code.max(code),
            State::Telling { .. } | State::Over(_) => {}
        }
    }

    /// Continues as far as possible; the result is to be sent, and the call repeated until `None`. `blocked`
    /// is a rank with unsent messages: the exit is not over before they have been sent.
    pub(crate) fn next(&mut self, now: Time, blocked: Option<u32>) -> Option<Tell> {
        match self.state {
            State::Running | State::Over(_) => None,
            State::Asked => {
                self.state = State::Leaving { step: 0, began: now };
                self.tell(0, now)
            }
            State::Leaving { step, began } => {
                let slot = self.arrived.get_mut(step as usize)?;
                if let Some(code) = slot.take() {
                    self.code = self.code.max(code);
                    self.state = State::Leaving {
                        step: step + 1,
                        began,
                    };
                    return self.tell(step + 1, began);
                }
                let rank = self.from(step).unwrap_or(self.me);
                self.give_up(now, began, rank);
                None
            }
            State::Telling { began } => {
                match blocked {
                    None => self.state = State::Over(Ok(self.code)),
                    Some(rank) => self.give_up(now, began, rank),
                }
                None
            }
        }
    }

    /// Ends it, if its time is over.
    fn give_up(&mut self, now: Time, began: Time, rank: u32) {
        if now.since(began) >= self.wait {
            self.state = State::Over(Err(Unclean::Silent {
                code: self.code,
                rank,
                waited: self.wait,
            }));
        }
    }

    /// Handles the loss of a rank. One that exited in order after its last message is not missed.
    pub(crate) fn lost(&mut self, rank: u32, reason: DownReason) {
        let State::Leaving { step, .. } = self.state else {
            return;
        };
        let awaited = (step..STEPS as u32).any(|step| {
            let silent = self.arrived.get(step as usize).is_some_and(Option::is_none);
            silent && self.from(step) == Some(rank)
        });
        if reason != DownReason::Closed || awaited {
            self.state = State::Over(Err(Unclean::Lost {
                code: self.code,
                rank,
                reason,
            }));
        }
    }

    /// The time at which [`Exit::next`] gives up.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Asked => Some(Time::ZERO),
            State::Leaving { began, .. } | State::Telling { began } => Some(began + self.wait),
            _ => None,
        }
    }

    /// The rank that a step notifies; past the last step it is over.
    fn tell(&mut self, step: u32, began: Time) -> Option<Tell> {
        let Some(distance) = distance(step, self.nodes) else {
            self.state = State::Telling { began };
            return None;
        };
        Some(Tell {
            to: above(self.me, distance, self.nodes),
            step,
            code: self.code,
        })
    }

    /// The rank that notifies us in a step.
    fn from(&self, step: u32) -> Option<u32> {
        let distance = distance(step, self.nodes)?;
        Some(above(self.me, self.nodes - distance, self.nodes))
    }
}

/// The distance of a step of a dissemination: 1, 2, 4 …; `None` past the last one.
pub(crate) const fn distance(step: u32, nodes: u32) -> Option<u32> {
    match 1u32.checked_shl(step) {
        Some(distance) if distance < nodes => Some(distance),
        _ => None,
    }
}

/// The rank so far above another, around the circle.
pub(crate) const fn above(rank: u32, distance: u32, nodes: u32) -> u32 {
    ((rank as u64 + distance as u64) % nodes as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(nodes: u32) -> Vec<Exit> {
        let wait = Duration::from_secs(5);
        (0..nodes)
            .map(|me| Exit::new(me, nodes, wait, ExitFlag::default()))
            .collect()
    }

    /// Delivers everything, one rank after the other.
    fn settle(ranks: &mut [Exit], now: Time) {
        loop {
            let mut moved = false;
            for me in 0..ranks.len() {
                while let Some(tell) = ranks[me].next(now, None) {
                    moved = true;
                    assert!(ranks[tell.to as usize].message(me as u32, tell.step, tell.code));
                }
            }
            if !moved {
                // The messages that report it have left.
                for rank in &mut *ranks {
                    assert_eq!(rank.next(now, None), None);
                }
                return;
            }
        }
    }

    #[test]
    fn it_is_not_over_before_the_others_are_notified() {
        let mut ranks = ranks(2);
        ranks[0].request(1);
        assert!(ranks[0].next(Time::ZERO, None).is_some());
        assert!(ranks[0].message(1, 0, 7));
        assert_eq!(ranks[0].next(Time::ZERO, Some(1)), None);
        assert_eq!(ranks[0].next(Time::from_nanos(9), Some(1)), None);
        assert!(matches!(ranks[0].leaving(), Leaving::Underway { code: 7, by: 0 }));
        let late = Time::from_nanos(5_000_000_000);
        assert_eq!(ranks[0].deadline(), Some(late));
        assert_eq!(ranks[0].next(late, None), None);
        assert_eq!(ranks[0].leaving(), Leaving::Over(Ok(7)));
    }

    #[test]
    fn all_end_with_the_largest_status_whichever_rank_requests_it() {
        for nodes in 1..=17 {
            for asks in 0..nodes {
                let mut ranks = ranks(nodes);
                ranks[asks as usize].request(3);
                ranks[(asks as usize + 1) % nodes as usize].request(9);
                settle(&mut ranks, Time::ZERO);
                for rank in &ranks {
                    assert_eq!(
                        rank.leaving(),
                        Leaving::Over(Ok(9)),
                        "{nodes} ranks, rank {asks} begins"
                    );
                }
            }
        }
    }

    #[test]
    fn a_rank_that_does_not_answer_is_named() {
        let mut ranks = ranks(3);
        ranks[0].request(1);
        let tell = ranks[0].next(Time::ZERO, None);
        assert_eq!(tell.map(|tell| tell.to), Some(1));
        assert_eq!(ranks[0].deadline(), Some(Time::ZERO + Duration::from_secs(5)));
        assert_eq!(ranks[0].next(Time::from_nanos(4_999_999_999), None), None);
        assert!(matches!(ranks[0].leaving(), Leaving::Underway { code: 1, by: 0 }));
        assert_eq!(ranks[0].next(Time::from_nanos(5_000_000_000), None), None);
        assert!(matches!(
            ranks[0].leaving(),
            Leaving::Over(Err(Unclean::Silent { code: 1, rank: 2, .. }))
        ));
    }

    #[test]
    fn a_lost_rank_ends_it_and_one_that_has_said_all_does_not() {
        for (reason, from, ends) in [
            (DownReason::Closed, 1, false),
            (DownReason::Closed, 2, true),
            (DownReason::Died, 1, true),
        ] {
            let mut ranks = ranks(3);
            ranks[0].request(1);
            assert!(ranks[0].next(Time::ZERO, None).is_some());
            assert!(ranks[0].message(1, 1, 4), "rank 1 has sent its message of step 1");
            assert!(!ranks[0].message(1, 1, 4), "once");
            assert!(!ranks[0].message(1, 0, 4), "in step 0 rank 2 does");
            assert!(!ranks[0].message(1, 40, 4));
            ranks[0].lost(from, reason);
            assert_eq!(matches!(ranks[0].leaving(), Leaving::Over(_)), ends, "{reason:?}");
        }
    }
}

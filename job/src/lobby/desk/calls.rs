//! Calls to other desks that are under way: none of them blocks.
//!
//! ```text
//!   begun ──► due ── connect, send the card ──► waits for the answer ──► answered
//!              ▲ ▲        │ backlog full              │ closed without an answer
//!              │ └────────┘                           ▼
//!              └────────────────────────── a pause, a few times ──► failed
//! ```
//!
//! A call has no limit in time: its callee may compute for minutes before it looks at its desk, and the
//! kernel reports its end meanwhile.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::lobby::card::Name;

/// Pause between attempts while the other end's backlog is full.
pub(super) const RETRY: Duration = Duration::from_millis(1);
/// The pauses after attempts that were closed without an answer: a desk that is flooded, or that ends. After
/// the last one, the desk does not admit us.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(50),
];
/// Most calls that one pass begins.
const MOST_AT_ONCE: usize = 64;

/// The state of one call.
#[derive(Debug)]
struct Call {
    /// The number of its connection, when it has one.
    number: Option<u64>,
    /// When it is tried next.
    next: Instant,
    /// How often it was closed without an answer.
    closed: usize,
}

/// The calls that are under way, by the name of the callee.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: HashMap<Name, Call>,
    /// Those without a connection.
    due: VecDeque<Name>,
}

impl Calls {
    /// Begins a call, unless there is one.
    pub(super) fn begin(&mut self, name: Name, now: Instant) {
        if self.calls.contains_key(&name) {
            return;
        }
        let call = Call {
            number: None,
            next: now,
            closed: 0,
        };
        self.calls.insert(name, call);
        self.due.push_back(name);
    }

    /// Returns the calls to be tried now, which are due no more.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Name> {
        let mut found = Vec::new();
        for _ in 0..self.due.len() {
            let Some(name) = self.due.pop_front() else { break };
            let Some(call) = self.calls.get(&name) else {
                continue;
            };
            if call.next <= now && found.len() < MOST_AT_ONCE {
                found.push(name);
            } else {
                self.due.push_back(name);
            }
        }
        found
    }

    /// The callee's backlog is full: the call is tried again soon.
    pub(super) fn again(&mut self, name: Name, now: Instant) {
        if let Some(call) = self.calls.get_mut(&name) {
            call.next = now + RETRY;
            self.due.push_back(name);
        }
    }

    /// The card was sent over a connection.
    pub(super) fn sent(&mut self, name: &Name, number: u64) {
        if let Some(call) = self.calls.get_mut(name) {
            call.number = Some(number);
        }
    }

    /// The connection was closed without an answer. Returns whether the call is tried again.
    pub(super) fn was_closed(&mut self, name: Name, now: Instant) -> bool {
        let Some(call) = self.calls.get_mut(&name) else {
            return true;
        };
        call.number = None;
        let Some(pause) = PAUSES.get(call.closed) else {
            self.calls.remove(&name);
            return false;
        };
        call.closed += 1;
        call.next = now + *pause;
        self.due.push_back(name);
        true
    }

    /// Ends a call; returns the number of its connection.
    pub(super) fn end(&mut self, name: &Name) -> Option<u64> {
        self.calls.remove(name)?.number
    }

    /// Returns the number of calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns when the next call is to be tried.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due
            .iter()
            .filter_map(|name| Some(self.calls.get(name)?.next))
            .min()
    }
}

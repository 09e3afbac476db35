//! Calls to other desks that are under way: none of them blocks.
//!
//! ```text
//!   begun ──► due ── connect, send the card ──► waits for the answer ──► answered
//!              ▲ ▲        │ backlog full, no file     │ closed without an answer
//!              │ └────────┘                           ▼
//!              └────────────────────────── a pause, a few times ──► failed
//! ```
//!
//! A call has no limit in time: its callee may compute for minutes before it looks at its desk, and the
//! kernel reports its end meanwhile. One for which this process has no descriptor ends after
//! [`SHORTAGE_MAX`]: where many processes meet at once, they lack for a moment only.

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
/// How long descriptors may be lacking, while no peer gets met, before the calls that need them fail.
pub(super) const SHORTAGE_MAX: Duration = Duration::from_secs(10);
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
    /// Since when there is no descriptor for it.
    short_since: Option<Instant>,
}

/// The calls that are under way, by the name of the callee.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: HashMap<Name, Call>,
    /// Those without a connection.
    due: VecDeque<Name>,
    /// When a peer was met completely the last time, so that descriptors got free.
    met_at: Option<Instant>,
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
            short_since: None,
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
            (call.next, call.short_since) = (now + RETRY, None);
            self.due.push_back(name);
        }
    }

    /// A call waits until descriptors are free; it is tried again soon. Returns `false` for one that has
    /// waited too long while there were none at all.
    pub(super) fn wait_for_files(&mut self, name: Name, now: Instant, is_short: bool) -> bool {
        let Some(call) = self.calls.get_mut(&name) else {
            return true;
        };
        if is_short {
            let since = Some(*call.short_since.get_or_insert(now)).max(self.met_at);
            if since.is_some_and(|since| now.saturating_duration_since(since) >= SHORTAGE_MAX) {
                return false;
            }
        }
        call.next = now + RETRY;
        self.due.push_back(name);
        true
    }

    /// The card was sent over a connection.
    pub(super) fn sent(&mut self, name: &Name, number: u64) {
        if let Some(call) = self.calls.get_mut(name) {
            (call.number, call.short_since) = (Some(number), None);
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

    /// A peer was met completely.
    pub(super) fn one_is_met(&mut self) {
        self.met_at = Some(Instant::now());
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

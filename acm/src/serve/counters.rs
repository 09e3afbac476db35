//! Counters of the listeners: every way in which a client is served, rejected or disconnected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Count {
    /// Clients that were accepted.
    Clients,
    /// Queries passed to the back end.
    Questions,
    /// Invalid queries answered with a status by the listener.
    Refused,
    /// Answers written to a client.
    Answers,
    /// Queries that the back end dropped without an answer.
    Unanswered,
    /// Clients disconnected because of another protocol version.
    Version,
    /// Clients disconnected because of an unknown opcode.
    Opcode,
    /// Clients disconnected because of an invalid length.
    Length,
    /// Clients disconnected because a query stayed incomplete for too long.
    Half,
    /// Clients disconnected because they did not read an answer in time.
    Stuck,
    /// Clients disconnected because of too many bytes of unread answers.
    Unread,
    /// Clients that disconnected in the middle of a query.
    Cut,
    /// Clients whose connection broke.
    Broken,
    /// Clients turned away because there were too many.
    Crowded,
    /// Connections that could not be accepted: no descriptor, no memory.
    NotAccepted,
}

impl Count {
    /// The number of counters.
    const COUNT: usize = 15;

    /// Lists all counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Clients,
        Self::Questions,
        Self::Refused,
        Self::Answers,
        Self::Unanswered,
        Self::Version,
        Self::Opcode,
        Self::Length,
        Self::Half,
        Self::Stuck,
        Self::Unread,
        Self::Cut,
        Self::Broken,
        Self::Crowded,
        Self::NotAccepted,
    ];

    /// Returns the counter's name, as it is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Questions => "questions",
            Self::Refused => "refused",
            Self::Answers => "answers",
            Self::Unanswered => "unanswered",
            Self::Version => "left_version",
            Self::Opcode => "left_opcode",
            Self::Length => "left_length",
            Self::Half => "left_half_question",
            Self::Stuck => "left_stuck",
            Self::Unread => "left_unread",
            Self::Cut => "gone_in_a_question",
            Self::Broken => "broken",
            Self::Crowded => "crowded",
            Self::NotAccepted => "not_accepted",
        }
    }
}

/// The counters of a server, readable from any thread while it runs.
#[derive(Debug, Default)]
pub struct ServerCounters {
    counts: [AtomicU64; Count::COUNT],
    present: AtomicU64,
}

impl ServerCounters {
    /// Returns the value of a counter.
    #[must_use]
    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of connected clients.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a client as connected for as long as it exists.
#[derive(Debug)]
pub(super) struct Present(Arc<ServerCounters>);

impl Present {
    pub(super) fn enter(served: &Arc<ServerCounters>) -> Self {
        served.add(Count::Clients);
        served.present.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(served))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Ordering::Relaxed);
    }
}

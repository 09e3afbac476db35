//! What is counted: every way in which a client is served, refused or left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Count {
    /// Clients that were let in.
    Clients,
    /// Questions that were passed on.
    Questions,
    /// Questions that were answered with a status at the door, since they are none.
    Refused,
    /// Answers that the system took for their client.
    Answers,
    /// Questions that the back-end let go without an answer.
    Unanswered,
    /// Clients left: another version.
    Version,
    /// Clients left: an unknown opcode.
    Opcode,
    /// Clients left: a length that no question has.
    Length,
    /// Clients left: half a question for too long.
    Half,
    /// Clients left: they did not take an answer in time.
    Stuck,
    /// Clients left: too many bytes of answers that they did not read.
    Unread,
    /// Clients that went in the middle of a question.
    Cut,
    /// Clients whose connection broke.
    Broken,
    /// Clients that were turned away: there are too many.
    Crowded,
    /// Times that the system could not let a client in: no descriptor, no memory.
    NotAccepted,
}

impl Count {
    /// How many there are.
    const COUNT: usize = 15;

    /// All of them.
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

    /// Its name, for counters that are shown.
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

/// Counters of a service, which can be read from any thread while it runs.
#[derive(Debug, Default)]
pub struct Served {
    counts: [AtomicU64; Count::COUNT],
    present: AtomicU64,
}

impl Served {
    /// How often it happened.
    #[must_use]
    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Clients that are there now.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A client that is there, as long as this is.
#[derive(Debug)]
pub(super) struct Present(Arc<Served>);

impl Present {
    pub(super) fn enter(served: &Arc<Served>) -> Self {
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

//! The time of the last housekeeping.

use doorbell_fabric::time::Time;

/// The time of the last housekeeping, and whether a rail finds it old.
#[derive(Debug)]
pub(crate) struct Clock {
    now: Time,
    is_old: bool,
}

impl Clock {
    /// No housekeeping yet.
    pub(crate) const fn new() -> Self {
        Self {
            now: Time::ZERO,
            is_old: false,
        }
    }

    /// The time of the last housekeeping.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Housekeeping begins at this time.
    pub(crate) fn set(&mut self, now: Time) {
        self.now = now;
        self.is_old = false;
    }

    /// Notes whether a rail finds the time old.
    #[inline(always)]
    pub(crate) fn note_old(&mut self, is_old: bool) {
        self.is_old |= is_old;
    }

    /// Whether a rail finds the time old.
    #[inline]
    pub(crate) fn is_old(&self) -> bool {
        self.is_old
    }
}

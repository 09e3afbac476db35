//! The clock of a progress thread and of everything that runs on it.

use std::time::Instant;

use doorbell_fabric::time::Time;

/// A clock that starts when it is created. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts a clock at [`Time::ZERO`].
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }

    /// Converts to the system's clock; `None` for [`Time::NEVER`] and times as distant.
    #[must_use]
    pub fn instant(self, at: Time) -> Option<Instant> {
        self.0
            .checked_add(at.since(Time::ZERO))
            .filter(|_| at != Time::NEVER)
    }
}

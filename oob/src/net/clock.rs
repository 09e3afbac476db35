//! The clock of a progress thread and of all that runs on it.

use std::time::Instant;

use doorbell_fabric::time::Time;

/// Time since it was made. Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins at [`Time::ZERO`].
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time.
    #[must_use]
    pub fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }

    /// When the system's clock shows this time; `None` for [`Time::NEVER`] and what is as far away.
    #[must_use]
    pub fn instant(self, at: Time) -> Option<Instant> {
        self.0
            .checked_add(at.since(Time::ZERO))
            .filter(|_| at != Time::NEVER)
    }
}

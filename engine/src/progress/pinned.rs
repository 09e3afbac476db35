//! The core of the progress thread, and whether the thread still has it.
//!
//! The kernel moves a bound thread elsewhere when its core goes offline, and a user or a cpuset may move it,
//! too. Then the thread may be on the core of the rank's own thread: it looks once a second, reports this
//! once, and yields from then on.

use std::time::Duration;

use doorbell_fabric::cores::{self, CoreSet, Topology};
use doorbell_fabric::time::Time;
use doorbell_job::binding;
use doorbell_job::wait::turns::Patience;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The core that the thread was bound to.
#[derive(Debug)]
pub(super) struct Pinned {
    /// `None` for a thread that was not bound, or that has lost its core.
    core: Option<usize>,
    rank: u32,
    /// How it waits without a core of its own.
    crowded: Patience,
    /// When it looks again.
    next: Time,
}

impl Pinned {
    pub(super) fn to(core: Option<usize>, rank: u32, crowded: Patience) -> Self {
        let next = if core.is_some() { Time::ZERO } else { Time::NEVER };
        Self {
            core,
            rank,
            crowded,
            next,
        }
    }

    /// Whether it is time to look.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Looks which cores the thread has. Returns what happened to its core and how it waits from now on, if
    /// it has lost it.
    #[cold]
    pub(super) fn look(&mut self, now: Time) -> Option<(String, Patience)> {
        self.next = now + LOOK_EVERY;
        let core = self.core?;
        let cores = cores::allowed();
        if cores.is_empty() || cores == CoreSet::from_iter([core]) {
            return None;
        }
        self.core = None;
        self.next = Time::NEVER;
        let why = match Topology::read().online().contains(core) {
            true => "its cores were changed (by `taskset` or a cpuset)",
            false => "that core went offline",
        };
        let text = format!(
            "it was bound to core {core} and now may use cores {cores}: {why}; it yields from now on"
        );
        binding::report(self.rank, &text);
        Some((text, self.crowded))
    }
}

//! How often a rail is polled: on every n-th pass, by what a poll costs and by whether it brings anything.
//!
//! A poll that costs a system call waits for its turn (design, section 2). So does a rail that has been quiet for long
//! among others: an idle rail is not to cost what the messages of the others cost (design, section 10: at most 3 % more
//! instructions for a small message with three rails than with one). It is found out within sixteen passes, which a
//! caller that waits makes in a microsecond, or at the next housekeeping after a pause.

use doorbell_fabric::rail::{PollCost, Work};

/// What an idle pass over memory rails costs, in nanoseconds, roughly.
const PASS_NS: u32 = 50;
/// The rarest an expensive rail is polled, in passes.
const EVERY_MOST: u32 = 64;
/// Polls in a row that find nothing before a rail among others is quiet, and how often it is polled then.
const QUIET: u32 = 256;
const QUIET_EVERY: u32 = 16;

/// When a rail is polled next. Beside the others', and not with its rail: a pass reads all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Passes until the next poll; at least 1.
    left: u32,
    /// Passes from one poll that found nothing to the next, and the same of a quiet rail.
    every: u32,
    rarely: u32,
    /// Polls in a row that found nothing, up to [`QUIET`].
    quiet: u32,
}
const _: () = assert!(size_of::<Pace>() == 16);

impl Pace {
    pub(crate) fn new(cost: PollCost) -> Self {
        let every = match cost {
            PollCost::Memory => 1,
            PollCost::SystemCall(cost) => (cost / PASS_NS).clamp(1, EVERY_MOST),
        };
        Self {
            left: every,
            every,
            rarely: every,
            quiet: 0,
        }
    }

    /// There are others, whose messages wait while this one is polled.
    pub(crate) fn joined(&mut self) {
        self.rarely = self.every.max(QUIET_EVERY);
    }

    /// Whether this pass polls it.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The next pass polls it: it is about to be armed, and what wakes the sleeper must not wait for its turn; or nobody
    /// has looked for a while.
    pub(crate) fn expect(&mut self) {
        self.left = 1;
    }

    /// Something is about to come: every pass looks for a while.
    pub(crate) fn wake(&mut self) {
        (self.left, self.quiet) = (1, 0);
    }

    /// It was polled; what it found says when it is polled again.
    #[inline(always)]
    pub(crate) fn polled(&mut self, work: Work) {
        if work > 0 {
            (self.left, self.quiet) = (1, 0);
        } else if self.quiet < QUIET {
            (self.left, self.quiet) = (self.every, self.quiet + 1);
        } else {
            self.left = self.rarely;
        }
    }
}

//! The polling interval of each rail: every n-th pass, by the cost of a poll and by whether it finds
//! anything.
//!
//! A poll that costs a system call is not made in every pass (design, section 2). Neither is that of a rail
//! that has been quiet for long among others: an idle rail must not add to the cost of the others' messages
//! (design, section 10: at most 3 % more instructions for a small message with three rails than with one). A
//! message on it is found within sixteen passes, which a waiting caller makes in a microsecond, or at the
//! next housekeeping after a pause.
//!
//! So a pass checks a set of rails and one number: the pass at which one of the others is due.

use crate::rail::{PollCost, Work};

/// The most rails of one owner: a set of them is one word.
pub const RAILS_MAX: usize = u64::BITS as usize;
/// What an idle pass over memory rails costs, in nanoseconds, roughly.
const PASS_NS: u32 = 50;
/// The rarest an expensive rail is polled, in passes.
const EVERY_MOST: u32 = 64;
/// Polls in a row that find nothing before a rail among others is quiet, and how often it is polled then.
const QUIET: u32 = 256;
const QUIET_EVERY: u32 = 16;

/// When each rail is polled next. Beside the rails, and not with them: a pass reads this first.
#[derive(Clone, Debug, Default)]
pub struct Paces {
    /// The rails that every pass polls.
    always: u64,
    /// This pass, and the one at which a rail that is not among them is due.
    pass: u64,
    next: u64,
    rails: Vec<Pace>,
}

/// How often one rail is polled.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The pass that polls it, unless every one does.
    due: u64,
    /// Passes from one poll that found nothing to the next, and the same of a quiet rail.
    every: u32,
    rarely: u32,
    /// Polls in a row that found nothing.
    quiet: u32,
    /// How many of these it takes until not every pass polls it.
    patience: u32,
}

impl Pace {
    fn new(cost: PollCost) -> Self {
        let every = match cost {
            PollCost::Memory => 1,
            PollCost::SystemCall(cost) => (cost / PASS_NS).clamp(1, EVERY_MOST),
        };
        Self {
            due: 0,
            every,
            rarely: every,
            quiet: 0,
            patience: if every > 1 { 0 } else { u32::MAX },
        }
    }

    /// Records that other rails exist, whose messages wait while this one is polled.
    fn join(&mut self) {
        self.rarely = self.every.max(QUIET_EVERY);
        self.patience = self.patience.min(QUIET);
    }
}

impl Paces {
    /// A rail more; `false` when there are [`RAILS_MAX`].
    pub fn add(&mut self, cost: PollCost) -> bool {
        if self.rails.len() == RAILS_MAX {
            return false;
        }
        self.rails.push(Pace::new(cost));
        if self.rails.len() > 1 {
            self.rails.iter_mut().for_each(Pace::join);
        }
        self.expect_all();
        true
    }

    /// Starts a pass and returns the rails that it polls.
    #[inline(always)]
    pub fn begin(&mut self) -> Due {
        self.pass += 1;
        if self.pass < self.next {
            Due(self.always)
        } else {
            Due(self.always | self.others())
        }
    }

    /// The rails that are due although not every pass polls them.
    #[cold]
    #[inline(never)]
    fn others(&mut self) -> u64 {
        let mut due = 0;
        self.next = u64::MAX;
        for (rail, pace) in self.rails.iter().enumerate() {
            if self.always & 1 << rail != 0 {
                continue;
            }
            if pace.due <= self.pass {
                due |= 1 << rail; // what it finds sets when it is due again
                if pace.quiet < pace.patience {
                    self.always |= 1 << rail;
                }
            } else {
                self.next = self.next.min(pace.due);
            }
        }
        due
    }

    /// Records a poll of a rail; what it found determines when it is polled again.
    #[inline(always)]
    pub fn polled(&mut self, rail: usize, work: Work) {
        let pace = &mut self.rails[rail];
        if work > 0 {
            pace.quiet = 0;
            self.always |= 1 << rail;
        } else if pace.quiet < pace.patience {
            pace.quiet += 1;
        } else {
            self.rest(rail);
        }
    }

    /// Records that a rail has found nothing for so long that it is polled in turn only.
    #[inline(never)]
    fn rest(&mut self, rail: usize) {
        self.always &= !(1 << rail);
        let pace = &mut self.rails[rail];
        let passes = if pace.quiet < QUIET {
            pace.every
        } else {
            pace.rarely
        };
        pace.quiet = pace.quiet.saturating_add(1);
        pace.due = self.pass + u64::from(passes);
        self.next = self.next.min(pace.due);
    }

    /// Makes the next pass poll all of them: they are about to be armed, and the event that wakes the sleeper
    /// must not wait for its turn; or none was polled for a while.
    pub fn expect_all(&mut self) {
        for pace in &mut self.rails {
            pace.due = 0;
        }
        self.next = 0;
    }

    /// Makes every pass poll this rail for a while, if a poll is cheap, because a message is expected.
    pub fn expect(&mut self, rail: usize) {
        let pace = &mut self.rails[rail];
        (pace.quiet, pace.due) = (0, 0);
        self.next = 0;
    }
}

/// The rails that a pass polls, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Due(u64);

impl Iterator for Due {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let rail = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(rail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs passes in which only the rails of `busy` find something; how often each rail was polled.
    fn passes(paces: &mut Paces, count: u32, busy: &[usize]) -> Vec<u32> {
        let mut polls = vec![0; paces.rails.len()];
        for _ in 0..count {
            for rail in paces.begin() {
                polls[rail] += 1;
                paces.polled(rail, usize::from(busy.contains(&rail)));
            }
        }
        polls
    }

    fn of(costs: &[PollCost]) -> Paces {
        let mut paces = Paces::default();
        for cost in costs {
            assert!(paces.add(*cost));
        }
        paces
    }

    const MEMORY: PollCost = PollCost::Memory;

    #[test]
    fn a_rail_of_memory_that_is_alone_is_polled_on_every_pass() {
        assert_eq!(passes(&mut of(&[MEMORY]), 10_000, &[]), [10_000]);
    }

    #[test]
    fn a_poll_that_costs_a_system_call_waits_for_its_turn() {
        let polls = passes(&mut of(&[PollCost::SystemCall(500)]), 1_000, &[]);
        assert_eq!(polls, [100]);
        // A poll that finds something may leave more.
        let polls = passes(&mut of(&[PollCost::SystemCall(500)]), 1_000, &[0]);
        assert_eq!(polls, [1_000]);
    }

    #[test]
    fn quiet_rails_are_polled_rarely_while_another_is_busy() {
        let mut paces = of(&[MEMORY; 3]);
        assert_eq!(passes(&mut paces, QUIET, &[1]), [QUIET; 3]);
        let polls = passes(&mut paces, 32 * QUIET_EVERY, &[1]);
        assert_eq!(polls[1], 32 * QUIET_EVERY);
        assert!(polls[0] <= 33 && polls[2] <= 33, "{polls:?}");
    }

    #[test]
    fn where_all_are_quiet_a_pass_that_polls_nothing_is_cheap_and_none_is_forgotten() {
        let mut paces = of(&[MEMORY; 2]);
        passes(&mut paces, 2 * QUIET, &[]);
        let polls = passes(&mut paces, 10 * QUIET_EVERY, &[]);
        assert!(polls.iter().all(|polls| (10..=11).contains(polls)), "{polls:?}");
    }

    #[test]
    fn one_that_finds_something_is_polled_on_every_pass_again() {
        let mut paces = of(&[MEMORY; 2]);
        passes(&mut paces, 2 * QUIET, &[0]);
        passes(&mut paces, QUIET_EVERY, &[0, 1]);
        assert_eq!(passes(&mut paces, 200, &[0]), [200, 200]);
    }

    #[test]
    fn what_is_expected_is_looked_for_at_once() {
        let mut paces = of(&[MEMORY, PollCost::SystemCall(1_000)]);
        passes(&mut paces, 10 * QUIET, &[0]);
        passes(&mut paces, 3, &[0]);
        paces.expect_all();
        assert_eq!(passes(&mut paces, 1, &[0]), [1, 1]);
        paces.expect(1);
        assert_eq!(passes(&mut paces, 1, &[0]), [1, 1]);
    }

    #[test]
    fn there_is_an_end_to_rails() {
        let mut paces = of(&[MEMORY; RAILS_MAX]);
        assert!(!paces.add(MEMORY));
        assert_eq!(passes(&mut paces, 1, &[]), [1; RAILS_MAX]);
    }
}

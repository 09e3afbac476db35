//! The steps of a wait while nothing happens: it spins, then yields the core, then sleeps; and its limits.
//!
//! ```text
//!   empty polls   0 ......... spins ......... spins + yields .........
//!                 spin        yield           arm and sleep on a descriptor
//!   the clock     every 64th poll             every time; housekeeping every 16th
//! ```
//!
//! A wait counts only time in which the process ran: one that was stopped, frozen or suspended together with
//! its peers finds neither its deadline passed nor a long wait to report.

use std::hint;
use std::time::Duration;

use doorbell_fabric::clock;
use doorbell_fabric::time::Time;
use doorbell_sim::SimNet;

use crate::config::{Progress, Wait};

/// The clock is read once in this many polls: about once per microsecond of spinning.
const CLOCK_EVERY: u32 = 64;
/// The number of empty polls from which on a spin executes the pause instruction; before, it would add
/// latency.
const PAUSE_FROM: u32 = 2_000;

/// Of this many yields in a row, one does what depends on the time first. Where many ranks share a core, each
/// yield lasts as long as the others' turns, and these as long as what each does in them.
const YIELDS_EACH: u32 = 16;

/// The empty polls before a yield where ranks share cores.
const SHARED_SPINS: u32 = 4;

/// The longest sleep: with longer ones, sleep and suspension could not be told apart.
const NAP: Duration = Duration::from_secs(1);
/// How much later than planned the next look may be before the rest counts as time in which this process did
/// not run. This much of each such gap is counted, so that slow callbacks do not put a deadline off for ever.
pub const LATE: Duration = Duration::from_secs(1);

/// The job's clock: the machine's, or a simulated network's.
#[derive(Clone)]
pub enum Clock {
    /// The machine's clock.
    Machine(clock::Clock),
    /// The clock of a simulated network.
    Virtual(SimNet),
}

impl Clock {
    #[inline]
    /// Returns the time now.
    pub fn now(&self) -> Time {
        match self {
            Self::Machine(clock) => clock.now(),
            Self::Virtual(net) => net.now(),
        }
    }
}

/// Moves a simulated network's clock, for a rank that makes a pass. The clock moves only by such calls. It
/// stops where any rank has something to do: if it stopped for this rank at this time (`stopped`), this rank
/// acts first, once.
pub fn move_on(net: &SimNet, rank: u32, due: Option<Time>, stopped: &mut Option<Time>) {
    let now = net.now();
    net.set_alarm(rank, due);
    if due.is_some_and(|due| due <= now) && *stopped != Some(now) {
        *stopped = Some(now);
    } else {
        net.advance_to_next_event();
    }
}

/// The number of empty polls before each next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Number of empty polls before a wait yields.
    pub spins: u32,
    /// Number of yields before a wait sleeps.
    pub yields: u32,
}

impl Patience {
    /// Takes the numbers from the settings. With `crowded`, the host has fewer cores than ranks: yielding
    /// early is faster for all then, since the rank that we wait for may be waiting for our core.
    pub fn of(settings: &Progress, crowded: bool) -> Self {
        let (spins, yields) = match (settings.wait.get(), crowded) {
            (Wait::LowestLatency, _) => (u32::MAX, 0),
            (Wait::Balanced, false) => (100_000, 1_000),
            (Wait::Balanced, true) => (SHARED_SPINS, 1_000),
            (Wait::Sleep, _) => (50, 0),
        };
        Self {
            spins: settings.spins.get().unwrap_or(spins),
            yields: settings.yields.get().unwrap_or(yields),
        }
    }
}

impl Patience {
    /// Whether a wait gives its core away before it could have looked for as long as a message takes from
    /// core to core.
    #[inline]
    pub fn shares_core(&self) -> bool {
        self.spins <= SHARED_SPINS && self.yields != 0
    }
}

/// The next step after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll again at once.
    Again,
    /// Do what depends on the time, then poll again.
    Housekeep(Time),
    /// Yield the core once.
    Pass,
    /// Do what depends on the time, and yield the core once.
    Yield(Time),
    /// The same, and sleep until something happens, at most until the second time.
    Sleep(Time, Time),
    /// Report what the wait is for (once), then go on.
    Quiet(Time),
    /// The deadline has passed.
    Expired(Time),
}

/// The state of one wait.
pub struct Waiter<'c> {
    clock: &'c Clock,
    patience: Patience,
    limit: Duration,
    quiet: Duration,
    /// Set when the clock is read for the first time: a wait that ends at once never reads it.
    times: Option<Times>,
    idle: u32,
    /// Polls and looks since the clock was read.
    turns: u32,
    /// Yields of this wait.
    passes: u32,
}

#[derive(Clone, Copy)]
struct Times {
    started: Time,
    deadline: Time,
    quiet_at: Time,
    /// The latest time at which the next look was planned.
    back: Time,
}

impl Times {
    /// Moves all limits by the time in which this process did not run.
    #[cold]
    fn excuse(&mut self, away: Duration) {
        self.started += away;
        self.deadline += away;
        if self.quiet_at < Time::NEVER {
            self.quiet_at += away;
        }
    }
}

impl<'c> Waiter<'c> {
    #[inline]
    /// Begins a wait of at most `limit`; it is reported after `quiet`.
    pub fn new(clock: &'c Clock, patience: Patience, limit: Duration, quiet: Duration) -> Self {
        Self {
            clock,
            patience,
            limit,
            quiet,
            times: None,
            idle: 0,
            turns: 0,
            passes: 0,
        }
    }

    /// Returns the clock of the wait.
    pub(super) fn clock(&self) -> &'c Clock {
        self.clock
    }

    /// Returns the time now.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns how long the wait has taken so far.
    pub fn waited(&self, now: Time) -> Duration {
        self.times
            .map_or(Duration::ZERO, |times| now.since(times.started))
    }

    /// Returns how many looks a rail may take by itself before each poll: none where the core is yielded
    /// early.
    #[inline]
    pub fn looks(&self) -> u32 {
        if self.patience.spins > PAUSE_FROM {
            CLOCK_EVERY
        } else {
            0
        }
    }

    /// Returns the next step after a poll that found something or nothing.
    #[inline]
    pub fn turn(&mut self, worked: bool) -> Turn {
        self.turn_after(1, worked)
    }

    /// Returns the next step after `looks` looks, of which the last was a poll.
    #[inline]
    pub fn turn_after(&mut self, looks: u32, worked: bool) -> Turn {
        self.turns += looks;
        self.idle = if worked {
            0
        } else {
            // Kept below `u32::MAX`, so that a wait with that many spins never comes to yield or sleep.
            self.idle.saturating_add(looks).min(u32::MAX - 1)
        };
        if self.turns < CLOCK_EVERY && self.idle < self.patience.spins {
            if self.idle >= PAUSE_FROM {
                hint::spin_loop();
            }
            return Turn::Again;
        }
        self.turns = 0;
        self.slow()
    }

    #[cold]
    fn slow(&mut self) -> Turn {
        let now = self.clock.now();
        let times = self.times.get_or_insert(Times {
            started: now,
            deadline: now + self.limit,
            quiet_at: now + self.quiet,
            back: now,
        });
        let late = now.since(times.back);
        if late > LATE {
            times.excuse(late - LATE);
        }
        times.back = now;
        if now >= times.deadline {
            return Turn::Expired(now);
        }
        if now >= times.quiet_at {
            times.quiet_at = Time::NEVER;
            return Turn::Quiet(now);
        }
        if self.idle < self.patience.spins {
            Turn::Housekeep(now)
        } else if self.idle - self.patience.spins < self.patience.yields {
            self.passes += 1;
            match self.passes.is_multiple_of(YIELDS_EACH) {
                true => Turn::Yield(now),
                false => Turn::Pass,
            }
        } else {
            times.back = times.deadline.min(times.quiet_at).min(now + NAP);
            Turn::Sleep(now, times.back)
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_sim::SimConfig;

    use super::*;
    use crate::config::Config;

    fn waiter(clock: &Clock) -> Waiter<'_> {
        let patience = Patience {
            spins: 130,
            yields: 3,
        };
        Waiter::new(clock, patience, Duration::from_secs(5), Duration::from_secs(3))
    }

    #[test]
    fn spins_then_yields_then_sleeps_then_complains_then_expires() {
        let net = SimNet::new(1, SimConfig::default());
        let clock = Clock::Virtual(net.clone());
        let mut waiter = waiter(&clock);
        let (start, second) = (net.now(), Duration::from_secs(1));
        for turn in 1..130 {
            let expected = if turn % CLOCK_EVERY == 0 {
                Turn::Housekeep(start)
            } else {
                Turn::Again
            };
            assert_eq!(waiter.turn(false), expected, "{turn}");
        }
        for _ in 0..3 {
            assert_eq!(waiter.turn(false), Turn::Pass);
        }
        for slept in 0..3 {
            let (from, until) = (start + slept * second, start + (slept + 1) * second);
            assert_eq!(waiter.turn(false), Turn::Sleep(from, until));
            net.advance_to(until);
        }
        assert_eq!(waiter.turn(false), Turn::Quiet(net.now()));
        for slept in 3..5 {
            let (from, until) = (start + slept * second, start + (slept + 1) * second);
            assert_eq!(waiter.turn(false), Turn::Sleep(from, until));
            net.advance_to(until);
        }
        assert_eq!(waiter.turn(false), Turn::Expired(net.now()));
        assert_eq!(waiter.waited(net.now()), 5 * second);
    }

    #[test]
    fn time_in_which_the_process_did_not_run_is_no_part_of_a_wait() {
        let net = SimNet::new(1, SimConfig::default());
        let clock = Clock::Virtual(net.clone());
        let (hour, second) = (Duration::from_secs(3600), Duration::from_secs(1));
        // Suspended in a sleep, and between two looks.
        for asleep in [true, false] {
            let mut waiter = waiter(&clock);
            let start = net.now();
            while asleep && !matches!(waiter.turn(false), Turn::Sleep(..)) {}
            while !asleep && waiter.turn(false) == Turn::Again {}
            net.advance_to(start + hour);
            // The next look counts a second of that, and the sleep.
            let turns = || Some(waiter.turn(false));
            let turn = std::iter::from_fn(turns).find(|turn| *turn != Turn::Again);
            assert!(
                !matches!(turn, Some(Turn::Quiet(_) | Turn::Expired(_))),
                "{turn:?}"
            );
            let counted = if asleep { 2 * second } else { second };
            assert_eq!(waiter.waited(net.now()), counted, "{asleep}");
        }
    }

    #[test]
    fn looks_that_are_late_again_and_again_put_the_end_off_but_not_for_ever() {
        let net = SimNet::new(1, SimConfig::default());
        let clock = Clock::Virtual(net.clone());
        let mut waiter = waiter(&clock);
        let expires = (0..10 * CLOCK_EVERY).any(|_| {
            net.advance_to(net.now() + Duration::from_secs(60));
            matches!(waiter.turn(true), Turn::Expired(_))
        });
        assert!(expires);
    }

    #[test]
    fn work_resets_the_patience_but_not_the_deadline() {
        let net = SimNet::new(1, SimConfig::default());
        let clock = Clock::Virtual(net.clone());
        let mut waiter = waiter(&clock);
        while !matches!(waiter.turn(false), Turn::Sleep(..)) {}
        assert!(!matches!(
            waiter.turn(true),
            Turn::Sleep(..) | Turn::Yield(_) | Turn::Pass
        ));
        let expired = (0..20 * CLOCK_EVERY).any(|_| {
            net.advance_to(net.now() + Duration::from_millis(10));
            matches!(waiter.turn(true), Turn::Expired(_))
        });
        assert!(expired, "a flood of other messages must not keep a wait alive");
    }

    #[test]
    fn who_only_spins_never_sleeps_however_long_it_takes() {
        let clock = Clock::Virtual(SimNet::new(1, SimConfig::default()));
        let patience = Patience {
            spins: u32::MAX,
            yields: 0,
        };
        let mut waiter = Waiter::new(&clock, patience, Duration::from_secs(5), Duration::from_secs(3));
        waiter.idle = u32::MAX - 2 * CLOCK_EVERY;
        let turns: Vec<Turn> = (0..4 * CLOCK_EVERY).map(|_| waiter.turn(false)).collect();
        let looks = |turn: &&Turn| matches!(turn, Turn::Housekeep(_));
        assert_eq!(
            turns.iter().filter(looks).count(),
            4,
            "it looks at the clock as before"
        );
        assert_eq!(
            turns.iter().filter(|turn| **turn == Turn::Again).count(),
            turns.len() - 4
        );
    }

    #[test]
    fn of_many_yields_some_do_what_depends_on_the_time() {
        let clock = Clock::Virtual(SimNet::new(1, SimConfig::default()));
        let patience = Patience {
            spins: 0,
            yields: 10 * YIELDS_EACH,
        };
        let mut waiter = Waiter::new(&clock, patience, Duration::from_secs(5), Duration::from_secs(3));
        let turns: Vec<Turn> = (1..10 * YIELDS_EACH).map(|_| waiter.turn(false)).collect();
        let passes = turns.iter().filter(|turn| **turn == Turn::Pass).count();
        let yields = turns.iter().filter(|turn| matches!(turn, Turn::Yield(_))).count();
        assert_eq!((passes + yields, yields), (turns.len(), 9));
    }

    #[test]
    fn a_crowded_host_yields_early_and_explicit_numbers_win() {
        let mut config = Config::default();
        let ample = Patience::of(&config.progress, false);
        let crowded = Patience::of(&config.progress, true);
        assert!(crowded.spins < ample.spins / 100);
        config.progress.spins.set(Some(7));
        assert_eq!(Patience::of(&config.progress, true).spins, 7);
        config.progress.wait.set(Wait::LowestLatency);
        config.progress.spins.set(None);
        assert_eq!(Patience::of(&config.progress, false).spins, u32::MAX);
    }
}

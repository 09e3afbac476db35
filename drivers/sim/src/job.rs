//! A job of N ranks in one thread: each round steps every rank once, in an order chosen by the seed; when no
//! rank has anything to do, the clock advances to the next event; when there will be none, that is an error
//! that reports which rank waits for what.

use std::fmt;

use doorbell_fabric::time::Time;

use crate::net::SimNet;
use crate::random::Random;
use crate::trace::{Happened, TraceEvent};

/// What a rank did in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rank made progress: it is stepped again at the same time.
    Worked,
    /// The rank made no progress. It is stepped again at the given time at the latest, or when the network
    /// does something.
    Idle(Option<Time>),
    /// The rank made no progress and has finished. It is still stepped while others have not (as a process
    /// that waits in its finalisation is), and may resume work.
    Done,
}

/// A job: a state per rank, and the network that they are attached to. State `i` belongs to rank `i`.
///
/// ```
/// use doorbell_sim::{Job, SimConfig, SimNet, Step};
///
/// let net = SimNet::new(1, SimConfig::default());
/// let mut job = Job::new(&net, 3, |_rank| 0_u32);
/// let run = job.run(100, |_rank, steps, _now| {
///     *steps += 1;
///     if *steps < 5 { Step::Worked } else { Step::Done }
/// });
/// assert!(run.is_ok());
/// ```
#[derive(Debug)]
pub struct Job<S> {
    net: SimNet,
    ranks: Vec<S>,
    random: Random,
    until: Time,
}

/// A job that finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The virtual time then.
    pub at: Time,
    /// The rounds that were made.
    pub rounds: u64,
}

/// A job that did not finish. Displays the seed, which ranks wait, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The network's seed: the same calls with it give the same run.
    pub seed: u64,
    /// Why the job was stopped.
    pub why: StopReason,
    /// The virtual time then.
    pub at: Time,
    /// The ranks that had not finished, each with its explanation.
    pub waiting: Vec<(u32, String)>,
}

/// Why a job was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All ranks wait, nothing is in flight in the network, and no rank has a deadline: a deadlock.
    Deadlock,
    /// The limit of rounds was reached.
    Rounds,
    /// The limit of virtual time was reached.
    Time,
}

impl fmt::Display for Stuck {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            StopReason::Deadlock => "deadlock: no rank can make progress",
            StopReason::Rounds => "the limit of rounds was reached",
            StopReason::Time => "the limit of virtual time was reached",
        };
        write!(out, "seed {}: {why} at {}", self.seed, self.at)?;
        self.waiting
            .iter()
            .try_for_each(|(rank, what)| write!(out, "\n  rank {rank} has not finished: {what}"))
    }
}

impl std::error::Error for Stuck {}

impl<S> Job<S> {
    /// Creates a job of `n` ranks with the states that `make` returns. `make` usually attaches the rank's
    /// rails.
    pub fn new(net: &SimNet, n: usize, make: impl FnMut(usize) -> S) -> Self {
        Self {
            net: net.clone(),
            ranks: (0..n).map(make).collect(),
            random: Random::for_part(net.seed(), &[u64::MAX, u64::MAX]),
            until: Time::NEVER,
        }
    }

    /// Stops the job when the virtual clock passes `time`.
    #[must_use]
    pub fn until(mut self, time: Time) -> Self {
        self.until = time;
        self
    }

    /// The states of the ranks.
    pub fn ranks(&self) -> &[S] {
        &self.ranks
    }

    /// The states, to be changed between runs: a rank that was restarted gets a new one.
    pub fn ranks_mut(&mut self) -> &mut [S] {
        &mut self.ranks
    }

    /// Runs until every living rank is [`Step::Done`] in one round. Ranks whose process is dead in the
    /// network are not stepped; ranks that never attached anything count as living.
    ///
    /// # Errors
    /// [`Stuck`] when that can never happen, or did not within `rounds`.
    pub fn run(
        &mut self,
        rounds: u64,
        step: impl FnMut(usize, &mut S, Time) -> Step,
    ) -> Result<Finished, Stuck> {
        self.run_explained(rounds, step, |_, _| "it gave no reason".to_owned())
    }

    /// Runs like [`Job::run`]; `explain` returns what a rank waits for, and is called only when the job is
    /// stuck.
    ///
    /// # Errors
    /// Those of [`Job::run`].
    pub fn run_explained(
        &mut self,
        rounds: u64,
        mut step: impl FnMut(usize, &mut S, Time) -> Step,
        explain: impl Fn(usize, &S) -> String,
    ) -> Result<Finished, Stuck> {
        let mut last = vec![Step::Worked; self.ranks.len()];
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        for round in 1..=rounds {
            self.random.shuffle(&mut order);
            self.round(&order, &mut last, &mut step);
            if last.iter().all(|&step| step == Step::Done) {
                let at = self.net.now();
                return Ok(Finished { at, rounds: round });
            }
            if last.contains(&Step::Worked) {
                continue;
            }
            let deadlines = last.iter().filter_map(|step| match step {
                Step::Idle(until) => *until,
                _ => None,
            });
            match deadlines.chain(self.net.next_event()).min() {
                None => return Err(self.stuck(StopReason::Deadlock, &last, explain)),
                Some(next) if next > self.until => return Err(self.stuck(StopReason::Time, &last, explain)),
                Some(next) => self.net.advance_to(next),
            }
        }
        Err(self.stuck(StopReason::Rounds, &last, explain))
    }

    fn round(
        &mut self,
        order: &[usize],
        last: &mut [Step],
        step: &mut impl FnMut(usize, &mut S, Time) -> Step,
    ) {
        for &rank in order {
            if self.net.was_killed(rank as u32) {
                last[rank] = Step::Done;
                continue;
            }
            if self.net.is_paused(rank as u32) {
                // Its deadlines pass unseen; what it has finished stays finished.
                if last[rank] != Step::Done {
                    last[rank] = Step::Idle(None);
                }
                continue;
            }
            let now = self.net.now();
            last[rank] = step(rank, &mut self.ranks[rank], now);
            if last[rank] == Step::Worked {
                self.net.lock().trace.add(TraceEvent {
                    at: now,
                    what: Happened::Stepped,
                    plane: 0,
                    from: rank as u32,
                    to: rank as u32,
                    number: 0,
                    length: 0,
                });
            }
        }
    }

    #[cold]
    fn stuck(&self, why: StopReason, last: &[Step], explain: impl Fn(usize, &S) -> String) -> Stuck {
        let unfinished = (0..self.ranks.len()).filter(|&rank| last[rank] != Step::Done);
        Stuck {
            seed: self.net.seed(),
            why,
            at: self.net.now(),
            waiting: unfinished
                .map(|rank| (rank as u32, explain(rank, &self.ranks[rank])))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimConfig;
    use crate::change::Change;

    fn net() -> SimNet {
        SimNet::new(5, SimConfig::default())
    }

    #[test]
    fn a_deadlock_names_the_waits_of_each_rank() {
        let mut job = Job::new(&net(), 3, |rank| rank);
        let step = |rank: usize, _: &mut usize, _| if rank == 1 { Step::Idle(None) } else { Step::Done };
        let stuck = job
            .run_explained(100, step, |_, state| format!("a word for {state}"))
            .unwrap_err();
        assert_eq!((stuck.why, stuck.waiting.len()), (StopReason::Deadlock, 1));
        let text = stuck.to_string();
        assert!(
            text.contains("seed 5") && text.contains("rank 1 has not finished: a word for 1"),
            "{text}"
        );
    }

    #[test]
    fn deadlines_move_the_clock_and_limits_end_the_run() {
        let at = Time::from_nanos(7_000);
        let mut job = Job::new(&net(), 1, |_| ());
        let until = |at| {
            move |_: usize, _: &mut (), now| {
                if now < at {
                    Step::Idle(Some(at))
                } else {
                    Step::Done
                }
            }
        };
        assert_eq!(job.run(10, until(at)).map(|end| end.at), Ok(at));
        assert_eq!(
            job.run(10, |_, (), _| Step::Worked).unwrap_err().why,
            StopReason::Rounds
        );
        let mut job = Job::new(&net(), 1, |_| ()).until(Time::from_nanos(10));
        assert_eq!(job.run(10, until(at)).unwrap_err().why, StopReason::Time);
    }

    #[test]
    fn dead_ranks_are_not_stepped() {
        let net = net();
        let mut job = Job::new(&net, 2, |_| net.attach());
        net.change(Change::RankDeath(1));
        let run = job.run(10, |rank, _, _| {
            assert_eq!(rank, 0);
            Step::Done
        });
        assert!(run.is_ok());
    }
}

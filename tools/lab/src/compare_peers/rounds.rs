//! Rounds: in each of them every stack has its turn at every load, and a turn counts when the machine was the
//! same before and after it and had no other work.

use std::fs;

use doorbell_bench::baseline::{self, Band};
use doorbell_bench::error::BenchError;
use doorbell_fabric::clock::Clock;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};
use serde::Serialize;

use super::load::{Figure, Load};
use super::stack::{Lab, Stack};
use crate::place::{Place, Setting};

/// The number of tries of a turn: one that does not count is repeated.
const TRIES: u32 = 3;
/// After this many failures at one load a stack has no more turns at it.
const FAILURES_MAX: u32 = 2;
/// Other work may take this share of the two cores during a turn.
const OTHERS_MOST: f64 = 0.1;

/// A load in a setting, and the stacks that have a turn at it.
pub(crate) struct Event {
    pub(crate) setting: Setting,
    pub(crate) load: Load,
    pub(crate) stacks: Vec<Box<dyn Stack>>,
}

/// One turn of one stack.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) event: usize,
    pub(crate) stack: usize,
    pub(crate) round: u32,
    pub(crate) outcome: Outcome,
    /// The bare exchange before and after it.
    pub(crate) bare_ns: [f64; 2],
    /// What the two cores did beside it.
    pub(crate) taken: Taken,
}

/// Shares of the two cores during a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Taken {
    /// That other work took, the hypervisor's included.
    pub(crate) others: f64,
    /// That the hypervisor took.
    pub(crate) stolen: f64,
}

impl Turn {
    /// The band and the figures, if it counts.
    pub(crate) fn counts(&self) -> Option<(Band, &[Figure])> {
        match &self.outcome {
            Outcome::Counts(band, figures) | Outcome::CountsDespite(band, figures) => Some((*band, figures)),
            Outcome::Disturbed(_) | Outcome::Failed(_) => None,
        }
    }
}

/// How a turn ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It counts, in this band.
    Counts(Band, Vec<Figure>),
    /// So it does, because no round was quieter: other work took too much of the cores.
    CountsDespite(Band, Vec<Figure>),
    /// It does not: the cores moved, or other work took them.
    Disturbed(Disturbed),
    /// There is no figure, for this reason.
    Failed(String),
}

/// Why a turn does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Disturbed {
    /// The bare exchange was in another band after it.
    Moved,
    /// Other work took too much of the cores.
    Others,
}

/// A receiver of reports on how far the work is.
pub(crate) trait Progress {
    /// A turn begins.
    fn turn(&mut self, setting: Setting, load: &Load, stack: &str, round: u32);
    /// A turn is over, with its repetitions.
    fn done(&mut self);
}

/// Runs all rounds.
pub(crate) fn run(
    runner: &Runner,
    place: &Place<'_>,
    events: &[Event],
    rounds: u32,
    progress: &mut dyn Progress,
) -> Result<Vec<Turn>, Stop> {
    let mut all = Rounds {
        clock: Clock::start(),
        runner,
        place,
        turns: Vec::new(),
    };
    for round in 0..rounds {
        for (at, event) in events.iter().enumerate() {
            if let Setting::Loss(percent) = event.setting {
                lose(place, percent)?;
            }
            for stack in order(event.stacks.len(), round) {
                let name = event.stacks[stack].name();
                progress.turn(event.setting, &event.load, name, round);
                all.stack(event, [at, stack], round)?;
                progress.done();
            }
            if let Setting::Loss(_) = event.setting {
                lose(place, 0.0)?;
            }
        }
    }
    Ok(all.turns)
}

/// The rounds so far.
struct Rounds<'a> {
    clock: Clock,
    runner: &'a Runner,
    place: &'a Place<'a>,
    turns: Vec<Turn>,
}

impl Rounds<'_> {
    /// A stack's turn in a round, repeated while it does not count.
    fn stack(&mut self, event: &Event, [event_at, stack_at]: [usize; 2], round: u32) -> Result<(), Stop> {
        let stack = &*event.stacks[stack_at];
        let failures = self.turns.iter().filter(|turn| {
            (turn.event, turn.stack) == (event_at, stack_at) && matches!(turn.outcome, Outcome::Failed(_))
        });
        if stack.unsupported(event.load.kind).is_some() || failures.count() as u32 >= FAILURES_MAX {
            return Ok(());
        }
        let lab = Lab {
            runner: self.runner,
            place: self.place,
            setting: event.setting,
        };
        for left in (0..TRIES).rev() {
            let watched = watched(&self.clock, &lab, stack, &event.load, left == 0)?;
            let again = matches!(watched.outcome, Outcome::Disturbed(_));
            self.turns.push(Turn {
                event: event_at,
                stack: stack_at,
                round,
                outcome: watched.outcome,
                bare_ns: watched.bare_ns,
                taken: watched.taken,
            });
            if !again {
                break;
            }
        }
        Ok(())
    }
}

fn lose(place: &Place<'_>, percent: f64) -> Result<(), Stop> {
    place.lose(percent)?.map_err(|why| {
        let text = format!("`--loss` needs a rule of nftables, and that failed: {why}");
        Stop::Ended(ToolError::Usage(text))
    })
}

/// Returns the order of turns: each round begins with another stack.
fn order(stacks: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..stacks).map(move |at| (at + round as usize) % stacks)
}

struct Watched {
    outcome: Outcome,
    bare_ns: [f64; 2],
    taken: Taken,
}

/// One turn between two checks of the machine; the last one that it gets in this round counts despite other
/// work.
fn watched(
    clock: &Clock,
    lab: &Lab<'_>,
    stack: &dyn Stack,
    load: &Load,
    last: bool,
) -> Result<Watched, Stop> {
    let bare = || {
        baseline::between(clock, lab.place.cores)
            .map_err(|error: BenchError| Stop::Ended(ToolError::Bench(error)))
    };
    let before = bare()?;
    let work = Work::now(lab.place.cores);
    let measured = stack.measure(lab, load);
    // What it left behind must not disturb the next turn, and its time is its own.
    lab.runner.sweep();
    let taken = work
        .zip(Work::now(lab.place.cores))
        .map_or_else(Taken::default, |(before, after)| before.taken(after));
    let after = bare()?;
    let outcome = match measured {
        Ok(figures) => match judged([before, after], taken.others) {
            Ok(band) => Outcome::Counts(band, figures),
            // At real-time priority, other programs take what is left, and no repetition changes that.
            Err(Disturbed::Others) if last || lab.runner.first => {
                Outcome::CountsDespite(Band::of(before), figures)
            }
            Err(disturbed) => Outcome::Disturbed(disturbed),
        },
        Err(Stop::Failed(why)) => {
            // What was killed may have left shared memory behind, which would be in the next one's way.
            lab.place.tidy(lab.setting)?;
            Outcome::Failed(why)
        }
        Err(stop) => return Err(stop),
    };
    Ok(Watched {
        outcome,
        bare_ns: [before, after],
        taken,
    })
}

/// The band of a turn that counts.
fn judged(bare_ns: [f64; 2], others: f64) -> Result<Band, Disturbed> {
    let [before, after] = bare_ns.map(Band::of);
    if before != after {
        return Err(Disturbed::Moved);
    }
    if others > OTHERS_MOST {
        return Err(Disturbed::Others);
    }
    Ok(before)
}

/// What two cores and our own processes have done so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    /// Of both cores together: programs, and time that the hypervisor took.
    busy: u64,
    /// What the hypervisor took of it.
    stolen: u64,
    /// Everything, idle included.
    all: u64,
    /// Ours, and that of our children that have ended.
    ours: u64,
}

impl Work {
    fn now(cores: [usize; 2]) -> Option<Self> {
        let [busy, stolen, all] = of_cores(&fs::read_to_string("/proc/stat").ok()?, cores)?;
        let ours = of_process(&fs::read_to_string("/proc/self/stat").ok()?)?;
        Some(Self {
            busy,
            stolen,
            all,
            ours,
        })
    }

    /// The shares of the cores that others took from here to there.
    fn taken(self, later: Self) -> Taken {
        let busy = later.busy.saturating_sub(self.busy);
        let stolen = later.stolen.saturating_sub(self.stolen);
        let ours = later.ours.saturating_sub(self.ours);
        let all = later.all.saturating_sub(self.all).max(1) as f64;
        Taken {
            others: busy.saturating_sub(ours) as f64 / all,
            stolen: stolen as f64 / all,
        }
    }
}

/// Programs' ticks with the stolen ones, the stolen ones, and all ticks, of two cores:
/// `cpuN user nice system idle iowait irq softirq steal ...`.
fn of_cores(stat: &str, cores: [usize; 2]) -> Option<[u64; 3]> {
    let mut sums = [0; 3];
    for core in cores {
        let name = format!("cpu{core}");
        let mut lines = stat.lines().map(str::split_whitespace);
        let ticks: Vec<u64> = lines
            .find_map(|mut words| (words.next() == Some(&name)).then_some(words))?
            .filter_map(|word| word.parse().ok())
            .collect();
        // The frames of a network are work of the kernel's for us; guests' time is in that of programs.
        let [user, nice, system, _, _, _, _, steal] = *ticks.first_chunk::<8>()?;
        sums[0] += user + nice + system + steal;
        sums[1] += steal;
        sums[2] += ticks[..8].iter().sum::<u64>();
    }
    Some(sums)
}

/// Ticks of a process and of its children that were waited for: fields 14 to 17 of /proc/PID/stat.
fn of_process(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(") ")?.1.split(' ');
    let times: Vec<u64> = fields
        .skip(11)
        .take(4)
        .filter_map(|word| word.parse().ok())
        .collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_turn_counts_in_one_band_and_without_others() {
        assert_eq!(judged([50.0, 60.0], 0.05), Ok(Band::Near));
        assert_eq!(judged([250.0, 180.0], 0.0), Ok(Band::Far));
        assert_eq!(judged([50.0, 250.0], 0.0), Err(Disturbed::Moved));
        assert_eq!(judged([50.0, 50.0], 0.2), Err(Disturbed::Others));
    }

    #[test]
    fn the_kernel_s_ticks_are_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 5 100 0 3 4 2 0 0\ncpu1 20 0 5 50 0 0 0 0 0 0\ncpu10 1 1 1 1 1 1 1 1\n";
        assert_eq!(of_cores(stat, [0, 1]), Some([18 + 25, 2, 125 + 75]));
        assert_eq!(of_cores(stat, [0, 7]), None);
        let own = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(of_process(own), Some(11 + 12 + 13 + 14));
        assert_eq!(of_process("7 (a) S 1"), None);
    }

    #[test]
    fn others_are_what_is_not_ours() {
        let work = |busy, stolen, all, ours| Work {
            busy,
            stolen,
            all,
            ours,
        };
        let taken = |others, stolen| Taken { others, stolen };
        let none = work(0, 0, 0, 0);
        assert_eq!(none.taken(work(150, 20, 200, 100)), taken(0.25, 0.1));
        assert_eq!(none.taken(work(100, 0, 200, 120)), taken(0.0, 0.0));
        assert_eq!(work(5, 1, 5, 5).taken(work(5, 1, 5, 5)), taken(0.0, 0.0));
    }

    proptest! {
        #[test]
        fn every_round_gives_every_stack_one_turn(stacks in 1usize..12, round in 0u32..50) {
            let mut turns: Vec<usize> = order(stacks, round).collect();
            prop_assert_eq!(turns[0], round as usize % stacks);
            turns.sort_unstable();
            prop_assert_eq!(turns, (0..stacks).collect::<Vec<_>>());
        }
    }
}

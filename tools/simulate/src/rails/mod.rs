//! Jobs of many rails that break and come back: `cargo xtask simulate --rails`.
//!
//! ```text
//!   plan ─► player (one per rank) ─► Pml ─┬─► SimRail ────────────┬─► SimNet ◄─ weather
//!     └────► books                        ├─► Btl ─► SimDatagram ─┤
//!                                         └─► … two to four of them
//! ```
//!
//! | file | job |
//! |---|---|
//! | `shape` | what a seed chooses beside messages and weather |
//! | `weather` | which rails break, between which ranks, when and for how long |
//! | `rail` | a rail of either contract |
//! | `seat` | what an end of such a job can do: a PML, or a domain of the libfabric provider |
//! | `provider` | `--provider`: clients of the provider, their calls and what becomes of them |
//! | `aside` | messages beside the plan, for multi-receives that are aborted, and to be discarded |
//! | `operations` | puts, gets and atomics beside the plan |
//! | `run` | steps, checks, the end |
//! | `command` | many seeds, and what is printed of them |

mod aside;
pub(crate) mod command;
mod operations;
mod provider;
mod rail;
mod run;
mod seat;
mod shape;
mod weather;

use std::path::Path;
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Plane, SimNet};

use crate::failure::{Failure, Kind};
use crate::job::caught;
use crate::plan::Plan;
use run::{Run, pmls};
use shape::Shape;

/// One job of many rails.
#[derive(Clone, Debug)]
pub struct RailsJob {
    /// The seed, which chooses everything.
    pub seed: u64,
    /// Whether its ends are domains of the libfabric provider, which meet when they need each other.
    pub provider: bool,
    /// Messages of all ranks together, instead of as many as the seed chooses.
    pub messages: Option<usize>,
    /// Changes of the network at their times, on top of the weather, which knows nothing of them.
    pub script: Vec<(Time, Change)>,
}

/// A job that went well.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Bytes of its messages.
    pub bytes: u64,
    /// How long it took until the last message was there, on the virtual clock.
    pub took: Duration,
    /// The longest that one request took.
    pub longest: Duration,
    /// How often its clock was moved.
    pub steps: u64,
    /// What the PMLs counted.
    pub counts: Counts,
    /// Equal for equal runs.
    pub hash: u64,
}

/// What happened to ways and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ways that broke.
    pub broken: u64,
    /// Ways that were taken back.
    pub returned: u64,
    /// Transfers that restarted over another path.
    pub restarts: u64,
    /// Messages that a rail gave back and another one carried.
    pub resent: u64,
    /// Messages that came twice and were dropped.
    pub duplicates: u64,
    /// Peers that were lost: of ranks that died, or had no rail any more.
    pub lost: u64,
}

impl RailsJob {
    /// Plays the job; a failure is played again, with a capture of its frames in `captures`.
    ///
    /// # Errors
    /// [`Failure`] with the first thing that is wrong.
    pub fn run(&self, captures: Option<&Path>) -> Result<Outcome, Failure> {
        let (at, kind) = match self.once(None) {
            Ok(outcome) => return Ok(outcome),
            Err(found) => found,
        };
        let file = captures.map(|folder| {
            folder.join(format!(
                "rails{}-{}.pcapng",
                ["", "-provider"][usize::from(self.provider)],
                self.seed
            ))
        });
        let capture = file.filter(|path| {
            // A failure that does not come again is reported all the same; its capture would mislead.
            self.once(Some(path)).is_err_and(|(again, _)| again == at) && path.is_file()
        });
        let messages = self.messages.map(|count| format!(" --messages {count}"));
        let (of, flag) = match self.provider {
            true => (" under the libfabric provider", " --provider"),
            false => ("", ""),
        };
        Err(Failure {
            run: format!("seed {} over several rails{of}", self.seed),
            again: format!(
                "--rails{flag} --seed {}{}",
                self.seed,
                messages.unwrap_or_default()
            ),
            at,
            kind,
            capture,
        })
    }

    fn once(&self, dump: Option<&Path>) -> Result<Outcome, (Time, Kind)> {
        let shape = match self.provider {
            true => Shape::of_members(self.seed, self.messages),
            false => Shape::of(self.seed, self.messages),
        };
        let net = SimNet::new(self.seed, shape.sim);
        self.script.iter().for_each(|&(at, change)| net.at(at, change));
        let played = caught(|| {
            let plan = Plan::new(self.seed, shape.ranks, shape.messages, shape.mix);
            let (seed, net, shape) = (self.seed, &net, &shape);
            if self.provider {
                let seats = |planes: &[Plane]| provider::seats(seed, net, shape, planes);
                return Run::new(seed, net, shape, &plan, seats)?.play(dump);
            }
            let pmls = |planes: &[Plane]| pmls(seed, net, shape, planes);
            Run::new(seed, net, shape, &plan, pmls)?.play(dump)
        });
        played.map_err(|kind| (net.now(), kind))
    }
}

//! Jobs of two ranks over usnic rails: `cargo xtask simulate --usnic`.
//!
//! ```text
//!   rank 0                                                                                            rank 1
//!   plan ─► player ─► Pml ─► Btl ─► UsnicRail ═► model ─┐                     ┌─ model ◄═ UsnicRail ◄─ Btl ◄
//!     └───► books                              faults ──┴─ AF_PACKET ─ veth ──┘
//! ```
//!
//! Two modelled adapters, each with its engine and its agent, joined by a wire of the kernel's. Here time is
//! the machine's: what is judged is what arrives, and what is left; not when. A seed chooses the same
//! messages again, and not the same run.
//!
//! | file | job |
//! |---|---|
//! | `wire` | the veth pair between the adapters |
//! | `adapter` | a model, and the agent of its physical function |
//! | `shape` | what a seed chooses, and the script of what goes wrong |
//! | `pmls` | both ranks in one thread: receives posted and not, wildcards, what is left at the end |
//! | `worlds` | a thread for each, over the library that users add: calls that wait, and requests |
//! | `command` | many seeds, and what is printed of them |

mod adapter;
pub(crate) mod command;
mod pmls;
mod shape;
mod wire;
pub(crate) mod worlds;

use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;
use doorbell_usnic::{UsnicConfig, UsnicStats};
use doorbell_vic::{BridgeTo, Identity, LayoutOptions, Options};

pub use adapter::Adapter;

use crate::class::Class;
use crate::failure::{Failure, Kind};
use crate::job::{Stack, caught};
use crate::plan::Plan;
use shape::{Shape, script};
use wire::{ENDS, Wire};

/// The function of each adapter that has a rail.
const FUNCTION: &str = "vf0";
/// The number of ranks.
const RANKS: u32 = 2;

/// One job over usnic rails.
#[derive(Clone, Debug)]
pub struct UsnicJob {
    /// Chooses everything but the times.
    pub seed: u64,
    /// What the wire does wrong.
    pub class: Class,
    /// What it runs on: both ranks in one thread on PMLs, or a world for each thread.
    pub stack: Stack,
    /// Messages of both ranks together.
    pub messages: usize,
}

/// A job that went well.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsnicOutcome {
    /// Bytes of its messages.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// Frames that the adapters' functions sent and received.
    pub sent: u64,
    /// Frames that the functions received; see `sent`.
    pub received: u64,
    /// Frames for which there was no buffer.
    pub no_bufs: u64,
    /// Segments that the BTLs sent again, and those that came twice. Worlds do not report them.
    pub resends: Option<u64>,
    /// Segments that came twice; see `resends`.
    pub twice: Option<u64>,
    /// Frames that the drivers found to be damaged. Worlds do not report them.
    pub damaged: Option<u64>,
}

/// Both adapters, and what is between them.
struct Lab {
    adapters: [Adapter; 2],
    _wire: Wire,
}

impl Lab {
    fn set_up(job: &UsnicJob, shape: &Shape) -> Result<Self, String> {
        let wire = Wire::lay()?;
        let start = |side: usize| {
            let options = Options {
                vfs: 1,
                identity: Identity {
                    adapter: side as u8,
                    ..Identity::default()
                },
                layout: LayoutOptions {
                    seed: Some(shape.layout),
                    ..LayoutOptions::default()
                },
                bridge: Some(BridgeTo::Interface(ENDS[side].to_owned())),
                script: if side == 1 {
                    script(job.seed, job.class)
                } else {
                    String::new()
                },
                ..Options::default()
            };
            wire.inside(|| Adapter::start(options))?
        };
        Ok(Self {
            adapters: [start(0)?, start(1)?],
            _wire: wire,
        })
    }

    fn is_forgiving(&self) -> Result<(), Kind> {
        for (side, adapter) in self.adapters.iter().enumerate() {
            adapter
                .is_forgiving()
                .map_err(|why| Kind::Other(format!("the driver of rank {side}: {why}")))?;
        }
        Ok(())
    }
}

/// The settings of the rail of a side.
fn config(shape: &Shape, side: usize) -> UsnicConfig {
    UsnicConfig {
        address: Some(format!("{}/24", adapter::address(side))),
        mtu: shape.mtu,
        checksum: shape.checksum,
        send_ring: shape.ring,
        receive_ring: shape.ring,
        ..UsnicConfig::default()
    }
}

/// Frames that a rail dropped since they were not as they had been sent.
fn damaged(stats: &UsnicStats) -> u64 {
    stats.corrupt + stats.spoilt + stats.malformed
}

impl UsnicJob {
    /// Why no job can be run here; `None` where it can.
    #[must_use]
    pub fn lacking() -> Option<String> {
        Wire::lay().err()
    }

    /// Plays the job.
    ///
    /// # Errors
    /// [`Failure`] with the first thing that is wrong.
    pub fn run(&self) -> Result<UsnicOutcome, Failure> {
        let began = Instant::now();
        let Self {
            seed,
            class,
            stack,
            messages,
        } = self;
        caught(|| self.play()).map_err(|kind| Failure {
            run: format!("seed {seed} over usnic rails, fault {class}"),
            again: format!(
                "--usnic --seed {seed} --fault {class} --messages {messages} --stack {}",
                stack.name()
            ),
            at: Time::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            kind,
            capture: None,
        })
    }

    fn play(&self) -> Result<UsnicOutcome, Kind> {
        // The calls of a world have no contexts.
        let contexts = if self.stack == Stack::Pml { 2 } else { 1 };
        let shape = Shape::of(self.seed, contexts);
        let plan = Plan::new(self.seed, RANKS, self.messages, shape.mix);
        let lab = Lab::set_up(self, &shape).map_err(Kind::Other)?;
        let began = Instant::now();
        let told = match self.stack {
            Stack::Pml => pmls::play(self.seed, &shape, &plan, &lab)?,
            Stack::Worlds => worlds::play(self.seed, &shape, &plan, &lab)?,
        };
        let mut outcome = UsnicOutcome {
            bytes: plan.bytes(),
            took: began.elapsed(),
            ..told
        };
        lab.is_forgiving()?;
        for adapter in &lab.adapters {
            for (_, counters) in adapter.model.summary().functions.iter() {
                outcome.sent += counters.sent;
                outcome.received += counters.received;
                outcome.no_bufs += counters.no_bufs;
            }
        }
        Ok(outcome)
    }
}

//! The credit economy of the active-message conduit at any size: the economies of all nodes in one process,
//! on a virtual clock, with every message under way and every receive buffer accounted for.
//! `cargo xtask simulate credits`.
//!
//! ```text
//!   player ─► take ─► request ─► lands in a buffer ─► arrived ─► answer ─► reply ─► replied
//!   (pattern)  │ stall: again                          └► next_revoke ─► revoked ─► returned
//!              └ with the next reply            judge: both ends of each message, at every step
//! ```
//!
//! | file | job |
//! |---|---|
//! | `pattern` | which nodes send what to which |
//! | `run` | nodes, messages, ticks |
//! | `wheel` | what happens when |
//! | `buffers` | receive buffers, and the catch basin |
//! | `judge` | books of its own; every rule, at every step |
//! | `paged` | tables of ten thousand peers of which few are ever used |
//! | `figures` | what a pattern came to under each policy |
//! | `plot` | that as a picture |
//! | `command` | the command line |
//!
//! The unit of time is a tick: what a node needs to handle one request, or to send one. A message takes 40 to
//! 48 of them.

mod buffers;
pub(crate) mod command;
mod figures;
mod judge;
mod paged;
mod pattern;
mod plot;
mod run;
mod wheel;

use doorbell_am::credit::{Counters, Dense, Limits, Memory, Peer, Peers, Shares};

pub use pattern::Pattern;

/// How credits are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// No flow control: what everything is measured by
    Unlimited,
    /// The same space, shared out at the start for good
    Fixed,
    /// They migrate; stalls and refusals are flags
    Flags,
    /// They migrate; stalls and refusals are counters that decay
    Counters,
    /// They migrate; stalls are counters, refusals flags, as in the original
    Mixed,
}

impl Policy {
    /// All policies, in their order.
    pub const ALL: [Self; 5] = [
        Self::Unlimited,
        Self::Fixed,
        Self::Flags,
        Self::Counters,
        Self::Mixed,
    ];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Fixed => "fixed",
            Self::Flags => "flags",
            Self::Counters => "counters",
            Self::Mixed => "mixed",
        }
    }

    /// Whether credits migrate.
    const fn migrates(self) -> bool {
        matches!(self, Self::Flags | Self::Counters | Self::Mixed)
    }

    const fn memory(self) -> Memory {
        match self {
            Self::Counters => Memory::Counters,
            Self::Mixed => Memory::Mixed,
            _ => Memory::Flags,
        }
    }
}

/// One run of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct CreditsJob {
    /// The number of processes.
    pub nodes: u32,
    /// Which nodes send what to which.
    pub pattern: Pattern,
    /// How credits are dealt with.
    pub policy: Policy,
    /// Chooses partners and delays.
    pub seed: u64,
    /// How long: in epochs of a node that receives as fast as the pattern sends.
    pub epochs: u32,
    /// The start by the table instead of the least for every node and a small bank.
    pub table: bool,
    /// That bank, where it is to be another one.
    pub banked: Option<u32>,
    /// Requests of an epoch, where they are to be others than 1,024.
    pub epoch: Option<u32>,
    /// How long a phase is, in the pattern that has some, where it is to be other than 8 epochs.
    pub phase: Option<u32>,
}

impl CreditsJob {
    /// Plays it, with tables of only those peers that are ever used.
    ///
    /// # Errors
    /// The first rule that does not hold, or what cannot be played, in words.
    pub fn run(&self) -> Result<Tally, String> {
        self.play::<paged::Paged<Peer>>()
    }

    /// The same with the tables that programs have: 32 bytes for each two nodes.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_dense(&self) -> Result<Tally, String> {
        self.play::<Dense>()
    }

    fn play<P: Peers>(&self) -> Result<Tally, String> {
        if self.pattern == Pattern::Stencil && pattern::sides(self.nodes)[0] == 0 {
            return Err(format!(
                "{} nodes are no torus with sides of at least 3: 27, 36, 48 and 64 are, for example",
                self.nodes
            ));
        }
        run::Run::<P>::new(self)?.play()
    }

    /// Ticks of the run.
    fn ticks(&self) -> u64 {
        u64::from(self.epochs) * self.epoch_ticks()
    }

    /// Ticks of one phase, in the pattern that has some.
    fn phase_ticks(&self) -> u64 {
        u64::from(self.phase.unwrap_or(pattern::PHASE_EPOCHS)).max(1) * self.epoch_ticks()
    }

    /// Ticks in which a node receives an epoch's requests, as fast as the pattern sends them.
    fn epoch_ticks(&self) -> u64 {
        u64::from(self.epoch.unwrap_or(Limits::DEFAULT.epoch)) * self.pattern.gap()
    }
}

/// A piece of a run, by node.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Sample {
    /// Its last tick.
    pub tick: u64,
    /// Requests to frequent partners that were answered in a tick.
    pub rate: f64,
    /// Credits that were granted.
    pub granted: f64,
    /// Credits that came back to their lender.
    pub returned: f64,
    /// Requests that had to wait.
    pub stalls: f64,
    /// Credits in the bank at the end of the piece.
    pub bank: f64,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// The pieces of the run.
    pub samples: Vec<Sample>,
    /// Requests to frequent partners that were answered.
    pub answered: u64,
    /// Steps that every node completed.
    pub steps: u64,
    /// Ticks in which requests were sent.
    pub ticks: u64,
    /// Pairs that the judge looked at, and audits of everything.
    pub looks: u64,
    /// Audits of all.
    pub audits: u64,
    /// Most requests that waited at one node.
    pub most_waiting: usize,
    /// Fewest buffers that were attached anywhere; 0 is one request before the catch basin.
    pub fewest_buffers: usize,
    /// All that the economies counted.
    pub counters: Counters,
    /// The shares of credits at the start.
    pub shares: Option<Shares>,
}

impl Tally {
    fn add(&mut self, node: &Counters) {
        let all = &mut self.counters;
        all.taken += node.taken;
        all.stalls += node.stalls;
        all.asked += node.asked;
        all.grants += node.grants;
        all.granted += node.granted;
        all.limited += node.limited;
        all.dry += node.dry;
        all.revocations += node.revocations;
        all.refusals += node.refusals;
        all.returned += node.returned;
        all.given_back += node.given_back;
        all.epochs += node.epochs;
    }
}

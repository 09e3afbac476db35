//! What a pattern came to under each policy, and whether that is what was promised.

use doorbell_am::credit::{Peer, SEED_EVENT_BYTES, Shares};
use serde::Serialize;

use super::{CreditsJob, Pattern, Policy, Sample, Tally};

/// Bytes of receive buffers and events that 10,000 nodes with 4 credits each may take (gasnet.md section 6).
const SPACE: (u32, u64) = (10_000, 15_360_000);
/// Bytes that a peer may take.
const PEER: usize = 40;
/// Of unlimited credits' throughput, once credits have migrated.
const RATIO: f64 = 0.9;

/// One policy's figures, by node unless stated otherwise: means over the seeds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) policy: Policy,
    /// Requests to frequent partners that were answered in a tick, once credits have migrated.
    pub(super) rate: f64,
    /// That as a share of unlimited credits', and the least of all seeds.
    pub(super) ratio: Option<f64>,
    pub(super) least_ratio: Option<f64>,
    /// The same over the whole run.
    pub(super) whole: Option<f64>,
    pub(super) stalls: f64,
    pub(super) granted: f64,
    pub(super) returned: f64,
    /// Credits granted and returned in the last quarter of the run.
    pub(super) moved_late: f64,
    pub(super) limited: f64,
    pub(super) dry: f64,
    pub(super) revocations: f64,
    pub(super) refusals: f64,
    /// Most requests that waited at one node, of all seeds.
    pub(super) most_waiting: usize,
    /// Fewest receive buffers that were attached to any node, of all seeds.
    pub(super) fewest_buffers: usize,
    /// Pairs that the judge looked at.
    pub(super) looks: u64,
    pub(super) seconds: f64,
    /// The pieces of the first seed's run.
    pub(super) samples: Vec<Sample>,
}

/// The space that a node takes, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Space {
    pub(super) per_node: u16,
    pub(super) banked: u32,
    pub(super) credits: u32,
    /// Receive buffers with the spare one, as attached.
    pub(super) receive: u64,
    /// The queue of requests, with this conduit's events.
    pub(super) events: u64,
    /// By the seed's estimate: 256 and 128 bytes for each credit.
    pub(super) seed: u64,
    /// What is known of peers.
    pub(super) state: u64,
}

/// A pattern under each policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) pattern: Pattern,
    pub(super) nodes: u32,
    pub(super) seeds: u64,
    #[serde(skip)]
    pub(super) epochs: u32,
    pub(super) ticks: u64,
    pub(super) table: bool,
    pub(super) space: Option<Space>,
    pub(super) rows: Vec<Row>,
    pub(super) failures: Vec<String>,
}

impl Space {
    fn of(nodes: u32, shares: &Shares) -> Self {
        Self {
            per_node: shares.per_node,
            banked: shares.banked,
            credits: shares.total,
            receive: shares.receive_bytes(),
            events: shares.event_bytes(size_of::<doorbell_fabric::ni::Event>()),
            seed: u64::from(shares.total) * (256 + SEED_EVENT_BYTES as u64),
            state: u64::from(nodes) * size_of::<Peer>() as u64,
        }
    }
}

/// Runs of one policy with several seeds.
pub(super) struct Runs<'a> {
    pub(super) job: CreditsJob,
    pub(super) tallies: Vec<Tally>,
    pub(super) seconds: f64,
    /// Rates of unlimited credits, by seed: once credits have migrated, and over the whole run.
    pub(super) unlimited: &'a [(f64, f64)],
}

/// Rates of a run: once credits have migrated, and over all of it.
pub(super) fn rates(job: &CreditsJob, tally: &Tally) -> (f64, f64) {
    let late = tally
        .samples
        .iter()
        .filter(|sample| is_late(job, tally, sample.tick));
    (
        mean(late.map(|sample| sample.rate)),
        mean(tally.samples.iter().map(|sample| sample.rate)),
    )
}

/// Whether credits have had the time to migrate: in the last third of each phase, else of the run.
fn is_late(job: &CreditsJob, tally: &Tally, tick: u64) -> bool {
    match job.pattern {
        Pattern::Phases => {
            let phase = job.phase_ticks();
            (tick - 1) % phase * 3 >= phase * 2
        }
        _ => tick * 3 > tally.ticks * 2,
    }
}

impl Runs<'_> {
    pub(super) fn row(self) -> Row {
        let Self {
            job,
            tallies,
            seconds,
            unlimited,
        } = self;
        let each = |of: fn(&Tally) -> u64| {
            mean(
                tallies
                    .iter()
                    .map(|tally| of(tally) as f64 / f64::from(job.nodes)),
            )
        };
        let rates: Vec<(f64, f64)> = tallies.iter().map(|tally| rates(&job, tally)).collect();
        let ratios = || {
            rates
                .iter()
                .zip(unlimited)
                .map(|(ours, theirs)| ours.0 / theirs.0)
        };
        let whole = || {
            rates
                .iter()
                .zip(unlimited)
                .map(|(ours, theirs)| ours.1 / theirs.1)
        };
        let known = !unlimited.is_empty();
        let late = |tally: &Tally| -> f64 {
            let late = tally
                .samples
                .iter()
                .filter(|sample| sample.tick * 4 > tally.ticks * 3);
            late.map(|sample| sample.granted + sample.returned).sum()
        };
        Row {
            policy: job.policy,
            rate: mean(rates.iter().map(|rate| rate.0)),
            ratio: known.then(|| mean(ratios())),
            least_ratio: known.then(|| ratios().fold(f64::INFINITY, f64::min)),
            whole: known.then(|| mean(whole())),
            stalls: each(|tally| tally.counters.stalls),
            granted: each(|tally| tally.counters.granted),
            returned: each(|tally| tally.counters.returned),
            moved_late: mean(tallies.iter().map(late)),
            limited: each(|tally| tally.counters.limited),
            dry: each(|tally| tally.counters.dry),
            revocations: each(|tally| tally.counters.revocations),
            refusals: each(|tally| tally.counters.refusals),
            most_waiting: tallies.iter().map(|tally| tally.most_waiting).max().unwrap_or(0),
            fewest_buffers: tallies
                .iter()
                .map(|tally| tally.fewest_buffers)
                .min()
                .unwrap_or(0),
            looks: tallies.iter().map(|tally| tally.looks).sum(),
            seconds,
            samples: tallies
                .into_iter()
                .next()
                .map(|tally| tally.samples)
                .unwrap_or_default(),
        }
    }
}

impl Figures {
    pub(super) fn new(job: &CreditsJob, seeds: u64) -> Self {
        Self {
            pattern: job.pattern,
            nodes: job.nodes,
            seeds,
            epochs: job.epochs,
            ticks: job.ticks(),
            table: job.table,
            space: None,
            rows: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn set_space(&mut self, shares: &Shares) {
        self.space = Some(Space::of(self.nodes, shares));
    }

    /// What is not as it was promised.
    pub(super) fn judge(&mut self) {
        let mut failures = Vec::new();
        for row in self.rows.iter().filter(|row| row.policy.migrates()) {
            if let Some(ratio) = row.least_ratio.filter(|&ratio| ratio < RATIO) {
                failures.push(format!(
                    "{}: {ratio:.3} of unlimited credits' throughput once credits have migrated, {:.3} below the {RATIO} \
                     that is promised; {}",
                    row.policy.name(),
                    RATIO - ratio,
                    self.longer()
                ));
            }
            let quiet = self.pattern == Pattern::Quiet;
            if quiet && (row.granted > 0.0 || row.revocations > 0.0) {
                failures.push(format!(
                    "{}: credits moved without a stall: {:.1} granted and {:.1} revocations a node, where none are promised",
                    row.policy.name(),
                    row.granted,
                    row.revocations
                ));
            }
        }
        if size_of::<Peer>() > PEER {
            failures.push(format!(
                "{} bytes for each peer, and {PEER} are promised",
                size_of::<Peer>()
            ));
        }
        if let Some(space) = &self.space {
            let bytes = space.receive + space.events;
            if !self.table && self.nodes == SPACE.0 && bytes > SPACE.1 {
                failures.push(format!(
                    "{bytes} bytes of buffers and events, {} above the {} that are promised",
                    bytes - SPACE.1,
                    SPACE.1
                ));
            }
        }
        let name = format!("{} of {} nodes", self.pattern.name(), self.nodes);
        self.failures
            .extend(failures.into_iter().map(|failure| format!("{name}: {failure}")));
    }

    /// What a run that is too short to judge looks like, too.
    fn longer(&self) -> String {
        let (played, settled) = (self.epochs, self.pattern.epochs(self.nodes));
        let plural = if played == 1 { "" } else { "s" };
        if played < settled {
            format!("{played} epoch{plural} may be too few for credits to migrate: try `--epochs {settled}`")
        } else {
            format!("{played} epoch{plural} were played, and more `--epochs` show whether it settles at all")
        }
    }

    pub(super) fn show(&self) {
        println!(
            "{}, {} nodes, {} ticks, {} seed{}",
            self.pattern.name(),
            self.nodes,
            self.ticks,
            self.seeds,
            if self.seeds == 1 { "" } else { "s" }
        );
        if let Some(space) = &self.space {
            println!(
                "  each begins with {} credits at each other, and banks {}; buffers {} bytes + events {} = {}; by the seed's \
                 estimate {}; state of peers {}",
                space.per_node,
                space.banked,
                space.receive,
                space.events,
                space.receive + space.events,
                space.seed,
                space.state
            );
        }
        println!(
            "  {:<10} {:>7} {:>6} {:>6} {:>8} {:>8} {:>9} {:>7} {:>8} {:>7} {:>8} {:>8} {:>8} {:>7} {:>12} {:>6}",
            "policy",
            "rate",
            "ratio",
            "whole",
            "stalls",
            "granted",
            "returned",
            "late",
            "limited",
            "dry",
            "revokes",
            "refused",
            "waiting",
            "buffers",
            "judged",
            "s"
        );
        for row in &self.rows {
            let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            println!(
                "  {:<10} {:>7.4} {:>6} {:>6} {:>8.1} {:>8.1} {:>9.1} {:>7.2} {:>8.1} {:>7.1} {:>8.2} {:>8.2} {:>8} {:>7} {:>12} {:>6.1}",
                row.policy.name(),
                row.rate,
                ratio(row.ratio),
                ratio(row.whole),
                row.stalls,
                row.granted,
                row.returned,
                row.moved_late,
                row.limited,
                row.dry,
                row.revocations,
                row.refusals,
                row.most_waiting,
                row.fewest_buffers,
                row.looks,
                row.seconds
            );
        }
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
        println!();
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

//! The report of a comparison: one value that the table, the JSON and the page are views of.

use std::time::{SystemTime, UNIX_EPOCH};

use doorbell_bench::baseline::Band;
use doorbell_bench::env::Host;
use doorbell_bench::report::json_of;
use doorbell_bench::stats::Percentiles;
use serde::Serialize;

use super::best::{self, Best};
use super::find::Peer;
use super::load::{Figure, Kind};
use super::rounds::{Disturbed, Event, Outcome, Taken, Turn};
use super::table::size;
use super::verdict::{Finding, Over, Row};
use crate::place::Setting;
use crate::probes::Overlap;

/// The name and version of the JSON (`bench/schema/compare-peers-2.schema.json`).
pub(crate) const SCHEMA: &str = "doorbell.compare-peers/2";

/// Everything that a comparison found out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) version: &'static str,
    /// When the first turn began.
    pub(crate) started_unix_ms: u64,
    pub(crate) host: Host,
    pub(crate) cores: [usize; 2],
    pub(crate) rounds: u32,
    /// Per size, kind and round.
    pub(crate) seconds: f64,
    pub(crate) window: u32,
    /// Whether everything ran at real-time priority.
    pub(crate) real_time: bool,
    pub(crate) peers: Vec<Peer>,
    pub(crate) stacks: Vec<StackInfo>,
    pub(crate) results: Vec<Line>,
    /// The best peer of each comparison, and what is promised beside it.
    pub(crate) best: Vec<Best>,
    /// What was not measured, and why.
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) turns: Turns,
    /// Each of them, with what it measured.
    pub(crate) every_turn: Vec<TurnRow>,
    /// Why the figures may be worth less than they look.
    pub(crate) doubts: Vec<String>,
    /// Why this is no comparison.
    #[serde(skip)]
    failure: Option<String>,
}

/// A turn with its names.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TurnRow {
    pub(crate) setting: &'static str,
    pub(crate) loss_percent: Option<f64>,
    pub(crate) kind: Kind,
    pub(crate) stack: String,
    pub(crate) round: u32,
    /// `counts`, `despite`, `moved`, `others` or `failed`.
    pub(crate) outcome: &'static str,
    pub(crate) band: Option<Band>,
    /// The bare exchange before and after it.
    pub(crate) bare_ns: [f64; 2],
    #[serde(flatten)]
    pub(crate) taken: Taken,
    pub(crate) figures: Vec<Figure>,
}

/// A stack and how it is measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StackInfo {
    pub(crate) name: String,
    pub(crate) how: String,
}

/// A row with its names.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) setting: &'static str,
    pub(crate) loss_percent: Option<f64>,
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    pub(crate) band: Band,
    /// Of each turn.
    pub(crate) seconds: f64,
    pub(crate) stack: String,
    /// Whether it is one of doorbell's.
    pub(crate) ours: bool,
    /// Nanoseconds of a half round trip, messages per second, or nanoseconds of a receive and a computation
    /// together.
    pub(crate) figure: Over,
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) half_rtt_ns: Percentiles,
    /// A receive alone, the computation alone, and both together, in nanoseconds.
    pub(crate) overlap_ns: Option<Overlap>,
    /// The share of the shorter of the two that is hidden behind the other.
    pub(crate) hidden: Option<f64>,
    pub(crate) ratio: Option<Over>,
    pub(crate) ratio_p50: Option<Over>,
    pub(crate) ahead: Option<Finding>,
    pub(crate) against_lossless: Option<f64>,
    /// The bare exchange around its turns.
    pub(crate) bare_ns: Option<f64>,
    #[serde(skip)]
    pub(crate) place: Setting,
}

impl Line {
    /// Whether a peer leads here, by the median of the rounds.
    pub(crate) fn peer_leads(&self) -> bool {
        !self.ours && self.ratio.is_some_and(|ratio| ratio.median < 1.0)
    }
}

/// What was left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Skipped {
    pub(crate) what: String,
    pub(crate) why: String,
    /// Whether it was tried and failed; else it is not available here.
    pub(crate) failed: bool,
}

/// How the turns went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Turns {
    pub(crate) counted: u32,
    /// Of them, those during which other work took more than it may.
    pub(crate) despite: u32,
    /// The cores moved between near and far.
    pub(crate) moved: u32,
    /// Other work took the cores.
    pub(crate) others: u32,
    pub(crate) failed: u32,
}

/// What a comparison was, beside its turns.
pub(crate) struct Frame {
    pub(crate) cores: [usize; 2],
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    pub(crate) window: u32,
    pub(crate) real_time: bool,
    pub(crate) started: SystemTime,
    pub(crate) peers: Vec<Peer>,
    /// Which of them were not measured, and why.
    pub(crate) left_out: Vec<(String, String)>,
    pub(crate) doubts: Vec<String>,
}

impl Report {
    pub(crate) fn new(frame: Frame, events: &[Event], turns: &[Turn], rows: &[Row]) -> Self {
        let mut stacks: Vec<StackInfo> = Vec::new();
        for stack in events.iter().flat_map(|event| &event.stacks) {
            let told = StackInfo {
                name: stack.name().to_owned(),
                how: stack.how(),
            };
            if !stacks.contains(&told) {
                stacks.push(told);
            }
        }
        let started = frame.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let results: Vec<Line> = rows.iter().map(|row| line(events, row)).collect();
        let skipped = skipped(&frame, events, turns);
        let failure = failure(&frame, events, turns, &results, &skipped);
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            started_unix_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
            host: Host::read(&frame.cores),
            cores: frame.cores,
            rounds: frame.rounds,
            seconds: frame.seconds,
            window: frame.window,
            real_time: frame.real_time,
            stacks,
            best: best::of(&results),
            results,
            skipped,
            peers: frame.peers,
            turns: counted(turns),
            every_turn: turns.iter().map(|turn| turn_row(events, turn)).collect(),
            doubts: frame
                .doubts
                .into_iter()
                .chain(despite(turns, frame.real_time))
                .collect(),
            failure,
        }
    }

    /// Returns the lines in which a peer is ahead.
    pub(crate) fn behind(&self) -> impl Iterator<Item = &Line> {
        self.results
            .iter()
            .filter(|line| line.ahead == Some(Finding::Peer) && !line.ours)
    }

    /// Returns why this is no comparison: doorbell itself failed, or nothing could be set beside it.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns it as JSON, with a newline at the end.
    pub(crate) fn json(&self) -> String {
        json_of(self)
    }
}

fn line(events: &[Event], row: &Row) -> Line {
    let stack = &events[row.event].stacks[row.stack];
    let stream = matches!(row.kind, Kind::Stream | Kind::Blocking);
    Line {
        setting: row.setting.key(),
        loss_percent: loss(row.setting),
        kind: row.kind,
        bytes: row.bytes,
        band: row.band,
        seconds: events[row.event].load.seconds,
        stack: stack.name().to_owned(),
        ours: stack.family().is_none(),
        figure: row.figure,
        bytes_per_second: stream.then_some(row.figure.median * row.bytes as f64),
        half_rtt_ns: row.half_rtt_ns,
        overlap_ns: row.overlap,
        hidden: row.overlap.map(Overlap::hidden),
        ratio: row.ratio,
        ratio_p50: row.ratio_p50,
        ahead: row.finding,
        against_lossless: row.against_lossless,
        bare_ns: row.bare_ns,
        place: row.setting,
    }
}

fn loss(setting: Setting) -> Option<f64> {
    match setting {
        Setting::Loss(percent) => Some(percent),
        _ => None,
    }
}

fn turn_row(events: &[Event], turn: &Turn) -> TurnRow {
    let event = &events[turn.event];
    let outcome = match &turn.outcome {
        Outcome::Counts(..) => "counts",
        Outcome::CountsDespite(..) => "despite",
        Outcome::Disturbed(Disturbed::Moved) => "moved",
        Outcome::Disturbed(Disturbed::Others) => "others",
        Outcome::Failed(_) => "failed",
    };
    TurnRow {
        setting: event.setting.key(),
        loss_percent: loss(event.setting),
        kind: event.load.kind,
        stack: event.stacks[turn.stack].name().to_owned(),
        round: turn.round,
        outcome,
        band: turn.counts().map(|(band, _)| band),
        bare_ns: turn.bare_ns,
        taken: turn.taken,
        figures: turn
            .counts()
            .map_or_else(Vec::new, |(_, figures)| figures.to_vec()),
    }
}

/// Returns why a comparison is none.
fn failure(
    frame: &Frame,
    events: &[Event],
    turns: &[Turn],
    results: &[Line],
    skipped: &[Skipped],
) -> Option<String> {
    let own = turns.iter().find_map(|turn| {
        let (event, stack) = (&events[turn.event], &events[turn.event].stacks[turn.stack]);
        match &turn.outcome {
            Outcome::Failed(why) if stack.family().is_none() => Some(format!(
                "{} failed in {} over {}: {why}",
                stack.name(),
                event.load.kind.name(),
                event.setting.name()
            )),
            _ => None,
        }
    });
    own.or_else(|| {
        let compared = results.iter().any(|line| !line.ours && line.ratio.is_some());
        let failed = skipped.iter().find(|it| it.failed).or(skipped.last());
        let failed = failed.map(|it| (&it.what, &it.why));
        let why = frame.left_out.first().map(|(what, why)| (what, why)).or(failed);
        (!compared).then(|| match why {
            Some((what, why)) => format!("nothing could be compared: {what}: {why}"),
            None => {
                "nothing could be compared: no two turns of one round were in the same band; take more rounds"
                    .to_owned()
            }
        })
    })
}

/// The doubt about turns that count despite other work.
fn despite(turns: &[Turn], real_time: bool) -> Option<String> {
    let noisy = turns
        .iter()
        .filter(|turn| matches!(turn.outcome, Outcome::CountsDespite(..)));
    let (count, others, stolen) = noisy.fold((0, 0.0f64, 0.0f64), |(count, others, stolen), turn| {
        (
            count + 1,
            others.max(turn.taken.others),
            stolen.max(turn.taken.stolen),
        )
    });
    let [others, stolen] = [others, stolen].map(|share| share * 100.0);
    let what = if real_time {
        "real-time priority keeps programs off while ours run, but neither from what they do to caches in between nor the \
         hypervisor: measure when the machine is quiet"
    } else {
        "measure when the machine is quiet, or at real-time priority (`chrt --rr 5 doorbell-lab compare-peers`)"
    };
    (count > 0).then(|| {
        format!(
            "{} although other work took up to {others:.0} % of the cores, and the hypervisor up to {stolen:.0} % \
             of them: {what}",
            if count == 1 { "1 turn counts".to_owned() } else { format!("{count} turns count") }
        )
    })
}

fn counted(turns: &[Turn]) -> Turns {
    let mut all = Turns::default();
    for turn in turns {
        let count = match turn.outcome {
            Outcome::Counts(..) => &mut all.counted,
            Outcome::CountsDespite(..) => {
                all.despite += 1;
                &mut all.counted
            }
            Outcome::Disturbed(Disturbed::Moved) => &mut all.moved,
            Outcome::Disturbed(Disturbed::Others) => &mut all.others,
            Outcome::Failed(_) => &mut all.failed,
        };
        *count += 1;
    }
    all
}

/// Returns peers that are not here, kinds that a stack does not report, turns that failed, and stacks none of
/// whose turns counted.
fn skipped(frame: &Frame, events: &[Event], turns: &[Turn]) -> Vec<Skipped> {
    let mut skipped: Vec<Skipped> = Vec::new();
    let mut add = |what: String, why: String, failed: bool| {
        let one = Skipped { what, why, failed };
        if !skipped.contains(&one) {
            skipped.push(one);
        }
    };
    for peer in &frame.peers {
        if let Some(why) = &peer.missing {
            add(peer.name.clone(), why.clone(), false);
        }
    }
    for (what, why) in &frame.left_out {
        add(what.clone(), why.clone(), false);
    }
    for (at, event) in events.iter().enumerate() {
        for (stack_at, stack) in event.stacks.iter().enumerate() {
            let kind = event.load.kind.name();
            let what = format!(
                "{}, {kind}, {}, {}",
                stack.name(),
                event.setting.name(),
                sizes(&event.load.sizes)
            );
            if let Some(why) = stack.unsupported(event.load.kind) {
                add(
                    format!("{}, {kind}", stack.name()),
                    format!("not reported: {why}"),
                    false,
                );
                continue;
            }
            let mine = || {
                turns
                    .iter()
                    .filter(|turn| (turn.event, turn.stack) == (at, stack_at))
            };
            // The first failure has the reason; a stack that fails has one more turn.
            let failure = mine().find_map(|turn| match &turn.outcome {
                Outcome::Failed(why) => Some(why.clone()),
                _ => None,
            });
            let any = failure.is_some();
            if let Some(why) = failure {
                add(what.clone(), why, true);
            }
            let counts = mine().any(|turn| turn.counts().is_some());
            if !counts && !any && mine().next().is_some() {
                let why = "none of its turns counted: the cores moved between near and far in each; take more rounds";
                add(what, why.to_owned(), true);
            }
        }
    }
    skipped
}

/// The sizes of a turn, from the first to the last.
fn sizes(all: &[u64]) -> String {
    match all {
        [] => "no size".to_owned(),
        [one] => size(*one),
        [first, .., last] => format!("{} to {}", size(*first), size(*last)),
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use std::path::PathBuf;

    use super::super::find::Built;
    use super::*;
    use crate::compare_peers::args::Family;

    /// Two stacks, two sizes, far; the peer is ahead at one of them.
    pub(crate) fn report() -> Report {
        let over = |median: f64| Over {
            median,
            least: median * 0.9,
            most: median * 1.05,
            count: 4,
        };
        let line = |stack: &str, kind, bytes, figure, ratio: Option<f64>| Line {
            setting: "shm",
            loss_percent: None,
            kind,
            bytes,
            band: Band::Far,
            seconds: 0.2,
            stack: stack.to_owned(),
            ours: ratio.is_none(),
            figure: over(figure),
            bytes_per_second: (kind == Kind::Stream).then_some(figure * bytes as f64),
            half_rtt_ns: Percentiles {
                mean: (kind == Kind::Latency).then_some(figure),
                p50: (kind == Kind::Latency).then_some(figure * 0.98),
                p99: (kind == Kind::Latency && ratio.is_none()).then_some(figure * 3.0),
                ..Percentiles::default()
            },
            overlap_ns: None,
            hidden: None,
            ratio: ratio.map(over),
            ratio_p50: ratio.map(over),
            ahead: ratio.map(|ratio| {
                if ratio > 1.0 {
                    Finding::Doorbell
                } else {
                    Finding::Peer
                }
            }),
            against_lossless: None,
            bare_ns: Some(232.0),
            place: Setting::Shm,
        };
        let results = [(Kind::Latency, 240.0, 1e4), (Kind::Stream, 5e6, 1e5)];
        let results: Vec<Line> = results
            .into_iter()
            .flat_map(|(kind, small, large)| {
                [
                    line("doorbell", kind, 8, small, None),
                    line("UCX <&>", kind, 8, small * 2.0, Some(2.0)),
                    line("doorbell", kind, 65_536, large, None),
                    line("UCX <&>", kind, 65_536, large * 0.7, Some(0.7)),
                ]
            })
            .collect();
        Report {
            schema: SCHEMA,
            version: "0.0.0",
            started_unix_ms: 1,
            host: Host::default(),
            cores: [0, 1],
            rounds: 4,
            seconds: 0.2,
            window: 64,
            real_time: false,
            peers: vec![Peer {
                family: Family::Ucx,
                name: "UCX".to_owned(),
                version: Some("1.13.1".to_owned()),
                path: Some(PathBuf::from("/usr/bin/ucx_perftest")),
                compiler: None,
                home: None,
                carriers: Vec::new(),
                built: Built::default(),
                missing: None,
            }],
            stacks: ["doorbell", "UCX <&>"]
                .map(|name| StackInfo {
                    name: name.to_owned(),
                    how: "as it is".to_owned(),
                })
                .to_vec(),
            best: best::of(&results),
            results,
            skipped: vec![Skipped {
                what: "MPICH".to_owned(),
                why: "mpiexec.hydra is not on the PATH: apt-get install mpich".to_owned(),
                failed: false,
            }],
            turns: Turns {
                counted: 16,
                ..Turns::default()
            },
            every_turn: Vec::new(),
            doubts: vec!["the cores are not isolated".to_owned()],
            failure: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::doorbell::Doorbell;
    use super::super::libfabric::Libfabric;
    use super::super::load::Load;
    use super::super::mpi::Mpi;
    use super::super::rounds::Outcome;
    use super::super::stack::Stack;
    use super::super::verdict::rows;
    use super::*;
    use crate::compare_peers::args::Family;

    /// Latencies of 8 bytes in two rounds: doorbell's 100 ns, and of each other stack over libfabric what
    /// `nanos` returns for its name.
    fn over_libfabric(nanos: impl Fn(&str) -> f64) -> Report {
        let load = Load {
            kind: Kind::Latency,
            sizes: vec![8],
            seconds: 0.1,
            window: 64,
            limit: None,
        };
        let peer = |family, name: &str| Peer {
            family,
            name: name.to_owned(),
            compiler: Some(PathBuf::from("/usr/bin/mpicc")),
            carriers: ["ofi", "shm", "tcp;ofi_rxm", "udp;ofi_rxd"]
                .map(str::to_owned)
                .to_vec(),
            ..samples::report().peers.remove(0)
        };
        let folder = Some(Path::new("/opt/doorbell"));
        let mut stacks: Vec<Box<dyn Stack>> = Vec::new();
        for stack in Doorbell::shm(PathBuf::new(), [0, 1], &load) {
            stacks.push(Box::new(stack));
        }
        for stack in Libfabric::ways(&peer(Family::Libfabric, "libfabric"), false, folder) {
            stacks.push(Box::new(stack));
        }
        for (family, name) in [(Family::OpenMpi, "Open MPI"), (Family::Mpich, "MPICH")] {
            for stack in Mpi::ways(&peer(family, name), false, folder) {
                stacks.push(Box::new(stack));
            }
        }
        let figure = |name: &str| Figure {
            bytes: 8,
            half_rtt_ns: Percentiles {
                mean: Some(if name == "doorbell" { 100.0 } else { nanos(name) }),
                ..Percentiles::default()
            },
            ..Figure::default()
        };
        let turns: Vec<Turn> = (0..2)
            .flat_map(|round| {
                stacks
                    .iter()
                    .enumerate()
                    .map(move |(at, stack)| (round, at, stack))
            })
            .map(|(round, stack, named)| Turn {
                stack,
                round,
                ..turn(Outcome::Counts(Band::Near, vec![figure(named.name())]), 0.0, 0.0)
            })
            .collect();
        let events = [Event {
            setting: Setting::Shm,
            load,
            stacks,
        }];
        let frame = Frame {
            cores: [0, 1],
            rounds: 2,
            seconds: 0.1,
            window: 64,
            real_time: false,
            started: SystemTime::now(),
            peers: Vec::new(),
            left_out: Vec::new(),
            doubts: Vec::new(),
        };
        Report::new(frame, &events, &turns, &rows(&events, &turns))
    }

    #[test]
    fn other_programs_over_doorbells_own_provider_are_no_peers() {
        let report = over_libfabric(|name| if name.ends_with(" doorbell") { 50.0 } else { 400.0 });
        let provider: Vec<&str> = report
            .results
            .iter()
            .filter(|line| line.ours)
            .map(|line| &*line.stack)
            .collect();
        assert_eq!(
            provider,
            [
                "doorbell",
                "libfabric doorbell",
                "Open MPI doorbell",
                "MPICH doorbell"
            ]
        );
        // They are compared, and neither a peer that is ahead nor the best one.
        let ratio = report.results[1].ratio.map(|ratio| ratio.median);
        assert_eq!(
            (&*report.results[1].stack, ratio),
            ("libfabric doorbell", Some(0.5))
        );
        assert_eq!(report.behind().count(), 0);
        assert_eq!(report.failure(), None);
        let [best] = &report.best[..] else {
            panic!("{:?}", report.best)
        };
        assert_eq!((&*best.peer, best.ratio.median), ("libfabric shm", 4.0));
        // Another provider's row is a peer's.
        let report = over_libfabric(|name| {
            if name == "MPICH libfabric shm" {
                50.0
            } else {
                400.0
            }
        });
        let behind: Vec<&str> = report.behind().map(|line| &*line.stack).collect();
        assert_eq!(behind, ["MPICH libfabric shm"]);
        assert_eq!(report.best[0].peer, "MPICH libfabric shm");
    }

    fn turn(outcome: Outcome, others: f64, stolen: f64) -> Turn {
        Turn {
            event: 0,
            stack: 0,
            round: 0,
            outcome,
            bare_ns: [50.0, 50.0],
            taken: Taken { others, stolen },
        }
    }

    #[test]
    fn turns_that_count_despite_other_work_are_doubted_also_at_real_time_priority() {
        let turns = [
            turn(Outcome::Counts(Band::Near, Vec::new()), 0.05, 0.0),
            turn(Outcome::CountsDespite(Band::Near, Vec::new()), 0.42, 0.17),
        ];
        for real_time in [false, true] {
            let doubt = despite(&turns, real_time).unwrap();
            assert!(
                doubt.contains("1 turn counts") && doubt.contains("42 %") && doubt.contains("17 %"),
                "{doubt}"
            );
            assert_eq!(doubt.contains("chrt"), !real_time);
        }
        assert_eq!(despite(&turns[..1], true), None);
    }
}

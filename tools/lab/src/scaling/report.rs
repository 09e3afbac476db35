//! The results: curves, their slopes, and what is missing.

use doorbell_bench::env::{Caveat, Environment, Host, caveats};
use doorbell_bench::report::json_of;
use doorbell_bench::stats::Spread;
use serde::Serialize;

use super::Plan;
use super::measure::Samples;
use crate::scaling::fit::Slope;

/// The name and version of the JSON.
pub(super) const SCHEMA: &str = "doorbell.scaling/1";

/// A curve's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Key {
    IdleHalf,
    IdleLook,
    IdleMemory,
    PostedFew,
    PostedAll,
    UnexpectedFew,
    UnexpectedAll,
    RanksHalf,
    RanksBarrier,
    RanksBuilt,
    RanksJob,
}

/// Which picture a curve is in, and what its axes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    Idle,
    Memory,
    Queues,
    Ranks,
    Jobs,
}

impl Group {
    pub(super) const ALL: [Self; 5] = [Self::Idle, Self::Memory, Self::Queues, Self::Ranks, Self::Jobs];

    /// The title of its picture.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Idle => "Idle peers: what they cost those that talk",
            Self::Memory => "Idle peers: memory of a rank",
            Self::Queues => "Matching a fully given tag",
            Self::Ranks => "Ranks on this machine, over shared memory",
            Self::Jobs => "Jobs on this machine",
        }
    }

    /// Returns what there are more and more of.
    pub(super) fn across(self) -> &'static str {
        match self {
            Self::Idle | Self::Memory => "idle peers",
            Self::Queues => "entries queued",
            Self::Ranks | Self::Jobs => "ranks",
        }
    }

    /// One of them.
    pub(super) fn one(self) -> &'static str {
        match self {
            Self::Idle | Self::Memory => "peer",
            Self::Queues => "entry",
            Self::Ranks | Self::Jobs => "rank",
        }
    }
}

/// The unit of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "ns")]
    Nanoseconds,
    #[serde(rename = "bytes")]
    Bytes,
}

impl Key {
    pub(super) const ALL: [Self; 11] = [
        Self::IdleHalf,
        Self::IdleLook,
        Self::IdleMemory,
        Self::PostedFew,
        Self::PostedAll,
        Self::UnexpectedFew,
        Self::UnexpectedAll,
        Self::RanksHalf,
        Self::RanksBarrier,
        Self::RanksBuilt,
        Self::RanksJob,
    ];

    /// Its name in the legend.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::IdleHalf => "8 B half round trip",
            Self::IdleLook => "a look, and nothing came",
            Self::IdleMemory => "resident memory",
            Self::PostedFew => "posted, few tags",
            Self::PostedAll => "posted, all tags",
            Self::UnexpectedFew => "kept, few tags",
            Self::UnexpectedAll => "kept, all tags",
            Self::RanksHalf => "8 B half round trip, in pairs",
            Self::RanksBarrier => "a barrier of all",
            Self::RanksBuilt => "until a rank has its world",
            Self::RanksJob => "a whole job, start to end",
        }
    }

    pub(super) fn group(self) -> Group {
        match self {
            Self::IdleHalf | Self::IdleLook => Group::Idle,
            Self::IdleMemory => Group::Memory,
            Self::PostedFew | Self::PostedAll | Self::UnexpectedFew | Self::UnexpectedAll => Group::Queues,
            Self::RanksHalf | Self::RanksBarrier => Group::Ranks,
            Self::RanksBuilt | Self::RanksJob => Group::Jobs,
        }
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::IdleMemory => Unit::Bytes,
            _ => Unit::Nanoseconds,
        }
    }

    fn counts(self, plan: &Plan) -> &[u32] {
        match self.group() {
            Group::Idle | Group::Memory => &plan.peers,
            Group::Queues => &plan.entries,
            Group::Ranks | Group::Jobs => &plan.ranks,
        }
    }
}

/// One point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    /// How many there were.
    pub(super) count: u32,
    /// The median of the rounds.
    pub(super) figure: f64,
    /// The spread of the rounds.
    pub(super) spread: Spread,
    pub(super) rounds: usize,
}

/// A curve with its points.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    pub(super) key: Key,
    pub(super) name: &'static str,
    pub(super) group: Group,
    /// What there are more and more of.
    pub(super) across: &'static str,
    pub(super) unit: Unit,
    pub(super) points: Vec<Point>,
    /// Of all points; of ranks, of those that share cores, since what changes there is another thing than
    /// what grows.
    pub(super) slope: Option<Slope>,
    /// The slope in words, where it is larger than the noise of the rounds.
    pub(super) growth: Option<&'static str>,
}

/// What could not be measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Missing {
    pub(super) what: &'static str,
    pub(super) count: u32,
    pub(super) reason: String,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    pub(super) version: &'static str,
    pub(super) host: Host,
    /// Reasons to doubt the figures.
    pub(super) doubts: Vec<Caveat>,
    pub(super) cores: usize,
    pub(super) rounds: u32,
    pub(super) curves: Vec<Curve>,
    pub(super) missing: Vec<Missing>,
}

impl Report {
    /// `host` is the machine as it was before anything was measured.
    pub(super) fn new(plan: &Plan, samples: &Samples, host: Host) -> Self {
        let cores = doorbell_bench::pin::allowed();
        let environment = Environment {
            host,
            ..Environment::default()
        };
        let curves = Key::ALL
            .into_iter()
            .map(|key| Curve::of(key, key.counts(plan), samples, cores.len()))
            .filter(|curve| !curve.points.is_empty());
        let missing = samples.missing.iter().map(|((what, count), reason)| Missing {
            what,
            count: *count,
            reason: reason.clone(),
        });
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            doubts: caveats(&environment, &[]),
            host: environment.host,
            cores: cores.len(),
            rounds: plan.rounds,
            curves: curves.collect(),
            missing: missing.collect(),
        }
    }

    /// Returns it as JSON, with a newline at the end.
    pub(super) fn json(&self) -> String {
        json_of(self)
    }
}

impl Curve {
    fn of(key: Key, counts: &[u32], samples: &Samples, cores: usize) -> Self {
        let points: Vec<Point> = counts
            .iter()
            .filter_map(|&count| {
                let figures = samples.of(key, count);
                let spread = Spread::of(figures);
                Some(Point {
                    count,
                    figure: spread.p50?,
                    spread,
                    rounds: figures.len(),
                })
            })
            .collect();
        let plain: Vec<(f64, f64)> = points
            .iter()
            .map(|point| (f64::from(point.count), point.figure))
            .collect();
        let shared: Vec<(f64, f64)> = plain
            .iter()
            .copied()
            .filter(|(count, _)| *count > cores as f64)
            .collect();
        let slope = match key.group() {
            Group::Ranks if shared.len() > 1 => Slope::of(&shared),
            _ => Slope::of(&plain),
        };
        let growth = slope.filter(|slope| is_told(&points, *slope)).map(Slope::name);
        Self {
            key,
            name: key.name(),
            group: key.group(),
            across: key.group().across(),
            unit: key.unit(),
            points,
            slope,
            growth,
        }
    }
}

/// Rounds from which on growth can be distinguished from noise.
const ROUNDS: usize = 2;

/// Whether the rounds show that a curve grows, falls or does neither: one round has no noise to compare with,
/// and where the rounds at both ends overlap, what changes between them may be noise.
fn is_told(points: &[Point], slope: Slope) -> bool {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return false;
    };
    if points.iter().any(|point| point.rounds < ROUNDS) {
        return false;
    }
    let ends = |point: &Point| Some((point.spread.min?, point.spread.max?));
    match (ends(first), ends(last)) {
        (Some(a), Some(b)) => slope.is_flat() || a.1 < b.0 || b.1 < a.0,
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// A report of three curves and something that is missing.
    pub(crate) fn report() -> Report {
        let plan = Plan {
            rounds: 2,
            peers: vec![2, 4096],
            entries: vec![1, 100_000],
            ranks: Vec::new(),
        };
        let mut samples = Samples::default();
        for (key, count, figure) in [
            (Key::IdleHalf, 2, 150.0),
            (Key::IdleHalf, 2, 152.0),
            (Key::IdleHalf, 4096, 151.0),
            (Key::IdleHalf, 4096, 153.0),
            (Key::IdleMemory, 2, 400_000.0),
            (Key::IdleMemory, 2, 400_100.0),
            (Key::IdleMemory, 4096, 4_400_000.0),
            (Key::IdleMemory, 4096, 4_400_100.0),
            (Key::PostedAll, 1, 20.0),
            (Key::PostedAll, 1, 21.0),
            (Key::PostedAll, 100_000, 90.0),
            (Key::PostedAll, 100_000, 91.0),
        ] {
            samples.add(key, count, figure);
        }
        samples.missing.insert(("ranks", 64), "no <room>".to_owned());
        let host = Host {
            load: Some(9.0),
            cores_online: 2,
            ..Host::default()
        };
        Report::new(&plan, &samples, host)
    }

    #[test]
    fn what_the_rounds_cannot_tell_from_noise_has_no_name() {
        let plan = |rounds| Plan {
            rounds,
            peers: vec![2, 64],
            entries: Vec::new(),
            ranks: Vec::new(),
        };
        let growth = |figures: &[(u32, f64)], rounds| {
            let mut samples = Samples::default();
            for (count, figure) in figures {
                samples.add(Key::IdleHalf, *count, *figure);
            }
            Report::new(&plan(rounds), &samples, Host::default()).curves[0].growth
        };
        // One round under load: 2,000 ns at first, and 300 when the others had done.
        assert_eq!(growth(&[(2, 2_000.0), (64, 300.0)], 1), None);
        let twice = [(2, 2_000.0), (2, 310.0), (64, 300.0), (64, 320.0)];
        assert_eq!(growth(&twice, 2), None);
        let falls = [(2, 2_000.0), (2, 1_900.0), (64, 300.0), (64, 320.0)];
        assert_eq!(growth(&falls, 2), Some("falls"));
        let flat = [(2, 300.0), (2, 310.0), (64, 305.0), (64, 300.0)];
        assert_eq!(growth(&flat, 2), Some("flat"));
    }

    #[test]
    fn curves_have_medians_and_slopes_and_what_is_missing_is_shown() {
        let report = report();
        assert_eq!(report.curves.len(), 3);
        let half = &report.curves[0];
        assert_eq!((half.key, half.points[0].figure), (Key::IdleHalf, 151.0));
        assert_eq!(half.growth, Some("flat"));
        let each = report.curves[1].slope.unwrap().each;
        assert!((900.0..1100.0).contains(&each), "{each}");
        assert_eq!(report.missing[0].reason, "no <room>");
        assert!(report.json().contains("\"idle-half\""));
    }
}

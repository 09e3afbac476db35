//! Verdicts: what the turns of a stack result in together, and how many times as good as each peer doorbell
//! is.
//!
//! A ratio is of two turns of one round in one band, and above 1 where doorbell is ahead: time over time for
//! a latency, rate over rate for a stream. Its median over the rounds is reported with the least and the
//! most; a stack counts as ahead where all of them are on one side, and there are two at least.

use std::collections::BTreeMap;

use doorbell_bench::baseline::Band;
use doorbell_bench::stats::{Percentiles, median};
use serde::Serialize;

use super::load::{Figure, Kind};
use super::rounds::{Event, Turn};
use crate::place::Setting;
use crate::probes::Overlap;

/// A median with its spread, over turns or pairs of turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Over {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) count: usize,
}

impl Over {
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        Some(Self {
            median: median(&values)?,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            count: values.len(),
        })
    }
}

/// Which of two stacks is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Finding {
    /// Every ratio is above 1.
    Doorbell,
    /// Every ratio is below 1.
    Peer,
    /// Some are above and some below, or there are too few.
    Open,
}

impl Finding {
    fn of(ratio: Over) -> Self {
        match ratio {
            Over { count: 0 | 1, .. } => Self::Open,
            Over { least, .. } if least > 1.0 => Self::Doorbell,
            Over { most, .. } if most < 1.0 => Self::Peer,
            _ => Self::Open,
        }
    }
}

/// One stack at one load with one size in one band.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) event: usize,
    pub(crate) stack: usize,
    pub(crate) setting: Setting,
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    pub(crate) band: Band,
    /// Mean half round trip, messages per second, or what a receive and a computation take together.
    pub(crate) figure: Over,
    /// Medians over the turns, of half round trips.
    pub(crate) half_rtt_ns: Percentiles,
    /// Medians over the turns.
    pub(crate) overlap: Option<Overlap>,
    /// How many times as good doorbell is; none for doorbell's own first rail.
    pub(crate) ratio: Option<Over>,
    /// The same ratio of the p50, where both report one.
    pub(crate) ratio_p50: Option<Over>,
    pub(crate) finding: Option<Finding>,
    /// The bare exchange around its turns.
    pub(crate) bare_ns: Option<f64>,
    /// Under losses: how many times as long it takes, or which share of its rate is left.
    pub(crate) against_lossless: Option<f64>,
}

/// Returns the number of a figure that is compared.
fn number(kind: Kind, figure: &Figure) -> Option<f64> {
    match kind {
        Kind::Latency | Kind::Put | Kind::Am => figure.half_rtt_ns.mean,
        Kind::Stream | Kind::Blocking => figure.messages_per_second,
        Kind::Overlap => figure.overlap.map(|times| times.both),
    }
}

/// Returns how many times as good the base is.
fn times(kind: Kind, base: f64, other: f64) -> f64 {
    match kind {
        Kind::Latency | Kind::Overlap | Kind::Put | Kind::Am => other / base,
        Kind::Stream | Kind::Blocking => base / other,
    }
}

/// Whether both computed for as long, where they computed: the same steps may take another time in another
/// compiler's code, as in a build without optimisation, and then the time of both together is no measure of
/// the receive.
fn is_same_work(a: &Figure, b: &Figure) -> bool {
    const ALIKE: f64 = 1.25;
    a.overlap.zip(b.overlap).is_none_or(|(a, b)| {
        let (a, b) = (a.computing, b.computing);
        a.max(b) <= ALIKE * a.min(b)
    })
}

type Key = (usize, u64, Band, usize);

/// All rows, by event, size, band and stack. Doorbell's first rail is the first stack of its event.
pub(crate) fn rows(events: &[Event], turns: &[Turn]) -> Vec<Row> {
    let mut figures: BTreeMap<Key, Vec<(u32, &Figure)>> = BTreeMap::new();
    for turn in turns {
        if let Some((band, told)) = turn.counts() {
            for figure in told {
                let key = (turn.event, figure.bytes, band, turn.stack);
                figures.entry(key).or_default().push((turn.round, figure));
            }
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for ((event, bytes, band, stack), mine) in &figures {
        let base = (*stack != 0)
            .then(|| figures.get(&(*event, *bytes, *band, 0)))
            .flatten();
        let row = row(&events[*event], (*event, *bytes, *band, *stack), mine, base);
        rows.extend(row.map(|row| Row {
            bare_ns: bare(turns, &row),
            ..row
        }));
    }
    let lossless: Vec<Option<f64>> = rows.iter().map(|row| lossless(events, &rows, row)).collect();
    for (row, lossless) in rows.iter_mut().zip(lossless) {
        row.against_lossless = lossless.map(|lossless| row.figure.median / lossless);
    }
    rows
}

fn row(event: &Event, key: Key, mine: &[(u32, &Figure)], base: Option<&Vec<(u32, &Figure)>>) -> Option<Row> {
    let (event_at, bytes, band, stack) = key;
    let kind = event.load.kind;
    let all: Vec<f64> = mine
        .iter()
        .filter_map(|(_, figure)| number(kind, figure))
        .collect();
    let pairs = |of: &dyn Fn(&Figure) -> Option<f64>| -> Vec<f64> {
        let base = base.into_iter().flatten();
        base.filter_map(|(round, base)| {
            let (_, other) = mine.iter().find(|(mine, _)| mine == round)?;
            is_same_work(base, other).then_some(())?;
            Some(times(kind, of(base)?, of(other)?))
        })
        .collect()
    };
    let ratio = Over::of(&pairs(&|figure| number(kind, figure)));
    let ratio_p50 = Over::of(&pairs(&|figure| figure.half_rtt_ns.p50));
    let middle = |of: fn(&Percentiles) -> Option<f64>| {
        let values: Vec<f64> = mine
            .iter()
            .filter_map(|(_, figure)| of(&figure.half_rtt_ns))
            .collect();
        median(&values)
    };
    let overlap = |of: fn(Overlap) -> f64| {
        let values: Vec<f64> = mine
            .iter()
            .filter_map(|(_, figure)| figure.overlap.map(of))
            .collect();
        median(&values)
    };
    Some(Row {
        event: event_at,
        stack,
        setting: event.setting,
        kind,
        bytes,
        band,
        figure: Over::of(&all)?,
        half_rtt_ns: Percentiles {
            min: middle(|it| it.min),
            p50: middle(|it| it.p50),
            p90: middle(|it| it.p90),
            p99: middle(|it| it.p99),
            p999: middle(|it| it.p999),
            p9999: middle(|it| it.p9999),
            max: middle(|it| it.max),
            mean: middle(|it| it.mean),
        },
        overlap: overlap(|it| it.alone)
            .zip(overlap(|it| it.computing))
            .zip(overlap(|it| it.both))
            .map(|((alone, computing), both)| Overlap {
                alone,
                computing,
                both,
            }),
        ratio: ratio.filter(|_| stack != 0),
        ratio_p50: ratio_p50.filter(|_| stack != 0),
        finding: ratio.filter(|_| stack != 0).map(Finding::of),
        bare_ns: None,
        against_lossless: None,
    })
}

/// The bare exchange around the turns behind a row.
fn bare(turns: &[Turn], row: &Row) -> Option<f64> {
    let mine = turns.iter().filter(|turn| {
        let counts = turn.counts().is_some_and(|(band, _)| band == row.band);
        counts && (turn.event, turn.stack) == (row.event, row.stack)
    });
    let all: Vec<f64> = mine.flat_map(|turn| turn.bare_ns).collect();
    median(&all)
}

/// Returns the same stack's figure without losses, in the same band, or in any if it has none there.
fn lossless(events: &[Event], rows: &[Row], row: &Row) -> Option<f64> {
    let Setting::Loss(_) = row.setting else {
        return None;
    };
    let name = |row: &Row| events[row.event].stacks[row.stack].name();
    let same = |other: &&Row| {
        other.setting == Setting::Network
            && (other.kind, other.bytes) == (row.kind, row.bytes)
            && name(other) == name(row)
    };
    let all: Vec<&Row> = rows.iter().filter(same).collect();
    let near = all.iter().find(|other| other.band == row.band).or(all.first());
    near.map(|other| other.figure.median)
}

#[cfg(test)]
mod tests {
    use super::super::load::Load;
    use super::super::rounds::{Outcome, Taken};
    use super::super::stack::{Lab, Stack};
    use super::*;
    use crate::compare_peers::args::Family;
    use doorbell_tools::process::Stop;
    use proptest::prelude::*;

    struct Named(&'static str);

    impl Stack for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn family(&self) -> Option<Family> {
            None
        }
        fn how(&self) -> String {
            String::new()
        }
        fn unsupported(&self, _: Kind) -> Option<&'static str> {
            None
        }
        fn measure(&self, _: &Lab<'_>, _: &Load) -> Result<Vec<Figure>, Stop> {
            Ok(Vec::new())
        }
    }

    fn event(setting: Setting, kind: Kind) -> Event {
        Event {
            setting,
            load: Load {
                kind,
                sizes: vec![8],
                seconds: 0.1,
                window: 64,
                limit: None,
            },
            stacks: vec![Box::new(Named("doorbell")), Box::new(Named("peer"))],
        }
    }

    fn turn(event: usize, stack: usize, round: u32, band: Band, value: f64) -> Turn {
        let figure = Figure {
            bytes: 8,
            half_rtt_ns: Percentiles {
                mean: Some(value),
                ..Percentiles::default()
            },
            messages_per_second: Some(value),
            overlap: Some(Overlap {
                alone: value,
                computing: 100.0,
                both: value,
            }),
        };
        Turn {
            event,
            stack,
            round,
            outcome: Outcome::Counts(band, vec![figure]),
            bare_ns: [50.0, 50.0],
            taken: Taken::default(),
        }
    }

    #[test]
    fn ratios_are_of_one_round_and_one_band() {
        let events = [event(Setting::Shm, Kind::Latency)];
        let turns = [
            turn(0, 0, 0, Band::Near, 100.0),
            turn(0, 1, 0, Band::Near, 150.0),
            turn(0, 0, 1, Band::Near, 100.0),
            // Far in this round: no pair with the near one.
            turn(0, 1, 1, Band::Far, 900.0),
            turn(0, 0, 2, Band::Near, 100.0),
            turn(0, 1, 2, Band::Near, 130.0),
        ];
        let rows = rows(&events, &turns);
        let peer = rows
            .iter()
            .find(|row| row.stack == 1 && row.band == Band::Near)
            .unwrap();
        let ratio = peer.ratio.unwrap();
        assert_eq!(
            (ratio.count, ratio.least, ratio.most, ratio.median),
            (2, 1.3, 1.5, 1.4)
        );
        assert_eq!(peer.finding, Some(Finding::Doorbell));
        let far = rows.iter().find(|row| row.band == Band::Far).unwrap();
        assert_eq!((far.ratio, far.finding, far.figure.median), (None, None, 900.0));
        assert!(
            rows.iter()
                .filter(|row| row.stack == 0)
                .all(|row| row.ratio.is_none())
        );
    }

    #[test]
    fn of_rates_the_higher_one_is_ahead() {
        let events = [event(Setting::Shm, Kind::Stream)];
        let turns: Vec<Turn> = (0..3)
            .flat_map(|round| {
                [
                    turn(0, 0, round, Band::Far, 10.0),
                    turn(0, 1, round, Band::Far, 20.0),
                ]
            })
            .collect();
        let rows = rows(&events, &turns);
        assert_eq!(
            (rows[1].ratio.unwrap().median, rows[1].finding),
            (0.5, Some(Finding::Peer))
        );
    }

    #[test]
    fn of_overlap_the_time_of_both_together_is_compared() {
        let events = [event(Setting::Shm, Kind::Overlap)];
        let turns = [0, 1].map(|stack| turn(0, stack, 0, Band::Far, [200.0, 300.0][stack]));
        let rows = rows(&events, &turns);
        assert_eq!(rows[1].ratio.unwrap().median, 1.5);
        assert_eq!(rows[1].overlap.unwrap().both, 300.0);
    }

    #[test]
    fn what_was_computed_in_another_time_is_not_compared() {
        let times = |computing| Figure {
            overlap: Some(Overlap {
                alone: 1.0,
                computing,
                both: computing,
            }),
            ..Figure::default()
        };
        assert!(
            is_same_work(&times(100.0), &times(120.0)) && is_same_work(&times(100.0), &Figure::default())
        );
        assert!(!is_same_work(&times(700.0), &times(100.0)));
    }

    #[test]
    fn no_stack_is_ahead_by_one_pair_or_on_both_sides() {
        let over = |values: &[f64]| Finding::of(Over::of(values).unwrap());
        assert_eq!(over(&[5.0]), Finding::Open);
        assert_eq!(over(&[0.9, 1.1]), Finding::Open);
        assert_eq!(over(&[0.9, 0.8]), Finding::Peer);
        assert_eq!(Over::of(&[f64::NAN]), None);
    }

    #[test]
    fn losses_are_compared_with_the_same_stack_without_them() {
        let events = [
            event(Setting::Network, Kind::Latency),
            event(Setting::Loss(1.0), Kind::Latency),
        ];
        let turns = [
            turn(0, 1, 0, Band::Near, 10.0),
            turn(1, 1, 0, Band::Far, 25.0),
            turn(1, 0, 0, Band::Far, 25.0),
        ];
        let rows = rows(&events, &turns);
        let of = |stack| {
            rows.iter()
                .find(|row| row.event == 1 && row.stack == stack)
                .unwrap()
                .against_lossless
        };
        assert_eq!((of(1), of(0)), (Some(2.5), None));
    }

    proptest! {
        #[test]
        fn a_median_is_within_its_spread(values in prop::collection::vec(0.001f64..1e9, 1..30)) {
            let over = Over::of(&values).unwrap();
            prop_assert!(over.least <= over.median && over.median <= over.most);
            prop_assert_eq!(over.count, values.len());
        }
    }
}

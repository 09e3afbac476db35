//! doorbell beside the best peer of each comparison, with what the design promises there: latencies below
//! every installed peer's, rates of small messages above, bandwidths of large ones at least 0.97 of the best
//! one's.

use doorbell_bench::baseline::Band;
use serde::Serialize;

use super::load::Kind;
use super::report::Line;
use super::verdict::Over;
use crate::place::Setting;

/// From this size on, a stream is about bandwidth.
const LARGE: u64 = 64 << 10;
/// The share of the best peer's bandwidth that is promised.
const BANDWIDTH: f64 = 0.97;

/// Whether the promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kept {
    /// In every round.
    Met,
    /// In no round.
    Missed,
    /// In some, or fewer than two could be compared.
    Open,
}

/// One size of one load in one band.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Best {
    pub(crate) setting: &'static str,
    pub(crate) loss_percent: Option<f64>,
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    pub(crate) band: Band,
    /// The peer with the best figure.
    pub(crate) peer: String,
    /// How many times as good doorbell's first row is.
    pub(crate) ratio: Over,
    /// What it is promised to be: above 1, or at least a number; `None` where nothing is promised.
    pub(crate) promise: Option<Promise>,
    pub(crate) verdict: Option<Kept>,
    #[serde(skip)]
    pub(crate) place: Setting,
}

/// A bound on how many times as good doorbell is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    Above(f64),
    AtLeast(f64),
}

impl Promise {
    fn of(line: &Line) -> Option<Self> {
        match (line.place, line.kind) {
            (Setting::Loss(_), _) | (_, Kind::Overlap | Kind::Put | Kind::Am) => None,
            (_, Kind::Stream) if line.bytes >= LARGE => Some(Self::AtLeast(BANDWIDTH)),
            _ => Some(Self::Above(1.0)),
        }
    }

    fn holds(self, ratio: f64) -> bool {
        match self {
            Self::Above(limit) => ratio > limit,
            Self::AtLeast(limit) => ratio >= limit,
        }
    }

    fn judge(self, ratio: Over) -> Kept {
        match (ratio.count, self.holds(ratio.least), self.holds(ratio.most)) {
            (0 | 1, ..) => Kept::Open,
            (_, true, true) => Kept::Met,
            (_, false, false) => Kept::Missed,
            _ => Kept::Open,
        }
    }

    /// Returns it in words, with its sign.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Above(limit) => format!("above {limit}"),
            Self::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

/// The best peer of everything that was compared, in the order of the lines.
pub(crate) fn of(lines: &[Line]) -> Vec<Best> {
    let mut all: Vec<(&Line, Best)> = Vec::new();
    for line in lines.iter().filter(|line| !line.ours) {
        let Some(ratio) = line.ratio else { continue };
        let promise = Promise::of(line);
        let best = Best {
            setting: line.setting,
            loss_percent: line.loss_percent,
            kind: line.kind,
            bytes: line.bytes,
            band: line.band,
            peer: line.stack.clone(),
            ratio,
            promise,
            verdict: promise.map(|promise| promise.judge(ratio)),
            place: line.place,
        };
        match all.iter_mut().find(|(other, _)| is_beside(other, line)) {
            None => all.push((line, best)),
            Some(known) if is_better(line, known.0) => *known = (line, best),
            Some(_) => {}
        }
    }
    all.into_iter().map(|(_, best)| best).collect()
}

fn is_beside(a: &Line, b: &Line) -> bool {
    (a.place, a.kind, a.bytes, a.band) == (b.place, b.kind, b.bytes, b.band)
}

fn is_better(a: &Line, b: &Line) -> bool {
    let (a_median, b_median) = (a.figure.median, b.figure.median);
    match a.kind {
        Kind::Latency | Kind::Overlap | Kind::Put | Kind::Am => a_median < b_median,
        Kind::Stream | Kind::Blocking => a_median > b_median,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::samples;
    use super::*;

    #[test]
    fn the_best_peer_is_judged_by_what_is_promised_of_its_load() {
        let mut report = samples::report();
        let mut slow = report.results[1].clone();
        slow.stack = "slow".to_owned();
        slow.figure.median *= 2.0;
        report.results.push(slow);
        let found = of(&report.results);
        let told: Vec<_> = found
            .iter()
            .map(|best| (best.kind, best.bytes, &*best.peer, best.verdict))
            .collect();
        assert_eq!(
            told,
            [
                (Kind::Latency, 8, "UCX <&>", Some(Kept::Met)),
                (Kind::Latency, 65_536, "UCX <&>", Some(Kept::Missed)),
                (Kind::Stream, 8, "UCX <&>", Some(Kept::Met)),
                (Kind::Stream, 65_536, "UCX <&>", Some(Kept::Missed)),
            ]
        );
    }

    #[test]
    fn bandwidth_may_be_a_little_below_and_one_round_proves_nothing() {
        let over = |least, most, count| Over {
            median: least,
            least,
            most,
            count,
        };
        let bandwidth = Promise::AtLeast(BANDWIDTH);
        assert_eq!(bandwidth.judge(over(0.97, 1.1, 2)), Kept::Met);
        assert_eq!(bandwidth.judge(over(0.96, 1.1, 2)), Kept::Open);
        assert_eq!(bandwidth.judge(over(0.97, 1.1, 1)), Kept::Open);
        assert_eq!(Promise::Above(1.0).judge(over(0.98, 1.0, 2)), Kept::Missed);
    }
}

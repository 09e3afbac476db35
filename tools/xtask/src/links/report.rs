//! The results: figures per rate of loss, and ratios beside their budgets.

use std::fmt::Write as _;

use serde::Serialize;

use super::measure::{LOSSES, Repetition, Under};

/// The name and version of the JSON.
const SCHEMA: &str = "doorbell.links/1";

/// The side of the limit on which a budget is met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// It is only reported, without a limit.
    None,
}

/// One ratio or figure, over all repetitions.
#[derive(Debug, Serialize)]
pub(super) struct Judged {
    name: String,
    /// The median of the repetitions, and the extremes.
    measured: Option<f64>,
    least: Option<f64>,
    most: Option<f64>,
    repetitions: usize,
    budget: Bound,
    /// `None`: not judged.
    met: Option<bool>,
    how: &'static str,
}

/// The whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    pub(super) mtu: usize,
    pub(super) single_frames: bool,
    pub(super) seconds: f64,
    pub(super) repetitions: Vec<Repetition>,
    judged: Vec<Judged>,
}

impl Report {
    pub(super) fn new(mtu: usize, single_frames: bool, seconds: f64, repetitions: Vec<Repetition>) -> Self {
        Self {
            schema: SCHEMA,
            mtu,
            single_frames,
            seconds,
            judged: judge(&repetitions, mtu, single_frames),
            repetitions,
        }
    }

    /// Whether everything was measured, and no budget was missed.
    pub(super) fn is_good(&self) -> bool {
        let whole = self.repetitions.iter().all(|one| one.failures.is_empty());
        whole && self.judged.iter().all(|row| row.met != Some(false))
    }

    pub(super) fn json(&self) -> String {
        // Strings and numbers only: writing them into memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).expect("a report is plain data");
        text.push('\n');
        text
    }

    pub(super) fn table(&self) -> String {
        let mut text = figures(&self.repetitions);
        text.push('\n');
        let _ = writeln!(
            text,
            "{:<34} {:>9} {:>17} {:>9}  verdict",
            "ratio", "median", "least … most", "budget"
        );
        for row in &self.judged {
            let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
            let spread = format!("{} … {}", shown(row.least), shown(row.most));
            let budget = match row.budget {
                Bound::AtMost(limit) => format!("≤ {}", short(limit)),
                Bound::AtLeast(limit) => format!("≥ {}", short(limit)),
                Bound::None => "-".to_owned(),
            };
            let verdict = match row.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "not judged",
            };
            let measured = shown(row.measured);
            let _ = writeln!(
                text,
                "{:<34} {measured:>9} {spread:>17} {budget:>9}  {verdict}",
                row.name
            );
            let _ = writeln!(text, "    {}", row.how);
        }
        let unsteady = self.repetitions.iter().filter(|one| !is_steady(one)).count();
        if unsteady > 0 {
            let _ = writeln!(
                text,
                "{unsteady} of {} repetitions are in no ratio: the raw ping-pong was above {} µs, or did not stay as it was",
                self.repetitions.len(),
                BAD_BASE_NS / 1e3
            );
        }
        for failure in self.repetitions.iter().flat_map(|one| &one.failures) {
            let _ = writeln!(text, "FAILED {failure}");
        }
        text
    }
}

/// Returns the medians of all figures, a line for each rate of loss.
fn figures(repetitions: &[Repetition]) -> String {
    let mut text = format!(
        "{:>6} {:>9} {:>9} {:>9} {:>9} {:>11} {:>7} {:>7} {:>7}\n",
        "loss", "8 B µs", "64 B µs", "p99", "p99.9", "1 MiB MB/s", "lost", "resent", "in vain"
    );
    for (at, percent) in LOSSES.into_iter().enumerate() {
        let under = |figure: &dyn Fn(&Under) -> Option<f64>, scale: f64| {
            let all: Vec<f64> = repetitions
                .iter()
                .filter_map(|one| figure(one.under.get(at)?))
                .collect();
            median(&all).map_or_else(|| "-".to_owned(), |value| short(value / scale))
        };
        let _ = writeln!(
            text,
            "{:>6} {:>9} {:>9} {:>9} {:>9} {:>11} {:>7} {:>7} {:>7}",
            format!("{percent} %"),
            under(&|one| Some(one.mean_ns?[0]), 1e3),
            under(&|one| Some(one.mean_ns?[1]), 1e3),
            under(&|one| one.tail_ns[0], 1e3),
            under(&|one| one.tail_ns[1], 1e3),
            under(&|one| one.stream_bytes_per_second, 1e6),
            under(&|one| Some(one.dropped_buffers as f64), 1.0),
            under(&|one| Some(one.resends as f64), 1.0),
            under(&|one| Some(one.vain as f64), 1.0),
        );
    }
    let bases = |figure: &dyn Fn(&Repetition) -> Option<f64>, scale: f64| {
        let all: Vec<f64> = repetitions.iter().filter_map(figure).collect();
        median(&all).map_or_else(|| "-".to_owned(), |value| short(value / scale))
    };
    let _ = writeln!(
        text,
        "raw UDP: 8 B {} µs, 64 B {} µs; TCP (iperf3): {} MB/s; 64 B messages: {} M/s\n\
         half round trips: means over all exchanges, and percentiles of 64 B; lost: buffers of the kernel's that were\n\
         dropped on the way of the stream; resent: segments, those in vain had arrived; all medians of {} repetitions",
        bases(&|one| Some(raw(one)?[0]), 1e3),
        bases(&|one| Some(raw(one)?[1]), 1e3),
        bases(&|one| one.bases.tcp_bytes_per_second, 1e6),
        bases(&|one| one.bases.messages_per_second, 1e6),
        repetitions.len()
    );
    text
}

/// A raw half round trip slower than this, in nanoseconds, is a bad base, and not a good result.
const BAD_BASE_NS: f64 = 10_000.0;
/// A base that moves by more than this factor while the rail is measured is a bad one, too.
const BASE_MOVES: f64 = 1.5;

/// Whether the machine was quiet enough for a repetition to be judged: by the raw ping-pong around it.
fn is_steady(one: &Repetition) -> bool {
    let (Some(before), Some(after)) = (one.bases.raw_before_ns, one.bases.raw_after_ns) else {
        return false;
    };
    (0..before.len()).all(|at| {
        let (least, most) = (before[at].min(after[at]), before[at].max(after[at]));
        most <= BAD_BASE_NS && most <= BASE_MOVES * least
    })
}

/// Returns the raw half round trips around the rail's: their means.
fn raw(one: &Repetition) -> Option<[f64; 2]> {
    let (before, after) = (one.bases.raw_before_ns?, one.bases.raw_after_ns?);
    Some([before[0].midpoint(after[0]), before[1].midpoint(after[1])])
}

/// Ratios within each repetition that can be judged, by their medians.
fn judge(repetitions: &[Repetition], mtu: usize, single: bool) -> Vec<Judged> {
    let judged = |name: String, budget, how, ratio: &dyn Fn(&Repetition) -> Option<f64>| {
        let values: Vec<f64> = repetitions
            .iter()
            .filter(|one| is_steady(one))
            .filter_map(ratio)
            .filter(|value| value.is_finite())
            .collect();
        let measured = median(&values);
        Judged {
            met: measured.and_then(|value| match budget {
                Bound::AtMost(limit) => Some(value <= limit),
                Bound::AtLeast(limit) => Some(value >= limit),
                Bound::None => None,
            }),
            name,
            measured,
            least: values.iter().copied().reduce(f64::min),
            most: values.iter().copied().reduce(f64::max),
            repetitions: values.len(),
            budget,
            how,
        }
    };
    let mut rows = Vec::new();
    for (at, (bytes, budget)) in [(8, Bound::AtMost(1.15)), (64, Bound::None)]
        .into_iter()
        .enumerate()
    {
        rows.push(judged(
            format!("{bytes} B half round trip / raw UDP"),
            budget,
            "medians of rounds of 1,000 exchanges; raw: busy, connected sockets, before and after",
            &|one| Some(one.under[0].typical_ns?[at] / raw(one)?[at]),
        ));
    }
    rows.push(judged(
        "1 MiB bandwidth / TCP".to_owned(),
        Bound::AtLeast(1.0),
        "64 messages outstanding; iperf3 -l 1M, one stream, the kernel's own buffers (up to 6 MiB)",
        &|one| Some(one.under[0].stream_bytes_per_second? / one.bases.tcp_bytes_per_second?),
    ));
    rows.push(judged(
        "64 B messages, million a second".to_owned(),
        Bound::AtLeast(1.0),
        "one direction, blocking calls",
        &|one| Some(one.bases.messages_per_second? / 1e6),
    ));
    for (at, percent) in LOSSES.into_iter().enumerate().skip(1) {
        let budget = |bound| if percent == 1 { bound } else { Bound::None };
        rows.push(judged(
            format!("64 B half round trip, {percent} % / 0 %"),
            budget(Bound::AtMost(2.0)),
            "means over all exchanges; this share of what comes in is dropped at each host",
            &|one| Some(one.under.get(at)?.mean_ns?[1] / one.under[0].mean_ns?[1]),
        ));
        rows.push(judged(
            format!("1 MiB goodput, {percent} % / 0 %"),
            budget(Bound::AtLeast(0.8)),
            "a loss is a buffer of the kernel's: a frame, or a run of frames in one piece",
            &|one| {
                let rate = |at: usize| one.under.get(at)?.stream_bytes_per_second;
                Some(rate(at)? / rate(0)?)
            },
        ));
        rows.push(judged(
            format!("resent / lost segments, {percent} %"),
            if single { Bound::AtMost(1.2) } else { Bound::None },
            "of the 1 MiB stream; lost: dropped bytes over the bytes of a full frame",
            &|one| {
                let under = one.under.get(at)?;
                let lost = under.dropped_bytes as f64 / (mtu + ETHERNET) as f64;
                (lost >= 1.0).then(|| under.resends as f64 / lost)
            },
        ));
    }
    rows
}

/// What is counted as dropped includes this header.
const ETHERNET: usize = 14;

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(sorted[middle - 1].midpoint(sorted[middle])),
    }
}

/// Formats a value with about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        below if below < 10.0 => format!("{value:.2}"),
        below if below < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::measure::Bases;

    fn under(loss_percent: u32, mean: f64, rate: f64, dropped: u64, resends: u64) -> Under {
        Under {
            loss_percent,
            mean_ns: Some([mean, mean]),
            typical_ns: Some([mean, mean]),
            stream_bytes_per_second: Some(rate),
            dropped_buffers: dropped,
            dropped_bytes: dropped * 1514,
            resends,
            ..Under::default()
        }
    }

    fn repetition(slower: f64) -> Repetition {
        Repetition {
            bases: Bases {
                raw_before_ns: Some([2000.0, 2000.0]),
                raw_after_ns: Some([3000.0, 3000.0]),
                tcp_bytes_per_second: Some(4e9),
                messages_per_second: Some(2e6),
            },
            under: vec![
                under(0, 2750.0, 4.4e9, 0, 0),
                under(1, 2750.0 * slower, 4e9, 100, 110),
                under(5, 9000.0, 1e9, 500, 900),
            ],
            failures: Vec::new(),
        }
    }

    fn row<'r>(report: &'r Report, name: &str) -> &'r Judged {
        report
            .judged
            .iter()
            .find(|row| row.name.starts_with(name))
            .unwrap()
    }

    #[test]
    fn ratios_are_of_one_repetition_and_judged_by_their_median() {
        let report = Report::new(
            1500,
            true,
            1.0,
            vec![repetition(1.5), repetition(1.7), repetition(9.0)],
        );
        assert!((row(&report, "8 B").measured.unwrap() - 1.1).abs() < 1e-9);
        let slower = row(&report, "64 B half round trip, 1 %");
        assert!((slower.measured.unwrap() - 1.7).abs() < 1e-9 && slower.met == Some(true));
        assert!((slower.most.unwrap() - 9.0).abs() < 1e-9);
        assert!((row(&report, "1 MiB bandwidth").measured.unwrap() - 1.1).abs() < 1e-9);
        assert!((row(&report, "resent / lost segments, 1 %").measured.unwrap() - 1.1).abs() < 1e-9);
        assert_eq!(row(&report, "resent / lost segments, 5 %").met, Some(false));
        assert_eq!(row(&report, "1 MiB goodput, 5 %").met, None);
        assert!(!report.is_good());
        assert!(report.table().contains("MISSED") && report.json().contains(SCHEMA));
    }

    #[test]
    fn a_machine_that_does_other_things_is_no_base() {
        let mut busy = repetition(9.0);
        busy.bases.raw_after_ns = Some([3001.0, 3001.0]);
        let report = Report::new(1500, true, 1.0, vec![repetition(1.5), busy.clone()]);
        assert_eq!(row(&report, "64 B half round trip, 1 %").repetitions, 1);
        assert!(report.table().contains("1 of 2 repetitions are in no ratio"));
        let report = Report::new(1500, true, 1.0, vec![busy]);
        assert!(report.judged.iter().all(|row| row.met.is_none()) && report.is_good());
    }

    #[test]
    fn what_failed_is_printed_and_is_not_good() {
        let good = Report::new(1500, false, 1.0, vec![repetition(1.5)]);
        assert!(good.is_good(), "{}", good.table());
        let mut failed = repetition(1.5);
        failed.under[1] = Under::default();
        failed.failures.push("stream hangs".to_owned());
        let report = Report::new(1500, false, 1.0, vec![failed]);
        assert!(!report.is_good() && report.table().contains("FAILED stream hangs"));
        assert_eq!(row(&report, "1 MiB goodput, 1 %").measured, None);
    }
}

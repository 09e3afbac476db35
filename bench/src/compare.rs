//! Two reports side by side: is the second one worse than the first, or is that noise?
//!
//! Every figure of either report is an interval, drawn from that run's own noise:
//!
//! * **Order statistics of the samples.** Of n samples, the value at quantile q lies, with 99 % confidence
//!   and whatever the distribution, between the samples of ranks n·q ± 2.576·√(n·q·(1 − q)) (David and
//!   Nagaraja, Order Statistics, section 7.1, with the normal approximation of the binomial distribution).
//! * **Repeats.** A row is made of slices some tens of milliseconds apart, and each is a repetition. The
//!   median of the repetitions lies between the r-th smallest and the r-th largest of them, for the largest r
//!   with 2·P(Bin(k, ½) < r) ≤ 1 %; with fewer than eight repetitions between the smallest and the largest.
//!   Samples that follow each other are alike, and this sees what the first interval cannot.
//! * **The machine.** When the bare exchange beside the rows differs between the two runs, both intervals are
//!   widened by that share. Half of the clock's step is added at either end.
//!
//! The interval of a figure is the hull of these. A figure is worse (or better) when the two intervals do not
//! touch. Figures that were measured under other conditions are not compared at all, and the reason is given.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::env::Caveat;
use crate::error::BenchError;
use crate::load::{Repeat, Row};
use crate::plan::Kind;
use crate::report::{Report, SCHEMA as REPORT, printable, wrap};
use crate::size::text_of;
use crate::stats::{Recorder, median};

/// The name and version of the JSON (`bench/schema/compare-1.schema.json`).
pub const SCHEMA: &str = "doorbell.compare/1";

/// The method in one sentence, as it is printed below the table.
pub const METHOD: &str = "99 % intervals of each run's own noise, distribution-free by order statistics: of its samples, \
of the medians over its slices, widened by how much the bare exchange differs between the runs and by the clock's \
step; worse or better only where two intervals do not touch";

/// Quantile of the normal distribution for 99 % between both ends.
const Z: f64 = 2.576;
/// The probability that is left outside of an interval.
const OUTSIDE: f64 = 0.01;

/// The verdict on one figure of two reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The intervals touch.
    Same,
    /// The second run is faster.
    Better,
    /// The second run is slower.
    Worse,
    /// The conditions differ; the line has the difference.
    NotComparable,
}

/// A figure and where it may lie, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The figure itself, of this run.
    pub value: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
}

impl Interval {
    fn at(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
        }
    }

    /// The hull with a range, which need not hold the figure.
    fn with(self, low: f64, high: f64) -> Self {
        Self {
            low: self.low.min(low),
            high: self.high.max(high),
            ..self
        }
    }

    /// Wider by a share of itself, and by nanoseconds.
    fn widened(self, share: f64, nanos: f64) -> Self {
        Self {
            low: (self.low / (1.0 + share) - nanos).max(0.0),
            high: self.high * (1.0 + share) + nanos,
            ..self
        }
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            low: self.low * factor,
            high: self.high * factor,
        }
    }
}

/// One figure of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The message size in bytes.
    pub bytes: u64,
    /// The two ranks.
    pub pair: [u32; 2],
    /// `mean`, `p50`, `p90`, `p99` or `p999`; of half round trips, of full ones for open loops, of the time
    /// for each message of streams.
    pub figure: String,
    /// The first run's; `None` when a run has too few samples for it.
    pub first_ns: Option<Interval>,
    /// The second run's; `None` when a run has too few samples for it.
    pub second_ns: Option<Interval>,
    /// The ratio of the second to the first, less one.
    pub change: Option<f64>,
    /// The smallest rise above the first run's figure that would be called worse, as a share.
    pub threshold: Option<f64>,
    /// The verdict on this figure.
    pub finding: Finding,
    /// Why it cannot be compared.
    pub reason: Option<String>,
}

/// Two reports, compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The value of [`SCHEMA`].
    pub schema: String,
    /// The first report's file.
    pub first: PathBuf,
    /// The second report's file.
    pub second: PathBuf,
    /// The value of [`METHOD`].
    pub method: String,
    /// Why the runs are doubted: a change may come from there.
    #[serde(default)]
    pub doubts: Caveats,
    /// How many lines are worse.
    pub worse: usize,
    /// How many are better.
    pub better: usize,
    /// How many could not be compared.
    pub not_comparable: usize,
    /// The lines, by pair, size and figure.
    pub lines: Vec<Line>,
}

/// The doubts of two reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveats {
    /// The doubts that both have, word by word.
    pub both: Vec<Caveat>,
    /// The doubts of the first run alone.
    pub first: Vec<Caveat>,
    /// The doubts of the second run alone.
    pub second: Vec<Caveat>,
}

impl Caveats {
    /// Compares the doubts of two reports.
    pub fn of(a: &Report, b: &Report) -> Self {
        let (a, b) = (&a.environment.doubts, &b.environment.doubts);
        let alone = |of: &[Caveat], other: &[Caveat]| -> Vec<Caveat> {
            of.iter()
                .filter(|doubt| !other.contains(doubt))
                .cloned()
                .collect()
        };
        Self {
            both: a.iter().filter(|doubt| b.contains(doubt)).cloned().collect(),
            first: alone(a, b),
            second: alone(b, a),
        }
    }

    /// Kinds of doubts that one of the runs alone has: reasons why they may differ.
    fn kinds_apart(&self) -> Vec<&str> {
        let has = |of: &[Caveat], code: &str| of.iter().any(|doubt| doubt.code == code);
        let first = self.first.iter().filter(|doubt| !has(&self.second, &doubt.code));
        let second = self.second.iter().filter(|doubt| !has(&self.first, &doubt.code));
        let mut kinds: Vec<&str> = first.chain(second).map(|doubt| doubt.code.as_str()).collect();
        kinds.retain(|code| !has(&self.both, code));
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// One line each, wrapped, as above the table of a report.
    fn table(&self) -> String {
        let mut text = String::new();
        for (whose, doubts) in [
            ("both", &self.both),
            ("first", &self.first),
            ("second", &self.second),
        ] {
            for doubt in doubts {
                let label = format!("doubt, {whose}:");
                let words = printable(&doubt.text);
                for (at, line) in wrap::lines(&words, 78 - LABEL).iter().enumerate() {
                    let label = if at == 0 { label.as_str() } else { "" };
                    let _ = writeln!(text, "{label:<LABEL$}{line}");
                }
            }
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

/// The width of the label before a doubt.
const LABEL: usize = 15;

/// Reads a report.
///
/// # Errors
/// [`BenchError::BadReport`] when it cannot be read, or is none.
pub fn read(path: &Path) -> Result<Report, BenchError> {
    let bad = |reason: String| BenchError::BadReport {
        path: path.to_owned(),
        // The reason may quote the file, so it is made printable.
        reason: printable(&reason),
    };
    let text = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| bad(format!("it is no JSON: {error}")))?;
    match value.get("schema").and_then(|schema| schema.as_str()) {
        Some(REPORT) => {}
        Some(other) => return Err(bad(format!("its schema is `{other}`, and not `{REPORT}`"))),
        None => return Err(bad("it names no schema".to_owned())),
    }
    serde_json::from_value(value).map_err(|error| bad(error.to_string()))
}

/// Compares the report in file `second` with the one in `first`.
///
/// # Errors
/// When either cannot be read, or when they cannot be compared at all, with the first reason.
pub fn files(first: &Path, second: &Path) -> Result<Comparison, BenchError> {
    let (a, b) = (read(first)?, read(second)?);
    if let Some(reason) = differs(&a, &b) {
        return Err(BenchError::Unlike {
            first: first.to_owned(),
            second: second.to_owned(),
            reason: printable(&reason),
        });
    }
    let lines = lines(&a, &b);
    let count = |finding: Finding| lines.iter().filter(|line| line.finding == finding).count();
    Ok(Comparison {
        schema: SCHEMA.to_owned(),
        first: first.to_owned(),
        second: second.to_owned(),
        method: METHOD.to_owned(),
        doubts: Caveats::of(&a, &b),
        worse: count(Finding::Worse),
        better: count(Finding::Better),
        not_comparable: count(Finding::NotComparable),
        lines,
    })
}

/// Returns why two reports cannot be compared; `None` when they can.
pub fn differs(a: &Report, b: &Report) -> Option<String> {
    let sizes = |report: &Report| {
        let mut sizes: Vec<String> = report.results.iter().map(|row| text_of(row.bytes)).collect();
        sizes.dedup();
        sizes.join(",")
    };
    let cores = |report: &Report| {
        let ranks = report.environment.ranks.iter();
        let each = ranks.map(|rank| {
            rank.core
                .map_or_else(|| "none".to_owned(), |core| core.to_string())
        });
        each.collect::<Vec<_>>().join(",")
    };
    let model = |report: &Report| {
        let model = report.environment.host.cpu_model.clone();
        model.unwrap_or_else(|| "unknown".to_owned())
    };
    let verified = |report: &Report| {
        let is = report.results.iter().any(|row| row.verified.is_some());
        (if is { "with `--verify`" } else { "without it" }).to_owned()
    };
    let calls = |report: &Report| {
        (if report.posted {
            "posted requests"
        } else {
            "blocking calls"
        })
        .to_owned()
    };
    let memory = |report: &Report| {
        (if report.plain {
            "ordinary memory"
        } else {
            "regions from 64 KiB on"
        })
        .to_owned()
    };
    type Condition<'a> = (&'static str, &'a dyn Fn(&Report) -> String);
    let conditions: [Condition<'_>; 11] = [
        ("the layers", &|report| report.layer.to_string()),
        ("the loads", &|report| report.kind.to_string()),
        ("the rails", &|report| report.rail.clone()),
        ("the sizes", &sizes),
        ("the windows", &|report| report.window.to_string()),
        ("the calls", &calls),
        ("the kinds of memory", &memory),
        ("the modes of progress", &|report| report.environment.mode.clone()),
        ("the cores", &cores),
        ("the processors", &model),
        ("the stamps", &verified),
    ];
    if a.results.is_empty() || b.results.is_empty() {
        return Some("one of them has no rows".to_owned());
    }
    for report in [a, b] {
        if let Some((row, verified)) = report.unclean().next() {
            return Some(format!("at {} {verified}", text_of(row.bytes)));
        }
    }
    conditions.iter().find_map(|(what, of)| {
        let (a, b) = (of(a), of(b));
        (a != b).then(|| format!("{what} differ ({a} and {b})"))
    })
}

fn lines(a: &Report, b: &Report) -> Vec<Line> {
    let step = a.environment.clock.step_ns.max(b.environment.clock.step_ns);
    let rows = a.results.iter().zip(&b.results);
    rows.flat_map(|(x, y)| row_lines(a.kind, step, x, y)).collect()
}

fn row_lines(kind: Kind, step: f64, x: &Row, y: &Row) -> Vec<Line> {
    let line = |figure: &str| Line {
        bytes: x.bytes,
        pair: x.pair,
        figure: figure.to_owned(),
        first_ns: None,
        second_ns: None,
        change: None,
        threshold: None,
        finding: Finding::NotComparable,
        reason: None,
    };
    if let Some(reason) = row_differs(x, y) {
        return vec![Line {
            reason: Some(reason),
            ..line("all")
        }];
    }
    let moved = moved(x, y);
    let (first, second) = (Figures::of(kind, x), Figures::of(kind, y));
    let figures = first.all.into_iter().zip(second.all);
    figures
        .filter_map(|((name, a), (_, b))| {
            // A percentile that one of them cannot support is not there at all.
            let (a, b) = (a?.widened(moved, step / 2.0), b?.widened(moved, step / 2.0));
            Some(Line {
                change: Some(b.value / a.value - 1.0),
                threshold: Some((a.high + (b.value - b.low)) / a.value - 1.0),
                finding: judge(&a, &b),
                first_ns: Some(a),
                second_ns: Some(b),
                ..line(name)
            })
        })
        .collect()
}

fn judge(a: &Interval, b: &Interval) -> Finding {
    match () {
        () if b.low > a.high => Finding::Worse,
        () if b.high < a.low => Finding::Better,
        () => Finding::Same,
    }
}

/// Returns why two rows cannot be compared.
fn row_differs(x: &Row, y: &Row) -> Option<String> {
    let (near, far) = (x.reference.band, y.reference.band);
    if let (Some(a), Some(b)) = (near, far)
        && a != b
    {
        return Some(format!(
            "the cores were {} in the first run and {} in the second",
            a.name(),
            b.name()
        ));
    }
    let asked = |row: &Row| row.open.as_ref().map(|open| open.asked_per_second);
    match (asked(x), asked(y)) {
        (None, None) => None,
        (Some(a), Some(b)) if (a / b - 1.0).abs() < 1e-9 => None,
        (Some(a), Some(b)) => Some(format!(
            "the rates differ ({a:.0} and {b:.0} a second): give both runs the same `--rate`"
        )),
        _ => Some("one run is an open loop and the other a closed one".to_owned()),
    }
}

/// Returns how much the machine itself moved between the runs, as a share.
fn moved(x: &Row, y: &Row) -> f64 {
    let bare = |row: &Row| row.reference.cache_line_half_rtt_ns.filter(|ns| *ns > 0.0);
    match (bare(x), bare(y)) {
        (Some(a), Some(b)) => (a / b).max(b / a) - 1.0,
        _ => 0.0,
    }
}

/// Returns the figures of a row, by name.
struct Figures {
    all: [(&'static str, Option<Interval>); 5],
}

impl Figures {
    fn of(kind: Kind, row: &Row) -> Self {
        let repeats =
            |of: fn(&Repeat) -> Option<f64>| row.repeats.iter().filter_map(of).collect::<Vec<f64>>();
        if kind != Kind::Pingpong {
            let each = repeats(|repeat| repeat.mean);
            let mean = row.messages_per_second.filter(|n| *n > 0.0).map(|n| 1e9 / n);
            return Self {
                all: [
                    ("mean", mean.map(|mean| over(Interval::at(mean), &each))),
                    ("p50", None),
                    ("p90", None),
                    ("p99", None),
                    ("p999", None),
                ],
            };
        }
        let recorder = row.recorded().unwrap_or_default();
        // Of open loops, round trips are compared: half of a queue belongs to neither direction.
        let factor = row.share_shown();
        let percentile = |q: f64, repeats: Vec<f64>| {
            let value = recorder.at(q)?;
            let (low, high) = by_rank(&recorder, q);
            Some(over(Interval::at(value).with(low, high), &repeats))
        };
        let p99 = percentile(0.99, repeats(|repeat| repeat.p99));
        // No slice has enough samples for it: its repetitions scatter at least as widely as those of p99.
        let p999 = percentile(0.999, Vec::new()).map(|p999| match p99 {
            Some(p99) => p999.with(
                p999.value * p99.low / p99.value,
                p999.value * p99.high / p99.value,
            ),
            None => p999,
        });
        let mean = row
            .rtt_ns
            .mean
            .map(|mean| over(Interval::at(mean), &repeats(|repeat| repeat.mean)));
        let all = [
            ("mean", mean),
            ("p50", percentile(0.5, repeats(|repeat| repeat.p50))),
            ("p90", percentile(0.9, repeats(|repeat| repeat.p90))),
            ("p99", p99),
            ("p999", p999),
        ];
        Self {
            all: all.map(|(name, interval)| (name, interval.map(|interval| interval.scaled(factor)))),
        }
    }
}

/// The interval of quantile `q` by the ranks of the samples.
fn by_rank(recorder: &Recorder, q: f64) -> (f64, f64) {
    let n = recorder.samples() as f64;
    let half = Z * (n * q * (1.0 - q)).sqrt();
    let at = |rank: f64| recorder.shown(recorder.histogram().value_at_quantile((rank / n).clamp(0.0, 1.0)));
    (at((n * q - half).floor()), at((n * q + half).ceil()))
}

/// The hull with the interval of the repetitions' median.
fn over(interval: Interval, repeats: &[f64]) -> Interval {
    let Some(middle) = median(repeats) else {
        return interval;
    };
    let (low, high) = by_repeats(repeats);
    // The figure of the whole row need not be the median of its slices: what scatters is the same.
    interval.with(interval.value - (middle - low), interval.value + (high - middle))
}

/// Between which of the repetitions their median lies.
fn by_repeats(repeats: &[f64]) -> (f64, f64) {
    let mut sorted: Vec<f64> = repeats
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let r = depth(sorted.len()).max(1);
    match (
        sorted.get(r - 1),
        sorted.len().checked_sub(r).and_then(|at| sorted.get(at)),
    ) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (0.0, 0.0),
    }
}

/// The largest r with 2·P(Bin(k, ½) < r) ≤ [`OUTSIDE`]; 0 when there is none.
fn depth(k: usize) -> usize {
    // Beyond this, the normal approximation is as good, and the powers of ½ are not too small to be numbers.
    const MANY: usize = 500;
    if k > MANY {
        return ((k as f64 - Z * (k as f64).sqrt()) / 2.0).floor() as usize;
    }
    let mut r = 0;
    let mut term = 0.5f64.powi(i32::try_from(k).unwrap_or(i32::MAX));
    let mut below = term;
    while 2.0 * below <= OUTSIDE && 2 * (r + 1) <= k {
        r += 1;
        term *= (k - r + 1) as f64 / r as f64;
        below += term;
    }
    r
}

impl Comparison {
    /// The finding about all of it: worse when any line is, else not comparable when any is.
    pub fn finding(&self) -> Finding {
        match self {
            Self { worse: 1.., .. } => Finding::Worse,
            Self {
                not_comparable: 1.., ..
            } => Finding::NotComparable,
            Self { better: 1.., .. } => Finding::Better,
            _ => Finding::Same,
        }
    }

    /// Formats the comparison as JSON, with a newline at the end.
    pub fn json(&self) -> String {
        // Strings, numbers and options only: writing them into memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).expect("a comparison is plain data");
        text.push('\n');
        text
    }

    /// Formats the comparison as a table of at most 80 columns.
    pub fn table(&self) -> String {
        let mut text = self.doubts.table();
        let _ = writeln!(
            text,
            "{:>9} {:>6} {:>10} {:>10} {:>9} {:>12}  finding",
            "size", "figure", "first", "second", "change", "worse from"
        );
        for line in &self.lines {
            let several = self.lines.iter().any(|other| other.pair != line.pair);
            let pair = if several {
                format!(" (ranks {} and {})", line.pair[0], line.pair[1])
            } else {
                String::new()
            };
            let time = |interval: Option<Interval>| {
                interval.map_or_else(|| "-".to_owned(), |interval| crate::report::time(interval.value))
            };
            let percent = |share: Option<f64>| {
                share.map_or_else(|| "-".to_owned(), |share| format!("{:+.1} %", share * 100.0))
            };
            let finding = match line.finding {
                Finding::Same => "same",
                Finding::Better => "better",
                Finding::Worse => "WORSE",
                Finding::NotComparable => "not comparable",
            };
            let _ = writeln!(
                text,
                "{:>9} {:>6} {:>10} {:>10} {:>9} {:>12}  {finding}{pair}",
                text_of(line.bytes),
                line.figure,
                time(line.first_ns),
                time(line.second_ns),
                percent(line.change),
                percent(line.threshold),
            );
            if let Some(reason) = &line.reason {
                let _ = writeln!(text, "          {}", printable(reason));
            }
        }
        let _ = writeln!(
            text,
            "\n{} lines: {} worse, {} better, {} not comparable",
            self.lines.len(),
            self.worse,
            self.better,
            self.not_comparable
        );
        let apart = self.doubts.kinds_apart();
        if !apart.is_empty() && self.worse + self.better > 0 {
            let words = format!(
                "one run alone has these doubts, and a change may come from them: {}",
                apart.join(", ")
            );
            for line in wrap::lines(&words, 78) {
                let _ = writeln!(text, "{line}");
            }
        }
        for line in wrap::lines(METHOD, 78) {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

#[cfg(test)]
mod tests;

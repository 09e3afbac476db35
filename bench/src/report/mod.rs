//! Reports: one value holds everything that a run found out; every output is a view of it, and no view
//! computes a figure of its own.

mod axis;
mod csv;
pub mod figure;
mod hdr;
mod html;
mod plot;
mod table;
pub mod wrap;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::env::Environment;
use crate::error::BenchError;
use crate::layer::Layer;
use crate::load::Row;
use crate::plan::Kind;
use crate::stats::median;
use crate::verify::Verified;

pub use csv::csv;
pub use hdr::{hgrm, hlog};
pub use html::{escape, html, page};
pub use plot::{by_percentile, by_size};
pub use table::{NARROW, WIDE, table};

/// The name and version of the report's schema (`bench/schema/bench-1.schema.json`).
pub const SCHEMA: &str = "doorbell.bench/1";

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The value of [`SCHEMA`].
    pub schema: String,
    /// The kind of load.
    pub kind: Kind,
    /// The layer that carried the messages.
    #[serde(default)]
    pub layer: Layer,
    /// Name of the rail that carried the messages.
    pub rail: String,
    /// Messages outstanding; 1 for `pingpong`.
    pub window: usize,
    /// Whether short messages were non-blocking requests, that many at once, instead of blocking calls.
    #[serde(default)]
    pub posted: bool,
    /// Whether long messages, too, went out of ordinary memory and into it, instead of regions.
    #[serde(default)]
    pub plain: bool,
    /// Milliseconds since 1970 when the run began.
    pub started_unix_ms: u64,
    /// The record of where and how it ran, with the doubts.
    pub environment: Environment,
    /// The reference over all rows.
    pub reference: Overall,
    /// One row per pair and size.
    pub results: Vec<Row>,
    /// What the rails of rank 0 counted in the whole run, warm-ups included (`udp:v0.resends`); zeroes are
    /// left out.
    #[serde(default)]
    pub rail_counts: BTreeMap<String, u64>,
}

/// The reference of a whole report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overall {
    /// Half round trip of the bare cache-line exchange: the median over the rows.
    pub cache_line_half_rtt_ns: Option<f64>,
}

impl Overall {
    /// Computes the reference over `rows`.
    pub fn of(rows: &[Row]) -> Self {
        let all: Vec<f64> = rows
            .iter()
            .filter_map(|row| row.reference.cache_line_half_rtt_ns)
            .collect();
        Self {
            cache_line_half_rtt_ns: median(&all),
        }
    }
}

impl Report {
    /// Whether its loads are open loops.
    pub fn is_open(&self) -> bool {
        self.results.iter().any(|row| row.open.is_some())
    }

    /// The rows whose messages did not all arrive whole, once and in order, as far as that was verified.
    pub fn unclean(&self) -> impl Iterator<Item = (&Row, Verified)> {
        let verified = self.results.iter().filter_map(|row| Some((row, row.verified?)));
        verified.filter(|(_, verified)| !verified.is_clean())
    }

    /// The report as JSON (`doorbell.bench/1`), with a newline at the end.
    pub fn json(&self) -> String {
        json_of(self)
    }
}

/// Returns a report as JSON, with a newline at the end.
///
/// # Panics
/// Where it is more than strings, numbers, options and lists of them: writing those into memory cannot fail.
pub fn json_of(report: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(report).expect("a report is plain data");
    text.push('\n');
    text
}

/// The kind of picture that a file name selects by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picture {
    /// `.svg`: the percentile curve and the curve by size; for streams and rates only the latter.
    Svg,
    /// `.html`: a self-contained page with all pictures and the table.
    Html,
}

impl Picture {
    /// Selects the kind of picture by the extension of a file's name, in capitals or not.
    ///
    /// # Errors
    /// When the name ends otherwise.
    pub fn of(path: &Path) -> Result<Self, BenchError> {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        match end.to_ascii_lowercase().as_str() {
            "svg" => Ok(Self::Svg),
            "html" => Ok(Self::Html),
            _ => Err(BenchError::PlotKind {
                path: path.to_owned(),
            }),
        }
    }

    /// Draws the picture of a report, as text.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub fn draw(self, report: &Report) -> Result<String, BenchError> {
        match self {
            // By size there would be several points for each: one per rate.
            Self::Svg if report.is_open() => by_percentile(report),
            Self::Svg if report.kind == Kind::Pingpong => plot::both(report),
            Self::Svg => by_size(report),
            Self::Html => html(report),
        }
    }
}

/// Bytes or messages per second with a unit that keeps three digits before the point.
pub fn per_second(value: f64, unit: &str) -> String {
    let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (by, prefix) = steps
        .into_iter()
        .find(|(by, _)| value >= *by)
        .unwrap_or((1.0, ""));
    format!("{:.*} {prefix}{unit}/s", digits(value / by), value / by)
}

/// Formats bytes with the decimal unit that reads best.
pub fn bytes(value: f64) -> String {
    let steps = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (by, unit) = steps
        .into_iter()
        .find(|(by, _)| value >= *by)
        .unwrap_or((1.0, "B"));
    format!("{:.*} {unit}", digits(value / by), value / by)
}

/// Formats a whole number, with its thousands apart.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats nanoseconds with the unit that reads best.
pub fn time(nanos: f64) -> String {
    let steps = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let (by, unit) = steps
        .into_iter()
        .find(|(by, _)| nanos >= *by)
        .unwrap_or((1.0, "ns"));
    format!("{:.*} {unit}", digits(nanos / by), nanos / by)
}

/// Decimals that leave about three significant digits.
pub(crate) fn digits(value: f64) -> usize {
    match value.abs() {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod forms;
#[cfg(test)]
pub(crate) mod samples;

/// Formats a text of another process so that it can be shown: characters that control a terminal, or change
/// the direction of writing, are written as escapes.
pub fn printable(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if odd(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(per_second(29_412_345.0, "msg"), "29.4 Mmsg/s");
        assert_eq!(per_second(14.6e9, "B"), "14.6 GB/s");
        assert_eq!(
            (time(105.2), time(5_234.0), time(2e9)),
            ("105 ns".into(), "5.23 µs".into(), "2.00 s".into())
        );
        assert_eq!(per_second(f64::NAN, "B"), "NaN B/s");
    }

    #[test]
    fn a_report_survives_its_json() {
        let report = samples::pingpong();
        let back: Report = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(back.results.len(), report.results.len());
        assert_eq!(back.results[2].half_rtt_ns.p9999, None);
        assert_eq!(back.environment, report.environment);
    }

    #[test]
    fn a_picture_is_chosen_by_its_name_in_capitals_or_not() {
        let report = samples::pingpong();
        let error = Picture::of(Path::new("x.png")).unwrap_err();
        assert!(error.to_string().contains(".svg or .html"), "{error}");
        let svg = Picture::of(Path::new("X.SVG")).unwrap().draw(&report).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"));
        assert_eq!(Picture::of(Path::new("x.Html")).unwrap(), Picture::Html);
    }
}

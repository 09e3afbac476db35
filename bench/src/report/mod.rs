//! Reports: one value holds everything that a run found out; every output is a view of it.

mod axis;
mod csv;
mod hdr;
mod html;
mod plot;
mod table;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::env::Environment;
use crate::error::BenchError;
use crate::load::Row;
use crate::plan::Kind;
use crate::stats::median;

pub use csv::csv;
pub use hdr::{hgrm, hlog};
pub use html::html;
pub use plot::{by_percentile, by_size};
pub use table::{NARROW, WIDE, table};

/// The name and version of the report's schema (`bench/schema/bench-1.schema.json`).
pub const SCHEMA: &str = "doorbell.bench/1";

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The load.
    pub kind: Kind,
    /// Name of the rail that carried the messages.
    pub rail: String,
    /// Messages outstanding; 1 for `pingpong`.
    pub window: usize,
    /// Milliseconds since 1970 when the run began.
    pub started_unix_ms: u64,
    /// Where and how it ran, with the doubts.
    pub environment: Environment,
    /// The reference over all rows.
    pub reference: Overall,
    /// One row per pair and size.
    pub results: Vec<Row>,
}

/// The reference of a whole report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overall {
    /// Half round trip of the bare cache-line exchange: the median over the rows.
    pub cache_line_half_rtt_ns: Option<f64>,
}

impl Overall {
    /// Of rows.
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
    /// The report as JSON (`doorbell.bench/1`), with a newline at the end.
    pub fn json(&self) -> String {
        // Strings, numbers and options only: writing them into memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).expect("a report is plain data");
        text.push('\n');
        text
    }
}

/// Writes `text` to a file, or to `out` when the name is `-`.
///
/// # Errors
/// When the file cannot be written; a closed `out` is the caller's matter.
pub fn write_to(path: &Path, text: &str, out: &mut dyn Write) -> Result<(), BenchError> {
    let failed = |source: io::Error| BenchError::Write {
        path: path.to_owned(),
        source,
    };
    if path == Path::new("-") {
        return out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(failed);
    }
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    file.write_all(text.as_bytes())
        .and_then(|()| file.flush())
        .map_err(failed)
}

/// Writes a plot: a picture for `.svg` (the percentile curve, or for streams the curve by size), a self-contained
/// page with all pictures and the table for `.html`.
///
/// # Errors
/// When the name ends otherwise, or the file cannot be written.
pub fn write_plot(report: &Report, path: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let text = match path.extension().and_then(|end| end.to_str()) {
        Some("svg") if report.kind == Kind::Pingpong => plot::both(report)?,
        Some("svg") => by_size(report)?,
        Some("html") => html(report)?,
        _ => {
            return Err(BenchError::PlotKind {
                path: path.to_owned(),
            });
        }
    };
    write_to(path, &text, out)
}

/// Bytes or messages per second with a unit that keeps three digits before the point.
pub(crate) fn per_second(value: f64, unit: &str) -> String {
    let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (by, prefix) = steps
        .into_iter()
        .find(|(by, _)| value >= *by)
        .unwrap_or((1.0, ""));
    format!("{:.*} {prefix}{unit}/s", digits(value / by), value / by)
}

/// Nanoseconds with the unit that reads best.
pub(crate) fn time(nanos: f64) -> String {
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
pub(crate) mod samples;

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
    fn a_plot_of_another_kind_is_refused_and_files_are_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let report = samples::pingpong();
        let error = write_plot(&report, &folder.path().join("x.png"), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains(".svg or .html"), "{error}");
        let path = folder.path().join("x.svg");
        write_plot(&report, &path, &mut Vec::new()).unwrap();
        assert!(
            std::fs::read_to_string(path)
                .unwrap()
                .trim_end()
                .ends_with("</svg>")
        );
        let error = write_to(&folder.path().join("no/x"), "x", &mut Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("check that the folder exists"),
            "{error}"
        );
        let mut out = Vec::new();
        write_to(Path::new("-"), "text", &mut out).unwrap();
        assert_eq!(out, b"text");
    }
}

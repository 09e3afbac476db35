//! HdrHistogram's own formats: `.hlog` (interval log, lossless, merges) as the record, `.hgrm` (percentile
//! text, one way) for plotting tools.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Report;
use crate::load::Row;
use crate::stats::Recorder;

/// Writes an interval log: one histogram of full round trips in nanoseconds per pair and size, tagged
/// `bytes=8;pair=0-1`. Rows without samples of their own (`stream`, `rate`) are left out.
pub fn hlog(report: &Report) -> String {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let started = UNIX_EPOCH + Duration::from_millis(report.started_unix_ms);
    let what = if report.is_open() {
        "full round trips from the intended sends, in nanoseconds"
    } else {
        "full round trips in nanoseconds, halve them for half round trips"
    };
    let comment = format!("doorbell {} over {}: {what}", report.kind, report.rail);
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(&comment)
        .with_start_time(started)
        .with_base_time(started)
        .with_max_value_divisor(1.0);
    // Writing into memory cannot fail, and recorders are within the serializer's limits.
    let mut log = builder
        .begin_log_with(&mut bytes, &mut serializer)
        .expect("writing into memory");
    let mut at = Duration::ZERO;
    for (row, recorder) in recorded(report) {
        let tag = tag(row);
        let took = Duration::from_nanos(row.measured_ns.max(0.0) as u64);
        log.write_histogram(recorder.histogram(), at, took, Tag::new(&tag))
            .expect("writing into memory");
        at += took;
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// A tag may hold no comma, space or line end.
fn tag(row: &Row) -> String {
    let asked = row
        .open
        .as_ref()
        .map_or_else(String::new, |open| format!(";asked={:.0}", open.asked_per_second));
    format!("bytes={};pair={}-{}{asked}", row.bytes, row.pair[0], row.pair[1])
}

fn recorded(report: &Report) -> impl Iterator<Item = (&Row, Recorder)> {
    report
        .results
        .iter()
        .filter_map(|row| Some((row, row.recorded()?)))
}

/// Writes the percentile distributions as text, as HdrHistogram's plotter reads them; several sizes follow
/// each other, each below a comment line with its tag. Values are half round trips in nanoseconds; full ones
/// from the intended sends for open loops. The mean and the extremes are the row's own.
pub fn hgrm(report: &Report) -> String {
    const STEPS_PER_HALF: u32 = 5;
    // Three significant digits take 2,048 (HdrHistogram's layout).
    const SUB_BUCKETS: u32 = 2048;
    let mut text = String::new();
    for (row, recorder) in recorded(report) {
        let share = row.share_shown();
        let what = if row.open.is_some() {
            "round trips from the intended sends"
        } else {
            "half round trips"
        };
        let _ = writeln!(text, "#[{}: {what} in nanoseconds]", tag(row));
        let _ = writeln!(
            text,
            "{:>12} {:>14} {:>10} {:>14}\n",
            "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
        );
        for step in recorder.histogram().iter_quantiles(STEPS_PER_HALF) {
            let quantile = step.quantile_iterated_to();
            let value = recorder.shown(step.value_iterated_to()) * share;
            let total = (step.quantile() * recorder.samples() as f64).round();
            let _ = match quantile < 1.0 {
                true => writeln!(
                    text,
                    "{value:>12.3} {quantile:>14.12} {total:>10} {:>14.2}",
                    1.0 / (1.0 - quantile)
                ),
                false => writeln!(text, "{value:>12.3} {quantile:>14.12} {total:>10}"),
            };
        }
        let histogram = recorder.histogram();
        let of = recorder.percentiles();
        let shown = |value: Option<f64>| value.unwrap_or(0.0) * share;
        let _ = writeln!(
            text,
            "#[Mean    = {:>12.3}, StdDeviation   = {:>12.3}]",
            shown(of.mean),
            histogram.stdev() * share
        );
        let _ = writeln!(
            text,
            "#[Max     = {:>12.3}, Total count    = {:>12}]",
            shown(of.max),
            histogram.len()
        );
        let _ = writeln!(
            text,
            "#[Buckets = {:>12}, SubBuckets     = {:>12}]\n",
            histogram.buckets(),
            SUB_BUCKETS
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn an_interval_log_reads_back_without_loss() {
        let report = samples::pingpong();
        let text = hlog(&report);
        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                found.push((
                    interval.tag().unwrap().as_str().to_owned(),
                    interval.encoded_histogram().to_owned(),
                ));
            }
        }
        assert_eq!(found.len(), report.results.len());
        assert_eq!(found[1].0, "bytes=8;pair=0-1");
        for ((_, coded), row) in found.iter().zip(&report.results) {
            assert_eq!(*coded, row.histogram);
            let recorder = Recorder::decoded(coded).unwrap();
            assert_eq!(recorder.samples(), row.samples);
        }
        assert!(!hlog(&samples::stream()).contains("bytes="));
    }

    #[test]
    fn percentile_text_rises_to_the_maximum() {
        let report = samples::pingpong();
        let text = hgrm(&report);
        let first: Vec<Vec<f64>> = text
            .lines()
            .skip_while(|line| !line.contains("bytes=8;"))
            .skip(3)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| {
                line.split_whitespace()
                    .map(|word| word.parse().unwrap())
                    .collect()
            })
            .collect();
        assert!(first.len() > 20);
        assert!(
            first
                .windows(2)
                .all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1])
        );
        let last = first.last().unwrap();
        assert_eq!((last[1], last.len()), (1.0, 3));
        assert_eq!(last[2], report.results[1].samples as f64);
    }
}

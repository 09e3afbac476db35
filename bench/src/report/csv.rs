//! CSV: one line per row, units in the names of the fields, an empty field where nothing is known.

use super::Report;
use crate::load::{OneWay, Open, Row};
use crate::verify::Verified;

/// The names of the fields.
const HEAD: [&str; 44] = [
    "kind",
    "rail",
    "rank_a",
    "rank_b",
    "bytes",
    "samples",
    "half_rtt_mean_ns",
    "half_rtt_min_ns",
    "half_rtt_p50_ns",
    "half_rtt_p90_ns",
    "half_rtt_p99_ns",
    "half_rtt_p999_ns",
    "half_rtt_p9999_ns",
    "half_rtt_max_ns",
    "rtt_mean_ns",
    "bytes_per_second",
    "messages_per_second",
    "cache_line_half_rtt_ns",
    "band",
    "ratio_to_bare",
    "memcpy_bytes_per_second",
    "share_of_memcpy",
    "hiccups",
    "unsteady",
    "posted",
    "verified_messages",
    "lost",
    "duplicated",
    "misordered",
    "corrupt",
    "rtt_p50_ns",
    "rtt_p99_ns",
    "rtt_p999_ns",
    "rtt_max_ns",
    "asked_per_second",
    "knee_per_second",
    "late",
    "actual_rtt_p50_ns",
    "actual_rtt_p99_ns",
    "actual_rtt_max_ns",
    "there_p50_ns",
    "back_p50_ns",
    "one_way_bound_ns",
    "layer",
];

/// Writes the rows as CSV (RFC 4180).
pub fn csv(report: &Report) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let lines = report.results.iter().map(|row| line(report, row));
    for line in std::iter::once(HEAD.map(str::to_owned)).chain(lines) {
        // The writer fills memory, and every line has the same number of fields.
        writer.write_record(line).expect("writing into memory");
    }
    let bytes = writer.into_inner().expect("writing into memory");
    String::from_utf8(bytes).expect("fields are text")
}

fn line(report: &Report, row: &Row) -> [String; 44] {
    let number = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.3}"));
    let checked = |of: fn(&Verified) -> u64| row.verified.map_or_else(String::new, |v| of(&v).to_string());
    let opened = |of: fn(&Open) -> Option<f64>| number(row.open.as_ref().and_then(of));
    let single = |of: fn(&OneWay) -> Option<f64>| number(row.one_way.as_ref().and_then(of));
    let half = row.half_rtt_ns;
    let reference = &row.reference;
    [
        report.kind.to_string(),
        report.rail.clone(),
        row.pair[0].to_string(),
        row.pair[1].to_string(),
        row.bytes.to_string(),
        row.samples.to_string(),
        number(half.mean),
        number(half.min),
        number(half.p50),
        number(half.p90),
        number(half.p99),
        number(half.p999),
        number(half.p9999),
        number(half.max),
        number(row.rtt_ns.mean),
        number(row.bytes_per_second),
        number(row.messages_per_second),
        number(reference.cache_line_half_rtt_ns),
        reference
            .band
            .map_or_else(String::new, |band| band.name().to_owned()),
        number(reference.ratio),
        number(reference.memcpy_bytes_per_second),
        number(reference.memcpy_share),
        row.hiccups
            .map_or_else(String::new, |hiccups| hiccups.count.to_string()),
        reference.unsteady.to_string(),
        report.posted.to_string(),
        checked(|v| v.messages),
        checked(|v| v.lost),
        checked(|v| v.duplicated),
        checked(|v| v.misordered),
        checked(|v| v.corrupt),
        number(row.rtt_ns.p50),
        number(row.rtt_ns.p99),
        number(row.rtt_ns.p999),
        number(row.rtt_ns.max),
        opened(|open| Some(open.asked_per_second)),
        opened(|open| open.knee_per_second),
        row.open
            .as_ref()
            .map_or_else(String::new, |open| open.late.to_string()),
        opened(|open| open.actual_rtt_ns.p50),
        opened(|open| open.actual_rtt_ns.p99),
        opened(|open| open.actual_rtt_ns.max),
        single(|one_way| one_way.there_ns.p50),
        single(|one_way| one_way.back_ns.p50),
        single(|one_way| Some(one_way.bound_ns)),
        report.layer.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_parser_reads_what_was_written() {
        let mut report = samples::pingpong();
        report.rail = "udp:\"odd, name\"".to_owned();
        let text = csv(&report);
        let mut reader = ::csv::Reader::from_reader(text.as_bytes());
        let heads = reader.headers().unwrap().clone();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), report.results.len());
        let at = |name: &str| heads.iter().position(|head| head == name).unwrap();
        assert_eq!(&rows[1][at("bytes")], "8");
        assert_eq!(&rows[1][at("rail")], "udp:\"odd, name\"");
        assert_eq!(&rows[4][at("half_rtt_p99_ns")], "");
        assert_eq!(&rows[1][at("layer")], "pml");
        let mean: f64 = rows[1][at("half_rtt_mean_ns")].parse().unwrap();
        assert!((mean - report.results[1].half_rtt_ns.mean.unwrap()).abs() < 0.001);
    }
}

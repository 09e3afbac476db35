//! The table on the terminal: one line each for cores, clock and rail, the doubts, then one line per size.

use std::fmt::Write;

use super::{Report, digits, per_second, wrap};
use crate::layer::Layer;
use crate::load::{KneeLimit, Open, Row};
use crate::plan::Kind;
use crate::size::text_of;
use crate::verify::Verified;

/// The width for which the narrow table is made.
pub const NARROW: usize = 80;
/// The width from which on the wide table is shown.
pub const WIDE: usize = 118;

/// A column: its head, its width, and what it shows.
struct Column {
    head: &'static str,
    width: usize,
    cell: fn(&Row) -> String,
}

/// The report as text for a terminal of `width` columns.
pub fn table(report: &Report, width: usize) -> String {
    let mut text = String::new();
    head(report, width, &mut text);
    text.push('\n');
    let columns = columns(report, width >= WIDE);
    let several = report
        .results
        .iter()
        .any(|row| row.pair != report.results[0].pair);
    let line: String = columns
        .iter()
        .map(|c| format!(" {:>1$}", c.head, c.width))
        .collect();
    put(&mut text, if several { "  pair" } else { "" }, &line);
    for row in &report.results {
        let cells: String = columns
            .iter()
            .map(|c| format!(" {:>1$}", (c.cell)(row), c.width))
            .collect();
        let pair = format!("{:>2}-{:<3}", row.pair[0], row.pair[1]);
        put(&mut text, if several { &pair } else { "" }, &cells);
    }
    notes(report, width, &mut text);
    text
}

fn put(text: &mut String, pair: &str, cells: &str) {
    text.push_str(format!("{pair}{cells}").trim_end());
    text.push('\n');
}

/// Writes the lines above the table.
fn head(report: &Report, width: usize, text: &mut String) {
    let environment = &report.environment;
    let host = &environment.host;
    let cores: Vec<String> = environment
        .ranks
        .iter()
        .map(|rank| {
            let place = match (rank.core, rank.progress_core) {
                (Some(core), Some(progress)) => {
                    format!("rank {} on {core} (progress on {progress})", rank.rank)
                }
                (Some(core), None) => format!("rank {} on {core}", rank.rank),
                (None, _) => format!("rank {} not bound", rank.rank),
            };
            // The core at the start is not the only one that it ran on.
            let changed = if rank.moved.is_empty() { "" } else { " at first" };
            format!("{place}{changed}")
        })
        .collect();
    let model = host.cpu_model.as_deref().unwrap_or("unknown processor");
    let mode = &environment.mode;
    paragraph(
        text,
        width,
        "cores",
        &format!("{} ({model}, {} online)", cores.join(", "), host.cores_online),
    );
    paragraph(text, width, "clock", &environment.clock.line());
    let reason = &environment.rail_reason;
    match &environment.rails[..] {
        [] | [_] => paragraph(text, width, "rail", &format!("{}, {mode}: {reason}", report.rail)),
        several => {
            let rails: Vec<String> = several
                .iter()
                .map(|one| format!("{} ({})", one.rail, one.role))
                .collect();
            paragraph(
                text,
                width,
                "rails",
                &format!("{}, {mode}: {reason}", rails.join(", ")),
            );
        }
    }
    for doubt in &environment.doubts {
        paragraph(text, width, "doubt", &doubt.text);
    }
}

/// A labelled line, wrapped between words and indented below its label. Names of files, hosts and rails are
/// others' words.
fn paragraph(text: &mut String, width: usize, label: &str, words: &str) {
    const LABEL: usize = 7;
    const LEAST: usize = 40;
    wrap::paragraph(text, label, words, LABEL, width.max(LEAST));
}

fn columns(report: &Report, wide: bool) -> Vec<Column> {
    if report.is_open() {
        return open(wide);
    }
    match (report.kind, wide) {
        (Kind::Pingpong, false) => latency_narrow(),
        (Kind::Pingpong, true) => latency_wide(),
        (Kind::Stream | Kind::Rate, _) => speed(wide),
    }
}

const fn column(head: &'static str, width: usize, cell: fn(&Row) -> String) -> Column {
    Column { head, width, cell }
}

const SIZE: Column = column("size", 8, |row| text_of(row.bytes));
const MEAN: Column = column("mean", 8, |row| micros(row.half_rtt_ns.mean));
const P50: Column = column("p50", 7, |row| micros(row.half_rtt_ns.p50));
const P90: Column = column("p90", 7, |row| micros(row.half_rtt_ns.p90));
const P99: Column = column("p99", 7, |row| micros(row.half_rtt_ns.p99));
const P999: Column = column("p99.9", 7, |row| micros(row.half_rtt_ns.p999));
const P9999: Column = column("p99.99", 7, |row| micros(row.half_rtt_ns.p9999));
const MAX: Column = column("max", 7, |row| micros(row.half_rtt_ns.max));
const SAMPLES: Column = column("samples", 8, |row| count(row.samples));
const BARE: Column = column("×bare", 6, |row| {
    let mark = if row.reference.unsteady { "~" } else { "" };
    row.reference
        .ratio
        .map_or_else(dash, |r| format!("{mark}{r:.*}", digits(r)))
});
const BAND: Column = column("bare ns", 8, |row| {
    let band = row.reference.band.map_or("", |band| &band.name()[..1]);
    row.reference
        .cache_line_half_rtt_ns
        .map_or_else(dash, |ns| format!("{ns:.0} {band}"))
});

fn latency_narrow() -> Vec<Column> {
    vec![SIZE, MEAN, P50, P99, P999, MAX, SAMPLES, BARE, BAND]
}

fn latency_wide() -> Vec<Column> {
    vec![
        SIZE,
        MEAN,
        column("min", 7, |row| micros(row.half_rtt_ns.min)),
        P50,
        P90,
        P99,
        P999,
        P9999,
        MAX,
        column("rtt mean", 9, |row| micros(row.rtt_ns.mean)),
        SAMPLES,
        BARE,
        BAND,
    ]
}

/// Times from the intended send beside times from the actual one.
fn open(wide: bool) -> Vec<Column> {
    let mut all = vec![
        SIZE,
        column("asked/s", 8, |row| {
            of_open(row, |open| rate(open.asked_per_second))
        }),
        column("done/s", 8, |row| {
            of_open(row, |open| open.answered_per_second.map_or_else(dash, rate))
        }),
        column("late", 6, |row| of_open(row, late)),
        column("p50", 7, |row| micros(row.rtt_ns.p50)),
        column("p99", 7, |row| micros(row.rtt_ns.p99)),
        column("max", 7, |row| micros(row.rtt_ns.max)),
        column("a.p50", 7, |row| {
            of_open(row, |open| micros(open.actual_rtt_ns.p50))
        }),
        column("a.p99", 7, |row| {
            of_open(row, |open| micros(open.actual_rtt_ns.p99))
        }),
    ];
    if wide {
        all.insert(6, column("p99.9", 7, |row| micros(row.rtt_ns.p999)));
        all.push(column("a.p99.9", 7, |row| {
            of_open(row, |open| micros(open.actual_rtt_ns.p999))
        }));
        all.push(column("a.max", 7, |row| {
            of_open(row, |open| micros(open.actual_rtt_ns.max))
        }));
        all.push(SAMPLES);
        all.push(BAND);
    }
    all
}

fn of_open(row: &Row, show: impl Fn(&Open) -> String) -> String {
    row.open.as_ref().map_or_else(dash, show)
}

/// Formats a rate without its unit.
fn rate(per_second: f64) -> String {
    super::per_second(per_second, "")
        .trim_end_matches("/s")
        .replace(' ', "")
}

fn late(open: &Open) -> String {
    format!("{:.1}%", open.late as f64 * 100.0 / open.sent.max(1) as f64)
}

fn speed(wide: bool) -> Vec<Column> {
    let mut all = vec![
        SIZE,
        column("bandwidth", 11, |row| {
            row.bytes_per_second.map_or_else(dash, |v| per_second(v, "B"))
        }),
        column("messages", 13, |row| {
            row.messages_per_second
                .map_or_else(dash, |v| per_second(v, "msg"))
        }),
        column("ns each", 9, |row| {
            let each = row.messages_per_second.filter(|rate| *rate > 0.0);
            each.map(|rate| 1e9 / rate)
                .map_or_else(dash, |ns| format!("{ns:.*}", digits(ns)))
        }),
        column("×memcpy", 8, |row| {
            row.reference
                .memcpy_share
                .map_or_else(dash, |share| format!("{share:.2}"))
        }),
        SAMPLES,
        BAND,
    ];
    if wide {
        all.insert(
            2,
            column("slowest", 11, |row| speed_of(row, row.rounds.nanos.max)),
        );
        all.insert(
            3,
            column("fastest", 11, |row| speed_of(row, row.rounds.nanos.min)),
        );
    }
    all
}

/// The bandwidth of a round that took `nanos` for each message.
fn speed_of(row: &Row, nanos: Option<f64>) -> String {
    nanos
        .filter(|ns| *ns > 0.0)
        .map_or_else(dash, |ns| per_second(row.bytes as f64 * 1e9 / ns, "B"))
}

/// The lines below the table: what the columns mean.
fn notes(report: &Report, width: usize, text: &mut String) {
    text.push('\n');
    if report.layer != Layer::Pml {
        paragraph(text, width, "", &format!("over {}", report.layer.words()));
    }
    let unit = match report.kind {
        Kind::Pingpong if report.is_open() => {
            "open loop; full round trips in µs: p50, p99, max from the intended send, a.p50, a.p99 from the actual one; \
             late: share of messages that left more than 1 µs behind their time; `-`: too few samples"
        }
        Kind::Pingpong => {
            "half round trips in µs; every figure of a row is of all its exchanges, each timed while its message is under \
             way; `-`: too few samples; closed loop, so this is service time"
        }
        Kind::Stream | Kind::Rate if report.plain => {
            "one direction; the last message of each round is answered; out of and into ordinary memory"
        }
        Kind::Stream | Kind::Rate => {
            "one direction; the last message of each round is answered; from 64 KiB on, out of and into regions"
        }
    };
    paragraph(text, width, "", unit);
    if report.kind != Kind::Pingpong {
        let calls = match (report.posted, report.kind) {
            (true, _) => "non-blocking sends and receives outstanding",
            (false, Kind::Rate) => "messages outstanding, up to 4 KiB by blocking sends and receives",
            (false, _) => "messages outstanding",
        };
        let window = format!(
            "{} {calls}; ×memcpy: share of what one copy per message allows on one core",
            report.window
        );
        paragraph(text, width, "", &window);
    }
    asked(report, width, text);
    knees(report, width, text);
    one_way(report, width, text);
    verified(report, width, text);
    captures(report, width, text);
    ports(report, width, text);
    paragraph(
        text,
        width,
        "",
        "bare: half round trip of a cache line between the same cores at the same time, s two threads of one core, n near, f far",
    );
}

/// Writes how long messages of open loops were requested: less than the row took, so that they are fewer than
/// its rate gives.
fn asked(report: &Report, width: usize, text: &mut String) {
    let rows = report.results.iter();
    let opens = rows.filter_map(|row| Some((row, row.open.as_ref()?)));
    let (mut asked, mut took, mut messages, mut dropped) = (0.0, 0.0, 0, 0);
    for (row, open) in opens {
        asked += open.asked_seconds();
        took += row.elapsed_ns / 1e9;
        messages += open.sent + open.unsent;
        dropped += row.reference.repeated;
    }
    if messages == 0 || took <= asked {
        return;
    }
    let slices = match dropped {
        0 => String::new(),
        1 => " and one slice that was thrown away, because the cores moved during it".to_owned(),
        many => format!(" and {many} slices that were thrown away, because the cores moved during them"),
    };
    let words = format!(
        "{messages} messages were requested, in {asked:.2} s of {took:.2} s: the rest is for the looks at the bare exchange \
           in between (`--no-reference` leaves them out){slices}"
    );
    paragraph(text, width, "", &words);
}

/// Writes where the knees are, when they were searched for.
fn knees(report: &Report, width: usize, text: &mut String) {
    let mut last = None;
    for (row, open) in report
        .results
        .iter()
        .filter_map(|row| Some((row, row.open.as_ref()?)))
    {
        let (Some(knee), Some(limit)) = (open.knee_per_second, open.knee_limit) else {
            continue;
        };
        if last.replace((row.pair, row.bytes)) == Some((row.pair, row.bytes)) {
            continue;
        }
        let how = match limit {
            KneeLimit::Found => "the highest rate that is sustained is",
            KneeLimit::NotReached => "no limit was found up to",
            KneeLimit::NotSustained => "nothing was sustained, not even",
        };
        let words = format!(
            "knee at {}: {how} {}",
            text_of(row.bytes),
            per_second(knee, "msg")
        );
        paragraph(text, width, "", &words);
    }
}

/// Each direction separately, or why there is none.
fn one_way(report: &Report, width: usize, text: &mut String) {
    for (row, one_way) in report
        .results
        .iter()
        .filter_map(|row| Some((row, row.one_way.as_ref()?)))
    {
        let (there, back) = (one_way.there_ns, one_way.back_ns);
        let words = format!(
            "one way at {}: there p50 {} p99 {}, back p50 {} p99 {} µs, each ± {} ({})",
            text_of(row.bytes),
            micros(there.p50),
            micros(there.p99),
            micros(back.p50),
            micros(back.p99),
            super::time(one_way.bound_ns),
            one_way.clocks
        );
        paragraph(text, width, "", &words);
    }
    if let Some(reason) = &report.environment.no_one_way {
        paragraph(text, width, "", &format!("no figure for one way: {reason}"));
    }
}

/// Writes what the stamps found: one line when all is well, one for each row where it is not.
fn verified(report: &Report, width: usize, text: &mut String) {
    let checked = || report.results.iter().filter_map(|row| Some((row, row.verified?)));
    let clean: Vec<Verified> = checked().map(|(_, v)| v).filter(Verified::is_clean).collect();
    if !clean.is_empty() {
        let messages: u64 = clean.iter().map(|v| v.messages).sum();
        let least = clean.iter().map(|v| v.cost_ns).fold(f64::INFINITY, f64::min);
        let most = clean.iter().map(|v| v.cost_ns).fold(0.0, f64::max);
        let words = format!(
            "verified: {messages} messages, 0 lost, 0 duplicated, 0 misordered, 0 corrupt; stamping and checking one \
             takes {} to {}, which is in the figures",
            super::time(least),
            super::time(most)
        );
        paragraph(text, width, "", &words);
    }
    for (row, v) in report.unclean() {
        let words = format!("NOT CLEAN at {}: {v}", text_of(row.bytes));
        paragraph(text, width, "", &words);
    }
}

/// Writes the captures, and what is missing in them.
fn captures(report: &Report, width: usize, text: &mut String) {
    for rank in &report.environment.ranks {
        for capture in &rank.captures {
            let mut words = format!(
                "capture of rank {}, {}: {} frames, {} bytes in `{}`",
                rank.rank, capture.rail, capture.frames, capture.bytes, capture.file
            );
            if !capture.is_whole() {
                let why = capture.error.as_deref().unwrap_or("they could not be written");
                let _ = write!(words, "; INCOMPLETE: {} frames are missing ({why})", capture.lost);
            }
            paragraph(text, width, "", &words);
        }
    }
}

/// Writes what the hardware of RDMA ports counted.
fn ports(report: &Report, width: usize, text: &mut String) {
    for rank in &report.environment.ranks {
        for port in &rank.ports {
            let rose: Vec<String> = port
                .rose
                .iter()
                .map(|(name, by)| format!("{name} {by}"))
                .collect();
            let rose = match rose.is_empty() {
                true => "no hardware counter rose".to_owned(),
                false => rose.join(", "),
            };
            let words = format!(
                "port {} of rank {}, of all programs meanwhile: {rose}",
                port.port, rank.rank
            );
            paragraph(text, width, "", &words);
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// Nanoseconds as microseconds with about four significant digits.
fn micros(nanos: Option<f64>) -> String {
    nanos.map_or_else(dash, |ns| {
        let value = ns / 1e3;
        let decimals = match value {
            v if v < 10.0 => 3,
            v if v < 100.0 => 2,
            v if v < 1_000.0 => 1,
            _ => 0,
        };
        format!("{value:.decimals$}")
    })
}

/// Formats a count, shortened from a million on.
fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        _ => format!("{:.2} M", n as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn the_narrow_table_fits_eighty_columns() {
        for report in [samples::pingpong(), samples::stream()] {
            let text = table(&report, NARROW);
            assert!(widest(&text) <= NARROW, "{}:\n{text}", widest(&text));
            let text = table(&report, 200);
            assert!(text.lines().count() > report.results.len() + 5);
        }
    }

    #[test]
    fn the_lines_above_name_cores_clock_rail_and_doubts() {
        let text = table(&samples::pingpong(), NARROW);
        let starts: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(starts[..1], ["cores"]);
        for label in ["clock", "rail", "doubt"] {
            assert!(starts.contains(&label), "{label}:\n{text}");
        }
    }

    #[test]
    fn percentiles_without_samples_are_dashes_and_unsteady_rows_are_marked() {
        let text = table(&samples::pingpong(), WIDE);
        let last = text.lines().find(|line| line.contains("4 MiB")).unwrap();
        assert!(last.contains(" - "), "{last}");
        let marked = text.lines().find(|line| line.contains("64 B")).unwrap();
        assert!(marked.contains('~'), "{marked}");
    }

    #[test]
    fn what_was_verified_stands_below_and_what_was_not_right_stands_out() {
        let mut report = samples::stream();
        assert!(!table(&report, NARROW).contains("verified"));
        for row in &mut report.results {
            row.verified = Some(Verified {
                messages: 1_000,
                cost_ns: 9.0,
                ..Verified::default()
            });
        }
        let text = table(&report, NARROW);
        assert!(
            text.contains("verified: 4000 messages, 0 lost") && !text.contains("NOT CLEAN"),
            "{text}"
        );
        if let Some(verified) = &mut report.results[1].verified {
            verified.duplicated = 3;
        }
        let text = table(&report, 200);
        assert!(text.contains("verified: 3000 messages"), "{text}");
        assert!(
            text.contains("NOT CLEAN at 1 KiB: of 1000 messages 0 lost, 3 duplicated"),
            "{text}"
        );
        assert_eq!(report.unclean().count(), 1);
    }

    #[test]
    fn what_ports_counted_stands_below_and_in_the_json_of_the_schema() {
        let mut report = samples::stream();
        assert!(!table(&report, 200).contains("port rxe0:1"));
        let record = |rose: &[(&str, u64)]| crate::env::PortRecord {
            port: "rxe0:1".to_owned(),
            rose: rose.iter().map(|(name, by)| ((*name).to_owned(), *by)).collect(),
        };
        report.environment.ranks[0].ports = vec![record(&[("rcvd_seq_err", 2), ("sent_pkts", 1000)])];
        report.environment.ranks[1].ports = vec![record(&[])];
        let text = table(&report, 200);
        for words in [
            "port rxe0:1 of rank 0, of all programs meanwhile: rcvd_seq_err 2, sent_pkts 1000",
            "port rxe0:1 of rank 1, of all programs meanwhile: no hardware counter rose",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let schema = include_str!("../../schema/bench-1.schema.json");
        let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        let ranks = &json["environment"]["ranks"];
        assert_eq!(ranks[0]["ports"][0]["rose"]["sent_pkts"], 1000);
        let of_ports =
            |error: &jsonschema::ValidationError<'_>| error.instance_path().to_string().contains("/ports");
        assert_eq!(schema.iter_errors(&json).filter(of_ports).count(), 0);
        let mut wrong = json.clone();
        wrong["environment"]["ranks"][0]["ports"][0]["rose"]["sent_pkts"] = 0.into();
        assert!(schema.iter_errors(&wrong).any(|error| of_ports(&error)));
    }

    #[test]
    fn how_long_an_open_loop_sent_is_stated() {
        let mut report = samples::open();
        let text = |report: &Report| {
            let text = table(report, 200);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let words = "40000 messages were requested, in 0.30 s of 0.38 s";
        assert!(text(&report).contains(words), "{}", text(&report));
        assert!(!text(&report).contains("thrown away"));
        report.results[0].reference.repeated = 2;
        assert!(text(&report).contains("2 slices that were thrown away"));
        for row in &report.results {
            let open = row.open.as_ref().unwrap();
            let asked = (open.sent + open.unsent) as f64;
            assert!((open.asked_per_second * open.asked_seconds() - asked).abs() < 1e-6);
        }
    }

    #[test]
    fn pairs_are_shown_when_there_are_several() {
        let mut report = samples::stream();
        assert!(!table(&report, NARROW).contains("pair"));
        report.results[1].pair = [2, 3];
        assert!(table(&report, NARROW).contains("pair"));
    }
}

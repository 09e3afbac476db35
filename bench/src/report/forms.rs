//! Every form of a report is read back, and has the contents of its JSON.

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;

use super::{Report, by_size, csv, hgrm, hlog, html, samples, table};
use crate::stats::Recorder;

/// The figure at a path of a row's JSON, if it is one.
fn figure(row: &Value, path: &str) -> Option<f64> {
    row.pointer(path)?.as_f64()
}

fn rows(report: &Report) -> Vec<Value> {
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    json["results"].as_array().unwrap().clone()
}

/// Equal up to `share` and to half a unit of the last digit that is written.
fn same(what: &str, written: Option<f64>, exact: Option<f64>, share: f64, digit: f64) {
    match (written, exact) {
        (None, None) => {}
        (Some(a), Some(b)) => assert!((a - b).abs() <= share * b.abs() + digit, "{what}: {a} and {b}"),
        (a, b) => panic!("{what}: {a:?} and {b:?}"),
    }
}

/// The fields of the CSV that are figures of a row, with their paths.
const FIELDS: [(&str, &str); 27] = [
    ("bytes", "/bytes"),
    ("samples", "/samples"),
    ("half_rtt_mean_ns", "/half_rtt_ns/mean"),
    ("half_rtt_min_ns", "/half_rtt_ns/min"),
    ("half_rtt_p50_ns", "/half_rtt_ns/p50"),
    ("half_rtt_p90_ns", "/half_rtt_ns/p90"),
    ("half_rtt_p99_ns", "/half_rtt_ns/p99"),
    ("half_rtt_p999_ns", "/half_rtt_ns/p999"),
    ("half_rtt_p9999_ns", "/half_rtt_ns/p9999"),
    ("half_rtt_max_ns", "/half_rtt_ns/max"),
    ("rtt_mean_ns", "/rtt_ns/mean"),
    ("rtt_p50_ns", "/rtt_ns/p50"),
    ("rtt_p99_ns", "/rtt_ns/p99"),
    ("rtt_p999_ns", "/rtt_ns/p999"),
    ("rtt_max_ns", "/rtt_ns/max"),
    ("bytes_per_second", "/bytes_per_second"),
    ("messages_per_second", "/messages_per_second"),
    ("cache_line_half_rtt_ns", "/reference/cache_line_half_rtt_ns"),
    ("ratio_to_bare", "/reference/ratio"),
    ("memcpy_bytes_per_second", "/reference/memcpy_bytes_per_second"),
    ("share_of_memcpy", "/reference/memcpy_share"),
    ("asked_per_second", "/open/asked_per_second"),
    ("late", "/open/late"),
    ("actual_rtt_p50_ns", "/open/actual_rtt_ns/p50"),
    ("actual_rtt_p99_ns", "/open/actual_rtt_ns/p99"),
    ("actual_rtt_max_ns", "/open/actual_rtt_ns/max"),
    ("hiccups", "/hiccups/count"),
];

fn check_csv(report: &Report) {
    let text = csv(report);
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let heads = reader.headers().unwrap().clone();
    let lines: Vec<_> = reader.records().map(Result::unwrap).collect();
    let rows = rows(report);
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(&rows) {
        for (name, path) in FIELDS {
            let at = heads.iter().position(|head| head == name).unwrap();
            let written = line[at].parse().ok();
            same(name, written, figure(row, path), 0.0, 0.000_6);
        }
    }
}

/// Returns what a cell of the table says, as a figure of base units, and half of its last digit.
fn cell(text: &str, unit: f64) -> Option<(f64, f64)> {
    let words = text.trim().trim_start_matches('~');
    let number: String = words
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let decimals = number.split_once('.').map_or(0, |(_, behind)| behind.len());
    let prefix = match words[number.len()..].trim_start().chars().next() {
        Some('G') => 1e9,
        Some('M') => 1e6,
        Some('k') => 1e3,
        _ => 1.0,
    };
    let value: f64 = number.parse().ok()?;
    let digit = 0.5 * 10f64.powi(-(decimals as i32));
    Some((value * prefix * unit, digit * prefix * unit * 1.001))
}

/// The columns of the wide table: their heads in order, and the path and unit of those that are figures.
type Columns = &'static [(&'static str, Option<(&'static str, f64)>)];

const LATENCY: Columns = &[
    ("size", None),
    ("mean", Some(("/half_rtt_ns/mean", 1e3))),
    ("min", Some(("/half_rtt_ns/min", 1e3))),
    ("p50", Some(("/half_rtt_ns/p50", 1e3))),
    ("p90", Some(("/half_rtt_ns/p90", 1e3))),
    ("p99", Some(("/half_rtt_ns/p99", 1e3))),
    ("p99.9", Some(("/half_rtt_ns/p999", 1e3))),
    ("p99.99", Some(("/half_rtt_ns/p9999", 1e3))),
    ("max", Some(("/half_rtt_ns/max", 1e3))),
    ("rtt mean", Some(("/rtt_ns/mean", 1e3))),
    ("samples", Some(("/samples", 1.0))),
    ("×bare", Some(("/reference/ratio", 1.0))),
    ("bare ns", Some(("/reference/cache_line_half_rtt_ns", 1.0))),
];

const OPEN: Columns = &[
    ("size", None),
    ("asked/s", Some(("/open/asked_per_second", 1.0))),
    ("done/s", Some(("/open/answered_per_second", 1.0))),
    ("late", None),
    ("p50", Some(("/rtt_ns/p50", 1e3))),
    ("p99", Some(("/rtt_ns/p99", 1e3))),
    ("p99.9", Some(("/rtt_ns/p999", 1e3))),
    ("max", Some(("/rtt_ns/max", 1e3))),
    ("a.p50", Some(("/open/actual_rtt_ns/p50", 1e3))),
    ("a.p99", Some(("/open/actual_rtt_ns/p99", 1e3))),
    ("a.p99.9", Some(("/open/actual_rtt_ns/p999", 1e3))),
    ("a.max", Some(("/open/actual_rtt_ns/max", 1e3))),
    ("samples", Some(("/samples", 1.0))),
    ("bare ns", Some(("/reference/cache_line_half_rtt_ns", 1.0))),
];

const SPEED: Columns = &[
    ("size", None),
    ("bandwidth", Some(("/bytes_per_second", 1.0))),
    ("slowest", None),
    ("fastest", None),
    ("messages", Some(("/messages_per_second", 1.0))),
    ("ns each", None),
    ("×memcpy", Some(("/reference/memcpy_share", 1.0))),
    ("samples", Some(("/samples", 1.0))),
    ("bare ns", Some(("/reference/cache_line_half_rtt_ns", 1.0))),
];

/// The cells of the table, by head.
fn cells(text: &str, columns: Columns) -> Vec<Vec<String>> {
    let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
    let first = lines
        .iter()
        .position(|line| line.iter().collect::<String>().trim_start().starts_with("size"))
        .unwrap();
    let head: String = lines[first].iter().collect();
    let (mut ends, mut from) = (Vec::new(), 0);
    for (name, _) in columns {
        let at = from
            + head[from..]
                .find(name)
                .unwrap_or_else(|| panic!("{name}: {head}"));
        from = at + name.len();
        ends.push(head[..from].chars().count());
    }
    let body = lines[first + 1..].iter().take_while(|line| !line.is_empty());
    body.map(|line| {
        let begins = std::iter::once(&0).chain(&ends);
        let spans = begins.zip(&ends);
        spans
            .map(|(begin, end)| {
                line[*begin.min(&line.len())..*end.min(&line.len())]
                    .iter()
                    .collect()
            })
            .collect()
    })
    .collect()
}

fn check_table(report: &Report, columns: Columns) {
    let found = cells(&table(report, super::WIDE), columns);
    let rows = rows(report);
    assert_eq!(found.len(), rows.len());
    for (cells, row) in found.iter().zip(&rows) {
        for (text, (name, figure_of)) in cells.iter().zip(columns) {
            let Some((path, unit)) = figure_of else { continue };
            let written = cell(text, *unit);
            let digit = written.map_or(0.0, |(_, digit)| digit);
            same(
                name,
                written.map(|(value, _)| value),
                figure(row, path),
                1e-9,
                digit,
            );
        }
        // A reader can work these out from the other columns of the row.
        if let (Some(each), Some(rate)) = (
            columns
                .iter()
                .position(|(name, _)| *name == "ns each")
                .and_then(|at| cell(&cells[at], 1.0)),
            figure(row, "/messages_per_second"),
        ) {
            same("ns each", Some(each.0), Some(1e9 / rate), 1e-9, each.1);
        }
    }
}

/// Returns what is shown of a round trip.
fn share(row: &Value) -> f64 {
    if row["open"].is_null() { 0.5 } else { 1.0 }
}

fn check_hgrm(report: &Report) {
    let text = hgrm(report);
    let parts: Vec<&str> = text.split("#[bytes=").skip(1).collect();
    let rows = rows(report);
    assert_eq!(parts.len(), rows.len());
    for (part, row) in parts.iter().zip(&rows) {
        let share = share(row);
        let shown = |path: &str| figure(row, path).map(|nanos| nanos * share);
        let lines: Vec<Vec<f64>> = part
            .lines()
            .skip(1)
            .filter(|line| !line.starts_with('#') && !line.contains("Percentile"))
            .map(|line| {
                line.split_whitespace()
                    .map(|word| word.parse().unwrap())
                    .collect()
            })
            .filter(|numbers: &Vec<f64>| !numbers.is_empty())
            .collect();
        let at = |quantile: f64| {
            lines
                .iter()
                .find(|numbers| numbers[1] >= quantile - 1e-9)
                .map(|numbers| numbers[0])
        };
        let note = |name: &str| -> Option<f64> {
            let (_, behind) = part.split_once(name)?;
            let number = behind.trim_start_matches([' ', '=']);
            number.split([',', ']']).next()?.trim().parse().ok()
        };
        let last = lines.last().unwrap();
        same(
            "the end of the .hgrm",
            Some(last[0]),
            shown("/rtt_ns/max"),
            0.0,
            0.000_6,
        );
        same("Max", note("#[Max"), shown("/rtt_ns/max"), 0.0, 0.000_6);
        same("Mean", note("#[Mean"), shown("/rtt_ns/mean"), 0.0, 0.000_6);
        same(
            "Total count",
            note("Total count"),
            figure(row, "/samples"),
            0.0,
            0.0,
        );
        same("the last count", Some(last[2]), figure(row, "/samples"), 0.0, 0.0);
        same("p50 of the .hgrm", at(0.5), shown("/rtt_ns/p50"), 0.0, 0.000_6);
        assert!(note("#[Mean") <= note("#[Max"));
        assert!(lines.is_sorted_by(|a, b| a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2]));
    }
}

fn check_hlog(report: &Report) {
    let text = hlog(report);
    let head = text.lines().next().unwrap();
    assert_eq!(head.contains("halve"), !report.is_open(), "{head}");
    assert_eq!(head.contains("intended"), report.is_open(), "{head}");
    let rows = rows(report);
    let intervals: Vec<_> = IntervalLogIterator::new(text.as_bytes())
        .filter_map(|entry| match entry.unwrap() {
            LogEntry::Interval(interval) => Some(interval),
            _ => None,
        })
        .collect();
    assert_eq!(intervals.len(), rows.len());
    let mut begin = 0.0;
    for (interval, row) in intervals.iter().zip(&rows) {
        let took = figure(row, "/measured_ns").unwrap();
        let duration = interval.duration().as_secs_f64() * 1e9;
        assert!(took > 0.0);
        // The format has milliseconds.
        same("interval", Some(duration), Some(took), 0.0, 1e6);
        same(
            "start",
            Some(interval.start_timestamp().as_secs_f64() * 1e9),
            Some(begin),
            0.0,
            1e6,
        );
        begin += took;
        // And three digits.
        same(
            "Interval_Max",
            Some(interval.max()),
            figure(row, "/rtt_ns/max"),
            1e-3,
            1.0,
        );
        let recorder = Recorder::decoded(interval.encoded_histogram()).unwrap();
        same(
            "count",
            Some(recorder.samples() as f64),
            figure(row, "/samples"),
            0.0,
            0.0,
        );
        let of = recorder.percentiles();
        for (path, value) in [
            ("/rtt_ns/mean", of.mean),
            ("/rtt_ns/min", of.min),
            ("/rtt_ns/p50", of.p50),
            ("/rtt_ns/p99", of.p99),
            ("/rtt_ns/max", of.max),
        ] {
            same(path, value, figure(row, path), 1e-3, 1.0);
        }
    }
}

/// The filled marks of a picture of curves by size, as (x, y) of pixels.
fn marks(svg: &str) -> Vec<(f64, f64)> {
    svg.split("<circle")
        .skip(1)
        .map(|part| {
            let of = |name: &str| {
                let (_, behind) = part.split_once(&format!(" {name}=\"")).unwrap();
                behind.split('"').next().unwrap().parse().unwrap()
            };
            (of("cx"), of("cy"))
        })
        .collect()
}

/// A figure of a row.
type Pick<'a> = &'a dyn Fn(&Value) -> Option<f64>;

/// The marks are where the logarithms of the figures are.
fn check_picture(report: &Report, curves: &[Pick<'_>]) {
    let rows = rows(report);
    let figures: Vec<f64> = curves
        .iter()
        .flat_map(|curve| rows.iter().filter_map(curve))
        .collect();
    let marks = marks(&by_size(report).unwrap());
    assert_eq!(marks.len(), figures.len());
    let points: Vec<(f64, f64)> = figures
        .iter()
        .zip(&marks)
        .map(|(figure, mark)| (figure.log10(), mark.1))
        .collect();
    let low = points.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let high = points.iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let slope = (high.1 - low.1) / (high.0 - low.0);
    assert!(slope < -10.0, "{slope}");
    for (log, pixel) in &points {
        let expected = low.1 + slope * (log - low.0);
        assert!((pixel - expected).abs() <= 2.0, "{log}: {pixel} and {expected}");
    }
}

#[test]
fn every_form_has_the_same_contents() {
    let (closed, open, stream, rate) = (
        samples::pingpong(),
        samples::open(),
        samples::stream(),
        samples::rate(),
    );
    for (report, columns) in [
        (&closed, LATENCY),
        (&open, OPEN),
        (&stream, SPEED),
        (&rate, SPEED),
    ] {
        check_csv(report);
        check_table(report, columns);
        let page = html(report).unwrap();
        let escaped = |text: &str| {
            text.replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
        };
        assert!(page.contains(&escaped(&table(report, super::WIDE)).replace('"', "&quot;")));
        assert!(page.contains(&escaped(&report.json()).replace('"', "&quot;")));
    }
    for report in [&closed, &open] {
        check_hgrm(report);
        check_hlog(report);
    }
    let of = |path: &'static str| move |row: &Value| figure(row, path);
    check_picture(
        &closed,
        &[
            &of("/half_rtt_ns/p50"),
            &of("/half_rtt_ns/p99"),
            &of("/half_rtt_ns/p999"),
            &of("/reference/cache_line_half_rtt_ns"),
        ],
    );
    check_picture(
        &stream,
        &[
            &of("/bytes_per_second"),
            &of("/reference/memcpy_bytes_per_second"),
        ],
    );
    check_picture(
        &rate,
        &[&of("/messages_per_second"), &|row: &Value| {
            Some(figure(row, "/reference/memcpy_bytes_per_second")? / figure(row, "/bytes")?)
        }],
    );
}

#[test]
fn a_row_is_of_one_population() {
    for report in [samples::pingpong(), samples::open()] {
        for row in &report.results {
            let of = row.rtt_ns;
            assert!(of.min <= of.mean && of.mean <= of.max, "{of:?}");
            let recorded = row.recorded().unwrap();
            assert_eq!(recorded.percentiles(), of);
            assert_eq!(recorded.samples(), row.samples);
        }
    }
}

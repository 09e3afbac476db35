//! The matrix for people: a row for each pair, a column for each rail, and below it what is wrong.

use std::fmt::Write as _;

use doorbell_bench::report::wrap;

use super::{Half, Pair, Report};

/// The table, and the diagnosis of each pair that does not work.
pub(super) fn table(report: &Report, width: usize) -> String {
    let mut rows = vec![vec!["pair".to_owned()]];
    rows[0].extend(report.rails.iter().map(|over| over.rail.clone()));
    let pairs = report.rails.first().map_or(&[][..], |over| &over.pairs);
    for (at, pair) in pairs.iter().enumerate() {
        let mut row = vec![name(pair)];
        row.extend(
            report
                .rails
                .iter()
                .map(|over| over.pairs.get(at).map_or_else(String::new, cell)),
        );
        rows.push(row);
    }
    let columns = rows[0].len();
    let widest = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        // Writing into memory cannot fail.
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    let wrong = wrong(report);
    if !wrong.is_empty() {
        text.push('\n');
    }
    for (rail, pairs, diagnosis) in &wrong {
        let head = format!("{rail}, {}: ", pairs.join(", "));
        text.push_str(&head);
        wrap::add(&mut text, diagnosis, head.chars().count(), 2, width);
    }
    text.push('\n');
    let marks =
        "half a round trip in ns, the median: of 8 bytes / of the longest message in one frame (its bytes)";
    wrap::add(&mut text, marks, 0, 0, width);
    text
}

/// Returns what is wrong: the rail, the pairs of which it is so, and the diagnosis.
fn wrong(report: &Report) -> Vec<(&str, Vec<String>, &str)> {
    let mut all: Vec<(&str, Vec<String>, &str)> = Vec::new();
    for over in &report.rails {
        for pair in over.pairs.iter().filter(|pair| !pair.works) {
            match all
                .iter_mut()
                .find(|(rail, _, why)| *rail == over.rail && *why == pair.diagnosis)
            {
                Some((_, pairs, _)) => pairs.push(name(pair)),
                None => all.push((&over.rail, vec![name(pair)], &pair.diagnosis)),
            }
        }
    }
    all
}

fn name(pair: &Pair) -> String {
    let [one, other] = pair.ranks;
    format!("{one}-{other}")
}

fn cell(pair: &Pair) -> String {
    let of =
        |half: Option<Half>| half.map_or_else(|| "fails".to_owned(), |half| half.half_rtt_ns.to_string());
    match (pair.small, pair.full) {
        (None, _) => "fails".to_owned(),
        (small, Some(full)) => format!("{} / {} ({})", of(small), full.half_rtt_ns, full.bytes),
        (small, None) => format!("{} / fails", of(small)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Over;
    use super::*;

    #[test]
    fn the_matrix_is_this_one() {
        let half = |bytes, half_rtt_ns| Some(Half { bytes, half_rtt_ns });
        let works = |ranks| Pair {
            ranks,
            works: true,
            small: half(8, 310),
            full: half(32_752, 2_105),
            diagnosis: "both sizes pass".to_owned(),
        };
        let report = Report {
            schema: "doorbell.links/1",
            version: "0",
            ranks: 3,
            peer: None,
            works: false,
            rails: vec![
                Over {
                    rail: "shm".to_owned(),
                    pairs: vec![works([0, 1]), works([0, 2])],
                },
                Over {
                    rail: "udp:v0".to_owned(),
                    pairs: vec![
                        Pair::failed([0, 1], "no frame passes"),
                        Pair {
                            works: false,
                            full: None,
                            diagnosis: "small frames pass and full ones do not".to_owned(),
                            ..works([0, 2])
                        },
                    ],
                },
            ],
        };
        let expected = "\
pair  shm                 udp:v0
0-1   310 / 2105 (32752)  fails
0-2   310 / 2105 (32752)  310 / fails

udp:v0, 0-1: no frame passes
udp:v0, 0-2: small frames pass and full ones do not

half a round trip in ns, the median: of 8 bytes / of the longest message in one frame (its bytes)
";
        assert_eq!(table(&report, usize::MAX), expected);
    }
}

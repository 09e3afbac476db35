//! The verdicts as a table for people.

use std::fmt::Write as _;

use doorbell_bench::report::wrap;

use super::{Row, Why, few};

const HEADINGS: [&str; 5] = ["rail", "verdict", "pair", "latency", "reason"];
/// Where a reason begins that has a line of its own.
const INDENT: usize = 6;

/// A row for each rail: its verdict, the rail at the other end, the latency, the reason.
pub(super) fn table(why: &Why, width: usize) -> String {
    let mut text = String::new();
    for from in &why.from {
        let peer = &why.peer;
        let _ = match (from.rank, from.pid) {
            (Some(rank), Some(pid)) => writeln!(text, "rank {rank} (process {pid}) to rank {peer}"),
            (None, Some(pid)) => writeln!(text, "process {pid} to member {peer}"),
            _ if why.addresses.iter().all(|address| address == peer) => writeln!(text, "to {peer}"),
            _ => writeln!(text, "to {peer} ({})", why.addresses.join(", ")),
        };
        if let Some(why) = &from.shares_core {
            let shares = format!("its progress thread shares its core: {why}");
            text.push_str("  ");
            wrap::add(&mut text, &shares, 2, 2, width);
        }
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(from.rails.iter().flat_map(|row| {
            let latency = row.latency_ns.zip(row.latency_of);
            let first = [
                row.rail.clone(),
                row.verdict.word().to_owned(),
                row.pair.clone().unwrap_or_else(|| "-".to_owned()),
                latency.map_or_else(|| "-".to_owned(), |(ns, of)| format!("{ns} ns {}", of.mark())),
                row.reason.clone(),
            ];
            std::iter::once(first).chain(gids(row))
        }));
        add(&mut text, &rows, width);
    }
    if let Some(remedy) = &why.remedy {
        text.push('\n');
        wrap::add(&mut text, remedy, 0, 0, width);
    }
    if let Some(unanswered) = &why.unanswered {
        text.push('\n');
        wrap::add(
            &mut text,
            &format!("the probe was not answered: {unanswered}"),
            0,
            0,
            width,
        );
    }
    text.push('\n');
    let marks = "latency: half a round trip; m of messages, a of acknowledgements, e estimated";
    wrap::add(&mut text, marks, 0, 0, width);
    text
}

/// What a path over RDMA ports has below its row: its pair of GIDs, and why others are not used, the best
/// first.
fn gids(row: &Row) -> impl Iterator<Item = [String; 5]> {
    few(row.gids.clone()).into_iter().enumerate().map(|(at, line)| {
        let text = match at {
            0 => format!("GIDs: {line}"),
            _ => line,
        };
        [String::new(), String::new(), String::new(), String::new(), text]
    })
}

/// The rows with columns as wide as what is in them. Where that leaves too little for the reasons, those have
/// lines of their own.
fn add(text: &mut String, rows: &[[String; 5]], width: usize) {
    let widest = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let [rail, verdict, pair, latency] = [0, 1, 2, 3].map(widest);
    for [a, b, c, d, reason] in rows {
        let head = format!("  {a:<rail$}  {b:<verdict$}  {c:<pair$}  {d:<latency$}  ");
        let column = head.chars().count();
        if width < 2 * column {
            if !head.trim().is_empty() {
                let _ = writeln!(text, "{}", head.trim_end());
            }
            text.push_str(&" ".repeat(INDENT));
            wrap::add(text, reason, INDENT, INDENT, width);
        } else {
            text.push_str(&head);
            wrap::add(text, reason, column, column, width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{From, LatencyOf, Verdict};
    use super::*;

    fn sample() -> Why {
        let chosen = Row {
            rail: "udp:a0".to_owned(),
            verdict: Verdict::Chosen,
            pair: Some("udp:b0".to_owned()),
            latency_ns: Some(7),
            latency_of: Some(LatencyOf::Messages),
            reason: "up".to_owned(),
            gids: Vec::new(),
        };
        let other = Row {
            rail: "udp:a1".to_owned(),
            verdict: Verdict::LeftOver,
            pair: None,
            latency_ns: None,
            latency_of: None,
            reason: "those of the peer's rails that it reaches are taken by other rails of this side"
                .to_owned(),
            gids: Vec::new(),
        };
        Why {
            schema: "doorbell.why/2",
            version: "0",
            peer: "1".to_owned(),
            addresses: Vec::new(),
            from: vec![From {
                rank: Some(0),
                pid: Some(42),
                shares_core: None,
                rails: vec![chosen, other],
            }],
            remedy: None,
            unanswered: None,
        }
    }

    #[test]
    fn the_table_is_this_one() {
        let expected = "\
rank 0 (process 42) to rank 1
  rail    verdict    pair    latency  reason
  udp:a0  chosen     udp:b0  7 ns m   up
  udp:a1  left over  -       -        those of the peer's rails that it reaches are taken by other rails of this side

latency: half a round trip; m of messages, a of acknowledgements, e estimated
";
        assert_eq!(table(&sample(), usize::MAX), expected);
        for width in [40, 60, 80, 100] {
            let narrow = table(&sample(), width);
            assert!(
                narrow.lines().all(|line| line.chars().count() <= width),
                "{width}:\n{narrow}"
            );
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&narrow), words(expected), "{width}");
        }
    }

    #[test]
    fn a_progress_thread_that_shares_its_core_is_named_with_the_reason() {
        let mut why = sample();
        why.from[0].shares_core = Some("it shares core 0 with its rank".to_owned());
        let shown = table(&why, usize::MAX);
        let expected = "  its progress thread shares its core: it shares core 0 with its rank";
        assert_eq!(shown.lines().nth(1), Some(expected), "{shown}");
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["from"][0]["shares_core"], "it shares core 0 with its rank");
    }

    #[test]
    fn a_path_over_ports_shows_its_pair_of_gids_below_it() {
        let mut why = sample();
        why.from[0].rails[0].gids = vec![
            "10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)".to_owned(),
            "not 10.1.0.1 with 10.2.0.9: they are in two networks".to_owned(),
        ];
        let lines: Vec<String> = table(&why, usize::MAX).lines().map(str::to_owned).collect();
        let column = lines[2].find("up").unwrap();
        assert_eq!(
            &lines[3][column..],
            "GIDs: 10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)"
        );
        assert_eq!(
            &lines[4][column..],
            "not 10.1.0.1 with 10.2.0.9: they are in two networks"
        );
        assert!(
            lines[3][..column].trim().is_empty() && lines[5].contains("left over"),
            "{lines:#?}"
        );
        let narrow = table(&why, 50);
        assert!(
            narrow.contains("\n      GIDs: 10.2.0.1") && !narrow.contains("\n\n      "),
            "{narrow}"
        );
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["from"][0]["rails"][0]["gids"].as_array().unwrap().len(), 2);
        assert!(json["from"][0]["rails"][1].get("gids").is_none());
    }

    #[test]
    fn of_many_pairs_of_gids_the_best_are_shown_and_all_are_in_the_json() {
        let mut why = sample();
        let line = |number| format!("not 10.1.0.{number} with fe80::9: they are of different families");
        let none = "none: no two GIDs are of one kind and family".to_owned();
        why.from[0].rails[0].gids = std::iter::once(none).chain((0..36).map(line)).collect();
        let shown = table(&why, usize::MAX);
        assert_eq!(shown.matches("they are of different families").count(), 3);
        assert!(
            shown.contains("GIDs: none: no two") && shown.contains(&line(2)),
            "{shown}"
        );
        assert!(
            shown.contains("and 33 more that are not used: `--json` lists them"),
            "{shown}"
        );
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["from"][0]["rails"][0]["gids"].as_array().unwrap().len(), 37);
    }

    #[test]
    fn a_host_is_shown_with_its_addresses_and_what_to_type() {
        let mut why = sample();
        (why.from[0].rank, why.from[0].pid) = (None, None);
        (why.peer, why.addresses) = (
            "node7".to_owned(),
            vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()],
        );
        why.remedy = Some("name it: `--rail udp:a1`".to_owned());
        let shown = table(&why, usize::MAX);
        assert!(shown.starts_with("to node7 (10.0.0.2, fd00::2)\n"), "{shown}");
        assert!(shown.contains("\n\nname it: `--rail udp:a1`\n"), "{shown}");
        (why.peer, why.addresses) = ("10.0.0.2".to_owned(), vec!["10.0.0.2".to_owned()]);
        assert!(table(&why, usize::MAX).starts_with("to 10.0.0.2\n"));
    }

    #[test]
    fn the_json_is_this_one() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["schema"], "doorbell.why/2");
        assert_eq!(
            json["from"][0]["rails"][0],
            serde_json::json!({
                "rail": "udp:a0", "verdict": "chosen", "pair": "udp:b0", "latency_ns": 7, "latency_of": "messages",
                "reason": "up"
            })
        );
        assert_eq!(json["from"][0]["rails"][1]["verdict"], "left-over");
        assert!(json["remedy"].is_null() && json["addresses"].as_array().unwrap().is_empty());
    }
}

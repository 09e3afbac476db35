//! `doorbell why`: which rails lead to a peer, and for every other one the reason that it lost.
//!
//! ```text
//!   a rank     its job's counter files, which running ranks of this user have   what they found out
//!   a host     discovery, then the routing table                               what would be chosen
//!              with --probe: the side that serves there                        the probe of two sizes
//! ```

use std::fmt::Write as _;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::ExitCode;

use doorbell::oob::{Connection, Endpoint, JobKey};
use doorbell::{Toward, WayNow};
use doorbell_bench::job::{Cores, measure};
use doorbell_bench::plan::{Kind, Plan};
use doorbell_bench::size::Size;
use doorbell_fabric::counters::{Reader, Snapshot, Value, find};
use doorbell_fabric::error::Exit;
use serde::Serialize;

use crate::cli::WhyArgs;
use crate::error::ToolError;
use crate::out;

/// The JSON of `doorbell why`.
#[derive(Serialize)]
struct Why {
    schema: &'static str,
    version: &'static str,
    peer: String,
    /// One for each rank that has rails to the peer; one without a rank for a host.
    from: Vec<From>,
}

/// The rails of one process.
#[derive(Serialize)]
struct From {
    rank: Option<u32>,
    pid: Option<u32>,
    rails: Vec<Row>,
}

/// One candidate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Row {
    rail: String,
    /// `chosen` or `lost`.
    verdict: &'static str,
    /// The rail at the peer.
    pair: Option<String>,
    /// Half a round trip of the smallest message.
    latency_ns: Option<u64>,
    measured: bool,
    reason: String,
}

/// `doorbell why`.
pub(crate) fn why(args: &WhyArgs) -> Result<ExitCode, ToolError> {
    let from = match args.peer.parse::<u32>() {
        Ok(rank) => of_rank(args, rank)?,
        Err(_) => vec![of_host(args)?],
    };
    let chosen = from
        .iter()
        .all(|one| one.rails.iter().any(|row| row.verdict == CHOSEN));
    let why = Why {
        schema: "doorbell.why/1",
        version: env!("CARGO_PKG_VERSION"),
        peer: args.peer.clone(),
        from,
    };
    let text = if args.json {
        let text = serde_json::to_string_pretty(&why).map_err(|error| ToolError::System {
            what: "write the verdicts as JSON",
            source: error.into(),
        })?;
        text + "\n"
    } else {
        table(&why, out::known_width().unwrap_or(usize::MAX))
    };
    out::print(&text)?;
    Ok(if chosen { Exit::Done } else { Exit::Verdict }.into())
}

const CHOSEN: &str = "chosen";
const LOST: &str = "lost";

fn of_host(args: &WhyArgs) -> Result<From, ToolError> {
    let host = resolve(&args.peer)?;
    let mut builder = doorbell::Builder::new();
    if !args.rails.is_empty() {
        let names: Vec<&str> = args.rails.iter().map(|rail| rail.as_str()).collect();
        builder = builder.set("rails.list", &names.join(","));
    }
    let mut rails: Vec<Row> = doorbell::why(&builder.resolve()?, host)
        .into_iter()
        .map(Row::from)
        .collect();
    if args.probe {
        let ways = probe(args, host)?;
        for row in rails.iter_mut().filter(|row| row.verdict == CHOSEN) {
            match ways.iter().find(|way| way.rail == row.rail) {
                Some(way) => row.add(way),
                None => {
                    row.verdict = LOST;
                    row.reason = "the side that serves there has no rail for it".to_owned();
                }
            }
        }
    }
    Ok(From {
        rank: None,
        pid: None,
        rails,
    })
}

fn resolve(peer: &str) -> Result<IpAddr, ToolError> {
    let bare = peer.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    let found = (bare, 0).to_socket_addrs().ok().and_then(|mut all| all.next());
    found.map(|address| address.ip()).ok_or_else(|| {
        ToolError::Usage(format!(
            "`{peer}` is neither the number of a rank, nor an address, nor the name of a host that is known here"
        ))
    })
}

/// Meets the side that serves there, and lets some messages pass: what the rails found out then.
fn probe(args: &WhyArgs, host: IpAddr) -> Result<Vec<WayNow>, ToolError> {
    let key = args.key_file.as_deref().map(JobKey::read).transpose()?;
    let to: Endpoint = match host {
        IpAddr::V4(four) => four.to_string().parse()?,
        IpAddr::V6(six) => format!("[{six}]").parse()?,
    };
    let connection = Connection::connect(&to, &doorbell::terms(key)?, PATIENCE)?;
    let mut builder = doorbell::Builder::new();
    if !args.rails.is_empty() {
        let names: Vec<&str> = args.rails.iter().map(|rail| rail.as_str()).collect();
        builder = builder.set("rails.list", &names.join(","));
    }
    let world = builder.build_over(connection)?;
    let plan = Plan {
        sizes: Size::new(8).into_iter().collect(),
        samples: Some(PROBES),
        reference: false,
        ..Plan::new(Kind::Pingpong)
    };
    let report = measure(&world, &plan, Cores::default(), &mut ())?;
    let mut ways = world.ways(1)?;
    world.close();
    // Of the rail that carried them, the messages themselves say it best.
    let half = report.and_then(|report| report.results.first()?.half_rtt_ns.p50);
    for way in ways.iter_mut().filter(|way| way.carries) {
        way.measured_ns = half.map(|ns| ns as u64).or(way.measured_ns);
    }
    Ok(ways)
}

/// Time for the other side to answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// Messages that are exchanged for a measured latency.
const PROBES: u64 = 100;

impl std::convert::From<Toward> for Row {
    fn from(one: Toward) -> Self {
        Self {
            rail: one.rail,
            verdict: if one.chosen { CHOSEN } else { LOST },
            pair: None,
            latency_ns: one.estimated_ns,
            measured: false,
            reason: one.reason,
        }
    }
}

impl Row {
    /// What the rail found out.
    fn add(&mut self, way: &WayNow) {
        self.pair = Some(way.to.clone());
        if let Some(measured) = way.measured_ns {
            (self.latency_ns, self.measured) = (Some(measured), true);
        }
        let role = if way.carries { "it carries" } else { "it stands by" };
        let probed = way.probed.map_or_else(String::new, |text| format!("; {text}"));
        self.reason = format!("{}; {role}, {}{probed}", self.reason, way.state);
    }
}

/// The rails to `rank` of every rank that runs here, or of the one that is asked for.
fn of_rank(args: &WhyArgs, rank: u32) -> Result<Vec<From>, ToolError> {
    let wanted = |snapshot: &Snapshot| args.job.is_none_or(|pid| pid == snapshot.process);
    let read = |path: std::path::PathBuf| Reader::open(&path).ok()?.read().ok();
    let found: Vec<Snapshot> = find(None).into_iter().filter_map(read).filter(wanted).collect();
    let from: Vec<From> = found
        .iter()
        .filter(|one| one.rank != rank)
        .map(|snapshot| From {
            rank: Some(snapshot.rank),
            pid: Some(snapshot.process),
            rails: ways_to(snapshot, rank),
        })
        .filter(|one| !one.rails.is_empty())
        .collect();
    if from.is_empty() {
        let who = args.job.map_or_else(
            || "no rank that runs here has".to_owned(),
            |pid| format!("process {pid} has no counter file, or"),
        );
        return Err(ToolError::Usage(format!(
            "{who} no rails to a rank {rank}; jobs of this user are found while they run, with counters.place as it is by \
             default (a host is named by its address: `doorbell why 10.0.0.2`)"
        )));
    }
    Ok(from)
}

/// The rows of one counter file about `rank`: `way.RANK.OURS/THEIRS.state` and those beside it.
fn ways_to(snapshot: &Snapshot, rank: u32) -> Vec<Row> {
    let number = |name: &str| match snapshot.value(name) {
        Some(Value::Counter(number) | Value::Gauge(number)) => *number,
        _ => 0,
    };
    let begin = format!("way.{rank}.");
    let names = snapshot.readings.iter().filter_map(|reading| {
        let name = reading.entry.name.as_str();
        name.strip_prefix(begin.as_str())?.strip_suffix(".state")
    });
    let row = |rails: &str| {
        let of = |what: &str| number(&format!("{begin}{rails}.{what}"));
        let (ours, theirs) = rails.split_once('/').unwrap_or((rails, ""));
        let round_trip = of("round_trip");
        let state = match of("state") {
            0 => "up",
            1 => "suspect: the peer owes it answers",
            2 => "down",
            3 => "down: the peer is called",
            _ => "it has answered again, and is watched for a while",
        };
        let mut reason = state.to_owned();
        for (count, what) in [
            (of("unacknowledged"), "frames unacknowledged"),
            (of("failures"), "failures so far"),
        ] {
            if count > 0 {
                let _ = write!(reason, ", {count} {what}");
            }
        }
        Row {
            rail: ours.to_owned(),
            verdict: if of("state") < 2 { CHOSEN } else { LOST },
            pair: (!theirs.is_empty()).then(|| theirs.to_owned()),
            latency_ns: (round_trip > 0).then_some(round_trip / 2),
            measured: round_trip > 0,
            reason,
        }
    };
    names.map(row).collect()
}

/// A row for each rail: its verdict, the rail at the other end, the latency, the reason.
fn table(why: &Why, width: usize) -> String {
    let mut text = String::new();
    for from in &why.from {
        match (from.rank, from.pid) {
            (Some(rank), Some(pid)) => _ = writeln!(text, "rank {rank} (process {pid}) to rank {}", why.peer),
            _ => _ = writeln!(text, "to {}", why.peer),
        }
        let row = |text: &mut String, [rail, verdict, pair, latency, reason]: [&str; 5]| {
            let head = format!("  {rail:<16} {verdict:<8} {pair:<16} {latency:<14} ");
            let indent = if width < 2 * head.len() { 6 } else { 59 };
            if indent == 6 {
                _ = writeln!(text, "{}", head.trim_end());
                text.push_str("      ");
            } else {
                text.push_str(&head);
            }
            out::wrap(
                text,
                reason,
                indent.max(if indent == 6 { 6 } else { head.chars().count() }),
                indent,
                width,
            );
        };
        row(&mut text, ["rail", "verdict", "pair", "latency", "reason"]);
        for one in &from.rails {
            let latency = one.latency_ns.map_or_else(
                || "-".to_owned(),
                |ns| format!("{ns} ns {}", if one.measured { "m" } else { "e" }),
            );
            let pair = one.pair.as_deref().unwrap_or("-");
            row(&mut text, [&one.rail, one.verdict, pair, &latency, &one.reason]);
        }
    }
    text.push_str("\nlatency: half a round trip, m measured, e estimated\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rail: &str, verdict: &'static str, pair: Option<&str>, latency: Option<u64>, reason: &str) -> Row {
        Row {
            rail: rail.to_owned(),
            verdict,
            pair: pair.map(str::to_owned),
            latency_ns: latency,
            measured: latency.is_some_and(|ns| ns == 7),
            reason: reason.to_owned(),
        }
    }

    fn sample() -> Why {
        Why {
            schema: "doorbell.why/1",
            version: "0",
            peer: "1".to_owned(),
            from: vec![From {
                rank: Some(0),
                pid: Some(42),
                rails: vec![
                    row("udp:a0", CHOSEN, Some("udp:b0"), Some(7), "up"),
                    row(
                        "udp:a1",
                        LOST,
                        None,
                        None,
                        "the peer has no rail left that it can reach",
                    ),
                ],
            }],
        }
    }

    #[test]
    fn the_table_is_this_one() {
        let expected = "\
rank 0 (process 42) to rank 1
  rail             verdict  pair             latency        reason
  udp:a0           chosen   udp:b0           7 ns m         up
  udp:a1           lost     -                -              the peer has no rail left that it can reach

latency: half a round trip, m measured, e estimated
";
        assert_eq!(table(&sample(), usize::MAX), expected);
        let narrow = table(&sample(), 40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }

    #[test]
    fn the_json_is_this_one() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["schema"], "doorbell.why/1");
        assert_eq!(
            json["from"][0]["rails"][0],
            serde_json::json!({
                "rail": "udp:a0", "verdict": "chosen", "pair": "udp:b0", "latency_ns": 7, "measured": true, "reason": "up"
            })
        );
    }

    #[test]
    fn peers_are_addresses_and_names_and_everything_else_is_refused() {
        assert_eq!(resolve("10.0.0.2").unwrap(), IpAddr::from([10, 0, 0, 2]));
        assert!(resolve("[::1]").unwrap().is_loopback());
        let said = resolve("no such host").unwrap_err().to_string();
        assert!(said.contains("neither the number of a rank"), "{said}");
    }
}

//! A rank of a running job: its rails, by the counter files of the other ranks.

use std::fmt::Write as _;

use doorbell::{CORE_ROWS, NOTHING_PASSES, PathState, Unchosen};
use doorbell_bench::report::printable;
use doorbell_fabric::counters::{NO_RANK, Reader, Snapshot, Value, find};

use super::{From, LatencyOf, Peer, Row, Verdict, Why};
use crate::error::ToolError;
use crate::why::args::WhyArgs;

/// Returns the rails to `peer` of every process that runs here, or of the one that --job names.
pub(super) fn why(args: &WhyArgs, peer: Peer) -> Result<Why, ToolError> {
    let wanted = |snapshot: &Snapshot| args.job.is_none_or(|pid| pid == snapshot.process);
    let read = |path: std::path::PathBuf| Reader::open(&path).ok()?.read().ok();
    let found: Vec<Snapshot> = find(None).into_iter().filter_map(read).filter(wanted).collect();
    let from: Vec<From> = found
        .iter()
        .filter(|one| peer != Peer::Rank(one.rank))
        .map(|snapshot| From {
            rank: (snapshot.rank != NO_RANK).then_some(snapshot.rank),
            pid: Some(snapshot.process),
            shares_core: shares_core(snapshot),
            rails: ways_to(snapshot, peer),
        })
        .filter(|one| !one.rails.is_empty())
        .collect();
    if from.is_empty() {
        return Err(match peer {
            Peer::Rank(rank) => no_such_rank(args, rank, &found),
            Peer::Member(_) => ToolError::Usage(format!(
                "no process that runs here has met a member {peer}; `doorbell counters --name way` lists those that were met"
            )),
        });
    }
    Ok(Why::new(args, Vec::new(), from, None))
}

/// Why the progress thread of a rank shares its core, if it does.
fn shares_core(snapshot: &Snapshot) -> Option<String> {
    let [_, _, shared] = CORE_ROWS;
    match snapshot.value(shared) {
        Some(Value::Text(text)) if !text.is_empty() => Some(printable(text)),
        _ => None,
    }
}

/// Returns why there is no result, and which other call has one.
fn no_such_rank(args: &WhyArgs, rank: u32, found: &[Snapshot]) -> ToolError {
    const FOUND: &str = "jobs of this user are found while they run, with counters.place as it is by default";
    ToolError::Usage(match (args.job, found) {
        (Some(pid), []) => format!("process {pid} has no counter file; {FOUND}"),
        (None, []) => format!(
            "no job runs here that has a rank {rank}; {FOUND} (a host is named by its address: `doorbell why 10.0.0.2`)"
        ),
        (Some(pid), [one]) if one.rank == rank => {
            format!("process {pid} is rank {rank} itself; name another one of its job")
        }
        (Some(pid), _) => format!("process {pid} has no rails to a rank {rank}"),
        (None, _) => format!("no rank that runs here has rails to a rank {rank}; {FOUND}"),
    })
}

/// Returns the rows of one counter file about a peer: `way.RANK.OURS/THEIRS.state` and those beside it, and
/// `way.RANK.OURS.not_named` and the others with the state of a candidate. A member has its name instead of a
/// rank, and the rails of this end alone.
fn ways_to(snapshot: &Snapshot, peer: Peer) -> Vec<Row> {
    let begin = format!("way.{peer}.");
    let about = |ending: &'static str| {
        let begin = begin.as_str();
        snapshot.readings.iter().filter_map(move |reading| {
            let rails = reading.entry.name.strip_prefix(begin)?.strip_suffix(ending)?;
            Some((rails, &reading.value))
        })
    };
    let ways = about(".state").map(|(rails, _)| way(snapshot, &begin, rails));
    let others = Unchosen::ALL.into_iter().flat_map(|unchosen| {
        about(unchosen.name()).filter_map(move |(rail, reason)| {
            let reason = match reason {
                Value::Text(text) => printable(text),
                _ => return None,
            };
            Some(Row {
                rail: rail.strip_suffix('.')?.to_owned(),
                verdict: unchosen.into(),
                pair: None,
                latency_ns: None,
                latency_of: None,
                reason,
                gids: Vec::new(),
            })
        })
    });
    ways.chain(others).collect()
}

/// Texts of a path about its pair of GIDs that people are shown: the best, and how many more there are.
const FEW: usize = 4;

/// The first of these texts, with the number of the others; `--json` has all of them.
pub(crate) fn few(texts: Vec<String>) -> Vec<String> {
    let more = texts.len().saturating_sub(FEW);
    let count = (more > 0).then(|| format!("and {more} more that are not used: `--json` lists them"));
    texts.into_iter().take(FEW).chain(count).collect()
}

/// The texts of a path about its pair of GIDs.
pub(crate) fn gids(snapshot: &Snapshot, path: &str) -> Vec<String> {
    let text = |at: usize| match snapshot.value(&format!("{path}.gids.{at}")) {
        Some(Value::Text(text)) => Some(printable(text)),
        _ => None,
    };
    (0..).map_while(text).collect()
}

/// A pair of rails, as the rank knows it now.
fn way(snapshot: &Snapshot, begin: &str, rails: &str) -> Row {
    let of = |what: &str| match snapshot.value(&format!("{begin}{rails}.{what}")) {
        Some(Value::Counter(number) | Value::Gauge(number)) => *number,
        _ => 0,
    };
    let (ours, theirs) = rails.split_once('/').unwrap_or((rails, ""));
    let (verdict, state) = match PathState::from_number(of("state")) {
        Some(PathState::Up) => (Verdict::Chosen, "up"),
        Some(PathState::Suspect) => (Verdict::Chosen, "suspect: the peer owes it answers"),
        Some(PathState::Down) => (Verdict::Down, "down"),
        Some(PathState::Probing) => (Verdict::Down, "down: the peer is called"),
        Some(PathState::Returning) => (Verdict::Down, "it has answered again, and is watched for a while"),
        None => (Verdict::Unknown, "in a state that this program does not know"),
    };
    // It owes its first answer.
    let is_silent = of("state") == PathState::Suspect.number() && of("latency") == 0 && of("round_trip") == 0;
    let (verdict, mut reason) = if is_silent {
        (Verdict::Down, format!("suspect: {NOTHING_PASSES}"))
    } else {
        (verdict, state.to_owned())
    };
    for (count, one, more) in [
        (
            of("unacknowledged"),
            "frame unacknowledged",
            "frames unacknowledged",
        ),
        (of("failures"), "failure so far", "failures so far"),
    ] {
        if count > 0 {
            let _ = write!(reason, ", {count} {}", if count == 1 { one } else { more });
        }
    }
    let latency = match (of("latency"), of("round_trip") / 2) {
        (0, 0) => None,
        (0, half) => Some((half, LatencyOf::Acknowledgements)),
        (half, _) => Some((half, LatencyOf::Messages)),
    };
    Row {
        rail: ours.to_owned(),
        verdict,
        pair: (!theirs.is_empty()).then(|| theirs.to_owned()),
        latency_ns: latency.map(|(ns, _)| ns),
        latency_of: latency.map(|(_, of)| of),
        reason,
        gids: gids(snapshot, &format!("{begin}{rails}")),
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::counters::{CounterFile, Place, Plan};

    use super::*;

    /// Returns the row of a rank with this path to rank 1: state, failures, latency, round trip.
    fn told(state: u64, failures: u64, latency: u64, round_trip: u64) -> Row {
        const OF: &str = "way.1.udp:a0/udp:b0";
        let plan = Plan::new()
            .gauge(&format!("{OF}.state"), "")
            .gauge(&format!("{OF}.latency"), "ns")
            .gauge(&format!("{OF}.round_trip"), "ns")
            .counter(&format!("{OF}.failures"), "times");
        let file = CounterFile::create(&Place::Memory, 0, &plan).unwrap();
        for (what, value) in [("state", state), ("latency", latency), ("round_trip", round_trip)] {
            file.gauge(&format!("{OF}.{what}")).unwrap().set(value);
        }
        file.counter(&format!("{OF}.failures")).unwrap().add(failures);
        let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
        assert!(ways_to(&snapshot, Peer::Rank(11)).is_empty());
        let [row] = &ways_to(&snapshot, Peer::Rank(1))[..] else {
            panic!("one row")
        };
        assert_eq!((&*row.rail, row.pair.as_deref()), ("udp:a0", Some("udp:b0")));
        row.clone()
    }

    #[test]
    fn every_state_of_a_way_has_its_verdict_and_its_words() {
        for (state, verdict, words) in [
            (PathState::Up, Verdict::Chosen, "up"),
            (
                PathState::Suspect,
                Verdict::Chosen,
                "suspect: the peer owes it answers",
            ),
            (PathState::Down, Verdict::Down, "down"),
            (PathState::Probing, Verdict::Down, "down: the peer is called"),
            (
                PathState::Returning,
                Verdict::Down,
                "it has answered again, and is watched for a while",
            ),
        ] {
            let row = told(state.number(), 0, 0, 90_000);
            assert_eq!((row.verdict, &*row.reason), (verdict, words));
        }
        // From which nothing has ever come back.
        let silent = told(PathState::Suspect.number(), 0, 0, 0);
        assert_eq!((silent.verdict, silent.latency_of), (Verdict::Down, None));
        assert!(silent.reason.ends_with(NOTHING_PASSES), "{silent:?}");
        let unknown = told(5, 0, 0, 0);
        assert!(
            unknown.verdict == Verdict::Unknown && unknown.reason.contains("does not know"),
            "{unknown:?}"
        );
        assert_eq!(told(2, 1, 0, 0).reason, "down, 1 failure so far");
        assert_eq!(told(2, 3, 0, 0).reason, "down, 3 failures so far");
    }

    #[test]
    fn a_member_is_named_by_its_address_and_has_rails_of_this_end() {
        let name = "00a13e72f0e0b313";
        let peer = Peer::of(name).unwrap().unwrap();
        assert_eq!(
            (peer, peer.to_string().as_str()),
            (Peer::Member(0xa1_3e72_f0e0_b313), name)
        );
        assert_eq!(
            ["17", "node17", "10.0.0.2"].map(|text| Peer::of(text).unwrap()),
            [Some(Peer::Rank(17)), None, None]
        );
        let plan = Plan::new().gauge(&format!("way.{name}.shm.state"), "");
        let file = CounterFile::create(&Place::Memory, NO_RANK, &plan).unwrap();
        let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
        let [row] = &ways_to(&snapshot, peer)[..] else {
            panic!("one row")
        };
        assert_eq!(
            (&*row.rail, row.pair.as_deref(), row.verdict),
            ("shm", None, Verdict::Chosen)
        );
        assert!(ways_to(&snapshot, Peer::Member(1)).is_empty());
    }

    #[test]
    fn a_path_over_ports_has_its_pair_of_gids() {
        const OF: &str = "way.1.verbs:a:1/verbs:b:1";
        let plan = Plan::new()
            .gauge(&format!("{OF}.state"), "")
            .text(&format!("{OF}.gids.0"))
            .text(&format!("{OF}.gids.1"));
        let file = CounterFile::create(&Place::Memory, 0, &plan).unwrap();
        let lines = [
            "10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)",
            "not 10.1.0.1 with 10.2.0.9: they",
        ];
        for (at, line) in lines.iter().enumerate() {
            file.text(&format!("{OF}.gids.{at}")).unwrap().set(line);
        }
        let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
        let [row] = &ways_to(&snapshot, Peer::Rank(1))[..] else {
            panic!("one row")
        };
        assert_eq!(row.gids, lines);
        assert!(told(0, 0, 0, 0).gids.is_empty());
    }

    #[test]
    fn a_latency_names_what_it_is_of() {
        let latency = |row: Row| row.latency_ns.zip(row.latency_of);
        assert_eq!(
            latency(told(0, 0, 0, 90_000)),
            Some((45_000, LatencyOf::Acknowledgements))
        );
        assert_eq!(
            latency(told(0, 0, 7_000, 90_000)),
            Some((7_000, LatencyOf::Messages))
        );
        assert_eq!(latency(told(0, 0, 0, 0)), None);
    }

    /// What a lost peer leaves, and what never was a way: each candidate is there.
    #[test]
    fn candidates_that_are_not_chosen_have_their_reasons() {
        let mut worlds = doorbell::local(2, &doorbell::Config::default()).unwrap();
        let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
        zero.send(1, 1, b"x").unwrap();
        one.recv(0, 1, &mut [0; 1]).unwrap();
        let rows = || {
            let snapshot = Reader::open(zero.counter_file().unwrap())
                .unwrap()
                .read()
                .unwrap();
            ways_to(&snapshot, Peer::Rank(1))
        };
        let selection = zero.selection(1).unwrap();
        let all: Vec<_> = selection
            .rails
            .iter()
            .map(|judged| judged.rail.to_string())
            .collect();
        let mut shown: Vec<_> = rows().into_iter().map(|row| row.rail).collect();
        // Those that are not chosen stand by how they stand.
        let (mut all, first) = (all, shown.remove(0));
        assert_eq!(first, all.remove(0));
        all.sort();
        shown.sort();
        assert_eq!(shown, all);
        assert!(rows().iter().all(|row| !row.reason.is_empty()), "{:?}", rows());
        assert_eq!(rows()[0].verdict, Verdict::Chosen);
        let unchosen = |row: &Row| !matches!(row.verdict, Verdict::Chosen | Verdict::Down | Verdict::Unknown);
        assert!(rows()[1..].iter().all(unchosen), "{:?}", rows());
        drop(one);
        let started = std::time::Instant::now();
        while rows()[0].verdict == Verdict::Chosen {
            assert!(started.elapsed().as_secs() < 20, "{:?}", rows());
            zero.progress();
        }
        assert_eq!(rows()[0].reason, "down, 1 failure so far");
    }
}

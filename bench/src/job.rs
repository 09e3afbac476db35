//! A whole measurement in a world: ranks 0–1, 2–3, … work in pairs, rank 0 gathers what the pairs found out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell::World;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::counters::{Reader, Snapshot, Value};
use serde::{Deserialize, Serialize};

use crate::env::{
    CaptureRecord, ClockRecord, Environment, Host, RankRecord, Watch, broken, doubts, injected,
};
use crate::error::BenchError;
use crate::link::Link;
use crate::load::{Progress, Row, Session, follow, lead};
use crate::plan::Plan;
use crate::report::{Overall, Report, SCHEMA};
use crate::world::{WorldLink, hear_within, mode, tell_within};

/// Where this rank's threads run, as far as the caller bound them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cores {
    /// The core of the calling thread.
    pub main: Option<usize>,
    /// The core of the progress thread, in dedicated mode.
    pub progress: Option<usize>,
}

/// What one pair found out.
#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    rows: Vec<Row>,
    ranks: Vec<RankRecord>,
    no_reference: Option<String>,
    no_one_way: Option<String>,
}

/// Carries out `plan` in every pair of the world at once. Every rank calls it; rank 0 gets the report.
///
/// # Errors
/// When the world has an odd number of ranks, a peer is lost, or messages arrive damaged.
pub fn measure(
    world: &World,
    plan: &Plan,
    cores: Cores,
    progress: &mut dyn Progress,
) -> Result<Option<Report>, BenchError> {
    plan.check()?;
    if !world.size().is_multiple_of(2) {
        return Err(BenchError::BadPlan {
            what: "an odd number of ranks",
            reason: format!("ranks work in pairs, and {} leaves one over", world.size()),
        });
    }
    let started = SystemTime::now();
    let begun = Instant::now();
    let clock = Clock::start();
    // Before our own work is part of it.
    let host = Host::read(&cores.main.into_iter().collect::<Vec<_>>());
    let mut link = WorldLink::new(world, world.rank() ^ 1);
    let (rail, rail_reason, rails) = (link.rail().to_owned(), link.reason(), link.rails());
    let watch = Watch::look(cores.main);
    let record = || RankRecord {
        rank: world.rank(),
        pid: std::process::id(),
        core: cores.main,
        progress_core: cores.progress,
        hostname: host.name.clone(),
        noise: watch.since(),
        captures: CaptureRecord::of(world),
    };
    let mut session = Session::new(&mut link, &clock).apart(is_apart(world));
    if world.rank() % 2 == 1 {
        follow(&mut session, || json(&record()))?;
        return Ok(None);
    }
    let pair = lead_pair(&mut session, plan, record, progress)?;
    if world.rank() != 0 {
        tell_within(world, 0, &json(&pair), other_pairs(world, begun))?;
        return Ok(None);
    }
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        kind: plan.kind,
        rail,
        window: plan.window,
        posted: plan.posted,
        plain: plan.plain,
        started_unix_ms: started
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        environment: Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rail_reason,
            rails,
            mode: mode(world).to_owned(),
            clock: ClockRecord::of(&clock),
            ..Environment::default()
        },
        reference: Overall::default(),
        results: Vec::new(),
        rail_counts: rail_counts(world),
    };
    add(&mut report, pair);
    let limit = other_pairs(world, begun);
    for leader in (2..world.size()).step_by(2) {
        add(&mut report, parse(leader, &hear_within(world, leader, limit)?)?);
    }
    finish(&mut report, host);
    let faults = injected(&world.config().fault.inject.get().to_string());
    let broke = broken(&rails_broken(world), &report.results);
    report
        .environment
        .doubts
        .splice(..0, faults.into_iter().chain(broke));
    Ok(Some(report))
}

/// Whether the partner is elsewhere, so that its process number means nothing here.
fn is_apart(world: &World) -> bool {
    let host = |rank: u32| world.hello(rank).map(|hello| &hello.host);
    world.met_over().is_some() || host(world.rank()) != host(world.rank() ^ 1)
}

/// Slower pairs than this, compared with one's own, are not waited for beyond the deadline.
const SLOWER: u32 = 4;

/// How long the other pairs may still take: the plan is the same for all, so what it took here is what is known of it.
fn other_pairs(world: &World, begun: Instant) -> Duration {
    let deadline = *world.config().wait.deadline.get();
    deadline.saturating_add(begun.elapsed().saturating_mul(SLOWER - 1))
}

fn lead_pair<L: Link>(
    session: &mut Session<'_, L>,
    plan: &Plan,
    record: impl Fn() -> RankRecord,
    progress: &mut dyn Progress,
) -> Result<Pair, BenchError> {
    let no_reference = if plan.reference {
        session.share_page()?.err()
    } else {
        Some("it was not asked for".to_owned())
    };
    let rows = lead(session, plan, progress)?;
    let no_one_way = session.no_one_way().map(str::to_owned);
    let peer = session.link.peer();
    let theirs = parse(peer, &session.hear_follower()?)?;
    session.quit()?;
    Ok(Pair {
        rows,
        ranks: vec![record(), theirs],
        no_reference,
        no_one_way,
    })
}

fn add(report: &mut Report, pair: Pair) {
    report.results.extend(pair.rows);
    report.environment.ranks.extend(pair.ranks);
    let no_reference = &mut report.environment.no_reference;
    *no_reference = no_reference.take().or(pair.no_reference);
    let no_one_way = &mut report.environment.no_one_way;
    *no_one_way = no_one_way.take().or(pair.no_one_way);
}

/// What this rank's rails have counted, as others see it; nothing where there is no counter file.
fn rail_counts(world: &World) -> BTreeMap<String, u64> {
    let Some(snapshot) = snapshot(world) else {
        return BTreeMap::new();
    };
    let counts = snapshot
        .readings
        .into_iter()
        .filter_map(|reading| match reading.value {
            Value::Counter(count @ 1..)
                if !["pml.", "way."]
                    .iter()
                    .any(|of| reading.entry.name.starts_with(of)) =>
            {
                Some((reading.entry.name, count))
            }
            _ => None,
        });
    counts.collect()
}

/// The rails of this rank that broke, with the rank each leads to, and how often.
fn rails_broken(world: &World) -> Vec<(String, u64)> {
    let readings = snapshot(world).map(|snapshot| snapshot.readings);
    let broke = readings.into_iter().flatten().filter_map(|reading| {
        let Value::Counter(times @ 1..) = reading.value else {
            return None;
        };
        let way = reading
            .entry
            .name
            .strip_prefix("way.")?
            .strip_suffix(".failures")?;
        let (rank, rails) = way.split_once('.')?;
        let (ours, _) = rails.split_once('/').unwrap_or((rails, ""));
        Some((format!("{ours} to rank {rank}"), times))
    });
    broke.collect()
}

/// This rank's counters, as they are now.
fn snapshot(world: &World) -> Option<Snapshot> {
    let path = world.counter_file()?;
    Reader::open(path).ok()?.read().ok()
}

/// What is only known when every pair is in.
fn finish(report: &mut Report, host: Host) {
    let cores: Vec<usize> = report
        .environment
        .ranks
        .iter()
        .filter_map(|rank| rank.core)
        .collect();
    report.environment.host = host;
    report.environment.host.add_cores(&cores);
    report.reference = Overall::of(&report.results);
    report.environment.doubts = doubts(&report.environment, &report.results);
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain records: nothing in them can fail to be written.
    serde_json::to_vec(value).expect("records are plain data")
}

fn parse<T: for<'a> Deserialize<'a>>(rank: u32, text: &[u8]) -> Result<T, BenchError> {
    serde_json::from_slice(text).map_err(|error| BenchError::Disorder {
        rank,
        what: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Kind;
    use crate::size::Size;

    fn run(size: u32, kind: Kind) -> Vec<Result<Option<Report>, BenchError>> {
        let worlds = doorbell::local(size, &doorbell::Config::default()).unwrap();
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| {
                std::thread::spawn(move || {
                    let plan = Plan {
                        sizes: [8, 100_000].into_iter().filter_map(Size::new).collect(),
                        samples: Some(200),
                        window: 8,
                        ..Plan::new(kind)
                    };
                    measure(&world, &plan, Cores::default(), &mut ())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn pairs_measure_at_once_and_rank_0_reports_them_all() {
        let mut all = run(4, Kind::Pingpong);
        let report = all.remove(0).unwrap().unwrap();
        assert!(all.into_iter().all(|other| other.unwrap().is_none()));
        let pairs: Vec<[u32; 2]> = report.results.iter().map(|row| row.pair).collect();
        assert_eq!(pairs, [[0, 1], [0, 1], [2, 3], [2, 3]]);
        assert_eq!(report.environment.ranks.len(), 4);
        assert!(report.results.iter().all(|row| row.samples >= 200));
        assert!(report.results.iter().all(|row| row.hiccups.is_some()));
        assert!(report.results.iter().all(|row| row.reference.before_ns.is_some()));
        assert_eq!(
            (report.rail.as_str(), report.environment.mode.as_str()),
            ("shm", "inline")
        );
        assert!(
            report
                .environment
                .doubts
                .iter()
                .any(|doubt| doubt.code == "not-bound")
        );
        // Two sizes and two hundred samples of each, both ways.
        assert!(report.rail_counts["shm.sent"] >= 400, "{:?}", report.rail_counts);
        assert!(report.rail_counts.keys().all(|name| name.starts_with("shm.")));
    }

    #[test]
    fn streams_of_small_and_large_messages_arrive_whole() {
        let report = run(2, Kind::Stream).remove(0).unwrap().unwrap();
        // No message is timed by itself: that is nothing, and not zero stalls.
        assert!(report.results.iter().all(|row| row.hiccups.is_none()));
        assert!(
            report
                .results
                .iter()
                .all(|row| row.bytes_per_second.unwrap() > 0.0)
        );
    }

    /// Ranks 0 and 1 of a job whose other ranks never say anything.
    fn half_of_a_job(size: u32) -> Vec<BenchError> {
        let mut config = doorbell::Config::default();
        config.set("wait.deadline", "1s").unwrap();
        let mut worlds = doorbell::local(size, &config).unwrap();
        let silent = worlds.split_off(2.min(size as usize - 1));
        let plan = Plan {
            sizes: Size::new(8).into_iter().collect(),
            samples: Some(200),
            ..Plan::new(Kind::Pingpong)
        };
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| {
                let plan = plan.clone();
                std::thread::spawn(move || measure(&world, &plan, Cores::default(), &mut ()).err())
            })
            .collect();
        let ended = threads.into_iter().filter_map(|thread| thread.join().unwrap());
        let errors = ended.collect();
        drop(silent);
        errors
    }

    #[test]
    fn a_rank_that_stops_answering_is_waited_for_until_the_deadline() {
        let begun = Instant::now();
        let errors = half_of_a_job(2);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].is_timeout(), "{}", errors[0]);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn another_pair_that_never_ends_is_waited_for_as_long_as_the_plan_may_take() {
        let begun = Instant::now();
        let errors = half_of_a_job(4);
        // Rank 1 has done its part; rank 0 lacks the other pair's.
        assert_eq!(errors.len(), 1);
        assert!(errors[0].is_timeout(), "{}", errors[0]);
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_odd_rank_out_is_refused_by_all() {
        for rank in run(3, Kind::Pingpong) {
            assert!(rank.unwrap_err().to_string().contains("3 leaves one over"));
        }
    }
}

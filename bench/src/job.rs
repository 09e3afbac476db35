//! A whole measurement in a world: ranks 0–1, 2–3, … work in pairs, rank 0 gathers what the pairs found out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell::{Am, Binding, Job, Portals, Selection, World};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::counters::{Reader, Snapshot, Value};
use serde::{Deserialize, Serialize};

use crate::env::{
    CaptureRecord, Caveat, ClockRecord, Environment, Host, PortCounters, RailUse, RankRecord, Watch, broken,
    caveats, injected,
};
use crate::error::BenchError;
use crate::layer::am::{AmLink, AmState};
use crate::layer::portals::PortalsLink;
use crate::link::Link;
use crate::load::{Progress, Row, Session, follow, lead};
use crate::plan::Plan;
use crate::report::{Overall, Report, SCHEMA};
use crate::world::{WorldLink, mode, receive_control_within, send_control_within};

/// The cores of this rank's threads, as far as the caller bound them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cores {
    /// The core of the calling thread.
    pub main: Option<usize>,
    /// The core of the progress thread, in dedicated mode.
    pub progress: Option<usize>,
}

/// The results of one pair.
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
    let begun = Instant::now();
    let start = Start::now(cores);
    let mut link = WorldLink::new(world, world.rank() ^ 1);
    let facts = Facts {
        rail: link.rail().to_owned(),
        reason: link.reason(),
        rails: link.rails(),
        mode: mode(world.config()),
    };
    let apart = is_apart(world);
    let ports = facts.ports();
    let record = || {
        let binding = world.binding().unwrap_or_default();
        RankRecord {
            progress_core: binding.progress.or(cores.progress),
            shares: binding.shares,
            ..start.record(world.rank(), cores, CaptureRecord::of(world), &ports)
        }
    };
    let Some(pair) = pair(&mut link, &start, apart, plan, record, progress)? else {
        return Ok(None);
    };
    if world.rank() != 0 {
        send_control_within(world, 0, &json(&pair), other_pairs(world, begun))?;
        return Ok(None);
    }
    let mut report = start.report(plan, facts, rail_counts(world));
    add(&mut report, pair);
    let limit = other_pairs(world, begun);
    for leader in (2..world.size()).step_by(2) {
        add(
            &mut report,
            parse(leader, &receive_control_within(world, leader, limit)?)?,
        );
    }
    finish(&mut report, start.host);
    let faults = injected(&world.config().fault.inject.get().to_string());
    let broke = broken(&rails_broken(world), &report.results);
    report
        .environment
        .doubts
        .splice(..0, faults.into_iter().chain(broke));
    Ok(Some(report))
}

/// Measures as [`measure`] does, by puts in a job of two ranks.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_portals(
    job: &mut Portals,
    plan: &Plan,
    cores: Cores,
    progress: &mut dyn Progress,
) -> Result<Option<Report>, BenchError> {
    let two = Two::begin(job.job(), job.binding(), plan, cores)?;
    let mut link = PortalsLink::new(job, two.facts.rail.clone(), longest(plan), plan.verify)?;
    let pair = two.pair(&mut link, plan, progress)?;
    job.barrier()?;
    Ok(pair.map(|pair| two.report(pair, plan, job.rail_counts())))
}

/// Measures as [`measure`] does, by active messages in a job of two ranks, which was made with the handlers
/// of `state`.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_am(
    am: &mut Am,
    state: &AmState,
    plan: &Plan,
    cores: Cores,
    progress: &mut dyn Progress,
) -> Result<Option<Report>, BenchError> {
    let two = Two::begin(am.job(), am.binding(), plan, cores)?;
    let mut link = AmLink::new(am, state, two.facts.rail.clone(), longest(plan), plan.verify)?;
    let pair = two.pair(&mut link, plan, progress)?;
    am.barrier()?;
    Ok(pair.map(|pair| two.report(pair, plan, am.rail_counts())))
}

/// Bytes of the longest message of a plan.
fn longest(plan: &Plan) -> usize {
    plan.sizes.iter().map(|size| size.bytes()).max().unwrap_or(0)
}

/// A measurement between the two ranks of a job, whatever they exchange.
struct Two {
    start: Start,
    cores: Cores,
    binding: Binding,
    rank: u32,
    facts: Facts,
    apart: bool,
    faults: Option<Caveat>,
}

impl Two {
    fn begin(job: &Job, binding: Option<Binding>, plan: &Plan, cores: Cores) -> Result<Self, BenchError> {
        plan.check()?;
        only_two(job.size())?;
        let start = Start::now(cores);
        let (rank, peer) = (job.rank(), job.rank() ^ 1);
        Ok(Self {
            start,
            cores,
            binding: binding.unwrap_or_default(),
            rank,
            facts: Facts::of_selection(job, peer),
            apart: job.is_apart_from(peer),
            faults: injected(&job.config().fault.inject.get().to_string()),
        })
    }

    fn pair<L: Link>(
        &self,
        link: &mut L,
        plan: &Plan,
        progress: &mut dyn Progress,
    ) -> Result<Option<Pair>, BenchError> {
        let ports = self.facts.ports();
        let record = || RankRecord {
            progress_core: self.binding.progress.or(self.cores.progress),
            shares: self.binding.shares.clone(),
            ..self.start.record(self.rank, self.cores, Vec::new(), &ports)
        };
        pair(link, &self.start, self.apart, plan, record, progress)
    }

    fn report(self, pair: Pair, plan: &Plan, counts: Vec<(String, u64)>) -> Report {
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let mut report = self.start.report(plan, self.facts, counts.collect());
        add(&mut report, pair);
        finish(&mut report, self.start.host);
        report.environment.doubts.splice(..0, self.faults);
        report
    }
}

/// Refuses what only tagged messages support: several pairs at once.
fn only_two(size: u32) -> Result<(), BenchError> {
    if size == 2 {
        return Ok(());
    }
    Err(BenchError::BadPlan {
        what: "a job of another size than two",
        reason: format!("there are {size} ranks, and this layer is measured between two: start two"),
    })
}

/// The rails that carry the messages, and how.
struct Facts {
    rail: String,
    reason: String,
    rails: Vec<RailUse>,
    mode: &'static str,
}

impl Facts {
    /// Reads the counters of the ports that the rails use, before anything is measured.
    fn ports(&self) -> PortCounters {
        PortCounters::of(self.rails.iter().map(|used| used.rail.as_str()))
    }

    /// Describes the rails that were chosen to a peer, in the order of preference.
    fn of_selection(job: &Job, peer: u32) -> Self {
        let chosen = || job.selection(peer).into_iter().flat_map(Selection::chosen);
        let rails: Vec<RailUse> = chosen()
            .map(|(rail, to)| RailUse {
                rail: rail.to_string(),
                to: to.rail.to_string(),
                role: "everything, or spare".to_owned(),
            })
            .collect();
        let rail = rails
            .first()
            .map_or_else(|| "none".to_owned(), |used| used.rail.clone());
        let reason = match job.rail_how(&rail) {
            Some(how) => format!("the first that was chosen; {how}"),
            None => "the first that was chosen".to_owned(),
        };
        Self {
            rail,
            reason,
            rails,
            mode: mode(job.config()),
        }
    }
}

/// The beginning of a measurement: what is read before its own work is part of it.
struct Start {
    at: SystemTime,
    clock: Clock,
    host: Host,
    watch: Watch,
}

impl Start {
    fn now(cores: Cores) -> Self {
        Self {
            at: SystemTime::now(),
            clock: Clock::start(),
            host: Host::read(&cores.main.into_iter().collect::<Vec<_>>()),
            watch: Watch::look(cores.main),
        }
    }

    fn record(
        &self,
        rank: u32,
        cores: Cores,
        captures: Vec<CaptureRecord>,
        ports: &PortCounters,
    ) -> RankRecord {
        RankRecord {
            rank,
            pid: std::process::id(),
            core: cores.main,
            moved: self.watch.moved(),
            progress_core: cores.progress,
            shares: None,
            hostname: self.host.name.clone(),
            noise: self.watch.since(),
            captures,
            ports: ports.since(),
        }
    }

    /// Creates a report without rows.
    fn report(&self, plan: &Plan, facts: Facts, rail_counts: BTreeMap<String, u64>) -> Report {
        Report {
            schema: SCHEMA.to_owned(),
            kind: plan.kind,
            layer: plan.layer,
            rail: facts.rail,
            window: plan.window,
            posted: plan.posted,
            plain: plan.plain,
            started_unix_ms: self
                .at
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            environment: Environment {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                rail_reason: facts.reason,
                rails: facts.rails,
                mode: facts.mode.to_owned(),
                clock: ClockRecord::of(&self.clock),
                ..Environment::default()
            },
            reference: Overall::default(),
            results: Vec::new(),
            rail_counts,
        }
    }
}

/// This rank's part in its pair; the leader comes to know what both found out.
fn pair<L: Link>(
    link: &mut L,
    start: &Start,
    apart: bool,
    plan: &Plan,
    record: impl Fn() -> RankRecord,
    progress: &mut dyn Progress,
) -> Result<Option<Pair>, BenchError> {
    let follows = link.rank() % 2 == 1;
    let mut session = Session::new(link, &start.clock)
        .apart(apart)
        .watched(&start.watch);
    if follows {
        follow(&mut session, || json(&record()))?;
        return Ok(None);
    }
    lead_pair(&mut session, plan, record, progress).map(Some)
}

/// Whether the partner is elsewhere, so that its process number means nothing here.
fn is_apart(world: &World) -> bool {
    world.met_over().is_some() || world.job().is_apart_from(world.rank() ^ 1)
}

/// Slower pairs than this, compared with one's own, are not waited for beyond the deadline.
const SLOWER: u32 = 4;

/// Returns how long the other pairs may still take: the plan is the same for all, so the best estimate is the
/// time that it took here.
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
        Some("it was not requested".to_owned())
    };
    let rows = lead(session, plan, progress)?;
    let no_one_way = session.no_one_way().map(str::to_owned);
    let peer = session.link.peer();
    let theirs = parse(peer, &session.follower_text()?)?;
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

/// Returns what this rank's rails have counted, as others see it; nothing where there is no counter file.
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

/// Returns this rank's counters, as they are now.
fn snapshot(world: &World) -> Option<Snapshot> {
    let path = world.counter_file()?;
    Reader::open(path).ok()?.read().ok()
}

/// Adds what is only known when every pair is in.
fn finish(report: &mut Report, host: Host) {
    let cores: Vec<usize> = report
        .environment
        .ranks
        .iter()
        // The cores of another host have nothing to do with the files of this one.
        .filter(|rank| rank.hostname == host.name)
        .filter_map(|rank| rank.core)
        .collect();
    report.environment.host = host;
    report.environment.host.add_cores(&cores);
    report.reference = Overall::of(&report.results);
    report.environment.doubts = caveats(&report.environment, &report.results);
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

    /// Ranks 0 and 1 of a job whose other ranks never send anything.
    fn half_of_a_job(size: u32) -> Vec<BenchError> {
        let mut config = doorbell::Config::default();
        config.set("wait.deadline", "1s").unwrap();
        let mut worlds = doorbell::local(size, &config).unwrap();
        let silent = worlds.split_off(2.min(size as usize - 1));
        let plan = Plan {
            sizes: Size::new(8).into_iter().collect(),
            samples: Some(200),
            // On a busy machine its looks take longer than what is waited for.
            reference: false,
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

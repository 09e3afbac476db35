//! `doorbell-lab acm-load`: many clients that query known paths at a rate, and how long the answers take.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use doorbell_acm::address::Address;
use doorbell_acm::client::{AsyncClient, ClientError, Service};
use doorbell_fabric::error::Exit;
use doorbell_tools::acm::{Format, SOON, json, service, written};
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use super::args::LoadArgs;

/// The longest time that is told apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;

/// The JSON of `doorbell-lab acm-load`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    service: String,
    clients: u32,
    /// The requested rate, in questions a second.
    rate: u32,
    /// The achieved rate.
    achieved: f64,
    seconds: f64,
    answered: u64,
    failed: u64,
    /// Why the first one failed.
    first_failure: Option<String>,
    /// The time from when a question was due to its answer.
    latency_ns: Percentiles,
    /// Memory of the service's process that is resident, before and after; where it is a process of this
    /// host.
    resident_kib: Option<[u64; 2]>,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    min: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p99_9: u64,
    max: u64,
}

/// What all clients write to.
struct Tally {
    times: Histogram<u64>,
    failed: u64,
    first_failure: Option<String>,
}

/// Runs `doorbell-lab acm-load`.
pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode, ToolError> {
    let destinations = written::all(&args.destinations, Format::Any)?.into_iter();
    let queries = destinations.map(|to| Ok((to.source()?, to.address)));
    let queries: Rc<[Query]> = queries.collect::<Result<Vec<Query>, ToolError>>()?.into();
    let service = service(args.service.as_deref())?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| ToolError::System {
        what: "wait for many clients",
        source,
    })?;
    let process = process_of(&service);
    let report = LocalSet::new().block_on(&runtime, async {
        let askers = connect(&service, args.clients).await?;
        warm(&askers[0], &queries).await?;
        let before = process.and_then(resident);
        let tally = Rc::new(RefCell::new(Tally {
            times: Histogram::new_with_bounds(1, LONGEST, 3)
                .map_err(|error| ToolError::Usage(error.to_string()))?,
            failed: 0,
            first_failure: None,
        }));
        let begun = Instant::now();
        let each = Duration::from_secs_f64(f64::from(args.clients) / f64::from(args.rate));
        let until = begun + Duration::from_secs_f64(args.seconds);
        let clients: Vec<_> = askers
            .into_iter()
            .enumerate()
            .map(|(nth, asker)| {
                // Spread over the time between two questions of one client.
                let first = begun + each.mul_f64(nth as f64 / f64::from(args.clients));
                let pace = Pace { first, each, until };
                tokio::task::spawn_local(run_client(
                    asker,
                    nth,
                    pace,
                    Rc::clone(&queries),
                    Rc::clone(&tally),
                ))
            })
            .collect();
        let shown = tokio::task::spawn_local(show(until));
        for client in clients {
            // A client that panics has shown where; its questions are missing in the count.
            let _ = client.await;
        }
        shown.abort();
        console::pass("");
        let seconds = begun.elapsed().as_secs_f64();
        let resident = before
            .zip(process.and_then(resident))
            .map(|(before, after)| [before, after]);
        let tally = tally.borrow();
        Ok::<_, ToolError>(report(args, &service, &tally, seconds, resident))
    })?;
    console::print(&if args.json { json(&report) } else { shown(&report) })?;
    let good = report.failed == 0 && report.answered > 0;
    Ok(if good { Exit::Done } else { Exit::Verdict }.into())
}

/// Where a path begins, if that is given, and where it ends.
type Query = (Option<Address>, Address);

/// The times at which a client sends its questions.
#[derive(Clone, Copy)]
struct Pace {
    first: Instant,
    each: Duration,
    until: Instant,
}

async fn connect(service: &Service, clients: u32) -> Result<Vec<AsyncClient>, ToolError> {
    let mut askers = Vec::new();
    for _ in 0..clients {
        askers.push(AsyncClient::connect(service, SOON).await?);
    }
    Ok(askers)
}

/// Shows a person who looks how long it takes from here.
async fn show(until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        console::pass(&format!(
            "questions and answers, {}",
            console::about(left.as_secs_f64())
        ));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// So that all of them are known.
async fn warm(asker: &AsyncClient, queries: &[Query]) -> Result<(), ClientError> {
    for (source, destination) in queries {
        asker.resolve(source.clone(), destination.clone(), false).await?;
    }
    Ok(())
}

/// One client: sends a question when it is due, whatever became of the one before, and never faster.
async fn run_client(
    asker: AsyncClient,
    nth: usize,
    pace: Pace,
    queries: Rc<[Query]>,
    tally: Rc<RefCell<Tally>>,
) {
    let mut due = pace.first;
    let mut turn = nth;
    while due < pace.until {
        sleep_until(due).await;
        let (source, destination) = queries[turn % queries.len()].clone();
        let answer = asker.resolve(source, destination, false).await;
        let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(LONGEST);
        let mut tally = tally.borrow_mut();
        match answer {
            Ok(_) => tally.times.saturating_record(took.clamp(1, LONGEST)),
            Err(error) => {
                tally.failed += 1;
                tally.first_failure.get_or_insert_with(|| error.to_string());
            }
        }
        due += pace.each;
        turn += 1;
    }
}

fn report(
    args: &LoadArgs,
    service: &Service,
    tally: &Tally,
    seconds: f64,
    resident: Option<[u64; 2]>,
) -> Report {
    let at = |quantile| tally.times.value_at_quantile(quantile);
    Report {
        schema: "doorbell.acm-load/1",
        version: env!("CARGO_PKG_VERSION"),
        service: service.to_string(),
        clients: args.clients,
        rate: args.rate,
        achieved: tally.times.len() as f64 / seconds,
        seconds,
        answered: tally.times.len(),
        failed: tally.failed,
        first_failure: tally.first_failure.clone(),
        latency_ns: Percentiles {
            min: tally.times.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: tally.times.max(),
        },
        resident_kib: resident,
    }
}

/// The process that listens at the service's socket.
fn process_of(service: &Service) -> Option<u32> {
    let Service::Unix(path) = service else { return None };
    let stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// Resident memory of a process in KiB.
fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn shown(report: &Report) -> String {
    let times = &report.latency_ns;
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let mut text = format!(
        "{} clients, {} questions in {:.1} s: {:.0} a second of {} requested, {} failed\n",
        report.clients, report.answered, report.seconds, report.achieved, report.rate, report.failed
    );
    text.push_str(&format!(
        "answered after (µs)  least {}  half {}  90 % {}  99 % {}  99.9 % {}  most {}\n",
        us(times.min),
        us(times.p50),
        us(times.p90),
        us(times.p99),
        us(times.p99_9),
        us(times.max)
    ));
    if let Some([before, after]) = report.resident_kib {
        text.push_str(&format!(
            "memory of the service: {before} KiB before, {after} KiB after\n"
        ));
    }
    if let Some(failure) = &report.first_failure {
        text.push_str(&format!("the first that failed: {failure}\n"));
    }
    text
}

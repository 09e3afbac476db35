//! `doorbell-lab compare-peers`: doorbell and the peers that are installed, measured in turn and from
//! outside.
//!
//! ```text
//!   find ──► who is here, and the package that brings each other one
//!   place ─► two cores; a namespace with nothing but its loopback, or two with a virtual cable
//!   rounds ─► turn by turn: bare exchange, one stack as processes of its own, bare exchange
//!             doorbell   mpi (mpi_pair.c by the peer's mpicc)   ucx   libfabric   iceoryx2   osu
//!   verdict ─► ratios of one round and band ──► report: table, JSON, page
//! ```

pub(crate) mod args;
mod best;
mod counts;
mod doorbell;
mod find;
mod html;
mod iceoryx2;
mod libfabric;
mod load;
mod markdown;
mod mpi;
mod osu;
mod overlap;
mod plan;
mod report;
mod rounds;
mod stack;
mod table;
mod ucx;
mod verdict;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::SystemTime;

use doorbell_fabric::error::Exit;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use self::overlap::measure_overlap;

use self::find::Peer;
use self::load::Load;
use self::plan::Plan;
use self::report::{Frame, Report};
use self::rounds::{Event, Progress};
use self::table::Bold;
use crate::compare_peers::args::{ComparePeersArgs, Family};
use crate::place::{Place, Setting};
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};
use doorbell_tools::{console, report_files};

/// Runs `doorbell-lab compare-peers`.
pub(crate) fn compare_peers(args: &ComparePeersArgs) -> Result<ExitCode, ToolError> {
    let files = [
        ("--json", &args.json),
        ("--html", &args.html),
        ("--markdown", &args.markdown),
    ];
    let named: Vec<report_files::Named<'_>> = files
        .into_iter()
        .filter_map(|(flag, name)| Some((flag, name.as_deref()?)))
        .collect();
    report_files::check(&named)?;
    let compared = Runner::new()
        .map_err(Stop::Ended)
        .and_then(|runner| compare(&runner, args));
    match compared {
        Ok(exit) => Ok(exit.into()),
        Err(stop) => stop.end(),
    }
}

fn compare(runner: &Runner, args: &ComparePeersArgs) -> Result<Exit, Stop> {
    let found = find::peers(runner, args.peers_from.as_deref(), args.osu.as_deref())?;
    let wanted = |peer: &&Peer| args.only.is_empty() || args.only.contains(&peer.family);
    let peers: Vec<Peer> = found.iter().filter(wanted).cloned().collect();
    if args.list {
        console::print(&list(&peers))?;
        return Ok(Exit::Done);
    }
    if args.only.contains(&Family::Osu) && args.osu.is_none() {
        let text =
            "`--only osu` takes a folder with the benchmarks, which no package brings: add `--osu DIR`";
        return Err(Stop::Ended(ToolError::Usage(text.to_owned())));
    }
    if peers.iter().all(|peer| peer.missing.is_some()) {
        let reasons: Vec<String> = peers.iter().filter_map(|peer| peer.missing.clone()).collect();
        let text = format!("there is no peer to compare with: {}", reasons.join("; "));
        return Err(Stop::Ended(ToolError::Usage(text)));
    }
    // Named peers are used or refused.
    let osu = found.iter().filter(|peer| peer.family == Family::Osu);
    if let Some(why) = osu.filter_map(|peer| peer.missing.clone()).next() {
        return Err(Stop::Ended(ToolError::Usage(format!("`--osu`: {why}"))));
    }
    let started = SystemTime::now();
    let plan = Plan::of(args)?;
    let place = plan.place(runner)?;
    let events = plan.events(runner, [&peers, &found], &place)?;
    let turns: u64 = events.iter().map(|event| event.stacks.len() as u64).sum();
    let mut bar = Bar::new(turns * u64::from(plan.rounds));
    let turns = rounds::run(runner, &place, &events, plan.rounds, &mut bar);
    bar.bar.finish_and_clear();
    let turns = turns?;
    let frame = Frame {
        cores: plan.cores,
        rounds: plan.rounds,
        seconds: plan.seconds,
        window: args.window,
        real_time: runner.first,
        started,
        left_out: left_out(&place, &events, &peers),
        peers,
        doubts: doubts(&place),
    };
    let report = Report::new(frame, &events, &turns, &verdict::rows(&events, &turns));
    show(&report, args)?;
    Ok(end(&report))
}

/// Returns the exit status. A comparison that compared nothing, or in which doorbell itself failed, is none.
fn end(report: &Report) -> Exit {
    if let Some(why) = report.failure() {
        console::say(&format!("doorbell: {why}"));
        return Exit::System;
    }
    let behind = report.behind().next().is_some();
    if behind { Exit::Verdict } else { Exit::Done }
}

/// The peers that are here and were not measured, with the setting: they would have listened on all
/// addresses.
fn left_out(place: &Place<'_>, events: &[Event], peers: &[Peer]) -> Vec<(String, String)> {
    let settings = events.iter().map(|event| event.setting);
    let exposed = settings.filter_map(|setting| Some((setting, place.exposed(setting)?)));
    let each = exposed.flat_map(|(setting, why)| {
        let here = peers.iter().filter(|peer| peer.missing.is_none());
        here.map(move |peer| {
            let what = format!("{}, {}", peer.name, setting.name());
            let why = format!(
                "it would accept connections from all users and hosts, as no network namespace could be made ({why}): be root, or let \
                 users make namespaces, and install util-linux and iproute2"
            );
            (what, why)
        })
    });
    each.collect()
}

fn show(report: &Report, args: &ComparePeersArgs) -> Result<(), ToolError> {
    let named = [&args.json, &args.html, &args.markdown];
    if !named
        .into_iter()
        .flatten()
        .any(|name| report_files::is_stdout(name))
    {
        let bold = if io::stdout().is_terminal() {
            Bold::Terminal
        } else {
            Bold::Stars
        };
        console::print(&table::table(report, console::width(), bold))?;
    }
    if let Some(name) = &args.json {
        report_files::write(name, &report.json(), &mut io::stdout().lock())?;
    }
    if let Some(name) = &args.html {
        report_files::write(name, &html::html(report)?, &mut io::stdout().lock())?;
    }
    if let Some(name) = &args.markdown {
        report_files::write(name, &markdown::markdown(report), &mut io::stdout().lock())?;
    }
    Ok(())
}

/// Lists the peers that are here, one on each line.
fn list(peers: &[Peer]) -> String {
    let mut text = String::new();
    let longest = peers.iter().map(|peer| peer.name.chars().count()).max();
    let name = longest.map_or(10, |longest| longest.max(10));
    for peer in peers {
        let path = peer
            .path
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default();
        let what = peer.missing.clone().unwrap_or(path);
        let version = peer.version.as_deref().unwrap_or("-");
        text.push_str(&format!("{:<name$} {version:<8} {what}\n", peer.name));
    }
    text
}

/// Returns why the figures may be worth less than they look.
fn doubts(place: &Place<'_>) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(why) = place.exposed(Setting::Shm) {
        doubts.push(format!(
            "no network namespace could be made ({why}): peers that listen were left out over shared memory"
        ));
    }
    doubts.extend(crate::place::doubts(&place.cores));
    doubts
}

/// The progress bar, on the standard error and only when a person looks at it.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new(turns: u64) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(turns), target);
        let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %, {eta} left  {msg}");
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        Self { bar }
    }
}

impl Progress for Bar {
    fn turn(&mut self, setting: Setting, load: &Load, stack: &str, round: u32) {
        let text = format!(
            "round {}: {stack}, {}, {}",
            round + 1,
            load.kind.name(),
            setting.name()
        );
        self.bar.set_message(text);
    }

    fn done(&mut self) {
        self.bar.inc(1);
    }
}

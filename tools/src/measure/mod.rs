//! `doorbell pingpong`, `stream` and `rate`: starts its two ranks itself, or is one of the ranks that `doorbell run`
//! or another launcher started.

pub(crate) mod args;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use doorbell::Config;
use doorbell::config::Mode;
use doorbell_bench::job::Cores;
use doorbell_bench::load::Progress;
use doorbell_bench::pin;
use doorbell_bench::plan::{Asked as Rate, Kind, Plan, SHARES};
use doorbell_bench::report::{Picture, Report, csv, hgrm, hlog, table};
use doorbell_bench::size::Size;
use doorbell_fabric::error::Exit;
use doorbell_fabric::name::RailName;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::ToolError;
use crate::launched::{self, Member};
use crate::layer::Job;
use crate::measure::args::{LayerArg, MeasureArgs, PingpongArgs, RateArgs, StreamArgs};
use crate::run::{Launch, Output, can_bind, launch};
use crate::{hosts, out, outputs};

/// Ranks of a measurement that starts its own.
const PAIR: u32 = 2;
/// Each rank's two threads need a core of their own in dedicated mode.
const DEDICATED_CORES: usize = 4;

/// What a command line asks for.
pub(crate) struct Asked<'a> {
    pub(crate) plan: Plan,
    pub(crate) args: &'a MeasureArgs,
    /// Outputs that only latencies have.
    hgrm: Option<&'a Path>,
    hlog: Option<&'a Path>,
}

/// `doorbell pingpong`.
pub(crate) fn pingpong(args: &PingpongArgs) -> Result<ExitCode, ToolError> {
    let rate = args.rate.map(Rate::PerSecond);
    let plan = Plan {
        open: rate.or(args.open_loop.then_some(Rate::Knee)),
        one_way: args.one_way,
        ..plan(Kind::Pingpong, &args.all)
    };
    measure(&Asked {
        plan,
        args: &args.all,
        hgrm: args.hgrm.as_deref(),
        hlog: args.hlog.as_deref(),
    })
}

/// `doorbell stream`.
pub(crate) fn stream(args: &StreamArgs) -> Result<ExitCode, ToolError> {
    let plan = Plan {
        window: args.window as usize,
        plain: args.plain,
        ..plan(Kind::Stream, &args.all)
    };
    measure(&one_way(plan, &args.all))
}

/// `doorbell rate`.
pub(crate) fn rate(args: &RateArgs) -> Result<ExitCode, ToolError> {
    let plan = Plan {
        window: args.posted.unwrap_or(args.window) as usize,
        posted: args.posted.is_some(),
        plain: args.plain,
        ..plan(Kind::Rate, &args.all)
    };
    measure(&one_way(plan, &args.all))
}

/// Who makes progress, and where: by the options, else by the settings, else by what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Progress is made by a thread of its own.
    pub(crate) dedicated: bool,
    /// The core that settings name for it.
    pub(crate) core: Option<usize>,
}

impl Threads {
    /// Of a command line over the settings of the environment and of the file.
    pub(crate) fn of(args: &MeasureArgs) -> Result<Self, ToolError> {
        let config = builder(args, None).resolve()?;
        let threads = Self::of_config(&config);
        // A progress thread is for tagged messages.
        if threads.dedicated && args.layer != LayerArg::Pml {
            let layer = args.layer.layer();
            return Err(ToolError::Usage(match args.mode {
                Some(_) => format!(
                    "`--layer {layer}` has no dedicated mode: leave out `--mode`, or use `--layer pml`"
                ),
                None => format!(
                    "`--layer {layer}` has no dedicated mode, and progress.mode is dedicated (from {}): add \
                     `--mode inline`, or use `--layer pml`",
                    config.progress.mode.origin()
                ),
            }));
        }
        Ok(threads)
    }

    fn of_config(config: &Config) -> Self {
        let dedicated = *config.progress.mode.get() == Mode::Dedicated;
        let core = config.progress.core.get().map(|core| core as usize);
        Self {
            dedicated,
            core: core.filter(|_| dedicated),
        }
    }

    /// The core of the progress thread, when it would be `other` without the settings.
    pub(crate) fn core_or(self, other: Option<usize>) -> Option<usize> {
        self.core.or(other).filter(|_| self.dedicated)
    }
}

fn one_way(plan: Plan, args: &MeasureArgs) -> Asked<'_> {
    Asked {
        plan,
        args,
        hgrm: None,
        hlog: None,
    }
}

fn measure(asked: &Asked<'_>) -> Result<ExitCode, ToolError> {
    let args = asked.args;
    asked.plan.check()?;
    let threads = Threads::of(args)?;
    if let Some(name) = &args.plot {
        Picture::of(name)?;
    }
    let member = launched::member()?;
    if let Some(name) = args.pcap.as_deref().filter(|_| member.is_none()) {
        let ranks: &[u32] = match (&args.hosts.connect, args.hosts.serve) {
            (Some(_), _) => &[0],
            (None, true) => &[1],
            (None, false) => &[0, 1],
        };
        outputs::check_captures(name, ranks, &asked.outputs())?;
    }
    if args.hosts.serve {
        return hosts::serve(asked, threads);
    }
    if member.is_none_or(|member| member.rank == 0) {
        outputs::check(&asked.outputs())?;
    }
    if let Some(to) = &args.hosts.connect {
        return hosts::connect(asked, to, threads);
    }
    hosts::refuse_key(&args.hosts)?;
    if let Some(member) = member {
        return be_rank(asked, member, threads);
    }
    // Before two processes find the same fault.
    check_rails(args)?;
    launch(&Launch {
        ranks: PAIR,
        cores: cores(args, threads)?,
        variables: Vec::new(),
        program: std::env::current_exe().map_or_else(|_| OsString::from("doorbell"), PathBuf::into_os_string),
        args: std::env::args_os().skip(1).chain(allowed_before()).collect(),
        output: Output::Inherited,
        timeout: None,
    })
}

/// The cores of this process for its ranks, which are bound before they can look.
fn allowed_before() -> Option<OsString> {
    let cores = pin::list(&pin::allowed()).replace(' ', "");
    (!cores.is_empty()).then(|| format!("--allowed={cores}").into())
}

fn plan(kind: Kind, args: &MeasureArgs) -> Plan {
    let defaults = Plan::new(kind);
    Plan {
        sizes: if args.sizes.is_empty() {
            defaults.sizes
        } else {
            args.sizes.clone()
        },
        seconds: args.seconds,
        samples: args.samples,
        reference: !args.no_reference,
        verify: args.verify,
        spoil: args.spoil,
        layer: args.layer.layer(),
        ..defaults
    }
}

impl Asked<'_> {
    /// The outputs, by their flags.
    pub(crate) fn outputs(&self) -> Vec<outputs::Named<'_>> {
        let args = self.args;
        let all = [
            ("--json", args.json.as_deref()),
            ("--csv", args.csv.as_deref()),
            ("--hgrm", self.hgrm),
            ("--hlog", self.hlog),
            ("--plot", args.plot.as_deref()),
        ];
        all.into_iter()
            .filter_map(|(flag, name)| Some((flag, name?)))
            .collect()
    }
}

/// Refuses a named rail that cannot be used here.
pub(crate) fn check_rails(args: &MeasureArgs) -> Result<(), ToolError> {
    let config = builder(args, None).resolve()?;
    let found = doorbell::discover(&config);
    for name in &config.rails.list.get().0 {
        found.named(name)?;
    }
    let sockets = config.rails.list.get().0.iter().any(|name| name.wire() == "udp");
    if args.pcap.is_some() && !sockets {
        let text = "`--pcap` captures the frames of a udp or xdp rail, and none is named: add `--rail udp:INTERFACE`";
        return Err(ToolError::Usage(text.to_owned()));
    }
    Ok(())
}

/// The cores of the two ranks; not bound from outside when each needs two of them, or settings name one.
fn cores(args: &MeasureArgs, threads: Threads) -> Result<Vec<Option<usize>>, ToolError> {
    let allowed = pin::apart();
    if !args.cores.is_empty() {
        if args.cores.len() != PAIR as usize {
            let text = format!(
                "`--cores` takes two cores, as in `--cores 0,1`, and {} were given",
                args.cores.len()
            );
            return Err(ToolError::Usage(text));
        }
        if let Some(core) = args.cores.iter().find(|core| !allowed.contains(core)) {
            let text = format!(
                "core {core} cannot be used; allowed here: {}",
                pin::list(&allowed)
            );
            return Err(ToolError::Usage(text));
        }
        if threads.core.is_none() {
            return Ok(args.cores.iter().copied().map(Some).collect());
        }
    }
    // Each rank binds its threads itself.
    if threads.core.is_some() || (threads.dedicated && allowed.len() >= DEDICATED_CORES) {
        return Ok(vec![None; PAIR as usize]);
    }
    if !can_bind() {
        return Ok(vec![None; PAIR as usize]);
    }
    Ok((0..PAIR as usize)
        .map(|rank| allowed.get(rank % allowed.len().max(1)).copied())
        .collect())
}

/// The rails of the command line, if there are any, over those of the environment.
pub(crate) fn with_rails(builder: doorbell::Builder, rails: &[RailName]) -> doorbell::Builder {
    if rails.is_empty() {
        return builder;
    }
    let names: Vec<&str> = rails.iter().map(RailName::as_str).collect();
    builder.set_by("--rail", "rails.list", &names.join(","))
}

/// The world's settings from the command line, over those of the environment.
pub(crate) fn builder(args: &MeasureArgs, progress_core: Option<usize>) -> doorbell::Builder {
    let mut builder = with_rails(doorbell::Builder::new(), &args.rails);
    if let Some(mode) = args.mode {
        builder = builder.set_by("--mode", "progress.mode", mode.name());
    }
    if args.no_cma {
        builder = builder.set("shm.cma", "false");
    }
    if let Some(file) = &args.pcap {
        let name = file.to_string_lossy();
        // The word that means "none".
        let name = if name == "auto" { "./auto".into() } else { name };
        builder = builder.set("udp.capture", &name);
    }
    if let Some(core) = progress_core {
        builder = builder.set("progress.core", &core.to_string());
    }
    builder
}

fn be_rank(asked: &Asked<'_>, member: Member, threads: Threads) -> Result<ExitCode, ToolError> {
    let cores = own_cores(asked.args, member, threads);
    let job = Job::build(builder(asked.args, cores.progress), &asked.plan)?;
    carry_out(asked, job, cores)
}

/// This rank's part, in a job that is there; rank 0 shows the report.
pub(crate) fn carry_out(asked: &Asked<'_>, mut job: Job, cores: Cores) -> Result<ExitCode, ToolError> {
    match take_part(asked, &mut job, cores) {
        Ok(exit) => {
            job.close();
            Ok(exit.into())
        }
        // A launcher that is not ours may let the other ranks wait for one that has ended.
        Err(error) if job.is_launched() && !error.is_closed_pipe() => launched::abort(job, &error),
        Err(error) => Err(error),
    }
}

fn take_part(asked: &Asked<'_>, job: &mut Job, cores: Cores) -> Result<Exit, ToolError> {
    let allowed = match &asked.args.allowed[..] {
        [] => pin::allowed(),
        launched => launched.to_vec(),
    };
    if let Some(core) = cores.main {
        pin::bind(core)?;
    }
    let shown = job.rank() == 0 && io::stderr().is_terminal();
    let mut bar = Bar::new(shown, &asked.plan);
    let measured = job.measure(&asked.plan, cores, &mut bar);
    bar.bar.finish_and_clear();
    let mut exit = Exit::Done;
    if let Some(mut report) = measured? {
        report.environment.host.cores_allowed = allowed;
        let shown = show(&report, asked);
        if report.unclean().next().is_some() {
            exit = Exit::Verdict;
        }
        for (row, verified) in report.unclean() {
            let text = format!(
                "doorbell: {} did not deliver every message of {} bytes whole, once and in order: {verified}{}",
                carriers(&report),
                row.bytes,
                if asked.plan.spoil.is_some() {
                    " (--spoil asked for it)"
                } else {
                    ""
                }
            );
            out::say(&text);
        }
        shown?;
        rounded(&report, &asked.plan);
        // Its rank has said which one, and why.
        let mut captures = report.environment.ranks.iter().flat_map(|rank| &rank.captures);
        if exit == Exit::Done && captures.any(|capture| !capture.is_whole()) {
            exit = Exit::System;
        }
    }
    Ok(exit)
}

/// What carried the messages, as the beginning of a sentence.
fn carriers(report: &Report) -> String {
    let rails = &report.environment.rails;
    if rails.len() < 2 {
        return format!("the rail `{}`", report.rail);
    }
    let names: Vec<String> = rails.iter().map(|way| format!("`{}`", way.rail)).collect();
    format!("the rails {}", names.join(", "))
}

/// Says so when far more samples were taken than were asked for.
fn rounded(report: &Report, plan: &Plan) {
    let Some(asked) = plan.samples else {
        return;
    };
    let most = report.results.iter().map(|row| row.samples).max().unwrap_or(0);
    if most >= asked.saturating_mul(2) {
        out::say(&format!(
            "doorbell: `--samples {asked}`: up to {most} were taken of a size, as whole rounds are measured"
        ));
    }
}

/// Where the threads of this rank run. A rank that is bound to one core has both of them there.
fn own_cores(args: &MeasureArgs, member: Member, threads: Threads) -> Cores {
    // Named cores are used or refused, also by ranks of a job that somebody else launched.
    if let [even, odd] = &args.cores[..] {
        let core = Some(if member.rank.is_multiple_of(2) {
            *even
        } else {
            *odd
        });
        return Cores {
            main: core,
            progress: threads.core_or(core),
        };
    }
    // Said by the launcher, where it is ours.
    if pin::refusal().is_some() {
        return Cores::default();
    }
    if let Some(core) = pin::bound() {
        return Cores {
            main: Some(core),
            progress: threads.core_or(Some(core)),
        };
    }
    let allowed = pin::apart();
    if let (Some((rank, size)), false) = (member.local, threads.dedicated) {
        // As `doorbell run` does: a core for each rank of the host, if there are enough of them.
        let enough = size as usize <= allowed.len();
        return Cores {
            main: allowed.get(rank as usize).copied().filter(|_| enough),
            progress: None,
        };
    }
    let first = 2 * member.rank as usize;
    let both = threads.dedicated && first + 1 < allowed.len();
    Cores {
        main: both.then(|| allowed[first]),
        progress: threads.core_or(both.then(|| allowed[first + 1])),
    }
}

/// Writes the table, unless something else goes to the standard output, and every output that was asked for: one that
/// fails does not take the others with it.
fn show(report: &Report, asked: &Asked<'_>) -> Result<(), ToolError> {
    let outputs = asked.outputs();
    let mut done = Ok(());
    if !outputs.iter().any(|(_, name)| outputs::is_stdout(name)) {
        done = out::print(&table(report, out::width()));
    }
    for (flag, name) in outputs {
        let text = match flag {
            "--json" => Ok(report.json()),
            "--csv" => Ok(csv(report)),
            "--hgrm" => Ok(hgrm(report)),
            "--hlog" => Ok(hlog(report)),
            _ => Picture::of(name).and_then(|picture| picture.draw(report)),
        };
        let written = text
            .map_err(ToolError::from)
            .and_then(|text| outputs::write(name, &text, &mut io::stdout().lock()));
        done = done.and(written);
    }
    done
}

/// The progress bar, on the standard error and only when a person looks at it.
struct Bar {
    bar: ProgressBar,
    begun: Instant,
    /// Seconds that one size takes, when that is known.
    each: Option<f64>,
    size: String,
    done: u64,
    of: u64,
}

/// Steps of the bar for one size.
const STEPS: u64 = 100;
/// The search for a knee takes about this many times what a row takes.
const KNEE: f64 = 2.0;
/// A warm-up and the preparation of buffers take about this many seconds.
const BEFORE: f64 = 0.1;

impl Bar {
    fn new(shown: bool, plan: &Plan) -> Self {
        let target = if shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {percent:>3} %  {msg}");
        let bar = ProgressBar::with_draw_target(Some(1), target);
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        // Shares of the knee are rows of their own, and it is searched for in about as many trials as they last.
        let rows = match plan.open {
            Some(Rate::Knee) => SHARES.len() as f64 + KNEE,
            _ => 1.0,
        };
        Self {
            bar,
            begun: Instant::now(),
            each: plan.samples.is_none().then_some(rows * plan.seconds + BEFORE),
            size: String::new(),
            done: 0,
            of: plan.sizes.len() as u64,
        }
    }

    /// Shows where it stands and how long it takes from here.
    fn show(&mut self, position: u64) {
        let left = (self.of * STEPS).saturating_sub(position) as f64;
        let left = match self.each {
            Some(each) => Some(each * left / STEPS as f64),
            // What is left takes as long as what is done.
            None => (position > 0).then(|| self.begun.elapsed().as_secs_f64() * left / position as f64),
        };
        let which = match self.of {
            1 => self.size.clone(),
            of => format!("{}, {} of {of}", self.size, self.done / STEPS + 1),
        };
        self.bar.set_prefix(which);
        self.bar.set_message(left.map_or_else(String::new, out::about));
        self.bar.set_position(position);
    }
}

impl Progress for Bar {
    fn size(&mut self, index: usize, of: usize, bytes: usize) {
        self.done = index as u64 * STEPS;
        self.of = of as u64;
        self.bar.set_length(of as u64 * STEPS);
        self.size = Size::new(bytes).map_or_else(String::new, |size| size.to_string());
        self.show(self.done);
    }

    fn share(&mut self, done: f64) {
        self.show(self.done + (done * STEPS as f64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_time_left_is_what_the_plan_says() {
        let plan = Plan {
            seconds: 20.0,
            ..Plan::new(Kind::Stream)
        };
        let mut bar = Bar::new(false, &plan);
        bar.size(0, 2, 8);
        assert_eq!(bar.bar.message(), "about 41 s left");
        bar.size(1, 2, 64);
        bar.share(0.5);
        assert_eq!(
            (bar.bar.message(), bar.bar.prefix()),
            ("about 11 s left".into(), "64 B, 2 of 2".into())
        );
        // By samples, it is known from what was done.
        let plan = Plan {
            samples: Some(10),
            ..Plan::new(Kind::Stream)
        };
        let mut bar = Bar::new(false, &plan);
        bar.size(0, 10_000, 8);
        assert_eq!(
            (bar.bar.message(), bar.bar.prefix()),
            ("".into(), "8 B, 1 of 10000".into())
        );
        bar.begun = Instant::now() - Duration::from_secs(3);
        bar.size(1, 10_000, 9);
        let (left, which) = (bar.bar.message(), bar.bar.prefix());
        assert!(
            left.contains("h 20 min left") || left.contains("h 19 min left"),
            "{left}"
        );
        assert_eq!(which, "9 B, 2 of 10000");
    }
}

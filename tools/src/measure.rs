//! `doorbell pingpong`, `stream` and `rate`: starts its two ranks itself, or is one of the ranks of `doorbell run`.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use doorbell_bench::job::{Cores, measure as measure_job};
use doorbell_bench::load::Progress;
use doorbell_bench::pin;
use doorbell_bench::plan::{Kind, Plan};
use doorbell_bench::report::{Report, csv, hgrm, hlog, table, write_plot, write_to};
use doorbell_bench::size::Size;
use doorbell_fabric::error::Exit;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::{MeasureArgs, ModeArg};
use crate::error::ToolError;
use crate::out;
use crate::run::{Launch, Output, launch};

/// Ranks of a measurement that starts its own.
const PAIR: u32 = 2;
/// Each rank's two threads need a core of their own in dedicated mode.
const DEDICATED_CORES: usize = 4;

/// `doorbell pingpong`.
pub(crate) fn pingpong(args: &MeasureArgs) -> Result<ExitCode, ToolError> {
    measure(Kind::Pingpong, args)
}

/// `doorbell stream`.
pub(crate) fn stream(args: &MeasureArgs) -> Result<ExitCode, ToolError> {
    measure(Kind::Stream, args)
}

/// `doorbell rate`.
pub(crate) fn rate(args: &MeasureArgs) -> Result<ExitCode, ToolError> {
    measure(Kind::Rate, args)
}

fn measure(kind: Kind, args: &MeasureArgs) -> Result<ExitCode, ToolError> {
    let plan = plan(kind, args);
    plan.check()?;
    outputs(args)?;
    if std::env::var_os("DOORBELL_RANK").is_some() {
        return be_rank(&plan, args);
    }
    // Before two processes find the same fault.
    let config = builder(args, None).resolve()?;
    let found = doorbell::discover(&config);
    for name in &config.rails.list.get().0 {
        found.named(name)?;
    }
    launch(&Launch {
        ranks: PAIR,
        cores: cores(args)?,
        variables: Vec::new(),
        program: std::env::current_exe().map_or_else(|_| OsString::from("doorbell"), PathBuf::into_os_string),
        args: std::env::args_os().skip(1).collect(),
        output: Output::Inherited,
        timeout: None,
    })
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
        window: args.window.map_or(defaults.window, |window| window as usize),
        reference: !args.no_reference,
        kind,
    }
}

/// Checks the names of the outputs before anything is measured.
fn outputs(args: &MeasureArgs) -> Result<(), ToolError> {
    let names = [&args.json, &args.csv, &args.hgrm, &args.hlog, &args.plot];
    let to_stdout = names
        .iter()
        .filter(|name| name.as_deref() == Some(Path::new("-")))
        .count();
    if to_stdout > 1 {
        return Err(ToolError::Usage(
            "only one output can be the standard output (`-`)".to_owned(),
        ));
    }
    let plots = |name: &Path| name.extension().is_some_and(|end| end == "svg" || end == "html");
    if let Some(name) = args.plot.as_deref().filter(|name| !plots(name)) {
        return Err(ToolError::Bench(doorbell_bench::error::BenchError::PlotKind {
            path: name.to_owned(),
        }));
    }
    Ok(())
}

/// The cores of the two ranks; not bound from outside when each needs two of them.
fn cores(args: &MeasureArgs) -> Result<Vec<Option<usize>>, ToolError> {
    let allowed = pin::allowed();
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
        return Ok(args.cores.iter().copied().map(Some).collect());
    }
    if args.mode == ModeArg::Dedicated && allowed.len() >= DEDICATED_CORES {
        return Ok(vec![None; PAIR as usize]);
    }
    Ok((0..PAIR as usize)
        .map(|rank| allowed.get(rank % allowed.len().max(1)).copied())
        .collect())
}

/// The world's settings from the command line, over those of the environment.
fn builder(args: &MeasureArgs, progress_core: Option<usize>) -> doorbell::Builder {
    let mut builder = doorbell::Builder::new().set("progress.mode", args.mode.name());
    if let Some(rail) = &args.rail {
        builder = builder.set("rails.list", rail.as_str());
    }
    if args.no_cma {
        builder = builder.set("shm.cma", "false");
    }
    if let Some(core) = progress_core {
        builder = builder.set("progress.core", &core.to_string());
    }
    builder
}

fn be_rank(plan: &Plan, args: &MeasureArgs) -> Result<ExitCode, ToolError> {
    let cores = own_cores(args);
    let world = builder(args, cores.progress).build()?;
    if let Some(core) = cores.main {
        pin::bind(core)?;
    }
    let shown = world.rank() == 0 && io::stderr().is_terminal();
    let mut bar = Bar::new(shown);
    let measured = measure_job(&world, plan, cores, &mut bar);
    bar.bar.finish_and_clear();
    if let Some(report) = measured? {
        show(&report, args)?;
    }
    world.close();
    Ok(Exit::Done.into())
}

/// Where the threads of this rank run. A rank that is bound to one core has both of them there.
fn own_cores(args: &MeasureArgs) -> Cores {
    let dedicated = args.mode == ModeArg::Dedicated;
    if let Some(core) = pin::bound() {
        return Cores {
            main: Some(core),
            progress: dedicated.then_some(core),
        };
    }
    let allowed = pin::allowed();
    let rank = std::env::var("DOORBELL_RANK")
        .ok()
        .and_then(|rank| rank.parse::<usize>().ok());
    let first = rank
        .map(|rank| 2 * rank)
        .filter(|first| dedicated && first + 1 < allowed.len());
    Cores {
        main: first.map(|first| allowed[first]),
        progress: first.map(|first| allowed[first + 1]),
    }
}

/// Writes every output that was asked for; the table, unless something else went to the standard output.
fn show(report: &Report, args: &MeasureArgs) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    let mut table_wanted = true;
    type View = fn(&Report) -> String;
    let outputs: [(&Option<PathBuf>, View); 4] = [
        (&args.json, Report::json),
        (&args.csv, csv),
        (&args.hgrm, hgrm),
        (&args.hlog, hlog),
    ];
    for (name, view) in outputs {
        if let Some(name) = name {
            write_to(name, &view(report), &mut out)?;
            table_wanted &= name != Path::new("-");
        }
    }
    if let Some(name) = &args.plot {
        write_plot(report, name, &mut out)?;
    }
    drop(out);
    if table_wanted {
        out::print(&table(report, out::width()))?;
    }
    Ok(())
}

/// The progress bar, on the standard error and only when a person looks at it.
struct Bar {
    bar: ProgressBar,
    done: u64,
}

/// Steps of the bar for one size.
const STEPS: u64 = 100;

impl Bar {
    fn new(shown: bool) -> Self {
        let target = if shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{msg:>8} [{bar:40}] {percent:>3} %  {eta} left");
        let bar = ProgressBar::with_draw_target(Some(1), target);
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        Self { bar, done: 0 }
    }
}

impl Progress for Bar {
    fn size(&mut self, index: usize, of: usize, bytes: usize) {
        self.done = index as u64 * STEPS;
        self.bar.set_length(of as u64 * STEPS);
        self.bar.set_position(self.done);
        if let Some(size) = Size::new(bytes) {
            self.bar.set_message(size.to_string());
        }
    }

    fn share(&mut self, done: f64) {
        self.bar.set_position(self.done + (done * STEPS as f64) as u64);
    }
}

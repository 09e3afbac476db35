//! `doorbell-lab budgets`: what the design promises, measured in one run and judged.
//!
//! ```text
//!   one_host    two processes over shared memory and the loopback; inside this process
//!   two_hosts   network namespaces: over a link, and through a switch that loses frames   ──► judge ──► rows
//!   idle        a process of its own, with ten thousand peers
//! ```
//!
//! Measurements between two processes are made by this program's own `pingpong`, `rate` and `stream`
//! (`asked`): what is judged is what every user can measure. Everything is repeated in turn, so that the
//! machine's moods meet all rows alike.

pub(crate) mod args;
mod asked;
mod base;
mod judge;
mod one_host;
mod rows;
mod two_hosts;

use std::cell::RefCell;
use std::process::ExitCode;

use clap::ValueEnum;
use doorbell_bench::pin;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::Exit;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};
use doorbell_tools::{console, report_files};

use self::asked::Asker;
use self::judge::{Parts, judge};
use self::one_host::{Inside, Loopback, Shm};
use self::two_hosts::{Places, TwoHosts};
use crate::budgets::args::{BudgetsArgs, Part};
use crate::place::doubts;
use crate::probes::{Run as RunInfo, Verdicts, idle_peer_bytes};

/// A bare exchange slower than this, in nanoseconds, is a bad base, and not a good result.
const BAD_BASE_NS: f64 = 400.0;
/// Cores for two ranks in dedicated mode.
const DEDICATED_CORES: usize = 4;
/// Repetitions and seconds for each measurement by default, and for a first look.
const USUAL: (u32, f64) = (8, 0.2);
const QUICK: (u32, f64) = (1, 0.05);
/// Losses are measured in every second repetition only: they take the longest.
const LOSS_EVERY: u32 = 2;

/// Everything that the repetitions measured.
#[derive(Debug, Default)]
struct Samples {
    shm: Shm,
    loopback: Loopback,
    inside: Inside,
    hosts: TwoHosts,
    /// Why there is no link, and why nothing can be lost.
    no_link: Option<String>,
    no_loss: Option<String>,
    /// Bytes for each idle peer.
    idle: Vec<f64>,
}

/// Runs `doorbell-lab budgets`.
pub(crate) fn budgets(args: &BudgetsArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<report_files::Named<'_>> = args
        .json
        .as_deref()
        .map(|name| ("--json", name))
        .into_iter()
        .collect();
    report_files::check(&named)?;
    let cores = pin::apart();
    let parts = Parts::of(&args.only);
    let measured = Runner::new()
        .map_err(Stop::Ended)
        .and_then(|runner| measure(&runner, args, &parts, &cores));
    console::pass("");
    match measured {
        Ok((run, samples)) => show(&Verdicts::new(run, judge(&samples, &parts, &cores)), args),
        Err(stop) => stop.end(),
    }
}

fn show(verdicts: &Verdicts, args: &BudgetsArgs) -> Result<ExitCode, ToolError> {
    if !args.json.as_deref().is_some_and(report_files::is_stdout) {
        console::print(&verdicts.table())?;
    }
    if let Some(name) = &args.json {
        report_files::write(name, &verdicts.json(), &mut std::io::stdout().lock())?;
    }
    if !verdicts.measured() {
        console::say("doorbell: nothing could be measured: each row has the reason");
        return Ok(Exit::System.into());
    }
    let exit = if verdicts.missed() {
        Exit::Verdict
    } else {
        Exit::Done
    };
    Ok(exit.into())
}

fn measure(
    runner: &Runner,
    args: &BudgetsArgs,
    parts: &Parts,
    cores: &[usize],
) -> Result<(RunInfo, Samples), Stop> {
    let program = std::env::current_exe().map_err(|source| ToolError::System {
        what: "find this program",
        source,
    })?;
    let (repetitions, seconds) = if args.quick { QUICK } else { USUAL };
    let run = Run {
        asker: Asker {
            runner,
            program: &program,
            seconds,
        },
        places: Places::new(runner, cores, parts.has(Part::Network), parts.has(Part::Loss))?,
        parts,
        cores,
        clock: Clock::start(),
        repetitions: args.repetitions.unwrap_or(repetitions),
        steps: RefCell::new(console::Steps::new(steps(
            parts,
            args.repetitions.unwrap_or(repetitions),
        ))),
    };
    let mut samples = Samples {
        no_link: run.places.direct.as_ref().err().cloned(),
        no_loss: run.places.switched.as_ref().err().cloned(),
        ..Samples::default()
    };
    for repetition in 0..run.repetitions {
        run.repeat(repetition, &mut samples)?;
    }
    let told = RunInfo {
        repetitions: run.repetitions,
        seconds,
        quick: args.quick,
        real_time: runner.first,
        doubts: doubts(cores),
    };
    Ok((told, samples))
}

/// What all repetitions have in common.
struct Run<'a> {
    asker: Asker<'a>,
    places: Places<'a>,
    parts: &'a Parts,
    cores: &'a [usize],
    clock: Clock,
    repetitions: u32,
    /// What a person who looks is shown.
    steps: RefCell<console::Steps>,
}

/// Returns how many parts are measured in all repetitions; losses are not in each of them.
fn steps(parts: &Parts, repetitions: u32) -> u64 {
    let wanted = Part::value_variants().iter().filter(|part| parts.has(**part));
    let each = wanted.map(|part| match part {
        Part::Loss => repetitions.div_ceil(LOSS_EVERY),
        _ => repetitions,
    });
    each.map(u64::from).sum()
}

impl Run<'_> {
    fn repeat(&self, repetition: u32, samples: &mut Samples) -> Result<(), Stop> {
        if self.begins(repetition, Part::Shm)? {
            samples.shm.measure(&self.asker, self.cores)?;
        }
        if self.begins(repetition, Part::Loopback)? {
            samples.loopback.measure(&self.asker, &self.clock, self.cores)?;
        }
        if self.begins(repetition, Part::Process)? {
            let check = || self.asker.runner.check();
            samples.inside.measure(&self.clock, self.cores, check)?;
        }
        if self.begins(repetition, Part::Network)?
            && let Ok(place) = &self.places.direct
        {
            samples.hosts.direct(&self.asker, place)?;
        }
        if repetition.is_multiple_of(LOSS_EVERY)
            && self.begins(repetition, Part::Loss)?
            && let (Ok(place), None) = (&self.places.switched, &samples.no_loss)
        {
            samples.no_loss = samples.hosts.switched(&self.asker, place)?.err();
        }
        if self.begins(repetition, Part::Memory)? {
            samples.idle.push(self.asker.idle()?);
        }
        Ok(())
    }

    /// Returns whether a part is wanted, and shows it; fails if a signal has arrived that ends the command.
    fn begins(&self, repetition: u32, part: Part) -> Result<bool, Stop> {
        self.asker.runner.check()?;
        let wanted = self.parts.has(part);
        if wanted {
            let (number, of) = (repetition + 1, self.repetitions);
            let what = format!("{}, in repetition {number} of {of}", part.name());
            self.steps.borrow_mut().begin(&what);
        }
        Ok(wanted)
    }
}

/// `measure-idle`: what one more idle peer takes in this process, in bytes.
pub(crate) fn measure_idle() -> Result<ExitCode, ToolError> {
    let idle = idle_peer_bytes()?;
    console::print(&format!("{}\n", idle.most()))?;
    Ok(Exit::Done.into())
}

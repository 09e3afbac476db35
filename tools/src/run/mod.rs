//! `doorbell run`: starts ranks on this machine, passes on their output, signals and exit status, and cleans
//! up after them.
//!
//! ```text
//!   doorbell run ──┬── exec-rank (dies with the launcher, binds its core) ══exec══► rank 0
//!    one thread,   ├── exec-rank ═════════════════════════════════════════exec══► rank 1
//!    one poll loop ├── …
//!                  └── keep-job (sleeps; when the launcher is killed, it ends what the ranks started)
//! ```
//!
//! A rank that ends with anything but 0 ends the job: the others get SIGTERM, and SIGKILL after a grace
//! period. Each rank leads a process group of its own, so that what it started is ended with it. When the
//! launcher itself is killed, the kernel kills the ranks (by the parent-death signal that `exec-rank`
//! requests), and the reaper kills what they started: the module `reaper` lists what it finds and what not.

pub(crate) mod args;
mod control_plane;
mod ends;
mod exec;
mod exit_policy;
mod hosts;
pub(crate) mod job;
mod limits;
pub(crate) mod placement;
mod pmi_group;
mod pmi_groups;
mod prefix;
pub(crate) mod rails;
mod rank;
pub(crate) mod reaper;
mod stopped;
pub(crate) mod watch;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use doorbell::Config;
use doorbell_bench::pin;
use doorbell_fabric::error::{Exit, advice};
use doorbell_fabric::name::RailName;

use crate::console;
use crate::error::ToolError;
use crate::run::args::RunArgs;
use crate::run::placement::{Placement, Wanted};

pub(crate) use exec::exec_rank;
pub(crate) use hosts::daemon;
pub(crate) use reaper::keep_job;

/// What happens to the ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Each line gets the rank in front of it.
    Prefixed,
    /// The ranks inherit it from the launcher.
    Inherited,
}

/// A job to be launched.
#[derive(Debug)]
pub struct Launch {
    /// The number of ranks.
    pub ranks: u32,
    /// The cores of each rank; none for ranks that are not bound.
    pub cores: Vec<Vec<usize>>,
    /// Additional variables for all ranks.
    pub variables: Vec<(&'static str, String)>,
    /// The program to run.
    pub program: OsString,
    /// The arguments of the program.
    pub args: Vec<OsString>,
    /// What happens to its output.
    pub output: Output,
    /// The time after which the job is ended.
    pub timeout: Option<Duration>,
}

/// Runs `doorbell run`.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, ToolError> {
    // Each of several hosts has rails of its own, which its ranks check.
    if args.hosts.is_none() {
        refuse_missing(&args.rails)?;
        if let Some(config) = control_plane::settings()? {
            doorbell::control_plane::check(&config)?;
        }
    }
    let wanted = Wanted::of(args);
    let placement = match args.hosts {
        // Each host's daemon chooses the cores of its ranks.
        Some(_) => None,
        None => Some(Placement::choose(&wanted, args.ranks, &Config::from_environment)?),
    };
    if let Some(placement) = placement.as_ref().filter(|_| args.show_binding) {
        let text = placement.show(args.json)?;
        match args.program {
            None => return console::print(&text).map(|()| Exit::Done.into()),
            // The standard output is the ranks'.
            Some(_) => console::say(text.trim_end()),
        }
    }
    let program = args.program.clone().unwrap_or_default();
    let rails = (!args.rails.is_empty()).then(|| (rails::VARIABLE, rails::written(&args.rails)));
    let (cores, shares) = placement.map(Placement::into_parts).unwrap_or_default();
    let launch = Launch {
        ranks: args.ranks,
        cores,
        variables: rails.into_iter().collect(),
        program,
        args: args.args.clone(),
        output: if args.no_prefix {
            Output::Inherited
        } else {
            Output::Prefixed
        },
        timeout: args.timeout.map(Duration::from_secs_f64),
    };
    match &args.hosts {
        Some(list) => hosts::launch(&launch, list, args, wanted),
        None => job::launch(&launch, shares),
    }
}

/// Refuses rails that this machine does not have. Those that are there and cannot be used are left to the
/// ranks, which may have other rights than the launcher.
fn refuse_missing(rails: &[RailName]) -> Result<(), ToolError> {
    // Every machine has `shm`; what a set stands for is looked up with the ranks' cores.
    if rails.iter().all(|rail| rail.as_str() == "shm" || rail.is_set()) {
        return Ok(());
    }
    let mut config = Config::from_environment()?;
    config.set_by("--rail", "rails.list", &rails::written(rails))?;
    let found = doorbell::discover(&config);
    let rails = rails.iter().filter(|rail| !rail.is_set());
    for rail in rails.filter(|rail| found.is_missing(rail)) {
        found.named(rail)?;
    }
    Ok(())
}

/// Launches the job of another command.
pub fn launch(launch: &Launch) -> Result<ExitCode, ToolError> {
    job::launch(launch, None)
}

/// Whether processes can be bound to cores, where binding is optional: a failure is reported once.
pub fn can_bind() -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    !*REFUSED.get_or_init(|| {
        let refusal = pin::refusal();
        if let Some(error) = &refusal {
            let advice = advice(error).map_or_else(String::new, |advice| format!("; {advice}"));
            console::say(&format!(
                "doorbell: sched_setaffinity is refused ({error}): nothing is bound to a core, and figures spread \
                 more{advice}"
            ));
        }
        refusal.is_some()
    })
}

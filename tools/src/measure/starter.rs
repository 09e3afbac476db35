//! The process that starts the two ranks of a measurement, and waits for them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use doorbell::Config;
use doorbell::config::ProgressCore;
use doorbell_bench::pin;

use super::args::MeasureArgs;
use super::settings::{Threads, check_rails};
use super::{Asked, hosts};
use crate::error::ToolError;
use crate::report_files;
use crate::run::args::Bind;
use crate::run::placement::{Placement, Wanted};
use crate::run::{Launch, Output, can_bind, launch};

/// Ranks of a measurement that starts its own.
const PAIR: u32 = 2;
/// Each rank's two threads need a core of their own in dedicated mode.
const DEDICATED_CORES: usize = 4;

/// Starts two processes that run this same command line as ranks, and ends as they do.
pub(super) fn start(asked: &Asked<'_>, threads: Threads) -> Result<ExitCode, ToolError> {
    let args = asked.args;
    asked.check_captures(&[0, 1])?;
    report_files::check(&asked.outputs())?;
    hosts::refuse_key(&args.hosts)?;
    // Before two processes find the same fault.
    check_rails(args, PAIR)?;
    launch(&Launch {
        ranks: PAIR,
        cores: cores(args, &threads)?,
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

/// The cores of the two ranks; not bound from outside where settings or `--cores` require more than one
/// core for each.
fn cores(args: &MeasureArgs, threads: &Threads) -> Result<Vec<Vec<usize>>, ToolError> {
    let unbound = || vec![Vec::new(); PAIR as usize];
    let allowed = pin::apart();
    if !args.cores.is_empty() {
        let most = if threads.dedicated { DEDICATED_CORES } else { 2 };
        if ![2, most].contains(&args.cores.len()) {
            let more = match threads.dedicated {
                true => ", or four with `--mode dedicated` (each rank's own and its progress thread's)",
                false => "",
            };
            let text = format!(
                "`--cores` takes two cores, as in `--cores 0,1`{more}, and {} were given",
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
        return Ok(match threads.dedicated {
            // Each rank binds its threads itself.
            true => unbound(),
            false => args.cores.iter().map(|core| vec![*core]).collect(),
        });
    }
    let named = matches!(threads.core, ProgressCore::Number(_) | ProgressCore::List(_));
    if named || !can_bind() {
        return Ok(unbound());
    }
    let wanted = Wanted {
        bind: Bind::Auto,
        each: None,
        dedicated: threads.dedicated,
        sibling: threads.core == ProgressCore::Sibling,
        rails: args.rails.clone(),
        control: None,
        control_core: None,
        kept: None,
    };
    // The ranks take their rails of sets themselves, as they have them from the same command line.
    let (ranks, _) = Placement::choose(&wanted, PAIR, &Config::from_environment)?.into_parts();
    match ranks {
        // Two ranks on one core are better there than moved about.
        ranks if ranks.iter().all(Vec::is_empty) => Ok(allowed
            .iter()
            .cycle()
            .take(PAIR as usize)
            .map(|core| vec![*core])
            .collect()),
        ranks => Ok(ranks),
    }
}

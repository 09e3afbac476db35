//! `measure-overlap`: doorbell's side of the comparison of overlap, with two ranks of its own as the peers
//! have.
//!
//! Rank 0 receives: inline, where progress is made by the calls of the program, or in dedicated mode, where
//! its progress thread has a core that neither rank has. On a rank's core it would take the time that is
//! measured: without a third core there is no dedicated mode.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use doorbell_bench::pin;
use doorbell_fabric::error::Exit;
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use doorbell_tools::measure::ModeArg;
use doorbell_tools::run::{Launch, Output, launch};

use crate::compare_peers::args::OverlapArgs;
use crate::probes::{Computation, overlap, overlap_serve};

/// `measure-overlap`: starts two ranks of itself, or is one of them.
pub(crate) fn measure_overlap(args: &OverlapArgs) -> Result<ExitCode, ToolError> {
    if std::env::var_os("DOORBELL_RANK").is_some() {
        return be_rank(args);
    }
    launch(&Launch {
        ranks: 2,
        cores: vec![Vec::new(); 2],
        variables: Vec::new(),
        program: std::env::current_exe().map_or_else(|_| OsString::from("doorbell"), PathBuf::into_os_string),
        args: std::env::args_os().skip(1).collect(),
        output: Output::Inherited,
        timeout: None,
    })
}

fn be_rank(args: &OverlapArgs) -> Result<ExitCode, ToolError> {
    let receives = std::env::var("DOORBELL_RANK").is_ok_and(|rank| rank == "0");
    let [first, second] = args.cores[..] else {
        return Err(ToolError::Usage(
            "`--cores` takes two cores, as in `--cores 0,1`".to_owned(),
        ));
    };
    let core = if receives { first } else { second };
    let builder = doorbell::Builder::new().set("rails.list", "shm");
    let builder = if receives && args.mode == ModeArg::Dedicated {
        let Some(progress) = free_core([first, second], &pin::allowed()) else {
            return Err(ToolError::Usage(NO_FREE_CORE.to_owned()));
        };
        builder
            .set("progress.mode", "dedicated")
            .set("progress.core", &progress.to_string())
    } else {
        builder.set("progress.mode", "inline")
    };
    let world = builder.build()?;
    pin::bind(core)?;
    for (size, steps) in args.sizes.iter().zip(&args.steps) {
        if receives {
            let times = overlap(&world, size.bytes(), Computation::Steps(*steps))?;
            // The line of the benchmark for the MPIs.
            console::print(&format!(
                "row overlap bytes={} alone_ns={:.1} compute_ns={:.1} both_ns={:.1}\n",
                size.bytes(),
                times.alone,
                times.computing,
                times.both
            ))?;
        } else {
            overlap_serve(&world, size.bytes())?;
        }
    }
    world.close();
    Ok(Exit::Done.into())
}

/// Why dedicated mode is not measured.
pub(crate) const NO_FREE_CORE: &str = "the receiver's progress thread needs a core that neither rank is on, and there are \
                                       only two here: measure it on a machine with three";

/// A core that neither rank is on, if there is one.
pub(crate) fn free_core(cores: [usize; 2], allowed: &[usize]) -> Option<usize> {
    allowed.iter().copied().find(|core| !cores.contains(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_a_core_of_its_own_or_there_is_none() {
        assert_eq!(free_core([0, 1], &[0, 1, 2, 3]), Some(2));
        assert_eq!(free_core([2, 3], &[2, 3]), None);
    }
}

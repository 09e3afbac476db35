//! `measure-overlap`: doorbell's side of the comparison of overlap, with two ranks of its own as the peers have.
//!
//! Rank 0 receives in dedicated mode: its progress thread has a core that the computation has not. Where there are two
//! cores only, that is the core of rank 1, which waits for most of the time.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use doorbell_bench::budgets::{overlap, overlap_serve};
use doorbell_bench::pin;
use doorbell_fabric::error::Exit;

use crate::cli::OverlapArgs;
use crate::error::ToolError;
use crate::out;
use crate::run::{Launch, Output, launch};

/// `measure-overlap`: starts two ranks of itself, or is one of them.
pub(crate) fn measure_overlap(args: &OverlapArgs) -> Result<ExitCode, ToolError> {
    if std::env::var_os("DOORBELL_RANK").is_some() {
        return be_rank(args);
    }
    launch(&Launch {
        ranks: 2,
        cores: vec![None; 2],
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
    let builder = if receives {
        let progress = progress_core([first, second], &pin::allowed());
        builder
            .set("progress.mode", "dedicated")
            .set("progress.core", &progress.to_string())
    } else {
        builder.set("progress.mode", "inline")
    };
    let world = builder.build()?;
    pin::bind(core)?;
    for size in &args.sizes {
        if receives {
            let times = overlap(&world, size.bytes())?;
            // The line of the benchmark for the MPIs.
            out::print(&format!(
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

/// A core that nobody computes on, where there is one; else that of the side that waits.
fn progress_core(cores: [usize; 2], allowed: &[usize]) -> usize {
    let free = allowed.iter().copied().find(|core| !cores.contains(core));
    free.unwrap_or(cores[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_a_core_on_which_nobody_computes() {
        assert_eq!(progress_core([0, 1], &[0, 1, 2, 3]), 2);
        assert_eq!(progress_core([2, 3], &[2, 3]), 3);
    }
}

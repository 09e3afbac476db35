//! A rank of a job that the starter, `doorbell run` or another launcher has started.

use std::process::ExitCode;

use doorbell_bench::job::Cores;
use doorbell_bench::pin;

use super::args::MeasureArgs;
use super::launched::Member;
use super::layer::LayerJob;
use super::settings::{Threads, builder};
use super::{Asked, hosts, part};
use crate::error::ToolError;
use crate::report_files;

/// Joins the job that the environment describes, and takes this rank's part in the measurement.
pub(super) fn join(asked: &Asked<'_>, member: Member, threads: Threads) -> Result<ExitCode, ToolError> {
    if member.rank == 0 {
        report_files::check(&asked.outputs())?;
    }
    hosts::refuse_key(&asked.args.hosts)?;
    let cores = own_cores(asked.args, member, threads);
    let job = LayerJob::build(builder(asked.args, cores.progress), &asked.plan)?;
    part::carry_out(asked, job, cores)
}

/// Returns where the threads of this rank run. A rank that is bound to one core has both of them there.
fn own_cores(args: &MeasureArgs, member: Member, threads: Threads) -> Cores {
    // Named cores are used or refused, also by ranks of a job of another launcher.
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
    // Reported by the launcher, where it is ours.
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

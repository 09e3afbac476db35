//! A rank of a job that the starter, `doorbell run` or another launcher has started.

use std::process::ExitCode;

use doorbell::config::ProgressCore;
use doorbell_bench::job::Cores;
use doorbell_bench::pin;
use doorbell_fabric::cores::Topology;

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
    let allowed = pin::allowed();
    let cores = own_cores(asked.args, member, &threads)?;
    let job = LayerJob::build(builder(asked.args, cores.progress), &asked.plan)?;
    // A progress thread and this one have divided the cores of this rank.
    let main = cores.main.or(job.own_core());
    part::carry_out(asked, job, Cores { main, ..cores }, allowed)
}

/// Returns where the threads of this rank run, as far as this program chooses that: named cores are used or
/// refused, also by ranks of a job of another launcher. In dedicated mode the library divides the rank's
/// cores.
fn own_cores(args: &MeasureArgs, member: Member, threads: &Threads) -> Result<Cores, ToolError> {
    let side = member.rank as usize % 2;
    if let Some((main, progress)) = named(&args.cores, side, threads.dedicated) {
        if threads.dedicated {
            let place = member.local.map_or(member.rank, |(rank, _)| rank);
            pin::bind_all(&both(threads, main, progress, place))?;
        }
        return Ok(Cores {
            main: Some(main),
            progress: threads.core_or(Some(progress)),
        });
    }
    // Reported by the launcher, where it is ours.
    if pin::refusal().is_some() || threads.dedicated {
        return Ok(Cores::default());
    }
    if let Some(core) = pin::bound() {
        return Ok(Cores {
            main: Some(core),
            progress: None,
        });
    }
    let allowed = pin::apart();
    let main = match member.local {
        // As `doorbell run` does: a core for each rank of the host, if there are enough of them.
        Some((rank, size)) if size as usize <= allowed.len() => allowed.get(rank as usize),
        // It gave this rank several cores.
        None if Topology::read().is_bound(true) => allowed.first(),
        _ => None,
    };
    Ok(Cores {
        main: main.copied(),
        progress: None,
    })
}

/// Returns the cores of both threads of the rank with this place on its host, whose own thread is to be on
/// `main`: its progress thread goes to `progress`, unless settings have another one.
fn both(threads: &Threads, main: usize, progress: usize, place: u32) -> Vec<usize> {
    let other = match &threads.core {
        ProgressCore::Auto | ProgressCore::Next => progress,
        ProgressCore::Sibling => return Topology::read().siblings(main).to_vec(),
        // A list that is too short is the library's to refuse.
        named => named
            .named(place)
            .ok()
            .flatten()
            .map_or(main, |core| core as usize),
    };
    vec![main, other]
}

/// Returns the cores of a rank's own thread and of its progress thread by `--cores`: two for each rank where
/// four are named. With two, progress threads take other cores that this rank may use, if there are enough,
/// else the core of their rank.
fn named(cores: &[usize], side: usize, dedicated: bool) -> Option<(usize, usize)> {
    match *cores {
        [one, two] if dedicated => {
            let main = [one, two][side];
            let topology = Topology::read();
            let mut taken = topology.siblings(one);
            taken.add(&topology.siblings(two));
            let free = topology.within(&topology.usable().without(&taken)).order(None);
            let progress = free.get(side).filter(|_| free.len() > 1);
            Some((main, progress.copied().unwrap_or(main)))
        }
        [one, two] => Some([(one, one), (two, two)][side]),
        [one, two, three, four] => Some([(one, two), (three, four)][side]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_cores_are_of_the_two_sides() {
        let sides = |cores: &[usize], dedicated| [0, 1].map(|side| named(cores, side, dedicated));
        assert_eq!(sides(&[4, 5], false), [Some((4, 4)), Some((5, 5))]);
        assert_eq!(sides(&[4, 5, 6, 7], true), [Some((4, 5)), Some((6, 7))]);
        assert_eq!(sides(&[], true), [None, None]);
        // Where two are named, others are taken for the progress threads, or none.
        let own = pin::allowed();
        let [(one, beside), (two, there)] = sides(&[own[0], own[own.len() - 1]], true).map(Option::unwrap);
        assert_eq!((one, two), (own[0], own[own.len() - 1]));
        match own.len() {
            0..4 => assert_eq!((beside, there), (one, two)),
            _ => assert!((beside == one) == (there == two)),
        }
    }

    #[test]
    fn settings_have_the_last_word_on_the_progress_thread() {
        let threads = |core| Threads {
            dedicated: true,
            core,
        };
        assert_eq!(both(&threads(ProgressCore::Auto), 2, 3, 0), [2, 3]);
        assert_eq!(both(&threads(ProgressCore::Number(5)), 2, 3, 1), [2, 5]);
        assert_eq!(both(&threads(ProgressCore::List(vec![6, 7])), 2, 3, 1), [2, 7]);
        assert_eq!(both(&threads(ProgressCore::List(vec![6])), 2, 3, 1), [2, 2]);
    }
}

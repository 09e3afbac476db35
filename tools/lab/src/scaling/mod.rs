//! `doorbell-lab scaling`: how costs grow with idle peers, with queued messages, and with ranks on this
//! machine.
//!
//! ```text
//!   measure: idle (a fresh process each), queues (in this one), ranks (jobs of `doorbell run`)
//!      └──► report (curves with slopes) ──► table, JSON, html (pictures)
//! ```

pub(crate) mod args;
pub(crate) mod fit;
mod html;
mod idle;
mod measure;
mod ranks;
mod report;
mod table;

use std::path::Path;
use std::process::ExitCode;

use doorbell_bench::env::Host;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::Exit;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};
use doorbell_tools::{console, report_files};

use self::measure::Samples;
use self::report::Report;
use crate::scaling::args::{Grows, MeasureScalingArgs, ScalingArgs};

/// Points of a curve at a first look.
const QUICK: usize = 3;

/// Runs `doorbell-lab scaling`.
pub(crate) fn scaling(args: &ScalingArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<report_files::Named<'_>> = [("--json", &args.json), ("--html", &args.html)]
        .into_iter()
        .filter_map(|(flag, name)| Some((flag, name.as_deref()?)))
        .collect();
    report_files::check(&named)?;
    let plan = Plan::of(args)?;
    // Before our own work is a part of its load.
    let host = Host::read(&doorbell_bench::pin::allowed());
    let measured = Runner::new()
        .map_err(Stop::Ended)
        .and_then(|runner| plan.measure(&runner));
    console::pass("");
    let samples = match measured {
        Ok(samples) => samples,
        Err(stop) => return stop.end(),
    };
    let report = Report::new(&plan, &samples, host);
    let shown = [&args.json, &args.html];
    if !shown
        .into_iter()
        .flatten()
        .any(|name| report_files::is_stdout(name))
    {
        console::print(&table::table(&report))?;
    }
    let write = |name: &Path, text: &str| report_files::write(name, text, &mut std::io::stdout().lock());
    if let Some(name) = &args.json {
        write(name, &report.json())?;
    }
    if let Some(name) = &args.html {
        write(name, &html::html(&report)?)?;
    }
    if report.curves.is_empty() {
        console::say("doorbell: nothing could be measured: the report has the reason for each point");
        return Ok(Exit::System.into());
    }
    Ok(Exit::Done.into())
}

/// `measure-scaling`: idle peers, or a rank of a world.
pub(crate) fn measure_scaling(args: &MeasureScalingArgs) -> Result<ExitCode, ToolError> {
    match args.idle {
        Some(peers) => idle::measure(peers),
        None => ranks::be_rank(),
    }
}

/// What a command line selects.
#[derive(Debug)]
struct Plan {
    rounds: u32,
    peers: Vec<u32>,
    entries: Vec<u32>,
    ranks: Vec<u32>,
}

impl Plan {
    fn of(args: &ScalingArgs) -> Result<Self, ToolError> {
        if let Some(odd) = args.ranks.iter().find(|ranks| *ranks % 2 == 1) {
            return Err(ToolError::Usage(format!(
                "`--ranks {odd}`: ranks work in pairs, and {odd} leaves one over; give even numbers"
            )));
        }
        let counts = |what: Grows, list: &[u32]| {
            let asked = args.only.is_empty() || args.only.contains(&what);
            if asked {
                points(list, args.quick)
            } else {
                Vec::new()
            }
        };
        Ok(Self {
            rounds: if args.quick { 1 } else { args.rounds },
            peers: counts(Grows::Idle, &args.peers),
            entries: counts(Grows::Queues, &args.entries),
            ranks: counts(Grows::Ranks, &args.ranks),
        })
    }

    /// Everything in turn, as often as there are rounds, so that the machine's moods meet all points alike.
    fn measure(&self, runner: &Runner) -> Result<Samples, Stop> {
        let clock = Clock::start();
        let mut samples = Samples::default();
        let points = self.peers.len() + self.entries.len() + self.ranks.len();
        let mut steps = console::Steps::new(points as u64 * u64::from(self.rounds));
        for round in 1..=self.rounds {
            let mut pass = |what: &str, count: u32| {
                steps.begin(&format!("{what}, {count}, in round {round} of {}", self.rounds));
            };
            for &peers in &self.peers {
                pass("idle peers", peers);
                samples.idle(runner, peers)?;
            }
            for &entries in &self.entries {
                pass("queued", entries);
                runner.check()?;
                samples.queues(&clock, entries);
            }
            for &ranks in &self.ranks {
                pass("ranks", ranks);
                samples.ranks(runner, ranks)?;
            }
        }
        Ok(samples)
    }
}

/// Returns the points in order and once each; for a first impression the least, the middle and the most.
fn points(list: &[u32], quick: bool) -> Vec<u32> {
    let mut points = list.to_vec();
    points.sort_unstable();
    points.dedup();
    if quick && points.len() > QUICK {
        let last = points.len() - 1;
        points = (0..QUICK).map(|at| points[at * last / (QUICK - 1)]).collect();
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_order_and_few_at_a_first_look() {
        assert_eq!(points(&[16, 2, 16], false), [2, 16]);
        assert_eq!(points(&[1, 2, 3, 4, 5, 6], true), [1, 3, 6]);
        assert_eq!(points(&[9], true), [9]);
    }
}

//! One process's part in a measurement, once its job is there; rank 0 shows the report.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use doorbell_bench::job::Cores;
use doorbell_bench::pin;
use doorbell_bench::plan::Plan;
use doorbell_bench::report::{Picture, Report, csv, hgrm, hlog, table};
use doorbell_fabric::error::Exit;

use super::bar::Bar;
use super::layer::LayerJob;
use super::{Asked, launched};
use crate::error::ToolError;
use crate::{console, report_files};

/// This rank's part, in a job that is there; rank 0 shows the report. `allowed` are the cores that this
/// process might use before its threads were bound.
pub(super) fn carry_out(
    asked: &Asked<'_>,
    mut job: LayerJob,
    cores: Cores,
    allowed: Vec<usize>,
) -> Result<ExitCode, ToolError> {
    match take_part(asked, &mut job, cores, allowed) {
        Ok(exit) => {
            job.close();
            Ok(exit.into())
        }
        // A launcher that is not ours may let the other ranks wait for one that has ended.
        Err(error) if job.is_launched() && !error.is_closed_pipe() => launched::abort(job, &error),
        Err(error) => Err(error),
    }
}

fn take_part(
    asked: &Asked<'_>,
    job: &mut LayerJob,
    cores: Cores,
    allowed: Vec<usize>,
) -> Result<Exit, ToolError> {
    let allowed = match &asked.args.allowed[..] {
        [] => allowed,
        launched => launched.to_vec(),
    };
    if let Some(core) = cores.main {
        pin::bind(core)?;
    }
    let shown = job.rank() == 0 && io::stderr().is_terminal();
    let mut bar = Bar::new(shown, &asked.plan);
    let measured = job.measure(&asked.plan, cores, &mut bar);
    bar.clear();
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
                    " (as --spoil makes it)"
                } else {
                    ""
                }
            );
            console::say(&text);
        }
        shown?;
        rounded(&report, &asked.plan);
        // Its rank has printed which one, and why.
        let mut captures = report.environment.ranks.iter().flat_map(|rank| &rank.captures);
        if exit == Exit::Done && captures.any(|capture| !capture.is_whole()) {
            exit = Exit::System;
        }
    }
    Ok(exit)
}

/// Returns what carried the messages, as the beginning of a sentence.
fn carriers(report: &Report) -> String {
    let rails = &report.environment.rails;
    if rails.len() < 2 {
        return format!("the rail `{}`", report.rail);
    }
    let names: Vec<String> = rails.iter().map(|way| format!("`{}`", way.rail)).collect();
    format!("the rails {}", names.join(", "))
}

/// Reports that far more samples were taken than the plan had.
fn rounded(report: &Report, plan: &Plan) {
    let Some(asked) = plan.samples else {
        return;
    };
    let most = report.results.iter().map(|row| row.samples).max().unwrap_or(0);
    if most >= asked.saturating_mul(2) {
        console::say(&format!(
            "doorbell: `--samples {asked}`: up to {most} were taken of a size, as whole rounds are measured"
        ));
    }
}

/// Writes the table, unless something else goes to the standard output, and every output of the command line:
/// one that fails does not take the others with it.
fn show(report: &Report, asked: &Asked<'_>) -> Result<(), ToolError> {
    let outputs = asked.outputs();
    let mut done = Ok(());
    if !outputs.iter().any(|(_, name)| report_files::is_stdout(name)) {
        done = console::print(&table(report, console::width()));
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
            .and_then(|text| report_files::write(name, &text, &mut io::stdout().lock()));
        done = done.and(written);
    }
    done
}

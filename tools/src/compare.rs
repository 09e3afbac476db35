//! `doorbell compare`: two reports, and whether the second run was worse.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use doorbell_bench::compare::{self, Finding};
use doorbell_fabric::error::Exit;

use crate::error::ToolError;
use crate::exits;
use crate::{console, report_files};

/// Compare two reports: is the second run worse than the first, or is that noise?
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each figure is an interval drawn from its own run's noise: by order statistics of its samples and of its slices, \
widened by how much the bare exchange differs between the runs. A figure is worse when the two intervals do not touch. \
Runs of different loads, rails, sizes, cores or processors are refused (exit status 2), and so is a run whose cores were \
near where those of the other were far.\n\n", exits!(), "\
Examples:\n  doorbell pingpong --json a.json; doorbell pingpong --json b.json; doorbell compare a.json b.json\n  \
doorbell compare a.json b.json --json - | jq '.lines[] | select(.finding == \"worse\")'"))]
pub struct CompareArgs {
    /// The report that sets the measure
    #[arg(value_name = "FIRST")]
    pub(crate) first: PathBuf,
    /// The report that is judged
    #[arg(value_name = "SECOND")]
    pub(crate) second: PathBuf,
    /// Write the comparison as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs `doorbell compare`.
pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<report_files::Named<'_>> = args
        .json
        .as_deref()
        .map(|name| ("--json", name))
        .into_iter()
        .collect();
    report_files::check(&named)?;
    if let Some(name) = args.json.as_deref().filter(|name| !report_files::is_stdout(name)) {
        let same = |input: &Path| {
            fs::canonicalize(name).is_ok_and(|it| fs::canonicalize(input).is_ok_and(|of| it == of))
        };
        if same(&args.first) || same(&args.second) {
            return Err(ToolError::Usage(format!(
                "`--json {}` is one of the reports that are compared: name another file",
                name.display()
            )));
        }
    }
    let comparison = compare::files(&args.first, &args.second)?;
    if !args.json.as_deref().is_some_and(report_files::is_stdout) {
        console::print(&comparison.table())?;
    }
    if let Some(name) = &args.json {
        report_files::write(name, &comparison.json(), &mut io::stdout().lock())?;
    }
    let exit = match comparison.finding() {
        Finding::Worse => Exit::Verdict,
        Finding::NotComparable => {
            let count = comparison.not_comparable;
            console::say(&format!(
                "doorbell: {count} lines could not be compared, for the reasons beside them: measure those again"
            ));
            Exit::Usage
        }
        Finding::Same | Finding::Better => Exit::Done,
    };
    Ok(exit.into())
}

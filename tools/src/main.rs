//! The `doorbell` program: starts ranks, shows rails, measures.
#![forbid(unsafe_code)]

mod budgets;
mod cli;
mod error;
mod info;
mod measure;
mod out;
mod run;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use doorbell_fabric::error::Exit;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return refuse(&said),
    };
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Info(args) => info::info(&args),
        Command::Pingpong(args) => measure::pingpong(&args),
        Command::Stream(args) => measure::stream(&args),
        Command::Rate(args) => measure::rate(&args),
        Command::Budgets(args) => budgets::budgets(&args),
        Command::ExecRank(args) => run::exec_rank(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) if error.is_closed_pipe() => Exit::Done.into(),
        Err(error) => {
            out::say(&format!("doorbell: {error}"));
            error.exit().into()
        }
    }
}

/// What the command line's parser has to say: help and version are results, everything else is wrong usage.
fn refuse(said: &clap::Error) -> ExitCode {
    let shown = matches!(said.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // A reader that went away is no reason to fail.
    let _ = said.print();
    if shown {
        Exit::Done.into()
    } else {
        Exit::Usage.into()
    }
}

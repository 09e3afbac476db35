//! The `doorbell` program: starts ranks, shows rails, measures.
#![forbid(unsafe_code)]

mod acm;
mod agent;
mod budgets;
mod cli;
mod compare;
mod compare_peers;
mod counters;
mod doctor;
mod error;
mod info;
mod key;
mod links;
mod measure;
mod model;
mod out;
mod outputs;
mod page;
mod place;
mod raw_udp;
mod run;
mod scaling;
mod why;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use doorbell_fabric::error::Exit;
use doorbell_fabric::signals;

use crate::cli::{Cli, Command};
use crate::error::ToolError;

fn main() -> ExitCode {
    // Without these handlers, all that follows is as good.
    let _ = signals::of_a_program();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return refuse(&said),
    };
    if reads_settings(&cli.command) {
        doorbell::config::warn_of_unknown_variables();
    }
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Info(args) => info::info(&args),
        Command::Why(args) => why::why(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Counters(args) => counters::counters(&args),
        Command::Links(args) => links::links(&args),
        Command::Model(args) => model::model(&args),
        Command::Acm(args) => acm::acm(&args),
        Command::Agent { kind } => agent::agent(&kind),
        Command::LinksRank => links::links_rank(),
        Command::DoctorPeer => doctor::doctor_peer(),
        Command::Pingpong(args) => measure::pingpong(&args),
        Command::Stream(args) => measure::stream(&args),
        Command::Rate(args) => measure::rate(&args),
        Command::RawUdp(args) => raw_udp::raw_udp(&args),
        Command::Key(args) => key::key(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Budgets(args) => budgets::budgets(&args),
        Command::ComparePeers(args) => compare_peers::compare_peers(&args),
        Command::Scaling(args) => scaling::scaling(&args),
        Command::MeasureScaling(args) => scaling::measure_scaling(&args),
        Command::MeasureOverlap(args) => compare_peers::measure_overlap(&args),
        Command::MeasureIdle => budgets::measure_idle(),
        Command::ExecRank(args) => run::exec_rank(&args),
        Command::KeepJob(args) => run::keep_job(&args),
        Command::Daemon => run::daemon(),
    };
    end(done)
}

/// Whether the command, or what it starts, works by the settings of the environment.
fn reads_settings(command: &Command) -> bool {
    matches!(
        command,
        Command::Run(_)
            | Command::Info(_)
            | Command::Why(_)
            | Command::Doctor(_)
            | Command::Links(_)
            | Command::Pingpong(_)
            | Command::Stream(_)
            | Command::Rate(_)
            | Command::Scaling(_)
    )
}

fn end(done: Result<ExitCode, ToolError>) -> ExitCode {
    match done {
        Ok(code) => code,
        // The reader has what it wanted.
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
    let printed = said.print();
    if shown {
        let flushed = printed.and_then(|()| io::stdout().flush());
        end(flushed.map(|()| Exit::Done.into()).map_err(ToolError::Output))
    } else {
        // Whom should it be told, if not here?
        Exit::Usage.into()
    }
}

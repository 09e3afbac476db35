//! `cargo xtask links`: the udp rail between two hosts beside raw UDP and TCP over the same link, with and
//! without loss.
//!
//! The hosts are network namespaces of this machine, the losses are nftables', the program is `doorbell` as
//! users have it, optimised. It is a measurement and no part of `test`; that it works at all is tested
//! (`tools/tests/it/links.rs`).

pub(crate) mod lab;
pub(crate) mod measure;
pub(crate) mod programs;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::test::packages;
use crate::workspace::{self, Workspace};
use lab::Lab;
use measure::{Bench, make_key};
use programs::Programs;
use report::Report;

pub(crate) const HELP: &str = "\
Needs root: it makes two network namespaces with a pair of virtual interfaces, and removes them whatever way it ends. \
Ratios are measured within one repetition and judged by their medians; the machine should have nothing else to do. \
Exit status 1 when a budget is missed or something failed.

Examples:
  cargo xtask links
  cargo xtask links --single-frames        each loss is one frame, and not a run of them
  cargo xtask links --repetitions 9 --seconds 1 --json target/links.json";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How often everything is measured, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Time for each size, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// Largest IP packet of the link
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = mtu)]
    mtu: usize,
    /// Turn off that runs of frames travel in one piece, so that each loss is one frame
    #[arg(long)]
    single_frames: bool,
    /// Write everything as JSON, too; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The `doorbell` to measure, instead of one that is built
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

fn mtu(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|mtu| (576..=65_535).contains(mtu));
    number.ok_or_else(|| "give bytes from 576 to 65535".to_owned())
}

/// Measures; whether everything went well and no budget was missed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    if !(options.seconds > 0.0 && options.seconds <= 600.0) {
        return Err(Error::Lab(
            "--seconds: give more than 0, and at most 600".to_owned(),
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Lab(
            "network namespaces need root: run it with sudo".to_owned(),
        ));
    }
    packages::install_named(&["iproute2", "nftables", "ethtool", "iperf3"])?;
    let doorbell = match &options.program {
        Some(program) => program.canonicalize().map_err(Error::file("find", program))?,
        None => build(workspace)?,
    };
    // In this order: what is made last goes first.
    let mut programs = Programs::new()?;
    let lab = Lab::new(1, options.mtu, options.single_frames)?;
    let key = make_key(&mut programs, &doorbell)?;
    let mut bench = Bench {
        lab: &lab,
        programs: &mut programs,
        doorbell,
        key,
        seconds: options.seconds,
    };
    let _server = bench.serve()?;
    let mut repetitions = Vec::new();
    for number in 1..=options.repetitions {
        eprintln!("repetition {number} of {}", options.repetitions);
        repetitions.push(bench.repeat()?);
    }
    let report = Report::new(options.mtu, options.single_frames, options.seconds, repetitions);
    show(&report.table(), &report.json(), options.json.as_deref())?;
    Ok(report.is_good())
}

/// Writes the table to the standard output, and the JSON where it was requested.
pub(crate) fn show(table: &str, report: &str, json: Option<&Path>) -> Result<(), Error> {
    match json {
        Some(path) if path == Path::new("-") => print!("{report}"),
        Some(path) => {
            print!("{table}");
            std::fs::write(path, report).map_err(Error::file("write", path))?;
        }
        None => print!("{table}"),
    }
    Ok(())
}

/// Builds the program as users have it, with `doorbell-lab` beside it.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, Error> {
    let mut command = Command::new(workspace::cargo());
    command.args([
        "build",
        "--release",
        "--quiet",
        "--locked",
        "--package",
        "doorbell-tools",
        "--package",
        "doorbell-lab",
    ]);
    let status = command.current_dir(&workspace.root).status();
    let status = status.map_err(|source| Error::Start {
        program: "cargo".to_owned(),
        source,
    })?;
    if !status.success() {
        return Err(Error::Lab("doorbell does not build".to_owned()));
    }
    Ok(workspace.target.join("release/doorbell"))
}

//! `cargo xtask instructions`: what a small message costs in instructions, with one rail and with several.
//!
//! The same build of the same program runs under callgrind twice, the second time for more messages than the
//! first; the difference of the counts, divided by that of the messages, is the cost of one, and the same
//! number on every run.

mod rails;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::error::Error;
use crate::links::show;
use crate::test::packages;
use crate::workspace::{self, Workspace};

pub(crate) const HELP: &str = "\
Counts what PML and BTL of both ends take for a message of eight bytes, with a driver that only copies (and is in the \
count). Exit status 1 when it is more than 3 % more with three rails, of which one is the quickest, than with that one alone.

Examples:
  cargo xtask instructions
  cargo xtask instructions --json target/instructions.json
  cargo xtask instructions --rails      and over shared memory and reliable connections
  cargo xtask instructions --program target/before/stack     the same program, of another commit, beside it";

/// The name and version of the JSON.
const SCHEMA: &str = "doorbell.instructions/1";
/// Messages of the longer and of the shorter run.
const MESSAGES: [u64; 2] = [40_000, 8_000];
/// How much more rails that carry nothing may cost, as a share.
const MORE: f64 = 0.03;
/// The rails' latencies in nanoseconds.
const ONE: &[u64] = &[100];
const QUICKEST: &[u64] = &[100, 1_100, 2_100];
const EQUAL: &[u64] = &[100, 100, 100];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Another build of the program `stack`, to be counted too
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Count the PML over rails that are messages themselves, too: shared memory, and connections over the
    /// model of their library, whose own instructions are not counted; no verdict depends on it
    #[arg(long)]
    rails: bool,
    /// Build the program, and count nothing
    #[arg(long)]
    build: bool,
    /// Write everything as JSON, too; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The counts for one way of exchanging messages, each of one message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Row {
    way: &'static str,
    one_rail: f64,
    three_one_quickest: f64,
    three_equal: f64,
    /// The count of the other program, with one rail.
    other_one_rail: Option<f64>,
}

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    messages: [u64; 2],
    payload_bytes: u64,
    rows: Vec<Row>,
    most_more: f64,
    met: bool,
    /// What is counted with `--rails`.
    rails: Vec<rails::Row>,
}

/// Counts everything; whether rails that carry nothing cost as little as they should.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    if options.build {
        return build(workspace).map(|_| true);
    }
    let valgrind = packages::install_named(&["valgrind"]);
    let program = build(workspace)?;
    valgrind?;
    let other = options
        .program
        .as_ref()
        .map(|program| program.canonicalize().map_err(Error::file("find", program)));
    let other = other.transpose()?;
    // Side by side: what is counted is each one's own.
    let rows: Result<Vec<_>, Error> = std::thread::scope(|scope| {
        let row = |way| {
            let (program, other) = (&*program, other.as_deref());
            scope.spawn(move || Row::of(way, program, other))
        };
        let counting = ["pingpong", "posted"].map(row);
        let rows = counting
            .into_iter()
            .map(|row| row.join().unwrap_or(Err(Error::Worker)));
        rows.collect()
    });
    let rows = rows?;
    let mut report = Report::new(rows);
    if options.rails {
        report.rails = rails::rows(workspace)?;
    }
    show(&report.table(), &report.json(), options.json.as_deref())?;
    Ok(report.met)
}

/// Builds `stack` as users' programs are built.
fn build(workspace: &Workspace) -> Result<PathBuf, Error> {
    built(workspace, "stack", |_| {})
}

/// Builds a program of the package, after its command was changed.
fn built(workspace: &Workspace, name: &str, change: impl FnOnce(&mut Command)) -> Result<PathBuf, Error> {
    let mut command = Command::new(workspace::cargo());
    command.args([
        "build",
        "--release",
        "--quiet",
        "--locked",
        "--package",
        "doorbell-pair",
    ]);
    command.args(["--bin", name, "--message-format", "json"]);
    change(&mut command);
    command.stderr(std::process::Stdio::inherit());
    let output = command.current_dir(&workspace.root).output();
    let output = output.map_err(|source| Error::Start {
        program: "cargo".to_owned(),
        source,
    })?;
    let built = || {
        let messages = cargo_metadata::Message::parse_stream(&output.stdout[..]);
        messages.filter_map(Result::ok).find_map(|message| match message {
            cargo_metadata::Message::CompilerArtifact(artifact) => artifact.executable,
            _ => None,
        })
    };
    let program = output.status.success().then(built).flatten();
    program
        .map(PathBuf::from)
        .ok_or_else(|| Error::Lab(format!("the program `{name}` does not build")))
}

/// Instructions for one message.
fn each(program: &Path, way: &str, latencies: &[u64]) -> Result<f64, Error> {
    let [more, less] = MESSAGES;
    let difference = count(program, way, more, latencies)? - count(program, way, less, latencies)?;
    Ok(difference as f64 / (more - less) as f64)
}

/// Instructions of a whole run.
fn count(program: &Path, way: &str, messages: u64, latencies: &[u64]) -> Result<u64, Error> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program).args([way, &messages.to_string()]);
    command.args(latencies.iter().map(u64::to_string));
    let output = command.output().map_err(|source| Error::Start {
        program: "valgrind".to_owned(),
        source,
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let counted = collected(&said).filter(|_| output.status.success());
    counted.ok_or_else(|| Error::Lab(format!("callgrind did not count {}: {said}", program.display())))
}

/// Returns the number in callgrind's line `==PID== Collected : NUMBER`.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

impl Report {
    fn new(rows: Vec<Row>) -> Self {
        Self {
            schema: SCHEMA,
            messages: MESSAGES,
            payload_bytes: 8,
            met: !rows.is_empty() && rows.iter().all(|row| row.more() <= MORE),
            rows,
            most_more: MORE,
            rails: Vec::new(),
        }
    }

    fn table(&self) -> String {
        let mut table =
            "Instructions for a message of 8 bytes, PML and BTL of both ends, and a driver that copies\n\n\
            way        one rail   three, one quickest   three equal, in turn\n"
                .to_owned();
        for row in &self.rows {
            let _ = writeln!(
                table,
                "{:9} {:9.0} {:13.0} ({:+.1} %) {:13.0} ({:+.1} %)",
                row.way,
                row.one_rail,
                row.three_one_quickest,
                100.0 * row.more(),
                row.three_equal,
                100.0 * (row.three_equal / row.one_rail - 1.0),
            );
        }
        for row in &self.rows {
            if let Some(other) = row.other_one_rail {
                let less = 100.0 * (other / row.one_rail - 1.0);
                let _ = writeln!(
                    table,
                    "{:9} {other:9.0} with the other program and one rail ({less:+.1} %)",
                    row.way
                );
            }
        }
        let verdict = if self.met { "met" } else { "missed" };
        let most = 100.0 * self.most_more;
        let _ = writeln!(
            table,
            "\nThree rails, of which one is the quickest: at most {most:.0} % more than one: {verdict}"
        );
        if !self.rails.is_empty() {
            table.push_str(&rails::table(&self.rails));
        }
        table
    }

    fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

impl Row {
    /// Counts one way of exchanging messages.
    fn of(way: &'static str, program: &Path, other: Option<&Path>) -> Result<Self, Error> {
        let other_one_rail = other.map(|other| each(other, way, ONE));
        Ok(Self {
            way,
            one_rail: each(program, way, ONE)?,
            three_one_quickest: each(program, way, QUICKEST)?,
            three_equal: each(program, way, EQUAL)?,
            other_one_rail: other_one_rail.transpose()?,
        })
    }

    /// Returns how much more three rails cost of which one is used, as a share.
    fn more(&self) -> f64 {
        self.three_one_quickest / self.one_rail - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_found() {
        let said = "==7== \n==7== Events    : Ir\n==7== Collected : 141530309\n==7== \n";
        assert_eq!(collected(said), Some(141_530_309));
        assert_eq!(collected("valgrind: no such tool"), None);
    }

    #[test]
    fn the_verdict_is_about_rails_that_carry_nothing() {
        let row = |three_one_quickest| Row {
            way: "pingpong",
            one_rail: 1000.0,
            three_one_quickest,
            three_equal: 1200.0,
            other_one_rail: Some(990.0),
        };
        assert!(Report::new(vec![row(1029.0), row(900.0)]).met);
        let missed = Report::new(vec![row(900.0), row(1031.0)]);
        assert!(!missed.met && !Report::new(Vec::new()).met);
        let table = missed.table();
        for part in ["+3.1 %", "+20.0 %", "-1.0 %", "3 % more than one: missed"] {
            assert!(table.contains(part), "no {part} in:\n{table}");
        }
        assert!(missed.json().contains("doorbell.instructions/1"));
    }
}

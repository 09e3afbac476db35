//! Measurements by this program's own commands, as every user can run them, and their reports.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_bench::error::BenchError;
use doorbell_bench::load::Row;
use doorbell_bench::report::Report;
use doorbell_fabric::error::Exit;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Ended, Runner, Stop};

use crate::place::self_run::SelfRun;
use crate::place::{Place, without_settings};

/// A measurement takes seconds; after this time it hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the raw ping-pong below a rail's 8: its own headers are part of what it costs.
const RAW_BYTES: usize = 8;

/// A row of a report, or why the rail cannot be used here.
pub(super) type RowOrReason = Result<Row, String>;

/// Runs the measurements: with this program, and each for this time.
pub(super) struct Asker<'a> {
    pub(super) runner: &'a Runner,
    pub(super) program: &'a Path,
    pub(super) seconds: f64,
}

impl Asker<'_> {
    /// A measurement between two processes of this host.
    pub(super) fn here(&self, words: &[&str]) -> Result<RowOrReason, Stop> {
        let words = with(words, self.seconds);
        let mut command = Command::new(self.program);
        without_settings(&mut command);
        command.args(&words);
        let name = name(&words);
        row_or_reason(&name, self.runner.run(&name, command, LIMIT))
    }

    /// Runs a measurement over shared memory, which is always available.
    pub(super) fn shm(&self, words: &[&str]) -> Result<Row, Stop> {
        self.here(&[words, &["--rail", "shm"]].concat())?
            .map_err(|why| unread(&words.join(" "), why))
    }

    /// A measurement between the two hosts of a place.
    pub(super) fn between(
        &self,
        place: &Place<'_>,
        rail: &str,
        words: &[&str],
        seconds: f64,
    ) -> Result<RowOrReason, Stop> {
        let words = with(words, seconds);
        let name = format!("{} --rail {rail}", name(&words));
        row_or_reason(&name, self.self_run(place).measure(&name, rail, &words, LIMIT))
    }

    /// The raw ping-pong between them: half a round trip in nanoseconds, or why there is none.
    pub(super) fn raw(&self, place: &Place<'_>, xdp: bool) -> Result<Result<f64, String>, Stop> {
        let ended = self.self_run(place).raw(RAW_BYTES, self.seconds, xdp, LIMIT);
        let text = match ended.and_then(|ended| ended.good("doorbell-lab raw-udp")) {
            Ok(text) => text,
            Err(Stop::Failed(why)) => return Ok(Err(why)),
            Err(stop) => return Err(stop),
        };
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let half = report["results"][0]["half_rtt_ns"]["mean"].as_f64();
        half.filter(|half| *half > 0.0)
            .map(Ok)
            .ok_or_else(|| unread("doorbell-lab raw-udp", "it reported no time".to_owned()))
    }

    /// Returns what one more idle peer takes, by a process of its own.
    pub(super) fn idle(&self) -> Result<f64, Stop> {
        const NAME: &str = "doorbell-lab measure-idle";
        let mut command = Command::new(self.program);
        without_settings(&mut command);
        command.arg("measure-idle");
        let ended = self.runner.run(NAME, command, LIMIT).map_err(stopped)?;
        text(NAME, ended)?
            .trim()
            .parse()
            .map_err(|_| unread(NAME, "it reported no number".to_owned()))
    }

    fn self_run<'a>(&'a self, place: &'a Place<'a>) -> SelfRun<'a> {
        SelfRun {
            runner: self.runner,
            place,
            program: self.program,
        }
    }
}

fn with(words: &[&str], seconds: f64) -> Vec<String> {
    let seconds = seconds.to_string();
    let self_run = ["--seconds", &seconds, "--json", "-"];
    words
        .iter()
        .chain(&self_run)
        .map(|word| (*word).to_owned())
        .collect()
}

/// Returns what is run, for people.
fn name(words: &[String]) -> String {
    format!("doorbell {}", words.join(" "))
}

/// Returns the row of a measurement that ended well, or why its rail is not here; everything else is an
/// error.
fn row_or_reason(name: &str, ended: Result<Ended, Stop>) -> Result<RowOrReason, Stop> {
    let ended = ended.map_err(stopped)?;
    if ended.code() == Some(i32::from(Exit::Rail.number())) {
        let said = ended.last_words();
        return Ok(Err(said.trim_start_matches("doorbell: ").to_owned()));
    }
    let text = text(name, ended)?;
    let report: Report = serde_json::from_str(&text).map_err(|error| unread(name, error.to_string()))?;
    let row = report.results.into_iter().next();
    row.map(Ok).ok_or_else(|| unread(name, "no row".to_owned()))
}

/// Returns what it printed, if it ended well.
fn text(name: &str, ended: Ended) -> Result<String, Stop> {
    match ended.failure() {
        None => Ok(ended.out),
        Some(how) => Err(child(name, how, ended.last_words(), exit_of(ended.code()))),
    }
}

/// A measurement that did not start, or did not come to its end.
fn stopped(stop: Stop) -> Stop {
    match stop {
        Stop::Failed(said) => Stop::Ended(ToolError::Stopped(said)),
        stop => stop,
    }
}

fn unread(name: &str, why: String) -> Stop {
    child(name, "a report that cannot be read".to_owned(), why, Exit::System)
}

fn child(name: &str, status: String, said: String, exit: Exit) -> Stop {
    Stop::Ended(ToolError::Bench(BenchError::Child {
        command: name.to_owned(),
        status,
        said,
        exit,
    }))
}

fn exit_of(code: Option<i32>) -> Exit {
    match code {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Rail,
        Some(4) => Exit::PeerLost,
        Some(5) => Exit::TimedOut,
        _ => Exit::System,
    }
}

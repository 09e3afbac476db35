//! `doorbell onesided`: puts, gets and atomics on a window, or puts and gets on the segment of a job of
//! active messages, beside messages, over each rail.
//!
//! Each rail has a job of two ranks, `doorbell run -n 2 -- doorbell onesided-rank`, of which rank 0 prints
//! what it found as a line of JSON.

mod am;
pub(crate) mod args;
mod rank;
mod world;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use doorbell_fabric::error::Exit;
use doorbell_fabric::name::RailName;
use serde::{Deserialize, Serialize};

pub(crate) use rank::onesided_rank;

use crate::console;
use crate::error::ToolError;
use crate::onesided::args::{OnesidedArgs, OnesidedLayer};
use crate::process::{Runner, Stop};

/// An operation, or a message and its answer, of eight bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Latency {
    operation: String,
    bytes: usize,
    /// From the call to its return, when it is done at the other rank; of messages, a full round trip.
    round_trip_ns: f64,
    /// As a multiple of the round trip of messages.
    of_message: f64,
}

/// Long pieces, several at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Bandwidth {
    operation: String,
    /// Where the bytes of this rank are: `region`, `memory` or `segment`.
    local: String,
    bytes: usize,
    bytes_per_second: f64,
    /// The time of a piece, as a multiple of that of a message between regions.
    of_message: f64,
}

/// What was found over one rail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Over {
    rail: String,
    latency: Vec<Latency>,
    bandwidth: Vec<Bandwidth>,
    /// Why there are no figures.
    diagnosis: Option<String>,
}

/// The JSON of `doorbell onesided`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    layer: &'static str,
    mode: Option<&'static str>,
    rails: Vec<Over>,
}

/// The most that starting and closing a job takes beside its operations, on a machine with other work.
const AROUND: Duration = Duration::from_secs(120);

/// Runs `doorbell onesided`.
pub(crate) fn onesided(args: &OnesidedArgs) -> Result<ExitCode, ToolError> {
    let rails = match args.rails.is_empty() {
        true => vec!["shm".parse::<RailName>()?],
        false => args.rails.clone(),
    };
    let runner = Runner::new()?;
    let mut over = Vec::new();
    let mut steps = console::Steps::new(rails.len() as u64);
    for rail in &rails {
        steps.begin(&format!("two ranks over {rail}"));
        match job(&runner, args, rail) {
            Ok(found) => over.push(found),
            Err(stop) => return stop.end(),
        }
    }
    console::pass("");
    let works = over.iter().all(|over| over.diagnosis.is_none());
    let report = Report {
        schema: "doorbell.onesided/1",
        version: env!("CARGO_PKG_VERSION"),
        layer: args.layer.name(),
        mode: args.mode.map(|mode| mode.name()),
        rails: over,
    };
    let text = if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| ToolError::System {
            what: "write what was found as JSON",
            source: error.into(),
        })?;
        text + "\n"
    } else {
        table(&report)
    };
    console::print(&text)?;
    Ok(if works { Exit::Done } else { Exit::Verdict }.into())
}

/// A job over this rail: what rank 0 found; where it did not come to that, why.
fn job(runner: &Runner, args: &OnesidedArgs, rail: &RailName) -> Result<Over, Stop> {
    let own = std::env::current_exe().map_or_else(|_| OsString::from("doorbell"), PathBuf::into_os_string);
    let limit = AROUND + Duration::from_secs_f64(3.0 * args.seconds);
    let mut command = Command::new(&own);
    for name in ["DOORBELL_RANK", "DOORBELL_SIZE", "DOORBELL_RAILS"] {
        command.env_remove(name);
    }
    if let Some(mode) = args.mode {
        command.env("DOORBELL_PROGRESS", mode.name());
    }
    command.args(["run", "--no-prefix", "--timeout", &limit.as_secs().to_string()]);
    command.args(["-n", "2", "--rail", rail.as_str(), "--"]);
    command.arg(own).arg("onesided-rank");
    let numbers = [args.seconds.to_string(), args.size.bytes().to_string()];
    command.arg(args.layer.name()).args(numbers);
    let failed = |why: String| Over {
        rail: rail.to_string(),
        diagnosis: Some(doorbell_bench::report::printable(&why)),
        ..Over::default()
    };
    match runner.run("a job of two ranks", command, limit + AROUND) {
        Ok(ended) => {
            let mut lines = ended.out.lines();
            if let Some(found) = lines.find_map(|line| serde_json::from_str::<Over>(line).ok()) {
                return Ok(Over {
                    rail: rail.to_string(),
                    ..found
                });
            }
            let mut lines = ended.err.lines().map(str::trim);
            let reported = lines.find_map(|line| line.strip_prefix("doorbell: "));
            let why = reported.map(str::to_owned).or_else(|| ended.failure());
            Ok(failed(why.unwrap_or_else(|| {
                "its ranks ended without a report".to_owned()
            })))
        }
        Err(Stop::Failed(why)) => Ok(failed(why)),
        Err(stop) => Err(stop),
    }
}

/// The figures for people.
fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing into memory cannot fail.
    for over in &report.rails {
        let _ = writeln!(text, "{}", over.rail);
        if let Some(why) = &over.diagnosis {
            let _ = writeln!(text, "  no figures: {why}\n");
            continue;
        }
        let _ = writeln!(text, "  {:<26} {:>9} {:>12}", "8 bytes", "µs", "of a message");
        for row in &over.latency {
            let micros = row.round_trip_ns / 1e3;
            let _ = writeln!(
                text,
                "  {:<26} {micros:>9.3} {:>12.2}",
                row.operation, row.of_message
            );
        }
        let bytes = over.bandwidth.first().map_or(0, |row| row.bytes);
        let head = format!("{bytes} bytes");
        let _ = writeln!(text, "  {head:<26} {:>9} {:>12}", "GB/s", "of its time");
        for row in &over.bandwidth {
            let name = format!("{}, {}", row.operation, row.local);
            let giga = row.bytes_per_second / 1e9;
            let _ = writeln!(text, "  {name:<26} {giga:>9.2} {:>12.2}", row.of_message);
        }
        text.push('\n');
    }
    text.push_str(
        "times from the call to its end at the other rank, of messages a full round trip; medians of turns\n",
    );
    if report.layer == OnesidedLayer::Am.name() {
        text.push_str(
            "a message is a request and its reply; a long one is in the segment before its handler runs\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_this_one() {
        let report = Report {
            schema: "doorbell.onesided/1",
            version: "0",
            layer: "pml",
            mode: None,
            rails: vec![
                Over {
                    rail: "shm".to_owned(),
                    latency: vec![Latency {
                        operation: "put".to_owned(),
                        bytes: 8,
                        round_trip_ns: 512.4,
                        of_message: 1.046,
                    }],
                    bandwidth: vec![Bandwidth {
                        operation: "put".to_owned(),
                        local: "region".to_owned(),
                        bytes: 1 << 20,
                        bytes_per_second: 9.876e9,
                        of_message: 1.004,
                    }],
                    diagnosis: None,
                },
                Over {
                    rail: "udp:lo".to_owned(),
                    diagnosis: Some("no frame passes".to_owned()),
                    ..Over::default()
                },
            ],
        };
        let expected = "\
shm
  8 bytes                           µs of a message
  put                            0.512         1.05
  1048576 bytes                   GB/s  of its time
  put, region                     9.88         1.00

udp:lo
  no figures: no frame passes

times from the call to its end at the other rank, of messages a full round trip; medians of turns
";
        assert_eq!(table(&report), expected);
    }
}

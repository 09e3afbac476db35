//! `doorbell counters`: what the ranks that run on this machine have counted so far, by their counter files.
//! The ranks are not interrupted.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use doorbell_bench::report::printable;
use doorbell_fabric::counters::{NO_RANK, Reader, Reading, Snapshot, Value, find};
use doorbell_fabric::error::Exit;
use serde::Serialize;

use crate::cli::values::process;
use crate::console;
use crate::error::ToolError;
use crate::exits;

/// Show the counters of the ranks and of the clients of libfabric that run on this machine
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each rank keeps a page of counters that this user may read: messages by kind, and for each rail what it sent, received, dropped \
and why. They are at most a millisecond behind a rank that calls.\n\n", exits!(), "\
Examples:\n  doorbell counters\n  doorbell counters 4711 --name udp:eth0\n  \
doorbell counters --json | jq '.ranks[].readings[] | select(.name | endswith(\".sent\"))'"))]
pub struct CountersArgs {
    /// Show this process only
    #[arg(value_name = "PID", value_parser = process)]
    pub(crate) process: Option<u32>,
    /// Those whose names begin with this; again for each further one
    #[arg(long = "name", value_name = "TEXT")]
    pub(crate) names: Vec<String>,
    /// Show counters that are zero, too (states of paths are shown always)
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the counters as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The JSON of `doorbell counters`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    ranks: Vec<Snapshot>,
}

/// Runs `doorbell counters`.
pub(crate) fn counters(args: &CountersArgs) -> Result<ExitCode, ToolError> {
    let read = |path: PathBuf| Reader::open(&path).ok()?.read().ok();
    let wanted = |rank: &Snapshot| args.process.is_none_or(|process| process == rank.process);
    let mut ranks: Vec<Snapshot> = find(None).into_iter().filter_map(read).filter(wanted).collect();
    if ranks.is_empty() && !args.json {
        return match args.process {
            Some(process) => Err(ToolError::Usage(why_none(process))),
            None => {
                console::print(&format!("{NOTHING_COUNTS}\n"))?;
                Ok(Exit::Done.into())
            }
        };
    }
    let none_of = args.process.filter(|_| ranks.is_empty());
    let named = |reading: &Reading| {
        let of = |name: &String| reading.entry.name.starts_with(name.as_str());
        args.names.is_empty() || args.names.iter().any(of)
    };
    for rank in &mut ranks {
        rank.readings.retain(|reading| {
            named(reading) && (args.all || is_state(reading) || !is_nothing(&reading.value))
        });
    }
    ranks.sort_by_key(|rank| (rank.rank, rank.process));
    let text = if args.json {
        let report = Report {
            schema: "doorbell.counters/1",
            version: env!("CARGO_PKG_VERSION"),
            ranks,
        };
        // Strings and numbers only: writing them into memory cannot fail.
        serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n"
    } else {
        table(&ranks)
    };
    console::print(&text)?;
    match none_of {
        Some(process) => Err(ToolError::Usage(why_none(process))),
        None => Ok(Exit::Done.into()),
    }
}

/// What is printed where no rank was found.
const NOTHING_COUNTS: &str = "no rank runs here that counts: jobs of this user are found while they run, with counters.place as it is by default";

/// Returns why a process has nothing to show.
fn why_none(process: u32) -> String {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let own = rustix::process::geteuid().as_raw();
    let owner = std::fs::metadata(&folder).map(|found| found.uid());
    let descriptors = std::fs::read_dir(folder.join("fd"));
    match (owner, descriptors) {
        (Err(error), _) if error.kind() == ErrorKind::NotFound => {
            format!(
                "there is no process {process}: it has ended, or the number is another one; `doorbell counters` lists all ranks"
            )
        }
        (Ok(user), _) if user != own => format!(
            "process {process} is of another user (number {user}), and counters are their user's own: run as that user"
        ),
        (_, Err(error)) => format!(
            "process {process} does not let its descriptors be looked at: {error}; it runs with other rights than this one"
        ),
        _ => format!(
            "process {process} is no rank that counts: either no rank of a job, or one with counters.place set; `doorbell counters` lists all ranks"
        ),
    }
}

/// Whether a value is the state of a path: 0 is one, too, and most paths are up.
fn is_state(reading: &Reading) -> bool {
    reading.entry.name.ends_with(".state")
}

/// Whether a value is zero or empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Counter(number) | Value::Gauge(number) => *number == 0,
        Value::Histogram(buckets) => buckets.counts.iter().all(|count| *count == 0),
        Value::Text(text) => text.is_empty(),
    }
}

fn table(ranks: &[Snapshot]) -> String {
    let mut text = String::new();
    for rank in ranks {
        let _ = match rank.rank {
            NO_RANK => writeln!(text, "process {}, of no job", rank.process),
            number => writeln!(text, "rank {number} (process {})", rank.process),
        };
        // A file is others' words.
        let rows: Vec<_> = rank
            .readings
            .iter()
            .map(|reading| (printable(&reading.entry.name), shown(reading)))
            .collect();
        let width = rows
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        for (name, value) in rows {
            let _ = writeln!(text, "  {name:width$}  {value}");
        }
    }
    text
}

fn shown(reading: &Reading) -> String {
    let unit = printable(&reading.entry.unit);
    let value = match &reading.value {
        Value::Counter(number) | Value::Gauge(number) => number.to_string(),
        Value::Histogram(buckets) => {
            let count: u64 = buckets.counts.iter().sum();
            let mean = buckets.sum.checked_div(count).unwrap_or(0);
            format!("{count} times, {mean} on average, {} at most", buckets.most)
        }
        Value::Text(text) => printable(text),
    };
    format!("{value} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_no_job_has_no_rank() {
        let of = |rank| Snapshot {
            rank,
            process: 4711,
            readings: Vec::new(),
        };
        assert_eq!(
            table(&[of(3), of(NO_RANK)]),
            "rank 3 (process 4711)\nprocess 4711, of no job\n"
        );
    }
}

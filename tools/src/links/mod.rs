//! `doorbell links`: every pair of ranks over every rail, with two sizes: does it work, how fast, and if not,
//! why.
//!
//! ```text
//!   for each rail:  doorbell run -n N ── rank 0 … rank N-1, with this rail only      one line for each pair
//!                   (--connect: this process and the side that serves there)
//!   a table of pairs and rails, or JSON
//! ```
//!
//! Each rail has a job of its own, so that no other rail steps in, and none that fails stops another.

pub(crate) mod args;
mod host;
mod rank;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use doorbell::Config;
use doorbell_fabric::error::Exit;
use doorbell_fabric::name::RailName;
use serde::{Deserialize, Serialize};

pub(crate) use rank::links_rank;

use crate::console;
use crate::error::ToolError;
use crate::links::args::LinksArgs;
use crate::process::{Runner, Stop};

/// A pair of ranks over one rail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pair {
    /// The two ranks, the smaller one first.
    ranks: [u32; 2],
    works: bool,
    /// Of eight bytes, and of the longest message that goes in one frame.
    small: Option<Half>,
    full: Option<Half>,
    /// What was found, in a sentence.
    diagnosis: String,
}

/// Half a round trip: the median.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Half {
    bytes: usize,
    half_rtt_ns: u64,
}

/// All pairs over one rail.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Over {
    rail: String,
    pairs: Vec<Pair>,
}

/// The JSON of `doorbell links`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    ranks: u32,
    /// The host of rank 1, where it is another one.
    peer: Option<String>,
    works: bool,
    rails: Vec<Over>,
}

/// The longest wait for each message of a pair; after it the pair counts as failed.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time for starting and closing a job, beside its messages.
const AROUND: Duration = Duration::from_secs(15);

/// Runs `doorbell links`.
pub(crate) fn links(args: &LinksArgs) -> Result<ExitCode, ToolError> {
    if let (None, Some(_)) = (&args.connect, &args.key_file) {
        let text = "`--key-file` goes with `--connect`: ranks of one host need no key";
        return Err(ToolError::Usage(text.to_owned()));
    }
    let rails = rails(args)?;
    let over = match &args.connect {
        Some(to) => host::over(args, to, &rails)?,
        None => match here(args.ranks, &rails) {
            Ok(over) => over,
            Err(stop) => return stop.end(),
        },
    };
    let works = over.iter().all(|one| one.pairs.iter().all(|pair| pair.works));
    let report = Report {
        schema: "doorbell.links/1",
        version: env!("CARGO_PKG_VERSION"),
        ranks: if args.connect.is_some() { 2 } else { args.ranks },
        peer: args.connect.as_ref().map(ToString::to_string),
        works,
        rails: over,
    };
    let text = if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| ToolError::System {
            what: "write what was found as JSON",
            source: error.into(),
        })?;
        text + "\n"
    } else {
        report::table(&report, console::width())
    };
    console::print(&text)?;
    Ok(if works { Exit::Done } else { Exit::Verdict }.into())
}

/// The rails of the command line, else those of the settings, else what needs no listener beyond this
/// machine.
fn rails(args: &LinksArgs) -> Result<Vec<RailName>, ToolError> {
    if !args.rails.is_empty() {
        return Ok(args.rails.clone());
    }
    let config = Config::from_environment()?;
    let set = &config.rails.list.get().0;
    Ok(match set.is_empty() {
        true => vec!["shm".parse::<RailName>()?, "udp:lo".parse::<RailName>()?],
        false => set.clone(),
    })
}

/// Ranks of this machine, over one rail after another.
fn here(ranks: u32, rails: &[RailName]) -> Result<Vec<Over>, Stop> {
    let runner = Runner::new()?;
    let mut all = Vec::new();
    let mut steps = console::Steps::new(rails.len() as u64);
    for rail in rails {
        steps.begin(&format!("{ranks} ranks over {rail}"));
        all.push(Over {
            rail: rail.to_string(),
            pairs: job(&runner, ranks, rail)?,
        });
    }
    console::pass("");
    Ok(all)
}

/// Joins what a rail has found out about a pair that does not work with the error behind it, unless the error
/// contains it.
fn diagnosis(known: Option<String>, why: &str) -> String {
    match known {
        Some(known) if why.contains(&known) => known,
        Some(known) => format!("{known} ({why})"),
        None => why.to_owned(),
    }
}

/// A job of this many ranks over this rail: what its pairs found; where it did not come to that, why.
fn job(runner: &Runner, ranks: u32, rail: &RailName) -> Result<Vec<Pair>, Stop> {
    let own = std::env::current_exe().map_or_else(|_| OsString::from("doorbell"), PathBuf::into_os_string);
    let limit = AROUND + 2 * PATIENCE * ranks.saturating_add(1);
    let mut command = Command::new(&own);
    for name in ["DOORBELL_RANK", "DOORBELL_SIZE", "DOORBELL_RAILS"] {
        command.env_remove(name);
    }
    command.args([
        "run",
        "--no-prefix",
        "--timeout",
        &limit.as_secs().to_string(),
        "-n",
        &ranks.to_string(),
    ]);
    command
        .args(["--rail", rail.as_str(), "--"])
        .arg(own)
        .arg("links-rank");
    let (told, why) = match runner.run("a job of ranks", command, limit + AROUND) {
        Ok(ended) => {
            let said = ended
                .err
                .lines()
                .map(str::trim)
                .find(|line| line.starts_with("doorbell: "));
            let how = ended.failure();
            let why = said
                .map(|line| line.trim_start_matches("doorbell: ").to_owned())
                .or(how);
            (ended.out, why)
        }
        Err(Stop::Failed(why)) => (String::new(), Some(why)),
        Err(stop) => return Err(stop),
    };
    let found: Vec<Pair> = told
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let pairs = (0..ranks).flat_map(|one| (one + 1..ranks).map(move |other| [one, other]));
    Ok(pairs
        .map(|pair| {
            let ours = found.iter().find(|one| one.ranks == pair).cloned();
            ours.unwrap_or_else(|| {
                Pair::failed(pair, why.as_deref().unwrap_or("its ranks ended without a report"))
            })
        })
        .collect())
}

impl Pair {
    /// Returns a pair that does not work.
    fn failed(ranks: [u32; 2], why: &str) -> Self {
        Self {
            ranks,
            works: false,
            small: None,
            full: None,
            diagnosis: doorbell_bench::report::printable(why),
        }
    }
}

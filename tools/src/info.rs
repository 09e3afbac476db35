//! `doorbell info`: every kind of rail with its verdict and reason; by which launcher this process was
//! started, and why not by another; which libfabric loads our provider; every setting with its value and
//! origin.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use doorbell::{Config, RailSets};
use doorbell_bench::report::{printable, wrap};
use doorbell_fabric::counters::{NO_RANK, Reader, Snapshot, find};
use doorbell_fabric::discover::{Candidate, Discovery, Fact, Outcome, Verdict};
use doorbell_fabric::error::Exit;
use doorbell_fabric::rail_set::RailSet;
use serde::Serialize;

use crate::console;
use crate::error::ToolError;
use crate::ofi::found::Places;
use crate::ofi::listing::Listing;
use crate::run::rails::in_words;
use crate::{exits, settings};

/// Show the rails of this machine, and why each can or cannot be used
#[derive(Debug, Args)]
#[command(after_help = concat!(settings!(), exits!(), "\
Examples:\n  doorbell info\n  doorbell info --config\n  DOORBELL_RAILS='udp:eth*' doorbell info\n  doorbell info --json | jq '.kinds[].kind'"))]
pub struct InfoArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show every setting instead, with its value and where it came from
    #[arg(long)]
    pub(crate) config: bool,
}

/// The JSON of `doorbell info`.
#[derive(Serialize)]
struct Info<'a> {
    schema: &'static str,
    version: &'static str,
    #[serde(flatten)]
    found: &'a Discovery,
    /// What each set of rails in rails.list stands for.
    sets: &'a [RailSet],
    launcher: Launcher,
    libfabric: Listing,
}

/// How a process that was started as this one would learn its rank.
#[derive(Serialize)]
struct Launcher {
    /// `None` when the values of the variables are not valid.
    kind: Option<&'static str>,
    reason: String,
    rank: Option<u32>,
    /// `None` too where only the launcher's server knows it.
    size: Option<u32>,
    others: Vec<Other>,
}

/// A launcher that was not taken.
#[derive(Serialize)]
struct Other {
    kind: &'static str,
    reason: String,
}

impl Launcher {
    fn of(config: &Config) -> Self {
        match doorbell::launcher(config) {
            Ok(found) => Self {
                kind: Some(found.kind.name()),
                reason: found.because,
                rank: Some(found.rank),
                size: found.size,
                others: (found.others.into_iter())
                    .map(|(kind, reason)| Other {
                        kind: kind.name(),
                        reason,
                    })
                    .collect(),
            },
            Err(error) => Self {
                kind: None,
                reason: error.to_string(),
                rank: None,
                size: None,
                others: Vec::new(),
            },
        }
    }

    /// The rank and the size, as far as they are known, and the reason.
    fn told(&self) -> String {
        let rank = self.rank.unwrap_or(0);
        match self.size {
            Some(size) => format!("rank {rank} of {size}: {}", self.reason),
            None => format!("rank {rank}: {}", self.reason),
        }
    }
}

/// Runs `doorbell info`.
pub(crate) fn info(args: &InfoArgs) -> Result<ExitCode, ToolError> {
    let config = Config::from_environment()?;
    let text = match (args.config, args.json) {
        (true, true) => config.to_json() + "\n",
        (true, false) => settings(&config),
        (false, json) => {
            let found = with_pairs(doorbell::discover(&config), &running(), json);
            let sets = RailSets::of(&config);
            let sets = sets.as_ref().map_or(&[][..], RailSets::sets);
            let launcher = Launcher::of(&config);
            let libfabric = Listing::of(&Places::here());
            if json {
                as_json(&found, sets, launcher, libfabric)?
            } else {
                rails(&found, sets, &launcher) + &libfabrics(&libfabric)
            }
        }
    };
    console::print(&text)?;
    Ok(Exit::Done.into())
}

/// Pairs of GIDs that people are shown of each rail, at most.
const PAIRS: usize = 4;
/// Properties of one name that people are shown of each rail, at most: a port may have many GIDs.
const ALIKE: usize = 2;

/// The counter files of the ranks that run here.
fn running() -> Vec<Snapshot> {
    let read = |path: std::path::PathBuf| Reader::open(&path).ok()?.read().ok();
    find(None).into_iter().filter_map(read).collect()
}

/// Adds to each rail over an RDMA port the pairs of GIDs that running ranks use over it, each with the reason
/// that pairs before it lost: all of them, or the best few.
fn with_pairs(mut found: Discovery, running: &[Snapshot], all: bool) -> Discovery {
    let pairs = running.iter().flat_map(|snapshot| pairs_of(snapshot, all));
    let pairs: Vec<(String, String)> = pairs.collect();
    let most = if all { usize::MAX } else { PAIRS };
    for kind in &mut found.kinds {
        for candidate in &mut kind.candidates {
            let own = pairs.iter().filter(|(rail, _)| rail == candidate.rail.as_str());
            let count = own.clone().count();
            let facts = own.take(most).map(|(_, text)| text.clone());
            let more = (count > most).then(|| format!("and {} more", count - most));
            let facts: Vec<String> = facts.chain(more).collect();
            for text in facts {
                *candidate = candidate.clone().fact("gid-pair", text);
            }
        }
    }
    found
}

/// The rails of a running rank with the pair of GIDs that each uses to a peer.
fn pairs_of(snapshot: &Snapshot, all: bool) -> Vec<(String, String)> {
    let from = match snapshot.rank {
        NO_RANK => format!("process {}", snapshot.process),
        rank => format!("rank {rank} (process {})", snapshot.process),
    };
    let names = snapshot
        .readings
        .iter()
        .map(|reading| reading.entry.name.as_str());
    let paths = names.filter_map(|name| name.strip_prefix("way.")?.strip_suffix(".gids.0"));
    let pair = |path: &str| {
        let (peer, rails) = path.split_once('.')?;
        let (ours, theirs) = rails.split_once('/')?;
        let lines = crate::why::gids(snapshot, &format!("way.{path}"));
        let lines = if all { lines } else { crate::why::few(lines) };
        Some((
            ours.to_owned(),
            format!(
                "{from} to {} over {}: {}",
                printable(peer),
                printable(theirs),
                lines.join("; ")
            ),
        ))
    };
    paths.filter_map(pair).collect()
}

fn as_json(
    found: &Discovery,
    sets: &[RailSet],
    launcher: Launcher,
    libfabric: Listing,
) -> Result<String, ToolError> {
    let info = Info {
        schema: "doorbell.info/1",
        version: env!("CARGO_PKG_VERSION"),
        found,
        sets,
        launcher,
        libfabric,
    };
    let text = serde_json::to_string_pretty(&info).map_err(|error| ToolError::System {
        what: "write what was found as JSON",
        source: error.into(),
    })?;
    Ok(text + "\n")
}

/// One line for each rail and for each kind without one, then one for each set of rails that is named and for
/// each launcher, wrapped when a person reads it.
fn rails(found: &Discovery, sets: &[RailSet], launcher: &Launcher) -> String {
    let width = console::known_width().unwrap_or(usize::MAX);
    let mut text = format!("doorbell {}\n\n", env!("CARGO_PKG_VERSION"));
    let line =
        |text: &mut String, rail: &str, verdict: &str, why: &str| line(text, width, [rail, verdict, why]);
    line(&mut text, "rail", "verdict", "why");
    for report in &found.kinds {
        match &report.outcome {
            Outcome::Probed if report.candidates.is_empty() => {
                line(&mut text, report.kind, "none", nothing(report.kind));
            }
            Outcome::Probed => {}
            Outcome::Failed { reason, remedy } => {
                line(&mut text, report.kind, "failed", &format!("{reason}; {remedy}"))
            }
            Outcome::NotBuilt { reason } => line(&mut text, report.kind, "not built", reason),
        }
        for candidate in &report.candidates {
            let (verdict, why) = judged(candidate);
            line(&mut text, candidate.rail.as_str(), verdict, &why);
        }
    }
    if !sets.is_empty() {
        text.push('\n');
        line(
            &mut text,
            "set",
            "rails",
            "which, in the order of ranks whose cores are not known",
        );
    }
    for set in sets {
        let count = set.members.len().to_string();
        line(&mut text, set.name.as_str(), &count, &in_words(set));
    }
    text.push('\n');
    line(&mut text, "launcher", "verdict", "why");
    match launcher.kind {
        Some(kind) => line(&mut text, kind, "found", &launcher.told()),
        None => line(&mut text, "any", "failed", &launcher.reason),
    }
    for other in &launcher.others {
        line(&mut text, other.kind, "no", &other.reason);
    }
    text
}

/// One line for each file of our provider, and for each libfabric; then the options that show more.
fn libfabrics(found: &Listing) -> String {
    let width = console::known_width().unwrap_or(usize::MAX);
    let mut text = String::from("\n");
    line(&mut text, width, ["libfabric", "verdict", "why"]);
    if found.libraries.is_empty() {
        line(
            &mut text,
            width,
            [
                "libfabric.so.1",
                "none",
                "no libfabric is installed, and none is needed",
            ],
        );
    }
    for provider in &found.providers {
        let (verdict, why) = match (&provider.error, &provider.level) {
            (Some(error), _) => ("unusable", error.clone()),
            (None, level) => (
                "provider",
                format!("API level {}", level.as_deref().unwrap_or("unknown")),
            ),
        };
        line(
            &mut text,
            width,
            ["provider", verdict, &format!("{}: {why}", provider.path)],
        );
    }
    for library in &found.libraries {
        let verdict = if library.loads.is_some() { "loads it" } else { "no" };
        let release = library.release.as_deref().unwrap_or("");
        let name = format!("libfabric {release}");
        let why = format!("{}: {}", library.path, library.why);
        line(&mut text, width, [name.trim_end(), verdict, &why]);
    }
    text.push('\n');
    let more = "`--config` shows every setting, `--json` everything that was found out";
    wrap::add(&mut text, more, 0, 0, width);
    text
}

/// A rail, its verdict, and the reason beside them or, on a narrow terminal, below them.
fn line(text: &mut String, width: usize, [rail, verdict, why]: [&str; 3]) {
    const BESIDE: usize = 18 + 1 + 10 + 1;
    const BELOW: usize = 4;
    let head = format!("{rail:<18} {verdict:<10}");
    if width < 2 * BESIDE {
        text.push_str(head.trim_end());
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', BELOW));
        wrap::add(text, why, BELOW, BELOW, width);
    } else {
        text.push_str(&head);
        text.push(' ');
        let column = BESIDE.max(head.chars().count() + 1);
        wrap::add(text, why, column, BESIDE, width);
    }
}

/// Why a driver lists nothing.
fn nothing(kind: &str) -> &'static str {
    match kind {
        "verbs" => {
            "this machine has no RDMA device that programs can drive; the port of one is named as \
             `--rail verbs:mlx5_0:1`, and `rdma link` lists those of the kernel"
        }
        _ => "its driver found nothing that it could use without being named",
    }
}

/// The properties of a rail, of those that have one name the first, and how many more there are.
fn facts(candidate: &Candidate) -> Vec<String> {
    let mut shown = Vec::new();
    for (at, fact) in candidate.facts.iter().enumerate() {
        let alike = |facts: &[Fact]| facts.iter().filter(|other| other.name == fact.name).count();
        match alike(&candidate.facts[..at]) {
            before if fact.name == "gid-pair" || before < ALIKE => {
                shown.push(format!("{}: {}", fact.name, fact.value));
            }
            ALIKE => {
                let more = alike(&candidate.facts) - ALIKE;
                shown.push(format!("{}: and {more} more, which `--json` lists", fact.name));
            }
            _ => {}
        }
    }
    shown
}

fn judged(candidate: &Candidate) -> (&'static str, String) {
    match &candidate.verdict {
        Verdict::Rejected { reason, remedy } => ("rejected", format!("{reason}; {remedy}")),
        Verdict::Usable => {
            let mut shown: Vec<String> = Vec::new();
            if let Some(capabilities) = &candidate.capabilities {
                let limits = &capabilities.limits;
                shown.push(format!("eager up to {} B", limits.eager));
                shown.push(format!("about {} ns", capabilities.estimate.latency_ns));
            }
            if let Some(reason) = &candidate.only_named {
                shown.push(format!(
                    "used when it is named, as `--rail {}` ({reason})",
                    candidate.rail
                ));
            }
            shown.extend(facts(candidate));
            ("usable", shown.join(", "))
        }
    }
}

/// Every setting: name, value, origin, and below them what it does.
fn settings(config: &Config) -> String {
    let listed = config.list();
    let widest = |cell: fn(&doorbell::config::Listed) -> usize| listed.iter().map(cell).max().unwrap_or(0);
    let name = widest(|line| line.name.len());
    let value = widest(|line| line.value.chars().count()).min(24);
    let width = console::known_width().unwrap_or(usize::MAX);
    let indent = if width < 2 * name { 4 } else { name + 2 };
    let mut text = String::new();
    for line in &listed {
        // Writing into memory cannot fail.
        let _ = writeln!(
            text,
            "{:<name$}  {:<value$}  {}",
            line.name, line.value, line.origin
        );
        text.extend(std::iter::repeat_n(' ', indent));
        let about = format!("{} ({}; {})", line.help, line.unit, line.variable);
        wrap::add(&mut text, &about, indent, indent, width);
    }
    text
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::counters::{CounterFile, Place, Plan};
    use doorbell_fabric::discover::Report;

    use super::*;

    #[test]
    fn ports_show_the_pairs_of_gids_that_running_ranks_use() {
        const OF: &str = "way.1.verbs:a:1/verbs:b:1";
        let lines = [
            "10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)",
            "not 10.1.0.1 with 10.2.0.9: they differ",
        ];
        let plan = lines
            .iter()
            .enumerate()
            .fold(Plan::new(), |plan, (at, _)| plan.text(&format!("{OF}.gids.{at}")));
        let file = CounterFile::create(&Place::Memory, 0, &plan).unwrap();
        for (at, line) in lines.iter().enumerate() {
            file.text(&format!("{OF}.gids.{at}")).unwrap().set(line);
        }
        let candidate = |name: &str| Candidate::rejected(name.parse().unwrap(), "down", "set it up");
        let found = Discovery {
            kinds: vec![Report {
                kind: "verbs",
                outcome: Outcome::Probed,
                candidates: vec![candidate("verbs:a:1"), candidate("verbs:a:1:ud")],
            }],
        };
        let read = || Reader::open(file.path()).unwrap().read().unwrap();
        let all: Vec<Snapshot> = std::iter::repeat_with(read).take(20).collect();
        let people = with_pairs(found.clone(), &all, false);
        let found = with_pairs(found, &all, true);
        let facts = |found: &Discovery, at: usize| -> Vec<String> {
            let facts = found.kinds[0].candidates[at].facts.iter();
            facts
                .filter(|fact| fact.name == "gid-pair")
                .map(|fact| fact.value.clone())
                .collect()
        };
        assert_eq!(
            facts(&found, 0)[0],
            format!(
                "rank 0 (process {}) to 1 over verbs:b:1: {}; {}",
                std::process::id(),
                lines[0],
                lines[1]
            )
        );
        assert_eq!(facts(&found, 0).len(), 20);
        let people = facts(&people, 0);
        assert_eq!((people.len(), people[PAIRS].as_str()), (PAIRS + 1, "and 16 more"));
        assert!(facts(&found, 1).is_empty());
    }

    #[test]
    fn a_row_of_a_port_says_how_to_name_it_and_is_not_a_table() {
        let mut port = Candidate::rejected("verbs:a:1".parse().unwrap(), "", "")
            .only_when_named("an open rail can be reached by its network")
            .fact("state", "ACTIVE");
        for index in 0..36 {
            port = port.fact("gid", index);
        }
        port.verdict = Verdict::Usable;
        let (verdict, shown) = judged(&port);
        assert_eq!(verdict, "usable");
        let named =
            "used when it is named, as `--rail verbs:a:1` (an open rail can be reached by its network)";
        assert!(
            shown.contains(named) && shown.contains("state: ACTIVE"),
            "{shown}"
        );
        let end = "gid: 0, gid: 1, gid: and 34 more, which `--json` lists";
        assert!(shown.ends_with(end), "{shown}");
        let none = Discovery {
            kinds: vec![Report {
                kind: "verbs",
                outcome: Outcome::Probed,
                candidates: Vec::new(),
            }],
        };
        let launcher = Launcher::of(&Config::default());
        let shown = rails(&none, &[], &launcher);
        assert!(shown.contains("this machine has no RDMA device"), "{shown}");
        assert!(!shown.contains("without being named"), "{shown}");
    }
}

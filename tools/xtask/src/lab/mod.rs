//! `cargo xtask lab`: emulated machines with NICs, IOMMUs and kernels that this one does not have, and what
//! is proved in them.
//!
//! QEMU, kernels and the guests' programs are fetched as Debian's packages with apt's ordinary client and
//! unpacked into a cache; nothing is installed, and no guest has a network of the host. docs/lab.md describes
//! how to use it, and what it cannot prove.
//!
//! | file | job |
//! |---|---|
//! | `scenarios` | the table: machine, kernel, devices, modules, script |
//! | `guest/` | what runs inside: the first process, helpers, scripts |
//! | `host` | what this machine must have, and its mirror |
//! | `apt`, `images` | fetching and unpacking |
//! | `modules`, `cpio`, `first_root` | what the guest's kernel unpacks |
//! | `qemu`, `boot`, `verdict` | running it, and what came out |
//! | `clients` | clients of libfabric for guests, with our provider |
//! | `beside` | programs of this machine that run as long as a guest does |
//! | `measure` | what guests measured, compared |
//! | `capture` | what the dissector makes of captures that came out |
//! | `programs`, `stop` | programs with limits; reasons to stop |

mod apt;
mod beside;
mod boot;
mod capture;
mod clients;
mod cpio;
mod first_root;
mod host;
mod images;
mod measure;
mod modules;
mod programs;
mod qemu;
mod scenarios;
mod stop;
mod verdict;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::boot::Verdict;
use self::boot::{Boots, may_have_kvm};
use self::host::Host;
use self::images::{Image, Images, Set};
use self::programs::Programs;
use self::qemu::{Accelerator, with_own_loader};
use self::scenarios::{SCENARIOS, Scenario};
use self::stop::Stop;
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub(crate) const HELP: &str = "\
Emulated machines are slow and their time means nothing: the lab proves behaviour, never speed. What it is made of is \
fetched from the Debian mirror of this machine's apt and kept in target/lab, or in the folder that XTASK_LAB_CACHE names; \
nothing is installed. Each guest's console is kept in target/xtask/lab. Exit status 1 when a check failed.

Examples:
  cargo xtask lab
  cargo xtask lab --list
  cargo xtask lab --short --again 1
  cargo xtask lab xdp-zero-copy --guest igb --json target/lab.json
  cargo xtask lab verbs --measure --json target/measured.json";

/// The environment variable with the folder of the cache.
const CACHE: &str = "XTASK_LAB_CACHE";
/// The name and version of the JSON.
const SCHEMA: &str = "doorbell.lab/1";
/// How long a program may take to print its version.
const QUESTION: Duration = Duration::from_secs(20);

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Run only these scenarios
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Run only guests whose names contain this
    #[arg(long, value_name = "TEXT")]
    guest: Option<String>,
    /// Leave out guests that repeat with another kernel or another NIC what one of them proves, and send
    /// fewer messages
    #[arg(long)]
    short: bool,
    /// Run the guests that measure, and no others, and print ratios, which no check depends on; name a
    /// program that is built to be quick
    #[arg(long)]
    measure: bool,
    /// Boot a guest that failed again, at most N times, and judge the last; earlier failures are printed
    #[arg(long, value_name = "N", default_value_t = 0)]
    again: u32,
    /// Set a variable for the scripts, over what the table sets: `PARTS=killed`; again for each further one
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Name the scenarios and their guests, and end
    #[arg(long)]
    list: bool,
    /// Write everything as JSON, too; `-` is the standard output, instead of the lines
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the file that the last guest booted from, to look into it
    #[arg(long)]
    keep: bool,
    /// The `doorbell` to test, with `doorbell-lab` beside it and the examples in `examples`, instead of what
    /// tests are built with
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The most that all may take; what then still runs is killed
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    limit: u64,
}

fn setting(words: &str) -> Result<(String, String), String> {
    let setting = words.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = setting.ok_or("it is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What all guests came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    schema: String,
    /// Why there is no lab here, if so.
    pub(crate) skipped: Option<String>,
    /// What executed the guests' instructions.
    accelerator: String,
    pub(crate) guests: Vec<Verdict>,
}

/// Runs the command; true when nothing failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let chosen = choose(&options.scenarios)?;
    if options.list {
        print!("{}", list(&chosen, options));
        return Ok(true);
    }
    let quiet = options.json.as_deref() == Some(Path::new("-"));
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        ..Report::default()
    };
    match all(workspace, options, &chosen, &mut report, quiet) {
        Ok(()) => {}
        Err(Stop::Unable(reason)) => report.skipped = Some(reason),
        Err(Stop::Failed(error)) => return Err(error),
    }
    if !quiet && let Some(reason) = &report.skipped {
        println!("skipped: {reason}");
    }
    write(&report, options.json.as_deref())?;
    Ok(report.guests.iter().all(Verdict::is_good))
}

fn choose(names: &[String]) -> Result<Vec<&'static Scenario>, Error> {
    let known = |name: &str| SCENARIOS.iter().find(|scenario| scenario.name == name);
    if names.is_empty() {
        return Ok(SCENARIOS.iter().collect());
    }
    let find = |name: &String| {
        known(name).ok_or_else(|| {
            let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            Error::Lab(format!(
                "there is no scenario {name:?}; the scenarios are: {}",
                names.join(", ")
            ))
        })
    };
    names.iter().map(find).collect()
}

/// Whether a guest is among those that run.
fn is_wanted(guest: &scenarios::Guest, options: &Options) -> bool {
    let is_named = options
        .guest
        .as_deref()
        .is_none_or(|part| guest.name.contains(part));
    let measures = !guest.compared.is_empty();
    is_named && measures == options.measure && (guest.short || !options.short)
}

fn list(chosen: &[&Scenario], options: &Options) -> String {
    let mut text = String::new();
    for scenario in chosen {
        let guests = scenario.guests.iter();
        let guests: Vec<_> = guests.filter(|guest| is_wanted(guest, options)).collect();
        if !guests.is_empty() {
            text += &format!("{}: {}\n", scenario.name, scenario.about);
        }
        for guest in guests {
            text += &format!("    {}\n", guest.name);
        }
    }
    text
}

/// Runs all that was chosen.
fn all(
    workspace: &Workspace,
    options: &Options,
    chosen: &[&Scenario],
    report: &mut Report,
    quiet: bool,
) -> Result<(), Stop> {
    let cache = std::env::var_os(CACHE).map_or_else(|| workspace.target.join("lab"), PathBuf::from);
    std::fs::create_dir_all(&cache).map_err(Error::file("create", &cache))?;
    let _alone = alone(&cache)?;
    let logs = workspace.target.join("xtask/lab");
    let programs = Programs::new(logs.clone(), Duration::from_secs(60 * options.limit))?;
    let host = Host::read(&programs)?;
    let images = Images::new(&programs, &host, &cache);
    let sets = chosen.iter().flat_map(|scenario| scenario.guests);
    let set = sets.map(|guest| guest.set).next().unwrap_or(Set::Plain);
    let guest = images.get(Image::Guest(set))?;
    let tested = match &options.program {
        Some(program) => program.canonicalize().map_err(Error::file("find", program))?,
        None => build(workspace)?,
    };
    let examples = examples(workspace, options.program.as_deref(), chosen)?;
    fits(&programs, &guest, &tested, &host.suite)?;
    let wanted = |guest: &&scenarios::Guest| is_wanted(guest, options);
    let mut guests = chosen.iter().flat_map(|scenario| scenario.guests);
    let clients = match guests.any(|guest| guest.clients && wanted(&guest)) {
        true => clients::of(workspace, options.program.as_deref(), &images, &programs, &cache)?,
        false => Vec::new(),
    };
    let mut boots = Boots {
        root: &workspace.root,
        programs: &programs,
        images,
        folder: cache,
        accelerator: Accelerator::Tcg,
        tested,
        examples,
        clients,
        short: options.short,
        set: &options.set,
    };
    let mut first = true;
    for scenario in chosen {
        for guest in scenario.guests.iter().filter(wanted) {
            if std::mem::take(&mut first) {
                report.accelerator = accelerate(&mut boots, guest)?;
            }
            let verdict = boot(&boots, scenario, guest, options.again)?;
            if !quiet {
                print!("{}", summary(&verdict));
            }
            report.guests.push(verdict);
        }
    }
    if !options.keep {
        boots.clean();
    }
    Ok(())
}

/// Boots a guest, and again where it failed: an emulated machine on a busy one is slower than its drivers
/// bear.
fn boot(
    boots: &Boots<'_>,
    scenario: &Scenario,
    guest: &scenarios::Guest,
    again: u32,
) -> Result<Verdict, Stop> {
    let mut before = Vec::new();
    loop {
        let mut verdict = boots.guest(scenario, guest)?;
        if verdict.is_good() || before.len() >= again as usize {
            verdict.before = before;
            return Ok(verdict);
        }
        before.push(verdict.failures().collect::<Vec<_>>().join("; "));
    }
}

/// Waits until no other process uses the cache, and locks the cache as long as the file is open.
fn alone(cache: &Path) -> Result<std::fs::File, Error> {
    let path = cache.join("lock");
    let file = std::fs::File::create(&path).map_err(Error::file("create", &path))?;
    file.lock().map_err(Error::file("lock", &path))?;
    Ok(file)
}

/// Takes the processor itself where that works; in words, what is taken.
fn accelerate(boots: &mut Boots<'_>, guest: &scenarios::Guest) -> Result<String, Stop> {
    let words = if !may_have_kvm() {
        "emulation: no KVM with a processor for it"
    } else if boots.try_kvm(guest)? {
        "KVM"
    } else {
        "emulation: under KVM a kernel did not start within its time"
    };
    Ok(words.to_owned())
}

/// Builds the program that the tests are built with. Built like this, it is the same as in `cargo xtask
/// test`, and is there already after it.
fn build(workspace: &Workspace) -> Result<PathBuf, Error> {
    cargo(workspace, &["test", "--no-run", "--test", "it"], "doorbell")?;
    Ok(workspace.target.join("debug/doorbell"))
}

/// Returns the folder of the examples that the guests run: the one beside the named program where it has all
/// of them, else that of the tests, where they are built with the settings of the tests.
fn examples(workspace: &Workspace, program: Option<&Path>, chosen: &[&Scenario]) -> Result<PathBuf, Error> {
    let guests = chosen.iter().flat_map(|scenario| scenario.guests);
    let names: BTreeSet<_> = guests.flat_map(|guest| guest.programs).collect();
    if let Some(program) = program {
        let beside = program.with_file_name("examples");
        if names.iter().all(|name| beside.join(name).is_file()) {
            return Ok(beside);
        }
    }
    for name in names {
        cargo(workspace, &["build", "--example", name], name)?;
    }
    Ok(workspace.target.join("debug/examples"))
}

/// Lets cargo build something of the whole workspace.
fn cargo(workspace: &Workspace, words: &[&str], what: &str) -> Result<(), Error> {
    let mut command = workspace::cargo_in(&workspace.root);
    command.args(words).args(["--locked", "--workspace", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().map_err(|source| Error::Start {
        program: "cargo".to_owned(),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Lab(format!(
        "{what} does not build; `cargo {}` shows why",
        words.join(" ")
    )))
}

/// Whether a program of this machine runs with the guests' C library.
fn fits(programs: &Programs, guest: &Path, tested: &Path, suite: &str) -> Result<(), Stop> {
    let mut command = with_own_loader(guest, tested);
    command.arg("--version");
    let said = programs.run(
        "fits",
        "trying the program with the guests' libraries",
        &mut command,
        QUESTION,
    )?;
    if said.code == Some(0) {
        return Ok(());
    }
    let how = said.how(QUESTION);
    Err(Stop::Unable(format!(
        "{} does not run with the C library of the guests, which are Debian {suite}: it {how}; build it on that Debian",
        tested.display()
    )))
}

/// Returns the lines about a guest.
fn summary(verdict: &Verdict) -> String {
    let good = if verdict.is_good() { "ok" } else { "FAILED" };
    let passed = verdict
        .checks
        .iter()
        .filter(|check| check.failure.is_none())
        .count();
    let mut text = format!(
        "{}: {} (Linux {}): {good}, {passed} of {} checks, {:.0} s\n",
        verdict.scenario,
        verdict.guest,
        verdict.kernel,
        verdict.checks.len(),
        verdict.seconds
    );
    for check in &verdict.checks {
        match &check.failure {
            None => text += &format!("    ok      {}\n", check.what),
            Some(found) => text += &format!("    FAILED  {}: {found}\n", check.what),
        }
    }
    for skipped in &verdict.skipped {
        text += &format!("    skipped {skipped}\n");
    }
    text += &measure::lines(&verdict.ratios);
    for before in &verdict.before {
        text += &format!("    note    booted again, because the first time this failed: {before}\n");
    }
    if let Some(failure) = &verdict.failure {
        text += &format!("    FAILED  {failure}\n");
    }
    if !verdict.is_good() {
        text += &format!("    its console is in {}\n", verdict.console.display());
        for other in &verdict.others {
            text += &format!("    and another machine's in {}\n", other.display());
        }
    }
    text
}

fn write(report: &Report, file: Option<&Path>) -> Result<(), Error> {
    let Some(file) = file else { return Ok(()) };
    // Strings and numbers only: writing them into memory cannot fail.
    let text = serde_json::to_string_pretty(report).expect("a report is plain data") + "\n";
    if file == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(file, text).map_err(Error::file("write", file))
}

#[cfg(test)]
mod tests {
    use super::verdict::Check;
    use super::*;

    #[test]
    fn an_unknown_scenario_is_reported_with_those_that_there_are() {
        let error = choose(&["nosuch".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("nosuch") && error.contains("xdp-zero-copy"),
            "{error}"
        );
        assert_eq!(choose(&[]).unwrap().len(), SCENARIOS.len());
        let listed = |measure| {
            let options = Options {
                measure,
                ..Options::default()
            };
            list(&choose(&[]).unwrap(), &options)
        };
        assert!(listed(false).contains("igb") && !listed(false).contains("measured"));
        assert!(!listed(true).contains("igb") && listed(true).contains("measured"));
    }

    #[test]
    fn what_failed_is_printed_with_the_console() {
        let mut verdict = Verdict {
            scenario: "s".to_owned(),
            guest: "g".to_owned(),
            kernel: "7.2".to_owned(),
            seconds: 12.0,
            checks: vec![Check {
                what: "it is up".to_owned(),
                failure: None,
            }],
            skipped: Vec::new(),
            before: Vec::new(),
            ratios: Vec::new(),
            failure: None,
            console: PathBuf::from("/x/g.log"),
            others: vec![PathBuf::from("/x/g-b.log")],
        };
        assert_eq!(
            summary(&verdict),
            "s: g (Linux 7.2): ok, 1 of 1 checks, 12 s\n    ok      it is up\n"
        );
        verdict.checks[0].failure = Some("it is down".to_owned());
        let text = summary(&verdict);
        assert!(
            text.contains("FAILED, 0 of 1") && text.contains("it is down") && text.contains("/x/g-b.log"),
            "{text}"
        );
    }

    #[test]
    fn the_report_is_read_back() {
        let report = Report {
            schema: SCHEMA.to_owned(),
            skipped: Some("no mirror".to_owned()),
            ..Report::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}

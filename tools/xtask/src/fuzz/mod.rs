//! `cargo xtask fuzz`: builds the fuzzers of `tools/fuzz` and runs them, some at a time.
//!
//! Stable Rust is enough: what `cargo fuzz` requests of the compiler are passes of LLVM and flags for them,
//! and the rest is libFuzzer, which comes as a dependency and is compiled by a C++ compiler. The sanitizer is
//! left out here: the crates that have rooms for `unsafe` run under it elsewhere, and without it a second
//! holds three times as many inputs.

mod report;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

pub(crate) use self::report::{Found, Report};
use crate::error::Error;
use crate::workspace::{Workspace, cargo, host};

/// What `cargo xtask fuzz --help` ends with.
pub(crate) const HELP: &str = "\
What a target attacks, and what must hold, is the table in tools/fuzz/src/lib.rs. Inputs that found new ways through the
code are kept in target/fuzz/corpus, and are where the next run begins, beside the seeds in tools/fuzz/seeds. An input
that broke something is kept in target/fuzz/artifacts; how to run it again is printed.

Examples:
  cargo xtask fuzz                             a minute of each target
  cargo xtask fuzz --seconds 600 btl_frames    ten minutes of one
  cargo xtask fuzz --replay FILE btl_frames    one input again";

/// The folder of the fuzzers.
const FOLDER: &str = "tools/fuzz";

/// What `cargo fuzz` passes to the compiler, without a sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Longest input, in bytes: some hundred steps of a script.
const LONGEST: usize = 8192;
/// A run of at most this many seconds per target would wait for the compiler most of the time: it is built
/// without debug information.
const SHORT: u64 = 10;
/// How reluctantly inputs grow: scripts are long, or nothing happens in them.
const GROWTH: u32 = 10;
/// An input that takes this long (s) hangs; on a busy machine, too.
const HANGS: u64 = 60;
/// Most memory of a target (MiB): an input that takes more has found something.
const MEMORY: u64 = 2048;

/// What the command line selects.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long each target runs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many targets run at a time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Begin with the seeds alone, and keep nothing but what broke something
    #[arg(long)]
    fresh: bool,
    /// Run this input once, and nothing else; names one target
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Build them for a run of that many seconds, and run none
    #[arg(long)]
    build: bool,
    /// Also write the result to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The targets; without any, all
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// The command; true when nothing was found.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let targets = choose(targets(&workspace.root.join(FOLDER))?, &options.targets)?;
    let fuzzers = Fuzzers::of(workspace)?;
    let report = match fuzzers.cannot()? {
        Some(reason) => Report::skipped(reason),
        None => fuzzers.work(&targets, options)?,
    };
    report.print();
    if let Some(file) = &options.json {
        fs::write(file, report.to_json()).map_err(Error::file("write", file))?;
    }
    Ok(report.is_good())
}

/// Returns the names of all targets: the files in `targets`.
fn targets(folder: &Path) -> Result<Vec<String>, Error> {
    let folder = folder.join("targets");
    let entries = fs::read_dir(&folder).map_err(Error::file("list", &folder))?;
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".rs")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

fn choose(all: Vec<String>, asked: &[String]) -> Result<Vec<String>, Error> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
        return Err(Error::UnknownTarget {
            asked: unknown.clone(),
            known: all.join(", "),
        });
    }
    if asked.is_empty() {
        return Ok(all);
    }
    Ok(asked.to_vec())
}

/// Where everything is.
struct Fuzzers {
    root: PathBuf,
    /// Cargo's target folder for these builds.
    target: PathBuf,
    host: String,
}

impl Fuzzers {
    fn of(workspace: &Workspace) -> Result<Self, Error> {
        Ok(Self {
            root: workspace.root.clone(),
            target: workspace.target.join("fuzz"),
            host: host()?,
        })
    }

    /// Returns why the fuzzers cannot be built on this machine, if they cannot.
    fn cannot(&self) -> Result<Option<String>, Error> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let version = Command::new(&compiler)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        if !version.is_ok_and(|output| output.status.success()) {
            let compiler = compiler.to_string_lossy();
            return Ok(Some(format!(
                "package g++: libFuzzer needs a C++ compiler, and `{compiler}` is none"
            )));
        }
        // Tries the downloaded crates first, then downloads them.
        let mut said = String::new();
        for way in [&["--offline"][..], &[]] {
            let mut command = self.cargo("fetch", way);
            let output = command.output().map_err(|source| Error::Start {
                program: "cargo".to_owned(),
                source,
            })?;
            if output.status.success() {
                return Ok(None);
            }
            said = String::from_utf8_lossy(&output.stderr).into_owned();
        }
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        Ok(Some(format!(
            "the dependencies of {FOLDER} cannot be fetched: {}",
            last.unwrap_or("cargo gives no reason")
        )))
    }

    fn cargo(&self, what: &str, more: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command
            .args([what, "--locked", "--target", &self.host, "--manifest-path"])
            .arg(self.root.join(FOLDER).join("Cargo.toml"))
            .args(more)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_NET_RETRY", "1")
            .env("RUSTFLAGS", FLAGS)
            .stdin(Stdio::null());
        command
    }

    fn work(&self, targets: &[String], options: &Options) -> Result<Report, Error> {
        let mut build = self.cargo("build", &["--release", "--quiet"]);
        if options.seconds <= SHORT {
            build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
            // What is found is found again by a longer run, with its lines; a panic prints its own line in
            // any case.
            build.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        }
        targets
            .iter()
            .for_each(|target| _ = build.args(["--bin", target]));
        if !succeeded(&mut build)? {
            let repeat = format!("cargo xtask fuzz {}", targets.join(" "));
            return Ok(Report::of(vec![Found::failed(
                "build",
                "the fuzzers do not build".to_owned(),
                repeat,
            )]));
        }
        if options.build {
            return Ok(Report::of(Vec::new()));
        }
        if let Some(input) = &options.replay {
            return self.replay(targets, input);
        }
        let (left, found) = (Mutex::new(targets.iter()), Mutex::new(Vec::new()));
        let worker = || -> Result<(), Error> {
            loop {
                // No thread panics while holding it; and if one did, its contents are whole.
                let next = left.lock().unwrap_or_else(|held| held.into_inner()).next();
                let Some(target) = next else { return Ok(()) };
                let one = self.fuzz(target, options)?;
                one.print();
                found.lock().unwrap_or_else(|held| held.into_inner()).push(one);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(worker)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or(Err(Error::Worker)))
        })?;
        Ok(Report::of(
            found.into_inner().unwrap_or_else(|held| held.into_inner()),
        ))
    }

    fn program(&self, target: &str) -> PathBuf {
        self.target.join(&self.host).join("release").join(target)
    }

    /// Runs one target, with its output in a file.
    fn fuzz(&self, target: &str, options: &Options) -> Result<Found, Error> {
        let folder = |kind: &str| -> Result<PathBuf, Error> {
            let folder = self.target.join(kind).join(target);
            fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
            Ok(folder)
        };
        let kept = if options.fresh { "fresh" } else { "corpus" };
        if options.fresh {
            // What is not there need not be removed; what cannot be is only a better start.
            let _ = fs::remove_dir_all(self.target.join(kept).join(target));
        }
        let (corpus, artifacts) = (folder(kept)?, folder("artifacts")?);
        let log = folder("logs")?.join("last.log");
        let file = File::create(&log).map_err(Error::file("create", &log))?;
        let error = file.try_clone().map_err(Error::file("share", &log))?;
        let mut command = Command::new(self.program(target));
        command
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-max_len={LONGEST}"))
            .arg(format!("-len_control={GROWTH}"))
            .arg(format!("-timeout={HANGS}"))
            .arg(format!("-rss_limit_mb={MEMORY}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg("-print_final_stats=1")
            .arg(corpus)
            .args(Some(self.root.join(FOLDER).join("seeds").join(target)).filter(|seeds| seeds.is_dir()))
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(error);
        let status = status(&mut command)?;
        let text = fs::read(&log).map_err(Error::file("read", &log))?;
        Ok(report::read(
            target,
            status,
            &String::from_utf8_lossy(&text),
            &log,
        ))
    }

    /// Runs one input once, with its output on the terminal.
    fn replay(&self, targets: &[String], input: &Path) -> Result<Report, Error> {
        let [target] = targets else {
            return Err(Error::OneTarget(targets.len()));
        };
        let input = std::path::absolute(input).map_err(Error::file("find", input))?;
        let mut command = Command::new(self.program(target));
        let found = if succeeded(command.arg(&input).current_dir(&self.root))? {
            Found::passed(target, 1)
        } else {
            let what = format!("{target}: it still fails");
            Found::failed(target, what, report::repeat(target, &input.display().to_string()))
        };
        Ok(Report::of(vec![found]))
    }
}

fn status(command: &mut Command) -> Result<ExitStatus, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    command
        .status()
        .map_err(|source| Error::Start { program, source })
}

fn succeeded(command: &mut Command) -> Result<bool, Error> {
    Ok(status(command)?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_module_that_is_documented_and_seeds() {
        let root = crate::workspace::root().unwrap();
        let folder = root.join(FOLDER);
        let all = targets(&folder).unwrap();
        let (library, manifest) = (
            fs::read_to_string(folder.join("src/lib.rs")).unwrap(),
            fs::read_to_string(folder.join("Cargo.toml")).unwrap(),
        );
        assert!(all.len() >= 8, "{all:?}");
        for target in &all {
            assert!(
                library.contains(&format!("//! | [`{target}`] |")),
                "{target} has no row"
            );
            assert!(
                manifest.contains(&format!("path = \"targets/{target}.rs\"")),
                "{target} is not built"
            );
            let seeds = fs::read_dir(folder.join("seeds").join(target)).map(Iterator::count);
            assert!(seeds.is_ok_and(|seeds| seeds > 0), "{target} has no seeds");
        }
    }

    #[test]
    fn targets_are_chosen_by_name_and_unknown_ones_are_refused() {
        let all = || vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(choose(all(), &[]).unwrap(), all());
        assert_eq!(choose(all(), &["b".to_owned()]).unwrap(), ["b"]);
        let error = choose(all(), &["c".to_owned()]).unwrap_err().to_string();
        assert!(error.contains('c') && error.contains("a, b"), "{error}");
    }
}

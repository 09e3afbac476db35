//! `cargo xtask test`: every test of the project, step by step, and one line of counts at the end.
//!
//! No step stops the next one, so that one run shows everything that fails. What each part does:
//! `steps` has what is run, `libtest` reads what the tests printed, `skips` what they could not do,
//! `packages` what must be installed, `changed` what a change concerns, `ahead` builds for later steps,
//! `alone` repeats tests that failed, `report` what is printed and written.

mod ahead;
mod alone;
mod changed;
mod libtest;
pub(crate) mod packages;
mod progress;
mod report;
mod skips;
mod steps;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::changed::Changed;
use self::libtest::{Failed, Tally};
use self::report::{Failure, Outcome, Report};
use self::skips::Skip;
use self::steps::{Invocation, Lane, Step, Work};
use crate::child::{self, Beside, Ended, Nursery};
use crate::error::Error;
use crate::lock::{self, Lock};
use crate::workspace::{Workspace, cargo_in, is_ci};
use crate::{arrows, fuzz, lab, licences, prose};

/// What `cargo xtask test --help` ends with.
pub(crate) const HELP: &str = "\
Every step runs, whatever failed before it. Each ends with one line on standard output; the last line of all is
  N passed, N failed, N skipped
and the exit code is 0 only when nothing failed and something ran. Output of the steps is kept in target/xtask.

A test that cannot run on this machine appends one line to the file named by DOORBELL_SKIP_FILE,
  <name of the test>: <reason>
and returns; it is then counted as skipped. When what is missing is a Debian package, the reason starts with
  package <name>:
and with CI=true in the environment that is a failure, because CI could have installed it.
A test that passed and printed a line that begins with `skipped: ` is counted as skipped as well.
When at most three tests of a step fail, each is run once more by itself; what passes then is printed in a list of its own
and counts as passed.
Missing packages are installed through apt-get when this runs as root; else the line to type is printed.

Examples:
  cargo xtask test --list
  cargo xtask test --only fmt --only clippy
  cargo xtask test --changed                 what the work of the day can break
  cargo xtask test --changed HEAD~3 --fast
  cargo xtask test --fast --json target/result.json";

/// What the command line selects.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this step; may be given several times
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run what can break by what has changed since this revision, with new and uncommitted files; by default
    /// since the branch's upstream, or the last commit where there is none
    #[arg(long, value_name = "REVISION", num_args = 0..=1, require_equals = false)]
    changed: Option<Option<String>>,
    /// Leave out the slow proofs: release, loom, asan, fuzz, instructions
    #[arg(long)]
    fast: bool,
    /// Name the steps and end
    #[arg(long)]
    list: bool,
    /// Also write the result to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The most that the whole run may take; what is then still running is killed and counts as failed. On a
    /// slow or busy machine, give more: the bounds of the steps grow with it
    #[arg(long, value_name = "MINUTES", default_value_t = LIMIT, value_parser = clap::value_parser!(u64).range(..=1440))]
    limit: u64,
    /// Only build what later steps run, when no other process wants the processors
    #[arg(long, hide = true)]
    ahead: bool,
}

/// Runs the command; true when nothing failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    // The steps that are built ahead belong to a whole run.
    let whole = options.only.is_empty() && options.changed.is_none() || options.ahead;
    let (plan, left_out) = match &options.changed {
        None => (steps::plan(workspace, whole, true)?, Vec::new()),
        Some(revision) => concerned(workspace, revision.as_deref())?,
    };
    let is_concerned = |name: &&String| !left_out.contains(&name.as_str());
    let only: Vec<String> = options.only.iter().filter(is_concerned).cloned().collect();
    if only.is_empty() && !options.only.is_empty() {
        return Ok(true);
    }
    if options.list {
        print!("{}", steps::list(&plan));
        return Ok(true);
    }
    let chosen = choose(plan, &only)?;
    let logs = workspace.target.join("xtask");
    fs::create_dir_all(&logs).map_err(Error::file("create", &logs))?;
    if !options.ahead {
        packages::install(&chosen)?;
    }
    let runner = Runner {
        workspace,
        nursery: Nursery::new()?,
        logs,
        end: Instant::now() + Duration::from_secs(60 * options.limit),
        stretch: options.limit.div_ceil(LIMIT).max(1) as u32,
        ci: is_ci(),
        whole,
    };
    if options.ahead {
        return runner.ahead(&chosen).map(|()| true);
    }
    let report = runner.steps(&chosen, options.fast);
    report.print();
    if let Some(file) = &options.json {
        fs::write(file, report.to_json()).map_err(Error::file("write", file))?;
    }
    Ok(report.is_good())
}

/// Returns the steps that can break by what has changed since a revision, with the packages that can; and the
/// names of the others.
fn concerned(workspace: &Workspace, revision: Option<&str>) -> Result<(Vec<Step>, Vec<&'static str>), Error> {
    let changed = Changed::since(workspace, revision)?;
    let mut left_out = Vec::new();
    let mut plan = Vec::new();
    // As in a whole run: what is left to a step by itself takes longer than a working day's change is worth.
    for step in steps::plan(&changed.narrowed(workspace), true, false)? {
        if changed.concerns(workspace, &step)? {
            plan.push(step);
        } else {
            left_out.push(step.name);
        }
    }
    eprintln!("{}", changed.summary(&left_out));
    Ok((plan, left_out))
}

fn choose(plan: Vec<Step>, only: &[String]) -> Result<Vec<Step>, Error> {
    if let Some(asked) = only
        .iter()
        .find(|asked| !plan.iter().any(|step| step.name == **asked))
    {
        let known: Vec<&str> = plan.iter().map(|step| step.name).collect();
        return Err(Error::UnknownStep {
            asked: asked.clone(),
            known: known.join(", "),
        });
    }
    let asked = |step: &Step| only.is_empty() || only.iter().any(|name| name == step.name);
    Ok(plan.into_iter().filter(asked).collect())
}

/// Minutes that a whole run may take by default.
const LIMIT: u64 = 85;

/// Steps that run beside those that follow them: the machines of the one have one processor each, and the
/// other takes its minute however much of the processors it gets.
const BESIDE: &[&str] = &["lab", "soak"];

/// How much the calls of cargo among these yield to others, as nice(1) counts.
const YIELDS: i32 = 5;

/// Runs steps one after the other, and some beside those that follow them.
struct Runner<'a> {
    workspace: &'a Workspace,
    nursery: Nursery,
    logs: PathBuf,
    end: Instant,
    /// How much longer than by default each step may take.
    stretch: u32,
    ci: bool,
    /// Whether all steps run, and have to share the time.
    whole: bool,
}

/// A step that runs beside others.
struct Aside<'a> {
    began: Instant,
    child: Beside<'a>,
}

impl Runner<'_> {
    fn steps(&self, chosen: &[Step], fast: bool) -> Report {
        let mut report = Report::default();
        let mut asides = Vec::new();
        let mut ahead = None;
        let is_beside = |step: &&Step| self.whole && !fast && BESIDE.contains(&step.name);
        let is_lab = |step: &&Step| matches!(step.work, Work::Lab);
        let mut lab = chosen.iter().filter(is_beside).find(is_lab);
        for (index, step) in chosen.iter().enumerate() {
            // It begins once, as soon as there is room for it.
            let mut begin_lab = || asides.extend(lab.take().map(|lab| (lab, self.begin(lab))));
            if fast && step.slow {
                report.add(Outcome::left_out(step.name, "left out by --fast"));
            } else if is_lab(&step) && is_beside(&step) {
                begin_lab();
            } else if is_beside(&step) {
                asides.push((step, self.begin(step)));
            } else {
                let later = &chosen[index + 1..];
                let names = (self.whole && !fast)
                    .then(|| ahead::restarted(step, later))
                    .flatten();
                if let Some(names) = names {
                    // First the one ends, then the other begins. What it needs is only ever missing for
                    // speed.
                    drop(ahead.take());
                    ahead = self.begin_ahead(&names).ok().flatten();
                }
                let result = self.step(step, &mut begin_lab);
                if self.is_interrupted_in(&mut report, step, result) {
                    return report;
                }
            }
        }
        drop(ahead);
        for (step, begun) in asides {
            let ended = begun.and_then(|Aside { began, child }| {
                let outcome = self.end(step, child)?;
                Ok(named(outcome, step, began))
            });
            if self.is_interrupted_in(&mut report, step, ended) {
                return report;
            }
        }
        report
    }

    /// Reports what became of a step; whether nothing follows it.
    fn is_interrupted_in(&self, report: &mut Report, step: &Step, result: Result<Outcome, Error>) -> bool {
        let interrupted = matches!(result, Err(Error::Interrupted(_)));
        report.add(result.unwrap_or_else(|error| Outcome::could_not_run(step.name, &error)));
        interrupted
    }

    /// Runs one step; `room` is called when one of its lanes is through, and a processor is free.
    fn step(&self, step: &Step, room: &mut dyn FnMut()) -> Result<Outcome, Error> {
        let began = Instant::now();
        let outcome = match &step.work {
            Work::Arrows => check_arrows(self.workspace)?,
            Work::Prose => check_prose(self.workspace)?,
            Work::Licences => check_licences(self.workspace)?,
            Work::Lock => check_lock(self.workspace)?,
            Work::Fuzz(seconds) => self.fuzz(step, *seconds)?,
            Work::Instructions => self.instructions(step)?,
            Work::Lab => self.lab(step)?,
            Work::Cargo { calls, tests } => self.cargo(step, calls, *tests, room)?,
        };
        Ok(named(outcome, step, began))
    }

    /// Runs cargo, once or several times, one call after the other or side by side, with one log for all.
    fn cargo(
        &self,
        step: &Step,
        calls: &[Invocation],
        tests: bool,
        room: &mut dyn FnMut(),
    ) -> Result<Outcome, Error> {
        let (path, skip_file) = (self.log_of(step), self.skips_of(step));
        File::create(&path).map_err(Error::file("create", &path))?;
        File::create(&skip_file).map_err(Error::file("create", &skip_file))?;
        let bound = self.bound(step);
        let deadline = Instant::now() + bound;
        let mut trouble = Vec::new();
        for calls in calls.chunk_by(|_, next| next.lane != Lane::After) {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.side_by_side(step, calls, left, room)?;
            let timed_out = ended.iter().any(|ended| matches!(ended, Ended::TimedOut));
            for (call, ended) in calls.iter().zip(ended) {
                trouble.extend(unwell(&ended, bound).map(|what| Failure::new(what, call)));
            }
            if timed_out || !trouble.is_empty() && calls[0].only_builds() {
                break;
            }
        }
        self.judged(step, tests, trouble, deadline)
    }

    /// Turns the log of a step's calls of cargo into its outcome.
    fn judged(
        &self,
        step: &Step,
        tests: bool,
        trouble: Vec<Failure>,
        deadline: Instant,
    ) -> Result<Outcome, Error> {
        let text = read_lossy(&self.log_of(step))?;
        let mut skips = skips::parse(&read_lossy(&self.skips_of(step))?);
        Ok(if tests {
            let text = skips::printed(&text, &mut skips);
            let tally = libtest::parse(&text);
            let alone = self.again_alone(step, &tally.failed, deadline)?;
            count_tests(step, &text, tally, &alone, skips, trouble, self.ci)
        } else {
            Outcome::check(trouble, report::telling_lines(&text))
        })
    }

    /// Runs calls of cargo side by side; returns how each ended. Their output comes into the step's log, one
    /// call after the other.
    fn side_by_side(
        &self,
        step: &Step,
        calls: &[Invocation],
        bound: Duration,
        room: &mut dyn FnMut(),
    ) -> Result<Vec<Ended>, Error> {
        let (path, skip_file) = (self.log_of(step), self.skips_of(step));
        let mut lanes = Vec::new();
        let mut others = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let (log, nice) = match call.lane {
                Lane::Beside(nice) => (self.logs.join(format!("{}.{index}.log", step.name)), nice),
                Lane::After => (path.clone(), 0),
            };
            if log != path {
                File::create(&log).map_err(Error::file("create", &log))?;
                others.push(log.clone());
            }
            lanes.push(child::Lane {
                command: self.command(call, &skip_file),
                log: appended(&log)?,
                nice,
            });
        }
        let mut progress = progress::Progress::new(step.name, &path);
        let ended = self.nursery.together(lanes, bound, &mut |running| {
            progress.show();
            // The last lanes give way most, and need no processor for themselves.
            if (1..calls.len()).contains(&running) {
                room();
            }
        });
        progress.clear();
        for other in others {
            let copied = std::io::copy(&mut open(&other)?, &mut appended(&path)?);
            copied.map_err(Error::file("copy", &other))?;
        }
        ended
    }

    /// Runs ourselves as `cargo xtask fuzz`, in a process that can be ended with all that it started.
    fn fuzz(&self, step: &Step, seconds: u64) -> Result<Outcome, Error> {
        let json = self.logs.join(format!("{}.json", step.name));
        File::create(&json).map_err(Error::file("create", &json))?;
        let seconds_text = seconds.to_string();
        let words = ["fuzz", "--fresh", "--seconds", &seconds_text, "--json"].map(OsStr::new);
        let (ended, text) = self.ourselves(step, words.into_iter().chain([json.as_os_str()]))?;
        let report = serde_json::from_str(&read_lossy(&json)?);
        Ok(match (ended, report) {
            (Ended::Exit(_), Ok(report)) => count_fuzzers(report, self.ci),
            (ended, _) => {
                let what = ended_badly(&ended, step);
                let repeat = format!("cargo xtask fuzz --seconds {seconds}");
                Outcome::check(vec![Failure { what, repeat }], report::telling_lines(&text))
            }
        })
    }

    /// Runs the same as `cargo xtask instructions`, as one check.
    fn instructions(&self, step: &Step) -> Result<Outcome, Error> {
        if let Some(package) = packages::lacking("valgrind") {
            let reason = format!("package {package}: not found");
            return Ok(if self.ci {
                let what = format!("{reason} (with CI=true a missing package is a failure)");
                let repeat = packages::install_line(&[package]);
                Outcome::check(vec![Failure { what, repeat }], Vec::new())
            } else {
                Outcome::left_out(step.name, &reason)
            });
        }
        let (ended, text) = self.ourselves(step, [OsStr::new("instructions")])?;
        let good = matches!(ended, Ended::Exit(status) if status.success());
        let failure = (!good).then(|| Failure {
            what: ended_badly(&ended, step),
            repeat: "cargo xtask instructions".to_owned(),
        });
        Ok(Outcome::check(
            failure.into_iter().collect(),
            text.lines().map(str::to_owned).collect(),
        ))
    }

    /// Begins with a step that runs beside others.
    fn begin<'s>(&'s self, step: &'s Step) -> Result<Aside<'s>, Error> {
        let began = Instant::now();
        let child = match &step.work {
            Work::Cargo { calls, .. } => self.begin_calls(step, calls)?,
            _ => self.begin_lab(step)?,
        };
        Ok(Aside { began, child })
    }

    /// Waits for a step that runs beside others.
    fn end(&self, step: &Step, child: Beside<'_>) -> Result<Outcome, Error> {
        match &step.work {
            Work::Cargo { calls, tests } => self.end_calls(step, calls, *tests, child),
            _ => self.end_lab(step, child),
        }
    }

    /// Begins with the last call of a step; what those before it build, the step before has built.
    fn begin_calls<'s>(&'s self, step: &Step, calls: &[Invocation]) -> Result<Beside<'s>, Error> {
        let (path, skip_file) = (self.log_of(step), self.skips_of(step));
        let log = File::create(&path).map_err(Error::file("create", &path))?;
        File::create(&skip_file).map_err(Error::file("create", &skip_file))?;
        let call = calls.last().cloned().unwrap_or_default();
        let mut command = self.command(&call, &skip_file);
        let child = self.nursery.beside(&mut command, &log, self.bound(step))?;
        child.yield_to_others(YIELDS);
        Ok(child)
    }

    /// Waits for the last call of a step.
    fn end_calls(
        &self,
        step: &Step,
        calls: &[Invocation],
        tests: bool,
        child: Beside<'_>,
    ) -> Result<Outcome, Error> {
        let mut progress = progress::Progress::new(step.name, &self.log_of(step));
        let ended = child.wait(&mut |_| progress.show())?;
        progress.clear();
        let trouble = calls.last().and_then(|call| {
            let what = unwell(&ended, step.bound)?;
            Some(Failure::new(what, call))
        });
        let deadline = Instant::now() + self.bound(step);
        self.judged(step, tests, trouble.into_iter().collect(), deadline)
    }

    /// Runs the same as `cargo xtask lab`, as a step of its own.
    fn lab(&self, step: &Step) -> Result<Outcome, Error> {
        self.end_lab(step, self.begin_lab(step)?)
    }

    /// Begins with the lab, among all steps with one guest for each thing that is proved. A guest has one
    /// processor, so it leaves room for builds and tests beside it.
    fn begin_lab<'s>(&'s self, step: &'s Step) -> Result<Beside<'s>, Error> {
        let json = self.json_of(step);
        File::create(&json).map_err(Error::file("create", &json))?;
        let words = ["lab", "--again", "1", "--json"].map(OsStr::new);
        let words = words.into_iter().chain([json.as_os_str()]);
        let short = self.whole.then_some(OsStr::new("--short"));
        let (mut command, log, _) = self.ourselves_in(step, words.chain(short))?;
        self.nursery.beside(&mut command, &log, self.bound(step))
    }

    /// Waits for the lab; each check counts as a test.
    fn end_lab(&self, step: &Step, child: Beside<'_>) -> Result<Outcome, Error> {
        let path = self.log_of(step);
        let mut progress = progress::Progress::new(step.name, &path);
        let ended = child.wait(&mut |_| progress.show())?;
        progress.clear();
        let text = read_lossy(&path)?;
        let json = self.json_of(step);
        let report = serde_json::from_str(&read_lossy(&json)?);
        let repeat = "cargo xtask lab".to_owned();
        let badly = |ended| Failure {
            what: ended_badly(ended, step),
            repeat,
        };
        Ok(match (&ended, report) {
            (Ended::Exit(_), Ok(report)) => count_guests(report, self.ci),
            (ended, _) => Outcome::check(vec![badly(ended)], report::telling_lines(&text)),
        })
    }

    /// Runs this program with other arguments, in a process that can be ended with all that it started;
    /// returns how it ended, and its output.
    fn ourselves<'w>(
        &self,
        step: &Step,
        words: impl IntoIterator<Item = &'w OsStr>,
    ) -> Result<(Ended, String), Error> {
        let (mut command, log, path) = self.ourselves_in(step, words)?;
        let mut progress = progress::Progress::new(step.name, &path);
        let ended = self
            .nursery
            .run(&mut command, &log, self.bound(step), &mut |_| progress.show())?;
        progress.clear();
        Ok((ended, read_lossy(&path)?))
    }

    /// Returns the command to run this program with other arguments, and the log that it is to write.
    fn ourselves_in<'w>(
        &self,
        step: &Step,
        words: impl IntoIterator<Item = &'w OsStr>,
    ) -> Result<(Command, File, PathBuf), Error> {
        let path = self.log_of(step);
        let log = File::create(&path).map_err(Error::file("create", &path))?;
        // Not by its path: an earlier step may have built this program again.
        let mut command = Command::new("/proc/self/exe");
        command.args(words).current_dir(&self.workspace.root);
        Ok((command, log, path))
    }

    /// Returns how long a step that begins now may take.
    fn bound(&self, step: &Step) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        left.min(step.bound * self.stretch)
    }

    fn log_of(&self, step: &Step) -> PathBuf {
        self.logs.join(format!("{}.log", step.name))
    }

    fn skips_of(&self, step: &Step) -> PathBuf {
        self.logs.join(format!("{}.skips", step.name))
    }

    fn json_of(&self, step: &Step) -> PathBuf {
        self.logs.join(format!("{}.json", step.name))
    }

    fn command(&self, call: &Invocation, skip_file: &Path) -> Command {
        let mut command = cargo_in(&self.workspace.root);
        command.args(&call.arguments);
        if call.tests() {
            // So that a test that only prints that it is skipped is not counted as passed.
            let is_open = call.arguments.iter().any(|word| word == "--");
            command.args((!is_open).then_some("--")).arg("--show-output");
        }
        command
            .env("DOORBELL_SKIP_FILE", skip_file)
            .env("CARGO_TERM_COLOR", "never")
            .env("XTASK_PROGRAM", self.workspace.target.join("debug/xtask"));
        if !call.target.is_empty() {
            command.env("CARGO_TARGET_DIR", self.workspace.target.join(call.target));
        }
        command.envs(call.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Completes the outcome of a step that began at `began`.
fn named(mut outcome: Outcome, step: &Step, began: Instant) -> Outcome {
    outcome.name = step.name.to_owned();
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome
}

/// Describes how a call of cargo ended that did not end well.
fn unwell(ended: &Ended, bound: Duration) -> Option<String> {
    match ended {
        Ended::Exit(status) if status.success() => None,
        Ended::Exit(status) => Some(format!("cargo ended with {status}")),
        Ended::TimedOut => Some(format!(
            "still running at its limit, after {} s; killed",
            bound.as_secs()
        )),
    }
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(Error::file("open", path))
}

/// Opens a file to which all writers append.
fn appended(path: &Path) -> Result<File, Error> {
    let file = File::options().append(true).open(path);
    file.map_err(Error::file("open", path))
}

/// Describes how one of our commands ended that should have ended well.
fn ended_badly(ended: &Ended, step: &Step) -> String {
    match ended {
        Ended::Exit(status) => format!("cargo xtask {} ended with {status}", step.name),
        Ended::TimedOut => "still running at its limit; killed".to_owned(),
    }
}

/// Turns what a step's tests printed into counts.
fn count_tests(
    step: &Step,
    log: &str,
    tally: Tally,
    alone: &[Failed],
    skips: Vec<Skip>,
    mut trouble: Vec<Failure>,
    ci: bool,
) -> Outcome {
    let mut outcome = Outcome {
        passed: tally.passed + alone.len(),
        ..Outcome::default()
    };
    let base = steps::repeat_base(step).typed();
    for failed in &tally.failed {
        let failure = Failure {
            what: failed.to_string(),
            repeat: format!("{base} {}", failed.repeat_arguments()),
        };
        if alone.contains(failed) {
            outcome.alone.push(failure);
        } else {
            outcome.failures.push(failure);
        }
    }
    if !outcome.alone.is_empty() && outcome.failures.is_empty() {
        // Cargo ended badly because of these.
        trouble.retain(|failure| failure.what.contains("killed"));
    }
    // A test that reports that it could not run has returned, so libtest has counted it as passed.
    outcome.passed = outcome.passed.saturating_sub(skips.len());
    for skip in tally.ignored.into_iter().chain(skips) {
        skipped(&mut outcome, skip, ci);
    }
    let nothing_ran = outcome.passed == 0 && outcome.failures.is_empty();
    // A failing cargo is explained by failing tests; alone it means that something did not compile or
    // crashed.
    if outcome.failures.is_empty() || trouble.iter().any(|failure| failure.what.contains("killed")) {
        outcome.failures.extend(trouble);
    }
    if nothing_ran && outcome.failures.is_empty() {
        let what = "no test ran; look for a filter, a cfg or a harness that hides them".to_owned();
        outcome.failures.push(Failure {
            what,
            repeat: format!("cargo xtask test --only {}", step.name),
        });
    }
    if !outcome.failures.is_empty() || !outcome.alone.is_empty() {
        outcome.log = report::telling_lines(log);
    }
    outcome
}

/// Counts each fuzzing target as a test.
fn count_fuzzers(report: fuzz::Report, ci: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for found in report.found {
        let fuzz::Found {
            failure,
            repeat,
            lines,
            ..
        } = found;
        match failure {
            None => outcome.passed += 1,
            Some(what) => {
                outcome.failures.push(Failure { what, repeat });
                outcome.log.extend(lines);
            }
        }
    }
    if let Some(reason) = report.skipped {
        let skip = Skip {
            test: "the whole step fuzz".to_owned(),
            reason,
        };
        skipped(&mut outcome, skip, ci);
    }
    outcome
}

/// Notes a test that could not run; where all packages have to be there, one that is missing is a failure.
fn skipped(outcome: &mut Outcome, skip: Skip, ci: bool) {
    match skip.package() {
        Some(package) if ci => outcome.failures.push(Failure {
            what: format!(
                "{}: {} (with CI=true a missing package is a failure)",
                skip.test, skip.reason
            ),
            repeat: packages::install_line(&[package]),
        }),
        _ => outcome.skips.push(skip),
    }
}

/// Counts each check in a guest as a test.
fn count_guests(report: lab::Report, ci: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for guest in report.guests {
        let name = format!("{}, {}", guest.scenario, guest.guest);
        let repeat = format!("cargo xtask lab {} --guest '{}'", guest.scenario, guest.guest);
        outcome.passed += guest.checks.len()
            - guest
                .checks
                .iter()
                .filter(|check| check.failure.is_some())
                .count();
        outcome.failures.extend(guest.failures().map(|what| Failure {
            what: format!("{name}: {what}"),
            repeat: repeat.clone(),
        }));
        let before = guest.before.iter();
        let before = before.map(|failed| format!("{name}: booted again, because this failed: {failed}"));
        outcome.log.extend(before);
        if !guest.is_good() {
            let console = format!("the console of {} is in {}", guest.guest, guest.console.display());
            outcome.log.push(console);
        }
        for reason in guest.skipped {
            skipped(
                &mut outcome,
                Skip {
                    test: name.clone(),
                    reason,
                },
                ci,
            );
        }
    }
    outcome.skips.extend(report.skipped.map(|reason| Skip {
        test: "the whole step lab".to_owned(),
        reason,
    }));
    outcome
}

fn check_arrows(workspace: &Workspace) -> Result<Outcome, Error> {
    let findings = arrows::check(workspace)?.findings;
    let lines = findings.iter().map(ToString::to_string).collect();
    let what = format!("{} findings", findings.len());
    let failure = Failure {
        what,
        repeat: "cargo xtask arrows".to_owned(),
    };
    Ok(Outcome::check(
        if findings.is_empty() {
            Vec::new()
        } else {
            vec![failure]
        },
        lines,
    ))
}

fn check_prose(workspace: &Workspace) -> Result<Outcome, Error> {
    let problems = prose::problems(workspace)?;
    let failure = Failure {
        what: format!("{} folders are over their bounds", problems.len()),
        repeat: "cargo xtask prose".to_owned(),
    };
    let failures = if problems.is_empty() {
        Vec::new()
    } else {
        vec![failure]
    };
    Ok(Outcome::check(failures, problems))
}

fn check_licences(workspace: &Workspace) -> Result<Outcome, Error> {
    let found = licences::check(workspace)?;
    let what = format!("{} problems", found.problems.len());
    let failure = Failure {
        what,
        repeat: "cargo xtask licences".to_owned(),
    };
    let failures = if found.problems.is_empty() {
        Vec::new()
    } else {
        vec![failure]
    };
    let mut outcome = Outcome::check(failures, found.problems);
    outcome.skips.extend(found.unchecked.map(|reason| Skip {
        test: "advisories".to_owned(),
        reason,
    }));
    Ok(outcome)
}

fn check_lock(workspace: &Workspace) -> Result<Outcome, Error> {
    Ok(match lock::check(&workspace.root)? {
        Lock::Good => Outcome::check(Vec::new(), Vec::new()),
        Lock::Unknown => Outcome::left_out("lock", "no git commit to compare with"),
        Lock::Stale => {
            let what =
                "building changed Cargo.lock though no manifest changed; commit it as it is now".to_owned();
            let failure = Failure {
                what,
                repeat: "git diff Cargo.lock".to_owned(),
            };
            Outcome::check(vec![failure], Vec::new())
        }
    })
}

fn read_lossy(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(Error::file("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;

//! What is run: the steps, their order, their limits, and the command of each.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::error::Error;
use crate::workspace::{Member, TargetKind, Workspace, host};

/// Folders whose unit tests run under AddressSanitizer: those that hold rooms for `unsafe`.
const SANITIZED: &[&str] = &["ring", "fabric", "drivers/shm", "drivers/usnic/model"];

/// Folders whose tests run under AddressSanitizer only where there is time: these are built from nearly
/// everything, for one room of a few lines.
const SANITIZED_WITH_TIME: &[&str] = &["engine"];

/// Folders all of whose tests, also those in `tests/`, run in release mode and under AddressSanitizer too:
/// they are unsafe throughout, and their orderings are the optimiser's prey.
const DATA_PATH: &[&str] = &["ring"];

/// Test files of other folders that run in release mode too, by a part of their names: what they count or
/// stress is the code that users run.
const IN_RELEASE: &[&str] = &["alloc", "counts", "release", "stress", "system_calls"];

/// What makes cargo leave out the dependencies that only benches need, where tests are built once more.
const WITHOUT_BENCHES: &str = "--cfg without_benches";

/// The program of a package with its tests of whole jobs, `tests/it/main.rs`.
const JOBS: &str = "it";

/// Number of tests of whole jobs that run at a time, for each processor.
const THREADS: usize = 2;

/// The test file of the minute of mixed traffic.
const SOAK: &str = "soak";

/// Test files that are loom proofs, by a part of their names.
const LOOM: &str = "loom";

/// One call of cargo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Invocation {
    /// Added to the environment.
    pub(super) environment: Vec<(&'static str, String)>,
    /// What follows `cargo`.
    pub(super) arguments: Vec<String>,
    /// The folder below cargo's target folder that this build has for itself; empty for the common one.
    pub(super) target: &'static str,
    /// The lane in which it runs.
    pub(super) lane: Lane,
}

/// The lane in which a call of cargo runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lane {
    /// After the calls before it.
    #[default]
    After,
    /// Beside the call before it, and giving way to it by so much, as nice(1) counts.
    Beside(i32),
}

impl Invocation {
    fn new(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            ..Self::default()
        }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    fn and(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    fn beside(mut self, nice: i32) -> Self {
        self.lane = Lane::Beside(nice);
        self
    }

    /// Whether it runs nothing, so that where it fails nothing that follows can run.
    pub(super) fn only_builds(&self) -> bool {
        let is_build = self.arguments.first().is_some_and(|word| word == "build");
        is_build || self.arguments.iter().any(|word| word == "--no-run")
    }

    /// Whether it runs tests.
    pub(super) fn tests(&self) -> bool {
        self.arguments.first().is_some_and(|word| word == "test") && !self.only_builds()
    }

    /// Returns the environment as one types it before a command, with a space at the end if there is any.
    pub(super) fn typed_environment(&self) -> String {
        let mut typed = String::new();
        if !self.target.is_empty() {
            let _ = write!(typed, "CARGO_TARGET_DIR=target/{} ", self.target);
        }
        for (name, value) in &self.environment {
            let _ = write!(typed, "{name}={} ", quoted(value));
        }
        typed
    }

    /// Returns the whole command as one types it.
    pub(super) fn typed(&self) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(|argument| quoted(argument)).collect();
        format!("{}cargo {}", self.typed_environment(), arguments.join(" "))
    }
}

/// Quotes `text` so that a shell takes it for one word.
pub(super) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=/.:,+@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// How a step does its work.
#[derive(Debug)]
pub(super) enum Work {
    /// The rules of `cargo xtask arrows`.
    Arrows,
    /// The rules of `cargo xtask prose`.
    Prose,
    /// The rules of `cargo xtask licences`.
    Licences,
    /// The comparison of `Cargo.lock` with what is committed.
    Lock,
    /// `cargo xtask fuzz`, for this many seconds of each target.
    Fuzz(u64),
    /// `cargo xtask instructions`.
    Instructions,
    /// `cargo xtask lab`.
    Lab,
    /// Cargo, once or several times.
    Cargo {
        /// The calls, in order.
        calls: Vec<Invocation>,
        /// Whether the output is libtest's, so that tests are counted; else the step counts as one.
        tests: bool,
    },
}

/// One step of the tests.
#[derive(Debug)]
pub(super) struct Step {
    /// The name that `--only` takes.
    pub(super) name: &'static str,
    /// What it shows, in one sentence.
    pub(super) about: &'static str,
    /// Whether `--fast` leaves it out.
    pub(super) slow: bool,
    /// The most that it may take.
    pub(super) bound: Duration,
    /// How it is done.
    pub(super) work: Work,
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Returns all steps, in the order in which they begin: what fails fastest comes first. They are as in a
/// `whole` run, or as one chosen by name; for `all` packages, or for just those that the workspace has been
/// narrowed to. The lab, whose machines have one processor each, begins when a lane of the tests has ended,
/// at the latest at its place, and runs beside those that follow.
pub(super) fn plan(workspace: &Workspace, whole: bool, all: bool) -> Result<Vec<Step>, Error> {
    let packages = packages(workspace, all);
    let check = |name, about, bound, call| {
        let work = Work::Cargo {
            calls: vec![call],
            tests: false,
        };
        Step {
            name,
            about,
            slow: false,
            bound,
            work,
        }
    };
    let tests = |name, about, slow, bound, calls| {
        let work = Work::Cargo { calls, tests: true };
        Step {
            name,
            about,
            slow,
            bound,
            work,
        }
    };
    let own = |name, about, work| Step {
        name,
        about,
        slow: false,
        bound: minutes(5),
        work,
    };
    let clippy = Invocation::new(&["clippy", "--locked"]).and(&packages).and(&[
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]);
    let doc = Invocation::new(&["doc", "--locked", "--no-deps"])
        .and(&packages)
        .with("RUSTDOCFLAGS", "-D warnings");
    Ok(vec![
        Step {
            work: Work::Cargo {
                calls: vec![
                    format(&[]),
                    format(&["--manifest-path", "tools/fuzz/Cargo.toml"]),
                    format(&["--manifest-path", "tools/peers/iceoryx2/Cargo.toml"]),
                ],
                tests: false,
            },
            ..own("fmt", "every file is formatted", Work::Lock)
        },
        own(
            "lock",
            "the committed Cargo.lock is what the manifests require",
            Work::Lock,
        ),
        own(
            "arrows",
            "floors, unsafe rooms and the tree are in order",
            Work::Arrows,
        ),
        own(
            "prose",
            "comments, messages and documents have no more words of the list than before",
            Work::Prose,
        ),
        own(
            "licences",
            "dependencies are licensed as we accept",
            Work::Licences,
        ),
        check(
            "clippy",
            "no lint of rustc or clippy, tests and benches included",
            minutes(12),
            clippy,
        ),
        tests(
            "test",
            "unit, integration and documentation tests",
            false,
            minutes(55),
            test(workspace, &packages),
        ),
        Step {
            slow: true,
            bound: minutes(30),
            ..own(
                "lab",
                "NICs and kernels that this machine does not have, emulated",
                Work::Lab,
            )
        },
        Step {
            slow: true,
            work: Work::Cargo {
                calls: soak(workspace, &packages, all),
                tests: true,
            },
            ..own(
                "soak",
                "a minute of mixed traffic over a modelled VIC: nothing is wrong, and nothing grows",
                Work::Lock,
            )
        },
        check(
            "docs",
            "the documentation builds without a warning",
            minutes(8),
            doc,
        ),
        tests(
            "release",
            "tests of the data path, optimised as users get it",
            true,
            minutes(12),
            release(workspace),
        ),
        tests(
            "loom",
            "every interleaving of the lock-free parts, within their bounds",
            true,
            minutes(15),
            loom(workspace),
        ),
        tests(
            "asan",
            "tests of the crates with unsafe rooms, under AddressSanitizer",
            true,
            minutes(12),
            asan(workspace, whole)?,
        ),
        Step {
            slow: true,
            bound: minutes(8),
            ..own(
                "fuzz",
                "five seconds of each fuzzer, from its seeds",
                Work::Fuzz(5),
            )
        },
        Step {
            slow: true,
            bound: minutes(8),
            ..own(
                "instructions",
                "rails that carry nothing cost a small message next to nothing",
                Work::Instructions,
            )
        },
    ])
}

/// Returns the calls that run all tests. Those of whole jobs wait half of their time: where packages have the
/// program `it` for them, those run in one lane, all other programs beside them, and the documentation's,
/// which rustdoc compiles one by one, beside both. Jobs have the right of way, as what they wait for can come
/// too late.
fn test(workspace: &Workspace, packages: &[&str]) -> Vec<Invocation> {
    let fixed = || Invocation::new(&["test", "--locked"]).and(packages);
    let targets = || workspace.members.iter().flat_map(|member| &member.targets);
    let names = |kind| {
        let tested = targets().filter(move |target| target.kind == kind && target.is_tested);
        tested.map(|target| &*target.name).collect::<BTreeSet<_>>()
    };
    let mut programs = names(TargetKind::Test);
    if !programs.remove(JOBS) || names(TargetKind::Library).is_empty() {
        return vec![fixed().and(&["--no-fail-fast"])];
    }
    let call = |more: &[&str]| fixed().and(&["--no-fail-fast"]).and(more);
    let mut others = vec!["--lib"];
    others.extend(
        names(TargetKind::Program)
            .into_iter()
            .flat_map(|name| ["--bin", name]),
    );
    others.extend(programs.into_iter().flat_map(|name| ["--test", name]));
    // With examples, so that features are as in the call before, and everything is there. But cargo lists the
    // sources only beside what was requested, and by the lists tests see that a program or a library of
    // another package is fresh; else each builds it with features of its own, and half of the workspace too.
    let listed = Invocation::new(&["build", "--locked"]).and(packages);
    // Jobs wait, and other programs compute.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (THREADS * cores).to_string();
    vec![
        fixed().and(&["--no-run"]),
        listed.and(&["--lib", "--bins", "--examples"]),
        call(&["--test", JOBS]).with("RUST_TEST_THREADS", &threads),
        call(&others).beside(4),
        call(&["--doc"]).beside(8),
    ]
}

/// Returns the packages that are tested, as arguments of cargo.
fn packages(workspace: &Workspace, all: bool) -> Vec<&str> {
    if all {
        return vec!["--workspace"];
    }
    let members = workspace.members.iter();
    members.flat_map(|member| ["-p", &member.package]).collect()
}

/// Returns the call that runs what the tests have built: packages chosen one by one would have other
/// features, and be built again.
fn soak(workspace: &Workspace, packages: &[&str], all: bool) -> Vec<Invocation> {
    let is_there = |member: &Member| member.targets.iter().any(|target| target.name == SOAK);
    if !all && !workspace.members.iter().any(is_there) {
        return Vec::new();
    }
    let call = || Invocation::new(&["test", "--locked"]).and(packages);
    let minute = call().and(&["--test", SOAK, "--", "--ignored", "--nocapture"]);
    vec![call().and(&["--no-run"]), minute]
}

fn format(of: &[&str]) -> Invocation {
    let arguments = [&["fmt", "--all", "--check"], of, &["--", "--color=never"]];
    Invocation::new(&arguments.concat())
}

/// Returns the names of the steps, for `--list`.
pub(super) fn list(plan: &[Step]) -> String {
    let line = |step: &Step| {
        let slow = if step.slow { ", left out by --fast" } else { "" };
        format!(
            "{:12} {} (at most {} min{slow})\n",
            step.name,
            step.about,
            step.bound.as_secs() / 60
        )
    };
    plan.iter().map(line).collect()
}

/// Returns the call that repeats a part of a step's tests, before what chooses them: environment, target
/// folder, and cargo with the arguments that decide how it builds.
pub(super) fn repeat_base(step: &Step) -> Invocation {
    let mut base = Invocation::new(&["test"]);
    let Work::Cargo { calls, .. } = &step.work else {
        return base;
    };
    let Some(call) = calls.first() else {
        return base;
    };
    base.environment.clone_from(&call.environment);
    base.target = call.target;
    let mut arguments = call.arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--profile" || argument == "--target" {
            base.arguments.push(argument.clone());
            base.arguments.extend(arguments.next().cloned());
        }
    }
    base
}

/// Returns the test files of a package whose names contain one of `parts`, as arguments; empty when there is
/// none.
fn tests_named(member: &Member, parts: &[&str]) -> Vec<String> {
    let tests = member
        .targets
        .iter()
        .filter(|target| target.kind == TargetKind::Test);
    let named = tests.filter(|target| parts.iter().any(|part| target.name.contains(part)));
    named
        .flat_map(|target| ["--test".to_owned(), target.name.clone()])
        .collect()
}

fn is_in(folders: &[&str], member: &Member) -> bool {
    folders.contains(&member.folder.as_str())
}

fn release(workspace: &Workspace) -> Vec<Invocation> {
    let fixed = ["test", "--locked", "--profile", "release-test", "--no-fail-fast"];
    let mut calls = Vec::new();
    for member in workspace.members.iter().filter(|member| is_in(DATA_PATH, member)) {
        let mut call = Invocation::new(&fixed).with("RUSTFLAGS", WITHOUT_BENCHES);
        let whole = ["-p", &member.package, "--lib", "--tests"];
        call.arguments.extend(whole.map(str::to_owned));
        calls.push(call);
    }
    // One call for all of them, so that they build side by side; a name holds for every package that has such
    // a file.
    let mut call = Invocation::new(&fixed).with("RUSTFLAGS", WITHOUT_BENCHES);
    let mut files = BTreeSet::new();
    for member in workspace
        .members
        .iter()
        .filter(|member| !is_in(DATA_PATH, member))
    {
        let named = tests_named(member, IN_RELEASE);
        if !named.is_empty() {
            call.arguments.extend(["-p".to_owned(), member.package.clone()]);
            files.extend(named.into_iter().filter(|word| word != "--test"));
        }
    }
    for file in files {
        call.arguments.extend(["--test".to_owned(), file]);
    }
    calls.extend(chosen(call, fixed.len()));
    calls
}

fn loom(workspace: &Workspace) -> Vec<Invocation> {
    let mut call = Invocation::new(&["test", "--locked", "--profile", "release-test", "--no-fail-fast"])
        .with("RUSTFLAGS", "--cfg loom")
        // A model runs the code itself: without these, overflow and broken invariants would pass in silence.
        .with("CARGO_PROFILE_RELEASE_TEST_DEBUG_ASSERTIONS", "true");
    call.target = "loom";
    let fixed = call.arguments.len();
    for member in &workspace.members {
        let named = tests_named(member, &[LOOM]);
        if !named.is_empty() {
            call.arguments.extend(["-p".to_owned(), member.package.clone()]);
            call.arguments.extend(named);
        }
    }
    chosen(call, fixed)
}

/// Returns the call, if packages were added to its `fixed` arguments: without any, cargo would take them all.
fn chosen(call: Invocation, fixed: usize) -> Vec<Invocation> {
    if call.arguments.len() > fixed {
        vec![call]
    } else {
        Vec::new()
    }
}

fn asan(workspace: &Workspace, whole: bool) -> Result<Vec<Invocation>, Error> {
    let host = host()?;
    let mut call = Invocation::new(&["test", "--locked", "--no-fail-fast", "--lib", "--target", &host])
        // The sanitizer's runtime comes with the stable toolchain; only its flag is not stable.
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", &format!("-Zsanitizer=address {WITHOUT_BENCHES}"))
        // Enough for where an access was, and sooner built.
        .with("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        // Finding leaks needs ptrace, which containers often refuse; accesses are what this step is about.
        // Tests of guard pages expect the signal itself.
        .with("ASAN_OPTIONS", "detect_leaks=0:handle_segv=0:handle_sigbus=0");
    call.target = "asan";
    let fixed = call.arguments.len();
    let sanitized =
        |member: &&Member| is_in(SANITIZED, member) || !whole && is_in(SANITIZED_WITH_TIME, member);
    for member in workspace.members.iter().filter(sanitized) {
        call.arguments.extend(["-p".to_owned(), member.package.clone()]);
    }
    for member in workspace.members.iter().filter(|member| is_in(DATA_PATH, member)) {
        let models = tests_named(member, &[LOOM]);
        let all = tests_named(member, &[""]);
        call.arguments.extend(
            all.chunks(2)
                .filter(|test| !models.contains(&test[1]))
                .flatten()
                .cloned(),
        );
    }
    Ok(chosen(call, fixed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    fn workspace(tests: &[(&str, &[&str])]) -> Workspace {
        let target = |name: &&str| Target {
            name: (*name).to_owned(),
            kind: TargetKind::Test,
            path: String::new(),
            is_tested: true,
        };
        let member = |(folder, names): &(&str, &[&str])| Member {
            package: format!("doorbell-{folder}"),
            folder: (*folder).to_owned(),
            depends: Vec::new(),
            targets: names.iter().map(target).collect(),
        };
        Workspace {
            root: "/x".into(),
            target: "/x/target".into(),
            members: tests.iter().map(member).collect(),
        }
    }

    #[test]
    fn loom_and_release_find_their_test_files_by_name() {
        let workspace = workspace(&[
            ("ring", &["loom_spsc", "loom_mpsc", "order"]),
            ("pml", &["no_alloc", "story"]),
            ("btl", &["allocations", "no_alloc"]),
            ("oob", &["x"]),
        ]);
        let loom = loom(&workspace)[0].typed();
        assert!(
            loom.starts_with("CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' "),
            "{loom}"
        );
        assert!(
            loom.ends_with("-p doorbell-ring --test loom_spsc --test loom_mpsc"),
            "{loom}"
        );
        let release: Vec<String> = release(&workspace).iter().map(Invocation::typed).collect();
        assert_eq!(
            release,
            [
                "RUSTFLAGS='--cfg without_benches' cargo test --locked --profile release-test --no-fail-fast \
                 -p doorbell-ring --lib --tests",
                "RUSTFLAGS='--cfg without_benches' cargo test --locked --profile release-test --no-fail-fast \
                 -p doorbell-pml -p doorbell-btl --test allocations --test no_alloc",
            ]
        );
    }

    #[test]
    fn jobs_other_programs_and_documentation_are_tested_side_by_side_once_all_is_built() {
        let target = |name: &str, kind, is_tested| Target {
            name: name.to_owned(),
            kind,
            path: String::new(),
            is_tested,
        };
        let mut workspace = workspace(&[("pml", &["it", "model"]), ("btl", &["it", "allocations"])]);
        assert_eq!(
            test(&workspace, &["--workspace"]).len(),
            1,
            "without a library there is nothing to divide"
        );
        workspace.members[0].targets.extend([
            target("doorbell_pml", TargetKind::Library, true),
            target("doorbell", TargetKind::Program, true),
            target("plain", TargetKind::Program, false),
        ]);
        let calls = test(&workspace, &["--workspace"]);
        let plain = |call: &Invocation| Invocation {
            environment: Vec::new(),
            ..call.clone()
        };
        let typed: Vec<_> = calls.iter().map(|call| plain(call).typed()).collect();
        assert_eq!(
            typed,
            [
                "cargo test --locked --workspace --no-run",
                "cargo build --locked --workspace --lib --bins --examples",
                "cargo test --locked --workspace --no-fail-fast --test it",
                "cargo test --locked --workspace --no-fail-fast --lib --bin doorbell --test allocations --test model",
                "cargo test --locked --workspace --no-fail-fast --doc",
            ]
        );
        let lanes: Vec<_> = calls.iter().map(|call| call.lane).collect();
        assert_eq!(
            lanes,
            [
                Lane::After,
                Lane::After,
                Lane::After,
                Lane::Beside(4),
                Lane::Beside(8)
            ]
        );
        assert!(calls[..2].iter().all(|call| call.only_builds() && !call.tests()));
        assert!(calls[2..].iter().all(|call| call.tests()));
        let has_threads = |call: &Invocation| call.typed_environment().starts_with("RUST_TEST_THREADS=");
        let threads: Vec<_> = calls.iter().map(has_threads).collect();
        assert_eq!(threads, [false, false, true, false, false], "jobs alone");
    }

    #[test]
    fn where_no_package_takes_part_cargo_is_not_called() {
        let workspace = workspace(&[("oob", &["x"])]);
        assert_eq!(loom(&workspace), []);
        assert_eq!(asan(&workspace, false).unwrap(), []);
        assert_eq!(release(&workspace), []);
    }

    #[test]
    fn the_sanitizer_sees_only_crates_with_rooms() {
        let workspace = workspace(&[
            ("ring", &["loom_spsc", "model"]),
            ("fabric", &["x"]),
            ("pml", &[]),
            ("engine", &[]),
        ]);
        let with_time = asan(&workspace, false).unwrap()[0].typed();
        assert!(
            with_time.contains(" -p doorbell-fabric -p doorbell-engine --test"),
            "{with_time}"
        );
        let asan = asan(&workspace, true).unwrap()[0].typed();
        assert!(
            asan.contains("RUSTFLAGS='-Zsanitizer=address --cfg without_benches'")
                && asan.contains("--target "),
            "{asan}"
        );
        assert!(
            asan.ends_with("-p doorbell-ring -p doorbell-fabric --test model"),
            "{asan}"
        );
    }

    #[test]
    fn a_repeated_test_keeps_mode_target_and_environment() {
        let plan = plan(&workspace(&[("ring", &["loom_spsc"])]), true, true).unwrap();
        let base = |name: &str| repeat_base(plan.iter().find(|step| step.name == name).unwrap()).typed();
        assert_eq!(base("test"), "cargo test");
        let release = base("release");
        assert!(
            release.ends_with("' cargo test --profile release-test"),
            "{release}"
        );
        let loom = base("loom");
        assert!(loom.contains("--cfg loom") && loom.ends_with("cargo test --profile release-test"));
        assert!(base("asan").contains(" cargo test --target "));
    }

    #[test]
    fn steps_have_different_names_and_the_list_shows_them_all() {
        let plan = plan(&workspace(&[]), true, true).unwrap();
        let list = list(&plan);
        for (at, step) in plan.iter().enumerate() {
            assert!(
                !plan[..at].iter().any(|other| other.name == step.name),
                "{} twice",
                step.name
            );
            assert!(
                list.lines()
                    .any(|line| line.starts_with(step.name) && line.contains(step.about)),
                "{list}"
            );
        }
        assert_eq!(list.matches("--fast").count(), 7);
    }

    #[test]
    fn words_are_quoted_for_the_shell_when_they_must_be() {
        assert_eq!(quoted("a-b=c"), "a-b=c");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}

//! doorbell under launchers that are not its own: Open MPI's mpirun (PMIx), MPICH's hydra (PMI-1, PMI-2),
//! variables alone. Slurm has a file of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{built, doorbell, sentence};
use doorbell_testing::netns::Lab;
pub(crate) use doorbell_testing::skip::is_installed as on_path;
use doorbell_testing::skipped;

/// Longer than any job here takes.
const LIMIT: Duration = Duration::from_secs(120);
/// By which the processes of one job are known.
pub(crate) const MARK: &str = "DOORBELL_TEST_MARK";

/// A way to start ranks.
#[derive(Clone)]
pub(crate) struct Launcher {
    pub(crate) words: Vec<&'static str>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// How a rank finds its number.
    pub(crate) rank: &'static str,
    /// The kind that is found.
    pub(crate) kind: &'static str,
}

impl Launcher {
    /// The same, with this variable, by which the kind is `kind`.
    pub(crate) fn with(mut self, variable: &'static str, value: &str, kind: &'static str) -> Self {
        self.variables.push((variable, value.to_owned()));
        self.kind = kind;
        self
    }

    fn name(&self) -> String {
        format!("{} ({})", self.words.join(" "), self.kind)
    }
}

pub(crate) fn open_mpi() -> Launcher {
    Launcher {
        words: vec!["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
        variables: Vec::new(),
        rank: "PMIX_RANK",
        kind: "pmix",
    }
}

pub(crate) fn hydra() -> Launcher {
    Launcher {
        words: vec!["mpiexec.hydra"],
        variables: Vec::new(),
        rank: "PMI_RANK",
        kind: "pmi1",
    }
}

pub(crate) fn hydra_2() -> Launcher {
    hydra().with("DOORBELL_LAUNCH", "pmi2", "pmi2")
}

/// Why the launchers are not here.
pub(crate) fn lacking() -> Option<String> {
    let programs = [("mpirun.openmpi", "openmpi-bin"), ("mpiexec.hydra", "mpich")];
    let missing = programs.into_iter().find(|(program, _)| !on_path(program))?;
    Some(format!("package {}: {} not found", missing.1, missing.0))
}

/// The example that gathers.
pub(crate) fn allgather() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    FRESH.get_or_init(|| example("allgather")).clone()
}

/// The example that starts more ranks.
pub(crate) fn loop_spawn() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    FRESH.get_or_init(|| example("loop_spawn")).clone()
}

/// Builds an example. `cargo test` builds it beside the program, unless its arguments select one test only.
pub(crate) fn example(name: &str) -> PathBuf {
    example_of("doorbell-tools", name)
}

/// As [`example`], one of another package.
pub(crate) fn example_of(package: &str, name: &str) -> PathBuf {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    let example = program.with_file_name("examples").join(name);
    built(example, &["-p", package, "--example", name])
}

/// A job under a launcher, in an environment without our settings; what launchers write goes to
/// `scratch`.
pub(crate) fn job(launcher: &Launcher, ranks: u32, scratch: &Path) -> Command {
    let mut command = Command::new(launcher.words[0]);
    command
        .args(&launcher.words[1..])
        .args(["-n", &ranks.to_string()]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .envs(launcher.variables.iter().map(|(name, value)| (*name, value)))
        .env("TMPDIR", scratch)
        .stdin(Stdio::null());
    command
}

/// Runs it to its end, with a limit.
pub(crate) fn run(mut command: Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = pid_of(&child);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    match told.recv_timeout(LIMIT) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = kill_process(pid, Signal::TERM);
            panic!("{command:?} did not end within {LIMIT:?}");
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All ranks print the checked sum.
pub(crate) fn gathers(launcher: &Launcher, ranks: u32, rail: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = job(launcher, ranks, scratch.path());
    command.arg(allgather()).env("DOORBELL_RAILS", rail);
    let what = format!("{} -n {ranks} over {rail}", launcher.name());
    gathered(&run(command), ranks, &what);
}

/// Every rank has printed the sum of all values.
pub(crate) fn gathered(ended: &Output, ranks: u32, what: &str) {
    assert!(ended.status.success(), "{what}: {}", text(&ended.stderr));
    let value = |rank: u64| (rank + 1).pow(3) + 7;
    let sum: u64 = (0..u64::from(ranks)).map(value).sum();
    let mut lines: Vec<String> = text(&ended.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    let expected: Vec<String> = (0..ranks)
        .map(|rank| format!("rank {rank} of {ranks}: the sum is {sum}"))
        .collect();
    assert_eq!(lines, expected, "{what}: {}", text(&ended.stderr));
}

/// Rank 0 alone shows a report, which has all pairs.
pub(crate) fn measures(launcher: &Launcher, ranks: u32, rail: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = job(launcher, ranks, scratch.path());
    command
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["pingpong", "--sizes", "8", "--seconds", "0.05"])
        .args(["--no-reference", "--verify", "--json", "-", "--rail", rail]);
    let ended = run(command);
    let what = format!("{} -n {ranks} over {rail}", launcher.name());
    assert!(ended.status.success(), "{what}: {}", text(&ended.stderr));
    let report: Value = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{what}: {error}: {}", text(&ended.stdout)));
    assert_eq!(report["rail"], rail, "{what}");
    assert_eq!(
        report["environment"]["ranks"].as_array().unwrap().len(),
        ranks as usize,
        "{what}"
    );
    assert_eq!(
        report["results"].as_array().unwrap().len(),
        ranks as usize / 2,
        "{what}"
    );
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// The processes that have this mark in their environment, with the value of `variable` there.
pub(crate) fn marked(mark: &str, variable: &str) -> Vec<(Pid, String, Option<String>)> {
    let mark = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let found = entries.flatten().filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let words: Vec<String> = environment.split(|byte| *byte == 0).map(text).collect();
        if !words.contains(&mark) {
            return None;
        }
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let prefix = format!("{variable}=");
        let value = words.iter().find_map(|word| word.strip_prefix(&prefix));
        Some((
            Pid::from_raw(number)?,
            name.trim().to_owned(),
            value.map(str::to_owned),
        ))
    });
    found.collect()
}

/// A rank of a running job is killed: the launcher ends with the status for it, and nothing of the job is
/// left.
pub(crate) fn ends_with_a_killed_rank(launcher: &Launcher) {
    let scratch = tempfile::tempdir().unwrap();
    let mark = scratch.path().display().to_string();
    let mut command = job(launcher, 4, scratch.path());
    command
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["pingpong", "--sizes", "8", "--seconds", "300", "--no-reference"])
        .env(MARK, &mark)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let rank = |number: &str| {
        let all = marked(&mark, launcher.rank);
        let ranks: Vec<_> = all
            .into_iter()
            .filter(|(_, name, rank)| name == "doorbell" && rank.is_some())
            .collect();
        let found = ranks.iter().find(|(.., rank)| rank.as_deref() == Some(number));
        found.filter(|_| ranks.len() == 4).map(|(pid, ..)| *pid)
    };
    let victim = loop {
        match rank("1") {
            Some(pid) => break pid,
            None => assert!(Instant::now() < until, "{}: no ranks", launcher.name()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Into the measurement, as a rule; at whatever point it is, the job has to end.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(victim, Signal::KILL).unwrap();
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("{}: the job goes on without rank 1", launcher.name());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!ended.success(), "{}", launcher.name());
    while !marked(&mark, launcher.rank).is_empty() {
        assert!(
            Instant::now() < until,
            "{}: {:?} is left",
            launcher.name(),
            marked(&mark, launcher.rank)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ranks_of_other_launchers_gather_values_over_shm_and_udp() {
    if let Some(why) = lacking() {
        return skipped("ranks_of_other_launchers_gather_values_over_shm_and_udp", &why);
    }
    for launcher in [open_mpi(), hydra(), hydra_2()] {
        for ranks in [2, 4] {
            for rail in ["shm", "udp:lo"] {
                gathers(&launcher, ranks, rail);
            }
        }
    }
}

/// A large job in small: no rank reads all values at the start, and each finds the peers that it needs.
#[test]
fn ranks_of_other_launchers_find_each_other_at_first_use() {
    if let Some(why) = lacking() {
        return skipped("ranks_of_other_launchers_find_each_other_at_first_use", &why);
    }
    for launcher in [open_mpi(), hydra(), hydra_2()] {
        let kind = launcher.kind;
        let lazy = launcher.with("DOORBELL_JOB_LAZY_ABOVE", "1", kind);
        gathers(&lazy, 6, "shm");
        gathers(&lazy, 3, "udp:lo");
        measures(&lazy, 4, "shm");
    }
}

/// Two network namespaces are two hosts: the ranks reach the launcher by what they inherit, and each other by
/// the wire.
#[test]
fn ranks_on_hosts_apart_meet_through_the_launcher() {
    const TEST: &str = "ranks_on_hosts_apart_meet_through_the_launcher";
    if let Some(why) = lacking() {
        return skipped(TEST, &why);
    }
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let apart = |ranks: u32| {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = job(&hydra(), ranks, scratch.path());
        let script = format!(
            "test $((PMI_RANK % 2)) = 0 && host={} || host={}; exec ip netns exec $host \"$0\" \"$@\"",
            lab.name(0),
            lab.name(1)
        );
        command.args(["sh", "-c", &script]);
        (command, scratch)
    };
    for ranks in [2, 4] {
        let (mut command, _scratch) = apart(ranks);
        command.arg(allgather()).env("DOORBELL_RAILS", "udp:v0");
        gathered(&run(command), ranks, &format!("{ranks} ranks on two hosts"));
    }
    let (mut command, _scratch) = apart(2);
    command
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["pingpong", "--sizes", "8", "--seconds", "0.05", "--json", "-"])
        .args(["--rail", "udp:v0"]);
    let ended = run(command);
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(report["rail"], "udp:v0");
    // A process number of another host is not looked up here.
    let doubts = report["environment"]["doubts"].to_string();
    assert!(doubts.contains("share no page"), "{doubts}");
    // Nothing leads there that was not named.
    let (mut command, _scratch) = apart(2);
    command.arg(allgather());
    let ended = run(command);
    let said = text(&ended.stderr);
    assert!(
        !ended.status.success() && said.contains("no rail reaches rank"),
        "{said}"
    );
}

#[test]
fn the_example_runs_under_our_own_launcher_and_alone() {
    let job = doorbell()
        .args(["run", "-n", "4", "--"])
        .arg(allgather())
        .assert()
        .success();
    let out = text(&job.get_output().stdout);
    assert_eq!(out.matches("of 4: the sum is 128").count(), 4, "{out}");
    let mut alone = assert_cmd::Command::new(allgather());
    alone.env("DOORBELL_LAUNCH", "singleton").timeout(LIMIT);
    let out = text(&alone.assert().success().get_output().stdout);
    assert_eq!(out, "rank 0 of 1: the sum is 8\n");
}

#[test]
fn a_measurement_takes_its_ranks_from_the_launcher() {
    if let Some(why) = lacking() {
        return skipped("a_measurement_takes_its_ranks_from_the_launcher", &why);
    }
    for launcher in [open_mpi(), hydra()] {
        for ranks in [2, 4] {
            for rail in ["shm", "udp:lo"] {
                measures(&launcher, ranks, rail);
            }
        }
    }
}

#[test]
fn a_process_that_a_launcher_started_alone_starts_its_own_pair() {
    if let Some(why) = lacking() {
        return skipped(
            "a_process_that_a_launcher_started_alone_starts_its_own_pair",
            &why,
        );
    }
    for launcher in [open_mpi(), hydra()] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = job(&launcher, 1, scratch.path());
        command
            .arg(assert_cmd::cargo::cargo_bin("doorbell"))
            .args(["pingpong", "--sizes", "8", "--seconds", "0.05"])
            .args(["--no-reference", "--json", "-"]);
        let ended = run(command);
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(report["environment"]["ranks"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_job_and_leaves_nothing() {
    if let Some(why) = lacking() {
        return skipped("a_rank_that_is_killed_ends_the_job_and_leaves_nothing", &why);
    }
    for launcher in [open_mpi(), hydra(), hydra_2()] {
        ends_with_a_killed_rank(&launcher);
    }
}

#[test]
fn a_rank_that_fails_ends_the_job_with_its_status() {
    if let Some(why) = lacking() {
        return skipped("a_rank_that_fails_ends_the_job_with_its_status", &why);
    }
    for launcher in [open_mpi(), hydra()] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = job(&launcher, 3, scratch.path());
        // Each with a file for its output: hydra loses the last output of a rank now and then.
        let script = "exec \"$0\" pingpong --sizes 8 2> \"$1/said.$$\"";
        command
            .args(["sh", "-c", script])
            .arg(assert_cmd::cargo::cargo_bin("doorbell"))
            .arg(scratch.path());
        let ended = run(command);
        let said: String = std::fs::read_dir(scratch.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("said."))
            .map(|entry| std::fs::read_to_string(entry.path()).unwrap())
            .collect();
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("3 leaves one over"), "{said}");
    }
}

#[test]
fn a_rank_that_cannot_take_part_is_the_end_for_all_with_its_reason() {
    if let Some(why) = lacking() {
        return skipped(
            "a_rank_that_cannot_take_part_is_the_end_for_all_with_its_reason",
            &why,
        );
    }
    for launcher in [open_mpi(), hydra()] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = job(&launcher, 3, scratch.path());
        let rank = launcher.rank;
        // All but the one stay until they have printed their error: the launcher would end them with the
        // first.
        let script = format!(
            "test ${rank} = 1 && export DOORBELL_RAILS=udp:nosuch0; \"$0\" 2> \"$1/$PPID.$$\"; \
             touch \"$1/done.${rank}\"; while test $(ls \"$1\" | grep -c done) -lt 3; do sleep 0.05; done; exit 3"
        );
        command
            .args(["sh", "-c", &script])
            .arg(allgather())
            .arg(scratch.path())
            .env("DOORBELL_RAILS", "shm");
        let ended = run(command);
        assert!(!ended.status.success());
        let said: Vec<String> = std::fs::read_dir(scratch.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_file())
            .map(|entry| std::fs::read_to_string(entry.path()).unwrap())
            .filter(|text| !text.is_empty())
            .collect();
        let with = |words: &str| said.iter().filter(|text| text.contains(words)).count();
        assert_eq!(with("udp:nosuch0` cannot be used"), 3, "{said:?}");
        assert_eq!(with("rank 1 cannot take part"), 2, "{said:?}");
    }
}

#[test]
fn without_libpmix_the_variables_of_mpirun_are_enough_on_one_host() {
    if let Some(why) = lacking() {
        return skipped(
            "without_libpmix_the_variables_of_mpirun_are_enough_on_one_host",
            &why,
        );
    }
    let without = open_mpi().with("DOORBELL_PMIX_LIBRARY", "libnosuch.so", "environment");
    gathers(&without, 3, "shm");
    gathers(
        &without.with("DOORBELL_LAUNCH", "environment", "environment"),
        2,
        "udp:lo",
    );
    let gone = doorbell()
        .arg("pingpong")
        .envs([("PMIX_NAMESPACE", "gone"), ("PMIX_RANK", "0")])
        .assert()
        .code(6);
    let said = sentence(&gone.get_output().stderr);
    assert!(said.contains("PMIx_Init failed: UNREACHABLE"), "{said}");
    let scratch = tempfile::tempdir().unwrap();
    let mut refused = job(&open_mpi(), 1, scratch.path());
    refused.arg(allgather()).envs([
        ("DOORBELL_LAUNCH", "pmix"),
        ("DOORBELL_PMIX_LIBRARY", "libnosuch.so"),
    ]);
    let ended = run(refused);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("`job.launch = pmix` is not possible here") && said.contains("libpmix2"),
        "{said}"
    );
}

#[test]
fn each_launcher_is_found_by_its_kind() {
    if let Some(why) = lacking() {
        return skipped("each_launcher_is_found_by_its_kind", &why);
    }
    for launcher in [open_mpi(), hydra(), hydra_2()] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = job(&launcher, 1, scratch.path());
        command
            .arg(assert_cmd::cargo::cargo_bin("doorbell"))
            .args(["info", "--json"]);
        let ended = run(command);
        let info: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(info["launcher"]["kind"], launcher.kind);
        assert_eq!(
            (&info["launcher"]["rank"], &info["launcher"]["size"]),
            (&0.into(), &1.into())
        );
        assert_eq!(info["launcher"]["others"].as_array().unwrap().len(), 5);
    }
}

#[test]
fn a_launcher_that_is_not_there_is_refused_with_the_reason() {
    for (kind, word) in [
        ("pmix", "PMIX_NAMESPACE is not set"),
        ("pmi1", "PMI_FD is not set"),
        ("pmi2", "PMI_FD is not set"),
        ("environment", "none of OMPI_COMM_WORLD_RANK"),
        ("doorbell", "DOORBELL_RANK is not set"),
    ] {
        let refused = doorbell()
            .arg("pingpong")
            .env("DOORBELL_LAUNCH", kind)
            .assert()
            .code(2);
        let said = sentence(&refused.get_output().stderr);
        assert!(
            said.contains(word) && said.contains(&format!("job.launch = {kind}")),
            "{said}"
        );
    }
    let shown = doorbell()
        .args(["info", "--json"])
        .env("DOORBELL_LAUNCH", "pmi1")
        .assert()
        .success();
    let shown: Value = serde_json::from_slice(&shown.get_output().stdout).unwrap();
    assert_eq!(shown["launcher"]["kind"], Value::Null);
    let reason = shown["launcher"]["reason"].as_str().unwrap();
    assert!(reason.contains("PMI_FD is not set"), "{reason}");
    let shown = doorbell().arg("info").assert().success();
    let shown = text(&shown.get_output().stdout);
    assert!(
        shown.contains("singleton          found      rank 0 of 1: no launcher has set"),
        "{shown}"
    );
}

#[test]
fn variables_of_a_launcher_that_is_gone_are_reported() {
    let of = |set: &[(&str, &str)], code: i32| {
        let mut command = doorbell();
        command.arg("pingpong").envs(set.iter().copied());
        sentence(&command.assert().code(code).get_output().stderr)
    };
    let pmi = [("PMI_FD", "99"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    let said = of(&pmi, 6);
    assert!(
        said.contains("descriptor 99 (PMI_FD)") && said.contains("not open"),
        "{said}"
    );
    let said = of(&[("PMI_FD", "x"), pmi[1], pmi[2]], 2);
    assert!(said.contains("PMI_FD is `x`"), "{said}");
    let said = of(&[pmi[0], ("PMI_RANK", "2"), pmi[2]], 2);
    assert!(said.contains("rank 2 of 2"), "{said}");
    let said = of(&[pmi[1], pmi[2]], 2);
    assert!(said.contains("DOORBELL_ROOT"), "{said}");
    let said = of(
        &[
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_ID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_NUM_NODES", "2"),
        ],
        2,
    );
    assert!(
        said.contains("several hosts") && said.contains("--mpi=pmi2"),
        "{said}"
    );
}

#[test]
fn two_sides_do_not_meet_inside_of_a_job_of_several() {
    let refused = doorbell()
        .args(["pingpong", "--connect", "127.0.0.1:9"])
        .envs([("PMI_FD", "99"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")])
        .assert()
        .code(2);
    let said = sentence(&refused.get_output().stderr);
    assert!(said.contains("--connect") && said.contains("pmi1"), "{said}");
}

/// Builds a libpmix that fails in the way that FAULT names; else returns why it is not built.
fn fake_pmix(folder: &Path) -> Result<String, String> {
    let library = folder.join("libfake.so").display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_pmix/pmix.c");
    let built = Command::new("cc")
        .args([
            "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", &library, source,
        ])
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    assert!(built.status.success(), "{}", text(&built.stderr));
    Ok(library)
}

#[test]
fn a_libpmix_that_goes_wrong_ends_in_a_sentence_and_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let library = match fake_pmix(folder.path()) {
        Ok(library) => library,
        Err(why) => {
            return skipped("a_libpmix_that_goes_wrong_ends_in_a_sentence_and_in_time", &why);
        }
    };
    let ends = |fault: &str, rank: &str, size: &str, code: i32| {
        let mut command = doorbell();
        command
            .args(["pingpong", "--rail", "shm"])
            .env("DOORBELL_PMIX_LIBRARY", &library)
            .env("DOORBELL_JOB_TIMEOUT", "300 ms")
            .envs([("PMIX_NAMESPACE", "fake"), ("PMIX_RANK", rank)])
            .envs([("FAULT", fault), ("RANK", rank), ("SIZE", size)]);
        let ended = command.assert().code(code);
        let said = sentence(&ended.get_output().stderr);
        assert!(said.starts_with("doorbell: "), "{fault}: {said}");
        said
    };
    for (fault, code, word) in [
        ("init fails", 6, "PMIx_Init failed: UNREACHABLE (-25)"),
        ("init hangs", 5, "did not answer `PMIx_Init` within 0.3 s"),
        ("no size", 2, "rank 0 of 0"),
        ("put fails", 6, "PMIx_Put failed: ERROR (-1)"),
        ("commit fails", 6, "PMIx_Commit failed"),
        ("fence fails", 6, "PMIx_Fence failed"),
        ("fence hangs", 5, "did not answer `PMIx_Fence`"),
        ("get fails", 6, "PMIx_Get failed"),
        ("get hangs", 5, "did not answer `PMIx_Get`"),
        ("get nothing", 4, "rank 1 has put no value `hello`"),
        ("get null", 4, "rank 1 has put no value"),
        ("get number", 4, "rank 1 has put no value"),
        ("get text", 6, "received a value of type 3"),
        ("get too much", 2, "a value of 1099511627776 bytes"),
        ("none", 4, "the hello of rank 1 does not parse"),
        ("endless name", 4, "the hello of rank 1 does not parse"),
    ] {
        let said = ends(fault, "0", "2", code);
        assert!(said.contains(word), "{fault}: {said}");
    }
    let said = ends("none", "7", "2", 2);
    assert!(said.contains("rank 7 of 2"), "{said}");
    let said = ends("none", "0", "65537", 2);
    assert!(said.contains("rank 0 of 65537"), "{said}");
    // A job of one, whose work is refused: the launcher gets the reason, and need not answer.
    for fault in ["none", "abort hangs"] {
        let said = ends(fault, "0", "1", 2);
        assert_eq!(said.matches("1 leaves one over").count(), 2, "{said}");
    }
    // A failure at the end does not spoil the result.
    for fault in ["finalize fails", "finalize hangs"] {
        let mut command = assert_cmd::Command::new(allgather());
        let set = [("PMIX_NAMESPACE", "fake"), ("PMIX_RANK", "0"), ("SIZE", "1")];
        command
            .env("DOORBELL_PMIX_LIBRARY", &library)
            .envs(set)
            .env("FAULT", fault)
            .timeout(LIMIT);
        let out = text(&command.assert().success().get_output().stdout);
        assert_eq!(out, "rank 0 of 1: the sum is 8\n");
    }
}

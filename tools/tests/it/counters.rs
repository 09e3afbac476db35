//! `doorbell counters` from outside: beside a job that runs, and without one.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::sentence;
use crate::hosts::{Running, at, fails, finish};

/// What it read of a process, checked by its schema; nothing while the process is no rank.
pub(crate) fn read(process: u32) -> Option<Value> {
    let out = finish(at(None, &["counters", "--json", &process.to_string()]));
    if out.status.code() == Some(2) {
        sentence(&out.stderr);
        let nothing: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            nothing["ranks"],
            Value::Array(Vec::new()),
            "still what a program can read"
        );
        return None;
    }
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let schema = include_str!("../../../bench/schema/counters-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    Some(report)
}

fn sent(report: &Value) -> Option<u64> {
    let readings = report["ranks"][0]["readings"].as_array().unwrap();
    readings.iter().find(|one| one["name"] == "udp:lo.sent")?["value"].as_u64()
}

/// The rank 0 of a job on this machine: a child of the launcher's, which counts.
fn rank_of(launcher: u32) -> Option<(u32, Value)> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|one| one.parse().ok());
    children.find_map(|one| {
        let report = read(one)?;
        (report["ranks"][0]["rank"] == 0).then_some((one, report))
    })
}

#[test]
fn what_a_rank_counts_is_seen_while_it_runs() {
    let words = [
        "stream",
        "--rail",
        "udp:lo",
        "--sizes",
        "1Ki",
        "--seconds",
        "60",
        "--no-reference",
    ];
    let job = Running::start(at(None, &words));
    let end = Instant::now() + Duration::from_secs(40);
    let (process, first) = loop {
        let found = rank_of(job.id()).and_then(|(process, report)| Some((process, sent(&report)?)));
        if let Some(found) = found {
            break found;
        }
        assert!(Instant::now() < end, "its rank 0 counts what it sends");
        std::thread::sleep(Duration::from_millis(100));
    };
    while read(process)
        .and_then(|report| sent(&report))
        .is_some_and(|now| now <= first)
    {
        assert!(Instant::now() < end, "it sends more");
        std::thread::sleep(Duration::from_millis(100));
    }
    let table = finish(at(
        None,
        &["counters", &process.to_string(), "--name", "udp:lo.sent"],
    ));
    let table = String::from_utf8(table.stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with(&format!("rank 0 (process {process})")),
        "{table}"
    );
    assert!(
        lines[1..].iter().all(|line| line.starts_with("  udp:lo.sent")),
        "{table}"
    );
    assert!(lines.len() > 1, "{table}");
}

#[test]
fn a_process_that_is_no_rank_is_named() {
    let (status, words) = fails(at(None, &["counters", &std::process::id().to_string()]));
    assert_eq!(status, Some(2));
    assert!(words.contains("is no rank that counts"), "{words}");
    let (status, words) = fails(at(None, &["counters", "4194305"]));
    assert_eq!(status, Some(2));
    assert!(words.contains("there is no process 4194305"), "{words}");
}

#[test]
fn a_process_of_another_user_is_named() {
    const TEST: &str = "doorbell::it::counters::a_process_of_another_user_is_named";
    if !rustix::process::geteuid().is_root() {
        return doorbell_testing::skipped(TEST, "another user needs root");
    }
    let mut other = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"])
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(40);
    let words = loop {
        let (status, words) = fails(at(None, &["counters", &other.id().to_string()]));
        assert_eq!(status, Some(2));
        // Until it has become that user's.
        if words.contains("of another user (number 65534)") || Instant::now() > end {
            break words;
        }
    };
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(words.contains("run as that user"), "{words}");
}

/// The processes that a process descends from, the nearest first.
fn above(process: u32) -> Vec<u32> {
    let parent = |process: u32| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|parent| *parent > 1)
    };
    std::iter::successors(parent(process), |process| parent(*process)).collect()
}

/// In a container, or under `unshare`: the numbers are those of the namespace of the command, not of the
/// rank's own, where every job has a process 3.
#[test]
fn a_rank_in_a_pid_namespace_of_its_own_is_found_by_its_number_out_here() {
    const TEST: &str =
        "doorbell::it::counters::a_rank_in_a_pid_namespace_of_its_own_is_found_by_its_number_out_here";
    let apart = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let tried = std::process::Command::new("unshare")
        .args(apart)
        .arg("true")
        .status();
    if !tried.is_ok_and(|it| it.success()) {
        return doorbell_testing::skipped(TEST, "no process namespace can be made here");
    }
    let mut command = std::process::Command::new("unshare");
    command.args(apart).arg(assert_cmd::cargo::cargo_bin("doorbell"));
    command.args([
        "stream",
        "--rail",
        "udp:lo",
        "--sizes",
        "1Ki",
        "--seconds",
        "60",
        "--no-reference",
    ]);
    let job = Running::start(command);
    let end = Instant::now() + Duration::from_secs(40);
    let process = loop {
        let all = finish(at(None, &["counters", "--json"]));
        let report: Value = serde_json::from_slice(&all.stdout).unwrap();
        let ranks = report["ranks"].as_array().unwrap();
        let mut processes = ranks.iter().filter_map(|rank| rank["process"].as_u64());
        let ours = processes.find(|process| above(*process as u32).contains(&job.id()));
        if let Some(process) = ours {
            break process as u32;
        }
        assert!(
            Instant::now() < end,
            "a rank is found by a number that names it here"
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    let report = read(process).expect("the same number finds it");
    assert_eq!(report["ranks"][0]["process"], process);
}

/// Where a rank's threads run, whatever layer it has: as the kernel has them.
#[test]
fn the_cores_of_both_threads_are_shown() {
    for layer in ["pml", "portals", "am"] {
        let words = ["pingpong", "--mode", "dedicated", "--rail", "shm", "--sizes", "8"];
        let more = ["--seconds", "60", "--no-reference", "--layer", layer];
        let job = Running::start(at(None, &[&words[..], &more].concat()));
        let end = Instant::now() + Duration::from_secs(40);
        let (process, report) = loop {
            if let Some(found) = rank_of(job.id()) {
                break found;
            }
            assert!(Instant::now() < end, "{layer}: its rank 0 counts");
            std::thread::sleep(Duration::from_millis(100));
        };
        let readings = report["ranks"][0]["readings"].as_array().unwrap();
        let text = |name: &str| {
            let row = readings.iter().find(|one| one["name"] == name)?;
            Some(row["value"].as_str().unwrap().to_owned())
        };
        let allowed = |folder: String| {
            let status = std::fs::read_to_string(folder + "/status").unwrap_or_default();
            let list = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(list.trim().to_owned())
        };
        let progress = text("cores.progress").unwrap();
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut lists = threads.filter_map(|thread| allowed(thread.unwrap().path().display().to_string()));
        assert!(lists.any(|list| list == progress), "{layer}: {report:#}");
        let own = text("cores.own").unwrap();
        assert_eq!(
            allowed(format!("/proc/{process}")).as_ref(),
            Some(&own),
            "{layer}"
        );
        assert_eq!(
            text("cores.shared").is_some(),
            own == progress,
            "{layer}: {report:#}"
        );
    }
}

//! `doorbell-lab budgets` from outside: every row has a verdict or a reason, and nothing is left behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::sentence;
use crate::lab;
use crate::peers::{alone, cores};
use doorbell_testing::skipped;

/// Runs it; the rows.
fn budgets(words: &[&str], path: Option<&str>) -> Vec<Value> {
    let mut command = lab();
    command.args(["budgets", "--quick", "--json", "-"]).args(words);
    // What the caller set for itself is nothing to what is measured.
    command
        .env("DOORBELL_RAILS", "nosuch")
        .env("DOORBELL_DEADLINE", "nonsense");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let out = command.output().unwrap();
    let said = sentence(&out.stderr);
    let code = out.status.code();
    assert!(matches!(code, Some(0 | 1 | 6)), "{code:?}: {said}");
    let verdicts: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = verdicts["budgets"].as_array().unwrap().clone();
    let missed = rows.iter().any(|row| row["verdict"] == "missed");
    let none = rows.iter().all(|row| row["measured"].is_null());
    assert_eq!(code, Some(if none { 6 } else { i32::from(missed) }), "{said}");
    let schema = include_str!("../../../../bench/schema/budgets-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&verdicts)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
    for row in &rows {
        let judged = row["verdict"] != "not-judged";
        assert!(judged != row["reason"].is_string(), "{row}");
        assert!(!judged || row["measured"].is_number(), "{row}");
        assert!(!row["how"].as_str().unwrap().is_empty());
    }
    rows
}

fn row<'a>(rows: &'a [Value], name: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no row is called {name}"))
}

#[test]
fn budgets_judge_every_row_and_end_with_the_verdict() {
    let parts = ["shm", "loopback", "process", "memory"].map(|part| ["--only", part]);
    let rows = budgets(&parts.concat(), None);
    assert!(rows.len() >= 30, "{}", rows.len());
    let idle = row(&rows, "memory per idle peer")["measured"].as_f64().unwrap();
    assert!((100.0..=1024.0).contains(&idle), "{idle}");
    let goodput = row(&rows, "goodput, 1 MiB, 1 % loss");
    assert!(goodput["reason"].as_str().unwrap().contains("--only loss"));
}

#[test]
fn the_rows_between_two_hosts_are_measured_between_namespaces() {
    const TEST: &str = "the_rows_between_two_hosts_are_measured_between_namespaces";
    if let Some(why) = alone(cores()) {
        return skipped(TEST, &why);
    }
    let rows = budgets(&["--only", "network", "--only", "loss"], None);
    let root = rustix::process::geteuid().is_root();
    for name in ["message rate, 64 B, network", "bandwidth, 1 MiB, udp"] {
        assert!(row(&rows, name)["measured"].as_f64() > Some(100.0), "{name}");
    }
    for name in [
        "8 B half round trip, udp",
        "8 B half round trip, xdp",
        "goodput, 1 MiB, 1 % loss",
        "goodput, 1 MiB, 5 % loss",
        "64 B mean, 5 % loss, udp",
        "64 B mean, 5 % loss, xdp",
    ] {
        let row = row(&rows, name);
        let reason = row["reason"].as_str().unwrap_or_default();
        // A machine with other work may have no steady base; users who are not root have no xdp.
        let told = reason.contains("as it was") || (!root && reason.contains("CAP_"));
        let lacks = name.contains("loss") && reason.contains("nft");
        assert!(row["measured"].is_number() || told || lacks, "{name}: {reason}");
    }
}

#[test]
fn where_no_namespaces_can_be_made_the_rows_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().display().to_string();
    let rows = budgets(&["--only", "network", "--only", "loss"], Some(&nowhere));
    for name in ["8 B half round trip, xdp", "64 B mean, 1 % loss, udp"] {
        let reason = row(&rows, name)["reason"].as_str().unwrap();
        let one_core = cores() < 2 && reason.contains("one core");
        assert!(one_core || reason.contains("unshare"), "{name}: {reason}");
    }
}

#[test]
fn an_interrupted_or_killed_run_leaves_no_process_and_so_no_namespace() {
    const TEST: &str = "an_interrupted_or_killed_run_leaves_no_process_and_so_no_namespace";
    if let Some(why) = alone(cores()) {
        return skipped(TEST, &why);
    }
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mark = format!("BUDGETS_TEST={}-{}", std::process::id(), signal.as_raw());
        let folder = tempfile::tempdir().unwrap();
        let mut child = start(&mark, folder.path());
        // The holders of the namespaces, the keeper, a server and a client are there.
        until("it measures between its hosts", || {
            marked(&mark).iter().any(|words| words.contains("--serve"))
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), code);
        until("all of it has ended", || marked(&mark).is_empty());
        // The key of the job was in one of them.
        until("its folders are removed", || {
            fs::read_dir(folder.path()).unwrap().next().is_none()
        });
    }
}

fn start(mark: &str, temporary: &Path) -> Child {
    let (name, value) = mark.split_once('=').unwrap();
    Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
        .args(["budgets", "--only", "network", "--only", "loss"])
        .env(name, value)
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The command lines of all processes with a variable in their environment.
fn marked(mark: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| {
        let has = fs::read(process.path().join("environ")).ok()?;
        has.split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
            .then(|| fs::read_to_string(process.path().join("cmdline")).unwrap_or_default())
    });
    words.collect()
}

fn until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "never happened: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_cannot_be_written_or_repeated_is_refused_before_anything_is_measured() {
    for (words, word) in [
        (&["--json", "/no/x"][..], "folder does not exist"),
        (&["--repetitions", "-2"], "a whole number from 1 to 1000"),
    ] {
        let out = lab().arg("budgets").args(words).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains(word), "{words:?}: {said}");
    }
}

//! `doorbell-lab model vic` from outside: ready, called, ended, and what it leaves.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn start(words: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell-lab"));
    command
        .args(["model", "vic"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line
}

fn end(mut child: Child, signal: rustix::process::Signal) -> Option<i32> {
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, signal).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn a_model_prints_where_it_is_and_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("vic");
    let dir = folder.to_str().unwrap();
    let (child, mut out) = start(&["--dir", dir, "--vfs", "3", "--json"]);
    let ready: Value = serde_json::from_str(&line(&mut out)).unwrap();
    assert_eq!(ready["schema"], "doorbell.model-vic/1");
    let sockets: Vec<_> = ready["sockets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        sockets,
        ["pf", "vf0", "vf1", "vf2"].map(|name| format!("{dir}/{name}.sock"))
    );
    for socket in &sockets {
        assert_eq!(std::fs::metadata(socket).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(socket).unwrap();
    }
    // Another one in the same place is refused, in one sentence.
    let second = Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
        .args(["model", "vic", "--dir", dir])
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(
        (second.status.code(), said.lines().count()),
        (Some(6), 1),
        "{said}"
    );
    assert!(said.contains("serves") && said.contains("--dir"), "{said}");
    assert_eq!(end(child, rustix::process::Signal::TERM), Some(0));
    let over: Value = serde_json::from_str(&line(&mut out)).unwrap();
    assert_eq!(over["summary"]["functions"]["vf2"]["sent"], 0);
    fits(
        &ready,
        include_str!("../../../../bench/schema/model-vic-1.schema.json"),
    );
    fits(
        &over,
        include_str!("../../../../bench/schema/model-vic-end-1.schema.json"),
    );
    assert!(!folder.exists());
}

fn fits(value: &Value, schema: &str) {
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema.iter_errors(value).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// What it prints at its end: functions in the order of their numbers, and those that did nothing only with
/// --all.
#[test]
fn the_summary_is_in_order_and_leaves_out_zeros() {
    let run = |more: &[&str]| {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("vic");
        let mut words = vec![
            "--dir",
            folder.to_str().unwrap(),
            "--vfs",
            "11",
            "--seconds",
            "0.1",
        ];
        words.extend(more);
        let (mut child, mut out) = start(&words);
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
        said
    };
    let lines = |said: &str| said.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&run(&[])), ["no frames", "no violations"]);
    let all = lines(&run(&["--all"]));
    let names: Vec<&str> = all
        .iter()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    assert_eq!(names[..4], ["pf", "vf0", "vf1", "vf2"]);
    assert_eq!(names[10..], ["vf9", "vf10"]);
    let json = run(&["--json"]);
    let at = |name: &str| json.find(&format!("\"{name}\":{{")).unwrap();
    assert!(at("vf2") < at("vf10"), "{json}");
}

#[test]
fn what_no_driver_can_work_with_is_refused_with_the_reason() {
    let out = Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
        .args(["model", "vic", "--trap", "none"])
        .output()
        .unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("BUSY") && said.contains("devcmd"), "{said}");
}

#[test]
fn what_a_killed_model_left_is_replaced() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("vic");
    let dir = folder.to_str().unwrap();
    let (child, mut out) = start(&["--dir", dir]);
    assert_eq!(line(&mut out), format!("ready: pf, vf0, vf1 in {dir}\n"));
    end(child, rustix::process::Signal::KILL);
    assert!(folder.join("pf.sock").exists(), "it was killed");
    let (mut child, mut out) = start(&["--dir", dir, "--seconds", "0.3"]);
    assert_eq!(line(&mut out), format!("ready: pf, vf0, vf1 in {dir}\n"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("no violations"), "{rest}");
    assert!(!Path::new(&folder.join("pf.sock")).exists());
}

#[test]
fn a_script_is_read_before_anything_is_made_and_may_end_the_model() {
    let base = tempfile::tempdir().unwrap();
    let script = base.path().join("faults");
    let folder = base.path().join("vic");
    let words = [
        "--dir",
        folder.to_str().unwrap(),
        "--script",
        script.to_str().unwrap(),
    ];
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
            .args(["model", "vic"])
            .args(words)
            .output()
            .unwrap()
    };
    let out = run();
    assert_eq!(out.status.code(), Some(2), "no such file");
    std::fs::write(&script, "always switch drop\nalways switch explode\n").unwrap();
    let out = run();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("line 2") && said.contains("`explode`"), "{said}");
    // A queue that this model does not have, though others may.
    std::fs::write(&script, "# one\nalways vf1.cq6 wrong-color").unwrap();
    let out = run();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(
        ["line 2", "`cq6`", "cq0 to cq5"]
            .iter()
            .all(|word| said.contains(word)),
        "{said}"
    );
    std::fs::write(&script, "at 200ms model die # as a crash would\n").unwrap();
    assert_eq!(run().status.code(), Some(0));
    assert!(!folder.exists());
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for words in [
        ["--vfs", "65"],
        ["--wq", "0"],
        ["--mtu", "9001"],
        ["--device", "12345"],
        ["--trap", "some"],
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_doorbell-lab"))
            .args(["model", "vic"])
            .args(words)
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2), "{words:?}");
    }
}

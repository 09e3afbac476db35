//! Every command: help with examples, output that parses, errors of one sentence, exit statuses.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{doorbell, sentence};
use serde_json::Value;

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn schema() -> jsonschema::Validator {
    let text = include_str!("../../../bench/schema/bench-1.schema.json");
    jsonschema::validator_for(&json(text.as_bytes())).unwrap()
}

#[test]
fn help_shows_examples_and_version_the_version() {
    for command in ["run", "info", "pingpong", "stream", "rate", "budgets"] {
        let out = doorbell().args([command, "--help"]).assert().success();
        let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
        assert!(
            text.contains("Examples:") && text.contains(&format!("doorbell {command}")),
            "{text}"
        );
    }
    let out = doorbell().arg("--help").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("Exit status") && !text.contains("exec-rank"),
        "{text}"
    );
    let out = doorbell().arg("--version").assert().success();
    assert!(out.get_output().stdout.starts_with(b"doorbell 0."));
}

#[test]
fn wrong_usage_names_the_nearest_right_one() {
    let cases: [(&[&str], &str); 10] = [
        (&["pinpong"], "pingpong"),
        (&["pingpong", "--size", "8"], "--sizes"),
        (&["pingpong", "--rail", "shmem"], "shm"),
        (&["pingpong", "--sizes", "0"], "at least one byte"),
        (&["pingpong", "--sizes", "8,,9"], "not a message size"),
        (&["pingpong", "--seconds", "0"], "above 0"),
        (
            &["pingpong", "--seconds", "1", "--samples", "9"],
            "cannot be used with",
        ),
        (&["pingpong", "--plot", "x.png"], ".svg or .html"),
        (&["pingpong", "--json", "-", "--csv", "-"], "only one output"),
        (&["stream", "--cores", "0,99999"], "99999"),
    ];
    for (args, word) in cases {
        let out = doorbell().args(args).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(out.get_output().stdout.is_empty());
    }
}

#[test]
fn a_rail_that_cannot_be_used_is_refused_before_any_traffic() {
    let out = doorbell()
        .args(["pingpong", "--rail", "udp:nosuch0", "--sizes", "8"])
        .assert()
        .code(3);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("udp:nosuch0") && said.trim().lines().count() == 1,
        "{said}"
    );
}

#[test]
fn info_lists_every_kind_with_its_reason() {
    let out = doorbell().arg("info").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    for kind in [
        "shm", "udp", "xdp", "usnic", "igbvf", "verbs", "ofi", "portals", "sim",
    ] {
        assert!(text.lines().any(|line| line.starts_with(kind)), "{kind}: {text}");
    }
    let out = doorbell().args(["info", "--json"]).assert().success();
    let info = json(&out.get_output().stdout);
    assert_eq!(info["schema"], "doorbell.info/1");
    let shm = info["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .find(|kind| kind["kind"] == "shm")
        .unwrap();
    assert_eq!(shm["candidates"][0]["verdict"]["is"], "usable");
}

#[test]
fn settings_are_shown_with_their_origin() {
    let out = doorbell()
        .args(["info", "--config"])
        .env("DOORBELL_EAGER", "2048")
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("pml.eager")).unwrap();
    assert!(line.contains("DOORBELL_EAGER"), "{line}");
    let out = doorbell().args(["info", "--config", "--json"]).assert().success();
    let listed = json(&out.get_output().stdout);
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["origin"] == "default")
    );
}

#[test]
fn an_unknown_variable_is_refused_with_the_nearest() {
    let out = doorbell().arg("info").env("DOORBELL_EAGRE", "1").assert().code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("DOORBELL_EAGRE") && said.contains("DOORBELL_EAGER"),
        "{said}"
    );
}

#[test]
fn a_short_pingpong_reports_by_schema_and_writes_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "8,4Ki",
            "--samples",
            "2000",
            "--json",
            "-",
            "--csv",
        ])
        .arg(file("x.csv"))
        .arg("--hgrm")
        .arg(file("x.hgrm"))
        .arg("--hlog")
        .arg(file("x.hlog"))
        .arg("--plot")
        .arg(file("x.html"))
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    let faults: Vec<String> = schema()
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(
        (report["rail"].as_str(), report["results"][1]["bytes"].as_u64()),
        (Some("shm"), Some(4096))
    );
    assert!(report["results"][0]["half_rtt_ns"]["p99"].is_number());
    assert!(report["results"][0]["half_rtt_ns"]["p9999"].is_null());
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    assert_eq!(text("x.csv").lines().count(), 3);
    assert!(text("x.hgrm").contains("bytes=4096") && text("x.hlog").contains("Tag=bytes=8;pair=0-1"));
    assert!(text("x.html").contains("<svg") && text("x.html").ends_with("</html>\n"));
}

#[test]
fn the_table_names_cores_clock_rail_and_doubts_above_the_rows() {
    let out = doorbell()
        .args(["pingpong", "--sizes", "8", "--samples", "1000"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    let starts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let at = |word: &str| {
        starts
            .iter()
            .position(|start| *start == word)
            .unwrap_or_else(|| panic!("{word}: {text}"))
    };
    assert!(at("cores") < at("clock") && at("clock") < at("rail") && at("rail") < at("size"));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn streams_and_rates_report_by_schema() {
    for (command, size) in [("stream", "64Ki"), ("rate", "8")] {
        let out = doorbell()
            .args([
                command,
                "--sizes",
                size,
                "--samples",
                "500",
                "--window",
                "16",
                "--json",
                "-",
            ])
            .assert()
            .success();
        let report = json(&out.get_output().stdout);
        assert!(schema().is_valid(&report));
        assert_eq!(
            (report["kind"].as_str(), report["window"].as_u64()),
            (Some(command), Some(16))
        );
        assert!(report["results"][0]["messages_per_second"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn modes_and_copies_can_be_chosen() {
    for flags in [&["--no-cma", "--no-reference"][..], &["--mode", "dedicated"][..]] {
        let out = doorbell()
            .args(["pingpong", "--sizes", "64Ki", "--samples", "50", "--json", "-"])
            .args(flags)
            .assert()
            .success();
        let report = json(&out.get_output().stdout);
        let dedicated = flags.contains(&"dedicated");
        assert_eq!(report["environment"]["mode"] == "dedicated", dedicated);
        assert_eq!(report["environment"]["no_reference"].is_string(), !dedicated);
    }
}

#[test]
fn under_run_the_ranks_work_in_pairs() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    let out = doorbell()
        .args(["run", "-n", "4", "--no-prefix", "--"])
        .arg(&program)
        .args(["pingpong", "--sizes", "8", "--samples", "200", "--json", "-"])
        .assert()
        .success();
    let report = json(&out.get_output().stdout);
    let pairs: Vec<&Value> = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["pair"])
        .collect();
    assert_eq!(pairs, [&serde_json::json!([0, 1]), &serde_json::json!([2, 3])]);
    let out = doorbell()
        .args(["run", "-n", "3", "--"])
        .arg(&program)
        .args(["rate", "--samples", "10"])
        .assert()
        .code(2);
    assert!(sentence(&out.get_output().stderr).contains("3 leaves one over"));
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let out = doorbell()
        .args([
            "pingpong",
            "--sizes",
            "8",
            "--samples",
            "10",
            "--json",
            "/no/such/folder/x.json",
        ])
        .assert()
        .code(6);
    assert!(sentence(&out.get_output().stderr).contains("/no/such/folder/x.json"));
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let program = assert_cmd::cargo::cargo_bin("doorbell");
    for args in [
        &["info"][..],
        &["info", "--config"],
        &["--help"],
        &["pingpong", "--sizes", "8", "--samples", "10"],
    ] {
        let mut child = Command::new(&program)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut said = Vec::new();
        child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        sentence(&said);
        assert_eq!(
            status.code(),
            Some(0),
            "{args:?}: {}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[test]
fn budgets_judge_every_row_and_end_with_the_verdict() {
    let out = doorbell()
        .args(["budgets", "--repetitions", "1", "--json", "-"])
        .output()
        .unwrap();
    let code = out.status.code().unwrap();
    assert!(
        [0, 1].contains(&code),
        "{code}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let verdicts = json(&out.stdout);
    let rows = verdicts["budgets"].as_array().unwrap();
    assert!(rows.len() >= 12);
    let missed = rows.iter().any(|row| row["verdict"] == "missed");
    assert_eq!(code, i32::from(missed));
    for row in rows {
        let judged = row["verdict"] != "not-judged";
        assert!(judged != row["reason"].is_string(), "{row}");
        assert!(!judged || row["measured"].is_number(), "{row}");
        assert!(!row["how"].as_str().unwrap().is_empty());
    }
}

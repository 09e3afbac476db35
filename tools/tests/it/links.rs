//! `cargo xtask links` works at all: a run of the smallest sizes. Its figures are for people.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::lab_program;
use crate::hosts::AMPLE;
use doorbell_testing::skipped;

const TEST: &str = "doorbell::it::links::links_measures_everything_and_leaves_nothing";

/// `None`: it can run here.
fn lacking() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root");
    }
    let packages = [
        ("ip", "package iproute2: ip not found"),
        ("nft", "package nftables: nft not found"),
        ("iperf3", "package iperf3: iperf3 not found"),
    ];
    let missing = |program: &str| {
        let mut command = Command::new(program);
        let silent = command.arg("-h").stdout(Stdio::null()).stderr(Stdio::null());
        silent.status().is_err()
    };
    packages
        .into_iter()
        .find(|(program, _)| missing(program))
        .map(|(_, reason)| reason)
}

fn links(words: &[&str]) -> Command {
    // It is to be beside `doorbell`.
    lab_program();
    let mut command = Command::new(xtask());
    command.arg("links");
    command
        .args(["--program", env!("CARGO_BIN_EXE_doorbell")])
        .args(words);
    command
}

/// The program: as `cargo xtask test` names it, else built now.
fn xtask() -> PathBuf {
    let named = std::env::var_os("XTASK_PROGRAM").map(PathBuf::from);
    named.filter(|program| program.is_file()).unwrap_or_else(|| {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "xtask"]);
        assert!(build.status().unwrap().success());
        Path::new(env!("CARGO_BIN_EXE_doorbell")).with_file_name("xtask")
    })
}

/// The namespaces that `process` made.
fn namespaces(process: &str) -> usize {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    listed
        .lines()
        .filter(|line| line.contains(&format!("-{process}-")))
        .count()
}

#[test]
fn links_measures_everything_and_leaves_nothing() {
    if let Some(reason) = lacking() {
        return skipped(TEST, reason);
    }
    let words = [
        "--repetitions",
        "1",
        "--seconds",
        "0.02",
        "--single-frames",
        "--json",
        "-",
    ];
    let out = assert_cmd::Command::from_std(links(&words))
        .timeout(4 * AMPLE)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if said.contains("netns add") {
        return skipped(TEST, &format!("no network namespaces here: {said}"));
    }
    // Whatever the verdicts are.
    assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{said}"));
    let one = &report["repetitions"][0];
    assert_eq!(one["failures"], serde_json::json!([]), "{report:#}");
    for base in ["raw_before_ns", "raw_after_ns"] {
        assert!(one["bases"][base][1].as_f64().unwrap() > 100.0, "{report:#}");
    }
    for base in ["tcp_bytes_per_second", "messages_per_second"] {
        assert!(one["bases"][base].as_f64().unwrap() > 100.0, "{report:#}");
    }
    for under in one["under"].as_array().unwrap() {
        assert!(under["mean_ns"][1].as_f64().unwrap() > 100.0, "{report:#}");
        assert!(
            under["stream_bytes_per_second"].as_f64().unwrap() > 1000.0,
            "{report:#}"
        );
        assert!(under["segments"].as_u64().unwrap() > 0, "{report:#}");
    }
    // A twentieth of at least some hundred frames.
    assert!(
        one["under"][2]["dropped_buffers"].as_u64().unwrap() > 0,
        "{report:#}"
    );
    assert!(one["under"][2]["resends"].as_u64().unwrap() > 0, "{report:#}");
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if let Some(reason) = lacking() {
        return skipped(
            "doorbell::it::links::an_interrupted_run_leaves_nothing_behind",
            reason,
        );
    }
    use rustix::process::{Pid, Signal, kill_process};
    let mut running = crate::hosts::Running::start(links(&["--seconds", "60"]));
    running.says("repetition 1");
    let process = running.id().to_string();
    assert_eq!(namespaces(&process), 2);
    kill_process(Pid::from_raw(process.parse().unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(running.ends(AMPLE), Some(1));
    running.says("interrupted after");
    assert_eq!(namespaces(&process), 0);
}

//! `cargo xtask rails` in short: links break under three rails, and every message arrives. And unlike rails: shared memory
//! that breaks in the middle of a rendezvous, between two processes.

use std::process::Command;

use crate::common::{doorbell, sentence, skipped};
use crate::hosts::AMPLE;

const TEST: &str = "doorbell::it::rails::links_break_under_three_rails_and_every_message_arrives";

fn lacking() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root");
    }
    let packages = [
        ("ip", "package iproute2: ip not found"),
        ("nft", "package nftables: nft not found"),
    ];
    let missing = |program: &str| Command::new(program).arg("-V").output().is_err();
    let found = packages.into_iter().find(|(program, _)| missing(program));
    found.map(|(_, reason)| reason)
}

/// A part of the report on one line, without what fills pages.
fn told(phase: &serde_json::Value) -> String {
    let mut short = phase.clone();
    if let Some(members) = short.as_object_mut() {
        members.retain(|name, _| !matches!(name.as_str(), "changes" | "returns"));
    }
    short.to_string()
}

#[test]
fn links_break_under_three_rails_and_every_message_arrives() {
    if let Some(reason) = lacking() {
        return skipped(TEST, reason);
    }
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--quiet", "--package", "xtask", "--", "rails"]);
    command.args(["--program", env!("CARGO_BIN_EXE_doorbell")]);
    command.args(["--seed", "5", "--seconds", "8", "--bytes", "16M"]);
    command.args(["--messages", "20000", "--no-flapping", "--json", "-"]);
    let out = assert_cmd::Command::from_std(command)
        .timeout(4 * AMPLE)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if said.contains("netns add") {
        return skipped(TEST, &format!("no network namespaces here: {said}"));
    }
    // Times are judged by those who run it on a machine of their own.
    assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{said}"));
    for phase in report["phases"].as_array().unwrap() {
        let told = told(phase);
        assert!(phase["failure"].is_null(), "{told}");
        for what in ["lost", "duplicated", "misordered", "corrupt"] {
            assert_eq!(phase[what], 0, "{what}: {told}");
        }
        assert!(phase["messages"].as_u64().unwrap() > 0, "{told}");
        assert!(phase["longest_stall_s"].as_f64().unwrap() < 30.0, "{told}");
        assert!(phase["samples"].as_u64().unwrap() > 10, "{told}");
    }
    let stream = &report["phases"][0];
    assert!(
        !stream["troubles"].as_array().unwrap().is_empty(),
        "{}",
        told(stream)
    );
    assert!(stream["ways_down"].as_u64().unwrap() > 0, "{}", told(stream));
}

/// A stream of two processes over shared memory, which breaks at both while messages are read, and the loopback.
#[test]
fn shared_memory_breaks_in_mid_rendezvous_and_the_loopback_carries_on() {
    let words = [
        "--rail", "shm", "--rail", "udp:lo", "--sizes", "8Mi", "--window", "2",
    ];
    let more = ["--seconds", "4", "--no-reference", "--verify", "--json", "-"];
    let out = doorbell()
        .env("DOORBELL_FAULT_INJECT", "shm:rendezvous")
        .env("DOORBELL_UDP_PORT", "0")
        .arg("stream")
        .args(words)
        .args(more)
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let environment = &report["environment"];
    let told = environment["doubts"].as_array().unwrap().iter();
    assert!(
        told.clone()
            .any(|doubt| doubt["code"] == "fault-injected"
                && doubt["text"].to_string().contains("shm:rendezvous")),
        "{environment:#}"
    );
    assert!(
        told.clone()
            .any(|doubt| doubt["code"] == "rail-broke" && doubt["text"].to_string().contains("shm to rank 1")),
        "{environment:#}"
    );
    let verified = &report["results"][0]["verified"];
    for what in ["lost", "duplicated", "misordered", "corrupt"] {
        assert_eq!(verified[what], 0, "{what}: {verified:#}");
    }
    let counts = &report["rail_counts"];
    let of = |name: &str| counts[name].as_u64().unwrap_or(0);
    // Whole messages went over the loopback while shared memory was down; after a second or so it carried again.
    assert!(of("udp:lo.bytes_sent") > 1 << 20, "{counts:#}");
    let messages = verified["messages"].as_u64().unwrap();
    assert!(
        messages * (8 << 20) > of("udp:lo.bytes_sent"),
        "{counts:#} {verified:#}"
    );
}

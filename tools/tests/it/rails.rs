//! `cargo xtask rails` in short: links break under three rails, and every message arrives. And unlike rails:
//! shared memory that breaks in the middle of a rendezvous, between two processes.

use std::process::Command;

use crate::common::{doorbell, sentence};
use crate::hosts::{AMPLE, at, finish};
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

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
        .timeout(8 * AMPLE)
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

/// A stream of two processes over shared memory, which breaks at both while messages are read, and the
/// loopback.
#[test]
fn shared_memory_breaks_in_mid_rendezvous_and_the_loopback_carries_on() {
    let words = [
        "--rail", "shm", "--rail", "udp:lo", "--sizes", "8Mi", "--window", "2",
    ];
    let broken_for = |seconds: &str| -> serde_json::Value {
        let out = doorbell()
            .env("DOORBELL_FAULT_INJECT", "shm:rendezvous")
            .env("DOORBELL_UDP_PORT", "0")
            .arg("stream")
            .args(words)
            .args(["--seconds", seconds, "--no-reference", "--verify", "--json", "-"])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    // On a busy machine the ranks may have had no time to break anything.
    let mut report = broken_for("4");
    for seconds in ["16", "48"] {
        if report["environment"]["doubts"].to_string().contains("rail-broke") {
            break;
        }
        report = broken_for(seconds);
    }
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
    // Whole messages went over the loopback while shared memory was down; after a second or so it carried
    // again.
    assert!(of("udp:lo.bytes_sent") > 1 << 20, "{counts:#}");
    let messages = verified["messages"].as_u64().unwrap();
    assert!(
        messages * (8 << 20) > of("udp:lo.bytes_sent"),
        "{counts:#} {verified:#}"
    );
}

/// A host whose interface has a label at each of its addresses, and two alternative names.
fn labelled(test: &str) -> Option<Lab> {
    let lab = Lab::pair(&format!("doorbell::it::rails::{test}"), 1500)?;
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    lab.ip(0, "address add 10.77.0.1/24 dev v0 label v0:1");
    lab.ip(0, "address add 10.77.0.9/24 dev v0 label v0:vip");
    for name in ["enp9s9", "a-name-by-the-slot-of-the-card"] {
        lab.ip(0, &format!("link property add dev v0 altname {name}"));
    }
    Some(lab)
}

/// Returns the standard output of a command at the first host; it ends well.
fn out(lab: &Lab, words: &[&str]) -> String {
    let out = finish(at(Some(lab.name(0)), words));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(
        out.status.code(),
        Some(0),
        "{words:?}: {said}{}",
        sentence(&out.stderr)
    );
    said
}

#[test]
fn the_label_of_an_address_makes_no_rail_and_names_the_address() {
    let Some(lab) = labelled("the_label_of_an_address_makes_no_rail_and_names_the_address") else {
        return;
    };
    let info: serde_json::Value = serde_json::from_str(&out(&lab, &["info", "--json"])).unwrap();
    let kinds = info["kinds"].as_array().unwrap();
    let rails: Vec<&str> = kinds
        .iter()
        .flat_map(|kind| kind["candidates"].as_array().unwrap())
        .filter_map(|one| one["rail"].as_str())
        .collect();
    assert!(
        rails.contains(&"udp:v0") && rails.contains(&"xdp:v0"),
        "{rails:?}"
    );
    assert!(!rails.iter().any(|rail| rail.contains("v0:")), "{rails:?}");
    // A label, as other programs print it, means its address.
    for (rail, address) in [
        ("udp:v0", "10.77.0.1/24"),
        ("udp:v0:1", "10.77.0.1/24"),
        ("udp:v0:vip", "10.77.0.9/24"),
    ] {
        let words = ["pingpong", "--rail", rail, "--sizes", "8", "--seconds", "0.05"];
        out(&lab, &words);
        let said = out(&lab, &["doctor", rail]);
        assert!(
            said.contains(address) && said.contains(&format!("{rail}: usable")),
            "{said}"
        );
    }
    let refused = finish(at(Some(lab.name(0)), &["pingpong", "--rail", "udp:v0:2"]));
    let said = sentence(&refused.stderr);
    assert!(
        refused.status.code() == Some(3) && said.contains("no address of v0 has the label v0:2"),
        "{said}"
    );
}

#[test]
fn an_interface_is_found_by_its_alternative_names_everywhere() {
    let Some(lab) = labelled("an_interface_is_found_by_its_alternative_names_everywhere") else {
        return;
    };
    for name in ["enp9s9", "a-name-by-the-slot-of-the-card"] {
        let rail = format!("udp:{name}");
        let said = out(&lab, &["doctor", &rail]);
        assert!(
            said.contains(&format!("{rail}: usable")) && said.contains("another name of v0"),
            "{said}"
        );
        let said = out(&lab, &["doctor", name]);
        assert!(said.contains(&format!("{rail}: usable")), "{said}");
        // The rail and the control plane by it.
        let words = ["pingpong", "--rail", &rail, "--sizes", "8", "--seconds", "0.05"];
        let mut command = at(Some(lab.name(0)), &words);
        command
            .env("DOORBELL_CONTROL", "on")
            .env("DOORBELL_CONTROL_NICS", name);
        let done = finish(command);
        assert_eq!(done.status.code(), Some(0), "{}", sentence(&done.stderr));
        // A daemon's own NIC.
        let words = [
            "run",
            "-n",
            "1",
            "--hosts",
            "localhost",
            "--nic",
            name,
            "--",
            "true",
        ];
        out(&lab, &words);
    }
}

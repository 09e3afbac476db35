//! A model and a kernel on one wire: a rank over a usnic rail, whose model is bridged to a veth pair, and a
//! rank over the kernel's UDP sockets at the other end of it; and what a sniffer on that wire makes of their
//! frames.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::sentence;
use crate::hosts::{AMPLE, Running, SOON, Server, at, finish, lab_at, two_hosts};
use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;

const TEST: &str = "usnic_wire::a_usnic_rail_and_a_udp_rail_are_peers_on_one_wire";
/// The function's own address, which no kernel has.
const FUNCTION: &str = "10.77.0.9";
const KERNEL: &str = "10.77.0.2";
const RAIL: &str = "usnic:model/D/vf0";

/// Turns off what the model cannot pass on: packets that a device should cut. And checksums are made here, so
/// that a sniffer can judge them. Returns whether that worked.
fn plain(lab: &Lab) -> bool {
    (0..2).all(|host| {
        let words = "tx off tso off gso off gro off tx-udp-segmentation off";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", lab.name(host), "ethtool", "-K", "v0"]);
        let output = command.args(words.split(' ')).output();
        output.is_ok_and(|output| output.status.success())
    })
}

/// Several who spin on two cores would wait for each other.
fn beside(mut command: Command, folder: &Path) -> Command {
    command.current_dir(folder).env("DOORBELL_WAIT", "sleep");
    command
}

/// The rank at the modelled adapter.
fn usnic(server: &Server, lab: &Lab, folder: &Path, kind: &str, words: &[&str]) -> Output {
    let command = server.client(Some(lab.name(0)), kind, &[words, &["--rail", RAIL]].concat());
    let mut command = beside(command, folder);
    command.env("DOORBELL_USNIC_ADDRESS", format!("{FUNCTION}/24"));
    finish(command)
}

/// Captures frames on the wire, from when it prints that it listens until a signal ends it.
fn sniffer(lab: &Lab, file: &Path) -> Option<Running> {
    Command::new("dumpcap").arg("--version").output().ok()?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", lab.name(1), "dumpcap", "-q", "-i", "v0", "-w"]);
    command.arg(file);
    let mut sniffer = Running::start(command);
    sniffer.says_within("File:", SOON);
    Some(sniffer)
}

/// Source, kind, and whether the UDP checksum is right, of each frame of ours; `None` where tshark is not
/// there, or runs no scripts.
fn dissected(file: &Path) -> Option<Vec<[String; 3]>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dissector/doorbell.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script.display()));
    command.arg("-r").arg(file);
    command.args([
        "-n",
        "-o",
        "udp.check_checksum:TRUE",
        "-Y",
        // An ICMP error quotes the frame that it refuses: one side ended first.
        "doorbell && !icmp",
        "-T",
        "fields",
    ]);
    command.args([
        "-E",
        "separator=|",
        "-e",
        "ip.src",
        "-e",
        "doorbell.kind",
        "-e",
        "udp.checksum.status",
    ]);
    let output = command.output().ok()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("not a valid") || errors.contains("aren't valid") || errors.contains("neither a field")
    {
        return None;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let mut parts = line.split('|').map(str::to_owned);
        [(); 3].map(|()| parts.next().unwrap_or_default())
    };
    Some(text.lines().map(row).collect())
}

/// What was seen on the wire: frames of both kinds of rails, which are alike.
fn judge(rows: &[[String; 3]]) {
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for [from, kind, sum] in rows {
        assert_eq!(sum, "1", "a checksum is wrong: {from} {kind}");
        *seen.entry((from, kind)).or_default() += 1;
    }
    println!("frames by source and kind: {seen:?}");
    for from in [FUNCTION, KERNEL] {
        let of = |kinds: &[&str]| -> usize {
            let these = seen
                .iter()
                .filter(|((source, kind), _)| *source == from && kinds.contains(kind));
            these.map(|(_, count)| count).sum()
        };
        assert!(of(&["2", "3"]) > 100, "{from} sends messages: {seen:?}");
        assert!(of(&["1"]) > 0, "{from} acknowledges: {seen:?}");
        assert!(
            of(&["10"]) > 0 && of(&["11"]) > 0,
            "{from} sends requests and replies: {seen:?}"
        );
    }
    let others = seen.keys().any(|(from, _)| ![FUNCTION, KERNEL].contains(from));
    assert!(!others, "{seen:?}");
}

#[test]
fn a_usnic_rail_and_a_udp_rail_are_peers_on_one_wire() {
    let Some((lab, folder, key)) = two_hosts(TEST) else {
        return;
    };
    if !plain(&lab) {
        return skipped(
            &format!("doorbell::it::{TEST}"),
            "package ethtool: offloads cannot be turned off",
        );
    }
    let here = folder.path();
    let words = [
        "model", "vic", "--dir", "D", "--vfs", "1", "--bridge", "v0", "--strict",
    ];
    let mut model = Running::start(beside(lab_at(Some(lab.name(0)), &words), here));
    model.says("ready: pf, vf0 in D");
    let mut agent = Running::start(beside(at(None, &["agent", "usnic", "--pf", "model/D/pf"]), here));
    agent.says("agent.sock");
    let capture = here.join("wire.pcapng");
    let sniffer = sniffer(&lab, &capture);
    let words = ["pingpong", "--serve", "--bind", "10.77.0.2:0", "--rail", "udp:v0"];
    let serve = at(Some(lab.name(1)), &[&words[..], &["--key-file", &key]].concat());
    let mut server = Server::start(beside(serve, here));
    for (kind, words) in [
        ("pingpong", ["--sizes", "8,16Ki,256Ki", "--samples", "20"]),
        ("stream", ["--sizes", "64,1Mi", "--seconds", "0.5"]),
    ] {
        let words = [
            &words[..],
            &["--verify", "--no-reference", "--key-file", &key, "--json", "-"],
        ]
        .concat();
        let out = usnic(&server, &lab, here, kind, &words);
        assert_eq!(out.status.code(), Some(0), "{kind}: {}", sentence(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        for result in report["results"].as_array().unwrap() {
            let verified = &result["verified"];
            assert!(verified["messages"].as_u64().unwrap() > 0, "{kind}: {verified:#}");
            for what in ["lost", "duplicated", "misordered", "corrupt"] {
                assert_eq!(verified[what], 0, "{kind}: {what}: {verified:#}");
            }
        }
        let rails = report["environment"]["rails"].as_array().unwrap();
        assert!(
            rails.len() == 1 && rails[0]["rail"] == RAIL && rails[0]["to"] == "udp:v0",
            "{rails:#?}"
        );
        assert!(server.says("disconnected after").ends_with(": done"));
    }
    if let Some(mut sniffer) = sniffer {
        // What it has not read yet is read until then.
        std::thread::sleep(Duration::from_millis(500));
        sniffer.signal(Signal::INT);
        assert_eq!(sniffer.ends(AMPLE), Some(0));
        match dissected(&capture) {
            Some(rows) => judge(&rows),
            None => skipped(
                &format!("doorbell::it::{TEST} (its capture)"),
                "package tshark: tshark is not there, or runs no Lua scripts",
            ),
        }
    } else {
        skipped(
            &format!("doorbell::it::{TEST} (its capture)"),
            "package wireshark-common: dumpcap not found",
        );
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.ends(SOON), Some(0));
    model.signal(Signal::TERM);
    // With --strict, 1 would report violations.
    assert_eq!(model.ends(SOON), Some(0));
}

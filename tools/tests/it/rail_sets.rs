//! Sets of rails: each rank of a host takes another one, under every launcher, and too few are refused before
//! a rank starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use doorbell_testing::netns::Lab;
use doorbell_testing::skipped;
use serde_json::Value;

use crate::hosts::at;
use crate::launchers::{example, hydra, lacking, loop_spawn, open_mpi, run, text};
use crate::run_hosts::over;

/// The interfaces of each host, for ranks that share memory within it.
const SETS: [&str; 4] = ["--rail", "shm", "--rail", "udp:v*"];

/// The example that prints the rails of each rank, and has all ranks exchange messages.
fn rails() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    FRESH.get_or_init(|| example("rails")).clone()
}

/// `doorbell run` on the first host of `lab`.
fn job(lab: &Lab, words: &[&str]) -> Command {
    at(Some(lab.name(0)), &[&["run", "--no-prefix"], words].concat())
}

/// The lines of ranks, in order.
fn lines(ended: &Output) -> Vec<String> {
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let mut lines: Vec<String> = text(&ended.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A program that leaves a file behind where it starts.
fn marks(folder: &Path) -> String {
    format!("touch {}/started", folder.display())
}

fn refused(mut command: Command, folder: &Path, words: &[&str]) {
    command.args(["--", "sh", "-c", &marks(folder)]);
    let ended = run(command);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(!folder.join("started").exists(), "a rank was started: {said}");
}

#[test]
fn each_rank_of_a_host_takes_another_interface() {
    let Some(lab) = Lab::multihomed("rail_sets::each_rank_of_a_host_takes_another_interface", 1500) else {
        return;
    };
    let expected = ["rank 0: shm,udp:v0; from 1", "rank 1: shm,udp:v1; from 0"];
    let mut command = job(&lab, &["-n", "2"]);
    command.args(SETS).arg("--").arg(rails());
    assert_eq!(lines(&run(command)), expected);
    // By the environment, too.
    let mut command = job(&lab, &["-n", "2", "--"]);
    command.arg(rails()).env("DOORBELL_RAILS", "shm,udp:v*");
    assert_eq!(lines(&run(command)), expected);
    let mut command = job(&lab, &["-n", "2", "--show-binding", "--json"]);
    let shown: Value = serde_json::from_slice(
        &run({
            command.args(SETS);
            command
        })
        .stdout,
    )
    .unwrap();
    let schema = include_str!("../../../bench/schema/binding-1.schema.json");
    let rules = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    assert!(rules.is_valid(&shown), "{shown}");
    assert_eq!(shown["sets"][0]["members"][1]["rail"], "udp:v1");
    assert_eq!(shown["ranks"][1]["rails"], serde_json::json!(["shm", "udp:v1"]));
    let mut command = at(Some(lab.name(0)), &["info"]);
    command.env("DOORBELL_RAILS", "udp:v*").env("COLUMNS", "200");
    let info = text(&run(command).stdout);
    assert!(
        info.contains("udp:v*             2          udp:v0, udp:v1"),
        "{info}"
    );
}

#[test]
fn too_few_rails_are_refused_before_a_rank_starts() {
    let Some(lab) = Lab::multihomed("rail_sets::too_few_rails_are_refused_before_a_rank_starts", 1500) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let with = |ranks: &str| {
        let mut command = job(&lab, &["-n", ranks]);
        command.args(SETS);
        command
    };
    let three = [
        "each of the 3 ranks of this host takes one",
        "2 of those",
        "udp:v0, udp:v1",
    ];
    refused(with("3"), folder.path(), &three);
    lab.ip(0, "link set v1 down");
    let down = [
        "1 of those that it stands for is free",
        "udp:v1 is left out",
        "link set v1 up",
    ];
    refused(with("2"), folder.path(), &down);
    let mut alone = job(&lab, &["-n", "2"]);
    lab.ip(0, "link set v1 up");
    lab.wait_until_up(0, "v1");
    alone.args(["--rail", "udp:v*"]);
    refused(alone, folder.path(), &["takes another interface", "`--rail shm`"]);
    let mut queues = job(&lab, &["-n", "3"]);
    queues.args(["--rail", "shm", "--rail", "xdp:v*"]);
    let missing = [
        "more queues do not",
        "ETHTOOL_SRXCLSRLINS; its driver has no rules",
        "one program",
    ];
    refused(queues, folder.path(), &missing);
    let mut none = job(&lab, &["-n", "1"]);
    none.args(["--rail", "udp:eth*"]);
    refused(none, folder.path(), &["no rail that it stands for", "udp:v0"]);
}

#[test]
fn ranks_of_several_hosts_reach_each_other_over_their_own_interfaces() {
    let test = "rail_sets::ranks_of_several_hosts_reach_each_other_over_their_own_interfaces";
    let Some(lab) = Lab::multihomed(test, 1500) else {
        return;
    };
    let nic = ["--nic", "v0", "--no-prefix"];
    for kind in ["udp", "xdp"] {
        let set = format!("{kind}:v*");
        let flags = ["--rail", "shm", "--rail", &set];
        let mut command = over(&lab, 2, 4, &[&flags[..], &nic].concat());
        command.arg(rails());
        assert_eq!(
            lines(&run(command)),
            [
                format!("rank 0: shm,{kind}:v0; from 1 2 3"),
                format!("rank 1: shm,{kind}:v1; from 0 2 3"),
                format!("rank 2: shm,{kind}:v0; from 0 1 3"),
                format!("rank 3: shm,{kind}:v1; from 0 1 2")
            ]
        );
    }
    // The other host has one less, and no rank starts on this one.
    lab.ip(1, "link set v1 down");
    let folder = tempfile::tempdir().unwrap();
    let mut command = over(&lab, 2, 4, &[&SETS[..], &nic].concat());
    command.args(["sh", "-c", &marks(folder.path())]);
    let ended = run(command);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    let host = format!("(host {})", lab.name(1));
    assert!(
        said.contains("udp:v1 is left out") && said.contains(&host),
        "{said}"
    );
    assert!(
        !folder.path().join("started").exists(),
        "a rank was started: {said}"
    );
}

#[test]
fn ranks_of_other_launchers_take_their_rails_by_number() {
    let test = "rail_sets::ranks_of_other_launchers_take_their_rails_by_number";
    if let Some(reason) = lacking() {
        return skipped(test, &reason);
    }
    let Some(lab) = Lab::multihomed(test, 1500) else {
        return;
    };
    for launcher in [open_mpi(), hydra()] {
        let start = |ranks: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", lab.name(0)]).args(&launcher.words);
            command.args(["-n", ranks]).arg(rails());
            command
                .env("DOORBELL_RAILS", "shm,udp:v*")
                .envs(launcher.variables.clone());
            run(command)
        };
        let expected = ["rank 0: shm,udp:v0; from 1", "rank 1: shm,udp:v1; from 0"];
        assert_eq!(lines(&start("2")), expected, "{}", launcher.kind);
        let ended = start("3");
        let said = text(&ended.stderr);
        assert!(!ended.status.success());
        assert!(
            said.contains("each of the 3 ranks of this host takes one"),
            "{said}"
        );
    }
}

#[test]
fn ranks_that_a_job_starts_take_what_no_other_rank_has() {
    let Some(lab) = Lab::multihomed(
        "rail_sets::ranks_that_a_job_starts_take_what_no_other_rank_has",
        1500,
    ) else {
        return;
    };
    let start = |ranks: &str| {
        let mut command = job(&lab, &["-n", ranks]);
        command.args(SETS).arg("--").arg(loop_spawn());
        command.args(["--rounds", "1", "--ranks", "1"]);
        run(command)
    };
    let ended = start("1");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let ended = start("2");
    let said = text(&ended.stderr);
    assert!(!ended.status.success());
    assert!(
        said.contains("none of those that it stands for is free"),
        "{said}"
    );
}

//! `doorbell links` from outside: jobs of ranks over several rails, links that drop something, and another
//! host.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{doorbell, sentence};
use crate::hosts::{at, finish, serve_at, two_hosts};
use doorbell_testing::netns::Lab;

/// What it found, checked by its schema, and its exit status.
fn links(host: Option<&str>, words: &[&str]) -> (Value, i32) {
    let out = finish(at(host, &[&["links", "--json"], words].concat()));
    sentence(&out.stderr);
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    let schema = include_str!("../../../bench/schema/links-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    (report, out.status.code().unwrap())
}

#[test]
fn every_pair_is_pinged_over_every_rail_and_one_that_fails_stops_no_other() {
    let words = [
        "--ranks",
        "4",
        "--rail",
        "shm",
        "--rail",
        "udp:nosuch0",
        "--rail",
        "udp:lo",
    ];
    let (report, code) = links(None, &words);
    assert_eq!((code, &report["works"]), (1, &Value::from(false)), "{report:#}");
    let pairs = |at: usize| report["rails"][at]["pairs"].as_array().unwrap();
    for (at, works) in [(0, true), (1, false), (2, true)] {
        assert_eq!(pairs(at).len(), 6);
        assert!(pairs(at).iter().all(|pair| pair["works"] == works), "{report:#}");
    }
    let ranks: Vec<&Value> = pairs(0).iter().map(|pair| &pair["ranks"]).collect();
    assert_eq!(
        serde_json::to_string(&ranks).unwrap(),
        "[[0,1],[0,2],[0,3],[1,2],[1,3],[2,3]]"
    );
    assert!(pairs(1)[0]["diagnosis"].as_str().unwrap().contains("nosuch0"));
    for pair in pairs(0).iter().chain(pairs(2)) {
        assert_eq!(pair["small"]["bytes"], 8);
        assert!(
            pair["full"]["bytes"].as_u64().unwrap() > 1000
                && pair["full"]["half_rtt_ns"].as_u64().unwrap() > 0
        );
    }
}

#[test]
fn a_link_that_drops_long_packets_is_diagnosed_within_the_time() {
    const TEST: &str =
        "doorbell::it::links_of_ranks::a_link_that_drops_long_packets_is_diagnosed_within_the_time";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let host = lab.name(0);
    let words = ["--ranks", "3", "--rail", "udp:v0", "--rail", "shm"];
    let (report, code) = links(Some(host), &words);
    assert_eq!(code, 0, "{report:#}");
    let full = report["rails"][0]["pairs"][0]["full"]["bytes"].as_u64().unwrap();
    assert!((1400..1472).contains(&full), "a full frame of this link: {full}");
    let rule = "add table inet own; add chain inet own out { type filter hook output priority 0; }; \
                add rule inet own out meta l4proto udp udp length > 1000 drop";
    let done = Command::new("ip")
        .args(["netns", "exec", host, "nft", rule])
        .status();
    assert!(done.unwrap().success());
    let begun = Instant::now();
    let (report, code) = links(Some(host), &words);
    assert_eq!(code, 1, "{report:#}");
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    for pair in report["rails"][0]["pairs"].as_array().unwrap() {
        let said = pair["diagnosis"].as_str().unwrap();
        assert!(
            pair["works"] == false && said.contains("small frames pass and full ones do not"),
            "{pair}"
        );
    }
    for pair in report["rails"][1]["pairs"].as_array().unwrap() {
        assert_eq!(pair["works"], true, "{pair}");
    }
}

#[test]
fn another_host_is_pinged_over_several_rails() {
    let Some((lab, _folder, key)) = two_hosts("links_of_ranks::another_host_is_pinged_over_several_rails")
    else {
        return;
    };
    let words = ["--bind", "10.77.0.1:0", "--rail", "udp:v0", "--key-file", &key];
    let server = serve_at(Some(lab.name(0)), &words);
    let words = [
        "--connect",
        &server.address,
        "--key-file",
        &key,
        "--rail",
        "udp:v0",
        "--rail",
        "xdp:v0",
    ];
    let (report, code) = links(Some(lab.name(1)), &words);
    assert_eq!(code, 0, "{report:#}");
    for rail in report["rails"].as_array().unwrap() {
        let full = rail["pairs"][0]["full"]["bytes"].as_u64().unwrap();
        assert!((1400..1472).contains(&full), "{rail}");
    }
    lab.drop_udp(0);
    let (report, code) = links(Some(lab.name(1)), &words[..6]);
    assert_eq!(code, 1, "{report:#}");
    let said = report["rails"][0]["pairs"][0]["diagnosis"].as_str().unwrap();
    assert!(
        said.starts_with("nothing comes back: ") && said.contains("look for a firewall"),
        "{said}"
    );
}

#[test]
fn wrong_words_are_refused() {
    for (words, word) in [
        (&["--ranks", "1"][..], "2 to 64"),
        (&["--key-file", "x"], "--connect"),
        (&["--connect", "127.0.0.1"], "--rail"),
        (&["--rail", "smh"], "shm"),
    ] {
        let out = doorbell().arg("links").args(words).output().unwrap();
        let said = sentence(&out.stderr);
        assert!(
            out.status.code() == Some(2) && said.contains(word),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn without_rails_those_of_the_settings_are_tried() {
    let tried = |set: Option<&str>, flags: &[&str]| -> Vec<String> {
        let mut command = doorbell();
        command.args(["links", "--json"]).args(flags);
        if let Some(rails) = set {
            command.env("DOORBELL_RAILS", rails);
        }
        let out = command.output().unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        let rails = report["rails"].as_array().unwrap().iter();
        rails
            .map(|over| over["rail"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(tried(None, &[]), ["shm", "udp:lo"]);
    assert_eq!(tried(Some("shm"), &[]), ["shm"]);
    assert_eq!(tried(Some("shm"), &["--rail", "udp:lo"]), ["udp:lo"]);
}

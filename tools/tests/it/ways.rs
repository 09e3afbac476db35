//! Several rails at a time: pairs that both ends find alike, rails that are left over, and networks without a way.

use std::process::Command;

use crate::common::{doorbell, sentence};
use crate::hosts::{Running, at, fails, finish, two_hosts};
use crate::netns::Lab;

/// Another link between the two hosts, or one that ends at the second one; with IPv4 addresses `10.NET.0.HOST`.
fn link(lab: &Lab, name: &str, net: u8, both: bool) {
    let other = if both {
        format!("name {name} netns {}", lab.name(0))
    } else {
        format!("name {name}x")
    };
    lab.ip(1, &format!("link add {name} type veth peer {other}"));
    for host in if both { 0..2 } else { 1..2 } {
        lab.ip(
            host,
            &format!("address add 10.{net}.0.{}/24 dev {name}", host + 1),
        );
        lab.ip(host, &format!("link set {name} up"));
    }
    if !both {
        lab.ip(1, &format!("link set {name}x up"));
    }
    lab.wait_until_up(1, name);
}

fn rails(words: &[&str], names: &[&str], key: &str) -> Vec<String> {
    let mut all: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    for name in names {
        all.extend(["--rail".to_owned(), (*name).to_owned()]);
    }
    all.extend(["--key-file".to_owned(), key.to_owned()]);
    all
}

fn command(lab: &Lab, host: usize, words: &[String]) -> Command {
    at(
        Some(lab.name(host)),
        &words.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}

const SERVE: [&str; 4] = ["pingpong", "--serve", "--bind", "10.77.0.1"];
const CONNECT: [&str; 8] = [
    "pingpong",
    "--connect",
    "10.77.0.1",
    "--sizes",
    "8,64Ki",
    "--samples",
    "100",
    "--verify",
];

#[test]
fn two_rails_against_three_pair_by_network_whatever_the_order() {
    let Some((lab, _folder, key)) =
        two_hosts("ways::two_rails_against_three_pair_by_network_whatever_the_order")
    else {
        return;
    };
    link(&lab, "a0", 78, true);
    link(&lab, "z0", 79, false);
    let mut server = Running::start(command(&lab, 0, &rails(&SERVE, &["udp:v0", "udp:a0"], &key)));
    server.says("serving on");
    let mut words = rails(&CONNECT, &["udp:z0", "udp:v0", "udp:a0"], &key);
    words.extend(["--json", "-"].map(str::to_owned));
    let out = finish(command(&lab, 1, &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut found: Vec<_> = report["environment"]["rails"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    found.sort_by_key(|one| one["rail"].as_str());
    let pairs: Vec<_> = found
        .iter()
        .map(|one| (one["rail"].as_str().unwrap(), one["to"].as_str().unwrap()))
        .collect();
    // The third is left over, though it was named: the other side has two.
    assert_eq!(pairs, [("udp:a0", "udp:a0"), ("udp:v0", "udp:v0")], "{report:#}");
    let roles = |role| found.iter().filter(|one| one["role"] == role).count();
    assert_eq!(roles("carries") + roles("stands by"), 2);
    assert!(server.says("went after").ends_with(": done"));
}

#[test]
fn a_pair_without_a_route_is_refused_at_both_ends_with_the_reason() {
    let Some((lab, _folder, key)) =
        two_hosts("ways::a_pair_without_a_route_is_refused_at_both_ends_with_the_reason")
    else {
        return;
    };
    link(&lab, "z0", 79, false);
    let mut server = Running::start(command(&lab, 0, &rails(&SERVE, &["udp:v0"], &key)));
    server.says("serving on");
    // The first host has no route to 10.79.0.0, the second one leads to 10.77.0.1 by another interface.
    let (code, said) = fails(command(&lab, 1, &rails(&CONNECT, &["udp:z0"], &key)));
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("no route") || said.contains("through v0, not z0"),
        "{said}"
    );
    server.says("went after");
    // IPv6 alone does not meet IPv4.
    let (code, said) = fails(command(&lab, 1, &rails(&CONNECT, &["udp:fd77::2"], &key)));
    assert!(code == Some(3) && said.contains("families"), "{said}");
    server.says("went after");
    let out = finish(command(&lab, 1, &rails(&CONNECT, &["udp:v0"], &key)));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

#[test]
fn several_rails_of_one_host_are_shown_with_their_roles() {
    let words = [
        "pingpong",
        "--rail",
        "shm",
        "--rail",
        "udp:lo",
        "--sizes",
        "8,64Ki",
        "--samples",
        "100",
        "--verify",
    ];
    let out = doorbell().args(words).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("rails"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("shm (") && line.contains("udp:lo ("), "{text}");
    for kind in ["stream", "rate"] {
        let words = [
            kind,
            "--rail",
            "shm",
            "--rail",
            "udp:lo",
            "--samples",
            "100",
            "--json",
            "-",
        ];
        let out = doorbell().args(words).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            report["environment"]["rails"].as_array().unwrap().len(),
            2,
            "{report:#}"
        );
    }
}

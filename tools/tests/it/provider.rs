//! A client of libfabric over the provider, as the program sees it from outside while it runs: `fi_pingpong`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::built;
use crate::counters::read;
use crate::hosts::{Running, at, finish};

/// The provider's file, built if it is not fresh.
fn library() -> PathBuf {
    let file = Path::new(env!("CARGO_BIN_EXE_doorbell")).with_file_name("libdoorbell_fi.so");
    built(file, &["-p", "doorbell-provider"])
}

/// Starts one side of messages that go to and fro until it is killed.
fn pingpong(library: &Path, port: u16, words: &[&str]) -> Running {
    let mut command = Command::new("fi_pingpong");
    let flag = if words.is_empty() { "-B" } else { "-P" };
    let port = port.to_string();
    command
        .args([
            "-p",
            "doorbell",
            "-e",
            "rdm",
            "-m",
            "tagged",
            "-I",
            "1000000000",
            "-S",
            "64",
        ])
        .args([flag, port.as_str()])
        .args(words)
        .env("FI_PROVIDER_PATH", library.parent().unwrap())
        .env("FI_PROVIDER", "doorbell")
        .env("DOORBELL_RAILS", "shm")
        .env_remove("DOORBELL_COUNTERS");
    Running::start(command)
}

/// Whether something listens at a port: a connection would be taken for the other side's.
fn listens(port: u16) -> bool {
    let list = |name| std::fs::read_to_string(name).unwrap_or_default();
    let place = format!(":{port:04X} ");
    (list("/proc/net/tcp") + &list("/proc/net/tcp6"))
        .lines()
        .any(|line| line.contains(&place) && line.contains(" 0A "))
}

fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The value of a counter of a process, in a report on it.
fn value(report: &Value, name: impl Fn(&str) -> bool) -> Option<(&str, &Value)> {
    let readings = report["ranks"][0]["readings"].as_array()?;
    let found = readings.iter().find(|one| name(one["name"].as_str().unwrap()))?;
    Some((found["name"].as_str()?, &found["value"]))
}

/// What a process has sent at once, when it has met a peer.
fn sent(process: u32) -> Option<u64> {
    let report = read(process)?;
    assert_eq!(report["ranks"][0]["rank"], u32::MAX, "of no job: {report:#}");
    value(&report, |name| name == "pml.sent_eager")?.1.as_u64()
}

#[test]
fn a_client_of_libfabric_shows_its_peer_its_messages_and_its_rails() {
    const TEST: &str =
        "doorbell::it::provider::a_client_of_libfabric_shows_its_peer_its_messages_and_its_rails";
    if let Some(reason) = doorbell_testing::skip::lacking("fi_pingpong", "libfabric-bin") {
        return doorbell_testing::skipped(TEST, &reason);
    }
    let library = library();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = pingpong(&library, port, &[]);
    until("the server does not listen", || listens(port).then_some(()));
    let client = pingpong(&library, port, &["127.0.0.1"]);
    let first = until("the client does not count what it sends", || sent(client.id()));
    until("it sends no more", || {
        sent(client.id()).filter(|now| *now > first)
    });

    // Each names the other one.
    let report = read(client.id()).unwrap();
    let address = value(&read(server.id()).unwrap(), |name| name == "member.address")
        .unwrap()
        .1
        .clone();
    let address = address.as_str().unwrap();
    let (row, state) = value(&report, |name| {
        name.starts_with("way.") && name.ends_with(".state")
    })
    .unwrap();
    let peer = row.split('.').nth(1).unwrap();
    assert!(address.contains(peer), "{row} is no way to {address}");
    assert!(row.contains("shm") && state.is_u64(), "{row}: {state}");

    let process = client.id().to_string();
    let table = finish(at(None, &["counters", &process, "--name", "pml.sent_eager"]));
    let table = String::from_utf8(table.stdout).unwrap();
    let mut lines = table.lines();
    assert_eq!(
        lines.next(),
        Some(format!("process {process}, of no job").as_str()),
        "{table}"
    );
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("  pml.sent_eager")),
        "{table}"
    );

    let why = finish(at(None, &["why", peer, "--json"]));
    let why: Value = serde_json::from_slice(&why.stdout).unwrap_or_else(|error| panic!("{error}: {why:?}"));
    let from = &why["from"][0];
    assert_eq!(from["pid"], client.id(), "{why:#}");
    assert_eq!(
        (&from["rails"][0]["rail"], &from["rails"][0]["verdict"]),
        (&Value::from("shm"), &Value::from("chosen"))
    );
    let text = finish(at(None, &["why", peer]));
    assert!(text.status.success(), "{text:?}");
    assert!(String::from_utf8_lossy(&text.stdout).contains("shm"), "{text:?}");
}

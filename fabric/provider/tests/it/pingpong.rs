//! fi_pingpong of the installed libfabric: on one host, and between two, which are network namespaces.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_testing::netns::Lab;

use crate::pair::{text, variables};

fn pingpong(test: &str, arguments: &[&str]) {
    if let Some(reason) = doorbell_testing::skip::lacking("fi_pingpong", "libfabric-bin") {
        return doorbell_testing::skipped(test, &reason);
    }
    // A port that is free now; the program does not print which it took.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start = |peer: &[&str]| {
        let mut command = Command::new("fi_pingpong");
        let port = port.to_string();
        command
            .args(["-p", "doorbell", "-e", "rdm", "-c"])
            .args(arguments);
        let flag = if peer.is_empty() { "-B" } else { "-P" };
        command.args([flag, &port]).args(peer);
        variables(&mut command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let server = start(&[]);
    let until = Instant::now() + Duration::from_secs(60);
    // A connection would be taken for the client's: the port is looked for in the system's list.
    let listens = || {
        let list = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let list6 = std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
        let place = format!(":{port:04X} ");
        (list + &list6)
            .lines()
            .any(|line| line.contains(&place) && line.contains(" 0A "))
    };
    while !listens() {
        assert!(Instant::now() < until, "the server does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
    let client = start(&["127.0.0.1"]);
    expect_figures([client, server]);
}

/// Waits for both programs, which have to end with their tables.
fn expect_figures(programs: [Child; 2]) {
    let outputs = programs.map(|program| program.wait_with_output().unwrap());
    for output in &outputs {
        println!("{}\n{}", output.status, text(output));
    }
    for output in &outputs {
        assert!(output.status.success() && text(output).contains("MB/sec"));
    }
}

#[test]
fn messages() {
    pingpong("pingpong::messages", &["-I", "20", "-S", "all"]);
}

#[test]
fn tagged_messages() {
    pingpong(
        "pingpong::tagged_messages",
        &["-I", "20", "-S", "all", "-m", "tagged"],
    );
}

/// Runs it between two hosts, over rails that this variable of both programs names, or an argument.
fn between_hosts(test: &str, (variable, value): (&str, &str), arguments: &[&str]) {
    if let Some(reason) = doorbell_testing::skip::lacking("fi_pingpong", "libfabric-bin") {
        return doorbell_testing::skipped(test, &reason);
    }
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let start = |host: usize, peer: &[&str]| {
        let mut command = Command::new("fi_pingpong");
        command
            .args(["-p", "doorbell", "-e", "rdm", "-c"])
            .args(arguments)
            .args(peer);
        variables(&mut command)
            .env_remove("DOORBELL_RAILS")
            .env(variable, value)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        lab.inside(host, || command.spawn().unwrap())
    };
    let server = start(1, &[]);
    let listens = || std::fs::read_to_string(format!("/proc/{}/net/tcp", server.id()));
    let until = Instant::now() + Duration::from_secs(60);
    while !listens().unwrap_or_default().contains(" 0A ") {
        assert!(Instant::now() < until, "the server does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
    let client = start(0, &[&lab.ipv4(1).to_string()]);
    expect_figures([client, server]);
}

#[test]
fn messages_between_hosts() {
    between_hosts(
        "pingpong::messages_between_hosts",
        ("FI_DOORBELL_RAILS", "shm,udp:v0"),
        &["-I", "20", "-S", "all"],
    );
}

#[test]
fn tagged_messages_between_hosts() {
    between_hosts(
        "pingpong::tagged_messages_between_hosts",
        ("FI_DOORBELL_RAILS", "udp:v0"),
        &["-I", "20", "-S", "all", "-m", "tagged"],
    );
}

#[test]
fn messages_between_hosts_in_a_domain_chosen_by_name() {
    between_hosts(
        "pingpong::messages_between_hosts_in_a_domain_chosen_by_name",
        ("FI_DOORBELL_NETWORK", "off"),
        &["-I", "20", "-S", "65536", "-d", "shm+udp:v0"],
    );
}

#[test]
fn messages_between_hosts_where_routes_choose_the_rails() {
    between_hosts(
        "pingpong::messages_between_hosts_where_routes_choose_the_rails",
        ("FI_DOORBELL_NETWORK", "routes"),
        &["-I", "20", "-S", "65536"],
    );
}

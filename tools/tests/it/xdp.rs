//! Rails past the kernel, from outside: two hosts of network namespaces, every measurement, loss, a peer over sockets, a user
//! without the rights, and a process that is killed.

use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;

use crate::common::sentence;
use crate::hosts::{LONG, Running, SHORT, SOON, Server, at, fails, finish, key_in, serve_at, two_hosts};
use crate::netns::{Lab, skipped};

/// What `ip link` shows of a host's interface.
fn link(lab: &Lab, host: usize) -> String {
    let shown = Command::new("ip")
        .args(["-n", lab.name(host), "link", "show", "v0"])
        .output()
        .unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn two_hosts_measure_past_the_kernel_and_with_a_host_that_does_not() {
    let Some((lab, _folder, key)) =
        two_hosts("xdp::two_hosts_measure_past_the_kernel_and_with_a_host_that_does_not")
    else {
        return;
    };
    for (serving, calling) in [("xdp:v0", "xdp:v0"), ("udp:v0", "xdp:v0"), ("xdp:v0", "udp:v0")] {
        let words = ["--bind", "10.77.0.1:0", "--rail", serving, "--key-file", &key];
        let mut server = serve_at(Some(lab.name(0)), &words);
        for kind in ["pingpong", "stream", "rate"] {
            let words = ["--rail", calling, "--key-file", &key, "--verify"];
            let out = finish(server.client(Some(lab.name(1)), kind, &[&words[..], &SHORT].concat()));
            assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            let shown = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(
                shown.contains(&format!("{calling}, inline: it was named")),
                "{shown}"
            );
            assert!(server.says("went after").ends_with(": done"));
        }
    }
    assert!(
        !link(&lab, 0).contains("prog/xdp"),
        "the last server is gone, and its program"
    );
}

#[test]
fn messages_are_whole_where_frames_are_lost() {
    const TEST: &str = "doorbell::it::xdp::messages_are_whole_where_frames_are_lost";
    let Some(lab) = Lab::switched(TEST, 1500, 50) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    let words = ["--bind", "10.77.0.1:0", "--rail", "xdp:v0", "--key-file", &key];
    let mut server = serve_at(Some(lab.name(0)), &words);
    let words = [
        "--rail",
        "xdp:v0",
        "--key-file",
        &key,
        "--verify",
        "--sizes",
        "64,64k",
        "--samples",
        "300",
        "--json",
        "-",
    ];
    let out = finish(server.client(Some(lab.name(1)), "pingpong", &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    assert!(server.says("went after").ends_with(": done"));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let resends = report["rail_counts"]["xdp:v0.resends"].as_u64().unwrap_or(0);
    assert!(resends > 10, "nothing was lost: {}", report["rail_counts"]);
}

#[test]
fn who_is_killed_leaves_the_interface_clean_and_its_peer_hears_of_it() {
    let Some((lab, _folder, key)) =
        two_hosts("xdp::who_is_killed_leaves_the_interface_clean_and_its_peer_hears_of_it")
    else {
        return;
    };
    let words = ["--bind", "10.77.0.1:0", "--rail", "xdp:v0", "--key-file", &key];
    let mut server = serve_at(Some(lab.name(0)), &words);
    let words = ["--rail", "xdp:v0", "--key-file", &key];
    let client = Running::start(server.client(Some(lab.name(1)), "pingpong", &[&words[..], &LONG].concat()));
    server.says("came: process");
    let begun = Instant::now();
    while !(0..2).all(|host| link(&lab, host).contains("prog/xdp")) {
        assert!(begun.elapsed() < SOON, "never happened: both have their programs");
    }
    client.signal(Signal::KILL);
    assert!(!server.says("went after").ends_with(": done"));
    let begun = Instant::now();
    while link(&lab, 1).contains("prog/xdp") {
        assert!(begun.elapsed() < SOON, "never happened: the program is gone");
    }
    // The queue is free for the next one.
    let out = finish(server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat()));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

#[test]
fn a_user_without_the_rights_hears_which() {
    let Some((lab, _folder, _)) = two_hosts("xdp::a_user_without_the_rights_hears_which") else {
        return;
    };
    let info = |drop: &str| {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            lab.name(0),
            "setpriv",
            "--bounding-set",
            drop,
            "--inh-caps",
            drop,
        ]);
        command.arg(env!("CARGO_BIN_EXE_doorbell"));
        command
    };
    for (drop, named) in [
        ("-net_raw", "lacks CAP_NET_RAW;"),
        ("-net_admin", "lacks CAP_NET_ADMIN;"),
        ("-bpf,-sys_admin", "lacks CAP_BPF;"),
        (
            "-net_raw,-net_admin,-bpf,-sys_admin",
            "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF;",
        ),
    ] {
        let mut command = info(drop);
        command.args(["pingpong", "--rail", "xdp:v0"]);
        let (code, said) = fails(command);
        assert!(
            code == Some(3) && said.contains(named) && said.contains("setcap"),
            "{drop}: {code:?} {said}"
        );
        let mut command = info(drop);
        command.arg("info");
        let shown = finish(command).stdout;
        let shown = String::from_utf8_lossy(&shown);
        let line = shown.lines().find(|line| line.starts_with("xdp:v0")).unwrap();
        assert!(line.contains("rejected") && line.contains(named), "{line}");
    }
}

#[test]
fn the_mode_that_is_had_is_shown_and_one_that_is_not_is_refused() {
    let Some((lab, _folder, key)) =
        two_hosts("xdp::the_mode_that_is_had_is_shown_and_one_that_is_not_is_refused")
    else {
        return;
    };
    let words = ["--bind", "10.77.0.1:0", "--rail", "xdp:v0", "--key-file", &key];
    let server = serve_at(Some(lab.name(0)), &words);
    for (mode, shown) in [
        ("generic", "generic, copies"),
        ("native", "native, copies"),
        ("best", "generic, copies"),
    ] {
        let words = ["--rail", "xdp:v0", "--key-file", &key];
        let mut client = server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat());
        client.env("DOORBELL_XDP_MODE", mode);
        let out = finish(client);
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains(shown), "{mode}: {text}");
    }
    let mut command = at(
        Some(lab.name(1)),
        &[
            "pingpong",
            "--connect",
            &server.address,
            "--rail",
            "xdp:v0",
            "--key-file",
            &key,
        ],
    );
    command.env("DOORBELL_XDP_MODE", "zero-copy");
    let (code, said) = fails(command);
    assert!(
        code == Some(3) && said.contains("zero-copy: its driver does not have it"),
        "{said}"
    );
    server.process.signal(Signal::INT);
}

/// Queues that are mapped take frames of a page at most. Where the other end sends longer ones, both are told at once what to
/// set, and with that set they understand each other.
#[test]
fn frames_that_are_too_long_for_the_other_end_are_refused_at_once() {
    const TEST: &str = "doorbell::it::xdp::frames_that_are_too_long_for_the_other_end_are_refused_at_once";
    let Some(lab) = Lab::pair(TEST, 9000) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    for (serving, calling) in [("udp:v0", "xdp:v0"), ("xdp:v0", "udp:v0")] {
        let serve = |mtu: &str| {
            let words = ["pingpong", "--serve", "--bind", "10.77.0.1:0", "--rail", serving];
            let mut command = at(Some(lab.name(0)), &[&words[..], &["--key-file", &key]].concat());
            command.env("DOORBELL_UDP_MTU", mtu);
            Server::start(command)
        };
        let words = ["--rail", calling, "--key-file", &key, "--verify"];
        let server = serve("auto");
        let begun = Instant::now();
        let client = server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat());
        let (code, said) = fails(client);
        assert!(
            code == Some(3) && said.contains("udp.mtu=3826") && said.contains("9000 bytes"),
            "{code:?} {said}"
        );
        assert!(begun.elapsed() < SOON, "at once");
        server.process.signal(Signal::INT);
        let server = serve("3826");
        let mut client = server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat());
        client.env("DOORBELL_UDP_MTU", "3826");
        let out = finish(client);
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        server.process.signal(Signal::INT);
    }
}

#[test]
fn the_bare_queues_that_cannot_be_had_end_as_any_rail_does() {
    let words = [
        "raw-udp",
        "--from",
        "127.0.0.1:7118",
        "--to",
        "127.0.0.1:7120",
        "--xdp",
    ];
    let (code, said) = fails(at(None, &words));
    assert!(code == Some(3) && said.contains("loopback"), "{code:?} {said}");
}

/// A link upon a virtual link is no hardware either: nothing cuts runs of frames up on the way to a peer past the kernel, so the
/// sender does not make them.
#[test]
fn a_peer_over_sockets_sends_no_runs_over_links_upon_virtual_links() {
    let Some((lab, _folder, key)) =
        two_hosts("xdp::a_peer_over_sockets_sends_no_runs_over_links_upon_virtual_links")
    else {
        return;
    };
    for (name, kind, network) in [("l0", "vlan id 5", 78), ("m0", "macvlan mode bridge", 79)] {
        for host in 0..2 {
            if !lab.can(host, &format!("link add link v0 name {name} type {kind}")) {
                return skipped(
                    "a_peer_over_sockets_sends_no_runs_over_links_upon_virtual_links",
                    "no such links here",
                );
            }
            lab.ip(
                host,
                &format!("address add 10.{network}.0.{}/24 dev {name}", host + 1),
            );
            lab.ip(host, &format!("link set {name} up"));
            lab.wait_until_up(host, name);
        }
        let (bind, serving, calling) = (
            format!("10.{network}.0.1:0"),
            format!("xdp:{name}"),
            format!("udp:{name}"),
        );
        let words = ["--bind", &bind, "--rail", &serving, "--key-file", &key];
        let server = serve_at(Some(lab.name(0)), &words);
        let words = ["--rail", &calling, "--key-file", &key, "--verify"];
        let long = ["--sizes", "64Ki", "--samples", "50"];
        let out = finish(server.client(Some(lab.name(1)), "stream", &[&words[..], &long].concat()));
        assert_eq!(out.status.code(), Some(0), "{name}: {}", sentence(&out.stderr));
        server.process.signal(Signal::INT);
    }
}

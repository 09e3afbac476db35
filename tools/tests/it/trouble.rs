//! Two hosts, and trouble between them: paths that drop full frames, two jobs that want one port, strangers'
//! frames, and those of an earlier life. Real processes in network namespaces.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::common::sentence;
use crate::hosts::{AMPLE, LONG, Running, SOON, Server, at, fails, finish, key_in, two_hosts};
use doorbell_testing::netns::Lab;

/// The first host's address, for those who serve.
const BIND: &str = "10.77.0.1:0";
/// What a path that drops full frames is called.
const ONLY_SMALL: &str = "small frames pass and full ones do not";

/// Trouble is found out by probes: here soon, in whole seconds usually.
fn hasty(mut command: Command) -> Command {
    command.env("DOORBELL_BTL_CONNECTIVITY_ACK_TIMEOUT", "20 ms");
    command.env("DOORBELL_BTL_GIVE_UP", "10 s");
    command
}

/// A side that serves at the first host, and is as hasty.
fn serve(lab: &Lab, key: &str, layer: &str) -> Server {
    let words = [
        "--bind",
        BIND,
        "--rail",
        "udp:v0",
        "--key-file",
        key,
        "--layer",
        layer,
    ];
    let mut command = hasty(at(Some(lab.name(0)), &["pingpong", "--serve"]));
    command.args(words);
    Server::start(command)
}

fn client(lab: &Lab, server: &Server, key: &str, kind: &str, words: &[&str]) -> Command {
    let rail = ["--rail", "udp:v0", "--key-file", key];
    hasty(server.client(Some(lab.name(1)), kind, &[words, &rail].concat()))
}

/// After the trouble everything is as before.
fn works_again(lab: &Lab, server: &mut Server, key: &str) {
    let words = ["--sizes", "8,64Ki", "--samples", "50", "--verify"];
    let out = finish(client(lab, server, key, "pingpong", &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    server.says("connected: process");
    assert!(server.says("disconnected after").ends_with(": done"));
}

#[test]
fn a_path_that_drops_full_frames_is_named_before_the_run() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::a_path_that_drops_full_frames_is_named_before_the_run")
    else {
        return;
    };
    let mut server = serve(&lab, &key, "pml");
    // On the way to the side that serves, and on the way back.
    for host in [0, 1] {
        lab.drop_longer(host, 1000);
        // The messages themselves are short: it is the path that is refused.
        let started = Instant::now();
        let (code, said) = fails(client(&lab, &server, &key, "pingpong", &LONG));
        assert!(
            code == Some(4) && said.contains(ONLY_SMALL) && said.contains("udp:v0"),
            "{said}"
        );
        assert!(started.elapsed() < 2 * SOON, "{:?}", started.elapsed());
        server.process.says_within("disconnected after", 2 * SOON);
        lab.lose(0);
    }
    works_again(&lab, &mut server, &key);
}

/// A client that soon prints what it waits for, and gives up soon after; its lines, and its exit status.
fn waits_in_vain(lab: &Lab, server: &Server, key: &str, layer: &str) -> (Vec<String>, Option<i32>) {
    let words = [
        "--rail",
        "udp:v0",
        "--key-file",
        key,
        "--sizes",
        "8",
        "--layer",
        layer,
    ];
    let mut command = server.client(Some(lab.name(1)), "pingpong", &words);
    command
        .env("DOORBELL_QUIET", "8 s")
        .env("DOORBELL_DEADLINE", "16 s");
    let out = finish(command);
    let said = sentence(&out.stderr);
    (said.lines().map(str::to_owned).collect(), out.status.code())
}

#[test]
fn a_peer_from_which_nothing_comes_is_named_and_not_shown_as_up() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::a_peer_from_which_nothing_comes_is_named_and_not_shown_as_up")
    else {
        return;
    };
    let server = serve(&lab, &key, "pml");
    lab.drop_udp(0);
    let (lines, code) = waits_in_vain(&lab, &server, &key, "pml");
    assert_eq!(code, Some(5), "{lines:#?}");
    // The notice of a long wait, and the error at its end.
    for begin in ["doorbell: rank 0 has waited", "doorbell: deadline passed"] {
        let line = lines
            .iter()
            .find(|line| line.starts_with(begin))
            .unwrap_or_else(|| panic!("{lines:#?}"));
        for word in [
            "rank 1 over udp:v0 suspect",
            "nothing comes back",
            "look for a firewall",
        ] {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(!line.contains("raise wait.deadline"), "{line}");
    }
}

#[test]
fn a_firewall_is_reported_above_every_layer() {
    let Some((lab, _folder, key)) = two_hosts("trouble::a_firewall_is_reported_above_every_layer") else {
        return;
    };
    lab.drop_udp(0);
    for layer in ["am", "portals"] {
        let server = serve(&lab, &key, layer);
        let (lines, code) = waits_in_vain(&lab, &server, &key, layer);
        let said = lines.join("\n");
        // Their links give a silent peer up before a wait's deadline.
        assert!(matches!(code, Some(4 | 5)), "{layer}: {code:?}: {said}");
        assert!(said.contains("look for a firewall"), "{layer}: {said}");
        assert!(!said.contains("raise wait.deadline"), "{layer}: {said}");
    }
}

#[test]
fn frames_that_the_own_kernel_does_not_send_are_reported_with_its_error() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::frames_that_the_own_kernel_does_not_send_are_reported_with_its_error")
    else {
        return;
    };
    let server = serve(&lab, &key, "pml");
    for hook in ["output", "postrouting"] {
        lab.nft(
            1,
            &format!(
                "flush ruleset; add table inet t; add chain inet t c {{ type filter hook {hook} priority 0; \
                 }}; add rule inet t c ip protocol udp drop"
            ),
        );
        let (lines, code) = waits_in_vain(&lab, &server, &key, "pml");
        assert_eq!(code, Some(5), "{lines:#?}");
        let line = lines
            .iter()
            .find(|line| line.starts_with("doorbell: rank 0 has waited"))
            .unwrap_or_else(|| panic!("{lines:#?}"));
        for word in [
            "refused to send",
            "Operation not permitted",
            "output, postrouting",
        ] {
            assert!(line.contains(word), "{hook}, {word}: {line}");
        }
    }
}

/// A second interface of both hosts in the network of the first, by which the kernel lets nothing in.
#[test]
fn an_interface_by_which_the_kernel_lets_nothing_in_is_named_with_the_setting() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::an_interface_by_which_the_kernel_lets_nothing_in_is_named_with_the_setting")
    else {
        return;
    };
    let made = [
        "link",
        "add",
        "v1",
        "netns",
        lab.name(0),
        "type",
        "veth",
        "peer",
        "name",
        "v1",
        "netns",
        lab.name(1),
    ];
    assert!(Command::new("ip").args(made).status().unwrap().success());
    for host in [0, 1] {
        lab.ip(host, &format!("address add 10.77.0.{}/24 dev v1", 11 + host));
        lab.ip(host, "link set v1 up");
    }
    (0..2).for_each(|host| lab.wait_until_up(host, "v1"));
    let set = |host: usize, value: &str| {
        // Of both values the larger one holds.
        for (which, value) in [("all", "0"), ("v1", value)] {
            let file = format!("/proc/sys/net/ipv4/conf/{which}/rp_filter");
            lab.inside(host, || fs::write(&file, value).unwrap());
        }
    };
    let words = ["--bind", BIND, "--rail", "udp:v1", "--key-file", &key];
    let server = Server::start(at(
        Some(lab.name(0)),
        &[&["pingpong", "--serve"], &words[..]].concat(),
    ));
    let words = [
        "--rail",
        "udp:v1",
        "--key-file",
        &key,
        "--sizes",
        "8",
        "--samples",
        "50",
    ];
    let client = || {
        let mut command = server.client(Some(lab.name(1)), "pingpong", &words);
        command
            .env("DOORBELL_QUIET", "8 s")
            .env("DOORBELL_DEADLINE", "16 s");
        command
    };
    (0..2).for_each(|host| set(host, "1"));
    let out = finish(client());
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(5), "{said}");
    for line in said.lines().take(2) {
        assert!(line.contains("sysctl -w net/ipv4/conf/v1/rp_filter=2"), "{line}");
    }
    (0..2).for_each(|host| set(host, "2"));
    let out = finish(client());
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

/// Runs a stream, makes trouble for it, and judges how it ends: the path is named, on the side that shows it.
fn stream_meets(lab: &Lab, server: &mut Server, key: &str, trouble: impl FnOnce()) {
    let words = ["--sizes", "64Ki", "--seconds", "600"];
    let mut guest = Running::start(client(lab, server, key, "stream", &words));
    server.says("connected: process");
    thread::sleep(Duration::from_millis(500));
    trouble();
    // No process hangs.
    assert_eq!(guest.ends(3 * SOON), Some(4));
    let said = guest.says("rank 1 is lost");
    assert!(said.contains(ONLY_SMALL) && said.contains("udp:v0"), "{said}");
    server.process.says_within("disconnected after", 2 * SOON);
}

#[test]
fn a_path_that_begins_to_drop_full_frames_is_named_during_the_run() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::a_path_that_begins_to_drop_full_frames_is_named_during_the_run")
    else {
        return;
    };
    let mut server = serve(&lab, &key, "pml");
    stream_meets(&lab, &mut server, &key, || lab.drop_longer(0, 1000));
    assert!(lab.dropped(0) > 0);
    lab.lose(0);
    works_again(&lab, &mut server, &key);
}

#[test]
fn an_interface_whose_mtu_is_lowered_during_the_run_is_named() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::an_interface_whose_mtu_is_lowered_during_the_run_is_named")
    else {
        return;
    };
    let mut server = serve(&lab, &key, "pml");
    // At the sender, whose own kernel refuses full frames from then on.
    stream_meets(&lab, &mut server, &key, || lab.ip(1, "link set v0 mtu 1000"));
    lab.ip(1, "link set v0 mtu 1500");
    works_again(&lab, &mut server, &key);
}

#[test]
fn two_jobs_that_want_one_port_get_two_or_the_second_is_refused() {
    let Some((lab, _folder, key)) =
        two_hosts("trouble::two_jobs_that_want_one_port_get_two_or_the_second_is_refused")
    else {
        return;
    };
    let on_port = |mut command: Command, pairs: &str| {
        command
            .env("DOORBELL_UDP_PORT", "56080")
            .env("DOORBELL_UDP_PAIRS", pairs);
        command
    };
    let serve = || {
        let words = ["--serve", "--bind", BIND, "--rail", "udp:v0", "--key-file", &key];
        let command = at(Some(lab.name(0)), &[&["pingpong"], &words[..]].concat());
        Server::start(on_port(command, "2"))
    };
    let (mut one, mut other) = (serve(), serve());
    let words = [
        "--rail",
        "udp:v0",
        "--key-file",
        &key,
        "--verify",
        "--sizes",
        "8,64Ki",
        "--seconds",
        "2",
    ];
    let client =
        |server: &Server, pairs, kind| on_port(server.client(Some(lab.name(1)), kind, &words), pairs);
    // Both at once, and each job's messages whole, once and in order.
    let mut first = Running::start(client(&one, "2", "stream"));
    one.says("connected: process");
    let mut second = Running::start(client(&other, "2", "pingpong"));
    other.says("connected: process");
    // A third at this host finds no pair of ports, and reports that.
    let (code, said) = fails(client(&other, "1", "rate"));
    assert!(
        code == Some(3) && said.contains("no pair of ports from 56080 on is free"),
        "{said}"
    );
    assert_eq!([first.ends(AMPLE), second.ends(AMPLE)], [Some(0); 2]);
    for server in [&mut one, &mut other] {
        assert!(server.says("disconnected after").ends_with(": done"));
    }
}

/// The UDP payloads of a capture (pcapng, written on this machine).
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut found) = (0, Vec::new());
    while at + 32 <= file.len() && at + word(at + 4) <= file.len() {
        const ENHANCED_PACKET: usize = 6;
        if word(at) == ENHANCED_PACKET {
            let packet = &file[at + 28..at + 28 + word(at + 20)];
            let ip = if packet[0] >> 4 == 4 { 0 } else { 14 };
            found.push(packet[ip + 28..].to_vec());
        }
        at += word(at + 4);
    }
    found
}

/// A socket at an address that one of our processes uses, too.
fn second_socket(address: &str) -> UdpSocket {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::empty(), None).unwrap();
    set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &address.parse::<std::net::SocketAddr>().unwrap()).unwrap();
    socket.into()
}

#[test]
fn frames_of_strangers_and_of_an_earlier_life_are_counted_and_dropped() {
    let Some((lab, folder, key)) =
        two_hosts("trouble::frames_of_strangers_and_of_an_earlier_life_are_counted_and_dropped")
    else {
        return;
    };
    let on_port = |mut command: Command| {
        command
            .env("DOORBELL_UDP_PORT", "56080")
            .env("DOORBELL_UDP_PAIRS", "1");
        command
    };
    let words = ["--bind", BIND, "--rail", "udp:v0", "--key-file", &key];
    let serve = || {
        Server::start(on_port(at(
            Some(lab.name(0)),
            &[&["pingpong", "--serve"], &words[..]].concat(),
        )))
    };
    let client = |server: &Server, more: &[&str]| {
        let words = ["--rail", "udp:v0", "--key-file", &key];
        Running::start(on_port(server.client(
            Some(lab.name(1)),
            "pingpong",
            &[&words, more].concat(),
        )))
    };
    // The first incarnation of the side that serves: its frames are captured, and it is killed.
    let capture = folder.path().join("first.pcapng").display().to_string();
    let mut server = serve();
    let mut left = client(
        &server,
        &["--sizes", "64", "--seconds", "600", "--pcap", &capture],
    );
    server.says("connected: process");
    let kept = folder.path().join("first.0.pcapng");
    let by = Instant::now() + AMPLE;
    // Some hundreds of frames: how long they take is the machine's affair.
    while fs::metadata(&kept).map_or(0, |file| file.len()) < 64 << 10 {
        assert!(Instant::now() < by, "the capture does not grow");
        thread::sleep(Duration::from_millis(10));
    }
    server.process.signal(Signal::KILL);
    assert_eq!(left.ends(SOON), Some(4));
    let old = frames(&fs::read(&kept).unwrap());
    assert!(old.len() > 100, "{} frames", old.len());
    // The second incarnation, at the same ports, while the frames of the first one are sent again from its
    // very address, and another process sends noise.
    let mut server = serve();
    let report = folder.path().join("second.json").display().to_string();
    let more = [
        "--sizes",
        "64,64Ki",
        "--seconds",
        "2",
        "--verify",
        "--json",
        &report,
    ];
    let mut second = client(&server, &more);
    server.says("connected: process");
    let sent = lab.inside(0, || {
        let (peer, stranger) = (
            second_socket("10.77.0.1:56080"),
            UdpSocket::bind("10.77.0.1:0").unwrap(),
        );
        let mut sent = 0u64;
        let until = Instant::now() + Duration::from_secs(1);
        for frame in old.iter().filter(|frame| !frame.is_empty()).cycle() {
            if Instant::now() > until {
                break;
            }
            let mut spoilt = frame.clone();
            let middle = spoilt.len() / 2;
            spoilt[middle] ^= 0x55;
            // A full buffer, or a socket that is closed, is not our failure.
            let told = [
                peer.send_to(frame, "10.77.0.2:56080"),
                stranger.send_to(&spoilt, "10.77.0.2:56080"),
                stranger.send_to(&frame[..frame.len() / 3], "10.77.0.2:56081"),
            ];
            sent += told.iter().filter(|told| told.is_ok()).count() as u64;
            thread::sleep(Duration::from_micros(200));
        }
        sent
    });
    assert_eq!(
        second.ends(AMPLE),
        Some(0),
        "every message whole, once and in order"
    );
    assert!(server.says("disconnected after").ends_with(": done"));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let count = |name: &str| {
        report["rail_counts"][format!("udp:v0.{name}")]
            .as_u64()
            .unwrap_or(0)
    };
    let dropped = ["short", "version", "kind", "corrupt", "unknown", "malformed"]
        .map(|why| count(&format!("dropped_{why}")));
    // Some may have come before its sockets were there, or found a buffer full.
    assert!(dropped.iter().sum::<u64>() > sent / 2, "{dropped:?} of {sent}");
    assert!(count("dropped_unknown") > sent / 6, "{dropped:?} of {sent}");
    assert!(count("strangers") > sent / 6, "{} of {sent}", count("strangers"));
}

/// Full packets of one end would not arrive at the other: both report at once what to set, and with that set
/// they understand each other. Found out by probes, it would take ten seconds and be called a lost peer.
#[test]
fn links_of_unlike_mtu_are_refused_at_the_meeting_with_what_to_set() {
    const TEST: &str =
        "doorbell::it::trouble::links_of_unlike_mtu_are_refused_at_the_meeting_with_what_to_set";
    let Some(lab) = Lab::pair(TEST, 9000) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    for (long, short) in [(0, 1), (1, 0)] {
        lab.ip(long, "link set v0 mtu 9000");
        lab.ip(short, "link set v0 mtu 1500");
        // One end that sends no longer packets than the other takes is enough.
        for (set, works) in [("auto", false), ("1500", true)] {
            let of = |host: usize, mut command: Command| {
                command.env("DOORBELL_UDP_MTU", if host == long { set } else { "auto" });
                command
            };
            let words = [
                "pingpong",
                "--serve",
                "--bind",
                BIND,
                "--rail",
                "udp:v0",
                "--key-file",
                &key,
            ];
            let mut server = Server::start(of(0, at(Some(lab.name(0)), &words)));
            let words = [
                "--rail",
                "udp:v0",
                "--key-file",
                &key,
                "--sizes",
                "8,64Ki",
                "--samples",
                "50",
                "--verify",
            ];
            let client = of(1, server.client(Some(lab.name(1)), "pingpong", &words));
            if works {
                let out = finish(client);
                assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            } else {
                let (code, said) = fails(client);
                assert!(
                    code == Some(3) && said.contains("set udp.mtu=1500 (DOORBELL_UDP_MTU)"),
                    "{code:?} {said}"
                );
                server.says("disconnected after");
            }
            server.process.signal(Signal::INT);
        }
    }
}

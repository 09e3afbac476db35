//! Rails that bypass the kernel, from outside: two hosts of network namespaces, every measurement, loss, a
//! peer over sockets, a user without the rights, and a process that is killed.

use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;

use crate::common::sentence;
use crate::hosts::{LONG, Running, SHORT, SOON, Server, at, fails, finish, key_in, serve_at, two_hosts};
use doorbell_testing::{netns::Lab, skipped};

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
            assert!(server.says("disconnected after").ends_with(": done"));
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
    assert!(server.says("disconnected after").ends_with(": done"));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let resends = report["rail_counts"]["xdp:v0.resends"].as_u64().unwrap_or(0);
    assert!(resends > 10, "nothing was lost: {}", report["rail_counts"]);
}

#[test]
fn a_killed_rank_leaves_the_interface_clean_and_its_peer_notices() {
    let Some((lab, _folder, key)) =
        two_hosts("xdp::a_killed_rank_leaves_the_interface_clean_and_its_peer_notices")
    else {
        return;
    };
    let words = ["--bind", "10.77.0.1:0", "--rail", "xdp:v0", "--key-file", &key];
    let mut server = serve_at(Some(lab.name(0)), &words);
    let words = ["--rail", "xdp:v0", "--key-file", &key];
    let client = Running::start(server.client(Some(lab.name(1)), "pingpong", &[&words[..], &LONG].concat()));
    server.says("connected: process");
    let begun = Instant::now();
    while !(0..2).all(|host| link(&lab, host).contains("prog/xdp")) {
        assert!(begun.elapsed() < SOON, "never happened: both have their programs");
    }
    client.signal(Signal::KILL);
    assert!(!server.says("disconnected after").ends_with(": done"));
    let begun = Instant::now();
    while link(&lab, 1).contains("prog/xdp") {
        assert!(begun.elapsed() < SOON, "never happened: the program is gone");
    }
    // The queue is free for the next one.
    let out = finish(server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat()));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

/// A user other than root, with these capabilities (`+net_raw,+bpf`) and no others, who may lock this much
/// memory.
struct OtherUser {
    folder: tempfile::TempDir,
    program: String,
}

/// `nobody`, as every system has it.
const NOBODY: u32 = 65_534;

impl OtherUser {
    /// Makes a folder that this user can read and write, with a copy of the program in it.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let program = folder.path().join("doorbell");
        std::fs::copy(env!("CARGO_BIN_EXE_doorbell"), &program).unwrap();
        let program = program.to_str().unwrap().to_owned();
        Self { folder, program }
    }

    fn key(&self) -> String {
        let key = key_in(self.folder.path(), "key");
        std::os::unix::fs::chown(&key, Some(NOBODY), Some(NOBODY)).unwrap();
        key
    }

    fn at(&self, host: &str, capabilities: &str, kilobytes: u32, words: &[&str]) -> Command {
        let all = format!(
            "-all{}{capabilities}",
            if capabilities.is_empty() { "" } else { "," }
        );
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", host])
            .env_clear()
            .env("COLUMNS", "200");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for ring in ["RECEIVE", "SEND"] {
            command.env(format!("DOORBELL_XDP_{ring}_RING"), "512");
        }
        command
            .arg("prlimit")
            .arg(format!("--memlock={}", u64::from(kilobytes) << 10));
        command.args([
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ]);
        for kind in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            command.args([kind, &all]);
        }
        command
            .arg(&self.program)
            .args(words)
            .current_dir(self.folder.path());
        command.stdin(std::process::Stdio::null());
        command
    }
}

/// What a rail past the kernel needs, and nothing beside.
const NEEDED: [(&str, &str); 3] = [
    ("+net_raw", "CAP_NET_RAW"),
    ("+net_admin", "CAP_NET_ADMIN"),
    ("+bpf", "CAP_BPF"),
];
/// KiB that a user may lock: what most systems allow, and the frames of two rails with small rings.
const ENOUGH: u32 = 8 << 10;

/// Two processes of a user who is not root, on two hosts, with the three capabilities and nothing beside.
#[test]
fn a_user_who_is_not_root_exchanges_messages_with_three_capabilities() {
    const TEST: &str = "xdp::a_user_who_is_not_root_exchanges_messages_with_three_capabilities";
    let Some((lab, _folder, _)) = two_hosts(TEST) else {
        return;
    };
    let other_user = OtherUser::new();
    let key = other_user.key();
    let capabilities = NEEDED.map(|(add, _)| add).join(",");
    let words = [
        "pingpong",
        "--serve",
        "--bind",
        "10.77.0.1:0",
        "--rail",
        "xdp:v0",
        "--key-file",
        &key,
    ];
    let mut server = Server::start(other_user.at(lab.name(0), &capabilities, ENOUGH, &words));
    let status = |line: &str| {
        let all = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
        all.lines().find(|one| one.starts_with(line)).unwrap().to_owned()
    };
    // `ip`, `prlimit` and `setpriv` have become the program, so this is what it runs as.
    assert_eq!(
        status("Uid:").split_whitespace().collect::<Vec<_>>(),
        ["Uid:", "65534", "65534", "65534", "65534"]
    );
    assert_eq!(
        status("CapEff:"),
        format!("CapEff:\t{:016x}", 1u64 << 12 | 1 << 13 | 1 << 39)
    );
    for kind in ["pingpong", "stream"] {
        let words = [
            kind,
            "--connect",
            &server.address,
            "--rail",
            "xdp:v0",
            "--key-file",
            &key,
            "--verify",
        ];
        let out = finish(other_user.at(lab.name(1), &capabilities, ENOUGH, &[&words[..], &SHORT].concat()));
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        assert!(server.says("disconnected after").ends_with(": done"));
    }
    // One that locks more than it may needs one capability more.
    let asked = [
        "pingpong",
        "--connect",
        &server.address,
        "--rail",
        "xdp:v0",
        "--key-file",
        &key,
    ];
    let (code, said) = fails(other_user.at(lab.name(1), &capabilities, 64, &asked));
    assert!(
        code == Some(3) && said.contains("CAP_IPC_LOCK") && said.contains("ulimit -l"),
        "{said}"
    );
    let more = format!("{capabilities},+ipc_lock");
    let words = [&asked[..], &SHORT].concat();
    let out = finish(other_user.at(lab.name(1), &more, 64, &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    assert!(server.says("disconnected after").ends_with(": done"));
    server.process.signal(Signal::INT);
}

/// Whichever of them is missing is named, and no other; also by `doorbell info`.
#[test]
fn a_user_without_the_rights_gets_their_names() {
    let Some((lab, _folder, _)) = two_hosts("xdp::a_user_without_the_rights_gets_their_names") else {
        return;
    };
    let other_user = OtherUser::new();
    let mut cases: Vec<(String, String)> = NEEDED
        .iter()
        .map(|(missing, name)| {
            let rest = NEEDED
                .map(|(add, _)| add)
                .into_iter()
                .filter(|add| add != missing);
            (rest.collect::<Vec<_>>().join(","), format!("lacks {name};"))
        })
        .collect();
    cases.push((
        String::new(),
        "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF;".to_owned(),
    ));
    for (capabilities, named) in cases {
        let words = ["pingpong", "--rail", "xdp:v0"];
        let (code, said) = fails(other_user.at(lab.name(0), &capabilities, ENOUGH, &words));
        assert!(
            code == Some(3) && said.contains(&named) && said.contains("setcap"),
            "{capabilities}: {code:?} {said}"
        );
        let shown = finish(other_user.at(lab.name(0), &capabilities, ENOUGH, &["info"])).stdout;
        let shown = String::from_utf8_lossy(&shown);
        let line = shown.lines().find(|line| line.starts_with("xdp:v0")).unwrap();
        assert!(line.contains("rejected") && line.contains(&named), "{line}");
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

/// On a link with long frames, rails past the kernel and over sockets exchange them whole, which is shown
/// before and after the rail is opened; where a shorter MTU is set, a frame has one chunk.
#[test]
fn long_frames_are_exchanged_in_several_chunks() {
    const TEST: &str = "doorbell::it::xdp::long_frames_are_exchanged_in_several_chunks";
    let Some(lab) = Lab::pair(TEST, 9000) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = key_in(folder.path(), "key");
    let shown = finish(at(Some(lab.name(0)), &["info"])).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("up to 3 chunks a frame"), "{shown}");
    for (serving, calling) in [("udp:v0", "xdp:v0"), ("xdp:v0", "udp:v0"), ("xdp:v0", "xdp:v0")] {
        let words = ["--bind", "10.77.0.1:0", "--rail", serving, "--key-file", &key];
        let mut server = serve_at(Some(lab.name(0)), &words);
        for kind in ["pingpong", "stream"] {
            let words = ["--rail", calling, "--key-file", &key, "--verify", "--json", "-"];
            let sizes = ["--sizes", "8,8000,64Ki,1Mi", "--samples", "30"];
            let out = finish(server.client(Some(lab.name(1)), kind, &[&words[..], &sizes].concat()));
            assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            assert!(server.says("disconnected after").ends_with(": done"));
            let report = String::from_utf8_lossy(&out.stdout).into_owned();
            let several = report.contains("frames in up to 3 chunks (multi-buffer)");
            assert_eq!(several, calling == "xdp:v0", "{report}");
        }
        server.process.signal(Signal::INT);
    }
}

/// Where the other end sends longer frames than a packet can have chunks, both report at once what to set,
/// and with that set they understand each other.
#[test]
fn frames_that_are_too_long_for_the_other_end_are_refused_at_once() {
    const TEST: &str = "doorbell::it::xdp::frames_that_are_too_long_for_the_other_end_are_refused_at_once";
    let Some(lab) = Lab::pair(TEST, 65_535) else {
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
            code == Some(3) && said.contains("udp.mtu=56562") && said.contains("65535 bytes"),
            "{code:?} {said}"
        );
        assert!(begun.elapsed() < SOON, "at once");
        server.process.signal(Signal::INT);
        for mtu in ["56562", "3826"] {
            let server = serve(mtu);
            let mut client = server.client(Some(lab.name(1)), "pingpong", &[&words[..], &SHORT].concat());
            client.env("DOORBELL_UDP_MTU", mtu);
            let out = finish(client);
            assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
            server.process.signal(Signal::INT);
        }
    }
}

/// A link upon a virtual link is no hardware either: nothing cuts runs of frames up on the way to a peer past
/// the kernel, so the sender does not make them.
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
        // To a peer over sockets it sends runs here, so that none to this one is no chance.
        for (serving, runs) in [(serving.replace("xdp", "udp"), true), (serving, false)] {
            let words = ["--bind", &bind, "--rail", &serving, "--key-file", &key];
            let server = serve_at(Some(lab.name(0)), &words);
            let words = ["--rail", &calling, "--key-file", &key, "--verify", "--json", "-"];
            let long = ["--sizes", "64Ki", "--samples", "50"];
            let out = finish(server.client(Some(lab.name(1)), "stream", &[&words[..], &long].concat()));
            assert_eq!(out.status.code(), Some(0), "{name}: {}", sentence(&out.stderr));
            let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
            let counts = &report["rail_counts"];
            let sent = counts[format!("{calling}.sent_runs")].as_u64().unwrap();
            assert_eq!(sent > 0, runs, "{name} to {serving}: {counts}");
            server.process.signal(Signal::INT);
        }
    }
}

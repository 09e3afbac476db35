//! Several rails at a time: pairs that both ends compute alike, rails that are left over, and networks
//! without a path.

use std::process::Command;

use crate::common::{doorbell, sentence};
use crate::hosts::{Running, at, fails, finish, two_hosts};
use doorbell_testing::netns::Lab;

/// Another link between the two hosts, or one that ends at the second one; with IPv4 addresses
/// `10.NET.0.HOST`.
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

/// The first host, waiting for the second one.
fn serve(lab: &Lab, names: &[&str], key: &str) -> Running {
    let mut server = Running::start(command(lab, 0, &rails(&SERVE, names, key)));
    server.says("serving on");
    server
}

#[test]
fn two_rails_against_three_pair_by_network_whatever_the_order() {
    let Some((lab, _folder, key)) =
        two_hosts("ways::two_rails_against_three_pair_by_network_whatever_the_order")
    else {
        return;
    };
    link(&lab, "a0", 78, true);
    link(&lab, "z0", 79, false);
    let mut server = serve(&lab, &["udp:v0", "udp:a0"], &key);
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
    let roles: Vec<_> = report["environment"]["rails"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["role"].as_str())
        .collect();
    // By what they are expected to take, both are alike; they take turns until one is found to be faster.
    let alike = [Some("small messages in turn, stripes"); 2];
    let unlike = [Some("small messages, stripes"), Some("stripes, spare")];
    assert!(roles == alike || roles == unlike, "{report:#}");
    assert!(server.says("disconnected after").ends_with(": done"));
}

#[test]
fn a_pair_without_a_route_is_refused_at_both_ends_with_the_reason() {
    let Some((lab, _folder, key)) =
        two_hosts("ways::a_pair_without_a_route_is_refused_at_both_ends_with_the_reason")
    else {
        return;
    };
    link(&lab, "z0", 79, false);
    let mut server = serve(&lab, &["udp:v0"], &key);
    // The first host has no route to 10.79.0.0, the second one leads to 10.77.0.1 by another interface.
    let (code, said) = fails(command(&lab, 1, &rails(&CONNECT, &["udp:z0"], &key)));
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("no route") || said.contains("through v0, not through z0"),
        "{said}"
    );
    server.says("disconnected after");
    // IPv6 alone does not meet IPv4.
    let (code, said) = fails(command(&lab, 1, &rails(&CONNECT, &["udp:fd77::2"], &key)));
    assert!(code == Some(3) && said.contains("families"), "{said}");
    server.says("disconnected after");
    let out = finish(command(&lab, 1, &rails(&CONNECT, &["udp:v0"], &key)));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

/// What was dead before the first frame is found out as what dies later: the peer answers over the other
/// link.
#[test]
fn a_link_that_never_carried_a_frame_is_done_without() {
    let Some((lab, _folder, key)) = two_hosts("ways::a_link_that_never_carried_a_frame_is_done_without")
    else {
        return;
    };
    link(&lab, "a0", 78, true);
    for dead_at in [&[0][..], &[1], &[0, 1]] {
        dead_at.iter().for_each(|host| lab.drop_udp(*host));
        for verb in ["pingpong", "stream"] {
            let mut server = serve(&lab, &["udp:v0", "udp:a0"], &key);
            let mut words = rails(&CONNECT, &["udp:v0", "udp:a0"], &key);
            verb.clone_into(&mut words[0]);
            let mut command = command(&lab, 1, &words);
            // Far more than it takes, and far less than what a peer has that is not known to be alive.
            command.env("DOORBELL_DEADLINE", "20s");
            let out = finish(command);
            assert_eq!(
                out.status.code(),
                Some(0),
                "{verb}, dead at {dead_at:?}: {}",
                sentence(&out.stderr)
            );
            server.says("disconnected after");
        }
        assert!(dead_at.iter().all(|host| lab.dropped(*host) > 0), "{dead_at:?}");
        lab.lose(0);
    }
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
    assert!(line.contains("shm (everything), udp:lo (spare)"), "{text}");
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

#[test]
fn why_shows_the_rails_of_a_running_job() {
    // A stream that does not end by itself: both poll.
    let words = [
        "run",
        "-n",
        "2",
        "--rail",
        "shm",
        "--rail",
        "udp:lo",
        "--",
        env!("CARGO_BIN_EXE_doorbell"),
    ];
    let load = [
        "stream",
        "--rail",
        "shm",
        "--rail",
        "udp:lo",
        "--sizes",
        "8",
        "--seconds",
        "600",
    ];
    let mut job = Running::start(at(None, &[&words[..], &load].concat()));
    let pid = rank_of(&job);
    let look = || {
        doorbell()
            .args(["why", "1", "--json", "--job", &pid.to_string()])
            .output()
            .unwrap()
    };
    let started = std::time::Instant::now();
    let why: serde_json::Value = loop {
        let out = look();
        if out.status.code() == Some(0) {
            break serde_json::from_slice(&out.stdout).unwrap();
        }
        assert!(started.elapsed().as_secs() < 30, "{}", sentence(&out.stderr));
    };
    assert_eq!(
        (why["schema"].as_str(), why["from"][0]["rank"].as_u64()),
        (Some("doorbell.why/2"), Some(0))
    );
    let rails: Vec<_> = why["from"][0]["rails"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["rail"].as_str(), one["pair"].as_str()))
        .collect();
    let (chosen, lost) = rails.split_at(2);
    assert_eq!(
        chosen,
        [(Some("shm"), Some("shm")), (Some("udp:lo"), Some("udp:lo"))],
        "{why:#}"
    );
    assert!(lost.iter().all(|(_, pair)| pair.is_none()), "{why:#}");
    job.signal(rustix::process::Signal::INT);
    job.ends(std::time::Duration::from_secs(20));
    let out = doorbell()
        .args(["why", "1", "--job", &pid.to_string()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(sentence(&out.stderr).contains("counter file"));
}

/// The process of rank 0 of a job, which has a counter file as soon as it is connected to the others.
fn rank_of(job: &Running) -> u32 {
    use doorbell_fabric::counters::{Reader, find};
    let started = std::time::Instant::now();
    loop {
        let ours = |reader: &Reader| reader.rank() == 0 && parents(reader.process()).contains(&job.id());
        let mut readers = find(None).into_iter().filter_map(|path| Reader::open(&path).ok());
        if let Some(reader) = readers.find(ours) {
            return reader.process();
        }
        assert!(
            started.elapsed().as_secs() < 30,
            "never happened: a rank with a counter file"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn parents(mut pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    while pid > 1 && all.len() < 16 {
        all.push(pid);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    }
    all
}

#[test]
fn options_of_the_other_kind_of_peer_are_refused_in_one_sentence() {
    for (words, word) in [
        (&["1", "--probe"][..], "--probe goes with the address of a host"),
        (&["1", "--rail", "shm"], "--rail goes with the address of a host"),
        (
            &["1", "--key-file", "job.key"],
            "--key-file goes with the address of a host",
        ),
        (
            &["127.0.0.1", "--job", "1"],
            "--job goes with the number of a rank",
        ),
        (
            &["127.0.0.1", "--key-file", "job.key"],
            "--key-file goes with --probe",
        ),
        (&["nosuchhost.invalid"], "neither the number of a rank nor a host"),
    ] {
        let out = doorbell().arg("why").args(words).output().unwrap();
        let said = sentence(&out.stderr);
        assert!(
            out.status.code() == Some(2) && said.contains(word),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_lost_peer_is_shown_as_down_by_the_survivors() {
    let mut worlds = doorbell::local(2, &doorbell::Config::default()).unwrap();
    let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    zero.send(1, 1, b"x").unwrap();
    one.recv(0, 1, &mut [0; 1]).unwrap();
    drop(one);
    zero.recv(1, 2, &mut [0; 1]).unwrap_err();
    let job = std::process::id().to_string();
    let started = std::time::Instant::now();
    let said = loop {
        zero.progress();
        let out = doorbell().args(["why", "1", "--job", &job]).output().unwrap();
        if out.status.code() == Some(1) {
            break String::from_utf8_lossy(&out.stdout).into_owned();
        }
        assert!(started.elapsed().as_secs() < 30, "{}", sentence(&out.stdout));
    };
    assert!(
        said.contains("down, 1 failure") && !said.contains("chosen"),
        "{said}"
    );
}

#[test]
fn why_judges_a_host_by_the_routing_table_and_by_a_probe() {
    let Some((lab, _folder, key)) = two_hosts("ways::why_judges_a_host_by_the_routing_table_and_by_a_probe")
    else {
        return;
    };
    lab.ip(1, "route add blackhole 10.66.0.0/16");
    let why = |words: &[&str]| {
        let out = finish(at(Some(lab.name(1)), &[&["why", "--json"], words].concat()));
        let why: serde_json::Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", sentence(&out.stderr)));
        let rails = why["from"][0]["rails"].as_array().unwrap().clone();
        (out.status.code(), move |name: &str| {
            let one = rails
                .iter()
                .find(|one| one["rail"] == name)
                .unwrap_or_else(|| panic!("{rails:#?}"));
            (
                one["verdict"].as_str().unwrap().to_owned(),
                one["reason"].as_str().unwrap().to_owned(),
                one["latency_of"] == "messages",
            )
        })
    };
    let (code, of) = why(&["10.77.0.1", "--rail", "udp:v0"]);
    assert_eq!(
        (code, of("udp:v0")),
        (
            Some(0),
            ("chosen".to_owned(), "on its own link".to_owned(), false)
        )
    );
    let (verdict, reason, _) = of("shm");
    assert!(
        verdict == "not-named" && reason.contains("other rails were named"),
        "{verdict}: {reason}"
    );
    let (code, of) = why(&["10.77.0.1"]);
    assert!(
        code == Some(1) && of("udp:v0").1.contains("virtual link (veth)"),
        "{:?}",
        of("udp:v0")
    );
    assert_eq!(of("udp:v0").0, "not-named");
    assert!(of("shm").1.contains("another host") && of("udp:lo").1.contains("loopback"));
    assert!(of("shm").0 == "unusable" && of("udp:lo").0 == "unusable");
    for (peer, word) in [
        ("10.66.0.1", "blackhole"),
        ("10.99.0.1", "no route"),
        ("2001:db8::1", "other family"),
    ] {
        let (code, of) = why(&[peer, "--rail", "udp:v0"]);
        assert!(
            code == Some(1) && of("udp:v0").0 == "unusable" && of("udp:v0").1.contains(word),
            "{peer}: {:?}",
            of("udp:v0")
        );
    }
    let serve = [
        "pingpong",
        "--serve",
        "--bind",
        "10.77.0.1",
        "--rail",
        "udp:v0",
        "--key-file",
        &key,
    ];
    let mut server = Running::start(at(Some(lab.name(0)), &serve));
    server.says("serving on");
    let (code, of) = why(&["10.77.0.1", "--rail", "udp:v0", "--probe", "--key-file", &key]);
    let (verdict, reason, measured) = of("udp:v0");
    assert!(code == Some(0) && verdict == "chosen" && measured, "{reason}");
    assert!(
        reason.contains("small and full frames pass both ways"),
        "{reason}"
    );
    assert!(server.says("disconnected after").ends_with(": done"));
    // What comes from here is dropped there: the two still meet, and the rail never passes a frame.
    lab.drop_udp(0);
    let begun = std::time::Instant::now();
    let (code, of) = why(&["10.77.0.1", "--rail", "udp:v0", "--probe", "--key-file", &key]);
    let (verdict, reason, measured) = of("udp:v0");
    assert!(code == Some(1) && verdict == "down" && !measured, "{reason}");
    assert!(reason.contains("no frame passes in one direction"), "{reason}");
    assert!(reason.contains("firewall"), "{reason}");
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

#[test]
fn a_long_wait_reports_what_the_rail_knows_of_a_stopped_peer() {
    let words = [
        "run",
        "-n",
        "2",
        "--rail",
        "udp:lo",
        "--",
        env!("CARGO_BIN_EXE_doorbell"),
    ];
    let load = [
        "pingpong",
        "--rail",
        "udp:lo",
        "--sizes",
        "8",
        "--seconds",
        "600",
        "--no-reference",
    ];
    let mut command = at(None, &[&words[..], &load].concat());
    command.env("DOORBELL_QUIET", "1 s");
    let mut job = Running::start(command);
    let zero = rank_of(&job);
    let other = doorbell_fabric::counters::find(None)
        .into_iter()
        .filter_map(|path| doorbell_fabric::counters::Reader::open(&path).ok())
        .find(|one| one.rank() == 1 && parents(one.process()).contains(&job.id()))
        .expect("the other rank is there")
        .process();
    assert_ne!(zero, other);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let stopped = rustix::process::Pid::from_raw(other as i32).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let line = job.says("rank 1 over udp:lo");
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    for word in [
        "[0]",
        "suspect",
        "link up",
        "last frame from it",
        "last acknowledgement",
        "unacknowledged, the oldest has number",
        "time-outs in a row",
    ] {
        assert!(line.contains(word), "{word}: {line}");
    }
    job.signal(rustix::process::Signal::INT);
    job.ends(std::time::Duration::from_secs(20));
}

#[test]
fn an_address_of_the_loopback_interface_that_is_no_loopback_address_carries_within_the_host() {
    let Some((lab, _folder, _key)) = two_hosts(
        "ways::an_address_of_the_loopback_interface_that_is_no_loopback_address_carries_within_the_host",
    ) else {
        return;
    };
    lab.ip(0, "link set lo up");
    lab.ip(0, "address add 10.99.0.1/32 dev lo");
    let words = [
        "stream",
        "--rail",
        "udp:10.99.0.1",
        "--sizes",
        "8",
        "--seconds",
        "0.05",
    ];
    let out = finish(at(Some(lab.name(0)), &words));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
}

//! `doorbell doctor` from outside: machines of network namespaces with one thing wrong, its verdict, and that
//! the commands it prints repair it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{doorbell, sentence};
use crate::hosts::{at, finish, serve_at, two_hosts};
use doorbell_testing::netns::Lab;

/// Returns the JSON that it printed, checked by its schema, and its exit status.
fn judged(command: Command) -> (Value, i32) {
    let out = finish(command);
    sentence(&out.stderr);
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    let schema = include_str!("../../../bench/schema/doctor-1.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let faults: Vec<String> = schema
        .iter_errors(&report)
        .map(|fault| fault.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    (report, out.status.code().unwrap())
}

/// `doctor WORDS --json`, on a host of a lab or here.
fn doctor(host: Option<&str>, words: &[&str]) -> (Value, i32) {
    judged(at(host, &[&["doctor", "--json"], words].concat()))
}

/// The chain of a rail.
fn chain<'a>(report: &'a Value, rail: &str) -> &'a Value {
    let chains = report["chains"].as_array().unwrap();
    chains
        .iter()
        .find(|chain| chain["rail"] == rail)
        .unwrap_or_else(|| panic!("no chain {rail}: {report:#}"))
}

/// A chain's step of this name.
fn step<'a>(chain: &'a Value, name: &str) -> &'a Value {
    let steps = chain["steps"].as_array().unwrap();
    steps
        .iter()
        .find(|step| step["step"] == name)
        .unwrap_or_else(|| panic!("no step {name}: {chain:#}"))
}

/// The rail is broken at this step, and at no other.
fn breaks_at(host: &str, words: &[&str], rail: &str, name: &str) -> Value {
    let (report, code) = doctor(Some(host), words);
    let chain = chain(&report, rail);
    let last = chain["steps"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (code, &report["verdict"], &last["step"], &last["is"]),
        (
            1,
            &Value::from("broken"),
            &Value::from(name),
            &Value::from("broken")
        ),
        "{chain:#}"
    );
    last.clone()
}

/// Nothing of the rail is broken any more, and it has been tried.
fn is_usable(host: &str, words: &[&str], rail: &str) -> Value {
    let (report, code) = doctor(Some(host), words);
    let chain = chain(&report, rail);
    assert_eq!(
        (code, &chain["verdict"]),
        (0, &Value::from("usable")),
        "{chain:#}"
    );
    chain.clone()
}

/// Nothing of the rail is broken any more; whether messages reach the named peer was not tried.
fn is_whole(command: Command, rail: &str) -> Value {
    let (report, code) = judged(command);
    let chain = chain(&report, rail);
    assert_eq!(
        (code, &chain["verdict"]),
        (0, &Value::from("untried")),
        "{chain:#}"
    );
    assert_eq!(step(chain, "messages")["is"], "unknown", "{chain:#}");
    chain.clone()
}

/// Checks that the chain is whole, as `doctor WORDS --json` shows it on that host.
fn is_whole_at(host: &str, words: &[&str], rail: &str) -> Value {
    is_whole(at(Some(host), &[&["doctor", "--json"], words].concat()), rail)
}

/// Does what `doctor WORDS --fix` prints, word by word, in a shell on that host.
fn repair(host: &str, words: &[&str]) -> String {
    let out = finish(at(Some(host), &[&["doctor", "--fix"], words].concat()));
    let script = String::from_utf8(out.stdout).unwrap();
    let mut shell = Command::new("ip")
        .args(["netns", "exec", host, "sh", "-e"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success(), "{script}");
    script
}

fn lab(test: &str, mtu: usize) -> Option<Lab> {
    Lab::pair(&format!("doorbell::it::doctor::{test}"), mtu)
}

#[test]
fn what_works_is_tried_to_the_end_and_reported_by_schema() {
    let (report, code) = doctor(None, &["shm", "udp:lo", "127.0.0.1", "xdp:lo", "sim:42"]);
    assert_eq!(
        (code, &report["verdict"]),
        (0, &Value::from("usable")),
        "{report:#}"
    );
    let verdicts: Vec<&str> = report["chains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|chain| chain["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(
        verdicts,
        [
            "usable",
            "usable",
            "usable",
            "usable",
            "not-applicable",
            "not-applicable"
        ]
    );
    assert!(
        step(chain(&report, "shm"), "exchange")["saw"]
            .as_str()
            .unwrap()
            .contains("half a round trip")
    );
    let shown = doorbell().args(["doctor", "shm"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("\nshm: usable\n") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn every_rail_of_the_machine_is_looked_at_when_none_is_named() {
    let (report, code) = doctor(None, &[]);
    let is_broken = report["verdict"] == "broken";
    assert_eq!(code, i32::from(is_broken));
    for rail in ["machine", "shm", "udp:lo", "xdp:lo"] {
        chain(&report, rail);
    }
}

#[test]
fn names_that_mean_nothing_are_wrong_usage_and_rails_that_are_not_there_are_broken() {
    for (words, word) in [
        (&["nosuch0"][..], "no interface of this machine"),
        (&["udp"], "udp:eth0"),
        (&["igbvf:eth0"], "0000:01:10.0"),
        (&["shm", "--json", "--fix"], "cannot be used with"),
        (&["udp:lo", "--peer", "node7"], "--peer"),
        (&["verbs"], "it names no device"),
        (&["verbs:"], "it names no device"),
        (&["verbs:rxe0:0"], "ports are counted from 1"),
        (&["verbs:rxe0:1:rc2"], "is not `ud`"),
    ] {
        let out = doorbell().arg("doctor").args(words).output().unwrap();
        let said = sentence(&out.stderr);
        assert!(
            out.status.code() == Some(2) && said.contains(word),
            "{words:?}: {said}"
        );
    }
    let verbs = ["verbs:nosuch9:1", "verbs:nosuch9:1:ud"];
    let (report, code) = doctor(None, &["udp:nosuch0", "0000:ff:1f.7", verbs[0], verbs[1], "shm"]);
    assert_eq!(code, 1);
    let named = |rail| {
        step(
            chain(&report, rail),
            if rail == "udp:nosuch0" {
                "interface"
            } else {
                "device"
            },
        )
    };
    assert!(
        named("udp:nosuch0")["fixes"][0]["what"]
            .as_str()
            .unwrap()
            .contains("lo")
    );
    assert_eq!(named("pci:0000:ff:1f.7")["is"], "broken");
    for rail in verbs {
        let found = chain(&report, rail);
        let last = found["steps"].as_array().and_then(|steps| steps.last()).unwrap();
        assert_eq!(
            (&found["verdict"], &last["is"]),
            (&"broken".into(), &"broken".into())
        );
        assert!(
            last["cause"].is_string() && last["fixes"][0]["what"].is_string(),
            "{last}"
        );
    }
    assert_eq!(
        chain(&report, "shm")["verdict"],
        "usable",
        "one that is broken hides no other"
    );
}

#[test]
fn an_interface_that_is_down_is_set_up_by_what_is_printed() {
    let Some(lab) = lab("an_interface_that_is_down_is_set_up_by_what_is_printed", 1500) else {
        return;
    };
    let host = lab.name(0);
    is_usable(host, &["udp:v0"], "udp:v0");
    lab.ip(0, "link set v0 down");
    for rail in ["udp:v0", "xdp:v0"] {
        let broken = breaks_at(host, &[rail], rail, "up");
        assert_eq!(broken["fixes"][0]["command"], "ip link set v0 up");
    }
    repair(host, &["udp:v0"]);
    lab.wait_until_up(0, "v0");
    is_usable(host, &["udp:v0"], "udp:v0");
    // The other end, which is in another namespace.
    lab.ip(1, "link set v0 down");
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "carrier");
    assert!(
        broken["cause"].as_str().unwrap().contains("other end"),
        "{broken}"
    );
}

#[test]
fn an_interface_without_an_address_gets_one_by_what_is_printed() {
    let Some(lab) = lab(
        "an_interface_without_an_address_gets_one_by_what_is_printed",
        1500,
    ) else {
        return;
    };
    let host = lab.name(0);
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    // A setting is enough: the host is left as it is.
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "address");
    assert_eq!(broken["fixes"][0]["command"], "export DOORBELL_UDP_FAMILY=ipv6");
    let script = repair(host, &["udp:v0"]);
    assert!(
        script
            .lines()
            .any(|line| line.starts_with("# ip address add 169.254.")),
        "{script}"
    );
    breaks_at(host, &["udp:v0"], "udp:v0", "address");
    let mut command = at(Some(host), &["doctor", "--json", "udp:v0"]);
    command.env("DOORBELL_UDP_FAMILY", "ipv6");
    let (report, code) = judged(command);
    assert_eq!(
        (code, &chain(&report, "udp:v0")["verdict"]),
        (0, &Value::from("usable"))
    );
    // Without any address nothing else is left.
    lab.ip(0, "-6 address flush dev v0");
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "address");
    assert_eq!(broken["fixes"].as_array().unwrap().len(), 1, "{broken}");
    repair(host, &["udp:v0"]);
    is_usable(host, &["udp:v0"], "udp:v0");
}

#[test]
fn ends_of_unlike_mtu_are_found_by_a_full_packet_and_repaired() {
    let Some(lab) = lab("ends_of_unlike_mtu_are_found_by_a_full_packet_and_repaired", 9000) else {
        return;
    };
    let host = lab.name(0);
    let words = ["udp:v0", "--peer", "10.77.0.2"];
    let chain = is_whole_at(host, &words, "udp:v0");
    assert!(
        step(&chain, "path")["saw"]
            .as_str()
            .unwrap()
            .contains("9000 bytes"),
        "{chain:#}"
    );
    lab.ip(1, "link set v0 mtu 1500");
    let broken = breaks_at(host, &words, "udp:v0", "path");
    assert_eq!(
        (&broken["fixes"][0]["command"], &broken["fixes"][1]["command"]),
        (
            &"export DOORBELL_UDP_MTU=1500".into(),
            &"ip link set v0 mtu 1500".into()
        ),
        "{broken}"
    );
    let mut command = at(Some(host), &["doctor", "--json", "udp:v0", "--peer", "10.77.0.2"]);
    command.env("DOORBELL_UDP_MTU", "1500");
    is_whole(command, "udp:v0");
    lab.ip(0, "link set v0 mtu 1500");
    is_whole_at(host, &words, "udp:v0");
}

#[test]
fn a_narrow_way_behind_a_router_is_found_too() {
    const TEST: &str = "doorbell::it::doctor::a_narrow_way_behind_a_router_is_found_too";
    let Some(lab) = Lab::routed(TEST, 9000, 1400) else {
        return;
    };
    for peer in ["10.77.2.1", "fd77:2::1"] {
        let mut command = at(Some(lab.name(0)), &["doctor", "--json", "udp:v0", "--peer", peer]);
        if peer.contains(':') {
            command.env("DOORBELL_UDP_FAMILY", "ipv6");
        }
        let (report, code) = judged(command);
        let path = step(chain(&report, "udp:v0"), "path");
        assert_eq!((code, &path["is"]), (1, &Value::from("broken")), "{path}");
        assert!(
            path["saw"].as_str().unwrap().contains("up to 1400 bytes"),
            "{path}"
        );
    }
}

#[test]
fn a_peer_without_a_route_or_an_owner_is_named() {
    let Some(lab) = lab("a_peer_without_a_route_or_an_owner_is_named", 1500) else {
        return;
    };
    let host = lab.name(0);
    let words = ["udp:v0", "--peer", "10.99.0.1"];
    let broken = breaks_at(host, &words, "udp:v0", "route");
    assert_eq!(broken["fixes"][0]["command"], "ip route add 10.99.0.1/32 dev v0");
    repair(host, &words);
    let broken = breaks_at(host, &words, "udp:v0", "path");
    assert!(broken["saw"].as_str().unwrap().contains("10.99.0.1"), "{broken}");
    let broken = breaks_at(host, &["udp:v0", "--peer", "fd77::2"], "udp:v0", "route");
    assert_eq!(broken["fixes"][0]["command"], "export DOORBELL_UDP_FAMILY=ipv6");
}

#[test]
fn a_rule_that_drops_our_frames_is_named_and_what_is_printed_lets_them_in() {
    let Some(lab) = lab(
        "a_rule_that_drops_our_frames_is_named_and_what_is_printed_lets_them_in",
        1500,
    ) else {
        return;
    };
    let host = lab.name(0);
    lab.drop_udp(0);
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "firewall");
    assert!(
        broken["saw"]
            .as_str()
            .unwrap()
            .contains("chain netdev trouble in"),
        "{broken}"
    );
    repair(host, &["udp:v0"]);
    is_usable(host, &["udp:v0"], "udp:v0");
    // Frames of a peer do come in then.
    let dropped = lab.dropped(0);
    let heard = lab.inside(0, || {
        let socket = std::net::UdpSocket::bind("10.77.0.1:40000").unwrap();
        socket
            .set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .unwrap();
        lab.inside(1, || {
            std::net::UdpSocket::bind("10.77.0.2:0")
                .unwrap()
                .send_to(b"x", "10.77.0.1:40000")
                .unwrap()
        });
        socket.recv(&mut [0; 8])
    });
    assert_eq!((heard.unwrap(), lab.dropped(0)), (1, dropped));
    // A filter that lets in only what it lists, and a rule for this host's own frames.
    let nft = |script: &str| {
        let done = Command::new("ip")
            .args(["netns", "exec", host, "nft", script])
            .status();
        assert!(done.unwrap().success(), "{script}");
    };
    nft(
        "add table inet filter; add chain inet filter input { type filter hook input priority 0; policy drop; }; \
         add rule inet filter input iifname lo accept; add rule inet filter input tcp dport 22 accept",
    );
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "firewall");
    assert!(
        broken["saw"].as_str().unwrap().contains("policy drop"),
        "{broken}"
    );
    repair(host, &["udp:v0"]);
    is_usable(host, &["udp:v0"], "udp:v0");
    nft(
        "add table inet own; add chain inet own out { type filter hook output priority 0; }; add rule inet own out ip daddr 10.77.0.1 udp length > 1000 drop",
    );
    // Which packets that rule takes is not known before some are missing: then it is the one.
    let broken = breaks_at(host, &["udp:v0"], "udp:v0", "frames");
    let cause = broken["cause"].as_str().unwrap();
    assert!(
        cause.contains("long packets") && cause.contains("chain inet own out"),
        "{broken}"
    );
    repair(host, &["udp:v0"]);
    is_usable(host, &["udp:v0"], "udp:v0");
}

#[test]
fn a_rule_that_drops_what_goes_out_is_named_as_well() {
    let Some(lab) = lab("a_rule_that_drops_what_goes_out_is_named_as_well", 1500) else {
        return;
    };
    let host = lab.name(0);
    for (family, chain, hook, rule) in [
        (
            "inet",
            "out",
            "hook output priority 0",
            "meta l4proto udp oifname v0 drop",
        ),
        (
            "ip",
            "post",
            "hook postrouting priority 0",
            "ip protocol udp oif v0 drop",
        ),
        (
            "netdev",
            "egress",
            "hook egress device v0 priority 0",
            "ip protocol udp drop",
        ),
        (
            "inet",
            "strict",
            "hook output priority 0; policy drop",
            "oifname lo accept",
        ),
        (
            "inet",
            "long",
            "hook output priority 0",
            "udp length > 1000 oifname v0 drop",
        ),
    ] {
        lab.nft(
            0,
            &format!(
                "add table {family} t; add chain {family} t {chain} {{ type filter {hook}; }}; \
                 add rule {family} t {chain} {rule}"
            ),
        );
        let broken = breaks_at(host, &["udp:v0"], "udp:v0", "firewall");
        let saw = broken["saw"].as_str().unwrap();
        assert!(
            saw.contains(&format!("chain {family} t {chain}")) && saw.ends_with("what this rail sends"),
            "{broken}"
        );
        repair(host, &["udp:v0"]);
        is_usable(host, &["udp:v0"], "udp:v0");
        lab.nft(0, "flush ruleset");
    }
}

/// Which of two interfaces in one network the kernel lets frames in by is a setting, which is read and named.
#[test]
fn two_interfaces_in_one_network_are_judged_by_the_kernels_settings() {
    let Some(lab) = lab(
        "two_interfaces_in_one_network_are_judged_by_the_kernels_settings",
        1500,
    ) else {
        return;
    };
    let host = lab.name(0);
    let alone = is_usable(host, &["udp:v0"], "udp:v0");
    assert_eq!(step(&alone, "subnet")["is"], "ok", "{alone:#}");
    // Its other end leads nowhere.
    lab.ip(0, "link add v1 type veth peer name w1");
    lab.ip(0, "link set w1 up");
    lab.ip(0, "address add 10.77.0.3/24 dev v1");
    lab.ip(0, "link set v1 up");
    lab.wait_until_up(0, "v1");
    let set = |name: &str, value: &str| {
        lab.inside(0, || {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}"), value).unwrap()
        });
    };
    for name in ["all/rp_filter", "v0/rp_filter", "v1/rp_filter"] {
        set(name, "0");
    }
    // The one that came first is the routing table's.
    let both = is_usable(host, &["udp:v1"], "udp:v1");
    let noted = step(&both, "subnet");
    assert_eq!(noted["is"], "note", "{noted}");
    for word in ["v1 and v0", "rp_filter 0", "arp_ignore 0", "accept_local 0"] {
        assert!(noted["saw"].as_str().unwrap().contains(word), "{word}: {noted}");
    }
    set("v1/rp_filter", "1");
    let broken = breaks_at(host, &["udp:v1"], "udp:v1", "subnet");
    assert_eq!(
        broken["fixes"][0]["command"],
        "sysctl -w net/ipv4/conf/v1/rp_filter=2"
    );
    set("v0/rp_filter", "1");
    is_usable(host, &["udp:v0"], "udp:v0");
    set("v1/rp_filter", "2");
    for name in [
        "v0/arp_ignore",
        "v1/arp_ignore",
        "v0/arp_announce",
        "v1/arp_announce",
    ] {
        set(name, "1");
    }
    let both = is_usable(host, &["udp:v1"], "udp:v1");
    assert_eq!(step(&both, "subnet")["is"], "ok", "{both:#}");
}

/// Users whose shell gives them no folder of administration's have the tool all the same.
#[test]
fn the_tool_for_rules_is_found_where_the_path_does_not_lead() {
    let Some(lab) = lab("the_tool_for_rules_is_found_where_the_path_does_not_lead", 1500) else {
        return;
    };
    let found = ["/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft"];
    let Some(nft) = found
        .into_iter()
        .find(|path| std::path::Path::new(path).is_file())
    else {
        return doorbell_testing::skipped(
            "doorbell::it::doctor::the_tool_for_rules_is_found_where_the_path_does_not_lead",
            "nft is in no folder of administration's here",
        );
    };
    lab.drop_udp(0);
    let empty = tempfile::tempdir().unwrap();
    let path = format!("PATH={}", empty.path().display());
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        lab.name(0),
        "env",
        &path,
        env!("CARGO_BIN_EXE_doorbell"),
    ]);
    command.args(["doctor", "--json", "udp:v0"]);
    let (report, code) = judged(command);
    let firewall = step(chain(&report, "udp:v0"), "firewall");
    assert_eq!((code, &firewall["is"]), (1, &Value::from("broken")), "{firewall}");
    let fix = firewall["fixes"][0]["command"].as_str().unwrap();
    assert!(
        fix.ends_with("accept'") && fix.contains("/sbin/nft '"),
        "{nft}: {fix}"
    );
}

#[test]
fn a_limit_of_files_is_raised_where_it_can_be() {
    // As a user: the hard limit is the most that a process may have.
    let judge = |limit: &str| {
        let mut command = Command::new("prlimit");
        command.args([
            &format!("--nofile={limit}"),
            "setpriv",
            "--bounding-set=-sys_resource",
            "--inh-caps=-sys_resource",
        ]);
        command.args([env!("CARGO_BIN_EXE_doorbell"), "doctor", "--json", "shm"]);
        let (report, code) = judged(command);
        let files = step(chain(&report, "shm"), "files").clone();
        assert_eq!((code, &files["is"]), (1, &Value::from("broken")), "{files}");
        files
    };
    if !rustix::process::geteuid().is_root() {
        return doorbell_testing::skipped(
            "doorbell::it::doctor::a_limit_of_files_is_raised_where_it_can_be",
            "to take a capability away needs root",
        );
    }
    assert_eq!(judge("14:512")["fixes"][0]["command"], "ulimit -n 512");
    let hard = judge("14:14");
    let (fix, cause) = (&hard["fixes"][0], hard["cause"].as_str().unwrap());
    assert_ne!(fix["command"], "ulimit -n 14", "{hard}");
    assert!(cause.contains("hard limit"), "{hard}");
}

/// A limit with which the doctor finds nothing broken is one with which a job of two ranks works.
#[test]
fn few_descriptors_are_a_note_where_a_job_works() {
    let at = |words: &[&str]| {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=20:512", env!("CARGO_BIN_EXE_doorbell")]);
        command.args(words);
        command
    };
    let (report, code) = judged(at(&["doctor", "--json", "shm"]));
    let shm = chain(&report, "shm");
    assert_eq!((code, &shm["verdict"]), (0, &Value::from("usable")), "{shm:#}");
    let files = step(shm, "files");
    assert_eq!(files["is"], "note", "{files}");
    let saw = files["saw"].as_str().unwrap();
    assert!(
        saw.contains("may have 20") && saw.contains("a rank needs"),
        "{saw}"
    );
    let job = at(&["pingpong", "--rail", "shm", "--sizes", "8", "--seconds", "0.05"])
        .output()
        .unwrap();
    assert!(job.status.success(), "{}", String::from_utf8_lossy(&job.stderr));
}

#[test]
fn a_program_of_another_process_is_named_with_the_process() {
    let Some((lab, _folder, key)) =
        two_hosts("doctor::a_program_of_another_process_is_named_with_the_process")
    else {
        return;
    };
    let host = lab.name(0);
    let chain = is_whole_at(host, &["xdp:v0", "--peer", "10.77.0.2"], "xdp:v0");
    assert_eq!(step(&chain, "frame")["is"], "ok", "{chain:#}");
    let mut server = serve_at(
        Some(host),
        &["--bind", "10.77.0.1:0", "--rail", "xdp:v0", "--key-file", &key],
    );
    let words = [
        "--rail",
        "xdp:v0",
        "--key-file",
        &key,
        "--sizes",
        "8",
        "--seconds",
        "600",
    ];
    let client = crate::hosts::Running::start(server.client(Some(lab.name(1)), "pingpong", &words));
    server.says("connected: process");
    let begun = std::time::Instant::now();
    while !String::from_utf8_lossy(&finish(at(Some(host), &["doctor", "xdp:v0"])).stdout)
        .contains("broken   program")
    {
        assert!(
            begun.elapsed() < crate::hosts::SOON,
            "never happened: the program is there"
        );
    }
    let broken = breaks_at(host, &["xdp:v0"], "xdp:v0", "program");
    let command = broken["fixes"][0]["command"].as_str().unwrap();
    assert!(command.starts_with("kill "), "{broken}");
    repair(host, &["xdp:v0"]);
    drop(client);
    let begun = std::time::Instant::now();
    while doctor(Some(host), &["xdp:v0"]).1 != 0 {
        assert!(
            begun.elapsed() < crate::hosts::SOON,
            "never happened: the program is gone"
        );
    }
}

/// As root without one capability, with a limit of locked memory.
fn with_less(host: &str, capability: &str, memlock: &str, words: &str) -> Command {
    let mut command = Command::new("ip");
    let (bounding, limit) = (
        format!("--bounding-set=-{capability}"),
        format!("--memlock={memlock}"),
    );
    command.args([
        "netns",
        "exec",
        host,
        "setpriv",
        &bounding,
        &format!("--inh-caps=-{capability}"),
        "prlimit",
        &limit,
    ]);
    // Frames that fit the least that systems let a user lock.
    for ring in ["RECEIVE", "SEND"] {
        command.env(format!("DOORBELL_XDP_{ring}_RING"), "512");
    }
    command.args([
        "sh",
        "-c",
        &words.replace("doorbell", env!("CARGO_BIN_EXE_doorbell")),
    ]);
    command
}

#[test]
fn missing_rights_and_limits_are_named_with_what_lifts_them() {
    let Some(lab) = lab("missing_rights_and_limits_are_named_with_what_lifts_them", 1500) else {
        return;
    };
    let host = lab.name(0);
    let last = |command: Command| {
        let (report, code) = judged(command);
        let last = chain(&report, "xdp:v0")["steps"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        (last, code)
    };
    for (capability, name) in [("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN")] {
        let (step, code) = last(with_less(
            host,
            capability,
            "65536:8388608",
            "doorbell doctor --json xdp:v0",
        ));
        assert_eq!((code, &step["step"]), (1, &Value::from("rights")), "{step}");
        assert!(step["saw"].as_str().unwrap().ends_with(name), "{step}");
    }
    let (step, code) = last(with_less(
        host,
        "ipc_lock",
        "65536:8388608",
        "doorbell doctor --json xdp:v0",
    ));
    assert_eq!((code, &step["step"]), (1, &Value::from("memlock")), "{step}");
    let command = step["fixes"][0]["command"].as_str().unwrap();
    assert!(command.starts_with("ulimit -l "), "{step}");
    // The command that it printed, in the same shell: then it finds nothing wrong.
    let words = format!("{command} && doorbell doctor --json xdp:v0");
    let (_, code) = last(with_less(host, "ipc_lock", "65536:8388608", &words));
    assert_eq!(code, 0);
}

/// A program that its user may not read: the kernel hides its memory from its siblings.
#[test]
fn ranks_that_may_not_read_each_other_get_the_reason() {
    use std::os::unix::fs::PermissionsExt as _;
    const TEST: &str = "doorbell::it::doctor::ranks_that_may_not_read_each_other_get_the_reason";
    if !rustix::process::geteuid().is_root() {
        return doorbell_testing::skipped(TEST, "another user needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("doorbell");
    std::fs::copy(env!("CARGO_BIN_EXE_doorbell"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o711)).unwrap();
    let look = || {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]);
        command
            .arg(&program)
            .args(["doctor", "--json", "shm"])
            .env_clear();
        let (report, code) = judged(command);
        assert_eq!(
            (code, &chain(&report, "shm")["verdict"]),
            (0, &Value::from("usable")),
            "{report:#}"
        );
        step(chain(&report, "shm"), "cma").clone()
    };
    let noted = look();
    assert_eq!(noted["is"], "note", "{noted}");
    let command = noted["fixes"][0]["command"].as_str().unwrap();
    assert!(command.starts_with("chmod a+r "), "{noted}");
    assert!(
        Command::new("sh")
            .args(["-c", command])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(look()["is"], "ok");
}

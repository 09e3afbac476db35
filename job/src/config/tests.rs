use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn read(pairs: &[(&str, &str)], file: Option<&Path>) -> Result<Config, Error> {
    Config::from_variables(variables(pairs), file)
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn code_wins_over_environment_over_file_over_default() {
    let file = file("[wait]\nquiet = \"1 s\"\ndeadline = \"10 s\"\nclose = \"7 s\"\n");
    let mut config = read(
        &[("DOORBELL_DEADLINE", "20 s"), ("DOORBELL_QUIET", "2 s")],
        Some(file.path()),
    )
    .unwrap();
    config.wait.quiet.set(Duration::from_secs(4));
    let seconds = |setting: &Setting<Duration>| (setting.get().as_secs(), setting.origin().clone());
    assert_eq!(seconds(&config.wait.quiet), (4, Origin::Code));
    assert_eq!(
        seconds(&config.wait.deadline),
        (20, Origin::Environment("DOORBELL_DEADLINE"))
    );
    let line_4 = Origin::File {
        path: file.path().into(),
        line: 4,
    };
    assert_eq!(seconds(&config.wait.close), (7, line_4));
    assert_eq!(seconds(&config.job.timeout), (30, Origin::Default));
}

#[test]
fn the_file_may_be_named_by_a_variable() {
    let file = file("[rails]\nlist = [\"shm\", \"sim:3\"]\n[shm]\ncma = false\n[progress]\nspins = 17\n");
    let config = read(&[("DOORBELL_CONFIG", file.path().to_str().unwrap())], None).unwrap();
    assert_eq!(config.rails.list.get().0.len(), 2);
    assert!(!config.shm.cma.get());
    assert_eq!(*config.progress.spins.get(), Some(17));
}

#[test]
fn an_unknown_variable_sets_nothing_and_is_no_error() {
    let config = read(
        &[
            ("DOORBELL_DEADLNE", "1 s"),
            ("DOORBELL_PORT", "tcp://10.96.0.7:7"),
            ("DOORBELL_TEST_ANYTHING", "1"),
            ("DOORBELL_SKIP_FILE", "x"),
            ("OTHER", "1"),
        ],
        None,
    )
    .unwrap();
    assert!(config.list().iter().all(|line| line.origin == "default"));
}

#[test]
fn a_service_link_with_the_name_of_a_setting_is_a_bad_value_that_says_where_it_comes_from() {
    let link = ("DOORBELL_UDP_PORT", "tcp://10.96.0.7:7");
    let error = read(&[link, ("DOORBELL_UDP_SERVICE_HOST", "10.96.0.7")], None).unwrap_err();
    assert_eq!(error.code(), "config.bad-value");
    assert!(error.to_string().contains("enableServiceLinks"), "{error}");
    let error = read(&[link], None).unwrap_err().to_string();
    assert!(
        error.contains("udp.port") && !error.contains("Kubernetes"),
        "{error}"
    );
}

#[test]
fn an_unknown_key_names_the_nearest_and_its_line() {
    let file = file("# a comment\n[wait]\ndedline = \"1 s\"\n");
    let error = read(&[], Some(file.path())).unwrap_err().to_string();
    assert!(error.contains("wait.deadline") && error.contains(":3"), "{error}");
}

#[test]
fn bad_values_say_what_was_expected_and_where_they_stand() {
    let error = read(&[("DOORBELL_DEADLINE", "0 s")], None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("wait.deadline")
            && error.contains("$DOORBELL_DEADLINE")
            && error.contains("above zero"),
        "{error}"
    );
    let error = read(&[("DOORBELL_RAILS", "smh")], None).unwrap_err().to_string();
    assert!(error.contains("shm"), "{error}");
}

#[test]
fn bad_files_are_errors_with_their_line() {
    for (text, line) in [
        ("[wait\n", 1),
        ("\nquiet = 3\n", 2),
        ("[wait]\nquiet = { a = 1 }\n", 2),
        ("[a]\n[a]\n", 2),
    ] {
        let file = file(text);
        let error = read(&[], Some(file.path())).unwrap_err();
        match &error {
            Error::ConfigFile { line: found, .. } => assert_eq!(*found, line, "{text:?}: {error}"),
            other => panic!("{text:?}: {other}"),
        }
    }
    let error = read(&[], Some(Path::new("/nonexistent/doorbell.toml"))).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/doorbell.toml"));
}

#[test]
fn what_is_no_regular_file_of_bounded_length_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    // A hole of a gigabyte, and one byte too many.
    fs::File::create(at("huge")).unwrap().set_len(1 << 30).unwrap();
    fs::write(at("long"), vec![b'\n'; (1 << 20) + 1]).unwrap();
    fs::write(at("binary"), [0xff, 0xfe]).unwrap();
    fs::write(at("longest"), vec![b'\n'; 1 << 20]).unwrap();
    for (path, reason) in [
        (at("fifo"), "a FIFO"),
        (at("socket"), "a socket"),
        ("/dev/zero".into(), "a device"),
        ("/dev/null".into(), "a device"),
        (folder.path().to_owned(), "a folder"),
        (at("huge"), "longer than 1 MiB"),
        (at("long"), "longer than 1 MiB"),
        (at("binary"), "UTF-8"),
        (at("missing"), "No such file"),
    ] {
        let error = read(&[("DOORBELL_CONFIG", path.to_str().unwrap())], None).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(reason) && text.contains(path.to_str().unwrap()),
            "{text}"
        );
        assert_eq!((error.code(), error.exit_code()), ("config.file", 2), "{text}");
    }
    assert!(read(&[], Some(&at("longest"))).is_ok());
}

/// Every value of every setting, but those that any text is good for, by variable, by file and by code.
#[test]
fn each_setting_takes_or_refuses_its_edges_by_name() {
    const BAD: &[&str] = &["-1", "x", "1e999", "18446744073709551616", "0.5.5", "4294967296x"];
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            "job.rank",
            &["0", "1", "65535", ""],
            &["65536", "4294967295", "4294967296"],
        ),
        ("job.size", &["1", "65536", "auto"], &["0", "65537", "4294967296"]),
        ("job.lazy_above", &["0", "64", "65536"], &["", "-1", "x", "1.5"]),
        ("job.bound", &["on", "off"], &["", "2"]),
        ("job.timeout", &["1 ns", "366 h"], &["", "0 s", "1", "999999 h"]),
        ("job.launch", &["auto", "pmix", "singleton"], &["", "0", "pmi3"]),
        (
            "rails.list",
            &["", "shm", "shm,sim:1", "udp:eth*"],
            &["0", "1", "shm,shm", "udp:eth*,udp:eth*"],
        ),
        ("rails.of_sets", &["on", "off"], &["", "2"]),
        ("am.handlers", &["owner", "progress"], &["", "auto", "1"]),
        ("progress.mode", &["inline", "dedicated"], &["", "0", "1"]),
        (
            "progress.core",
            &["0", "1", "4294967295", "", "next", "sibling", "2,3", "4-7"],
            &["4294967296", "nxt", "3-", "1,,2", "0-9999"],
        ),
        ("progress.wait", &["sleep", "balanced"], &["", "0", "1"]),
        (
            "progress.spins",
            &["0", "1", "4294967295", "auto"],
            &["4294967296"],
        ),
        (
            "progress.yields",
            &["0", "1", "4294967295", "auto"],
            &["4294967296"],
        ),
        (
            "progress.mailbox",
            &["1", "1048576"],
            &["", "0", "1048577", "4294967296"],
        ),
        ("wait.deadline", &["1 ns", "366 h"], &["", "0 s", "1", "999999 h"]),
        ("wait.quiet", &["1 ns", "366 h"], &["", "0 s", "1", "999999 h"]),
        ("control.mode", &["on", "off"], &["", "2"]),
        (
            "control.ports",
            &["7200", "7200-7299", "any", ""],
            &["0", "5-1", "7200-", "70000"],
        ),
        ("control.policy", &["end", "tell"], &["", "0"]),
        ("control.grace", &["10 ms", "1 h"], &["", "1 ms", "2 h"]),
        ("control.threads", &["one", "nic"], &["", "two"]),
        ("control.wait", &["block", "spin"], &["", "sleep"]),
        (
            "control.core",
            &["0", "4294967295", "", "next", "sibling", "2,3", "4-7"],
            &["4294967296", "nxt", "3-", "1,,2", "0-9999"],
        ),
        (
            "control.transports",
            &["tcp", "rail", "tcp,rail", "rail, tcp"],
            &["", "tcp,tcp", "udp", "tcp rail"],
        ),
        ("control.rails", &["", "shm", "shm,udp:eth0"], &["0", "shm,shm"]),
        ("control.routes", &["tree", "direct"], &["", "ring"]),
        ("acm.mode", &["on", "off"], &["", "2"]),
        ("acm.timeout", &["10 ms", "1 min"], &["", "0 s", "1 h"]),
        ("wait.close", &["1 ns", "366 h"], &["", "0 s", "1", "999999 h"]),
        (
            "pml.eager",
            &["0", "1", "1125899906842624", ""],
            &["1125899906842625"],
        ),
        (
            "pml.unexpected",
            &["1024", "1 KiB", "4 GiB", "4294967296"],
            &["", "0", "1", "1023", "4294967297", "1125899906842624"],
        ),
        (
            "pml.protocol",
            &["auto", "get", "put", "fragments"],
            &["", "0", "1"],
        ),
        ("pml.checksum", &["0", "1", "on", "off"], &["", "2"]),
        (
            "pml.buffer",
            &["0", "1", "64k", "1 MiB"],
            &["", "1125899906842625"],
        ),
        ("lend.pieces", &["1", "1024"], &["", "0", "1025"]),
        ("pml.patience", &["1 ns", "366 h"], &["", "0 s", "1", "999999 h"]),
        ("pml.handshake", &["on", "off"], &["", "2"]),
        ("pml.resume", &["missing", "from-zero"], &["", "0", "1"]),
        (
            "fault.inject",
            &["", "shm:1", "shm:rendezvous", "udp:lo:7,shm:2000"],
            &["0", "shm", "shm:0", "shm:x", "nosuch:7"],
        ),
        ("shm.cma", &["0", "1", "on", "off"], &["", "2"]),
        ("ofi.network", &["off", "routes"], &["", "on"]),
        ("shm.help", &["0", "1", "on", "off"], &["", "2"]),
        (
            "shm.cells",
            &["2", "1048576", "auto", ""],
            &["0", "1", "3", "1048577", "2097152"],
        ),
        (
            "shm.data",
            &["128 KiB", "131072", "1 GiB", "auto", ""],
            &["0", "1", "65536", "131073", "1073741825", "2 GiB"],
        ),
        ("counters.place", &["memory", "off"], &["", "0", "1"]),
        ("udp.family", &["ipv4", "ipv6"], &["", "0", "ip"]),
        ("udp.port", &["0", "65534"], &["", "65535", "65536"]),
        ("udp.pairs", &["1", "32767"], &["", "0", "32768"]),
        ("udp.mtu", &["auto", "", "576", "65535"], &["0", "575", "65536"]),
        ("udp.connected", &["0", "16384"], &["", "16385"]),
        (
            "udp.receive_buffer",
            &["4 KiB", "1 GiB"],
            &["", "0", "4095", "2 GiB"],
        ),
        (
            "udp.send_buffer",
            &["4 KiB", "1 GiB"],
            &["", "0", "4095", "2 GiB"],
        ),
        ("udp.gso", &["on", "off"], &["", "2"]),
        ("udp.gro", &["on", "off"], &["", "2"]),
        ("udp.busy_poll", &["auto", "1", "1000000"], &["0", "1000001"]),
        (
            "xdp.mode",
            &["best", "zero-copy", "native", "generic"],
            &["", "copy", "0"],
        ),
        ("xdp.queue", &["auto", "0", "65535"], &["65536", "x"]),
        (
            "xdp.receive_ring",
            &["64", "32768"],
            &["", "0", "63", "100", "65536"],
        ),
        (
            "xdp.send_ring",
            &["64", "32768"],
            &["", "0", "63", "100", "65536"],
        ),
        ("xdp.busy_poll", &["auto", "1", "1000000"], &["0", "1000001"]),
        (
            "igbvf.gateway",
            &["auto", "10.0.0.1", "fd00::1"],
            &["0", "::", "127.0.0.1"],
        ),
        (
            "igbvf.receive_ring",
            &["64", "4096"],
            &["", "0", "63", "100", "8192"],
        ),
        (
            "igbvf.send_ring",
            &["64", "4096"],
            &["", "0", "63", "100", "8192"],
        ),
        ("igbvf.checksum", &["on", "off"], &["", "2"]),
        ("verbs.send", &["64", "16384"], &["", "0", "63", "100", "32768"]),
        (
            "verbs.receive",
            &["64", "16384"],
            &["", "0", "63", "100", "32768"],
        ),
        ("verbs.gid_index", &["auto", "0", "255"], &["-1", "256"]),
        ("verbs.service_level", &["0", "15"], &["", "16"]),
        ("verbs.traffic_class", &["0", "255"], &["", "256"]),
        (
            "verbs.pkey",
            &["auto", "0x8001", "0xffff", "17"],
            &["0", "0x8000", "0x10000", "8001h"],
        ),
        (
            "verbs.slot",
            &["4096", "64 KiB"],
            &["", "2 KiB", "5000", "128 KiB"],
        ),
        ("verbs.zero_copy", &["512", "1 MiB"], &["", "511", "2 MiB"]),
        ("verbs.register", &["4 KiB", "1 MiB"], &["", "0", "4095", "2 MiB"]),
        (
            "verbs.get_from",
            &["4 KiB", "64 MiB"],
            &["", "0", "4095", "65 MiB"],
        ),
        ("verbs.retry", &["0", "7"], &["", "8"]),
        ("verbs.timeout", &["1", "20"], &["", "0", "21"]),
        ("verbs.keep_alive", &["10 ms", "1 min"], &["", "9 ms", "61 s"]),
        ("verbs.ring", &["auto", "on", "off"], &["", "yes", "1"]),
        ("verbs.ring_peers", &["1", "256"], &["", "0", "257"]),
        (
            "usnic.address",
            &["auto", "10.0.0.5/24", "model/D/vf1=10.0.0.6/24"],
            &[
                "10.0.0.5",
                "eth0=10.0.0.5/24",
                "fd00::5/64",
                "10.0.0.5/24 and more",
            ],
        ),
        ("usnic.gateway", &["auto", "10.0.0.1"], &["0", "::", "127.0.0.1"]),
        (
            "usnic.receive_ring",
            &["64", "4096"],
            &["", "0", "63", "100", "8192"],
        ),
        (
            "usnic.send_ring",
            &["64", "4096"],
            &["", "0", "63", "100", "8192"],
        ),
        ("usnic.checksum", &["on", "off"], &["", "2"]),
        (
            "usnic.control",
            &["auto", "agent", "direct", "proxy"],
            &["", "pf"],
        ),
        (
            "usnic.commands",
            &["auto", "devcmd", "devcmd2"],
            &["", "ring", "devcmd3"],
        ),
        ("usnic.function", &["auto", "0", "255"], &["256", "-1", "x"]),
        ("usnic.vf_commands", &["try", "skip", "need"], &["", "on"]),
        ("usnic.interrupts", &["on", "off"], &["", "2"]),
        ("usnic.arp", &["on", "off"], &["", "2"]),
        (
            "usnic.mac",
            &["auto", "02:00:00:00:00:0a"],
            &["02:00", "01:00:00:00:00:00", "00:00:00:00:00:00", "2:0:0:0:0:1"],
        ),
        ("btl.window", &["64", "4096"], &["", "0", "63", "100", "8192"]),
        ("btl.segments", &["64", "1048576"], &["", "63", "1048577"]),
        ("btl.max_peers", &["1", "1048576"], &["", "0", "1048577"]),
        ("btl.max_reassemblies", &["1", "65536"], &["", "0", "65537"]),
        ("btl.operations", &["1", "65536"], &["", "0", "65537"]),
        ("btl.exposures", &["1", "16777216"], &["", "0", "16777217"]),
        ("btl.eager_limit", &["256", "16 MiB"], &["", "0", "255", "17 MiB"]),
        ("btl.priority_limit", &["0", "65535"], &["", "64 KiB"]),
        ("btl.retrans_timeout", &["200 us", "250 ms"], &["", "1 us", "1 s"]),
        (
            "btl.retrans_least",
            &["60 us", "5 ms"],
            &["", "100 ns", "6 ms", "7200 s"],
        ),
        ("btl.retrans_tail", &["1 us", "200 us"], &["", "100 ns", "201 us"]),
        ("btl.retrans_most", &["5 ms", "60 s"], &["", "1 ms", "7200 s"]),
        (
            "btl.max_resends_per_iteration",
            &["1", "4096"],
            &["", "0", "4097"],
        ),
        ("btl.ack_delay", &["1 us", "100 us"], &["", "0 s", "200 us"]),
        ("btl.ack_every", &["1", "2048"], &["", "0", "2049"]),
        ("btl.initial_window", &["2", "4096"], &["", "1", "4097"]),
        ("btl.quantum", &["1", "4096"], &["", "0", "4097"]),
        ("btl.give_up", &["250 ms", "24 h"], &["", "1 ms", "90000 s"]),
        ("btl.silence", &["1 ms", "24 h"], &["", "1 us", "90000 s"]),
        ("btl.keep_alive", &["1 ms", "24 h"], &["", "1 us", "90000 s"]),
        ("btl.suspect_after", &["1", "1000"], &["", "0", "1001"]),
        ("btl.connectivity_check", &["on", "off"], &["", "2"]),
        (
            "btl.connectivity_ack_timeout",
            &["1 ms", "1 h"],
            &["", "100 ns", "7200 s"],
        ),
        (
            "btl.connectivity_error_num_retries",
            &["1", "100000"],
            &["", "0", "100001"],
        ),
        ("btl.frame_mac", &["on", "off"], &["", "2"]),
        ("btl.recorder", &["0", "65536"], &["", "65537"]),
    ];
    let free = [
        "job.root",
        "job.pmix_library",
        "udp.capture",
        "ofi.key_file",
        "igbvf.address",
        "usnic.agent",
        "control.nics",
        "acm.service",
    ];
    for fact in FACTS.iter().filter(|fact| !free.contains(&fact.name)) {
        let (_, good, bad) = cases
            .iter()
            .find(|case| case.0 == fact.name)
            .unwrap_or_else(|| panic!("{} has no row here", fact.name));
        let in_file = |value: &str| {
            let (section, key) = fact.name.split_once('.').unwrap();
            file(&format!("# a comment\n[{section}]\n{key} = \"{value}\"\n"))
        };
        for value in *good {
            read(&[(fact.variable, value)], None).unwrap_or_else(|error| panic!("{error}"));
            read(&[], Some(in_file(value).path())).unwrap_or_else(|error| panic!("{error}"));
        }
        for value in bad.iter().chain(BAD) {
            let error = read(&[(fact.variable, value)], None).expect_err(value);
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("`{value}` is no value for {} ", fact.name)),
                "{text}"
            );
            assert!(
                text.contains(&format!("(${})", fact.variable)) && text.contains("expected "),
                "{text}"
            );
            assert_eq!(
                (error.code(), error.exit_code()),
                ("config.bad-value", 2),
                "{text}"
            );
            let file = in_file(value);
            let text = read(&[], Some(file.path())).unwrap_err().to_string();
            assert!(text.contains(&format!("({}:3)", file.path().display())), "{text}");
            let mut config = Config::default();
            // What is a bound of something else is judged when all is set.
            let error = config
                .set(fact.name, value)
                .and_then(|()| config.verify())
                .unwrap_err();
            assert!(error.to_string().contains("(code)"), "{error}");
        }
        let odd = OsString::from_vec(b"shm\xff".to_vec());
        let error = Config::from_variables([(fact.variable.into(), odd)], None).unwrap_err();
        assert!(
            error.to_string().contains("UTF-8") && error.to_string().contains(fact.variable),
            "{error}"
        );
    }
}

#[test]
fn settings_of_the_control_plane_that_do_not_go_together_are_refused_where_there_is_one() {
    for (settings, name) in [
        (&[("DOORBELL_CONTROL_CORE", "0")][..], "control.core"),
        (&[("DOORBELL_CONTROL_RAILS", "shm")], "control.rails"),
        (
            &[
                ("DOORBELL_CONTROL_TRANSPORTS", "rail"),
                ("DOORBELL_CONTROL_THREADS", "nic"),
            ],
            "control.threads",
        ),
    ] {
        assert!(read(settings, None).is_ok(), "{name} without a control plane");
        let with = [settings, &[("DOORBELL_CONTROL", "on")]].concat();
        let text = read(&with, None).unwrap_err().to_string();
        assert!(text.contains(&format!("no value for {name} ")), "{text}");
    }
    let agreed = |settings: &[(&str, &str)]| read(settings, None).unwrap().agreed().len();
    assert_eq!(agreed(&[("DOORBELL_CONTROL", "on")]), agreed(&[]) + 1);
}

#[test]
fn the_listing_holds_every_setting_once_and_reads_back() {
    let config = Config::default();
    let list = config.list();
    let mut copy = Config::default();
    for line in &list {
        assert!(
            line.help.ends_with('.') && line.variable.starts_with("DOORBELL_"),
            "{}",
            line.name
        );
        assert_eq!(
            list.iter()
                .filter(|other| other.name == line.name || other.variable == line.variable)
                .count(),
            1
        );
        copy.set(line.name, &line.value).unwrap();
    }
    for (before, after) in list.iter().zip(copy.list()) {
        assert_eq!(
            (before.value.as_str(), "code"),
            (after.value.as_str(), after.origin.as_str())
        );
    }
    let json: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), list.len());
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,40}", at in 0..FACTS.len()) {
        let mut config = Config::default();
        let _ = config.set(FACTS[at].name, &text);
        let _ = read(&[(FACTS[at].variable, &text)], None);
    }

    #[test]
    fn no_file_panics(text in "(\\[[a-z]{1,5}\\]|[a-z]{1,5}|=|\"|[0-9]|\n| ){0,40}") {
        let file = file(&text);
        let _ = read(&[], Some(file.path()));
    }
}

//! The arguments of the commands, and their errors: names, folders, sockets.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::{Service, client, conforms, serve};
use crate::common::sentence;
use crate::hosts::{AMPLE, Running, at, fails, finish};

#[test]
fn an_interface_that_is_not_there_is_a_warning_and_an_impossible_one_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(128);
    for bad in ["", &long, "a/b", "a b", ".."] {
        let out = finish(serve(None, folder.path(), &["--nic", bad]));
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{bad:?}: {said}");
        assert!(said.contains("--nic"), "{bad:?}: {said}");
    }
    let mut service = Service::start(None, folder.path(), &["--nic", "nothere0"]);
    let warning = service.ready["warnings"][0].as_str().unwrap().to_owned();
    assert!(
        warning.starts_with("--nic: this host has no interface \"nothere0\""),
        "{warning}"
    );
    let state = service.state();
    assert_eq!(state["warnings"][0], *warning, "{state:#}");
    service.ends();
    let mut plain = serve(None, folder.path(), &["--nic", "nothere0", "--seconds", "0.1"]);
    plain.stdin(std::process::Stdio::null());
    let out = finish(plain);
    assert_eq!(out.status.code(), Some(0));
    assert!(
        sentence(&out.stderr).contains(&warning),
        "{}",
        sentence(&out.stderr)
    );
}

#[test]
fn addresses_of_missing_devices_are_named_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = "one lo 1 default\ntwo nothere0 1 default\nthree lo 1 0x8001\n";
    fs::write(folder.path().join("ibacm_addr.cfg"), text).unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let warnings = service.ready["warnings"].as_array().unwrap();
    let warnings: Vec<&str> = warnings.iter().filter_map(|line| line.as_str()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("ibacm_addr.cfg:2: this host has no device \"nothere0\""),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("ibacm_addr.cfg:3:") && warnings[1].contains("partition 0x8001"),
        "{warnings:?}"
    );
}

#[test]
fn folders_that_are_not_there_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none").display().to_string();
    let socket = folder.path().join("s").display().to_string();
    let (code, said) = fails(at(
        None,
        &["acm", "serve", "--socket", &socket, "--config", &none],
    ));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not a folder of a configuration"), "{said}");
    let (code, said) = fails(at(None, &["acm", "config", "--dir", &none]));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("there is no folder") && said.contains("mkdir"),
        "{said}"
    );
    assert!(!Path::new(&none).exists() && !Path::new(&socket).exists());
}

#[test]
fn the_link_beside_a_socket_leads_to_it_wherever_it_was_named_from() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    for socket in ["s.sock", "./s.sock", "sub/s.sock"] {
        let words = [
            "acm", "serve", "--json", "--socket", socket, "--config", ".", "--tcp", "0",
        ];
        let mut command = at(None, &words);
        command.current_dir(folder.path());
        let mut service = Service::of(command);
        for (link, target) in [(".alias", ""), (".port.alias", ".port")] {
            let link = folder.path().join(format!("{socket}{link}"));
            let target = folder.path().join(format!("{socket}{target}"));
            assert_eq!(
                link.canonicalize().unwrap(),
                target.canonicalize().unwrap(),
                "{socket}"
            );
        }
        let alias = folder
            .path()
            .join(format!("{socket}.alias"))
            .display()
            .to_string();
        let asked = ["acm", "resolve", "127.0.0.1", "--service"];
        assert_eq!(
            finish(at(None, &[&asked[..], &[&alias]].concat())).status.code(),
            Some(0)
        );
        // A socket of this folder is one without a `/`, too.
        let mut near = at(None, &[&asked[..], &[socket]].concat());
        near.current_dir(folder.path());
        let out = finish(near);
        assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
        service.ends();
    }
    let out = finish(at(None, &["acm", "serve", "--help"]));
    assert!(String::from_utf8_lossy(&out.stdout).contains("PATH.alias"));
}

#[test]
fn names_that_no_socket_can_have_are_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("x".repeat(120)).display().to_string();
    for words in [
        &["serve", "--socket", &long][..],
        &["perf", "--service", &long],
        &["resolve", "10.0.0.1", "--service", &long],
        &["watch", "--once", "--socket", &long],
    ] {
        let (code, said) = fails(client(words));
        assert!(code == Some(6) || code == Some(2), "{words:?}: {code:?}");
        assert!(said.contains("at most 107"), "{words:?}: {said}");
    }
    // A socket in the folder is meant by no name of a host.
    let (code, said) = fails(client(&["perf", "--service", "no-such-host.invalid"]));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("./acm.sock"), "{said}");
}

#[test]
fn the_owner_of_the_socket_is_named_and_only_ibacm_is_stopped_as_ibacm() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let (code, said) = fails(serve(None, folder.path(), &[]));
    assert_eq!(code, Some(6), "{said}");
    let holder = format!("(process {} doorbell)", service.process.id());
    assert!(said.contains(&holder), "{said}");
    assert!(!said.contains("systemctl"), "{said}");
}

#[test]
fn a_service_that_stands_still_is_left_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    service.process.signal(Signal::STOP);
    let words = [
        "acm",
        "watch",
        "--once",
        "--timeout",
        "0.3",
        "--socket",
        &service.socket,
    ];
    let (code, said) = fails(at(None, &words));
    service.process.signal(Signal::CONT);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("did not answer within 0.3 s"), "{said}");
    assert_eq!(service.state()["process"], service.process.id());
}

#[test]
fn a_service_that_can_serve_nothing_ends_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let test = "doorbell::it::acm::words::a_service_that_can_serve_nothing_ends_with_the_reason";
    let Some(lab) = doorbell_testing::netns::Lab::pair(test, 1500) else {
        return;
    };
    fs::write(folder.path().join("ibacm_opts.cfg"), "doorbell_carrier ud\n").unwrap();
    let words = ["--nic", "v0", "--seconds", "20"];
    let out = finish(serve(Some(lab.name(0)), folder.path(), &words));
    assert_eq!(out.status.code(), Some(3), "{out:?}");
    assert!(out.stdout.is_empty(), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    let reason = "v0 is not served: no RDMA device stands on the interface v0; `rdma link` lists them";
    assert!(said.starts_with(&format!("doorbell: {reason}")), "{said}");
    assert!(
        said.contains("no message can be exchanged with other services"),
        "{said}"
    );
    // On the loopback alone there is nothing to serve.
    let out = finish(serve(Some(lab.name(0)), folder.path(), &["--seconds", "0.1"]));
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn what_is_not_served_sends_nothing_and_joins_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let test = "doorbell::it::acm::words::what_is_not_served_sends_nothing_and_joins_nothing";
    let Some(lab) = doorbell_testing::netns::Lab::pair(test, 1500) else {
        return;
    };
    let service = Service::start(Some(lab.name(0)), folder.path(), &[]);
    let state = service.state();
    let endpoints = state["endpoints"].as_array().unwrap();
    let own = endpoints.iter().find(|end| end["device"] == "v0").unwrap();
    assert!(!own["unserved"].is_null(), "{state:#}");
    let events: Vec<&str> = state["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["what"].as_str())
        .collect();
    assert!(events.contains(&"v0 came"), "{events:?}");
    assert!(
        !events.iter().any(|what| what.contains("could not join")),
        "{events:?}"
    );
    let loopback = endpoints.iter().find(|end| end["link"] == "loopback").unwrap();
    let most = loopback["addresses"].as_array().unwrap().len();
    let announced = events
        .iter()
        .filter_map(|what| what.strip_prefix("announced ")?.strip_suffix(" addresses"));
    let announced: usize = announced.map(|count| count.parse::<usize>().unwrap()).sum();
    assert!(announced <= most, "{events:?}");
}

#[test]
fn the_service_listens_beyond_loopback_only_on_request() {
    let test = "doorbell::it::acm::words::the_service_listens_beyond_loopback_only_on_request";
    let Some(lab) = doorbell_testing::netns::Lab::pair(test, 1500) else {
        return;
    };
    for (words, is_open) in [(&["--tcp", "0"][..], false), (&["--tcp", "0", "--open"], true)] {
        let folder = tempfile::tempdir().unwrap();
        let mut service = Service::start(Some(lab.name(0)), folder.path(), words);
        let tcp = service.ready["tcp"].as_str().unwrap();
        let (ip, port) = tcp.rsplit_once(':').unwrap();
        assert_eq!(ip, if is_open { "0.0.0.0" } else { "127.0.0.1" });
        // Its neighbour sends a request.
        let far = format!("10.77.0.1:{port}");
        let words = ["acm", "resolve", "10.77.0.1", "--json", "--service", &far];
        let out = finish(at(Some(lab.name(1)), &words));
        let code = out.status.code();
        assert_eq!(
            code,
            Some(if is_open { 0 } else { 6 }),
            "{}",
            sentence(&out.stderr)
        );
        if is_open {
            let told = conforms("resolve", &String::from_utf8(out.stdout).unwrap());
            assert_eq!(told["paths"][0]["path"]["dgid"], "::ffff:10.77.0.1");
        }
        service.ends();
    }
}

#[test]
fn the_log_goes_where_it_is_to_go_and_has_what_was_requested() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let options = format!("log_file {}\nlog_level 2\nretries many\n", log.display());
    fs::write(folder.path().join("ibacm_opts.cfg"), options).unwrap();
    let mut service = Service::start(None, folder.path(), &[]);
    assert!(!service.path("127.0.0.1", &[]).is_null());
    service.ends();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("ibacm_opts.cfg:3: "), "{text}");
    assert!(text.contains("query for 127.0.0.1: answered"), "{text}");
    // On the standard output where that is said.
    fs::write(
        folder.path().join("ibacm_opts.cfg"),
        "log_file stdout\nretries many\n",
    )
    .unwrap();
    let out = finish(serve(None, folder.path(), &["--seconds", "0.1"]));
    assert_eq!(sentence(&out.stderr), "");
    assert!(String::from_utf8_lossy(&out.stdout).contains("ibacm_opts.cfg:2: "));
}

#[test]
fn a_lock_file_keeps_a_second_service_away() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let lock = folders[0].path().join("lock");
    for folder in &folders {
        let options = format!("lock_file {}\n", lock.display());
        fs::write(folder.path().join("ibacm_opts.cfg"), options).unwrap();
    }
    let mut first = Service::start(None, folders[0].path(), &[]);
    let pid = first.process.id();
    assert_eq!(fs::read_to_string(&lock).unwrap(), format!("{pid}\n"));
    let (code, said) = fails(serve(None, folders[1].path(), &[]));
    assert_eq!(code, Some(6), "{said}");
    assert!(
        said.contains(&format!("(process {pid})")) && said.contains("lock"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(folders[1].path()).unwrap().count(),
        1,
        "nothing was made"
    );
    first.ends();
    let mut second = Service::start(None, folders[1].path(), &[]);
    second.ends();
}

#[test]
fn what_is_loaded_is_warned_of_once_and_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("hosts.data");
    let options = format!("addr_preload acm_hosts\naddr_data_file {}\n", data.display());
    fs::write(folder.path().join("ibacm_opts.cfg"), options).unwrap();
    fs::write(&data, "far ::1\nnonsense\n").unwrap();
    let mut running = Running::start(serve(None, folder.path(), &[]));
    running.says("hosts.data:2: the line has no GID");
    fs::write(&data, "far ::1\n\nnonsense\n").unwrap();
    running.says("hosts.data:3: the line has no GID");
    // The same line once more: the file has changed.
    fs::write(&data, "other ::1\n\nnonsense\n").unwrap();
    running.says("hosts.data:3: the line has no GID");
    running.signal(Signal::TERM);
    assert_eq!(running.ends(AMPLE), Some(0));
}

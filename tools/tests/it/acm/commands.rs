//! Each command, its text, its JSON and its exit status.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use super::{Service, addresses, client, conforms};
use crate::common::sentence;
use crate::hosts::{AMPLE, Running, at, fails, finish};

/// What a client writes about this host, which is the one that has a loopback.
#[test]
fn paths_are_printed_as_text_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let (code, text, said) = service.asked(&["resolve", "127.0.0.1", "::1", "--verify"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((code, lines.len(), &*said), (Some(0), 2, ""), "{text}");
    assert!(
        lines[0].starts_with("127.0.0.1 from 127.0.0.1: ::ffff:127.0.0.1 -> ::ffff:127.0.0.1, MTU "),
        "{text}"
    );
    assert!(lines[1].starts_with("::1 from ::1: ::1 -> ::1, MTU "), "{text}");
    assert!(lines.iter().all(|line| line.ends_with(", verified")), "{text}");
    let (code, text, _) = service.asked(&["resolve", "127.0.0.1", "--repeat", "3", "--cached"]);
    assert_eq!((code, text.lines().count()), (Some(0), 3), "{text}");
    let told = service.told(&["resolve", "127.0.0.1", "--source", "127.0.0.1"]);
    let path = &told["paths"][0]["path"];
    assert_eq!(path["dgid"], "::ffff:127.0.0.1", "{told:#}");
    assert_eq!(
        (&path["pkey"], &path["reversible"]),
        (&0xffff.into(), &true.into())
    );
    assert_eq!(told["service"], *service.socket);
}

#[test]
fn unresolved_names_are_printed_beside_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    // No host has that network, and no request is sent: no interface is served.
    let words = ["resolve", "127.0.0.1", "203.0.113.9", "--source", "127.0.0.1"];
    let (code, text, said) = service.asked(&words);
    assert_eq!((code, &*said), (Some(1), ""), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains(" -> ::ffff:127.0.0.1, "), "{text}");
    assert!(
        lines[1].starts_with("203.0.113.9 from 127.0.0.1: the service at "),
        "{text}"
    );
    let told = service.told(&words);
    let bad = &told["paths"][1];
    assert!(bad["path"].is_null() && bad["status"].is_u64(), "{told:#}");
    assert!(bad["error"].as_str().unwrap().contains("refuses"), "{told:#}");
    assert!(told["paths"][0]["error"].is_null(), "{told:#}");
    let (code, text, _) = service.asked(&["resolve", "127.0.0.1", "--source", "203.0.113.1"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("give one of this host's addresses, or none"),
        "{text}"
    );
}

#[test]
fn endpoints_and_counters_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ibacm_addr.cfg"), "myself lo 1 default\n").unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let told = service.told(&["endpoints"]);
    assert!(addresses(&told).contains(&"127.0.0.1"), "{told:#}");
    assert!(addresses(&told).contains(&"myself"), "{told:#}");
    let (code, text, _) = service.asked(&["endpoints"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("pkey 0xffff  doorbell\n"), "{text}");
    assert!(text.contains("\n  127.0.0.1\n"), "{text}");
    let path = service.path("myself", &["--source", "127.0.0.1"]);
    assert_eq!(path["dgid"], "::ffff:127.0.0.1");

    let (code, ..) = service.asked(&["resolve", "127.0.0.1", "127.0.0.1"]);
    assert_eq!(code, Some(0));
    let told = service.told(&["perf", "--all"]);
    let rows = told["rows"].as_array().unwrap();
    assert_eq!(
        (&rows[0]["of"], &rows[0]["resolves"]),
        (&"service".into(), &3.into())
    );
    let endpoints = service.told(&["endpoints"])["endpoints"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(rows.len(), 1 + endpoints, "{told:#}");
    let told = service.told(&["perf", "--source", "127.0.0.1"]);
    assert_eq!(
        (&told["rows"][0]["of"], &told["rows"][0]["address_hits"]),
        (&"127.0.0.1".into(), &3.into())
    );
    let (code, text, _) = service.asked(&["perf"]);
    assert_eq!((code, text.lines().count()), (Some(0), 3), "{text}");
    let (code, _, said) = service.asked(&["perf", "--source", "203.0.113.1"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("refuses"), "{said}");
}

#[test]
fn what_a_service_knows_is_shown_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &[]);
    let state = service.state();
    assert_eq!(state["process"], service.process.id());
    assert!(addresses(&state).contains(&"127.0.0.1"));
    let watch = ["acm", "watch", "--socket", &service.socket];
    let out = finish(at(None, &[&watch[..], &["--once"]].concat()));
    assert_eq!(out.status.code(), Some(0));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.starts_with(&format!("process {}, ", service.process.id())),
        "{text}"
    );
    assert!(text.contains("no other hosts are known yet"), "{text}");
    let mut watching = Running::start(at(None, &[&watch[..], &["--json"]].concat()));
    for _ in 0..2 {
        conforms("watch", &watching.says("doorbell.acm-watch/1"));
    }
    // Its end is the end of who watches it.
    drop(service);
    watching.says("has ended");
    assert_eq!(watching.ends(AMPLE), Some(6));
}

#[test]
fn without_a_service_every_client_prints_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none.sock").display().to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tcp = port.to_string();
    for service in [&nowhere, &tcp] {
        for words in [
            &["resolve", "10.0.0.1"][..],
            &["perf"],
            &["endpoints"],
            &["load", "10.0.0.1"],
        ] {
            let (code, said) = fails(client(&[words, &["--service", service]].concat()));
            assert_eq!(code, Some(6), "{words:?}: {said}");
            assert!(
                said.contains(&format!("no service listens at {service}")),
                "{words:?}: {said}"
            );
        }
    }
    let (code, said) = fails(at(None, &["acm", "watch", "--socket", &nowhere]));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("none.sock"), "{said}");
}

#[test]
fn a_service_that_does_not_answer_or_goes_is_distinguished_from_one_that_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s").display().to_string();
    let listener = UnixListener::bind(&socket).unwrap();
    let started = Instant::now();
    let words = ["acm", "resolve", "10.0.0.1", "10.0.0.2", "--service", &socket];
    let out = finish(at(None, &[&words[..], &["--timeout", "0.3", "--json"]].concat()));
    assert_eq!(out.status.code(), Some(5), "{}", sentence(&out.stderr));
    let told = conforms("resolve", &String::from_utf8(out.stdout).unwrap());
    assert!(
        told["paths"][1]["error"]
            .as_str()
            .unwrap()
            .contains("did not answer within 0.3 s"),
        "{told:#}"
    );
    assert!(started.elapsed() < AMPLE);
    let closing = std::thread::spawn(move || {
        // The first one is the one above.
        for stream in listener.incoming().take(3) {
            let _ = stream.unwrap().write_all(b"");
        }
    });
    let out = finish(at(None, &words));
    assert_eq!(out.status.code(), Some(6), "{}", sentence(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("closed the connection"));
    let (code, said) = fails(client(&["perf", "--service", &socket]));
    assert_eq!(code, Some(6), "{said}");
    closing.join().unwrap();
}

#[test]
fn wrong_arguments_are_named() {
    for (words, wanted) in [
        (&["resolve"][..], "DESTINATION"),
        (&["resolve", "a b"], "is not an address"),
        (&["resolve", "node[3-1]"], "is not an address"),
        (&["resolve", "node1", "--format", "ip"], "is not an address"),
        (&["resolve", "node1", "--source", ""], "is not an address"),
        (
            &["resolve", "node1", "--service", "node1:0"],
            "is not the address of a service",
        ),
        (&["resolve", "node1", "--repeat", "0"], "--repeat"),
        (&["resolve", "node1", "--timeout=-1"], "--timeout"),
        (&["perf", "--all", "--source", "node1"], "cannot be used with"),
        (&["load", "node1", "--clients", "0"], "--clients"),
        (&["serve", "--open"], "--tcp"),
        (&["serve", "--tcp", "65536"], "--tcp"),
        (&["serve", "--seconds", "never"], "--seconds"),
        (&["config", "--force"], "--dir"),
        (&["config", "--nodes", "0"], "--nodes"),
        (&["nonsense"], "nonsense"),
    ] {
        let out = finish(client(words));
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
}

#[test]
fn tcp_is_served_on_loopback_beside_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(None, folder.path(), &["--tcp", "0"]);
    let tcp = service.ready["tcp"].as_str().unwrap();
    assert!(tcp.starts_with("127.0.0.1:"), "{tcp}");
    let port = std::fs::read_to_string(format!("{}.port", service.socket)).unwrap();
    assert_eq!(format!("127.0.0.1:{}", port.trim()), tcp);
    let out = finish(at(None, &["acm", "resolve", "127.0.0.1", "--service", tcp]));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    // The one that has it keeps it.
    let other = tempfile::tempdir().unwrap();
    let (code, said) = fails(super::serve(None, other.path(), &["--tcp", port.trim()]));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("cannot listen on 127.0.0.1:"), "{said}");
    let left: Vec<_> = std::fs::read_dir(other.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_service_has_its_socket_alone_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut service = Service::start(None, folder.path(), &["--tcp", "0"]);
        assert_eq!(left(), 5);
        let (code, said) = fails(super::serve(None, folder.path(), &[]));
        assert_eq!(code, Some(6), "{said}");
        assert!(said.contains("a service already listens at"), "{said}");
        assert!(
            !service.path("127.0.0.1", &[]).is_null(),
            "the first is as it was"
        );
        service.process.signal(signal);
        assert_eq!(service.process.ends(AMPLE), Some(0), "{signal:?}");
        assert_eq!(left(), 0, "{signal:?}");
    }
    let mut short = Service::start(None, folder.path(), &["--seconds", "0.2"]);
    assert_eq!(short.process.ends(AMPLE), Some(0));
    assert_eq!(left(), 0);
}

#[test]
fn a_killed_service_is_followed_by_another_at_the_same_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Service::start(None, folder.path(), &["--tcp", "0"]);
    first.process.signal(Signal::KILL);
    assert_eq!(first.process.ends(AMPLE), None);
    let (code, said) = fails(first.client(&["perf"]));
    assert_eq!(code, Some(6), "{said}");
    let mut second = Service::start(None, folder.path(), &["--tcp", "0"]);
    assert!(!second.path("127.0.0.1", &[]).is_null());
    second.ends();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("acm.sock");
    std::fs::write(&precious, "mine").unwrap();
    let (code, said) = fails(super::serve(None, folder.path(), &[]));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("exists and is not a"), "{said}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
}

#[test]
fn a_bad_key_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "no key\n").unwrap();
    let (code, said) = fails(super::serve(
        None,
        folder.path(),
        &["--key-file", key.to_str().unwrap()],
    ));
    assert!(code == Some(2) || code == Some(6), "{code:?}: {said}");
    assert!(said.contains("key"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let good = crate::hosts::key_in(folder.path(), "good");
    let service = Service::start(None, folder.path(), &["--key-file", &good]);
    assert_eq!(service.ready["authenticated"], Value::Bool(true));
}

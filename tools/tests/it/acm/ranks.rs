//! Jobs that look up their peers at the service, and continue without it if it is of no use.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Instant;

use super::Service;
use crate::common::sentence;
use crate::hosts::{AMPLE, SHORT, Server, at, finish, two_hosts};
use doorbell_testing::netns::Lab;

/// A side of a job that queries the service at `socket`.
fn asking(host: &str, words: &[&str], socket: &Path) -> std::process::Command {
    let mut command = at(Some(host), words);
    command
        .env("DOORBELL_ACM", "on")
        .env("DOORBELL_ACM_SERVICE", socket)
        .env("DOORBELL_ACM_TIMEOUT", "300 ms");
    command
}

/// Runs one measurement with the service at `socket` on the side that calls `to`, or where the other one is;
/// returns what that side printed.
fn measured(lab: &Lab, key: &str, socket: &Path, to: Option<&str>) -> String {
    let rails = ["--rail", "udp:v0", "--key-file", key];
    let words = [&["pingpong", "--serve", "--bind", "10.77.0.1:0"], &rails[..]].concat();
    let server = Server::start(at(Some(lab.name(0)), &words));
    let port = server.address.rsplit(':').next().unwrap();
    let address = to.map_or_else(|| server.address.clone(), |name| format!("{name}:{port}"));
    let words = [&["pingpong", "--connect", &address], &rails[..], &SHORT].concat();
    let begun = Instant::now();
    let out = finish(asking(lab.name(1), &words, socket));
    let said = sentence(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(begun.elapsed() < AMPLE);
    said
}

#[test]
fn a_job_finds_its_peers_by_the_service() {
    let Some((lab, folder, key)) = two_hosts("acm::ranks::a_job_finds_its_peers_by_the_service") else {
        return;
    };
    let mut services = Vec::new();
    for host in 0..2 {
        let place = folder.path().join(format!("host{}", host + 1));
        std::fs::create_dir(&place).unwrap();
        let line = format!("host{} v0 1 default\n", host + 1);
        std::fs::write(place.join("ibacm_addr.cfg"), line).unwrap();
        services.push(Service::start(Some(lab.name(host)), &place, &["--nic", "v0"]));
    }
    let asked = || {
        services[1].told(&["perf"])["rows"][0]["resolves"]
            .as_u64()
            .unwrap()
    };
    let before = asked();
    let said = measured(&lab, &key, Path::new(&services[1].socket), None);
    assert!(!said.contains("address service"), "{said}");
    assert!(asked() > before, "it was queried");
    // No name service knows this one: only the host's own service does.
    let said = measured(&lab, &key, Path::new(&services[1].socket), Some("host1"));
    assert!(!said.contains("address service"), "{said}");
}

#[test]
fn a_job_does_without_a_service_that_is_of_no_use() {
    let test = "acm::ranks::a_job_does_without_a_service_that_is_of_no_use";
    let Some((lab, folder, key)) = two_hosts(test) else {
        return;
    };
    let reports = |socket: &Path, reason: &str| {
        let said = measured(&lab, &key, socket, None);
        let lines: Vec<_> = said
            .lines()
            .filter(|line| line.contains("address service"))
            .collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(
            lines[0].contains("the system's own tables") && lines[0].contains(reason),
            "{said}"
        );
    };
    reports(&folder.path().join("none"), "no service listens at");
    let silent = folder.path().join("silent");
    let _listener = UnixListener::bind(&silent).unwrap();
    reports(&silent, "did not answer within 0.3 s");
    // It closes the connection when a request arrives.
    let dying = folder.path().join("dying");
    let listener = UnixListener::bind(&dying).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut question = [0; 16];
            let _ = (&stream).read(&mut question);
        }
    });
    reports(&dying, "closed the connection");
}

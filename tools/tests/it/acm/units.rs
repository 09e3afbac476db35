//! The systemd units in `tools/units`: systemd accepts them, the program accepts the command line in them,
//! and it is started by a socket as systemd does it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::sentence;
use crate::hosts::{Running, at, finish};
use crate::launchers::on_path;
use doorbell_testing::skipped;

const NAMES: [&str; 2] = ["doorbell-acm.service", "doorbell-acm.socket"];
/// Where the units have the program.
const INSTALLED: &str = "/usr/local/bin/doorbell";

fn unit(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("units");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn program() -> PathBuf {
    at(None, &[]).get_program().into()
}

#[test]
fn the_program_takes_what_its_unit_starts_it_with() {
    let service = unit(NAMES[0]);
    let starts = service.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    let starts: Vec<&str> = starts.collect();
    assert_eq!(starts.len(), 1, "{service}");
    let words: Vec<&str> = starts[0].split_whitespace().collect();
    assert_eq!(words[0], INSTALLED);
    // With a socket of its own, so that it is not where a service of this machine may be; it ends by itself.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s").display().to_string();
    let own = ["--socket", &socket, "--seconds", "0.1"];
    let out = finish(at(None, &[&words[1..], &own].concat()));
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    let places = doorbell_acm::serve::SocketPaths::default();
    let sockets = unit(NAMES[1]);
    for line in [
        format!("ListenStream={}", places.socket.display()),
        format!("Symlinks={}", places.socket_alias.display()),
    ] {
        assert!(sockets.lines().any(|other| other == line), "{line}: {sockets}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if !on_path("systemd-analyze") {
        let test = "doorbell::it::acm::units::systemd_finds_nothing_wrong_with_the_units";
        return skipped(test, "package systemd: systemd-analyze is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program().display().to_string();
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    for name in NAMES {
        let file = folder.path().join(name);
        std::fs::write(&file, unit(name).replace(INSTALLED, &program)).unwrap();
        command.arg(file);
    }
    let out = finish(command);
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(!said.contains("doorbell-acm"), "{said}");
}

#[test]
fn it_is_started_by_a_connection_as_systemd_does_it() {
    if !on_path("systemd-socket-activate") {
        let test = "doorbell::it::acm::units::it_is_started_by_a_connection_as_systemd_does_it";
        return skipped(test, "package systemd: systemd-socket-activate is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("given.sock").display().to_string();
    let plain = super::serve(None, folder.path(), &[]);
    let mut command = Command::new("systemd-socket-activate");
    command
        .args(["-l", &socket])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.stdin(std::process::Stdio::null());
    let mut running = Running::start(command);
    running.says("Listening on");
    let ask = || finish(at(None, &["acm", "resolve", "127.0.0.1", "--service", &socket]));
    let out = ask();
    assert_eq!(out.status.code(), Some(0), "{}", sentence(&out.stderr));
    running.says("doorbell.acm-serve/1");
    assert_eq!(ask().status.code(), Some(0));
    assert!(
        !folder.path().join("acm.sock").exists(),
        "it has the one that was given"
    );
}

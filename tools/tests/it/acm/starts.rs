//! A service that systemd starts: sockets that are handed over, and the notification that it is ready.

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Service;
use crate::hosts::{AMPLE, at, fails, finish};

/// The service, with `given` as its descriptor 3, for the process that the shell expression `pid` names.
fn activated(folder: &Path, given: impl Into<OwnedFd>, pid: &str, count: &str) -> Command {
    let script = format!("exec 3<&0 </dev/null; LISTEN_PID={pid} LISTEN_FDS={count} exec \"$0\" \"$@\"");
    let service = super::serve(None, folder, &[]);
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(service.get_program())
        .args(service.get_args());
    for (name, _) in service.get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(name);
    }
    command.stdin(Stdio::from(given.into()));
    command
}

#[test]
fn a_socket_that_is_handed_over_is_served_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("systemd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // A client sends its request before the service runs: it waits in the socket.
    let place = path.display().to_string();
    let early = std::thread::spawn({
        let place = place.clone();
        move || finish(at(None, &["acm", "resolve", "127.0.0.1", "--service", &place]))
    });
    for _ in 0..2 {
        let given = listener.try_clone().unwrap();
        let mut service = Service::of(activated(folder.path(), given, "$$", "1"));
        let out = finish(at(None, &["acm", "resolve", "127.0.0.1", "--service", &place]));
        assert_eq!(out.status.code(), Some(0));
        service.ends();
        assert!(path.exists(), "it is systemd's");
    }
    assert_eq!(early.join().unwrap().status.code(), Some(0));
}

#[test]
fn sockets_for_another_process_are_left_and_bad_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("systemd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let given = || listener.try_clone().unwrap();
    let mut service = Service::of(activated(folder.path(), given(), "1", "1"));
    assert!(!service.path("127.0.0.1", &[]).is_null(), "at its own socket");
    service.ends();
    let (code, said) = fails(activated(folder.path(), given(), "$$", "many"));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("LISTEN_FDS"), "{said}");
    let file = std::fs::File::open(folder.path().join("systemd.sock").parent().unwrap()).unwrap();
    let (code, said) = fails(activated(folder.path(), file, "$$", "1"));
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("is not a listening stream socket"), "{said}");
}

#[test]
fn systemd_is_notified_that_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let name = format!("doorbell-test-{}", std::process::id());
    let of_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, variable) in [
        (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
        (UnixDatagram::bind_addr(&of_name).unwrap(), format!("@{name}")),
    ] {
        socket.set_read_timeout(Some(AMPLE)).unwrap();
        let mut command = super::serve(None, folder.path(), &[]);
        command.env("NOTIFY_SOCKET", variable);
        let mut service = Service::of(command);
        let mut word = [0; 64];
        let length = socket.recv(&mut word).unwrap();
        assert_eq!(&word[..length], b"READY=1");
        assert!(!service.path("127.0.0.1", &[]).is_null());
        service.ends();
    }
    // It serves its clients all the same.
    let mut command = super::serve(None, folder.path(), &["--seconds", "0.2"]);
    command.env("NOTIFY_SOCKET", folder.path().join("nobody"));
    let out = finish(command);
    assert_eq!(out.status.code(), Some(0));
    let said = crate::common::sentence(&out.stderr);
    assert!(said.contains("cannot notify systemd"), "{said}");
}

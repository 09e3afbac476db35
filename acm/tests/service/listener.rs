//! The status socket, and clients of it that would hold up others.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{LONG, Running};

fn connect(service: &Running) -> UnixStream {
    let client = UnixStream::connect(&service.watch).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

#[test]
fn every_line_is_answered_and_endless_ones_are_not_kept() {
    let service = Running::start("", None);
    let mut client = connect(&service);
    client
        .write_all(b"nonsense\nfailed\nfailed 10.0.0.1\nfailed no one\nsta")
        .unwrap();
    client.write_all(b"te\n").unwrap();
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
    for wanted in ["unknown", "no address", "done", "no address", "{\"schema\""] {
        let line = lines.next().unwrap().unwrap();
        assert!(line.starts_with(wanted), "{wanted}: {line}");
    }
    let mut endless = connect(&service);
    // It is left while it writes, or once it has.
    let _ = endless.write_all(&[b'x'; 100_000]);
    let mut rest = Vec::new();
    let _ = endless.read_to_end(&mut rest);
    assert!(rest.is_empty(), "no answer");
    let mut garbage = connect(&service);
    garbage.write_all(&[0xff, 0, b'\n']).unwrap();
    let mut line = String::new();
    BufReader::new(garbage).read_line(&mut line).unwrap();
    assert!(line.starts_with("unknown"), "{line}");
    assert_eq!(service.state()["schema"], "doorbell.acm-watch/1");
}

#[test]
fn excess_clients_are_left_at_once_and_others_are_served_beside_a_flood() {
    let service = Running::start("", None);
    let mut flood: Vec<UnixStream> = (0..20).map(|_| connect(&service)).collect();
    for client in &mut flood {
        // No answers are read: the service must not wait for that.
        client.write_all(&b"state\n".repeat(500)).unwrap();
    }
    assert!(service.resolve("127.0.0.1").is_ok());
    assert!(!service.state()["endpoints"].is_null());
    let more: Vec<UnixStream> = (0..40).map(|_| connect(&service)).collect();
    // The last ones were too many; those that were let in receive nothing.
    let mut last_first = more.into_iter().rev();
    let is_left = last_first.any(|mut client| {
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        matches!(client.read(&mut [0; 1]), Ok(0))
    });
    assert!(is_left, "some are too many");
    drop(flood);
    service.until("there is room again", |state| !state.is_null());
}

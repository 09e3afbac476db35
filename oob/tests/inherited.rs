//! The descriptor that a launcher leaves open: taken once in the life of a process, which is why this is one
//! test in a program of its own.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod pmi_server;

use std::os::fd::IntoRawFd;
use std::time::Duration;

use doorbell_oob::launch::{Found, Kind, Wanted, detect, open};
use pmi_server::{Speaks, serve};

const LIMIT: Duration = Duration::from_secs(60);

fn found(descriptor: i32, rank: &str) -> Found {
    let variables = |name: &str| match name {
        "PMI_FD" => Some(descriptor.to_string()),
        "PMI_RANK" => Some(rank.to_owned()),
        "PMI_SIZE" => Some("1".to_owned()),
        _ => None,
    };
    detect(&Wanted::default(), &variables).unwrap()
}

#[test]
fn a_descriptor_is_taken_once_and_a_failure_before_it_takes_nothing() {
    let refused = |found: &Found, code: &str, word: &str| {
        let error = open(found, LIMIT).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(&found(9_999, "0"), "launch.descriptor", "not open");
    refused(&found(1, "0"), "launch.descriptor", "not the number");
    let file = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
    refused(&found(file, "0"), "launch.descriptor", "not a socket");
    refused(&found(9_999, "1"), "launch.variables", "rank 1 of 1");

    let (mut sockets, mut servers) = serve(Speaks::One, 1, 1024);
    let number = sockets.remove(0).into_raw_fd();
    let mut launcher = open(&found(number, "0"), LIMIT).unwrap();
    assert_eq!((launcher.kind(), launcher.place().size), (Kind::Pmi1, 1));
    launcher.put("k", b"v", LIMIT).unwrap();
    assert_eq!(launcher.get(0, "k", LIMIT).unwrap(), b"v");
    refused(&found(number, "0"), "launch.taken", "only once");
    launcher.finalize(LIMIT).unwrap();
    drop(launcher);
    assert!(servers.remove(0).join().unwrap().finalized);
    refused(&found(number, "0"), "launch.taken", "one world");

    let mut named = found(number, "0");
    named.kind = Kind::Doorbell;
    refused(&named, "launch.not-possible", "DOORBELL_ROOT");
    named.kind = Kind::Singleton;
    assert_eq!(open(&named, LIMIT).unwrap().place().size, 1);
}

//! Messages, tagged messages and a write between two endpoints, over providers of the installed libfabric.

use std::ffi::CStr;

use libfabric_sys::{FI_ENODATA, FI_RECV, FI_TAGGED, FI_WRITE, Level};

use crate::installed::library;
use crate::opened::Pair;

/// Exchanges everything over one provider.
fn exchange(test: &str, provider: &str, node: Option<&CStr>) {
    let library = match library() {
        Ok(library) => library,
        Err(reason) => return doorbell_testing::skipped(test, &reason),
    };
    if provider == "shm" && library.release().has(Level::new(2, 0)) {
        let reason = "shm of libfabric 2.5 was seen to crash between two endpoints of one process";
        return doorbell_testing::skipped(test, reason);
    }
    let mut pair = match Pair::open(library, provider, node) {
        Ok(pair) => pair,
        Err(error) if error.number == FI_ENODATA => {
            let reason = format!("libfabric {} has no provider {provider}", library.release());
            return doorbell_testing::skipped(test, &reason);
        }
        Err(error) => panic!("{provider}: {error}"),
    };
    for length in [1, 8, 1000, 100_000] {
        message(&mut pair, length, None);
        message(&mut pair, length, Some(0xfeed_0000_0000_0001));
    }
    write(&mut pair);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + length) as u8).collect()
}

/// One message from the first end to the second, and one back.
fn message(pair: &mut Pair, length: usize, tag: Option<u64>) {
    let bytes = pattern(length);
    for (sender, receiver) in [(0, 1), (1, 0)] {
        let out = pair.register(&bytes, 1);
        let place = pair.register(&vec![0; length], 2);
        pair.receive(receiver, &place, tag);
        pair.send(sender, &out, tag);
        let [_, received] = pair.complete([sender, receiver]);
        assert_eq!(place.bytes(), bytes);
        assert!(
            received.flags & FI_RECV != 0 && received.len == length,
            "{received:?}"
        );
        if let Some(tag) = tag {
            assert!(
                received.flags & FI_TAGGED != 0 && received.tag == tag,
                "{received:?}"
            );
        }
    }
}

/// A write of the first end into memory of the second.
fn write(pair: &mut Pair) {
    let bytes = pattern(5000);
    let from = pair.register(&bytes, 1);
    let target = pair.register(&[0; 5000], 2);
    pair.write(0, &from, &target);
    let [written] = pair.complete([0]);
    assert!(written.flags & FI_WRITE != 0, "{written:?}");
    pair.until_there(&target, &bytes);
}

#[test]
fn over_shared_memory() {
    exchange("over_shared_memory", "shm", None);
}

#[test]
fn over_tcp() {
    exchange("over_tcp", "tcp;ofi_rxm", Some(c"127.0.0.1"));
}

#[test]
fn over_udp() {
    exchange("over_udp", "udp;ofi_rxd", Some(c"127.0.0.1"));
}

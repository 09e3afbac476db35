//! `doorbell-lab raw-udp` from outside: what is refused, and how it ends.

use crate::common::sentence;
use crate::lab;

#[test]
fn one_that_answers_and_gets_no_request_ends_as_late() {
    let ports = ["127.0.0.1:7301", "127.0.0.1:7302"];
    let out = lab()
        .args(["raw-udp", "--answer", "--from", ports[0], "--to", ports[1]])
        .assert()
        .code(5);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("no request came within"), "{said}");
}

#[test]
fn a_measurement_of_itself_or_of_another_host_is_refused() {
    let cases: [(&[&str], &str); 6] = [
        (
            &["raw-udp", "--from", "127.0.0.1:7300", "--to", "127.0.0.1:7300"],
            "measure itself",
        ),
        (
            &["raw-udp", "--from", "127.0.0.1:7300", "--to", "127.0.0.1:0"],
            "port 0",
        ),
        (
            &["raw-udp", "--from", "127.0.0.1:7300", "--to", "[::1]:7302"],
            "two families",
        ),
        (
            &["raw-udp", "--from", "127.0.0.1:7300", "--to", "0.0.0.0:7302"],
            "not the address of one host",
        ),
        (
            &["raw-udp", "--from", "192.0.2.77:7300", "--to", "192.0.2.1:7302"],
            "no address of this host",
        ),
        (
            &[
                "raw-udp",
                "--from",
                "127.0.0.1:7304",
                "--to",
                "127.0.0.1:7306",
                "--sizes",
                "66000",
            ],
            "do not fit one datagram",
        ),
    ];
    for (args, words) in cases {
        let out = lab().args(args).assert().code(2);
        let said = sentence(&out.get_output().stderr);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn the_bare_queues_that_cannot_be_had_end_as_any_rail_does() {
    let words = [
        "raw-udp",
        "--from",
        "127.0.0.1:7118",
        "--to",
        "127.0.0.1:7120",
        "--xdp",
    ];
    let out = lab().args(words).assert().code(3);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("loopback"), "{said}");
}

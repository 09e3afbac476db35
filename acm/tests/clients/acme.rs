//! Debian's `ib_acme` queries in every form that it has; its output and exit status are compared with the
//! expected ones.
//!
//! reference: acm, sections 11 and 12.

use doorbell_acm::status::Status;

use crate::common::{Running, at_once, with_tcp};
use crate::original::{ib_acme, may_mount};
use doorbell_testing::skip::{is_installed, skipped};

/// The socket that it takes by default.
const USUAL: &str = "/run/ibacm-unix.sock";
const COUNTERS: &str = "svc,Error Count,Resolve Count,No Data,Addr Query Count,Addr Cache Count,Route Query Count,\
                        Route Cache Count\n";
const DONE: &str = "return status 0x0\n";
const FAILED: &str = "return status 0xffffffff\n";

/// A service for it, unless it cannot be run here.
fn service(test: &str, folder: &tempfile::TempDir) -> Option<Running> {
    if !is_installed("ib_acme") {
        skipped(test, "package ibacm: ib_acme is not installed");
        return None;
    }
    match may_mount(folder.path()) {
        Ok(()) => Some(Running::start(&with_tcp(folder.path()), at_once)),
        Err(reason) => {
            skipped(test, &reason);
            None
        }
    }
}

/// Runs it and compares.
fn prints(running: &Running, line: &str, code: i32, text: &str) {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        ib_acme(running, &arguments),
        (code, text.to_owned()),
        "ib_acme {line}"
    );
}

/// One destination, as it is shown: with the source where there is one, and the path to the host with this
/// number.
fn shown(to: &str, from: Option<&str>, last: u8) -> String {
    let from = from.map_or(String::new(), |from| format!("Source: {from}\n"));
    format!(
        "Destination: {to}\n{from}Path information\n  dgid: fe80::{last:x}\n  sgid: fe80::1\n  dlid: {last}\n  slid: 1\n  \
         flow label: 0x12\n  hop limit: 3\n  tclass: 5\n  reversible: 1\n  pkey: 0xffff\n  sl: 4\n  mtu: 4\n  rate: 16\n  \
         packet lifetime: 18\n"
    )
}

/// One question about one destination that is answered.
fn resolves(running: &Running, options: &str, to: &str, from: Option<&str>, last: u8) {
    let text = format!("Service: {USUAL}\n{}\n{DONE}", shown(to, from, last));
    prints(running, &format!("{options} -d {to}"), 0, &text);
}

#[test]
fn ib_acme_resolves_addresses_of_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_resolves_addresses_of_every_format", &folder) else {
        return;
    };
    let running = &running;
    resolves(running, "-f i -s 10.0.0.1", "10.0.0.7", Some("10.0.0.1"), 7);
    resolves(running, "-f i", "10.0.0.7", Some("10.0.0.1"), 7);
    // Debian's does not take its own default, `u`, by name.
    resolves(running, "", "10.0.0.7", Some("10.0.0.1"), 7);
    resolves(running, "-V", "10.0.0.7", Some("10.0.0.1"), 7);
    resolves(running, "-f i", "fd00::9", Some("fd00::1"), 9);
    resolves(running, "-s fd00::1", "fd00::9", Some("fd00::1"), 9);
    resolves(running, "-f n -s node1", "node7", Some("node1"), 7);
    resolves(running, "-f n", "node7", Some("node1"), 7);
    resolves(running, "-f l -s 1", "7", Some("1"), 7);
    resolves(running, "-f l", "7", None, 7);
    resolves(running, "-f g -s fe80::1", "fe80::7", Some("fe80::1"), 7);
    resolves(running, "-f g", "fe80::7", None, 7);
    // Known already; and several times, where it does not print which source was chosen.
    resolves(running, "-c", "10.0.0.7", Some("10.0.0.1"), 7);
    resolves(running, "-C 3", "10.0.0.7", None, 7);
}

#[test]
fn ib_acme_expands_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_expands_ranges", &folder) else {
        return;
    };
    let of = |last: u8| format!("{}\n", shown(&format!("10.0.0.{last}"), Some("10.0.0.1"), last));
    let text = format!("Service: {USUAL}\n{}{}{}{DONE}", of(7), of(8), of(9));
    prints(&running, "-d 10.0.0.[7-9]", 0, &text);
    let text = format!("Service: {USUAL}\n{}{}{DONE}", of(7), of(9));
    prints(&running, "-d 10.0.0.[7,9]", 0, &text);
    // Each source to each destination.
    let of = |from, to| format!("{}\n", shown(to, Some(from), to.parse().unwrap()));
    let pairs = [of("1", "7"), of("2", "7"), of("1", "8"), of("2", "8")].concat();
    let text = format!("Service: {USUAL}\n{pairs}{DONE}");
    prints(&running, "-f l -s [1-2] -d [7-8]", 0, &text);
    // The same service by two names.
    for link in ["s1", "s2"] {
        std::os::unix::fs::symlink(&running.places.socket, folder.path().join(link)).unwrap();
    }
    let of = |service| format!("{service},1,2,3,4,5,6,7\n");
    let text = format!("{COUNTERS}{}{}{DONE}", of("/run/s1"), of("/run/s2"));
    prints(&running, "-P -S /run/s[1-2]", 0, &text);
}

#[test]
fn ib_acme_verifies_paths() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_verifies_paths", &folder) else {
        return;
    };
    let of = |to, from, last| format!("Service: {USUAL}\n{}", shown(to, from, last));
    let good = of("10.0.0.7", Some("10.0.0.1"), 7);
    let good = format!("{good}SA verification: success\n\n{DONE}");
    prints(&running, "-v -d 10.0.0.7", 0, &good);
    let bad = of("99", None, 99);
    let bad = format!("{bad}SA verification: failed Connection timed out\n\n{FAILED}");
    prints(&running, "-v -f l -d 99", 255, &bad);
}

#[test]
fn ib_acme_reports_every_status() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_reports_every_status", &folder) else {
        return;
    };
    let forms = [
        ("-f i", "10.0.0.", "ip"),
        ("-f n", "node", "name"),
        ("-f l", "", "path"),
    ];
    for status in Status::ALL {
        for (format, prefix, what) in forms {
            let to = format!("{prefix}{}", 200 + status.code());
            let why = error_of(status);
            let text = format!(
                "Service: {USUAL}\nDestination: {to}\nib_acm_resolve_{what} failed: {why}\n\n{FAILED}"
            );
            prints(&running, &format!("{format} -d {to}"), 255, &text);
        }
    }
    let text = format!(
        "Service: {USUAL}\nDestination: 10.0.0.250\nib_acm_resolve_ip failed: No data available\n\n{FAILED}"
    );
    prints(&running, "-c -d 10.0.0.250", 255, &text);
    let text = format!(
        "Service: {USUAL}\nDestination: 0\nib_acm_resolve_path failed: Cannot assign requested address\n\n{FAILED}"
    );
    prints(&running, "-f l -d 0", 255, &text);
}

/// What the original makes of a status.
fn error_of(status: Status) -> &'static str {
    match status {
        Status::NoMemory => "Cannot allocate memory",
        Status::NoData => "No data available",
        Status::NotConnected => "Transport endpoint is not connected",
        Status::TimedOut => "Connection timed out",
        Status::SourceAddress | Status::DestinationAddress => "Cannot assign requested address",
        Status::Invalid | Status::SourceType | Status::DestinationType => "Invalid argument",
    }
}

#[test]
fn ib_acme_shows_counters_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_shows_counters_in_every_form", &folder) else {
        return;
    };
    let row = |of: &str| {
        let counts: Vec<String> = (1..=7).map(|count| format!("{of}{count}")).collect();
        format!("{USUAL},{}\n", counts.join(","))
    };
    let rows = |rows: &[&str]| {
        let rows: String = rows.iter().map(|of| row(of)).collect();
        format!("{COUNTERS}{rows}{DONE}")
    };
    prints(&running, "-P", 0, &rows(&[""]));
    prints(&running, "-P 2", 0, &rows(&["20"]));
    prints(&running, "-P all", 0, &rows(&["10", "20", "30"]));
    prints(&running, "-P s -s 10.0.0.1", 0, &rows(&["10"]));
    prints(&running, "-P s -f i -s fd00::1", 0, &rows(&["30"]));
    prints(&running, "-P s -f n -s node1-b", 0, &rows(&["20"]));
    let column = format!(
        "{USUAL}\nError Count : 1\nResolve Count : 2\nNo Data : 3\nAddr Query Count : 4\nAddr Cache Count : 5\n\
         Route Query Count : 6\nRoute Cache Count : 7\n{DONE}"
    );
    prints(&running, "-P col", 0, &column);
    let none = format!("{USUAL}: Failed to query perf data: Cannot assign requested address\n{DONE}");
    prints(&running, "-P 9", 0, &none);
    let none = format!("ib_acm_query_perf failed: Cannot assign requested address\n{none}");
    prints(&running, "-P s -s 10.0.0.9", 0, &none);
}

#[test]
fn ib_acme_shows_endpoints_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = service("ib_acme_shows_endpoints_in_every_form", &folder) else {
        return;
    };
    let unix = running.places.socket.to_str().unwrap().to_owned();
    // By index first, then by port: in its own order.
    let first = [
        "0x0002c90300000001,1,0xffff,1,doorbell,node1,10.0.0.1",
        "0x0002c90300000002,2,0xffff,1,doorbell,fd00::1",
    ];
    let second = ["0x0002c90300000001,1,0xffff,2,doorbell,node1-b"];
    let all = [&first[..], &second].concat();
    let text = |service: &str, of: &[&str]| {
        let rows: String = of.iter().map(|row| format!("{service},{row}\n")).collect();
        format!("svc,guid,port,pkey,ep_index,prov,addr_0,addresses\n{rows}{DONE}")
    };
    prints(&running, "-e", 0, &text(USUAL, &all));
    prints(&running, "-e -V", 0, &text(USUAL, &all));
    prints(&running, "-e1", 0, &text(USUAL, &first));
    prints(&running, "-e2", 0, &text(USUAL, &second));
    prints(
        &running,
        "-e3",
        0,
        &format!(" Endpoint 3 is not available\n{DONE}"),
    );
    prints(&running, "-e -S 127.0.0.1", 0, &text("127.0.0.1", &all));
    prints(&running, &format!("-e -S {unix}"), 0, &text(&unix, &all));
}

#[test]
fn ib_acme_queries_over_tcp_and_at_any_path_and_names_the_missing_service() {
    let folder = tempfile::tempdir().unwrap();
    let test = "ib_acme_queries_over_tcp_and_at_any_path_and_names_the_missing_service";
    let Some(running) = service(test, &folder) else {
        return;
    };
    let unix = running.places.socket.to_str().unwrap().to_owned();
    for service in ["127.0.0.1", &unix] {
        let one = shown("10.0.0.7", Some("10.0.0.1"), 7);
        let text = format!("Service: {service}\n{one}SA verification: success\n\n{DONE}");
        prints(&running, &format!("-v -d 10.0.0.7 -S {service}"), 0, &text);
        let text = format!("{COUNTERS}{service},1,2,3,4,5,6,7\n{DONE}");
        prints(&running, &format!("-P -S {service}"), 0, &text);
    }
    let text = "/run/none,unable to contact service: No such file or directory\nreturn status 0x2\n";
    prints(&running, "-P -S /run/none", 2, text);
    // The port file names a port of loopback, where this address has no listener.
    let text = format!("127.0.0.9,unable to contact service: Connection refused\n{FAILED}");
    prints(&running, "-d 10.0.0.7 -S 127.0.0.9", 255, &text);
}

//! Debian's `ib_acme` queries our service as it runs, on a host of its own: in every form, over its socket
//! and over TCP.
//!
//! reference: acm, sections 11 and 12.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Service;
use crate::hosts::{at, finish};
use crate::launchers::on_path;
use doorbell_testing::netns::Lab;
use doorbell_testing::{run_folder, skipped};

const DONE: &str = "return status 0x0\n";
const COUNTERS: &str = "svc,Error Count,Resolve Count,No Data,Addr Query Count,Addr Cache Count,Route Query Count,\
                        Route Cache Count\n";

/// A program on a host whose `/run` is this folder: the machine's is not touched.
fn with_run(host: &str, folder: &Path, program: &Path, words: &[&str]) -> Command {
    let mut command = run_folder::with_run(&["ip", "netns", "exec", host], folder, program);
    command.args(words);
    command
}

/// A host, its `/run`, and the service that is there by default.
fn service(test: &str) -> Option<(Service, tempfile::TempDir, Lab)> {
    let test = format!("doorbell::it::acm::originals::{test}");
    if !on_path("ib_acme") || !on_path("unshare") {
        skipped(&test, "package ibacm: ib_acme is not installed");
        return None;
    }
    let lab = Lab::pair(&test, 1500)?;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ibacm_addr.cfg"), "myself v0 1 default\n").unwrap();
    let plain = at(
        None,
        &[
            "acm", "serve", "--json", "--config", "/run", "--tcp", "--nic", "v0",
        ],
    );
    let words: Vec<&str> = plain.get_args().map(|word| word.to_str().unwrap()).collect();
    let program = Path::new(plain.get_program());
    let mut service = Service::of(with_run(lab.name(0), folder.path(), program, &words));
    assert_eq!(service.ready["socket"], "/run/ibacm-unix.sock");
    // As it is seen from outside.
    service.socket = folder.path().join("ibacm-unix.sock").display().to_string();
    Some((service, folder, lab))
}

/// What it printed, and how it ended.
fn ib_acme(lab: &Lab, folder: &tempfile::TempDir, line: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let out = finish(with_run(lab.name(0), folder.path(), Path::new("ib_acme"), &words));
    let text = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8(text).unwrap())
}

/// A path to this host itself, as it is shown.
fn shown(service: &str, to: &str, from: Option<&str>, gids: [&str; 2], verified: &str) -> String {
    let path = path(to, from, gids);
    format!("Service: {service}\n{path}{verified}\n{DONE}")
}

/// One of several, without what precedes and follows all of them.
fn path(to: &str, from: Option<&str>, gids: [&str; 2]) -> String {
    let from = from.map_or(String::new(), |from| format!("Source: {from}\n"));
    let [dgid, sgid] = gids;
    format!(
        "Destination: {to}\n{from}Path information\n  dgid: {dgid}\n  sgid: {sgid}\n  dlid: 0\n  slid: 0\n  \
         flow label: 0x0\n  hop limit: 0\n  tclass: 0\n  reversible: 1\n  pkey: 0xffff\n  sl: 0\n  mtu: 3\n  rate: 3\n  \
         packet lifetime: 18\n"
    )
}

#[test]
fn ib_acme_is_answered_in_every_form() {
    let Some((service, folder, lab)) = service("ib_acme_is_answered_in_every_form") else {
        return;
    };
    let own = "::ffff:10.77.0.1";
    for (options, name) in [("", "/run/ibacm-unix.sock"), (" -S 127.0.0.1", "127.0.0.1")] {
        let resolves = |line: &str, to, from, gids, verified| {
            let wanted = (Some(0), shown(name, to, from, gids, verified));
            assert_eq!(
                ib_acme(&lab, &folder, &format!("{line} -d {to}{options}")),
                wanted,
                "{line}"
            );
        };
        let v4 = [own, own];
        resolves("-f i -s 10.77.0.1", "10.77.0.1", Some("10.77.0.1"), v4, "");
        resolves("-f i", "10.77.0.1", Some("10.77.0.1"), v4, "");
        resolves("-f n -s myself", "myself", Some("myself"), v4, "");
        resolves("-c", "10.77.0.1", Some("10.77.0.1"), v4, "");
        let good = "SA verification: success\n";
        resolves("-v", "10.77.0.1", Some("10.77.0.1"), v4, good);
        let (code, text) = ib_acme(&lab, &folder, &format!("-e{options}"));
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.starts_with("svc,guid,port,pkey,ep_index,prov,addr_0,addresses\n"),
            "{text}"
        );
        assert!(
            text.contains(",1,0xffff,2,doorbell,myself,10.77.0.1,fd77::1"),
            "{text}"
        );
        assert!(text.ends_with(DONE), "{text}");
        let (code, text) = ib_acme(&lab, &folder, &format!("-e9{options}"));
        assert_eq!(
            (code, text),
            (Some(0), format!(" Endpoint 9 is not available\n{DONE}"))
        );
        let (code, text) = ib_acme(&lab, &folder, &format!("-P{options}"));
        assert_eq!(code, Some(0));
        assert!(text.starts_with(&format!("{COUNTERS}{name},0,")), "{text}");
        let (code, text) = ib_acme(&lab, &folder, &format!("-P all{options}"));
        assert_eq!((code, text.lines().count()), (Some(0), 4), "{text}");
        let (code, text) = ib_acme(&lab, &folder, &format!("-P s -s 10.77.0.1{options}"));
        assert_eq!((code, text.lines().count()), (Some(0), 3), "{text}");
        let (code, text) = ib_acme(&lab, &folder, &format!("-P col{options}"));
        assert_eq!(code, Some(0));
        assert!(text.contains("\nError Count : 0\n"), "{text}");
    }
    // No host has that name, and the address is not ours.
    let (code, text) = ib_acme(&lab, &folder, "-f i -s 10.77.0.99 -d 10.77.0.1");
    assert_eq!(code, Some(255), "{text}");
    assert!(
        text.contains("ib_acm_resolve_ip failed: Cannot assign requested address"),
        "{text}"
    );
    assert!(text.ends_with("return status 0xffffffff\n"), "{text}");
    drop(service);
    let (code, text) = ib_acme(&lab, &folder, "-P -S /run/none");
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn ib_acme_asks_by_gid_and_lid_for_ranges_and_again() {
    let Some((_service, folder, lab)) = service("ib_acme_asks_by_gid_and_lid_for_ranges_and_again") else {
        return;
    };
    lab.ip(0, "address add 10.77.0.3/24 dev v0");
    let gid = |last: u8| format!("::ffff:10.77.0.{last}");
    let (one, three) = (gid(1), gid(3));
    let end = std::time::Instant::now() + crate::hosts::AMPLE;
    while ib_acme(&lab, &folder, "-f i -s 10.77.0.3 -d 10.77.0.3").0 != Some(0) {
        assert!(std::time::Instant::now() < end, "never: its new address is known");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for (options, name) in [("", "/run/ibacm-unix.sock"), (" -S 127.0.0.1", "127.0.0.1")] {
        let asked = |line: &str| ib_acme(&lab, &folder, &format!("{line}{options}"));
        // Without InfiniBand a GID is an address.
        let wanted = shown(name, &one, Some(&one), [&one, &one], "");
        assert_eq!(asked(&format!("-f g -s {one} -d {one}")), (Some(0), wanted));
        // And there are no LIDs.
        let (code, text) = asked("-f l -s 1 -d 1");
        assert_eq!(code, Some(255), "{text}");
        assert!(
            text.contains("ib_acm_resolve_path failed: Cannot assign requested address"),
            "{text}"
        );
        assert!(text.ends_with("return status 0xffffffff\n"), "{text}");
        // Ranges of destinations, and of sources: each to each.
        let of = |from: u8, to: u8| {
            let (to_ip, from_ip) = (format!("10.77.0.{to}"), format!("10.77.0.{from}"));
            path(&to_ip, Some(&from_ip), [&gid(to), &gid(from)]) + "\n"
        };
        let wanted = format!("Service: {name}\n{}{}{DONE}", of(1, 1), of(1, 3));
        assert_eq!(asked("-f i -s 10.77.0.1 -d 10.77.0.[1,3]"), (Some(0), wanted));
        let pairs = [of(1, 1), of(3, 1), of(1, 3), of(3, 3)].concat();
        let wanted = format!("Service: {name}\n{pairs}{DONE}");
        assert_eq!(asked("-f i -s 10.77.0.[1,3] -d 10.77.0.[1,3]"), (Some(0), wanted));
        let (code, text) = asked("-f i -s 10.77.0.1 -d 10.77.0.[1-3] -c");
        assert_eq!(text.matches("Destination: ").count(), 3, "{code:?} {text}");
        // Several times, where it does not print which source was chosen: the kernel's, for an address that
        // came second.
        let wanted = shown(name, "10.77.0.3", None, [&three, &one], "");
        assert_eq!(asked("-C 3 -d 10.77.0.3"), (Some(0), wanted));
    }
}

/// A program of `acm/tests/shim`, built into `folder`.
fn built(source: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let to = folder.join(source.replace(".c", ".built"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../acm/tests/shim")
        .join(source);
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).args([&to, &source]).args(options);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    to
}

#[test]
fn rdma_getaddrinfo_is_answered() {
    const TEST: &str = "doorbell::it::acm::originals::rdma_getaddrinfo_is_answered";
    if !on_path("cc") {
        return skipped(TEST, "package gcc: cc is not installed");
    }
    let Some((_service, folder, lab)) = service("rdma_getaddrinfo_is_answered") else {
        return;
    };
    let programs = tempfile::tempdir().unwrap();
    let shim = built("verbs.c", programs.path(), &["-shared", "-fPIC"]);
    let lookup = built("lookup.c", programs.path(), &["-ldl"]);
    let preload = format!("LD_PRELOAD={}", shim.display());
    let look_up = |words: &[&str]| {
        let words = [&[&preload, lookup.to_str().unwrap()], words].concat();
        let out = finish(with_run(lab.name(0), folder.path(), Path::new("env"), &words));
        let text = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8(text).unwrap())
    };
    let wanted = |source| {
        format!(
            "route length 72\nroute flags 0x2b\nroute dgid ::ffff:10.77.0.1\nroute dlid 0\nsource {source}\n\
             destination 10.77.0.1\n"
        )
    };
    match look_up(&["10.77.0.1"]) {
        (Some(3), text) => {
            return skipped(
                TEST,
                &format!("package rdmacm-utils: no librdmacm: {}", text.trim()),
            );
        }
        told => assert_eq!(told, (Some(0), wanted("10.77.0.1"))),
    }
    assert_eq!(
        look_up(&["10.77.0.1", "10.77.0.1"]),
        (Some(0), wanted("10.77.0.1"))
    );
    // Its route is of no use to it; it goes on.
    let (code, text) = look_up(&["10.77.0.99", "-", "2"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("route length 0\n"), "{text}");
}

//! Services of several hosts, and hosts without one behind a router.

use std::sync::Arc;

use doorbell_acm::address::Address;
use doorbell_acm::path::Mtu;
use doorbell_acm::status::Status;
use serde_json::Value;

use crate::common::Running;
use doorbell_testing::netns::Lab;

const OPTIONS: &str = "doorbell_interfaces all\nroute_prot acm\ntimeout 100\nretries 4\n";

fn serves(state: &Value) -> bool {
    let ends = state["endpoints"].as_array();
    ends.is_some_and(|ends| {
        ends.iter()
            .any(|end| end["device"] == "v0" && end["unserved"].is_null())
    })
}

#[test]
fn two_services_find_each_other_also_after_the_link_was_away() {
    let Some(lab) = Lab::pair("two_services_find_each_other", 1500) else {
        return;
    };
    let lab = Arc::new(lab);
    let [a, b] = [0, 1].map(|host| Running::start(OPTIONS, Some((&lab, host))));
    let path = a.until_resolved("10.77.0.2").path;
    assert_eq!(path.dgid.to_string(), "::ffff:10.77.0.2");
    assert_eq!((path.mtu, path.hop_limit), (Mtu::within(1024), 0));
    // By any client's way to write it.
    let mapped = Address::V6("::ffff:10.77.0.2".parse().unwrap());
    let route = a.client().resolve(None, mapped, false).expect("it is near");
    assert_eq!(route.path, path);
    assert_eq!(route.source, Some(Address::V4([10, 77, 0, 1].into())));
    assert_eq!(
        b.until_resolved("10.77.0.1").path.dgid.to_string(),
        "::ffff:10.77.0.1"
    );
    // Too short to be noticed, several times.
    for _ in 0..5 {
        lab.ip(0, "link set v0 down");
        lab.ip(0, "link set v0 up");
    }
    (0..2).for_each(|host| lab.wait_until_up(host, "v0"));
    a.until("it serves v0 again", serves);
    assert_eq!(
        a.until_resolved("10.77.0.2").path.dgid.to_string(),
        "::ffff:10.77.0.2"
    );
    // And it answers: b forgets what it knows.
    drop(b);
    let b = Running::start(OPTIONS, Some((&lab, 1)));
    b.until_resolved("10.77.0.1");
}

/// What a path to the host behind the router is, once with ping sockets and once with raw ones.
fn beyond(test: &str, narrow: usize, wanted: u32) {
    for (kind, group) in [("ping", "0 0"), ("raw", "1 0")] {
        let Some(lab) = Lab::routed(&format!("{test}_{kind}"), 1500, narrow) else {
            return;
        };
        let lab = Arc::new(lab);
        lab.inside(0, || {
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", group).expect("a sysctl of its own");
        });
        let a = Running::start(OPTIONS, Some((&lab, 0)));
        a.until("it serves v0", serves);
        for to in ["10.77.2.1", "fd77:2::1"] {
            let path = a.until_resolved(to).path;
            assert_eq!(path.mtu.map(|mtu| mtu.bytes()), Some(wanted), "{kind} {to}");
            assert!(path.hop_limit > 1, "by routers");
        }
        // There is no such host.
        let error = a.resolve("10.77.2.99").expect_err("no such host");
        assert_eq!(error.status(), Some(Status::TimedOut), "{error}");
        assert_eq!(a.state()["waiting"], 0);
    }
}

#[test]
fn a_host_behind_a_router_is_found_by_pings() {
    beyond("a_host_behind_a_router", 1500, 1024);
}

#[test]
fn what_is_narrow_behind_the_router_cuts_the_path() {
    // Only the router knows that the other link takes packets of 1,500 bytes.
    let Some(lab) = Lab::routed("what_is_narrow_behind_the_router", 9000, 1500) else {
        return;
    };
    let lab = Arc::new(lab);
    let a = Running::start(OPTIONS, Some((&lab, 0)));
    let state = a.until("it serves v0", serves);
    let v0 = state["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .find(|end| end["device"] == "v0");
    assert_eq!(v0.unwrap()["mtu"], 4096);
    for to in ["10.77.2.1", "fd77:2::1"] {
        let path = a.until_resolved(to).path;
        assert_eq!(path.mtu.map(|mtu| mtu.bytes()), Some(1024), "{to}");
    }
}

#[test]
fn all_addresses_of_a_host_are_verified() {
    let Some(lab) = Lab::pair("all_addresses_of_a_host_are_verified", 1500) else {
        return;
    };
    lab.ip(1, "address add 10.77.0.22/24 dev v0");
    let lab = Arc::new(lab);
    let [a, b] = [0, 1].map(|host| Running::start(OPTIONS, Some((&lab, host))));
    b.until("it serves v0", serves);
    let verified = |to: &str| {
        let path = a.until_resolved(to).path;
        let told = a.client().path(&path, true);
        told.unwrap_or_else(|error| panic!("{to}: {error}: {}", a.state()))
    };
    for to in ["10.77.0.2", "10.77.0.22", "fd77::2"] {
        assert_eq!(verified(to).mtu, Mtu::within(1024), "{to}");
    }
    // While it runs.
    lab.ip(1, "address add fd77::33/64 dev v0 nodad");
    assert_eq!(verified("fd77::33").mtu, Mtu::within(1024));
}

#[test]
fn a_host_that_lost_its_last_ipv4_address_is_found_over_ipv6() {
    let Some(lab) = Lab::pair("a_host_that_lost_its_last_ipv4_address", 1500) else {
        return;
    };
    let lab = Arc::new(lab);
    let [a, b] = [0, 1].map(|host| Running::start(OPTIONS, Some((&lab, host))));
    a.until_resolved("10.77.0.2");
    lab.ip(1, "-4 address flush dev v0");
    let has_lost = |state: &Value| serves(state) && !state["endpoints"].to_string().contains("10.77.0.2");
    b.until("it has no IPv4 address", has_lost);
    assert_eq!(a.until_resolved("fd77::2").path.dgid.to_string(), "fd77::2");
    let back = b.until_resolved("fd77::1").path;
    assert_eq!(
        (back.dgid.to_string(), back.sgid.to_string()),
        ("fd77::1".into(), "fd77::2".into())
    );
    // Each is queried again, and still there.
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let there = a.resolve("fd77::2").map(|route| route.path);
        let there = there.unwrap_or_else(|error| panic!("{error}: {}", a.state()));
        a.client().path(&there, true).expect("it is verified");
        b.resolve("fd77::1").expect("it is known");
    }
    lab.ip(1, "address add 10.77.0.2/24 dev v0");
    a.until_resolved("10.77.0.2");
}

#[test]
fn a_near_path_that_is_narrow_in_the_middle_is_cut() {
    let Some(lab) = Lab::switched("a_near_path_that_is_narrow_in_the_middle", 1500, 0) else {
        return;
    };
    let lab = Arc::new(lab);
    for side in ["r0", "r1"] {
        lab.ip(2, &format!("link set {side} mtu 700"));
    }
    let [a, _b] = [0, 1].map(|host| Running::start(OPTIONS, Some((&lab, host))));
    let path = a.until_resolved("10.77.0.2").path;
    let verified = a.client().path(&path, true);
    let verified = verified.unwrap_or_else(|error| panic!("{error}: {}", a.state()));
    assert_eq!(verified.mtu, Mtu::within(512));
    // For all, once the service has noted it.
    let begun = std::time::Instant::now();
    while a.until_resolved("10.77.0.2").path.mtu != Mtu::within(512) {
        assert!(begun.elapsed().as_secs() < 60, "{}", a.state());
    }
    let state = a.state();
    let known = state["known"].as_array().unwrap();
    assert!(known.iter().all(|one| one["refused"].is_null()), "{state}");
}

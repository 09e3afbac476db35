//! The promises of `Datagram`, over virtual Ethernet between two network namespaces, in each mode that it has.

#[path = "../../udp/tests/netns/mod.rs"]
mod netns;

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::{self, Ends};
use doorbell_xdp::{Family, Mode, XdpConfig, XdpRail};
use netns::Lab;

fn ends(lab: &Lab, config: &XdpConfig) -> Ends<XdpRail> {
    let open = |side| {
        let rail = lab.inside(side, || XdpRail::open(&"xdp:v0".parse().unwrap(), config));
        let rail = rail.unwrap_or_else(|error| panic!("{error}"));
        let life = rail.incarnation();
        (rail, life)
    };
    let mut now = 0;
    let mut pump = move |a: &mut XdpRail, b: &mut XdpRail| {
        now += 30_000_000;
        a.progress(Time::from_nanos(now));
        b.progress(Time::from_nanos(now));
    };
    let (mut a, mut b) = (open(0), open(1));
    // Routes are asked for where a peer is opened; once opened, an address is known anywhere.
    let (at_a, at_b) = (a.0.address(), b.0.address());
    lab.inside(0, || Datagram::open(&mut a.0, &at_b, b.1)).unwrap();
    lab.inside(1, || Datagram::open(&mut b.0, &at_a, a.1)).unwrap();
    let start = Instant::now();
    while !(a.0.is_resolved(PeerIndex(0)) && b.0.is_resolved(PeerIndex(0))) {
        assert!(
            start.elapsed().as_secs() < 10,
            "never happened: neighbours know each other"
        );
        pump(&mut a.0, &mut b.0);
        thread::sleep(Duration::from_millis(1));
    }
    Ends::connect(a, b, pump)
}

/// Every promise, each over a fresh pair of rails on one pair of namespaces.
fn all(test: &str, config: &XdpConfig) {
    let Some(lab) = Lab::pair(test, 1500) else { return };
    for check in [
        datagram::a_frame_arrives_as_it_was_posted,
        datagram::reserved_room_cannot_fail_and_no_more_is_given,
        datagram::without_room_nothing_is_posted,
        datagram::a_frame_above_the_mtu_is_refused,
        datagram::an_unknown_peer_is_refused,
        datagram::reaped_follows_the_posts_in_order,
        datagram::frames_stay_in_place_until_the_next_poll,
        datagram::a_kept_frame_leaves_the_ring,
    ] as [fn(&mut Ends<XdpRail>); 8]
    {
        check(&mut ends(&lab, config));
    }
}

#[test]
fn generic() {
    all(
        "generic",
        &XdpConfig {
            mode: Some(Mode::Generic),
            ..XdpConfig::default()
        },
    );
}

#[test]
fn native() {
    all(
        "native",
        &XdpConfig {
            mode: Some(Mode::Native),
            ..XdpConfig::default()
        },
    );
}

#[test]
fn over_ipv6() {
    all(
        "over_ipv6",
        &XdpConfig {
            family: Family::V6,
            ..XdpConfig::default()
        },
    );
}

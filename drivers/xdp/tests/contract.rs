//! The promises of `Datagram`, over virtual Ethernet between two network namespaces, in each mode that it
//! has.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::PATIENCE;
use doorbell_sim::conformance::datagram::{self, Ends};
use doorbell_testing::netns::Lab;
use doorbell_xdp::{Family, Mode, XdpConfig, XdpRail};

fn ends(lab: &Lab, config: &XdpConfig) -> Ends<XdpRail> {
    let open = |side| {
        let rail = lab.inside(side, || XdpRail::open(&"xdp:v0".parse().unwrap(), config));
        let rail = rail.unwrap_or_else(|error| panic!("{error}"));
        let life = rail.incarnation();
        (rail, life)
    };
    // As time goes: where a frame takes long on a busy machine, neighbours are not requested the more often.
    let begun = Instant::now();
    let pump = move |a: &mut XdpRail, b: &mut XdpRail| {
        let now = Time::ZERO + begun.elapsed();
        a.progress(now);
        b.progress(now);
    };
    let (mut a, mut b) = (open(0), open(1));
    // Routes are looked up where a peer is opened; once opened, an address is known anywhere.
    let (at_a, at_b) = (a.0.address(), b.0.address());
    lab.inside(0, || Datagram::open(&mut a.0, &at_b, b.1)).unwrap();
    lab.inside(1, || Datagram::open(&mut b.0, &at_a, a.1)).unwrap();
    let start = Instant::now();
    while !(a.0.is_resolved(PeerIndex(0)) && b.0.is_resolved(PeerIndex(0))) {
        assert!(
            start.elapsed() < PATIENCE,
            "never happened: neighbours know each other"
        );
        pump(&mut a.0, &mut b.0);
        thread::sleep(Duration::from_millis(1));
    }
    Ends::connect(a, b, pump)
}

type Check = fn(&mut Ends<XdpRail>);

/// The promises that hold whatever a frame is made of.
const CHECKS: [Check; 8] = [
    datagram::a_frame_arrives_as_it_was_posted,
    datagram::without_room_nothing_is_posted,
    datagram::a_frame_above_the_mtu_is_refused,
    datagram::an_unknown_peer_is_refused,
    datagram::reaped_follows_the_posts_in_order,
    datagram::frames_stay_in_place_until_the_next_poll,
    datagram::a_kept_frame_leaves_the_ring,
    datagram::a_peer_that_is_forgotten_can_be_opened_again,
];

/// Every promise, each over a fresh pair of rails on one pair of namespaces.
fn all(test: &str, mtu: usize, config: &XdpConfig, of_room: Check) {
    let Some(lab) = Lab::pair(test, mtu) else { return };
    for check in CHECKS.into_iter().chain([of_room]) {
        check(&mut ends(&lab, config));
    }
}

/// Where frames may have several chunks, room is for the longest ones: short ones leave some of it. So it is
/// filled with those.
fn reserved_room_holds_the_longest_frames_and_no_more_is_given(ends: &mut Ends<XdpRail>) {
    let frame = vec![7; ends.a.granted().longest];
    for channel in [Channel::Priority, Channel::Data] {
        let to_b = ends.to_b;
        let (tx, _) = ends.a.split();
        let room = tx.reserve(channel, usize::MAX);
        assert!(room > 0, "an idle ring has room");
        for _ in 0..room {
            tx.post(channel, to_b, &[], Body::Bytes(&frame)).unwrap();
        }
        let more = tx.post(channel, to_b, &[], Body::Bytes(&frame));
        assert_eq!(more, Err(Refused::Full));
        assert_eq!(tx.reserve(channel, 1), 0, "the ring is full");
        tx.doorbell();
        let start = Instant::now();
        while ends.a.split().0.reserve(channel, usize::MAX) < room {
            ends.b.split().1.poll(channel, 64);
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "never happened: all room comes back");
        }
        assert_eq!(ends.a.split().0.reserve(channel, 0), 0);
    }
}

#[test]
fn generic() {
    all(
        "generic",
        1500,
        &XdpConfig {
            mode: Some(Mode::Generic),
            ..XdpConfig::default()
        },
        datagram::reserved_room_cannot_fail_and_no_more_is_given,
    );
}

#[test]
fn native() {
    all(
        "native",
        1500,
        &XdpConfig {
            mode: Some(Mode::Native),
            ..XdpConfig::default()
        },
        datagram::reserved_room_cannot_fail_and_no_more_is_given,
    );
}

#[test]
fn over_ipv6() {
    all(
        "over_ipv6",
        1500,
        &XdpConfig {
            family: Family::V6,
            ..XdpConfig::default()
        },
        datagram::reserved_room_cannot_fail_and_no_more_is_given,
    );
}

/// In three chunks, and in seventeen, the most that there are.
#[test]
fn in_several_chunks() {
    for (mtu, family) in [(9000, Family::V4), (9000, Family::V6), (65_535, Family::V4)] {
        let config = XdpConfig {
            family,
            mode: Some(Mode::Generic),
            ..XdpConfig::default()
        };
        let of_room = reserved_room_holds_the_longest_frames_and_no_more_is_given;
        all("in_several_chunks", mtu, &config, of_room);
    }
}

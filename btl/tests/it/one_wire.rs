//! One wire: a rail of the kernel's sockets and one past the kernel are each other's peers.

use std::time::{Duration, Instant};

use crate::common::Sink;
use doorbell_btl::{Btl, BtlConfig};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, Message, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_testing::netns::Lab;
use doorbell_udp::{UdpConfig, UdpRail};
use doorbell_xdp::{Mode, XdpConfig, XdpRail};

const PATIENCE: Duration = Duration::from_secs(60);
const LIFE: Incarnation = Incarnation(1);

/// Opens a peer from inside its host: routes are looked up there.
fn meet<R: Datagram + Send>(lab: &Lab, side: usize, rail: &mut R, address: &RailAddress) -> PeerIndex {
    lab.inside(side, || Datagram::open(rail, address, LIFE)).unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::yield_now();
    }
}

fn post<R: Datagram>(rail: &mut R, channel: Channel, peer: PeerIndex, bytes: &[u8]) {
    let (tx, _) = rail.split();
    assert_eq!(tx.reserve(channel, 1), 1);
    tx.post(channel, peer, bytes, Body::Empty).unwrap();
    tx.doorbell();
}

/// The next frame on the channel.
fn take<R: Datagram>(rail: &mut R, channel: Channel) -> (Option<PeerIndex>, Vec<u8>) {
    let mut got = None;
    until("a frame arrives", || {
        let (_, rx) = rail.split();
        if rx.poll(channel, 1) == 1 {
            let frame = rx.frame(channel, 0).unwrap();
            got = Some((frame.from, frame.bytes.to_vec()));
        }
        got.is_some()
    });
    got.unwrap()
}

/// Rails of both kinds are one wire: frames of every length go both ways, in runs of one length too.
#[test]
fn udp_and_xdp_talk_to_each_other() {
    for mode in [Mode::Generic, Mode::Native] {
        let Some(lab) = Lab::pair("udp_and_xdp_talk_to_each_other", 1500) else {
            return;
        };
        let config = XdpConfig {
            mode: Some(mode),
            ..XdpConfig::default()
        };
        let mut past = lab
            .inside(0, || XdpRail::open(&"xdp:v0".parse().unwrap(), &config))
            .unwrap();
        let name = "udp:v0".parse().unwrap();
        let mut through = lab
            .inside(1, || UdpRail::open(&name, &UdpConfig::default()))
            .unwrap();
        let to_through = meet(&lab, 0, &mut past, &through.address());
        let to_past = meet(&lab, 1, &mut through, &past.address());
        let clock = Clock::start();
        until("the neighbour is known", || {
            past.progress(clock.now());
            past.is_resolved(to_through)
        });
        for channel in [Channel::Priority, Channel::Data] {
            for length in [0, 1, 8, 17, 18, 19, 1471, 1472] {
                let bytes: Vec<u8> = (0..length).map(|at| (at * 31) as u8).collect();
                post(&mut past, channel, to_through, &bytes);
                assert_eq!(
                    take(&mut through, channel),
                    (Some(to_past), bytes.clone()),
                    "{mode} {length}"
                );
                post(&mut through, channel, to_past, &bytes);
                assert_eq!(
                    take(&mut past, channel),
                    (Some(to_through), bytes),
                    "{mode} {length}"
                );
            }
            // A run of one length, which the kernel would like to have in one piece.
            let (tx, _) = through.split();
            assert_eq!(tx.reserve(channel, 20), 20);
            for number in 0..20u8 {
                tx.post(channel, to_past, &[number; 1000], Body::Empty).unwrap();
            }
            tx.doorbell();
            for number in 0..20u8 {
                assert_eq!(take(&mut past, channel).1, [number; 1000], "{mode}");
            }
        }
        let stats = past.stats();
        assert_eq!(
            (stats.corrupt, stats.malformed, stats.strangers, stats.nonsense),
            (0, 0, 0, 0),
            "{stats:?}"
        );
    }
}

/// Hellos pass between them in both directions, though neither has opened the other: the first ones may be
/// lost, while the hardware address of the next hop is resolved.
#[test]
fn hellos_pass_between_udp_and_xdp() {
    const DOOR: u64 = 77;
    let Some(lab) = Lab::pair("hellos_pass_between_udp_and_xdp", 1500) else {
        return;
    };
    let config = XdpConfig {
        mode: Some(Mode::Generic),
        ..XdpConfig::default()
    };
    let mut past = lab.inside(0, || {
        let rail = XdpRail::open(&"xdp:v0".parse().unwrap(), &config).unwrap();
        Btl::new(rail, BtlConfig::default(), LIFE).unwrap()
    });
    let mut through = lab.inside(1, || {
        let rail = UdpRail::open(&"udp:v0".parse().unwrap(), &UdpConfig::default()).unwrap();
        Btl::new(rail, BtlConfig::default(), LIFE).unwrap()
    });
    past.open_door(DOOR);
    through.open_door(DOOR);
    let addresses = [through.address(), past.address()];
    let (clock, start) = (Clock::start(), Instant::now());
    let (mut sink, mut bytes) = (Sink::default(), Vec::new());
    let mut came = [0; 2];
    while came.iter().any(|came| *came < 10) {
        lab.inside(0, || past.send_hello(&addresses[0], DOOR, &[7; 1024]))
            .unwrap();
        lab.inside(1, || through.send_hello(&addresses[1], DOOR, &[8; 300]))
            .unwrap();
        for _ in 0..100 {
            past.progress(clock.now());
            past.poll(64, &mut sink);
            through.progress(clock.now());
            through.poll(64, &mut sink);
            while past.next_hello(&mut bytes) {
                assert_eq!(bytes, [8; 300]);
                came[0] += 1;
            }
            while through.next_hello(&mut bytes) {
                assert_eq!(bytes, [7; 1024]);
                came[1] += 1;
            }
        }
        assert!(
            start.elapsed() < PATIENCE,
            "never happened: hellos arrive: {came:?}"
        );
    }
    assert_eq!(sink.total(), 0);
}

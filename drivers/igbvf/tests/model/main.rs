//! The rail over a model of its device: the promises of `Datagram`, and what the lab's machines cannot do on
//! demand: a physical function that is silent or resets, false descriptors, damaged packets.

mod vf;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_igbvf::{IgbvfConfig, IgbvfRail};
use doorbell_sim::conformance::datagram::{self, Ends};
use doorbell_vfio::Claim;
use vf::{Vf, Wire};

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
/// Longer than anything takes here, on a machine with other work.
const SOON: Duration = Duration::from_secs(20);

fn wires() -> (Wire, Wire) {
    let wire = || Arc::new(Mutex::new(VecDeque::new()));
    (wire(), wire())
}

fn config(six: bool) -> IgbvfConfig {
    let address = if six {
        "0000:01:10.0=fd00::1/64 0000:01:10.2=fd00::2/64"
    } else {
        "0000:01:10.0=10.0.0.1/24 0000:01:10.2=10.0.0.2/24"
    };
    IgbvfConfig {
        address: Some(address.to_owned()),
        ..IgbvfConfig::default()
    }
}

fn open(vf: &Vf, number: u32, config: &IgbvfConfig) -> Result<IgbvfRail, String> {
    let claim = Claim::connect(&vf.socket).unwrap();
    let name = format!("igbvf:0000:01:10.{number}").parse().unwrap();
    doorbell_igbvf::over(&name, config, claim).map_err(|error| error.to_string())
}

/// Two functions at the ends of a wire, and a rail over each that knows the other.
struct Pair {
    a: IgbvfRail,
    b: IgbvfRail,
    clock: u64,
    at_a: Vf,
    at_b: Vf,
}

impl Pair {
    fn new(config: &IgbvfConfig) -> Self {
        let (there, back) = wires();
        let (at_a, at_b) = (Vf::start(A, &there, &back), Vf::start(B, &back, &there));
        let (mut a, mut b) = (open(&at_a, 0, config).unwrap(), open(&at_b, 2, config).unwrap());
        let (to_a, to_b) = (a.address(), b.address());
        a.open(&to_b, Incarnation(1)).unwrap();
        b.open(&to_a, Incarnation(1)).unwrap();
        let mut pair = Self {
            a,
            b,
            clock: 0,
            at_a,
            at_b,
        };
        pair.until("they know each other", |pair| {
            pair.a.is_resolved(PeerIndex(0)) && pair.b.is_resolved(PeerIndex(0))
        });
        pair
    }

    fn turn(&mut self) {
        self.clock += 1_000_000;
        for rail in [&mut self.a, &mut self.b] {
            rail.split().1.poll(Channel::Priority, 0);
            rail.progress(Time::from_nanos(self.clock));
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < SOON, "never happened: {what}");
            // Neighbours' words come by the same ring as frames.
            for rail in [&mut self.a, &mut self.b] {
                if rail.split().1.poll(Channel::Data, 1) > 0 {
                    rail.split().1.poll(Channel::Data, 0);
                }
            }
            self.turn();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn post(&mut self, channel: Channel, bytes: &[u8]) -> FrameId {
        let (tx, _) = self.a.split();
        assert_eq!(tx.reserve(channel, 1), 1);
        let id = tx.post(channel, PeerIndex(0), &[], Body::Bytes(bytes)).unwrap();
        tx.doorbell();
        id
    }

    /// The next frame at `b`.
    fn frame(&mut self, channel: Channel) -> Vec<u8> {
        let begun = Instant::now();
        loop {
            if self.b.split().1.poll(channel, 1) > 0 {
                let frame = self.b.split().1.frame(channel, 0).unwrap();
                assert_eq!(frame.from, Some(PeerIndex(0)));
                return frame.bytes.to_vec();
            }
            assert!(begun.elapsed() < SOON, "never happened: a frame came");
            self.turn();
        }
    }
}

type Check = fn(&mut Ends<IgbvfRail>);

const CHECKS: [Check; 9] = [
    datagram::a_frame_arrives_as_it_was_posted,
    datagram::reserved_room_cannot_fail_and_no_more_is_given,
    datagram::without_room_nothing_is_posted,
    datagram::a_frame_above_the_mtu_is_refused,
    datagram::an_unknown_peer_is_refused,
    datagram::reaped_follows_the_posts_in_order,
    datagram::frames_stay_in_place_until_the_next_poll,
    datagram::a_kept_frame_leaves_the_ring,
    datagram::a_peer_that_is_forgotten_can_be_opened_again,
];

#[test]
fn the_promises_of_datagrams_hold() {
    for (six, checksum, mtu) in [(false, true, 1500), (true, true, 1500), (false, false, 4000)] {
        let config = IgbvfConfig {
            checksum,
            mtu,
            ..config(six)
        };
        for check in CHECKS {
            let pair = Pair::new(&config);
            let _models = (pair.at_a, pair.at_b);
            let mut now = pair.clock;
            let pump = move |a: &mut IgbvfRail, b: &mut IgbvfRail| {
                now += 1_000_000;
                a.progress(Time::from_nanos(now));
                b.progress(Time::from_nanos(now));
            };
            let incarnations = (pair.a.incarnation(), pair.b.incarnation());
            check(&mut Ends::connect(
                (pair.a, incarnations.0),
                (pair.b, incarnations.1),
                pump,
            ));
        }
    }
}

#[test]
fn the_device_makes_checksums_and_checks_them_and_is_not_needed_for_it() {
    for (checksum, checks, by_device) in [(true, true, 2), (true, false, 0), (false, true, 0)] {
        let mut pair = Pair::new(&IgbvfConfig {
            checksum,
            ..config(false)
        });
        pair.at_b.be(|manner| manner.checks = checks);
        for channel in [Channel::Priority, Channel::Data] {
            pair.post(channel, b"one frame");
            assert_eq!(pair.frame(channel), b"one frame");
        }
        assert_eq!(pair.b.stats().checked_by_device, by_device);
        let made = pair.at_a.state.lock().unwrap().summed;
        assert_eq!(made, if checksum { 2 } else { 0 });
        // A damaged one is dropped, by the device or by the rail.
        pair.at_b.be(|manner| manner.spoils = 1);
        pair.post(Channel::Data, b"spoilt");
        pair.post(Channel::Data, b"whole");
        assert_eq!(pair.frame(Channel::Data), b"whole");
        assert_eq!(pair.b.stats().corrupt, 1);
    }
}

#[test]
fn descriptors_that_lie_are_counted_and_their_chunks_used_again() {
    let mut pair = Pair::new(&config(false));
    // Longer than a chunk; in two chunks, the second as if it began there; an error of the wire; nothing in
    // it.
    let lies: [&[(u32, u16)]; 5] = [
        &[(3, 0xffff)],
        &[(1, 60), (3, 60)],
        &[(3 | 1 << 31, 60)],
        &[(3, 0)],
        &[(u32::MAX, u16::MAX)],
    ];
    for round in 0..1_000 {
        let lies = lies[round % lies.len()];
        pair.at_b.be(|manner| manner.lies.extend(lies));
        for _ in lies {
            pair.post(Channel::Data, b"lost");
        }
        pair.post(Channel::Data, &round.to_le_bytes());
        // More rounds than the ring has entries: what is lost would be missed.
        // A neighbour's request may have received the false answer instead.
        while pair.frame(Channel::Data) != round.to_le_bytes() {}
    }
    let stats = pair.b.stats();
    assert!(stats.nonsense >= 800 && stats.malformed >= 200, "{stats:?}");
    assert_eq!(stats.nonsense + stats.malformed, 1_200, "{stats:?}");
}

#[test]
fn the_handshake_is_repeated_after_a_reset_and_frames_pass_again() {
    let mut pair = Pair::new(&config(false));
    let first = pair.post(Channel::Data, b"before");
    assert_eq!(pair.frame(Channel::Data), b"before");
    let mut events = Vec::new();
    let (tx, _) = pair.a.split();
    let promised = tx.reserve(Channel::Priority, 4);
    assert_eq!(promised, 4);
    pair.at_a.be(|manner| manner.answers = false);
    pair.at_a.reset();
    pair.until("it is down", |pair| {
        events.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
        events.contains(&EventKind::LinkDown)
    });
    assert!(!pair.a.is_link_up());
    let lost = pair.post(Channel::Data, b"lost meanwhile");
    pair.at_a.be(|manner| manner.answers = true);
    pair.until("it is up", |pair| {
        events.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
        events.contains(&EventKind::LinkUp)
    });
    assert_eq!(events, [EventKind::LinkDown, EventKind::LinkUp]);
    assert_eq!(
        pair.a.split().0.reaped(Channel::Data),
        lost,
        "nothing is kept by a device that forgot it"
    );
    assert!(lost > first);
    let (tx, _) = pair.a.split();
    for _ in 0..promised {
        tx.post(Channel::Priority, PeerIndex(0), &[], Body::Bytes(b"promised"))
            .expect("room that was promised before");
    }
    tx.doorbell();
    for _ in 0..promised {
        assert_eq!(pair.frame(Channel::Priority), b"promised");
    }
    for channel in [Channel::Priority, Channel::Data] {
        pair.post(channel, b"after");
        assert_eq!(pair.frame(channel), b"after");
    }
    assert_eq!(pair.a.stats().resets, 1);
    assert!(pair.at_a.state.lock().unwrap().handshakes >= 2);
}

#[test]
fn the_link_is_the_devices_word() {
    let mut pair = Pair::new(&config(false));
    assert_eq!(pair.a.nic().speed(), Some((1000, true)));
    for (has_link, kind) in [(false, EventKind::LinkDown), (true, EventKind::LinkUp)] {
        pair.at_a.be(|manner| manner.has_link = has_link);
        let mut told = None;
        pair.until("the link's event", |pair| {
            told = pair.a.event().map(|event| event.kind);
            told.is_some()
        });
        assert_eq!((told, pair.a.is_link_up()), (Some(kind), has_link));
    }
}

#[test]
fn a_requested_function_is_released() {
    let mut pair = Pair::new(&config(false));
    pair.at_a.request();
    let mut told = None;
    pair.until("it is gone", |pair| {
        told = pair.a.event().map(|event| event.kind);
        told.is_some()
    });
    assert_eq!(told, Some(EventKind::DeviceGone));
    assert!(pair.a.nic().device().is_none(), "closed");
    let (tx, rx) = pair.a.split();
    assert_eq!((tx.reserve(Channel::Data, 1), rx.poll(Channel::Data, 8)), (0, 0));
    assert!(pair.a.close(Time::ZERO, Time::ZERO));
}

#[test]
fn a_device_that_goes_while_its_physical_function_is_silent_leaves_nothing_to_wait_for() {
    let mut pair = Pair::new(&config(false));
    pair.at_a.be(|manner| manner.answers = false);
    pair.at_a.reset();
    pair.until("it is down", |pair| pair.a.event().is_some());
    pair.turn();
    assert!(pair.a.next_deadline().is_some(), "there is another request");
    pair.at_a.request();
    pair.until("it is gone", |pair| {
        pair.a
            .event()
            .is_some_and(|event| event.kind == EventKind::DeviceGone)
    });
    assert_eq!(pair.a.next_deadline(), None);
    assert!(matches!(pair.a.arm().unwrap(), Armed::Sleep(_)));
    let to_b = pair.b.address();
    let error = pair.a.open(&to_b, Incarnation(1)).unwrap_err().to_string();
    assert!(error.contains("device is gone"), "{error}");
}

#[test]
fn the_rails_own_frames_take_no_promised_room() {
    let mut pair = Pair::new(&config(false));
    // The device processes nothing, as if the link stalled.
    let still = pair.at_a.state.lock().unwrap();
    let (tx, _) = pair.a.split();
    let room = tx.reserve(Channel::Data, usize::MAX);
    assert!(room > 400, "{room}");
    let new_peers: Vec<_> = (3..100u8)
        .map(|host| format!("udp:10.0.0.{host}:56080"))
        .collect();
    for peer in &new_peers {
        pair.a.open(&peer.parse().unwrap(), Incarnation(1)).unwrap();
    }
    for round in 1..20 {
        pair.a
            .progress(Time::from_nanos(pair.clock + round * 1_000_000_000));
    }
    let (tx, _) = pair.a.split();
    for number in 0..room as u64 {
        tx.post(
            Channel::Data,
            PeerIndex(0),
            &[],
            Body::Bytes(&number.to_le_bytes()),
        )
        .unwrap();
    }
    tx.doorbell();
    assert_eq!(tx.reserve(Channel::Data, usize::MAX), 0);
    drop(still);
    for number in 0..room as u64 {
        assert_eq!(pair.frame(Channel::Data), number.to_le_bytes());
    }
}

#[test]
fn neighbouring_ports_are_different_peers() {
    let mut pair = Pair::new(&config(false));
    let mut open = |port: u16| {
        let address = format!("udp:10.0.0.9:{port}").parse().unwrap();
        pair.a.open(&address, Incarnation(1)).unwrap()
    };
    let first = open(56080);
    assert_ne!(open(56081), first);
    assert_eq!(open(56080), first, "known already");
}

#[test]
fn a_frame_wakes_a_sleeper() {
    let mut pair = Pair::new(&config(false));
    assert!(pair.b.nic().check_interrupt(SOON));
    pair.until("nothing is left to do", |pair| {
        let idle = matches!(pair.b.arm().unwrap(), Armed::Sleep(_));
        if !idle {
            pair.b.disarm();
        }
        idle
    });
    // Enabled by a thread that looks every few microseconds.
    std::thread::sleep(Duration::from_millis(20));
    pair.post(Channel::Priority, b"wake up");
    let Armed::Sleep(fd) = pair.b.arm().unwrap() else {
        // It had come already.
        return;
    };
    let mut waits = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut waits, Some(&limit)), Ok(1));
    pair.b.disarm();
    assert_eq!(pair.frame(Channel::Priority), b"wake up");
}

#[test]
fn an_obstacle_is_named_in_time() {
    let (there, back) = wires();
    let silent = Vf::start(A, &there, &back);
    silent.be(|manner| manner.answers = false);
    let begun = Instant::now();
    let error = open(&silent, 0, &config(false)).unwrap_err();
    assert!(
        error.contains("does not answer in the mailbox") && error.contains("ip link set"),
        "{error}"
    );
    assert!(begun.elapsed() < SOON);
    // One that gives no hardware address lets the rail choose its own.
    let nameless = Vf::start([0; 6], &there, &back);
    let rail = open(&nameless, 0, &config(false)).unwrap();
    assert_eq!(
        rail.mac()[0] & 3,
        2,
        "unicast, and locally administered: {:x?}",
        rail.mac()
    );
}

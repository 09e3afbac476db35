//! Over the loopback: whose frames are whose, what is counted, captures. Needs no rights.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::{ConstLoan, Region};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::pcapng::{Block, Blocks, Writer};
use doorbell_fabric::rail::{PollCost, Rail};
use doorbell_fabric::time::Time;
use doorbell_udp::{UdpConfig, UdpRail};

const LIFE: Incarnation = Incarnation(1);
const CHANNELS: [Channel; 2] = [Channel::Priority, Channel::Data];

fn open(config: &UdpConfig) -> UdpRail {
    UdpRail::open(&"udp:lo".parse().unwrap(), config).unwrap()
}

fn post(rail: &mut UdpRail, channel: Channel, peer: PeerIndex, bytes: &[u8]) {
    let (tx, _) = rail.split();
    assert_eq!(tx.reserve(channel, 1), 1);
    tx.post(channel, peer, bytes, Body::Empty).unwrap();
    tx.doorbell();
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "never happened: {what}"
        );
    }
}

/// The next frame of a rail on a channel: its sender and its bytes.
fn next(rail: &mut UdpRail, channel: Channel) -> (Option<PeerIndex>, Vec<u8>) {
    let (_, rx) = rail.split();
    until("a frame arrives", || rx.poll(channel, 1) == 1);
    let frame = rx.frame(channel, 0).unwrap();
    (frame.from, frame.bytes.to_vec())
}

fn at(rail: &UdpRail, channel: u16) -> std::net::SocketAddr {
    let mut address = rail.address().inet_of("udp").unwrap();
    address.set_port(address.port() + channel);
    address
}

#[test]
fn each_frame_is_its_senders_whichever_has_a_socket_of_its_own() {
    let config = UdpConfig {
        connected: 2,
        ..UdpConfig::default()
    };
    let mut hub = open(&config);
    let mut others: Vec<UdpRail> = (0..5).map(|_| open(&config)).collect();
    let peers: Vec<PeerIndex> = others
        .iter()
        .map(|other| hub.open(&other.address(), LIFE).unwrap())
        .collect();
    let connected: Vec<bool> = peers.iter().map(|&peer| hub.is_connected(peer)).collect();
    assert_eq!(connected, [true, true, false, false, false]);
    assert_eq!(hub.stats().unconnected, 3);
    assert_eq!(
        hub.open(&others[3].address(), LIFE).unwrap(),
        peers[3],
        "a known address is a known peer"
    );
    for round in 0..50u8 {
        for (n, other) in others.iter_mut().enumerate() {
            let hub_there = other.open(&hub.address(), LIFE).unwrap();
            assert_eq!(hub_there, PeerIndex(0));
            for channel in CHANNELS {
                post(other, channel, hub_there, &[n as u8, round]);
            }
        }
        for channel in CHANNELS {
            let mut seen = [false; 5];
            for _ in 0..5 {
                let (from, bytes) = next(&mut hub, channel);
                let n = usize::from(bytes[0]);
                assert_eq!(
                    (from, bytes[1]),
                    (Some(peers[n]), round),
                    "peer {n} on {channel:?}"
                );
                assert!(!std::mem::replace(&mut seen[n], true));
            }
        }
        for (&peer, other) in peers.iter().zip(&mut others) {
            post(&mut hub, Channel::Data, peer, &[round]);
            assert_eq!(next(other, Channel::Data), (Some(PeerIndex(0)), vec![round]));
        }
    }
    let stats = hub.stats();
    assert_eq!(
        (stats.received, stats.sent, stats.strangers, stats.strays),
        (500, 250, 0, 0)
    );
    // Two frames a round of each of the three that share.
    assert_eq!(
        stats.received_shared, 300,
        "the others came over sockets of their peers"
    );
}

#[test]
fn a_stranger_is_shown_as_one_and_counted() {
    // Where runs are taken in one piece, all that UDP carries has room.
    let mut rail = open(&UdpConfig {
        gro: false,
        ..UdpConfig::default()
    });
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (port, channel) in CHANNELS.into_iter().enumerate() {
        stranger.send_to(b"let me in", at(&rail, port as u16)).unwrap();
        assert_eq!(next(&mut rail, channel), (None, b"let me in".to_vec()));
    }
    stranger.send_to(&vec![1; 30_000], at(&rail, 1)).unwrap();
    stranger.send_to(b"", at(&rail, 1)).unwrap();
    assert_eq!(
        next(&mut rail, Channel::Data),
        (None, Vec::new()),
        "the long one is not shown"
    );
    let stats = rail.stats();
    assert_eq!((stats.strangers, stats.too_long), (3, 1));
}

#[test]
fn what_came_before_the_peer_was_known_is_still_its_frame() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let to_b = a.open(&b.address(), LIFE).unwrap();
    post(&mut a, Channel::Data, to_b, b"early");
    let to_a = b.open(&a.address(), LIFE).unwrap();
    post(&mut a, Channel::Data, to_b, b"late");
    let mut seen = [next(&mut b, Channel::Data), next(&mut b, Channel::Data)];
    seen.sort();
    assert_eq!(
        seen,
        [(Some(to_a), b"early".to_vec()), (Some(to_a), b"late".to_vec())]
    );
}

#[test]
fn every_kind_of_body_and_the_limits() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let to_b = a.open(&b.address(), LIFE).unwrap();
    let limits = a.capabilities().limits;
    let region = Region::new(16).unwrap();
    region.write(0, b"of the region");
    let slice = region.slice(7, 6).unwrap();
    let loan = ConstLoan::of_static(b"lent bytes");
    let parts = [loan.part(0, 4), ConstLoan::EMPTY, loan.part(4, 6)];
    let bodies = [
        Body::Region(&slice),
        Body::Loan(loan),
        Body::Parts(&parts),
        Body::Bytes(b"plain"),
        Body::Empty,
    ];
    for (body, expected) in bodies
        .into_iter()
        .zip(["region", "lent bytes", "lent bytes", "plain", ""])
    {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Data, 1), 1);
        tx.post(Channel::Data, to_b, b"> ", body).unwrap();
        tx.doorbell();
        assert_eq!(
            next(&mut b, Channel::Data).1,
            [b"> ", expected.as_bytes()].concat()
        );
    }
    let (tx, _) = a.split();
    tx.reserve(Channel::Data, 2);
    let many = vec![ConstLoan::of_static(b"x"); limits.parts + 1];
    assert_eq!(
        tx.post(Channel::Data, to_b, b"", Body::Parts(&many)),
        Err(Refused::TooLong)
    );
    assert_eq!(
        tx.post(Channel::Data, to_b, b"", Body::Parts(&many[1..])),
        Ok(FrameId(6))
    );
}

#[test]
fn as_many_frames_as_fit_go_in_one_piece() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let to_b = a.open(&b.address(), LIFE).unwrap();
    b.open(&a.address(), LIFE).unwrap();
    let longest = a.capabilities().limits.message;
    for (length, fit) in [(longest, 4), (8000, 8), (65_492 / 7, 7), (100, 64)] {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Data, fit), fit);
        for _ in 0..fit {
            tx.post(Channel::Data, to_b, &vec![1; length], Body::Empty)
                .unwrap();
        }
        tx.doorbell();
        (0..fit).for_each(|_| assert_eq!(next(&mut b, Channel::Data).1.len(), length));
    }
    let (sent, received) = (a.stats(), b.stats());
    if a.granted().gso {
        assert_eq!((sent.sent_runs, sent.send_calls, sent.runs_refused), (4, 4, 0));
    }
    if b.granted().gro {
        assert_eq!((received.received_runs, received.receive_calls), (4, 4));
    }
}

/// The kernel merges frames that come in a row, and the rail turns that off while frames come one by one;
/// nothing is lost or cut wrongly when that changes, also with runs under way.
#[test]
fn frames_are_merged_while_they_come_in_a_row() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let to_b = a.open(&b.address(), LIFE).unwrap();
    b.open(&a.address(), LIFE).unwrap();
    let mut number = 0u32;
    let mut send = |a: &mut UdpRail, count: usize| {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Priority, count), count);
        let first = number;
        for _ in 0..count {
            tx.post(
                Channel::Priority,
                to_b,
                &number.to_le_bytes(),
                Body::Bytes(&[7; 60]),
            )
            .unwrap();
            number += 1;
        }
        tx.doorbell();
        first..number
    };
    let arrive = |b: &mut UdpRail, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let (_, frame) = next(b, Channel::Priority);
            assert_eq!(frame, [&number.to_le_bytes()[..], &[7; 60]].concat());
        }
    };
    for _ in 0..3 {
        // More than it takes until the rail turns merging off.
        let before = b.stats();
        for _ in 0..600 {
            let numbers = send(&mut a, 1);
            arrive(&mut b, numbers);
        }
        let after = b.stats();
        assert_eq!(after.received_runs, before.received_runs);
        // Runs, of which the first ones come as single frames, and then in one piece.
        for _ in 0..20 {
            let (first, second) = (send(&mut a, 20), send(&mut a, 20));
            arrive(&mut b, first.start..second.end);
        }
        let merged = b.stats().received_runs - after.received_runs;
        if a.granted().gso && b.granted().gro {
            assert!(merged > 20, "{merged} of 40: {:?} {:?}", a.stats(), b.stats());
            let calls = b.stats().receive_calls - after.receive_calls;
            assert!(calls < 300, "{calls} receives for 800 frames");
        }
        // A run, then one by one until merging is turned off, with the next run right behind.
        for _ in 0..400 {
            let numbers = send(&mut a, 1);
            arrive(&mut b, numbers);
        }
    }
}

#[test]
fn addresses_that_cannot_be_peers_are_refused_with_the_reason() {
    let mut rail = open(&UdpConfig::default());
    let cases = [
        ("udp:10.0.0.1:5000", "loopback"),
        ("udp:[::1]:5000", "other family"),
        ("udp:0.0.0.0:5000", "of a single host"),
        ("udp:224.0.0.1:5000", "of a single host"),
        ("udp:255.255.255.255:5000", "of a single host"),
        ("udp:127.0.0.1:0", "between 1 and 65534"),
        ("udp:127.0.0.1:65535", "between 1 and 65534"),
        ("sim:0102", "not an IP address"),
        ("ofi:127.0.0.1:5000", "not an IP address"),
    ];
    for (text, reason) in cases {
        let address: RailAddress = text.parse().unwrap();
        let error = rail.open(&address, LIFE).unwrap_err();
        assert!(
            matches!(error, RailError::BadAddress { .. }) && error.to_string().contains(reason),
            "{error}"
        );
    }
    assert!(
        rail.open(&"xdp:127.0.0.1:5000".parse().unwrap(), LIFE).is_ok(),
        "one wire"
    );
}

#[test]
fn taken_ports_are_reported_and_the_next_pair_is_tried() {
    let first = open(&UdpConfig {
        port: 41_000,
        ..UdpConfig::default()
    });
    let port = at(&first, 0).port();
    let second = open(&UdpConfig {
        port,
        ..UdpConfig::default()
    });
    assert!(at(&second, 0).port() >= port + 2);
    let only = UdpConfig {
        port,
        pairs: 1,
        ..UdpConfig::default()
    };
    let error = UdpRail::open(&"udp:lo".parse().unwrap(), &only)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&port.to_string()) && error.contains("ss -ulnp"),
        "{error}"
    );
    let other = UdpRail::open(&"shm".parse().unwrap(), &only)
        .unwrap_err()
        .to_string();
    assert!(other.contains("its kind is not udp"), "{other}");
}

#[test]
fn a_full_receive_buffer_drops_and_is_counted() {
    let (mut a, b) = (
        open(&UdpConfig::default()),
        open(&UdpConfig {
            receive_buffer: 4096,
            ..UdpConfig::default()
        }),
    );
    let to_b = a.open(&b.address(), LIFE).unwrap();
    (0..500).for_each(|_| post(&mut a, Channel::Data, to_b, &[0; 1000]));
    assert!(b.kernel_drops() > 400, "{} dropped", b.kernel_drops());
    assert_eq!(a.stats().sent, 500, "the sender cannot know");
}

#[test]
fn a_peer_that_ended_refuses_and_that_is_a_hint_only() {
    for connected in [64, 0] {
        let config = UdpConfig {
            connected,
            ..UdpConfig::default()
        };
        let (mut a, b) = (open(&config), open(&config));
        let to_b = a.open(&b.address(), LIFE).unwrap();
        drop(b);
        // One is no proof, and nothing fails.
        post(&mut a, Channel::Priority, to_b, b"anybody there");
        until("the refusal is counted", || {
            a.split().1.poll(Channel::Priority, 1);
            a.progress(Time::from_nanos(1));
            a.stats().refused == 1
        });
        assert!(a.event().is_none());
        post(&mut a, Channel::Priority, to_b, b"still not");
        assert_eq!(a.stats().unsendable, 0);
    }
}

#[test]
fn what_the_kernel_granted_is_reported() {
    let wanted = UdpConfig {
        gso: false,
        gro: false,
        receive_buffer: 1 << 29,
        busy_poll: Some(50),
        ..UdpConfig::default()
    };
    let rail = open(&wanted);
    let granted = rail.granted();
    assert!(!granted.gso && !granted.gro && granted.offloads().starts_with("none"));
    let is_told = granted.notes.iter().any(|note| note.contains("rmem_max"));
    assert!(granted.receive_buffer >= 1 << 29 || is_told, "{granted:?}");
    assert!(matches!(rail.poll_cost(), PollCost::SystemCall(1..100_000)));
}

#[test]
fn a_closed_rail_has_let_go_of_everything() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let to_b = a.open(&b.address(), LIFE).unwrap();
    let (tx, _) = a.split();
    tx.reserve(Channel::Data, 1);
    tx.post(Channel::Data, to_b, b"at last", Body::Empty).unwrap();
    tx.doorbell();
    let port = at(&a, 0).port();
    assert!(a.close(Time::from_nanos(1), Time::from_nanos(2)));
    assert_eq!(next(&mut b, Channel::Data).1, b"at last");
    let (tx, rx) = a.split();
    tx.reserve(Channel::Data, 1);
    assert_eq!(
        tx.post(Channel::Data, to_b, b"x", Body::Empty),
        Err(Refused::PeerDown)
    );
    assert_eq!(rx.poll(Channel::Data, 8), 0);
    let again = open(&UdpConfig {
        port,
        pairs: 1,
        ..UdpConfig::default()
    });
    assert_eq!(at(&again, 0).port(), port);
}

/// A file that can be read afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_holds_every_frame_of_both_directions_with_its_addresses() {
    let (mut a, mut b) = (open(&UdpConfig::default()), open(&UdpConfig::default()));
    let file = Shared::default();
    let early = a.open(&b.address(), LIFE).unwrap();
    a.set_capture(Writer::new(Box::new(file.clone()), "a test", 0), Clock::start());
    let to_a = b.open(&a.address(), LIFE).unwrap();
    let (tx, _) = a.split();
    assert_eq!(tx.reserve(Channel::Data, 3), 3);
    for n in 0..3u8 {
        tx.post(Channel::Data, early, &[n; 100], Body::Empty).unwrap();
    }
    tx.doorbell();
    post(&mut b, Channel::Priority, to_a, b"answer");
    assert_eq!(next(&mut a, Channel::Priority).1, b"answer");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"stranger", at(&a, 0)).unwrap();
    next(&mut a, Channel::Priority);
    let mut writer = a.end_capture().unwrap();
    assert_eq!(
        (writer.written(), writer.lost(), writer.take_error().is_none()),
        (5, 0, true)
    );
    assert!(a.end_capture().is_none());
    post(&mut a, Channel::Data, early, b"not in it");
    drop(writer);
    let bytes = file.0.lock().unwrap();
    let ports = |packet: &[u8]| [34, 36].map(|at| u16::from_be_bytes([packet[at], packet[at + 1]]));
    let mut seen = Vec::new();
    for block in Blocks::of(&bytes) {
        if let Block::Packet(packet) = block.unwrap() {
            seen.push((ports(packet.bytes), packet.bytes[42..].to_vec()));
        }
    }
    let (ours, theirs) = (at(&a, 0).port(), at(&b, 0).port());
    let out = |n: u8| ([ours + 1, theirs + 1], vec![n; 100]);
    let expected = [
        out(0),
        out(1),
        out(2),
        ([theirs, ours], b"answer".to_vec()),
        (
            [stranger.local_addr().unwrap().port(), ours],
            b"stranger".to_vec(),
        ),
    ];
    assert_eq!(seen, expected);
}

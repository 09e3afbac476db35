//! Frames of first contact, between ends that have not opened each other.

use std::time::{Duration, Instant};

use crate::common::{End, RACK, Sink, World, rings};
use doorbell_btl::wire::{Kind, VERSION, flag};
use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Receive};
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Faults, Random, SimConfig, SimNet};
use doorbell_udp::{UdpConfig, UdpRail};

/// The number of a door.
const DOOR: u64 = 0x0807_0605_0403_0201;

/// Ends that have opened no peer.
fn apart(seed: u64, n: usize, sim: SimConfig, config: &BtlConfig) -> World {
    let net = SimNet::new(seed, sim);
    let ends = (0..n).map(|_| End::new(net.attach_datagram(), config, 1));
    World {
        ends: ends.collect(),
        net,
        peers: Vec::new(),
    }
}

fn taken(end: &mut End) -> Vec<Vec<u8>> {
    let mut bytes = vec![1, 2, 3];
    let mut all = Vec::new();
    while end.btl.next_hello(&mut bytes) {
        all.push(bytes.clone());
    }
    assert!(bytes.is_empty());
    all
}

/// Numbered, and of all lengths that fit.
fn hello(n: u32, room: usize) -> Vec<u8> {
    let mut bytes = vec![n as u8; 4 + (n as usize * 97) % (room - 3)];
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn step(world: &mut World) {
    world.net.advance_to(world.now() + Duration::from_micros(100));
    world.turn();
}

fn for_a_while(world: &mut World) {
    (0..50).for_each(|_| step(world));
}

#[test]
fn a_hello_gets_through_an_open_door_and_through_no_other() {
    let mut world = apart(1, 2, rings(RACK), &BtlConfig::default());
    let there = world.ends[1].btl.address();
    let room = world.ends[0].btl.hello_room();
    assert_eq!(room, 1024);
    world.ends[1].btl.open_door(DOOR);
    for (door, bytes) in [
        (DOOR, b"one".to_vec()),
        (DOOR ^ 1, b"two".to_vec()),
        (DOOR, Vec::new()),
    ] {
        world.ends[0].btl.send_hello(&there, door, &bytes).unwrap();
    }
    world.ends[0]
        .btl
        .send_hello(&there, DOOR, &vec![9; room])
        .unwrap();
    assert!(
        world.ends[0]
            .btl
            .send_hello(&there, DOOR, &vec![9; room + 1])
            .is_err()
    );
    for_a_while(&mut world);
    assert_eq!(
        taken(&mut world.ends[1]),
        [b"one".to_vec(), Vec::new(), vec![9; room]]
    );
    assert_eq!(taken(&mut world.ends[0]), Vec::<Vec<u8>>::new());
    let counters = *world.ends[1].btl.counters();
    assert_eq!(
        (
            counters.hellos_received,
            counters.dropped_unknown,
            counters.frames_received
        ),
        (3, 1, 4)
    );
    assert_eq!(world.ends[0].btl.counters().hellos_sent, 4);
    assert!(
        world.ends[1].btl.stranger().is_none(),
        "a hello is no call of a peer"
    );
    world.ends[1].btl.close_door(DOOR);
    world.ends[0].btl.send_hello(&there, DOOR, b"late").unwrap();
    for_a_while(&mut world);
    assert_eq!(taken(&mut world.ends[1]), Vec::<Vec<u8>>::new());
}

/// The frame is what other builds send.
#[test]
fn the_bytes_of_a_hello() {
    let net = SimNet::new(1, rings(RACK));
    let mut raw = net.attach_datagram();
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut end = End::new(net.attach_datagram(), &config, 1);
        end.btl.send_hello(&raw.address(), DOOR, b"hello").unwrap();
        net.advance_to(net.now() + Duration::from_millis(1));
        let (_, rx) = raw.split();
        assert_eq!(rx.poll(Channel::Priority, 8), 1);
        let frame = rx.frame(Channel::Priority, 0).unwrap().bytes;
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(0, &mut bytes);
        // The CRC by another implementation of CRC-32C.
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 13, 0x14, 0, 0, 0, 0, b'h', b'e', b'l',
            b'l', b'o',
        ];
        assert_eq!(bytes[..20], golden[..20]);
        assert_eq!(bytes[20..24], 0xe4d9_0665_u32.to_le_bytes());
        assert_eq!(bytes[24..], golden[24..]);
    }
}

#[test]
fn hellos_over_a_bad_network_come_whole_or_not_at_all() {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        corrupt: 0.1,
        ..RACK
    };
    for seed in 0..10 {
        let config = BtlConfig {
            frame_mac: seed % 2 == 1,
            ..BtlConfig::default()
        };
        let mut world = apart(seed, 2, rings(faults), &config);
        let (there, room) = (world.ends[1].btl.address(), world.ends[0].btl.hello_room());
        world.ends[1].btl.open_door(DOOR);
        let mut came = vec![0; 500];
        for n in 0..500 {
            world.ends[0]
                .btl
                .send_hello(&there, DOOR, &hello(n, room))
                .unwrap();
            step(&mut world);
            for bytes in taken(&mut world.ends[1]) {
                let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                assert_eq!(bytes, hello(number, room));
                came[number as usize] += 1;
            }
        }
        let some = came.iter().filter(|times| **times > 0).count();
        assert!(
            (350..480).contains(&some),
            "{some} of 500 came: {:?}\n{}",
            world.ends[1].btl.counters(),
            world.report()
        );
        assert!(came.iter().any(|times| *times > 1), "some came twice");
        let counters = world.ends[1].btl.counters();
        assert!(counters.dropped_corrupt > 10, "{counters:?}");
        assert_eq!(counters.hellos_received, came.iter().sum::<u64>());
    }
}

/// The frame of a hello, with its CRC.
fn frame(door: u64, contents: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[..8].copy_from_slice(&door.to_le_bytes());
    bytes[16..18].copy_from_slice(&(contents.len() as u16).to_le_bytes());
    (bytes[18], bytes[19]) = (Kind::Hello as u8, VERSION << 4 | flag::CRC);
    bytes.extend_from_slice(contents);
    change(&mut bytes);
    let crc = !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78)
        })
    });
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes
}

type Two = crate::lane::Two<Sink>;

const STEP: Duration = Duration::from_micros(20);

type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Whatever is not exactly a hello is dropped, and nothing else gets in by looking like one.
#[test]
fn a_hello_that_is_not_quite_one_is_dropped() {
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut two = Two::new(true, &config);
        two.ends[1].open_door(DOOR);
        let incoming = two.ends[1].driver().incoming();
        let mut arrive = |bytes: &[u8]| {
            incoming[0].borrow_mut().push(bytes, SharedBytes::EMPTY);
            two.turn(STEP);
            let (mut bytes, counters) = (Vec::new(), *two.ends[1].counters());
            (two.ends[1].next_hello(&mut bytes).then_some(bytes), counters)
        };
        let (came, counters) = arrive(&frame(DOOR, b"right", |_| ()));
        assert_eq!((came, counters.dropped_corrupt), (Some(b"right".to_vec()), 0));
        let (came, _) = arrive(&[&frame(DOOR, b"padded", |_| ())[..], &[0; 40]].concat());
        assert_eq!(came, Some(b"padded".to_vec()));
        let wrong: [Change<'_>; 6] = [
            &|bytes| bytes[19] |= flag::ACK,
            &|bytes| bytes[19] |= flag::URGENT,
            &|bytes| bytes[19] &= !flag::CRC,
            &|bytes| bytes[8] = 1,
            &|bytes| {
                bytes[19] |= flag::MAC;
                bytes.extend_from_slice(&[0; 8]);
            },
            &|bytes| {
                bytes.resize(24 + 1025, 0);
                bytes[16..18].copy_from_slice(&1025_u16.to_le_bytes());
            },
        ];
        for (n, change) in wrong.iter().enumerate() {
            let (came, counters) = arrive(&frame(DOOR, b"wrong", change));
            assert_eq!((came, counters.dropped_corrupt), (None, n as u64 + 1), "{n}");
        }
        let (came, counters) = arrive(&frame(DOOR, b"short", |bytes| bytes[16] = 6));
        assert_eq!((came, counters.dropped_short), (None, 1));
        // Under the number of a door, only hellos; without a MAC, and so nothing else.
        for kind in (0..=255).filter(|kind| *kind != Kind::Hello as u8) {
            let (came, _) = arrive(&frame(DOOR, &[0; 64], |bytes| bytes[18] = kind));
            assert_eq!(came, None);
        }
        assert_eq!(two.sinks[1].total(), 0);
        assert_eq!(two.ends[1].counters().hellos_received, 2);
    }
}

/// A hello under the id of a connection is no frame of that connection.
#[test]
fn a_hello_under_the_id_of_a_connection_is_dropped() {
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut two = Two::new(true, &config);
        let incoming = two.ends[1].driver().incoming();
        two.ends[0].send(two.to[0], b"one", Body::Empty).unwrap();
        two.turn_of(0);
        let first = incoming[0].borrow_mut().pop().unwrap();
        let id = u64::from_le_bytes(*first.first_chunk().unwrap());
        incoming[0].borrow_mut().push(&first, SharedBytes::EMPTY);
        (0..50).for_each(|_| two.turn(STEP));
        assert_eq!(two.sinks[1].total(), 1);
        two.ends[1].open_door(DOOR);
        for down in [false, true] {
            incoming[0]
                .borrow_mut()
                .push(&frame(id, b"hello", |_| ()), SharedBytes::EMPTY);
            (0..10).for_each(|_| two.turn(STEP));
            let counters = two.ends[1].counters();
            assert_eq!(counters.hellos_received, 0);
            let dropped = counters.dropped_kind + counters.dropped_forged;
            assert_eq!(dropped, 1 + u64::from(down), "{counters:?}");
            two.ends[1].sever(None);
        }
    }
}

/// A million frames of strangers, hellos of closed doors and of an open one among them, while two peers
/// exchange messages: all are counted by reason, a poll's work is bounded, nothing is kept but what is taken.
#[test]
fn a_flood_of_strangers_frames_is_counted_and_changes_nothing() {
    const FRAMES: u64 = 1_000_000;
    let mut two = Two::new(true, &BtlConfig::default());
    two.sinks.iter_mut().for_each(|sink| sink.count_only = true);
    (0..50).for_each(|_| two.turn(STEP));
    let incoming = two.ends[1].driver().incoming();
    two.ends[1].open_door(DOOR);
    let (mut random, mut sent, mut flood, mut hellos) = (Random::new(5), 0, 0, 0);
    let genuine = frame(DOOR, &[7; 600], |_| ());
    let before = *two.ends[1].counters();
    let (mut bytes, mut taken) = (Vec::new(), 0);
    while flood < FRAMES {
        for _ in 0..100 {
            let mut frame = [0_u8; 80];
            frame.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            let length = random.below(81) as usize;
            match random.below(4) {
                // Noise, or well made but for its id, as a hello too.
                0 => {}
                1 => (frame[18], frame[19]) = (random.below(14) as u8, VERSION << 4),
                _ => (frame[18], frame[19]) = (Kind::Hello as u8, VERSION << 4 | flag::CRC),
            }
            frame[16..18].copy_from_slice(&(random.below(57) as u16).to_le_bytes());
            let at = random.below(2) as usize;
            if random.chance(0.01) {
                incoming[at].borrow_mut().push(&genuine, SharedBytes::EMPTY);
                hellos += 1;
            } else {
                incoming[at]
                    .borrow_mut()
                    .push(&frame[..length], SharedBytes::EMPTY);
            }
            flood += 1;
        }
        sent += u64::from(two.ends[0].send(two.to[0], b"through it", Body::Empty).is_ok());
        two.ends[0].flush();
        two.turn_of(0);
        two.now += STEP;
        two.ends[1].progress(two.now);
        let waits =
            |rings: &crate::lane::Rings| rings.iter().any(|ring| ring.borrow().head < ring.borrow().tail);
        while waits(&incoming) {
            let received = two.ends[1].counters().frames_received;
            two.ends[1].poll(8, &mut two.sinks[1]);
            let work = two.ends[1].counters().frames_received - received;
            assert!(work <= 2 * 64 + 1, "{work} frames in one poll");
        }
        // Its owner takes hellos now and then.
        while flood.is_multiple_of(200_000) && two.ends[1].next_hello(&mut bytes) {
            assert_eq!(bytes, [7; 600]);
            taken += 1;
        }
    }
    (0..200).for_each(|_| two.turn(STEP));
    assert_eq!((two.sinks[1].total(), sent), (sent, FRAMES / 100));
    let now = *two.ends[1].counters();
    let dropped = [
        now.dropped_short - before.dropped_short,
        now.dropped_version - before.dropped_version,
        now.dropped_kind - before.dropped_kind,
        now.dropped_unknown - before.dropped_unknown,
        now.dropped_hellos - before.dropped_hellos,
        now.hellos_received - before.hellos_received,
    ];
    println!("{FRAMES} frames, {hellos} of them hellos: {dropped:?}");
    assert_eq!(dropped.iter().sum::<u64>(), FRAMES, "{now:?}");
    assert!(dropped.iter().all(|count| *count > 0), "{dropped:?}");
    assert_eq!((now.hellos_received, now.dropped_hellos), (taken, hellos - taken));
    assert_eq!(taken, 5 * 64, "as many as are kept, each time");
    let sender = two.ends[0].counters();
    assert_eq!(
        sender.resends_fast + sender.resends_timeout,
        0,
        "nothing was lost"
    );
}

#[test]
fn an_end_that_closes_takes_no_hellos_and_sends_none() {
    let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
    let (to, there) = (world.to(0, 1), world.ends[1].btl.address());
    world.ends.iter_mut().for_each(|end| end.btl.open_door(DOOR));
    world.ends[0]
        .try_send(to, b"so that they know each other")
        .unwrap();
    world.ends[0].flush();
    for_a_while(&mut world);
    let by = world.now() + Duration::from_secs(1);
    // The other end does not run, so the BYE is not acknowledged.
    let now = world.now();
    assert!(!world.ends[1].btl.close(now, by), "it waits");
    let back = world.ends[0].btl.address();
    let refused = world.ends[1]
        .btl
        .send_hello(&back, DOOR, b"too late")
        .unwrap_err();
    assert!(refused.to_string().contains("being closed"), "{refused}");
    world.ends[0]
        .btl
        .send_hello(&there, DOOR, b"to one that closes")
        .unwrap();
    let mut bytes = Vec::new();
    world.until("it is closed", Duration::from_secs(1), |world| {
        let now = world.now();
        world.ends[1].btl.close(now, by)
    });
    assert!(!world.ends[1].btl.next_hello(&mut bytes));
    assert_eq!(world.ends[1].btl.counters().hellos_received, 0);
}

/// Hellos go to many addresses, and to one that is opened then: it is the same peer of the driver, which
/// keeps what the hellos need and no more.
#[test]
fn hellos_before_and_after_the_peer_is_opened() {
    let mut world = apart(2, 80, rings(RACK), &BtlConfig::default());
    let there: Vec<_> = world.ends.iter().map(|end| end.btl.address()).collect();
    world.ends.iter_mut().for_each(|end| end.btl.open_door(DOOR));
    for round in 0..5_u8 {
        for to in &there[1..] {
            world.ends[0].btl.send_hello(to, DOOR, &[round]).unwrap();
        }
        for_a_while(&mut world);
        for end in &mut world.ends[1..] {
            assert_eq!(taken(end), [[round]]);
        }
    }
    let (to, back) = (world.open(0, 1), world.open(1, 0));
    for (from, peer) in [(0, to), (1, back)] {
        world.ends[from].try_send(peer, b"a message").unwrap();
        world.ends[from].flush();
    }
    for to in &there[1..] {
        world.ends[0].btl.send_hello(to, DOOR, b"again").unwrap();
    }
    for_a_while(&mut world);
    assert_eq!(taken(&mut world.ends[1]), [b"again"]);
    assert!(
        (0..2).all(|i| world.ends[i].sink.total() == 1),
        "{}",
        world.report()
    );
}

fn loopback() -> Btl<UdpRail> {
    let rail = UdpRail::open(&"udp:lo".parse().unwrap(), &UdpConfig::default()).unwrap();
    let life = rail.incarnation();
    Btl::new(rail, BtlConfig::default(), life).unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Over sockets: to and fro, and to a thousand addresses where no process is, which take no more descriptors
/// than the few that are kept.
#[test]
fn hellos_over_udp() {
    let (clock, patience) = (Clock::start(), Duration::from_secs(40));
    let mut ends = [loopback(), loopback()];
    let addresses = [ends[1].address(), ends[0].address()];
    ends.iter_mut().for_each(|end| end.open_door(DOOR));
    let before = descriptors();
    for port in 20_000..21_000 {
        let absent = RailAddress::inet("udp", ([127, 0, 0, 77], port).into());
        ends[0].send_hello(&absent, DOOR, b"a hello").unwrap();
        if port % 50 == 0 {
            ends[0].progress(clock.now());
            ends[0].poll(64, &mut Sink::default());
            assert!(
                ends[0].event().is_none(),
                "no event about an address that no peer has"
            );
        }
    }
    // Other tests of this process open some as well.
    let more = descriptors().saturating_sub(before);
    assert!(more < 600, "{more} more descriptors");
    let (mut bytes, mut sink) = (Vec::new(), Sink::default());
    for n in 0..100_u8 {
        let from = usize::from(n % 2);
        ends[from].send_hello(&addresses[from], DOOR, &[n; 1000]).unwrap();
        let start = Instant::now();
        while !ends[1 - from].next_hello(&mut bytes) {
            for end in &mut ends {
                end.progress(clock.now());
                end.poll(64, &mut sink);
            }
            assert!(start.elapsed() < patience, "never happened: a hello arrives");
        }
        assert_eq!(bytes, [n; 1000]);
    }
    // They meet with the key that hellos agreed on, talk, part, and meet again.
    for round in 0..20 {
        let lives = [ends[1].incarnation(), ends[0].incarnation()];
        let to = [0, 1].map(|i: usize| {
            ends[i].set_key_of(&addresses[i], lives[i], JobKey::from_bytes([round; 32]));
            ends[i].open(&addresses[i], lives[i]).unwrap()
        });
        let (start, before) = (Instant::now(), sink.total());
        (0..2).for_each(|i| _ = ends[i].send(to[i], b"a message", Body::Empty).unwrap());
        while sink.total() < before + 2 {
            for end in &mut ends {
                end.progress(clock.now());
                end.poll(64, &mut sink);
            }
            assert!(start.elapsed() < patience, "never happened: both messages arrive");
        }
        let first = usize::from(round % 2);
        ends[first].forget(to[first]);
        while !ends[1 - first]
            .event()
            .is_some_and(|event| matches!(event.kind, EventKind::PeerDown(DownReason::Closed)))
        {
            for end in &mut ends {
                end.progress(clock.now());
                end.poll(64, &mut sink);
            }
            assert!(
                start.elapsed() < patience,
                "never happened: the other end finds it closed"
            );
        }
        ends[1 - first].forget(to[1 - first]);
        assert!(to.iter().all(|peer| peer.0 < 3), "{to:?}");
    }
}

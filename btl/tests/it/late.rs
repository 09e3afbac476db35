//! Peers that are opened late: the caller is reported by name, and what it sent meanwhile arrives, once and
//! whole.

use std::time::Duration;

use crate::common::{End, RACK, World, rings};
use doorbell_btl::wire::Kind;
use doorbell_btl::{Btl, BtlConfig};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Caller, Incarnation, Message, MsgId, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Faults, SimConfig, SimDatagram, SimNet};

/// How late the receiver opens the sender.
const LATE: Duration = Duration::from_secs(2);
/// No caller is reported a second time before this.
const PAUSE: Duration = Duration::from_millis(20);

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

/// The name by which `of` is reported at `at`.
fn name(world: &World, at: usize, of: usize) -> Caller {
    let of = &world.ends[of].btl;
    let name = world.ends[at].btl.caller(&of.address(), of.incarnation());
    name.expect("a BTL with a key has names")
}

fn told(end: &mut End) -> Vec<Caller> {
    std::iter::from_fn(|| end.btl.stranger()).collect()
}

/// Numbered, and of all lengths: some fit a frame, some do not.
fn message(n: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8; 8 + (n as usize * 977) % 9000];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// One end sends, the other opens it two seconds after the call was reported.
fn two_seconds_late(seed: u64, faults: Faults, config: &BtlConfig) -> World {
    const COUNT: u64 = 40;
    let mut world = apart(seed, 2, rings(faults), config);
    let to = world.open(0, 1);
    let start = world.now();
    for n in 0..COUNT {
        assert_eq!(world.ends[0].try_send(to, &message(n)), Some(MsgId(n + 1)));
    }
    world.ends[0].flush();
    let caller = name(&world, 1, 0);
    let (mut calls, mut last) = (0, None);
    while world.now() < start + LATE {
        world.step();
        for who in told(&mut world.ends[1]) {
            assert_eq!(who, caller);
            let now = world.now();
            assert!(last.is_none_or(|last| now >= last + PAUSE), "reported too often");
            (calls, last) = (calls + 1, Some(now));
        }
    }
    assert!(calls >= 5, "reported {calls} times: it calls again and again");
    assert_eq!(world.ends[1].sink.total(), 0, "it is not open yet");
    let back = world.open(1, 0);
    world.until("everything is taken", Duration::from_secs(5), |world| {
        world.ends[0].btl.handed_over(to) == MsgId(COUNT)
    });
    let by = world.now() + Duration::from_millis(500);
    while world.now() < by {
        world.step();
    }
    let mut arrived = world.ends[1].sink.messages.clone();
    assert!(arrived.iter().all(|(peer, _)| *peer == back));
    arrived.sort_by_key(|(_, bytes)| bytes[0]);
    let expected: Vec<_> = (0..COUNT).map(|n| (back, message(n))).collect();
    assert!(arrived == expected, "each once and whole\n{}", world.report());
    for end in &mut world.ends {
        let kinds: Vec<_> = end.events.iter().map(|event| event.kind).collect();
        let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
        let news: Vec<_> = kinds.iter().filter(|kind| !doubts.contains(kind)).collect();
        assert_eq!(news, [&EventKind::PeerUp], "no peer is down");
        assert_eq!(told(end), [], "who is open is no stranger");
    }
    world
}

/// A rail promises no order; but where nothing was sent before, and nothing is lost afterwards, those that
/// take one channel come as they went.
fn is_in_order(world: &World) -> bool {
    let arrived = world.ends[1].sink.messages.iter();
    let short = arrived.filter(|(_, bytes)| bytes.len() < 700);
    let numbers: Vec<u8> = short.map(|(_, bytes)| bytes[0]).collect();
    numbers.len() > 2 && numbers.is_sorted()
}

#[test]
fn a_receiver_that_is_two_seconds_late_loses_nothing() {
    let world = two_seconds_late(1, RACK, &BtlConfig::default());
    assert!(is_in_order(&world), "{}", world.report());
    assert_eq!(world.ends[0].btl.counters().resends, 0, "it probed first");
}

#[test]
fn nor_with_macs() {
    let config = BtlConfig {
        frame_mac: true,
        ..BtlConfig::default()
    };
    let world = two_seconds_late(2, RACK, &config);
    assert!(world.ends[0].btl.counters().resends == 0);
}

/// Messages themselves are the call where nothing is checked first.
#[test]
fn nor_without_a_check() {
    let config = BtlConfig {
        connectivity_check: false,
        ..BtlConfig::default()
    };
    let world = two_seconds_late(3, RACK, &config);
    assert!(world.ends[0].btl.counters().resends > 0);
}

#[test]
fn nor_through_the_rain() {
    for seed in 4..7 {
        let faults = Faults { loss: 0.1, ..RACK };
        two_seconds_late(seed, faults, &BtlConfig::default());
    }
}

/// Many peers connect to an end with no open peers; opening on `stranger()` is enough.
#[test]
fn a_hundred_callers_are_opened_as_they_are_reported() {
    const N: usize = 100;
    let mut world = apart(8, N + 1, rings(RACK), &BtlConfig::default());
    for i in 1..=N {
        let to = world.open(i, 0);
        world.ends[i].try_send(to, &message(i as u64)).unwrap();
        world.ends[i].flush();
    }
    let names: Vec<Caller> = (1..=N).map(|i| name(&world, 0, i)).collect();
    let mut met = vec![None; N];
    world.until("all have arrived", Duration::from_secs(2), |world| {
        for who in told(&mut world.ends[0]) {
            let at = names.iter().position(|one| *one == who).expect("one of them");
            let peer = world.open(0, at + 1);
            assert!(met[at].replace(peer).is_none(), "one that is open was reported");
        }
        world.ends[0].sink.total() == N as u64
    });
    for (i, peer) in met.iter().enumerate() {
        let arrived = (peer.unwrap(), message(i as u64 + 1));
        assert!(world.ends[0].sink.messages.contains(&arrived));
    }
}

/// Sends a frame of this kind on a connection, if there is room.
fn post(stranger: &mut SimDatagram, to: PeerIndex, connection: u64, kind: Kind) -> bool {
    let (tx, _) = stranger.split();
    if tx.reserve(Channel::Data, 1) == 0 {
        return false;
    }
    let mut frame = [0; 24 + 48];
    frame[..8].copy_from_slice(&connection.to_le_bytes());
    frame[16..18].copy_from_slice(&48u16.to_le_bytes());
    frame[18..20].copy_from_slice(&[kind as u8, 1 << 4]);
    tx.post(Channel::Data, to, &frame[..24], Body::Bytes(&frame[24..]))
        .unwrap();
    tx.doorbell();
    true
}

/// Frames that answer, or end, are of a peer that was known: of a former life, mostly.
#[test]
fn only_what_begins_something_is_a_call() {
    let mut world = apart(9, 1, rings(RACK), &BtlConfig::default());
    let (address, life) = (world.ends[0].btl.address(), world.ends[0].btl.incarnation());
    let mut stranger = world.net.attach_datagram();
    let there = Datagram::open(&mut stranger, &address, life).unwrap();
    let kinds = (1..=12).map(|number| Kind::of(number).unwrap());
    for kind in kinds {
        assert!(post(&mut stranger, there, 100 + kind as u64, kind));
    }
    let by = world.now() + Duration::from_millis(5);
    while world.now() < by {
        world.step();
    }
    let begins = [
        Kind::Frag,
        Kind::Chunk,
        Kind::Put,
        Kind::Get,
        Kind::Atomic,
        Kind::Ping,
        Kind::Call,
    ];
    let expected = begins.map(|kind| Caller(100 + kind as u128));
    assert_eq!(told(&mut world.ends[0]), expected);
    assert_eq!(world.ends[0].btl.counters().dropped_unknown, 12);
}

/// Nonsense evicts no caller that calls again, and takes no memory.
#[test]
fn a_flood_of_nonsense_does_not_hide_a_caller() {
    let mut world = apart(10, 2, rings(RACK), &BtlConfig::default());
    let (address, life) = (world.ends[1].btl.address(), world.ends[1].btl.incarnation());
    let mut attacker = world.net.attach_datagram();
    let there = Datagram::open(&mut attacker, &address, life).unwrap();
    let to = world.open(0, 1);
    world.ends[0].try_send(to, b"in the crowd").unwrap();
    world.ends[0].flush();
    let caller = name(&world, 1, 0);
    let (mut connection, mut nonsense) = (0, 0);
    world.until("it arrives", Duration::from_secs(5), |world| {
        (0..200).for_each(|_| connection += u64::from(post(&mut attacker, there, connection, Kind::Frag)));
        let told = told(&mut world.ends[1]);
        assert!(told.len() <= 64, "{} at once", told.len());
        if told.contains(&caller) {
            world.open(1, 0);
        }
        nonsense += told.iter().filter(|who| **who != caller).count();
        world.ends[1].sink.total() == 1
    });
    assert!(nonsense > 1000, "{nonsense} of {connection} were reported");
}

/// Names are of this job, this life of both ends, and this kind of rail.
#[test]
fn a_name_is_of_one_life_of_both_ends() {
    let mut world = apart(11, 3, rings(RACK), &BtlConfig::default());
    let (address, life) = (world.ends[0].btl.address(), world.ends[0].btl.incarnation());
    let before = name(&world, 1, 0);
    assert_eq!(before, name(&world, 1, 0));
    let other = world.ends[1].btl.caller(&address, Incarnation(life.0 ^ 1));
    assert_ne!(Some(before), other);
    assert_ne!(before, name(&world, 2, 0));
    assert_ne!(before, name(&world, 0, 1));
    world.restart(1, &BtlConfig::default());
    assert_ne!(before, name(&world, 1, 0));
    let foreign = RailAddress::native("shm", [7; 16]);
    assert_eq!(world.ends[1].btl.caller(&foreign, life), None);
    let driver = world.net.attach_datagram();
    let own = driver.incarnation();
    let mut keyless = Btl::new(driver, BtlConfig::default(), own).unwrap();
    assert_eq!(keyless.caller(&address, life), None);
    assert_eq!(keyless.stranger(), None);
}

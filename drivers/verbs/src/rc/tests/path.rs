//! The way of messages: what shares a send, what is sent from where it lies, and how credits go.

use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::gid::Link;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Body, Incarnation, Message, MsgId};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Pair;
use doorbell_testing::alloc;

use super::{RcRail, Sizes, connected, counts, device_of, rail, small};
use crate::address::PortAddress;
use crate::gid::{Gid, Kind, Published};
use crate::name::Service;
use crate::sys::model;

fn send(pair: &mut Pair<RcRail>, body: &[u8]) -> MsgId {
    pair.a.send(pair.to_b, b"head", Body::Bytes(body)).unwrap()
}

#[test]
fn short_messages_that_wait_share_a_send_and_a_doorbell() {
    let mut pair = connected();
    let before = counts(&pair.a);
    for n in 0..40u8 {
        send(&mut pair, &[n; 60]);
    }
    pair.a.flush();
    let after = counts(&pair.a);
    assert_eq!(
        (after.sends - before.sends, after.doorbells - before.doorbells),
        (1, 1),
        "{after:?}"
    );
    let seen = pair.at_b.messages.len();
    pair.until("all are shown", |pair| pair.at_b.messages.len() == seen + 40);
    let order: Vec<u8> = pair.at_b.messages[seen..]
        .iter()
        .map(|(_, bytes)| bytes[4])
        .collect();
    assert_eq!(order, (0..40).collect::<Vec<u8>>());
}

#[test]
fn long_ones_leave_as_one_list_with_one_doorbell() {
    let mut pair = connected();
    let before = counts(&pair.a);
    for n in 0..4u8 {
        send(&mut pair, &vec![n; 5000]);
    }
    pair.a.flush();
    let after = counts(&pair.a);
    assert_eq!(
        (after.sends - before.sends, after.doorbells - before.doorbells),
        (4, 1),
        "{after:?}"
    );
}

#[test]
fn a_region_is_sent_from_where_it_lies_and_registered_once() {
    let mut pair = connected();
    let region = Region::new(6000).unwrap();
    let seen = pair.at_b.messages.len();
    for round in 0..5u8 {
        region.write(0, &vec![round; 6000]);
        let slice = region.slice(100, 5000).unwrap();
        let short = region.slice(0, 4000).unwrap();
        pair.a.send(pair.to_b, b"long", Body::Region(&slice)).unwrap();
        pair.a.send(pair.to_b, b"short", Body::Region(&short)).unwrap();
        let count = seen + 2 * (usize::from(round) + 1);
        pair.until("both are shown", |pair| pair.at_b.messages.len() == count);
        assert_eq!(
            pair.at_b.messages[count - 2].1,
            [b"long", &[round; 5000][..]].concat()
        );
    }
    assert_eq!((counts(&pair.a).zero_copy, pair.a.core.registrations()), (5, 1));
}

#[test]
fn a_stream_one_way_is_kept_going_by_counters_alone() {
    let mut pair = connected();
    let seen = pair.at_b.messages.len();
    let mut sent = 0;
    while sent < 2000 {
        match pair.a.send(pair.to_b, b"head", Body::Bytes(&[7; 3000])) {
            Ok(_) => sent += 1,
            Err(_) => pair.turn(),
        }
    }
    pair.until("all are shown", |pair| pair.at_b.messages.len() == seen + 2000);
    pair.until("and known to be", |pair| {
        pair.a.handed_over(pair.to_b) == pair.a.core.last_accepted(pair.to_b.0)
    });
    let (a, b) = (counts(&pair.a), counts(pair.b()));
    assert_eq!((a.rnr, a.nonsense, b.nonsense), (0, 0, 0));
    assert!(b.told > 20 && b.sends < 10, "{b:?}");
}

#[test]
fn receives_begin_few_and_grow_when_few_are_left() {
    let mut pair = connected();
    let device = device_of(pair.b());
    let begin = model::shared_receives(&device);
    assert!((24..=32).contains(&begin), "{begin}");
    // Credits are wanted, and given; then no call polls there, and they are used up.
    for _ in 0..6 {
        while pair.a.send(pair.to_b, b"head", Body::Bytes(&[7; 7000])).is_ok() {}
        (0..300).for_each(|_| pair.turn());
    }
    while pair.a.send(pair.to_b, b"head", Body::Bytes(&[7; 7000])).is_ok() {}
    (0..300).for_each(|_| pair.turn_a());
    assert_eq!(counts(pair.b()).grown, 1);
    let (promised, posted) = (pair.b().core.slots.promised, pair.b().core.slots.posted);
    assert!(promised <= posted && posted <= 64, "{promised} of {posted}");
    let last = pair.a.core.last_accepted(pair.to_b.0);
    pair.until("all are taken", |pair| pair.a.handed_over(pair.to_b) == last);
    assert_eq!(counts(&pair.a).rnr, 0);
}

#[test]
fn a_peer_that_was_forgotten_is_met_again_under_a_number_that_is_free() {
    let mut pair = connected();
    let address = pair.b().address();
    let life = pair.b().incarnation();
    let to_b = pair.to_b;
    send(&mut pair, b"never given back");
    pair.a.forget(to_b);
    pair.a.reclaim(to_b, &mut |_, _| panic!("it was dropped"));
    pair.until("the other end finds it closed", |pair| {
        std::iter::from_fn(|| pair.b().event())
            .any(|event| event.kind == EventKind::PeerDown(DownReason::Closed))
    });
    (0..50).for_each(|_| pair.turn());
    let again = pair.a.open(&address, life).unwrap();
    assert_eq!(again, to_b, "its number was free");
    pair.a.send(again, b"head", Body::Empty).unwrap();
    let to_a = pair.to_a;
    pair.until("it calls as a stranger does", |pair| {
        pair.b().stranger().is_some()
    });
    let (own, own_life) = (pair.a.address(), pair.a.incarnation());
    pair.b().forget(to_a);
    (0..50).for_each(|_| pair.turn());
    let seen = pair.at_b.messages.len();
    pair.b().open(&own, own_life).unwrap();
    pair.until("its message is shown", |pair| pair.at_b.messages.len() > seen);
}

/// An address of a port that is not there.
fn address_of_nobody(number: u32) -> RailAddress {
    address_at(number, [127, 9, 9, 9])
}

fn address_at(number: u32, [a, b, c, d]: [u8; 4]) -> RailAddress {
    let address = PortAddress {
        service: Service::Connections,
        link: Link::Ethernet,
        lid: 0,
        partition: 0xffff,
        key: number,
        pairs: [0x1000 + number, 0],
        mtu: 3,
        gids: vec![Published {
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d]),
            kind: Kind::RoceV2,
            prefix: 8,
        }],
    };
    RailAddress::native("verbs", address.to_bytes())
}

#[test]
fn a_thousand_peers_that_are_never_spoken_to_take_a_quarter_of_a_kibibyte_each() {
    const PEERS: u32 = 1000;
    let sizes = Sizes {
        peers: PEERS as usize,
        ..small()
    };
    let (mut rail, _) = rail(sizes);
    let addresses: Vec<RailAddress> = (0..PEERS).map(address_of_nobody).collect();
    let before = alloc::of_thread().held;
    for address in &addresses {
        rail.open(address, Incarnation(1)).unwrap();
    }
    let each = (alloc::of_thread().held - before) / i64::from(PEERS);
    assert!(each <= 256, "{each} bytes for each peer");
}

#[test]
fn messages_of_one_send_that_are_taken_one_by_one_are_all_known_to_be() {
    let mut pair = connected();
    for n in 0..40u8 {
        send(&mut pair, &[n; 60]);
    }
    pair.a.flush();
    let last = pair.a.core.last_accepted(pair.to_b.0);
    // Counters are sent after each millisecond, between two messages of the send.
    for _ in 0..40 {
        pair.turn_a();
        let seen = &mut pair.at_b;
        pair.b.as_mut().unwrap().poll(1, seen);
    }
    (0..20).for_each(|_| pair.turn());
    assert_eq!(pair.a.handed_over(pair.to_b), last);
}

#[test]
fn many_connections_are_begun_a_few_at_a_time_without_a_pause() {
    let sizes = Sizes { peers: 16, ..small() };
    let (mut rail, _) = rail(sizes);
    for number in 0..16 {
        let peer = rail.open(&address_of_nobody(number), Incarnation(1)).unwrap();
        rail.send(peer, b"head", Body::Empty).unwrap();
    }
    rail.flush();
    let now = Time::ZERO + Duration::from_millis(1);
    let begun = |rail: &RcRail| model::connection_numbers(&device_of(rail)).len();
    // Each takes calls of the kernel, and a pass must not take long.
    for pass in 1..=4 {
        rail.progress(now);
        assert_eq!(begun(&rail), 4 * pass);
        assert_eq!(rail.next_deadline() == Some(now), pass < 4);
    }
}

/// Calls of the kernel that may wait are made a few at a time, and only for neighbours that it knows.
#[test]
fn progress_never_waits_for_more_than_five_milliseconds() {
    const PEERS: u32 = 24;
    let sizes = Sizes {
        receives: (512, 1024),
        peers: 2 * PEERS as usize,
        ..small()
    };
    let (mut hub, life) = rail(sizes);
    let device = device_of(&hub);
    let opened = model::resolved(&device).0;
    let mut others: Vec<RcRail> = (0..PEERS)
        .map(|number| {
            let (mut other, its) = rail(small());
            let to_hub = other.open(&hub.address(), life).unwrap();
            let to_other = hub.open(&other.address(), its).unwrap();
            // Half of them call, and half are called; the neighbours behind a router never answer.
            match number % 2 {
                0 => other.send(to_hub, b"hello", Body::Empty).unwrap(),
                _ => hub.send(to_other, b"hello", Body::Empty).unwrap(),
            };
            let silent = address_at(number, [198, 51, 100, number as u8 + 1]);
            let silent = hub.open(&silent, Incarnation(1)).unwrap();
            hub.send(silent, b"hello", Body::Empty).unwrap();
            other
        })
        .collect();
    let mut seen = super::credits::Count::default();
    let mut now = Time::ZERO;
    let mut longest = (0, Duration::ZERO);
    for turn in 0..2000 {
        now += Duration::from_millis(1);
        if turn == 1000 {
            // Every way may be another one.
            model::raise_port(&device, crate::sys::numbers::EVENT_SM_CHANGE);
        }
        let before = model::resolved(&device);
        hub.progress(now);
        let after = model::resolved(&device);
        longest.0 = longest.0.max(after.0 - before.0);
        longest.1 = longest.1.max(after.1 - before.1);
        hub.poll(1000, &mut seen);
        for other in &mut others {
            other.progress(now);
            other.poll(16, &mut seen);
        }
    }
    assert_eq!(seen.0, PEERS as usize, "all are met");
    assert!(longest.1 <= Duration::from_millis(5), "{longest:?}");
    assert!((1..=8).contains(&longest.0), "{longest:?}");
    // A handle and a connection for each, and another handle.
    assert_eq!(model::resolved(&device).0 - opened, 3 * u64::from(PEERS));
}

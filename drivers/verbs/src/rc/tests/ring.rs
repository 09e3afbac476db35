//! Rings: which peers get one, what is shown of them in which order, holes, torn slots, lies, sleep and ends.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::memory::{Region, Room};
use doorbell_fabric::message::{
    Arrivals, Between, Body, Inbound, Look, Message, OpError, OpId, PeerIndex, Watch,
};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::{Apart, Pair};
use doorbell_testing::random::Random;

use super::{RcRail, connect, counts, device_of, pair_of, rail_over, small};
use crate::config::RingUse;
use crate::ports::fake::everything;
use crate::rc::core::Sizes;
use crate::rc::head::{Head, ring_flags};
use crate::rc::ring::layout::{LONGEST, RING, SLOT, TAIL, Tail, lap, place, start};
use crate::rc::ring::{self, Turn};
use crate::sys::model::{self, Fault, LateWrite};
use crate::sys::numbers;

/// Rings as soon as a message has come.
fn sizes(uses: RingUse) -> Sizes {
    Sizes {
        ring: ring::Sizes {
            uses,
            after: 1,
            ..ring::Sizes::default()
        },
        ..small()
    }
}

fn pair() -> Apart<RcRail> {
    pair_with(RingUse::On, RingUse::On, false)
}

fn pair_with(a: RingUse, b: RingUse, in_order: bool) -> Apart<RcRail> {
    let rail = |uses| rail_over(everything(), sizes(uses), |spec| spec.in_order = in_order);
    pair_of(rail(a), rail(b))
}

mod contract {
    use super::pair;
    doorbell_sim::message_conformance!(pair);
}

/// Two ends with a ring each.
fn ringed() -> Pair<RcRail> {
    let mut pair = connect(pair());
    settle(&mut pair);
    assert_eq!((counts(&pair.a).rings, counts(pair.b()).rings), (1, 1));
    pair
}

fn settle(pair: &mut Pair<RcRail>) {
    (0..60).for_each(|_| pair.turn());
}

fn send(pair: &mut Pair<RcRail>, bytes: &[u8]) {
    pair.a.send(pair.to_b, b"", Body::Bytes(bytes)).unwrap();
}

/// One send of its own.
fn flushed(pair: &mut Pair<RcRail>, bytes: &[u8]) {
    send(pair, bytes);
    pair.a.flush();
}

fn shown(pair: &Pair<RcRail>, from: usize) -> Vec<Vec<u8>> {
    let shown = pair.at_b.messages[from..].iter();
    shown.map(|(_, bytes)| bytes.clone()).collect()
}

fn downs(pair: &mut Pair<RcRail>, at_a: bool) -> Vec<DownReason> {
    let mut about = Vec::new();
    if at_a {
        let of_peer = |event: &&doorbell_fabric::event::RailEvent| event.scope == Scope::Peer(pair.to_b);
        about.extend(pair.events.iter().filter(of_peer).copied());
    } else {
        about.extend(std::iter::from_fn(|| pair.b().event()));
    }
    let down = |event: doorbell_fabric::event::RailEvent| match event.kind {
        EventKind::PeerDown(reason) => Some(reason),
        _ => None,
    };
    about.into_iter().filter_map(down).collect()
}

/// Keeps what `a` writes to the ring of `b`; counters arrive as they are written.
fn hold_writes(pair: &Pair<RcRail>) {
    model::put_off_writes(&device_of(&pair.a), Some(32));
}

fn late(pair: &Pair<RcRail>) -> Vec<LateWrite> {
    model::late_writes(&device_of(&pair.a))
}

fn arrive(write: &LateWrite) {
    assert!(model::arrive(write, 0..write.bytes.len()));
}

#[test]
fn short_messages_go_through_the_ring_and_long_ones_through_the_queue() {
    let mut pair = ringed();
    let before = (counts(&pair.a), counts(pair.b()));
    let from = pair.at_b.messages.len();
    let region = Region::new(5000).unwrap().whole();
    // The longest send of a ring has a head, a length and this.
    for length in [0, 8, 200, LONGEST - 18, LONGEST - 17, 5000] {
        pair.a
            .send(pair.to_b, b"", Body::Bytes(&vec![7; length]))
            .unwrap();
        pair.a.flush();
    }
    pair.a.send(pair.to_b, b"far", Body::Region(&region)).unwrap();
    pair.until("all are shown", |pair| pair.at_b.messages.len() == from + 7);
    let lengths: Vec<usize> = shown(&pair, from).iter().map(Vec::len).collect();
    assert_eq!(lengths, [0, 8, 200, LONGEST - 18, LONGEST - 17, 5000, 5003]);
    let after = (counts(&pair.a), counts(pair.b()));
    assert_eq!(after.0.ring - before.0.ring, 4);
    assert_eq!(after.1.ring_received - before.1.ring_received, 4);
    assert_eq!(after.0.stalls, before.0.stalls);
}

#[test]
fn a_peer_gets_a_ring_behind_its_sixteenth_message() {
    let sizes = Sizes {
        ring: ring::Sizes {
            uses: RingUse::On,
            ..ring::Sizes::default()
        },
        ..small()
    };
    let rail = || rail_over(everything(), sizes, |_| {});
    let mut pair = connect(pair_of(rail(), rail()));
    (0..14).for_each(|_| flushed(&mut pair, b"short"));
    settle(&mut pair);
    assert_eq!(counts(pair.b()).rings, 0, "it has sent fifteen");
    flushed(&mut pair, b"short");
    settle(&mut pair);
    assert_eq!((counts(&pair.a).rings, counts(pair.b()).rings), (0, 1));
    flushed(&mut pair, b"short");
    settle(&mut pair);
    assert_eq!(counts(&pair.a).ring, 1);
}

#[test]
fn auto_follows_what_the_library_reports() {
    use RingUse::{Auto, Off, On};
    for (a, b, in_order, ours, theirs) in [
        (Auto, Auto, false, 0, 0),
        (Auto, Auto, true, 1, 1),
        (On, On, false, 1, 1),
        (Off, Off, true, 0, 0),
        // One that wants none gives none, and uses none.
        (Off, On, true, 0, 1),
        (Auto, On, false, 0, 1),
    ] {
        let mut pair = connect(pair_with(a, b, in_order));
        let to_a = pair.to_a;
        for _ in 0..3 {
            settle(&mut pair);
            send(&mut pair, b"there");
            pair.b().send(to_a, b"back", Body::Empty).unwrap();
        }
        settle(&mut pair);
        let at = format!("{a:?} and {b:?}, in order: {in_order}");
        let rings = (counts(&pair.a).rings, counts(pair.b()).rings);
        assert_eq!(rings, (ours, theirs), "{at}");
        assert_eq!(counts(&pair.a).ring > 0, theirs > 0 && a != Off, "{at}");
        assert_eq!(counts(pair.b()).ring > 0, ours > 0, "{at}");
        assert_eq!(pair.at_b.messages.len(), 4);
    }
}

#[test]
fn a_library_without_the_call_has_no_order() {
    let number = super::fresh();
    let name = super::device(number);
    let mut spec = model::Spec::new(&name, [127, 4, (number >> 8) as u8, number as u8]);
    spec.in_order = true;
    let mut library = model::library(spec);
    model::forget_data_in_order(&mut library);
    let source = crate::ud::open::Source {
        library,
        tree: everything(),
    };
    let config = crate::config::VerbsConfig::default();
    let rail = format!("verbs:{name}:1").parse().unwrap();
    let mut old = RcRail::open_from(&rail, &config, sizes(RingUse::Auto), &source).unwrap();
    old.set_key(&[7; 32]);
    let life = old.incarnation();
    let other = rail_over(everything(), sizes(RingUse::Auto), |spec| spec.in_order = true);
    let mut pair = connect(pair_of((old, life), other));
    settle(&mut pair);
    assert_eq!((counts(&pair.a).rings, counts(pair.b()).rings), (0, 1));
}

#[test]
fn memory_of_rings_counts_where_there_may_be_some() {
    let with = |uses| {
        let config = crate::config::VerbsConfig {
            ring: uses,
            ring_peers: 5,
            ..crate::config::VerbsConfig::default()
        };
        Sizes::of(&config).locked()
    };
    assert_eq!(with(RingUse::On) - with(RingUse::Off), 5 * RING);
    assert_eq!(with(RingUse::Auto), with(RingUse::On));
}

#[test]
fn order_holds_across_ring_and_queue() {
    let mut pair = ringed();
    let from = pair.at_b.messages.len();
    let mut sent: Vec<Vec<u8>> = Vec::new();
    for n in 0..600u32 {
        // Short, long, several in one send, and more than there is room for.
        let length = [4, 30, 3000, 900, 4, 1500][(n / 3) as usize % 6];
        let mut bytes = n.to_le_bytes().to_vec();
        bytes.resize(length, n as u8);
        while pair
            .a
            .send(pair.to_b, &bytes[..4], Body::Bytes(&bytes[4..]))
            .is_err()
        {
            pair.turn();
        }
        sent.push(bytes);
        if n % 5 > 1 {
            pair.a.flush();
        }
        if n % 9 == 0 {
            pair.turn();
        }
    }
    pair.until("all are shown", |pair| pair.at_b.messages.len() == from + 600);
    assert_eq!(shown(&pair, from), sent);
    let counted = counts(&pair.a);
    assert!(counted.ring > 50 && counted.sends > 100, "{counted:?}");
    assert!(counts(pair.b()).ring_received == counted.ring);
}

#[test]
fn laps_of_a_long_stream_wrap() {
    let mut pair = ringed();
    let (to_a, to_b) = (pair.to_a.index(), pair.to_b.index());
    // Both ends as after many laps.
    let laps = u32::MAX - 1;
    pair.b().core.rings.of(to_a as u32).unwrap().begin_with(laps);
    let link = pair.a.core.peers[to_b].link.as_mut().unwrap();
    link.ring.as_mut().unwrap().begin_with(laps);
    let from = pair.at_b.messages.len();
    for n in 0..80u32 {
        flushed(&mut pair, &n.to_le_bytes());
        if n % 7 == 0 {
            pair.turn();
        }
    }
    pair.until("all are shown", |pair| pair.at_b.messages.len() == from + 80);
    let sent: Vec<Vec<u8>> = (0..80u32).map(|n| n.to_le_bytes().to_vec()).collect();
    assert_eq!(shown(&pair, from), sent);
}

#[test]
fn no_more_peers_than_are_set_have_a_ring_and_one_that_ends_makes_room() {
    let sizes = Sizes {
        ring: ring::Sizes {
            peers: 2,
            ..sizes(RingUse::On).ring
        },
        ..small()
    };
    let (mut hub, life) = rail_over(everything(), sizes, |_| {});
    let mut others: Vec<_> = (0..4)
        .map(|_| {
            let (mut other, its) = rail_over(everything(), sizes, |_| {});
            let to_hub = other.open(&hub.address(), life).unwrap();
            let to_other = hub.open(&other.address(), its).unwrap();
            (other, to_hub, to_other)
        })
        .collect();
    let (mut now, mut seen) = (Time::ZERO, super::credits::Count::default());
    let mut turns = |hub: &mut RcRail, others: &mut Vec<(RcRail, PeerIndex, PeerIndex)>, count| {
        for _ in 0..count {
            now += Duration::from_millis(1);
            hub.progress(now);
            hub.poll(64, &mut seen);
            for (other, ..) in others.iter_mut() {
                other.progress(now);
                other.poll(64, &mut super::credits::Count::default());
            }
        }
        seen.0
    };
    let mut all = |hub: &mut RcRail, others: &mut Vec<(RcRail, PeerIndex, PeerIndex)>| {
        for (other, to_hub, _) in others.iter_mut() {
            other.send(*to_hub, b"hello", Body::Empty).unwrap();
        }
        turns(hub, others, 400)
    };
    all(&mut hub, &mut others);
    assert_eq!(counts(&hub).rings, 2);
    assert_eq!(all(&mut hub, &mut others), 8, "the others use the queue");
    let through = |others: &Vec<(RcRail, PeerIndex, PeerIndex)>| {
        let rings = others.iter().map(|(other, ..)| counts(other).ring > 0);
        rings.collect::<Vec<_>>()
    };
    let before = through(&others);
    assert_eq!(before.iter().filter(|uses| **uses).count(), 2);
    let first = before.iter().position(|uses| *uses).unwrap();
    let (_, _, to_other) = others.remove(first);
    hub.forget(to_other);
    all(&mut hub, &mut others);
    assert_eq!(counts(&hub).rings, 3, "one of those that waited");
    all(&mut hub, &mut others);
    assert_eq!(through(&others).iter().filter(|uses| **uses).count(), 2);
}

#[test]
fn a_ring_that_is_never_empty_delays_no_end_of_another_peer() {
    let sizes = sizes(RingUse::On);
    let (mut hub, life) = rail_over(everything(), sizes, |_| {});
    let mut others: Vec<_> = (0..2)
        .map(|_| {
            let (mut other, its) = rail_over(everything(), sizes, |_| {});
            let to_hub = other.open(&hub.address(), life).unwrap();
            (hub.open(&other.address(), its).unwrap(), other, to_hub)
        })
        .collect();
    let (mut now, mut seen) = (Time::ZERO, super::credits::Count::default());
    let mut turn = |hub: &mut RcRail, others: &mut Vec<(PeerIndex, RcRail, PeerIndex)>, sends: [usize; 2]| {
        now += Duration::from_millis(1);
        hub.progress(now);
        let shown = hub.poll(2, &mut seen);
        for ((_, other, to_hub), count) in others.iter_mut().zip(sends) {
            for _ in 0..count {
                other.send(*to_hub, b"short", Body::Empty).unwrap();
                other.flush();
            }
            other.progress(now);
            other.poll(64, &mut super::credits::Count::default());
        }
        shown
    };
    for sends in [[1, 1], [0, 0], [1, 1], [0, 0], [0, 4]] {
        (0..30).for_each(|at| {
            turn(&mut hub, &mut others, if at == 0 { sends } else { [0, 0] });
        });
    }
    turn(&mut hub, &mut others, [0, 8]);
    assert_eq!((counts(&hub).rings, counts(&others[1].1).ring > 8), (2, true));
    let (first, ..) = others[0];
    hub.core.end(first.0, DownReason::Abandoned);
    while hub.event().is_some() {}
    for _ in 0..4000 {
        let queued = counts(&others[1].1);
        assert_eq!(turn(&mut hub, &mut others, [0, 2]), 2, "there is always more");
        let now = counts(&others[1].1);
        assert_eq!(now.ring - queued.ring, 2, "and all of it in the ring");
        while let Some(event) = hub.event() {
            if matches!(event.kind, EventKind::PeerDown(_)) {
                return assert_eq!(event.scope, Scope::Peer(first));
            }
        }
    }
    panic!("the end is never reported");
}

#[test]
fn what_is_missing_is_waited_for_and_nothing_behind_it_is_shown() {
    let mut pair = ringed();
    let from = pair.at_b.messages.len();
    hold_writes(&pair);
    for n in 0..4u8 {
        flushed(&mut pair, &[n; 9]);
    }
    // And two over the queue, between and behind.
    pair.a.send(pair.to_b, &[4; 9], Body::Bytes(&[4; 2000])).unwrap();
    pair.a.flush();
    flushed(&mut pair, &[5; 9]);
    pair.a.send(pair.to_b, &[6; 9], Body::Bytes(&[6; 2000])).unwrap();
    pair.a.flush();
    let writes = late(&pair);
    assert_eq!(writes.len(), 5);
    let numbers = |pair: &Pair<RcRail>| -> Vec<u8> { shown(pair, from).iter().map(|m| m[0]).collect() };
    settle(&mut pair);
    assert_eq!(numbers(&pair), []);
    for (which, expected) in [
        (1, vec![]),
        (0, vec![0, 1]),
        (4, vec![0, 1]),
        (3, vec![0, 1]),
        (2, vec![0, 1, 2, 3, 4, 5, 6]),
    ] {
        arrive(&writes[which]);
        settle(&mut pair);
        assert_eq!(numbers(&pair), expected, "behind write {which}");
    }
    assert_eq!(downs(&mut pair, false), []);
    let to_a = pair.to_a.index();
    let promised = pair.b().core.peers[to_a].link.as_ref().unwrap().promised();
    assert_eq!(pair.b().core.slots.promised, promised);
}

#[test]
fn what_waits_is_not_overtaken_by_what_came_later_over_the_queue() {
    let mut pair = ringed();
    let to_a = pair.to_a.0;
    hold_writes(&pair);
    flushed(&mut pair, b"missing");
    flushed(&mut pair, &[7; 2000]);
    settle(&mut pair);
    let taken = counts(pair.b()).ring_received;
    let head = |ahead: u64| Head {
        consumed: 0.into(),
        granted: 0.into(),
        count: 1.into(),
        flags: ring_flags(taken + ahead).into(),
    };
    let ring = pair.b().core.rings.of(to_a).unwrap();
    assert_eq!(ring.turn_of(&head(1)), Turn::Later);
    assert_eq!(ring.turn_of(&head(0)), Turn::Later, "one waits");
    assert_eq!(ring.turn_of(&head(17)), Turn::Never);
    arrive(&late(&pair)[0]);
    settle(&mut pair);
    let ring = pair.b().core.rings.of(to_a).unwrap();
    assert_eq!(ring.turn_of(&head(1)), Turn::Now);
}

#[test]
fn a_torn_slot_waits_until_it_is_whole() {
    let mut pair = ringed();
    let from = pair.at_b.messages.len();
    hold_writes(&pair);
    flushed(&mut pair, &[1; 300]);
    let writes = late(&pair);
    let (write, length) = (&writes[0], writes[0].bytes.len());
    // Its end comes first, then its beginning; then all but a few bytes in between; then these.
    for part in [length - 4..length, 0..100, 100..length - 40, length - 30..length] {
        assert!(model::arrive(write, part.clone()));
        settle(&mut pair);
        assert_eq!(pair.at_b.messages.len(), from, "behind {part:?}");
    }
    assert!(model::arrive(write, length - 40..length - 30));
    pair.until("it is shown", |pair| pair.at_b.messages.len() == from + 1);
    assert_eq!(shown(&pair, from), [vec![1; 300]]);
    assert_eq!(downs(&mut pair, false), []);
}

#[test]
fn a_slot_that_stays_torn_costs_little_and_ends_the_connection() {
    for hides in [false, true] {
        let mut pair = ringed();
        let to_a = pair.to_a.0;
        hold_writes(&pair);
        flushed(&mut pair, &[1; 300]);
        let writes = late(&pair);
        let (write, length) = (&writes[0], writes[0].bytes.len());
        assert!(model::arrive(write, length - 4..length));
        let mut sink = super::credits::Count::default();
        for _ in 0..10_000 {
            pair.b().poll(64, &mut sink);
        }
        let torn = pair.b().core.rings.of(to_a).unwrap().torn();
        assert!((10..400).contains(&torn), "copied {torn} times");
        // Its end may come and go with the looks of the owner: no peer takes it back.
        let first_lap = pair.b().core.rings.of(to_a).unwrap().first_lap();
        let link = pair.a.core.peers[pair.to_b.index()].link.as_ref().unwrap();
        let at = place(link.ring.as_ref().unwrap().written() - 1) + SLOT - 4;
        let mut ends = Vec::new();
        for _ in 0..4000 {
            if let Some(ring) = pair.b().core.rings.of(to_a).filter(|_| hides) {
                ring.memory().write(at, &(first_lap - 1).to_le_bytes());
            }
            pair.turn();
            ends.extend(downs(&mut pair, false));
        }
        assert_eq!(ends, [DownReason::Abandoned], "its end goes: {hides}");
    }
}

/// Part 10 of the contract of failure: a write that failed, whose successor arrived.
#[test]
fn of_a_hole_nothing_is_shown_behind_and_all_of_it_comes_once_over_another_way() {
    let mut pair = ringed();
    let from = pair.at_b.messages.len();
    let known = pair.a.handed_over(pair.to_b).0;
    flushed(&mut pair, b"zero");
    hold_writes(&pair);
    flushed(&mut pair, b"one");
    flushed(&mut pair, b"two");
    flushed(&mut pair, b"three");
    let writes = late(&pair);
    // The second one is lost; the third one has come.
    arrive(&writes[0]);
    arrive(&writes[2]);
    let fault = Fault {
        after: 0,
        status: numbers::RETRY_EXC_ERR,
        is_carried: false,
    };
    model::fail_request(&device_of(&pair.a), fault);
    model::put_off_writes(&device_of(&pair.a), None);
    flushed(&mut pair, b"four");
    pair.until("the end is reported", |pair| !downs(pair, true).is_empty());
    settle(&mut pair);
    assert_eq!(downs(&mut pair, true), [DownReason::Silent]);
    assert_eq!(downs(&mut pair, false).len(), 1);
    let whole = [b"zero".to_vec(), b"one".to_vec()];
    assert_eq!(shown(&pair, from), whole, "what is whole and in sequence");
    let taken = pair.a.handed_over(pair.to_b).0;
    let mut given = Vec::new();
    pair.a
        .reclaim(pair.to_b, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
    let sent: [&[u8]; 5] = [b"zero", b"one", b"two", b"three", b"four"];
    let expected: Vec<(u64, Vec<u8>)> = (known + 1..)
        .zip(sent.map(<[u8]>::to_vec))
        .filter(|(id, _)| *id > taken)
        .collect();
    assert_eq!(given, expected, "the rest is given back");
    assert_eq!(pair.a.core.free_slots(), 64, "every slot came back");
    assert_eq!((pair.b().core.slots.promised, pair.b().core.rings.len()), (0, 0));
    // What is late reaches nothing any more: its memory is not registered.
    pair.b().core.destroyer.finish();
    assert!(!model::arrive(&writes[1], 0..writes[1].bytes.len()));
    // Another way, here another life: the layer above drops what it has seen, by its numbers.
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    pair.until("the next one is up", |pair| {
        pair.a.revive(to_b);
        pair.b().revive(to_a);
        pair.a.core.is_up(to_b.0)
    });
    for (_, bytes) in given.iter().filter(|(_, bytes)| !whole.contains(bytes)) {
        flushed(&mut pair, bytes);
    }
    settle(&mut pair);
    assert_eq!(
        shown(&pair, from),
        sent.map(<[u8]>::to_vec),
        "each once, in order"
    );
}

#[test]
fn a_hole_that_is_never_filled_ends_the_connection() {
    for by_queue in [false, true] {
        let mut pair = ringed();
        hold_writes(&pair);
        flushed(&mut pair, b"lost");
        if by_queue {
            pair.a.send(pair.to_b, b"long", Body::Bytes(&[7; 2000])).unwrap();
            pair.a.flush();
        } else {
            flushed(&mut pair, b"there");
            arrive(&late(&pair)[1]);
        }
        let (from, mut ends) = (pair.at_b.messages.len(), Vec::new());
        for _ in 0..4000 {
            pair.turn();
            ends.extend(downs(&mut pair, false));
        }
        assert_eq!(ends, [DownReason::Abandoned], "by the queue: {by_queue}");
        assert_eq!(pair.at_b.messages.len(), from);
        pair.b().core.slots.refill(true);
        let slots = &pair.b().core.slots;
        assert_eq!((slots.posted, slots.promised), (32, 0), "no slot is lost");
    }
}

#[test]
fn an_owner_that_does_not_poll_has_no_hole() {
    let mut pair = ringed();
    (0..6u8).for_each(|n| flushed(&mut pair, &[n]));
    let (from, mut now) = (pair.at_b.messages.len(), pair.b().core.now);
    for _ in 0..400 {
        now += Duration::from_millis(10);
        pair.b().progress(now);
    }
    pair.until("all are shown", |pair| pair.at_b.messages.len() == from + 6);
    assert_eq!(downs(&mut pair, false), []);
}

/// Takes one message at a time, and spoils the ring before each.
struct Spoil<'a>(&'a mut dyn FnMut(), Vec<Vec<u8>>);

impl Arrivals for Spoil<'_> {
    fn message(&mut self, _: PeerIndex, arrived: Inbound<'_>) {
        (self.0)();
        let mut bytes = vec![0; arrived.len()];
        arrived.copy_to(0, &mut bytes);
        self.1.push(bytes);
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

#[test]
fn a_slot_that_is_rewritten_while_its_messages_are_shown_changes_none_of_them() {
    let mut pair = ringed();
    for n in 0..3u8 {
        send(&mut pair, &[n; 20]);
    }
    pair.a.flush();
    let to_a = pair.to_a.0;
    let memory = pair.b().core.rings.of(to_a).unwrap().memory().clone();
    let mut spoil = || {
        memory.write(0, &[0xee; RING]);
    };
    let mut sink = Spoil(&mut spoil, Vec::new());
    for _ in 0..3 {
        assert_eq!(pair.b().poll(1, &mut sink), 1);
    }
    assert_eq!(sink.1, [[0; 20], [1; 20], [2; 20]]);
}

/// Writes a send into the next slot of `a`'s ring, as a peer may that keeps to no rule.
fn forge(pair: &mut Pair<RcRail>, send: &[u8], queued: i32) {
    let (to_a, to_b) = (pair.to_a.index(), pair.to_b);
    let link = pair.b().core.peers[to_a].link.as_ref().unwrap();
    let sent = link.ring.as_ref().unwrap().written();
    let link = pair.a.core.peers[to_b.index()].link.as_ref().unwrap();
    let queued = (link.queued_here() as u32).wrapping_add_signed(queued);
    let ring = pair.a.core.rings.of(to_b.0).unwrap();
    let bytes = doorbell_fabric::memory::SharedBytes::of(send);
    let tail = Tail::of(bytes, queued, lap(ring.first_lap(), sent));
    let at = place(sent);
    ring.memory().write(at + start(send.len()), send);
    ring.memory()
        .write(at + SLOT - TAIL, zerocopy::IntoBytes::as_bytes(&tail));
}

/// A send of `b` with the true numbers of its end.
fn send_of(pair: &mut Pair<RcRail>, count: u16, flags: u16, behind: &[u8]) -> Vec<u8> {
    let to_a = pair.to_a.index();
    let link = pair.b().core.peers[to_a].link.as_ref().unwrap();
    let head = Head {
        consumed: link.consumed.into(),
        granted: (link.granted() as u32).into(),
        count: count.into(),
        flags: flags.into(),
    };
    [zerocopy::IntoBytes::as_bytes(&head), behind].concat()
}

/// How the connection ends at `a`. What `b` makes of the answers is left aside.
fn ends_of_a(pair: &mut Pair<RcRail>) -> Vec<DownReason> {
    (0..100).for_each(|_| pair.turn_a());
    downs(pair, true)
}

#[test]
fn whole_slots_that_lie_are_hostile() {
    // What is behind the head, its count and flags; sends over the queue that are claimed beyond those that
    // came; how many messages are shown before.
    type Lie = (&'static [u8], u16, u16, i32, usize);
    let lies: [(Lie, &str); 9] = [
        ((b"\x03\0abc", 1, 0, 0, 1), "the truth"),
        ((b"\x03\0abc", 1, 1, 0, 1), "the truth, which wants more"),
        (
            (b"\x03\0abc", 1, 0, 1, 0),
            "the truth, of which something has not come",
        ),
        ((b"\x04\0abc", 1, 0, 0, 0), "a message that is cut"),
        ((b"\x03\0abc\x01\0", 2, 0, 0, 1), "the second one is"),
        ((b"", 0, 0, 0, 0), "a head alone"),
        ((b"\x03\0abc", 1, 8, 0, 0), "a number of the queue"),
        ((&[0; 32], 0, 1 << 15, 0, 0), "a control"),
        ((b"\x03\0abc", 1, 0, 1000, 0), "behind more than it may send"),
    ];
    for ((behind, count, flags, queued, shown), what) in lies {
        let mut pair = ringed();
        let from = pair.at_a.messages.len();
        let send = send_of(&mut pair, count, flags, behind);
        forge(&mut pair, &send, queued);
        let expected = match what.starts_with("the truth") {
            true => vec![],
            false => vec![DownReason::Hostile],
        };
        assert_eq!(ends_of_a(&mut pair), expected, "{what}");
        assert_eq!(pair.at_a.messages.len() - from, shown, "{what}");
    }
}

#[test]
fn numbers_of_the_ring_that_cannot_be_are_hostile() {
    for (ahead, is_hostile) in [(0, false), (16, false), (17, true), (4095, true)] {
        let mut pair = ringed();
        let taken = counts(&pair.a).ring_received;
        let send = send_of(&mut pair, 1, ring_flags(taken + ahead), b"\x02\0hi");
        model::inject(&device_of(&pair.a), &send);
        let expected = if is_hostile {
            vec![DownReason::Hostile]
        } else {
            vec![]
        };
        assert_eq!(ends_of_a(&mut pair), expected, "{ahead} ahead");
    }
    // A peer that was given no ring.
    let mut pair = super::connected();
    let send = send_of(&mut pair, 1, ring_flags(1), b"\x02\0hi");
    model::inject(&device_of(&pair.a), &send);
    assert_eq!(ends_of_a(&mut pair), [DownReason::Hostile]);
}

#[test]
fn counters_in_a_ring_that_jump_or_shrink_are_hostile() {
    for (consumed, granted) in [(1 << 40, 0), (0, 1 << 20), (0, u32::MAX), (u64::MAX, 0)] {
        let mut pair = ringed();
        // Numbers of one way never shrink: the truth comes before.
        let truth = send_of(&mut pair, 1, 0, b"\x02\0hi");
        let mut lie = truth.clone();
        let now = u64::from_le_bytes(lie[..8].try_into().unwrap());
        lie[..8].copy_from_slice(&now.wrapping_add(consumed).to_le_bytes());
        let now = u32::from_le_bytes(lie[8..12].try_into().unwrap());
        lie[8..12].copy_from_slice(&now.wrapping_add(granted).to_le_bytes());
        forge(&mut pair, &truth, 0);
        assert_eq!(ends_of_a(&mut pair), []);
        let to_a = pair.to_a.index();
        let link = pair.b().core.peers[to_a].link.as_mut().unwrap();
        link.ring.as_mut().unwrap().skip_one();
        forge(&mut pair, &lie, 0);
        let ends = ends_of_a(&mut pair);
        assert_eq!(ends, [DownReason::Hostile], "{consumed:x} and {granted:x} more");
    }
}

#[test]
fn every_life_has_a_ring_of_its_own() {
    let mut pair = ringed();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    hold_writes(&pair);
    flushed(&mut pair, b"of the old life");
    let old = late(&pair);
    model::put_off_writes(&device_of(&pair.a), None);
    let from = pair.at_b.messages.len();
    pair.b().abandon(to_a);
    settle(&mut pair);
    pair.b().core.destroyer.finish();
    assert!(
        !model::arrive(&old[0], 0..1),
        "its memory is not registered any more"
    );
    pair.until("the next one is up", |pair| {
        pair.a.revive(to_b);
        pair.b().revive(to_a);
        pair.a.core.is_up(to_b.0)
    });
    for n in 0..40u8 {
        flushed(&mut pair, &[n]);
        pair.turn();
    }
    pair.until("all are shown", |pair| pair.at_b.messages.len() == from + 40);
    let sent: Vec<Vec<u8>> = (0..40).map(|n| vec![n]).collect();
    assert_eq!(shown(&pair, from), sent);
    let counted = counts(pair.b());
    assert_eq!(counted.rings, 2);
    assert!(counted.ring_received > 0);
}

#[test]
fn a_look_takes_from_the_ring_what_fits() {
    let mut pair = ringed();
    let to_a = pair.to_a;
    let head = [0x0102_0304_0506_0708u64, 0x1112_1314_1516_1718];
    let mut bytes = [head[0].to_ne_bytes(), head[1].to_ne_bytes()].concat();
    bytes.extend(b"the rest");
    flushed(&mut pair, &bytes);
    let region = Region::new(64).unwrap().whole();
    let watch = Watch {
        looks: 4,
        between: Between::Pauses(1),
        answer: false,
    };
    let look = |pair: &mut Pair<RcRail>, words, room: Room<'_>| pair.b().look(to_a, words, room, watch);
    assert_eq!(look(&mut pair, [0, 0], region.room()), Look::Other);
    assert_eq!(look(&mut pair, head, region.room()), Look::Taken(8));
    assert_eq!(look(&mut pair, head, region.room()), Look::Nothing);
    let mut text = [0; 8];
    region.copy_to(0, &mut text);
    assert_eq!(&text, b"the rest");
    assert!(!pair.b().linger(3));
    flushed(&mut pair, b"more");
    assert!(pair.b().linger(3));
    let from = pair.at_b.messages.len();
    pair.until("it is kept", |pair| pair.at_b.messages.len() == from + 1);
}

#[test]
fn a_sleeper_has_its_peers_use_the_queue_until_it_is_awake() {
    let mut pair = ringed();
    let (to_a, to_b) = (pair.to_a.index(), pair.to_b.index());
    let is_paused = |pair: &Pair<RcRail>| {
        let link = pair.a.core.peers[to_b].link.as_ref().unwrap();
        link.ring.as_ref().unwrap().is_paused
    };
    let soon = |pair: &mut Pair<RcRail>| {
        let (due, now) = (pair.b().next_deadline().unwrap(), pair.b().core.now);
        due <= now + Duration::from_millis(2)
    };
    assert!(!is_paused(&pair) && soon(&mut pair), "a write raises no event");
    // It is about to sleep: the peer learns of it, and answers behind what it has written.
    flushed(&mut pair, b"before");
    while pair.b().poll(64, &mut super::credits::Count::default()) > 0 {}
    settle(&mut pair);
    assert!(matches!(pair.b().arm().unwrap(), Armed::Sleep(_)));
    assert!(soon(&mut pair), "the peer has not answered");
    pair.b().disarm();
    let through = counts(&pair.a).ring;
    settle(&mut pair);
    assert!(is_paused(&pair) && !soon(&mut pair));
    flushed(&mut pair, b"asleep");
    assert_eq!(counts(&pair.a).ring, through, "over the queue");
    let from = pair.at_b.messages.len();
    pair.until("it is shown", |pair| pair.at_b.messages.len() == from + 1);
    // Much comes, and it does not sleep.
    for _ in 0..20 {
        (0..20).for_each(|n| flushed(&mut pair, &[n]));
        settle(&mut pair);
    }
    assert!(!is_paused(&pair));
    assert!(counts(&pair.a).ring > through);
    let sleeps = pair.b().core.peers[to_a].link.as_ref().unwrap().consumed;
    // While it sleeps between messages, they stay with the queue.
    for _ in 0..20 {
        let _ = pair.b().arm().unwrap();
        pair.b().disarm();
        (0..20).for_each(|n| flushed(&mut pair, &[n]));
        (0..15).for_each(|_| pair.turn());
    }
    assert!(pair.b().core.peers[to_a].link.as_ref().unwrap().consumed > sleeps);
    let _ = pair.b().arm().unwrap();
    pair.b().disarm();
    settle(&mut pair);
    assert!(is_paused(&pair));
}

#[test]
fn words_about_a_ring_that_were_never_due_are_hostile() {
    use crate::rc::onesided::wire::Control;
    use crate::rc::ring::wire::{Offer, Word};
    let offer = Offer {
        address: 0x1000,
        key: 1,
        first_lap: 1,
    };
    for (word, is_hostile) in [
        (Word::Paused, true),
        (Word::Offer(offer), true),
        (Word::Resume, false),
        (Word::Pause, false),
    ] {
        let mut pair = ringed();
        let taken = counts(&pair.a).ring_received;
        let flags = ring_flags(taken) | crate::rc::head::CONTROLS;
        let send = send_of(&mut pair, 0, flags, &Control::Ring(word).write());
        model::inject(&device_of(&pair.a), &send);
        let expected = if is_hostile {
            vec![DownReason::Hostile]
        } else {
            vec![]
        };
        assert_eq!(ends_of_a(&mut pair), expected, "{word:?}");
    }
}

#[test]
fn memory_that_is_refused_leaves_the_queue() {
    let mut pair = connect(pair_with(RingUse::On, RingUse::Off, false));
    assert_eq!(counts(pair.b()).rings, 0);
    let device = device_of(&pair.a);
    let to_a = pair.to_a;
    // One more connection of the same rail would have another ring.
    let link = pair.a.core.peers[pair.to_b.index()].link.as_mut().unwrap();
    (link.was_tried, link.ring_memory) = (false, None);
    pair.a.core.drop_ring(pair.to_b.0);
    let before = counts(&pair.a).rings;
    model::refuse_after(&device, Some(0));
    for _ in 0..3 {
        pair.b().send(to_a, b"short", Body::Empty).unwrap();
        settle(&mut pair);
    }
    model::refuse_after(&device, None);
    assert_eq!(counts(&pair.a).rings, before);
    assert!(
        pair.a
            .refusal()
            .is_some_and(|reason| reason.contains("ibv_reg_mr"))
    );
    let from = pair.at_a.messages.len();
    pair.b().send(to_a, b"over the queue", Body::Empty).unwrap();
    pair.until("it is shown", |pair| pair.at_a.messages.len() == from + 1);
}

#[test]
fn messages_over_rings_allocate_nothing() {
    let mut pair = ringed();
    let made = super::allocations::count(&mut pair, true);
    assert_eq!(made, 0);
    let counted = (counts(&pair.a), counts(pair.b()));
    assert!(
        counted.0.ring > 100 && counted.1.ring_received > 100,
        "{counted:?}"
    );
}

/// Writes come in any order and in parts, what goes over the queue comes at once, and either end may sleep:
/// every message is shown once, in order, and what is left when the connection breaks is given back.
#[test]
fn whatever_comes_when_order_holds_and_nothing_is_lost() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut pair = ringed();
        let from = pair.at_b.messages.len();
        let known = pair.a.accepted(pair.to_b).0;
        hold_writes(&pair);
        let (mut sent, mut waiting) = (Vec::new(), Vec::new());
        for n in 0..120u32 {
            let length = [4, 20, 300, 1200, 3000][random.index(5)];
            let mut bytes = n.to_le_bytes().to_vec();
            bytes.resize(length, n as u8);
            while pair.a.send(pair.to_b, b"", Body::Bytes(&bytes)).is_err() {
                // The oldest may be what everything waits for.
                waiting.extend(late(&pair));
                waiting.drain(..).for_each(|write| arrive(&write));
                pair.turn();
            }
            sent.push(bytes);
            if random.below(3) > 0 {
                pair.a.flush();
            }
            waiting.extend(late(&pair));
            if !waiting.is_empty() && random.below(2) == 0 {
                let write: LateWrite = waiting.swap_remove(random.index(waiting.len()));
                let middle = random.index(write.bytes.len());
                assert!(model::arrive(&write, middle..write.bytes.len()));
                pair.turn();
                assert!(model::arrive(&write, 0..middle));
            }
            match random.below(40) {
                0 => {
                    let _ = pair.b().arm().unwrap();
                    pair.b().disarm();
                }
                1..8 => pair.turn(),
                _ => {}
            }
        }
        if seed % 3 == 0 {
            // What has not come never does.
            model::break_pairs(&device_of(&pair.a));
            model::put_off_writes(&device_of(&pair.a), None);
            pair.a.send(pair.to_b, b"", Body::Empty).unwrap();
            pair.until("the end is reported", |pair| !downs(pair, true).is_empty());
            settle(&mut pair);
            let shown = shown(&pair, from);
            assert_eq!(shown, sent[..shown.len()], "seed {seed}");
            let taken = (pair.a.handed_over(pair.to_b).0 - known) as usize;
            assert!(taken <= shown.len());
            let mut given = Vec::new();
            pair.a
                .reclaim(pair.to_b, &mut |_, bytes| given.push(bytes.to_vec()));
            assert_eq!(given[..given.len() - 1], sent[taken..], "seed {seed}");
        } else {
            for _ in 0..2000 {
                waiting.extend(late(&pair));
                if !waiting.is_empty() {
                    arrive(&waiting.swap_remove(random.index(waiting.len())));
                }
                pair.turn();
            }
            assert_eq!(shown(&pair, from), sent, "seed {seed}");
            assert_eq!(downs(&mut pair, false), []);
        }
        let slots = &pair.b().core.slots;
        assert!(slots.promised <= slots.posted);
    }
}

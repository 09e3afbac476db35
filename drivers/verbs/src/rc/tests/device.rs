//! What the device and its port bring: events, and the end of the device.

use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind, RailEvent, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, Body, Exposure, Incarnation, Message, OpId, Refused, RemoteKey};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::Pair;

use super::{connect, connected, counts, device_of, pair_of, rail, rail_in, small};
use crate::ports::fake::Fake;
use crate::rc::rail::RcRail;
use crate::sys::model::{self, About};
use crate::sys::numbers;

/// What was reported about all of the rail, and about the peer.
fn about(pair: &Pair<RcRail>, scope: Scope) -> Vec<EventKind> {
    let of_scope = |event: &&RailEvent| event.scope == scope;
    let events = pair.events.iter().filter(of_scope);
    let kinds = events.map(|event| event.kind);
    let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
    kinds.filter(|kind| !doubts.contains(kind)).collect()
}

fn of_rail(pair: &Pair<RcRail>) -> Vec<EventKind> {
    about(pair, Scope::Rail)
}

/// Of the peer, since it was up first.
fn of_peer(pair: &Pair<RcRail>) -> Vec<EventKind> {
    about(pair, Scope::Peer(pair.to_b))[1..].to_vec()
}

fn turns(pair: &mut Pair<RcRail>, count: usize) {
    (0..count).for_each(|_| pair.turn());
}

/// A message each way, after both ends have tried to get back.
fn works(pair: &mut Pair<RcRail>) {
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let (at_a, at_b) = (pair.at_a.messages.len(), pair.at_b.messages.len());
    let (mut to_b_left, mut to_a_left) = (true, true);
    for _ in 0..10_000 {
        if to_b_left {
            to_b_left = pair.a.send(to_b, b"there", Body::Empty).is_err();
            pair.a.revive(to_b);
        }
        if to_a_left {
            to_a_left = pair.b().send(to_a, b"back", Body::Empty).is_err();
            pair.b().revive(to_a);
        }
        pair.turn();
        if (pair.at_a.messages.len(), pair.at_b.messages.len()) == (at_a + 1, at_b + 1) {
            return;
        }
    }
    panic!("no way back: {:?}", pair.events);
}

/// A put to memory that is exposed for it.
fn one_sided_works(pair: &mut Pair<RcRail>) {
    let (region, to_a) = (Region::new(8).unwrap(), pair.to_a);
    let exposed = Exposure::Region(region.whole());
    let remote = pair.b().expose(exposed, Access::Write, Some(to_a)).unwrap();
    let ended = pair.at_a.ended.len();
    let put = pair.a.put(pair.to_b, OpId(1), Body::Bytes(&[7; 8]), &remote);
    assert_eq!(put, Ok(()));
    pair.until("it ends", |pair| pair.at_a.ended.len() > ended);
    assert_eq!(pair.at_a.ended[ended].1, Ok(0));
    pair.b().withdraw(RemoteKey(remote.key.get()));
}

#[test]
fn a_port_that_goes_and_comes_is_reported_within_a_tenth_of_a_second() {
    let mut pair = connected();
    turns(&mut pair, 30);
    let device = device_of(&pair.a);
    model::set_state(&device, numbers::PORT_DOWN);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown]);
    assert!(!pair.a.is_link_up());
    turns(&mut pair, 1500);
    model::set_state(&device, numbers::PORT_ACTIVE);
    model::set_state(&device, numbers::PORT_ACTIVE);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown, EventKind::LinkUp]);
    works(&mut pair);
}

#[test]
fn a_device_that_fails_or_goes_leaves_nothing_within_a_tenth_of_a_second() {
    for goes in [false, true] {
        let fake = Fake::new();
        fake.plug();
        let mut pair = connect(pair_of(rail_in(fake.tree(), small()), rail(small())));
        turns(&mut pair, 30);
        let device = device_of(&pair.a);
        model::hold_requests(&device, true);
        let to_b = pair.to_b;
        (0..5u8).for_each(|n| {
            pair.a.send(to_b, &[n], Body::Bytes(&[n; 3000])).unwrap();
        });
        pair.a.flush();
        (5..20u8).for_each(|n| {
            pair.a.send(to_b, &[n], Body::Bytes(&[n; 3000])).unwrap();
        });
        match goes {
            false => model::raise(&device, numbers::EVENT_DEVICE_FATAL),
            true => fake.unplug(),
        }
        turns(&mut pair, 100);
        assert_eq!(of_rail(&pair), [EventKind::DeviceGone]);
        assert_eq!(model::outcome(&device).1, 0, "objects of the device");
        // What it had accepted goes by another way.
        assert_eq!(pair.a.send(to_b, b"", Body::Empty), Err(Refused::PeerDown));
        let mut numbers = Vec::new();
        pair.a.reclaim(to_b, &mut |_, bytes| {
            assert_eq!(bytes, vec![bytes[0]; 3001]);
            numbers.push(bytes[0]);
        });
        assert_eq!(numbers, (0..20).collect::<Vec<u8>>());
        let address = pair.b().address();
        let refused = pair.a.open(&address, Incarnation(1)).unwrap_err();
        assert!(refused.to_string().contains("device is gone"));
        pair.a.revive(to_b);
        pair.a.abandon(to_b);
        assert!(pair.a.arm().is_ok() && pair.a.next_deadline().is_none());
        turns(&mut pair, 1000);
        assert_eq!(of_rail(&pair), [EventKind::DeviceGone], "once");
        let now = pair.a.core.now;
        assert!(pair.a.close(now, now));
    }
}

#[test]
fn an_event_of_a_queue_pair_ends_its_connection_alone() {
    for event in [
        numbers::EVENT_QP_FATAL,
        numbers::EVENT_QP_REQ_ERR,
        numbers::EVENT_QP_ACCESS_ERR,
        numbers::EVENT_PATH_MIG_ERR,
    ] {
        let mut pair = connected();
        let device = device_of(&pair.a);
        model::raise_about(&device, event, About::Former);
        turns(&mut pair, 100);
        assert_eq!(of_peer(&pair), [], "of an older life");
        model::raise_about(&device, event, About::Pairs);
        turns(&mut pair, 100);
        assert_eq!(of_peer(&pair), [EventKind::PeerDown(DownReason::Abandoned)]);
        assert_eq!(of_rail(&pair), []);
        works(&mut pair);
    }
}

#[test]
fn events_that_mean_nothing_are_counted_and_harmless() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    model::raise_about(&device, numbers::EVENT_COMM_EST, About::Pairs);
    model::raise_about(&device, numbers::EVENT_QP_LAST_WQE_REACHED, About::Pairs);
    // Of queues of an older life.
    model::raise_about(&device, numbers::EVENT_CQ_ERR, About::Former);
    // Of a queue of a kind that a rail has none of.
    model::raise_about(&device, numbers::EVENT_WQ_FATAL, About::Former);
    turns(&mut pair, 100);
    assert_eq!((counts(&pair.a).other_events, counts(&pair.a).renewed), (0, 0));
    for event in [5, 6, 20, 1000, -1] {
        model::raise(&device, event);
    }
    turns(&mut pair, 100);
    assert_eq!(counts(&pair.a).other_events, 5);
    assert_eq!((of_peer(&pair), of_rail(&pair)), (vec![], vec![]));
    works(&mut pair);
}

#[test]
fn few_receives_that_are_left_grow_to_their_limit_which_is_counted() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    for (grown, at_limit) in [(1, 0), (1, 1), (1, 2)] {
        model::raise_about(&device, numbers::EVENT_SRQ_LIMIT_REACHED, About::Shared);
        turns(&mut pair, 30);
        let counted = counts(&pair.a);
        assert_eq!((counted.grown, counted.at_limit), (grown, at_limit));
    }
    works(&mut pair);
}

#[test]
fn a_connection_that_something_comes_over_is_established_at_the_other_end() {
    // Nothing of the other end's comes behind its call, neither a frame nor over the connection.
    for comes in [false, true] {
        let mut pair = super::pair().connect();
        let (device, other) = (device_of(&pair.a), device_of(pair.b()));
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        // Both call, and the other end's call arrives alone.
        model::mute(&device, true);
        pair.a.send(to_b, b"hello", Body::Empty).unwrap();
        pair.b().send(to_a, b"hello", Body::Empty).unwrap();
        while count(pair.b(), "contact_sent") == 0 {
            pair.turn();
        }
        model::mute(&device, false);
        model::mute(&other, true);
        model::hold_requests(&other, true);
        turns(&mut pair, 100);
        assert!(pair.a.core.is_beginning(to_b.0));
        if comes {
            model::raise_about(&device, numbers::EVENT_COMM_EST, About::Pairs);
        }
        turns(&mut pair, 100);
        let link = pair.a.core.peers[to_b.index()].link.as_ref().unwrap();
        assert_eq!(link.is_proved(), comes, "both sizes passed, or were not sent");
    }
}

#[test]
fn queues_that_fail_are_made_anew_once_a_minute() {
    for (event, about) in [
        (numbers::EVENT_CQ_ERR, About::Received),
        (numbers::EVENT_CQ_ERR, About::Sent),
        (numbers::EVENT_CQ_ERR, About::OneSidedEnded),
        (numbers::EVENT_SRQ_ERR, About::Shared),
    ] {
        let mut pair = connected();
        let device = device_of(&pair.a);
        if about == About::OneSidedEnded {
            one_sided_works(&mut pair);
        }
        let objects = model::outcome(&device).1;
        pair.a.send(pair.to_b, b"kept", Body::Empty).unwrap();
        model::raise_about(&device, event, about);
        turns(&mut pair, 100);
        assert_eq!(counts(&pair.a).renewed, 1);
        assert_eq!(of_peer(&pair), [EventKind::PeerDown(DownReason::Resources)]);
        let mut given = 0;
        pair.a.reclaim(pair.to_b, &mut |_, _| given += 1);
        assert!(given <= 2);
        works(&mut pair);
        if about == About::OneSidedEnded {
            one_sided_works(&mut pair);
        }
        // The former ones end in a thread of their own.
        pair.until("there are no more than before", |_| {
            model::outcome(&device).1 == objects
        });
        if event == numbers::EVENT_SRQ_ERR {
            // More than a minute later, it is the first time again.
            turns(&mut pair, 61_000);
            model::raise_about(&device, event, about);
            turns(&mut pair, 100);
            assert_eq!((counts(&pair.a).renewed, of_rail(&pair)), (2, vec![]));
            works(&mut pair);
        }
        model::raise_about(&device, event, about);
        turns(&mut pair, 100);
        assert_eq!(of_rail(&pair), [EventKind::DeviceGone]);
        assert_eq!(model::outcome(&device).1, 0);
    }
}

#[test]
fn queues_are_made_anew_without_a_wait_for_those_that_the_kernel_destroys() {
    let mut pair = connected();
    let (device, other) = (device_of(&pair.a), device_of(pair.b()));
    model::destroy_slowly(&device, Duration::from_secs(3));
    model::raise_about(&device, numbers::EVENT_CQ_ERR, About::Received);
    // All of them may report it.
    model::raise_about(&device, numbers::EVENT_SRQ_ERR, About::Shared);
    let start = Instant::now();
    turns(&mut pair, 40);
    model::raise_about(&device, numbers::EVENT_CQ_ERR, About::Sent);
    turns(&mut pair, 400);
    works(&mut pair);
    let taken = start.elapsed();
    assert!(
        taken < Duration::from_secs(2),
        "{taken:?}, with the former one there"
    );
    assert_eq!((counts(&pair.a).renewed, of_rail(&pair)), (1, vec![]));
    model::destroy_slowly(&device, Duration::ZERO);
    drop(pair);
    assert_eq!((model::outcome(&device).1, model::outcome(&other).1), (0, 0));
}

fn count(rail: &RcRail, wanted: &str) -> u64 {
    let mut found = 0;
    rail.each_count(&mut |name, count| {
        if name == wanted {
            found = count;
        }
    });
    found
}

#[test]
fn queues_of_contact_that_fail_are_made_again_once_a_minute() {
    // A completion queue that fails; a queue pair that fails, and cannot be set up again.
    for (event, about) in [
        (numbers::EVENT_CQ_ERR, About::DatagramsSent),
        (numbers::EVENT_CQ_ERR, About::DatagramsReceived),
        (numbers::EVENT_QP_FATAL, About::Datagrams),
    ] {
        let mut pair = connected();
        let (device, to_b) = (device_of(&pair.a), pair.to_b);
        let (objects, address) = (model::outcome(&device).1, pair.a.address());
        let fails = |pair: &mut Pair<RcRail>| {
            if about == About::Datagrams {
                model::refuse_call(&device, "modify_qp", 1);
            }
            model::raise_about(&device, event, about);
            turns(pair, 100);
        };
        fails(&mut pair);
        assert_eq!(count(&pair.a, "contact_renewed"), 1, "{about:?}");
        assert_eq!(
            (of_peer(&pair), of_rail(&pair)),
            (vec![], vec![]),
            "nothing else is"
        );
        assert_eq!(model::outcome(&device).1, objects, "no more than before");
        assert_eq!(pair.a.address(), address);
        works(&mut pair);
        // The other end learns of the queue pair that calls it, also while it calls itself.
        pair.a.abandon(to_b);
        turns(&mut pair, 50);
        works(&mut pair);
        turns(&mut pair, 61_000);
        fails(&mut pair);
        assert_eq!(count(&pair.a, "contact_renewed"), 2, "a minute later");
        works(&mut pair);
        assert_eq!(of_rail(&pair), []);
        fails(&mut pair);
        assert_eq!(of_rail(&pair), [EventKind::DeviceGone]);
        assert!(pair.a.reason().unwrap().contains("twice within a minute"));
        // Connections end in a thread of their own, which a busy machine may hold up.
        pair.until("nothing is left", |_| model::outcome(&device).1 == 0);
    }
}

#[test]
fn a_farewell_of_a_queue_pair_of_contact_that_is_another_one_is_noticed_at_once() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    model::raise_about(&device, numbers::EVENT_CQ_ERR, About::DatagramsSent);
    turns(&mut pair, 100);
    assert_eq!(count(&pair.a, "contact_renewed"), 1);
    pair.a.abandon(pair.to_b);
    turns(&mut pair, 50);
    let mut ends = Vec::new();
    while let Some(event) = pair.b().event() {
        ends.extend(matches!(event.kind, EventKind::PeerDown(_)).then_some(event.kind));
    }
    // Silence is noticed after half a second.
    assert_eq!(ends, [EventKind::PeerDown(DownReason::Abandoned)]);
    works(&mut pair);
}

#[test]
fn a_queue_pair_of_contact_that_fails_is_set_up_again_under_its_number() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    model::raise_about(&device, numbers::EVENT_QP_FATAL, About::Datagrams);
    turns(&mut pair, 100);
    let counted = ["contact_resets", "contact_renewed"].map(|name| count(&pair.a, name));
    assert_eq!(counted, [1, 0]);
    assert_eq!(counts(&pair.a).other_events, 0);
    works(&mut pair);
}

#[test]
fn a_partition_that_moves_is_followed_and_one_that_is_gone_is_named() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    model::set_partitions(&device, &[0x8001, 0xffff]);
    turns(&mut pair, 100);
    assert_eq!(of_peer(&pair), [EventKind::PeerDown(DownReason::Abandoned)]);
    assert_eq!(pair.a.core.port.1, 1);
    works(&mut pair);
    model::set_partitions(&device, &[0x8001]);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown]);
    assert!(pair.a.reason().unwrap().contains("not in the partition 0xffff"));
    turns(&mut pair, 1000);
    model::set_partitions(&device, &[0xffff]);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown, EventKind::LinkUp]);
    works(&mut pair);
}

#[test]
fn a_connection_that_is_being_made_follows_a_partition_that_moves() {
    let mut pair = super::pair().connect();
    let (to_b, device) = (pair.to_b, device_of(&pair.a));
    // The other end does not answer: the queue pair is made, and connected to nothing.
    let other = device_of(pair.b());
    model::mute(&other, true);
    pair.a.send(to_b, b"hello", Body::Empty).unwrap();
    turns(&mut pair, 60);
    assert_eq!(model::partitions_in_use(&device), [0]);
    model::set_partitions(&device, &[0x8001, 0xffff]);
    turns(&mut pair, 100);
    assert_eq!(pair.a.core.port.1, 1);
    model::mute(&other, false);
    pair.until("it is shown", |pair| pair.at_b.messages.len() == 1);
    // The first one ends in a thread of its own, which a busy machine may hold up.
    pair.until("all that is left is of the new place", |_| {
        let in_use = model::partitions_in_use(&device);
        !in_use.is_empty() && in_use.iter().all(|place| *place == 1)
    });
}

#[test]
fn an_address_that_is_taken_away_is_a_link_that_is_down() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    let address = model::addresses(&device)[0];
    model::set_addresses(&device, &[]);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown]);
    turns(&mut pair, 1000);
    model::set_addresses(&device, &[[127, 9, 9, 9], address]);
    turns(&mut pair, 100);
    assert_eq!(of_rail(&pair), [EventKind::LinkDown, EventKind::LinkUp]);
    works(&mut pair);
}

#[test]
fn a_smaller_mtu_leads_to_other_queue_pairs_without_an_event() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    model::set_mtu(&device, 2);
    turns(&mut pair, 1500);
    assert_eq!(of_rail(&pair), [], "no link goes down for it");
    works(&mut pair);
    assert!(
        pair.a.describe().contains("MTU of 512 bytes"),
        "{}",
        pair.a.describe()
    );
}

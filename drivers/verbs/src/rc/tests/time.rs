//! Time: suspects, what ends them, idle connections, and what housekeeping costs.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, RailEvent, Scope};
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Pair;

use super::{connected, device_of, rail, small};
use crate::rc::core::Sizes;
use crate::rc::link::{Retries, State};
use crate::rc::rail::RcRail;
use crate::sys::model;

fn about_b(pair: &Pair<RcRail>) -> Vec<EventKind> {
    let is_it = |event: &&RailEvent| event.scope == Scope::Peer(pair.to_b);
    let kinds = pair.events.iter().filter(is_it).map(|event| event.kind);
    kinds.filter(|kind| *kind != EventKind::PeerUp).collect()
}

fn turns(pair: &mut Pair<RcRail>, count: usize) {
    (0..count).for_each(|_| pair.turn());
}

#[test]
fn a_peer_that_owes_completions_is_a_suspect_until_they_come() {
    let mut pair = connected();
    turns(&mut pair, 100);
    model::hold_requests(&device_of(&pair.a), true);
    // Neither end sends: the connection is tried after half a second, and the try does not end.
    turns(&mut pair, 480);
    assert_eq!(about_b(&pair), []);
    turns(&mut pair, 220);
    assert_eq!(about_b(&pair), [EventKind::PeerSuspect]);
    model::release_requests(&device_of(&pair.a));
    turns(&mut pair, 30);
    assert_eq!(about_b(&pair), [EventKind::PeerSuspect, EventKind::PeerRecovered]);
    // A proof from before means nothing for later.
    pair.a.proved_alive(pair.to_b);
    model::hold_requests(&device_of(&pair.a), true);
    turns(&mut pair, 900);
    assert_eq!(about_b(&pair)[2..], [EventKind::PeerSuspect], "and not down");
    model::release_requests(&device_of(&pair.a));
    turns(&mut pair, 100);
    assert_eq!(about_b(&pair).last(), Some(&EventKind::PeerRecovered));
}

#[test]
fn a_suspect_that_answers_elsewhere_is_down_within_a_second() {
    for timeout in [14, 20] {
        let mut pair = connected();
        pair.a.core.sizes.retries = Retries { count: 6, timeout };
        model::hold_requests(&device_of(&pair.a), true);
        pair.a.send(pair.to_b, b"lost", Body::Empty).unwrap();
        let mut took = 0;
        let is_down = EventKind::PeerDown(DownReason::Silent);
        while !about_b(&pair).contains(&is_down) {
            pair.turn();
            pair.a.proved_alive(pair.to_b);
            took += 1;
        }
        assert!((500..1000).contains(&took), "{took} ms");
        assert_eq!(about_b(&pair), [EventKind::PeerSuspect, is_down]);
    }
}

#[test]
fn without_a_proof_the_device_has_its_time_twice() {
    let mut pair = connected();
    // 2^20 · 4.096 µs · 2 = 8.6 s.
    pair.a.core.sizes.retries = Retries {
        count: 1,
        timeout: 20,
    };
    model::hold_requests(&device_of(&pair.a), true);
    pair.a.send(pair.to_b, b"slow", Body::Empty).unwrap();
    turns(&mut pair, 10_000);
    assert_eq!(about_b(&pair), [EventKind::PeerSuspect]);
    turns(&mut pair, 9_000);
    assert_eq!(
        about_b(&pair).last(),
        Some(&EventKind::PeerDown(DownReason::Silent))
    );
}

#[test]
fn an_owner_that_computed_for_long_takes_nobody_for_silent() {
    let mut pair = connected();
    turns(&mut pair, 50);
    model::hold_requests(&device_of(&pair.a), true);
    // What is posted after a long time without a look has the time of before.
    pair.a.send(pair.to_b, b"late", Body::Empty).unwrap();
    pair.a.flush();
    let now = pair.a.core.now + Duration::from_secs(30);
    pair.a.progress(now);
    pair.a.progress(now + Duration::from_secs(30));
    assert!(pair.a.event().is_none(), "two looks prove nothing");
    model::release_requests(&device_of(&pair.a));
    pair.a.progress(now + Duration::from_secs(31));
    assert!(pair.a.event().is_none());
}

#[test]
fn a_killed_process_is_noticed_by_one_that_only_receives() {
    let mut pair = connected();
    // Its queue pairs are gone, and nothing reports it.
    pair.crash_b();
    let is_down = EventKind::PeerDown(DownReason::Silent);
    let mut took = 0;
    while !about_b(&pair).contains(&is_down) {
        pair.turn_a();
        took += 1;
    }
    assert!(took < 700, "{took} ms");
}

#[test]
fn idle_connections_are_tried_in_turn_and_few_at_a_time() {
    let sizes = Sizes {
        receives: (512, 1024),
        sends: 256,
        peers: 200,
        ..small()
    };
    let (mut hub, life) = rail(sizes);
    let small = Sizes {
        sends: 8,
        receives: (16, 16),
        peers: 1,
        ..small()
    };
    let mut others: Vec<RcRail> = (0..130)
        .map(|_| {
            let (mut other, its) = rail(small);
            let to_hub = other.open(&hub.address(), life).unwrap();
            hub.open(&other.address(), its).unwrap();
            other.send(to_hub, b"hello", Body::Empty).unwrap();
            other
        })
        .collect();
    let mut now = Time::ZERO;
    let mut seen = super::credits::Count::default();
    for _ in 0..400 {
        now += Duration::from_millis(5);
        hub.progress(now);
        hub.poll(1000, &mut seen);
        for other in &mut others {
            other.progress(now);
            other.poll(16, &mut seen);
        }
    }
    assert_eq!(seen.0, 130);
    assert_eq!(hub.core.live.len(), 130);
    now += Duration::from_millis(600);
    let mut each = Vec::new();
    for _ in 0..6 {
        let before = hub.stats().probes;
        now += Duration::from_millis(20);
        hub.progress(now);
        each.push(hub.stats().probes - before);
    }
    assert_eq!(each, [64, 64, 2, 0, 0, 0]);
    assert!(hub.core.live.iter().all(|peer| {
        let link = hub.core.peers[*peer as usize].link.as_ref().unwrap();
        link.state == State::Up
    }));
}

//! Peers that come back: given up at one end or at both, reconnected over links that lose, delay and repeat
//! frames, and never with anything of the connection before.

#![allow(clippy::needless_range_loop)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{RACK, World, rings};
use doorbell_btl::wire::Kind;
use doorbell_btl::{BtlConfig, Event, InUse};
use doorbell_fabric::event::{DownReason, EventKind, Life, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, Landing, Message, MsgId, OpError, OpId, Refused,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane, Random};

/// Where a frame has its kind.
const KIND: usize = 18;
/// Found out by silence; and by a call of the peer, which gave the old connection up.
const DOWN: EventKind = EventKind::PeerDown(DownReason::Silent);
const GIVEN_UP: EventKind = EventKind::PeerDown(DownReason::Abandoned);
const UP: EventKind = EventKind::PeerUp;

fn cut(from: u32, to: u32) -> Change {
    Change::Cut {
        plane: Plane::FIRST,
        from,
        to,
    }
}

fn heal(from: u32, to: u32) -> Change {
    Change::Heal {
        plane: Plane::FIRST,
        from,
        to,
    }
}

/// Two ends that have talked in both directions, and whose events so far are forgotten.
fn pair(seed: u64, faults: Faults, config: &BtlConfig) -> World {
    let mut world = World::new(seed, 2, rings(faults), config);
    talk(&mut world, 0, 3);
    talk(&mut world, 1, 3);
    forget(&mut world);
    world
}

fn forget(world: &mut World) {
    for end in &mut world.ends {
        end.events.clear();
        end.sink = crate::common::Sink::default();
    }
}

/// Sends messages from one end to the other, until all are taken.
fn talk(world: &mut World, from: usize, count: u64) {
    let to = world.to(from, 1 - from);
    let before = world.ends[1 - from].sink.total();
    let mut last = MsgId(0);
    for n in 0..count {
        let bytes = vec![n as u8; 40 + 700 * n as usize];
        last = world.ends[from].try_send(to, &bytes).expect("there is room");
    }
    world.ends[from].flush();
    world.until("all are known to be taken", Duration::from_secs(20), |world| {
        world.ends[from].btl.handed_over(to) == last
    });
    assert_eq!(world.ends[1 - from].sink.total(), before + count);
    assert_one_life(world);
}

/// Both ends report the connection, which is up, with the same number.
fn assert_one_life(world: &World) {
    let told = [(0, 1), (1, 0)].map(|(i, j)| world.ends[i].lives.get(&world.to(i, j)).copied());
    let [ours, theirs] = told.map(|life| life.unwrap_or(Life::FIRST));
    assert_eq!(ours, theirs, "{}", world.report());
}

/// The events of one end about the other, doubts aside.
fn told(world: &World, end: usize) -> Vec<EventKind> {
    let peer = Scope::Peer(world.to(end, 1 - end));
    let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
    let events = world.ends[end].events.iter();
    let about = events.filter(|event| event.scope == peer && !doubts.contains(&event.kind));
    about.map(|event| event.kind).collect()
}

fn is_up(world: &World, end: usize) -> bool {
    told(world, end).last() == Some(&UP)
}

fn abandon(world: &mut World, end: usize) {
    let to = world.to(end, 1 - end);
    world.ends[end].btl.abandon(to);
    assert_eq!(
        world.ends[end].btl.send(to, b"", Body::Empty),
        Err(Refused::PeerDown)
    );
}

fn revive(world: &mut World, end: usize) {
    let to = world.to(end, 1 - end);
    world.ends[end].btl.revive(to);
}

fn reclaim(world: &mut World, end: usize) -> Vec<(u64, Vec<u8>)> {
    let (to, mut given) = (world.to(end, 1 - end), Vec::new());
    world.ends[end]
        .btl
        .reclaim(to, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
    given
}

fn pass(world: &mut World, time: Duration) {
    let by = world.now() + time;
    while world.now() < by {
        world.step();
    }
}

/// Nothing is left of anything but what is kept for idle peers.
fn assert_clean(world: &mut World) {
    pass(world, Duration::from_millis(300));
    for end in &world.ends {
        let used = InUse {
            rooms: 0,
            ..end.btl.in_use()
        };
        assert_eq!(used, InUse::default(), "{}", world.report());
        assert!(end.btl.in_use().rooms <= 1);
    }
}

fn lives(world: &World, end: usize) -> u64 {
    world.ends[end].btl.counters().revivals
}

#[test]
fn given_up_at_both_ends_and_called_by_one() {
    for mac in [false, true] {
        let config = BtlConfig {
            frame_mac: mac,
            ..BtlConfig::default()
        };
        let mut world = pair(1, RACK, &config);
        for round in 0..5 {
            abandon(&mut world, 0);
            abandon(&mut world, 1);
            pass(&mut world, Duration::from_millis(50));
            assert_eq!(
                (told(&world, 0), told(&world, 1)),
                (vec![], vec![]),
                "it is known"
            );
            let start = world.now();
            revive(&mut world, round % 2);
            world.until("both are up", Duration::from_millis(20), |world| {
                is_up(world, 0) && is_up(world, 1)
            });
            assert!(
                world.now() - start < Duration::from_millis(3),
                "{}",
                world.report()
            );
            assert_eq!((told(&world, 0), told(&world, 1)), (vec![UP], vec![UP]));
            // A peer that is up is not called.
            revive(&mut world, 0);
            talk(&mut world, 0, 4);
            talk(&mut world, 1, 4);
            forget(&mut world);
            // Both gave it up once in each round, and both reported so.
            let told = [0, 1].map(|i| world.ends[i].lives[&world.to(i, 1 - i)]);
            assert_eq!(told, [Life(2 * (round as u32 + 1)); 2]);
        }
        assert_eq!((lives(&world, 0), lives(&world, 1)), (5, 5));
        assert_clean(&mut world);
    }
}

/// One end gives up, the other learns of it by the call.
#[test]
fn half_open() {
    let mut world = pair(2, RACK, &BtlConfig::default());
    let back = world.to(1, 0);
    abandon(&mut world, 0);
    assert!(world.ends[1].try_send(back, b"not taken").is_some());
    world.ends[1].flush();
    pass(&mut world, Duration::from_millis(30));
    revive(&mut world, 0);
    world.until("both are up", Duration::from_millis(30), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    assert_eq!((told(&world, 0), told(&world, 1)), (vec![UP], vec![GIVEN_UP, UP]));
    assert_eq!(world.ends[1].btl.handed_over(back), MsgId(3));
    // What was left is above the watermark until it is reclaimed.
    talk_without_watermark(&mut world);
    assert_eq!(world.ends[1].btl.handed_over(back), MsgId(3));
    assert_eq!(reclaim(&mut world, 1), [(4, b"not taken".to_vec())]);
    assert_eq!(world.ends[1].btl.handed_over(back), MsgId(5));
    assert_eq!(reclaim(&mut world, 1), []);
    talk(&mut world, 0, 4);
    assert_clean(&mut world);
}

fn talk_without_watermark(world: &mut World) {
    let (back, before) = (world.to(1, 0), world.ends[0].sink.total());
    assert!(world.ends[1].try_send(back, b"of the new life").is_some());
    world.ends[1].flush();
    pass(world, Duration::from_millis(5));
    assert_eq!(world.ends[0].sink.total(), before + 1);
}

/// Cut in one direction or in both: both ends find out by proofs of life elsewhere, and come back when it has
/// healed.
#[test]
fn after_a_cut() {
    for directions in [vec![(0, 1)], vec![(1, 0)], vec![(0, 1), (1, 0)]] {
        let mut world = pair(3, RACK, &BtlConfig::default());
        let to = [world.to(0, 1), world.to(1, 0)];
        directions.iter().for_each(|&(i, j)| world.net.change(cut(i, j)));
        for i in 0..2 {
            assert!(world.ends[i].try_send(to[i], b"into the dark").is_some());
            world.ends[i].flush();
        }
        let start = world.now();
        world.until("both are down", Duration::from_secs(1), |world| {
            (0..2).for_each(|i| world.ends[i].btl.proved_alive(to[i]));
            (0..2).all(|i| told(world, i) == [DOWN])
        });
        let took = world.now() - start;
        assert!(took < Duration::from_millis(260), "{took:?} {directions:?}");
        // Calls into the dark are lost, and nothing is reported for them.
        for i in 0..2 {
            let (before, start) = (world.ends[i].btl.counters().calls_sent, world.now());
            revive(&mut world, i);
            pass(&mut world, Duration::from_millis(100));
            let calls = world.ends[i].btl.counters().calls_sent - before;
            assert!((1..=10).contains(&calls), "{calls} since {start}");
            pass(&mut world, Duration::from_secs(3));
            assert!(
                world.ends[i].btl.counters().calls_sent - before <= 10,
                "{}",
                world.report()
            );
        }
        assert_eq!((told(&world, 0), told(&world, 1)), (vec![DOWN], vec![DOWN]));
        directions.iter().for_each(|&(i, j)| world.net.change(heal(i, j)));
        revive(&mut world, 0);
        world.until("both are up", Duration::from_millis(30), |world| {
            is_up(world, 0) && is_up(world, 1)
        });
        for i in 0..2 {
            assert_eq!(told(&world, i), [DOWN, UP], "{directions:?}");
            assert_eq!(reclaim(&mut world, i), [(4, b"into the dark".to_vec())]);
        }
        talk(&mut world, 0, 4);
        talk(&mut world, 1, 4);
        assert_clean(&mut world);
    }
}

/// Both call, at the same time or nearly so, with every call lost, doubled or delayed in turn.
#[test]
fn crossing_calls() {
    let calls = Pick::byte(KIND, Kind::Call as u8);
    let effects = [
        Effect::Lose,
        Effect::Duplicate,
        Effect::Delay(Duration::from_millis(3)),
        Effect::Delay(Duration::from_secs(2)),
        Effect::Replay(Duration::from_millis(70)),
    ];
    for apart in [0, 5, 10, 15, 20, 25, 40, 5000] {
        for effect in effects {
            for nth in [1, 2, 3] {
                let aim = Aim::nth(calls, nth, effect);
                let faults = Faults {
                    aim: Some(aim),
                    ..RACK
                };
                let mut world = pair(4, faults, &BtlConfig::default());
                abandon(&mut world, 0);
                abandon(&mut world, 1);
                revive(&mut world, 0);
                world.net.advance_to(world.now() + Duration::from_micros(apart));
                world.turn();
                revive(&mut world, 1);
                world.until("both are up", Duration::from_millis(200), |world| {
                    is_up(world, 0) && is_up(world, 1)
                });
                pass(&mut world, Duration::from_secs(3));
                let case = format!("{apart} µs apart, {effect:?}, call {nth}\n{}", world.report());
                assert_eq!((told(&world, 0), told(&world, 1)), (vec![UP], vec![UP]), "{case}");
                talk(&mut world, 0, 2);
                talk(&mut world, 1, 2);
            }
        }
    }
}

/// Late frames of an earlier incarnation match no connection of the current one.
#[test]
fn late_frames_of_a_former_life() {
    let late = Duration::from_millis(40);
    let frags = Pick {
        channel: None,
        ..Pick::byte(KIND, Kind::Frag as u8)
    };
    let aim = Aim::each(frags, Effect::Replay(late));
    let faults = Faults {
        aim: Some(aim),
        ..RACK
    };
    for rounds in [1, 3] {
        let mut world = pair(5, faults, &BtlConfig::default());
        for round in 0..rounds {
            let to = world.to(0, 1);
            for _ in 0..50 {
                assert!(world.ends[0].try_send(to, b"of this life").is_some());
            }
            world.ends[0].flush();
            world.until("they arrive", Duration::from_secs(1), |world| {
                world.ends[1].sink.total() == 50
            });
            let unknown = world.ends[1].btl.counters().dropped_unknown;
            abandon(&mut world, 0);
            revive(&mut world, 0);
            world.until("both are up", Duration::from_millis(30), |world| {
                is_up(world, 0) && is_up(world, 1)
            });
            pass(&mut world, 2 * late);
            assert_eq!(world.ends[1].sink.total(), 50, "nothing of round {round} again");
            reclaim(&mut world, 0);
            let counters = world.ends[1].btl.counters();
            assert!(counters.dropped_unknown >= unknown + 50, "{}", world.report());
            talk(&mut world, 0, 5);
            forget(&mut world);
        }
    }
}

/// Every call comes again and again, as late as it likes: what is up stays up.
#[test]
fn replayed_calls() {
    for late in [1, 20, 300, 2000] {
        let calls = Pick::byte(KIND, Kind::Call as u8);
        let aim = Aim::each(calls, Effect::Replay(Duration::from_millis(late)));
        let faults = Faults {
            aim: Some(aim),
            ..RACK
        };
        let mut world = pair(6, faults, &BtlConfig::default());
        for round in 0..4 {
            abandon(&mut world, round % 2);
            revive(&mut world, round % 2);
            world.until("both are up", Duration::from_millis(30), |world| {
                is_up(world, 0) && is_up(world, 1)
            });
            forget(&mut world);
            talk(&mut world, round % 2, 3);
        }
        pass(&mut world, Duration::from_millis(3 * late));
        assert_eq!((told(&world, 0), told(&world, 1)), (vec![], vec![]));
        talk(&mut world, 0, 3);
        assert!(
            late < 20
                || world
                    .ends
                    .iter()
                    .any(|end| end.btl.counters().dropped_unknown > 0),
            "{}",
            world.report()
        );
    }
}

/// A peer that closed the connection does not come back, nor one that was replaced by another life.
#[test]
fn some_ends_are_for_good() {
    let mut world = pair(7, RACK, &BtlConfig::default());
    let (to, by) = (world.to(0, 1), world.now() + Duration::from_secs(1));
    world.until("it has closed", Duration::from_secs(1), |world| {
        let now = world.now();
        world.ends[1].btl.close(now, by)
    });
    let closed = [EventKind::PeerDown(DownReason::Closed)];
    world.until("it is reported", Duration::from_secs(1), |world| {
        told(world, 0) == closed
    });
    revive(&mut world, 0);
    world.ends[0].btl.abandon(to);
    pass(&mut world, Duration::from_millis(200));
    assert_eq!(
        (told(&world, 0), world.ends[0].btl.counters().calls_sent),
        (closed.to_vec(), 0)
    );

    let mut world = pair(8, RACK, &BtlConfig::default());
    let old = world.to(0, 1);
    world.restart(1, &BtlConfig::default());
    let new = world.open(0, 1);
    let back = world.open(1, 0);
    assert!(world.ends[1].try_send(back, b"from the new life").is_some());
    world.ends[1].flush();
    let died = [EventKind::PeerDown(DownReason::Died)];
    world.until("the old life is over", Duration::from_secs(1), |world| {
        told(world, 0) == died
    });
    world.ends[0].btl.revive(old);
    assert_eq!(world.ends[0].btl.counters().calls_sent, 0);
    assert!(world.ends[0].try_send(new, b"hello").is_some());
}

/// The first check has failed, because no process was there yet: a call makes it good.
#[test]
fn a_peer_that_never_answered() {
    let config = BtlConfig {
        give_up: Duration::from_secs(2),
        ..BtlConfig::default()
    };
    let mut world = World::new(9, 2, rings(RACK), &config);
    world.net.change(cut(0, 1));
    let to = world.to(0, 1);
    assert!(world.ends[0].try_send(to, b"first").is_some());
    world.until("it is down", Duration::from_secs(5), |world| {
        told(world, 0) == [DOWN]
    });
    world.net.change(heal(0, 1));
    revive(&mut world, 0);
    world.until("both are up", Duration::from_millis(30), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    assert_eq!(reclaim(&mut world, 0), [(1, b"first".to_vec())]);
    talk(&mut world, 0, 3);
    talk(&mut world, 1, 3);
}

/// The way back passes small frames only: the peer stays down, and its diagnosis is the reason.
#[test]
fn a_way_that_is_not_whole_is_not_used_again() {
    let config = BtlConfig {
        connectivity_ack_timeout: Duration::from_millis(10),
        connectivity_error_num_retries: 20,
        ..BtlConfig::default()
    };
    let mut world = pair(10, RACK, &config);
    abandon(&mut world, 0);
    let faults = |mtu| Change::Faults(Plane::FIRST, Faults { mtu, ..RACK });
    world.net.change(faults(Some(1000)));
    revive(&mut world, 0);
    pass(&mut world, Duration::from_secs(1));
    assert_eq!((told(&world, 0), told(&world, 1)), (vec![], vec![GIVEN_UP]));
    let to = world.to(0, 1);
    assert_eq!(
        world.ends[0].btl.diagnosis(to),
        Some(doorbell_btl::Diagnosis::OnlySmall)
    );
    world.net.change(faults(None));
    revive(&mut world, 0);
    world.until("both are up", Duration::from_millis(100), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    talk(&mut world, 0, 3);
    assert_clean(&mut world);
}

/// Operations end, exposures to the peer are gone, and an event that was not fetched before is no news any
/// more.
#[test]
fn what_abandon_does_at_once() {
    let mut world = pair(11, RACK, &BtlConfig::default());
    let (to, back) = (world.to(0, 1), world.to(1, 0));
    let region = Region::new(9000).expect("memory for a test");
    let expose = |world: &mut World, end: usize, peer| {
        let memory = Exposure::Region(region.whole());
        world.ends[end].btl.expose(memory, Access::ReadWrite, peer)
    };
    let (whole, ours) = (
        expose(&mut world, 1, Some(back)).unwrap(),
        expose(&mut world, 0, Some(to)).unwrap(),
    );
    let btl = &mut world.ends[0].btl;
    btl.get(to, OpId(1), &whole, Landing::Region(region.whole()))
        .unwrap();
    btl.atomic(to, OpId(2), &whole.part(0, 8).unwrap(), AtomicOp::Add(1))
        .unwrap();
    btl.put(to, OpId(3), Body::Region(&region.whole()), &whole)
        .unwrap();
    btl.abandon(to);
    assert_eq!(btl.event(), None);
    world.turn();
    let mut ended = world.ends[0].sink.ended.clone();
    ended.sort_by_key(|(op, _)| op.0);
    let errors: Vec<OpError> = ended.iter().map(|(_, outcome)| outcome.unwrap_err()).collect();
    assert_eq!(errors.len(), 3, "{ended:?}");
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, OpError::NotDone | OpError::Indeterminate))
    );
    assert_eq!(expose(&mut world, 0, Some(to)), Err(Refused::PeerDown));
    revive(&mut world, 0);
    world.until("both are up", Duration::from_millis(30), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    // Neither end's memory is reached under the keys of the former life.
    for (end, peer, remote) in [(0, to, whole), (1, back, ours)] {
        let op = OpId(10 + end as u64);
        let landing = Landing::Region(region.whole());
        world.ends[end].btl.get(peer, op, &remote, landing).unwrap();
        world.until("it is refused", Duration::from_secs(1), |world| {
            world.ends[end].sink.ended.contains(&(op, Err(OpError::Denied)))
        });
    }
    assert_clean(&mut world);
}

/// The events of a suspicion, once each.
#[test]
fn a_suspicion_is_reported_once_and_withdrawn_once() {
    let mut world = pair(12, RACK, &BtlConfig::default());
    let to = world.to(0, 1);
    world.ends[1].polls = false;
    assert!(world.ends[0].try_send(to, b"hello").is_some());
    world.ends[0].flush();
    pass(&mut world, Duration::from_secs(5));
    let kinds =
        |world: &World| -> Vec<EventKind> { world.ends[0].events.iter().map(|event| event.kind).collect() };
    assert_eq!(kinds(&world), [EventKind::PeerSuspect]);
    let report = world.ends[0].btl.report(to);
    assert!(report.retries >= 3 && report.unacknowledged == 1 && report.oldest.is_some());
    assert!(
        report.waiting >= Some(Duration::from_secs(4)) && report.heard_ago >= report.waiting,
        "{report:?}"
    );
    assert!(report.acked_ago.is_some() && report.round_trip_ns.is_some() && report.link.is_none());
    world.ends[1].polls = true;
    pass(&mut world, Duration::from_secs(1));
    assert_eq!(kinds(&world), [EventKind::PeerSuspect, EventKind::PeerRecovered]);
    let report = world.ends[0].btl.report(to);
    assert_eq!((report.waiting, report.oldest, report.retries), (None, None, 0));
}

/// One proof of life elsewhere, or many at one moment, are not enough; nor are two with an answer between
/// them.
#[test]
fn a_stopped_peer_is_not_down() {
    let mut world = pair(13, RACK, &BtlConfig::default());
    let to = world.to(0, 1);
    world.ends[1].polls = false;
    assert!(world.ends[0].try_send(to, b"hello").is_some());
    world.ends[0].flush();
    pass(&mut world, Duration::from_millis(20));
    (0..10).for_each(|_| world.ends[0].btl.proved_alive(to));
    pass(&mut world, Duration::from_secs(3));
    assert_eq!(told(&world, 0), []);
    world.ends[1].polls = true;
    pass(&mut world, Duration::from_secs(1));
    // An idle peer owes nothing.
    for _ in 0..10 {
        world.ends[0].btl.proved_alive(to);
        pass(&mut world, Duration::from_millis(200));
    }
    assert_eq!(told(&world, 0), []);
    world.ends[1].polls = false;
    assert!(world.ends[0].try_send(to, b"hello").is_some());
    world.ends[0].flush();
    pass(&mut world, Duration::from_millis(20));
    world.ends[0].btl.proved_alive(to);
    pass(&mut world, Duration::from_secs(1));
    world.ends[0].btl.proved_alive(to);
    pass(&mut world, Duration::from_millis(2));
    assert_eq!(told(&world, 0), [DOWN]);
}

/// Our cable is pulled and put back: no end gave the other up, and everything goes on at once.
#[test]
fn a_link_that_comes_back_goes_on_at_once() {
    for seconds in [1, 7, 30] {
        let mut world = pair(14, RACK, &BtlConfig::default());
        let to = world.to(0, 1);
        world.net.change(Change::LinkDown(Plane::FIRST, 0));
        for n in 0..50 {
            assert!(world.ends[0].try_send(to, &[n; 900]).is_some());
        }
        world.ends[0].flush();
        pass(&mut world, Duration::from_secs(seconds));
        assert_eq!(world.ends[0].btl.report(to).link, Some(false));
        assert_eq!(world.ends[1].sink.total(), 0);
        world.net.change(Change::LinkUp(Plane::FIRST, 0));
        let events = |world: &World, kind| world.ends[0].events.iter().any(|event| event.kind == kind);
        world.until("it is reported", Duration::from_secs(1), |world| {
            events(world, EventKind::LinkUp)
        });
        let start = world.now();
        world.until("all arrive", Duration::from_secs(1), |world| {
            world.ends[1].sink.total() == 50
        });
        let took = world.now() - start;
        assert!(took < Duration::from_millis(5), "{took:?}\n{}", world.report());
        assert_eq!(world.ends[0].btl.report(to).link, Some(true));
        assert_eq!((told(&world, 0), told(&world, 1)), (vec![], vec![]));
    }
}

/// The flight recorder has the story.
#[test]
fn a_revival_leaves_its_story() {
    let mut world = pair(15, RACK, &BtlConfig::default());
    abandon(&mut world, 0);
    revive(&mut world, 0);
    world.until("both are up", Duration::from_millis(30), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    let story = |end: usize| -> Vec<Event> {
        let recorder = world.ends[end].btl.recorder();
        recorder.all().map(|room| room.event).collect()
    };
    let begun = Event::LifeBegun { ours: 1, theirs: 1 };
    assert!(story(0).contains(&Event::Called { ours: 1, theirs: 0 }) && story(0).contains(&begun));
    assert!(story(1).contains(&Event::CalledBy { life: 1, yours: 0 }) && story(1).contains(&begun));
}

/// A frame of no connection, before any peer is known.
#[test]
fn a_frame_of_no_connection_is_dropped() {
    use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
    let world = World::new(16, 1, rings(RACK), &BtlConfig::default());
    let mut stranger = world.net.attach_datagram();
    let mut world = world;
    let (address, life) = (world.ends[0].btl.address(), world.ends[0].btl.incarnation());
    let there = Datagram::open(&mut stranger, &address, life).unwrap();
    let (tx, _) = stranger.split();
    assert_eq!(tx.reserve(Channel::Data, 1), 1);
    let mut frame = [0; 60];
    frame[18..20].copy_from_slice(&[2, 1 << 4 | 4]);
    tx.post(Channel::Data, there, &frame, Body::Empty).unwrap();
    tx.doorbell();
    pass(&mut world, Duration::from_millis(5));
    assert_eq!(world.ends[0].btl.counters().dropped_unknown, 1);
}

/// One direction of a random run.
#[derive(Default)]
struct Way {
    /// The number of each message by its id, of those that were accepted and not given back.
    open: BTreeMap<u64, u64>,
    /// Numbers that were given back.
    given: BTreeSet<u64>,
    sent: u64,
    last: u64,
}

/// Abandons, calls, cuts and heals as they come, with a tenth of everything lost; then it ends well.
fn random_run(seed: u64) -> u64 {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.02,
        reorder: 0.05,
        overtake: 8,
        ..RACK
    };
    let config = BtlConfig {
        frame_mac: seed.is_multiple_of(4),
        give_up: Duration::from_secs(2),
        segments: 1024,
        max_reassemblies: 8,
        ..BtlConfig::default()
    };
    let mut world = World::new(seed, 2, rings(faults), &config);
    let mut random = Random::new(seed);
    let mut directions = [Way::default(), Way::default()];
    // Numbers that arrived, with how many times.
    let mut arrived: [BTreeMap<u64, u32>; 2] = Default::default();
    for _ in 0..400 {
        act(&mut world, &mut random, &mut directions);
        let until = world.now() + Duration::from_micros(1 + random.below(20_000));
        while world.now() < until {
            world.step();
        }
        check(&mut world, &mut directions, &mut arrived);
    }
    for (i, j) in [(0, 1), (1, 0)] {
        world.net.change(heal(i, j));
    }
    // Both may have been left down: their owners call until they are up.
    let mut calls = 0;
    let usable = |world: &mut World, i: usize| {
        let to = world.to(i, 1 - i);
        let sent = world.ends[i]
            .btl
            .send(to, &[], Body::Bytes(&u64::MAX.to_le_bytes()));
        sent.ok()
    };
    let by = world.now() + Duration::from_secs(20);
    let mut probes: [Option<MsgId>; 2] = [None; 2];
    loop {
        assert!(world.now() < by, "it does not end well\n{}", world.report());
        for i in 0..2 {
            let to = world.to(i, 1 - i);
            reclaim_into(&mut world, i, &mut directions[i]);
            let taken = probes[i].is_some_and(|id| world.ends[i].btl.handed_over(to) >= id);
            if taken && !directions[i].open.is_empty() {
                panic!(
                    "{:?} is neither taken nor given back\n{}",
                    directions[i].open,
                    world.report()
                );
            }
            match usable(&mut world, i) {
                Some(id) if !taken => probes[i] = Some(id),
                Some(_) => {}
                None => {
                    world.ends[i].btl.revive(to);
                    calls += 1;
                    probes[i] = None;
                }
            }
            world.ends[i].flush();
        }
        let until = world.now() + Duration::from_millis(100);
        while world.now() < until {
            world.step();
        }
        check(&mut world, &mut directions, &mut arrived);
        let done = |i: usize| {
            let to = world.to(i, 1 - i);
            probes[i].is_some() && world.ends[i].btl.report(to).unacknowledged == 0
        };
        if done(0) && done(1) {
            break;
        }
    }
    assert!(calls < 400, "{calls}");
    for i in 0..2 {
        for (number, times) in &arrived[1 - i] {
            assert!(*number < directions[i].sent, "{number} was never sent");
            assert_eq!(*times, 1, "seed {seed}: {number} from {i} arrived twice");
        }
        for number in 0..directions[i].sent {
            let known = arrived[1 - i].contains_key(&number) || directions[i].given.contains(&number);
            assert!(
                known,
                "seed {seed}: {number} from {i} is lost\n{}",
                world.report()
            );
        }
    }
    assert_clean(&mut world);
    assert_one_life(&world);
    lives(&world, 0) + lives(&world, 1)
}

/// One step of the story happens.
fn act(world: &mut World, random: &mut Random, ways: &mut [Way; 2]) {
    let i = random.below(2) as usize;
    let (a, b) = (i as u32, 1 - i as u32);
    match random.below(12) {
        0 => world.net.change(cut(a, b)),
        1 | 2 => world.net.change(heal(a, b)),
        3 => {
            let to = world.to(i, 1 - i);
            world.ends[i].btl.abandon(to);
        }
        4..=6 => revive(world, i),
        7 => reclaim_into(world, i, &mut ways[i]),
        8 => {
            let to = world.to(i, 1 - i);
            world.ends[i].btl.proved_alive(to);
        }
        _ => {
            let to = world.to(i, 1 - i);
            for _ in 0..random.below(20) {
                let direction = &mut ways[i];
                let mut bytes = vec![i as u8; 8 + random.below(6000) as usize];
                bytes[..8].copy_from_slice(&direction.sent.to_le_bytes());
                if let Ok(id) = world.ends[i].btl.send(to, &[], Body::Bytes(&bytes)) {
                    assert!(direction.open.insert(id.0, direction.sent).is_none() && id.0 > direction.last);
                    direction.sent += 1;
                }
            }
            world.ends[i].flush();
        }
    }
}

fn reclaim_into(world: &mut World, end: usize, way: &mut Way) {
    for (id, bytes) in reclaim(world, end) {
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        if number != u64::MAX {
            assert_eq!(way.open.remove(&id), Some(number), "given back what is open");
            assert!(way.given.insert(number));
        }
    }
}

/// The watermark only grows, and what it passes had arrived.
fn check(world: &mut World, ways: &mut [Way; 2], arrived: &mut [BTreeMap<u64, u32>; 2]) {
    for (end, arrived) in world.ends.iter_mut().zip(arrived.iter_mut()) {
        for (_, bytes) in end.sink.messages.drain(..) {
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            if number != u64::MAX {
                *arrived.entry(number).or_default() += 1;
            }
        }
    }
    for i in 0..2 {
        let (to, way) = (world.to(i, 1 - i), &mut ways[i]);
        let mark = world.ends[i].btl.handed_over(to).0;
        assert!(mark >= way.last, "{mark} after {}", way.last);
        way.last = mark;
        while let Some((&id, &number)) = way.open.first_key_value()
            && id <= mark
        {
            way.open.remove(&id);
            assert!(arrived[1 - i].contains_key(&number), "{number} was not taken");
        }
    }
}

/// Forty seeds, or as many as `DOORBELL_SEEDS` gives.
#[test]
fn whatever_happens_nothing_is_lost_and_nothing_comes_twice() {
    let asked = std::env::var("DOORBELL_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok());
    let seeds = asked.unwrap_or(40);
    let revivals: u64 = (1..=seeds).map(random_run).sum();
    println!("{revivals} revivals in {seeds} seeds");
    assert!(revivals > 10 * seeds, "{revivals} in {seeds} seeds");
}

/// When frames of the peer arrived, and when it acknowledged something, stays known while the way is down,
/// and while it comes back.
#[test]
fn a_path_that_is_down_still_reports_when_a_frame_of_its_peer_came() {
    let mut world = pair(13, RACK, &BtlConfig::default());
    let to = world.to(0, 1);
    let start = world.now();
    let since = |world: &World| Some(world.now() - start);
    let slack = Duration::from_millis(500);
    let both = |world: &World| {
        let report = world.ends[0].btl.report(to);
        [report.heard_ago, report.acked_ago]
    };
    world.net.change(cut(0, 1));
    world.net.change(cut(1, 0));
    abandon(&mut world, 0);
    abandon(&mut world, 1);
    for _ in 0..2 {
        pass(&mut world, Duration::from_secs(1));
        for ago in both(&world) {
            assert!(ago >= since(&world) && ago < since(&world).map(|most| most + slack));
        }
        // The call is lost, and changes nothing of it.
        revive(&mut world, 0);
    }
    world.net.change(heal(0, 1));
    world.net.change(heal(1, 0));
    revive(&mut world, 0);
    world.until("both are up", Duration::from_secs(1), |world| {
        is_up(world, 0) && is_up(world, 1)
    });
    let [heard, acked] = both(&world);
    assert!(heard < Some(slack), "{heard:?}");
    assert!(
        acked >= since(&world),
        "nothing was acknowledged since: {acked:?}"
    );
    talk(&mut world, 0, 1);
    let [_, acked] = both(&world);
    assert!(acked < Some(slack), "{acked:?}");
}

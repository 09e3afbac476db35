//! When segments go again: soon where something was lost, and not all of them where the peer was merely away.

use std::time::Duration;

use crate::common::{RACK, World, rings};
use doorbell_btl::BtlConfig;
use doorbell_btl::wire::Kind;
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane};

const KIND: usize = 18;
const SOON: Duration = Duration::from_secs(1);

/// Two ends that know each other's round trip.
fn acquainted() -> World {
    let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
    send(&mut world, 100, 64);
    until_taken(&mut world, 100);
    world
}

fn send(world: &mut World, count: u64, length: usize) {
    let to = world.to(0, 1);
    for _ in 0..count {
        assert!(world.ends[0].try_send(to, &vec![7; length]).is_some());
    }
    world.ends[0].flush();
}

fn until_taken(world: &mut World, count: u64) {
    use doorbell_fabric::message::Message;
    let to = world.to(0, 1);
    world.until("all are taken", SOON, |world| {
        world.ends[0].btl.handed_over(to).0 == count
    });
}

/// The number of next frames of messages from end 0 that are lost.
fn lose(world: &mut World, times: u64) {
    let frags = Pick {
        channel: None,
        ..Pick::byte(KIND, Kind::Frag as u8)
    };
    let aim = Aim {
        times,
        ..Aim::each(frags, Effect::Lose)
    };
    world.net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
        faults: Some(Faults {
            aim: Some(aim),
            ..RACK
        }),
    });
}

#[test]
fn a_peer_that_was_away_gets_the_oldest_again_and_not_all_that_is_under_way() {
    let mut world = acquainted();
    world.ends[1].polls = false;
    send(&mut world, 60, 1000);
    let back = world.now() + Duration::from_millis(1);
    world.until("it is back", SOON, |world| world.now() >= back);
    world.ends[1].polls = true;
    until_taken(&mut world, 160);
    let counters = world.ends[0].btl.counters();
    assert!((1..=8).contains(&counters.resends), "{}", world.report());
    assert_eq!(counters.resends_fast, 0, "{}", world.report());
}

#[test]
fn the_next_tail_waits_longer_where_the_peer_was_away_and_no_longer_where_something_was_lost() {
    let tails = |away: bool| {
        let mut world = acquainted();
        for n in 0..20 {
            let before = world.now();
            if away {
                world.ends[1].polls = false;
            } else {
                lose(&mut world, 1);
            }
            send(&mut world, 1, 64);
            world.until("a while", SOON, |world| {
                world.now() >= before + Duration::from_micros(150)
            });
            world.ends[1].polls = true;
            until_taken(&mut world, 101 + n);
        }
        (world.ends[0].btl.counters().resends_tail, world.report())
    };
    let (lost, report) = tails(false);
    assert!(lost >= 20, "each was found by its tail: {report}");
    let (away, report) = tails(true);
    assert!(
        away <= 40,
        "three for each at first, and then one or two: {report}"
    );
}

#[test]
fn a_busy_owner_is_requested_to_pass_the_time() {
    let mut world = acquainted();
    world.turn();
    assert!(!world.ends[0].btl.wants_time());
    send(&mut world, 40, 64);
    assert!(world.ends[0].btl.wants_time(), "it has sent much");
    let now = world.now();
    world.ends[0].btl.progress(now);
    assert!(!world.ends[0].btl.wants_time(), "and got it");
}

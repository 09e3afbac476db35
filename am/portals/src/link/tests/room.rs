//! Which path a message takes, how much may be in flight, and what waits: one story each.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{
    Access, Body, Exposure, Inbound, Incarnation, Landing, OpError, OpId, Refused, Remote, RemoteKey,
};
use doorbell_fabric::rail::Rail;

use super::air::{self, Air, CAN};
use super::stage::{PEER, Stage, TWO, can, within_host};
use super::world::{head, length};
use crate::link::in_flight::{COST, WINDOW};
use crate::link::{First, Link, LinkConfig, PeerId, Upper};

/// Takes what it is shown for what it is.
struct Deaf;

impl Upper for Deaf {
    fn message(&mut self, _: PeerId, _: First, _: Inbound<'_>) {}

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

#[test]
fn short_messages_take_the_quickest_way_and_long_ones_share_by_rate() {
    let mut stage = Stage::new(&[can(5000, 3_000_000_000), can(1000, 1_000_000_000)]);
    stage.send_short(0);
    stage.pass(30);
    let before = [stage.bytes(0), stage.bytes(1)];
    for _ in 0..20 {
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Empty, false)
            .expect("there is room");
    }
    assert_eq!(stage.bytes(0), before[0]);
    for _ in 0..200 {
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 16_000]), false)
            .expect("there is room");
    }
    let shares = [stage.bytes(0) - before[0], stage.bytes(1) - before[1]];
    let ratio = shares[0] as f64 / shares[1] as f64;
    assert!((2.5..3.5).contains(&ratio), "{shares:?}");
    // One that carries less than was estimated is given less.
    stage.ends[0].borrow_mut()[0].silent = true;
    let before = [stage.bytes(0), stage.bytes(1)];
    for _ in 0..100 {
        stage.ends[1].borrow_mut()[0].under_way.clear();
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 16_000]), false)
            .expect("there is room");
    }
    assert!(stage.bytes(1) - before[1] > 8 * (stage.bytes(0) - before[0]));
}

#[test]
fn beside_a_way_within_the_host_no_other_is_used() {
    let mut stage = Stage::new(&[CAN, within_host()]);
    stage.send(0, 200);
    stage.all_arrived();
    stage.pass(30);
    let before = stage.bytes(0);
    stage.send(0, 200);
    stage.all_arrived();
    assert_eq!(stage.bytes(0), before);
    assert_eq!(stage.links[0].sizes(PEER).get_from, Some(4096));
}

#[test]
fn after_a_failure_the_window_forgets_what_has_arrived() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    stage.ends[0].borrow_mut()[0].silent = true;
    // So many that some of them take the other way, and are not sent again.
    stage.send(0, 300);
    assert!(stage.links[0].oldest(1).is_some());
    air::tell(&stage.ends[0], 0, EventKind::PeerDown(DownReason::Silent), 0);
    stage.all_arrived();
    assert_eq!(stage.links[0].oldest(1), None);
    assert!(stage.links[0].stats().resent > 0);
}

#[test]
fn long_messages_over_another_way_do_not_fill_the_window_of_the_quick_one() {
    let mut stage = Stage::new(&[can(5000, 3_000_000_000), can(1000, 1_000_000_000)]);
    stage.send_short(0);
    stage.all_arrived();
    stage.pass(30);
    stage.send_short(0);
    stage.all_arrived();
    // One after the other: the faster way is idle each time, and takes them all. Several windows of them.
    let before = stage.bytes(1);
    for _ in 0..3 * WINDOW / 16_000 {
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 16_000]), false)
            .expect("everything before it has arrived");
        stage.links[1].poll(10, &mut Deaf);
        stage.links[0].poll(10, &mut Deaf);
    }
    assert_eq!(stage.bytes(1), before, "the story needs them on the other way");
    assert_eq!(stage.links[0].oldest(1), None);
}

#[test]
fn a_second_way_carries_nothing_before_it_is_known_to_work() {
    let mut stage = Stage::new(&TWO);
    stage.ends[1].borrow_mut()[0].silent = true;
    for _ in 0..20 {
        let sent = stage.links[0].send(PEER, &mut head(1, 0), Body::Bytes(&[0; 12_000]), false);
        assert_eq!(sent, Ok(()));
    }
    assert_eq!(stage.bytes(1), 0);
}

#[test]
fn urgent_messages_wait_in_order_up_to_a_bound_and_the_others_behind_them() {
    let config = LinkConfig {
        backlog: 100_000,
        ..LinkConfig::default()
    };
    let mut stage = Stage::with(&[CAN], config);
    stage.send(0, 10);
    stage.ends[0].borrow_mut()[0].full = true;
    assert_eq!(stage.try_send(0, false), Err(Refused::Full));
    let mut waiting = 0;
    while stage.try_send(0, true).is_ok() {
        waiting += 1;
    }
    assert!(waiting > 20 && stage.links[0].core.peers[1].fresh_bytes <= 100_000);
    assert!(!stage.links[0].room(PEER) && stage.links[0].must_poll());
    stage.ends[0].borrow_mut()[0].full = false;
    // The next one may not overtake them.
    stage.send(0, 1);
    stage.all_arrived();
    assert_eq!(stage.links[0].stats().waited, waiting);
    assert_eq!(stage.links[0].core.peers[1].fresh_bytes, 0);
}

#[test]
fn no_more_than_a_window_is_under_way() {
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].silent = true;
    let mut sent = 0_u64;
    while stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 984]), false)
        .is_ok()
    {
        sent += 1;
    }
    assert_eq!(sent, WINDOW / (1000 + COST));
    // With half of it taken, there is room for about as much again.
    stage.ends[0].borrow_mut()[0].under_way.drain(..sent as usize / 2);
    let mut more = 0;
    while stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 984]), false)
        .is_ok()
    {
        more += 1;
    }
    assert!(more <= sent / 2 && more > sent / 2 - sent / 8, "{more} of {sent}");
}

#[test]
fn a_body_in_parts_is_gathered_where_a_rail_does_not() {
    let mut stage = Stage::new(&[CAN]);
    let loan = ConstLoan::of_static(&[0; 12_000]);
    let length = length(0, 12_000);
    let parts = [loan.part(0, 1), loan.part(1, length - 1)];
    stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Parts(&parts), false)
        .expect("there is room");
    stage.sent[0] = 1;
    stage.all_arrived();
}

#[test]
fn a_message_that_no_other_way_can_carry_ends_the_peer_and_not_the_process() {
    let mut narrow = CAN;
    narrow.limits.message = 4096;
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 9000]), false)
        .expect("there is room");
    let pair = air::pair(narrow);
    let address = pair[0].address();
    let [rail, _] = pair;
    let link = &mut stage.links[0];
    let rail = link.add_rail(rail).expect("there is room");
    link.connect(PEER, rail, &address, Incarnation(1))
        .expect("it is there");
    assert_eq!(link.sizes(PEER).message, 4096);
    assert_eq!(
        link.send(PEER, &mut head(1, 0), Body::Bytes(&[0; 9000]), false),
        Err(Refused::TooLong)
    );
    air::tell(&stage.ends[0], 0, EventKind::DeviceGone, 0);
    stage.pass(10);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Abandoned)));
}

#[test]
fn gets_go_over_the_way_that_was_exposed_over_and_end_when_it_breaks() {
    let mut stage = Stage::new(&[CAN, within_host()]);
    static BYTES: [u8; 100] = [3; 100];
    let memory = || Exposure::Read(ConstLoan::of_static(&BYTES));
    let (way, remote) = stage.links[1]
        .expose(PEER, memory(), Access::Read)
        .expect("one way can");
    assert_eq!((way, remote.length.get()), (1, 100));
    assert!(stage.links[1].expose(PEER, memory(), Access::Write).is_none());
    let get = |link: &mut Link<Air>, way: u16, remote: &Remote| {
        link.get(PEER, way, OpId(5), remote, Landing::EMPTY)
    };
    assert_eq!(get(&mut stage.links[0], 1, &remote), Ok(()));
    for way in [2, u16::MAX] {
        assert_eq!(get(&mut stage.links[0], way, &remote), Err(Refused::PeerDown));
    }
    // The rail ends what is under way when it breaks.
    stage.ends[1].borrow_mut()[0].operations.push(OpId(5));
    air::tell(&stage.ends[1], 0, EventKind::PeerDown(DownReason::Silent), 0);
    stage.pass(0);
    assert!(matches!(stage.heard[0].ended[..], [(OpId(5), Err(_))]));
    assert_eq!(get(&mut stage.links[0], 1, &remote), Err(Refused::PeerDown));
    assert_eq!(stage.links[0].sizes(PEER).get_from, None);
    stage.links[1].withdraw(PEER, way, RemoteKey(remote.key.get()));
    stage.links[1].withdraw(PEER, 99, RemoteKey(1));
    assert!(stage.ends[1].borrow()[1].exposed.is_empty());
}

#[test]
fn a_close_pushes_out_what_waits_and_ends_in_time() {
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].full = true;
    stage.try_send(0, true).expect("urgent ones wait here");
    let by = stage.now + Duration::from_millis(10);
    assert!(!stage.links[0].close(stage.now, by));
    stage.ends[0].borrow_mut()[0].full = false;
    assert!(!stage.links[0].close(stage.now, by), "it is under way");
    stage.all_arrived();
    assert!(stage.links[0].close(stage.now, by));
    let by = stage.now + Duration::from_millis(10);
    stage.ends[0].borrow_mut()[1].full = true;
    stage.try_send(1, true).expect("urgent ones wait here");
    assert!(!stage.links[1].close(stage.now, by) && stage.links[1].close(by, by));
}

#[test]
fn rails_are_numbered_and_an_address_is_one_peers() {
    let mut stage = Stage::new(&TWO);
    let link = &mut stage.links[0];
    assert_eq!(link.rails().map(|(at, _)| at.0).collect::<Vec<_>>(), [0, 1]);
    let at = crate::link::RailId(0);
    assert!(link.rail_mut(at).is_some() && link.rail(crate::link::RailId(2)).is_none());
    let address = link.rail(at).map(Rail::address).expect("it is there");
    let other = link.add_peer();
    assert!(
        link.connect(other, at, &address, Incarnation(1)).is_err(),
        "another peer's"
    );
    assert!(
        link.connect(other, crate::link::RailId(9), &address, Incarnation(1))
            .is_err()
    );
    assert!(link.connect(PeerId::SELF, at, &address, Incarnation(1)).is_err());
    assert!(
        link.connect(PEER, at, &address, Incarnation(1)).is_ok(),
        "again, which changes nothing"
    );
    assert_eq!(link.core.peers[1].paths.len(), 2);
    let [rail, _] = air::pair(CAN);
    let ends = rail.ends.clone();
    let mut count = 2;
    let mut next = Some(rail);
    while let Some(rail) = next.take() {
        if link.add_rail(rail).is_some() {
            count += 1;
            let [rail, _] = air::pair(CAN);
            next = Some(rail);
        }
    }
    assert_eq!((count, ends.borrow()[0].accepted), (64, 0));
}

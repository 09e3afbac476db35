//! Messages that are read where their senders have them, on a virtual clock: the release, rails that break,
//! and peers that are lost, meanwhile.

use std::time::Duration;

use doorbell_fabric::memory::View;
use doorbell_pml::{Claimed, InUse, PmlError, Protocol, Rank, RequestId, SendMode, Sent, Source, Target};
use doorbell_sim::{Change, SimConfig};

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

const LONG: usize = 100_000;

type Configure<'a> = &'a dyn Fn(&mut doorbell_pml::PmlConfig);

/// A simulated host: rails within it, whose memory can be viewed.
fn host() -> SimConfig {
    let mut config = sim(true, true, true);
    config.capabilities.features.within_host = true;
    config
}

fn claim(world: &mut World, rank: usize) -> Claimed {
    let mut claimed = None;
    world.until("a message", |world| {
        claimed = world.pmls[rank].claim(Source::Any, 0, 0, u64::MAX);
        claimed.is_some()
    });
    claimed.unwrap()
}

/// Takes the next message of rank 1 in place.
fn take(world: &mut World) -> (RequestId, View) {
    let claimed = claim(world, 1);
    world.pmls[1].take_in_place(claimed.message).unwrap()
}

fn lend(world: &mut World, memory: &Memory) -> RequestId {
    match world.send_as(SendMode::Lent, 0, 1, 1, memory) {
        Sent::Pending(id) => id,
        Sent::Done => panic!("it is announced"),
    }
}

fn nothing_is_left(world: &mut World) {
    world.passes(100);
    for pml in &world.pmls {
        assert_eq!(pml.in_use(), InUse::default(), "{:?}", pml.live_lines());
    }
}

#[test]
fn the_send_ends_when_the_message_is_released() {
    for length in [8192, LONG] {
        let mut world = World::new(2, host(), |_| ());
        let memory = filled(length, 1);
        let sent = lend(&mut world, &memory);
        let (held, view) = take(&mut world);
        assert!(world.pmls[0].is_left_to_peer(sent));
        assert_eq!(view.bytes().to_vec(), pattern(length, 1));
        world.leap(Duration::from_millis(10));
        assert!(world.pmls[0].test(sent).is_none(), "its receiver reads it still");
        assert_eq!(world.pmls[1].in_use().in_place, 1);
        world.pmls[1].release(held);
        world.pmls[1].release(held); // the id is stale
        assert_eq!(world.wait(0, sent).unwrap().length as usize, length);
        assert_eq!(world.pmls[1].counters().taken_in_place, 1);
        assert_eq!(world.pmls[1].counters().gets, 0);
        nothing_is_left(&mut world);
        assert_eq!((world.drops(0), world.drops(1)), (0, 0));
    }
}

#[test]
fn what_cannot_be_viewed_is_received_as_any_claimed_message() {
    // Short; in fragments; out of memory that is no region; with a checksum; over a rail without reads.
    let fragments = |pml: &mut doorbell_pml::PmlConfig| pml.protocol = Protocol::Fragments;
    let checked = |pml: &mut doorbell_pml::PmlConfig| pml.checksum = true;
    let cases: [(usize, SimConfig, Configure<'_>, bool); 5] = [
        (3000, host(), &|_| (), true),
        (LONG, host(), &fragments, true),
        (LONG, host(), &|_| (), false),
        (LONG, host(), &checked, true),
        (LONG, sim(false, false, true), &|_| (), true),
    ];
    for (at, (length, config, configure, region)) in cases.into_iter().enumerate() {
        let mut world = World::new(2, config, configure);
        let memory = filled(length, 2);
        let sent = match region {
            true => world.send_as(SendMode::Lent, 0, 1, 1, &memory),
            false => world.send(0, 1, 1, &memory),
        };
        let claimed = claim(&mut world, 1);
        assert!(
            world.pmls[1].take_in_place(claimed.message).is_none(),
            "case {at}"
        );
        let into = empty(length);
        let request = world.pmls[1]
            .recv_claimed(claimed.message, Target::Loan(into.room()), false)
            .unwrap();
        world.wait(1, request).unwrap();
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(length, 2), "case {at}");
        nothing_is_left(&mut world);
    }
}

#[test]
fn lent_memory_is_copied_by_an_ordinary_receive() {
    let mut world = World::new(2, host(), |_| ());
    let (memory, into) = (filled(LONG, 3), empty(LONG));
    let receive = world.recv(1, Rank(0), 1, &into);
    let sent = lend(&mut world, &memory);
    world.wait(1, receive).unwrap();
    world.wait(0, sent).unwrap();
    assert_eq!(bytes(&into), pattern(LONG, 3));
    nothing_is_left(&mut world);
}

#[test]
fn a_rail_that_breaks_meanwhile_ends_nothing() {
    for seed in 0..20 {
        for waits in [0, 5, 50, 2000] {
            let mut world = World::with_planes(2, 2, seed, host(), |pml| pml.protocol = Protocol::Get);
            let memory = filled(LONG, seed);
            let sent = lend(&mut world, &memory);
            let (held, view) = take(&mut world);
            world.net.change(Change::PlaneDown(world.planes[0]));
            world.passes(waits);
            assert!(world.pmls[0].test(sent).is_none(), "its receiver reads it still");
            assert_eq!(view.bytes().to_vec(), pattern(LONG, seed));
            world.pmls[1].release(held);
            world.wait(0, sent).unwrap();
            nothing_is_left(&mut world);
        }
    }
}

#[test]
fn a_release_over_a_rail_that_breaks_arrives_over_the_other() {
    for after in 0..20 {
        let mut world = World::with_planes(2, 2, after, host(), |pml| pml.protocol = Protocol::Get);
        let memory = filled(LONG, after);
        let sent = lend(&mut world, &memory);
        let (held, _view) = take(&mut world);
        world.pmls[1].release(held);
        let at = world.net.now() + Duration::from_nanos(after * 200);
        world.net.at(at, Change::PlaneDown(world.planes[0]));
        world.wait(0, sent).unwrap();
        nothing_is_left(&mut world);
    }
}

#[test]
fn a_view_outlives_its_sender() {
    let mut world = World::new(2, host(), |_| ());
    let memory = filled(LONG, 4);
    lend(&mut world, &memory);
    let (held, view) = take(&mut world);
    world.net.change(Change::RankDeath(0));
    world.until("the loss", |world| world.pmls[1].lost(Rank(0)).is_some());
    assert_eq!(view.bytes().to_vec(), pattern(LONG, 4));
    world.pmls[1].release(held);
    assert_eq!(world.pmls[1].in_use(), InUse::default());
}

#[test]
fn a_receiver_that_ends_ends_the_send() {
    let mut world = World::new(2, host(), |_| ());
    let memory = filled(LONG, 5);
    let sent = lend(&mut world, &memory);
    let (_held, view) = take(&mut world);
    world.net.change(Change::RankDeath(1));
    let ended = world.wait(0, sent);
    assert!(matches!(ended, Err(PmlError::PeerLost { rank: Rank(1), .. })));
    assert_eq!(view.bytes().to_vec(), pattern(LONG, 5));
    assert_eq!(world.pmls[0].in_use(), InUse::default());
}

#[test]
fn a_message_that_was_taken_is_there_for_no_other() {
    let mut world = World::new(2, host(), |_| ());
    let memory = filled(LONG, 6);
    let sent = lend(&mut world, &memory);
    let claimed = claim(&mut world, 1);
    let (held, _view) = world.pmls[1].take_in_place(claimed.message).unwrap();
    assert!(world.pmls[1].take_in_place(claimed.message).is_none());
    assert!(world.pmls[1].discard(claimed.message).is_err());
    assert!(world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).is_none());
    world.pmls[1].release(held);
    world.wait(0, sent).unwrap();
    nothing_is_left(&mut world);
}

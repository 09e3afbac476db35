//! How connections come up and end.

use super::*;
use crate::cm::counts::Drop;

fn up() -> World {
    let mut world = World::new();
    world.call(0);
    world.run_up();
    world
}

#[test]
fn one_calls_and_both_are_up_in_the_first_life_within_three_exchanges() {
    let mut world = World::new();
    world.call(0);
    world.run_up();
    assert_eq!(world.now, Time::ZERO, "no time had to pass");
    for end in &world.ends {
        let up = end.up.unwrap();
        assert_eq!((up.life, up.mtu.bytes(), up.diagnosis), (Life::FIRST, 4096, None));
    }
    let counts = |end: usize| -> &ContactCounts { world.ends[end].contact.counts() };
    let sent = counts(0).sent + counts(1).sent;
    assert!(sent <= 8, "{sent} frames");
}

#[test]
fn both_call_and_there_is_one_connection() {
    let mut world = World::new();
    world.call(0);
    world.call(1);
    world.run_up();
    assert_eq!(world.ends[0].lives, [Life::FIRST]);
    assert_eq!(world.ends[1].lives, [Life::FIRST]);
}

#[test]
fn a_connection_that_dies_is_reported_to_the_peer_and_the_next_is_later() {
    let mut world = up();
    let now = world.now;
    world.ends[0].die(DownReason::Silent, now);
    world.settle();
    world.run("the other end knows", |world| world.ends[1].up.is_none());
    assert_eq!(world.ends[0].downs, [DownReason::Silent]);
    assert_eq!(world.ends[1].downs, [DownReason::Abandoned]);
    world.run("nothing is repeated", |world| world.next().is_none());
    world.revive(1);
    world.run_up();
    let life = world.ends[0].up.unwrap().life;
    assert!(Life::FIRST.is_before(life));
}

#[test]
fn a_farewell_that_is_lost_is_repeated() {
    let mut world = up();
    let now = world.now;
    world.ends[0].abandon(now);
    world.settle();
    world.net.clear();
    assert!(world.ends[1].up.is_some(), "half open");
    world.run("the other end knows", |world| world.ends[1].up.is_none());
    assert!(world.ends[0].downs.is_empty(), "its owner knows");
    assert_eq!(world.ends[1].downs, [DownReason::Abandoned]);
    world.revive(0);
    world.run_up();
}

#[test]
fn a_peer_that_does_not_answer_is_called_until_patience_ends() {
    let mut world = World::new();
    world.call(0);
    let patience = ContactConfig::default().patience;
    world.net.clear();
    world.pass(patience - Duration::from_millis(1));
    assert!(world.ends[0].downs.is_empty());
    let sent = world.ends[0].contact.counts().sent;
    assert!((100..200).contains(&sent), "{sent} calls");
    world.pass(Duration::from_millis(2));
    assert_eq!(world.ends[0].downs, [DownReason::Silent]);
    assert!(world.ends[0].pair.is_none());
    // Later it is there.
    world.call(0);
    world.run_up();
}

#[test]
fn a_revival_without_an_answer_is_over_soon_and_reported_to_nobody() {
    let mut world = World::new();
    world.revive(0);
    assert!(world.ends[0].pair.is_some());
    world.pass(Duration::from_secs(20));
    assert!(world.ends[0].pair.is_none() && world.ends[0].downs.is_empty());
    assert_eq!(world.next(), None);
}

#[test]
fn an_end_that_is_closed_is_told_to_those_in_contact_and_is_over_for_good() {
    let mut world = up();
    let now = world.now;
    assert!(!world.ends[0].contact.close(now));
    world.ends[0].clear();
    world.settle();
    world.run("it is over", |world| world.ends[1].up.is_none());
    assert_eq!(world.ends[1].downs, [DownReason::Closed]);
    world.run("the last frame leaves", |world| world.next().is_none());
    assert!(world.ends[0].contact.close(now));
    world.revive(1);
    assert!(world.net.is_empty() && world.ends[1].pair.is_none());
    world.call(1);
    assert_eq!(world.ends[1].downs, [DownReason::Closed; 2]);
}

#[test]
fn the_system_refuses_queue_pairs_and_both_know_why() {
    let mut world = World::new();
    world.ends[1].is_poor = true;
    world.call(0);
    world.run("it is refused", |world| !world.ends[0].refused.is_empty());
    assert_eq!(world.ends[0].refused, [(Refusal::Resources, false)]);
    assert!(world.ends[0].pair.is_none());
    world.ends[0].is_poor = true;
    world.call(0);
    assert_eq!(world.ends[0].downs, [DownReason::Resources]);
    world.ends[0].is_poor = false;
    world.ends[1].is_poor = false;
    world.call(0);
    world.run_up();
}

#[test]
fn a_hostile_peer_is_over_for_good() {
    let mut world = up();
    let now = world.now;
    world.ends[0].die(DownReason::Hostile, now);
    world.settle();
    world.run("it is over", |world| world.ends[1].up.is_none());
    world.call(1);
    world.run("it is refused", |world| !world.ends[1].refused.is_empty());
    assert_eq!(world.ends[1].refused, [(Refusal::Over, false)]);
    assert!(world.ends[0].pair.is_none());
}

#[test]
fn a_narrow_path_in_either_direction_is_found_and_named() {
    for (path, uses) in [
        ([1500, 4096], 1024),
        ([4096, 1500], 1024),
        ([2048, 600], 512),
        ([300, 300], 256),
    ] {
        let mut world = World::new();
        world.path = path;
        world.call(0);
        world.run_up();
        for end in &world.ends {
            let up = end.up.unwrap();
            assert_eq!(up.mtu.bytes(), uses);
            let text = up.diagnosis.unwrap().to_string();
            let expected = format!("small frames pass, {}-byte frames do not; using {uses}", 2 * uses);
            assert_eq!(text, expected);
        }
        assert!(world.now < Time::ZERO + Duration::from_secs(6), "{}", world.now);
    }
}

#[test]
fn a_path_that_carries_nothing_is_silent() {
    let mut world = World::new();
    world.path = [0, 0];
    world.call(0);
    world.run("it is given up", |world| !world.ends[0].downs.is_empty());
    assert_eq!(world.ends[0].downs, [DownReason::Silent]);
    assert!(world.now < Time::ZERO + 2 * ContactConfig::default().patience);
    assert!(world.ends[0].contact.counts().narrowed == 0);
}

#[test]
fn a_port_with_a_smaller_mtu_makes_its_connections_anew() {
    let mut world = up();
    let now = world.now;
    world.ends[0].contact.set_mtu(Mtu::of(3).unwrap(), now);
    world.settle();
    world.run_up();
    let up = world.ends[1].up.unwrap();
    assert_eq!((up.mtu.bytes(), up.diagnosis), (1024, None), "it is the port's");
    assert!(Life::FIRST.is_before(up.life));
}

#[test]
fn a_rail_that_waits_for_a_neighbour_goes_on_when_it_is_there() {
    let mut world = World::new();
    world.ends[1].connects = false;
    world.call(0);
    for _ in 0..20 {
        while !world.net.is_empty() {
            world.deliver(0);
        }
        world.turn();
    }
    assert!(!world.are_up());
    let (now, attempt) = (world.now, world.ends[1].pair.as_ref().unwrap().attempt);
    world.ends[1].contact.connected(attempt, Ok(()), now);
    world.settle();
    world.run_up();
    assert_eq!(world.ends[0].lives, [Life::FIRST]);
}

#[test]
fn ends_with_other_tables_of_gids_refuse_each_other() {
    let mut world = World::new();
    // The first end has another list than the second has published.
    let mut other = local(2, 2);
    other.address.gids.insert(0, published(9));
    world.ends[1].contact = contact(other);
    let first = world.ends[0].address();
    world.ends[1].open(&first);
    let mut end = End::new(1, 1);
    end.contact
        .open(&world.ends[1].address().0, Incarnation(2), None)
        .unwrap();
    let chosen = end.contact.peer(0).unwrap().remote.gids;
    let remote: &Remote = end.contact.remote_of(PeerIndex(0)).unwrap();
    assert_eq!((remote.pair, remote.key, remote.gids), (102, 0x1234, chosen));
    assert_eq!(chosen.theirs, gid(9), "the first of its list");
    // A pair that the peer would not choose.
    end.contact.peer(0).unwrap().remote.gids.theirs = gid(2);
    world.ends[0] = end;
    world.call(0);
    world.run("it is refused", |world| !world.ends[0].refused.is_empty());
    assert_eq!(world.ends[0].refused, [(Refusal::Gids, false)]);
    assert_eq!(world.ends[1].refused, [(Refusal::Gids, true)]);
    assert!(world.ends.iter().all(|end| end.pair.is_none()));
}

#[test]
fn a_call_of_nobody_who_is_open_is_a_strangers_and_loses_nothing() {
    let mut world = World::new();
    let mut alone = End::new(2, 2);
    let caller = alone
        .contact
        .caller(&world.ends[0].address().0, Incarnation(1), None);
    world.ends[1] = alone.clone();
    world.call(0);
    while !world.net.is_empty() {
        world.deliver(0);
    }
    assert_eq!(world.ends[1].contact.stranger(), caller);
    assert_eq!(world.ends[1].contact.stranger(), None);
    assert_eq!(world.ends[1].contact.counts().dropped(Drop::Stranger), 1);
    alone.open(&world.ends[0].address());
    world.ends[1].open(&world.ends[0].address());
    world.run_up();
}

#[test]
fn a_peer_that_is_forgotten_and_opened_again_is_a_fresh_one_at_both_ends() {
    let mut world = up();
    let now = world.now;
    let (old, address) = (world.ends[0].peer, world.ends[1].address());
    world.ends[0].contact.forget(old, now);
    world.ends[0].clear();
    world.ends[0].open(&address);
    assert_ne!(world.ends[0].peer, old, "the old one has not left yet");
    // Its farewells are lost: the fresh call reports it.
    world.settle();
    world.net.clear();
    world.call(0);
    for _ in 0..5 {
        while !world.net.is_empty() {
            world.deliver(0);
        }
        world.turn();
    }
    assert_eq!(world.ends[1].downs, [DownReason::Closed]);
    assert!(world.ends[1].pair.is_none());
    let caller = world.ends[1].contact.stranger();
    let address = world.ends[0].address();
    assert_eq!(caller, world.ends[1].contact.caller(&address.0, address.1, None));
    let (peer, now) = (world.ends[1].peer, world.now);
    world.ends[1].contact.forget(peer, now);
    world.settle();
    assert_eq!(world.ends[1].released, 1);
    world.ends[1].open(&address);
    world.ends[1].lives.clear();
    world.ends[0].lives.clear();
    world.run_up();
    world.run("the old one leaves", |world| world.next().is_none());
    assert_eq!(world.ends[0].released, 1);
}

#[test]
fn a_process_that_restarts_is_another_peer() {
    let mut world = up();
    let address = world.ends[0].address();
    world.ends[1] = End::new(2, 3);
    world.ends[1].open(&address);
    world.call(1);
    while !world.net.is_empty() {
        world.deliver(0);
    }
    let again = world.ends[1].address();
    let caller = world.ends[0].contact.caller(&again.0, again.1, None);
    assert_eq!(world.ends[0].contact.stranger(), caller);
    // What is for the former life is none of this one's.
    let now = world.now;
    world.ends[0].die(DownReason::Silent, now);
    world.settle();
    while !world.net.is_empty() {
        world.deliver(0);
    }
    assert!(world.ends[1].contact.counts().dropped(Drop::OtherLife) > 0);
    let old = world.ends[0].peer;
    world.ends[0].contact.forget(old, now);
    world.ends[0].open(&again);
    world.ends[0].lives.clear();
    world.run_up();
    assert_eq!(world.ends[1].lives, [Life::FIRST]);
}

#[test]
fn traffic_over_the_connection_counts_as_ready() {
    let mut world = World::new();
    world.call(0);
    for _ in 0..50 {
        // READY never arrives at the second end.
        world.net.retain(|frame| frame.to == 0 || frame.bytes[1] != 3);
        if world.net.is_empty() {
            break;
        }
        world.deliver(0);
    }
    assert!(world.ends.iter().all(|end| end.up.is_none()));
    let (now, attempt) = (world.now, world.ends[1].pair.as_ref().unwrap().attempt);
    world.ends[1].contact.is_established(attempt, now);
    world.settle();
    world.net.retain(|frame| frame.to == 0);
    while !world.net.is_empty() {
        world.deliver(0);
        world.net.retain(|frame| frame.to == 0);
    }
    assert!(world.ends[0].up.is_some(), "the second end's READY arrives");
    assert!(!world.ends[1].contact.is_up(PeerIndex(0)));
    world.ends[1].contact.heard_over(attempt, now);
    world.settle();
    assert!(world.ends[1].contact.is_up(PeerIndex(0)));
    world.run_up();
}

#[test]
fn a_peer_with_a_key_of_its_own_needs_no_key_of_a_job() {
    let mut world = World::new();
    for end in 0..2 {
        let other = world.ends[1 - end].address();
        let local = world.ends[end].contact.local.clone();
        world.ends[end].contact = Contact::new(ContactConfig::default(), local).unwrap();
        let contact = &mut world.ends[end].contact;
        assert!(contact.open(&other.0, other.1, None).unwrap_err().contains("key"));
        world.ends[end].peer = contact.open(&other.0, other.1, Some(&[3; 32])).unwrap();
    }
    world.call(0);
    world.run_up();
}

//! One story each: what breaks, and what must follow. The numbers are those of the reference's test list
//! (oob, section 10), as far as a core without sockets can show them.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Policy, Transport};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::{Event, Output, RecvError, SendError, Status};
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::node::Node;
use doorbell_oob::transport;

use crate::world::{JOB, Shape, TAG, World};

const SECOND: Duration = Duration::from_secs(1);

fn tree(ranks: u32, radix: u32, subnets: u16) -> Shape {
    Shape {
        ranks,
        radix,
        transports: vec![Transport::tree("tcp")],
        subnets: vec![subnets],
        has: |_, _, _| true,
        seed: 1,
    }
}

fn running(shape: Shape) -> World {
    let mut world = World::new(shape);
    world.begin_all();
    assert!(
        world
            .run_while(SECOND * 20, |world| !world.is_attached())
            .is_some(),
        "no tree"
    );
    world.run_for(SECOND);
    world.events.clear();
    world
}

fn name(rank: u32) -> Name {
    Name::new(JOB, rank)
}

fn node(world: &mut World, rank: u32) -> &mut Node {
    world.nodes[rank as usize].as_mut().expect("alive")
}

/// Sends `count` messages from 0 to 1, and calls `between` after each.
fn flood(world: &mut World, count: u64, mut between: impl FnMut(&mut World, u64)) {
    let mut sent = 0;
    while sent < count {
        if world.send(0, 1, 24) {
            sent += 1;
            between(world, sent);
        } else {
            world.run_for(Duration::from_micros(500));
        }
    }
    world.run_for(SECOND * 10);
}

fn delivered(world: &World) -> u64 {
    world
        .statuses
        .get(&Status::Delivered)
        .copied()
        .unwrap_or_default()
}

/// Number 1 of the list.
#[test]
fn a_hundred_thousand_messages_while_the_nics_die_in_turn_arrive_once_and_in_order() {
    let mut world = running(tree(2, 64, 2));
    const COUNT: u64 = 100_000;
    world.most_steps = 20 * COUNT;
    flood(&mut world, COUNT, |world, sent| match sent {
        30_000 => world.set_module(1, 0, 0, false),
        60_000 => {
            world.set_module(1, 0, 0, true);
            world.run_for(SECOND / 2);
            world.set_module(0, 0, 1, false);
        }
        80_000 => world.break_one(),
        _ => {}
    });
    assert_eq!((world.received, delivered(&world)), (COUNT, COUNT));
    assert_eq!(
        world.events_of(|event| matches!(event, Event::PeerLost { .. })),
        0
    );
}

/// A rank that was lost and lives again has its children back.
#[test]
fn a_rank_that_attached_further_up_comes_home() {
    let mut world = running(tree(15, 2, 1));
    let children = |world: &mut World, rank| node(world, rank).children().collect::<Vec<u32>>();
    assert_eq!(children(&mut world, 2), [4, 6]);
    world.kill(2);
    assert!(
        world
            .run_while(SECOND * 20, |world| world.is_alive(2)
                || !children_are(world, 0, &[1, 4, 6]))
            .is_some()
    );
    world.restart(2);
    assert!(
        world
            .run_while(SECOND * 60, |world| !children_are(world, 2, &[4, 6]))
            .is_some()
    );
    world.run_for(SECOND * 5);
    assert!(children_are(&world, 0, &[1, 2]), "no rank is a child twice");
    assert_eq!(node(&mut world, 4).parent(), Some(2));
    // All are reached, and then it is quiet.
    for (from, to) in [(0, 12), (12, 13), (13, 2), (2, 14), (14, 8)] {
        assert!(world.send(from, to, 100));
    }
    world.run_for(SECOND * 5);
    assert_eq!(delivered(&world), 5);
    let frames = world.network.frames;
    world.run_for(SECOND * 60);
    assert_eq!(world.network.frames, frames);
}

fn children_are(world: &World, rank: u32, children: &[u32]) -> bool {
    let node = world.nodes[rank as usize].as_ref();
    node.is_some_and(|node| node.children().eq(children.iter().copied()))
}

/// Each of two hosts may think another of its NICs the better one.
#[test]
fn peers_with_different_best_paths_do_not_replace_each_others_links_for_ever() {
    let mut world = World::new(Shape {
        transports: vec![Transport::direct("tcp")],
        ..tree(2, 64, 3)
    });
    world.network.contrary = true;
    world.begin_all();
    let (now, contact) = (world.now, world.contact(1));
    node(&mut world, 0).learn(now, contact);
    world.after(0);
    for round in 0..20 {
        assert!(world.send(0, 1, 100) && world.send(1, 0, 100));
        world.run_for(SECOND);
        let (rank, subnet) = (round % 2, (round / 2 % 3) as u16);
        world.set_module(rank, 0, subnet, false);
        world.run_for(SECOND);
        world.set_module(rank, 0, subnet, true);
        world.run_for(SECOND);
    }
    assert_eq!((world.received, delivered(&world)), (40, 40));
    // Each change is worth a new link or two, and no more.
    let connects = world.network.connects;
    assert!(connects < 100, "{connects} connects");
}

/// A NIC that was not there at the start is where the peer calls when the first one fails.
#[test]
fn peers_learn_new_addresses() {
    let mut world = World::new(tree(2, 64, 2));
    world.network.down.insert((1, 0, 1));
    world.begin(0);
    // Only the first of its NICs is known to the others; and it calls no other rank by itself again.
    world.begin(1);
    assert!(
        world
            .run_while(SECOND * 20, |world| !world.is_attached())
            .is_some()
    );
    world.set_module(1, 0, 1, true);
    world.run_for(SECOND);
    assert_eq!(node(&mut world, 0).counters().malformed, 0);
    let known = node(&mut world, 0).explain(name(1));
    assert!(known.contains("0.1") && known.contains("1.1"), "{known}");
    world.set_module(1, 0, 0, false);
    for _ in 0..10 {
        assert!(world.send(0, 1, 100));
    }
    world.run_for(SECOND * 5);
    assert_eq!((world.received, delivered(&world)), (10, 10));
    assert_eq!(
        world.events_of(|event| matches!(event, Event::PeerLost { .. })),
        0
    );
}

/// List, 2: no subnet leads from one end to the other.
#[test]
fn three_hops_over_different_subnets() {
    let mut world = running(Shape {
        has: |rank, _, subnet| u32::from(subnet) == rank || u32::from(subnet) + 1 == rank,
        ..tree(4, 1, 4)
    });
    for _ in 0..50 {
        assert!(world.send(0, 3, 100) && world.send(3, 0, 5000));
    }
    world.run_for(SECOND * 5);
    assert_eq!((world.received, delivered(&world)), (100, 100));
    for relay in [1, 2] {
        assert!(
            node(&mut world, relay).counters().relayed >= 100,
            "rank {relay} passes on"
        );
    }
    assert!(node(&mut world, 0).link_to(name(3)).is_none());
}

/// Number 6 of the list.
#[test]
fn a_peer_is_lost_once_and_only_when_all_transports_have_failed() {
    let direct = Shape {
        transports: vec![Transport::direct("rail"), Transport::direct("tcp")],
        subnets: vec![1, 2],
        ..tree(2, 64, 1)
    };
    let mut world = running(direct);
    world.send(0, 1, 100);
    for (transport, subnet) in [(0, 0), (1, 0)] {
        world.set_module(1, transport, subnet, false);
        world.run_for(SECOND * 5);
        world.send(0, 1, 100);
        world.run_for(SECOND * 2);
        assert_eq!(
            world.events_of(|event| matches!(event, Event::PeerLost { .. })),
            0,
            "there is another path"
        );
    }
    assert_eq!(delivered(&world), 3);
    world.set_module(1, 1, 1, false);
    assert!(world.send(0, 1, 100));
    world.run_for(SECOND * 30);
    let lost = |world: &World, rank: u32| {
        let of = world
            .events
            .iter()
            .filter(|(by, event)| *by == rank && matches!(event, Event::PeerLost { .. }));
        of.count()
    };
    assert_eq!(lost(&world, 0), 1, "{:?}", world.events);
    assert_eq!(
        world.statuses.get(&Status::PeerLost),
        Some(&1),
        "{:?}",
        world.statuses
    );
    assert!(!world.send(0, 1, 100), "who is lost is sent nothing");
    world.run_for(SECOND * 30);
    assert_eq!(lost(&world, 0), 1, "told once");
    world.set_module(1, 1, 1, true);
    world.run_for(SECOND * 10);
    assert!(world.send(0, 1, 100), "it is back");
    world.run_for(SECOND * 5);
    assert_eq!(delivered(&world), 4);
}

/// List, 7: one node, and events by hand.
#[test]
fn unmatched_then_posted_persistent_and_one_shot() {
    let mut world = World::new(tree(2, 64, 1));
    for rank in 0..2 {
        world.begin_as(rank, |config| config, false);
    }
    world.run_for(SECOND);
    for _ in 0..3 {
        world.send(0, 1, 100);
    }
    world.run_for(SECOND);
    assert_eq!(world.received, 0, "no receive is posted");
    let now = world.now;
    node(&mut world, 1)
        .post(now, From::only(name(0)), TAG, false)
        .expect("posted");
    world.after(1);
    assert_eq!(world.received, 1);
    node(&mut world, 1)
        .post(now, From::job(JOB), TAG, true)
        .expect("posted");
    world.after(1);
    assert_eq!(world.received, 3);
    world.send(0, 1, 100);
    world.run_for(SECOND);
    assert_eq!(world.received, 4);
    let twice = node(&mut world, 1).post(now, From::job(JOB), TAG, false);
    assert!(matches!(twice, Err(RecvError::Twice { .. })));
    node(&mut world, 1).cancel(now, From::job(JOB), TAG);
    world.after(1);
    assert_eq!(
        world.events_of(|event| matches!(event, Event::Cancelled { .. })),
        1
    );
    world.send(0, 1, 100);
    world.run_for(SECOND);
    assert_eq!(world.received, 4, "no receive is posted any more");
}

/// Messages without a receive close the window: they stay with their sender, in bounds, and arrive when a
/// receive is posted.
#[test]
fn a_receiver_that_does_not_receive_costs_bounded_memory_and_loses_nothing() {
    let mut world = World::new(tree(2, 64, 1));
    let small = |config: Config| Config {
        unmatched: 20_000,
        pending: 50_000,
        give_up: Duration::from_secs(1000),
        ..config
    };
    for rank in 0..2 {
        world.begin_as(rank, small, false);
    }
    world.run_for(SECOND);
    let mut accepted = 0;
    for _ in 0..1000 {
        accepted += u64::from(world.send(0, 1, 1000));
        world.run_for(Duration::from_millis(5));
    }
    assert!(
        (40..80).contains(&accepted),
        "{accepted} of 1064 in 50,000 and 20,000"
    );
    let full = {
        let now = world.now;
        node(&mut world, 0).send(now, name(1), TAG, vec![0; 1000].into(), None)
    };
    assert!(matches!(full, Err(SendError::Full { .. })), "{full:?}");
    assert!(node(&mut world, 1).memory() < 60_000 && node(&mut world, 0).memory() < 90_000);
    // Neither the tree nor another rank is held up.
    world.broadcast(0, SECOND * 5);
    world.run_for(SECOND);
    assert_eq!(world.casts, 2);
    let now = world.now;
    node(&mut world, 1)
        .post(now, From::ANYBODY, TAG, true)
        .expect("posted");
    world.after(1);
    world.run_for(SECOND * 20);
    assert_eq!((world.received, delivered(&world)), (accepted, accepted));
    assert_eq!(world.events_of(|event| matches!(event, Event::Room { .. })), 1);
}

/// Number 8 of the list.
#[test]
fn a_message_to_an_unknown_rank_waits_for_the_contact_and_not_for_ever() {
    let shape = Shape {
        transports: vec![Transport::direct("tcp")],
        ..tree(4, 1, 1)
    };
    let mut world = running(shape);
    assert!(world.send(0, 2, 100));
    world.run_for(SECOND * 3);
    assert_eq!(delivered(&world), 0, "no contact of it is known");
    let (now, contact) = (world.now, world.contact(2));
    node(&mut world, 0).learn(now, contact);
    world.after(0);
    world.run_for(SECOND * 3);
    assert_eq!(delivered(&world), 1);
    assert!(world.send(0, 3, 100));
    world.run_for(SECOND * 30);
    assert_eq!(
        world.statuses.get(&Status::Unreachable),
        Some(&1),
        "{:?}",
        world.statuses
    );
    let now = world.now;
    let unknown = node(&mut world, 0).send(now, name(4), TAG, Bytes::default(), None);
    assert_eq!(unknown, Err(SendError::UnknownPeer(name(4))));
    let reserved = node(&mut world, 0).send(now, name(1), 100, Bytes::default(), None);
    assert_eq!(reserved, Err(SendError::Reserved(100)));
}

/// Number 10 of the list.
#[test]
fn a_restart_under_the_same_name_ends_what_was_pending_and_begins_anew() {
    let mut world = running(tree(5, 2, 1));
    for _ in 0..20 {
        world.send(4, 3, 100);
        world.send(3, 4, 100);
    }
    world.run_for(SECOND);
    assert_eq!(delivered(&world), 40);
    world.kill(3);
    for _ in 0..5 {
        world.send(4, 3, 100);
    }
    world.run_for(Duration::from_millis(100));
    world.restart(3);
    world.run_for(SECOND * 5);
    assert_eq!(
        world.statuses.get(&Status::PeerRestarted),
        Some(&5),
        "{:?}",
        world.statuses
    );
    let by_4 = world.events.iter().filter(|(by, event)| {
        *by == 4
            && *event
                == Event::PeerRestarted {
                    peer: name(3),
                    epoch: Epoch(2),
                }
    });
    assert_eq!(by_4.count(), 1);
    for _ in 0..20 {
        world.send(4, 3, 100);
        world.send(3, 4, 100);
    }
    world.run_for(SECOND * 2);
    assert_eq!(delivered(&world), 80);
}

#[test]
fn a_relay_dies_and_its_children_attach_to_their_grandparent_and_nothing_is_lost() {
    let mut world = running(tree(15, 2, 1));
    for round in 0..60 {
        // 7 is below 3, which is below 1.
        world.send(7, 2, 1000);
        world.send(2, 7, 1000);
        if round == 30 {
            world.kill(3);
        }
        world.run_for(Duration::from_millis(2));
    }
    world.run_for(SECOND * 20);
    assert_eq!(
        (world.received, delivered(&world)),
        (120, 120),
        "{:?}",
        world.statuses
    );
    for orphan in [7, 11] {
        assert_eq!(node(&mut world, orphan).parent(), Some(1));
    }
    let told = world.events_of(|event| matches!(event, Event::PeerLost { peer, .. } if *peer == name(3)));
    assert_eq!(told, 14, "every rank is notified, once");
}

#[test]
fn a_broadcast_and_a_gather_get_around_a_relay_that_dies_in_the_middle() {
    for moment in 0..40 {
        let mut world = running(Shape {
            seed: moment,
            ..tree(40, 3, 1)
        });
        for rank in 0..40 {
            world.gather(rank, 1, &Bytes::from(&rank.to_be_bytes()), SECOND * 15);
        }
        world.broadcast(20, SECOND * 15);
        world.run_for(Duration::from_micros(moment * 25));
        world.kill(1);
        world.run_for(SECOND * 20);
        assert_eq!(world.unended(), 0);
        let ended = world.events.iter().find_map(|(_, event)| match event {
            Event::BroadcastEnded { missing, .. } => Some(missing.clone()),
            _ => None,
        });
        let ended = ended.expect("it has ended");
        assert!(ended.is_empty() || ended == [1], "at {moment}: {ended:?}");
        let alive = world
            .events
            .iter()
            .filter(|(by, event)| *by != 1 && matches!(event, Event::Broadcast { .. }));
        assert_eq!(alive.count(), 39, "at {moment}");
        let tables = world.events.iter().filter_map(|(by, event)| match event {
            Event::Gathered { table, missing, .. } if *by != 1 => Some((table, missing)),
            _ => None,
        });
        let tables: Vec<_> = tables.collect();
        assert_eq!(tables.len(), 39, "at {moment}");
        assert!(world.whole >= if tables[0].1.is_empty() { 39 } else { 0 });
        for (table, missing) in tables {
            assert_eq!(table.len() + missing.len(), 40);
            assert!(missing.is_empty() || missing == &[1], "at {moment}: {missing:?}");
            assert!(table.iter().all(|(rank, value)| **value == rank.to_be_bytes()));
        }
    }
}

#[test]
fn ranks_that_do_not_take_part_are_named_at_the_deadline() {
    let mut world = running(tree(10, 2, 1));
    for rank in (0..10).filter(|rank| ![4, 9].contains(rank)) {
        world.gather(rank, 1, &Bytes::from(&[1]), SECOND * 3);
    }
    world.run_for(SECOND * 4);
    let named = world.events.iter().filter(|(_, event)| {
        matches!(event, Event::Gathered { table, missing, .. } if table.len() == 8 && *missing == [4, 9])
    });
    assert_eq!(named.count(), 8, "{:?}", world.events);
    assert_eq!(world.unended(), 0);
}

#[test]
fn a_partition_heals_and_both_sides_know_the_same_again() {
    let mut world = running(tree(31, 2, 1));
    let branch: BTreeSet<u32> = doorbell_oob::routed::Tree::new(31, 2)
        .branch(1)
        .into_iter()
        .collect();
    world.part(branch.clone());
    world.run_for(SECOND * 15);
    let lost = world
        .events
        .iter()
        .filter(|(by, event)| *by == 2 && matches!(event, Event::PeerLost { .. }))
        .count();
    assert_eq!(lost, branch.len(), "the other side is lost, each of them once");
    assert!(world.events_of(|event| *event == Event::LifelineLost) > 0);
    world.part(BTreeSet::new());
    world.run_for(SECOND * 30);
    assert!(world.is_attached());
    let back = world
        .events
        .iter()
        .filter(|(by, event)| *by == 2 && matches!(event, Event::PeerBack { .. }))
        .count();
    assert_eq!(back, branch.len());
    for &rank in &branch {
        assert!(world.send(2, rank, 100) && world.send(rank, 2, 100), "{rank}");
    }
    world.run_for(SECOND * 5);
    assert_eq!(delivered(&world), 2 * branch.len() as u64);
}

#[test]
fn without_a_lifeline_the_policy_ends_the_node() {
    let mut world = World::new(tree(3, 1, 1));
    world.begin_as(0, |config| config, true);
    let end = |config: Config| Config {
        policy: Policy::End,
        ..config
    };
    (1..3).for_each(|rank| world.begin_as(rank, end, true));
    world.run_for(SECOND);
    world.part(BTreeSet::from([2]));
    assert!(world.send(2, 0, 100));
    world.run_for(SECOND * 10);
    let lost = world
        .events
        .iter()
        .filter(|(by, event)| *by == 2 && *event == Event::LifelineLost)
        .count();
    assert_eq!((lost, world.unended()), (1, 0));
    assert!(!world.send(2, 0, 100));
    assert_eq!(
        node(&mut world, 2).next_deadline(),
        None,
        "nothing is tried any more"
    );
}

#[test]
fn routed_and_direct_transports_are_used_together() {
    // Even ranks have the rail; all have tcp, along the tree.
    let mut world = running(Shape {
        transports: vec![Transport::direct("rail"), Transport::tree("tcp")],
        subnets: vec![1, 1],
        has: |rank, transport, _| transport == 1 || rank % 2 == 0,
        ..tree(15, 2, 1)
    });
    let now = world.now;
    for other in [7, 10] {
        let contact = world.contact(other);
        node(&mut world, 12).learn(now, contact);
    }
    assert!(world.send(12, 10, 100) && world.send(12, 7, 100));
    world.run_for(SECOND);
    assert_eq!(delivered(&world), 2);
    let rail = node(&mut world, 12)
        .link_to(name(10))
        .expect("a link of their own");
    assert_eq!(rail.0, transport::TransportId(0));
    assert!(node(&mut world, 12).link_to(name(7)).is_none(), "along the tree");
    world.set_module(10, 0, 0, false);
    assert!(world.send(12, 10, 100));
    world.run_for(SECOND * 5);
    assert_eq!(delivered(&world), 3, "without the rail, along the tree");
}

#[test]
fn a_look_up_through_the_tree_finds_the_contact_and_the_next_message_goes_directly() {
    // Over this rail, a process does not answer a peer that was not announced to it: the look-up announces
    // both.
    let mut world = running(Shape {
        transports: vec![Transport::direct("rail").mutual(), Transport::tree("tcp")],
        subnets: vec![1, 1],
        ..tree(15, 2, 1)
    });
    let now = world.now;
    node(&mut world, 13).look_up(now, name(11));
    world.after(13);
    world.run_for(SECOND);
    assert_eq!(
        world.events_of(|event| matches!(event, Event::Found { contact } if contact.name == name(11))),
        1
    );
    assert!(world.send(13, 11, 100));
    world.run_for(SECOND);
    assert_eq!(delivered(&world), 1);
    assert!(node(&mut world, 13).link_to(name(11)).is_some());
}

/// A rail is silent, and a module of the peer alone: there is no event that it is down, or up.
#[test]
fn a_rail_that_falls_silent_is_used_again_when_the_peer_answers() {
    let mut world = running(Shape {
        transports: vec![Transport::direct("rail").mutual(), Transport::direct("tcp")],
        subnets: vec![1, 1],
        ..tree(2, 64, 1)
    });
    let by = |world: &mut World| node(world, 0).link_to(name(1)).map(|link| link.0.0);
    world.send(0, 1, 100);
    world.run_for(SECOND);
    assert_eq!(by(&mut world), Some(0));
    for _ in 0..3 {
        world.set_module(1, 0, 0, false);
        for _ in 0..50 {
            world.send(0, 1, 100);
        }
        world.run_for(SECOND * 2);
        assert_eq!(by(&mut world), Some(1));
        world.set_module(1, 0, 0, true);
        world.run_for(SECOND * 3);
        assert_eq!(by(&mut world), Some(0), "and back");
    }
    assert_eq!(delivered(&world), 151);
    assert_eq!(
        world.events_of(|event| matches!(event, Event::PeerLost { .. })),
        0
    );
}

/// A caller that the other side does not know is not answered, and the tree is used at once.
#[test]
fn a_rail_that_does_not_answer_holds_nothing_up() {
    let mut world = running(Shape {
        transports: vec![Transport::direct("rail").mutual(), Transport::tree("tcp")],
        subnets: vec![1, 1],
        ..tree(15, 2, 1)
    });
    let now = world.now;
    let contact = world.contact(10);
    node(&mut world, 12).learn(now, contact);
    for _ in 0..20 {
        assert!(world.send(12, 10, 100));
    }
    // One call without an answer takes 0.3 s.
    world.run_for(SECOND);
    assert_eq!(delivered(&world), 20);
    assert!(node(&mut world, 12).link_to(name(10)).is_none(), "along the tree");
}

#[test]
fn one_object_to_many_peers_is_the_same_memory_everywhere() {
    let mut config = Config::new(name(0), Epoch(1), 10, vec![Transport::direct("tcp")]);
    config.longest = 1 << 20;
    let mut node = Node::new(config, Time::ZERO);
    let id = transport::TransportId(0);
    for rank in 1..10 {
        let connected = transport::Event::Connected {
            link: transport::LinkId(u64::from(rank)),
            module: transport::ModuleId(0),
            peer: name(rank),
            epoch: Epoch(5),
            attempt: None,
        };
        node.handle(Time::ZERO, id, connected);
    }
    let body = Bytes::from(vec![7; 100_000]);
    let peers: Vec<Name> = (1..10).map(name).collect();
    assert!(
        node.send_many(Time::ZERO, &peers, TAG, &body, None)
            .iter()
            .all(Result::is_ok)
    );
    let mut same = 0;
    while let Some(output) = node.output() {
        if let Output::Command(_, transport::Command::Send { frame, .. }) = output {
            assert!(frame.body().is_same_memory(&body));
            same += 1;
        }
    }
    assert_eq!(same, 9);
}

#[test]
fn sends_to_oneself_and_cancelled_ones_end_once() {
    let mut world = running(tree(2, 64, 1));
    assert!(world.send(0, 0, 100));
    assert_eq!((world.received, delivered(&world)), (1, 1));
    world.kill(1);
    let now = world.now;
    let send = node(&mut world, 0)
        .send(now, name(1), TAG, Bytes::default(), None)
        .expect("begun");
    node(&mut world, 0).cancel_send(now, name(1), send);
    node(&mut world, 0).cancel_send(now, name(1), send);
    let mut ends = Vec::new();
    while let Some(output) = node(&mut world, 0).output() {
        if let Output::Event(Event::Sent {
            send: ended, status, ..
        }) = output
        {
            ends.push((ended, status));
        }
    }
    assert_eq!(ends, [(send, Status::Cancelled)]);
}

#[test]
fn idle_peers_take_little_memory() {
    let config = Config::new(name(0), Epoch(1), 10_001, vec![Transport::direct("tcp")]);
    let mut node = Node::new(config, Time::ZERO);
    let before = node.memory();
    for rank in 1..=10_000 {
        node.learn(
            Time::ZERO,
            Contact::new(name(rank), Epoch(1)).with("tcp", &["10.0.0.1:4711"]),
        );
    }
    let each = (node.memory() - before) / 10_000;
    assert!(each <= 400, "{each} bytes");
    assert!(node.output().is_none(), "no peer is called before it is needed");
}

#[test]
fn what_makes_no_sense_closes_the_link() {
    let config = Config::new(name(0), Epoch(1), 2, vec![Transport::direct("tcp")]);
    let mut node = Node::new(config, Time::ZERO);
    let (id, link) = (transport::TransportId(0), transport::LinkId(1));
    let connected = transport::Event::Connected {
        link,
        module: transport::ModuleId(0),
        peer: name(1),
        epoch: Epoch(5),
        attempt: None,
    };
    node.handle(Time::ZERO, id, connected);
    let frame = Bytes::from(b"GET / HTTP/1.1");
    node.handle(Time::ZERO, id, transport::Event::Received { link, frame });
    let closes = transport::Command::Close {
        link,
        why: transport::Loss::Protocol,
    };
    assert!(std::iter::from_fn(|| node.output()).any(|output| output == Output::Command(id, closes.clone())));
    assert_eq!((node.counters().malformed, node.link_to(name(1))), (1, None));
}

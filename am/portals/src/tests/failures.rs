//! Rails that break and peers that die, in the middle of everything.

use std::time::Duration;

use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::*;
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Change, SimConfig};

use super::world::*;

#[test]
fn long_transfers_survive_the_end_of_a_way() {
    for (planes, gets) in [(2, true), (2, false), (3, true)] {
        for at in [0, 1, 5, 20, 60, 100] {
            let mut config = SimConfig::default();
            config.capabilities.features.get = gets;
            let mut world = World::new(2, planes, Kind::MATCHING_LOGICAL, config);
            let length = 2_000_000;
            let landing = bytes(length, 0);
            let there = numbered(length);
            let (put_to, get_from) = (world.target(1, 0, 1, 0), world.target(1, 0, 2, 0));
            let mut ni = world.ni(1);
            let teq = ni.eq_alloc(16).unwrap();
            ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
            ni.append(
                0,
                Entry::open(memory(landing), BOTH).matching(1, 0),
                List::Priority,
                0,
            )
            .unwrap();
            ni.append(
                0,
                Entry::open(memory(there), BOTH).matching(2, 0),
                List::Priority,
                0,
            )
            .unwrap();
            let mut ni = world.ni(0);
            let eq = ni.eq_alloc(16).unwrap();
            let source = numbered(length);
            let into = bytes(length, 0);
            let from = ni.md_bind(md(source, eq)).unwrap();
            let to = ni.md_bind(md(into, eq)).unwrap();
            ni.put(&put(from, length as u64, put_to)).unwrap();
            ni.get(&get(to, length as u64, get_from)).unwrap();
            let plane = world.nodes[0]
                .rails()
                .next()
                .map(|(_, rail)| rail.plane())
                .unwrap();
            world.net.at(
                world.net.now() + Duration::from_micros(at),
                Change::LinkDown(plane, 0),
            );
            world.settle();
            let what = format!("{planes} planes, gets {gets}, broken after {at} us");
            let mut heard: Vec<_> = world.kinds(0, eq);
            heard.sort_by_key(|told| told.0 as u8);
            let ok = NiFail::Ok;
            assert_eq!(
                heard,
                [
                    (EventKind::Reply, ok),
                    (EventKind::Send, ok),
                    (EventKind::Ack, ok)
                ],
                "{what}"
            );
            let told: Vec<_> = world.kinds(1, teq).into_iter().skip(2).collect();
            assert!(
                told.contains(&(EventKind::Put, ok)) && told.contains(&(EventKind::Get, ok)),
                "{what}: {told:?}"
            );
            assert_eq!(told.len(), 2, "{what}: exactly once");
            assert!(
                landing.as_shared().to_vec() == source.as_shared().to_vec(),
                "{what}: put"
            );
            assert!(
                into.as_shared().to_vec() == there.as_shared().to_vec(),
                "{what}: get"
            );
            assert!(world.nodes.iter().all(|node| !node.is_writing()));
        }
    }
}

#[test]
fn a_dead_peer_ends_everything_it_owed_and_is_then_reported() {
    for at in [0, 1, 3, 10, 50, 200] {
        // Up to three microseconds, nothing that is answered can have ended.
        let mut world = World::new(3, 2, Kind::MATCHING_LOGICAL, SimConfig::default());
        let length = 4_000_000u64;
        let mut ni = world.ni(1);
        ni.pt_alloc(PtOptions::NONE, None, None).unwrap();
        ni.append(
            0,
            Entry::open(memory(bytes(length as usize, 0)), BOTH),
            List::Priority,
            0,
        )
        .unwrap();
        let mut ni = world.ni(0);
        let teq = ni.eq_alloc(16).unwrap();
        ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
        ni.append(
            0,
            Entry::open(memory(bytes(length as usize, 0)), BOTH),
            List::Priority,
            0,
        )
        .unwrap();
        let eq = ni.eq_alloc(16).unwrap();
        let md = ni.md_bind(md(bytes(length as usize, 1), eq)).unwrap();
        let mut ni = world.ni(1);
        let theirs = ni.md_bind(super::world::md(bytes(length as usize, 2), EqHandle(0)));
        assert!(theirs.is_err(), "no such queue");
        let theirs = ni
            .md_bind(Md {
                memory: memory(bytes(length as usize, 2)),
                ..Md::default()
            })
            .unwrap();
        let (there, here) = (world.target(1, 0, 0, 0), world.target(0, 0, 0, 0));
        let mut ni = world.ni(0);
        ni.put(&put(md, length, there)).unwrap();
        ni.get(&get(md, length, there)).unwrap();
        ni.put(&put(md, 8, there)).unwrap();
        world.ni(1).put(&put(theirs, length, here)).unwrap();
        world.ni(1).get(&get(theirs, length, here)).unwrap();
        world
            .net
            .at(world.net.now() + Duration::from_micros(at), Change::RankDeath(1));
        world.settle();
        let heard = world.kinds(0, eq);
        let what = format!("killed after {at} us: {heard:?}");
        assert_eq!(heard.len(), 5, "{what}");
        let failed = heard
            .iter()
            .filter(|told| told.1 == NiFail::Undeliverable)
            .count();
        assert!(at > 3 || failed >= 3, "{what}");
        assert_eq!(
            world.ni(0).lost().map(|lost| lost.process),
            Some(Process::rank(1)),
            "{what}"
        );
        assert_eq!(world.ni(0).lost(), None);
        for told in world.events(0, teq).iter().skip(1) {
            assert!(
                told.fail == NiFail::Ok || told.fail == NiFail::Undeliverable,
                "{told:?}"
            );
        }
        assert!(!world.nodes[0].is_writing());
        // Afterwards it is lost.
        world.ni(0).put(&put(md, 8, there)).unwrap();
        let fail = NiFail::Undeliverable;
        assert_eq!(
            world.kinds(0, eq),
            [(EventKind::Send, fail), (EventKind::Ack, fail)]
        );
    }
}

#[test]
fn an_interface_that_is_finished_leaves_no_process_waiting() {
    for finisher in [0, 1] {
        let mut world = World::pair();
        let length = 1_000_000u64;
        let mut ni = world.ni(1);
        ni.pt_alloc(PtOptions::NONE, None, None).unwrap();
        ni.append(
            0,
            Entry::open(memory(bytes(length as usize, 0)), BOTH),
            List::Priority,
            0,
        )
        .unwrap();
        let target = world.target(1, 0, 0, 0);
        let mut ni = world.ni(0);
        let eq = ni.eq_alloc(16).unwrap();
        let md = ni.md_bind(md(bytes(length as usize, 1), eq)).unwrap();
        ni.put(&put(md, length, target)).unwrap();
        ni.get(&get(md, length, target)).unwrap();
        // Far enough that the transfers have begun.
        for _ in 0..6 {
            world.nodes.iter_mut().for_each(|node| _ = node.poll(16));
            world.net.advance_to_next_event();
        }
        let kind = world.kind;
        world.nodes[finisher].ni_fini(kind).unwrap();
        world.settle();
        assert!(world.nodes.iter().all(|node| !node.is_writing()));
        if finisher == 1 {
            let heard = world.kinds(0, eq);
            assert_eq!(heard.len(), 3, "{heard:?}");
        }
        // Both ends go on: the interface can be initialised again.
        world.nodes[finisher].ni_init(kind, None).unwrap();
        world.nodes[finisher].set_map(kind, &[name(0), name(1)]).unwrap();
        let eq = world.ni(finisher).eq_alloc(4).unwrap();
        assert_eq!(world.kinds(finisher, eq), []);
    }
}

/// Memory in two pieces, which nothing can read one-sidedly.
fn in_pieces(length: usize, value: u8) -> Memory {
    let piece = || Landing::Loan(bytes(length / 2, value));
    Memory::Many([piece(), piece()].into())
}

/// Two ranks over a slow network, the second with a table entry and the queue that it posts to.
fn slow() -> (World, EqHandle) {
    let mut config = SimConfig::default();
    config.faults.bandwidth = Some(1_000_000_000);
    let mut world = World::new(2, 1, Kind::MATCHING_LOGICAL, config);
    let mut ni = world.ni(1);
    let teq = ni.eq_alloc(16).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
    (world, teq)
}

/// Memory of the first in several pieces, and the queue that gets the events of its operations.
fn told_pieces(world: &mut World, length: usize) -> (EqHandle, MdHandle) {
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(16).unwrap();
    let md = Md {
        memory: in_pieces(length, 1),
        eq: Some(eq),
        ..Md::default()
    };
    (eq, ni.md_bind(md).unwrap())
}

/// Lets the network make this many steps.
fn steps_pass(world: &mut World, steps: usize) {
    for _ in 0..steps {
        world.nodes.iter_mut().for_each(|node| _ = node.poll(16));
        world.net.advance_to_next_event();
    }
}

#[test]
fn an_interface_that_is_finished_in_the_middle_of_fragments_leaves_no_process_waiting() {
    let mut begun = 0;
    for finisher in [0, 1] {
        for steps in 0..60 {
            let (mut world, teq) = slow();
            let length = 1_000_000;
            let mut ni = world.ni(1);
            let quiet = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0);
            let entry = ni
                .append(0, Entry::open(in_pieces(length, 0), quiet), List::Priority, 0)
                .unwrap();
            let target = world.target(1, 0, 0, 0);
            let (eq, md) = told_pieces(&mut world, length);
            let mut ni = world.ni(0);
            ni.put(&put(md, length as u64, target)).unwrap();
            ni.get(&get(md, length as u64, target)).unwrap();
            steps_pass(&mut world, steps);
            let kind = world.kind;
            world.nodes[finisher].ni_fini(kind).unwrap();
            world.settle();
            let what = format!("rank {finisher} finished after {steps} steps");
            for (me, other) in [(0, 1), (1, 0)] {
                let node = &mut world.nodes[me];
                let peer = node.core.peers.find(name(other)).unwrap();
                let peer = node.core.peers.get(peer).unwrap();
                assert_eq!((peer.open, peer.owed), (0, 0), "{what}: open at rank {me}");
                assert!(!node.is_writing(), "{what}");
            }
            if finisher == 0 {
                let told = world.kinds(1, teq);
                // One that had not come did not begin.
                begun += usize::from(told.contains(&(EventKind::Get, NiFail::Undeliverable)));
                begun += usize::from(told.contains(&(EventKind::Put, NiFail::Undeliverable)));
                assert_eq!(world.ni(1).pt_disable(0), Ok(true), "{what}: {told:?}");
                assert_eq!(world.ni(1).unlink(entry), Ok(()), "{what}: {told:?}");
            } else {
                let heard = world.kinds(0, eq);
                assert_eq!(heard.len(), 3, "{what}: {heard:?}");
            }
        }
    }
    assert!(begun > 20, "{begun} were under way");
}

#[test]
fn a_search_reports_a_header_whose_bytes_never_came_as_failed() {
    let (mut world, teq) = slow();
    let length = 1_000_000;
    let mut ni = world.ni(1);
    let quiet = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0);
    let pool = Entry::open(memory(bytes(length, 0)), quiet);
    ni.append(0, pool, List::Overflow, 0).unwrap();
    let target = world.target(1, 0, 0, 0);
    let (_, md) = told_pieces(&mut world, length);
    let mut ni = world.ni(0);
    ni.put(&put(md, length as u64, target)).unwrap();
    steps_pass(&mut world, 20);
    let kind = world.kind;
    world.nodes[0].ni_fini(kind).unwrap();
    world.settle();
    let fail = NiFail::Undeliverable;
    assert_eq!(world.kinds(1, teq), [(EventKind::Put, fail)]);
    for once in [EntryOptions::USE_ONCE, EntryOptions::NONE] {
        let entry = Entry::open(memory(bytes(8, 0)), EntryOptions(quiet.0 | once.0));
        world.ni(1).search(0, &entry, Search::Only, 5).unwrap();
        assert_eq!(world.kinds(1, teq), [(EventKind::Search, fail)]);
    }
    let entry = Entry::open(memory(bytes(8, 0)), quiet);
    world.ni(1).search(0, &entry, Search::Delete, 5).unwrap();
    assert_eq!(world.kinds(1, teq), [(EventKind::PutOverflow, fail)]);
}

#[test]
fn long_transfers_take_several_ways_together() {
    let mut config = SimConfig::default();
    // A megabyte takes a millisecond over one way.
    config.faults.bandwidth = Some(1_000_000_000);
    let mut elapsed = Vec::new();
    for planes in [1, 2] {
        let mut world = World::new(2, planes, Kind::MATCHING_LOGICAL, config);
        let length = 8_000_000;
        let there = numbered(length);
        let target = world.target(1, 0, 2, 0);
        let mut ni = world.ni(1);
        ni.pt_alloc(PtOptions::NONE, None, None).unwrap();
        ni.append(0, Entry::open(memory(there), BOTH), List::Priority, 0)
            .unwrap();
        let mut ni = world.ni(0);
        let eq = ni.eq_alloc(16).unwrap();
        let into = bytes(length, 0);
        let md = ni.md_bind(md(into, eq)).unwrap();
        let start = world.net.now();
        world.ni(0).get(&get(md, length as u64, target)).unwrap();
        world.settle();
        assert_eq!(world.kinds(0, eq), [(EventKind::Reply, NiFail::Ok)]);
        assert!(into.as_shared().to_vec() == there.as_shared().to_vec());
        elapsed.push(world.net.now() - start);
    }
    assert!(elapsed[1] * 10 < elapsed[0] * 7, "{elapsed:?}");
}

#[test]
fn a_rail_that_carries_too_little_is_refused_with_what_is_needed() {
    let mut config = SimConfig::default();
    config.capabilities.limits.message = 600;
    let net = doorbell_sim::SimNet::new(1, config);
    let mut node = crate::Node::new(crate::Config::new(name(0)));
    let refused = node.add_rail(net.attach()).map_err(|error| error.to_string());
    assert!(refused.is_err_and(|error| error.contains("600") && error.contains("640")));
}

#[test]
fn a_peer_that_could_not_be_connected_is_not_known_and_is_connected_later() {
    let net = doorbell_sim::SimNet::new(1, SimConfig::default());
    let kind = Kind::MATCHING_LOGICAL;
    let mut nodes: Vec<_> = (0..3)
        .map(|rank| {
            let mut node = crate::Node::new(crate::Config::new(name(rank)));
            node.add_rail(net.attach()).unwrap();
            node.ni_init(kind, None).unwrap();
            node.set_map(kind, &[0, 1, 2].map(name)).unwrap();
            node
        })
        .collect();
    let cards: Vec<_> = nodes
        .iter()
        .filter_map(|node| node.rails().next())
        .map(|(id, rail)| (id, rail.address(), rail.incarnation()))
        .collect();
    let mut connect = |from: usize, to: usize, card: usize| {
        let (rail, address, incarnation) = &cards[card];
        nodes[from]
            .connect(name(to), *rail, address, *incarnation)
            .is_ok()
            && nodes[from].knows(name(to))
    };
    assert!(connect(0, 1, 1) && connect(2, 0, 0));
    assert!(!connect(0, 2, 1), "another one's address");
    let mut world = World { net, nodes, kind };
    assert!(!world.nodes[0].knows(name(2)) && world.nodes[0].knows(name(0)));
    let mut ni = world.ni(2);
    let teq = ni.eq_alloc(4).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
    let quiet = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0);
    ni.append(0, Entry::open(memory(bytes(8, 0)), quiet), List::Priority, 0)
        .unwrap();
    let target = world.target(2, 0, 0, 0);
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(8).unwrap();
    let md = ni.md_bind(md(bytes(8, 1), eq)).unwrap();
    ni.put(&put(md, 8, target)).unwrap();
    world.settle();
    let fail = NiFail::Undeliverable;
    assert_eq!(
        world.kinds(0, eq),
        [(EventKind::Send, fail), (EventKind::Ack, fail)]
    );
    let (rail, address, incarnation) = &cards[2];
    world.nodes[0]
        .connect(name(2), *rail, address, *incarnation)
        .unwrap();
    assert!(world.nodes[0].knows(name(2)));
    world.ni(0).put(&put(md, 8, target)).unwrap();
    world.settle();
    assert_eq!(world.kinds(2, teq), [(EventKind::Put, NiFail::Ok)]);
}

#[test]
fn late_messages_of_a_lost_peer_are_dropped() {
    let mut world = World::pair();
    let target = world.target(1, 0, 0, 0);
    let mut ni = world.ni(1);
    let teq = ni.eq_alloc(4).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
    ni.append(0, Entry::open(memory(bytes(8, 0)), BOTH), List::Priority, 0)
        .unwrap();
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(4).unwrap();
    let md = ni.md_bind(md(bytes(8, 1), eq)).unwrap();
    ni.put(&put(md, 8, target)).unwrap();
    world.nodes[1].ended(name(0), doorbell_fabric::event::DownReason::Control);
    world.settle();
    let told = world.kinds(1, teq);
    // Either it came before its sender was lost, or not at all.
    assert!(told.len() <= 2, "{told:?}");
    assert_eq!(
        world.ni(1).lost().map(|lost| lost.process),
        Some(Process::rank(0))
    );
    let here = world.target(0, 0, 0, 0);
    world.ni(1).put(&put(md, 8, here)).unwrap_err();
}

//! All schedules up to a depth: every frame may be delivered, kept for later, delivered and kept (repeated),
//! or lost, and every timer may run first.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;
use crate::cm::wire::Frame;

/// Frames on their way at most: more than these are lost.
const FLYING: usize = 4;

/// What matters of a world, without its clock.
fn digest(world: &World) -> u64 {
    let mut text = String::new();
    for end in &world.ends {
        let peer = end.contact.peers[0].as_ref().unwrap();
        let effort = peer.effort.as_ref();
        let effort = effort.map(|effort| (effort.seen, effort.passed, effort.offer, effort.wanted));
        let (phase, used, over) = (peer.phase, peer.used, peer.over);
        let epochs = (peer.ours, peer.theirs);
        write!(text, "{phase:?} {used} {over} {epochs:?} {effort:?}").unwrap();
        let pair = end.pair.as_ref().map(|pair| (pair.attempt, pair.to.is_some()));
        write!(text, "{pair:?} {:?} {:?};", end.up, end.downs.len()).unwrap();
    }
    let mut flying: Vec<String> = world
        .net
        .iter()
        .map(|frame| {
            let read = Frame::read(&frame.bytes).unwrap();
            let terms = read.terms.map(|terms| terms.mtu);
            format!(
                "{} {:?} {} {:?} {:?} {terms:?}",
                frame.to, read.kind, read.ask, read.ours, read.yours
            )
        })
        .collect();
    flying.sort_unstable();
    flying.iter().for_each(|frame| text.push_str(frame));
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Every world that one step makes of this one.
fn next(world: &World) -> Vec<World> {
    let mut all = Vec::new();
    let mut add = |step: &dyn Fn(&mut World)| {
        let mut other = world.clone();
        step(&mut other);
        other.net.dedup();
        if other.net.len() <= FLYING {
            all.push(other);
        }
    };
    for at in 0..world.net.len() {
        add(&|world| world.deliver(at));
        add(&|world| {
            let frame = world.net[at].clone();
            world.hand_in(&frame);
        });
        add(&|world| {
            world.net.remove(at);
        });
    }
    for end in 0..2 {
        if let Some(due) = world.ends[end].contact.next_deadline() {
            add(&|world| {
                world.now = world.now.max(due);
                let now = world.now;
                world.ends[end].contact.tick(now);
                world.settle();
            });
        }
    }
    all
}

/// Walks through all schedules of `steps` steps, and judges that each ends well where the network does.
fn walk(first: World, steps: usize, most: usize) -> usize {
    let mut seen = HashSet::new();
    let mut layer = vec![first];
    for _ in 0..steps {
        let mut following = Vec::new();
        for world in &layer {
            for other in next(world) {
                if seen.insert(digest(&other)) {
                    following.push(other);
                }
            }
        }
        layer = following;
        if seen.len() > most {
            break;
        }
    }
    for mut world in layer {
        // From everywhere a connection comes about once one end wants it.
        world.call(0);
        world.run_up();
    }
    seen.len()
}

#[test]
fn one_calls_in_all_schedules() {
    let mut world = World::new();
    world.call(0);
    let count = walk(world, 7, 20_000);
    assert!(count > 300, "{count} states");
}

#[test]
fn both_call_in_all_schedules() {
    let mut world = World::new();
    world.call(0);
    world.call(1);
    let count = walk(world, 6, 20_000);
    assert!(count > 300, "{count} states");
}

#[test]
fn a_connection_ends_and_begins_in_all_schedules() {
    let mut world = World::new();
    world.call(0);
    world.run_up();
    let now = world.now;
    world.ends[0].die(DownReason::Silent, now);
    world.settle();
    world.revive(0);
    let count = walk(world, 7, 20_000);
    assert!(count > 300, "{count} states");
}

#[test]
fn both_ends_die_at_once_and_call_in_all_schedules() {
    let mut world = World::new();
    world.call(0);
    world.run_up();
    let now = world.now;
    (0..2).for_each(|end| world.ends[end].die(DownReason::Silent, now));
    world.settle();
    (0..2).for_each(|end| world.revive(end));
    let count = walk(world, 5, 20_000);
    assert!(count > 300, "{count} states");
}

#[test]
fn a_narrow_path_in_all_schedules() {
    let mut world = World::new();
    world.path = [2048, 4096];
    world.call(0);
    let count = walk(world, 7, 20_000);
    assert!(count > 300, "{count} states");
}

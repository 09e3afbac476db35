//! Frames that lie: of those without the key, and of those with it.

use super::*;
use crate::cm::counts::{DROPS, Drop};
use crate::cm::epoch::Epoch;
use crate::cm::key::ContactKey;
use crate::cm::wire::Frame;
use doorbell_testing::Random;

fn calling() -> (World, Flying) {
    let mut world = World::new();
    world.call(0);
    let frame = world.net[0].clone();
    (world, frame)
}

fn why(world: &mut World, frame: &Flying) -> Option<Drop> {
    let before = *world.ends[1].contact.counts();
    world.ends[1]
        .contact
        .receive(&frame.from, &frame.bytes, world.now);
    let after = world.ends[1].contact.counts();
    Drop::ALL
        .into_iter()
        .find(|why| after.dropped(*why) > before.dropped(*why))
}

fn written(frame: &Frame, key: [u8; 32]) -> Vec<u8> {
    let mut into = [0; LONGEST];
    let length = frame.write(&ContactKey::new(&key), &mut into);
    into[..length].to_vec()
}

/// The frame with a change, and the right MAC.
fn changed(frame: &Flying, change: impl FnOnce(&mut Frame)) -> Flying {
    let mut read = Frame::read(&frame.bytes).unwrap();
    change(&mut read);
    Flying {
        bytes: written(&read, KEY),
        ..frame.clone()
    }
}

#[test]
fn each_lie_is_dropped_and_counted_by_its_reason() {
    let (mut world, call) = calling();
    let with = |bytes: Vec<u8>| Flying {
        bytes,
        ..call.clone()
    };
    let bytes = &call.bytes;
    let mut long = bytes.clone();
    long.push(0);
    let mut version = bytes.clone();
    version[0] = 9;
    let mut kind = bytes.clone();
    kind[1] = 9;
    let mut damaged = bytes.clone();
    damaged[88] ^= 1;
    let wrong_key = written(&Frame::read(bytes).unwrap(), [8; 32]);
    let source = |pair, port| Flying {
        from: From { pair, port },
        ..call.clone()
    };
    let cases = [
        (with(Vec::new()), Drop::Short),
        (with(bytes[..bytes.len() - 1].to_vec()), Drop::Short),
        (with(long), Drop::Long),
        (with(vec![1; 300]), Drop::Long),
        (with(version), Drop::Version),
        (with(kind), Drop::Malformed),
        (with(damaged), Drop::Forged),
        (with(wrong_key), Drop::Forged),
        (source(101, Source::Gid(gid(9).0)), Drop::Source),
        (source(101, Source::Lid(0)), Drop::Source),
        (source(7, call.from.port), Drop::Source),
        (changed(&call, |frame| frame.to = Incarnation(9)), Drop::OtherLife),
        (
            changed(&call, |frame| frame.from = Incarnation(9)),
            Drop::OtherLife,
        ),
        (changed(&call, |frame| frame.link ^= 1), Drop::Stranger),
        (
            changed(&call, |frame| frame.yours = Epoch { term: 0, count: 1 }),
            Drop::Malformed,
        ),
    ];
    for (at, (frame, reason)) in cases.iter().enumerate() {
        assert_eq!(why(&mut world, frame), Some(*reason), "case {at}");
        assert!(
            world.ends[1].contact.event().is_none(),
            "case {at} does something"
        );
    }
    assert_eq!(why(&mut world, &call), None, "the truth is taken");
    assert!(world.ends[1].contact.stranger().is_some());
}

#[test]
fn a_queue_pair_that_a_newer_frame_names_is_the_peers_from_then_on() {
    let (mut world, call) = calling();
    let names = |frame: &mut Frame, pair| {
        frame.terms.as_mut().unwrap().numbers.pairs[1] = pair;
    };
    let from = |flying: Flying, pair| Flying {
        from: From {
            pair,
            port: call.from.port,
        },
        ..flying
    };
    let named = changed(&call, |frame| names(frame, 7));
    assert_eq!(why(&mut world, &from(named.clone(), 8)), Some(Drop::Source));
    assert_eq!(why(&mut world, &from(named.clone(), 7)), None);
    let remote = |world: &World| *world.ends[1].contact.remote_of(PeerIndex(0)).unwrap();
    assert_eq!(remote(&world).pair, 7);
    // A repetition moves it nowhere, and neither does what the former one sends.
    let repeated = changed(&call, |frame| names(frame, 9));
    assert_eq!(why(&mut world, &from(repeated, 9)), Some(Drop::Source));
    assert_eq!(why(&mut world, &call), Some(Drop::Source));
    assert_eq!(why(&mut world, &from(named, 7)), None);
    assert_eq!(remote(&world).pair, 7);
}

#[test]
fn a_farewell_counts_whatever_queue_pair_of_its_port_it_comes_from() {
    let mut world = World::new();
    world.call(0);
    world.run_up();
    world.net.clear();
    let now = world.now;
    world.ends[0].abandon(now);
    world.settle();
    let farewell = world.net.remove(0);
    let with_pair = |flying: &Flying, pair| {
        let mut other = flying.clone();
        other.from.pair = pair;
        other
    };
    let forged = Flying {
        bytes: written(&Frame::read(&farewell.bytes).unwrap(), [8; 32]),
        ..with_pair(&farewell, 7)
    };
    assert_eq!(why(&mut world, &forged), Some(Drop::Forged));
    assert_eq!(why(&mut world, &with_pair(&farewell, 7)), None);
    world.settle();
    assert_eq!(world.ends[1].downs, [DownReason::Abandoned]);
    // Its sender gets an answer there, and one that repeats it elsewhere moves nothing.
    assert_eq!(why(&mut world, &with_pair(&farewell, 8)), None);
    let remote = *world.ends[1].contact.remote_of(PeerIndex(0)).unwrap();
    assert_eq!(remote.pair, 7);
}

#[test]
fn whoever_has_no_key_is_not_even_a_stranger() {
    let (mut world, call) = calling();
    world.ends[1] = End::new(2, 2);
    let mut other = call.clone();
    other.bytes = written(&Frame::read(&call.bytes).unwrap(), [8; 32]);
    assert_eq!(why(&mut world, &other), Some(Drop::Forged));
    assert_eq!(world.ends[1].contact.stranger(), None);
    assert_eq!(why(&mut world, &call), Some(Drop::Stranger));
    assert!(world.ends[1].contact.stranger().is_some());
}

#[test]
fn frames_of_old_epochs_change_nothing() {
    let mut world = World::new();
    world.call(0);
    let old = world.net.clone();
    world.run_up();
    let now = world.now;
    world.ends[0].abandon(now);
    world.settle();
    world.run("both know", |world| world.ends[1].up.is_none());
    world.revive(1);
    world.run_up();
    let lives = world.ends[1].lives.clone();
    for frame in &old {
        assert_eq!(why(&mut world, frame), Some(Drop::Old));
    }
    world.settle();
    assert!(world.are_up() && world.ends[1].lives == lives);
}

/// A peer with the key that sends anything: what it claims has bounds.
#[test]
fn a_peer_with_the_key_can_only_harm_its_own_connection() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = World::new();
        world.call(0);
        world.call(1);
        let mut kept = world.net.clone();
        for _ in 0..100 {
            let base = kept[random.index(kept.len())].clone();
            let lie = changed(&base, |frame| {
                let small = |random: &mut Random| Epoch {
                    term: random.below(3) as u32,
                    count: random.below(4) as u32,
                };
                match random.below(5) {
                    0 => frame.ours = small(&mut random),
                    1 => frame.yours = small(&mut random),
                    2 => frame.ask = !frame.ask,
                    3 => (frame.ours, frame.yours) = (small(&mut random), small(&mut random)),
                    _ => {}
                }
            });
            let now = world.now;
            let to = lie.to;
            world.ends[to].contact.receive(&lie.from, &lie.bytes, now);
            // The rail does what is requested; nothing panics, and queue pairs are made one by one.
            while world.ends[to].work(now) {}
            kept.append(&mut world.net);
            kept.truncate(50);
            let next = world.next().unwrap_or(now);
            world.now = world.now.max(next);
            for end in &mut world.ends {
                end.contact.tick(next);
                while end.work(next) {}
            }
            let queued = world.ends[to].contact.queue.len();
            assert!(queued <= 1 && world.ends[to].contact.deadlines.len() <= 16);
        }
    }
}

#[test]
fn any_bytes_are_dropped() {
    let (mut world, call) = calling();
    let mut random = Random::new(1);
    for _ in 0..3_000 {
        let mut frame = call.clone();
        match random.below(3) {
            0 => frame.bytes = (0..random.index(300)).map(|_| random.next_u64() as u8).collect(),
            1 => frame.bytes.truncate(random.index(160)),
            _ => {
                let at = random.index(frame.bytes.len());
                frame.bytes[at] ^= 1 << random.below(8);
            }
        }
        assert!(why(&mut world, &frame).is_some());
    }
    let dropped: u64 = Drop::ALL
        .iter()
        .map(|why| world.ends[1].contact.counts().dropped(*why))
        .sum();
    assert_eq!((dropped, Drop::ALL.len()), (3_000, DROPS));
}

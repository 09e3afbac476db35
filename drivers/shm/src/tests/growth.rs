//! Lanes that grow with their use: what one takes, and that nothing is lost while it grows.

use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_fabric::map::page_size;
use doorbell_testing::Random;

use super::*;

/// Pages of a lane object, as long as its receiver has not got it.
fn pages(rail: &ShmRail, peer: usize) -> usize {
    let object = rail.peers[peer].tx.as_ref().unwrap().object().unwrap();
    let stat = rustix::fs::fstat(object).unwrap();
    usize::try_from(stat.st_blocks).unwrap() * 512 / page_size()
}

#[test]
fn a_lane_begins_with_a_page_and_grows_in_a_few_steps() {
    let mut world = World::new(2, &ShmConfig::default());
    world.rails[0]
        .send(PeerIndex(1), &[1; 16], Body::Bytes(&[2; 8]))
        .unwrap();
    if pages(&world.rails[0], 1) > 1 {
        return skipped(
            "a_lane_begins_with_a_page",
            "this kernel allocates no parts (before 5.14)",
        );
    }
    let mut steps = vec![1];
    let mut count = 1;
    let body = [3; 300];
    // Of one cell, or too long for a run of them.
    let length = |count: usize| {
        let length = count % 300;
        if (9..=104).contains(&length) {
            length % 9
        } else {
            length
        }
    };
    while world.rails[0]
        .send(PeerIndex(1), &[1; 16], Body::Bytes(&body[..length(count)]))
        .is_ok()
    {
        count += 1;
        let now = pages(&world.rails[0], 1);
        if steps.last() != Some(&now) {
            steps.push(now);
        }
    }
    // All cells are full, and most of the data.
    assert_eq!(count, 512);
    assert!(
        steps.len() <= 7 && steps.windows(2).all(|pair| pair[0] < pair[1]),
        "{steps:?}"
    );
    let all = (64 + world.rails[0].geometry.bytes()).div_ceil(page_size());
    assert!(*steps.last().unwrap() <= all, "{steps:?}");
    world.until("delivery", |world| world.seen[1].messages.len() == 512);
    for (n, (_, bytes)) in world.seen[1].messages.iter().enumerate().skip(1) {
        assert!(
            bytes.len() == 16 + length(n) && bytes[16..].iter().all(|byte| *byte == 3),
            "{n}"
        );
    }
}

/// Longer messages at once: what is needed is there, however much that is.
#[test]
fn a_burst_of_any_length_right_after_the_start_arrives() {
    for length in [0, 8, 9, 40, 41, 72, 73, 104, 105, 4000, 4100, 30_000, 100_000] {
        let mut world = World::new(2, &ShmConfig::default());
        let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let mut sent = 0;
        while world.rails[0]
            .send(PeerIndex(1), &[9; 16], Body::Bytes(&body))
            .is_ok()
        {
            sent += 1;
        }
        // As many as the lane holds, and no fewer because it began small.
        let rest = (16usize + length).saturating_sub(24).next_multiple_of(64);
        let expected = match length {
            // Runs of two cells, of three, which end with a line, and of four.
            9..=40 => 512 / 2,
            41..=104 => 512 / 4,
            _ => 512.min((256 << 10) / rest.max(1)),
        };
        assert_eq!(sent, expected, "of {length} bytes");
        world.until("delivery", |world| world.seen[1].messages.len() == sent);
        assert!(
            world.seen[1]
                .messages
                .iter()
                .all(|(_, bytes)| bytes[16..] == body)
        );
    }
}

/// Both ends grow while both send and receive, each in a thread of its own.
#[test]
fn both_ends_grow_at_once() {
    const COUNT: usize = 3000;
    for seed in 0..4 {
        let World { rails, .. } = World::new(2, &ShmConfig::default());
        let arrived = [const { AtomicUsize::new(0) }; 2];
        std::thread::scope(|scope| {
            for (me, mut rail) in rails.into_iter().enumerate() {
                let arrived = &arrived;
                scope.spawn(move || {
                    let (start, mut seen) = (Instant::now(), Seen::default());
                    let lengths = |from: usize| {
                        let mut random = Random::new(seed * 2 + from as u64);
                        std::iter::repeat_with(move || match random.next_u64() % 4 {
                            0 => random.next_u64() as usize % 20_000,
                            1 => random.next_u64() as usize % 600,
                            _ => random.next_u64() as usize % 9,
                        })
                    };
                    let (mut ours, mut theirs) = (lengths(me), lengths(1 - me));
                    let (mut sent, mut got) = (0, 0);
                    let mut next = ours.next().unwrap();
                    let body: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
                    // Until the other has all of ours, too: a rail that is dropped is a peer that has ended.
                    while sent < COUNT || got < COUNT || arrived[1 - me].load(Ordering::Relaxed) < COUNT {
                        assert!(
                            start.elapsed() < Duration::from_secs(120),
                            "{sent} sent, {got} arrived"
                        );
                        rail.progress(Time::ZERO + start.elapsed());
                        rail.poll(7, &mut seen);
                        for (_, bytes) in seen.messages.drain(..) {
                            assert_eq!(bytes.len(), 16 + theirs.next().unwrap(), "{got}");
                            assert!(bytes[16..] == body[..bytes.len() - 16], "{got}");
                            got += 1;
                        }
                        arrived[me].store(got, Ordering::Relaxed);
                        let to = PeerIndex(1 - me as u32);
                        if sent < COUNT && rail.send(to, &[5; 16], Body::Bytes(&body[..next])).is_ok() {
                            (sent, next) = (sent + 1, ours.next().unwrap());
                        }
                    }
                });
            }
        });
    }
}

/// What was sent before is delivered, and the connection ends by its name.
#[test]
fn memory_that_runs_out_ends_the_connection_and_nothing_else() {
    let mut world = World::new(3, &ShmConfig::default());
    world.up(0, 1);
    world.up(0, 2);
    while world.rails[0].event().is_some() {}
    world.rails[0].peers[1].tx.as_mut().unwrap().starve();
    let mut sent = 0u64;
    while sent < 10_000
        && world.rails[0]
            .send(PeerIndex(1), b"a message", Body::Empty)
            .is_ok()
    {
        sent += 1;
        world.pump();
    }
    if sent == 10_000 {
        return skipped(
            "memory_that_runs_out",
            "this kernel allocates no parts (before 5.14)",
        );
    }
    let refused = world.rails[0].send(PeerIndex(1), b"a message", Body::Empty);
    assert_eq!(refused, Err(Refused::PeerDown));
    assert_eq!(world.event(0), EventKind::PeerDown(DownReason::Resources));
    let (mut back, mark) = (0, world.rails[0].handed_over(PeerIndex(1)).0);
    world.rails[0].reclaim(PeerIndex(1), &mut |_, _| back += 1);
    assert_eq!(mark + back, sent + 1, "with the greeting");
    world.rails[0]
        .send(PeerIndex(2), b"to another", Body::Empty)
        .unwrap();
    world.until("delivery", |world| world.seen[2].messages.len() == 1);
}

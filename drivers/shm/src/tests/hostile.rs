//! A peer that keeps to its maps (what it was given read-only, it does not write) and to nothing else.

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_ring::lane::{CELL_BYTES, Geometry};
use doorbell_testing::Random;

use super::{Seen, World, rail};
use crate::ShmConfig;
use crate::connect::{self, DialOutcome};
use crate::tx::Tx;
use crate::wire::Hello;

fn small() -> ShmConfig {
    ShmConfig {
        cells: 8,
        data: 4096,
        eager: 512,
        fragment: 512,
        ..ShmConfig::default()
    }
}

/// The sender writes anything anywhere into its lane object, all the time.
#[test]
fn a_receiver_survives_whatever_a_sender_writes_into_its_lane() {
    let mut random = Random::new(7);
    let mut reported = [0; 2];
    for round in 0..60 {
        let mut world = World::new(2, &small());
        world.up(0, 1);
        for _ in 0..2_000 {
            let word = random.next_u64() as usize % 700;
            let value = match random.next_u64() % 3 {
                0 => random.next_u64(),
                1 => {
                    ((random.next_u64() % 40) << 32)
                        | ((random.next_u64() % 2) << 31)
                        | (random.next_u64() % 3000)
                }
                _ => 0,
            };
            world.rails[0].scribble(1, word, value);
            let mut seen = Seen::default();
            world.rails[1].poll(4, &mut seen);
            for (peer, bytes) in seen.messages {
                assert!(peer == PeerIndex(0) && bytes.len() <= Geometry::new(8, 4096).unwrap().longest());
            }
        }
        let event =
            std::iter::from_fn(|| world.rails[1].event()).find(|event| event.kind != EventKind::PeerUp);
        match event.map(|event| event.kind) {
            None => reported[0] += 1,
            Some(EventKind::PeerDown(DownReason::Hostile)) => reported[1] += 1,
            Some(other) => panic!("round {round}: {other:?}"),
        }
    }
    assert!(
        reported[1] > 0,
        "impossible lengths were never noticed: {reported:?}"
    );
}

/// The receiver writes anything into its control block.
#[test]
fn a_sender_survives_whatever_a_receiver_writes_into_its_control_block() {
    let mut random = Random::new(8);
    let mut refused = 0;
    for _ in 0..60 {
        let mut world = World::new(2, &small());
        world.up(0, 1);
        for _ in 0..500 {
            let value = if random.next_u64().is_multiple_of(4) {
                random.next_u64()
            } else {
                random.next_u64() % 64
            };
            world.rails[1].scribble_control(0, random.next_u64() as usize % 24, value);
            match world.rails[0].send(PeerIndex(1), b"head", Body::Bytes(&[1; 200])) {
                Ok(_) | Err(Refused::Full) => {}
                Err(Refused::PeerDown) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
            let watermark = world.rails[0].handed_over(PeerIndex(1));
            assert!(watermark <= MsgId(501));
        }
        world.rails[0].reclaim(PeerIndex(1), &mut |_, bytes| assert_eq!(bytes.len(), 204));
    }
    assert!(refused > 0);
}

/// Not only between the calls: a thread writes into every object of the peer, by maps of its own, while the
/// receiver polls, looks and pulls and the sender sends.
#[test]
fn objects_that_change_under_the_hands_of_both_ends_do_no_harm() {
    let longest = Geometry::new(8, 4096).unwrap().longest();
    // Messages by poll, by look, reads that were believed, reads that were not, ends.
    let mut times = [0u64; 5];
    let started = std::time::Instant::now();
    let mut round = 0;
    while (round < 40 || times.contains(&0)) && started.elapsed().as_secs() < 20 {
        round += 1;
        let mut world = World::new(2, &small());
        world.up(0, 1);
        world.up(1, 0);
        let region = doorbell_fabric::memory::Region::new(8192).unwrap();
        let whole = Exposure::Region(region.whole());
        let remote = world.rails[0]
            .expose(whole, Access::Read, Some(PeerIndex(1)))
            .unwrap();
        let lane = world.rails[0].peers[1].tx.as_ref().unwrap().far();
        let control = world.rails[1].peers[0].rx.as_ref().unwrap().far();
        let leases = world.rails[0].leases.far();
        let over = std::sync::atomic::AtomicBool::new(false);
        let aim = std::sync::atomic::AtomicU64::new(0);
        let ended = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(round);
                while !over.load(ended) {
                    // The cell that comes next, or one near it.
                    let index = aim.load(ended) + random.next_u64() % 4 / 3;
                    let cell = 8 + index as usize % 8 * (CELL_BYTES / 8);
                    let run = 1 << 31;
                    let lengths = [
                        16,
                        24,
                        64,
                        200,
                        longest as u64,
                        longest as u64 + 1,
                        run | 64,
                        run | 200,
                    ];
                    let len = lengths[random.next_u64() as usize % lengths.len()];
                    let marked = (index + 1) << 32 | len;
                    for (word, value) in [(cell + 1, 1), (cell + 2, 2), (cell, marked)] {
                        lane.scribble(word, value);
                    }
                    lane.scribble(8 + random.next_u64() as usize % 544, random.next_u64());
                    let value = [random.next_u64(), random.next_u64() % 64][random.next_u64() as usize % 2];
                    control.scribble(random.next_u64() as usize % 24, value);
                    // The entry in use: sometimes as it ought to be.
                    leases.scribble(random.next_u64() as usize % 8, random.next_u64());
                    if random.next_u64().is_multiple_of(2) {
                        let right = [remote.key.get(), 0, remote.address.get(), remote.length.get()];
                        (0..4).for_each(|word| leases.scribble(word, right[word]));
                    }
                    std::thread::yield_now();
                }
            });
            let room = doorbell_fabric::memory::MutLoan::of_static(vec![0; 48].leak());
            for step in 0..2_000u64 {
                let now = doorbell_fabric::time::Time::from_nanos(step * 1_000_000);
                let mut seen = Seen::default();
                world.rails.iter_mut().for_each(|rail| _ = rail.progress(now));
                if step % 2 == 0 {
                    world.rails[1].poll(4, &mut seen);
                }
                assert!(seen.messages.iter().all(|(_, bytes)| bytes.len() <= longest));
                times[0] += seen.messages.len() as u64;
                for (_, outcome) in seen.ended {
                    assert!(outcome.is_err() || outcome == Ok(0));
                    times[if outcome.is_ok() { 2 } else { 3 }] += 1;
                }
                let watch = Watch {
                    looks: 4,
                    between: Between::Pauses(1),
                    answer: true,
                };
                if let Look::Taken(length) =
                    Message::look(&mut world.rails[1], PeerIndex(0), [1, 2], room.into(), watch)
                {
                    assert!(length <= 48);
                    times[1] += 1;
                }
                let _ = world.rails[1].get(PeerIndex(0), OpId(step), &remote, into());
                let _ = world.rails[0].send(PeerIndex(1), b"head", Body::Bytes(&[1; 200]));
                let events: Vec<_> = std::iter::from_fn(|| world.rails[1].event()).collect();
                if events
                    .iter()
                    .any(|event| event.kind == EventKind::PeerDown(DownReason::Hostile))
                {
                    times[4] += 1;
                    break;
                }
                if let Some(rx) = &world.rails[1].peers[0].rx {
                    aim.store(rx.lane.cells(), ended);
                }
            }
            over.store(true, ended);
        });
    }
    assert!(!times.contains(&0), "{times:?}");
}

fn into() -> Landing {
    Landing::Region(doorbell_fabric::memory::Region::new(8192).unwrap().whole())
}

/// Ready bits are writable by every peer: any pattern costs looks, and loses nothing.
#[test]
fn ready_bits_set_and_cleared_by_a_stranger_lose_no_message() {
    let mut random = Random::new(9);
    let mut world = World::new(12, &small());
    for from in 1..12 {
        world.up(from, 0);
    }
    world.until("cooling", |world| world.rails[0].cold.len() > 3);
    for _ in 0..200 {
        world.seen[0].messages.clear();
        let from = 1 + random.next_u64() as usize % 11;
        world.rails[from]
            .send(PeerIndex(0), b"through the noise", Body::Empty)
            .unwrap();
        for word in 0..65 {
            world.rails[0].scribble_ready(
                word,
                if random.next_u64().is_multiple_of(2) {
                    0
                } else {
                    random.next_u64()
                },
            );
        }
        world.until("delivery", |world| world.seen[0].messages.len() == 1);
        assert_eq!(world.seen[0].messages[0].0, PeerIndex(from as u32));
    }
}

/// What comes over the sockets.
#[test]
fn nonsense_on_the_socket_is_refused_and_counted() {
    let mut target = rail(&small());
    let mut seen = Seen::default();
    let object = Tx::new(Geometry::new(8, 4096).unwrap(), 0).unwrap();
    let good = Hello::new(
        [1; 16],
        2,
        target.incarnation.0,
        Geometry::new(8, 4096).unwrap(),
        (&[0; 16], 0),
        [0; 2],
        [1, 0],
    );
    let wrong_size = Hello::new(
        [1; 16],
        2,
        target.incarnation.0,
        Geometry::new(1024, 65536).unwrap(),
        (&[0; 16], 0),
        [0; 2],
        [1, 0],
    );
    let other_life = Hello::new(
        [1; 16],
        2,
        77,
        Geometry::new(8, 4096).unwrap(),
        (&[0; 16], 0),
        [0; 2],
        [1, 0],
    );
    let mut step = 0;
    let mut settle = |target: &mut crate::ShmRail| {
        step += 1;
        target.progress(doorbell_fabric::time::Time::from_nanos(step * 10_000_000));
        target.poll(8, &mut seen);
    };
    for (hello, refused) in [(&wrong_size, 1), (&other_life, 2), (&good, 2)] {
        let Ok(DialOutcome::HelloSent(socket, _)) =
            connect::dial(&target.id, hello, object.object().unwrap(), &target.leases.object)
        else {
            panic!("the socket was not there")
        };
        settle(&mut target);
        assert_eq!(target.refused(), refused);
        drop(socket);
    }
    // The good one is an unopened peer that may be opened later; nothing of it is delivered before.
    assert_eq!(target.pending_peers.len(), 1);
    assert!(seen.messages.is_empty());
}

/// The steps of a send, each the last one of a sender that dies there: no other peer is held up.
#[test]
fn a_sender_that_dies_at_any_step_blocks_no_other() {
    for step in 0..5 {
        dies(|tx| tx.half_send(step), step >= 3);
    }
    for words in 0..=8 {
        dies(|tx| tx.half_run(words), words == 8);
    }
}

/// Messages of another sender arrive, before and after one dies in the middle of its own.
fn dies(half: impl FnOnce(&mut Tx), is_sent: bool) {
    let mut world = World::new(3, &small());
    world.up(0, 2);
    world.up(1, 2);
    half(world.rails[0].peers[2].tx.as_mut().unwrap());
    drop(world.rails.remove(0));
    world.seen.remove(0);
    // Rank 1 is now the world's first rail, rank 2 its second.
    let from = |world: &World, rank| {
        world.seen[1]
            .messages
            .iter()
            .filter(|seen| seen.0 == PeerIndex(rank))
            .count()
    };
    for round in 0..20u8 {
        world.rails[0]
            .send(PeerIndex(2), &[round], Body::Bytes(&[round; 40]))
            .unwrap();
        world.until("delivery", |world| from(world, 1) == usize::from(round) + 1);
    }
    world.until("the news", |world| {
        std::iter::from_fn(|| world.rails[1].event())
            .any(|event| matches!(event.kind, EventKind::PeerDown(_)))
    });
    assert_eq!(
        from(&world, 0),
        usize::from(is_sent),
        "there exactly when it was committed"
    );
}

impl crate::ShmRail {
    /// Test equipment: writes a word of our lane object's cells and data, as only we can.
    fn scribble(&mut self, peer: usize, word: usize, value: u64) {
        if let Some(tx) = &mut self.peers[peer].tx {
            tx.scribble(word % ((8 * CELL_BYTES + 4096) / 8), value);
        }
    }

    fn scribble_control(&mut self, peer: usize, word: usize, value: u64) {
        if let Some(rx) = &mut self.peers[peer].rx {
            rx.scribble(word, value);
        }
    }

    fn scribble_ready(&mut self, word: usize, value: u64) {
        self.ready.scribble(word, value);
    }
}

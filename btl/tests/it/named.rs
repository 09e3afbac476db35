//! Cases with names: what the two channels, the numbers and the acknowledgements of the protocol are there
//! for.

use std::time::Duration;

use crate::common::{RACK, World, rings};
use doorbell_btl::BtlConfig;
use doorbell_btl::wire::Kind;
use doorbell_fabric::message::Message;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane};

/// Where a frame has its kind.
const KIND: usize = 18;

/// A large message on the data channel, and small ones that overtake it on the priority channel: that is no
/// loss.
#[test]
fn a_large_send_followed_by_a_flood_of_small_ones() {
    // The data channel's frames wait behind each other, the priority channel's do not.
    let config = BtlConfig::default();
    let mut world = World::new(1, 2, rings(RACK), &config);
    let to = world.to(0, 1);
    let (mut large, mut small) = (0, 0);
    world.until("all arrive", Duration::from_secs(5), |world| {
        for _ in 0..20 {
            if large < 20 && small >= large * 200 && world.ends[0].try_send(to, &[1; 140_000]).is_some() {
                large += 1;
            }
            for _ in 0..50 {
                if small < 4000 && world.ends[0].try_send(to, &[2; 32]).is_some() {
                    small += 1;
                }
            }
        }
        world.ends[0].flush();
        world.ends[1].sink.total() == 4020
    });
    let counters = world.ends[0].btl.counters();
    assert_eq!(counters.resends, 0, "{}", world.report());
    // With loss on top, what is sent again is what was lost, and little more.
    for seed in 1..=3 {
        let mut world = World::new(seed, 2, rings(Faults { loss: 0.01, ..RACK }), &config);
        let mut sent = 0;
        world.until("all arrive", Duration::from_secs(5), |world| {
            while sent < 4000 {
                let bytes = if sent % 200 == 0 {
                    &[1; 140_000][..]
                } else {
                    &[2; 32]
                };
                if world.ends[0].try_send(to, bytes).is_none() {
                    break;
                }
                sent += 1;
            }
            world.ends[0].flush();
            world.ends[1].sink.total() == 4000
        });
        let (resends, lost) = (world.ends[0].btl.counters().resends, world.net.total().lost);
        println!("seed {seed}: {resends} resends for {lost} lost frames");
        assert!(resends as f64 <= 1.2 * lost as f64, "{}", world.report());
    }
}

/// Sends `count` messages of `length` to end 1, and waits until all were taken.
fn stream(world: &mut World, length: usize, count: u64) {
    let (to, bytes, mut sent) = (world.to(0, 1), vec![3; length], 0);
    world.ends[1].sink.count_only = true;
    world.until("all are taken", Duration::from_secs(30), |world| {
        while sent < count && world.ends[0].try_send(to, &bytes).is_some() {
            sent += 1;
        }
        world.ends[0].flush();
        world.ends[0].btl.handed_over(to).0 == count
    });
    assert_eq!(world.ends[1].sink.total(), count);
}

#[test]
fn numbers_wrap_in_the_middle_of_everything() {
    for first in [
        u32::MAX,
        u32::MAX - 1000,
        0x7fff_ffff,
        0x8000_0000 - 500,
        0xffff,
        0,
    ] {
        let config = BtlConfig {
            first_sequence: Some(first),
            ..BtlConfig::default()
        };
        for loss in [0.0, 0.02] {
            let mut world = World::new(1, 2, rings(Faults { loss, ..RACK }), &config);
            stream(&mut world, 700, 1500);
            stream_long(&mut world);
            assert_eq!(world.ends[0].btl.counters().acks_bad, 0, "{}", world.report());
        }
    }
}

/// A few messages of many chunks.
fn stream_long(world: &mut World) {
    let (to, before) = (world.to(0, 1), world.ends[1].sink.total());
    for _ in 0..5 {
        assert!(world.ends[0].try_send(to, &[4; 100_000]).is_some());
    }
    world.until("long ones arrive", Duration::from_secs(5), |world| {
        world.ends[1].sink.total() == before + 5
    });
}

/// All data arrives, and of the acknowledgements only some: nothing is worth sending again but the very last.
#[test]
fn lost_acknowledgements_only() {
    for (every, seed) in [(2, 1), (3, 2)] {
        let acks = Pick::byte(KIND, Kind::Ack as u8);
        let aim = Aim {
            every,
            ..Aim::each(acks, Effect::Lose)
        };
        let mut world = World::new(
            seed,
            2,
            rings(Faults {
                aim: Some(aim),
                ..RACK
            }),
            &BtlConfig::default(),
        );
        stream(&mut world, 700, 20_000);
        let lost = world.net.total().lost_by_aim;
        let counters = world.ends[0].btl.counters();
        println!(
            "{} of {lost} lost acknowledgements made segments go again",
            counters.resends
        );
        assert!(lost > 100 && counters.resends <= 10, "{}", world.report());
    }
    // None at all for a while: time-outs find out, one segment at a time.
    let all = Aim {
        times: 40,
        ..Aim::each(Pick::byte(KIND, Kind::Ack as u8), Effect::Lose)
    };
    let mut world = World::new(
        3,
        2,
        rings(Faults {
            aim: Some(all),
            ..RACK
        }),
        &BtlConfig::default(),
    );
    stream(&mut world, 700, 20_000);
    assert!(world.ends[0].btl.counters().resends < 400, "{}", world.report());
    assert_eq!(world.ends[1].btl.counters().messages_delivered, 20_000);
}

/// One way, one acknowledgement answers many segments; both ways, they ride along.
#[test]
fn acknowledgements_per_thousand_segments() {
    let config = BtlConfig::default();
    let mut world = World::new(1, 2, rings(RACK), &config);
    stream(&mut world, 700, 20_000);
    let (acks, segments) = (
        world.ends[1].btl.counters().acks_sent,
        world.ends[0].btl.counters().segments_sent,
    );
    println!(
        "{} acknowledgements per thousand segments",
        acks * 1000 / segments
    );
    assert!(
        acks * 1000 / segments <= 1000 / u64::from(config.ack_every) + 10,
        "{}",
        world.report()
    );

    let mut world = World::new(1, 2, rings(RACK), &config);
    for n in 1..=500 {
        for (i, j) in [(0, 1), (1, 0)] {
            let to = world.to(i, j);
            assert!(world.ends[i].try_send(to, &[5; 64]).is_some());
            world.ends[i].flush();
            world.until("it arrives", Duration::from_secs(1), |world| {
                world.ends[j].sink.total() == n
            });
        }
    }
    let of = |i: usize| {
        (
            world.ends[i].btl.counters().acks_sent,
            world.ends[i].btl.counters().acks_carried,
        )
    };
    println!("back and forth: {:?} and {:?} (alone, carried)", of(0), of(1));
    assert!(
        of(0).0 + of(1).0 <= 10 && of(0).1 + of(1).1 >= 990,
        "{}",
        world.report()
    );
}

/// One loss costs one packet, however much is under way behind it.
#[test]
fn one_loss_costs_one_packet() {
    for nth in [1, 2, 500, 501, 1999] {
        let third = Aim::nth(Pick::byte(KIND, Kind::Frag as u8), nth, Effect::Lose);
        let mut world = World::new(
            1,
            2,
            rings(Faults {
                aim: Some(third),
                ..RACK
            }),
            &BtlConfig::default(),
        );
        stream(&mut world, 700, 2000);
        let counters = world.ends[0].btl.counters();
        assert_eq!(
            (world.net.total().lost_by_aim, counters.resends),
            (1, 1),
            "{}",
            world.report()
        );
        assert_eq!(
            world.ends[1].btl.counters().dropped_duplicate,
            0,
            "{}",
            world.report()
        );
    }
    // The last one has nothing behind it: it goes again when two round trips brought no answer.
    let last = Aim::nth(Pick::byte(KIND, Kind::Frag as u8), 2000, Effect::Lose);
    let mut world = World::new(
        1,
        2,
        rings(Faults {
            aim: Some(last),
            ..RACK
        }),
        &BtlConfig::default(),
    );
    stream(&mut world, 700, 2000);
    let counters = world.ends[0].btl.counters();
    assert_eq!(
        (counters.resends_tail, counters.resends),
        (1, 1),
        "{}",
        world.report()
    );
}

/// A whole window is lost while both talk: one time-out, and then as fast as the answers come.
#[test]
fn a_lost_window_takes_one_time_out() {
    for both in [false, true] {
        let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
        stream(&mut world, 64, 100);
        let to = [world.to(0, 1), world.to(1, 0)];
        // All that end 0 posts in one go is lost, and then nothing more.
        let frags = Pick {
            channel: None,
            ..Pick::byte(KIND, Kind::Frag as u8)
        };
        let aim = Aim {
            times: 24,
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
        for n in 0..24 {
            assert!(world.ends[0].try_send(to[0], &[n; 64]).is_some());
        }
        world.ends[0].flush();
        let start = world.now();
        world.until("all arrive", Duration::from_secs(1), |world| {
            // The other side always has something to send, so that its answers ride along.
            if both {
                world.ends[1].try_send(to[1], &[0; 64]);
                world.ends[1].flush();
            }
            world.ends[0].btl.handed_over(to[0]).0 == 124
        });
        let (took, counters) = (world.now() - start, world.ends[0].btl.counters());
        println!(
            "{took:?}, {} time-outs, {} resends",
            counters.resends_timeout, counters.resends
        );
        assert_eq!(world.net.total().lost_by_aim, 24);
        assert!(
            counters.resends_timeout <= 2 && took < Duration::from_millis(2),
            "{}",
            world.report()
        );
    }
}

/// A receiver that takes one message at a time, and a flood of small ones: the long one arrives all the same.
#[test]
fn a_flood_of_small_ones_does_not_starve_a_long_one() {
    let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
    let to = world.to(0, 1);
    world.ends[1].polls = false;
    let (mut small, mut polls) = (0u64, 0);
    assert!(world.ends[0].try_send(to, &[1; 64]).is_some());
    for _ in 0..200 {
        world.step();
        let end = &mut world.ends[1];
        end.btl.poll(1, &mut end.sink);
    }
    assert!(world.ends[0].try_send(to, &[2; 100_000]).is_some());
    while world.ends[1]
        .sink
        .messages
        .iter()
        .all(|(_, bytes)| bytes.len() < 1000)
    {
        // There is always a small one that waits to be taken.
        while small < polls + 500 && world.ends[0].try_send(to, &[3; 64]).is_some() {
            small += 1;
        }
        world.step();
        let end = &mut world.ends[1];
        polls += end.btl.poll(1, &mut end.sink) as u64;
        assert!(polls < 5_000, "{}", world.report());
    }
}

/// The same message twice in a row is two messages; the same frame twice is one.
#[test]
fn a_replayed_frame_is_dropped_however_late() {
    for late in [Duration::from_micros(30), Duration::from_millis(50)] {
        let all = Aim::each(Pick::ALL, Effect::Replay(late));
        let mut world = World::new(
            1,
            2,
            rings(Faults {
                aim: Some(all),
                ..RACK
            }),
            &BtlConfig::default(),
        );
        stream(&mut world, 700, 3000);
        let by = world.now() + Duration::from_millis(200);
        while world.now() < by {
            world.step();
        }
        assert_eq!(world.ends[1].sink.total(), 3000);
        assert!(
            world.ends[1].btl.counters().dropped_duplicate >= 2900,
            "{}",
            world.report()
        );
    }
}

//! Every message once and whole, whatever the network does to its frames: each kind of fault, and all
//! together. A seed that fails is printed, and gives the same run again.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{World, rings};
use doorbell_btl::BtlConfig;
use doorbell_fabric::event::EventKind;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, AtomicOp, Body, Exposure, Landing, Message, OpId, Remote};
use doorbell_sim::{Burst, Change, Faults, Plane, Random};

const RANKS: usize = 3;
const MESSAGES: u64 = 250;

/// Bytes that name their message, and are wrong when any of them is.
fn message(from: usize, to: usize, number: u64, length: usize) -> Vec<u8> {
    let salt = (from * 7 + to * 31) as u64 + number * 1_000_003;
    let mut bytes: Vec<u8> = (0..length as u64)
        .map(|i| (salt.wrapping_mul(i | 1) >> 7) as u8)
        .collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Lengths are log-uniform from 8 bytes to what one message takes.
fn length(random: &mut Random) -> usize {
    let (least, most) = (8.0f64.ln(), 100_000.0f64.ln());
    let at = random.below(1 << 30) as f64 / f64::from(1 << 30);
    (least + at * (most - least)).exp() as usize
}

/// All to all; every end sends as it has room.
fn all_to_all(seed: u64, faults: Faults, config: &BtlConfig) -> World {
    let mut world = World::new(seed, RANKS, rings(faults), config);
    let mut random = Random::new(seed);
    let plan: Vec<Vec<Vec<usize>>> = (0..RANKS)
        .map(|_| {
            (0..RANKS)
                .map(|_| (0..MESSAGES).map(|_| length(&mut random)).collect())
                .collect()
        })
        .collect();
    let mut sent = [[0; RANKS]; RANKS];
    let all = MESSAGES * (RANKS as u64 - 1);
    world.until("every message arrives", Duration::from_secs(600), |world| {
        for i in 0..RANKS {
            for j in (0..RANKS).filter(|j| *j != i) {
                let to = world.to(i, j);
                while sent[i][j] < MESSAGES {
                    let number = sent[i][j];
                    let bytes = message(i, j, number, plan[i][j][number as usize]);
                    if world.ends[i].try_send(to, &bytes).is_none() {
                        break;
                    }
                    sent[i][j] += 1;
                }
            }
            world.ends[i].flush();
        }
        world.ends.iter().all(|end| end.sink.total() >= all)
    });
    // Whatever is still under way comes to its end: no message arrives a second time.
    world.until(
        "every message is known to be taken",
        Duration::from_secs(10),
        |world| {
            let of = |i: usize| (0..RANKS).filter(move |j| *j != i).map(move |j| (i, j));
            (0..RANKS).flat_map(of).all(|(i, j)| {
                let to = world.to(i, j);
                world.ends[i].btl.handed_over(to).0 == MESSAGES
            })
        },
    );
    let later = world.now() + Duration::from_millis(20);
    while world.now() < later {
        world.step();
    }
    #[allow(clippy::needless_range_loop)] // ranks are numbers
    for j in 0..RANKS {
        for i in (0..RANKS).filter(|i| *i != j) {
            let from = world.to(j, i);
            let of_i = world.ends[j]
                .sink
                .messages
                .iter()
                .filter(|(peer, _)| *peer == from);
            let mut numbers = BTreeSet::new();
            for (_, bytes) in of_i {
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                assert!(
                    number < MESSAGES && numbers.insert(number),
                    "{number} twice, or never sent\n{}",
                    world.report()
                );
                let right = message(i, j, number, plan[i][j][number as usize]);
                assert!(
                    *bytes == right,
                    "{number} of {i} came damaged\n{}",
                    world.report()
                );
            }
            assert_eq!(numbers.len() as u64, MESSAGES, "{}", world.report());
        }
    }
    let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
    let told = |end: &crate::common::End| {
        end.events
            .iter()
            .filter(|event| !doubts.contains(&event.kind))
            .count()
    };
    assert!(
        world.ends.iter().all(|end| told(end) == RANKS - 1),
        "every peer comes up, and none goes down"
    );
    world
}

const BASE: Faults = Faults {
    delay: Duration::from_micros(5),
    ..Faults::NONE
};

/// Three seeds, or as many as `DOORBELL_SEEDS` gives.
fn seeds(faults: Faults, expected: impl Fn(&World) -> bool) {
    let asked = std::env::var("DOORBELL_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok());
    for seed in 1..=asked.unwrap_or(3) {
        let world = all_to_all(seed, faults, &BtlConfig::default());
        assert!(expected(&world), "the fault was not felt\n{}", world.report());
    }
}

#[test]
fn nothing_goes_wrong() {
    let world = all_to_all(1, BASE, &BtlConfig::default());
    assert!(
        world.ends.iter().all(|end| end.btl.counters().resends == 0),
        "{}",
        world.report()
    );
}

#[test]
fn one_and_ten_percent_lost() {
    seeds(Faults { loss: 0.01, ..BASE }, |world| world.net.total().lost > 0);
    seeds(Faults { loss: 0.1, ..BASE }, |world| world.net.total().lost > 0);
}

#[test]
fn lost_in_bursts() {
    let burst = Burst {
        begin: 0.002,
        end: 0.05,
        loss: 0.9,
    };
    seeds(
        Faults {
            burst: Some(burst),
            ..BASE
        },
        |world| world.net.total().lost_in_bursts > 0,
    );
}

#[test]
fn ten_percent_duplicated() {
    seeds(
        Faults {
            duplicate: 0.1,
            ..BASE
        },
        |world| {
            world
                .ends
                .iter()
                .any(|end| end.btl.counters().dropped_duplicate > 0)
        },
    );
}

#[test]
fn reordered_by_sixty_four() {
    let faults = Faults {
        reorder: 0.2,
        overtake: 64,
        jitter: Duration::from_micros(2),
        ..BASE
    };
    seeds(faults, |world| world.net.total().reordered > 0);
    // Once the network is known to reorder, little is sent again for it.
    let world = all_to_all(9, faults, &BtlConfig::default());
    let sum = |of: fn(&doorbell_btl::Counters) -> u64| {
        world.ends.iter().map(|end| of(end.btl.counters())).sum::<u64>()
    };
    let (resends, sent) = (
        sum(|counters| counters.resends),
        sum(|counters| counters.segments_sent),
    );
    println!("reordered by 64: {resends} resends of {sent} segments");
    assert!(resends * 5 < sent, "{}", world.report());
}

#[test]
fn corrupted_cut_and_lengthened() {
    let corrupt = Faults {
        corrupt: 0.01,
        ..BASE
    };
    seeds(corrupt, |world| {
        world
            .ends
            .iter()
            .any(|end| end.btl.counters().dropped_corrupt > 0)
    });
    let cut = Faults {
        truncate: 0.01,
        lengthen: 0.05,
        ..BASE
    };
    seeds(cut, |world| {
        world.ends.iter().any(|end| end.btl.counters().dropped_short > 0)
    });
    let config = BtlConfig {
        frame_mac: true,
        ..BtlConfig::default()
    };
    let world = all_to_all(4, corrupt, &config);
    assert!(
        world.ends.iter().any(|end| end.btl.counters().dropped_forged > 0),
        "{}",
        world.report()
    );
}

const EVERYTHING: Faults = Faults {
    loss: 0.03,
    duplicate: 0.05,
    corrupt: 0.001,
    truncate: 0.001,
    lengthen: 0.01,
    reorder: 0.1,
    overtake: 16,
    jitter: Duration::from_micros(1),
    ..BASE
};

#[test]
fn all_together() {
    seeds(EVERYTHING, |world| world.net.total().lost > 0);
    // With little of everything, and numbers that wrap on the way.
    let config = BtlConfig {
        window: 256,
        segments: 512,
        max_reassemblies: 8,
        eager_limit: 100_000,
        first_sequence: Some(u32::MAX - 100),
        ..BtlConfig::default()
    };
    all_to_all(5, EVERYTHING, &config);
}

#[test]
fn a_peer_that_does_not_poll_is_not_dead() {
    let mut world = World::new(3, 2, rings(BASE), &BtlConfig::default());
    let to = world.to(0, 1);
    world.ends[1].polls = false;
    assert!(world.ends[0].try_send(to, b"first").is_some());
    let away = world.now() + Duration::from_secs(20);
    while world.now() < away {
        world.step_at_most(Duration::from_millis(20));
    }
    assert_eq!(world.ends[0].is_down(to), None, "{}", world.report());
    world.ends[1].polls = true;
    world.until("the peer comes back", Duration::from_secs(1), |world| {
        world.ends[1].sink.total() == 1
    });
    world.ends[1].polls = false;
    assert!(world.ends[0].try_send(to, b"second").is_some());
    let away = world.now() + Duration::from_secs(20);
    while world.now() < away {
        world.step_at_most(Duration::from_millis(20));
    }
    assert!(
        world.ends[0].btl.is_suspect(to) && world.ends[0].is_down(to).is_none(),
        "{}",
        world.report()
    );
    world.ends[1].polls = true;
    world.until("the peer comes back", Duration::from_secs(1), |world| {
        !world.ends[0].btl.is_suspect(to)
    });
    assert_eq!(world.ends[1].sink.total(), 2);
}

/// Puts, gets and atomics, through everything: each executed once, each ended once, every byte right.
#[test]
fn one_sided_through_everything() {
    const LENGTH: usize = 300_000;
    for seed in 1..=3 {
        let mut world = World::new(seed, 2, rings(EVERYTHING), &BtlConfig::default());
        let (to, from) = (world.to(0, 1), world.to(1, 0));
        let region = |salt: usize| {
            let region = Region::new(LENGTH).expect("memory for a test");
            region.write(0, &message(salt, salt, 1, LENGTH));
            region
        };
        let (there, counter, mine, back) = (region(1), Region::new(8).unwrap(), region(2), region(3));
        let mut expose = |region: &Region, access| -> Remote {
            let memory = Exposure::Region(region.whole());
            world.ends[1]
                .btl
                .expose(memory, access, Some(from))
                .expect("room for a key")
        };
        let (whole, word) = (
            expose(&there, Access::ReadWrite),
            expose(&counter, Access::ReadWrite),
        );
        let btl = &mut world.ends[0].btl;
        for n in 0..100 {
            btl.atomic(to, OpId(n), &word, AtomicOp::Add(1)).unwrap();
        }
        btl.put(to, OpId(100), Body::Region(&mine.whole()), &whole)
            .unwrap();
        world.until("the put and the atomics end", Duration::from_secs(60), |world| {
            world.ends[0].sink.ended.len() == 101
        });
        let mut old: Vec<u64> = world.ends[0]
            .sink
            .ended
            .iter()
            .filter(|(op, _)| op.0 < 100)
            .map(|(_, old)| old.unwrap())
            .collect();
        old.sort_unstable();
        assert!(old.iter().copied().eq(0..100), "each atomic once: {old:?}");
        let mut bytes = vec![0; LENGTH];
        there.read(0, &mut bytes);
        assert!(bytes == message(2, 2, 1, LENGTH), "the put is there, all of it");
        world.ends[0]
            .btl
            .get(to, OpId(200), &whole, Landing::Region(back.whole()))
            .unwrap();
        world.until("the get ends", Duration::from_secs(60), |world| {
            world.ends[0].sink.ended.len() == 102
        });
        back.read(0, &mut bytes);
        assert!(bytes == message(2, 2, 1, LENGTH), "and comes back");
        assert!(
            world.ends[0]
                .sink
                .ended
                .iter()
                .all(|(_, outcome)| outcome.is_ok())
        );
    }
}

/// A device that takes nothing any more: what was sent and what was not fail within the bound, and not
/// before.
#[test]
fn a_nic_that_hangs() {
    for after in [0, 1] {
        let config = BtlConfig {
            give_up: Duration::from_secs(3),
            ..BtlConfig::default()
        };
        let mut world = World::new(1, 2, rings(BASE), &config);
        let to = world.to(0, 1);
        assert!(world.ends[0].try_send(to, b"first").is_some());
        world.until("it is taken", Duration::from_secs(1), |world| {
            world.ends[0].btl.handed_over(to).0 == 1
        });
        let stall = Change::NicStall(Plane::FIRST, 0);
        world.net.change(stall);
        let start = world.now();
        // As many as the rings take, or all that the window takes.
        let most = if after == 0 { 1 } else { 10_000 };
        for _ in 0..most {
            if world.ends[0].try_send(to, &[1; 900]).is_none() {
                break;
            }
        }
        world.until("the peer is down", Duration::from_secs(10), |world| {
            world.ends[0].is_down(to).is_some()
        });
        assert!(
            (3..=4).contains(&(world.now() - start).as_secs()),
            "{}",
            world.report()
        );
    }
}

/// A link that goes away for a while costs time, and nothing else.
#[test]
fn a_cut_that_heals() {
    let mut world = World::new(1, 2, rings(BASE), &BtlConfig::default());
    let to = world.to(0, 1);
    let cut = |from, to| Change::Cut {
        plane: Plane::FIRST,
        from,
        to,
    };
    let heal = |from, to| Change::Heal {
        plane: Plane::FIRST,
        from,
        to,
    };
    let back = world.to(1, 0);
    let mut sent = 0;
    for (n, seconds, change) in [
        (10, 2, None),
        (20, 20, Some(cut(0, 1))),
        (30, 2, Some(heal(0, 1))),
        (40, 20, Some(cut(1, 0))),
        (50, 2, Some(heal(1, 0))),
    ] {
        change.into_iter().for_each(|change| world.net.change(change));
        while sent < n {
            for (i, j, to) in [(0, 1, to), (1, 0, back)] {
                let bytes = message(i, j, sent, 5000);
                assert!(world.ends[i].try_send(to, &bytes).is_some(), "there is room");
            }
            sent += 1;
        }
        let until = world.now() + Duration::from_secs(seconds);
        while world.now() < until {
            world.step();
        }
    }
    world.until("all arrive", Duration::from_secs(2), |world| {
        world.ends.iter().all(|end| end.sink.total() == 50)
    });
    assert_eq!(
        (world.ends[0].is_down(to), world.ends[1].is_down(back)),
        (None, None)
    );
}

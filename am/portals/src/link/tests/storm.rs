//! Rails die and come back while all ranks send: nothing is lost, doubled, or out of order.

use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, Exposure, Landing, OpId, Refused, RemoteKey};
use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Plane, Random, SimNet};

use super::world::{self, Plan};

/// One failure and its end, at random.
fn trouble(net: &SimNet, random: &mut Random, planes: &[Plane], ranks: u64, at: Time) {
    let plane = planes[random.below(planes.len() as u64) as usize];
    let (rank, other) = (random.below(ranks) as u32, random.below(ranks) as u32);
    let (begin, end) = match random.below(4) {
        0 => (Change::LinkDown(plane, rank), Change::LinkUp(plane, rank)),
        1 => (Change::PlaneDown(plane), Change::PlaneUp(plane)),
        2 => (Change::Pause(rank), Change::Resume(rank)),
        _ => (
            Change::Cut {
                plane,
                from: rank,
                to: other,
            },
            Change::Heal {
                plane,
                from: rank,
                to: other,
            },
        ),
    };
    net.at(at, begin);
    net.at(at + Duration::from_micros(1 << random.below(20)), end);
}

fn storm(seed: u64, ranks: usize, count: usize, messages: u64) -> [u64; 4] {
    let config = world::rough();
    let net = SimNet::new(seed, config);
    let planes = world::planes(&net, count);
    let plan = Plan {
        ranks,
        messages,
        pause: Duration::from_millis(4),
        ..Plan::default()
    };
    let mut random = Random::for_part(seed, &[5, 5]);
    let mut at = Time::ZERO;
    for _ in 0..30 {
        at += Duration::from_micros(random.below(80_000));
        trouble(&net, &mut random, &planes, ranks as u64, at);
    }
    let mut job = world::job(&net, &planes, &plan);
    world::run(&net, &mut job, &plan);
    let mut sum = [0; 4];
    for process in job.ranks() {
        assert!(process.lost.is_empty(), "seed {seed}: {:?}", process.lost);
        let stats = process.link.stats();
        assert_eq!(
            (stats.short, stats.bad_words, stats.too_far_ahead, stats.lost),
            (0, 0, 0, 0),
            "seed {seed}"
        );
        for (sum, count) in sum.iter_mut().zip([
            stats.resent,
            stats.duplicates,
            stats.paths_down,
            stats.paths_returned,
        ]) {
            *sum += count;
        }
    }
    sum
}

fn seeds() -> u64 {
    // More with a build that is quick.
    if cfg!(debug_assertions) { 10 } else { 40 }
}

#[test]
fn two_rails_that_die_and_come_back_lose_nothing() {
    let mut sum = [0; 4];
    for seed in 0..seeds() {
        let counts = storm(seed, 2, 2, 2000);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sum.iter().all(|count| *count > 0), "{sum:?}");
}

#[test]
fn three_rails_between_three_processes_lose_nothing() {
    let mut sum = [0; 4];
    for seed in 100..100 + seeds() {
        let counts = storm(seed, 3, 3, 1200);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sum.iter().all(|count| *count > 0), "{sum:?}");
}

#[test]
fn one_rail_that_dies_and_comes_back_loses_nothing() {
    for seed in 200..200 + seeds() {
        storm(seed, 2, 1, 1500);
    }
}

/// Process 1 reads memory of process 0 again and again, which is exposed again and withdrawn now and then.
fn gets(seed: u64) -> [usize; 2] {
    const LENGTH: usize = 6000;
    let net = SimNet::new(seed, world::rough());
    let planes = world::planes(&net, 2);
    let plan = Plan::default();
    let mut job = world::job(&net, &planes, &plan);
    let [target, initiator] = job.ranks_mut() else {
        panic!("two processes");
    };
    let mut random = Random::for_part(seed, &[6]);
    let from = Region::new(LENGTH).expect("memory");
    from.whole().write(0, &[7; LENGTH]);
    let mut started = Vec::new();
    let mut exposed = None;
    let mut now = Time::ZERO;
    for at in 0..4000_u64 {
        // At the end, until the last trouble is over.
        now += Duration::from_micros(random.below(if at < 3000 { 400 } else { 4000 }));
        net.advance_to(now);
        if at % 150 == 0 && at < 3000 {
            trouble(&net, &mut random, &planes, 2, now);
        }
        for process in [&mut *target, &mut *initiator] {
            process.link.poll(16, &mut process.heard);
            process.link.progress(now);
        }
        if exposed.is_none() {
            exposed = target
                .link
                .expose(world::peer_of(0, 1), Exposure::Region(from.whole()), Access::Read);
        }
        if let Some((way, remote)) = exposed {
            if at < 3000 && random.chance(0.5) {
                let into = Region::new(LENGTH).expect("memory");
                let landing = Landing::Region(into.whole());
                match initiator
                    .link
                    .get(world::peer_of(1, 0), way, OpId(at), &remote, landing)
                {
                    Ok(()) => started.push((OpId(at), into)),
                    Err(Refused::Full | Refused::PeerDown) => {}
                    Err(refused) => panic!("seed {seed}: {refused:?}"),
                }
            }
            if random.chance(0.02) {
                target
                    .link
                    .withdraw(world::peer_of(0, 1), way, RemoteKey(remote.key.get()));
                exposed = None;
            }
        }
    }
    let ended = &initiator.heard.ended;
    assert_eq!(ended.len(), started.len(), "seed {seed}: each ends once");
    let mut read = 0;
    for (op, into) in &started {
        let outcome = ended.iter().find(|(ended, _)| ended == op);
        let (_, outcome) = outcome.unwrap_or_else(|| panic!("seed {seed}: {op:?} never ended"));
        if outcome.is_ok() {
            read += 1;
            assert_eq!(
                into.whole().as_shared().to_vec(),
                [7; LENGTH],
                "seed {seed}: {op:?}"
            );
        }
    }
    [read, started.len() - read]
}

#[test]
fn every_get_ends_once_whatever_becomes_of_its_way_and_its_memory() {
    let mut sum = [0; 2];
    for seed in 300..300 + seeds() {
        let counts = gets(seed);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(sum[0] > 1000 && sum[1] > 20, "{sum:?}");
}

//! Rails die and come back while everybody talks: nothing is lost, doubled, or out of order.

use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Faults, Plane, Random, SimConfig, SimNet};

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
    let mut config = SimConfig::default();
    config.faults = Faults::ROUGH;
    let net = SimNet::new(seed, config);
    let planes = world::planes(&net, count);
    let plan = Plan {
        ranks,
        planes: count,
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
            stats.ways_down,
            stats.ways_returned,
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

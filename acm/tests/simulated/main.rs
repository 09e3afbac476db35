//! Whole networks of resolvers, on a virtual clock.

mod world;

use std::time::Duration;

use doorbell_acm::endpoint::Link;
use doorbell_acm::resolver::Options;

use crate::world::{World, story};

/// How many seeds: each is another kind of network, other hosts, and another order of what happens to them.
/// The example `acm-sim` takes as many as one has time for.
const SEEDS: u64 = 30;

#[test]
fn answers_are_true_whatever_happens() {
    let (mut found, mut restarts, mut renumbered, mut partitions) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let nodes = 20 + (seed as usize * 7) % 31;
        let mut world = World::of_seed(nodes, seed);
        story(&mut world, seed);
        assert!(world.memory() < 1 << 20);
        let score = &world.score;
        found += score.found;
        restarts += score.restarts;
        renumbered += score.renumbered;
        partitions += score.partitions;
        assert!(score.found * 2 > score.asked, "seed {seed}: {:?}", score.refused);
    }
    // The test would be empty without these.
    let least = restarts.min(renumbered).min(partitions);
    assert!(
        found > 100 * SEEDS && least > SEEDS,
        "{found} {restarts} {renumbered} {partitions}"
    );
}

/// A host is renumbered to where no host was, also after more has been sent than 16 bits can count. In this
/// story one went to another one's address otherwise, and then waited for answers that the other one got.
#[test]
fn no_two_hosts_are_in_one_place() {
    let seed = 59;
    let mut world = World::of_seed(100, seed);
    story(&mut world, seed);
    let score = &world.score;
    assert!(score.deliveries > 1 << 16, "{}", score.deliveries);
    assert!(
        score.renumbered > 0 && score.found == score.asked,
        "{:?}",
        score.refused
    );
}

/// Where few hosts are, each is queried often: also while it restarts or is renumbered, and while the last
/// path to it is still tried. Each path is probed with these seeds.
#[test]
fn a_few_hosts_are_queried_often() {
    for nodes in [2, 3] {
        for seed in (0..1000).step_by(7) {
            let mut world = World::of_seed(nodes, seed);
            assert!(world.options.verify);
            story(&mut world, seed);
        }
    }
}

#[test]
fn a_seed_is_a_story() {
    let run = || {
        let mut world = World::of_seed(25, 11);
        story(&mut world, 11);
        (world.score.took, world.score.deliveries)
    };
    assert_eq!(run(), run());
}

/// Recently used destinations are answered at once, and what that costs does not grow with the number of
/// hosts.
#[test]
fn hot_destinations_are_answered_at_once() {
    let cost = |nodes: usize| {
        let mut world = World::new(nodes, 5, Options::default(), Link::Ethernet);
        world.run(Duration::from_secs(2));
        let before = world.score.clone();
        for _ in 0..100 {
            world.query(0, 1, true);
            world.run(Duration::from_millis(100));
        }
        assert_eq!(world.score.multicasts, before.multicasts);
        let at_once = world.score.at_once - before.at_once;
        assert!(at_once >= 98, "{at_once} of 100");
        world.score.unicasts - before.unicasts
    };
    assert_eq!(cost(10), cost(40));
}

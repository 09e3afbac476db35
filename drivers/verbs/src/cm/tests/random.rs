//! Random schedules: loss, repetition, reordering, calls, deaths and revivals at both ends, and lives that
//! both report alike.

use doorbell_testing::Random;

use super::*;

fn step(world: &mut World, random: &mut Random) {
    let end = random.index(2);
    let now = world.now;
    match random.below(40) {
        0 => world.call(end),
        1 => world.revive(end),
        2 => world.ends[end].die(DownReason::Silent, now),
        3 => world.ends[end].abandon(now),
        4 => {
            let (one, other) = (random.index(5), random.index(5));
            world.path = [256 << one, 256 << other];
        }
        5 => world.ends[end].connects = !random.one_in(3),
        6..12 => world.turn(),
        12..16 => {
            world.now += Duration::from_micros(random.below(20_000));
            world.tick();
        }
        _ if world.net.is_empty() => world.turn(),
        16..22 => {
            let at = random.index(world.net.len());
            world.net.remove(at);
        }
        22..26 => {
            let frame = world.net[random.index(world.net.len())].clone();
            world.hand_in(&frame);
        }
        _ => {
            let at = random.index(world.net.len());
            world.deliver(at);
        }
    }
    world.settle();
    // Old frames stay for long, but not all of them.
    while world.net.len() > 40 {
        let at = random.index(world.net.len());
        world.net.remove(at);
    }
}

/// Lives of both ends: later than all that either had reported, or the other's present one.
fn check(world: &World, most: &mut Option<Life>, known: &mut [usize; 2]) {
    for (end, known) in known.iter_mut().enumerate() {
        for life in &world.ends[end].lives[*known..] {
            let is_theirs = world.ends[1 - end].lives.last() == Some(life);
            let is_later = most.is_none_or(|most| most.is_before(*life));
            assert!(is_theirs || is_later, "{life:?} after {most:?}");
            if is_later {
                *most = Some(*life);
            }
        }
        *known = world.ends[end].lives.len();
    }
}

#[test]
fn whatever_the_network_does_there_is_one_connection_in_the_end() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut world = World::new();
        let (mut most, mut known) = (None, [0; 2]);
        for _ in 0..300 {
            step(&mut world, &mut random);
            check(&world, &mut most, &mut known);
        }
        world.path = [4096; 2];
        for end in 0..2 {
            world.ends[end].connects = true;
            // What was held back is answered.
            let now = world.now;
            if let Some(Pair {
                attempt, to: Some(_), ..
            }) = world.ends[end].pair
            {
                world.ends[end].contact.connected(attempt, Ok(()), now);
            }
        }
        world.settle();
        let end = random.index(2);
        // What was half open is found, and called again.
        for _ in 0..3 {
            world.call(end);
            let is_quiet = |world: &World| world.are_up() || world.next().is_none();
            world.run(&format!("seed {seed}"), is_quiet);
        }
        assert!(world.are_up(), "seed {seed}: {}", world.state());
        check(&world, &mut most, &mut known);
        let calls = |world: &World| {
            world
                .ends
                .iter()
                .map(|end| end.contact.counts().sent)
                .sum::<u64>()
        };
        world.run("it is quiet", |world| world.net.is_empty());
        let before = calls(&world);
        world.pass(Duration::from_secs(100));
        assert!(calls(&world) - before < 80, "seed {seed}: frames without end");
        assert!(world.are_up(), "seed {seed}: it stays");
    }
}

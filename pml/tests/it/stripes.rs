//! Long messages over several paths at a time.

use std::time::Duration;

use doorbell_pml::{Protocol, Rank, Sent};
use doorbell_sim::{Change, Faults};

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

const GB: u64 = 1_000_000_000;

/// Two ranks with a plane for each rate, in bytes per second.
fn world(rates: &[u64]) -> World {
    let mut config = sim(true, true, true);
    config.capabilities.limits.message = 64 << 10;
    config.capabilities.limits.fragment = 32 << 10;
    config.queue_depth = 1024;
    let world = World::with_planes(2, rates.len(), 3, config, |_| ());
    for (plane, rate) in world.planes.iter().zip(rates) {
        set_rate(&world, *plane, *rate);
    }
    world
}

fn set_rate(world: &World, plane: doorbell_sim::Plane, rate: u64) {
    let faults = Faults {
        bandwidth: Some(rate),
        queue: 8 << 20,
        ..Faults::NONE
    };
    world.net.change(Change::Faults(plane, faults));
}

/// Sends messages of this length one after the other; bytes per second of the virtual clock.
fn bandwidth(world: &mut World, length: usize, count: u64) -> f64 {
    let began = world.net.now();
    for salt in 0..count {
        let (from, into) = (filled(length, salt), empty(length));
        let request = world.recv(1, Rank(0), 1, &into);
        let sent = world.send(0, 1, 1, &from);
        world.wait(1, request).unwrap();
        world.wait_sent(0, sent).unwrap();
        assert!(bytes(&into) == pattern(length, salt), "message {salt}");
    }
    let took = world.net.now().since(began);
    (length as u64 * count) as f64 / took.as_secs_f64()
}

#[test]
fn two_equal_ways_carry_nearly_twice_as_much_as_one() {
    let one = bandwidth(&mut world(&[GB]), 4 << 20, 8);
    let two = bandwidth(&mut world(&[GB, GB]), 4 << 20, 8);
    println!("two equal paths: {:.3} times one", two / one);
    assert!(two >= 1.9 * one, "{two:.3e} against {one:.3e}");
}

#[test]
fn unequal_ways_carry_nearly_their_sum() {
    for (rates, share) in [(&[GB, GB / 4][..], 0.95), (&[GB / 4, GB / 2, GB], 0.93)] {
        let each: Vec<f64> = rates
            .iter()
            .map(|rate| bandwidth(&mut world(&[*rate]), 4 << 20, 8))
            .collect();
        let mut all = world(rates);
        bandwidth(&mut all, 4 << 20, 2); // what each carries is known
        let together = bandwidth(&mut all, 4 << 20, 8);
        let sum: f64 = each.iter().sum();
        assert!(
            together >= share * sum,
            "{rates:?}: {together:.3e} of {sum:.3e}: {}",
            together / sum
        );
    }
}

#[test]
fn a_way_that_slows_down_gets_less() {
    let mut world = world(&[GB, GB]);
    bandwidth(&mut world, 4 << 20, 4);
    let plane = world.planes[1];
    set_rate(&world, plane, GB / 10);
    bandwidth(&mut world, 4 << 20, 4);
    let together = bandwidth(&mut world, 4 << 20, 8);
    assert!(together >= 0.93 * 1.1e9, "{together:.3e}");
}

#[test]
fn a_much_slower_way_is_no_brake() {
    let alone = bandwidth(&mut world(&[GB]), 512 << 10, 20);
    let mut both = world(&[GB, GB / 50]);
    bandwidth(&mut both, 512 << 10, 4);
    let together = bandwidth(&mut both, 512 << 10, 20);
    assert!(together >= 0.97 * alone, "{together:.3e} against {alone:.3e}");
}

/// Rails of one port, as of reliable connections and of datagrams: its bandwidth counts once, so no message
/// is striped over both. (The planes of this network have a bandwidth each.)
#[test]
fn two_ways_of_one_port_are_not_striped_over() {
    let carries = |planes: usize, port: u32| {
        let mut config = sim(true, true, true);
        config.capabilities.limits.message = 64 << 10;
        config.capabilities.limits.fragment = 32 << 10;
        config.capabilities.features.port = port;
        config.queue_depth = 1024;
        let mut world = World::with_planes(2, planes, 3, config, |_| ());
        world.planes.iter().for_each(|plane| set_rate(&world, *plane, GB));
        bandwidth(&mut world, 4 << 20, 8)
    };
    let (one, apart, together) = (carries(1, 7), carries(2, 0), carries(2, 7));
    assert!(apart >= 1.9 * one, "{apart:.3e} against {one:.3e}");
    assert!(together <= 1.05 * one, "{together:.3e} against {one:.3e}");
}

/// A path that moves bytes within the host is not joined by others: the same processors copy for all.
#[test]
fn a_way_within_the_host_goes_alone() {
    let mut config = sim(true, true, true);
    config.capabilities.features.within_host = true;
    let mut world = World::with_planes(2, 2, 3, config, |pml| pml.protocol = Protocol::Auto);
    bandwidth(&mut world, 1 << 20, 4);
    let sent = |plane: usize| world.net.stats(world.planes[plane]).messages_sent;
    assert!(
        sent(0) == 0 || sent(1) < 20 || sent(0) < 20,
        "{} and {}",
        sent(0),
        sent(1)
    );
    assert_eq!(
        world.pmls[0].counters().frags_sent,
        0,
        "it is read by the receiver"
    );
}

#[test]
fn stripes_survive_the_death_of_one_way_at_any_time() {
    for seed in 0..60 {
        let mut world = world(&[GB, GB / 2, GB]);
        let from: Vec<Memory> = (0..6).map(|at| filled(300_000, at)).collect();
        let into: Vec<Memory> = (0..6).map(|_| empty(300_000)).collect();
        let requests: Vec<_> = into.iter().map(|into| world.recv(1, Rank(0), 1, into)).collect();
        let plane = world.planes[seed as usize % 3];
        let change = [
            Change::PlaneDown(plane),
            Change::LinkDown(plane, 0),
            Change::LinkDown(plane, 1),
            Change::NicDeath(plane, 1),
        ][seed as usize % 4];
        world
            .net
            .at(world.net.now() + Duration::from_micros(17 * seed), change);
        let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
        for (at, request) in requests.into_iter().enumerate() {
            world.wait(1, request).unwrap();
            assert!(
                bytes(&into[at]) == pattern(300_000, at as u64),
                "message {at}, seed {seed}"
            );
        }
        for sent in sends {
            world.wait_sent(0, sent).unwrap();
        }
        world.passes(1000);
        assert_eq!(world.pmls[0].live_requests() + world.pmls[1].live_requests(), 0);
    }
}

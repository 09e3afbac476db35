//! Goodput and latency where frames are lost, and where flows share a bottleneck. Everything is virtual time
//! of seeded runs, so the numbers are the same on every machine.

use std::time::Duration;

use crate::common::{RACK, World, rings};
use doorbell_btl::BtlConfig;
use doorbell_sim::{Change, Faults, Pipe, Plane};

/// Bytes per second of `count` messages of `length` from each of `senders` to end 0, as each of them sees it.
fn goodputs(world: &mut World, senders: usize, length: usize, count: u64) -> Vec<f64> {
    let bytes = vec![7; length];
    world.ends.iter_mut().for_each(|end| end.sink.count_only = true);
    let mut sent = vec![0; senders + 1];
    let mut took = vec![None; senders + 1];
    let start = world.now();
    world.until("everything arrives", Duration::from_secs(60), |world| {
        for i in 1..=senders {
            let to = world.to(i, 0);
            while sent[i] < count && world.ends[i].try_send(to, &bytes).is_some() {
                sent[i] += 1;
            }
            world.ends[i].flush();
            let from = world.to(0, i);
            let got = world.ends[0]
                .sink
                .counted
                .get(&from.0)
                .map_or(0, |(messages, _)| *messages);
            if got == count && took[i].is_none() {
                took[i] = Some(world.now() - start);
            }
        }
        took[1..].iter().all(Option::is_some)
    });
    let rate =
        |took: &Option<Duration>| (count * length as u64) as f64 / took.unwrap_or_default().as_secs_f64();
    took[1..].iter().map(rate).collect()
}

fn one(faults: Faults, seed: u64, length: usize, count: u64) -> (f64, World) {
    let mut world = World::new(seed, 2, rings(faults), &BtlConfig::default());
    let goodput = goodputs(&mut world, 1, length, count)[0];
    (goodput, world)
}

#[test]
fn goodput_with_one_percent_lost() {
    for length in [1000, 64 * 1024] {
        let count = 40_000_000 / length as u64;
        let (lossless, _) = one(RACK, 1, length, count);
        for seed in 1..=3 {
            let (lossy, world) = one(Faults { loss: 0.01, ..RACK }, seed, length, count);
            let (resent, lost) = (world.ends[1].btl.counters().resends, world.net.total().lost);
            println!(
                "{length} B, seed {seed}: {:.3} of {:.0} MB/s; {resent} resends for {lost} lost frames",
                lossy / lossless,
                lossless / 1e6
            );
            assert!(
                lossless > 0.9 * 1.25e9 * length as f64 / (length as f64 + 50.0),
                "{lossless}"
            );
            assert!(lossy >= 0.8 * lossless, "{}", world.report());
            assert!(resent as f64 <= 1.2 * lost as f64, "{}", world.report());
        }
    }
}

/// The average half round trip of 64 bytes, in nanoseconds.
fn latency(faults: Faults, seed: u64, rounds: u64) -> (f64, World) {
    let mut world = World::new(seed, 2, rings(faults), &BtlConfig::default());
    let ping = [7; 64];
    let exchange = |world: &mut World| {
        for (i, j) in [(0, 1), (1, 0)] {
            let before = world.ends[j].sink.total();
            let to = world.to(i, j);
            assert!(world.ends[i].try_send(to, &ping).is_some());
            world.ends[i].flush();
            world.ends[j].sink.count_only = true;
            world.until("an answer", Duration::from_secs(1), |world| {
                world.ends[j].sink.total() > before
            });
        }
    };
    (0..100).for_each(|_| exchange(&mut world));
    let start = world.now();
    (0..rounds).for_each(|_| exchange(&mut world));
    let took = (world.now() - start).as_nanos() as f64;
    (took / (2 * rounds) as f64, world)
}

#[test]
fn small_latency_with_one_percent_lost() {
    let (lossless, _) = latency(RACK, 1, 10_000);
    for seed in 1..=3 {
        let (lossy, world) = latency(Faults { loss: 0.01, ..RACK }, seed, 10_000);
        println!("64 B, seed {seed}: {lossy:.0} ns against {lossless:.0} ns");
        assert!(
            lossy <= 2.0 * lossless,
            "{lossy} against {lossless}\n{}",
            world.report()
        );
    }
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has all.
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares) = rates
        .iter()
        .fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (rates.len() as f64 * squares)
}

#[test]
fn eight_to_one_incast() {
    const RATE: u64 = 1_250_000_000;
    let faults = Faults {
        port: Some(Pipe {
            bandwidth: RATE,
            queue: 256 * 1024,
        }),
        ..RACK
    };
    for seed in 1..=2 {
        let mut world = World::new(seed, 9, rings(faults), &BtlConfig::default());
        // All send for the same time; what each got through is its share.
        let (total, shares) = shares(&mut world, 8, 16 * 1024, Duration::from_millis(40));
        let (goodput, jain) = (total / RATE as f64, fairness(&shares));
        println!("seed {seed}: goodput {goodput:.3} of the link, fairness {jain:.3}");
        assert!(goodput >= 0.8, "{goodput}\n{}", world.report());
        assert!(jain >= 0.9, "{jain}: {shares:?}\n{}", world.report());
    }
}

/// Bytes per second that arrive at end 0 in all, and of each sender.
fn shares(world: &mut World, senders: usize, length: usize, time: Duration) -> (f64, Vec<f64>) {
    let bytes = vec![7; length];
    world.ends[0].sink.count_only = true;
    let by = world.now() + time;
    while world.now() < by {
        for i in 1..=senders {
            let to = world.to(i, 0);
            while world.ends[i].try_send(to, &bytes).is_some() {}
            world.ends[i].flush();
        }
        world.step();
    }
    let got = |i: usize| {
        let from = world.to(0, i).0;
        let bytes = world.ends[0]
            .sink
            .counted
            .get(&from)
            .map_or(0, |(_, bytes)| *bytes);
        bytes as f64 / time.as_secs_f64()
    };
    let shares: Vec<f64> = (1..=senders).map(got).collect();
    (shares.iter().sum(), shares)
}

#[test]
fn two_flows_share_a_bottleneck() {
    let trunk = Pipe {
        bandwidth: 500_000_000,
        queue: 128 * 1024,
    };
    let mut world = World::new(1, 4, rings(RACK), &BtlConfig::default());
    world.net.change(Change::Faults(
        Plane::FIRST,
        Faults {
            trunk: Some((1, trunk)),
            ..RACK
        },
    ));
    // 1 to 0 and 2 to 0, the second after the first has taken everything.
    let (alone, _) = shares(&mut world, 1, 16 * 1024, Duration::from_millis(20));
    world.ends[0].sink.counted.clear();
    let (total, both) = shares(&mut world, 2, 16 * 1024, Duration::from_millis(80));
    let jain = fairness(&both);
    println!(
        "alone {:.3} of the bottleneck, together {:.3}, fairness {jain:.3}",
        alone / 5e8,
        total / 5e8
    );
    assert!(
        alone >= 0.8 * 5e8 && total >= 0.8 * 5e8,
        "{alone} {total}\n{}",
        world.report()
    );
    assert!(jain >= 0.9, "{both:?}\n{}", world.report());
}

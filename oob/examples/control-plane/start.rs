//! The cost of starting a job.

use std::time::Duration;

use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::Transport;
use doorbell_oob::node::Node;

use crate::world::{Shape, World};

fn shape(ranks: u32) -> Shape {
    Shape {
        ranks,
        radix: 64,
        transports: vec![Transport::tree("tcp")],
        subnets: vec![1],
        has: |_, _, _| true,
        seed: 1,
    }
}

/// Prints a line for each size and each way of starting.
pub(crate) fn print() {
    println!(
        "{:>6}  {:<22} {:>9} {:>9} {:>9} {:>8} {:>10} {:>12} {:>12}",
        "ranks", "", "connects", "messages", "frames", "MB", "virtual ms", "median bytes", "most bytes"
    );
    for ranks in [100, 1_000, 10_000] {
        let mut world = World::new(shape(ranks));
        world.begin_all();
        let limit = Duration::from_secs(60);
        let took = world.run_while(limit, |world| !world.is_attached());
        world.run_for(Duration::from_millis(500));
        line(&world, "attached (lazy)", took);
        let within = Duration::from_secs(30);
        for rank in 0..ranks {
            // A contact of usual length.
            world.gather(rank, 1, &Bytes::from(&[7; 60]), within);
        }
        let took = world.run_while(limit, |world| world.gathers.iter().any(|open| !open.is_empty()));
        assert_eq!(
            world.whole,
            u64::from(ranks),
            "every rank has the values of all ranks"
        );
        world.events.clear();
        world.run_for(Duration::from_millis(500));
        line(&world, "and all contacts known", took);
    }
}

fn line(world: &World, what: &str, took: Option<Duration>) {
    let mut memory: Vec<usize> = world.nodes.iter().flatten().map(Node::memory).collect();
    memory.sort_unstable();
    let messages: u64 = world
        .nodes
        .iter()
        .flatten()
        .map(|node| node.counters().messages)
        .sum();
    println!(
        "{:>6}  {:<22} {:>9} {:>9} {:>9} {:>8.1} {:>10} {:>12} {:>12}",
        world.shape.ranks,
        what,
        world.network.connects,
        messages,
        world.network.frames,
        world.network.bytes as f64 / 1e6,
        took.map_or("never".into(), |took| format!("{:.2}", took.as_secs_f64() * 1e3)),
        memory[memory.len() / 2],
        memory[memory.len() - 1],
    );
}

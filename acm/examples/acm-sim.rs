//! A cluster of resolvers on a virtual clock: what resolving costs, and that answers are true.
//!
//! ```text
//! cargo run --release -p doorbell-acm --example acm-sim -- --nodes 1000 --seeds 3
//! ```
//!
//! All hosts start together and announce themselves. Then each resolves `--questions` others, twice; and
//! hosts restart, are renumbered and cut off meanwhile, as in the test `simulated`, which checks each answer
//! in the same way. A seed that was bad is run alone by `--first` (the first seed). Printed are messages for
//! each resolution (sent, and received by all together, which is what a group costs), against querying a
//! subnet's administration for each pair, where one host has to answer all.

#[path = "../tests/simulated/world.rs"]
mod world;

use std::time::Duration;

use doorbell_acm::endpoint::Link;
use doorbell_acm::resolver::{Options, RouteProtocol};
use doorbell_sim::Dice;

use crate::world::{Score, Weather, World, story};

struct Arguments {
    nodes: usize,
    first: u64,
    seeds: u64,
    questions: usize,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments {
        nodes: 200,
        first: 0,
        seeds: 1,
        questions: 10,
    };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let least = u32::from(name != "--first");
        let number = words.next().and_then(|word| word.parse::<u32>().ok());
        let number = number.filter(|number| (least..=20_000).contains(number));
        let number = number.ok_or(format!("{name} takes a number from {least} to 20000"))? as usize;
        match name.as_str() {
            "--nodes" => arguments.nodes = number.max(2),
            "--first" => arguments.first = number as u64,
            "--seeds" => arguments.seeds = number as u64,
            "--questions" => arguments.questions = number,
            _ => {
                return Err(format!(
                    "unknown: {name}; there are --nodes, --first, --seeds and --questions"
                ));
            }
        }
    }
    Ok(arguments)
}

/// A percentile (ms) of sorted times (ns).
fn percentile(sorted: &[u64], of: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * of).round() as usize;
    sorted.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e6)
}

fn print(what: &str, before: &Score, after: &Score) {
    let asked = (after.asked - before.asked) as f64;
    let each = |count: fn(&Score) -> u64| (count(after) - count(before)) as f64 / asked;
    let mut took = after.took[before.took.len()..].to_vec();
    took.sort_unstable();
    println!(
        "  {what}: {asked} questions, {} answered with a path; for each {:.3} messages to all ({:.1} received), {:.3} to one host;\n    \
         ms: median {:.3}, 90 % {:.3}, 99 % {:.3}, longest {:.3}; answered at once {:.1} %",
        after.found - before.found,
        each(|score| score.multicasts),
        each(|score| score.deliveries),
        each(|score| score.unicasts),
        percentile(&took, 0.5),
        percentile(&took, 0.9),
        percentile(&took, 0.99),
        percentile(&took, 1.0),
        each(|score| score.at_once) * 100.0,
    );
}

fn round(world: &mut World, dice: &mut Dice, questions: usize) {
    let nodes = world.len() as u64;
    for _ in 0..questions {
        for from in 0..world.len() {
            let about = dice.below(nodes) as usize;
            world.query(from, about, dice.one_in(2));
        }
        world.run(Duration::from_millis(20));
    }
    world.run(Duration::from_secs(1));
}

fn cluster(arguments: &Arguments, seed: u64) {
    let options = Options {
        route_prot: RouteProtocol::Acm,
        resolve_depth: 32,
        send_depth: 32,
        ..Options::default()
    };
    let mut world = World::new(arguments.nodes, seed, options, Link::InfiniBand);
    let mut dice = Dice::new(seed);
    let start = world.score.clone();
    world.run(Duration::from_secs(2));
    let nodes = arguments.nodes as u64;
    println!(
        "seed {seed}: {nodes} hosts; to start, each sends {:.1} messages to all, and receives {:.1}",
        (world.score.multicasts - start.multicasts) as f64 / nodes as f64,
        (world.score.deliveries - start.deliveries) as f64 / nodes as f64,
    );
    let before = world.score.clone();
    round(&mut world, &mut dice, arguments.questions);
    print("first", &before, &world.score);
    world.weather = Weather {
        loss: 50,
        again: 50,
        spoilt: 100,
        delay: (20, 2_000),
    };
    let before = world.score.clone();
    round(&mut world, &mut dice, arguments.questions);
    print("2 % lost", &before, &world.score);
    println!(
        "  the administration alone: 2 messages for each pair, {} for all pairs, and one host has to answer them;\n  \
         memory of a resolver: {} KiB at most, {} bytes for each host",
        2 * nodes * (nodes - 1),
        world.memory() / 1024,
        world.memory() as u64 / nodes,
    );
}

fn main() -> std::process::ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return std::process::ExitCode::FAILURE;
        }
    };
    for seed in arguments.first..arguments.first + arguments.seeds {
        cluster(&arguments, seed);
        let mut world = World::of_seed(arguments.nodes.min(100), seed);
        story(&mut world, seed);
        let score = &world.score;
        println!(
            "  a bad day: {} questions, {} answered with a path, refused by status {:?}; {} restarts, {} renumbered, {} cut off; \
             {} questions to the administration, {} probes",
            score.asked,
            score.found,
            score.refused,
            score.restarts,
            score.renumbered,
            score.partitions,
            score.queries,
            score.probes,
        );
    }
    std::process::ExitCode::SUCCESS
}

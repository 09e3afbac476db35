//! A rank of `links`: meets every other rank once, in rounds in which all ranks have a partner (the circle
//! method of tournaments), and prints a line for each pair of which it is the smaller number.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::World;
use doorbell_fabric::error::Exit;

use super::{Half, PATIENCE, Pair};
use crate::console;
use crate::error::ToolError;

/// Exchanges of each size; the first ones make the connection, and do not count.
const TIMES: usize = 60;
const WARM: usize = 10;
const SMALL: usize = 8;

/// Runs the hidden command `links-rank`.
pub(crate) fn links_rank() -> Result<ExitCode, ToolError> {
    let world = doorbell::Builder::new()
        .configure(|config| {
            let limit = PATIENCE.min(*config.wait.deadline.get());
            config.wait.close.set(limit.min(*config.wait.close.get()));
        })
        .on_quiet(|_| {})
        .build()?;
    let (rank, size) = (world.rank(), world.size());
    for round in 0..rounds(size) {
        let Some(partner) = partner(rank, round, size) else {
            continue;
        };
        // Partners come from rounds where one of them may have waited in vain.
        let first = PATIENCE * (round + 1);
        if rank < partner {
            let pair = ask(&world, partner, round, first);
            let line = serde_json::to_string(&pair).map_err(|error| ToolError::System {
                what: "write a report",
                source: error.into(),
            })?;
            console::print(&format!("{line}\n"))?;
        } else {
            // The rank that sends first prints the result.
            let _ = answer(&world, partner, round, first);
        }
    }
    world.close();
    Ok(Exit::Done.into())
}

/// Returns the number of rounds after which every rank was paired with every other one.
fn rounds(size: u32) -> u32 {
    size + size % 2 - 1
}

/// Returns the partner of a rank in a round; of an odd number of ranks, one has none.
fn partner(rank: u32, round: u32, size: u32) -> Option<u32> {
    let circle = rounds(size);
    // The last one keeps its place, and all others move around it.
    let other = if rank == circle {
        // 2 × it = round, modulo an odd number.
        let half = circle.div_ceil(2);
        round * half % circle
    } else {
        match (round + circle - rank % circle) % circle {
            same if same == rank => circle,
            other => other,
        }
    };
    (other < size).then_some(other)
}

/// Runs the end of a pair that sends first.
fn ask(world: &World, partner: u32, round: u32, first: Duration) -> Pair {
    let ranks = [world.rank(), partner];
    let longest = |world: &World| {
        let paths = world.paths(partner).unwrap_or_default();
        paths.first().map_or(0, |way| way.longest)
    };
    let tag = u64::from(round);
    let mut pair = Pair::failed(ranks, "");
    let mut limit = first;
    let mut fault = None;
    for bytes in [SMALL, longest(world).max(SMALL)] {
        match exchange(world, partner, tag, bytes, limit) {
            Ok(half) if pair.small.is_none() => pair.small = Some(half),
            Ok(half) => pair.full = Some(half),
            Err(why) => {
                fault = Some(format!("messages of {bytes} bytes: {why}"));
                break;
            }
        }
        limit = PATIENCE;
    }
    pair.works = fault.is_none();
    pair.diagnosis = match fault {
        None => "both sizes pass".to_owned(),
        Some(why) => diagnosis(world, partner, &why),
    };
    pair
}

/// Messages of one length to and fro.
fn exchange(
    world: &World,
    partner: u32,
    tag: u64,
    bytes: usize,
    mut limit: Duration,
) -> Result<Half, String> {
    let mut halves = Vec::with_capacity(TIMES);
    let mut back = vec![0; bytes];
    for turn in 0..TIMES + WARM {
        let body: Vec<u8> = (0..bytes).map(|at| (at + turn) as u8).collect();
        let begun = Instant::now();
        world
            .within(limit)
            .send(partner, tag, &body)
            .map_err(|error| first_line(&error))?;
        let status = world
            .within(limit)
            .recv(partner, tag, &mut back)
            .map_err(|error| first_line(&error))?;
        if turn >= WARM {
            halves.push(begun.elapsed().as_nanos() as u64 / 2);
        }
        if status.len != bytes || back != body {
            return Err("one came back changed".to_owned());
        }
        limit = PATIENCE;
    }
    halves.sort_unstable();
    Ok(Half {
        bytes,
        half_rtt_ns: halves.get(TIMES / 2).copied().unwrap_or(0),
    })
}

/// The other end: gives everything back. `None`: it waited in vain.
fn answer(world: &World, partner: u32, round: u32, mut limit: Duration) -> Option<()> {
    let tag = u64::from(round);
    let longest = world.paths(partner).ok()?.first()?.longest.max(SMALL);
    let mut body = vec![0; longest];
    for _ in 0..2 * (TIMES + WARM) {
        let status = world.within(limit).recv(partner, tag, &mut body).ok()?;
        world
            .within(limit)
            .send(partner, tag, body.get(..status.len)?)
            .ok()?;
        limit = PATIENCE;
    }
    Some(())
}

/// Returns why a pair does not work: the rail's own finding is more precise than that nothing arrived.
fn diagnosis(world: &World, partner: u32, why: &str) -> String {
    let paths = world.paths(partner).unwrap_or_default();
    let known = paths.first().and_then(|way| match (way.passes, way.probed) {
        (Some(false), Some(probed)) => Some(probed.to_owned()),
        _ => way.facts.clone(),
    });
    super::diagnosis(known, why)
}

/// An error's sentence, without what the rails recorded.
pub(super) fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_meets_every_rank_once() {
        for size in 2..12 {
            let mut met = std::collections::HashSet::new();
            for round in 0..rounds(size) {
                for rank in 0..size {
                    let Some(other) = partner(rank, round, size) else {
                        continue;
                    };
                    assert_eq!(
                        partner(other, round, size),
                        Some(rank),
                        "{size} {round}: {rank} {other}"
                    );
                    assert_ne!(rank, other);
                    if rank < other {
                        assert!(met.insert((rank, other)), "{size}: {rank} {other} twice");
                    }
                }
            }
            assert_eq!(met.len() as u32, size * (size - 1) / 2, "{size}");
        }
    }
}

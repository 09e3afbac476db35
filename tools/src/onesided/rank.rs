//! A rank of `onesided`, whatever its layer: rank 0 takes turns with all operations, and rank 1 serves.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;

use super::args::{OnesidedLayer, OnesidedRankArgs};
use super::{Bandwidth, Latency, Over, am, world};
use crate::console;
use crate::error::ToolError;

/// Operations of eight bytes in a turn.
pub(super) const SHORT: u64 = 200;
/// Long pieces under way together, and how many times that is repeated in a turn.
pub(super) const TOGETHER: usize = 8;
pub(super) const TIMES: u64 = 4;

/// Runs the hidden command `onesided-rank`.
pub(crate) fn onesided_rank(args: &OnesidedRankArgs) -> Result<ExitCode, ToolError> {
    match args.layer {
        OnesidedLayer::Pml => world::rank(args)?,
        OnesidedLayer::Am => am::rank(args)?,
    }
    Ok(Exit::Done.into())
}

/// What rank 0 measures: each operation by its number, the message that the others are compared with first.
pub(super) trait Operations {
    /// Operations of eight bytes.
    const OPERATIONS: &'static [&'static str];
    /// Long pieces, and where the bytes of this rank are.
    const MOVES: &'static [(&'static str, &'static str)];

    /// One turn of an operation of eight bytes: an operation that is not measured, and then all others.
    fn short_turn(&mut self, operation: usize) -> Result<Duration, ToolError>;

    /// One turn of long pieces, the first of which are not measured.
    fn long_turn(&mut self, operation: usize) -> Result<Duration, ToolError>;
}

/// Measures all of them for this long in all, and as long again.
pub(super) fn measure<O: Operations>(leader: &mut O, args: &OnesidedRankArgs) -> Result<Over, ToolError> {
    let half = |count: usize, operations: u64, one: &mut dyn FnMut(usize) -> Result<Duration, ToolError>| {
        let mut taken: Vec<Turns> = (0..count).map(|_| Turns::default()).collect();
        turns(args.seconds, |counts| {
            for (operation, turns) in taken.iter_mut().enumerate() {
                let turn = one(operation)?;
                if counts {
                    turns.add(turn, operations);
                }
            }
            Ok(())
        })?;
        Ok::<_, ToolError>(taken)
    };
    let short = half(O::OPERATIONS.len(), SHORT, &mut |operation| {
        leader.short_turn(operation)
    })?;
    let pieces = TIMES * TOGETHER as u64;
    let long = half(O::MOVES.len(), pieces, &mut |operation| {
        leader.long_turn(operation)
    })?;
    let latency = O::OPERATIONS
        .iter()
        .zip(&short)
        .map(|(operation, turns)| Latency {
            operation: (*operation).to_owned(),
            bytes: 8,
            round_trip_ns: turns.median(),
            of_message: turns.of(&short[0]),
        });
    let bandwidth = O::MOVES
        .iter()
        .zip(&long)
        .map(|((operation, local), turns)| Bandwidth {
            operation: (*operation).to_owned(),
            local: (*local).to_owned(),
            bytes: args.bytes,
            bytes_per_second: args.bytes as f64 / (turns.median() * 1e-9),
            of_message: turns.of(&long[0]),
        });
    Ok(Over {
        latency: latency.collect(),
        bandwidth: bandwidth.collect(),
        ..Over::default()
    })
}

/// Prints what was found as a line.
pub(super) fn tell(found: &Over) -> Result<(), ToolError> {
    let line = serde_json::to_string(found).map_err(|error| ToolError::System {
        what: "write a report",
        source: error.into(),
    })?;
    console::print(&format!("{line}\n"))
}

/// Nanoseconds of an operation in each turn.
#[derive(Debug, Default)]
struct Turns {
    nanos: Vec<f64>,
}

impl Turns {
    fn add(&mut self, turn: Duration, operations: u64) {
        self.nanos.push(turn.as_nanos() as f64 / operations as f64);
    }

    fn median(&self) -> f64 {
        median(self.nanos.clone())
    }

    /// The median of the ratios to another operation in the same turn.
    fn of(&self, other: &Self) -> f64 {
        let ratios = self.nanos.iter().zip(&other.nanos);
        median(ratios.map(|(own, other)| own / other).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Takes turns for this long, of which the first tenth warms up and does not count; three count at least.
fn turns(seconds: f64, mut turn: impl FnMut(bool) -> Result<(), ToolError>) -> Result<(), ToolError> {
    let (begun, mut counted) = (Instant::now(), 0);
    loop {
        let passed = begun.elapsed().as_secs_f64();
        if passed > seconds && counted >= 3 {
            return Ok(());
        }
        let counts = passed >= seconds / 10.0;
        turn(counts)?;
        counted += u32::from(counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_neighbours_in_time() {
        let [mut one, mut other] = [Turns::default(), Turns::default()];
        for (slow, factor) in [(1, 1), (100, 2), (10, 2)] {
            one.add(Duration::from_micros(slow * factor), 10);
            other.add(Duration::from_micros(slow), 10);
        }
        assert_eq!((one.median(), other.median()), (2000.0, 1000.0));
        assert_eq!(one.of(&other), 2.0);
    }
}

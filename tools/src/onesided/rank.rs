//! A rank of `onesided`: rank 0 measures, rank 1 follows its orders, and serves its window while it waits for
//! the next one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::{Arithmetic, Region, RemoteWindow, Request, WindowAccess, World};
use doorbell_fabric::error::Exit;

use super::args::OnesidedRankArgs;
use super::{Bandwidth, Latency, Over};
use crate::console;
use crate::error::ToolError;

const DATA: u64 = 1;
const ORDER: u64 = 2;
/// Operations of eight bytes in a turn.
const SHORT: u64 = 200;
/// Long pieces under way together, and how many times that is repeated in a turn.
const TOGETHER: usize = 8;
const TIMES: u64 = 4;

/// Runs the hidden command `onesided-rank`.
pub(crate) fn onesided_rank(args: &OnesidedRankArgs) -> Result<ExitCode, ToolError> {
    let world = doorbell::Builder::new().on_quiet(|_| {}).build()?;
    let length = TOGETHER * args.bytes.max(8);
    let windows = world.windows(world.region(length)?.whole(), WindowAccess::ALL)?;
    if world.rank() == 0 {
        let found = Leader::new(&world, windows.of(1), args.bytes)?.measure(args.seconds)?;
        let line = serde_json::to_string(&found).map_err(|error| ToolError::System {
            what: "write a report",
            source: error.into(),
        })?;
        console::print(&format!("{line}\n"))?;
    } else {
        follow(&world, args.bytes)?;
    }
    world.fence()?;
    drop(windows);
    world.close();
    Ok(Exit::Done.into())
}

/// What rank 1 does while rank 0 measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Order {
    /// Return this many messages.
    Echo = 0,
    /// Receive long messages into regions, or into ordinary memory.
    Regions = 1,
    Memory = 2,
    End = 3,
}

fn follow(world: &World, bytes: usize) -> Result<(), ToolError> {
    let regions = regions(world, bytes)?;
    let mut memory = vec![vec![0; bytes]; TOGETHER];
    let mut order = [0];
    loop {
        world.recv(0, ORDER, &mut order)?;
        let mut small = [0; 8];
        match order[0] {
            0 => {
                for _ in 0..=SHORT {
                    world.recv(0, DATA, &mut small)?;
                    world.send(0, DATA, &small)?;
                }
            }
            1 | 2 => {
                for _ in 0..=TIMES {
                    if order[0] == 1 {
                        let receive = |region: &Region| world.irecv_region(0, DATA, region.whole());
                        all(world, regions.iter().map(receive))?;
                    } else {
                        world.scope(|scope| {
                            let mut posted = Vec::with_capacity(TOGETHER);
                            for into in &mut memory {
                                posted.push(scope.irecv(0, DATA, into)?);
                            }
                            world.wait_all(&mut posted)
                        })?;
                    }
                    world.send(0, DATA, &small)?;
                }
            }
            _ => return Ok(()),
        }
    }
}

fn regions(world: &World, bytes: usize) -> Result<Vec<Region>, ToolError> {
    let regions: Result<_, doorbell::Error> = (0..TOGETHER).map(|_| world.region(bytes)).collect();
    Ok(regions?)
}

/// Waits for all of these requests.
fn all<'w>(
    world: &World,
    requests: impl Iterator<Item = Result<Request<'w>, doorbell::Error>>,
) -> Result<(), doorbell::Error> {
    let requests: Result<Vec<_>, _> = requests.collect();
    world.wait_all(&mut requests?)
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

/// What is measured of eight bytes.
const OPERATIONS: [&str; 4] = ["message", "put", "get", "fetch and add"];
/// What is measured of long pieces.
const MOVES: [(&str, &str); 6] = [
    ("message", "region"),
    ("message", "memory"),
    ("put", "region"),
    ("put", "memory"),
    ("get", "region"),
    ("get", "memory"),
];

/// The measuring end, which is rank 0.
struct Leader<'w> {
    world: &'w World,
    target: RemoteWindow,
    regions: Vec<Region>,
    memory: Vec<Vec<u8>>,
    bytes: usize,
}

impl<'w> Leader<'w> {
    fn new(world: &'w World, target: RemoteWindow, bytes: usize) -> Result<Self, ToolError> {
        Ok(Self {
            world,
            target,
            regions: regions(world, bytes)?,
            memory: vec![vec![1; bytes]; TOGETHER],
            bytes,
        })
    }

    fn measure(&mut self, seconds: f64) -> Result<Over, ToolError> {
        let mut short: [Turns; OPERATIONS.len()] = Default::default();
        turns(seconds, |counts| {
            for (operation, turns) in short.iter_mut().enumerate() {
                let turn = self.short_turn(operation)?;
                if counts {
                    turns.add(turn, SHORT);
                }
            }
            Ok(())
        })?;
        let mut long: [Turns; MOVES.len()] = Default::default();
        turns(seconds, |counts| {
            for (operation, turns) in long.iter_mut().enumerate() {
                let turn = self.long_turn(operation)?;
                if counts {
                    turns.add(turn, TIMES * TOGETHER as u64);
                }
            }
            Ok(())
        })?;
        self.order(Order::End)?;
        let latency = OPERATIONS.iter().zip(&short).map(|(operation, turns)| Latency {
            operation: (*operation).to_owned(),
            bytes: 8,
            round_trip_ns: turns.median(),
            of_message: turns.of(&short[0]),
        });
        let bandwidth = MOVES
            .iter()
            .zip(&long)
            .map(|((operation, local), turns)| Bandwidth {
                operation: (*operation).to_owned(),
                local: (*local).to_owned(),
                bytes: self.bytes,
                bytes_per_second: self.bytes as f64 / (turns.median() * 1e-9),
                of_message: turns.of(&long[0]),
            });
        Ok(Over {
            latency: latency.collect(),
            bandwidth: bandwidth.collect(),
            ..Over::default()
        })
    }

    fn order(&self, order: Order) -> Result<(), ToolError> {
        Ok(self.world.send(1, ORDER, &[order as u8])?)
    }

    /// One turn of an operation of eight bytes: an operation that is not measured, and then all others.
    fn short_turn(&self, operation: usize) -> Result<Duration, ToolError> {
        let (world, target) = (self.world, self.target);
        let mut small = [7; 8];
        if operation == 0 {
            self.order(Order::Echo)?;
        }
        let mut begun = Instant::now();
        for number in 0..=SHORT {
            match operation {
                0 => {
                    world.send(1, DATA, &small)?;
                    world.recv(1, DATA, &mut small)?;
                }
                1 => world.put(target, 0, &small)?,
                2 => world.get(target, 0, &mut small)?,
                _ => _ = world.fetch_accumulate(target, 8, Arithmetic::Sum, 1u64)?,
            }
            if number == 0 {
                begun = Instant::now();
            }
        }
        Ok(begun.elapsed())
    }

    /// One turn of long pieces, the first of which are not measured.
    fn long_turn(&mut self, operation: usize) -> Result<Duration, ToolError> {
        match operation {
            0 => self.order(Order::Regions)?,
            1 => self.order(Order::Memory)?,
            _ => {}
        }
        let mut begun = Instant::now();
        for number in 0..=TIMES {
            self.pieces(operation)?;
            if operation < 2 {
                self.world.recv(1, DATA, &mut [0; 8])?;
            }
            if number == 0 {
                begun = Instant::now();
            }
        }
        Ok(begun.elapsed())
    }

    /// Moves several pieces together.
    fn pieces(&mut self, operation: usize) -> Result<(), doorbell::Error> {
        let (world, target, bytes) = (self.world, self.target, self.bytes as u64);
        let regions = self.regions.iter().zip(0..);
        match operation {
            0 => all(
                world,
                regions.map(|(region, _)| world.isend_region(1, DATA, region.whole())),
            ),
            2 => all(
                world,
                regions.map(|(region, at)| world.iput_region(target, at * bytes, region.whole())),
            ),
            4 => all(
                world,
                regions.map(|(region, at)| world.iget_region(target, at * bytes, region.whole())),
            ),
            _ => world.scope(|scope| {
                let mut posted = Vec::with_capacity(TOGETHER);
                for (memory, at) in self.memory.iter_mut().zip(0..) {
                    posted.push(match operation {
                        1 => scope.isend(1, DATA, memory)?,
                        3 => scope.iput(target, at * bytes, memory)?,
                        _ => scope.iget(target, at * bytes, memory)?,
                    });
                }
                world.wait_all(&mut posted)
            }),
        }
    }
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

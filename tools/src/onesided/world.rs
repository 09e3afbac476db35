//! The layer of tagged messages: puts, gets and atomics on a window. Rank 1 follows the orders of rank 0, and
//! serves its window while it waits for the next one.

use std::time::{Duration, Instant};

use doorbell::{Arithmetic, Region, RemoteWindow, Request, WindowAccess, World};

use super::args::OnesidedRankArgs;
use super::rank::{Operations, SHORT, TIMES, TOGETHER, measure, tell};
use crate::error::ToolError;

const DATA: u64 = 1;
const ORDER: u64 = 2;

/// Runs a rank.
pub(super) fn rank(args: &OnesidedRankArgs) -> Result<(), ToolError> {
    let world = doorbell::Builder::new().on_quiet(|_| {}).build()?;
    let length = TOGETHER * args.bytes.max(8);
    let windows = world.windows(world.region(length)?.whole(), WindowAccess::ALL)?;
    if world.rank() == 0 {
        let mut leader = Leader::new(&world, windows.of(1), args.bytes)?;
        let found = measure(&mut leader, args)?;
        leader.order(Order::End)?;
        tell(&found)?;
    } else {
        follow(&world, args.bytes)?;
    }
    world.fence()?;
    drop(windows);
    world.close();
    Ok(())
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

    fn order(&self, order: Order) -> Result<(), ToolError> {
        Ok(self.world.send(1, ORDER, &[order as u8])?)
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

impl Operations for Leader<'_> {
    const OPERATIONS: &'static [&'static str] = &["message", "put", "get", "fetch and add"];
    const MOVES: &'static [(&'static str, &'static str)] = &[
        ("message", "region"),
        ("message", "memory"),
        ("put", "region"),
        ("put", "memory"),
        ("get", "region"),
        ("get", "memory"),
    ];

    fn short_turn(&mut self, operation: usize) -> Result<Duration, ToolError> {
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
}

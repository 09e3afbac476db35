//! Operations while rails die, return, and lose: each is done once and in order. `DOORBELL_STORMS=N` runs N
//! seeds instead of some.

use std::time::Duration;

use doorbell_fabric::message::Message;
use doorbell_pml::{Protocol, RequestId, Resume};
use doorbell_sim::{Change, Faults};
use doorbell_testing::Random;

use crate::narrow::narrow;
use crate::rma::{get, open, piece, put};
use crate::rma_atomics::fetch_add;
use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

/// A number of the environment.
#[allow(clippy::disallowed_methods)] // the PML takes none, its long tests do
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn nothing_is_left<M: Message>(world: &mut World<M>, seed: u64) {
    world.leap(Duration::from_millis(200));
    for (rank, pml) in world.pmls.iter().enumerate() {
        assert_eq!(
            pml.live_requests(),
            0,
            "seed {seed}, rank {rank}: {:#?}",
            pml.live_lines()
        );
        assert_eq!(pml.in_use().bytes, 0, "seed {seed}, rank {rank}");
        assert_eq!(
            pml.counters().drops.impossible(),
            0,
            "seed {seed}, rank {rank}: {:?}",
            pml.counters().drops
        );
    }
}

/// Operations that the first rail took are too long for the second one.
#[test]
fn operations_too_long_for_the_rail_that_is_left_are_done_once() {
    let mut resent = 0;
    for seed in 0..10 {
        for passes in 0..8 {
            let mut world = narrow(seed, 600, sim(true, true, true), passes % 2 == 1);
            let window = empty(20 * 4000 + 8);
            open(&mut world, 1, 1, &window);
            let from: Vec<Memory> = (0..20).map(|at| filled(3500, at)).collect();
            let into: Vec<Memory> = (0..20).map(|_| empty(3500)).collect();
            let rooms: Vec<Memory> = (0..20).map(|_| empty(8)).collect();
            let mut ids = Vec::new();
            for at in 0..20 {
                let there = piece(1, 8 + 4000 * at as u64, 3500);
                ids.push(put(&mut world, 0, 1, there, &from[at]));
                ids.push(get(&mut world, 0, 1, there, &into[at]));
                ids.push(fetch_add(&mut world, 0, 1, 0, 1, &rooms[at]));
            }
            world.passes(passes);
            world.net.change(Change::PlaneDown(world.planes[0]));
            for id in ids {
                world.wait(0, id).unwrap();
            }
            let mut sum = [0; 8];
            window.read(0, &mut sum);
            assert_eq!(u64::from_le_bytes(sum), 20, "seed {seed}, {passes} passes");
            let mut olds: Vec<u8> = rooms.iter().map(|room| bytes(room)[0]).collect();
            olds.sort_unstable();
            assert_eq!(olds, (0..20).collect::<Vec<u8>>());
            for at in 0..20 {
                let mut there = vec![0; 3500];
                window.read(8 + 4000 * at, &mut there);
                assert!(
                    there == pattern(3500, at as u64),
                    "seed {seed}, {passes} passes, {at}"
                );
            }
            nothing_is_left(&mut world, seed);
            resent += world.pmls[0].counters().resent + world.pmls[1].counters().resent;
        }
    }
    assert!(resent > 100, "the test has to produce some: {resent}");
}

/// One initiator's operations on one target's window, and what is known of it.
struct Flow {
    from: usize,
    to: u32,
    window: Memory,
    /// Fetch-adds, and the sum of what they add.
    adds: Vec<(RequestId, Memory, u64)>,
    sum: u64,
    /// Puts of growing numbers to one place, and gets of it.
    number: u64,
    others: Vec<RequestId>,
    gets: Vec<(RequestId, Memory)>,
    seen: u64,
    /// Long puts, each to a place of its own.
    longs: Vec<(u64, usize, u64)>,
    left: usize,
}

const OPERATIONS: usize = 60;
const LONGS_AT: u64 = 64;

impl Flow {
    fn key(&self) -> u64 {
        self.from as u64 * 100 + u64::from(self.to)
    }

    /// Begins an operation.
    fn begin(&mut self, world: &mut World, dice: &mut Random) {
        self.left -= 1;
        let key = self.key();
        match dice.below(4) {
            0 => {
                let by = dice.below(1000);
                let room = empty(8);
                let id = add(world, self, by, &room);
                self.adds.push((id, room, self.sum));
                self.sum += by;
            }
            1 => {
                self.number += 1;
                let memory = empty(8);
                memory.write(0, &self.number.to_le_bytes());
                self.others
                    .push(put(world, self.from, self.to, piece(key, 8, 8), &memory));
            }
            2 => {
                // Kept in a place of more than an answer, so that it is a reply.
                let room = empty([8, 24][dice.below(2) as usize]);
                let id = get(world, self.from, self.to, piece(key, 8, room.len()), &room);
                self.gets.push((id, room));
            }
            _ => {
                let length = [100, 3000, 20_000, 150_000][dice.below(4) as usize];
                let at = self
                    .longs
                    .last()
                    .map_or(LONGS_AT, |(at, length, _)| at + *length as u64);
                if at + length as u64 > self.window.len() as u64 {
                    return;
                }
                let salt = key * 1000 + self.longs.len() as u64;
                let memory = filled(length, salt);
                self.others
                    .push(put(world, self.from, self.to, piece(key, at, length), &memory));
                self.longs.push((at, length, salt));
            }
        }
    }

    /// Looks which have ended, and whether as they must.
    fn look(&mut self, world: &mut World, seed: u64) {
        let pml = &mut world.pmls[self.from];
        self.adds.retain(|(id, room, before)| match pml.test(*id) {
            None => true,
            Some(ended) => {
                ended.unwrap();
                let mut old = [0; 8];
                room.read(0, &mut old);
                assert_eq!(
                    u64::from_le_bytes(old),
                    *before,
                    "seed {seed}: one fetch-add twice, or out of turn"
                );
                false
            }
        });
        self.others.retain(|id| match pml.test(*id) {
            None => true,
            Some(ended) => {
                ended.unwrap();
                false
            }
        });
        // Gets are in order with puts, though their ends may come in another one.
        while let Some((id, _)) = self.gets.first() {
            let Some(ended) = pml.test(*id) else { break };
            ended.unwrap();
            let (_, room) = self.gets.remove(0);
            let mut number = [0; 8];
            room.read(0, &mut number);
            let number = u64::from_le_bytes(number);
            assert!(
                number >= self.seen && number <= self.number,
                "seed {seed}: {number} behind {}",
                self.seen
            );
            self.seen = number;
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.adds.is_empty() && self.others.is_empty() && self.gets.is_empty()
    }

    /// What lies in the window at the end.
    fn judge(&self, seed: u64) {
        let word = |at| {
            let mut word = [0; 8];
            self.window.read(at, &mut word);
            u64::from_le_bytes(word)
        };
        assert_eq!((word(0), word(8)), (self.sum, self.number), "seed {seed}");
        for (at, length, salt) in &self.longs {
            let mut there = vec![0; *length];
            self.window.read(*at as usize, &mut there);
            assert!(there == pattern(*length, *salt), "seed {seed}: {length} bytes");
        }
    }
}

fn add(world: &mut World, flow: &Flow, by: u64, room: &Memory) -> RequestId {
    use doorbell_fabric::atomics::{Arithmetic, Element};
    use doorbell_fabric::memory::ConstLoan;
    use doorbell_pml::{Payload, Target};
    let at = piece(flow.key(), 0, 8);
    let mut args = crate::rma_atomics::args(flow.to, at, Arithmetic::Sum, Element::Uint64);
    args.operands = Payload::Loan(ConstLoan::of_static(by.to_le_bytes().to_vec().leak()));
    args.fetch = Some(Target::Loan(room.room()));
    world.pmls[flow.from].atomic(args).unwrap()
}

fn storm(seed: u64) -> (u64, u64) {
    let mut dice = Random::new(seed);
    let ranks = 2 + dice.below(2) as u32;
    let planes = 2 + dice.below(2) as usize;
    let protocol =
        [Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments][dice.below(4) as usize];
    let (handshake, zero, checksum) = (dice.below(3) == 0, dice.below(3) == 0, dice.below(3) == 0);
    let tight = dice.below(3) == 0;
    let mut config = sim(dice.below(4) > 0, dice.below(4) > 0, true);
    config.queue_depth = [8, 64, 1024][dice.below(3) as usize];
    config.silence = Duration::from_millis(1 + dice.below(30));
    let mut world = World::with_planes(ranks, planes, seed, config, |pml| {
        pml.protocol = protocol;
        pml.handshake = handshake;
        pml.checksum = checksum;
        pml.resume = if zero { Resume::FromZero } else { Resume::Missing };
        pml.patience = Duration::from_secs(3600);
        if tight {
            (pml.window, pml.hard_window) = (32 << 10, 48 << 10);
        }
    });
    for plane in world.planes.clone() {
        let faults = Faults {
            delay: Duration::from_micros(1 + dice.below(40)),
            reorder: 0.2,
            reorder_window: Duration::from_micros(50),
            ..Faults::NONE
        };
        world.net.change(Change::Faults(plane, faults));
    }
    let mut flows: Vec<Flow> = Vec::new();
    for from in 0..ranks as usize {
        for to in (0..ranks).filter(|to| *to as usize != from) {
            let window = empty(1_000_000);
            let flow = Flow {
                from,
                to,
                window,
                adds: Vec::new(),
                sum: 0,
                number: 0,
                others: Vec::new(),
                gets: Vec::new(),
                seen: 0,
                longs: Vec::new(),
                left: OPERATIONS,
            };
            open(&mut world, to as usize, flow.key(), &flow.window);
            flows.push(flow);
        }
    }
    let mut broken: Vec<Change> = Vec::new();
    let end = world.net.now() + Duration::from_secs(120);
    while flows.iter().any(|flow| !flow.is_done()) {
        if dice.below(50) == 0 {
            weather(&mut world, &mut dice, &mut broken, ranks);
        }
        if dice.below(150) == 0 {
            world.leap(Duration::from_millis(600));
        }
        for flow in &mut flows {
            if flow.left > 0 && dice.below(3) == 0 {
                flow.begin(&mut world, &mut dice);
            }
            flow.look(&mut world, seed);
        }
        let stride = [1, 1, 10, 100, 2000][dice.below(5) as usize];
        let now = world.net.now() + Duration::from_micros(stride);
        world.net.advance_to(now);
        for pml in &mut world.pmls {
            pml.progress(now);
        }
        if now > end {
            let lines: Vec<_> = world
                .pmls
                .iter()
                .map(|pml| (pml.live_lines(), *pml.counters()))
                .collect();
            panic!("seed {seed}: it never ended: {lines:#?}");
        }
    }
    for mended in broken {
        world.net.change(mended);
    }
    nothing_is_left(&mut world, seed);
    flows.iter().for_each(|flow| flow.judge(seed));
    let counters = world.pmls.iter().map(|pml| pml.counters());
    counters.fold((0, 0), |(resent, restarts), these| {
        (resent + these.resent, restarts + these.restarts)
    })
}

/// Breaks something, or mends it.
fn weather(world: &mut World, dice: &mut Random, broken: &mut Vec<Change>, ranks: u32) {
    let plane = world.planes[dice.below(world.planes.len() as u64) as usize];
    let (from, to) = (dice.below(ranks.into()) as u32, dice.below(ranks.into()) as u32);
    if broken.len() > 2 || (dice.below(3) == 0 && !broken.is_empty()) {
        let at = dice.below(broken.len() as u64) as usize;
        world.net.change(broken.swap_remove(at));
        return;
    }
    let (change, mended) = match dice.below(4) {
        0 => (Change::PlaneDown(plane), Change::PlaneUp(plane)),
        1 => (Change::LinkDown(plane, from), Change::LinkUp(plane, from)),
        _ if from == to => return,
        _ => (Change::Cut { plane, from, to }, Change::Heal { plane, from, to }),
    };
    world.net.change(change);
    broken.push(mended);
}

#[test]
fn every_operation_is_done_once_whatever_the_weather() {
    let (count, first) = (asked("DOORBELL_STORMS", 40), asked("DOORBELL_STORM", 0));
    let (mut resent, mut restarts) = (0, 0);
    for seed in first..first + count {
        let these = storm(seed);
        (resent, restarts) = (resent + these.0, restarts + these.1);
    }
    println!("{count} storms: {resent} resent, {restarts} restarts");
    assert!(
        count < 40 || (resent > 100 && restarts > 10),
        "{resent} resent, {restarts} restarts"
    );
}

//! Random traffic while paths die, return, and are cut at random: everything arrives once, whole, in order;
//! nothing is left. `DOORBELL_STORMS=N` runs N seeds instead of some.

use std::time::Duration;

use doorbell_pml::{Protocol, Rank, RequestId, Resume, SendMode, Sent, Source};
use doorbell_sim::{Change, Faults};
use doorbell_testing::Random;

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

/// What a seed chooses.
struct Storm {
    seed: u64,
    dice: Random,
    world: World,
    ranks: u32,
    /// What is broken now, and how it is mended.
    broken: Vec<Change>,
}

const LENGTHS: [usize; 8] = [0, 8, 100, 3000, 5000, 20_000, 90_000, 400_000];
const MESSAGES: usize = 40;

struct Flow {
    from: usize,
    to: usize,
    sent: usize,
    posted: usize,
    memory: Vec<Memory>,
    rooms: Vec<Memory>,
    lengths: Vec<usize>,
    sends: Vec<Sent>,
    receives: Vec<RequestId>,
    received: usize,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut dice = Random::new(seed);
        let ranks = 2 + dice.below(3) as u32;
        let planes = 2 + dice.below(3) as usize;
        let protocol =
            [Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments][dice.below(4) as usize];
        let (handshake, zero) = (dice.below(3) == 0, dice.below(3) == 0);
        let checksum = dice.below(3) == 0;
        let pipeline = 1 << dice.below(5);
        let mut config = sim(dice.below(4) > 0, dice.below(4) > 0, true);
        config.queue_depth = [8, 64, 1024][dice.below(3) as usize];
        config.silence = Duration::from_millis(1 + dice.below(30));
        let world = World::with_planes(ranks, planes, seed, config, |pml| {
            pml.protocol = protocol;
            pml.handshake = handshake;
            pml.checksum = checksum;
            pml.pipeline = pipeline;
            pml.resume = if zero { Resume::FromZero } else { Resume::Missing };
            pml.patience = Duration::from_secs(3600);
        });
        for plane in &world.planes {
            let faults = Faults {
                delay: Duration::from_micros(1 + dice.below(40)),
                reorder: 0.2,
                reorder_window: Duration::from_micros(50),
                bandwidth: (dice.below(2) == 0).then(|| 100_000_000 * (1 + dice.below(20))),
                queue: 4 << 20,
                ..Faults::NONE
            };
            world.net.change(Change::Faults(*plane, faults));
        }
        Self {
            seed,
            dice,
            world,
            ranks,
            broken: Vec::new(),
        }
    }

    /// Breaks something, or mends it.
    fn weather(&mut self) {
        let planes = self.world.planes.len() as u64;
        let plane = self.world.planes[self.dice.below(planes) as usize];
        let ranks = u64::from(self.ranks);
        let (from, to) = (self.dice.below(ranks) as u32, self.dice.below(ranks) as u32);
        if self.broken.len() > 2 || (self.dice.below(3) == 0 && !self.broken.is_empty()) {
            let at = self.dice.below(self.broken.len() as u64) as usize;
            self.world.net.change(self.broken.swap_remove(at));
            return;
        }
        let (change, mended) = match self.dice.below(4) {
            0 => (Change::PlaneDown(plane), Change::PlaneUp(plane)),
            1 => (Change::LinkDown(plane, from), Change::LinkUp(plane, from)),
            _ if from == to => return,
            _ => (Change::Cut { plane, from, to }, Change::Heal { plane, from, to }),
        };
        self.world.net.change(change);
        self.broken.push(mended);
    }

    fn flows(&mut self) -> Vec<Flow> {
        let mut flows = Vec::new();
        for from in 0..self.ranks as usize {
            for to in (0..self.ranks as usize).filter(|to| *to != from) {
                let lengths: Vec<usize> = (0..MESSAGES)
                    .map(|_| LENGTHS[self.dice.below(8) as usize])
                    .collect();
                let salt = |at: usize| (from * 100 + to) as u64 * 1000 + at as u64;
                flows.push(Flow {
                    from,
                    to,
                    sent: 0,
                    posted: 0,
                    memory: (0..MESSAGES).map(|at| filled(lengths[at], salt(at))).collect(),
                    rooms: lengths.iter().map(|length| empty(*length)).collect(),
                    lengths,
                    sends: Vec::new(),
                    receives: Vec::new(),
                    received: 0,
                });
            }
        }
        flows
    }

    fn step(&mut self, flow: &mut Flow) {
        let world = &mut self.world;
        if flow.sent < MESSAGES && self.dice.below(3) == 0 {
            let memory = &flow.memory[flow.sent];
            let sent = match self.dice.below(6) {
                0 => world.send_as(SendMode::Synchronous, flow.from, flow.to as u32, 1, memory),
                1 => world.send_as(SendMode::Delivered, flow.from, flow.to as u32, 1, memory),
                _ => world.send(flow.from, flow.to as u32, 1, memory),
            };
            flow.sends.push(sent);
            flow.sent += 1;
        }
        if flow.posted < MESSAGES && flow.posted < flow.received + 6 && self.dice.below(3) == 0 {
            let from = Rank(flow.from as u32);
            let request = world.recv(flow.to, from, 1, &flow.rooms[flow.posted]);
            flow.receives.push(request);
            flow.posted += 1;
        }
        let salt = |at: usize| (flow.from * 100 + flow.to) as u64 * 1000 + at as u64;
        while let Some(&request) = flow.receives.get(flow.received) {
            if !world.pmls[flow.to].is_done(request) {
                break;
            }
            let at = flow.received;
            let status = world.pmls[flow.to].test(request).unwrap().unwrap();
            assert_eq!(status.length as usize, flow.lengths[at], "seed {}", self.seed);
            assert!(
                bytes(&flow.rooms[at]) == pattern(flow.lengths[at], salt(at)),
                "seed {}: message {at} of {} bytes from {} to {}",
                self.seed,
                flow.lengths[at],
                flow.from,
                flow.to
            );
            flow.received += 1;
        }
        let pml = &mut world.pmls[flow.from];
        flow.sends.retain(|sent| match sent {
            Sent::Done => false,
            Sent::Pending(id) => match pml.test(*id) {
                None => true,
                Some(ended) => {
                    ended.unwrap();
                    false
                }
            },
        });
    }

    fn run(mut self) -> Counts {
        let mut flows = self.flows();
        let end = self.world.net.now() + Duration::from_secs(120);
        while flows
            .iter()
            .any(|flow| flow.received < MESSAGES || !flow.sends.is_empty())
        {
            if self.dice.below(50) == 0 {
                self.weather();
            }
            if self.dice.below(150) == 0 {
                // Long enough for paths to return.
                (0..1500).for_each(|_| self.advance(Duration::from_micros(400)));
            }
            flows.iter_mut().for_each(|flow| self.step(flow));
            let stride = [1, 1, 10, 100, 2000][self.dice.below(5) as usize];
            self.advance(Duration::from_micros(stride));
            if self.world.net.now() > end {
                self.tell(&flows);
            }
        }
        for mended in std::mem::take(&mut self.broken) {
            self.world.net.change(mended);
        }
        self.world.leap(Duration::from_millis(200));
        let mut counts = Counts::default();
        for rank in 0..self.ranks as usize {
            let pml = &mut self.world.pmls[rank];
            assert!(
                pml.probe(Source::Any, 0, 0, u64::MAX).is_none(),
                "seed {}",
                self.seed
            );
            assert_eq!(pml.live_requests(), 0, "seed {}", self.seed);
            counts.down += pml.counters().paths_down;
            counts.back += pml.counters().paths_returned;
            counts.restarts += pml.counters().restarts;
            counts.resent += pml.counters().resent;
        }
        counts
    }

    fn advance(&mut self, by: Duration) {
        let now = self.world.net.now() + by;
        self.world.net.advance_to(now);
        for pml in &mut self.world.pmls {
            pml.progress(now);
        }
    }

    fn tell(&self, flows: &[Flow]) -> ! {
        let mut text = format!("seed {}: it never ended\n", self.seed);
        for flow in flows {
            let sends = flow.sends.iter().filter_map(|sent| match sent {
                Sent::Pending(id) => self.world.pmls[flow.from].explain(*id),
                Sent::Done => None,
            });
            let waiting = flow.receives[flow.received..]
                .iter()
                .filter_map(|id| self.world.pmls[flow.to].explain(*id));
            for one in sends.chain(waiting) {
                text.push_str(&format!("{one}\n"));
            }
        }
        for pml in &self.world.pmls {
            text.push_str(&format!("{:?}\n", pml.counters()));
            for rank in 0..self.ranks {
                let peer = pml.peer(Rank(rank)).unwrap();
                let states = peer.paths.iter().map(|path| path.state.as_str());
                text.push_str(&format!("  {rank}: {:?}\n", states.collect::<Vec<_>>()));
            }
        }
        panic!("{text}");
    }
}

#[derive(Default, Debug)]
struct Counts {
    down: u64,
    back: u64,
    restarts: u64,
    resent: u64,
}

/// A number of the environment.
#[allow(clippy::disallowed_methods)] // the PML takes none, its long tests do
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn every_message_arrives_once_whatever_the_weather() {
    let count = asked("DOORBELL_STORMS", 40);
    let first = asked("DOORBELL_STORM", 0);
    let mut all = Counts::default();
    for seed in first..first + count {
        let counts = Storm::new(seed).run();
        all.down += counts.down;
        all.back += counts.back;
        all.restarts += counts.restarts;
        all.resent += counts.resent;
    }
    println!("{count} storms: {all:?}");
    assert!(count < 40 || (all.down > 100 && all.back > 10 && all.restarts > 10 && all.resent > 100));
}

//! A job of processes that send over several planes of a simulated network, and check what they receive.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, Inbound, OpError, OpId, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Faults, Job, Plane, Random, SimConfig, SimNet, SimRail, Step};

use crate::link::{First, Link, LinkConfig, PeerId, Upper};

/// A first word of the layer above.
pub(crate) fn first(kind: u8, short: u16) -> First {
    First {
        kind,
        flags: 0x5a,
        short: short.into(),
        seq: 0.into(),
    }
}

/// A head of 16 bytes: the first word, and a number.
pub(crate) fn head(kind: u8, number: u64) -> [u8; 16] {
    let mut head = [0; 16];
    let word: [u8; 8] = zerocopy::transmute!(first(kind, number as u16));
    head[..8].copy_from_slice(&word);
    head[8..].copy_from_slice(&number.to_le_bytes());
    head
}

/// How long the body of message `number` is: mostly short, sometimes a fragment.
pub(crate) fn length(number: u64, long: usize) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    match mixed % 8 {
        0 if long > 0 => long / 2 + mixed as usize % (long / 2),
        1 => mixed as usize % 2000,
        2 => 0,
        _ => mixed as usize % 64,
    }
}

/// What one process has received: per peer, how many messages came, each of which has to be the next, and
/// whole.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) from: Vec<u64>,
    pub(crate) long: usize,
    pub(crate) ended: Vec<(OpId, Result<u64, OpError>)>,
}

impl Upper for Heard {
    fn message(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        if self.from.len() <= peer.index() {
            self.from.resize(peer.index() + 1, 0);
        }
        let expected = self.from[peer.index()];
        let number = u64::from_le_bytes(inbound.read(8).expect("a head of 16 bytes"));
        assert_eq!(number, expected, "from {peer:?}");
        assert_eq!(
            (first.kind, first.flags, first.short.get()),
            (1, 0x5a, number as u16)
        );
        let length = length(number, self.long);
        assert_eq!(inbound.len(), 16 + length, "message {number}");
        let mut body = vec![0; length];
        inbound.copy_to(16, &mut body);
        assert!(body.iter().all(|byte| *byte == number as u8), "message {number}");
        self.from[peer.index()] += 1;
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push((op, outcome));
    }
}

/// One process of the job.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) link: Link<SimRail>,
    pub(crate) heard: Heard,
    /// Per peer of the link: how many messages were accepted.
    pub(crate) sent: Vec<u64>,
    pub(crate) lost: Vec<(PeerId, DownReason)>,
    random: Random,
    next: Time,
}

/// How a job talks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: usize,
    /// Messages of each process to each other one, and to itself.
    pub(crate) messages: u64,
    /// The longest body.
    pub(crate) long: usize,
    /// The longest pause between two bursts.
    pub(crate) pause: Duration,
    /// One message out of this many is urgent; zero: none.
    pub(crate) urgent: u64,
    /// The number of the first message.
    pub(crate) start: u32,
    pub(crate) config: LinkConfig,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            ranks: 2,
            messages: 1000,
            long: 12_000,
            pause: Duration::from_micros(200),
            urgent: 5,
            start: 0,
            config: LinkConfig::default(),
        }
    }
}

/// A network that delays and reorders.
pub(crate) fn rough() -> SimConfig {
    SimConfig {
        faults: Faults::ROUGH,
        ..SimConfig::default()
    }
}

/// Planes of a network, the first one included.
pub(crate) fn planes(net: &SimNet, count: usize) -> Vec<Plane> {
    let more = (1..count).map(|at| net.add_plane(&format!("p{at}")));
    std::iter::once(Plane::FIRST).chain(more).collect()
}

/// A job in which all ranks are connected with each other over every plane.
pub(crate) fn job(net: &SimNet, planes: &[Plane], plan: &Plan) -> Job<Process> {
    let mut all: Vec<Process> = (0..plan.ranks)
        .map(|rank| {
            let mut link = Link::new(plan.config);
            for plane in planes {
                link.add_rail(net.attach_rank(rank as u32, *plane))
                    .expect("there is room");
            }
            (1..plan.ranks).for_each(|_| _ = link.add_peer());
            Process {
                link,
                heard: Heard {
                    long: plan.long,
                    ..Heard::default()
                },
                sent: vec![0; plan.ranks],
                lost: Vec::new(),
                random: Random::for_part(net.seed(), &[rank as u64]),
                next: Time::ZERO,
            }
        })
        .collect();
    let address = |process: &Process| -> Vec<_> {
        let rails = process.link.rails();
        rails
            .map(|(at, rail)| (at, rail.address(), rail.incarnation()))
            .collect()
    };
    let addresses: Vec<_> = all.iter().map(address).collect();
    for (rank, process) in all.iter_mut().enumerate() {
        for (other, theirs) in addresses.iter().enumerate().filter(|(other, _)| *other != rank) {
            let peer = peer_of(rank, other);
            for (at, address, life) in theirs {
                process
                    .link
                    .connect(peer, *at, address, *life)
                    .expect("it is there");
            }
            process.link.start_numbers_at(peer, plan.start);
        }
    }
    let mut all = all.into_iter();
    Job::new(net, plan.ranks, |_| all.next().expect("one for each"))
}

/// As who `rank` knows `other`.
pub(crate) fn peer_of(rank: usize, other: usize) -> PeerId {
    match other.cmp(&rank) {
        std::cmp::Ordering::Equal => PeerId::SELF,
        std::cmp::Ordering::Less => PeerId(other as u32 + 1),
        std::cmp::Ordering::Greater => PeerId(other as u32),
    }
}

impl Process {
    /// A pass: polls, keeps house, and sends a burst when its time has come.
    pub(crate) fn step(&mut self, now: Time, plan: &Plan) -> Step {
        let budget = 1 + self.random.below(8) as usize;
        let mut work = self.link.poll(budget, &mut self.heard);
        work += self.link.progress(now);
        while let Some(lost) = self.link.lost() {
            self.lost.push(lost);
            work += 1;
        }
        if now >= self.next {
            work += self.burst(plan);
            self.next = now + Duration::from_nanos(self.random.below(plan.pause.as_nanos() as u64));
        }
        self.link.flush();
        if work > 0 {
            return Step::Worked;
        }
        if (0..plan.ranks).all(|peer| self.is_done(PeerId(peer as u32), plan))
            && !self.link.must_poll()
            && !self.link.waits()
        {
            return Step::Done;
        }
        let sends = (0..plan.ranks).any(|peer| self.wants(PeerId(peer as u32), plan));
        let own = self
            .link
            .next_deadline()
            .into_iter()
            .chain(sends.then_some(self.next));
        // What must be polled is polled again soon.
        let soon = self.link.must_poll().then_some(now + Duration::from_micros(5));
        Step::Idle(own.chain(soon).min())
    }

    fn is_lost(&self, peer: PeerId) -> bool {
        self.lost.iter().any(|(lost, _)| *lost == peer)
    }

    fn wants(&self, peer: PeerId, plan: &Plan) -> bool {
        self.sent[peer.index()] < plan.messages && !self.is_lost(peer)
    }

    fn is_done(&self, peer: PeerId, plan: &Plan) -> bool {
        let heard = self.heard.from.get(peer.index()).copied().unwrap_or(0);
        self.is_lost(peer) || self.sent[peer.index()] == plan.messages && heard == plan.messages
    }

    fn burst(&mut self, plan: &Plan) -> usize {
        let mut sent = 0;
        for _ in 0..self.random.below(12) {
            let peer = PeerId(self.random.below(plan.ranks as u64) as u32);
            if self.wants(peer, plan) {
                sent += usize::from(self.send(peer, plan));
            }
        }
        sent
    }

    pub(crate) fn send(&mut self, peer: PeerId, plan: &Plan) -> bool {
        let number = self.sent[peer.index()];
        let body = vec![number as u8; length(number, plan.long)];
        let urgent = plan.urgent > 0 && number.is_multiple_of(plan.urgent);
        let body = if body.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(&body)
        };
        match self.link.send(peer, &mut head(1, number), body, urgent) {
            Ok(()) => {
                self.sent[peer.index()] += 1;
                true
            }
            Err(Refused::Full) => false,
            Err(Refused::PeerDown) => {
                while let Some(lost) = self.link.lost() {
                    self.lost.push(lost);
                }
                assert!(self.is_lost(peer), "refused for good, and not lost");
                false
            }
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

/// Runs a job to its end; a failing seed is printed with what the network did.
pub(crate) fn run(net: &SimNet, job: &mut Job<Process>, plan: &Plan) {
    let rounds = 4_000_000;
    let explain = |_: usize, process: &Process| {
        format!(
            "sent {:?}, received {:?}, lost {:?}, {:?}",
            process.sent,
            process.heard.from,
            process.lost,
            process.link.explain()
        )
    };
    let outcome = job.run_explained(rounds, |_, process, now| process.step(now, plan), explain);
    if let Err(stuck) = outcome {
        let all: Vec<_> = (0..plan.ranks)
            .map(|rank| explain(rank, &job.ranks()[rank]))
            .collect();
        panic!("{stuck}\n{}\n{}", net.trace_text(), all.join("\n"));
    }
}

//! Ends of a job over a simulated network, and the loop that drives them.
#![allow(dead_code, unreachable_pub)] // each test uses what it needs

use std::collections::BTreeMap;
use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, MsgId, OpError, OpId, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Faults, Plane, SimConfig, SimDatagram, SimNet};

/// Everything that arrived at one end.
#[derive(Default)]
pub struct Sink {
    /// Messages, with their peers.
    pub messages: Vec<(PeerIndex, Vec<u8>)>,
    /// Or, when they are only counted: messages and bytes per peer.
    pub counted: BTreeMap<u32, (u64, u64)>,
    pub count_only: bool,
    pub ended: Vec<(OpId, Result<u64, OpError>)>,
}

impl Arrivals for Sink {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let count = self.counted.entry(peer.0).or_default();
        *count = (count.0 + 1, count.1 + inbound.len() as u64);
        if !self.count_only {
            let mut bytes = vec![0; inbound.len()];
            inbound.copy_to(0, &mut bytes);
            self.messages.push((peer, bytes));
        }
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push((op, outcome));
    }
}

impl Sink {
    /// Messages of all peers.
    pub fn total(&self) -> u64 {
        self.counted.values().map(|(messages, _)| messages).sum()
    }
}

/// One end of the network.
pub struct End {
    pub btl: Btl<SimDatagram>,
    pub sink: Sink,
    pub events: Vec<RailEvent>,
    /// The last life in which each peer was reported to be up.
    pub lives: BTreeMap<PeerIndex, Life>,
    pub polls: bool,
}

impl End {
    pub fn new(driver: SimDatagram, config: &BtlConfig, key: u8) -> Self {
        let life = driver.incarnation();
        let mut btl = Btl::new(driver, config.clone(), life).expect("the settings are right");
        btl.set_key(JobKey::from_bytes([key; 32]));
        Self {
            btl,
            sink: Sink::default(),
            events: Vec::new(),
            lives: BTreeMap::new(),
            polls: true,
        }
    }

    /// Sends, if there is room.
    pub fn try_send(&mut self, to: PeerIndex, bytes: &[u8]) -> Option<MsgId> {
        match self.btl.send(to, &[], Body::Bytes(bytes)) {
            Ok(id) => Some(id),
            Err(Refused::Full) => None,
            Err(refused) => panic!("{} bytes were refused: {refused:?}", bytes.len()),
        }
    }

    pub fn flush(&mut self) {
        self.btl.flush();
    }

    /// Each life of a peer that is reported is later than those before it.
    fn hear(&mut self, event: &RailEvent) {
        if let (Scope::Peer(peer), EventKind::PeerUp) = (event.scope, event.kind) {
            let before = self.lives.insert(peer, event.life);
            let grows = before.is_none_or(|before| before.is_before(event.life));
            assert!(grows, "{event:?} after {before:?}");
        }
    }

    pub fn is_down(&self, peer: PeerIndex) -> Option<EventKind> {
        let down = |event: &&RailEvent| {
            matches!(event.kind, EventKind::PeerDown(_)) && event.scope == Scope::Peer(peer)
        };
        self.events.iter().find(down).map(|event| event.kind)
    }
}

/// All ends. Peer `j` of end `i` is end `j`, for all but itself: numbers are those of [`World::to`].
pub struct World {
    pub net: SimNet,
    pub ends: Vec<End>,
    pub peers: Vec<Vec<PeerIndex>>,
}

/// A link like that of a rack: 10 Gb/s, 10 µs one way, queues of a switch.
pub const RACK: Faults = Faults {
    delay: Duration::from_micros(10),
    bandwidth: Some(1_250_000_000),
    queue: 1 << 20,
    ..Faults::NONE
};

/// Rings like those of a NIC.
pub fn rings(faults: Faults) -> SimConfig {
    SimConfig {
        faults,
        priority_ring: 1024,
        data_ring: 4096,
        trace_events: 64,
        ..SimConfig::default()
    }
}

impl World {
    pub fn new(seed: u64, n: usize, sim: SimConfig, config: &BtlConfig) -> Self {
        let net = SimNet::new(seed, sim);
        let ends = (0..n)
            .map(|_| End::new(net.attach_datagram(), config, 1))
            .collect();
        let mut world = Self {
            net,
            ends,
            peers: Vec::new(),
        };
        for i in 0..n {
            let peers = (0..n).map(|j| world.open(i, j)).collect();
            world.peers.push(peers);
        }
        world
    }

    /// Opens end `j` at end `i`.
    pub fn open(&mut self, i: usize, j: usize) -> PeerIndex {
        let (address, life) = (self.ends[j].btl.address(), self.ends[j].btl.incarnation());
        self.ends[i].btl.open(&address, life).expect("it is there")
    }

    /// Replaces an end by its next life, which no end has opened yet.
    pub fn restart(&mut self, i: usize, config: &BtlConfig) {
        self.net.restart(i as u32);
        let driver = self.net.attach_datagram_rank(i as u32, Plane::FIRST);
        self.ends[i] = End::new(driver, config, 1);
    }

    /// How `i` numbers `j`.
    pub fn to(&self, i: usize, j: usize) -> PeerIndex {
        self.peers[i][j]
    }

    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// Moves the clock to what happens next, at most `most`, and lets every end do what it can.
    pub fn step_at_most(&mut self, most: Duration) {
        let deadlines = self.ends.iter().filter_map(|end| end.btl.next_deadline());
        let until = self.net.now() + most;
        let next = deadlines.min().map_or(until, |next| next.min(until));
        self.net.advance_to(next);
        self.turn();
    }

    pub fn step(&mut self) {
        self.step_at_most(Duration::from_millis(1));
    }

    /// Every end does what it can now.
    pub fn turn(&mut self) {
        let now = self.net.now();
        for end in &mut self.ends {
            end.btl.progress(now);
            while let Some(event) = end.btl.event() {
                end.hear(&event);
                end.events.push(event);
            }
            if end.polls {
                while end.btl.poll(64, &mut end.sink) > 0 {}
            }
        }
    }

    /// Steps until `done`.
    pub fn until(&mut self, what: &str, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let by = self.now() + limit;
        while !done(self) {
            assert!(self.now() < by, "not within {limit:?}: {what}\n{}", self.report());
            self.step();
        }
    }

    /// For a failing test: the seed, and what every end counted.
    pub fn report(&self) -> String {
        let mut text = format!("seed {}, at {}\n", self.net.seed(), self.now());
        for (i, end) in self.ends.iter().enumerate() {
            let counts = end.btl.counters().named().filter(|(_, n)| *n > 0);
            text += &format!("end {i}: {:?}\n", counts.collect::<Vec<_>>());
        }
        let stats = self.net.total();
        text + &format!("{:?}", stats.named().filter(|(_, n)| *n > 0).collect::<Vec<_>>())
    }
}

//! Random joins and leaves with traffic: what arrives is what was sent in that life of the peer, in order,
//! once, with its endpoint and its data.

use std::collections::BTreeMap;

use doorbell_pml::{
    InUse, MessageId, MultiArgs, Protocol, Rank, RequestId, SendArgs, SendMode, Sent, Source, Status, Target,
};
use doorbell_sim::Change;
use doorbell_testing::Random;
use proptest::prelude::*;

use crate::lobby::Lobby;
use crate::world::{Memory, empty, pattern, recv_args, send_args, sim};

const SOURCES: u16 = 0x00ff;
/// The endpoint that all messages are for, and their context without that of the sender.
const CONTEXT: u16 = 5 << 8;
const LONGEST: usize = 40_000;
/// Bytes that name a message: its sender's life at the sender, its number, its endpoint.
const NAME: usize = 24;
/// The tag of messages for multi-receives.
const MULTI: u64 = 2;

/// A life of a peer at a member: at the sender, what its messages are numbered in; at the receiver, what they
/// arrive as.
type Life = (usize, usize, u64);

#[derive(Clone, Copy, Debug)]
struct Expected {
    length: usize,
    data: Option<u64>,
}

struct Receive {
    request: RequestId,
    into: Memory,
    /// Its place in the order of receives.
    place: u64,
}

/// The state of a run, and what is expected of it.
struct Run {
    dice: Random,
    lobby: Lobby,
    /// What was sent in each life of a receiver at its sender.
    sent: BTreeMap<Life, Vec<Expected>>,
    /// What arrived of each: place of the receive, number, endpoint.
    got: BTreeMap<Life, Vec<(u64, u64, u8)>>,
    /// The life at the sender that each life at a receiver belongs to.
    pairs: BTreeMap<Life, Life>,
    sends: Vec<(usize, RequestId, Memory)>,
    receives: Vec<Vec<Receive>>,
    multis: Vec<Option<(RequestId, Memory)>>,
    places: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut dice = Random::new(seed);
        let members = 2 + dice.below(3) as usize;
        let mut config = sim(dice.below(2) == 0, dice.below(2) == 0, true);
        config.faults.reorder = [0.0, 0.3][dice.below(2) as usize];
        config.faults.reorder_window = std::time::Duration::from_micros(20);
        config.queue_depth = 4 + dice.below(40) as usize;
        let planes = 1 + dice.below(2) as usize;
        let protocol = [Protocol::Auto, Protocol::Put, Protocol::Fragments][dice.below(3) as usize];
        let checksum = dice.below(4) == 0;
        let lobby = Lobby::new(members, planes, seed, config, move |pml| {
            pml.sources = SOURCES;
            pml.protocol = protocol;
            pml.checksum = checksum;
            pml.window = 16 << 10;
            pml.hard_window = 32 << 10;
        });
        Self {
            dice,
            lobby,
            sent: BTreeMap::new(),
            got: BTreeMap::new(),
            pairs: BTreeMap::new(),
            sends: Vec::new(),
            receives: (0..members).map(|_| Vec::new()).collect(),
            multis: (0..members).map(|_| None).collect(),
            places: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }

    fn member(&mut self) -> usize {
        self.below(self.receives.len() as u64) as usize
    }

    /// The number of a member at another one, and its life there.
    fn rank(&mut self, at: usize, other: usize) -> (Rank, Life) {
        if at == other {
            return (Rank(0), (at, at, 0));
        }
        let member = &mut self.lobby.members[at];
        let rank = member.rank_of(other);
        (rank, (at, other, member.name(rank).1))
    }

    fn send(&mut self) {
        let (from, to) = (self.member(), self.member());
        let (rank, life) = self.rank(from, to);
        let data = match self.below(4) {
            0 => None,
            1 => Some(u64::MAX),
            _ => Some(self.below(3)),
        };
        let length = NAME
            + match self.below(10) {
                0 => 0,
                1..=5 => self.below(100) as usize,
                6..=8 => self.below(5000) as usize,
                _ => self.below(LONGEST as u64) as usize,
            };
        let endpoint = [0, 1, 127][self.below(3) as usize];
        let mode = [SendMode::Standard, SendMode::Standard, SendMode::Synchronous][self.below(3) as usize];
        let tag = [1, 1, MULTI][self.below(3) as usize];
        let number = self.sent.get(&life).map_or(0, Vec::len) as u64;
        let memory = empty(length);
        memory.write(0, &pattern(length, number));
        memory.write(0, &life.2.to_le_bytes());
        memory.write(8, &number.to_le_bytes());
        memory.write(16, &u64::from(endpoint).to_le_bytes());
        let pml = &mut self.lobby.members[from].pml;
        let args = SendArgs {
            mode,
            context: CONTEXT | endpoint,
            ..send_args(rank.0, tag, doorbell_pml::Payload::Loan(memory.loan()))
        };
        // A peer that was just lost is forgotten by the next pass.
        if pml.set_immediate(rank, data).is_err() {
            return;
        }
        match pml.send(args) {
            Ok(Sent::Done) => {}
            Ok(Sent::Pending(id)) => self.sends.push((from, id, memory)),
            Err(_) => return,
        }
        self.sent.entry(life).or_default().push(Expected { length, data });
    }

    fn source(&mut self, at: usize) -> Source {
        let other = self.member();
        match self.below(4) {
            0 => Source::Any,
            1 if other == at || self.lobby.members[at].knows(other) => {
                let endpoint = [0, 1, 127][self.below(3) as usize];
                Source::Endpoint(self.rank(at, other).0, endpoint)
            }
            _ => Source::Any,
        }
    }

    fn receive(&mut self, at: usize, from: Source) {
        let into = empty(LONGEST + NAME);
        let args = doorbell_pml::RecvArgs {
            context: CONTEXT,
            ..recv_args(from, 1, Target::Loan(into.room()))
        };
        let request = self.lobby.members[at].pml.recv(args).unwrap();
        self.places += 1;
        let place = self.places;
        self.receives[at].push(Receive { request, into, place });
    }

    /// Takes the next message by a probe and a claim.
    fn claim(&mut self, at: usize) {
        let from = self.source(at);
        let pml = &mut self.lobby.members[at].pml;
        let Some(seen) = pml.probe(from, CONTEXT, 1, 0) else {
            return;
        };
        let claimed = pml.claim(from, CONTEXT, 1, 0).unwrap();
        assert_eq!(claimed.envelope, seen);
        let into = empty(LONGEST + NAME);
        self.places += 1;
        let place = self.places;
        let request = self.receive_claimed(at, claimed.message, &into);
        self.receives[at].push(Receive { request, into, place });
    }

    fn receive_claimed(&mut self, at: usize, message: MessageId, into: &Memory) -> RequestId {
        let pml = &mut self.lobby.members[at].pml;
        pml.recv_claimed(message, Target::Loan(into.room()), false)
            .unwrap()
    }

    fn post_multi(&mut self, at: usize) {
        let buffer = empty(2 * LONGEST);
        let args = MultiArgs {
            from: Source::Any,
            context: CONTEXT,
            tag: MULTI,
            ignore: 0,
            target: Target::Loan(buffer.room()),
            min_free: LONGEST as u64 + NAME as u64,
            notify: false,
        };
        let request = self.lobby.members[at].pml.recv_multi(args).unwrap();
        self.multis[at] = Some((request, buffer));
    }

    /// A message has arrived at a member.
    fn arrived(&mut self, at: usize, status: Status, bytes: &[u8], place: Option<u64>) {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (made, number, endpoint) = (word(0), word(8), word(16));
        let here: Life = match status.source {
            Rank(0) => (at, at, 0),
            rank => {
                let (from, made) = self.lobby.members[at].name(rank);
                (at, from, made)
            }
        };
        let there: Life = (here.1, at, made);
        assert_eq!(
            *self.pairs.entry(here).or_insert(there),
            there,
            "two lives as one"
        );
        let expected = self.sent[&there][number as usize];
        assert_eq!(
            (status.length, bytes.len()),
            (expected.length as u64, expected.length)
        );
        assert_eq!(status.data, expected.data, "{there:?}, message {number}");
        assert_eq!(u64::from(status.endpoint), endpoint);
        let whole = pattern(expected.length, number);
        assert!(bytes[NAME..] == whole[NAME..], "the bytes of message {number}");
        self.got
            .entry(there)
            .or_default()
            .push((place.unwrap_or(0), number, status.endpoint));
    }

    fn collect(&mut self) {
        for at in 0..self.receives.len() {
            let mut receives = std::mem::take(&mut self.receives[at]);
            receives.retain(|receive| {
                let Some(ended) = self.lobby.members[at].pml.test(receive.request) else {
                    return true;
                };
                // Those that name a peer end with it.
                if let Ok(status) = ended {
                    let mut bytes = vec![0; status.length as usize];
                    receive.into.read(0, &mut bytes);
                    self.arrived(at, status, &bytes, Some(receive.place));
                }
                false
            });
            self.receives[at] = receives;
            while let Some(delivery) = self.lobby.members[at].pml.next_delivery() {
                let (request, buffer) = self.multis[at].as_ref().unwrap();
                assert_eq!(delivery.request, *request);
                if delivery.intact {
                    let mut bytes = vec![0; delivery.delivered as usize];
                    buffer.read(delivery.offset as usize, &mut bytes);
                    self.arrived(at, delivery.status, &bytes, None);
                }
            }
            let done = match &self.multis[at] {
                Some((request, _)) => self.lobby.members[at].pml.test(*request).is_some(),
                None => true,
            };
            if done {
                self.post_multi(at);
            }
        }
        let lobby = &mut self.lobby;
        self.sends
            .retain(|(at, id, _)| lobby.members[*at].pml.test(*id).is_none());
    }

    fn step(&mut self) {
        let at = self.member();
        match self.below(40) {
            0..=14 => self.send(),
            15..=20 => {
                let from = self.source(at);
                self.receive(at, from);
            }
            21 | 22 => self.claim(at),
            23 => {
                let other = self.member();
                self.lobby.members[at].forget(other);
            }
            24 if self.lobby.planes.len() > 1 => {
                let (plane, rank) = (self.lobby.planes[1], at as u32);
                let change = [Change::LinkDown(plane, rank), Change::LinkUp(plane, rank)];
                self.lobby.net.change(change[self.dice.below(2) as usize]);
            }
            _ => {
                let passes = self.below(6) as usize;
                self.lobby.passes(passes);
                self.collect();
            }
        }
    }

    /// All that was sent in lives that last is received.
    fn finish(&mut self) {
        if let Some(plane) = self.lobby.planes.get(1).copied() {
            for rank in 0..self.receives.len() as u32 {
                self.lobby.net.change(Change::LinkUp(plane, rank));
            }
        }
        for pass in 0..60_000 {
            self.lobby.pass();
            if pass % 8 == 0 {
                self.collect();
            }
            for at in 0..self.receives.len() {
                if self.lobby.members[at]
                    .pml
                    .probe(Source::Any, CONTEXT, 1, 0)
                    .is_some()
                {
                    self.receive(at, Source::Any);
                }
            }
            if pass % 64 == 0 && self.is_complete() {
                return;
            }
        }
        panic!("not all has arrived: {}", self.missing());
    }

    /// Whether a life lasts at its sender.
    fn lasts(&self, life: &Life) -> bool {
        let (at, other, made) = *life;
        let member = &self.lobby.members[at];
        at == other
            || member.knows(other) && {
                let ranks = (1..member.pml.peers()).map(Rank);
                let mut live = ranks.filter(|rank| member.member_of(*rank) == Some(other));
                live.any(|rank| member.name(rank).1 == made)
            }
    }

    fn is_complete(&self) -> bool {
        self.sends.is_empty() && self.missing().is_empty()
    }

    fn missing(&self) -> String {
        let lives = self.sent.iter().filter(|(life, _)| self.lasts(life));
        let count = |life| self.got.get(life).map_or(0, Vec::len);
        lives
            .filter(|(life, sent)| count(*life) < sent.len())
            .map(|(life, sent)| format!("{life:?}: {} of {}; ", count(life), sent.len()))
            .collect()
    }

    /// Judges the run. Returns how many lives of peers there were, and how many messages arrived.
    fn judge(mut self) -> [usize; 2] {
        for (life, got) in &mut self.got {
            let mut numbers: Vec<u64> = got.iter().map(|(_, number, _)| *number).collect();
            numbers.sort_unstable();
            let count = numbers.len();
            numbers.dedup();
            assert_eq!(numbers.len(), count, "{life:?}: one came twice");
            for endpoint in [0, 1, 127] {
                let of_endpoint = |(place, _, from): &&(u64, u64, u8)| *place > 0 && *from == endpoint;
                let mut those: Vec<_> = got.iter().filter(of_endpoint).collect();
                those.sort_unstable();
                let in_order = those.windows(2).all(|pair| pair[0].1 < pair[1].1);
                assert!(in_order, "{life:?}: {those:?}");
            }
        }
        for at in 0..self.receives.len() {
            let pml = &mut self.lobby.members[at].pml;
            for receive in self.receives[at].drain(..) {
                pml.cancel(receive.request);
                let _ = pml.test(receive.request);
            }
            if let Some((multi, _)) = self.multis[at].take() {
                pml.cancel(multi);
                let _ = pml.test(multi);
            }
        }
        self.lobby.passes(2000);
        for member in &self.lobby.members {
            assert_eq!(
                member.pml.in_use(),
                InUse::default(),
                "{:?}",
                member.pml.live_lines()
            );
            let all = self.lobby.members.len() as u32;
            // A number of each other member, and as many that untested requests held.
            assert!(member.pml.peers() < 8 * all, "{} numbers", member.pml.peers());
        }
        [self.sent.len(), self.got.values().map(Vec::len).sum()]
    }
}

fn run(seed: u64) -> [usize; 2] {
    let mut run = Run::new(seed);
    for _ in 0..1500 {
        run.step();
    }
    run.finish();
    run.judge()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn joins_and_leaves_at_random(seed in any::<u64>()) {
        run(seed);
    }
}

#[test]
fn joins_and_leaves_of_known_seeds() {
    let [lives, messages] = (0..12).map(run).fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    assert!(
        lives > 500 && messages > 4000,
        "{lives} lives, {messages} messages: too few"
    );
}

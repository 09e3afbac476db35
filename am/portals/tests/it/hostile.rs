//! A peer that sends whatever it likes over its rail: nothing panics, nothing outside of what was given away
//! is touched, what is not understood is counted, and others are served all the while.

use std::time::Duration;

use doorbell_am_portals::{Config, Drop, Node};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Landing, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::ni::{
    AckReq, AtomicKind, Datatype, Entry, EntryOptions, EqGet, EqHandle, Event, EventKind, FetchAtomic, Get,
    Kind, List, Md, MdHandle, MdOptions, Memory, Ni, NiError, NiFail, Piece, Process, PtOptions, Put, Search,
    Target,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};
use doorbell_testing::Random;

const KIND: Kind = Kind::MATCHING_LOGICAL;
/// Bytes of the victim; operations may touch neither the first nor the last kibibyte.
const MEMORY: usize = 40 << 10;
const EDGE: usize = 1 << 10;
/// Table entries: for the honest peer, for all peers, with flow control, and one without a list.
const HONEST: u32 = 0;
const OPEN: u32 = 1;
const CAREFUL: u32 = 2;
const EMPTY: u32 = 3;

/// Messages that the attacker has received, kept to answer with them.
#[derive(Default)]
struct Heard(Vec<Vec<u8>>);

impl Arrivals for Heard {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len().min(64)];
        inbound.copy_to(0, &mut bytes);
        self.0.push(bytes);
        if self.0.len() > 32 {
            self.0.remove(0);
        }
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// A victim, an honest peer, and the attacker: a bare rail.
struct Scene {
    net: SimNet,
    victim: Node<SimRail>,
    honest: Node<SimRail>,
    attacker: SimRail,
    to_victim: PeerIndex,
    heard: Heard,
    /// The number of the attacker's next message.
    seq: u32,
    memory: Region,
    eq: EqHandle,
    md: MdHandle,
    honest_eq: EqHandle,
    honest_md: MdHandle,
    pings: u64,
}

fn name(rank: u32) -> Process {
    Process::physical(rank, 1)
}

fn node(rank: u32, seed: u64) -> Node<SimRail> {
    let mut config = Config::new(name(rank));
    (config.uid, config.seed) = (1, seed);
    config.limits.max_unexpected_headers = 32;
    config.patience = Duration::from_millis(50);
    config.backlog = 1 << 20;
    Node::new(config)
}

impl Scene {
    fn new(seed: u64) -> Self {
        let net = SimNet::new(
            seed,
            SimConfig {
                trace_events: 0,
                ..SimConfig::default()
            },
        );
        let rails = [0, 1, 2].map(|rank| net.attach_rank(rank, Plane::FIRST));
        let at = rails.each_ref().map(|rail| (rail.address(), rail.incarnation()));
        let [victims, honests, mut attacker] = rails;
        let (mut victim, mut honest) = (node(0, seed), node(1, seed));
        let rail = victim.add_rail(victims).expect("a rail");
        victim.connect(name(1), rail, &at[1].0, at[1].1).expect("a peer");
        victim.connect(name(2), rail, &at[2].0, at[2].1).expect("a peer");
        let rail = honest.add_rail(honests).expect("a rail");
        honest.connect(name(0), rail, &at[0].0, at[0].1).expect("a peer");
        let to_victim = attacker.open(&at[0].0, at[0].1).expect("a peer");
        for node in [&mut victim, &mut honest] {
            node.ni_init(KIND, None).expect("an interface");
            node.set_map(KIND, &[name(0), name(1), name(2)]).expect("a map");
        }
        let memory = Region::new(MEMORY).expect("memory");
        memory.write(0, &[0x55; EDGE]);
        memory.write(MEMORY - EDGE, &[0x55; EDGE]);
        let middle = Memory::One(Landing::Region(
            memory.slice(EDGE, MEMORY - 2 * EDGE).expect("inside"),
        ));
        let mut ni = victim.ni(KIND);
        let eq = ni.eq_alloc(64).expect("a queue");
        // A full queue with flow control closes all of its tables, so the honest peer's has none of it.
        for (index, options, eq) in [
            (HONEST, PtOptions::NONE, None),
            (OPEN, PtOptions::NONE, Some(eq)),
            (CAREFUL, PtOptions::FLOWCTRL, Some(eq)),
            (EMPTY, PtOptions::NONE, Some(eq)),
        ] {
            ni.pt_alloc(options, eq, Some(index)).expect("a table entry");
        }
        let everything = EntryOptions::OP_PUT | EntryOptions::OP_GET;
        let mut own = Entry::open(Memory::Empty, everything | EntryOptions::EVENT_COMM_DISABLE);
        own.match_id = Process::rank(1);
        ni.append(HONEST, own, List::Priority, 0).expect("an entry");
        let options = MdOptions::NONE;
        let md = Md {
            memory: middle,
            options,
            eq: Some(eq),
            ct: None,
        };
        let md = ni.md_bind(md).expect("a descriptor");
        let mut ni = honest.ni(KIND);
        let honest_eq = ni.eq_alloc(64).expect("a queue");
        let room = Memory::One(Landing::Region(Region::new(64).expect("memory").whole()));
        let quiet = MdOptions::EVENT_SEND_DISABLE;
        let honest_md = Md {
            memory: room,
            options: quiet,
            eq: Some(honest_eq),
            ct: None,
        };
        let honest_md = ni.md_bind(honest_md).expect("a descriptor");
        Self {
            net,
            victim,
            honest,
            attacker,
            to_victim,
            heard: Heard::default(),
            seq: 0,
            memory,
            eq,
            md,
            honest_eq,
            honest_md,
            pings: 0,
        }
    }

    /// Time goes by.
    fn turn(&mut self) {
        self.attacker.flush();
        let now = self.net.now() + Duration::from_micros(3);
        self.net.advance_to(now);
        for node in [&mut self.victim, &mut self.honest] {
            node.poll(64);
            node.progress(now);
            node.flush();
        }
        self.attacker.poll(64, &mut self.heard);
        while self.victim.ni(KIND).lost().is_some() {}
    }

    /// Sends bytes as they are; whether the rail took them.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let (head, body) = bytes.split_at(bytes.len().min(64) & !7);
        self.attacker
            .send(self.to_victim, head, Body::Bytes(body))
            .is_ok()
    }

    /// Sends a name, as an honest peer does with its first message: a copy of the victim's own, with another
    /// name.
    fn greet(&mut self) {
        let mut ni = self.victim.ni(KIND);
        let target = Target {
            process: Process::rank(2),
            pt_index: 0,
            match_bits: 0,
            remote_offset: 0,
        };
        let put = Put {
            from: Piece {
                md: self.md,
                offset: 0,
            },
            length: 0,
            ack: AckReq::None,
            target,
            user_ptr: 0,
            hdr_data: 0,
        };
        ni.put(&put).expect("there is room");
        for _ in 0..4 {
            self.turn();
        }
        let hello = self
            .heard
            .0
            .iter()
            .find(|bytes| bytes[0] == 1)
            .expect("a greeting");
        let mut hello = hello.clone();
        // The same, from node 2 of process 1.
        (hello[8], hello[12]) = (2, 1);
        hello[4..8].copy_from_slice(&self.seq.to_le_bytes());
        assert!(self.send(&hello), "there is room");
        self.seq += 1;
        self.turn();
    }

    /// Whether the honest peer is answered.
    fn ping(&mut self) {
        self.pings += 1;
        let target = Target {
            process: Process::rank(0),
            pt_index: HONEST,
            match_bits: 0,
            remote_offset: 0,
        };
        let put = Put {
            from: Piece {
                md: self.honest_md,
                offset: 0,
            },
            length: 8,
            ack: AckReq::Full,
            target,
            user_ptr: self.pings,
            hdr_data: 0,
        };
        self.honest.ni(KIND).put(&put).expect("there is room");
        for _ in 0..1000 {
            self.turn();
            let got = self.honest.ni(KIND).eq_get(self.honest_eq).expect("a queue");
            if let EqGet::Event(event) = got {
                let told = (event.kind, event.fail, event.user_ptr);
                assert_eq!(told, (EventKind::Ack, NiFail::Ok, self.pings));
                return;
            }
        }
        panic!("the honest peer is not answered: {:?}", self.victim.drops());
    }

    /// The victim goes about its business, with the attacker, too.
    fn work(&mut self, dice: &mut Random) {
        let length = dice.below(8000);
        let at = EDGE as u64 + dice.below(MEMORY as u64 - 2 * EDGE as u64 - length);
        let room = self.memory.slice(at as usize, length as usize).expect("inside");
        let memory = if length == 0 {
            Memory::Empty
        } else {
            Memory::One(Landing::Region(room))
        };
        let target = Target {
            process: Process::rank(2),
            pt_index: OPEN,
            match_bits: 1,
            remote_offset: 0,
        };
        let from = Piece {
            md: self.md,
            offset: at - EDGE as u64,
        };
        let eq = self.eq;
        let mut ni = self.victim.ni(KIND);
        let mut options = EntryOptions(dice.next_u64() as u32 & EntryOptions::ALL.0);
        options.0 &= !EntryOptions::IOVEC.0;
        let mut entry = Entry::open(memory, options | EntryOptions::OP_PUT);
        entry.ignore_bits = if dice.one_in(2) { u64::MAX } else { 3 };
        entry.min_free = dice.below(1000);
        let list = if dice.one_in(2) {
            List::Overflow
        } else {
            List::Priority
        };
        let index = if dice.one_in(3) { CAREFUL } else { OPEN };
        let done: Result<(), NiError> = match dice.below(8) {
            0 | 1 => ni.append(index, entry, list, 7).map(|_| ()),
            2 => ni.search(
                index,
                &entry,
                if dice.one_in(2) {
                    Search::Only
                } else {
                    Search::Delete
                },
                8,
            ),
            3 => ni.put(&Put {
                from,
                length,
                ack: AckReq::Full,
                target,
                user_ptr: 9,
                hdr_data: 9,
            }),
            4 => ni.get(&Get {
                into: from,
                length,
                target,
                user_ptr: 10,
            }),
            5 => ni.fetch_atomic(&FetchAtomic {
                into: from,
                from: Piece {
                    md: from.md,
                    offset: 0,
                },
                length: length.min(64) & !7,
                target,
                user_ptr: 11,
                hdr_data: 1,
                kind: AtomicKind::Sum,
                datatype: Datatype::Int64,
                operand: [0; 32],
            }),
            6 => ni.pt_enable(index),
            _ => ni.pt_disable(index).map(|_| ()),
        };
        let _ = done;
        while !matches!(ni.eq_get(eq), Ok(EqGet::Empty) | Err(_)) {}
    }

    /// A message that is nearly right.
    fn frame(&mut self, dice: &mut Random) -> Vec<u8> {
        if !self.heard.0.is_empty() && dice.one_in(8) {
            // A message of the victim, back to it.
            let at = dice.below(self.heard.0.len() as u64) as usize;
            let mut bytes = self.heard.0[at].clone();
            if bytes.len() >= 8 {
                bytes[4..8].copy_from_slice(&self.seq.to_le_bytes());
            }
            return bytes;
        }
        let length = match dice.below(8) {
            0 => dice.below(20),
            1..5 => 8 + 8 * dice.below(8) + dice.below(16),
            5 | 6 => 16 + dice.below(700),
            _ => 16 + dice.below(9000),
        };
        let mut bytes: Vec<u8> = (0..length).map(|_| dice.next_u64() as u8).collect();
        let mut put = |at: usize, word: &[u8]| {
            if bytes.len() >= at + word.len() {
                bytes[at..at + word.len()].copy_from_slice(word);
            }
        };
        let kinds = [
            1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 16, 17, 18, 19, 20, 21, 22, 0x80, 0x81, 0x82,
        ];
        let kind = if dice.one_in(20) {
            dice.next_u64() as u8
        } else {
            kinds[dice.below(20) as usize]
        };
        // Mostly the interface that there is, and any acknowledgement.
        let flags = if dice.one_in(3) {
            dice.next_u64() as u8
        } else {
            (dice.below(16) << 2) as u8
        };
        put(0, &[kind, flags]);
        put(2, &(dice.below(5) as u16).to_le_bytes());
        let seq = match dice.below(30) {
            0 => dice.next_u64() as u32,
            1 => self.seq.wrapping_add(dice.below(40) as u32).wrapping_sub(20),
            _ => self.seq,
        };
        put(4, &seq.to_le_bytes());
        for at in (8..64).step_by(8) {
            let heard = self.heard.0.get(dice.below(33) as usize);
            let number = match dice.below(6) {
                0 => dice.next_u64(),
                1 => u64::MAX - dice.below(3),
                2 => dice.below(8),
                3 => dice.below(20_000),
                4 => dice.below(18) | dice.below(14) << 8,
                // A word of a message of the victim: perhaps the number of an operation that is open.
                _ => heard
                    .and_then(|bytes| bytes.get(8..16)?.try_into().ok())
                    .map_or(0, u64::from_le_bytes),
            };
            put(at, &number.to_le_bytes());
        }
        bytes
    }

    fn edges_are_whole(&self) {
        let mut bytes = [0; MEMORY];
        self.memory.read(0, &mut bytes);
        let mut edges = bytes[..EDGE].iter().chain(&bytes[MEMORY - EDGE..]);
        assert!(edges.all(|byte| *byte == 0x55), "a byte outside was written");
    }
}

#[test]
fn whatever_a_peer_sends_others_are_served() {
    let mut dice = Random::new(0x0bad_5eed);
    let (mut frames, mut dropped) = (0, 0);
    for life in 1..=LIVES {
        let mut scene = Scene::new(life);
        if !life.is_multiple_of(4) {
            scene.greet();
        }
        for round in 0..ROUNDS {
            for _ in 0..dice.below(12) {
                let frame = scene.frame(&mut dice);
                let own = frame.first().is_some_and(|kind| *kind >= 0x80);
                let numbered = frame.get(4..8) == Some(&scene.seq.to_le_bytes()[..]) && frame.len() >= 8;
                if scene.send(&frame) {
                    frames += 1;
                    scene.seq = scene.seq.wrapping_add(u32::from(numbered && !own));
                }
            }
            scene.work(&mut dice);
            scene.turn();
            if round.is_multiple_of(16) {
                scene.ping();
            }
        }
        scene.ping();
        scene.edges_are_whole();
        dropped += scene.victim.drops().total();
        the_end_of_the_attacker(scene);
    }
    assert!(frames > LIVES * ROUNDS * 3, "{frames} frames were sent");
    assert!(
        dropped > frames / 10,
        "only {dropped} of {frames} were refused: most were never looked at"
    );
}

/// The attacker's process ends: what the victim has begun with it ends, too.
fn the_end_of_the_attacker(mut scene: Scene) {
    let put = Get {
        into: Piece {
            md: scene.md,
            offset: 0,
        },
        length: 8,
        target: Target {
            process: Process::rank(2),
            pt_index: 0,
            match_bits: 0,
            remote_offset: 0,
        },
        user_ptr: 4711,
    };
    let begun = scene.victim.ni(KIND).get(&put);
    let mut ended: Vec<Event> = Vec::new();
    drop(std::mem::replace(
        &mut scene.attacker,
        scene.net.attach_rank(9, Plane::FIRST),
    ));
    for _ in 0..200_000 {
        scene.turn();
        let eq = scene.eq;
        while let Ok(EqGet::Event(event) | EqGet::Dropped(event)) = scene.victim.ni(KIND).eq_get(eq) {
            ended.push(event);
        }
        let told = ended
            .iter()
            .any(|event| event.user_ptr == 4711 && event.kind == EventKind::Reply);
        if told || begun.is_err() {
            break;
        }
    }
    let told: Vec<&Event> = ended.iter().filter(|event| event.user_ptr == 4711).collect();
    assert!(begun.is_err() || told.len() == 1, "{begun:?} ends with {told:?}");
    scene.ping();
}

/// A message that comes before its sender's name is dropped.
#[test]
fn a_peer_without_a_name_is_ignored() {
    let mut scene = Scene::new(1);
    let mut put = vec![2, 0, 1, 0];
    put.extend(scene.seq.to_le_bytes());
    put.extend(1u64.to_le_bytes());
    assert!(scene.send(&put), "there is room");
    for _ in 0..4 {
        scene.turn();
    }
    assert_eq!(scene.victim.drops().of(Drop::Early), 1);
    assert_eq!(scene.victim.drops().total(), 1);
    scene.ping();
}

const LIVES: u64 = 24;
const ROUNDS: u64 = 250;

//! Heads that are like the last one: what the wire carries, what arrives, and what a peer may not claim.

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message as _, OpError, OpId, PeerIndex};
use doorbell_fabric::ni::*;
use doorbell_fabric::rail::Rail as _;
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};

use super::world::*;
use crate::wire::{flag, kind};
use crate::{Config, Drop, Node};

const KIND: Kind = Kind::MATCHING_LOGICAL;

/// A small put of `length` bytes, without an answer.
fn quiet(md: MdHandle, length: u64, target: Target, hdr_data: u64) -> Put {
    Put {
        ack: AckReq::None,
        hdr_data,
        ..put(md, length, target)
    }
}

/// Memory to put from, whose operations post no events.
fn bind(ni: &mut dyn Ni, loan: MutLoan) -> MdHandle {
    let md = Md {
        memory: memory(loan),
        ..Md::default()
    };
    ni.md_bind(md).unwrap()
}

#[test]
fn what_is_left_out_arrives_all_the_same() {
    let mut world = World::pair();
    let landing = bytes(4096, 0);
    let mut ni = world.ni(1);
    let eq = ni.eq_alloc(64).unwrap();
    for pt in [3, 4] {
        ni.pt_alloc(PtOptions::NONE, Some(eq), Some(pt)).unwrap();
        let options = BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0;
        let mut entry = Entry::open(memory(landing), EntryOptions(options));
        entry.ignore_bits = u64::MAX;
        ni.append(pt, entry, List::Priority, 0).unwrap();
    }
    let source = numbered(4096);
    let md = bind(&mut world.ni(0), source);
    // Table entry, match bits, offset, header data, length: each differs from the one before in one of them,
    // or in none.
    let puts = [
        (3, 7, 9, 11, 8),
        (3, 7, 9, 11, 8),
        (3, 7, 9, 11, 16),
        (3, 7, 9, 11, 0),
        (3, 7, 9, 11, 17),
        (3, 7, 9, 11, 1000),
        (3, 7, 9, 11, 5),
        (3, 7, 9, 12, 5),
        (3, 7, 9, 0, 5),
        (3, 7, 9, 12, 5),
        (3, 7, 0, 12, 5),
        (3, 7, 0, 12, 9),
        (3, 8, 0, 12, 9),
        (4, 8, 0, 12, 9),
        (4, 8, 0, 12, 9),
        (3, 8, 0, 12, 9),
        (3, 8, 0, 0, 9),
        (3, 8, 0, 0, 9),
    ];
    for (pt, bits, offset, hdr, length) in puts {
        landing.write(0, &[0; 4096]);
        let target = world.target(1, pt, bits, offset);
        world.ni(0).put(&quiet(md, length, target, hdr)).unwrap();
        world.settle();
        let told = world.events(1, eq);
        let what = format!("{pt} {bits} {offset} {hdr} {length}: {told:?}");
        assert_eq!(told.len(), 1, "{what}");
        let event = told[0];
        let said = (
            event.pt_index,
            event.match_bits,
            event.remote_offset,
            event.hdr_data,
        );
        assert_eq!(said, (pt, bits, offset, hdr), "{what}");
        assert_eq!(
            (event.rlength, event.mlength, event.place),
            (length, length, offset),
            "{what}"
        );
        let landed = landing.part(offset as usize, length as usize);
        assert_eq!(
            landed.as_shared().to_vec(),
            source.part(0, length as usize).as_shared().to_vec()
        );
    }
    assert_eq!(world.nodes[1].drops().total(), 0);
}

/// A node, and a bare rail of its peer.
pub(super) struct Bare {
    net: SimNet,
    pub(super) node: Node<SimRail>,
    rail: SimRail,
    to_node: PeerIndex,
    heard: Heard,
    sent: u32,
}

#[derive(Default)]
pub(super) struct Heard(Vec<Vec<u8>>);

impl Arrivals for Heard {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        self.0.push(bytes);
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

impl Bare {
    pub(super) fn new() -> Self {
        let net = SimNet::new(1, SimConfig::default());
        let mut rail = net.attach_rank(1, Plane::FIRST);
        let mut node = Node::new(Config::new(name(0)));
        let own = node.add_rail(net.attach_rank(0, Plane::FIRST)).unwrap();
        node.connect(name(1), own, &rail.address(), rail.incarnation())
            .unwrap();
        let there = node.rail(own).unwrap();
        let to_node = rail.open(&there.address(), there.incarnation()).unwrap();
        node.ni_init(KIND, None).unwrap();
        node.set_map(KIND, &[name(0), name(1)]).unwrap();
        Self {
            net,
            node,
            rail,
            to_node,
            heard: Heard::default(),
            sent: 0,
        }
    }

    fn turn(&mut self) {
        self.rail.flush();
        let now = self.net.now() + std::time::Duration::from_micros(5);
        self.net.advance_to(now);
        self.node.poll(64);
        self.node.progress(now);
        self.node.flush();
        self.rail.poll(64, &mut self.heard);
    }

    /// What has come since the last call.
    pub(super) fn hear(&mut self) -> Vec<Vec<u8>> {
        self.turn();
        self.turn();
        std::mem::take(&mut self.heard.0)
    }

    /// Sends words behind a first one that is made of these.
    pub(super) fn say(&mut self, kind: u8, flags: u8, short: u16, words: &[u64]) {
        let first =
            u64::from(kind) | u64::from(flags) << 8 | u64::from(short) << 16 | u64::from(self.sent) << 32;
        self.sent += 1;
        let bytes: Vec<u8> = std::iter::once(&first)
            .chain(words)
            .flat_map(|word| word.to_le_bytes())
            .collect();
        self.rail.send(self.to_node, &bytes, Body::Empty).unwrap();
        self.turn();
    }
}

#[test]
fn a_put_like_the_last_is_its_first_eight_bytes_and_its_body() {
    let mut bare = Bare::new();
    let source = numbered(64);
    let md = bind(&mut bare.node.ni(KIND), source);
    let target = Target {
        process: Process::rank(1),
        pt_index: 5,
        match_bits: 0x1122,
        remote_offset: 0,
    };
    for (length, hdr) in [(8, 0), (8, 3), (8, 3), (12, 3), (8, 4), (17, 4), (8, 4)] {
        bare.node.ni(KIND).put(&quiet(md, length, target, hdr)).unwrap();
        bare.turn();
        bare.turn();
    }
    let puts: Vec<_> = bare
        .heard
        .0
        .iter()
        .filter(|bytes| bytes[0] == kind::PUT)
        .collect();
    let shapes: Vec<_> = puts.iter().map(|bytes| (bytes[1], bytes.len())).collect();
    let (hdr, keep, again) = (flag::HDR, flag::KEEP, flag::AGAIN);
    assert_eq!(
        shapes,
        [
            (0, 24),
            (hdr | keep, 32),
            (hdr | again, 16),
            (hdr | again, 20),
            (hdr | keep, 32),
            (hdr, 41),
            (hdr | again, 16)
        ]
    );
    let bytes = source.as_shared().to_vec();
    // kind, flags, table index, number; then the body alone.
    assert_eq!(puts[2][..8], [2, 0x90, 5, 0, 3, 0, 0, 0]);
    assert_eq!(puts[2][8..], bytes[..8]);
    assert_eq!(puts[3][8..], bytes[..12]);
    assert_eq!(puts[1][..8], [2, 0x50, 5, 0, 2, 0, 0, 0]);
    assert_eq!(
        puts[1][8..24],
        [0x22, 0x11, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn what_was_not_said_cannot_be_left_out() {
    let mut bare = Bare::new();
    let landing = bytes(64, 0);
    let mut ni = bare.node.ni(KIND);
    let eq = ni.eq_alloc(16).unwrap();
    for pt in [0, 1] {
        ni.pt_alloc(PtOptions::NONE, Some(eq), Some(pt)).unwrap();
        let options = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0);
        ni.append(pt, Entry::open(memory(landing), options), List::Priority, 0)
            .unwrap();
    }
    let malformed = |bare: &Bare| bare.node.drops().of(Drop::Malformed);
    bare.say(kind::HELLO, 0, crate::wire::VERSION, &[101 | 7 << 32, 1024 << 32]);
    let wrong = [
        // Nothing was remembered yet; both at once; with an answer; what is no put.
        (kind::PUT, flag::AGAIN, 0),
        (kind::PUT, flag::AGAIN | flag::KEEP, 0),
        (kind::PUT, flag::KEEP | 1 << flag::ACK_SHIFT, 0),
        (kind::RTS, flag::KEEP, 0),
        (kind::GET, flag::AGAIN, 0),
        (kind::ATOMIC, flag::KEEP, 0),
    ];
    for (at, (kind, flags, pt)) in wrong.into_iter().enumerate() {
        bare.say(kind, flags, pt, &[0, 0, 0, 0]);
        assert_eq!(malformed(&bare), at as u64 + 1, "{kind} {flags:#x}");
    }
    let before = malformed(&bare);
    bare.say(kind::PUT, flag::KEEP | flag::HDR, 0, &[0, 21, 0x55]);
    // Of another table entry, with other words: not what is remembered.
    bare.say(kind::PUT, flag::AGAIN | flag::HDR, 1, &[0x55]);
    bare.say(kind::PUT, flag::AGAIN, 0, &[0x55]);
    bare.say(
        kind::PUT,
        flag::AGAIN | flag::HDR | 1 << flag::ACK_SHIFT,
        0,
        &[0x55],
    );
    assert_eq!(malformed(&bare), before + 3);
    bare.say(kind::PUT, flag::AGAIN | flag::HDR, 0, &[0x66]);
    assert_eq!(malformed(&bare), before + 3);
    let mut told = Vec::new();
    while let EqGet::Event(event) = bare.node.ni(KIND).eq_get(eq).unwrap() {
        told.push((event.kind, event.hdr_data, event.mlength));
    }
    assert_eq!(told, [(EventKind::Put, 21, 8), (EventKind::Put, 21, 8)]);
    assert_eq!(landing.as_shared().to_vec()[..8], 0x66_u64.to_le_bytes());
}

#[test]
fn the_last_target_is_looked_up_again_when_it_may_have_changed() {
    let mut world = World::pair();
    let source = numbered(64);
    let md = bind(&mut world.ni(0), source);
    let mut ni = world.ni(1);
    let eq = ni.eq_alloc(64).unwrap();
    let events = EntryOptions::EVENT_LINK_DISABLE.0 | EntryOptions::EVENT_UNLINK_DISABLE.0;
    let options = EntryOptions(BOTH.0 | events);
    let append = |world: &mut World, length: usize, more: EntryOptions, bits: u64, user_ptr: u64| {
        let mut entry = Entry::open(memory(bytes(length, 0)), EntryOptions(options.0 | more.0));
        (entry.match_bits, entry.ignore_bits) = (bits, 0);
        world.ni(1).append(3, entry, List::Priority, user_ptr).unwrap()
    };
    let arrives = |world: &mut World, length: u64| {
        let target = world.target(1, 3, 7, 0);
        world.ni(0).put(&quiet(md, length, target, 5)).unwrap();
        world.settle();
        let told = world.events(1, eq);
        told.iter().map(|event| event.user_ptr).collect::<Vec<_>>()
    };
    world.ni(1).pt_alloc(PtOptions::NONE, Some(eq), Some(3)).unwrap();
    // Too small for the first one, not for a shorter one after it.
    append(&mut world, 10, EntryOptions::NO_TRUNCATE, 7, 1);
    let second = append(&mut world, 100, EntryOptions::NONE, 7, 2);
    append(&mut world, 100, EntryOptions::NONE, 7, 3);
    assert_eq!(
        [12, 12, 9, 12].map(|length| arrives(&mut world, length)),
        [[2], [2], [1], [2]]
    );
    world.ni(1).unlink(second).unwrap();
    assert_eq!([12, 12].map(|length| arrives(&mut world, length)), [[3], [3]]);
    // Permission is checked each time, and so is the table entry.
    world.ni(1).pt_disable(3).unwrap();
    assert_eq!(arrives(&mut world, 12), [] as [u64; 0]);
    world.ni(1).pt_enable(3).unwrap();
    assert_eq!(arrives(&mut world, 12), [3]);
    // A table entry that was freed and is there again has other entries of the same numbers.
    let mut again = World::pair();
    let md = bind(&mut again.ni(0), source);
    let eq = again.ni(1).eq_alloc(64).unwrap();
    for (bits, found) in [(7, vec![7]), (8, vec![]), (7, vec![7])] {
        again.ni(1).pt_alloc(PtOptions::NONE, Some(eq), Some(3)).unwrap();
        let mut entry = Entry::open(memory(bytes(64, 0)), options);
        (entry.match_bits, entry.ignore_bits) = (bits, 0);
        let entry = again.ni(1).append(3, entry, List::Priority, bits).unwrap();
        for _ in 0..2 {
            let target = again.target(1, 3, 7, 0);
            again.ni(0).put(&quiet(md, 12, target, 5)).unwrap();
            again.settle();
            let told: Vec<_> = again.events(1, eq).iter().map(|event| event.user_ptr).collect();
            assert_eq!(told, found, "entries of {bits}");
        }
        again.ni(1).unlink(entry).unwrap();
        again.ni(1).pt_free(3).unwrap();
    }
}

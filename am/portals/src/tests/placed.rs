//! Puts that are placed: when, in which order with others, and what ends it.

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::*;
use doorbell_sim::SimConfig;

use super::short::Bare;
use super::world::*;
use crate::Drop;
use crate::link::PeerId;
use crate::wire::kind;

const ROOM: usize = 8192;
const PT: u32 = 3;

/// Two ranks of a host, of which the second has an entry that counts silently.
struct Pair {
    world: World,
    region: Region,
    entry: EntryHandle,
    ct: CtHandle,
    md: MdHandle,
    source: Region,
    sent: u64,
}

fn whole(region: &Region) -> Memory {
    Memory::One(Landing::Region(region.whole()))
}

/// Counts, and posts nothing.
fn silent(region: &Region, ct: CtHandle) -> Entry {
    let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM | EntryOptions::EVENT_COMM_DISABLE;
    Entry::open(whole(region), options).counted(ct)
}

impl Pair {
    fn new() -> Self {
        Self::of(Kind::MATCHING_LOGICAL)
    }

    fn of(kind: Kind) -> Self {
        let mut config = SimConfig::default();
        config.capabilities.features.within_host = true;
        let mut world = World::new(2, 1, kind, config);
        let (region, source) = (Region::new(ROOM).unwrap(), Region::new(ROOM).unwrap());
        let mut ni = world.ni(1);
        let ct = ni.ct_alloc().unwrap();
        ni.pt_alloc(PtOptions::NONE, None, Some(PT)).unwrap();
        let entry = ni.append(PT, silent(&region, ct), List::Priority, 0).unwrap();
        let md = Md {
            memory: whole(&source),
            ..Md::default()
        };
        let md = world.ni(0).md_bind(md).unwrap();
        Self {
            world,
            region,
            entry,
            ct,
            md,
            source,
            sent: 0,
        }
    }

    /// Begins a put of `length` bytes of this value.
    fn put(&mut self, value: u8, at: u64, length: u64) {
        self.source.write(0, &vec![value; length as usize]);
        let put = Put {
            ack: AckReq::None,
            hdr_data: 0,
            ..put(self.md, length, self.world.target(1, PT, 0, at))
        };
        self.world.ni(0).put(&put).unwrap();
        self.sent += 1;
    }

    fn counted(&mut self) -> u64 {
        let ct = self.ct;
        self.world.ni(1).ct_get(ct).unwrap().success
    }

    /// Puts until they are placed.
    fn begin_placing(&mut self) {
        for _ in 0..8 {
            self.put(1, 0, 64);
            self.world.settle();
        }
        assert_eq!(self.counted(), self.sent);
        assert!(self.is_there_before_it_arrives(2, 0, 64));
        self.world.settle();
    }

    /// Whether the bytes of a put are there as soon as it has begun.
    fn is_there_before_it_arrives(&mut self, value: u8, at: u64, length: u64) -> bool {
        self.put(value, at, length);
        self.content(at, length) == vec![value; length as usize]
    }

    fn content(&self, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.region.read(at as usize, &mut bytes);
        bytes
    }

    fn dropped(&mut self) -> u64 {
        self.world.ni(1).status(Register::DropCount)
    }
}

#[test]
fn puts_are_placed_after_some_wherever_they_go_and_each_is_counted() {
    for kind in [true, false].map(|matching| Kind {
        matching,
        logical: true,
    }) {
        let mut pair = Pair::of(kind);
        pair.begin_placing();
        let puts = [(0, 9), (100, 64), (1000, 1024), (8000, 192), (0, 8192), (1, 8191)];
        for (number, (at, length)) in puts.into_iter().enumerate() {
            let value = 10 + number as u8;
            assert!(
                pair.is_there_before_it_arrives(value, at, length),
                "{kind:?} {at} {length}"
            );
            assert_eq!(pair.counted(), pair.sent - 1, "the target has not looked");
            pair.world.settle();
            assert_eq!(pair.counted(), pair.sent);
        }
        // What fits a cell travels in it, and what does not fit the entry is cut off by the target.
        assert!(!pair.is_there_before_it_arrives(50, 0, 8));
        assert!(!pair.is_there_before_it_arrives(51, 8190, 64));
        pair.world.settle();
        assert_eq!(pair.counted(), pair.sent);
        assert_eq!(
            (pair.content(0, 8), pair.content(8190, 2)),
            (vec![50; 8], vec![51; 2])
        );
        assert_eq!(
            pair.world
                .nodes
                .iter()
                .map(|node| node.drops().total())
                .sum::<u64>(),
            0
        );
    }
}

#[test]
fn small_puts_are_placed_only_when_everything_before_was() {
    let mut pair = Pair::new();
    pair.begin_placing();
    // Those that were placed, and are not counted yet, are no obstacle.
    assert!(pair.is_there_before_it_arrives(3, 0, 64));
    assert!(pair.is_there_before_it_arrives(4, 0, 64));
    // One that goes through the lane is: it would undo those that are placed behind it.
    pair.put(5, 0, 8);
    assert!(!pair.is_there_before_it_arrives(6, 0, 64));
    assert!(!pair.is_there_before_it_arrives(7, 0, 512));
    pair.world.settle();
    assert_eq!(pair.content(0, 512), vec![7; 512]);
    // Longer ones have no order among their bytes.
    pair.put(8, 0, 8);
    assert!(pair.is_there_before_it_arrives(9, 600, 513));
    pair.world.settle();
    assert_eq!(pair.counted(), pair.sent);
    // After some more, the target offers it again, and everything is known to have arrived.
    for _ in 0..16 {
        pair.put(10, 0, 64);
        pair.world.settle();
    }
    assert!(pair.is_there_before_it_arrives(11, 0, 64));
    // An offer that crosses with a put does not count that put.
    let mut pair = Pair::new();
    for value in 0..4 {
        pair.put(value, 0, 64);
    }
    pair.world.settle();
    pair.put(4, 0, 64);
    pair.world.nodes[0].poll(16);
    assert!(!pair.is_there_before_it_arrives(5, 0, 64) || pair.world.nodes[0].poll(0) == 0);
}

/// Two ranks that exchange puts offer it to each other in the same exchange: neither offer is lost by the
/// other.
#[test]
fn both_ranks_place_small_puts_to_and_fro() {
    let mut config = SimConfig::default();
    config.capabilities.features.within_host = true;
    let mut world = World::new(2, 1, Kind::MATCHING_LOGICAL, config);
    let regions = [0, 1].map(|_| Region::new(ROOM).unwrap());
    let mut handles = Vec::new();
    for (rank, region) in regions.iter().enumerate() {
        let mut ni = world.ni(rank);
        let ct = ni.ct_alloc().unwrap();
        ni.pt_alloc(PtOptions::NONE, None, Some(PT)).unwrap();
        ni.append(PT, silent(region, ct), List::Priority, 0).unwrap();
        let source = Region::new(64).unwrap();
        let md = Md {
            memory: whole(&source),
            ..Md::default()
        };
        handles.push((ct, ni.md_bind(md).unwrap(), source));
    }
    let mut placed = 0;
    for exchange in 0..20u8 {
        for rank in 0..2 {
            let (_, md, source) = &handles[rank];
            source.write(0, &[exchange + 1; 64]);
            let put = Put {
                ack: AckReq::None,
                hdr_data: 0,
                ..put(*md, 64, world.target(1 - rank, PT, 0, 0))
            };
            world.ni(rank).put(&put).unwrap();
            let mut found = [0; 64];
            regions[1 - rank].read(0, &mut found);
            placed += u32::from(found == [exchange + 1; 64]);
            world.settle();
            let (ct, ..) = handles[1 - rank];
            let count = world.ni(1 - rank).ct_get(ct).unwrap().success;
            assert_eq!(count, u64::from(exchange) + 1);
        }
    }
    assert!(placed > 28, "{placed} of 40");
}

#[test]
fn an_entry_that_is_unlinked_is_written_no_more() {
    let mut pair = Pair::new();
    pair.begin_placing();
    pair.put(3, 0, 64);
    // It was placed, and the entry leaves its list before it is known.
    let entry = pair.entry;
    pair.world.ni(1).unlink(entry).unwrap();
    let (counted, dropped) = (pair.counted(), pair.dropped());
    pair.region.write(0, &[9; 64]);
    pair.world.settle();
    assert_eq!((pair.counted(), pair.dropped()), (counted, dropped + 1));
    for length in [64, 1024] {
        assert!(!pair.is_there_before_it_arrives(4, 0, length));
        pair.world.settle();
    }
    assert_eq!(pair.content(0, 64), vec![9; 64]);
    // Another entry in its place is written in its turn.
    let other = Region::new(ROOM).unwrap();
    let ct = pair.ct;
    pair.world
        .ni(1)
        .append(PT, silent(&other, ct), List::Priority, 0)
        .unwrap();
    for _ in 0..40 {
        pair.put(5, 0, 64);
        pair.world.settle();
    }
    assert_eq!(pair.counted(), counted + 40);
    pair.put(6, 0, 64);
    let mut found = [0; 64];
    other.read(0, &mut found);
    assert_eq!((found, pair.content(0, 64)), ([6; 64], vec![9; 64]));
}

#[test]
fn a_disabled_table_entry_is_written_no_more() {
    let mut pair = Pair::new();
    pair.begin_placing();
    assert_eq!(pair.world.ni(1).pt_disable(PT), Ok(true));
    pair.region.write(0, &[9; 64]);
    let counted = pair.counted();
    pair.put(3, 0, 64);
    pair.world.settle();
    assert_eq!((pair.content(0, 64), pair.counted()), (vec![9; 64], counted));
    pair.world.ni(1).pt_enable(PT).unwrap();
    pair.put(4, 0, 64);
    pair.world.settle();
    assert_eq!((pair.content(0, 64), pair.counted()), (vec![4; 64], counted + 1));
}

#[test]
fn puts_are_not_placed_where_the_target_decides_more_than_that() {
    let events = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM;
    let counted = events | EntryOptions::EVENT_COMM_DISABLE;
    for (what, options) in [
        ("events", events),
        ("bytes are counted", counted | EntryOptions::EVENT_CT_BYTES),
        ("it places them itself", counted | EntryOptions::MANAGE_LOCAL),
    ] {
        let mut pair = Pair::new();
        let (entry, ct) = (pair.entry, pair.ct);
        let mut ni = pair.world.ni(1);
        ni.unlink(entry).unwrap();
        ni.pt_free(PT).unwrap();
        let eq = ni.eq_alloc(1024).unwrap();
        ni.pt_alloc(PtOptions::NONE, Some(eq), Some(PT)).unwrap();
        let entry = Entry::open(whole(&pair.region), options).counted(ct);
        pair.world.ni(1).append(PT, entry, List::Priority, 0).unwrap();
        for _ in 0..40 {
            pair.put(1, 0, 64);
            pair.world.settle();
        }
        assert!(pair.world.nodes[1].core.placing.is_empty(), "{what}");
    }
    // A put that wants an acknowledgement is answered by the target.
    let mut pair = Pair::new();
    pair.begin_placing();
    pair.source.write(0, &[7; 64]);
    let acked = put(pair.md, 64, pair.world.target(1, PT, 0, 0));
    let eq = pair.world.ni(0).eq_alloc(8).unwrap();
    let md = Md {
        memory: whole(&pair.source),
        eq: Some(eq),
        ..Md::default()
    };
    let md = pair.world.ni(0).md_bind(md).unwrap();
    let from = Piece { md, offset: 0 };
    pair.world.ni(0).put(&Put { from, ..acked }).unwrap();
    assert_eq!(pair.content(0, 64), vec![2; 64]);
    pair.world.settle();
    let kinds = pair.world.kinds(0, eq);
    assert_eq!(
        kinds,
        [(EventKind::Send, NiFail::Ok), (EventKind::Ack, NiFail::Ok)]
    );
    // A placed one still has its SEND.
    pair.world.settle();
    for _ in 0..16 {
        pair.put(1, 0, 64);
        pair.world.settle();
    }
    let quiet = Put {
        from,
        ack: AckReq::None,
        ..acked
    };
    pair.source.write(0, &[8; 64]);
    pair.world.ni(0).put(&quiet).unwrap();
    assert_eq!(pair.content(0, 64), vec![8; 64]);
    assert_eq!(pair.world.kinds(0, eq), [(EventKind::Send, NiFail::Ok)]);
}

#[test]
fn a_peer_that_is_lost_keeps_nothing() {
    let mut pair = Pair::new();
    pair.begin_placing();
    assert!(!pair.world.nodes[1].core.placing.is_empty());
    pair.world.nodes[1].ended(name(0), doorbell_fabric::event::DownReason::Died);
    pair.world.settle();
    assert!(pair.world.nodes[1].core.placing.is_empty() && !pair.world.nodes[1].is_writing());
    let entry = pair.entry;
    assert_eq!(pair.world.ni(1).unlink(entry), Ok(()));
}

#[test]
fn a_peer_cannot_place_what_it_was_not_let() {
    let mut bare = Bare::new();
    let region = Region::new(ROOM).unwrap();
    let mut ni = bare.node.ni(Kind::MATCHING_LOGICAL);
    let ct = ni.ct_alloc().unwrap();
    ni.pt_alloc(PtOptions::NONE, None, Some(PT)).unwrap();
    ni.append(PT, silent(&region, ct), List::Priority, 0).unwrap();
    let drops = |bare: &Bare, reason| bare.node.drops().of(reason);
    let pt = PT as u16;
    bare.say(kind::HELLO, 0, crate::wire::VERSION, &[101 | 7 << 32, 1024 << 32]);
    bare.say(kind::PLACED, 0, pt, &[0]);
    assert_eq!(
        bare.node.ni(Kind::MATCHING_LOGICAL).status(Register::DropCount),
        1
    );
    bare.say(kind::PLACED, 0x10, pt, &[0]);
    bare.say(kind::PLACED, 0, pt, &[0, 0]);
    assert_eq!(drops(&bare, Drop::Malformed), 2);
    bare.say(kind::PLACED, 0, pt, &[]);
    bare.say(kind::ROOM, 0, pt, &[0, 1, 2, 3]);
    assert_eq!(drops(&bare, Drop::Short), 2);
    bare.say(kind::ROOM, 0, pt, &[0, 1, 2, 3, 0x1_0000]);
    assert_eq!(drops(&bare, Drop::Malformed), 3);
    // Any memory may be named: a put that finds it is none goes the other way.
    bare.say(kind::ROOM, 0, pt, &[0, u64::MAX, u64::MAX - 5, u64::MAX, 0xffff]);
    bare.say(kind::ROOM, 0, pt, &[0, 7, 0, 4096, 0]);
    let md = Md {
        memory: whole(&region),
        ..Md::default()
    };
    let mut ni = bare.node.ni(Kind::MATCHING_LOGICAL);
    let md = ni.md_bind(md).unwrap();
    let target = Target {
        process: Process::rank(1),
        pt_index: PT,
        match_bits: 0,
        remote_offset: 0,
    };
    let put = Put {
        ack: AckReq::None,
        ..put(md, 1024, target)
    };
    // The first one introduces us.
    ni.put(&Put { length: 8, ..put }).unwrap();
    ni.put(&put).unwrap();
    let heard = bare.hear();
    assert!(
        heard
            .iter()
            .any(|message| message[0] == kind::PUT && message.len() >= 1024)
    );
    assert_eq!(ni_count(&mut bare, ct), 0);
    let known = bare.node.core.peers.get(PeerId(1)).unwrap();
    assert!(known.rooms.is_empty(), "it is not tried again");
}

fn ni_count(bare: &mut Bare, ct: CtHandle) -> u64 {
    bare.node.ni(Kind::MATCHING_LOGICAL).ct_get(ct).unwrap().success
}

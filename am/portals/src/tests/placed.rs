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
            self.put(1, 0, 128);
            self.world.settle();
        }
        assert_eq!(self.counted(), self.sent);
        assert!(self.is_there_before_it_arrives(2, 0, 128));
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

    /// What both ranks dropped of what came.
    fn drops(&self) -> u64 {
        self.world.nodes.iter().map(|node| node.drops().total()).sum()
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
        let puts = [
            (0, 121),
            (100, 128),
            (1000, 1024),
            (8000, 192),
            (0, 8192),
            (1, 8191),
        ];
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
        // What is short travels in cells, and what does not fit the entry is cut off by the target.
        assert!(!pair.is_there_before_it_arrives(49, 0, 120));
        assert!(!pair.is_there_before_it_arrives(50, 0, 8));
        assert!(!pair.is_there_before_it_arrives(51, 8190, 128));
        pair.world.settle();
        assert_eq!(pair.counted(), pair.sent);
        assert_eq!(
            (pair.content(0, 8), pair.content(8190, 2)),
            (vec![50; 8], vec![51; 2])
        );
        assert_eq!(pair.drops(), 0);
    }
}

#[test]
fn small_puts_are_placed_only_when_everything_before_was_taken() {
    let mut pair = Pair::new();
    pair.begin_placing();
    // Those that were placed, and are not counted yet, are no obstacle.
    assert!(pair.is_there_before_it_arrives(3, 0, 128));
    assert!(pair.is_there_before_it_arrives(4, 0, 128));
    // One that goes through the lane is: it would undo those that are placed behind it.
    pair.put(5, 0, 8);
    assert!(!pair.is_there_before_it_arrives(6, 0, 128));
    assert!(!pair.is_there_before_it_arrives(7, 0, 512));
    pair.world.settle();
    assert_eq!(pair.content(0, 512), vec![7; 512]);
    // Longer ones have no order among their bytes.
    pair.put(8, 0, 8);
    assert!(pair.is_there_before_it_arrives(9, 600, 513));
    // Once the peer has taken that one, they are placed again.
    pair.world.settle();
    assert_eq!(pair.counted(), pair.sent);
    assert!(pair.is_there_before_it_arrives(11, 0, 128));
    pair.world.settle();
    assert_eq!(pair.counted(), pair.sent);
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
        let source = Region::new(128).unwrap();
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
            source.write(0, &[exchange + 1; 128]);
            let put = Put {
                ack: AckReq::None,
                hdr_data: 0,
                ..put(*md, 128, world.target(1 - rank, PT, 0, 0))
            };
            world.ni(rank).put(&put).unwrap();
            let mut found = [0; 128];
            regions[1 - rank].read(0, &mut found);
            placed += u32::from(found == [exchange + 1; 128]);
            world.settle();
            let (ct, ..) = handles[1 - rank];
            let count = world.ni(1 - rank).ct_get(ct).unwrap().success;
            assert_eq!(count, u64::from(exchange) + 1);
        }
    }
    assert!(placed > 28, "{placed} of 40");
}

#[test]
fn an_entry_that_is_unlinked_is_written_no_more_and_what_was_placed_counts() {
    let mut pair = Pair::new();
    pair.begin_placing();
    pair.put(3, 0, 128);
    // It was placed, and the entry leaves its list before the head has come.
    let entry = pair.entry;
    assert_eq!(pair.world.ni(1).unlink(entry), Err(NiError::InUse));
    let (counted, dropped) = (pair.counted(), pair.dropped());
    pair.region.write(0, &[9; 128]);
    // The initiator finds out when it places, and the entry takes the put as any other.
    assert!(!pair.is_there_before_it_arrives(4, 0, 128));
    pair.world.settle();
    assert_eq!(
        (pair.counted(), pair.content(0, 128)),
        (counted + 2, vec![4; 128])
    );
    assert_eq!(pair.world.ni(1).unlink(entry), Ok(()));
    pair.region.write(0, &[9; 128]);
    pair.put(5, 0, 128);
    pair.world.settle();
    assert_eq!((pair.counted(), pair.dropped()), (counted + 2, dropped + 1));
    assert!(
        pair.world.nodes[1].core.placing.is_empty(),
        "both ends have closed it"
    );
    for length in [128, 1024] {
        assert!(!pair.is_there_before_it_arrives(4, 0, length));
        pair.world.settle();
    }
    assert_eq!(pair.content(0, 128), vec![9; 128]);
    // Another entry in its place is written in its turn.
    let counted = pair.counted();
    let other = Region::new(ROOM).unwrap();
    let ct = pair.ct;
    pair.world
        .ni(1)
        .append(PT, silent(&other, ct), List::Priority, 0)
        .unwrap();
    for _ in 0..40 {
        pair.put(5, 0, 128);
        pair.world.settle();
    }
    assert_eq!(pair.counted(), counted + 40);
    pair.put(6, 0, 128);
    let mut found = [0; 128];
    other.read(0, &mut found);
    assert_eq!((found, pair.content(0, 128)), ([6; 128], vec![9; 128]));
    assert_eq!(pair.drops(), 0);
}

/// An entry is not exchanged for another before every put that was placed in it is counted.
#[test]
fn heads_under_way_count_for_the_entry_that_was_written() {
    let mut pair = Pair::new();
    pair.begin_placing();
    let before = pair.counted();
    for value in 3..6 {
        assert!(pair.is_there_before_it_arrives(value, 0, 128));
    }
    let other = Region::new(ROOM).unwrap();
    let entry = pair.entry;
    let mut ni = pair.world.ni(1);
    let ct = ni.ct_alloc().unwrap();
    ni.append(PT, silent(&other, ct), List::Priority, 0).unwrap();
    assert_eq!(ni.unlink(entry), Err(NiError::InUse));
    pair.world.settle();
    let of_other = pair.world.ni(1).ct_get(ct).unwrap().success;
    assert_eq!((pair.counted(), of_other), (before + 3, 0));
    assert_eq!(pair.world.ni(1).unlink(entry), Ok(()));
    // A count that is freed takes its late heads with it.
    let mut pair = Pair::new();
    pair.begin_placing();
    assert!(pair.is_there_before_it_arrives(3, 0, 128));
    let (entry, ct) = (pair.entry, pair.ct);
    let mut ni = pair.world.ni(1);
    assert_eq!(ni.unlink(entry), Err(NiError::InUse));
    ni.ct_free(ct).unwrap();
    let fresh = ni.ct_alloc().unwrap();
    pair.world.settle();
    assert_eq!(pair.world.ni(1).ct_get(fresh).unwrap().success, 0);
    assert!(pair.world.nodes[1].core.placing.is_empty());
}

/// A trigger that will unlink an entry waits for no peer when it fires: the memory is taken back when it is
/// set, and no peer is given it afterwards.
#[test]
fn an_entry_that_a_trigger_unlinks_is_not_written_by_peers() {
    let mut pair = Pair::new();
    pair.begin_placing();
    let (entry, ct) = (pair.entry, pair.ct);
    let at = pair.counted() + 12;
    pair.world
        .ni(1)
        .trigger(ct, at, Triggered::Unlink(entry))
        .unwrap();
    for value in 20..32 {
        assert!(!pair.is_there_before_it_arrives(value, 0, 128));
        pair.world.settle();
    }
    assert!(pair.world.nodes[1].core.placing.is_empty());
    let (counted, dropped) = (pair.counted(), pair.dropped());
    assert_eq!(counted, at);
    pair.put(40, 0, 128);
    pair.world.settle();
    assert_eq!((pair.counted(), pair.dropped()), (counted, dropped + 1));
    assert_eq!(pair.content(0, 128), vec![31; 128]);
}

#[test]
fn an_unlink_that_is_refused_for_another_reason_takes_nothing_back() {
    let mut pair = Pair::new();
    pair.begin_placing();
    // A long put is read by the target: its entry is in use meanwhile.
    let length = 1 << 20;
    let source = Region::new(length).unwrap();
    let eq = pair.world.ni(0).eq_alloc(8).unwrap();
    let md = Md {
        memory: whole(&source),
        eq: Some(eq),
        ..Md::default()
    };
    let md = pair.world.ni(0).md_bind(md).unwrap();
    let read = put(md, length as u64, pair.world.target(1, PT, 0, 0));
    pair.world.ni(0).put(&read).unwrap();
    let entry = pair.entry;
    let is_in_use = (0..100).any(|_| {
        pair.world.net.advance_to_next_event();
        pair.world.nodes[1].poll(1);
        let ni = pair.world.nodes[1].core.ready(Kind::MATCHING_LOGICAL).unwrap();
        ni.may_unlink(entry.0).map(drop) == Err(NiError::InUse)
    });
    assert!(is_in_use);
    assert_eq!(pair.world.ni(1).unlink(entry), Err(NiError::InUse));
    assert!(
        pair.is_there_before_it_arrives(5, 0, 1024),
        "it is written all the same"
    );
    pair.world.settle();
}

/// More entries than one peer has memory of at a time: each put is counted, and those that are used get their
/// turn.
#[test]
fn more_entries_than_places_lose_nothing() {
    let mut pair = Pair::new();
    let (entry, mut cts) = (pair.entry, Vec::new());
    pair.world.ni(1).unlink(entry).unwrap();
    let regions: Vec<_> = (0..6).map(|_| Region::new(ROOM).unwrap()).collect();
    for (bits, region) in regions.iter().enumerate() {
        let mut ni = pair.world.ni(1);
        let ct = ni.ct_alloc().unwrap();
        let entry = silent(region, ct).matching(bits as u64, 0);
        ni.append(PT, entry, List::Priority, 0).unwrap();
        cts.push(ct);
    }
    let (mut counts, mut placed) = ([0_u64; 6], [0_u64; 6]);
    for round in 0..400_usize {
        // Two of them are used in each part of the run.
        for bits in [round / 80, round / 80 + 1] {
            pair.source.write(0, &[(round % 200) as u8 + 1; 128]);
            let target = pair.world.target(1, PT, bits as u64, 0);
            let put = Put {
                ack: AckReq::None,
                ..put(pair.md, 128, target)
            };
            pair.world.ni(0).put(&put).unwrap();
            counts[bits] += 1;
            let mut found = [0; 128];
            regions[bits].read(0, &mut found);
            placed[bits] += u64::from(found == [(round % 200) as u8 + 1; 128]);
            // Now and then heads are under way when the next offer or end comes.
            if round % 20 != 19 {
                pair.world.settle();
            }
        }
    }
    pair.world.settle();
    let counted: Vec<_> = cts
        .iter()
        .map(|ct| pair.world.ni(1).ct_get(*ct).unwrap().success)
        .collect();
    assert_eq!(counted, counts);
    assert!(placed.iter().all(|placed| *placed > 8), "{placed:?}");
    assert_eq!(pair.drops(), 0);
}

/// A segment as the conduit of active messages has it: nothing is counted, other entries are on its list, and
/// some match bits are ignored.
#[test]
fn puts_that_nobody_counts_are_placed_without_a_message_and_acknowledged_at_once() {
    let mut pair = Pair::new();
    let entry = pair.entry;
    pair.world.ni(1).unlink(entry).unwrap();
    let mut ni = pair.world.ni(1);
    ni.pt_free(PT).unwrap();
    let eq = ni.eq_alloc(64).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(eq), Some(PT)).unwrap();
    let elsewhere = Region::new(ROOM).unwrap();
    let loud = Entry::open(whole(&elsewhere), EntryOptions::OP_PUT).matching(1, !0xff);
    let quiet = EntryOptions::OP_PUT | EntryOptions::OP_GET | EntryOptions::EVENT_COMM_DISABLE;
    let open = Entry::open(whole(&pair.region), quiet).matching(2, !0xff);
    ni.append(PT, loud, List::Priority, 0).unwrap();
    let open = ni.append(PT, open, List::Priority, 0).unwrap();
    let mut ni = pair.world.ni(0);
    let (acks, ct) = (ni.eq_alloc(64).unwrap(), ni.ct_alloc().unwrap());
    let md = Md {
        memory: whole(&pair.source),
        options: MdOptions::EVENT_CT_ACK,
        eq: Some(acks),
        ct: Some(ct),
    };
    let md = ni.md_bind(md).unwrap();
    let target = |bits| pair.world.target(1, PT, bits, 16);
    let [put_open, put_loud] = [0xab02, 0xab01].map(|bits| Put {
        user_ptr: bits,
        ..put(md, 100, target(bits))
    });
    for _ in 0..8 {
        pair.world.ni(0).put(&put_open).unwrap();
        pair.world.settle();
    }
    pair.world.events(0, acks);
    pair.source.write(0, &[77; 100]);
    let other_bits = Put {
        target: pair.world.target(1, PT, 0x1234_5602, 16),
        ..put_open
    };
    pair.world.ni(0).put(&other_bits).unwrap();
    assert_eq!(pair.content(16, 100), vec![77; 100]);
    let told = pair.world.events(0, acks);
    let seen: Vec<_> = told
        .iter()
        .map(|event| (event.kind, event.fail, event.user_ptr, event.mlength))
        .collect();
    let of = |kind| (kind, NiFail::Ok, 0xab02, 100);
    assert_eq!(seen, [of(EventKind::Send), of(EventKind::Ack)]);
    assert_eq!(told[1].remote_offset, 16);
    assert_eq!(pair.world.ni(0).ct_get(ct).unwrap().success, 9);
    // A get is read from there, and a small one behind a put that is under way is not.
    pair.region.write(200, &[55; 100]);
    let get = Get {
        into: Piece { md, offset: 300 },
        target: pair.world.target(1, PT, 0x9902, 200),
        ..get(md, 100, pair.world.target(1, PT, 0, 0))
    };
    pair.world.ni(0).get(&get).unwrap();
    assert_eq!(pair.world.kinds(0, acks), [(EventKind::Reply, NiFail::Ok)]);
    let mut found = [0; 101];
    pair.source.read(300, &mut found);
    assert_eq!((&found[..100], found[100]), (&[55; 100][..], 0));
    assert_eq!(pair.world.nodes[1].poll(16), 0, "no message has come");
    pair.world.ni(0).put(&put_loud).unwrap();
    pair.world.ni(0).get(&get).unwrap();
    assert_eq!(pair.world.kinds(0, acks), [(EventKind::Send, NiFail::Ok)]);
    pair.world.settle();
    assert_eq!(
        pair.world.kinds(0, acks),
        [(EventKind::Ack, NiFail::Ok), (EventKind::Reply, NiFail::Ok)]
    );
    // Once it is taken back, nothing is read there without the target.
    pair.world.ni(1).unlink(open).unwrap();
    pair.world.ni(0).get(&get).unwrap();
    assert_eq!(pair.world.kinds(0, acks), []);
    pair.world.settle();
    assert_eq!(pair.world.kinds(0, acks), [(EventKind::Reply, NiFail::Dropped)]);
    pair.world.kinds(1, eq);
    // The other entry posts events, and its puts go the ordinary way.
    pair.world.ni(0).put(&put_loud).unwrap();
    pair.world.settle();
    assert!(pair.world.kinds(1, eq).contains(&(EventKind::Put, NiFail::Ok)));
}

/// An entry before it on its list that takes some of its puts: those have to be matched.
#[test]
fn puts_are_not_placed_where_another_entry_comes_first() {
    let mut pair = Pair::new();
    let (entry, ct) = (pair.entry, pair.ct);
    pair.world.ni(1).unlink(entry).unwrap();
    let small = Region::new(16).unwrap();
    let mut ni = pair.world.ni(1);
    let options = EntryOptions::OP_PUT | EntryOptions::NO_TRUNCATE | EntryOptions::EVENT_COMM_DISABLE;
    let first = Entry::open(whole(&small), options).matching(0, 0xf0);
    ni.append(PT, first, List::Priority, 0).unwrap();
    ni.append(PT, silent(&pair.region, ct).matching(0, 0x0f), List::Priority, 0)
        .unwrap();
    for _ in 0..40 {
        pair.put(1, 0, 128);
        pair.world.settle();
    }
    assert_eq!(pair.counted(), 40);
    assert!(pair.world.nodes[1].core.placing.is_empty());
}

/// An interface that ends while heads are under way: they count nowhere, also in the one that comes after.
#[test]
fn heads_of_an_interface_that_has_ended_count_nowhere() {
    let mut pair = Pair::new();
    pair.begin_placing();
    assert!(pair.is_there_before_it_arrives(3, 0, 128));
    pair.world.nodes[1].ni_fini(Kind::MATCHING_LOGICAL).unwrap();
    pair.world.nodes[1].ni_init(Kind::MATCHING_LOGICAL, None).unwrap();
    pair.world.settle();
    assert!(pair.world.nodes[1].core.placing.is_empty());
    assert!(!pair.world.nodes[1].is_writing());
}

/// A queue whose table entries are disabled when it is full disables all of its table entries.
#[test]
fn flow_control_that_comes_later_takes_memory_back() {
    let mut pair = Pair::new();
    let (entry, ct) = (pair.entry, pair.ct);
    let mut ni = pair.world.ni(1);
    ni.unlink(entry).unwrap();
    ni.pt_free(PT).unwrap();
    let eq = ni.eq_alloc(8).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(eq), Some(PT)).unwrap();
    ni.append(PT, silent(&pair.region, ct), List::Priority, 0)
        .unwrap();
    pair.begin_placing();
    pair.world
        .ni(1)
        .pt_alloc(PtOptions::FLOWCTRL, Some(eq), Some(PT + 1))
        .unwrap();
    assert!(!pair.is_there_before_it_arrives(4, 0, 128));
    for _ in 0..40 {
        pair.put(5, 0, 128);
        pair.world.settle();
    }
    assert!(pair.world.nodes[1].core.placing.is_empty());
    assert_eq!(pair.counted(), pair.sent);
}

#[test]
fn a_disabled_table_entry_is_written_no_more() {
    let mut pair = Pair::new();
    pair.begin_placing();
    pair.put(3, 0, 128);
    assert_eq!(
        pair.world.ni(1).pt_disable(PT),
        Ok(false),
        "one is still to be counted"
    );
    pair.world.settle();
    assert_eq!(pair.counted(), pair.sent);
    assert_eq!(pair.world.ni(1).pt_disable(PT), Ok(true));
    pair.region.write(0, &[9; 128]);
    let counted = pair.counted();
    pair.put(3, 0, 128);
    pair.world.settle();
    assert_eq!((pair.content(0, 128), pair.counted()), (vec![9; 128], counted));
    pair.world.ni(1).pt_enable(PT).unwrap();
    pair.put(4, 0, 128);
    pair.world.settle();
    assert_eq!(
        (pair.content(0, 128), pair.counted()),
        (vec![4; 128], counted + 1)
    );
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
            pair.put(1, 0, 128);
            pair.world.settle();
        }
        assert!(pair.world.nodes[1].core.placing.is_empty(), "{what}");
    }
    // Where an entry acknowledges nothing, the initiator cannot know.
    let mut pair = Pair::new();
    let (entry, ct) = (pair.entry, pair.ct);
    let mut ni = pair.world.ni(1);
    ni.unlink(entry).unwrap();
    let mut mute = silent(&pair.region, ct);
    mute.options = mute.options | EntryOptions::ACK_DISABLE;
    ni.append(PT, mute, List::Priority, 0).unwrap();
    for _ in 0..40 {
        pair.put(1, 0, 128);
        pair.world.settle();
    }
    assert!(pair.world.nodes[1].core.placing.is_empty());
}

#[test]
fn a_peer_that_is_lost_keeps_nothing() {
    let mut pair = Pair::new();
    pair.begin_placing();
    assert!(!pair.world.nodes[1].core.placing.is_empty());
    pair.world.nodes[1].ended(name(0), doorbell_fabric::event::DownReason::Died);
    pair.world.settle();
    assert!(pair.world.nodes[1].core.placing.is_empty() && !pair.world.nodes[1].is_writing());
    let rail = pair.world.nodes[1].rails().next().unwrap().1;
    assert_eq!(rail.exposed(), 0, "its rail keeps nothing either");
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
    // Memory that it does not have, and heads that are none.
    bare.say(kind::PLACED, 0, 0, &[7]);
    bare.say(kind::PLACED, 0, u16::MAX, &[0]);
    bare.say(kind::CLOSED, 0, 0, &[7]);
    assert_eq!(drops(&bare, Drop::Unknown), 3);
    bare.say(kind::PLACED, 0x10, 0, &[0]);
    bare.say(kind::PLACED, 0, 0, &[0, 0]);
    assert_eq!(drops(&bare, Drop::Malformed), 2);
    for what in [kind::PLACED, kind::TAKEN_BACK, kind::CLOSED] {
        bare.say(what, 0, 0, &[]);
    }
    bare.say(kind::ROOM, 0, pt, &[0, 0, 1, 2, 3]);
    assert_eq!(drops(&bare, Drop::Short), 4);
    bare.say(kind::ROOM, 0, pt, &[0, 0, 1, 2, 3, 1 << 34]);
    bare.say(kind::ROOM, 0, pt, &[0, 0, 0, 2, 3, 0]);
    bare.say(kind::ROOM, 0x10, pt, &[0, 0, 1, 2, 3, 0]);
    assert_eq!(drops(&bare, Drop::Malformed), 5);
    // Any memory may be named: a put that finds it is none goes the other way.
    bare.say(
        kind::ROOM,
        0,
        pt,
        &[0, 0, u64::MAX, u64::MAX - 5, u64::MAX, 0xffff],
    );
    bare.say(kind::ROOM, 0, pt, &[0, 0, 7, 0, 4096, 0]);
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
    // It may take back what it never gave, as often as it likes, and has its answer.
    bare.say(kind::TAKEN_BACK, 0, 3, &[99]);
    let heard = bare.hear();
    let closed = [kind::CLOSED, 0, 3, 0];
    assert!(
        heard
            .iter()
            .any(|message| message[..4] == closed && message[8] == 99),
        "{heard:?}"
    );
}

fn ni_count(bare: &mut Bare, ct: CtHandle) -> u64 {
    bare.node.ni(Kind::MATCHING_LOGICAL).ct_get(ct).unwrap().success
}

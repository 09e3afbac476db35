//! Every operation once, over a rail and to oneself, short and long, on all four kinds of interfaces.

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::ni::*;
use doorbell_sim::SimConfig;

use super::world::*;

const KINDS: [Kind; 4] = [
    Kind::MATCHING_LOGICAL,
    Kind {
        matching: false,
        logical: true,
    },
    Kind {
        matching: true,
        logical: false,
    },
    Kind {
        matching: false,
        logical: false,
    },
];

fn without_gets() -> SimConfig {
    let config = SimConfig::default();
    let mut features = config.capabilities.features;
    features.get = false;
    SimConfig {
        capabilities: Capabilities {
            features,
            ..config.capabilities
        },
        ..config
    }
}

#[test]
fn puts_land_and_are_acknowledged_whatever_their_length() {
    for kind in KINDS {
        for (config, to) in [
            (SimConfig::default(), 1),
            (without_gets(), 1),
            (SimConfig::default(), 0),
        ] {
            let mut world = World::new(2, 1, kind, config);
            for length in [0, 1, 8, 100, 4000, 5000, 100_000, 1_000_000] {
                let target = world.target(to, 3, 42, 0);
                let landing = bytes(length + 10, 0xee);
                let mut ni = world.ni(to);
                let teq = ni.eq_alloc(8).unwrap();
                ni.pt_alloc(PtOptions::NONE, Some(teq), Some(3)).unwrap();
                let entry = ni
                    .append(3, Entry::open(memory(landing), BOTH), List::Priority, 5)
                    .unwrap();
                let mut ni = world.ni(0);
                let eq = ni.eq_alloc(8).unwrap();
                let source = numbered(length);
                let md = ni.md_bind(md(source, eq)).unwrap();
                ni.put(&put(md, length as u64, target)).unwrap();
                world.settle();
                let told = world.events(to, teq);
                let what = format!("{kind:?} {length} to {to}");
                assert_eq!(told.len(), 2, "{what}: {told:?}");
                assert_eq!(
                    (told[0].kind, told[1].kind),
                    (EventKind::Link, EventKind::Put),
                    "{what}"
                );
                let put = told[1];
                assert_eq!(
                    (put.mlength, put.rlength, put.hdr_data),
                    (length as u64, length as u64, 22),
                    "{what}"
                );
                assert_eq!(
                    (put.user_ptr, put.pt_index, put.initiator, put.uid),
                    (5, 3, world.process(0), 0)
                );
                assert_eq!(
                    (put.fail, put.list, put.match_bits),
                    (NiFail::Ok, List::Priority, 42)
                );
                assert_eq!((put.start, put.place), (landing.as_mut_ptr().addr(), 0));
                let heard = world.events(0, eq);
                assert_eq!(heard.len(), 2, "{what}: {heard:?}");
                assert_eq!((heard[0].kind, heard[1].kind), (EventKind::Send, EventKind::Ack));
                assert_eq!(
                    (heard[1].mlength, heard[1].user_ptr, heard[1].fail),
                    (length as u64, 11, NiFail::Ok)
                );
                let landed = landing.as_shared().to_vec();
                assert_eq!(landed[..length], source.as_shared().to_vec()[..], "{what}");
                assert_eq!(landed[length..], [0xee; 10], "{what}");
                let mut ni = world.ni(to);
                ni.unlink(entry).unwrap();
                ni.pt_free(3).unwrap();
                ni.eq_free(teq).unwrap();
                world.ni(0).md_release(md).unwrap();
            }
            assert_eq!(world.nodes[0].drops().total() + world.nodes[1].drops().total(), 0);
        }
    }
}

#[test]
fn gets_bring_what_is_there_whatever_its_length() {
    for kind in KINDS {
        for (config, to) in [
            (SimConfig::default(), 1),
            (without_gets(), 1),
            (SimConfig::default(), 0),
        ] {
            let mut world = World::new(2, 1, kind, config);
            for length in [0, 1, 8, 512, 513, 4000, 5000, 100_000, 1_000_000] {
                let target = world.target(to, 3, 42, 5);
                let there = numbered(length + 5);
                let mut ni = world.ni(to);
                let teq = ni.eq_alloc(8).unwrap();
                ni.pt_alloc(PtOptions::NONE, Some(teq), Some(3)).unwrap();
                let entry = ni
                    .append(3, Entry::open(memory(there), BOTH), List::Priority, 5)
                    .unwrap();
                let mut ni = world.ni(0);
                let eq = ni.eq_alloc(8).unwrap();
                let into = bytes(length + 3, 0xee);
                let md = ni.md_bind(md(into, eq)).unwrap();
                // More is requested than there is.
                ni.get(&get(md, length as u64 + 3, target)).unwrap();
                world.settle();
                let what = format!("{kind:?} {length} of {to}");
                let told = world.events(to, teq);
                assert_eq!(told.len(), 2, "{what}: {told:?}");
                assert_eq!(
                    (told[1].kind, told[1].mlength, told[1].place),
                    (EventKind::Get, length as u64, 5)
                );
                let heard = world.events(0, eq);
                assert_eq!(heard.len(), 1, "{what}: {heard:?}");
                assert_eq!(
                    (heard[0].kind, heard[0].mlength),
                    (EventKind::Reply, length as u64),
                    "{what}"
                );
                assert_eq!(
                    (heard[0].fail, heard[0].user_ptr, heard[0].remote_offset),
                    (NiFail::Ok, 33, 5)
                );
                let landed = into.as_shared().to_vec();
                assert_eq!(landed[..length], there.as_shared().to_vec()[5..], "{what}");
                assert_eq!(landed[length..], [0xee; 3], "{what}");
                world.ni(to).unlink(entry).unwrap();
                world.ni(to).pt_free(3).unwrap();
            }
            assert_eq!(world.nodes[0].drops().total() + world.nodes[1].drops().total(), 0);
        }
    }
}

#[test]
fn atomics_add_and_fetching_ones_bring_what_was_there() {
    for kind in KINDS {
        let mut world = World::new(2, 1, kind, SimConfig::default());
        let target = world.target(1, 0, 1, 8);
        let word = bytes(16, 0);
        let mut ni = world.ni(1);
        let teq = ni.eq_alloc(8).unwrap();
        ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
        ni.append(0, Entry::open(memory(word), BOTH), List::Priority, 5)
            .unwrap();
        let mut ni = world.ni(0);
        let eq = ni.eq_alloc(16).unwrap();
        let (from, into) = (bytes(8, 0), bytes(8, 0xff));
        from.write(0, &5u64.to_le_bytes());
        let (from, old) = (
            ni.md_bind(md(from, eq)).unwrap(),
            ni.md_bind(md(into, eq)).unwrap(),
        );
        ni.atomic(&Atomic {
            put: put(from, 8, target),
            kind: AtomicKind::Sum,
            datatype: Datatype::Uint64,
        })
        .unwrap();
        let mut operand = [0; 32];
        operand[0] = 5;
        let fetch = |kind| FetchAtomic {
            into: Piece { md: old, offset: 0 },
            from: Piece { md: from, offset: 0 },
            length: 8,
            target,
            user_ptr: 44,
            hdr_data: 55,
            kind,
            datatype: Datatype::Uint64,
            operand,
        };
        ni.fetch_atomic(&fetch(AtomicKind::Sum)).unwrap();
        world.settle();
        assert_eq!(into.as_shared().to_vec(), 5u64.to_le_bytes());
        assert_eq!(word.as_shared().to_vec()[8..], 10u64.to_le_bytes());
        world.ni(0).fetch_atomic(&fetch(AtomicKind::Cswap)).unwrap();
        world.settle();
        assert_eq!(into.as_shared().to_vec(), 10u64.to_le_bytes());
        assert_eq!(word.as_shared().to_vec()[8..], 10u64.to_le_bytes(), "5 is not 10");
        world.ni(0).fetch_atomic(&fetch(AtomicKind::CswapLt)).unwrap();
        world.settle();
        assert_eq!(
            word.as_shared().to_vec()[8..],
            5u64.to_le_bytes(),
            "5 is less than 10"
        );
        let kinds: Vec<_> = world
            .events(1, teq)
            .iter()
            .map(|event| (event.kind, event.atomic_operation))
            .collect();
        assert_eq!(
            kinds[1..],
            [
                (EventKind::Atomic, 2),
                (EventKind::FetchAtomic, 2),
                (EventKind::FetchAtomic, 11),
                (EventKind::FetchAtomic, 14)
            ]
        );
        let heard = world.kinds(0, eq);
        assert_eq!(heard.len(), 2 + 3 * 2, "{heard:?}");
        assert_eq!(world.nodes[1].drops().total(), 0);
    }
}

#[test]
fn an_unexpected_message_is_found_by_a_later_entry() {
    for kind in KINDS {
        for length in [8u64, 100_000] {
            let mut world = World::new(2, 1, kind, SimConfig::default());
            let target = world.target(1, 0, 9, 0);
            let room = bytes(200_000, 0);
            let mut ni = world.ni(1);
            let teq = ni.eq_alloc(16).unwrap();
            ni.pt_alloc(PtOptions::NONE, Some(teq), None).unwrap();
            let once = EntryOptions(BOTH.0 | EntryOptions::USE_ONCE.0);
            ni.append(0, Entry::open(memory(room), once), List::Overflow, 70)
                .unwrap();
            let mut ni = world.ni(0);
            let eq = ni.eq_alloc(8).unwrap();
            let md = ni.md_bind(md(numbered(length as usize), eq)).unwrap();
            ni.put(&put(md, length, target)).unwrap();
            world.settle();
            let mine = Entry::open(memory(bytes(8, 0)), once).matching(9, 0);
            world.ni(1).append(0, mine, List::Priority, 71).unwrap();
            let told = world.events(1, teq);
            let kinds: Vec<_> = told.iter().map(|event| (event.kind, event.user_ptr)).collect();
            assert_eq!(
                kinds,
                [
                    (EventKind::Link, 70),
                    (EventKind::Put, 70),
                    (EventKind::AutoUnlink, 70),
                    (EventKind::PutOverflow, 71),
                    (EventKind::AutoFree, 70),
                    (EventKind::AutoUnlink, 71),
                ]
            );
            assert_eq!(
                (told[3].start, told[3].mlength),
                (room.as_mut_ptr().addr(), length)
            );
            assert_eq!(told[3].list, List::Overflow);
            world.ni(1).pt_free(0).unwrap();
        }
    }
}

#[test]
fn a_missing_process_is_an_event_and_no_error() {
    let mut world = World::pair();
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(8).unwrap();
    let md = ni.md_bind(md(bytes(8, 0), eq)).unwrap();
    let far = Target {
        process: Process::rank(9),
        pt_index: 0,
        match_bits: 0,
        remote_offset: 0,
    };
    ni.put(&put(md, 8, far)).unwrap();
    ni.get(&get(md, 8, far)).unwrap();
    let fail = NiFail::Undeliverable;
    assert_eq!(
        world.kinds(0, eq),
        [
            (EventKind::Send, fail),
            (EventKind::Ack, fail),
            (EventKind::Reply, fail)
        ]
    );
    let target = world.target(1, 5, 0, 0);
    world.ni(0).put(&put(md, 8, target)).unwrap();
    world.settle();
    assert_eq!(
        world.kinds(0, eq),
        [(EventKind::Send, NiFail::Ok), (EventKind::Ack, NiFail::Dropped)]
    );
    assert_eq!(world.ni(1).status(Register::DropCount), 1);
}

#[test]
fn a_counting_event_triggers_in_order() {
    let mut world = World::pair();
    let target = world.target(1, 0, 0, 0);
    let landing = bytes(16, 0);
    let mut ni = world.ni(1);
    let ct = ni.ct_alloc().unwrap();
    ni.pt_alloc(PtOptions::NONE, None, None).unwrap();
    let options = EntryOptions(BOTH.0 | EntryOptions::EVENT_CT_COMM.0);
    ni.append(
        0,
        Entry::open(memory(landing), options).counted(ct),
        List::Priority,
        0,
    )
    .unwrap();
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(8).unwrap();
    let mine = ni.ct_alloc().unwrap();
    let md = ni.md_bind(md(numbered(8), eq)).unwrap();
    ni.trigger(mine, 2, Triggered::Put(put(md, 8, target))).unwrap();
    ni.trigger(mine, 1, Triggered::CtInc(mine, Count::success(1)))
        .unwrap();
    ni.md_release(md).unwrap();
    world.settle();
    assert_eq!(world.ni(1).ct_get(ct).unwrap(), Count::success(0));
    world.ni(0).ct_inc(mine, Count::success(1)).unwrap();
    world.settle();
    assert_eq!(world.ni(1).ct_get(ct).unwrap(), Count::success(1));
    assert_eq!(world.ni(0).ct_get(mine).unwrap(), Count::success(2));
    assert_eq!(
        landing.as_shared().to_vec()[..8],
        numbered(8).as_shared().to_vec()[..]
    );
}

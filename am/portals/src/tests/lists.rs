//! Lists, permissions, local offsets, searches, limits (reference: portals, sections 5 and 6).

use doorbell_fabric::ni::*;
use doorbell_sim::SimConfig;

use super::world::*;

struct Lists {
    world: World,
    teq: EqHandle,
    eq: EqHandle,
    md: MdHandle,
}

fn lists() -> Lists {
    let mut world = World::pair();
    let mut ni = world.ni(1);
    let teq = ni.eq_alloc(64).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(teq), Some(0)).unwrap();
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(64).unwrap();
    let md = ni.md_bind(md(numbered(64), eq)).unwrap();
    Lists { world, teq, eq, md }
}

const QUIET: EntryOptions = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0);

fn options(more: EntryOptions) -> EntryOptions {
    EntryOptions(QUIET.0 | more.0)
}

impl Lists {
    fn put(&mut self, bits: u64, length: u64, offset: u64) {
        let target = self.world.target(1, 0, bits, offset);
        self.world.ni(0).put(&put(self.md, length, target)).unwrap();
    }

    fn append(&mut self, entry: Entry, list: List, user_ptr: u64) -> EntryHandle {
        self.world.ni(1).append(0, entry, list, user_ptr).unwrap()
    }

    fn told(&mut self) -> Vec<Event> {
        self.world.settle();
        self.world.events(1, self.teq)
    }

    fn acks(&mut self) -> Vec<(NiFail, u64, u64)> {
        self.world.settle();
        let events = self.world.events(0, self.eq);
        let acks = events.iter().filter(|event| event.kind == EventKind::Ack);
        acks.map(|event| (event.fail, event.mlength, event.remote_offset))
            .collect()
    }
}

#[test]
fn an_atomic_that_is_cut_moves_the_local_offset_by_whole_elements() {
    for min_free in [4, 5] {
        let mut lists = lists();
        let entry = Entry {
            min_free,
            ..Entry::open(memory(bytes(20, 0)), options(EntryOptions::MANAGE_LOCAL))
        };
        lists.append(entry, List::Priority, 0);
        let target = lists.world.target(1, 0, 0, 0);
        let md = lists.md;
        lists
            .world
            .ni(0)
            .atomic(&Atomic {
                put: put(md, 24, target),
                kind: AtomicKind::Sum,
                datatype: Datatype::Uint64,
            })
            .unwrap();
        lists.put(0, 4, 0);
        // Two elements of three, then what lies behind them: if that is less than min_free, there is no more.
        let rest = if min_free == 4 {
            (NiFail::Ok, 4, 16)
        } else {
            (NiFail::Dropped, 0, 0)
        };
        assert_eq!(lists.acks(), [(NiFail::Ok, 16, 0), rest]);
    }
}

#[test]
fn permissions_are_judged_after_matching_and_consume_nothing() {
    let mut lists = lists();
    let mine = Entry {
        uid: 77,
        ..Entry::open(memory(bytes(8, 0)), options(EntryOptions::USE_ONCE)).matching(1, 0)
    };
    lists.append(mine, List::Priority, 1);
    lists.append(Entry::open(memory(bytes(8, 0)), QUIET), List::Priority, 2);
    lists.put(1, 8, 0);
    lists.put(1, 8, 0);
    assert_eq!(
        lists.acks(),
        [(NiFail::PermViolation, 0, 0); 2],
        "the later entry is not tried"
    );
    assert_eq!(lists.world.ni(1).status(Register::PermissionViolations), 2);
    let reads = EntryOptions(EntryOptions::OP_GET.0 | EntryOptions::USE_ONCE.0);
    lists.append(
        Entry::open(memory(bytes(8, 0)), reads).matching(2, 0),
        List::Priority,
        3,
    );
    lists.put(2, 8, 0);
    lists.put(3, 8, 0);
    assert_eq!(
        lists.acks(),
        [(NiFail::Ok, 8, 0); 2],
        "the open entry stands in front"
    );
    assert_eq!(lists.world.ni(1).status(Register::DropCount), 0);
    assert_eq!(lists.world.ni(1).limits().max_entries, 1024);
}

#[test]
fn an_operation_that_is_not_allowed_is_a_violation() {
    let mut lists = lists();
    let reads = EntryOptions(EntryOptions::OP_GET.0);
    lists.append(Entry::open(memory(bytes(8, 0)), reads), List::Priority, 3);
    lists.put(2, 8, 0);
    assert_eq!(lists.acks(), [(NiFail::OpViolation, 0, 0)]);
    let writes = EntryOptions(EntryOptions::OP_PUT.0);
    let mut ni = lists.world.ni(1);
    ni.pt_alloc(PtOptions::NONE, None, Some(1)).unwrap();
    ni.append(1, Entry::open(memory(bytes(8, 0)), writes), List::Priority, 3)
        .unwrap();
    let target = lists.world.target(1, 1, 0, 0);
    lists.world.ni(0).get(&get(lists.md, 8, target)).unwrap();
    lists.world.settle();
    let eq = lists.eq;
    assert_eq!(
        lists.world.kinds(0, eq),
        [(EventKind::Reply, NiFail::OpViolation)]
    );
    assert_eq!(lists.world.ni(1).status(Register::OperationViolations), 2);
}

#[test]
fn local_offsets_pack_and_end_with_min_free() {
    let mut lists = lists();
    let room = bytes(20, 0);
    let entry = Entry {
        min_free: 5,
        ..Entry::open(memory(room), options(EntryOptions::MANAGE_LOCAL))
    };
    let handle = lists.append(entry, List::Priority, 9);
    lists.put(0, 6, 1000);
    lists.put(0, 8, 3);
    assert_eq!(lists.acks(), [(NiFail::Ok, 6, 0), (NiFail::Ok, 8, 6)]);
    assert_eq!(
        room.as_shared().to_vec()[6..14],
        numbered(64).as_shared().to_vec()[..8]
    );
    assert_eq!(lists.told().len(), 2);
    lists.put(0, 2, 0);
    let told: Vec<_> = lists
        .told()
        .iter()
        .map(|event| (event.kind, event.place))
        .collect();
    assert_eq!(told, [(EventKind::Put, 14), (EventKind::AutoUnlink, 0)]);
    assert_eq!(
        lists.world.ni(1).unlink(handle),
        Err(NiError::ArgInvalid("an entry's handle"))
    );
}

#[test]
fn what_does_not_fit_is_cut_or_passes_to_the_next() {
    let mut lists = lists();
    lists.append(
        Entry::open(memory(bytes(4, 0)), options(EntryOptions::NO_TRUNCATE)),
        List::Priority,
        1,
    );
    lists.append(Entry::open(memory(bytes(6, 0)), QUIET), List::Priority, 2);
    lists.put(0, 4, 0);
    lists.put(0, 8, 0);
    lists.put(0, 4, 1);
    lists.put(0, 4, 100);
    let told: Vec<_> = lists
        .told()
        .iter()
        .map(|event| (event.user_ptr, event.mlength, event.rlength))
        .collect();
    assert_eq!(told, [(1, 4, 4), (2, 6, 8), (2, 4, 4), (2, 0, 4)]);
}

#[test]
fn persistent_entries_meet_every_header_and_move_only_if_they_say_so() {
    for (moves, place) in [(EntryOptions::NONE, 0), (EntryOptions::LOCAL_INC_UH_RLENGTH, 12)] {
        let mut lists = lists();
        let pool = Entry::open(memory(bytes(64, 0)), options(EntryOptions::MANAGE_LOCAL));
        let pool = lists.append(pool, List::Overflow, 1);
        (0..3).for_each(|_| lists.put(5, 4, 0));
        lists.put(6, 4, 0);
        assert_eq!(lists.told().len(), 4);
        assert_eq!(lists.world.ni(1).unlink(pool), Err(NiError::InUse));
        let entry = Entry::open(
            memory(bytes(64, 0)),
            options(EntryOptions(EntryOptions::MANAGE_LOCAL.0 | moves.0)),
        );
        let mine = lists.append(entry.matching(5, 0), List::Priority, 2);
        let told: Vec<_> = lists
            .told()
            .iter()
            .map(|event| (event.kind, event.place, event.user_ptr))
            .collect();
        assert_eq!(told, [0, 4, 8].map(|place| (EventKind::PutOverflow, place, 2)));
        lists.put(5, 4, 0);
        assert_eq!(lists.told().last().map(|event| event.place), Some(place));
        let mut ni = lists.world.ni(1);
        ni.unlink(mine).unwrap();
        assert_eq!(ni.unlink(pool), Err(NiError::InUse), "one header is left");
    }
}

#[test]
fn headers_that_an_entry_may_not_take_are_reported_as_failures() {
    let mut lists = lists();
    lists.append(Entry::open(memory(bytes(64, 0)), QUIET), List::Overflow, 1);
    lists.put(5, 4, 0);
    assert_eq!(lists.told().len(), 1);
    let reads = EntryOptions(EntryOptions::OP_GET.0 | EntryOptions::EVENT_LINK_DISABLE.0);
    lists.append(Entry::open(memory(bytes(8, 0)), reads), List::Priority, 3);
    let told: Vec<_> = lists
        .told()
        .iter()
        .map(|event| (event.kind, event.fail))
        .collect();
    assert_eq!(told, [(EventKind::PutOverflow, NiFail::OpViolation)]);
}

#[test]
fn searches_tell_take_and_find_nothing() {
    let mut lists = lists();
    lists.append(Entry::open(memory(bytes(64, 0)), QUIET), List::Overflow, 1);
    (0..3).for_each(|_| lists.put(5, 4, 0));
    assert_eq!(lists.told().len(), 3);
    let once = Entry::open(Memory::Empty, options(EntryOptions::USE_ONCE)).matching(5, 0);
    let all = Entry::open(Memory::Empty, QUIET).matching(5, 0);
    let none = Entry::open(Memory::Empty, QUIET).matching(6, 0);
    let mut search = |entry: &Entry, how| {
        lists.world.ni(1).search(0, entry, how, 8).unwrap();
        lists
            .told()
            .iter()
            .map(|event| (event.kind, event.fail))
            .collect::<Vec<_>>()
    };
    let (ok, found, taken) = (NiFail::Ok, EventKind::Search, EventKind::PutOverflow);
    assert_eq!(search(&once, Search::Only), [(found, ok)]);
    assert_eq!(search(&all, Search::Only), [(found, ok); 3]);
    assert_eq!(search(&none, Search::Only), [(found, NiFail::NoMatch)]);
    assert_eq!(search(&once, Search::Delete), [(taken, ok)]);
    assert_eq!(search(&all, Search::Delete), [(taken, ok); 2]);
    assert_eq!(search(&all, Search::Delete), [(found, NiFail::NoMatch)]);
    assert_eq!(lists.world.ni(1).status(Register::OperationViolations), 0);
}

#[test]
fn limits_are_exact() {
    let limits = NiLimits {
        max_entries: 3,
        max_mds: 2,
        max_cts: 2,
        max_eqs: 2,
        max_list_size: 2,
        max_triggered_ops: 2,
        max_pt_index: 1,
        max_iovecs: 2,
        ..NiLimits::default()
    };
    let mut world = World::with_limits(1, 1, Kind::MATCHING_LOGICAL, SimConfig::default(), limits);
    let mut ni = world.ni(0);
    let eqs: Vec<_> = (0..2).map(|_| ni.eq_alloc(1).unwrap()).collect();
    assert_eq!(ni.eq_alloc(1), Err(NiError::NoSpace("max_eqs")));
    let cts: Vec<_> = (0..2).map(|_| ni.ct_alloc().unwrap()).collect();
    assert_eq!(ni.ct_alloc(), Err(NiError::NoSpace("max_cts")));
    let mds: Vec<_> = (0..2)
        .map(|_| ni.md_bind(md(bytes(8, 0), eqs[0])).unwrap())
        .collect();
    assert_eq!(
        ni.md_bind(md(bytes(8, 0), eqs[0])),
        Err(NiError::NoSpace("max_mds"))
    );
    assert_eq!(
        (
            ni.pt_alloc(PtOptions::NONE, None, None),
            ni.pt_alloc(PtOptions::NONE, None, None)
        ),
        (Ok(0), Ok(1))
    );
    assert_eq!(ni.pt_alloc(PtOptions::NONE, None, None), Err(NiError::PtFull));
    assert_eq!(ni.pt_alloc(PtOptions::NONE, None, Some(1)), Err(NiError::PtInUse));
    let open = || Entry::open(Memory::Empty, BOTH);
    let first = ni.append(0, open(), List::Priority, 0).unwrap();
    ni.append(0, open(), List::Priority, 0).unwrap();
    assert_eq!(ni.append(0, open(), List::Priority, 0), Err(NiError::ListTooLong));
    ni.append(0, open(), List::Overflow, 0).unwrap();
    assert_eq!(
        ni.append(1, open(), List::Overflow, 0),
        Err(NiError::NoSpace("max_entries"))
    );
    ni.unlink(first).unwrap();
    ni.append(1, open(), List::Overflow, 0).unwrap();
    let inc = |ct| Triggered::CtInc(ct, Count::success(1));
    for _ in 0..2 {
        ni.trigger(cts[0], 5, inc(cts[1])).unwrap();
        ni.trigger(cts[1], 5, inc(cts[0])).unwrap();
    }
    let refused = Err(NiError::NoSpace("max_triggered_ops"));
    assert_eq!(ni.trigger(cts[0], 5, inc(cts[1])), refused);
    ni.ct_cancel_triggered(cts[0]).unwrap();
    ni.trigger(cts[0], 5, inc(cts[1])).unwrap();
    ni.md_release(mds[0]).unwrap();
    assert!(ni.md_release(mds[0]).is_err(), "it is gone");
    ni.md_bind(md(bytes(8, 0), eqs[0])).unwrap();
    let pieces = |count: usize| Memory::Many(vec![doorbell_fabric::message::Landing::EMPTY; count].into());
    ni.md_release(mds[1]).unwrap();
    let many = |count| Md {
        memory: pieces(count),
        ..Md::default()
    };
    assert!(ni.md_bind(many(3)).is_err());
    ni.md_bind(many(2)).unwrap();
}

#[test]
fn a_triggered_append_has_its_handle_before_and_its_place_after() {
    let mut lists = lists();
    let mut ni = lists.world.ni(1);
    let ct = ni.ct_alloc().unwrap();
    let landing = bytes(8, 0);
    let entry = Box::new(Entry::open(memory(landing), QUIET));
    let append = Triggered::Append {
        pt_index: 0,
        entry,
        list: List::Priority,
        user_ptr: 4,
    };
    let handle = ni.trigger(ct, 1, append).unwrap().unwrap();
    assert_eq!(ni.unlink(handle), Err(NiError::InUse));
    lists.put(0, 8, 0);
    assert_eq!(lists.acks(), [(NiFail::Dropped, 0, 0)]);
    lists.world.ni(1).ct_inc(ct, Count::success(1)).unwrap();
    lists.put(0, 8, 0);
    assert_eq!(lists.acks(), [(NiFail::Ok, 8, 0)]);
    let mut ni = lists.world.ni(1);
    ni.trigger(ct, 2, Triggered::Unlink(handle)).unwrap();
    ni.ct_inc(ct, Count::success(1)).unwrap();
    assert!(ni.unlink(handle).is_err());
    lists.put(0, 8, 0);
    assert_eq!(lists.acks(), [(NiFail::Dropped, 0, 0)]);
}

#[test]
fn physical_processes_match_by_node_and_process_each_or_both() {
    let kind = Kind {
        matching: true,
        logical: false,
    };
    for (match_id, takes) in [
        (Process::physical(NID_ANY, PID_ANY), true),
        (Process::physical(100, PID_ANY), true),
        (Process::physical(NID_ANY, 7), true),
        (Process::physical(100, 7), true),
        (Process::physical(101, PID_ANY), false),
        (Process::physical(NID_ANY, 8), false),
        (Process::physical(55_555, 7), false),
    ] {
        let mut world = World::new(2, 1, kind, SimConfig::default());
        let mut ni = world.ni(1);
        ni.pt_alloc(PtOptions::NONE, None, None).unwrap();
        ni.append(
            0,
            Entry::open(Memory::Empty, BOTH).from(match_id),
            List::Priority,
            0,
        )
        .unwrap();
        let target = world.target(1, 0, 0, 0);
        let mut ni = world.ni(0);
        let eq = ni.eq_alloc(4).unwrap();
        let md = ni.md_bind(md(bytes(8, 0), eq)).unwrap();
        ni.put(&put(md, 8, target)).unwrap();
        world.settle();
        let fail = if takes { NiFail::Ok } else { NiFail::Dropped };
        assert_eq!(world.kinds(0, eq)[1], (EventKind::Ack, fail), "{match_id:?}");
    }
}

#[test]
fn a_logical_interface_is_nothing_before_its_map_and_keeps_the_first() {
    let mut node: crate::Node<doorbell_sim::SimRail> = crate::Node::new(crate::Config::new(name(0)));
    let kind = Kind::MATCHING_LOGICAL;
    assert_eq!(node.ni(kind).eq_alloc(1), Err(NiError::NoInit));
    node.ni_init(kind, None).unwrap();
    assert_eq!(node.ni(kind).eq_alloc(1), Err(NiError::NoInit));
    assert!(node.set_map(kind, &[name(1)]).is_err());
    node.set_map(kind, &[name(1), name(0)]).unwrap();
    assert_eq!(node.set_map(kind, &[name(0)]), Err(NiError::Ignored));
    assert_eq!(node.ni(kind).id(), Process::rank(1));
    assert_eq!(node.get_map(kind), Ok(&[name(1), name(0)][..]));
    let eq = node.ni(kind).eq_alloc(1).unwrap();
    node.ni_init(kind, None).unwrap();
    node.ni_fini(kind).unwrap();
    assert_eq!(
        node.ni(kind).eq_get(eq),
        Ok(EqGet::Empty),
        "it was initialised twice"
    );
    node.ni_fini(kind).unwrap();
    assert_eq!(
        (node.ni(kind).eq_get(eq), node.ni_fini(kind)),
        (Err(NiError::NoInit), Err(NiError::NoInit))
    );
    node.ni_init(kind, None).unwrap();
    node.set_map(kind, &[name(0)]).unwrap();
    let again = node.ni(kind).eq_alloc(1).unwrap();
    assert_ne!(again, eq);
    assert!(
        node.ni(kind).eq_get(eq).is_err(),
        "handles of a former life are old"
    );
}

#[test]
fn a_header_whose_bytes_are_still_coming_is_reported_before_the_entry_that_met_it() {
    for once in [false, true] {
        let mut lists = lists();
        let md = lists
            .world
            .ni(0)
            .md_bind(md(numbered(1_000_000), lists.eq))
            .unwrap();
        let over = Entry::open(memory(bytes(1_000_000, 0)), QUIET);
        lists.append(over, List::Overflow, 70);
        let target = lists.world.target(1, 0, 1, 0);
        lists.world.ni(0).put(&put(md, 1_000_000, target)).unwrap();
        // Until the announcement is there, and not the bytes.
        let kind = lists.world.kind.number() as usize;
        while lists.world.nodes[1].core.nis[kind]
            .as_ref()
            .unwrap()
            .headers
            .unclaimed
            == 0
        {
            let now = lists.world.net.now();
            for node in &mut lists.world.nodes {
                node.progress(now);
                node.poll(1);
                node.flush();
            }
            lists.world.net.advance_to_next_event();
        }
        let more = if once {
            EntryOptions::USE_ONCE
        } else {
            EntryOptions::NONE
        };
        let mine = Entry::open(memory(bytes(8, 0)), EntryOptions(BOTH.0 | more.0)).matching(1, 0);
        lists.append(mine, List::Priority, 71);
        let teq = lists.teq;
        assert_eq!(lists.world.events(1, teq), [], "its bytes are on their way");
        let told: Vec<_> = lists
            .told()
            .iter()
            .map(|event| (event.kind, event.user_ptr))
            .collect();
        let last = if once {
            EventKind::AutoUnlink
        } else {
            EventKind::Link
        };
        assert_eq!(
            told,
            [(EventKind::Put, 70), (EventKind::PutOverflow, 71), (last, 71)]
        );
    }
}

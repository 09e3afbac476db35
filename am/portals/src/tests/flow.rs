//! Flow control: what is disabled when, which events are posted, and that nothing is lost (reference:
//! portals, sections 4, 6 and 7).

use doorbell_fabric::ni::*;
use doorbell_sim::SimConfig;

use super::world::*;

struct Flow {
    world: World,
    teq: EqHandle,
    eq: EqHandle,
    md: MdHandle,
}

fn flow(count: usize, length: usize) -> Flow {
    let mut world = World::new(2, 1, Kind::MATCHING_LOGICAL, SimConfig::default());
    let mut ni = world.ni(1);
    let teq = ni.eq_alloc(count).unwrap();
    ni.pt_alloc(PtOptions::FLOWCTRL, Some(teq), Some(0)).unwrap();
    let mut ni = world.ni(0);
    let eq = ni.eq_alloc(64).unwrap();
    let md = ni.md_bind(md(numbered(length), eq)).unwrap();
    Flow { world, teq, eq, md }
}

impl Flow {
    fn append(&mut self, options: EntryOptions, list: List, length: usize) {
        let quiet = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0 | options.0);
        let entry = Entry::open(memory(bytes(length, 0)), quiet);
        self.world.ni(1).append(0, entry, list, 0).unwrap();
    }

    fn put(&mut self, length: u64) {
        let target = self.world.target(1, 0, 0, 0);
        self.world.ni(0).put(&put(self.md, length, target)).unwrap();
    }

    fn acks(&mut self) -> Vec<NiFail> {
        self.world.settle();
        let events = self.world.events(0, self.eq);
        let acks = events.iter().filter(|event| event.kind == EventKind::Ack);
        acks.map(|event| event.fail).collect()
    }
}

#[test]
fn flow_control_needs_a_queue_and_without_an_entry_disables_and_reports_once() {
    let mut flow = flow(8, 8);
    let refused = flow.world.ni(1).pt_alloc(PtOptions::FLOWCTRL, None, None);
    assert_eq!(refused, Err(NiError::PtEqNeeded));
    (0..3).for_each(|_| flow.put(8));
    assert_eq!(flow.acks(), [NiFail::PtDisabled; 3]);
    assert_eq!(
        flow.world.kinds(1, flow.teq),
        [(EventKind::PtDisabled, NiFail::Ok)]
    );
    flow.append(EntryOptions::NONE, List::Priority, 8);
    flow.put(8);
    assert_eq!(flow.acks(), [NiFail::PtDisabled]);
    flow.world.ni(1).pt_enable(0).unwrap();
    flow.put(8);
    assert_eq!(flow.acks(), [NiFail::Ok]);
    assert_eq!(flow.world.kinds(1, flow.teq), [(EventKind::Put, NiFail::Ok)]);
    assert_eq!(flow.world.ni(1).status(Register::DropCount), 0);
}

#[test]
fn a_full_queue_disables_and_loses_no_event() {
    let mut flow = flow(4, 8);
    flow.append(EntryOptions::NONE, List::Priority, 8);
    (0..6).for_each(|_| flow.put(8));
    let (ok, off) = (NiFail::Ok, NiFail::PtDisabled);
    assert_eq!(flow.acks(), [ok, ok, ok, ok, off, off]);
    let told = flow.world.kinds(1, flow.teq);
    assert_eq!(told[..4], [(EventKind::Put, ok); 4]);
    assert_eq!(told[4..], [(EventKind::PtDisabled, ok)]);
    // Drained and enabled: all starts over.
    flow.world.ni(1).pt_enable(0).unwrap();
    flow.put(8);
    assert_eq!(flow.acks(), [ok]);
    assert_eq!(flow.world.kinds(1, flow.teq).len(), 1);
}

#[test]
fn entries_used_up_overshoot_by_one_event_that_is_kept() {
    let mut flow = flow(1, 8);
    flow.append(EntryOptions::USE_ONCE, List::Priority, 8);
    flow.put(8);
    assert_eq!(flow.acks(), [NiFail::Ok]);
    let kinds: Vec<_> = flow
        .world
        .kinds(1, flow.teq)
        .into_iter()
        .map(|told| told.0)
        .collect();
    assert_eq!(
        kinds,
        [EventKind::Put, EventKind::AutoUnlink, EventKind::PtDisabled]
    );
}

#[test]
fn an_entry_without_flow_control_that_shares_the_queue_reports_its_end_first_too() {
    let mut flow = flow(1, 8);
    let mut ni = flow.world.ni(1);
    ni.pt_alloc(PtOptions::NONE, Some(flow.teq), Some(1)).unwrap();
    let once = EntryOptions(BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0 | EntryOptions::USE_ONCE.0);
    ni.append(1, Entry::open(memory(bytes(8, 0)), once), List::Priority, 0)
        .unwrap();
    let target = flow.world.target(1, 1, 0, 0);
    flow.world.ni(0).put(&put(flow.md, 8, target)).unwrap();
    assert_eq!(flow.acks(), [NiFail::Ok]);
    let told = flow.world.events(1, flow.teq);
    let of_entry = told.iter().filter(|event| event.pt_index == 1);
    let kinds: Vec<_> = of_entry.map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [EventKind::Put, EventKind::AutoUnlink, EventKind::PtDisabled]
    );
}

#[test]
fn pt_disabled_waits_for_the_last_operation_in_progress() {
    let mut flow = flow(8, 1_000_000);
    flow.append(EntryOptions::USE_ONCE, List::Priority, 1_000_000);
    flow.put(1_000_000);
    flow.put(8);
    let kinds = |flow: &mut Flow| -> Vec<_> {
        flow.world
            .kinds(1, flow.teq)
            .into_iter()
            .map(|told| told.0)
            .collect()
    };
    assert_eq!(flow.acks(), [NiFail::PtDisabled, NiFail::Ok]);
    assert_eq!(
        kinds(&mut flow),
        [EventKind::Put, EventKind::AutoUnlink, EventKind::PtDisabled]
    );
}

#[test]
fn headers_run_out_exactly_and_with_flow_control_that_disables() {
    for (options, fail) in [
        (PtOptions::FLOWCTRL, NiFail::PtDisabled),
        (PtOptions::NONE, NiFail::Dropped),
    ] {
        let limits = NiLimits {
            max_unexpected_headers: 3,
            ..NiLimits::default()
        };
        let mut world = World::with_limits(2, 1, Kind::MATCHING_LOGICAL, SimConfig::default(), limits);
        let mut ni = world.ni(1);
        assert_eq!(ni.limits().max_unexpected_headers, 3);
        let teq = ni.eq_alloc(32).unwrap();
        ni.pt_alloc(options, Some(teq), None).unwrap();
        ni.append(0, Entry::open(memory(bytes(8, 0)), BOTH), List::Overflow, 0)
            .unwrap();
        let mut ni = world.ni(0);
        let eq = ni.eq_alloc(32).unwrap();
        let md = ni.md_bind(md(bytes(8, 1), eq)).unwrap();
        for _ in 0..5 {
            let target = world.target(1, 0, 0, 0);
            world.ni(0).put(&put(md, 8, target)).unwrap();
        }
        world.settle();
        let acks: Vec<_> = world
            .events(0, eq)
            .into_iter()
            .filter(|event| event.kind == EventKind::Ack)
            .collect();
        let fails: Vec<_> = acks.iter().map(|event| event.fail).collect();
        assert_eq!(fails, [NiFail::Ok, NiFail::Ok, NiFail::Ok, fail, fail]);
        assert_eq!(world.ni(1).pt_free(0), Err(NiError::PtInUse));
    }
}

#[test]
fn a_disabled_entry_takes_nothing_new() {
    let mut flow = flow(8, 8);
    flow.append(EntryOptions::NONE, List::Priority, 8);
    assert_eq!(flow.world.ni(1).pt_disable(0), Ok(true));
    flow.put(8);
    assert_eq!(flow.acks(), [NiFail::PtDisabled]);
    assert_eq!(flow.world.kinds(1, flow.teq), [], "the program did it, and knows");
    let mut ni = flow.world.ni(1);
    ni.pt_alloc(PtOptions::ALLOC_DISABLED, None, Some(5)).unwrap();
    let target = flow.world.target(1, 5, 0, 0);
    flow.world.ni(0).put(&put(flow.md, 8, target)).unwrap();
    assert_eq!(flow.acks(), [NiFail::PtDisabled]);
}

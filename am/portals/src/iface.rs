//! One of the up to four interfaces of a process: its objects, and the events that it posts.

use std::collections::VecDeque;

use doorbell_fabric::ni::{
    Count, EntryOptions, Event, EventKind, Kind, Lost, NiError, NiFail, NiLimits, Process, PtOptions,
    Register,
};

use crate::counting::{Counting, Triggers};
use crate::entries::{EntrySlot, Headers, Standing};
use crate::events::{BLANK, EventQueue};
use crate::memory::MdSlot;
use crate::peers::NONE;
use crate::slab::{Slab, class};
use crate::table::Table;

/// The map of a logical interface.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) processes: Box<[Process]>,
    /// The peer of each rank, [`NONE`] while it is not known.
    pub(crate) peers: Vec<u32>,
}

/// An interface of a process.
#[derive(Debug)]
pub(crate) struct Iface {
    pub(crate) kind: Kind,
    /// How often it was initialised, and not finished; zero: it is not there.
    pub(crate) users: u32,
    pub(crate) limits: NiLimits,
    /// Whether it can be used: it is there, and a logical one has its map.
    pub(crate) ready: bool,
    pub(crate) eqs: Slab<EventQueue>,
    pub(crate) cts: Slab<Counting>,
    pub(crate) mds: Slab<MdSlot>,
    pub(crate) entries: Slab<EntrySlot>,
    pub(crate) tables: Vec<Option<Box<Table>>>,
    pub(crate) headers: Headers,
    pub(crate) triggers: Triggers,
    pub(crate) registers: [u64; 3],
    pub(crate) map: Option<Map>,
    /// This process, as the kind names it.
    pub(crate) id: Process,
    /// The identity by which a peer's messages are matched (rank, or node and process id), by peer; [`NONE`]
    /// for a peer without a rank.
    pub(crate) sources: Vec<u32>,
    pub(crate) lost: VecDeque<Lost>,
    /// A triggered operation is being done: it names its descriptors by their index.
    pub(crate) by_index: bool,
    /// Table entries that were ever allocated.
    pub(crate) tables_made: u64,
}

impl Iface {
    pub(crate) fn new(kind: Kind, limits: NiLimits) -> Self {
        let number = kind.number();
        Self {
            kind,
            users: 1,
            ready: false,
            eqs: Slab::new(class::EQ, number, limits.max_eqs),
            cts: Slab::new(class::CT, number, limits.max_cts),
            mds: Slab::new(class::MD, number, limits.max_mds),
            entries: Slab::new(class::ENTRY, number, limits.max_entries),
            tables: (0..=limits.max_pt_index).map(|_| None).collect(),
            headers: Headers::default(),
            triggers: Triggers::default(),
            registers: [0; 3],
            map: None,
            id: Process { nid: NONE, pid: 0 },
            sources: Vec::new(),
            lost: VecDeque::new(),
            by_index: false,
            tables_made: 0,
            limits,
        }
    }

    /// Initialises the same interface again after it was finished: of its objects nothing is left but that
    /// old handles stay old.
    pub(crate) fn renew(&mut self, limits: NiLimits) {
        self.eqs.renew(limits.max_eqs);
        self.cts.renew(limits.max_cts);
        self.mds.renew(limits.max_mds);
        self.entries.renew(limits.max_entries);
        self.users = 1;
        self.ready = false;
        self.tables = (0..=limits.max_pt_index).map(|_| None).collect();
        self.headers = Headers::default();
        self.triggers = Triggers::default();
        self.registers = [0; 3];
        self.map = None;
        self.lost.clear();
        self.limits = limits;
    }

    #[inline(always)]
    pub(crate) fn table(&self, pt: u32) -> Option<&Table> {
        self.tables.get(pt as usize)?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn table_mut(&mut self, pt: u32) -> Option<&mut Table> {
        self.tables.get_mut(pt as usize)?.as_deref_mut()
    }

    pub(crate) fn allocated(&mut self, pt: u32) -> Result<&mut Table, NiError> {
        self.table_mut(pt)
            .ok_or(NiError::ArgInvalid("a portal table index that is not allocated"))
    }

    #[cold]
    pub(crate) fn register(&mut self, register: Register) {
        if let Some(count) = self.registers.get_mut(register as usize) {
            *count += 1;
        }
    }

    /// Queues an event, where there is a queue. Where flow control is wanted it is kept, and the table
    /// entries of a queue that is full with it are disabled.
    #[inline(always)]
    pub(crate) fn post(&mut self, eq: u32, event: &Event, kept: bool, tell: bool) {
        let Some(queue) = self.eqs.get_mut(eq) else { return };
        if kept {
            queue.unpromise();
        }
        if queue.flow == 0 {
            return queue.post(event);
        }
        queue.post_kept(event);
        if queue.is_full() {
            self.disable_all(eq, tell);
        }
    }

    /// Disables all table entries that post to this queue, which is full.
    #[cold]
    #[inline(never)]
    pub(crate) fn disable_all(&mut self, eq: u32, tell: bool) {
        for pt in 0..self.tables.len() as u32 {
            if self
                .table(pt)
                .is_some_and(|table| table.eq == eq && table.enabled)
            {
                self.auto_disable(pt, tell);
            }
        }
    }

    /// Disables a table entry for flow control; its event is posted when the last operation in progress has
    /// ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn auto_disable(&mut self, pt: u32, tell: bool) {
        let Some(table) = self.table_mut(pt) else { return };
        if table.enabled {
            table.enabled = false;
            table.owes_event = tell;
            self.post_disabled(pt);
        }
    }

    /// Posts the event that a table entry was disabled, if that is due.
    pub(crate) fn post_disabled(&mut self, pt: u32) {
        let Some(table) = self.table_mut(pt) else { return };
        if !table.owes_event || table.in_progress != 0 {
            return;
        }
        table.owes_event = false;
        if std::mem::replace(&mut table.told, true) {
            return;
        }
        let (eq, event) = (
            table.eq,
            Event {
                kind: EventKind::PtDisabled,
                pt_index: pt,
                ..BLANK
            },
        );
        if let Some(queue) = self.eqs.get_mut(eq) {
            queue.post_disabled(&event);
        }
    }

    /// Posts one of LINK, AUTO_UNLINK and AUTO_FREE, if the options allow it.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_entry(&mut self, kind: EventKind, pt: u32, options: EntryOptions, user_ptr: u64) {
        let disable = match kind {
            EventKind::Link => EntryOptions::EVENT_LINK_DISABLE,
            _ => EntryOptions::EVENT_UNLINK_DISABLE,
        };
        let eq = self.table(pt).map_or(0, |table| table.eq);
        if eq == 0 || options.has(disable) {
            return;
        }
        let event = Event {
            kind,
            pt_index: pt,
            user_ptr,
            ..BLANK
        };
        let tell = !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE);
        self.post(eq, &event, false, tell);
    }

    /// Adds to a counting event; what has waited for that fires.
    #[inline(always)]
    pub(crate) fn count(&mut self, ct: u32, by: Count) {
        if ct == 0 {
            return;
        }
        let Some(counting) = self.cts.get_mut(ct) else {
            return;
        };
        counting.value.success = counting.value.success.saturating_add(by.success);
        counting.value.failure = counting.value.failure.saturating_add(by.failure);
        if counting.is_waited_for() {
            self.triggers.fire(counting);
        }
    }

    /// Ends an operation that an entry has taken: event, count, AUTO_UNLINK where it was the last one of an
    /// entry that is used up, whatever waited for that, and the account of its table entry.
    #[inline(always)]
    pub(crate) fn ended(&mut self, entry: u32, header: u32, event: &Event, kept: bool) {
        let Some(slot) = self.entries.at_mut(entry) else {
            return;
        };
        slot.ops -= 1;
        let (options, ct) = (slot.options, slot.ct);
        let idle = slot.ops == 0 && slot.standing == Standing::Gone;
        let ok = event.fail == NiFail::Ok;
        let eq = match self.table(event.pt_index) {
            Some(table) => table.eq,
            None => 0,
        };
        if eq != 0 {
            if posts(options, ok) {
                self.post(
                    eq,
                    event,
                    kept,
                    !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE),
                );
            } else if kept && let Some(queue) = self.eqs.get_mut(eq) {
                queue.unpromise();
            }
        }
        if ct != 0 && options.has(EntryOptions::EVENT_CT_COMM) {
            self.count(ct, counted(options.has(EntryOptions::EVENT_CT_BYTES), event));
        }
        if idle {
            self.unlinked_if_done(entry);
        }
        if header != NONE {
            self.header_landed(header, event);
        }
        if idle {
            self.free_if_idle(entry);
        }
        if let Some(table) = self.table_mut(event.pt_index) {
            table.in_progress -= 1;
            if table.owes_event {
                self.post_disabled(event.pt_index);
            }
        }
    }

    /// An entry that is off its list and that nothing refers to is no more.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_if_idle(&mut self, entry: u32) {
        let Some(slot) = self.entries.at(entry) else {
            return;
        };
        if slot.standing != Standing::Gone || !slot.is_idle() {
            return;
        }
        let Some(slot) = self.entries.take_counted(entry) else {
            return;
        };
        if slot.list == doorbell_fabric::ni::List::Overflow {
            self.post_entry(EventKind::AutoFree, slot.pt, slot.options, slot.user_ptr);
        }
    }

    /// A table entry is freed: its queue has one less that uses flow control, if it did.
    pub(crate) fn flow_ends(&mut self, eq: u32, options: PtOptions) {
        if options.has(PtOptions::FLOWCTRL)
            && let Some(queue) = self.eqs.get_mut(eq)
        {
            queue.flow = queue.flow.saturating_sub(1);
        }
    }
}

/// Whether an entry with these options posts an event when an operation has ended: failures always.
#[inline(always)]
pub(crate) fn posts(options: EntryOptions, ok: bool) -> bool {
    let quiet = ok && options.has(EntryOptions::EVENT_SUCCESS_DISABLE);
    !quiet && !options.has(EntryOptions::EVENT_COMM_DISABLE)
}

/// Returns what an event adds to a counting event: a failure is one, a success one or its bytes.
#[inline(always)]
pub(crate) fn counted(bytes: bool, event: &Event) -> Count {
    if event.fail != NiFail::Ok {
        return Count {
            success: 0,
            failure: 1,
        };
    }
    Count::success(if bytes { event.mlength } else { 1 })
}

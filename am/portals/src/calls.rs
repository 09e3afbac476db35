//! The calls of an interface that move no data.

use doorbell_fabric::ni::{
    Count, CtHandle, Entry, EntryHandle, EqGet, EqHandle, EventKind, Kind, List, Md, MdHandle, Memory,
    NiError, PtOptions, Search,
};
use doorbell_matching::{Capacity, Matcher};

use crate::core::Core;
use crate::counting::Counting;
use crate::entries::EntrySlot;
use crate::events::EventQueue;
use crate::iface::Iface;
use crate::memory::MdSlot;
use crate::table::Table;

/// Events of one queue at most.
const EVENTS: usize = 1 << 24;

impl Core {
    pub(crate) fn pt_alloc(
        &mut self,
        kind: Kind,
        options: PtOptions,
        eq: Option<EqHandle>,
        index: Option<u32>,
    ) -> Result<u32, NiError> {
        let seed = self.seed;
        let ni = self.ready(kind)?;
        if !options.is_known() {
            return Err(NiError::ArgInvalid("an option of a portal table entry"));
        }
        let eq = match eq {
            Some(eq) if ni.eqs.get(eq.0).is_none() => {
                return Err(NiError::ArgInvalid("an event queue's handle"));
            }
            Some(eq) => eq.0,
            None if options.has(PtOptions::FLOWCTRL) => return Err(NiError::PtEqNeeded),
            None => 0,
        };
        let index = match index {
            Some(index) => {
                let taken = ni
                    .tables
                    .get(index as usize)
                    .ok_or(NiError::ArgInvalid("a portal table index"))?;
                if taken.is_some() {
                    return Err(NiError::PtInUse);
                }
                index
            }
            None => ni
                .tables
                .iter()
                .position(Option::is_none)
                .ok_or(NiError::PtFull)? as u32,
        };
        // Another seed for each, so that knowledge of one reveals nothing of the others.
        let seed = seed
            ^ (u64::from(index) << 8 | u64::from(kind.number()) << 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let matcher = Matcher::new(seed, Capacity::default());
        if options.has(PtOptions::FLOWCTRL)
            && let Some(queue) = ni.eqs.get_mut(eq)
        {
            queue.flow += 1;
        }
        ni.tables_made += 1;
        ni.tables[index as usize] = Some(Box::new(Table::new(options, eq, matcher, ni.tables_made)));
        Ok(index)
    }
}

impl Iface {
    pub(crate) fn pt_free(&mut self, index: u32) -> Result<(), NiError> {
        let table = self.allocated(index)?;
        let kept = table.matcher.unexpected_load().messages;
        if table.linked != [0, 0] || kept != 0 || table.in_progress != 0 {
            return Err(NiError::PtInUse);
        }
        let (eq, options) = (table.eq, table.options);
        self.flow_ends(eq, options);
        self.tables[index as usize] = None;
        Ok(())
    }

    pub(crate) fn pt_enable(&mut self, index: u32) -> Result<(), NiError> {
        let table = self.allocated(index)?;
        table.enabled = true;
        table.owes_event = false;
        Ok(())
    }

    pub(crate) fn pt_disable(&mut self, index: u32) -> Result<bool, NiError> {
        let table = self.allocated(index)?;
        table.enabled = false;
        Ok(table.in_progress == 0)
    }

    pub(crate) fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError> {
        if count == 0 || count > EVENTS {
            return Err(NiError::ArgInvalid("a number of events"));
        }
        let queue = self.eqs.insert(EventQueue::new(count));
        queue.map(EqHandle).map_err(|_| NiError::NoSpace("max_eqs"))
    }

    pub(crate) fn eq_free(&mut self, eq: EqHandle) -> Result<(), NiError> {
        let index = self
            .eqs
            .index(eq.0)
            .ok_or(NiError::ArgInvalid("an event queue's handle"))?;
        self.eqs.take(index);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError> {
        let Some(queue) = self.eqs.get_mut(eq.0) else {
            return Err(NiError::ArgInvalid("an event queue's handle"));
        };
        let found = queue.get();
        if let EqGet::Event(event) | EqGet::Dropped(event) = &found
            && event.kind == EventKind::PtDisabled
            && let Some(table) = self.table_mut(event.pt_index)
        {
            table.told = false;
        }
        Ok(found)
    }

    pub(crate) fn ct_alloc(&mut self) -> Result<CtHandle, NiError> {
        let counting = self.cts.insert(Counting::new());
        counting.map(CtHandle).map_err(|_| NiError::NoSpace("max_cts"))
    }

    pub(crate) fn ct_free(&mut self, ct: CtHandle) -> Result<(), NiError> {
        self.counting(ct.0)?;
        self.cancel_triggered(ct.0);
        if let Some(index) = self.cts.index(ct.0) {
            self.cts.take(index);
        }
        Ok(())
    }

    pub(crate) fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError> {
        if !md.options.is_known() {
            return Err(NiError::ArgInvalid("an option of a memory descriptor"));
        }
        if md.eq.is_some_and(|eq| self.eqs.get(eq.0).is_none()) {
            return Err(NiError::ArgInvalid("an event queue's handle"));
        }
        if let Some(ct) = md.ct {
            self.counting(ct.0)?;
        }
        if let Memory::Many(pieces) = &md.memory
            && pieces.len() > self.limits.max_iovecs as usize
        {
            return Err(NiError::ArgInvalid("an iovec of more pieces than max_iovecs"));
        }
        let slot = self.mds.insert(MdSlot::new(md));
        slot.map(MdHandle).map_err(|_| NiError::NoSpace("max_mds"))
    }

    pub(crate) fn md_release(&mut self, md: MdHandle) -> Result<(), NiError> {
        let refused = NiError::ArgInvalid("a memory descriptor's handle");
        let index = self.mds.index(md.0).ok_or(refused)?;
        let slot = self.mds.at_mut(index).ok_or(refused)?;
        slot.released = true;
        if slot.refs == 0 {
            self.mds.take(index);
        } else {
            self.mds.release(index);
        }
        Ok(())
    }

    pub(crate) fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), NiError> {
        self.counting(ct.0)?;
        crate::triggered::judge_increment(by)?;
        self.count(ct.0, by);
        Ok(())
    }
}

impl Core {
    pub(crate) fn append(
        &mut self,
        kind: Kind,
        pt_index: u32,
        entry: Entry,
        list: List,
        user_ptr: u64,
    ) -> Result<EntryHandle, NiError> {
        let pattern = {
            self.ready(kind)?;
            self.pattern(kind, &entry)?
        };
        let ni = self.ready(kind)?;
        ni.judge_entry(pt_index, &entry)?;
        ni.judge_list(pt_index, list)?;
        let (index, handle) = ni.reserve(EntrySlot::new(entry, pattern, pt_index, list, user_ptr))?;
        ni.link(index);
        Ok(EntryHandle(handle))
    }

    pub(crate) fn search(
        &mut self,
        kind: Kind,
        pt_index: u32,
        entry: &Entry,
        how: Search,
        user_ptr: u64,
    ) -> Result<(), NiError> {
        self.ready(kind)?;
        let pattern = self.pattern(kind, entry)?;
        let ni = self.ready(kind)?;
        ni.judge_entry(pt_index, entry)?;
        let slot = EntrySlot::new(entry.clone(), pattern, pt_index, List::Priority, user_ptr);
        let (index, _) = ni.reserve(slot)?;
        ni.search_headers(index, how);
        Ok(())
    }
}

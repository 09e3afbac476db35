//! Entries come to their lists and leave them; what came before they did is found then, and by searches
//! (reference: portals, section 6).

use doorbell_fabric::ni::{
    Count, Entry, EntryOptions, Event, EventKind, List, NiError, NiFail, Register, Search,
};
use doorbell_matching::{Entry as Posting, Pattern, Space};

use crate::entries::{Consumer, EntrySlot, Header, Standing, met_later, needed};
use crate::iface::{Iface, counted};
use crate::peers::NONE;

impl Iface {
    /// Judges what `append`, `search` and a triggered append are given.
    pub(crate) fn judge_entry(&mut self, pt: u32, entry: &Entry) -> Result<(), NiError> {
        self.allocated(pt)?;
        if !entry.options.is_known() {
            return Err(NiError::ArgInvalid("an option of an entry"));
        }
        if let doorbell_fabric::ni::Memory::Many(pieces) = &entry.memory
            && pieces.len() > self.limits.max_iovecs as usize
        {
            return Err(NiError::ArgInvalid("an iovec of more pieces than max_iovecs"));
        }
        match entry.ct {
            Some(ct) if self.cts.get(ct.0).is_none() => Err(NiError::ArgInvalid("a counting event's handle")),
            _ => Ok(()),
        }
    }

    /// Makes room for an entry that is on no list yet; its index and handle.
    pub(crate) fn reserve(&mut self, slot: EntrySlot) -> Result<(u32, u32), NiError> {
        let handle = self
            .entries
            .insert(slot)
            .map_err(|_| NiError::NoSpace("max_entries"))?;
        let index = self.entries.index(handle).unwrap_or(NONE);
        Ok((index, handle))
    }

    /// Whether a list takes one more.
    pub(crate) fn judge_list(&mut self, pt: u32, list: List) -> Result<(), NiError> {
        let most = self.limits.max_list_size;
        let table = self.allocated(pt)?;
        if table.linked[list as usize] >= most {
            return Err(NiError::ListTooLong);
        }
        Ok(())
    }

    /// Puts a reserved entry on its list, after it was matched with what came before it.
    pub(crate) fn link(&mut self, index: u32) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        let (pt, list, options, user_ptr) = (slot.pt, slot.list, slot.options, slot.user_ptr);
        let mut filled = 0;
        if list == List::Priority {
            while let Some(header) = self.earliest_header(pt, index, filled, true) {
                filled = filled.saturating_add(self.meet(index, header));
                if self.is_used_up(index, filled) {
                    self.leave(index);
                    return;
                }
            }
        }
        self.put_on_list(index, filled);
        let Some(slot) = self.entries.at_mut(index) else {
            return;
        };
        slot.owes_link = slot.meeting != 0;
        if !slot.owes_link {
            self.post_entry(EventKind::Link, pt, options, user_ptr);
        }
    }

    /// Whether an entry that matched a header is not linked any more: a header takes none of its room, unless
    /// it moves the local offset.
    fn is_used_up(&self, index: u32, filled: u64) -> bool {
        let Some(slot) = self.entries.at(index) else {
            return true;
        };
        let managed = slot.options.has(EntryOptions::MANAGE_LOCAL);
        slot.options.has(EntryOptions::USE_ONCE)
            || managed && filled != 0 && slot.length.saturating_sub(filled) < slot.min_free
    }

    fn put_on_list(&mut self, index: u32, filled: u64) {
        let Some(slot) = self.entries.at_mut(index) else {
            return;
        };
        slot.standing = Standing::Linked;
        let (pt, list) = (slot.pt, slot.list);
        let Some(table) = self.tables.get_mut(pt as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        table.linked[list as usize] += 1;
        if self.kind.matching {
            let posting = posting(slot, index, filled);
            // A priority entry has searched the kept headers; those that did not fit it are passed.
            slot.posted = Some(table.matcher.link(&posting));
            return;
        }
        let (first, last) = table.ends[list as usize];
        (slot.before, slot.behind) = (last, NONE);
        table.ends[list as usize] = (if first == NONE { index } else { first }, index);
        if let Some(last) = self.entries.at_mut(last) {
            last.behind = index;
        }
    }

    /// Takes a linked entry off the list of an interface without matching.
    pub(crate) fn unchain(&mut self, index: u32) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        let (pt, list, before, behind) = (slot.pt, slot.list, slot.before, slot.behind);
        if let Some(before) = self.entries.at_mut(before) {
            before.behind = behind;
        }
        if let Some(behind) = self.entries.at_mut(behind) {
            behind.before = before;
        }
        let Some(table) = self.table_mut(pt) else { return };
        let (first, last) = table.ends[list as usize];
        table.ends[list as usize] = (
            if first == index { behind } else { first },
            if last == index { before } else { last },
        );
    }

    /// An entry was used up: it is on no list any more. AUTO_UNLINK comes when no operation is in progress in
    /// it, and the entry stays while something refers to it.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave(&mut self, index: u32) {
        let Some(slot) = self.entries.at_mut(index) else {
            return;
        };
        let (pt, list) = (slot.pt, slot.list);
        if std::mem::replace(&mut slot.standing, Standing::Gone) == Standing::Linked
            && let Some(table) = self.table_mut(pt)
        {
            table.linked[list as usize] -= 1;
        }
        self.entries.forget_handle(index);
        self.unlinked_if_done(index);
        self.free_if_idle(index);
    }

    /// Posts AUTO_UNLINK of an entry that was used up, behind the last event of what it took.
    #[cold]
    #[inline(never)]
    pub(crate) fn unlinked_if_done(&mut self, index: u32) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        if slot.ops == 0 && slot.standing == Standing::Gone {
            let (pt, options, user_ptr) = (slot.pt, slot.options, slot.user_ptr);
            self.post_entry(EventKind::AutoUnlink, pt, options, user_ptr);
        }
    }

    /// The earliest unexpected header that an entry takes, taken out of matching or left.
    fn earliest_header(&mut self, pt: u32, index: u32, filled: u64, take: bool) -> Option<u32> {
        let slot = self.entries.at(index)?;
        let table = self.tables.get_mut(pt as usize)?.as_deref_mut()?;
        if table.matcher.unexpected_load().messages == 0 {
            return None;
        }
        let headers = &self.headers;
        let fits = |_, token: u64| {
            let header = headers.get(token as u32);
            header.is_some_and(|header| slot.has_room(filled, &header.event))
        };
        let found = if take {
            table.matcher.claim_where(&slot.pattern, fits)
        } else {
            table.matcher.peek_where(&slot.pattern, fits)
        };
        found.map(|found| found.token as u32)
    }

    /// An entry takes a header that was kept. How far its local offset moves.
    fn meet(&mut self, index: u32, header: u32) -> u64 {
        let (Some(slot), Some(kept)) = (self.entries.at(index), self.headers.get(header)) else {
            return 0;
        };
        let fail = permitted(slot, &kept.event);
        let moves = slot.options.has(EntryOptions::MANAGE_LOCAL)
            && slot.options.has(EntryOptions::LOCAL_INC_UH_RLENGTH);
        let by = if moves { kept.event.rlength } else { 0 };
        match fail {
            NiFail::PermViolation => self.register(Register::PermissionViolations),
            NiFail::OpViolation => self.register(Register::OperationViolations),
            _ => {}
        }
        self.consume(index, header, fail, true);
        by
    }

    /// A header that was taken out of matching ends with its taker's *_OVERFLOW event, when its bytes have
    /// landed.
    fn consume(&mut self, index: u32, header: u32, fail: NiFail, stays: bool) {
        let Some(slot) = self.entries.at_mut(index) else {
            return;
        };
        let consumer = Consumer {
            entry: if stays { index } else { NONE },
            options: slot.options,
            ct: slot.ct,
            user_ptr: slot.user_ptr,
            fail,
        };
        self.headers.unclaimed -= 1;
        let Some(kept) = self.headers.get_mut(header) else {
            return;
        };
        if kept.pending {
            kept.consumer = Some(consumer);
            if stays {
                slot.ops += 1;
                slot.meeting += 1;
            }
            return;
        }
        if let Some(kept) = self.headers.take(header) {
            self.post_taken(&consumer, &kept);
        }
    }

    /// The *_OVERFLOW event, and its effect on the overflow entry.
    fn post_taken(&mut self, consumer: &Consumer, kept: &Header) {
        let mut event = kept.event;
        event.kind = met_later(event.kind);
        event.user_ptr = consumer.user_ptr;
        if event.fail == NiFail::Ok {
            event.fail = consumer.fail;
        }
        let options = consumer.options;
        let ok = event.fail == NiFail::Ok;
        let silent = options.has(EntryOptions::EVENT_OVER_DISABLE)
            || ok && options.has(EntryOptions::EVENT_SUCCESS_DISABLE);
        let eq = self.table(event.pt_index).map_or(0, |table| table.eq);
        if eq != 0 && !silent {
            let tell = !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE);
            self.post(eq, &event, false, tell);
        }
        if options.has(EntryOptions::EVENT_CT_OVERFLOW) {
            let by: Count = counted(options.has(EntryOptions::EVENT_CT_BYTES), &event);
            self.count(consumer.ct, by);
        }
        if let Some(overflow) = self.entries.at_mut(kept.entry) {
            overflow.headers -= 1;
            self.free_if_idle(kept.entry);
        }
    }

    /// Handles a header whose bytes have landed: it waits, or its taker gets its event.
    #[cold]
    #[inline(never)]
    pub(crate) fn header_landed(&mut self, header: u32, event: &Event) {
        let Some(kept) = self.headers.get_mut(header) else {
            return;
        };
        kept.pending = false;
        kept.event = *event;
        if kept.consumer.is_none() {
            return;
        }
        let Some(kept) = self.headers.take(header) else {
            return;
        };
        let Some(consumer) = kept.consumer else { return };
        self.post_taken(&consumer, &kept);
        if let Some(slot) = self.entries.at_mut(consumer.entry) {
            slot.ops -= 1;
            slot.meeting -= 1;
            if slot.meeting == 0 && std::mem::take(&mut slot.owes_link) {
                let (pt, options, user_ptr) = (slot.pt, slot.options, slot.user_ptr);
                self.post_entry(EventKind::Link, pt, options, user_ptr);
            }
            self.unlinked_if_done(consumer.entry);
            self.free_if_idle(consumer.entry);
        }
    }

    /// An entry will be taken off its list by a trigger.
    pub(crate) fn will_leave(&mut self, handle: u32) {
        if let Some(slot) = self.entries.get_mut(handle) {
            slot.leaves = true;
        }
    }

    /// The entry with this handle, which can be unlinked now.
    pub(crate) fn may_unlink(&self, handle: u32) -> Result<(u32, &EntrySlot), NiError> {
        let found = self.entries.find(handle);
        let (index, slot) = found.ok_or(NiError::ArgInvalid("an entry's handle"))?;
        if !slot.is_idle() || slot.standing != Standing::Linked {
            return Err(NiError::InUse);
        }
        Ok((index, slot))
    }

    /// Takes an entry off its list on the caller's behalf.
    pub(crate) fn unlink_entry(&mut self, handle: u32) -> Result<(), NiError> {
        let (index, slot) = self.may_unlink(handle)?;
        let (pt, list, posted) = (slot.pt, slot.list, slot.posted);
        if !self.kind.matching {
            self.unchain(index);
        }
        if let Some(table) = self.table_mut(pt) {
            if let Some(posted) = posted {
                // It is there: what the matcher unlinks by itself is gone here too.
                let _ = table.matcher.cancel(posted);
            }
            table.linked[list as usize] -= 1;
        }
        self.entries.take_counted(index);
        Ok(())
    }

    /// Searches the unexpected headers; `index` is of a reserved entry that is given up afterwards.
    pub(crate) fn search_headers(&mut self, index: u32, how: Search) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        let (pt, once) = (slot.pt, slot.options.has(EntryOptions::USE_ONCE));
        let found = match how {
            Search::Only => self.look_for_headers(pt, index, once),
            Search::Delete => {
                let mut found = false;
                while let Some(header) = self.earliest_header(pt, index, 0, true) {
                    let (Some(slot), Some(kept)) = (self.entries.at(index), self.headers.get(header)) else {
                        break;
                    };
                    let fail = permitted(slot, &kept.event);
                    self.consume(index, header, fail, false);
                    found = true;
                    if once {
                        break;
                    }
                }
                found
            }
        };
        let event = Event {
            fail: NiFail::NoMatch,
            pt_index: pt,
            ..crate::events::BLANK
        };
        if !found {
            self.post_search(index, event);
        }
        // By this count a waiter knows that a search for all has come to its end, or found nothing.
        if !found || !once {
            self.count_search(index, &event);
        }
        self.entries.take_counted(index);
    }

    /// Posts the event of the first header that a search matches, or of all.
    fn look_for_headers(&mut self, pt: u32, index: u32, once: bool) -> bool {
        if once {
            let Some(header) = self.earliest_header(pt, index, 0, false) else {
                return false;
            };
            self.post_found(index, header);
            return true;
        }
        let (Some(slot), Some(table)) = (self.entries.at(index), self.table(pt)) else {
            return false;
        };
        let all: Vec<u32> = table
            .matcher
            .unexpected()
            .filter(|kept| slot.pattern.matches(&kept.key))
            .map(|kept| kept.token as u32)
            .collect();
        let mut found = false;
        for header in all {
            let fits = match (self.entries.at(index), self.headers.get(header)) {
                (Some(slot), Some(kept)) => slot.has_room(0, &kept.event),
                _ => false,
            };
            if fits {
                self.post_found(index, header);
                found = true;
            }
        }
        found
    }

    fn post_found(&mut self, index: u32, header: u32) {
        let (Some(slot), Some(kept)) = (self.entries.at(index), self.headers.get(header)) else {
            return;
        };
        let mut event = kept.event;
        if event.fail == NiFail::Ok {
            event.fail = permitted(slot, &event);
        }
        self.post_search(index, event);
        self.count_search(index, &event);
    }

    /// Counts what a search has found, or that it has ended.
    fn count_search(&mut self, index: u32, event: &Event) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        let (options, ct) = (slot.options, slot.ct);
        if options.has(EntryOptions::EVENT_CT_OVERFLOW) {
            self.count(ct, counted(options.has(EntryOptions::EVENT_CT_BYTES), event));
        }
    }

    fn post_search(&mut self, index: u32, mut event: Event) {
        let Some(slot) = self.entries.at(index) else {
            return;
        };
        event.kind = EventKind::Search;
        event.user_ptr = slot.user_ptr;
        let options = slot.options;
        let eq = self.table(event.pt_index).map_or(0, |table| table.eq);
        if eq != 0 && crate::iface::posts(options, event.fail == NiFail::Ok) {
            let tell = !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE);
            self.post(eq, &event, false, tell);
        }
    }
}

/// Whether an entry lets an operation do what it did.
#[inline(always)]
pub(crate) fn permitted(slot: &EntrySlot, event: &Event) -> NiFail {
    if slot.uid != doorbell_fabric::ni::ANY && slot.uid != event.uid {
        return NiFail::PermViolation;
    }
    if !slot.options.has(needed(event.kind)) {
        return NiFail::OpViolation;
    }
    NiFail::Ok
}

/// An entry as the matcher has it.
fn posting(slot: &EntrySlot, index: u32, filled: u64) -> Posting {
    Posting {
        pattern: slot.pattern,
        length: slot.length,
        token: u64::from(index),
        list: match slot.list {
            List::Priority => doorbell_matching::List::Priority,
            List::Overflow => doorbell_matching::List::Overflow,
        },
        use_once: slot.options.has(EntryOptions::USE_ONCE),
        no_truncate: slot.options.has(EntryOptions::NO_TRUNCATE),
        space: if slot.options.has(EntryOptions::MANAGE_LOCAL) {
            Space::Managed {
                min_free: slot.min_free,
            }
        } else {
            Space::Remote
        },
        filled,
    }
}

/// The pattern of a match entry: rank, or node and process id each separately; `node` gives a node's dense
/// number.
pub(crate) fn pattern_of(entry: &Entry, logical: bool, node: Option<u16>) -> Pattern {
    use doorbell_fabric::ni::{ANY, PID_ANY};
    let (source, source_ignore) = if logical {
        match entry.match_id.nid {
            ANY => (0, u32::MAX),
            rank => (rank, 0),
        }
    } else {
        let (high, high_ignore) = node.map_or((0, 0xffff), |node| (u32::from(node), 0));
        let (low, low_ignore) = match entry.match_id.pid {
            PID_ANY | ANY => (0, 0xffff),
            pid => (pid, 0),
        };
        (high << 16 | low, high_ignore << 16 | low_ignore)
    };
    Pattern {
        table: 0,
        source,
        source_ignore,
        bits: entry.match_bits,
        ignore: entry.ignore_bits,
    }
}

//! Lists of entries and unexpected headers (reference: portals, section 6: what matches, append, search,
//! unlink).

use doorbell_fabric::ni::{
    ANY, CtHandle, Entry, EntryOptions, EqHandle, Event, EventKind, List, NID_ANY, NiError, NiFail, PID_ANY,
    Process, Register, Search,
};

use super::Wrong;
use super::queue::blank;
use super::state::{Header, Key, Linked, Op, Pt, Request, World};
use super::valid;

impl World {
    /// Whether an entry takes a request: by initiator and bits, and with NO_TRUNCATE only when it fits.
    pub(crate) fn matches(
        &self,
        matching: bool,
        logical: bool,
        entry: &Entry,
        local: u64,
        request: &Request,
    ) -> bool {
        if !matching {
            return true;
        }
        let mask = if self.is(Wrong::MaskIsInverted) {
            entry.ignore_bits
        } else {
            !entry.ignore_bits
        };
        (is_from(logical, entry.match_id, request.initiator) || self.is(Wrong::AnyoneMatches))
            && (request.match_bits ^ entry.match_bits) & mask == 0
            && (self.fits(entry, local, request) || self.is(Wrong::NoTruncateIsAnError))
    }

    /// Whether NO_TRUNCATE lets it pass.
    pub(crate) fn fits(&self, entry: &Entry, local: u64, request: &Request) -> bool {
        if !entry.options.has(EntryOptions::NO_TRUNCATE) {
            return true;
        }
        let from = match entry.options.has(EntryOptions::MANAGE_LOCAL) {
            _ if self.is(Wrong::NoTruncateForgetsTheOffset) => 0,
            true => local,
            false => request.remote_offset,
        };
        // Of no bytes nothing is ever cut off.
        request.rlength == 0 || u128::from(from) + u128::from(request.rlength) <= entry.memory.len() as u128
    }

    /// Section 6, step 5: whether the request may use the entry.
    pub(crate) fn may(&self, entry: &Entry, request: &Request) -> Result<(), (NiFail, Register)> {
        if entry.uid != ANY && entry.uid != request.uid {
            return Err((NiFail::PermViolation, Register::PermissionViolations));
        }
        let both = EntryOptions::OP_PUT | EntryOptions::OP_GET;
        let needs = match request.op {
            Op::Atomic(..) if self.is(Wrong::AtomicNeedsBoth) => both,
            Op::Put | Op::Atomic(..) => EntryOptions::OP_PUT,
            Op::Get => EntryOptions::OP_GET,
            Op::Fetch(..) if self.is(Wrong::FetchNeedsGetOnly) => EntryOptions::OP_GET,
            Op::Fetch(..) => both,
        };
        if !entry.options.has(needs) {
            return Err((NiFail::OpViolation, Register::OperationViolations));
        }
        Ok(())
    }

    /// Appends an entry that was judged, under a number that it was promised. On the priority list it first
    /// meets what came before it.
    pub(crate) fn append(
        &mut self,
        key: Key,
        slot: usize,
        pt_index: u32,
        entry: Entry,
        list: List,
        user_ptr: u64,
    ) -> Result<(), NiError> {
        let pt = self.at(key).pt(pt_index).ok_or(NiError::ArgInvalid("pt_index"))?;
        let eq = pt.eq;
        let once = entry.options.has(EntryOptions::USE_ONCE);
        let mut local = 0;
        if self.is(Wrong::LinkComesFirst) {
            self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::Link);
        }
        if list == List::Priority || self.is(Wrong::OverflowTakesHeaders) {
            while let Some(header) = self.take_header(key, pt_index, &entry, local) {
                let rlength = header.request.rlength;
                self.tell_header(key, pt_index, &entry, user_ptr, &header, true);
                self.release(key, pt_index, header.entry);
                if once && !self.is(Wrong::UseOnceIsLinked) {
                    self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::AutoUnlink);
                    return Ok(());
                }
                let both = EntryOptions::MANAGE_LOCAL | EntryOptions::LOCAL_INC_UH_RLENGTH;
                if entry.options.has(both) && !self.is(Wrong::NoLocalIncrease) {
                    local += rlength;
                }
                if self.is(Wrong::PersistentTakesOne) || once {
                    break;
                }
            }
        }
        if !self.is(Wrong::LinkComesFirst) {
            self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::Link);
        }
        let ni = self.at(key);
        ni.entries[slot] = Some(Linked {
            entry,
            pt_index,
            list,
            user_ptr,
            local,
            headers: 0,
            is_unlinked: false,
        });
        if let Some(pt) = ni.pt(pt_index) {
            pt.list(list).push(slot);
        }
        Ok(())
    }

    /// A search never links, never counts violations, and reports its end by an event of the table entry's
    /// queue.
    pub(crate) fn search(
        &mut self,
        key: Key,
        pt_index: u32,
        entry: &Entry,
        how: Search,
        user_ptr: u64,
    ) -> Result<(), NiError> {
        valid::entry(self.at(key), pt_index, entry)?;
        let once = entry.options.has(EntryOptions::USE_ONCE);
        let mut found = 0;
        let mut passed = 0;
        let only = how == Search::Only;
        while let Some(at) = self.find_header(key, pt_index, entry, 0, passed) {
            let takes =
                !only && !self.is(Wrong::SearchDeleteLeaves) || only && self.is(Wrong::SearchOnlyTakes);
            let pt = self.at(key).pt(pt_index).ok_or(NiError::ArgInvalid("pt_index"))?;
            let header = if takes {
                pt.headers.remove(at)
            } else {
                passed = at + 1;
                pt.headers[at].clone()
            };
            found += 1;
            if only {
                self.tell_found(key, pt_index, entry, user_ptr, &header);
            } else {
                self.tell_header(key, pt_index, entry, user_ptr, &header, false);
            }
            if takes {
                self.release(key, pt_index, header.entry);
            }
            if once {
                break;
            }
        }
        if found == 0 && !self.is(Wrong::SearchSaysNothing) {
            let eq = self.at(key).pt(pt_index).and_then(|pt| pt.eq);
            if !entry.options.has(EntryOptions::EVENT_COMM_DISABLE) {
                let event = Event {
                    user_ptr,
                    pt_index,
                    ..blank(EventKind::Search, NiFail::NoMatch)
                };
                self.post(key, eq, event);
            }
        }
        // A search for all counts its end, and every search that it has found nothing.
        if (found == 0 || !once) && entry.options.has(EntryOptions::EVENT_CT_OVERFLOW) {
            self.count_entry(key, entry.ct, entry.options, NiFail::NoMatch, 0, 0);
        }
        if self.is(Wrong::SearchLinks) {
            let slot = self.at(key).entries.len();
            self.at(key).entries.push(None);
            return self.append(key, slot, pt_index, entry.clone(), List::Priority, user_ptr);
        }
        Ok(())
    }

    pub(crate) fn unlink(&mut self, key: Key, slot: usize) -> Result<(), NiError> {
        let forgets = self.is(Wrong::UnlinkForgetsHeaders);
        let ni = self.at(key);
        let Some(Some(linked)) = ni.entries.get(slot) else {
            return Err(NiError::ArgInvalid("entry"));
        };
        if linked.headers > 0 && !forgets {
            return Err(NiError::InUse);
        }
        let (pt_index, list) = (linked.pt_index, linked.list);
        ni.entries[slot] = None;
        if let Some(pt) = ni.pt(pt_index) {
            pt.list(list).retain(|other| *other != slot);
        }
        Ok(())
    }

    /// The oldest header from `from` on that the entry takes.
    fn find_header(
        &mut self,
        key: Key,
        pt_index: u32,
        entry: &Entry,
        local: u64,
        from: usize,
    ) -> Option<usize> {
        let (matching, logical) = (self.at(key).kind.matching, self.at(key).kind.logical);
        let headers: Vec<Header> = self.at(key).pt(pt_index)?.headers.clone();
        let mut takes = (from..headers.len())
            .filter(|at| self.matches(matching, logical, entry, local, &headers[*at].request));
        if self.is(Wrong::NewestHeaderFirst) {
            return takes.next_back();
        }
        takes.next()
    }

    fn take_header(&mut self, key: Key, pt_index: u32, entry: &Entry, local: u64) -> Option<Header> {
        let at = self.find_header(key, pt_index, entry, local, 0)?;
        let pt: &mut Pt = self.at(key).pt(pt_index)?;
        Some(pt.headers.remove(at))
    }

    /// A header of this overflow entry has been consumed; with the last one an unlinked entry is free.
    fn release(&mut self, key: Key, pt_index: u32, slot: usize) {
        let never = self.is(Wrong::NeverFree);
        let Some(Some(linked)) = self.at(key).entries.get_mut(slot) else {
            return;
        };
        linked.headers -= 1;
        if linked.headers > 0 || !linked.is_unlinked {
            return;
        }
        let (entry, user_ptr) = (linked.entry.clone(), linked.user_ptr);
        self.at(key).entries[slot] = None;
        let eq = self.at(key).pt(pt_index).and_then(|pt| pt.eq);
        if !never && !self.is(Wrong::FreeAtUnlink) {
            self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::AutoFree);
        }
    }

    /// LINK, AUTO_UNLINK, AUTO_FREE.
    pub(crate) fn tell_list(
        &mut self,
        key: Key,
        eq: Option<EqHandle>,
        entry: &Entry,
        pt_index: u32,
        user_ptr: u64,
        kind: EventKind,
    ) {
        let off = if kind == EventKind::Link {
            EntryOptions::EVENT_LINK_DISABLE
        } else {
            EntryOptions::EVENT_UNLINK_DISABLE
        };
        if entry.options.has(off) {
            return;
        }
        let event = Event {
            user_ptr,
            pt_index,
            ..blank(kind, NiFail::Ok)
        };
        self.post(key, eq, event);
    }

    /// Posts the event of an append, or a search that takes, for a header.
    fn tell_header(
        &mut self,
        key: Key,
        pt_index: u32,
        entry: &Entry,
        user_ptr: u64,
        header: &Header,
        is_append: bool,
    ) {
        let fail = match self.may(entry, &header.request) {
            _ if self.is(Wrong::HeadersNeedNoPermission) => NiFail::Ok,
            Ok(()) => NiFail::Ok,
            Err((fail, register)) => {
                if is_append || self.is(Wrong::SearchCounts) {
                    self.at(key).registers[register as usize] += 1;
                }
                fail
            }
        };
        let kind = match header.request.op {
            Op::Put => EventKind::PutOverflow,
            Op::Get => EventKind::GetOverflow,
            Op::Atomic(..) => EventKind::AtomicOverflow,
            Op::Fetch(..) => EventKind::FetchAtomicOverflow,
        };
        let options = entry.options;
        let silent = options.has(EntryOptions::EVENT_OVER_DISABLE)
            || options.has(EntryOptions::EVENT_SUCCESS_DISABLE) && self.hides(fail);
        if !silent {
            let eq = self.at(key).pt(pt_index).and_then(|pt| pt.eq);
            let event = self.of_header(kind, fail, pt_index, user_ptr, header);
            self.post(key, eq, event);
        }
        let counts = if self.is(Wrong::CommCountsOverflow) {
            options.has(EntryOptions::EVENT_CT_COMM)
        } else {
            options.has(EntryOptions::EVENT_CT_OVERFLOW)
        };
        if counts {
            self.count_entry(
                key,
                entry.ct,
                options,
                fail,
                header.mlength,
                header.request.rlength,
            );
        }
    }

    /// Posts the event of a search that only looks.
    fn tell_found(&mut self, key: Key, pt_index: u32, entry: &Entry, user_ptr: u64, header: &Header) {
        let fail = match self.may(entry, &header.request) {
            Ok(()) => NiFail::Ok,
            Err((fail, register)) => {
                if self.is(Wrong::SearchCounts) {
                    self.at(key).registers[register as usize] += 1;
                }
                fail
            }
        };
        if !entry.options.has(EntryOptions::EVENT_COMM_DISABLE) {
            let eq = self.at(key).pt(pt_index).and_then(|pt| pt.eq);
            let event = self.of_header(EventKind::Search, fail, pt_index, user_ptr, header);
            self.post(key, eq, event);
        }
        if entry.options.has(EntryOptions::EVENT_CT_OVERFLOW) {
            let (mlength, rlength) = (header.mlength, header.request.rlength);
            self.count_entry(key, entry.ct, entry.options, fail, mlength, rlength);
        }
    }

    fn of_header(
        &self,
        kind: EventKind,
        fail: NiFail,
        pt_index: u32,
        user_ptr: u64,
        header: &Header,
    ) -> Event {
        Event {
            list: List::Overflow,
            user_ptr,
            pt_index,
            place: header.place,
            start: header.start,
            mlength: header.mlength,
            ..of_request(kind, fail, &header.request)
        }
    }

    /// Counts what an entry counts.
    pub(crate) fn count_entry(
        &mut self,
        key: Key,
        ct: Option<CtHandle>,
        options: EntryOptions,
        fail: NiFail,
        mlength: u64,
        rlength: u64,
    ) {
        let bytes = if self.is(Wrong::BytesAskedFor) {
            rlength
        } else {
            mlength
        };
        self.count(key, ct, fail, options.has(EntryOptions::EVENT_CT_BYTES), bytes);
    }

    /// Whether SUCCESS_DISABLE hides what ended like this.
    pub(crate) fn hides(&self, fail: NiFail) -> bool {
        fail == NiFail::Ok || self.is(Wrong::SuccessDisableHidesFailures)
    }
}

/// Whether the initiator is one that an entry accepts.
fn is_from(logical: bool, wanted: Process, initiator: Process) -> bool {
    if logical {
        return wanted.nid == ANY || wanted.nid == initiator.nid;
    }
    (wanted.nid == NID_ANY || wanted.nid == ANY || wanted.nid == initiator.nid)
        && (wanted.pid == PID_ANY || wanted.pid == ANY || wanted.pid == initiator.pid)
}

/// The fields of a communication event that come with the request.
pub(crate) fn of_request(kind: EventKind, fail: NiFail, request: &Request) -> Event {
    let (atomic_operation, atomic_type) = match request.op {
        Op::Atomic(kind, datatype) | Op::Fetch(kind, datatype, _) => (kind as u8, datatype as u8),
        _ => (0, 0),
    };
    Event {
        hdr_data: request.hdr_data,
        match_bits: request.match_bits,
        rlength: request.rlength,
        remote_offset: request.remote_offset,
        initiator: request.initiator,
        uid: request.uid,
        pt_index: request.pt_index,
        atomic_operation,
        atomic_type,
        ..blank(kind, fail)
    }
}

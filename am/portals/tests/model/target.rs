//! What a target does with a request (reference: portals, section 6, steps 1 to 10), and which events the
//! initiator gets (sections 7 and 8).

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::ni::{
    EntryOptions, Event, EventKind, List, MdOptions, Memory, NiFail, PtOptions, Register,
};

use super::Wrong;
use super::arithmetic;
use super::list::of_request;
use super::queue::blank;
use super::state::{Header, Key, Op, PtState, Request, World};

/// What a target answers.
pub(crate) struct Answer {
    fail: NiFail,
    mlength: u64,
    /// The offset that was used.
    place: u64,
    /// The list of the entry that took the request.
    list: List,
    /// That entry acknowledges nothing.
    silent: bool,
    data: Vec<u8>,
}

impl Answer {
    fn failed(fail: NiFail) -> Self {
        Self {
            fail,
            mlength: 0,
            place: 0,
            list: List::Priority,
            silent: false,
            data: Vec::new(),
        }
    }
}

impl World {
    /// A request arrives, and its answer, too.
    pub(crate) fn carry_out(&mut self, request: Request) {
        let answer = match request.to {
            Some(to) if self.interfaces.contains_key(&to) => self.serve(to, &request),
            // Step 1: the target has no such interface.
            _ => Answer::failed(NiFail::Undeliverable),
        };
        self.hear(&request, &answer);
    }

    fn drop_it(&mut self, key: Key) -> Answer {
        self.at(key).registers[Register::DropCount as usize] += 1;
        Answer::failed(NiFail::Dropped)
    }

    /// Steps 4 and 6: no entry takes it. With flow control that closes the table entry, and loses nothing.
    fn refuse(&mut self, key: Key, request: &Request) -> Answer {
        let Some(pt) = self.at(key).pt(request.pt_index) else {
            return self.drop_it(key);
        };
        let flow = pt.options.has(PtOptions::FLOWCTRL);
        if flow && !self.is(Wrong::FlowControlDrops) || self.is(Wrong::DropsDisable) {
            self.auto_disable(key, request.pt_index);
            return Answer::failed(NiFail::PtDisabled);
        }
        self.drop_it(key)
    }

    fn serve(&mut self, key: Key, request: &Request) -> Answer {
        // Step 2.
        let Some(pt) = self.at(key).pt(request.pt_index) else {
            return self.drop_it(key);
        };
        if pt.state != PtState::Enabled {
            if pt.state == PtState::AutoDisabled {
                // Only the wrong rule posts another event.
                self.auto_disable(key, request.pt_index);
            }
            if self.is(Wrong::DisabledCountsAsDropped) {
                self.drop_it(key);
            }
            return Answer::failed(NiFail::PtDisabled);
        }
        // Step 3.
        let Some((list, slot)) = self.choose(key, request) else {
            return self.refuse(key, request);
        };
        let linked = self.at(key).linked(slot);
        let (entry, local) = (linked.entry.clone(), linked.local);
        if self.is(Wrong::NoTruncateIsAnError) && !self.fits(&entry, local, request) {
            return self.drop_it(key);
        }
        // Step 5.
        if let Err((fail, register)) = self.may(&entry, request) {
            self.at(key).registers[register as usize] += 1;
            if self.is(Wrong::ViolationsCountAsDropped) {
                self.drop_it(key);
            }
            if self.is(Wrong::ViolationsUseUp) && entry.options.has(EntryOptions::USE_ONCE) {
                self.auto_unlink(key, slot);
            }
            return Answer::failed(fail);
        }
        // Step 6.
        let disabled = entry.options.has(EntryOptions::UNEXPECTED_HDR_DISABLE);
        let keeps = list == List::Overflow && (!disabled || self.is(Wrong::HeaderDisableKeeps));
        let ni = self.at(key);
        let full = ni.live_headers() >= ni.limits.max_unexpected_headers as usize;
        if keeps && full && !self.is(Wrong::NoHeaderStillLands) {
            return self.refuse(key, request);
        }
        let answer = self.place(key, slot, request);
        if keeps && !full {
            let header = Header {
                request: request.clone(),
                entry: slot,
                place: answer.place,
                start: entry.memory.address(answer.place as usize),
                mlength: answer.mlength,
            };
            self.at(key).linked(slot).headers += 1;
            if let Some(pt) = self.at(key).pt(request.pt_index) {
                pt.headers.push(header);
            }
        }
        if self.is(Wrong::UnlinkComesFirst) {
            let spent = self.is_spent(key, slot);
            if spent {
                self.tell_unlinked(key, slot);
            }
            self.tell_target(key, slot, request, &answer);
            if spent {
                self.take_off(key, slot);
            }
            return answer;
        }
        self.tell_target(key, slot, request, &answer);
        if self.is_spent(key, slot) {
            self.auto_unlink(key, slot);
        }
        answer
    }

    /// Step 3: the first entry that matches, of the priority list and then of the overflow list.
    fn choose(&mut self, key: Key, request: &Request) -> Option<(List, usize)> {
        let (matching, logical) = (self.at(key).kind.matching, self.at(key).kind.logical);
        let pt = self.at(key).pt(request.pt_index)?;
        let mut all: Vec<(List, usize)> = Vec::new();
        all.extend(pt.priority.iter().map(|slot| (List::Priority, *slot)));
        all.extend(pt.overflow.iter().map(|slot| (List::Overflow, *slot)));
        if self.is(Wrong::OverflowFirst) {
            all.sort_by_key(|(list, _)| *list == List::Priority);
        }
        if self.is(Wrong::LatestFirst) {
            all.sort_by_key(|(list, slot)| (*list == List::Overflow, usize::MAX - slot));
        }
        for (list, slot) in all {
            let linked = self.at(key).linked(slot);
            let (entry, local) = (linked.entry.clone(), linked.local);
            let forbidden = self.is(Wrong::PermissionIsMatching) && self.may(&entry, request).is_err();
            if self.matches(matching, logical, &entry, local, request) && !forbidden {
                return Some((list, slot));
            }
        }
        None
    }

    /// Steps 8 and 10: where the bytes go, or come from.
    fn place(&mut self, key: Key, slot: usize, request: &Request) -> Answer {
        let matching = self.at(key).kind.matching;
        let (remote, by_request) = (
            self.is(Wrong::ManagedUsesRemote),
            self.is(Wrong::ManagedMovesByRequest),
        );
        let new_comes_back = self.is(Wrong::FetchBringsTheNew);
        let beyond = self.is(Wrong::BeyondIsDropped);
        let wrong = self.wrong;
        let unnamed = self.is(Wrong::AnswersNameThePriorityList);
        let loud = self.is(Wrong::AckDisableAcknowledges);
        let linked = self.at(key).linked(slot);
        let list = if unnamed { List::Priority } else { linked.list };
        let silent = linked.entry.options.has(EntryOptions::ACK_DISABLE) && !loud;
        let managed = matching && linked.entry.options.has(EntryOptions::MANAGE_LOCAL);
        let asked = if managed && !remote {
            linked.local
        } else {
            request.remote_offset
        };
        let all = linked.entry.memory.len() as u64;
        if asked > all && beyond {
            return Answer::failed(NiFail::Dropped);
        }
        let room = all.saturating_sub(asked);
        let mlength = request.rlength.min(room);
        if managed {
            linked.local += if by_request { request.rlength } else { mlength };
        }
        let memory = linked.entry.memory.clone();
        let (at, length) = (asked.min(all) as usize, mlength as usize);
        let before = read(&memory, at, length);
        let mut data = Vec::new();
        match &request.op {
            Op::Put => write(&memory, at, &request.data[..length]),
            Op::Get => data = before,
            Op::Atomic(kind, datatype) => {
                let after = arithmetic::apply(wrong, *kind, *datatype, &before, &request.data, &[0; 32]);
                write(&memory, at, &after);
            }
            Op::Fetch(kind, datatype, operand) => {
                let after = arithmetic::apply(wrong, *kind, *datatype, &before, &request.data, operand);
                write(&memory, at, &after);
                data = if new_comes_back { after } else { before };
            }
        }
        Answer {
            fail: NiFail::Ok,
            mlength,
            place: asked,
            list,
            silent,
            data,
        }
    }

    /// Step 10: the event and the count of the entry.
    fn tell_target(&mut self, key: Key, slot: usize, request: &Request, answer: &Answer) {
        let (ct_off, hides) = (self.is(Wrong::CommDisableStopsCounting), self.hides(answer.fail));
        let linked = self.at(key).linked(slot);
        let (options, ct) = (linked.entry.options, linked.entry.ct);
        let kind = match request.op {
            Op::Put => EventKind::Put,
            Op::Get => EventKind::Get,
            Op::Atomic(..) => EventKind::Atomic,
            Op::Fetch(..) => EventKind::FetchAtomic,
        };
        let event = Event {
            list: linked.list,
            user_ptr: linked.user_ptr,
            start: linked.entry.memory.address(answer.place as usize),
            place: answer.place,
            mlength: answer.mlength,
            ..of_request(kind, answer.fail, request)
        };
        let silent = options.has(EntryOptions::EVENT_COMM_DISABLE)
            || options.has(EntryOptions::EVENT_SUCCESS_DISABLE) && hides;
        if !silent {
            let eq = self.at(key).pt(request.pt_index).and_then(|pt| pt.eq);
            self.post(key, eq, event);
        }
        let stopped = ct_off && options.has(EntryOptions::EVENT_COMM_DISABLE);
        if options.has(EntryOptions::EVENT_CT_COMM) && !stopped {
            self.count_entry(key, ct, options, answer.fail, answer.mlength, request.rlength);
        }
    }

    /// Step 9: whether an entry was used up.
    fn is_spent(&mut self, key: Key, slot: usize) -> bool {
        let matching = self.at(key).kind.matching;
        let (inclusive, always, full) = (
            self.is(Wrong::MinFreeIsInclusive),
            self.is(Wrong::MinFreeAlways),
            self.is(Wrong::FullIsUnlinked),
        );
        let linked = self.at(key).linked(slot);
        let options = linked.entry.options;
        let left = (linked.entry.memory.len() as u64).saturating_sub(linked.local);
        let managed = matching && options.has(EntryOptions::MANAGE_LOCAL);
        let min_free = linked.entry.min_free;
        let spent =
            (managed || always) && min_free != 0 && (left < min_free || inclusive && left == min_free)
                || always && min_free != 0
                || full && managed && left == 0;
        options.has(EntryOptions::USE_ONCE) || spent
    }

    fn auto_unlink(&mut self, key: Key, slot: usize) {
        self.tell_unlinked(key, slot);
        self.take_off(key, slot);
    }

    fn tell_unlinked(&mut self, key: Key, slot: usize) {
        let linked = self.at(key).linked(slot);
        let (entry, user_ptr, pt_index) = (linked.entry.clone(), linked.user_ptr, linked.pt_index);
        let eq = self.at(key).pt(pt_index).expect("it has an entry").eq;
        self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::AutoUnlink);
    }

    /// Takes an entry off its list, and AUTO_FREE where no header lies in it.
    fn take_off(&mut self, key: Key, slot: usize) {
        let (at_unlink, never) = (self.is(Wrong::FreeAtUnlink), self.is(Wrong::NeverFree));
        let linked = self.at(key).linked(slot);
        linked.is_unlinked = true;
        let (entry, user_ptr, pt_index) = (linked.entry.clone(), linked.user_ptr, linked.pt_index);
        let (list, headers) = (linked.list, linked.headers);
        let pt = self.at(key).pt(pt_index).expect("it has an entry");
        pt.list(list).retain(|other| *other != slot);
        let eq = pt.eq;
        let free = headers == 0 && !never;
        if list == List::Overflow && (free || at_unlink) {
            self.tell_list(key, eq, &entry, pt_index, user_ptr, EventKind::AutoFree);
        }
        if headers == 0 {
            self.at(key).entries[slot] = None;
        }
    }

    /// The answer at the initiator.
    fn hear(&mut self, request: &Request, answer: &Answer) {
        let (key, then) = (request.from, request.then);
        if let Some((md, full)) = then.ack.filter(|_| !answer.silent) {
            let Some(it) = self.at(key).md(md) else { return };
            let (options, eq, ct) = (it.options, it.eq, it.ct);
            let full = full || self.is(Wrong::CtAckHasAnEvent);
            if full && !(options.has(MdOptions::EVENT_SUCCESS_DISABLE) && self.hides(answer.fail)) {
                self.post(key, eq, of_answer(EventKind::Ack, then.user_ptr, answer));
            }
            let uncounted = self.is(Wrong::AckNeedsQueue) && eq.is_none();
            if options.has(MdOptions::EVENT_CT_ACK) && !uncounted {
                let bytes = self.bytes_of(request, answer);
                self.count(
                    key,
                    ct,
                    answer.fail,
                    options.has(MdOptions::EVENT_CT_BYTES),
                    bytes,
                );
            }
        }
        if let Some((md, offset)) = then.into {
            let Some(it) = self.at(key).md(md) else { return };
            let (options, eq, ct) = (it.options, it.eq, it.ct);
            write(&it.memory, offset as usize, &answer.data);
            if !(options.has(MdOptions::EVENT_SUCCESS_DISABLE) && self.hides(answer.fail)) {
                self.post(key, eq, of_answer(EventKind::Reply, then.user_ptr, answer));
            }
            if options.has(MdOptions::EVENT_CT_REPLY) {
                let bytes = self.bytes_of(request, answer);
                self.count(
                    key,
                    ct,
                    answer.fail,
                    options.has(MdOptions::EVENT_CT_BYTES),
                    bytes,
                );
            }
        }
    }

    fn bytes_of(&self, request: &Request, answer: &Answer) -> u64 {
        if self.is(Wrong::BytesAskedFor) {
            request.rlength
        } else {
            answer.mlength
        }
    }
}

fn of_answer(kind: EventKind, user_ptr: u64, answer: &Answer) -> Event {
    Event {
        user_ptr,
        mlength: answer.mlength,
        remote_offset: answer.place,
        list: answer.list,
        ..blank(kind, answer.fail)
    }
}

/// Bytes of memory, which may lie in several pieces.
pub(crate) fn read(memory: &Memory, at: usize, length: usize) -> Vec<u8> {
    let (mut start, mut all) = (0, Vec::new());
    for piece in pieces(memory) {
        let end = start + piece.len();
        let (from, to) = (at.clamp(start, end), (at + length).clamp(start, end));
        all.extend(bytes(&piece.part(from - start, to - from)));
        start = end;
    }
    all
}

pub(crate) fn write(memory: &Memory, at: usize, new: &[u8]) {
    let mut start = 0;
    for piece in pieces(memory) {
        let end = start + piece.len();
        let (from, to) = (at.clamp(start, end), (at + new.len()).clamp(start, end));
        if from < to {
            piece.write_shared(from - start, SharedBytes::of(&new[from - at..to - at]));
        }
        start = end;
    }
}

fn pieces(memory: &Memory) -> Vec<doorbell_fabric::message::Landing> {
    match memory {
        Memory::Empty => Vec::new(),
        Memory::One(piece) => vec![piece.clone()],
        Memory::Many(pieces) => pieces.to_vec(),
    }
}

fn bytes(piece: &doorbell_fabric::message::Landing) -> Vec<u8> {
    match piece {
        doorbell_fabric::message::Landing::Loan(loan) => loan.as_shared().to_vec(),
        doorbell_fabric::message::Landing::Region(slice) => slice.as_shared().to_vec(),
    }
}

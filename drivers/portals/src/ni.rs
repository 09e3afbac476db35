//! The contract on top of the library's functions.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::ni::{
    ANY, AckReq, Atomic, AtomicKind, Count, CtHandle, Entry, EntryHandle, EqGet, EqHandle, EventKind,
    FetchAtomic, Get, Kind, List, Lost, Md, MdHandle, MdOptions, Ni, NiError, NiFail, NiLimits, Process,
    PtOptions, Put, Register, Search, Target, Triggered,
};
use doorbell_fabric::time::Time;

use crate::convert::{self, ends_an_entry, error, is_initiators};
use crate::error::PortalsError;
use crate::nic_records::{Held, NicRecords, Part};
use crate::sys::{At, CT_NONE, EQ_NONE, Library, Of, To, Words};

/// An interface of a Portals library. One thread owns it.
#[derive(Debug)]
pub struct PortalsNi {
    library: Library,
    handle: u32,
    kind: Kind,
    limits: NiLimits,
    uid: u32,
    /// The queue of each table entry.
    queues: HashMap<u32, Option<EqHandle>>,
    records: NicRecords,
    /// Targets that could not be reached, each reported once.
    lost: VecDeque<Lost>,
    known_lost: Vec<Process>,
    /// Events with an unknown word or kind: counted and skipped.
    strange: u64,
}

/// The library's code for an event with earlier ones dropped.
const EQ_DROPPED: i32 = 3;

/// Most processes remembered as reported lost.
const MOST_LOST: usize = 65_536;

impl PortalsNi {
    pub(crate) fn new(library: Library, handle: u32, kind: Kind, limits: NiLimits, uid: u32) -> Self {
        Self {
            library,
            handle,
            kind,
            limits,
            uid,
            queues: HashMap::new(),
            records: NicRecords::default(),
            lost: VecDeque::new(),
            known_lost: Vec::new(),
            strange: 0,
        }
    }

    /// Returns the physical id of this process, whatever the kind of interface: to be exchanged before
    /// [`PortalsNi::set_map`].
    ///
    /// # Errors
    /// [`PortalsError::Call`].
    pub fn physical_id(&self) -> Result<Process, PortalsError> {
        let id = self.library.physical_id(self.handle);
        let id = id.map_err(|code| PortalsError::call("PtlGetPhysId", &self.library.name, code))?;
        Ok(convert::process(id, false))
    }

    /// The processes of an interface of ranks, in their order.
    ///
    /// # Errors
    /// [`NiError::Ignored`] the second time.
    pub fn set_map(&mut self, map: &[Process]) -> Result<(), NiError> {
        let map: Vec<_> = map.iter().map(|process| (*process).into()).collect();
        let set = self.library.set_map(self.handle, &map);
        set.map_err(|code| error(code, "the map of ranks"))
    }

    /// The library's name.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library.name
    }

    /// Returns the number of events that matched no record.
    #[must_use]
    pub const fn strange_events(&self) -> u64 {
        self.strange
    }

    /// Returns the numbers of records kept for the NIC: released descriptors with operations in progress,
    /// operations, entries, and memory whose end is never reported.
    #[must_use]
    pub fn kept(&self) -> [usize; 4] {
        self.records.counts()
    }

    fn to(target: &Target) -> To {
        To {
            process: target.process.into(),
            pt: target.pt_index,
            bits: target.match_bits,
            offset: target.remote_offset,
        }
    }

    fn known(&self, mds: &[MdHandle]) -> Result<(), NiError> {
        let known = mds.iter().all(|md| self.records.knows_md(md.0));
        known
            .then_some(())
            .ok_or(NiError::ArgInvalid("the memory descriptor"))
    }

    /// Starts an operation. Its record comes first, since its events may arrive before the call returns.
    fn begin(
        &mut self,
        parts: &[(u32, Part)],
        user_ptr: u64,
        target: Process,
        call: impl FnOnce(&Library, u64) -> Result<(), i32>,
    ) -> Result<(), NiError> {
        let word = self.records.start_operation(parts, user_ptr, target);
        call(&self.library, word).map_err(|code| {
            self.records.cancel_operation(word);
            error(code, "an argument of the operation")
        })
    }

    fn put_at(&mut self, put: &Put, at: Option<At>) -> Result<(), NiError> {
        self.known(&[put.from.md])?;
        let part = sends(put.ack, false);
        self.begin(
            &[(put.from.md.0, part)],
            put.user_ptr,
            put.target.process,
            |library, user| {
                let words = Words {
                    user,
                    header: put.hdr_data,
                };
                let from = (of(put.from), put.length, put.ack as u8);
                library.put(from, Self::to(&put.target), words, at)
            },
        )
    }

    fn get_at(&mut self, get: &Get, at: Option<At>) -> Result<(), NiError> {
        self.known(&[get.into.md])?;
        let parts = [(get.into.md.0, Part::Receives)];
        self.begin(&parts, get.user_ptr, get.target.process, |library, user| {
            library.get(of(get.into), get.length, Self::to(&get.target), user, at)
        })
    }

    fn atomic_at(&mut self, atomic: &Atomic, at: Option<At>) -> Result<(), NiError> {
        let put = &atomic.put;
        self.known(&[put.from.md])?;
        let part = sends(put.ack, false);
        let how = (atomic.kind as u8, atomic.datatype as u8);
        self.begin(
            &[(put.from.md.0, part)],
            put.user_ptr,
            put.target.process,
            |library, user| {
                let words = Words {
                    user,
                    header: put.hdr_data,
                };
                let from = (of(put.from), put.length, put.ack as u8);
                library.atomic(from, Self::to(&put.target), words, how, at)
            },
        )
    }

    fn fetch_at(&mut self, fetch: &FetchAtomic, at: Option<At>) -> Result<(), NiError> {
        self.known(&[fetch.into.md, fetch.from.md])?;
        let parts = [
            (fetch.into.md.0, Part::Receives),
            (fetch.from.md.0, sends(AckReq::None, true)),
        ];
        self.begin(&parts, fetch.user_ptr, fetch.target.process, |library, user| {
            let words = Words {
                user,
                header: fetch.hdr_data,
            };
            let memory = (of(fetch.into), of(fetch.from), fetch.length);
            let (kind, datatype) = (fetch.kind as u8, fetch.datatype as u8);
            let to = Self::to(&fetch.target);
            if kind >= AtomicKind::Swap as u8 {
                library.swap(memory, to, words, (kind, datatype, &fetch.operand), at)
            } else {
                library.fetch_atomic(memory, to, words, (kind, datatype), at)
            }
        })
    }

    /// A process that something could not be delivered to.
    fn undeliverable(&mut self, process: Process) {
        if !self.known_lost.contains(&process) && self.known_lost.len() < MOST_LOST {
            self.known_lost.push(process);
            self.lost.push_back(Lost {
                process,
                reason: DownReason::Silent,
            });
        }
    }
}

impl Drop for PortalsNi {
    /// Closes the interface. Memory that the NIC may still access outlives it: whether the NIC has finished
    /// is unknown if the library reports no success, or if the handle stays valid because the same interface
    /// is open elsewhere in this process.
    fn drop(&mut self) {
        let failed = self.library.ni_fini(self.handle).is_err();
        if failed || self.library.uid(self.handle).is_ok() {
            std::mem::forget(std::mem::take(&mut self.records));
        }
    }
}

const fn sends(ack: AckReq, replied: bool) -> Part {
    Part::Sends {
        acked: matches!(ack, AckReq::Full),
        replied,
    }
}

const fn of(piece: doorbell_fabric::ni::Piece) -> Of {
    Of {
        md: piece.md.0,
        offset: piece.offset,
    }
}

impl Ni for PortalsNi {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn limits(&self) -> &NiLimits {
        &self.limits
    }

    fn id(&self) -> Process {
        let any = Process::physical(ANY, ANY);
        let id = self.library.id(self.handle);
        id.map_or(any, |id| convert::process(id, self.kind.logical))
    }

    fn uid(&self) -> u32 {
        self.uid
    }

    fn status(&self, register: Register) -> u64 {
        let value = self.library.ni_status(self.handle, register as u32).unwrap_or(0);
        u64::try_from(value).unwrap_or(0)
    }

    /// The library makes progress by itself.
    fn poll(&mut self, _budget: usize) -> usize {
        0
    }

    fn progress(&mut self, _now: Time) -> usize {
        0
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// There is no descriptor to sleep on: look again.
    fn arm(&mut self, _each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn lost(&mut self) -> Option<Lost> {
        self.lost.pop_front()
    }

    fn pt_alloc(
        &mut self,
        options: PtOptions,
        eq: Option<EqHandle>,
        index: Option<u32>,
    ) -> Result<u32, NiError> {
        let queue = eq.map_or(EQ_NONE, |eq| eq.0);
        let granted = self
            .library
            .pt_alloc(self.handle, options.0, queue, index.unwrap_or(ANY));
        let index = granted.map_err(|code| error(code, "the portal table entry"))?;
        self.queues.insert(index, eq);
        Ok(index)
    }

    fn pt_free(&mut self, index: u32) -> Result<(), NiError> {
        let freed = self.library.pt_free(self.handle, index);
        freed.map_err(|code| error(code, "the portal table index"))?;
        self.queues.remove(&index);
        Ok(())
    }

    fn pt_enable(&mut self, index: u32) -> Result<(), NiError> {
        let done = self.library.pt_enable(self.handle, index);
        done.map_err(|code| error(code, "the portal table index"))
    }

    /// The library waits for operations in progress, so they are always over.
    fn pt_disable(&mut self, index: u32) -> Result<bool, NiError> {
        let done = self.library.pt_disable(self.handle, index);
        done.map_err(|code| error(code, "the portal table index"))?;
        Ok(true)
    }

    fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError> {
        let eq = self.library.eq_alloc(self.handle, count);
        eq.map(EqHandle).map_err(|code| error(code, "event queues"))
    }

    fn eq_free(&mut self, eq: EqHandle) -> Result<(), NiError> {
        self.library
            .eq_free(eq.0)
            .map_err(|code| error(code, "the event queue"))?;
        self.records.read_to_end(eq);
        Ok(())
    }

    fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError> {
        // Bounded: each iteration takes an event of the queue, and one without an owner is skipped.
        loop {
            let (code, raw) = self.library.eq_get(eq.0);
            match code {
                0 | EQ_DROPPED => {}
                4 => {
                    self.records.read_to_end(eq);
                    return Ok(EqGet::Empty);
                }
                code => return Err(error(code, "the event queue")),
            }
            let Some(kind) = convert::kind(raw.kind) else {
                self.strange += 1;
                continue;
            };
            let owner = match kind {
                EventKind::PtDisabled => Some(crate::nic_records::EventOwner {
                    user_ptr: 0,
                    target: None,
                    place: 0,
                }),
                kind if is_initiators(kind) => self.records.of_operation(raw.user_ptr),
                kind => self
                    .records
                    .of_entry(raw.user_ptr, raw.start, ends_an_entry(kind)),
            };
            let Some(owner) = owner else {
                self.strange += 1;
                continue;
            };
            let event = convert::event(&raw, kind, owner, self.kind.logical);
            if event.fail == NiFail::Undeliverable
                && let Some(target) = owner.target
            {
                self.undeliverable(target);
            }
            return Ok(if code == EQ_DROPPED {
                EqGet::Dropped(event)
            } else {
                EqGet::Event(event)
            });
        }
    }

    fn ct_alloc(&mut self) -> Result<CtHandle, NiError> {
        let ct = self.library.ct_alloc(self.handle);
        ct.map(CtHandle).map_err(|code| error(code, "counting events"))
    }

    fn ct_free(&mut self, ct: CtHandle) -> Result<(), NiError> {
        self.library
            .ct_free(ct.0)
            .map_err(|code| error(code, "the counting event"))
    }

    fn ct_get(&self, ct: CtHandle) -> Result<Count, NiError> {
        let value = self.library.ct_get(ct.0);
        value
            .map(Count::from)
            .map_err(|code| error(code, "the counting event"))
    }

    fn ct_set(&mut self, ct: CtHandle, to: Count) -> Result<(), NiError> {
        let done = self.library.ct_set(ct.0, to.into());
        done.map_err(|code| error(code, "the counting event"))
    }

    fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), NiError> {
        if by.success != 0 && by.failure != 0 {
            return Err(NiError::ArgInvalid("an increment of both numbers"));
        }
        let done = self.library.ct_inc(ct.0, by.into());
        done.map_err(|code| error(code, "the counting event"))
    }

    fn ct_cancel_triggered(&mut self, ct: CtHandle) -> Result<(), NiError> {
        let done = self.library.ct_cancel(ct.0);
        done.map_err(|code| error(code, "the counting event"))
    }

    fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError> {
        let held = Held::new(md.memory.clone());
        let pieces = held.pieces();
        let vector = if pieces.is_list() { MdOptions::IOVEC.0 } else { 0 };
        let options = md.options.0 & !MdOptions::IOVEC.0 | vector;
        let (eq, ct) = (md.eq.map_or(EQ_NONE, |eq| eq.0), md.ct.map_or(CT_NONE, |ct| ct.0));
        let bound = self.library.md_bind(self.handle, &pieces, options, eq, ct);
        let handle = bound.map_err(|code| error(code, "memory descriptors"))?;
        self.records.bound(handle, &md, held);
        Ok(MdHandle(handle))
    }

    fn md_release(&mut self, md: MdHandle) -> Result<(), NiError> {
        let done = self.library.md_release(md.0);
        done.map_err(|code| error(code, "the memory descriptor"))?;
        self.records.released(md.0);
        Ok(())
    }

    fn append(
        &mut self,
        pt_index: u32,
        entry: Entry,
        list: List,
        user_ptr: u64,
    ) -> Result<EntryHandle, NiError> {
        let eq = self.queues.get(&pt_index).copied().flatten();
        let held = Held::new(entry.memory.clone());
        let word = self
            .records
            .append_entry(&entry, held, list, user_ptr, eq.is_some());
        let pieces = self.records.entry_pieces(word);
        let ni = (self.handle, self.kind.matching);
        match self
            .library
            .append(ni, pt_index, (&entry, &pieces), list as u8, word)
        {
            Ok(handle) => {
                self.records.appended(handle, word, eq);
                Ok(EntryHandle(handle))
            }
            Err(code) => {
                self.records.not_appended(word);
                Err(error(code, "list entries"))
            }
        }
    }

    fn unlink(&mut self, entry: EntryHandle) -> Result<(), NiError> {
        let done = self.library.unlink(self.kind.matching, entry.0);
        done.map_err(|code| error(code, "the list entry"))?;
        self.records.unlinked(entry.0);
        Ok(())
    }

    fn search(&mut self, pt_index: u32, entry: &Entry, how: Search, user_ptr: u64) -> Result<(), NiError> {
        let queued = self.queues.get(&pt_index).copied().flatten().is_some();
        let held = Held::new(entry.memory.clone());
        let word = self.records.start_search(entry, held, user_ptr);
        let pieces = self.records.entry_pieces(word);
        let ni = (self.handle, self.kind.matching);
        let done = self
            .library
            .search(ni, pt_index, (entry, &pieces), how as u8, word);
        if done.is_err() || !queued {
            self.records.not_appended(word);
        }
        done.map_err(|code| error(code, "an argument of the search"))
    }

    fn put(&mut self, put: &Put) -> Result<(), NiError> {
        self.put_at(put, None)
    }

    fn get(&mut self, get: &Get) -> Result<(), NiError> {
        self.get_at(get, None)
    }

    fn atomic(&mut self, atomic: &Atomic) -> Result<(), NiError> {
        self.atomic_at(atomic, None)
    }

    fn fetch_atomic(&mut self, fetch: &FetchAtomic) -> Result<(), NiError> {
        self.fetch_at(fetch, None)
    }

    /// Appending and unlinking by a trigger are extensions that not every library has: they are refused here.
    fn trigger(
        &mut self,
        ct: CtHandle,
        threshold: u64,
        what: Triggered,
    ) -> Result<Option<EntryHandle>, NiError> {
        let at = At { ct: ct.0, threshold };
        let counted = |done: Result<(), i32>| done.map_err(|code| error(code, "triggered operations"));
        match what {
            Triggered::Put(put) => self.put_at(&put, Some(at)),
            Triggered::Get(get) => self.get_at(&get, Some(at)),
            Triggered::Atomic(atomic) => self.atomic_at(&atomic, Some(at)),
            Triggered::FetchAtomic(fetch) => self.fetch_at(&fetch, Some(at)),
            Triggered::CtInc(of, by) => counted(self.library.triggered_ct_inc(of.0, by.into(), at)),
            Triggered::CtSet(of, to) => counted(self.library.triggered_ct_set(of.0, to.into(), at)),
            Triggered::Append { .. } | Triggered::Unlink(_) => Err(NiError::ArgInvalid(
                "a triggered append or unlink, which is an extension",
            )),
        }?;
        Ok(None)
    }

    /// The library rings by itself.
    fn flush(&mut self) {}
}

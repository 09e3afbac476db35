//! The calls: one process' interface as the contract has it, and what each call does in the world.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use doorbell_fabric::ni::{
    AckReq, Atomic, Count, CtHandle, Entry, EntryHandle, EqGet, EqHandle, EventKind, FetchAtomic, Get, Kind,
    List, Lost, Md, MdHandle, MdOptions, Ni, NiError, NiFail, NiLimits, Process, PtOptions, Put, Register,
    Search, Target, Triggered,
};
use doorbell_fabric::time::Time;

use super::Wrong;
use super::queue::blank;
use super::state::{Ct, Eq, Key, Op, Pt, PtState, Request, Then, World};
use super::target::read;
use super::valid;

impl World {
    /// The interface that a target names.
    fn whom(&self, key: Key, process: Process) -> Option<Key> {
        let number = self.interfaces[&key].kind.number();
        let at = if self.interfaces[&key].kind.logical {
            Some(process.nid as usize).filter(|rank| *rank < self.names.len())
        } else {
            self.names.iter().position(|name| *name == process)
        };
        at.map(|process| (process, number))
    }

    fn is_ready(&self, key: Key) -> Result<(), NiError> {
        let ni = &self.interfaces[&key];
        if ni.kind.logical && ni.map.is_none() && !self.is(Wrong::MapIsOptional) {
            return Err(NiError::NoInit);
        }
        Ok(())
    }

    fn request(&self, key: Key, target: &Target, op: Op, length: u64, user_ptr: u64) -> Request {
        let ni = &self.interfaces[&key];
        Request {
            from: key,
            initiator: ni.me,
            uid: ni.uid,
            to: self.whom(key, target.process),
            op,
            pt_index: target.pt_index,
            match_bits: target.match_bits,
            rlength: length,
            remote_offset: target.remote_offset,
            hdr_data: 0,
            data: Vec::new(),
            then: Then {
                user_ptr,
                ack: None,
                into: None,
            },
        }
    }

    pub(crate) fn begin_put(&mut self, key: Key, put: &Put) -> Result<(), NiError> {
        self.send(key, put, Op::Put)
    }

    pub(crate) fn begin_atomic(&mut self, key: Key, it: &Atomic) -> Result<(), NiError> {
        let most = self.at(key).limits.max_atomic_size;
        valid::atomic(it.kind, it.datatype, it.put.length, most, false)?;
        self.send(key, &it.put, Op::Atomic(it.kind, it.datatype))
    }

    /// The common part of puts and atomics: the bytes leave, and the initiator gets its events.
    fn send(&mut self, key: Key, put: &Put, op: Op) -> Result<(), NiError> {
        valid::range(self.at(key), put.from.md, put.from.offset, put.length)?;
        let mut request = self.request(key, &put.target, op, put.length, put.user_ptr);
        let md = self.at(key).md(put.from.md).ok_or(NiError::ArgInvalid("md"))?;
        request.data = read(&md.memory, put.from.offset as usize, put.length as usize);
        request.hdr_data = put.hdr_data;
        request.then.ack = match put.ack {
            AckReq::None => None,
            ack => Some((put.from.md, ack == AckReq::Full)),
        };
        let (options, eq, ct) = (md.options, md.eq, md.ct);
        let doomed = self.is(Wrong::NoSendOnFailure) && self.will_fail(&request);
        self.begun.push_back(request);
        let hidden =
            options.has(MdOptions::EVENT_SEND_DISABLE) || options.has(MdOptions::EVENT_SUCCESS_DISABLE);
        if !hidden && !doomed {
            let mut event = blank(EventKind::Send, NiFail::Ok);
            (event.user_ptr, event.mlength) = (put.user_ptr, put.length);
            self.post(key, eq, event);
        }
        let uncounted =
            self.is(Wrong::SendDisableStopsCounting) && options.has(MdOptions::EVENT_SEND_DISABLE);
        if options.has(MdOptions::EVENT_CT_SEND) && !uncounted {
            let by_bytes = options.has(MdOptions::EVENT_CT_BYTES);
            self.count(key, ct, NiFail::Ok, by_bytes, put.length);
        }
        Ok(())
    }

    /// For one wrong rule only: whether no entry is going to take it.
    fn will_fail(&mut self, request: &Request) -> bool {
        let Some(to) = request.to.filter(|to| self.interfaces.contains_key(to)) else {
            return true;
        };
        let (matching, logical) = (self.at(to).kind.matching, self.at(to).kind.logical);
        let Some(pt) = self.at(to).pt(request.pt_index) else {
            return true;
        };
        let slots: Vec<usize> = pt.priority.iter().chain(&pt.overflow).copied().collect();
        let is_open = pt.state == PtState::Enabled;
        let mut entries = slots.iter().map(|slot| {
            let linked = self.interfaces[&to].entries[*slot]
                .as_ref()
                .expect("it is linked");
            (&linked.entry, linked.local)
        });
        let takes = entries.find(|(entry, local)| self.matches(matching, logical, entry, *local, request));
        !(is_open && takes.is_some_and(|(entry, _)| self.may(entry, request).is_ok()))
    }

    pub(crate) fn begin_get(&mut self, key: Key, get: &Get) -> Result<(), NiError> {
        valid::range(self.at(key), get.into.md, get.into.offset, get.length)?;
        let mut request = self.request(key, &get.target, Op::Get, get.length, get.user_ptr);
        request.then.into = Some((get.into.md, get.into.offset));
        self.begun.push_back(request);
        Ok(())
    }

    pub(crate) fn begin_fetch(&mut self, key: Key, it: &FetchAtomic) -> Result<(), NiError> {
        let most = self.at(key).limits.max_fetch_atomic_size;
        valid::atomic(it.kind, it.datatype, it.length, most, true)?;
        valid::range(self.at(key), it.into.md, it.into.offset, it.length)?;
        valid::range(self.at(key), it.from.md, it.from.offset, it.length)?;
        let op = Op::Fetch(it.kind, it.datatype, it.operand);
        let mut request = self.request(key, &it.target, op, it.length, it.user_ptr);
        let md = self.at(key).md(it.from.md).ok_or(NiError::ArgInvalid("md"))?;
        request.data = read(&md.memory, it.from.offset as usize, it.length as usize);
        request.hdr_data = it.hdr_data;
        request.then.into = Some((it.into.md, it.into.offset));
        self.begun.push_back(request);
        Ok(())
    }

    pub(crate) fn set_count(&mut self, key: Key, ct: CtHandle, to: Count) -> Result<(), NiError> {
        let silent = self.is(Wrong::SetFiresNothing);
        let it = self.at(key).ct(ct).ok_or(NiError::ArgInvalid("ct"))?;
        it.count = to;
        if !silent {
            self.fire(key, ct);
        }
        Ok(())
    }
}

/// One process' interface.
pub(crate) struct ModelNi {
    world: Rc<RefCell<World>>,
    key: Key,
    limits: NiLimits,
}

impl ModelNi {
    pub(crate) fn new(world: &Rc<RefCell<World>>, process: usize, kind: Kind) -> Self {
        let key = (process, kind.number());
        Self {
            world: Rc::clone(world),
            key,
            limits: world.borrow_mut().at(key).limits,
        }
    }

    /// Does something, and everything that follows from it.
    fn does<R>(&self, f: impl FnOnce(&mut World, Key) -> Result<R, NiError>) -> Result<R, NiError> {
        let mut world = self.world.borrow_mut();
        world.is_ready(self.key)?;
        let done = f(&mut world, self.key);
        world.run();
        done
    }
}

impl Ni for ModelNi {
    fn kind(&self) -> Kind {
        self.world.borrow_mut().at(self.key).kind
    }

    fn limits(&self) -> &NiLimits {
        &self.limits
    }

    fn id(&self) -> Process {
        self.world.borrow_mut().at(self.key).me
    }

    fn uid(&self) -> u32 {
        self.world.borrow_mut().at(self.key).uid
    }

    fn status(&self, register: Register) -> u64 {
        self.world.borrow_mut().at(self.key).registers[register as usize]
    }

    fn poll(&mut self, _: usize) -> usize {
        0
    }

    fn progress(&mut self, _: Time) -> usize {
        0
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self, _: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn lost(&mut self) -> Option<Lost> {
        None
    }

    fn pt_alloc(
        &mut self,
        options: PtOptions,
        eq: Option<EqHandle>,
        index: Option<u32>,
    ) -> Result<u32, NiError> {
        self.does(|world, key| {
            let ni = world.at(key);
            valid::table(ni, options, eq, index)?;
            let index = match index {
                Some(index) if ni.pt(index).is_some() => return Err(NiError::PtInUse),
                Some(index) => index as usize,
                None => ni.table.iter().position(Option::is_none).ok_or(NiError::PtFull)?,
            };
            let state = if options.has(PtOptions::ALLOC_DISABLED) {
                PtState::Disabled
            } else {
                PtState::Enabled
            };
            ni.table[index] = Some(Pt {
                options,
                eq,
                state,
                priority: Vec::new(),
                overflow: Vec::new(),
                headers: Vec::new(),
            });
            Ok(index as u32)
        })
    }

    fn pt_free(&mut self, index: u32) -> Result<(), NiError> {
        self.does(|world, key| {
            let forgets = world.is(Wrong::FreeForgetsHeaders);
            let pt = world.at(key).pt(index).ok_or(NiError::ArgInvalid("index"))?;
            let headers = !forgets && !pt.headers.is_empty();
            if headers || !pt.priority.is_empty() || !pt.overflow.is_empty() {
                return Err(NiError::PtInUse);
            }
            world.at(key).table[index as usize] = None;
            Ok(())
        })
    }

    fn pt_enable(&mut self, index: u32) -> Result<(), NiError> {
        self.does(|world, key| {
            let pt = world.at(key).pt(index).ok_or(NiError::ArgInvalid("index"))?;
            pt.state = PtState::Enabled;
            Ok(())
        })
    }

    fn pt_disable(&mut self, index: u32) -> Result<bool, NiError> {
        self.does(|world, key| {
            let pt = world.at(key).pt(index).ok_or(NiError::ArgInvalid("index"))?;
            pt.state = PtState::Disabled;
            Ok(true)
        })
    }

    fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError> {
        self.does(|world, key| {
            let ni = world.at(key);
            if ni.eqs.iter().flatten().count() >= ni.limits.max_eqs as usize {
                return Err(NiError::NoSpace("max_eqs"));
            }
            ni.eqs.push(Some(Eq {
                count,
                events: Default::default(),
                has_dropped: false,
            }));
            Ok(EqHandle(ni.eqs.len() as u32 - 1))
        })
    }

    fn eq_free(&mut self, eq: EqHandle) -> Result<(), NiError> {
        self.does(|world, key| {
            let it = world.at(key).eqs.get_mut(eq.0 as usize).and_then(Option::take);
            it.map(|_| ()).ok_or(NiError::ArgInvalid("eq"))
        })
    }

    fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError> {
        self.does(|world, key| world.take_event(key, eq).ok_or(NiError::ArgInvalid("eq")))
    }

    fn ct_alloc(&mut self) -> Result<CtHandle, NiError> {
        self.does(|world, key| {
            let ni = world.at(key);
            if ni.cts.iter().flatten().count() >= ni.limits.max_cts as usize {
                return Err(NiError::NoSpace("max_cts"));
            }
            ni.cts.push(Some(Ct::default()));
            Ok(CtHandle(ni.cts.len() as u32 - 1))
        })
    }

    fn ct_free(&mut self, ct: CtHandle) -> Result<(), NiError> {
        self.does(|world, key| {
            let it = world.at(key).cts.get_mut(ct.0 as usize).and_then(Option::take);
            let it = it.ok_or(NiError::ArgInvalid("ct"))?;
            world.at(key).forget(&it.waiting);
            Ok(())
        })
    }

    fn ct_get(&self, ct: CtHandle) -> Result<Count, NiError> {
        self.does(|world, key| Ok(world.at(key).ct(ct).ok_or(NiError::ArgInvalid("ct"))?.count))
    }

    fn ct_set(&mut self, ct: CtHandle, to: Count) -> Result<(), NiError> {
        self.does(|world, key| world.set_count(key, ct, to))
    }

    fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), NiError> {
        self.does(|world, key| {
            if by.success != 0 && by.failure != 0 {
                return Err(NiError::ArgInvalid("count"));
            }
            world.at(key).ct(ct).ok_or(NiError::ArgInvalid("ct"))?;
            world.add(key, ct, by);
            Ok(())
        })
    }

    fn ct_cancel_triggered(&mut self, ct: CtHandle) -> Result<(), NiError> {
        self.does(|world, key| {
            let forgets = world.is(Wrong::CancelForgets);
            let it = world.at(key).ct(ct).ok_or(NiError::ArgInvalid("ct"))?;
            if !forgets {
                let waiting = std::mem::take(&mut it.waiting);
                world.at(key).forget(&waiting);
            }
            Ok(())
        })
    }

    fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError> {
        self.does(|world, key| {
            let ni = world.at(key);
            valid::md(ni, &md)?;
            if ni.mds.iter().flatten().count() >= ni.limits.max_mds as usize {
                return Err(NiError::NoSpace("max_mds"));
            }
            ni.mds.push(Some(md));
            Ok(MdHandle(ni.mds.len() as u32 - 1))
        })
    }

    fn md_release(&mut self, md: MdHandle) -> Result<(), NiError> {
        self.does(|world, key| {
            let it = world.at(key).mds.get_mut(md.0 as usize).and_then(Option::take);
            it.map(|_| ()).ok_or(NiError::ArgInvalid("md"))
        })
    }

    fn append(
        &mut self,
        pt_index: u32,
        entry: Entry,
        list: List,
        user_ptr: u64,
    ) -> Result<EntryHandle, NiError> {
        self.does(|world, key| {
            valid::entry(world.at(key), pt_index, &entry)?;
            world.at(key).judge_room(pt_index, list)?;
            let slot = world.at(key).entries.len();
            world.at(key).entries.push(None);
            world.append(key, slot, pt_index, entry, list, user_ptr)?;
            Ok(EntryHandle(slot as u32))
        })
    }

    fn unlink(&mut self, entry: EntryHandle) -> Result<(), NiError> {
        self.does(|world, key| world.unlink(key, entry.0 as usize))
    }

    fn search(&mut self, pt_index: u32, entry: &Entry, how: Search, user_ptr: u64) -> Result<(), NiError> {
        self.does(|world, key| world.search(key, pt_index, entry, how, user_ptr))
    }

    fn put(&mut self, put: &Put) -> Result<(), NiError> {
        self.does(|world, key| world.begin_put(key, put))
    }

    fn get(&mut self, get: &Get) -> Result<(), NiError> {
        self.does(|world, key| world.begin_get(key, get))
    }

    fn atomic(&mut self, atomic: &Atomic) -> Result<(), NiError> {
        self.does(|world, key| world.begin_atomic(key, atomic))
    }

    fn fetch_atomic(&mut self, fetch: &FetchAtomic) -> Result<(), NiError> {
        self.does(|world, key| world.begin_fetch(key, fetch))
    }

    fn trigger(
        &mut self,
        ct: CtHandle,
        threshold: u64,
        what: Triggered,
    ) -> Result<Option<EntryHandle>, NiError> {
        self.does(|world, key| {
            valid::triggered(world.at(key), &what)?;
            let mut slot = None;
            if let Triggered::Append { pt_index, list, .. } = what {
                let ni = world.at(key);
                ni.judge_room(pt_index, list)?;
                slot = Some(ni.entries.len());
                ni.entries.push(None);
                ni.reserved.extend(slot);
            }
            let set = world.set_trigger(key, ct, threshold, (what, slot));
            if set.is_err() {
                world.at(key).reserved.retain(|other| Some(*other) != slot);
            }
            set?;
            Ok(slot.map(|slot| EntryHandle(slot as u32)))
        })
    }

    fn flush(&mut self) {}
}

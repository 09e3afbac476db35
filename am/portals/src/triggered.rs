//! Triggered operations: set, fired, done (reference: portals, sections 9 and 10).

use doorbell_fabric::message::Message;
use doorbell_fabric::ni::{ANY, Count, CtHandle, Entry, Kind, NID_ANY, NiError, PID_ANY, Triggered};
use doorbell_matching::Pattern;

use crate::append::pattern_of;
use crate::core::Core;
use crate::counting::Held;
use crate::entries::{EntrySlot, Standing};
use crate::iface::Iface;
use crate::link::Link;

/// What has fired and is not done yet; beyond it, nothing more can be set.
const BACKLOG: usize = 1 << 16;

impl Core {
    /// Lets `what` wait for a counting event. The handle of the entry that it will append, if it will.
    pub(crate) fn trigger(
        &mut self,
        kind: Kind,
        ct: CtHandle,
        threshold: u64,
        what: Triggered,
    ) -> Result<Option<u32>, NiError> {
        let ni = self.ready(kind)?;
        if ni.triggers.backlog() >= BACKLOG {
            return Err(NiError::Full);
        }
        let fires = ni.counting(ct.0)?.value.fires(threshold);
        if !fires && ni.counting(ct.0)?.waiting() >= ni.limits.max_triggered_ops {
            return Err(NiError::NoSpace("max_triggered_ops"));
        }
        let mut held = self.hold(kind, what)?;
        let ni = self.ready(kind)?;
        for md in held.descriptors().into_iter().flatten() {
            let index = ni.mds.index(md.0).unwrap_or(md.0);
            if let Some(slot) = ni.mds.at_mut(index) {
                slot.refs += 1;
            }
            md.0 = index;
        }
        let entry = match held {
            Held::Append(handle) => Some(handle),
            _ => None,
        };
        if fires {
            ni.triggers.fire_now(held);
        } else if let Some(counting) = ni.cts.get_mut(ct.0) {
            ni.triggers.wait(counting, threshold, held);
        }
        Ok(entry)
    }

    /// Judges what is to wait; of an append, the entry is made, and waits under its handle.
    fn hold(&mut self, kind: Kind, what: Triggered) -> Result<Held, NiError> {
        let held = match what {
            Triggered::Put(put) => Held::Put(put),
            Triggered::Get(get) => Held::Get(get),
            Triggered::Atomic(atomic) => Held::Atomic(atomic),
            Triggered::FetchAtomic(fetch) => Held::FetchAtomic(fetch),
            Triggered::CtInc(ct, by) => {
                self.ready(kind)?.counting(ct.0)?;
                judge_increment(by)?;
                Held::CtInc(ct.0, by)
            }
            Triggered::CtSet(ct, to) => {
                self.ready(kind)?.counting(ct.0)?;
                Held::CtSet(ct.0, to)
            }
            Triggered::Append {
                pt_index,
                entry,
                list,
                user_ptr,
            } => {
                let pattern = self.pattern(kind, &entry)?;
                let ni = self.ready(kind)?;
                ni.judge_entry(pt_index, &entry)?;
                ni.judge_list(pt_index, list)?;
                let (_, handle) = ni.reserve(EntrySlot::new(*entry, pattern, pt_index, list, user_ptr))?;
                Held::Append(handle)
            }
            Triggered::Unlink(entry) => match self.ready(kind)?.entries.get(entry.0) {
                Some(_) => Held::Unlink(entry.0),
                None => return Err(NiError::ArgInvalid("an entry's handle")),
            },
        };
        self.judge_data(kind, &held)?;
        Ok(held)
    }

    /// The pattern of an entry's match fields; `None` on an interface without matching.
    pub(crate) fn pattern(&mut self, kind: Kind, entry: &Entry) -> Result<Option<Pattern>, NiError> {
        if !kind.matching {
            return Ok(None);
        }
        let id = entry.match_id;
        let node = match id.nid {
            _ if kind.logical => None,
            NID_ANY | ANY => None,
            nid => Some(self.peers.node(nid).map_err(|_| NiError::NoSpace("nodes"))?),
        };
        if !kind.logical && id.pid > PID_ANY && id.pid != ANY {
            return Err(NiError::ArgInvalid("a process id"));
        }
        Ok(Some(pattern_of(entry, kind.logical, node)))
    }

    /// Does what has fired and needs no rail: at once, so that the next arrival finds it done.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_local(&mut self, ni: usize) {
        let Some(ni) = self.nis[ni].as_deref_mut() else {
            return;
        };
        while let Some(what) = ni.triggers.next() {
            if what.is_data() {
                self.fired = true;
                return;
            }
            ni.triggers.did();
            ni.do_local(what);
        }
    }

    /// Does what has fired, in order; stops where a rail has no room.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_fired<M: Message>(&mut self, link: &mut Link<M>, kind: Kind) {
        let at = kind.number() as usize;
        loop {
            self.run_local(at);
            let Some(ni) = self.nis[at].as_deref_mut() else {
                return;
            };
            let Some(mut held) = ni.triggers.next() else {
                return;
            };
            ni.by_index = true;
            let outcome = match &held {
                Held::Put(put) => self.put(link, kind, put),
                Held::Get(get) => self.get(link, kind, get),
                Held::Atomic(atomic) => self.atomic(link, kind, atomic),
                Held::FetchAtomic(fetch) => self.fetch_atomic(link, kind, fetch),
                _ => Ok(()),
            };
            let Some(ni) = self.nis[at].as_deref_mut() else {
                return;
            };
            ni.by_index = false;
            if outcome == Err(NiError::Full) {
                self.fired = true;
                return;
            }
            ni.triggers.did();
            for md in held.descriptors().into_iter().flatten() {
                ni.md_unref(md.0);
            }
        }
    }
}

impl Iface {
    /// Does what needs no rail. What it names may be gone by now: then nothing is done.
    fn do_local(&mut self, what: Held) {
        match what {
            Held::CtInc(ct, by) => self.count(ct, by),
            Held::CtSet(ct, to) => self.ct_set(ct, to),
            Held::Append(handle) => {
                let index = self.entries.index(handle);
                if let Some(index) = index.filter(|index| self.is_reserved(*index)) {
                    self.link_if_room(index);
                }
            }
            Held::Unlink(handle) => {
                // One that is in use, or gone, stays as it is: there is no caller to return an error to.
                let _ = self.unlink_entry(handle);
            }
            _ => {}
        }
    }

    /// Room and table entry are as they are now: when the trigger was set they were others'.
    fn link_if_room(&mut self, index: u32) {
        let at = self.entries.at(index).map(|slot| (slot.pt, slot.list));
        if at.is_some_and(|(pt, list)| self.judge_list(pt, list).is_ok()) {
            self.link(index);
        } else {
            self.entries.take_counted(index);
        }
    }

    fn is_reserved(&self, index: u32) -> bool {
        self.entries
            .at(index)
            .is_some_and(|slot| slot.standing == Standing::Reserved)
    }

    /// Releases what an operation held that was set and will not be done.
    fn give_up(&mut self, mut held: Held) {
        for md in held.descriptors().into_iter().flatten() {
            self.md_unref(md.0);
        }
        if let Held::Append(handle) = held
            && let Some(index) = self.entries.index(handle)
        {
            self.entries.take_counted(index);
        }
    }

    pub(crate) fn counting(&self, ct: u32) -> Result<&crate::counting::Counting, NiError> {
        self.cts
            .get(ct)
            .ok_or(NiError::ArgInvalid("a counting event's handle"))
    }

    pub(crate) fn ct_set(&mut self, ct: u32, to: Count) {
        if let Some(counting) = self.cts.get_mut(ct) {
            counting.value = to;
            if counting.is_waited_for() {
                self.triggers.fire(counting);
            }
        }
    }

    /// Forgets what waits for a counting event.
    pub(crate) fn cancel_triggered(&mut self, ct: u32) {
        let mut held = Vec::new();
        if let Some(counting) = self.cts.get_mut(ct) {
            self.triggers.cancel(counting, |what| held.push(what));
        }
        for what in held {
            self.give_up(what);
        }
    }
}

/// Only one of the two numbers may be other than zero.
pub(crate) fn judge_increment(by: Count) -> Result<(), NiError> {
    if by.success != 0 && by.failure != 0 {
        return Err(NiError::ArgInvalid("an increment of both numbers"));
    }
    Ok(())
}

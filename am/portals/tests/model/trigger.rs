//! Triggered operations (reference: portals, section 9).

use doorbell_fabric::ni::{CtHandle, EntryHandle, NiError, Triggered};

use super::Wrong;
use super::state::{Key, Waiting, World};

impl World {
    /// Everything whose threshold is reached: by increasing threshold, equal ones in issue order.
    pub(crate) fn fire(&mut self, key: Key, ct: CtHandle) {
        let issue_order = self.is(Wrong::FiresInIssueOrder);
        let success_only = self.is(Wrong::FailuresDoNotFire);
        loop {
            let Some(it) = self.at(key).ct(ct) else { return };
            let reached = if success_only {
                it.count.success
            } else {
                it.count.success.saturating_add(it.count.failure)
            };
            let ready = it
                .waiting
                .iter()
                .enumerate()
                .filter(|(_, (at, _))| *at <= reached);
            let next = if issue_order {
                ready.map(|(n, _)| n).next()
            } else {
                // `min_by_key` gives the first of equal ones.
                ready.min_by_key(|(_, (at, _))| *at).map(|(n, _)| n)
            };
            let Some(n) = next else { return };
            let (_, what) = it.waiting.remove(n);
            self.fired.push_back((key, what));
        }
    }

    /// Sets a trigger; what is satisfied fires at once.
    pub(crate) fn set_trigger(
        &mut self,
        key: Key,
        ct: CtHandle,
        threshold: u64,
        what: Waiting,
    ) -> Result<(), NiError> {
        let shared = self.is(Wrong::TriggersAreShared);
        let never = self.is(Wrong::SatisfiedNeverFires);
        let ni = self.at(key);
        let most = ni.limits.max_triggered_ops as usize;
        let all: usize = ni.cts.iter().flatten().map(|ct| ct.waiting.len()).sum();
        let it = ni.ct(ct).ok_or(NiError::ArgInvalid("ct"))?;
        if it.count.fires(threshold) {
            if !never {
                self.fired.push_back((key, what));
            }
            return Ok(());
        }
        if it.waiting.len() >= most || shared && all >= most {
            return Err(NiError::NoSpace("max_triggered_ops"));
        }
        it.waiting.push((threshold, what));
        Ok(())
    }

    /// Goes on until nothing is begun or fired any more.
    pub(crate) fn run(&mut self) {
        loop {
            // What has fired first: its requests then come after those that were begun before it.
            if let Some((key, what)) = self.fired.pop_front() {
                self.act(key, what);
                continue;
            }
            if self.held {
                return;
            }
            let next = if self.is(Wrong::NoOrder) {
                self.begun.pop_back()
            } else {
                self.begun.pop_front()
            };
            let Some(request) = next else { return };
            self.carry_out(request);
        }
    }

    /// A triggered operation whose arguments have meanwhile become invalid does nothing.
    fn act(&mut self, key: Key, (what, slot): Waiting) {
        self.at(key).reserved.retain(|other| Some(*other) != slot);
        let _ = match what {
            Triggered::Put(put) => self.begin_put(key, &put),
            Triggered::Get(get) => self.begin_get(key, &get),
            Triggered::Atomic(atomic) => self.begin_atomic(key, &atomic),
            Triggered::FetchAtomic(fetch) => self.begin_fetch(key, &fetch),
            Triggered::CtInc(ct, by) => {
                self.add(key, ct, by);
                Ok(())
            }
            Triggered::CtSet(ct, to) => self.set_count(key, ct, to),
            Triggered::Append {
                pt_index,
                entry,
                list,
                user_ptr,
            } => match slot {
                Some(slot) if self.at(key).judge_room(pt_index, list).is_ok() => {
                    self.append(key, slot, pt_index, *entry, list, user_ptr)
                }
                _ => Ok(()),
            },
            Triggered::Unlink(EntryHandle(entry)) => self.unlink(key, entry as usize),
        };
    }
}

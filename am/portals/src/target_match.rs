//! Which entry takes a request, and what that does to it: steps 2 to 9 of what a target does (reference:
//! portals, section 6).

use doorbell_fabric::ni::{EntryOptions, Event, List, NiFail, Register};
use doorbell_matching::{Candidate, Match, MatchKey};

use crate::append::permitted;
use crate::entries::{EntrySlot, Header, Standing};
use crate::iface::Iface;
use crate::peers::NONE;

/// An entry that has taken a request.
pub(crate) struct Taken {
    pub(crate) entry: u32,
    /// Where the first byte goes.
    pub(crate) place: u64,
    pub(crate) header: u32,
    /// Whether the entry places messages itself.
    pub(crate) managed: bool,
    /// A queue has promised its event a place (flow control).
    pub(crate) kept: bool,
    /// The entry acknowledges nothing.
    pub(crate) silent: bool,
}

impl Iface {
    /// Steps 2 to 9.
    #[inline(always)]
    pub(crate) fn take(&mut self, source: u32, event: &mut Event, unit: u64) -> Result<Taken, NiFail> {
        let pt = event.pt_index;
        let Some(table) = self.tables.get_mut(pt as usize).and_then(Option::as_deref_mut) else {
            self.register(Register::DropCount);
            return Err(NiFail::Dropped);
        };
        if !table.enabled {
            return Err(NiFail::PtDisabled);
        }
        if table.has_flow_control() && self.eqs.get(table.eq).is_some_and(|queue| queue.is_full()) {
            let eq = table.eq;
            self.disable_all(eq, true);
            return Err(NiFail::PtDisabled);
        }
        let (index, list, mut candidate) = if self.kind.matching {
            let key = MatchKey::new(0, source, event.match_bits);
            match table.matcher.look(&key, event.remote_offset, event.rlength) {
                Some(found) => {
                    let list = match found.hit.list {
                        doorbell_matching::List::Priority => List::Priority,
                        doorbell_matching::List::Overflow => List::Overflow,
                    };
                    (found.hit.token as u32, list, Some(found))
                }
                None => return Err(self.unmatched(pt, true)),
            }
        } else {
            match table.front() {
                Some((index, list)) => (index, list, None),
                None => return Err(self.unmatched(pt, true)),
            }
        };
        let Some(slot) = self.entries.at_mut(index) else {
            return Err(NiFail::Dropped);
        };
        match permitted(slot, event) {
            NiFail::Ok => {}
            fail => return Err(self.violated(fail)),
        }
        let options = slot.options;
        let keeps = list == List::Overflow && !options.has(EntryOptions::UNEXPECTED_HDR_DISABLE);
        if keeps && self.headers.unclaimed >= self.limits.max_unexpected_headers {
            let tell = !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE);
            return Err(self.unmatched(pt, tell));
        }
        let (place, length, used_up) = match &mut candidate {
            Some(found) => {
                if unit > 1 {
                    whole_elements(&mut found.hit, slot, unit);
                }
                (found.hit.offset, found.hit.length, found.hit.unlinked)
            }
            None => {
                let room = slot.length.saturating_sub(event.remote_offset);
                let length = event.rlength.min(room);
                let once = options.has(EntryOptions::USE_ONCE);
                let cut = if unit > 1 { length % unit } else { 0 };
                (event.remote_offset, length - cut, once)
            }
        };
        slot.ops += 1;
        event.list = list;
        event.place = place;
        event.mlength = length;
        event.user_ptr = slot.user_ptr;
        event.start = slot.memory.address(place as usize);
        let managed = options.has(EntryOptions::MANAGE_LOCAL);
        table.in_progress += 1;
        let mut kept = false;
        if table.has_flow_control()
            && let Some(queue) = self.eqs.get_mut(table.eq)
        {
            queue.promise();
            kept = true;
        }
        if let Some(found) = &candidate {
            // It is there: it was found just now.
            let _ = table.matcher.take(found);
        }
        let header = if keeps {
            self.keep(index, source, event)
        } else {
            NONE
        };
        if used_up {
            self.used_up(index, &candidate);
        }
        Ok(Taken {
            entry: index,
            place,
            header,
            managed,
            kept,
            silent: options.has(EntryOptions::ACK_DISABLE),
        })
    }

    /// Step 4, and step 6 where no header is left.
    #[cold]
    #[inline(never)]
    fn unmatched(&mut self, pt: u32, tell: bool) -> NiFail {
        if self.table(pt).is_some_and(|table| table.has_flow_control()) {
            self.auto_disable(pt, tell);
            return NiFail::PtDisabled;
        }
        self.register(Register::DropCount);
        NiFail::Dropped
    }

    /// Step 5: counts a refusal.
    #[cold]
    #[inline(never)]
    fn violated(&mut self, fail: NiFail) -> NiFail {
        self.register(match fail {
            NiFail::PermViolation => Register::PermissionViolations,
            _ => Register::OperationViolations,
        });
        fail
    }

    /// Step 6: keeps the header of an unexpected message.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, entry: u32, source: u32, event: &Event) -> u32 {
        let header = self.headers.insert(Header {
            event: *event,
            entry,
            pending: true,
            consumer: None,
        });
        if let Some(slot) = self.entries.at_mut(entry) {
            slot.headers += 1;
        }
        let matching = self.kind.matching;
        if let Some(table) = self.table_mut(event.pt_index) {
            let key = if matching {
                MatchKey::new(0, source, event.match_bits)
            } else {
                MatchKey::new(0, 0, 0)
            };
            table.matcher.keep(key, event.rlength, u64::from(header));
        }
        header
    }

    /// Step 9: takes an entry that is used up off its list.
    #[cold]
    #[inline(never)]
    fn used_up(&mut self, index: u32, candidate: &Option<Candidate>) {
        if candidate.is_none() {
            self.unchain(index);
        }
        debug_assert!(
            self.entries
                .at(index)
                .is_none_or(|slot| slot.standing == Standing::Linked)
        );
        self.leave(index);
    }
}

/// Reduces a match of an atomic to whole elements: what is cut off beside them stays free.
#[cold]
#[inline(never)]
fn whole_elements(hit: &mut Match, slot: &EntrySlot, unit: u64) {
    let cut = hit.length % unit;
    hit.length -= cut;
    if cut != 0 && slot.options.has(EntryOptions::MANAGE_LOCAL) && !slot.options.has(EntryOptions::USE_ONCE) {
        hit.unlinked = slot.length - (hit.offset + hit.length) < slot.min_free;
    }
}

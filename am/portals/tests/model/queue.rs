//! Event queues and counting events (reference: portals, sections 7 and 9).

use doorbell_fabric::ni::{
    Count, CtHandle, EqGet, EqHandle, Event, EventKind, List, NiFail, Process, PtOptions,
};

use super::Wrong;
use super::state::{Key, PtState, World};

/// An event with nothing but its kind.
pub(crate) fn blank(kind: EventKind, fail: NiFail) -> Event {
    Event {
        kind,
        fail,
        list: List::Priority,
        start: 0,
        place: 0,
        user_ptr: 0,
        hdr_data: 0,
        match_bits: 0,
        rlength: 0,
        mlength: 0,
        remote_offset: 0,
        initiator: Process { nid: 0, pid: 0 },
        uid: 0,
        pt_index: 0,
        atomic_operation: 0,
        atomic_type: 0,
    }
}

impl World {
    /// Posts an event. A full queue loses nothing where table entries with flow control use it: they are
    /// disabled; otherwise the oldest event is lost.
    pub(crate) fn post(&mut self, key: Key, eq: Option<EqHandle>, event: Event) {
        let (newest_lost, overwrites) = (
            self.is(Wrong::QueueLosesNewest),
            self.is(Wrong::FullQueueOverwrites),
        );
        let Some(handle) = eq else { return };
        let ni = self.at(key);
        let mut of_queue = ni.table.iter().flatten().filter(|pt| pt.eq == Some(handle));
        let keeps = of_queue.any(|pt| pt.options.has(PtOptions::FLOWCTRL)) && !overwrites;
        let Some(Some(eq)) = ni.eqs.get_mut(handle.0 as usize) else {
            return;
        };
        // Each table entry has room for its PT_DISABLED beside the others.
        let ordinary = |event: &Event| event.kind != EventKind::PtDisabled;
        let full = eq.events.iter().filter(|event| ordinary(event)).count() >= eq.count;
        if ordinary(&event) && full && !keeps {
            eq.has_dropped = true;
            if newest_lost {
                return;
            }
            let oldest = eq.events.iter().position(ordinary).expect("there are `count`");
            eq.events.remove(oldest);
        }
        eq.events.push_back(event);
        if eq.events.iter().filter(|event| ordinary(event)).count() < eq.count || overwrites {
            return;
        }
        // One table entry with flow control is enough to close all that use this queue.
        let of_queue: Vec<(u32, bool)> = (0..)
            .zip(&ni.table)
            .filter_map(|(index, pt)| Some((index, pt.as_ref()?)))
            .filter(|(_, pt)| pt.eq == Some(handle))
            .map(|(index, pt)| (index, pt.options.has(PtOptions::FLOWCTRL)))
            .collect();
        if of_queue.iter().any(|(_, has_flow_control)| *has_flow_control) {
            for (index, has_flow_control) in of_queue {
                if has_flow_control || !self.is(Wrong::FullQueueSparesOthers) {
                    self.auto_disable(key, index);
                }
            }
        }
    }

    /// Section 6, step 7. Nothing is ever in progress here, so the event comes at once.
    pub(crate) fn auto_disable(&mut self, key: Key, index: u32) {
        let again = self.is(Wrong::PtDisabledAgainAndAgain);
        let Some(pt) = self.at(key).pt(index) else { return };
        if pt.state != PtState::Enabled && !again {
            return;
        }
        pt.state = PtState::AutoDisabled;
        let eq = pt.eq;
        let event = Event {
            pt_index: index,
            ..blank(EventKind::PtDisabled, NiFail::Ok)
        };
        self.post(key, eq, event);
    }

    pub(crate) fn take_event(&mut self, key: Key, eq: EqHandle) -> Option<EqGet> {
        let again = self.is(Wrong::DroppedAgainAndAgain);
        let Some(Some(eq)) = self.at(key).eqs.get_mut(eq.0 as usize) else {
            return None;
        };
        let Some(event) = eq.events.pop_front() else {
            return Some(EqGet::Empty);
        };
        let dropped = eq.has_dropped;
        eq.has_dropped = dropped && again;
        Some(if dropped {
            EqGet::Dropped(event)
        } else {
            EqGet::Event(event)
        })
    }

    /// Counts a success, as one or by its bytes, or a failure, which is always one.
    pub(crate) fn count(&mut self, key: Key, ct: Option<CtHandle>, fail: NiFail, by_bytes: bool, bytes: u64) {
        let amount = if by_bytes { bytes } else { 1 };
        let by = match fail {
            NiFail::Ok => Count::success(amount),
            _ if self.is(Wrong::FailuresCountBytes) => Count {
                success: 0,
                failure: amount,
            },
            _ => Count {
                success: 0,
                failure: 1,
            },
        };
        if let Some(ct) = ct {
            self.add(key, ct, by);
        }
    }

    pub(crate) fn add(&mut self, key: Key, ct: CtHandle, by: Count) {
        let Some(it) = self.at(key).ct(ct) else { return };
        it.count.success = it.count.success.wrapping_add(by.success);
        it.count.failure = it.count.failure.wrapping_add(by.failure);
        self.fire(key, ct);
    }
}

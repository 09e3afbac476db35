//! Memory descriptors: the initiator's memory (reference: portals, section 5).

use doorbell_fabric::ni::{Count, Event, EventKind, List, Md, MdOptions, Memory, NiFail, Put};

use crate::events::BLANK;
use crate::iface::Iface;

/// A memory descriptor.
#[derive(Debug)]
pub(crate) struct MdSlot {
    pub(crate) memory: Memory,
    pub(crate) length: u64,
    pub(crate) options: MdOptions,
    /// Handles; zero for none.
    pub(crate) eq: u32,
    pub(crate) ct: u32,
    /// Operations and triggers that refer to it.
    pub(crate) refs: u32,
    pub(crate) released: bool,
}

impl MdSlot {
    pub(crate) fn new(md: Md) -> Self {
        Self {
            length: md.memory.len() as u64,
            memory: md.memory,
            options: md.options,
            eq: md.eq.map_or(0, |eq| eq.0),
            ct: md.ct.map_or(0, |ct| ct.0),
            refs: 0,
            released: false,
        }
    }
}

/// An event of an operation at its initiator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitiatorEvent {
    pub(crate) kind: EventKind,
    pub(crate) fail: NiFail,
    pub(crate) user_ptr: u64,
    pub(crate) mlength: u64,
    pub(crate) remote_offset: u64,
    /// The list of the entry that took it; the priority list where none is known.
    pub(crate) list: List,
    /// Whether a full event is wanted at all.
    pub(crate) event: bool,
}

impl InitiatorEvent {
    /// The bytes of a put have left.
    #[inline(always)]
    pub(crate) fn sent(put: &Put) -> Self {
        Self {
            kind: EventKind::Send,
            fail: NiFail::Ok,
            user_ptr: put.user_ptr,
            mlength: put.length,
            remote_offset: put.target.remote_offset,
            list: List::Priority,
            event: true,
        }
    }
}

impl Iface {
    /// Posts and counts the event as its descriptor requires.
    #[inline(always)]
    pub(crate) fn post_initiator(&mut self, md: u32, told: InitiatorEvent) {
        let Some(slot) = self.mds.at(md) else { return };
        let (eq, ct, options) = (slot.eq, slot.ct, slot.options);
        let ok = told.fail == NiFail::Ok;
        let (count, silent) = match told.kind {
            EventKind::Send => (
                MdOptions::EVENT_CT_SEND,
                options.has(MdOptions::EVENT_SEND_DISABLE),
            ),
            EventKind::Reply => (MdOptions::EVENT_CT_REPLY, false),
            _ => (MdOptions::EVENT_CT_ACK, false),
        };
        if eq != 0 && told.event && !silent && !(ok && options.has(MdOptions::EVENT_SUCCESS_DISABLE)) {
            let event = Event {
                kind: told.kind,
                fail: told.fail,
                user_ptr: told.user_ptr,
                mlength: told.mlength,
                remote_offset: told.remote_offset,
                list: told.list,
                ..BLANK
            };
            self.post(eq, &event, false, true);
        }
        if ct != 0 && options.has(count) {
            let bytes = options.has(MdOptions::EVENT_CT_BYTES);
            let by = match (ok, bytes) {
                (false, _) => Count {
                    success: 0,
                    failure: 1,
                },
                (true, true) => Count::success(told.mlength),
                (true, false) => Count::success(1),
            };
            self.count(ct, by);
        }
    }

    /// Counts one operation or trigger less that refers to a descriptor.
    #[inline(always)]
    pub(crate) fn md_unref(&mut self, md: u32) {
        let Some(slot) = self.mds.at_mut(md) else { return };
        slot.refs -= 1;
        if slot.refs == 0 && slot.released {
            self.mds.take(md);
        }
    }
}

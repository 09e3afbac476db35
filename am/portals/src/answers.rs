//! Replies of the target, at the initiator: acknowledgements and data.

use doorbell_fabric::message::Inbound;
use doorbell_fabric::ni::{AckReq, EventKind, List, NiFail};

use crate::bytes;
use crate::core::Core;
use crate::drops::Drop;
use crate::link::{First, PeerId};
use crate::memory::InitiatorEvent;
use crate::ops::Role;
use crate::wire::{Words, flag, list_of};

/// How an operation ended at its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) fail: NiFail,
    pub(crate) mlength: u64,
    /// The offset that the target used, where it is not the requested one.
    pub(crate) offset: Option<u64>,
    /// The list of the entry that took it.
    pub(crate) list: List,
    /// Whether that entry acknowledges nothing.
    pub(crate) silent: bool,
}

impl Outcome {
    /// An operation that failed.
    pub(crate) const fn failed(fail: NiFail) -> Self {
        Self {
            fail,
            mlength: 0,
            offset: None,
            list: List::Priority,
            silent: false,
        }
    }
}

impl Core {
    /// The operation that an answer is to, of one of these roles.
    #[inline(always)]
    pub(crate) fn answered(&mut self, peer: PeerId, id: u64, roles: &[Role]) -> Option<u32> {
        let found = self.ops.find(id, peer.0);
        let fits = |op: &u32| self.ops.at(*op).is_some_and(|op| roles.contains(&op.role));
        let found = found.filter(fits);
        if found.is_none() {
            self.drops.count(Drop::Unknown);
        }
        found
    }

    #[inline]
    pub(crate) fn ack_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let flags = first.flags;
        let parts = (|| {
            let id = words.next()?;
            let offset = words.next_if(flags, flag::OFFSET)?;
            let length = words.next_if(flags, flag::LENGTH)?;
            Some((id, offset, length, NiFail::of_number(flags & flag::FAIL)?))
        })();
        let Some((id, offset, length, fail)) = parts else {
            return self.drops.count(Drop::Malformed);
        };
        let Some(op) = self.answered(peer, id, &[Role::Put, Role::Rts]) else {
            return;
        };
        let mlength = if flags & flag::LENGTH != 0 {
            length
        } else {
            u64::from(first.short.get())
        };
        let outcome = Outcome {
            fail,
            mlength,
            offset: (flags & flag::OFFSET != 0).then_some(offset),
            list: list_of(flags),
            silent: flags & flag::SILENT != 0,
        };
        self.end_put(op, outcome);
    }

    /// One of our puts has ended.
    #[inline]
    pub(crate) fn end_put(&mut self, op: u32, outcome: Outcome) {
        let Outcome {
            fail,
            mlength,
            offset,
            list,
            silent,
        } = outcome;
        let Some(at) = self.ops.at_mut(op) else { return };
        let (ni, md, role) = (usize::from(at.ni), at.object, at.role);
        let (ack, user_ptr, rlength) = (at.ack, at.user_ptr, at.length);
        let asked = at.offset;
        // A peer may claim more than was sent.
        let mlength = if fail == NiFail::Ok {
            mlength.min(rlength)
        } else {
            0
        };
        let sent = InitiatorEvent {
            kind: EventKind::Send,
            fail: if fail == NiFail::Undeliverable {
                fail
            } else {
                NiFail::Ok
            },
            user_ptr,
            mlength: rlength,
            remote_offset: asked,
            list: List::Priority,
            event: true,
        };
        if role == Role::Rts {
            self.unexpose(op);
        }
        let Some(at_ni) = self.nis[ni].as_deref_mut() else {
            return;
        };
        if role == Role::Rts {
            at_ni.post_initiator(md, sent);
        }
        if ack != AckReq::None as u8 && !silent {
            let told = InitiatorEvent {
                kind: EventKind::Ack,
                fail,
                user_ptr,
                mlength: if ack == AckReq::Oc as u8 && fail == NiFail::Ok {
                    rlength
                } else {
                    mlength
                },
                remote_offset: offset.unwrap_or(asked),
                list,
                event: ack == AckReq::Full as u8,
            };
            at_ni.post_initiator(md, told);
        }
        self.close_ours(op);
        self.run_local_if_fired(ni);
    }

    #[inline]
    pub(crate) fn reply_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let flags = first.flags;
        let parts = (|| {
            let id = words.next()?;
            let offset = words.next_if(flags, flag::OFFSET)?;
            Some((id, offset, NiFail::of_number(flags & flag::FAIL)?))
        })();
        let Some((id, offset, fail)) = parts else {
            return self.drops.count(Drop::Malformed);
        };
        let Some(op) = self.answered(peer, id, &[Role::Get]) else {
            return;
        };
        let body = words.end();
        let length = inbound.len() - body;
        let Some(at) = self.ops.at(op) else { return };
        if length as u64 > at.length || at.pull != crate::peers::NONE {
            return self.drops.count(Drop::Malformed);
        }
        if fail == NiFail::Ok
            && length > 0
            && let Some(md) = self.nis[usize::from(at.ni)]
                .as_deref()
                .and_then(|ni| ni.mds.at(at.object))
        {
            bytes::land(&md.memory, at.at as usize, *inbound, body, length);
        }
        let outcome = Outcome {
            fail,
            mlength: length as u64,
            offset: (flags & flag::OFFSET != 0).then_some(offset),
            list: list_of(flags),
            silent: false,
        };
        self.end_get(op, outcome);
    }

    /// A get or a fetching atomic of ours has ended.
    #[inline]
    pub(crate) fn end_get(&mut self, op: u32, outcome: Outcome) {
        let Outcome {
            fail,
            mlength,
            offset,
            list,
            ..
        } = outcome;
        let Some(at) = self.ops.at(op) else { return };
        let (ni, md) = (usize::from(at.ni), at.object);
        let told = InitiatorEvent {
            kind: EventKind::Reply,
            fail,
            user_ptr: at.user_ptr,
            mlength: if fail == NiFail::Ok { mlength } else { 0 },
            remote_offset: offset.unwrap_or(at.offset),
            list,
            event: true,
        };
        if let Some(ni) = self.nis[ni].as_deref_mut() {
            ni.post_initiator(md, told);
        }
        self.close_ours(op);
        self.run_local_if_fired(ni);
    }

    #[inline(always)]
    pub(crate) fn run_local_if_fired(&mut self, ni: usize) {
        if self.nis[ni].as_deref().is_some_and(|ni| ni.triggers.has_fired()) {
            self.run_local(ni);
        }
    }
}

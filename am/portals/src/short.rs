//! The short way of the most frequent operation: a small put that asks for no answer, into an entry that stays.
//!
//! It does what `initiator` and `target` do, for the cases that need least of it, and leaves everything else to them before
//! it has changed anything. Heads are built as words and events are written where they stay: a value that is stored in
//! pieces and loaded whole right afterwards would wait for the store buffer, which costs more than the rest together.

use doorbell_fabric::message::{Body, Inbound, Landing, Message, Refused};
use doorbell_fabric::ni::{
    ANY, AckReq, EntryOptions, Event, EventKind, Kind, List, Memory, NiError, NiFail, Process, Put,
};
use doorbell_matching::MatchKey;
use zerocopy::IntoBytes;

use crate::bytes;
use crate::config::SMALL;
use crate::core::Core;
use crate::iface::{counted, tells};
use crate::link::{First, Link, PeerId};
use crate::memory::Told;
use crate::peers::NONE;
use crate::wire::{first_word, flag, kind};

/// What an entry on the short way must not be, and what it must.
const ASKS_MORE: u32 = EntryOptions::USE_ONCE.0 | EntryOptions::MANAGE_LOCAL.0;

impl Core {
    /// Begins a put.
    #[inline]
    pub(crate) fn put<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
    ) -> Result<(), NiError> {
        match self.short_put(link, kind, put) {
            Some(sent) => sent,
            None => self.put_or_atomic(link, kind, put, None),
        }
    }

    #[inline(always)]
    fn short_put<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
    ) -> Option<Result<(), NiError>> {
        let target = &put.target;
        let (main, second) = if kind.matching {
            (target.match_bits, target.remote_offset)
        } else {
            (target.remote_offset, target.match_bits)
        };
        let short = u16::try_from(target.pt_index).ok()?;
        let with_hdr = put.hdr_data != 0;
        if put.ack != AckReq::None
            || second != 0
            || put.length > SMALL as u64
            || with_hdr && put.length != 0
            || !kind.logical
        {
            return None;
        }
        let ni = self.nis.get_mut(kind.number() as usize)?.as_deref_mut()?;
        let peer = *ni.map.as_ref()?.peers.get(target.process.nid as usize)?;
        let known = self.peers.get(PeerId(peer))?;
        if known.lost || !known.greeted {
            return None;
        }
        let index = ni.mds.index(put.from.md.0)?;
        let md = ni.mds.at(index)?;
        if !bytes::range(md.length, put.from.offset, put.length) || put.length > ni.limits.max_msg_size {
            return None;
        }
        let flags = kind.number() as u8 | if with_hdr { flag::HDR } else { 0 };
        let mut head = [first_word(kind::PUT, flags, short), main.to_le()];
        let head = head.as_mut_bytes();
        // Each kind of body by itself: so none is ever stored and looked at.
        let peer = PeerId(peer);
        let sent = match &md.memory {
            Memory::One(Landing::Loan(loan)) if !with_hdr => {
                let bytes = loan
                    .as_const()
                    .part(put.from.offset as usize, put.length as usize);
                link.send_here(peer, head, Body::Loan(bytes), false)
            }
            _ if with_hdr => link.send_here(peer, head, Body::Bytes(&put.hdr_data.to_le_bytes()), false),
            _ => return None,
        };
        match sent {
            Ok(()) => {}
            Err(Refused::Full) => return Some(Err(NiError::Full)),
            Err(_) => return None,
        }
        if md.eq | md.ct != 0 {
            let told = Told {
                kind: EventKind::Send,
                fail: NiFail::Ok,
                user_ptr: put.user_ptr,
                mlength: put.length,
                remote_offset: target.remote_offset,
                event: true,
            };
            ni.tell_initiator(index, told);
        }
        Some(Ok(()))
    }

    /// A put has arrived.
    #[inline(always)]
    pub(crate) fn put_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        if self.short_put_arrived(peer, first, inbound).is_none() {
            self.any_put_arrived(peer, first, inbound);
        }
    }

    /// `None`, and nothing changed, when it is to go the other way.
    #[inline(always)]
    fn short_put_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) -> Option<()> {
        let flags = first.flags;
        if flags & !(flag::NI | flag::HDR) != 0 {
            return None;
        }
        let main = u64::from_le_bytes(inbound.read(8)?);
        let (hdr_data, body) = if flags & flag::HDR != 0 {
            (u64::from_le_bytes(inbound.read(16)?), 24)
        } else {
            (0, 16)
        };
        let rlength = inbound.len() - body;
        let known = self.peers.get(peer)?;
        let uid = known.uid?;
        let number = usize::from(flags & flag::NI);
        let ni = self.nis.get_mut(number)?.as_deref_mut()?;
        let source = ni
            .sources
            .get(peer.index())
            .copied()
            .filter(|source| *source != NONE)?;
        let pt_index = u32::from(first.short.get());
        let table = ni.tables.get(pt_index as usize)?.as_deref()?;
        if !table.enabled || table.has_flow_control() {
            return None;
        }
        let (index, match_bits, remote_offset) = if ni.kind.matching {
            let found = table
                .matcher
                .look(&MatchKey::new(0, source, main), 0, rlength as u64)?;
            if found.hit.list != doorbell_matching::List::Priority {
                return None;
            }
            (found.hit.token as u32, main, 0)
        } else {
            let (index, list) = table.front()?;
            if list != List::Priority {
                return None;
            }
            (index, 0, main)
        };
        let slot = ni.entries.at(index)?;
        let options = slot.options;
        if options.0 & ASKS_MORE != 0
            || !options.has(EntryOptions::OP_PUT)
            || slot.uid != ANY && slot.uid != uid
        {
            return None;
        }
        let (eq, ct, user_ptr) = (table.eq, slot.ct, slot.user_ptr);
        let mlength = (rlength as u64).min(slot.length.saturating_sub(remote_offset));
        if mlength != 0 {
            bytes::land(
                &slot.memory,
                remote_offset as usize,
                inbound,
                body,
                mlength as usize,
            );
        }
        let start = slot.memory.address(remote_offset as usize);
        let event = Event {
            kind: EventKind::Put,
            fail: NiFail::Ok,
            list: List::Priority,
            start,
            place: remote_offset,
            user_ptr,
            hdr_data,
            match_bits,
            rlength: rlength as u64,
            mlength,
            remote_offset,
            initiator: if ni.kind.logical {
                Process::rank(source)
            } else {
                known.process
            },
            uid,
            pt_index,
            atomic_operation: 0,
            atomic_type: 0,
        };
        if eq != 0 && tells(options, true) {
            ni.post(
                eq,
                &event,
                false,
                !options.has(EntryOptions::EVENT_FLOWCTRL_DISABLE),
            );
        }
        if ct != 0 && options.has(EntryOptions::EVENT_CT_COMM) {
            ni.count(ct, counted(options.has(EntryOptions::EVENT_CT_BYTES), &event));
            if ni.triggers.has_fired() {
                self.run_local(number);
            }
        }
        Some(())
    }
}

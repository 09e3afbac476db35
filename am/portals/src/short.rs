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
use crate::entries::EntrySlot;
use crate::iface::{counted, tells};
use crate::link::{First, Link, PeerId};
use crate::memory::Told;
use crate::peers::NONE;
use crate::wire::{first_word, flag, kind};

/// Whether an entry lets a user put.
#[inline(always)]
fn takes_puts(slot: &EntrySlot, uid: u32) -> bool {
    slot.options.has(EntryOptions::OP_PUT) && (slot.uid == ANY || slot.uid == uid)
}

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
        let short = u16::try_from(target.pt_index).ok()?;
        if put.ack != AckReq::None || put.length > SMALL as u64 || !kind.logical {
            return None;
        }
        let ni = self.nis.get_mut(kind.number() as usize)?.as_deref_mut()?;
        let peer = *ni.map.as_ref()?.peers.get(target.process.nid as usize)?;
        let known = self.peers.get(PeerId(peer))?;
        if known.lost || !known.greeted {
            return None;
        }
        let (index, md) = ni.mds.find(put.from.md.0)?;
        if !bytes::range(md.length, put.from.offset, put.length) || put.length > ni.limits.max_msg_size {
            return None;
        }
        let (main, second) = if kind.matching {
            (target.match_bits, target.remote_offset)
        } else {
            (target.remote_offset, target.match_bits)
        };
        let mut flags = kind.number() as u8;
        let (mut head, mut words) = ([0, main.to_le(), 0, 0], 2);
        if second != 0 {
            flags |= flag::SECOND;
            (head[2], words) = (second.to_le(), 3);
        }
        if put.hdr_data != 0 {
            flags |= flag::HDR;
            head[words] = put.hdr_data.to_le();
            words += 1;
        }
        head[0] = first_word(kind::PUT, flags, short);
        let peer = PeerId(peer);
        let (at, length) = (put.from.offset as usize, put.length as usize);
        // Each kind of body by itself: so none is ever stored and looked at.
        let sent = if length == 0 && words == 3 {
            let [first, main, last, _] = head;
            link.send_here(
                peer,
                [first, main].as_mut_bytes(),
                Body::Bytes(&last.to_ne_bytes()),
                false,
            )
        } else {
            let head = head[..words].as_mut_bytes();
            match &md.memory {
                Memory::One(Landing::Loan(loan)) => {
                    link.send_here(peer, head, Body::Loan(loan.as_const().part(at, length)), false)
                }
                Memory::One(Landing::Region(slice)) => link.send_here(
                    peer,
                    head,
                    Body::Shared(slice.as_shared().skip(at).take(length)),
                    false,
                ),
                _ => return None,
            }
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
        if flags & !(flag::NI | flag::HDR | flag::SECOND) != 0 {
            return None;
        }
        let main = u64::from_le_bytes(inbound.read(8)?);
        let (mut second, mut hdr_data, mut body) = (0, 0, 16);
        if flags & flag::SECOND != 0 {
            second = u64::from_le_bytes(inbound.read(body)?);
            body += 8;
        }
        if flags & flag::HDR != 0 {
            hdr_data = u64::from_le_bytes(inbound.read(body)?);
            body += 8;
        }
        let rlength = (inbound.len() - body) as u64;
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
        let table = ni.tables.get_mut(pt_index as usize)?.as_deref_mut()?;
        if !table.enabled || table.has_flow_control() {
            return None;
        }
        let eq = table.eq;
        let (slot, match_bits, remote_offset, place, mlength) = if ni.kind.matching {
            let found = table
                .matcher
                .look(&MatchKey::new(0, source, main), second, rlength)?;
            if found.hit.list != doorbell_matching::List::Priority || found.hit.unlinked {
                return None;
            }
            let slot = ni.entries.at(found.hit.token as u32)?;
            if !takes_puts(slot, uid) {
                return None;
            }
            if slot.options.has(EntryOptions::MANAGE_LOCAL) {
                // It is there: it was found just now.
                let _ = table.matcher.take(&found);
            }
            (slot, main, second, found.hit.offset, found.hit.length)
        } else {
            let (index, list) = table.front()?;
            let slot = ni.entries.at(index)?;
            let once = slot.options.has(EntryOptions::USE_ONCE);
            if list != List::Priority || once || !takes_puts(slot, uid) {
                return None;
            }
            (
                slot,
                second,
                main,
                main,
                rlength.min(slot.length.saturating_sub(main)),
            )
        };
        let (options, ct, user_ptr) = (slot.options, slot.ct, slot.user_ptr);
        if mlength != 0 {
            bytes::land(&slot.memory, place as usize, inbound, body, mlength as usize);
        }
        let start = slot.memory.address(place as usize);
        let event = Event {
            kind: EventKind::Put,
            fail: NiFail::Ok,
            list: List::Priority,
            start,
            place,
            user_ptr,
            hdr_data,
            match_bits,
            rlength,
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

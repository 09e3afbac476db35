//! Gets and fetching atomics at their initiator (reference: portals, section 10).

use doorbell_fabric::atomics::Arithmetic;
use doorbell_fabric::message::{Body, Message, Refused};
use doorbell_fabric::ni::{EventKind, FetchAtomic, Get, Kind, List, NiError, NiFail};

use crate::bytes;
use crate::config::ATOMIC;
use crate::core::Core;
use crate::initiator::judge;
use crate::link::Link;
use crate::memory::InitiatorEvent;
use crate::ops::Role;
use crate::wire::{Atom, Head, flag, kind};

impl Core {
    pub(crate) fn get<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        get: &Get,
    ) -> Result<(), NiError> {
        if self.placing.has_rooms && self.fetched_get(link, kind, get).is_some() {
            return Ok(());
        }
        let ni = self.ready(kind)?;
        let md = ni.piece(get.into, get.length)?;
        if get.length > ni.limits.max_msg_size {
            return Err(NiError::ArgInvalid("a length beyond max_msg_size"));
        }
        let at = ni.address(&get.target, 0, 0);
        let Some(peer) = self.reachable(kind, &get.target) else {
            self.unreadable(kind, md, get.user_ptr, get.target.remote_offset);
            return Ok(());
        };
        self.admit(link, peer, true)?;
        let op = self.open_ours(Role::Get, kind, peer, md);
        let mut head = Head::new(kind::GET, at.flags, at.short)
            .word(at.main)
            .word(self.ops.id(op))
            .word_if(at.flags, flag::SECOND, at.second)
            .word(get.length);
        if let Some(op) = self.ops.at_mut(op) {
            op.user_ptr = get.user_ptr;
            op.at = get.into.offset;
            op.length = get.length;
            op.offset = get.target.remote_offset;
        }
        match link.send(peer, head.as_mut_bytes(), Body::Empty, false) {
            Ok(()) => Ok(()),
            Err(refused) => self.not_sent(kind, op, md, refused),
        }
    }

    /// A request that is to be answered by bytes was not sent.
    #[cold]
    fn not_sent(&mut self, kind: Kind, op: u32, md: u32, refused: Refused) -> Result<(), NiError> {
        let (user_ptr, offset) = self.ops.at(op).map_or((0, 0), |op| (op.user_ptr, op.offset));
        self.close_ours(op);
        if refused == Refused::Full {
            return Err(NiError::Full);
        }
        self.unreadable(kind, md, user_ptr, offset);
        Ok(())
    }

    pub(crate) fn fetch_atomic<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        fetch: &FetchAtomic,
    ) -> Result<(), NiError> {
        let ni = self.ready(kind)?;
        judge(
            fetch.kind,
            fetch.datatype,
            fetch.length,
            ni.limits.max_fetch_atomic_size,
            true,
        )?;
        let into = ni.piece(fetch.into, fetch.length)?;
        let from = ni.piece(fetch.from, fetch.length)?;
        let at = ni.address(&fetch.target, 0, fetch.hdr_data);
        let Some(peer) = self.reachable(kind, &fetch.target) else {
            self.unreadable(kind, into, fetch.user_ptr, fetch.target.remote_offset);
            return Ok(());
        };
        self.admit(link, peer, true)?;
        let op = self.open_ours(Role::Get, kind, peer, into);
        if let Some(op) = self.ops.at_mut(op) {
            op.user_ptr = fetch.user_ptr;
            op.at = fetch.into.offset;
            op.length = fetch.length;
            op.offset = fetch.target.remote_offset;
        }
        let operand = if Arithmetic::from(fetch.kind).has_operand() {
            fetch.datatype.size()
        } else {
            0
        };
        let atom = Atom::new(fetch.kind as u8, fetch.datatype as u8, operand as u8);
        let mut head = Head::new(kind::FETCH, at.flags, at.short)
            .word(at.main)
            .word(self.ops.id(op))
            .word_if(at.flags, flag::SECOND, at.second)
            .word_if(at.flags, flag::HDR, fetch.hdr_data)
            .word(atom.word());
        let mut room = [0; ATOMIC + 32];
        let length = fetch.length as usize;
        room[..operand].copy_from_slice(&fetch.operand[..operand]);
        let ni = self.ready(kind)?;
        if let Some(md) = ni.mds.at(from) {
            bytes::read(
                &md.memory,
                fetch.from.offset as usize,
                &mut room[operand..operand + length],
            );
        }
        let body = Body::Bytes(&room[..operand + length]);
        if let Err(refused) = link.send(peer, head.as_mut_bytes(), body, false) {
            return self.not_sent(kind, op, into, refused);
        }
        let told = InitiatorEvent {
            kind: EventKind::Send,
            fail: NiFail::Ok,
            user_ptr: fetch.user_ptr,
            mlength: fetch.length,
            remote_offset: fetch.target.remote_offset,
            list: List::Priority,
            event: true,
        };
        self.ready(kind)?.post_initiator(from, told);
        Ok(())
    }

    /// Fails a get whose target is not in the map or not known.
    #[cold]
    #[inline(never)]
    fn unreadable(&mut self, kind: Kind, md: u32, user_ptr: u64, remote_offset: u64) {
        if let Some(ni) = self.nis[kind.number() as usize].as_deref_mut() {
            ni.post_initiator(
                md,
                InitiatorEvent {
                    kind: EventKind::Reply,
                    fail: NiFail::Undeliverable,
                    user_ptr,
                    mlength: 0,
                    remote_offset,
                    list: List::Priority,
                    event: true,
                },
            );
        }
    }
}

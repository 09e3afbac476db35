//! Operations at their initiator: checked, sent, and the events that are posted at once (reference: portals,
//! section 10).

use doorbell_fabric::atomics::{self, Arithmetic};
use doorbell_fabric::message::{Body, Message, Refused};
use doorbell_fabric::ni::{AckReq, Atomic, EventKind, Kind, List, NiError, NiFail, Piece, Put, Target};
use zerocopy::IntoBytes;

use crate::bytes;
use crate::config::SMALL;
use crate::core::Core;
use crate::counting::Held;
use crate::iface::Iface;
use crate::link::{Link, PeerId};
use crate::memory::InitiatorEvent;
use crate::ops::Role;
use crate::peers::NONE;
use crate::wire::{Atom, Head, WINDOW, flag, kind};

/// Bytes beside the body that a message may need.
const HEAD: usize = 64;

/// A target as the wire names it.
pub(crate) struct Addressed {
    pub(crate) flags: u8,
    pub(crate) short: u16,
    pub(crate) main: u64,
    pub(crate) second: u64,
}

impl Iface {
    /// The descriptor's index, if the piece is inside.
    #[inline(always)]
    pub(crate) fn piece(&self, piece: Piece, length: u64) -> Result<u32, NiError> {
        let index = self
            .mds
            .index(piece.md.0)
            .or(self.by_index.then_some(piece.md.0))
            .ok_or(NiError::ArgInvalid("a memory descriptor's handle"))?;
        match self.mds.at(index) {
            Some(md) if bytes::range(md.length, piece.offset, length) => Ok(index),
            _ => Err(NiError::ArgInvalid(
                "a range that is not inside its memory descriptor",
            )),
        }
    }

    /// A target on the wire.
    #[inline(always)]
    pub(crate) fn address(&self, target: &Target, ack: u8, hdr: u64) -> Addressed {
        // An index that no table has is the target's to refuse, and to count (section 6, step 2).
        let short = u16::try_from(target.pt_index).unwrap_or(u16::MAX);
        let (main, second) = if self.kind.matching {
            (target.match_bits, target.remote_offset)
        } else {
            (target.remote_offset, target.match_bits)
        };
        let mut flags = self.kind.number() as u8 | ack << flag::ACK_SHIFT;
        if second != 0 {
            flags |= flag::SECOND;
        }
        if hdr != 0 {
            flags |= flag::HDR;
        }
        Addressed {
            flags,
            short,
            main,
            second,
        }
    }

    /// The acknowledgement that is worth requesting: not one that would neither be posted nor counted.
    #[inline(always)]
    fn wanted_ack(&self, md: u32, ack: AckReq) -> AckReq {
        if ack == AckReq::None {
            return ack;
        }
        let Some(md) = self.mds.at(md) else {
            return AckReq::None;
        };
        let counts = md.ct != 0 && md.options.has(doorbell_fabric::ni::MdOptions::EVENT_CT_ACK);
        match ack {
            AckReq::Full if md.eq != 0 => ack,
            AckReq::Full if counts => AckReq::Ct,
            AckReq::Ct | AckReq::Oc if counts => ack,
            _ => AckReq::None,
        }
    }
}

impl Core {
    /// Whether an operation that is to be answered may begin now, and an introduction where it is due.
    #[inline(always)]
    pub(crate) fn admit<M: Message>(
        &mut self,
        link: &mut Link<M>,
        peer: PeerId,
        answered: bool,
    ) -> Result<(), NiError> {
        let Some(known) = self.peers.get(peer) else {
            return Err(NiError::Full);
        };
        if answered && known.open >= WINDOW {
            return Err(NiError::Full);
        }
        if !known.greeted {
            self.greet(link, peer)?;
        }
        Ok(())
    }

    /// Returns the peer of a target, if that can be reached.
    #[inline(always)]
    pub(crate) fn reachable(&self, kind: Kind, target: &Target) -> Option<PeerId> {
        let peer = self.route(kind, target.process)?;
        self.peers
            .get(peer)
            .is_some_and(|peer| !peer.lost)
            .then_some(peer)
    }

    /// Opens one of our operations.
    #[inline(always)]
    pub(crate) fn open_ours(&mut self, role: Role, kind: Kind, peer: PeerId, md: u32) -> u32 {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.open += 1;
        }
        if let Some(ni) = self.nis[kind.number() as usize].as_deref_mut()
            && let Some(md) = ni.mds.at_mut(md)
        {
            md.refs += 1;
        }
        self.ops.open(role, kind.number() as u8, peer.0, md)
    }

    /// One of our operations is over.
    #[inline(always)]
    pub(crate) fn close_ours(&mut self, op: u32) {
        let Some(at) = self.ops.at(op) else { return };
        let (ni, md, peer) = (usize::from(at.ni), at.object, PeerId(at.peer));
        self.close_op(op);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.open -= 1;
        }
        if let Some(ni) = self.nis[ni].as_deref_mut() {
            ni.md_unref(md);
        }
    }

    /// Begins a put, or an atomic for `atom`.
    #[inline(never)]
    pub(crate) fn put_or_atomic<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
        atom: Option<Atom>,
    ) -> Result<(), NiError> {
        let ni = self.ready(kind)?;
        let md = ni.piece(put.from, put.length)?;
        if put.length > ni.limits.max_msg_size {
            return Err(NiError::ArgInvalid("a length beyond max_msg_size"));
        }
        let ack = ni.wanted_ack(md, put.ack);
        let at = ni.address(&put.target, ack as u8, put.hdr_data);
        let Some(peer) = self.reachable(kind, &put.target) else {
            self.unreachable(kind, md, put);
            return Ok(());
        };
        self.admit(link, peer, ack != AckReq::None)?;
        if put.length > SMALL as u64 && put.length + HEAD as u64 > link.sizes(peer).eager as u64 {
            return self.announce(link, kind, peer, md, put, ack, &at);
        }
        let what = if atom.is_some() { kind::ATOMIC } else { kind::PUT };
        let mut head = Head::new(what, at.flags, at.short).word(at.main);
        let mut op = NONE;
        if ack != AckReq::None {
            op = self.open_ours(Role::Put, kind, peer, md);
            head = head.word(self.ops.id(op));
        }
        head = head
            .word_if(at.flags, flag::SECOND, at.second)
            .word_if(at.flags, flag::HDR, put.hdr_data);
        if let Some(atom) = atom {
            head = head.word(atom.word());
        }
        let sent = self.send_from(link, kind, peer, &mut head, md, put);
        if let Err(refused) = sent {
            if op != NONE {
                self.close_ours(op);
            }
            return match refused {
                Refused::Full => Err(NiError::Full),
                _ => {
                    self.unreachable(kind, md, put);
                    Ok(())
                }
            };
        }
        if let Some(at) = self.ops.at_mut(op) {
            at.ack = ack as u8;
            at.user_ptr = put.user_ptr;
            at.length = put.length;
            at.offset = put.target.remote_offset;
        }
        if let Some(ni) = self.nis[kind.number() as usize].as_deref_mut() {
            ni.post_initiator(md, InitiatorEvent::sent(put));
        }
        Ok(())
    }

    /// Sends a head and bytes of a descriptor, which are copied.
    #[inline(always)]
    fn send_from<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        peer: PeerId,
        head: &mut Head,
        md: u32,
        put: &Put,
    ) -> Result<(), Refused> {
        let (at, length) = (put.from.offset, put.length);
        if length == 0 {
            if head.words() != 2 {
                return link.send(peer, head.as_mut_bytes(), Body::Empty, false);
            }
            let last = head.split_last();
            return link.send(peer, head.as_mut_bytes(), Body::Bytes(&last), false);
        }
        let Some(md) = self.nis[kind.number() as usize]
            .as_deref()
            .and_then(|ni| ni.mds.at(md))
        else {
            return Err(Refused::BadMemory);
        };
        let body = bytes::body(&md.memory, at as usize, length as usize, &mut self.scratch);
        link.send(peer, head.as_mut_bytes(), body, false)
    }

    pub(crate) fn atomic<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        atomic: &Atomic,
    ) -> Result<(), NiError> {
        let most = self.ready(kind)?.limits.max_atomic_size;
        judge(atomic.kind, atomic.datatype, atomic.put.length, most, false)?;
        let atom = Atom::new(atomic.kind as u8, atomic.datatype as u8, 0);
        self.put_or_atomic(link, kind, &atomic.put, Some(atom))
    }

    /// Fails a put, by event, whose target is not in the map or not known.
    #[cold]
    #[inline(never)]
    fn unreachable(&mut self, kind: Kind, md: u32, put: &Put) {
        let Some(ni) = self.nis[kind.number() as usize].as_deref_mut() else {
            return;
        };
        let ack = ni.wanted_ack(md, put.ack);
        let told = InitiatorEvent {
            kind: EventKind::Send,
            fail: NiFail::Undeliverable,
            user_ptr: put.user_ptr,
            mlength: 0,
            remote_offset: put.target.remote_offset,
            list: List::Priority,
            event: true,
        };
        ni.post_initiator(md, told);
        if ack != AckReq::None {
            ni.post_initiator(
                md,
                InitiatorEvent {
                    kind: EventKind::Ack,
                    event: ack == AckReq::Full,
                    ..told
                },
            );
        }
    }

    /// Announces a put that is too long to be sent at once: the target pulls what its entry takes.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "all of what a put is, judged already")]
    fn announce<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        peer: PeerId,
        md: u32,
        put: &Put,
        ack: AckReq,
        at: &Addressed,
    ) -> Result<(), NiError> {
        self.admit(link, peer, true)?;
        let op = self.open_ours(Role::Rts, kind, peer, md);
        let memory = self.nis[kind.number() as usize]
            .as_deref()
            .and_then(|ni| ni.mds.at(md))
            .and_then(|md| bytes::in_one_piece(&md.memory, put.from.offset as usize, put.length as usize));
        let (sources, count) = self.expose(link, op, peer, memory, put.length);
        let mut head = Head::new(kind::RTS, at.flags, at.short)
            .word(at.main)
            .word(self.ops.id(op))
            .word_if(at.flags, flag::SECOND, at.second)
            .word_if(at.flags, flag::HDR, put.hdr_data)
            .word(put.length);
        let body = match count {
            0 => Body::Empty,
            count => Body::Bytes(sources[..count].as_bytes()),
        };
        match link.send(peer, head.as_mut_bytes(), body, false) {
            Ok(()) => {}
            Err(refused) => {
                self.withdraw(link, op);
                self.close_ours(op);
                if refused == Refused::Full {
                    return Err(NiError::Full);
                }
                self.unreachable(kind, md, put);
                return Ok(());
            }
        }
        if let Some(op) = self.ops.at_mut(op) {
            op.ack = ack as u8;
            op.user_ptr = put.user_ptr;
            op.at = put.from.offset;
            op.length = put.length;
            op.offset = put.target.remote_offset;
        }
        Ok(())
    }

    /// Judges a triggered operation of data as it will be when it fires.
    pub(crate) fn judge_data(&mut self, kind: Kind, what: &Held) -> Result<(), NiError> {
        let ni = self.ready(kind)?;
        let limits = ni.limits;
        let mut pieces = [None, None];
        let length = match what {
            Held::Put(put) => {
                pieces[0] = Some(put.from);
                put.length
            }
            Held::Get(get) => {
                pieces[0] = Some(get.into);
                get.length
            }
            Held::Atomic(atomic) => {
                let put = &atomic.put;
                judge(
                    atomic.kind,
                    atomic.datatype,
                    put.length,
                    limits.max_atomic_size,
                    false,
                )?;
                pieces[0] = Some(put.from);
                put.length
            }
            Held::FetchAtomic(fetch) => {
                judge(
                    fetch.kind,
                    fetch.datatype,
                    fetch.length,
                    limits.max_fetch_atomic_size,
                    true,
                )?;
                pieces = [Some(fetch.into), Some(fetch.from)];
                fetch.length
            }
            _ => return Ok(()),
        };
        if length > limits.max_msg_size {
            return Err(NiError::ArgInvalid("a length beyond max_msg_size"));
        }
        for piece in pieces.into_iter().flatten() {
            ni.piece(piece, length)?;
        }
        Ok(())
    }
}

/// Whether an atomic is one that there is.
pub(crate) fn judge(
    kind: doorbell_fabric::ni::AtomicKind,
    datatype: doorbell_fabric::ni::Datatype,
    length: u64,
    most: u64,
    fetch: bool,
) -> Result<(), NiError> {
    let (operation, element) = (kind.into(), datatype.into());
    if Arithmetic::is_swap(operation) && !fetch {
        return Err(NiError::ArgInvalid("a swap that fetches nothing"));
    }
    if !atomics::is_in_portals(operation, element) {
        return Err(NiError::ArgInvalid("an operation on a type that it is not for"));
    }
    if length > most || !atomics::length_fits(operation, element, length) {
        return Err(NiError::ArgInvalid("the length of an atomic"));
    }
    Ok(())
}

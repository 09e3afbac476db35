//! Requests at their target: matched, checked, executed (reference: portals, section 6; the numbers are its
//! steps).

use doorbell_fabric::atomics::{self, Arithmetic, Element};
use doorbell_fabric::message::Inbound;
use doorbell_fabric::ni::{AckReq, AtomicKind, Datatype, EntryOptions, Event, EventKind, List, NiFail};

use crate::bytes;
use crate::config::{ATOMIC, SMALL};
use crate::core::Core;
use crate::direct::posts_nothing;
use crate::drops::Drop;
use crate::entries::EntrySlot;
use crate::events::BLANK;
use crate::link::{First, PeerId};
use crate::ops::Role;
use crate::peers::{NONE, ReceivedPut, Remembered};
use crate::placed::Wanted;
use crate::target_match::Taken;
use crate::wire::{Atom, Head, WINDOW, Words, flag, kind, list_flag, put_name};

/// The fields that all requests have.
pub(crate) struct Request {
    ni: usize,
    ack: u8,
    /// The initiator's number of it; zero where it requests no answer.
    op: u64,
    /// The event as it will be posted; the entry adds the rest.
    event: Event,
}

impl Core {
    /// Returns what is common to the heads of requests, up to `hdr`.
    #[inline(always)]
    fn request(
        &mut self,
        peer: PeerId,
        first: First,
        what: EventKind,
        words: &mut Words<'_, '_>,
        always_op: bool,
    ) -> Option<Request> {
        let Some(known) = self.peers.get(peer) else {
            self.drops.count(Drop::Unknown);
            return None;
        };
        let Some(uid) = known.uid else {
            self.drops.count(Drop::Early);
            return None;
        };
        let flags = first.flags;
        let ack = flags >> flag::ACK_SHIFT & 3;
        let remembers = flags & (flag::KEEP | flag::AGAIN);
        let name = put_name(flags, first.short.get());
        let heard = known.heard.filter(|heard| heard.name == name);
        let may =
            what == EventKind::Put && !always_op && ack == 0 && (remembers != flag::AGAIN || heard.is_some());
        if remembers != 0 && (!may || remembers == flag::KEEP | flag::AGAIN) {
            self.drops.count(Drop::Malformed);
            return None;
        }
        let head = (|| {
            if remembers == flag::AGAIN
                && let Some(ReceivedPut { words, .. }) = heard
            {
                return Some((words.main, 0, words.second, words.hdr));
            }
            let main = words.next()?;
            let op = if always_op || ack != 0 { words.next()? } else { 0 };
            let second = words.next_if(flags, flag::SECOND)?;
            let hdr = words.next_if(flags, flag::HDR)?;
            Some((main, op, second, hdr))
        })();
        let Some((main, op, second, hdr_data)) = head else {
            self.drops.count(Drop::Short);
            return None;
        };
        if remembers == flag::KEEP
            && let Some(known) = self.peers.get_mut(peer)
        {
            let words = Remembered {
                main,
                second,
                hdr: hdr_data,
            };
            known.heard = Some(ReceivedPut {
                name,
                words,
                found: None,
            });
        }
        let ni = usize::from(flags & flag::NI);
        let (match_bits, remote_offset) = if ni & 1 == 0 {
            (main, second)
        } else {
            (second, main)
        };
        Some(Request {
            ni,
            ack,
            op,
            event: Event {
                kind: what,
                match_bits,
                remote_offset,
                hdr_data,
                uid,
                pt_index: u32::from(first.short.get()),
                ..BLANK
            },
        })
    }

    /// Steps 1 to 9: the entry that takes a request, with the event filled in; or why none does.
    #[inline(always)]
    fn begin(&mut self, peer: PeerId, request: &mut Request, unit: u64) -> Result<Taken, NiFail> {
        let Some(ni) = self.nis[request.ni].as_deref_mut().filter(|ni| ni.users != 0) else {
            return Err(NiFail::Undeliverable);
        };
        let source = ni.sources.get(peer.index()).copied().unwrap_or(NONE);
        if source == NONE && ni.kind.logical {
            return Err(NiFail::Undeliverable);
        }
        let event = &mut request.event;
        event.initiator = if ni.kind.logical {
            doorbell_fabric::ni::Process::rank(source)
        } else {
            self.peers.get(peer).map_or(event.initiator, |peer| peer.process)
        };
        ni.take(source, event, unit)
    }

    /// An entry's operation has ended at once.
    #[inline(always)]
    fn finish(&mut self, request: &Request, taken: &Taken) {
        let kind = request.ni;
        if let Some(ni) = self.nis[kind].as_deref_mut() {
            ni.ended(taken.entry, taken.header, &request.event, taken.kept);
            if ni.triggers.has_fired() {
                self.run_local(kind);
            }
        }
    }

    /// Answers a put or an atomic that requests it.
    #[inline(always)]
    fn acknowledge(&mut self, peer: PeerId, request: &Request, outcome: Result<&Taken, NiFail>) {
        if request.ack == AckReq::None as u8 {
            return;
        }
        let event = &request.event;
        let head = match outcome {
            Ok(taken) => {
                let place = taken.managed.then_some(taken.place);
                ack(request.op, event, place, taken.silent)
            }
            Err(fail) => Head::new(kind::ACK, fail as u8, 0).word(request.op),
        };
        self.outbox.push(peer, head, &[]);
    }

    #[inline(never)]
    pub(crate) fn any_put_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        let inbound = &inbound;
        let mut words = Words::of(inbound);
        let Some(mut request) = self.request(peer, first, EventKind::Put, &mut words, false) else {
            return;
        };
        let body = words.end();
        request.event.rlength = (inbound.len() - body) as u64;
        match self.begin(peer, &mut request, 1) {
            Ok(taken) => {
                let length = request.event.mlength as usize;
                if length > 0
                    && let Some(ni) = self.nis[request.ni].as_deref()
                    && let Some(slot) = ni.entries.at(taken.entry)
                {
                    bytes::land(&slot.memory, taken.place as usize, *inbound, body, length);
                }
                self.request_could_be_placed(peer, &request, &taken);
                self.finish(&request, &taken);
                self.acknowledge(peer, &request, Ok(&taken));
            }
            Err(fail) => self.acknowledge(peer, &request, Err(fail)),
        }
    }

    /// A put that is announced: what the entry takes of it is pulled.
    pub(crate) fn rts_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let Some(mut request) = self.request(peer, first, EventKind::Put, &mut words, true) else {
            return;
        };
        let Some(rlength) = words.next() else {
            return self.drops.count(Drop::Short);
        };
        if !self.is_within_window(peer) {
            return;
        }
        request.event.rlength = rlength;
        let taken = match self.begin(peer, &mut request, 1) {
            Ok(taken) => taken,
            Err(fail) => {
                let head = Head::new(kind::ACK, fail as u8, 0).word(request.op);
                return self.outbox.push(peer, head, &[]);
            }
        };
        let offset = if taken.managed {
            taken.place
        } else {
            request.event.remote_offset
        };
        self.request_could_be_placed(peer, &request, &taken);
        let op = self.open_target(peer, &request, &taken, Role::Landing);
        if let Some(at) = self.ops.at_mut(op) {
            at.offset = offset;
        }
        if request.event.mlength == 0 {
            return self.landed(op, NiFail::Ok);
        }
        self.begin_pull(op, request.op, request.event.mlength, inbound, words.end());
    }

    /// The initiator of a put could have placed it, perhaps; of a get, read it.
    #[inline(always)]
    fn request_could_be_placed(&mut self, peer: PeerId, request: &Request, taken: &Taken) {
        let event = &request.event;
        let Some(ni) = self.nis[request.ni].as_deref() else {
            return;
        };
        let (table, slot) = (ni.table(event.pt_index), ni.entries.at(taken.entry));
        // What counts gets has to see them, and counts a put before it acknowledges it.
        let is_answered = request.event.kind == EventKind::Get || request.ack != AckReq::None as u8;
        let is_seen = |slot: &EntrySlot| is_answered && slot.options.has(EntryOptions::EVENT_CT_COMM);
        let quiet = table
            .zip(slot)
            .is_some_and(|(table, slot)| posts_nothing(slot, table.eq) && !is_seen(slot));
        if quiet && event.mlength == event.rlength && event.mlength != 0 {
            self.could_be_placed(Wanted {
                peer,
                ni: request.ni as u8,
                pt: event.pt_index as u16,
                entry: ni.entries.handle(taken.entry),
            });
        }
    }

    pub(crate) fn get_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let Some(mut request) = self.request(peer, first, EventKind::Get, &mut words, true) else {
            return;
        };
        let Some(rlength) = words.next() else {
            return self.drops.count(Drop::Short);
        };
        if !self.is_within_window(peer) {
            return;
        }
        request.event.rlength = rlength;
        let taken = match self.begin(peer, &mut request, 1) {
            Ok(taken) => taken,
            Err(fail) => return self.refuse(peer, request.op, fail),
        };
        self.request_could_be_placed(peer, &request, &taken);
        let length = request.event.mlength as usize;
        if length > SMALL {
            let op = self.open_target(peer, &request, &taken, Role::Serve);
            return self.enqueue(op);
        }
        let mut room = [0; SMALL];
        let read = &mut room[..length];
        if let Some(slot) = self.nis[request.ni]
            .as_deref()
            .and_then(|ni| ni.entries.at(taken.entry))
        {
            bytes::read(&slot.memory, taken.place as usize, read);
        }
        self.finish(&request, &taken);
        let head = reply(
            request.op,
            request.event.list,
            taken.managed.then_some(taken.place),
        );
        self.outbox.push(peer, head, read);
    }

    pub(crate) fn atomic_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>, fetch: bool) {
        let mut words = Words::of(inbound);
        let what = if fetch {
            EventKind::FetchAtomic
        } else {
            EventKind::Atomic
        };
        let Some(mut request) = self.request(peer, first, what, &mut words, fetch) else {
            return;
        };
        let Some(atom) = words.next().map(Atom::of_word) else {
            return self.drops.count(Drop::Short);
        };
        let (Some(how), Some(datatype)) = (
            AtomicKind::of_number(atom.operation),
            Datatype::of_number(atom.datatype),
        ) else {
            return self.drops.count(Drop::Malformed);
        };
        let (how, element) = (Arithmetic::from(how), Element::from(datatype));
        let (operand_at, operand) = (words.end(), usize::from(atom.operand));
        let Some(rlength) = (inbound.len() - operand_at).checked_sub(operand) else {
            return self.drops.count(Drop::Short);
        };
        let wanted = if how.has_operand() { element.size() } else { 0 };
        if rlength > ATOMIC
            || operand != wanted
            || how.is_swap() && !fetch
            || !atomics::is_in_portals(how, element)
            || !atomics::length_fits(how, element, rlength as u64)
        {
            return self.drops.count(Drop::Malformed);
        }
        if fetch && !self.is_within_window(peer) {
            return;
        }
        request.event.rlength = rlength as u64;
        request.event.atomic_operation = atom.operation;
        request.event.atomic_type = atom.datatype;
        let taken = match self.begin(peer, &mut request, element.size() as u64) {
            Ok(taken) => taken,
            Err(fail) if fetch => return self.refuse(peer, request.op, fail),
            Err(fail) => return self.acknowledge(peer, &request, Err(fail)),
        };
        let length = request.event.mlength as usize;
        let (mut with, mut compare) = ([0; ATOMIC], [0; 32]);
        inbound.copy_to(operand_at, &mut compare[..wanted]);
        inbound.copy_to(operand_at + operand, &mut with[..length]);
        let mut old = [0; ATOMIC];
        if let Some(slot) = self.nis[request.ni]
            .as_deref()
            .and_then(|ni| ni.entries.at(taken.entry))
        {
            let place = taken.place as usize;
            bytes::read(&slot.memory, place, &mut old[..length]);
            let mut new = old;
            atomics::apply(
                how,
                element,
                &mut new[..length],
                &with[..length],
                &compare[..wanted],
            );
            bytes::write(&slot.memory, place, &new[..length]);
        }
        self.finish(&request, &taken);
        if fetch {
            let head = reply(
                request.op,
                request.event.list,
                taken.managed.then_some(taken.place),
            );
            self.outbox.push(peer, head, &old[..length]);
        } else {
            self.acknowledge(peer, &request, Ok(&taken));
        }
    }

    /// A get or a fetching atomic fails.
    fn refuse(&mut self, peer: PeerId, op: u64, fail: NiFail) {
        self.outbox
            .push(peer, Head::new(kind::REPLY, fail as u8, 0).word(op), &[]);
    }

    /// Whether a peer keeps to the window that bounds what it can make us hold.
    fn is_within_window(&mut self, peer: PeerId) -> bool {
        let within = self.peers.get(peer).is_some_and(|peer| peer.owed < WINDOW);
        if !within {
            self.drops.count(Drop::Window);
        }
        within
    }

    /// Gives a request that was taken, and is not over at once, a place among the operations.
    fn open_target(&mut self, peer: PeerId, request: &Request, taken: &Taken, role: Role) -> u32 {
        let event = &request.event;
        let op = self.ops.open(role, request.ni as u8, peer.0, taken.entry);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.owed += 1;
        }
        if let Some(at) = self.ops.at_mut(op) {
            at.header = taken.header;
            at.at = taken.place;
            at.length = event.mlength;
            at.offset = if taken.managed {
                taken.place
            } else {
                event.remote_offset
            };
            at.user_ptr = u64::from(taken.managed);
            at.far = request.op;
            at.kept = taken.kept;
            at.silent = taken.silent;
            at.event = *event;
        }
        op
    }

    /// Ends an operation of a peer that was in progress here, with its event.
    pub(crate) fn end_target(&mut self, op: u32, fail: NiFail) {
        let Some(at) = self.ops.at(op) else { return };
        let (ni, entry, header, kept, peer) = (usize::from(at.ni), at.object, at.header, at.kept, at.peer);
        let mut event = at.event;
        if fail != NiFail::Ok {
            event.fail = fail;
        }
        self.close_op(op);
        if let Some(peer) = self.peers.get_mut(PeerId(peer)) {
            peer.owed -= 1;
        }
        let Some(ni_at) = self.nis[ni].as_deref_mut() else {
            return;
        };
        ni_at.ended(entry, header, &event, kept);
        if ni_at.triggers.has_fired() {
            self.run_local(ni);
        }
    }
}

/// The acknowledgement that belongs to an event; with the place where the entry has put the bytes, if it
/// chose that itself.
pub(crate) fn ack(op: u64, event: &Event, place: Option<u64>, silent: bool) -> Head {
    let mut flags = event.fail as u8 | list_flag(event.list);
    if silent {
        flags |= flag::SILENT;
    }
    if place.is_some() {
        flags |= flag::OFFSET;
    }
    let short = u16::try_from(event.mlength);
    if short.is_err() {
        flags |= flag::LENGTH;
    }
    Head::new(kind::ACK, flags, short.unwrap_or(0))
        .word(op)
        .word_if(flags, flag::OFFSET, place.unwrap_or(0))
        .word_if(flags, flag::LENGTH, event.mlength)
}

/// The head of a reply with bytes from an entry of this list.
pub(crate) fn reply(op: u64, list: List, place: Option<u64>) -> Head {
    let offset = if place.is_some() { flag::OFFSET } else { 0 };
    let flags = offset | list_flag(list);
    Head::new(kind::REPLY, flags, 0)
        .word(op)
        .word_if(flags, flag::OFFSET, place.unwrap_or(0))
}

//! Placed puts: the initiator writes the bytes into the entry's memory by itself, over a path within the
//! host, and notifies the target where that has to count them.
//!
//! ```text
//!   initiator                                      target
//!   some puts that the target has to store ──────► an entry that posts no events takes them
//!             ◄── ROOM table entry, match bits, memory  Message::expose_now
//!   Message::put_now
//!   PLACED number, key                     ──────► counts, if there is a counting event
//!             ◄── TAKEN_BACK number, key                the entry is unlinked, …
//!   CLOSED number, key                     ──────► forgets it
//! ```
//!
//! Where an entry is the one that takes the puts with its match bits, is of one region, and posts no events,
//! the target has nothing to decide about a put once it has decided the first: neither where the bytes go nor
//! what is reported. So the bytes need not go through the lane, and what is left of a put that is counted is
//! a message of one cell, in its place among all others; of one that is not, nothing. An acknowledgement that
//! the initiator requests is its own then: the bytes are there. Where nothing is counted and the entry may be
//! read, gets are read from there, too.
//!
//! *Its end.* The target takes the memory back before the entry leaves its list or its table entry is
//! disabled: no write that begins later lands. Heads of puts that were placed before may be under way then.
//! They name the memory by its key, and are counted as they would have been, until the initiator's
//! CLOSED, which is behind the last of them.
//!
//! *Order.* Up to [`SMALL`] bytes, bytes are in order with those of all operations before. The bytes of a
//! placed put are there at once, so a small one is placed only when the peer has taken everything that we
//! sent before, but for heads of placed puts ([`Tail`]), and goes the other way otherwise.

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Body, Inbound, Landing, Message, Remote, RemoteKey};
use doorbell_fabric::ni::{
    AckReq, Count, EntryOptions, EventKind, Get, Kind, List, Memory, NiError, NiFail, Process, Put, Target,
};
use zerocopy::IntoBytes;

use crate::bytes;
use crate::config::SMALL;
use crate::core::Core;
use crate::direct::{Guess, posts_nothing};
use crate::drops::Drop;
use crate::entries::{EntrySlot, Standing};
use crate::iface::Iface;
use crate::link::{First, Link, PeerId};
use crate::memory::InitiatorEvent;
use crate::short::takes_puts;
use crate::wire::{Head, Words, first_word, flag, kind};

/// Bytes of a put that travel in the cells of a lane, with its head: where a put is counted, placing them
/// takes as long, or longer between near cores.
pub(crate) const SHORT_BODY: u64 = 120;
/// Longer puts are moved by both ends' processors together, which takes less time.
const MOST: u64 = 256 << 10;
/// Rooms that one peer has of us, and that we keep of one peer.
pub(crate) const ROOMS: usize = 4;
/// Entries of an interface among which it is looked for others that could take a put first.
const SEARCHED: u32 = 1024;
/// Puts that could have been placed before a peer is offered that, the first time; and how often this is
/// doubled for a peer that makes no use of it.
const FIRST_OFFER: u32 = 4;
const DOUBLED: u32 = 16;
/// Puts that have to be placed for an offer to have been of use.
const OF_USE: u32 = 16;

/// Memory of a peer that its puts with these match bits go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    ni: u8,
    pt: u16,
    bits: u64,
    ignore: u64,
    way: u16,
    /// Its number at its owner.
    number: u16,
    /// Its owner counts what is placed there; and lets it be read.
    counts: bool,
    reads: bool,
    remote: Remote,
}

/// The last messages to a peer, as far as no bytes are on their way with them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// The numbers of the first of them, and of the message behind the last.
    from: u32,
    to: u32,
    /// The peer has taken all messages before.
    is_all: bool,
}

impl Tail {
    /// Whether no bytes are on their way to a peer, of which the next message has the number `next`, and the
    /// oldest that it may not have taken yet has the number `oldest`.
    fn is_all_up_to(&mut self, next: u32, oldest: impl FnOnce() -> Option<u32>) -> bool {
        if self.to != next {
            (self.from, self.to, self.is_all) = (next, next, false);
        }
        if !self.is_all {
            let from = self.from;
            self.is_all = oldest().is_none_or(|oldest| next.wrapping_sub(oldest) <= next.wrapping_sub(from));
        }
        self.is_all
    }
}

/// When a peer is offered to place its puts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offers {
    /// Puts until the next offer.
    until: u32,
    /// Offers in a row that were of no use.
    vain: u32,
    /// Puts placed since the last one.
    placed: u32,
}

impl Default for Offers {
    fn default() -> Self {
        Self {
            until: FIRST_OFFER,
            vain: 0,
            placed: OF_USE,
        }
    }
}

impl Offers {
    /// Counts a put that could have been placed. Whether an offer is due.
    fn is_due(&mut self) -> bool {
        self.until -= 1;
        if self.until > 0 {
            return false;
        }
        self.vain = if self.placed < OF_USE { self.vain + 1 } else { 0 };
        self.until = FIRST_OFFER << self.vain.min(DOUBLED);
        self.placed = 0;
        true
    }

    /// A put was placed.
    #[inline(always)]
    pub(crate) fn count(&mut self) {
        self.placed = self.placed.saturating_add(1);
    }
}

/// An entry that a peer could place puts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) peer: PeerId,
    pub(crate) ni: u8,
    pub(crate) pt: u16,
    /// The entry's handle.
    pub(crate) entry: u32,
}

/// Memory of an entry that a peer places puts in.
#[derive(Debug)]
pub(crate) struct Given {
    of: Wanted,
    /// The handle of the counting event; zero where nothing is counted, or its interface has ended.
    ct: u32,
    way: u16,
    remote: Remote,
    /// A put was placed since another entry wanted its place. Of memory whose puts are not counted, this is
    /// not known: it has its turn.
    is_used: bool,
    /// ROOM was sent to the peer again, and no head of it has come since.
    is_repeated: bool,
    /// It is taken back: heads that are under way count still.
    is_closing: bool,
    /// A write that had begun before is still under way.
    is_written: bool,
    /// No head comes any more.
    is_over: bool,
}

impl Given {
    /// Whether it is the memory of this entry.
    pub(crate) fn is_of_entry(&self, kind: Kind, entry: u32) -> bool {
        u32::from(self.of.ni) == kind.number() && self.of.entry == entry
    }

    /// Whether it is memory of an entry of this table entry (`None`: of any of the interface).
    pub(crate) fn is_of_table(&self, kind: Kind, pt: Option<u32>) -> bool {
        u32::from(self.of.ni) == kind.number() && pt.is_none_or(|pt| u32::from(self.of.pt) == pt)
    }

    /// Whether it was taken back, and is not quiet yet.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written
    }

    fn is_done(&self) -> bool {
        self.is_over && !self.is_written
    }

    /// Whether nothing of it is under way any more: neither bytes, nor heads that would be counted.
    fn is_quiet(&self) -> bool {
        !self.is_written && (self.is_over || self.ct == 0)
    }
}

/// Memory of ours that peers place puts in, and what they could be offered.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    /// Each by its number.
    given: Vec<Option<Given>>,
    /// Those that were taken back and are written still.
    written: u32,
    pub(crate) wanted: Vec<Wanted>,
    /// Whether any peer has ever let us place puts.
    pub(crate) has_rooms: bool,
}

impl Placing {
    /// Whether no peer has any memory of ours.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.given.iter().all(Option::is_none)
    }

    /// Whether memory that was taken back may still be written.
    #[inline(always)]
    pub(crate) fn is_being_written(&self) -> bool {
        self.written != 0
    }

    /// Forgets what is done, and counts what is written.
    fn sweep(&mut self) {
        for given in &mut self.given {
            given.take_if(|given| given.is_done());
        }
        while self.given.last().is_some_and(Option::is_none) {
            self.given.pop();
        }
        self.written = self
            .given
            .iter()
            .flatten()
            .filter(|given| given.is_written)
            .count() as u32;
    }

    /// What a peer has under this number and key.
    #[inline(always)]
    fn find(&mut self, peer: PeerId, number: u16, key: u64) -> Option<&mut Given> {
        let given = self.given.get_mut(usize::from(number))?.as_mut()?;
        (given.of.peer == peer && given.remote.key.get() == key).then_some(given)
    }

    /// A free number; `None` where there is none.
    fn vacancy(&mut self) -> Option<u16> {
        let free = self.given.iter().position(Option::is_none);
        let number = u16::try_from(free.unwrap_or(self.given.len())).ok()?;
        if free.is_none() {
            self.given.push(None);
        }
        Some(number)
    }

    /// A peer is lost: nothing comes from it any more, and nothing is sent to it.
    pub(crate) fn lost(&mut self, peer: PeerId) {
        let of_peer = |given: &&mut Given| given.of.peer == peer;
        for given in self.given.iter_mut().flatten().filter(of_peer) {
            given.is_over = true;
        }
    }

    /// The counting events of an interface are gone.
    pub(crate) fn count_no_more(&mut self, kind: Kind) {
        let of_kind = |given: &&mut Given| given.is_of_table(kind, None);
        for given in self.given.iter_mut().flatten().filter(of_kind) {
            given.ct = 0;
        }
    }
}

impl Core {
    /// Begins a put by placing its bytes; `None`, and nothing done, where it is to go another way.
    #[inline(never)]
    pub(crate) fn placed_put<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        put: &Put,
    ) -> Option<Result<(), NiError>> {
        let length = put.length;
        let (peer, at, remote) = self.room_for(link, kind, &put.target, length)?;
        let known = self.peers.get_mut(peer)?;
        let room = known.rooms[at];
        // An acknowledgement of ours would be there before the count.
        if room.counts && (put.ack != AckReq::None || !link.room(peer)) {
            return None;
        }
        let ni = self.nis.get_mut(kind.number() as usize)?.as_deref_mut()?;
        let (index, md) = ni.mds.find(put.from.md.0)?;
        if !bytes::range(md.length, put.from.offset, length) || length > ni.limits.max_msg_size {
            return None;
        }
        let bytes = in_one_piece(&md.memory, put.from.offset as usize, length as usize)?;
        if !link.place(peer, room.way, bytes, &remote) {
            // It was taken back, or cannot be mapped.
            known.rooms.swap_remove(at);
            return None;
        }
        if room.counts {
            let mut head = [
                first_word(kind::PLACED, 0, room.number),
                room.remote.key.get().to_le(),
            ];
            // The bytes are there, so the head waits where there is no room. It is refused where the peer is
            // lost; then the put fails as any other to it.
            let sent = link.send_here(peer, head.as_mut_bytes(), Body::Empty, true);
            if sent.is_err() {
                return None;
            }
            known.tail.to = link.next_number(peer);
        }
        if md.eq | md.ct != 0 {
            ni.post_initiator(index, InitiatorEvent::sent(put));
            if put.ack != AckReq::None {
                ni.post_initiator(index, acknowledged(put));
            }
        }
        Some(Ok(()))
    }

    /// Whether bytes for this target would be placed, without a message.
    #[inline]
    pub(crate) fn can_place<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        target: &Target,
        length: u64,
    ) -> bool {
        if !self.placing.has_rooms {
            return false;
        }
        let room = self.room_for(link, kind, target, length);
        room.is_some_and(|(peer, at, _)| self.peers.get(peer).is_some_and(|known| !known.rooms[at].counts))
    }

    /// Places bytes where puts are not counted; returns whether they are there.
    pub(crate) fn place<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        target: &Target,
        bytes: SharedBytes<'_>,
    ) -> bool {
        let room = self.room_for(link, kind, target, bytes.len() as u64);
        let Some((peer, at, remote)) = room else {
            return false;
        };
        let Some(known) = self.peers.get_mut(peer) else {
            return false;
        };
        let room = known.rooms[at];
        if room.counts {
            return false;
        }
        let placed = link.place(peer, room.way, bytes, &remote);
        if !placed {
            // It was taken back, or cannot be mapped.
            known.rooms.swap_remove(at);
        }
        placed
    }

    /// A process could place what it puts into an entry, of this length.
    pub(crate) fn offer(&mut self, kind: Kind, to: Process, (entry, length): (u32, u64)) {
        if length > MOST {
            return;
        }
        let ni = self.nis.get(kind.number() as usize).and_then(|ni| ni.as_deref());
        let Some(ni) = ni.filter(|_| kind.logical) else {
            return;
        };
        let peer = ni.map.as_ref().and_then(|map| map.peers.get(to.nid as usize));
        if let Some(&peer) = peer
            && let Some((_, slot)) = ni.entries.find(entry)
            && let Ok(pt) = u16::try_from(slot.pt)
        {
            self.could_be_placed(Wanted {
                peer: PeerId(peer),
                ni: kind.number() as u8,
                pt,
                entry,
            });
        }
    }

    /// Begins and ends a get by reading the bytes; `None`, and nothing done, where it is to go another way.
    #[inline(never)]
    pub(crate) fn fetched_get<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        get: &Get,
    ) -> Option<()> {
        let length = get.length;
        let (peer, at, remote) = self.room_for(link, kind, &get.target, length)?;
        let known = self.peers.get_mut(peer)?;
        let room = known.rooms[at];
        if room.counts || !room.reads {
            return None;
        }
        let ni = self.nis.get_mut(kind.number() as usize)?.as_deref_mut()?;
        let (index, md) = ni.mds.find(get.into.md.0)?;
        if !bytes::range(md.length, get.into.offset, length) || length > ni.limits.max_msg_size {
            return None;
        }
        let Memory::One(into) = &md.memory else {
            return None;
        };
        let into = into.room().part(get.into.offset as usize, length as usize);
        if !link.fetch(peer, room.way, &remote, into) {
            known.rooms.swap_remove(at);
            return None;
        }
        let told = InitiatorEvent {
            kind: EventKind::Reply,
            fail: NiFail::Ok,
            user_ptr: get.user_ptr,
            mlength: length,
            remote_offset: get.target.remote_offset,
            list: List::Priority,
            event: true,
        };
        ni.post_initiator(index, told);
        Some(())
    }

    /// The memory that an operation of ours with this target goes to, by its number among the peer's rooms,
    /// if it may go there now.
    #[inline(always)]
    fn room_for<M: Message>(
        &mut self,
        link: &mut Link<M>,
        kind: Kind,
        target: &Target,
        length: u64,
    ) -> Option<(PeerId, usize, Remote)> {
        let (number, pt) = (kind.number() as u8, u16::try_from(target.pt_index).ok()?);
        if length > MOST || length == 0 || !kind.logical {
            return None;
        }
        let ni = self.nis.get(usize::from(number))?.as_deref()?;
        let peer = PeerId(*ni.map.as_ref()?.peers.get(target.process.nid as usize)?);
        let known = self.peers.get_mut(peer)?;
        let at = known.rooms.iter().position(|room| {
            (room.ni, room.pt) == (number, pt) && (room.bits ^ target.match_bits) & !room.ignore == 0
        })?;
        let remote = known.rooms[at].remote.part(target.remote_offset, length)?;
        if known.lost || !known.greeted {
            return None;
        }
        let next = link.next_number(peer);
        let in_order = known.tail.is_all_up_to(next, || link.oldest_under_way(peer));
        (in_order || length > SMALL as u64).then_some((peer, at, remote))
    }

    /// A peer lets us place puts.
    #[cold]
    #[inline(never)]
    pub(crate) fn room_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let mut next = || words.next();
        let (Some(bits), Some(ignore), Some(key), Some(address), Some(length), Some(last)) =
            (next(), next(), next(), next(), next(), next())
        else {
            return self.drops.count(Drop::Short);
        };
        let Some(known) = self.peers.get_mut(peer).filter(|known| !known.lost) else {
            return self.drops.count(Drop::Unknown);
        };
        if last >> 34 != 0 || key == 0 || first.flags & !flag::NI != 0 {
            return self.drops.count(Drop::Malformed);
        }
        let room = Room {
            ni: first.flags,
            pt: first.short.get(),
            bits,
            ignore,
            way: last as u16,
            number: (last >> 16) as u16,
            counts: last >> 32 & 1 != 0,
            reads: last >> 33 != 0,
            remote: Remote {
                key: key.into(),
                address: address.into(),
                length: length.into(),
            },
        };
        // Sent again, or of an entry behind another that is gone.
        known.rooms.retain(|known| {
            (known.ni, known.pt, known.bits, known.ignore) != (room.ni, room.pt, room.bits, room.ignore)
        });
        if known.rooms.len() >= ROOMS {
            known.rooms.remove(0);
        }
        known.rooms.push(room);
        self.placing.has_rooms = true;
    }

    /// A peer has taken memory back: nothing is placed there any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn taken_back_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let Some(key) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        let Some(known) = self.peers.get_mut(peer).filter(|known| !known.lost) else {
            return self.drops.count(Drop::Unknown);
        };
        known.rooms.retain(|room| room.remote.key.get() != key);
        // It leaves behind all heads that named the key: those were sent before this call.
        let head = Head::new(kind::CLOSED, 0, first.short.get()).word(key);
        self.outbox.push(peer, head, &[]);
    }

    /// A peer has sent the last head that names memory which was taken back.
    #[cold]
    #[inline(never)]
    pub(crate) fn closed_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let Some(key) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        match self.placing.find(peer, first.short.get(), key) {
            Some(given) if given.is_closing => {
                given.is_over = true;
                self.placing.sweep();
            }
            _ => self.drops.count(Drop::Unknown),
        }
    }

    /// The bytes of a put are in the memory of its entry.
    #[inline(never)]
    pub(crate) fn placed_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let Some(key) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        if first.flags != 0 || inbound.len() != 16 {
            return self.drops.count(Drop::Malformed);
        }
        let number = first.short.get();
        let (Some(given), Some(known)) = (self.placing.find(peer, number, key), self.peers.get_mut(peer))
        else {
            return self.drops.count(Drop::Unknown);
        };
        known.offers.count();
        (given.is_used, given.is_repeated) = (true, false);
        let kind = usize::from(given.of.ni);
        let Some(ni) = self.nis[kind].as_deref_mut().filter(|_| given.ct != 0) else {
            return;
        };
        if !given.is_closing {
            let entry = (given.of.entry, given.ct);
            self.guess = Some(Guess::of(
                ni.kind,
                peer,
                first_word(kind::PLACED, 0, number),
                key,
                entry,
            ));
        }
        let one = Count {
            success: 1,
            failure: 0,
        };
        ni.count(given.ct, one);
        if ni.triggers.has_fired() {
            self.run_local(kind);
        }
    }

    /// The target has stored a put that its initiator could have placed, perhaps.
    #[inline(never)]
    pub(crate) fn could_be_placed(&mut self, wanted: Wanted) {
        if let Some(known) = self.peers.get_mut(wanted.peer)
            && wanted.peer != PeerId::SELF
            && known.offers.is_due()
        {
            self.placing.wanted.push(wanted);
        }
    }

    /// Offers peers to place their puts.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_rooms<M: Message>(&mut self, link: &mut Link<M>) {
        while let Some(wanted) = self.placing.wanted.pop() {
            self.give_room(link, &wanted);
        }
    }

    /// Offers a peer to place its puts into an entry, if it may.
    fn give_room<M: Message>(&mut self, link: &mut Link<M>, wanted: &Wanted) {
        let Wanted { peer, ni, entry, .. } = *wanted;
        let has = |given: &Given| given.of.peer == peer && (given.of.ni, given.of.entry) == (ni, entry);
        let given = &self.placing.given;
        if let Some(number) = given.iter().position(|given| given.as_ref().is_some_and(has)) {
            return self.give_again(link, number);
        }
        if given
            .iter()
            .flatten()
            .filter(|given| given.of.peer == peer)
            .count()
            >= ROOMS
        {
            return self.make_place(link, peer);
        }
        let Some((memory, ct)) = self.placeable(wanted) else {
            return;
        };
        let Some(number) = self.placing.vacancy() else {
            return;
        };
        let Some((way, remote)) = link.expose_now(peer, &memory) else {
            return;
        };
        self.placing.given[usize::from(number)] = Some(Given {
            of: *wanted,
            ct,
            way,
            remote,
            is_used: true,
            is_repeated: false,
            is_closing: false,
            is_written: false,
            is_over: false,
        });
        self.send_room(number);
    }

    /// A peer has this memory, and has not placed its puts: they had to wait for others, or the way was
    /// missing for a moment. ROOM is sent again, once; where nothing comes of that, the memory is taken back,
    /// since the rail may have revoked its key with a path that broke.
    fn give_again<M: Message>(&mut self, link: &mut Link<M>, number: usize) {
        let Some(given) = &mut self.placing.given[number] else {
            return;
        };
        if given.is_closing {
            return;
        }
        let was_repeated = std::mem::replace(&mut given.is_repeated, true);
        if !was_repeated && link.is_usable(given.of.peer, given.way) {
            return self.send_room(number as u16);
        }
        let key = given.remote.key;
        self.take_back(link, |given| given.remote.key == key);
    }

    /// A peer has as much memory as it may: what it has made no use of since this was last called is taken
    /// back, so that there is a place once it has answered CLOSED.
    fn make_place<M: Message>(&mut self, link: &mut Link<M>, peer: PeerId) {
        let mut unused = None;
        let of_peer = |given: &&mut Given| given.of.peer == peer;
        for given in self.placing.given.iter_mut().flatten().filter(of_peer) {
            if given.is_closing {
                return;
            }
            if !std::mem::take(&mut given.is_used) {
                unused = Some(given.remote.key);
            }
        }
        if let Some(key) = unused {
            self.take_back(link, |given| given.remote.key == key);
        }
    }

    /// Sends a peer which puts it may place, and where.
    fn send_room(&mut self, number: u16) {
        let Some(given) = &self.placing.given[usize::from(number)] else {
            return;
        };
        let (of, remote) = (given.of, given.remote);
        let numbers = u64::from(given.way) | u64::from(number) << 16;
        let counts = u64::from(given.ct != 0) << 32;
        let slot = self.nis[usize::from(of.ni)]
            .as_deref()
            .and_then(|ni| Some((ni, ni.entries.find(of.entry)?.1)));
        let (bits, ignore) = match slot {
            Some((ni, slot)) if ni.kind.matching => (slot.pattern.bits, slot.pattern.ignore),
            _ => (0, u64::MAX),
        };
        let reads = slot.is_some_and(|(_, slot)| slot.options.has(EntryOptions::OP_GET));
        let last = numbers | counts | u64::from(reads) << 33;
        let head = Head::new(kind::ROOM, of.ni, of.pt)
            .word(bits)
            .word(ignore)
            .word(remote.key.get())
            .word(remote.address.get())
            .word(remote.length.get())
            .word(last);
        self.outbox.push(of.peer, head, &[]);
    }

    fn memory_of(&self, of: &Wanted) -> Option<&RegionSlice> {
        let ni = self.nis[usize::from(of.ni)].as_deref()?;
        match &ni.entries.find(of.entry)?.1.memory {
            Memory::One(Landing::Region(slice)) => Some(slice),
            _ => None,
        }
    }

    /// The memory of an entry, if puts of a peer may be placed there, and the counting event that counts them
    /// (zero: none).
    fn placeable(&self, wanted: &Wanted) -> Option<(RegionSlice, u32)> {
        let known = self.peers.get(wanted.peer).filter(|known| !known.lost)?;
        let ni = self.nis[usize::from(wanted.ni)]
            .as_deref()
            .filter(|ni| ni.users != 0)?;
        let table = ni.table(u32::from(wanted.pt))?;
        let (index, slot) = ni.entries.find(wanted.entry)?;
        let may = ni.kind.logical
            && slot.standing == Standing::Linked
            && !slot.leaves
            && slot.list == List::Priority
            && slot.pt == u32::from(wanted.pt)
            && table.enabled
            && !ni.may_be_disabled(table.eq)
            && posts_nothing(slot, table.eq)
            && !slot.options.has(EntryOptions::ACK_DISABLE)
            && takes_puts(slot, known.uid?)
            && ni.comes_first(index, slot);
        let counts = slot.options.has(EntryOptions::EVENT_CT_COMM);
        let memory = self.memory_of(wanted).filter(|_| may)?;
        Some((memory.clone(), if counts { slot.ct } else { 0 }))
    }

    /// Takes memory back that peers place puts in. Whether all of it is quiet: nothing writes there any more,
    /// and every put that was placed there is counted.
    pub(crate) fn take_back<M: Message>(
        &mut self,
        link: &mut Link<M>,
        which: impl Fn(&Given) -> bool,
    ) -> bool {
        let (mut quiet, mut done) = (true, false);
        for (number, given) in (0..).zip(&mut self.placing.given) {
            let Some(given) = given.as_mut().filter(|given| which(given)) else {
                continue;
            };
            let peer = given.of.peer;
            let is_new = !std::mem::replace(&mut given.is_closing, true);
            if is_new && !given.is_over {
                let head = Head::new(kind::TAKEN_BACK, 0, number).word(given.remote.key.get());
                self.outbox.push(peer, head, &[]);
            }
            if is_new || given.is_written {
                let key = RemoteKey(given.remote.key.get());
                given.is_written = !link.end_placing(peer, given.way, key);
            }
            quiet &= given.is_quiet();
            done = true;
        }
        if done {
            self.placing.sweep();
        }
        quiet
    }

    /// Takes back what a lost peer has.
    #[cold]
    pub(crate) fn take_back_of_lost<M: Message>(&mut self, link: &mut Link<M>, peer: PeerId) {
        self.placing.lost(peer);
        self.take_back(link, |given| given.of.peer == peer);
    }
}

impl Iface {
    /// Whether table entries of this queue are disabled by themselves, when it is full.
    fn may_be_disabled(&self, eq: u32) -> bool {
        let with_it = |table: &&crate::table::Table| table.eq == eq && table.has_flow_control();
        eq != 0
            && self
                .tables
                .iter()
                .flatten()
                .map(|table| &**table)
                .any(|table| with_it(&table))
    }

    /// Whether no other entry of its list could take a put that it takes: what is appended later is behind
    /// it.
    fn comes_first(&self, index: u32, slot: &EntrySlot) -> bool {
        let Some(table) = self.table(slot.pt) else {
            return false;
        };
        if table.linked[0] == 1 {
            return true;
        }
        if !self.kind.matching {
            return table.front() == Some((index, List::Priority));
        }
        let is_other = |other: u32| {
            let linked =
                |other: &&EntrySlot| other.standing == Standing::Linked && other.list == List::Priority;
            let other = self.entries.at(other).filter(|_| other != index);
            other
                .filter(|other| other.pt == slot.pt)
                .filter(linked)
                .is_none_or(|other| {
                    (other.pattern.bits ^ slot.pattern.bits) & !(other.pattern.ignore | slot.pattern.ignore)
                        != 0
                })
        };
        self.entries.places() <= SEARCHED && (0..self.entries.places()).all(is_other)
    }
}

/// The acknowledgement of a put that was placed.
fn acknowledged(put: &Put) -> InitiatorEvent {
    InitiatorEvent {
        kind: EventKind::Ack,
        event: put.ack == AckReq::Full,
        ..InitiatorEvent::sent(put)
    }
}

/// The bytes of a descriptor, where they lie in one piece.
#[inline(always)]
fn in_one_piece(memory: &Memory, at: usize, length: usize) -> Option<SharedBytes<'_>> {
    match memory {
        Memory::One(Landing::Loan(loan)) => Some(loan.as_shared().skip(at).take(length)),
        Memory::One(Landing::Region(slice)) => Some(slice.as_shared().skip(at).take(length)),
        _ => None,
    }
}

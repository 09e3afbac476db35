//! Placed puts: the initiator writes the bytes into the entry's memory by itself, over a path within the
//! host, and notifies the target.
//!
//! ```text
//!   initiator                                                     target
//!   some puts of more than a cell ──────────────────────────────► an entry that counts silently takes them
//!                     ◄── ROOM table entry, match bits, memory ── Message::expose_to_put
//!   Message::put_now
//!   PLACED table entry, match bits ─────────────────────────────► counts
//! ```
//!
//! Where an entry is alone on its list, is of one region, and only counts what comes, the target has nothing
//! to decide about a put once it has decided the first: neither where the bytes go nor which event there is.
//! So the bytes need not go through the lane, and what is left of the put is a message of one cell, in its
//! place among all others. The target takes the memory back before the entry leaves its list or its table
//! entry is disabled.
//!
//! *Order.* Up to [`SMALL`] bytes, bytes are in order with those of all operations before. The bytes of a
//! placed put are there at once, so a small one is placed only when the peer has taken everything that we
//! sent before, but for words of placed puts and ROOMs ([`Tail`]), and goes the other way otherwise.

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Body, Inbound, Landing, Message, Remote, RemoteKey};
use doorbell_fabric::ni::{AckReq, Count, Kind, List, Memory, NiError, Put, Register};
use zerocopy::IntoBytes;

use crate::bytes;
use crate::config::SMALL;
use crate::core::Core;
use crate::direct::{Guess, is_silent};
use crate::drops::Drop;
use crate::entries::Standing;
use crate::link::{First, Link, PeerId};
use crate::memory::InitiatorEvent;
use crate::short::takes_puts;
use crate::wire::{Head, Words, first_word, flag, kind};

/// Bytes of a put that travel in one cell with its head: placing them would cost a line more.
pub(crate) const CELL_BODY: u64 = 8;
/// Longer puts are moved by both ends' processors together, which takes less time.
const MOST: u64 = 256 << 10;
/// Rooms of one peer that are used at a time, and that one peer has of us.
const ROOMS: usize = 4;
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
    way: u16,
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
    /// The peer has taken all messages up to this number, by its last ROOM, which was not looked at yet.
    taken: Option<u32>,
}

impl Tail {
    /// Such a message had the number `at`, or waits (then `next` is the same).
    fn add(&mut self, at: u32, next: u32) {
        if self.to != at {
            (self.from, self.is_all) = (at, false);
        }
        self.to = next;
    }

    /// Whether no bytes are on their way to the peer, of which the next message has this number.
    fn is_all_up_to(&mut self, next: u32) -> bool {
        self.add(next, next);
        if let Some(taken) = self.taken.take() {
            self.is_all |= taken.wrapping_sub(self.from) <= next.wrapping_sub(self.from);
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
}

/// An entry that a peer could place puts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) peer: PeerId,
    pub(crate) ni: u8,
    pub(crate) pt: u16,
    /// The match bits of its puts; zero where nothing is matched.
    pub(crate) bits: u64,
    /// The entry's handle.
    pub(crate) entry: u32,
}

/// Memory of an entry that a peer places puts in.
#[derive(Debug)]
pub(crate) struct Given {
    of: Wanted,
    way: u16,
    key: RemoteKey,
    /// It is taken back, and a write that had begun is still under way.
    revoked: bool,
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

    /// Whether this peer has it.
    pub(crate) fn is_of_peer(&self, peer: PeerId) -> bool {
        self.of.peer == peer
    }

    /// Whether it is taken back, and not quiet yet.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked
    }

    fn names(&self, peer: PeerId, ni: u8, pt: u16, bits: u64) -> bool {
        (self.of.peer, self.of.ni, self.of.pt, self.of.bits) == (peer, ni, pt, bits)
    }
}

/// Memory of ours that peers place puts in, and what they could be offered.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    given: Vec<Given>,
    pub(crate) wanted: Vec<Wanted>,
    /// Whether any peer has ever let us place puts.
    pub(crate) has_rooms: bool,
}

impl Placing {
    /// Whether no peer has any memory of ours.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Whether memory that was taken back may still be written.
    pub(crate) fn is_being_written(&self) -> bool {
        self.given.iter().any(Given::is_revoked)
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
        let target = &put.target;
        let (number, pt) = (kind.number() as u8, u16::try_from(target.pt_index).ok()?);
        if put.ack != AckReq::None || put.length > MOST || !kind.logical {
            return None;
        }
        let ni = self.nis.get_mut(usize::from(number))?.as_deref_mut()?;
        let peer = PeerId(*ni.map.as_ref()?.peers.get(target.process.nid as usize)?);
        let known = self.peers.get_mut(peer)?;
        let bits = if kind.matching { target.match_bits } else { 0 };
        let name = (number, pt, bits);
        let at = known
            .rooms
            .iter()
            .position(|room| (room.ni, room.pt, room.bits) == name)?;
        let room = known.rooms[at];
        let remote = room.remote.part(target.remote_offset, put.length)?;
        let next = link.next_number(peer);
        let in_order = known.tail.is_all_up_to(next);
        if known.lost || !known.greeted || !in_order && put.length <= SMALL as u64 || !link.room(peer) {
            return None;
        }
        let (index, md) = ni.mds.find(put.from.md.0)?;
        if !bytes::range(md.length, put.from.offset, put.length) || put.length > ni.limits.max_msg_size {
            return None;
        }
        let bytes = in_one_piece(&md.memory, put.from.offset as usize, put.length as usize)?;
        if !link.place(peer, room.way, bytes, &remote) {
            // It was taken back, or cannot be mapped.
            known.rooms.swap_remove(at);
            return None;
        }
        let mut head = [first_word(kind::PLACED, number, pt), bits.to_le()];
        // The bytes are there, so the word of them waits where there is no room.
        if link
            .send_here(peer, head.as_mut_bytes(), Body::Empty, true)
            .is_err()
        {
            return None;
        }
        known.tail.add(next, link.next_number(peer));
        if md.eq | md.ct != 0 {
            ni.post_initiator(index, InitiatorEvent::sent(put));
        }
        Some(Ok(()))
    }

    /// A peer lets us place puts.
    #[cold]
    #[inline(never)]
    pub(crate) fn room_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let mut next = || words.next();
        let (Some(bits), Some(key), Some(address), Some(length), Some(last)) =
            (next(), next(), next(), next(), next())
        else {
            return self.drops.count(Drop::Short);
        };
        let Some(known) = self.peers.get_mut(peer).filter(|known| !known.lost) else {
            return self.drops.count(Drop::Unknown);
        };
        let (Ok(way), expected) = (u16::try_from(last & 0xffff_ffff), (last >> 32) as u32) else {
            return self.drops.count(Drop::Malformed);
        };
        let room = Room {
            ni: first.flags & flag::NI,
            pt: first.short.get(),
            bits,
            way,
            remote: Remote {
                key: key.into(),
                address: address.into(),
                length: length.into(),
            },
        };
        let same = |known: &Room| (known.ni, known.pt, known.bits) == (room.ni, room.pt, room.bits);
        match known.rooms.iter_mut().find(|known| same(known)) {
            Some(known) => *known = room,
            None => {
                if known.rooms.len() >= ROOMS {
                    known.rooms.remove(0);
                }
                known.rooms.push(room);
            }
        }
        known.tail.taken = Some(expected);
        self.placing.has_rooms = true;
    }

    /// The bytes of a put are in the memory of its entry.
    #[inline(never)]
    pub(crate) fn placed_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let number = first.flags & flag::NI;
        let Some(bits) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        let Some(known) = self.peers.get_mut(peer).filter(|known| known.uid.is_some()) else {
            return self.drops.count(Drop::Early);
        };
        if first.flags != number || inbound.len() != 16 {
            return self.drops.count(Drop::Malformed);
        }
        let Some(ni) = self.nis[usize::from(number)]
            .as_deref_mut()
            .filter(|ni| ni.users != 0)
        else {
            return;
        };
        let pt = first.short.get();
        let given = self
            .placing
            .given
            .iter()
            .find(|given| given.names(peer, number, pt, bits));
        let enabled = ni.table(u32::from(pt)).is_some_and(|table| table.enabled);
        let entry = given
            .filter(|given| !given.revoked && enabled)
            .map(|given| given.of.entry);
        let found = entry.and_then(|entry| ni.entries.find(entry));
        let Some((entry, slot)) = found.filter(|(_, slot)| slot.standing == Standing::Linked) else {
            // As any put whose entry has been unlinked meanwhile.
            return ni.register(Register::DropCount);
        };
        known.offers.placed = known.offers.placed.saturating_add(1);
        let ct = slot.ct;
        self.guess = Guess::of(ni, peer, kind::PLACED, pt, bits, (entry, ct));
        let one = Count {
            success: 1,
            failure: 0,
        };
        ni.count(ct, one);
        if ni.triggers.has_fired() {
            self.run_local(usize::from(number));
        }
    }

    /// A put has come through the lane that its initiator could have placed, perhaps.
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
            let Wanted {
                peer, ni, pt, bits, ..
            } = wanted;
            // What it had before has not been of use, or there is no place for another.
            let is_before = |given: &Given| given.names(peer, ni, pt, bits);
            let mut of_peer = self.placing.given.iter().filter(|given| given.of.peer == peer);
            let is_full = of_peer.clone().count() >= ROOMS;
            let oldest = of_peer.next().filter(|_| is_full).map(|given| given.key);
            if !self.take_back(link, |given| is_before(given) || Some(given.key) == oldest) {
                continue;
            }
            let Some(memory) = self.placeable(&wanted) else {
                continue;
            };
            let Some((way, remote)) = link.expose_to_put(peer, &memory) else {
                continue;
            };
            let key = RemoteKey(remote.key.get());
            let last = u64::from(way) | u64::from(link.expected_number(peer)) << 32;
            let mut head = Head::new(kind::ROOM, ni, pt)
                .word(bits)
                .word(key.0)
                .word(remote.address.get())
                .word(remote.length.get())
                .word(last);
            self.placing.given.push(Given {
                of: wanted,
                way,
                key,
                revoked: false,
            });
            let next = link.next_number(peer);
            match link.send(peer, head.as_mut_bytes(), Body::Empty, true) {
                Ok(()) => {
                    if let Some(known) = self.peers.get_mut(peer) {
                        known.tail.add(next, link.next_number(peer));
                    }
                }
                Err(_) => _ = self.take_back(link, |given| given.key == key),
            }
        }
    }

    /// The memory of an entry, if puts of a peer may be placed there.
    fn placeable(&self, wanted: &Wanted) -> Option<RegionSlice> {
        let known = self.peers.get(wanted.peer).filter(|known| !known.lost)?;
        let ni = self.nis[usize::from(wanted.ni)]
            .as_deref()
            .filter(|ni| ni.users != 0)?;
        let table = ni.table(u32::from(wanted.pt))?;
        let (_, slot) = ni.entries.find(wanted.entry)?;
        let alone = slot.standing == Standing::Linked && slot.list == List::Priority && table.linked[0] == 1;
        let may = alone
            && table.enabled
            && !table.has_flow_control()
            && slot.pt == u32::from(wanted.pt)
            && is_silent(slot, table.eq)
            && takes_puts(slot, known.uid?);
        match &slot.memory {
            Memory::One(Landing::Region(slice)) if may => Some(slice.clone()),
            _ => None,
        }
    }

    /// Takes memory back that peers place puts in. Whether all of it is quiet: nothing writes there any more.
    pub(crate) fn take_back<M: Message>(
        &mut self,
        link: &mut Link<M>,
        which: impl Fn(&Given) -> bool,
    ) -> bool {
        let mut quiet = true;
        self.placing.given.retain_mut(|given| {
            if !which(given) {
                return true;
            }
            given.revoked = true;
            let is_quiet = link.end_placing(given.of.peer, given.way, given.key);
            quiet &= is_quiet;
            !is_quiet
        });
        quiet
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

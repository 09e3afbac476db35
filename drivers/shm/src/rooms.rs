//! Rooms: memory of a region that one peer writes, and reads, by itself, through a map of its object.
//!
//! ```text
//!   writer                                          owner
//!   PLACING = key             ─┐ in this order      the lease is withdrawn      ─┐ in this order
//!   does the lease stand?     ─┘                    the writer's PLACING?       ─┘
//!   copies
//!   PLACING = 0, behind the copy                    not the key: the memory is quiet
//! ```
//!
//! A read is checked when it is over: if the lease still stands, it was right. A write cannot be taken back,
//! so a check after it would come too late. Instead the writer announces the key in its own lease object,
//! where the owner can read it, and then looks at the lease; the owner withdraws the lease, and then looks at
//! the announcement. Both orders are sequentially consistent, so at least one of the two sees the other:
//! either the writer finds no lease, and writes nothing, or the owner finds the announcement, and the memory
//! is not quiet before the writer has ended it or its process has ended. No process waits: a writer that is
//! stopped in the middle keeps the memory from being quiet, and does nothing else.
//!
//! All bytes have to lie in the lease, and in the object that the writer has mapped and checked.

use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes};
use doorbell_fabric::message::{PeerIndex, Remote, RemoteKey};

use crate::coop_copy::reader::{Owner, ended};
use crate::lease::{Foreign, Leases, Place, holder};
use crate::map::WritableWindow;
use crate::pull::{MOST_MAPPED, hung_up};
use crate::rail::ShmRail;

/// Regions of one peer that are mapped to be written, at most.
pub(crate) const MOST_ROOMS: usize = 16;
/// Rooms that all peers have of us at a time, at most: half of the lease table.
const MOST_GIVEN: usize = 512;

/// A region of a peer that we write.
struct Slot {
    descriptor: i32,
    serial: u64,
    /// `None`: it cannot be mapped.
    window: Option<WritableWindow>,
}

/// The regions of a peer that we write, the most recently opened at the end.
#[derive(Default)]
pub(crate) struct Rooms {
    slots: Vec<Slot>,
}

impl Rooms {
    /// Writes bytes into memory of the owner of this table, in process `pid`, that is leased to us for that.
    pub(crate) fn place(
        &mut self,
        (leases, pid): (&Foreign, i32),
        bytes: SharedBytes<'_>,
        to: &Remote,
        us: u64,
        ours: &Leases,
    ) -> bool {
        let Some((at, place)) = self.find((leases, pid), to, us) else {
            return false;
        };
        let Some(window) = &self.slots[at].window else {
            return false;
        };
        ours.begin_placing(to.key.get());
        let done = leases.is_ours_to_write(to, us) && window.write(place.offset, bytes);
        ours.end_placing();
        done
    }

    /// Reads memory that is leased to us so. A lease that still stands when the bytes have been read has
    /// stood meanwhile, since keys do not come again.
    pub(crate) fn fetch(
        &mut self,
        (leases, pid): (&Foreign, i32),
        from: &Remote,
        us: u64,
        into: Room<'_>,
    ) -> bool {
        let Some((slot, place)) = self.find((leases, pid), from, us) else {
            return false;
        };
        let (window, length) = (&self.slots[slot].window, from.length.get());
        let Some(bytes) = window
            .as_ref()
            .and_then(|window| window.bytes(place.offset, length))
        else {
            return false;
        };
        let is_whole = into.write_shared(0, bytes) == bytes.len();
        fence(Ordering::Acquire);
        is_whole && leases.is_ours_to_write(from, us)
    }

    /// The region that memory lies in, opened if the memory is ours to use; and where in it.
    #[inline]
    fn find(&mut self, (leases, pid): (&Foreign, i32), memory: &Remote, us: u64) -> Option<(usize, Place)> {
        let place = leases.place(memory)?;
        let is_there = |slot: &Slot| (slot.serial, slot.descriptor) == (place.serial, place.descriptor);
        let known = self.slots.iter().rposition(is_there);
        let may_open = known.is_some() || leases.is_ours_to_write(memory, us);
        let at = may_open.then(|| known.unwrap_or_else(|| self.open(&place, pid)))?;
        Some((at, place))
    }

    /// Opens a region's object; returns its index. That it cannot be opened is remembered.
    #[cold]
    #[inline(never)]
    fn open(&mut self, place: &Place, pid: i32) -> usize {
        let mapped = |slot: &Slot| slot.window.as_ref().map_or(0, WritableWindow::len);
        let length = usize::try_from(place.length).unwrap_or(usize::MAX);
        let is_full = |slots: &[Slot]| {
            let bytes = slots.iter().map(mapped).fold(length, usize::saturating_add);
            slots.len() >= MOST_ROOMS || bytes > MOST_MAPPED
        };
        while !self.slots.is_empty() && is_full(&self.slots) {
            self.slots.remove(0);
        }
        self.slots.push(Slot {
            descriptor: place.descriptor,
            serial: place.serial,
            window: writable(place, pid, length),
        });
        self.slots.len() - 1
    }
}

/// Maps a region's object to be written. Fails if it is gone, too long, not accessible, not sealed, or not
/// the lease's any longer.
fn writable(place: &Place, pid: i32, length: usize) -> Option<WritableWindow> {
    if length > MOST_MAPPED {
        return None;
    }
    let process = u32::try_from(pid).ok()?;
    let object = Object::open_of(process, place.descriptor, length, Protection::ReadWrite).ok()?;
    if object.len() != length || object.serial() != Some(place.serial) {
        return None;
    }
    WritableWindow::of(&object).ok()
}

/// Memory of ours that a peer places bytes in.
pub(crate) struct Given {
    key: u64,
    /// The peer, as a holder of leases.
    holder: u64,
    /// Its announcement and its process, beyond its connection: one descriptor for all of a peer.
    placer: Owner,
    /// Kept until it is quiet.
    _memory: RegionSlice,
}

impl ShmRail {
    /// Lets a peer that is connected write memory of a region.
    pub(crate) fn give_room(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        if !self.capabilities.features.get || self.given.len() >= MOST_GIVEN {
            return None;
        }
        let known = self.peers.get_mut(to.index())?;
        if known.down.is_some() || known.can_read_us == Some(false) {
            return None;
        }
        let theirs = holder(&known.id);
        let (Some(peer), Some(socket)) = known.memory_and_socket() else {
            return None;
        };
        let placer = match self.given.iter().find(|given| given.holder == theirs) {
            Some(given) => given.placer.clone(),
            None => {
                let owners = &mut self.pulls.requests.owners;
                let placer = owners.find(theirs, peer.process(), peer.leases())?;
                // Its process is there now, so the descriptor is of no other with its number.
                if hung_up(socket) {
                    return None;
                }
                placer
            }
        };
        let key = self.leases.grant_room((to, theirs), memory)?;
        self.given.push(Given {
            key: key.0,
            holder: theirs,
            placer,
            _memory: memory.clone(),
        });
        Some(Remote {
            key: key.0.into(),
            address: (memory.address() as u64).into(),
            length: (memory.len() as u64).into(),
        })
    }

    /// Revokes a room; returns whether nothing is written there any more.
    pub(crate) fn take_room_back(&mut self, key: RemoteKey) -> bool {
        let Some(at) = self.given.iter().position(|given| given.key == key.0) else {
            return true;
        };
        self.leases.revoke(key);
        // Between the store that revokes and the load of the announcement.
        fence(Ordering::SeqCst);
        let placer = &self.given[at].placer;
        let is_quiet = placer.leases.placing() != key.0 || ended(&placer.process);
        if is_quiet {
            self.given.swap_remove(at);
        }
        is_quiet
    }
}

#[cfg(test)]
impl Given {
    /// Test equipment: memory that a writer has, whose table and process these are.
    pub(crate) fn of(key: u64, placer: Owner, memory: &RegionSlice) -> Self {
        Self {
            key,
            holder: 0,
            placer,
            _memory: memory.clone(),
        }
    }
}

#[cfg(test)]
impl Rooms {
    /// Maps nothing any more.
    pub(crate) fn forget(&mut self) {
        self.slots.clear();
    }

    /// How many regions are mapped.
    pub(crate) fn mapped(&self) -> usize {
        self.slots.iter().filter(|slot| slot.window.is_some()).count()
    }
}

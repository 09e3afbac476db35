//! Leases: buffers that peers may pull, in a table that only we can write and every peer can read.
//!
//! An entry is eight words: the key (zero: free), its holder (the first half of the peer's rail id, or zero
//! for all peers; see [`writer`] for memory that the holder may write), start and length of the memory; and
//! for memory of a region, how a puller finds its object: the descriptor plus one (zero: no region), the
//! offset in the object, the object's inode number, its length. A puller checks the entry before and after
//! reading, so the result of a read that ends after a key was withdrawn is not used. All ranks of one user
//! can read the keys; they are one trust domain where memory is pulled at all. Behind the table lies the
//! rail's [cooperative copy state](crate::coop_copy::state), and in a line of its own the key under which the
//! rail is placing bytes at present ([`crate::rooms`]).

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, Remote, RemoteKey};

use crate::coop_copy::state::{COOP_WORDS, CoopState};
use crate::keys::KeySource;
use crate::map::{WordsOf, words};
use crate::wire::Id;

/// Entries of the table: the most buffers exposed at a time.
pub(crate) const LEASES: usize = 1024;
/// Words of an entry.
const ENTRY: usize = 8;
/// Index of the cooperative copy state (see [`crate::coop_copy::state`]).
const COOP_AT: usize = ENTRY * LEASES;
/// Index of the key under which we are placing bytes; zero: under none.
const PLACING_AT: usize = COOP_AT + COOP_WORDS;
/// Words of the object: the last cache line has the one word.
const WORDS: usize = PLACING_AT + 8;
/// Bytes of a lease object.
pub(crate) const LEASE_BYTES: usize = WORDS * 8;

/// The holder of a lease, as the table stores it.
pub(crate) fn holder(id: &Id) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&id[..8]);
    // Zero means all peers.
    u64::from_ne_bytes(half) | 1
}

/// The holder of a lease to write, as the table stores it: no reader has that name, and it is not zero.
pub(crate) fn writer(holder: u64) -> u64 {
    holder & !1 | 2
}

/// How to find a region's memory in its object. Untrusted if it comes from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The descriptor in its owner's process.
    pub(crate) descriptor: i32,
    /// Offset of the leased memory in the object.
    pub(crate) offset: u64,
    /// The object's inode number; those of memfds are not reused.
    pub(crate) serial: u64,
    /// Bytes of the object.
    pub(crate) length: u64,
}

impl Place {
    fn of(slice: &RegionSlice) -> Option<Self> {
        let object = slice.region().object();
        Some(Self {
            descriptor: object.as_fd().as_raw_fd(),
            offset: slice.offset() as u64,
            serial: object.serial()?,
            length: object.len() as u64,
        })
    }
}

/// A peer's table, as a puller reads it.
#[derive(Clone)]
pub(crate) struct Foreign {
    words: WordsOf,
}

impl Foreign {
    pub(crate) fn map(object: &Object) -> Result<Self, RailError> {
        Ok(Self {
            words: words(object, Protection::ReadOnly, WORDS)?,
        })
    }

    /// Whether the key is valid for us and covers all of `memory`.
    pub(crate) fn stands(&self, memory: &Remote, us: u64) -> bool {
        stands(&self.words, memory, us)
    }

    /// Whether the key is valid for us to write, and covers all of `memory`.
    pub(crate) fn is_ours_to_write(&self, memory: &Remote, us: u64) -> bool {
        let entry = ENTRY * (memory.key.get() as usize % LEASES);
        let us = writer(us);
        self.words.load(entry + 1) == us && stands(&self.words, memory, us)
    }

    /// The key under which its owner is placing bytes now, or zero.
    pub(crate) fn placing(&self) -> u64 {
        self.words.load(PLACING_AT)
    }

    /// Its owner's cooperative copy state.
    pub(crate) fn coop_state(&self) -> CoopState<'_> {
        CoopState::new(&self.words, COOP_AT)
    }

    /// Returns where `memory` lies in its region's object; `None` if it is not a region's.
    pub(crate) fn place(&self, memory: &Remote) -> Option<Place> {
        let entry = ENTRY * (memory.key.get() as usize % LEASES);
        let [start, descriptor, offset, serial, length] =
            [2, 4, 5, 6, 7].map(|word| self.words.load(entry + word));
        let within = memory.address.get().checked_sub(start)?;
        Some(Place {
            descriptor: i32::try_from(descriptor.checked_sub(1)?).ok()?,
            offset: offset.checked_add(within)?,
            serial,
            length,
        })
    }
}

/// Whether the key is valid for `whom` and covers all of `memory`.
fn stands(words: &WordsOf, memory: &Remote, whom: u64) -> bool {
    let key = memory.key.get();
    let entry = ENTRY * (key as usize % LEASES);
    let [for_whom, start, length] = [1, 2, 3].map(|word| words.load(entry + word));
    let inside = memory
        .address
        .get()
        .checked_sub(start)
        .and_then(|at| at.checked_add(memory.length.get()));
    key != 0
        && (for_whom == 0 || for_whom == whom)
        && inside.is_some_and(|end| end <= length)
        && words.load(entry) == key
}

/// A lease that was granted.
struct Lent {
    /// The only peer that has it; `None`: all have.
    holder: Option<PeerIndex>,
    at: Instant,
    _keep: Option<RegionSlice>,
    /// Its holder counts as a borrower: see [`Leases::borrowers`].
    is_borrowed: bool,
}

/// Our table, the holder of each entry, and the regions that the entries keep alive.
///
/// The rules are those of `doorbell_fabric::domain::KeyTable`; this table lies in shared memory, because over
/// shm the reader does the check. It has at most [`LEASES`] entries. A key is 53 random bits above the
/// entry's number, so a withdrawn key differs from all later ones of the entry. All bytes have to lie in the
/// entry, which has to be granted to the peer. Since all ranks of the user can read the table (and, where
/// pulls work, our memory), it guards against mistakes and reuse, not against malice.
pub(crate) struct Leases {
    pub(crate) object: Object,
    words: WordsOf,
    free: Vec<u16>,
    keys: HashMap<u64, Lent>,
    /// Peers with leases granted to them alone, and how many.
    borrowers: Vec<(PeerIndex, u32)>,
    /// The last lease granted to one peer, and whether there was no other then.
    last_lent: u64,
    lent_alone: bool,
    random: KeySource,
}

impl Leases {
    pub(crate) fn new() -> Result<Self, RailError> {
        let object = Object::new("doorbell-leases", LEASE_BYTES)?;
        let words = words(&object, Protection::ReadWrite, WORDS)?;
        object.seal_against_new_writers()?;
        Ok(Self {
            object,
            words,
            free: (0..LEASES as u16).rev().collect(),
            keys: HashMap::with_capacity(LEASES),
            borrowers: Vec::with_capacity(LEASES),
            last_lent: 0,
            lent_alone: false,
            random: KeySource::new()?,
        })
    }

    /// Grants a lease to one peer or to all and returns its key; `None` when the table is full.
    pub(crate) fn grant(
        &mut self,
        to: Option<(PeerIndex, u64)>,
        memory: (usize, usize),
        keep: Option<RegionSlice>,
    ) -> Option<RemoteKey> {
        // A piece is kept for as long as its receiver wants to read it in place.
        let is_piece = keep.as_ref().is_some_and(|slice| slice.region().is_piece());
        self.enter(to, memory, keep, to.is_some() && !is_piece)
    }

    /// Lets one peer write memory of a region ([`crate::rooms`]); `None` when the table is full, or the
    /// region's object has no number.
    pub(crate) fn grant_room(
        &mut self,
        (peer, holder): (PeerIndex, u64),
        slice: &RegionSlice,
    ) -> Option<RemoteKey> {
        Place::of(slice)?;
        let memory = (slice.address(), slice.len());
        self.enter(Some((peer, writer(holder))), memory, Some(slice.clone()), false)
    }

    fn enter(
        &mut self,
        to: Option<(PeerIndex, u64)>,
        (address, length): (usize, usize),
        keep: Option<RegionSlice>,
        is_borrowed: bool,
    ) -> Option<RemoteKey> {
        let entry = self.free.pop()?;
        let random = self.random.next();
        // Never zero: the bit above the entry number is always set.
        let key = random & !(2 * LEASES as u64 - 1) | LEASES as u64 | u64::from(entry);
        let first = ENTRY * usize::from(entry);
        self.words.put(first + 1, to.map_or(0, |(_, holder)| holder));
        self.words.put(first + 2, address as u64);
        self.words.put(first + 3, length as u64);
        let place = keep.as_ref().and_then(Place::of);
        self.words.put(
            first + 4,
            place.map_or(0, |place| place.descriptor.unsigned_abs().into()) + u64::from(place.is_some()),
        );
        self.words.put(first + 5, place.map_or(0, |place| place.offset));
        self.words.put(first + 6, place.map_or(0, |place| place.serial));
        self.words.put(first + 7, place.map_or(0, |place| place.length));
        self.words.put(first, key);
        let lent = Lent {
            holder: to.map(|(peer, _)| peer),
            at: Instant::now(),
            is_borrowed,
            _keep: keep,
        };
        self.keys.insert(key, lent);
        if let Some((peer, _)) = to.filter(|_| is_borrowed) {
            self.lend(peer, key);
        }
        Some(RemoteKey(key))
    }

    /// Returns what a peer was lent that had no other lease meanwhile: itself, how many bytes, and for how
    /// long.
    pub(crate) fn lent_for(&self, key: RemoteKey) -> Option<(PeerIndex, usize, Duration)> {
        if !self.lent_alone || key.0 != self.last_lent {
            return None;
        }
        let &[(peer, 1)] = &self.borrowers[..] else {
            return None;
        };
        let length = self.words.load(ENTRY * (key.0 as usize % LEASES) + 3);
        let time = self.lent_at(key.0)?.elapsed();
        Some((peer, usize::try_from(length).ok()?, time))
    }

    /// Revokes a key. An unknown key is ignored.
    pub(crate) fn revoke(&mut self, key: RemoteKey) {
        if let Some(lent) = self.keys.remove(&key.0) {
            let entry = key.0 as usize % LEASES;
            self.words.put(ENTRY * entry, 0);
            // Ordered before the owner's later writes to the memory: a puller that copied those finds no key.
            fence(Ordering::Release);
            self.free.push(entry as u16);
            if let Some(peer) = lent.holder.filter(|_| lent.is_borrowed) {
                self.take_back(peer);
            }
        }
    }

    /// Announces that we are placing bytes under a key of a peer's table, before anything that follows.
    #[inline]
    pub(crate) fn begin_placing(&self, key: u64) {
        self.words.store(PLACING_AT, key);
    }

    /// The bytes have been placed: everything before is done when this is seen.
    #[inline]
    pub(crate) fn end_placing(&self) {
        self.words.put(PLACING_AT, 0);
    }

    /// Our own cooperative copy state.
    pub(crate) fn coop_state(&self) -> CoopState<'_> {
        CoopState::new(&self.words, COOP_AT)
    }

    /// Whether all of `memory` is lent to `whom`.
    pub(crate) fn lent(&self, memory: &Remote, whom: u64) -> bool {
        stands(&self.words, memory, whom)
    }

    /// Peers with leases granted to them alone, which may be reading at present. Leases of pieces do not
    /// count: they last for as long as their holders want, and are not copied as a rule.
    #[inline]
    pub(crate) fn borrowers(&self) -> &[(PeerIndex, u32)] {
        &self.borrowers
    }

    /// Returns when this lease was granted: a reader that names it was alive after that.
    pub(crate) fn lent_at(&self, key: u64) -> Option<Instant> {
        self.keys.get(&key).map(|lent| lent.at)
    }

    fn lend(&mut self, peer: PeerIndex, key: u64) {
        (self.last_lent, self.lent_alone) = (key, self.borrowers.is_empty());
        match self.borrowers.iter_mut().find(|(borrower, _)| *borrower == peer) {
            Some((_, leases)) => *leases += 1,
            None => self.borrowers.push((peer, 1)),
        }
    }

    fn take_back(&mut self, peer: PeerIndex) {
        let Some(at) = self.borrowers.iter().position(|(borrower, _)| *borrower == peer) else {
            return;
        };
        self.borrowers[at].1 -= 1;
        if self.borrowers[at].1 == 0 {
            self.borrowers.swap_remove(at);
        }
    }

    /// Revokes all leases of a dead peer.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        let dead: Vec<u64> = self
            .keys
            .iter()
            .filter(|(_, lent)| lent.holder == Some(peer))
            .map(|(key, _)| *key)
            .collect();
        for key in dead {
            self.revoke(RemoteKey(key));
        }
    }
}

#[cfg(test)]
impl Leases {
    /// Test equipment: the table, to be written by a thread.
    pub(crate) fn far(&self) -> WordsOf {
        self.words.far()
    }

    /// Test equipment: what a peer that breaks the rules writes into an entry.
    pub(crate) fn scribble(&mut self, key: u64, word: usize, value: u64) {
        self.words.store(ENTRY * (key as usize % LEASES) + word, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (Leases, Foreign) {
        let leases = Leases::new().unwrap();
        let foreign = Foreign::map(&leases.object).unwrap();
        (leases, foreign)
    }

    fn remote(key: u64, address: u64, length: u64) -> Remote {
        Remote {
            key: key.into(),
            address: address.into(),
            length: length.into(),
        }
    }

    #[test]
    fn a_guessed_key_is_denied() {
        let (mut leases, foreign) = table();
        let key = leases.grant(None, (4096, 100), None).unwrap().0;
        assert!(foreign.stands(&remote(key, 4096, 100), 7));
        assert!(!foreign.stands(&remote(0, 4096, 100), 7));
        for bit in 0..64 {
            assert!(
                !foreign.stands(&remote(key ^ 1 << bit, 4096, 100), 7),
                "bit {bit}"
            );
        }
        // The right entry and all known bits of a key.
        for guess in 0..100_000u64 {
            let guessed = guess << 11 | LEASES as u64 | (key % LEASES as u64);
            assert!(guessed == key || !foreign.stands(&remote(guessed, 4096, 100), 7));
        }
    }

    #[test]
    fn a_revoked_key_is_denied_for_ever() {
        let (mut leases, foreign) = table();
        let mut old = Vec::new();
        for _ in 0..3 * LEASES {
            let key = leases.grant(None, (4096, 100), None).unwrap();
            assert!(foreign.stands(&remote(key.0, 4096, 100), 7));
            leases.revoke(key);
            leases.revoke(key);
            old.push(key.0);
        }
        let _same_entry = leases.grant(None, (4096, 100), None).unwrap();
        assert!(old.iter().all(|key| !foreign.stands(&remote(*key, 4096, 100), 7)));
        old.sort_unstable();
        old.dedup();
        assert_eq!(old.len(), 3 * LEASES, "a key came twice");
    }

    #[test]
    fn bytes_out_of_range_and_other_peers_are_denied() {
        let (mut leases, foreign) = table();
        let key = leases
            .grant(Some((PeerIndex(3), 77)), (4096, 100), None)
            .unwrap()
            .0;
        for (address, length) in [(4096, 100), (4096, 0), (4100, 96), (4195, 1), (4196, 0)] {
            assert!(
                foreign.stands(&remote(key, address, length), 77),
                "{address} {length}"
            );
            assert!(!foreign.stands(&remote(key, address, length), 78));
        }
        for (address, length) in [
            (4095, 1),
            (4096, 101),
            (4195, 2),
            (4197, 0),
            (0, 100),
            (4096, u64::MAX),
            (4100, u64::MAX - 3),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
        ] {
            assert!(
                !foreign.stands(&remote(key, address, length), 77),
                "{address} {length}"
            );
        }
        leases.forget(PeerIndex(3));
        assert!(!foreign.stands(&remote(key, 4096, 100), 77));
    }

    #[test]
    fn the_table_is_bounded_and_goes_on_when_one_is_given_back() {
        let (mut leases, _) = table();
        let keys: Vec<_> = (0..LEASES)
            .map(|_| leases.grant(None, (1, 1), None).unwrap())
            .collect();
        assert!(leases.grant(None, (1, 1), None).is_none());
        leases.revoke(keys[500]);
        assert!(leases.grant(None, (1, 1), None).is_some());
    }
}

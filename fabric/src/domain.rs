//! Registered memory: which peer may access which bytes, under keys that cannot be guessed.
//!
//! ```text
//!   expose(memory, access, to) ─► Remote { key, address, length }  sent to peers
//!   check(peer, remote, access) ─► Permit                          peer, access, bounds: all checked first
//!   withdraw(key)                                                  from then on the key is like a random one
//! ```
//!
//! A target rail calls [`KeyTable::check`] for every one-sided access that passes through its process; if a
//! device performs the access, the device's table is built from this one. A peer's numbers are untrusted and
//! may have any value.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;

use zerocopy::IntoBytes;

use crate::error::RailError;
use crate::memory::SharedBytes;
use crate::message::{Access, AtomicOp, Exposure, OpError, PeerIndex, Refused, Remote, RemoteKey};

/// The source of keys.
pub trait KeySource {
    /// The next key; `None` when the system provides no randomness.
    fn next_key(&mut self) -> Option<u64>;
}

/// Keys from the system's random numbers, independent of each other. Fetched in batches, so that most
/// registrations need no system call.
#[derive(Debug)]
pub struct SystemKeys {
    fresh: [u64; SystemKeys::AT_A_TIME],
    left: usize,
}

impl SystemKeys {
    const AT_A_TIME: usize = 64;

    /// Fetches the first keys.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new() -> Result<Self, RailError> {
        let mut keys = Self {
            fresh: [0; Self::AT_A_TIME],
            left: 0,
        };
        keys.fill().map_err(|source| {
            RailError::memory("fetch random keys", "getrandom", size_of_val(&keys.fresh), source)
        })?;
        Ok(keys)
    }

    #[cold]
    fn fill(&mut self) -> io::Result<()> {
        getrandom::fill(self.fresh.as_mut_bytes()).map_err(io::Error::other)?;
        self.left = Self::AT_A_TIME;
        Ok(())
    }
}

impl KeySource for SystemKeys {
    fn next_key(&mut self) -> Option<u64> {
        if self.left == 0 {
            self.fill().ok()?;
        }
        self.left -= 1;
        // A key that was issued is not kept: this memory may be read by a debugger or a core dump.
        Some(std::mem::take(&mut self.fresh[self.left]))
    }
}

/// Any function is a source: the simulator's seeded one, for runs that can be repeated.
impl<F: FnMut() -> u64> KeySource for F {
    fn next_key(&mut self) -> Option<u64> {
        Some(self())
    }
}

/// Why an access is refused. The peer only receives [`OpError::Denied`]; the reason is for our own counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denial {
    /// No memory has this key, or not any more.
    UnknownKey,
    /// The memory was exposed to another peer.
    OtherPeer,
    /// The access is not among those that were allowed.
    NotAllowed,
    /// The bytes are not all inside.
    Outside,
    /// An atomic on anything else than eight aligned bytes of a region.
    Unaligned,
}

impl Denial {
    /// All reasons, in the order of [`Denial::index`].
    pub const ALL: [Self; 5] = [
        Self::UnknownKey,
        Self::OtherPeer,
        Self::NotAllowed,
        Self::Outside,
        Self::Unaligned,
    ];

    /// A dense number, for an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown-key",
            Self::OtherPeer => "other-peer",
            Self::NotAllowed => "not-allowed",
            Self::Outside => "outside",
            Self::Unaligned => "unaligned",
        }
    }
}

impl From<Denial> for OpError {
    fn from(_: Denial) -> Self {
        OpError::Denied
    }
}

/// The exposed memory of one rail.
///
/// * **Use**: a rail whose accesses pass through the target's own process calls [`KeyTable::check`] before
///   each; one whose device makes them fills the device's table from this one. A permit borrows the table:
///   while it is used, nothing is withdrawn. Over shm the reader checks, in a table of the same rules that
///   lies in shared memory.
/// * **Bounds**: at most `most` entries, then [`Refused::Full`]. Every byte of an access has to lie in the
///   entry, by sums that cannot overflow, whatever a peer names as address and length; and the peer and the
///   kind of access have to be those that it was exposed for.
/// * **Randomness**: a key is 64 bits of the system's generator, never zero, never one in use, and not kept
///   where it was drawn. A peer that guesses hits one of `n` entries once in 2⁶⁴ / `n` attempts.
/// * **Revocation**: [`KeyTable::withdraw`] ends one key at once, [`KeyTable::withdraw_peer`] all of a peer
///   that is gone. Its memory is given back then, and the key is as good as a guess: the next entry gets
///   another one.
///
/// ```
/// use doorbell_fabric::domain::{Denial, KeyTable};
/// use doorbell_fabric::memory::Region;
/// use doorbell_fabric::message::{Access, Exposure, PeerIndex};
///
/// let region = Region::new(4096)?;
/// region.write(100, b"hello");
/// let mut table = KeyTable::new(1024)?;
/// let memory = Exposure::Region(region.whole());
/// let remote = table.expose(memory, Access::Read, Some(PeerIndex(3))).unwrap();
///
/// let part = remote.part(100, 5).unwrap();
/// let mut bytes = [0; 5];
/// table.check(PeerIndex(3), &part, Access::Read).unwrap().copy_to(&mut bytes);
/// assert_eq!(&bytes, b"hello");
/// assert_eq!(table.check(PeerIndex(4), &part, Access::Read).unwrap_err(), Denial::OtherPeer);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Debug)]
pub struct KeyTable<S = SystemKeys> {
    entries: HashMap<u64, Entry, BuildHasherDefault<ByKey>>,
    most: usize,
    keys: S,
}

#[derive(Debug)]
struct Entry {
    memory: Exposure,
    access: Access,
    to: Option<PeerIndex>,
    /// The address that peers use for the first byte.
    base: u64,
    length: u64,
}

impl KeyTable {
    /// An empty table for at most `most` pieces of memory, with keys of the system.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(most: usize) -> Result<Self, RailError> {
        Ok(Self::with_keys(most, SystemKeys::new()?))
    }
}

impl<S: KeySource> KeyTable<S> {
    /// An empty table with keys from elsewhere.
    pub fn with_keys(most: usize, keys: S) -> Self {
        Self {
            entries: HashMap::default(),
            most,
            keys,
        }
    }

    /// Exposes memory to one peer, or to all for `None`, under a fresh key; its addresses start at zero.
    ///
    /// # Errors
    /// [`Refused::Full`] when the table is full, [`Refused::BadMemory`] when the memory does not permit the
    /// access.
    pub fn expose(
        &mut self,
        memory: Exposure,
        access: Access,
        to: Option<PeerIndex>,
    ) -> Result<Remote, Refused> {
        self.expose_at(0, memory, access, to)
    }

    /// Exposes memory like [`KeyTable::expose`], with addresses that start at `base`: a virtual or bus
    /// address, for example.
    ///
    /// # Errors
    /// Those of [`KeyTable::expose`]; also [`Refused::BadMemory`] when its end is beyond the last address.
    pub fn expose_at(
        &mut self,
        base: u64,
        memory: Exposure,
        access: Access,
        to: Option<PeerIndex>,
    ) -> Result<Remote, Refused> {
        let (length, bears) = match &memory {
            Exposure::Region(slice) => (slice.len() as u64, true),
            Exposure::Read(loan) => (loan.len() as u64, access == Access::Read),
            Exposure::Write(loan) => (loan.len() as u64, true),
        };
        if !bears || base.checked_add(length).is_none() {
            return Err(Refused::BadMemory);
        }
        if self.entries.len() >= self.most {
            return Err(Refused::Full);
        }
        let key = self.fresh_key().ok_or(Refused::Full)?;
        let entry = Entry {
            memory,
            access,
            to,
            base,
            length,
        };
        self.entries.insert(key, entry);
        Ok(Remote {
            key: key.into(),
            address: base.into(),
            length: length.into(),
        })
    }

    /// A key that is not zero and not in use. Another one is wanted once in 2⁶⁴ times the table's size, so a
    /// source that needs more than a few attempts is broken.
    fn fresh_key(&mut self) -> Option<u64> {
        (0..8)
            .filter_map(|_| self.keys.next_key())
            .find(|key| *key != 0 && !self.entries.contains_key(key))
    }

    /// Checks whether `peer` may make an `access` to `remote`, whose fields are untrusted.
    ///
    /// # Errors
    /// The first reason why not.
    #[inline]
    pub fn check(&self, peer: PeerIndex, remote: &Remote, access: Access) -> Result<Permit<'_>, Denial> {
        let entry = self.entries.get(&remote.key.get()).ok_or(Denial::UnknownKey)?;
        if entry.to.is_some_and(|to| to != peer) {
            return Err(Denial::OtherPeer);
        }
        if !entry.access.allows(access) {
            return Err(Denial::NotAllowed);
        }
        let offset = remote
            .address
            .get()
            .checked_sub(entry.base)
            .ok_or(Denial::Outside)?;
        let end = offset.checked_add(remote.length.get()).ok_or(Denial::Outside)?;
        if end > entry.length {
            return Err(Denial::Outside);
        }
        // Both are within the length of memory that is mapped here, so they fit a `usize`.
        let (offset, length) = (offset as usize, remote.length.get() as usize);
        Ok(Permit {
            memory: &entry.memory,
            offset,
            length,
        })
    }

    /// Revokes a key and returns what was exposed under it. An unknown key is ignored.
    pub fn withdraw(&mut self, key: RemoteKey) -> Option<Exposure> {
        self.entries.remove(&key.0).map(|entry| entry.memory)
    }

    /// Revokes every key granted to `peer` alone, which is gone; returns how many.
    pub fn withdraw_peer(&mut self, peer: PeerIndex) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.to != Some(peer));
        before - self.entries.len()
    }

    /// Returns how many pieces of memory are exposed.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The right to one access, checked. It borrows the table, so nothing is withdrawn while it is used.
#[derive(Clone, Copy, Debug)]
pub struct Permit<'a> {
    memory: &'a Exposure,
    offset: usize,
    length: usize,
}

impl<'a> Permit<'a> {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, to be copied out.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'a> {
        let all = match self.memory {
            Exposure::Region(slice) => slice.as_shared(),
            Exposure::Read(loan) => loan.as_shared(),
            Exposure::Write(loan) => loan.as_shared(),
        };
        all.skip(self.offset).take(self.length)
    }

    /// Copies them into `to`; returns how many there were.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.bytes().copy_to(0, to)
    }

    /// Writes `bytes` over them from their offset `at` on; returns how many fitted. Memory that can only be
    /// read takes none, which a permit for writing never names.
    #[inline]
    pub fn write(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        let room = self.length.saturating_sub(at);
        let (at, bytes) = (self.offset + at.min(self.length), bytes.take(room));
        match self.memory {
            Exposure::Region(slice) => slice.write_shared(at, bytes),
            Exposure::Write(loan) => loan.write_shared(at, bytes),
            Exposure::Read(_) => 0,
        }
    }

    /// Executes an atomic; returns the old value.
    ///
    /// # Errors
    /// [`Denial::Unaligned`] unless the permit is for exactly eight aligned bytes of a region.
    #[inline]
    pub fn atomic(&self, what: AtomicOp) -> Result<u64, Denial> {
        let old = match self.memory {
            Exposure::Region(slice) if self.length == 8 => slice.atomic(self.offset, what),
            _ => None,
        };
        old.ok_or(Denial::Unaligned)
    }

    /// The memory itself, cut to these bytes: for what goes on after the table is given back.
    pub fn exposure(&self) -> Option<Exposure> {
        Some(match self.memory {
            Exposure::Region(slice) => Exposure::Region(slice.slice(self.offset, self.length)?),
            Exposure::Read(loan) => Exposure::Read(loan.part(self.offset, self.length)),
            Exposure::Write(loan) => Exposure::Write(loan.part(self.offset, self.length)),
        })
    }
}

/// Keys are random already, so they are their own hash. Only our own keys are inserted, so no one can choose
/// colliding keys.
#[derive(Default)]
struct ByKey(u64);

impl Hasher for ByKey {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys are `u64`, which arrive below; anything else still hashes.
        bytes
            .iter()
            .for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests;

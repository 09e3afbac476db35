//! The address vectors of a domain: from an address to a peer, and back. No contact is made before the first
//! operation.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher as _, RandomState};

use doorbell_job::lobby::{Address, PeerId};
use doorbell_pml::Rank;
use libfabric_sys::{
    FI_ADDR_NOTAVAIL, FI_EHOSTUNREACH, FI_EINVAL, FI_EMFILE, FI_ENOMEM, FI_LOG_AV, fi_addr_t,
};

use super::table::AddressTable;
use crate::errno::{Errno, Result};
use crate::log;
use crate::member::Member;

/// The number of an address vector in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorIndex(u16);

/// The address vectors of a domain.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    vectors: Vec<Option<Vector>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Vector {
    table: AddressTable<Address>,
    /// The bits of an address that name an entry; those above name a context of the peer.
    mask: u64,
}

impl Vectors {
    /// Adds a vector with room for `room` entries; `context_bits` bits of its addresses name a context.
    ///
    /// # Errors
    /// `FI_EMFILE` for more vectors than a domain has numbers.
    pub(crate) fn add(&mut self, room: usize, context_bits: u32) -> Result<VectorIndex> {
        let vector = Vector {
            table: AddressTable::new(room),
            mask: u64::MAX.checked_shr(context_bits).unwrap_or(0),
        };
        let free = self.vectors.iter().position(Option::is_none);
        let at = free.unwrap_or(self.vectors.len());
        let index = u16::try_from(at).map_err(|_| Errno(FI_EMFILE))?;
        if at == self.vectors.len() {
            self.vectors.push(None);
        }
        self.vectors[at] = Some(vector);
        Ok(VectorIndex(index))
    }

    /// Removes a vector.
    pub(crate) fn remove(&mut self, of: VectorIndex) {
        if let Some(vector) = self.vectors.get_mut(usize::from(of.0)) {
            *vector = None;
        }
    }

    /// Makes room for `more` entries.
    pub(crate) fn reserve(&mut self, of: VectorIndex, more: usize) {
        if let Ok(vector) = self.get_mut(of) {
            vector.table.reserve(more);
        }
    }

    /// Adds an address and returns the number of its entry. An address that is there gets another number of
    /// the same peer.
    ///
    /// # Errors
    /// `FI_EINVAL` for bytes that are no address, `FI_EHOSTUNREACH` for one of another host.
    pub(crate) fn insert(&mut self, member: &Member, of: VectorIndex, bytes: &[u8]) -> Result<fi_addr_t> {
        let address = Address::parse(bytes).map_err(|error| {
            log::info(FI_LOG_AV, || format!("address not inserted: {error}"));
            Errno(FI_EINVAL)
        })?;
        let peer = address.peer();
        if peer.host() != member.address(0).peer().host() {
            log::info(FI_LOG_AV, || {
                format!(
                    "address not inserted: {address} is of another host; name rails: FI_DOORBELL_RAILS=shm,udp:eth0"
                )
            });
            return Err(Errno(FI_EHOSTUNREACH));
        }
        let hash = self.hasher.hash_one(peer);
        let number = self.get_mut(of)?.table.insert(address, address.endpoint(), hash);
        number.ok_or(Errno(FI_ENOMEM))
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is no entry's.
    pub(crate) fn take_out(&mut self, of: VectorIndex, number: fi_addr_t) -> Result<()> {
        let hasher = self.hasher.clone();
        let vector = self.get_mut(of)?;
        let number = number & vector.mask;
        let is_there = vector
            .table
            .remove(number, |address| hasher.hash_one(address.peer()));
        if is_there { Ok(()) } else { Err(Errno(FI_EINVAL)) }
    }

    /// Returns the address of an entry.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is no entry's.
    pub(crate) fn address(&self, of: VectorIndex, number: fi_addr_t) -> Result<Address> {
        let vector = self.get(of)?;
        let address = vector.table.get(number & vector.mask);
        address.copied().ok_or(Errno(FI_EINVAL))
    }

    /// Returns the peer and the endpoint of an entry. At the first operation the peer gets its number.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is no entry's, `FI_EHOSTUNREACH` for a peer without number.
    #[inline]
    pub(crate) fn route(
        &mut self,
        member: &mut Member,
        of: VectorIndex,
        number: fi_addr_t,
    ) -> Result<(Rank, u8)> {
        let vector = self.get(of)?;
        let way = vector.table.way(number & vector.mask).ok_or(Errno(FI_EINVAL))?;
        match way.rank() {
            Some(rank) => Ok((Rank(rank), way.endpoint)),
            None => self.resolve(member, of, number),
        }
    }

    #[cold]
    fn resolve(&mut self, member: &mut Member, of: VectorIndex, number: fi_addr_t) -> Result<(Rank, u8)> {
        let address = self.address(of, number)?;
        let rank = member.resolve(&address).map_err(|error| {
            log::info(FI_LOG_AV, || format!("{address} cannot be reached: {error}"));
            Errno(FI_EHOSTUNREACH)
        })?;
        self.learn(of, &address.peer(), rank);
        Ok((rank, address.endpoint()))
    }

    /// Notes the number of a peer in a vector.
    fn learn(&mut self, of: VectorIndex, peer: &PeerId, rank: Rank) {
        let hash = self.hasher.hash_one(peer);
        if let Ok(vector) = self.get_mut(of) {
            vector
                .table
                .learn(hash, rank.0, |address| address.peer() == *peer);
        }
    }

    /// Returns the number of the entry that a sender has; `FI_ADDR_NOTAVAIL` where it has none.
    #[inline]
    pub(crate) fn find(&mut self, member: &Member, of: VectorIndex, rank: Rank, endpoint: u8) -> fi_addr_t {
        if let Ok(vector) = self.get(of) {
            if let Some(number) = vector.table.find(rank.0, endpoint) {
                return number;
            }
            if vector.table.knows(rank.0) {
                return FI_ADDR_NOTAVAIL;
            }
        }
        self.find_new(member, of, rank, endpoint)
    }

    /// The first message of a peer that has sent first, and of one whose first entry was removed.
    #[cold]
    fn find_new(&mut self, member: &Member, of: VectorIndex, rank: Rank, endpoint: u8) -> fi_addr_t {
        if let Some(peer) = member.peer(rank) {
            self.learn(of, &peer, rank);
        }
        let vector = self.get(of).ok();
        vector
            .and_then(|vector| vector.table.find(rank.0, endpoint))
            .unwrap_or(FI_ADDR_NOTAVAIL)
    }

    fn get(&self, of: VectorIndex) -> Result<&Vector> {
        let vector = self.vectors.get(usize::from(of.0));
        vector.and_then(Option::as_ref).ok_or(Errno(FI_EINVAL))
    }

    fn get_mut(&mut self, of: VectorIndex) -> Result<&mut Vector> {
        let vector = self.vectors.get_mut(usize::from(of.0));
        vector.and_then(Option::as_mut).ok_or(Errno(FI_EINVAL))
    }
}

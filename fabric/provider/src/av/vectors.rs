//! The address vectors of a domain: from an address to a peer, and back. No contact is made before the first
//! operation.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use doorbell_job::lobby::{Address, PeerId};
use doorbell_pml::Rank;
use libfabric_sys::{
    FI_ADDR_NOTAVAIL, FI_EHOSTUNREACH, FI_EINVAL, FI_EMFILE, FI_ENOMEM, FI_LOG_AV, fi_addr_t,
};

use super::table::AddressTable;
use crate::address::{Format, Given, KEYLESS, MemberKey, Name, Unusable};
use crate::errno::{Errno, Result};
use crate::log;
use crate::member::Member;

/// The number of an address vector in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorIndex(u16);

/// The address vectors of a domain.
#[derive(Debug)]
pub(crate) struct Vectors {
    format: Format,
    /// The number of this host.
    here: u64,
    vectors: Vec<Option<Vector>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Vector {
    table: AddressTable<Name>,
    /// The bits of an address that name an entry; those above name a context of the peer.
    mask: u64,
}

impl Vectors {
    /// Makes the vectors of a domain of this member, none yet, whose addresses have a format.
    pub(crate) fn new(format: Format, member: &Member) -> Self {
        Self {
            format,
            here: member.address(0).peer().host(),
            vectors: Vec::new(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the address of an endpoint of a peer, as clients insert it; empty where the format has none.
    #[cold]
    pub(crate) fn written(&self, member: &Member, rank: Rank, endpoint: u8) -> Vec<u8> {
        let address = member.address_of(rank, endpoint);
        let given = address.map(|address| Given::Ours(address.bytes().to_vec()));
        given
            .and_then(|given| given.write(self.format))
            .unwrap_or_default()
    }

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

    /// Removes a vector. Peers that no other one has are not needed any more.
    pub(crate) fn remove(&mut self, member: &mut Member, of: VectorIndex) {
        let Some(removed) = self.vectors.get_mut(usize::from(of.0)).and_then(Option::take) else {
            return;
        };
        let others = self.vectors.iter().flatten();
        let needed: HashSet<u32> = others.flat_map(|vector| vector.table.ranks()).collect();
        let gone: HashSet<u32> = removed
            .table
            .ranks()
            .filter(|rank| !needed.contains(rank))
            .collect();
        gone.into_iter().for_each(|rank| member.disown(Rank(rank)));
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
        let reaches = |address: &Address| member.reaches(address);
        let name = Name::parse(self.format, bytes, member.key(), reaches).map_err(|reason| match reason {
            Unusable::NoName(reason) => {
                log::info(FI_LOG_AV, || format!("address not inserted: {reason}"));
                Errno(FI_EINVAL)
            }
            Unusable::Elsewhere(name) => {
                log::info(FI_LOG_AV, || {
                    format!(
                        "address not inserted: {name} is of another host, and no rail of both processes can call \
                         there: name one that has an address of IP in both, beside verbs rails too: \
                         FI_DOORBELL_RAILS=shm,udp:eth0"
                    )
                });
                Errno(FI_EHOSTUNREACH)
            }
            Unusable::Keyless(name) => {
                let why = || format!("address not inserted: {name} is of another host: {KEYLESS}");
                log::info(FI_LOG_AV, why);
                Errno(FI_EHOSTUNREACH)
            }
        })?;
        let hash = self.hasher.hash_one(name.member(self.here));
        let number = self.get_mut(of)?.table.insert(name, name.endpoint(), hash);
        number.ok_or(Errno(FI_ENOMEM))
    }

    /// Removes an entry. With the last one of a peer, the peer is not needed any more; what is under way with
    /// it goes on.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is no entry's.
    pub(crate) fn take_out(&mut self, member: &mut Member, of: VectorIndex, number: fi_addr_t) -> Result<()> {
        let here = self.here;
        let key = self.name(of, number)?.member(here);
        let hash = self.hasher.hash_one(key);
        let vector = self.get_mut(of)?;
        let number = number & vector.mask;
        let rank = vector.table.way(number).and_then(|way| way.rank());
        vector.table.remove(number, |_| hash);
        let is_key = |name: &Name| name.member(here) == key;
        let is_needed = self
            .vectors
            .iter()
            .flatten()
            .any(|vector| vector.table.has(hash, is_key));
        if let Some(rank) = rank.filter(|_| !is_needed) {
            member.disown(Rank(rank));
        }
        Ok(())
    }

    /// Returns the name of an entry.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is no entry's.
    pub(crate) fn name(&self, of: VectorIndex, number: fi_addr_t) -> Result<Name> {
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
        let name = self.name(of, number)?;
        let address = name.address().ok_or(Errno(FI_EINVAL))?;
        let rank = member.resolve(&address).map_err(|error| {
            log::info(FI_LOG_AV, || format!("{name} cannot be reached: {error}"));
            Errno(FI_EHOSTUNREACH)
        })?;
        self.learn(member, &address.peer(), rank);
        Ok((rank, address.endpoint()))
    }

    /// Notes the number that a peer has now in all vectors, which keep it from then on.
    #[cold]
    pub(crate) fn learn(&mut self, member: &mut Member, peer: &PeerId, rank: Rank) {
        let here = self.here;
        let key = MemberKey::of(peer, here);
        let hash = self.hasher.hash_one(key);
        let mut is_known = false;
        for vector in self.vectors.iter_mut().flatten() {
            let learned = vector.table.learn(hash, rank.0, |name| name.member(here) == key);
            is_known |= learned.any;
            if let Some(before) = learned.before {
                member.disown(Rank(before));
            }
        }
        if is_known {
            member.own(rank);
        }
    }

    /// Returns the number of the entry that a sender has; `FI_ADDR_NOTAVAIL` where it has none.
    #[inline]
    pub(crate) fn find(
        &mut self,
        member: &mut Member,
        of: VectorIndex,
        rank: Rank,
        endpoint: u8,
    ) -> fi_addr_t {
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
    fn find_new(&mut self, member: &mut Member, of: VectorIndex, rank: Rank, endpoint: u8) -> fi_addr_t {
        // A late message of an earlier acquaintance is of another peer.
        let peer = member.peer(rank).filter(|peer| member.known(peer) == Some(rank));
        if let Some(peer) = peer {
            self.learn(member, &peer, rank);
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

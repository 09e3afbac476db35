//! The table of peers, and the connection ids by which frames find theirs.
//!
//! A peer keeps its index for good. Its connection ids change: each connection after the first has an id of
//! its own (`reconnect.rs`), and the first one stays known, for calls alone.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::ops::{Index, IndexMut};

use doorbell_fabric::addr::{Address, RailAddress};
use doorbell_fabric::message::PeerIndex;

use crate::peer::Peer;
use crate::wire::Kind;

/// The peer that a connection id belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    peer: PeerIndex,
    /// Its first connection, which is over: no frames but calls are taken on it.
    calls_only: bool,
}

/// Why a frame's connection id leads to no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPeer {
    /// No peer has this id.
    Unknown,
    /// It is of a first connection that is over, and the frame is no call.
    CallsOnly,
}

/// The connection that was looked up last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recent {
    None,
    Of { connection: u64, peer: PeerIndex },
}

/// All peers that were opened.
#[derive(Debug)]
pub(crate) struct Peers {
    all: Vec<Peer>,
    /// Peers by the connection id of the frames that they send.
    connections: HashMap<u64, Owner, BuildHasherDefault<Identity>>,
    /// The next frame is often of the same connection as the last.
    recent: Recent,
    /// The latest peer opened at an address, by the address's number.
    addresses: HashMap<u64, PeerIndex>,
    /// Indices of peers that were forgotten.
    free: Vec<PeerIndex>,
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            all: Vec::new(),
            connections: HashMap::default(),
            recent: Recent::None,
            addresses: HashMap::new(),
            free: Vec::new(),
        }
    }

    /// Returns how many indices were given out: all are below it.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns how many peers were opened and not forgotten.
    pub(crate) fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// All indices that were given out. Those of forgotten peers are as those of peers that are down.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PeerIndex> + use<> {
        (0..self.all.len() as u32).map(PeerIndex)
    }

    /// The peer of an index from outside, if it was opened.
    #[inline]
    pub(crate) fn get(&self, peer: PeerIndex) -> Option<&Peer> {
        self.all.get(peer.index())
    }

    /// A number for an address, whatever lives there. No other process has the same one.
    pub(crate) fn place(&self, address: &RailAddress) -> u64 {
        let hash = self.addresses.hasher();
        match &address.address {
            // Without the scope of an IPv6 address, as in the keys (`key.rs`).
            Address::Inet(socket) => {
                let ip: IpAddr = socket.ip();
                hash.hash_one((&address.kind, ip, socket.port()))
            }
            Address::Native(bytes) => hash.hash_one((&address.kind, bytes)),
        }
    }

    /// Whether a peer has this number at the driver.
    pub(crate) fn uses(&self, driver: PeerIndex) -> bool {
        self.all.iter().any(|peer| peer.has_driver(driver))
    }

    /// Adds a peer, in front of those that were opened at its address before.
    pub(crate) fn open(&mut self, connection: u64, address: u64, mut peer: Peer) -> PeerIndex {
        let free = self.free.pop();
        let index = free.unwrap_or(PeerIndex(self.all.len() as u32));
        peer.set_older(self.addresses.insert(address, index));
        let owner = Owner {
            peer: index,
            calls_only: false,
        };
        self.connections.insert(connection, owner);
        if free.is_some() {
            let place = &mut self.all[index.index()];
            peer.inherit_queues(place);
            *place = peer;
            return index;
        }
        if self.all.len() == self.all.capacity() {
            // For an eighth more: a vector that grows by itself doubles, and idle peers are many.
            self.all.reserve_exact(1 + self.all.len() / 8);
        }
        self.all.push(peer);
        index
    }

    /// Takes a peer out, with its connections. Its index may be given out again. Returns what was kept of it.
    #[cold]
    pub(crate) fn forget(&mut self, index: PeerIndex) -> Peer {
        self.connections.retain(|_, owner| owner.peer != index);
        self.recent = Recent::None;
        let older = self.all[index.index()].older();
        self.addresses.retain(|_, latest| match older {
            Some(older) if *latest == index => {
                *latest = older;
                true
            }
            _ => *latest != index,
        });
        for peer in &mut self.all {
            if peer.older() == Some(index) {
                peer.set_older(older);
            }
        }
        self.free.push(index);
        let place = &mut self.all[index.index()];
        let vacant = Peer::vacant(place);
        std::mem::replace(place, vacant)
    }

    /// The peer that a connection id belongs to, if any.
    pub(crate) fn of_connection(&self, connection: u64) -> Option<PeerIndex> {
        self.connections.get(&connection).map(|owner| owner.peer)
    }

    /// The peer of a frame, if its connection is the one that was looked up last.
    #[inline(always)]
    pub(crate) fn recent(&self, of: u64) -> Option<PeerIndex> {
        match self.recent {
            Recent::Of { connection, peer } if connection == of => Some(peer),
            _ => None,
        }
    }

    /// The peer whose connection was looked up last.
    pub(crate) fn last_found(&self) -> Option<PeerIndex> {
        match self.recent {
            Recent::Of { peer, .. } => Some(peer),
            Recent::None => None,
        }
    }

    /// Looks up the peer of a frame of this kind, on this connection.
    ///
    /// # Errors
    /// [`NoPeer`].
    pub(crate) fn find(&mut self, connection: u64, kind: Kind) -> Result<PeerIndex, NoPeer> {
        let owner = self.connections.get(&connection);
        let Owner { peer, calls_only } = *owner.ok_or(NoPeer::Unknown)?;
        if !calls_only {
            self.recent = Recent::Of { connection, peer };
        } else if kind != Kind::Call {
            return Err(NoPeer::CallsOnly);
        }
        Ok(peer)
    }

    /// Whether frames of this kind, on this connection, belong to `peer`.
    pub(crate) fn is_of(&self, connection: u64, kind: Kind, peer: PeerIndex) -> bool {
        let owner = self.connections.get(&connection);
        owner.is_some_and(|owner| owner.peer == peer && (!owner.calls_only || kind == Kind::Call))
    }

    /// Lets a peer's frames come on a new connection. The first one stays known for calls; `before`, the last
    /// one after it, is forgotten.
    pub(crate) fn reconnect(&mut self, peer: PeerIndex, first: u64, before: Option<u64>, new: u64) {
        let owner = |calls_only| Owner { peer, calls_only };
        match before {
            Some(before) => _ = self.connections.remove(&before),
            None => _ = self.connections.insert(first, owner(true)),
        }
        self.connections.insert(new, owner(false));
        self.recent = Recent::None;
    }

    /// The first peer that `is` one, beginning at `from` and going round.
    pub(crate) fn find_from(&self, from: PeerIndex, is: impl Fn(&Peer) -> bool) -> Option<PeerIndex> {
        let (before, after) = self.all.split_at(from.index().min(self.all.len()));
        let at = before.len();
        let found = after.iter().position(&is).map(|place| at + place);
        let found = found.or_else(|| before.iter().position(&is));
        found.map(|place| PeerIndex(place as u32))
    }
}

impl Index<PeerIndex> for Peers {
    type Output = Peer;
    #[inline]
    fn index(&self, peer: PeerIndex) -> &Peer {
        &self.all[peer.index()]
    }
}

impl IndexMut<PeerIndex> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerIndex) -> &mut Peer {
        &mut self.all[peer.index()]
    }
}

/// A hash that is its key: connection ids are random, and only our own are inserted, so no one can make them
/// collide.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Link;
    use crate::peer::Connection;
    use crate::seq::Seq;

    fn peer(connection: u64) -> Peer {
        let link = || Link {
            connection,
            first: Seq(0),
        };
        let connection = Connection {
            out: link(),
            from: link(),
            macs: None,
            initial_window: 32,
            first: None,
        };
        Peer::new(PeerIndex(0), connection, 0)
    }

    #[test]
    fn the_first_connection_takes_calls_alone_when_there_is_another() {
        let mut peers = Peers::new();
        let one = peers.open(10, 1, peer(10));
        let two = peers.open(20, 1, peer(20));
        assert_eq!((peers[one].older(), peers[two].older()), (None, Some(one)));
        assert_eq!((peers.recent(10), peers.last_found()), (None, None));
        assert_eq!(peers.find(10, Kind::Frag), Ok(one));
        assert_eq!((peers.recent(10), peers.recent(0)), (Some(one), None));
        peers.reconnect(one, 10, None, 11);
        assert_eq!(peers.recent(10), None, "forgotten");
        assert_eq!(
            (peers.find(10, Kind::Frag), peers.find(10, Kind::Call)),
            (Err(NoPeer::CallsOnly), Ok(one))
        );
        assert!(peers.is_of(10, Kind::Call, one) && !peers.is_of(10, Kind::Frag, one));
        assert_eq!(peers.recent(10), None, "only calls");
        peers.reconnect(one, 10, Some(11), 12);
        assert_eq!(
            (peers.find(11, Kind::Frag), peers.find(12, Kind::Frag)),
            (Err(NoPeer::Unknown), Ok(one))
        );
        assert!(peers.is_of(12, Kind::Frag, one) && !peers.is_of(12, Kind::Frag, two));
        assert_eq!(peers.of_connection(10), Some(one));
    }

    #[test]
    fn a_search_goes_round() {
        let mut peers = Peers::new();
        for n in 0..4 {
            peers.open(n, n, peer(n));
        }
        let at = |peers: &Peers, from, wanted: u64| {
            peers.find_from(PeerIndex(from), |peer| peer.connection() == wanted)
        };
        assert_eq!(at(&peers, 2, 3), Some(PeerIndex(3)));
        assert_eq!(at(&peers, 2, 1), Some(PeerIndex(1)));
        assert_eq!((at(&peers, 9, 0), at(&peers, 0, 7)), (Some(PeerIndex(0)), None));
    }
}

//! Where services were heard from: the addresses of two sockets for what the resolver knows by GID and queue pair.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::address::Gid;
use crate::resolver::EndpointId;

/// Places of one generation; there are two.
const MOST: usize = 32_768;

type Name = (EndpointId, Gid);

/// Where a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its queue pair when it was last heard; 0 where it was not.
    pub(super) qpn: u32,
    pub(super) at: SocketAddr,
    /// Our address that it talked to alone.
    pub(super) by: Option<IpAddr>,
}

/// Where services were heard from. What was not used for the length of a generation goes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    young: HashMap<Name, Place>,
    old: HashMap<Name, Place>,
}

impl Peers {
    /// A service was heard, by this endpoint of ours.
    pub(super) fn heard(&mut self, endpoint: EndpointId, gid: Gid, place: Place) {
        if self.young.len() >= MOST && !self.young.contains_key(&(endpoint, gid)) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert((endpoint, gid), place);
    }

    /// Where it is.
    pub(super) fn place(&self, endpoint: EndpointId, gid: Gid) -> Option<Place> {
        let name = (endpoint, gid);
        self.young.get(&name).or_else(|| self.old.get(&name)).copied()
    }

    /// An endpoint is gone.
    pub(super) fn forget(&mut self, endpoint: EndpointId) {
        for all in [&mut self.young, &mut self.old] {
            all.retain(|(of, _), _| *of != endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_places_are_known_and_memory_has_a_bound() {
        let mut peers = Peers::default();
        let gid = |number: usize| {
            let mut gid = Gid::NONE;
            gid.0[8..].copy_from_slice(&(number as u64).to_be_bytes());
            gid
        };
        let at = Place {
            qpn: 5,
            at: SocketAddr::from(([10, 0, 0, 1], 7)),
            by: None,
        };
        let own = EndpointId(3);
        for number in 0..3 * MOST {
            peers.heard(own, gid(number), at);
        }
        assert!(peers.young.len() + peers.old.len() <= 2 * MOST);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), Some(at));
        assert_eq!(peers.place(own, gid(0)), None);
        peers.forget(own);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), None);
    }
}

//! Where services were heard from: the address of a socket for what the resolver knows by GID and queue pair.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::address::Gid;
use crate::resolver::EndpointId;

/// Places of one generation; there are two.
const MOST: usize = 32_768;

type Place = (EndpointId, Gid);

/// Where services were heard from. What was not used for the length of a generation goes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    young: HashMap<Place, (u32, SocketAddr)>,
    old: HashMap<Place, (u32, SocketAddr)>,
}

impl Peers {
    /// A service was heard, by this endpoint of ours.
    pub(super) fn heard(&mut self, endpoint: EndpointId, gid: Gid, qpn: u32, at: SocketAddr) {
        if self.young.len() >= MOST && !self.young.contains_key(&(endpoint, gid)) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert((endpoint, gid), (qpn, at));
    }

    /// Where it is, and its queue pair when it was last heard.
    pub(super) fn place(&self, endpoint: EndpointId, gid: Gid) -> Option<(u32, SocketAddr)> {
        let place = (endpoint, gid);
        self.young.get(&place).or_else(|| self.old.get(&place)).copied()
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
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let own = EndpointId(3);
        for number in 0..3 * MOST {
            peers.heard(own, gid(number), 5, at);
        }
        assert!(peers.young.len() + peers.old.len() <= 2 * MOST);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), Some((5, at)));
        assert_eq!(peers.place(own, gid(0)), None);
        peers.forget(own);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), None);
    }
}

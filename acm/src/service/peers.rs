//! The socket addresses of other services, which the resolver knows by GID and queue pair.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::address::Gid;
use crate::resolver::EndpointId;

/// Maximum entries of a generation; there are two.
const MOST: usize = 32_768;

type Name = (EndpointId, Gid);

/// The socket address of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerAddr {
    /// The queue pair when it was last seen; 0 if it never was.
    pub(super) qpn: u32,
    pub(super) at: SocketAddr,
    /// Our address that its last unicast message was sent to.
    pub(super) by: Option<IpAddr>,
}

/// Addresses of services, in two generations: entries not seen during the last one are dropped.
#[derive(Debug, Default)]
pub(super) struct Peers {
    young: HashMap<Name, PeerAddr>,
    old: HashMap<Name, PeerAddr>,
}

impl Peers {
    /// Records where a message of a service came from.
    pub(super) fn record(&mut self, endpoint: EndpointId, gid: Gid, place: PeerAddr) {
        if self.young.len() >= MOST && !self.young.contains_key(&(endpoint, gid)) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert((endpoint, gid), place);
    }

    /// Returns the last address of a service, if it is known.
    pub(super) fn place(&self, endpoint: EndpointId, gid: Gid) -> Option<PeerAddr> {
        let name = (endpoint, gid);
        self.young.get(&name).or_else(|| self.old.get(&name)).copied()
    }

    /// Removes all addresses of an endpoint that is gone.
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
        let at = PeerAddr {
            qpn: 5,
            at: SocketAddr::from(([10, 0, 0, 1], 7)),
            by: None,
        };
        let own = EndpointId(3);
        for number in 0..3 * MOST {
            peers.record(own, gid(number), at);
        }
        assert!(peers.young.len() + peers.old.len() <= 2 * MOST);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), Some(at));
        assert_eq!(peers.place(own, gid(0)), None);
        peers.forget(own);
        assert_eq!(peers.place(own, gid(3 * MOST - 1)), None);
    }
}

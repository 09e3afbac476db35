//! The endpoints served: a socket at each of their addresses, and one per family and group.
//!
//! ```text
//!   current addresses          ──┬─ bound already ──► the socket stays
//!                               ├─ new            ──► bound, retried where the system refuses it
//!   sockets                   ──┴─ gone           ──► closed; with the last of a family, its groups
//! ```
//!
//! No socket is bound to the wildcard address: nothing arrives for what is not served.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::super::replay::{CopyFilter, Family};
use super::super::{Carrier, CarrierError, EndpointId};
use super::sockets::{Socket, addresses};
use super::{UdpCarrier, system, watch};
use crate::address::Gid;
use crate::endpoint::Endpoint;

/// Number of ports tried, starting at the configured one.
const PORTS: u16 = 64;
/// Maximum number of endpoints served.
const ENDS_MAX: usize = 256;

/// An endpoint that is served.
#[derive(Debug)]
pub(super) struct ServedEndpoint {
    pub(super) endpoint: Endpoint,
    /// The interface's name, which differs from the device's with InfiniBand.
    pub(super) interface: String,
    /// The sockets; the first of each family sends to groups.
    pub(super) sockets: Vec<Socket>,
    pub(super) copies: CopyFilter,
    /// Whether its failure has been reported.
    pub(super) failed: bool,
}

impl ServedEndpoint {
    /// Returns the unicast sockets.
    pub(super) fn senders(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.iter().filter(|socket| socket.group.is_none())
    }

    /// Returns the socket to send from towards an address: at our address `by` if that is given and still
    /// there, else at one in the same network, else the family's first.
    pub(super) fn sender(&self, by: Option<IpAddr>, to: IpAddr) -> Option<&Socket> {
        let family = || self.senders().filter(|socket| socket.family == Family::of(to));
        let asked = family().find(|socket| Some(socket.own.ip()) == by);
        let near = |socket: &&Socket| {
            let mut networks = self.endpoint.networks.iter();
            networks.any(|network| network.ip == socket.own.ip() && network.has(to))
        };
        let beside = || family().find(near).filter(|_| !to.is_multicast());
        asked.or_else(beside).or_else(|| family().next())
    }

    /// Returns the families in which it sends.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = self.senders().map(|socket| socket.family).collect();
        families.dedup();
        families
    }

    /// Whether a frame from this address was sent by one of its sockets.
    pub(super) fn sends_from(&self, at: SocketAddr) -> bool {
        let is_it = |socket: &Socket| (socket.own.ip(), socket.own.port()) == (at.ip(), at.port());
        self.senders().any(is_it)
    }

    pub(super) fn groups(&self) -> Vec<Gid> {
        let mut groups: Vec<Gid> = self.sockets.iter().filter_map(|socket| socket.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    pub(super) fn is_in(&self, group: Gid, family: Family) -> bool {
        let mut sockets = self.sockets.iter();
        sockets.any(|socket| socket.group == Some(group) && socket.family == family)
    }
}

impl UdpCarrier {
    /// Starts to serve an endpoint, in place of one with the same number.
    ///
    /// # Errors
    /// When the settings do not allow its interface, it has no address of an enabled family, or none of its
    /// addresses can be bound. One bound address suffices; [`UdpCarrier::lacks`] counts the others.
    pub fn serve(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError> {
        self.end(id);
        if self.ends.len() >= ENDS_MAX {
            return Err(CarrierError::Full {
                what: "endpoints",
                most: ENDS_MAX,
            });
        }
        let interfaces = &self.settings.interfaces;
        if !interfaces.serve(endpoint) {
            return Err(CarrierError::NotServed(endpoint.device.clone()));
        }
        let interface =
            doorbell_inet::name_of(endpoint.interface).unwrap_or_else(|_| endpoint.device.clone());
        let end = self.bound(endpoint, interface, Vec::new())?;
        self.ends.insert(id, end);
        Ok(())
    }

    /// Updates an endpoint: sockets at addresses that it still has stay, and missing ones are opened. On
    /// another interface it is served again, and joins its groups again.
    ///
    /// # Errors
    /// The errors of [`UdpCarrier::serve`] and [`Carrier::join`].
    pub fn update(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError> {
        let Some(end) = self.ends.remove(&id) else {
            return self.serve(id, endpoint);
        };
        let groups = end.groups();
        if end.failed || end.endpoint.interface != endpoint.interface {
            drop(end);
            self.serve(id, endpoint)?;
        } else {
            let end = self.bound(endpoint, end.interface, end.sockets)?;
            self.ends.insert(id, end);
        }
        groups.into_iter().try_for_each(|group| self.join(id, group))
    }

    /// Stops serving an endpoint and closes its sockets.
    pub fn end(&mut self, id: EndpointId) {
        // Closing a socket removes it from the epoll set.
        self.ends.remove(&id);
    }

    /// Returns the endpoints served.
    pub fn served(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.ends.iter().map(|(id, end)| (*id, &end.endpoint))
    }

    /// Returns the addresses for unicast frames to this service at an endpoint; the first of each family is
    /// the one that it sends to groups from.
    pub fn addresses(&self, id: EndpointId) -> impl Iterator<Item = SocketAddr> {
        let senders = self.ends.get(&id).into_iter().flat_map(ServedEndpoint::senders);
        senders.map(|socket| socket.own)
    }

    /// Returns how many sockets of an endpoint could not be opened; [`UdpCarrier::update`] retries them.
    #[must_use]
    pub fn lacks(&self, id: EndpointId) -> usize {
        let Some(end) = self.ends.get(&id) else { return 0 };
        let wanted = self
            .settings
            .families()
            .flat_map(|family| addresses(&end.endpoint, family));
        let unbound = wanted.filter(|ip| !end.senders().any(|socket| socket.own.ip() == *ip));
        let (groups, families) = (end.groups(), end.families());
        let memberships = groups
            .iter()
            .flat_map(|group| families.iter().map(move |of| (group, of)));
        let missing = memberships.filter(|(group, family)| !end.is_in(**group, **family));
        unbound.count() + missing.count()
    }

    /// Returns an endpoint with the sockets that it should have, reusing those of `old`.
    fn bound(
        &self,
        endpoint: &Endpoint,
        interface: String,
        mut old: Vec<Socket>,
    ) -> Result<ServedEndpoint, CarrierError> {
        let (mut sockets, mut failed) = (Vec::new(), None);
        for family in self.settings.families() {
            let mut stayed = false;
            for ip in addresses(endpoint, family) {
                let is_there = |socket: &Socket| socket.group.is_none() && socket.own.ip() == ip;
                if let Some(at) = old.iter().position(is_there) {
                    sockets.push(old.swap_remove(at));
                    stayed = true;
                    continue;
                }
                match self.bind(endpoint, &interface, ip) {
                    Ok(socket) => sockets.push(socket),
                    Err(errno) => failed = Some(system("bind a socket", &interface)(errno)),
                }
            }
            // The kernel may have dropped the memberships of a family that had no address for a while.
            let groups = |socket: &mut Socket| stayed && socket.group.is_some() && socket.family == family;
            sockets.extend(old.extract_if(.., groups));
        }
        if sockets.is_empty() {
            return Err(failed.unwrap_or_else(|| CarrierError::NoFamily(endpoint.device.clone())));
        }
        Ok(ServedEndpoint {
            endpoint: endpoint.clone(),
            interface,
            sockets,
            copies: CopyFilter::default(),
            failed: false,
        })
    }

    /// Opens a socket at an address, at the first free port.
    fn bind(&self, endpoint: &Endpoint, interface: &str, ip: IpAddr) -> Result<Socket, Errno> {
        let first = self.settings.sender_port;
        let tries = if first == 0 { 1 } else { PORTS };
        for port in (0..tries).filter_map(|at| first.checked_add(at)) {
            match Socket::sender(endpoint, interface, ip, port) {
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(errno),
                Ok(socket) => return watch(&self.ready, socket.fd.as_fd()).map(|()| socket),
            }
        }
        Err(Errno::ADDRINUSE)
    }
}

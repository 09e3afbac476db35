//! Endpoints that are served: a socket at each of their addresses, and one in each family for each group.
//!
//! ```text
//!   addresses that it has now ──┬─ bound already ──► the socket stays
//!                               ├─ new            ──► bound, by and by where the system refuses it
//!   sockets                   ──┴─ gone           ──► closed; with the last of a family, its groups
//! ```
//!
//! Nothing is bound to all addresses of a host: what is not served is not heard.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::super::seen::Family;
use super::super::{Carrier, CarrierError, EndpointId};
use super::sockets::{Socket, addresses};
use super::{UdpCarrier, hear, system};
use crate::address::Gid;
use crate::endpoint::Endpoint;

/// Ports that are tried, from the one that is to send.
const PORTS: u16 = 64;
/// Endpoints that are served at a time.
const ENDS_MAX: usize = 256;

/// An endpoint that is served.
#[derive(Debug)]
pub(super) struct End {
    pub(super) endpoint: Endpoint,
    /// The interface's name, which is the device's only without InfiniBand.
    pub(super) interface: String,
    /// Of each family, the one that sends to groups is the first.
    pub(super) sockets: Vec<Socket>,
    /// It has been told that it carries nothing any more.
    pub(super) failed: bool,
}

impl End {
    /// Those at its addresses.
    pub(super) fn senders(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.iter().filter(|socket| socket.group.is_none())
    }

    /// The socket that sends to an address: at the own address `by` where that is given and still there, else at one in the
    /// same network, else at the family's first.
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

    /// Families in which it sends.
    pub(super) fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = self.senders().map(|socket| socket.family).collect();
        families.dedup();
        families
    }

    /// Whether a frame from there was sent by one of its sockets.
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
    /// Serves an endpoint from now on; one that has the number already is ended first.
    ///
    /// # Errors
    /// When the settings do not name its interface, it has no address of a family that is carried, or the system refuses all
    /// of them. What could be done at one address counts, and [`UdpCarrier::lacks`] tells of the others.
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

    /// The endpoint has changed, or something was refused before: sockets at addresses that it still has stay, and what is
    /// missing is made. On another interface it is served anew, and joins its groups again.
    ///
    /// # Errors
    /// As [`UdpCarrier::serve`] and [`Carrier::join`].
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

    /// Ends an endpoint: its sockets are closed.
    pub fn end(&mut self, id: EndpointId) {
        // A socket that is closed leaves what waits for it by itself.
        self.ends.remove(&id);
    }

    /// The endpoints that are served.
    pub fn served(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.ends.iter().map(|(id, end)| (*id, &end.endpoint))
    }

    /// Where frames that are for this service alone go to, by an endpoint: those of each family begin with the one that it
    /// sends to groups from.
    pub fn addresses(&self, id: EndpointId) -> impl Iterator<Item = SocketAddr> {
        let senders = self.ends.get(&id).into_iter().flat_map(End::senders);
        senders.map(|socket| socket.own)
    }

    /// How many sockets the system has refused an endpoint that is served; [`UdpCarrier::update`] tries them again.
    #[must_use]
    pub fn lacks(&self, id: EndpointId) -> usize {
        let Some(end) = self.ends.get(&id) else { return 0 };
        let wanted = self
            .families()
            .flat_map(|family| addresses(&end.endpoint, family));
        let unbound = wanted.filter(|ip| !end.senders().any(|socket| socket.own.ip() == *ip));
        let (groups, families) = (end.groups(), end.families());
        let memberships = groups
            .iter()
            .flat_map(|group| families.iter().map(move |of| (group, of)));
        let unheard = memberships.filter(|(group, family)| !end.is_in(**group, **family));
        unbound.count() + unheard.count()
    }

    fn families(&self) -> impl Iterator<Item = Family> + use<> {
        let each = [(self.settings.ipv4, Family::V4), (self.settings.ipv6, Family::V6)];
        each.into_iter()
            .filter(|(used, _)| *used)
            .map(|(_, family)| family)
    }

    /// An endpoint with the sockets that it should have, those of `old` among them that it still should.
    fn bound(
        &self,
        endpoint: &Endpoint,
        interface: String,
        mut old: Vec<Socket>,
    ) -> Result<End, CarrierError> {
        let (mut sockets, mut failed) = (Vec::new(), None);
        for family in self.families() {
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
            // The kernel may have left the groups of a family that was without an address for a while.
            let groups = |socket: &mut Socket| stayed && socket.group.is_some() && socket.family == family;
            sockets.extend(old.extract_if(.., groups));
        }
        if sockets.is_empty() {
            return Err(failed.unwrap_or_else(|| CarrierError::NoFamily(endpoint.device.clone())));
        }
        Ok(End {
            endpoint: endpoint.clone(),
            interface,
            sockets,
            failed: false,
        })
    }

    /// A socket at an address, at the first port that is free.
    fn bind(&self, endpoint: &Endpoint, interface: &str, ip: IpAddr) -> Result<Socket, Errno> {
        let first = self.settings.sender_port;
        let tries = if first == 0 { 1 } else { PORTS };
        for port in (0..tries).filter_map(|at| first.checked_add(at)) {
            match Socket::sender(endpoint, interface, ip, port) {
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(errno),
                Ok(socket) => return hear(&self.ready, socket.fd.as_fd()).map(|()| socket),
            }
        }
        Err(Errno::ADDRINUSE)
    }
}

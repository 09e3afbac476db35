//! The neighbours of a port of Ethernet, for calls of the kernel that resolve one and wait for it.
//!
//! The kernel looks up a peer's hardware address while an address handle is made and while a queue pair is
//! connected, and waits more than a second for one that does not answer. So its neighbour table is
//! queried first, and has the answer before either call is made: the query waits for nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use doorbell_fabric::gid::Link;
use doorbell_inet::{Interface, InterfaceQuery, KernelNeighbours, NeighbourUpdate, NextHop};

use crate::ports::Port;

/// The port that discards what it gets.
const DISCARD: u16 = 9;

/// The kernel's neighbours on a port's interface.
pub(crate) struct Neighbours {
    kernel: Option<KernelNeighbours>,
    /// Makes the kernel resolve an address without the right to request that: of IPv4, and of IPv6.
    sockets: [Option<UdpSocket>; 2],
    interface: u32,
    /// How often a neighbour was looked up.
    #[cfg(test)]
    pub(crate) lookups: usize,
}

impl Neighbours {
    /// Watches those of the port's interface, if it has one.
    pub(crate) fn watch(port: &Port) -> Self {
        let interface = port.interface.as_deref().and_then(doorbell_inet::index_of);
        Self {
            kernel: interface.and_then(|index| KernelNeighbours::watch(index).ok()),
            sockets: ["0.0.0.0:0", "[::]:0"].map(|any| {
                let socket = UdpSocket::bind(any).ok();
                socket.filter(|socket| socket.set_nonblocking(true).is_ok())
            }),
            interface: interface.unwrap_or(0),
            #[cfg(test)]
            lookups: 0,
        }
    }

    /// Readable when the kernel knows another neighbour.
    pub(crate) fn news(&self) -> Option<&OwnedFd> {
        self.kernel.as_ref().map(KernelNeighbours::socket)
    }

    /// The addresses that have become known.
    pub(crate) fn read(&mut self) -> Vec<IpAddr> {
        let mut known = Vec::new();
        if let Some(kernel) = &mut self.kernel {
            kernel.changes(|change| {
                if let NeighbourUpdate::Neighbour(ip, Some(_)) = change {
                    known.push(ip);
                }
            });
        }
        known
    }

    /// Whether a call of the kernel that needs the way to `ip` would return at once; where it would wait, the
    /// kernel begins to resolve the address. `None` is the address of a peer that is reached without one.
    pub(crate) fn is_ready(&mut self, port: &Port, ip: Option<IpAddr>) -> bool {
        let Some(ip) = ip.filter(|_| port.link == Link::Ethernet) else {
            return true;
        };
        #[cfg(test)]
        {
            self.lookups += 1;
        }
        if doorbell_inet::is_own(ip) {
            return true;
        }
        let Some(hop) = next_hop(port, ip) else {
            return false;
        };
        let Some(kernel) = &self.kernel else {
            return false;
        };
        kernel.query(hop);
        if self.read().contains(&hop) {
            return true;
        }
        if let Some(kernel) = &self.kernel {
            kernel.resolve(hop);
        }
        // Without the right to do that, a datagram makes the kernel resolve it.
        if let Some(socket) = &self.sockets[usize::from(ip.is_ipv6())] {
            let to = doorbell_inet::scoped(SocketAddr::new(ip, DISCARD), self.interface);
            let _ = socket.send_to(&[0], to);
        }
        false
    }
}

/// The neighbour that packets to this address go to.
fn next_hop(port: &Port, ip: IpAddr) -> Option<IpAddr> {
    let name = format!("udp:{}", port.interface.as_deref()?).parse().ok()?;
    let family = match ip {
        IpAddr::V4(_) => doorbell_inet::Family::V4,
        IpAddr::V6(_) => doorbell_inet::Family::V6,
    };
    let query = InterfaceQuery {
        family,
        ..InterfaceQuery::default()
    };
    let interface = Interface::find(&name, &query).ok()?;
    match interface.next_hop(SocketAddr::new(ip, DISCARD)) {
        Ok(NextHop::Gateway(gateway)) => Some(gateway),
        Ok(NextHop::OnLink | NextHop::Local) => Some(ip),
        Err(_) => None,
    }
}

//! The next hop to each peer: its address, by the routing table, and its hardware address, by the kernel's
//! neighbour table. Both change, and both are followed.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use doorbell_fabric::ether::Mac;
use doorbell_fabric::time::Time;
use doorbell_inet::{Interface, KernelNeighbours, NeighbourUpdate, NextHop, network, put_peer};
use rustix::io::Errno;

use crate::tx::XdpTx;

/// The period at which the kernel is queried again for a neighbour that it does not know, and at which it
/// confirms those that it knows: it does not send to them itself, so it would forget them.
const ASK_EVERY: Duration = Duration::from_millis(200);
const CONFIRM_EVERY: Duration = Duration::from_secs(5);

/// The most peers that are looked up at a time.
const AT_A_TIME: usize = 16;

/// The way to one peer.
struct Hop {
    to: SocketAddr,
    address: IpAddr,
    mac: Option<Mac>,
    /// The kernel does not find it (any more).
    failed: bool,
    asked: Time,
    /// The routing table may say something else by now.
    doubted: bool,
    /// The peer was forgotten, and its number not given out again.
    gone: bool,
}

/// The ways to all peers, by their numbers.
pub(crate) struct NextHops {
    list: Vec<Hop>,
    neighbours: KernelNeighbours,
    own: Mac,
}

impl NextHops {
    /// Watches the interface with this index and hardware address, without peers yet.
    pub(crate) fn watch(interface: u32, own: Mac) -> Result<Self, Errno> {
        Ok(Self {
            list: Vec::new(),
            neighbours: KernelNeighbours::watch(interface)?,
            own,
        })
    }

    /// Readable when there is something to read.
    pub(crate) fn socket(&self) -> &OwnedFd {
        self.neighbours.socket()
    }

    /// The number of peers.
    pub(crate) fn len(&self) -> usize {
        self.list.iter().filter(|hop| !hop.gone).count()
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Whether the hardware address of the next hop to a peer is known.
    pub(crate) fn is_resolved(&self, peer: usize) -> bool {
        self.list.get(peer).is_some_and(|hop| hop.mac.is_some())
    }

    /// Adds a peer, with the address of its first next hop.
    pub(crate) fn add(&mut self, peer: u32, (to, address): (SocketAddr, IpAddr), now: Time, tx: &mut XdpTx) {
        let hop = Hop {
            to,
            address,
            mac: None,
            failed: false,
            asked: now,
            doubted: false,
            gone: false,
        };
        put_peer(&mut self.list, peer, hop);
        self.resolve(peer as usize, now, tx);
    }

    /// Removes a peer: the kernel is not queried for it any more.
    pub(crate) fn remove(&mut self, peer: u32) {
        if let Some(hop) = self.list.get_mut(peer as usize) {
            (hop.gone, hop.mac) = (true, None);
        }
    }

    /// Looks up a peer's next hop in the kernel's table; has the kernel resolve it where it is not there.
    fn resolve(&mut self, peer: usize, now: Time, tx: &mut XdpTx) {
        let address = self.list[peer].address;
        self.list[peer].asked = now;
        self.neighbours.query(address);
        self.read(tx);
        if self.list[peer].mac.is_none() {
            self.neighbours.resolve(address);
        }
    }

    fn set(&mut self, peer: usize, mac: Option<Mac>, tx: &mut XdpTx) {
        // The last address is used until another one is known: the kernel forgets neighbours that it does not
        // send to itself.
        self.list[peer].failed = mac.is_none();
        if let Some(mac) = mac {
            self.list[peer].mac = Some(mac);
            tx.ways[peer].set_macs(self.own, mac);
        }
    }

    /// Reads the kernel's notifications of neighbours and routes.
    pub(crate) fn read(&mut self, tx: &mut XdpTx) {
        let mut found = Vec::new();
        let lost = self.neighbours.changes(|change| found.push(change));
        for change in found {
            match change {
                NeighbourUpdate::Neighbour(address, mac) => {
                    for peer in 0..self.list.len() {
                        if self.list[peer].address == address && !self.list[peer].gone {
                            self.set(peer, mac, tx);
                        }
                    }
                }
                NeighbourUpdate::Routes => self.doubt(),
            }
        }
        if lost {
            self.doubt();
        }
    }

    /// Every way may be another one by now.
    pub(crate) fn doubt(&mut self) {
        self.list.iter_mut().for_each(|hop| hop.doubted = true);
    }

    /// Reads what is new, looks up again what is doubted or not known, and has the rest confirmed now and
    /// then. A few at a time: the others' turn comes with the next polls.
    pub(crate) fn look(&mut self, now: Time, interface: &Interface, tx: &mut XdpTx) {
        self.read(tx);
        let mut left = AT_A_TIME;
        for peer in 0..self.list.len() {
            let hop = &self.list[peer];
            let is_known = hop.mac.is_some() && !hop.failed;
            let period = if is_known { CONFIRM_EVERY } else { ASK_EVERY };
            let confirms = hop.mac.is_some() && now >= hop.asked + CONFIRM_EVERY;
            if hop.gone || left == 0 || !hop.doubted && now < hop.asked + period {
                continue;
            }
            left -= 1;
            if confirms {
                // A use of the entry: a stale one is confirmed, and one that was forgotten is resolved again.
                self.neighbours.resolve(hop.address);
            }
            self.look_up(peer, interface);
            self.resolve(peer, now, tx);
        }
    }

    /// Looks up the route again. Where there is none, the last one is kept: a notification of a better one
    /// comes soon.
    fn look_up(&mut self, peer: usize, interface: &Interface) {
        let hop = &mut self.list[peer];
        hop.doubted = false;
        // A thread that is in another network namespace by now would read the routes of that one.
        if network() != interface.network {
            return;
        }
        let address = match interface.next_hop(hop.to) {
            Ok(NextHop::OnLink) => hop.to.ip(),
            Ok(NextHop::Gateway(gateway)) => gateway,
            Ok(NextHop::Local) | Err(_) => return,
        };
        if address != hop.address {
            (hop.address, hop.mac) = (address, None);
        }
    }

    /// The interface may have been given another hardware address.
    pub(crate) fn set_own(&mut self, own: Mac, tx: &mut XdpTx) {
        if std::mem::replace(&mut self.own, own) != own {
            for peer in 0..self.list.len() {
                self.set(peer, self.list[peer].mac, tx);
            }
        }
    }
}

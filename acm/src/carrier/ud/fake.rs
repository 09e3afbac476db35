//! Queue pairs that reach each other in this process, for tests.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use doorbell_fabric::time::Time;
use doorbell_verbs::gid;
use doorbell_verbs::mads::{GROUP_PAIR, MadCounts, MadDestination, MadEvent, Received};
use rustix::event::{EventfdFlags, eventfd};

use super::{Mad, QueuePair, UdCarrier};
use crate::address::Gid;
use crate::carrier::Settings;
use crate::config::{Interfaces, Options};
use crate::endpoint::{Endpoint, Link};
use crate::resolver::tests::endpoint;

/// A queue pair of the network.
#[derive(Default)]
pub(crate) struct Node {
    device: String,
    pub(crate) gids: Vec<Gid>,
    lid: u16,
    /// Its groups, with their LIDs.
    pub(crate) groups: BTreeMap<Gid, u16>,
    inbox: VecDeque<Received>,
    events: VecDeque<MadEvent>,
    /// Where it has sent to.
    pub(crate) sent: Vec<MadDestination>,
    /// When it sent last.
    pub(crate) sent_at: Time,
    counts: MadCounts,
    is_closed: bool,
}

/// The queue pairs that there are, by their numbers.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) nodes: BTreeMap<u32, Node>,
    next: u32,
    /// Why the next queue pair is refused.
    pub(crate) refuses: Option<String>,
}

/// A queue pair of one owner.
pub(crate) struct FakePair {
    network: Rc<RefCell<Network>>,
    number: u32,
    fd: OwnedFd,
}

impl Network {
    pub(crate) fn new() -> Rc<RefCell<Self>> {
        Rc::default()
    }

    /// The queue pair of a device that is open.
    pub(crate) fn node(&mut self, device: &str) -> (u32, &mut Node) {
        let mut nodes = self.nodes.iter_mut();
        let found = nodes.find(|(_, node)| node.device == device && !node.is_closed);
        let (number, node) = found.expect("an open queue pair of this device");
        (*number, node)
    }

    pub(crate) fn raise(&mut self, device: &str, event: MadEvent) {
        self.node(device).1.events.push_back(event);
    }

    /// Puts something into the queue of a device.
    pub(crate) fn put(&mut self, device: &str, received: Received) {
        self.node(device).1.inbox.push_back(received);
    }

    fn send(&mut self, from: u32, to: &MadDestination, mad: &Mad) -> Result<(), String> {
        let sender = self.nodes.get_mut(&from).expect("it is open");
        sender.sent.push(*to);
        if !sender.gids.contains(&Gid(to.from.0)) {
            return Err("it does not have this GID".to_owned());
        }
        sender.counts.sent += 1;
        let received = Received {
            gid: Some(to.from),
            to: Some(to.gid),
            lid: sender.lid,
            pair: from,
            service_level: to.service_level,
            path_bits: 0,
            mad: Box::new(*mad),
        };
        let is_multicast = to.pair == GROUP_PAIR;
        let takes = |number: u32, node: &Node| {
            let is_it = if is_multicast {
                node.groups.get(&Gid(to.gid.0)) == Some(&to.lid)
            } else {
                number == to.pair && node.lid == to.lid && node.gids.contains(&Gid(to.gid.0))
            };
            is_it && !node.is_closed
        };
        let takers = self
            .nodes
            .iter_mut()
            .filter(|(number, node)| takes(**number, node));
        takers.for_each(|(_, node)| node.inbox.push_back(received.clone()));
        Ok(())
    }
}

/// A carrier over the queue pairs of a network.
pub(crate) fn carrier(network: &Rc<RefCell<Network>>) -> UdCarrier<FakePair> {
    let options = Options {
        doorbell_interfaces: Interfaces::All,
        ..Options::default()
    };
    let network = Rc::clone(network);
    let open = move |endpoint: &Endpoint, _: usize| {
        let mut inner = network.borrow_mut();
        if let Some(why) = inner.refuses.clone() {
            return Err(why);
        }
        inner.next += 1;
        let number = 0x100 + inner.next;
        let is_infiniband = endpoint.link == Link::InfiniBand;
        let ips = endpoint.addresses.iter().filter_map(|address| address.ip());
        let node = Node {
            device: endpoint.device.clone(),
            gids: if is_infiniband {
                vec![endpoint.gid]
            } else {
                ips.map(Gid::of_ip).collect()
            },
            lid: endpoint.lid,
            ..Node::default()
        };
        inner.nodes.insert(number, node);
        Ok(FakePair {
            network: Rc::clone(&network),
            number,
            fd: eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| error.to_string())?,
        })
    };
    UdCarrier::with(Settings::of(&options, None), 16, Box::new(open)).expect("descriptors are left")
}

impl FakePair {
    fn with<T>(&self, act: impl FnOnce(&mut Node) -> T) -> T {
        let mut network = self.network.borrow_mut();
        act(network.nodes.get_mut(&self.number).expect("it is open"))
    }
}

impl QueuePair for FakePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn port(&self) -> (String, u8) {
        (self.with(|node| node.device.clone()), 1)
    }

    fn gids(&self) -> Vec<Gid> {
        self.with(|node| node.gids.clone())
    }

    fn attach(&mut self, group: Gid, lid: u16) -> Result<(), String> {
        self.with(|node| node.groups.insert(group, lid));
        Ok(())
    }

    fn detach(&mut self, group: Gid) {
        self.with(|node| node.groups.remove(&group));
    }

    fn send(&mut self, now: Time, to: &MadDestination, mad: &Mad) -> Result<(), String> {
        self.with(|node| node.sent_at = now);
        self.network.borrow_mut().send(self.number, to, mad)
    }

    fn turn(&mut self, _: Time) -> usize {
        0
    }

    fn next_received(&mut self) -> Option<Received> {
        self.with(|node| node.inbox.pop_front())
    }

    fn next_event(&mut self) -> Option<MadEvent> {
        self.with(|node| node.events.pop_front())
    }

    fn next_deadline(&self) -> Time {
        Time::NEVER
    }

    fn counts(&self) -> MadCounts {
        self.with(|node| node.counts)
    }
}

impl AsFd for FakePair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        self.with(|node| node.is_closed = true);
    }
}

/// An endpoint of Ethernet on the loopback interface, whose groups this process may join.
pub(crate) fn roce(device: &str, n: u8) -> Endpoint {
    let ip = IpAddr::from([10, 0, 0, n]);
    Endpoint {
        device: device.to_owned(),
        interface: 1,
        addresses: vec![ip.into()],
        ..endpoint("n", n)
    }
}

/// An endpoint of InfiniBand, with an address and without an interface.
pub(crate) fn infiniband(device: &str, n: u8) -> Endpoint {
    Endpoint {
        link: Link::InfiniBand,
        gid: format!("fe80::{n}").parse().expect("it is a GID"),
        lid: n.into(),
        interface: 0,
        networks: Vec::new(),
        ..roce(device, n)
    }
}

/// A GID of the verbs crate.
pub(crate) fn of(gid: Gid) -> gid::Gid {
    gid::Gid(gid.0)
}

//! The carrier: sends frames between services, which are MADs of 256 bytes to a multicast group or to one
//! peer.
//!
//! ```text
//!   resolver ── multicast(group, MAD) ──►  Carrier  ──►  all services in the group
//!            ◄─ Event::Mad { from }    ──            ◄──  the owner of the address, by unicast
//!            ── probe(peer)            ──►  frames of every size, echoed
//! ```
//!
//! [`Carrier`] does what an unreliable-datagram queue pair can do: a peer is a GID, a LID and a queue pair
//! number. [`UdCarrier`] does it over queue pairs of InfiniBand and RoCE, whose datagrams are those of the
//! original. [`UdpCarrier`] does it over UDP sockets, for hosts without RDMA devices. Its queue pair number
//! is random in each run of a service, so that others notice a restart.
//!
//! # Senders that are accepted
//!
//! Nothing listens beyond the loopback unless the setting `interfaces` names an interface or is `all`. Frames
//! have hop limit 1 and must come from an address of the link. Without a key, everyone on the link is
//! trusted, as with InfiniBand; with one, frames without a matching tag are dropped before the rest is
//! parsed. A recorded frame can be replayed by a host on the link; its content was true when it was made.
//!
//! | module | job |
//! |---|---|
//! | `frame` | the envelope: its layout and its parser |
//! | `key` | authentication tags |
//! | `groups` | the addresses of multicast groups |
//! | `filter` | which frames are accepted; the others are counted by reason |
//! | `replay`, `rate_limit` | copies of a frame; a limit per sender; both in bounded memory |
//! | `sizes` | packets of every possible MTU, tried at the same time |
//! | `prober` | probes in flight |
//! | `ping` | probes of hosts beyond a router |
//! | `udp` | the carrier over UDP sockets |
//! | `ud` | the carrier over queue pairs |
//!
//! reference: acm, section 10.

mod filter;
mod frame;
mod groups;
mod key;
mod ping;
mod prober;
mod rate_limit;
mod replay;
mod sizes;
mod ud;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::Gid;
use crate::endpoint::Endpoint;
use crate::path::Mtu;
use crate::resolver::Membership;

pub use filter::{Dropped, Reason};
pub use frame::{BadFrame, FRAME, FRAME_TAGGED, Frame, GRH, Header, Kind, MAD, PROBE, PROBE_MAX, TAG};
pub use groups::ipv4_group;
pub use key::Key;
#[cfg(test)]
pub(crate) use ud::fake;
pub use ud::{QueuePair, UdCarrier};
pub use udp::{Counters, Limits, Settings, UdpCarrier};

/// Header bytes of a RoCE v2 packet behind IPv6 and UDP; a full probe has as many.
const BESIDE: usize = crate::host::HEADERS as usize - 48;

/// A management datagram.
pub type Mad = [u8; MAD];

/// An endpoint, by the number that the carrier's user gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// A probe that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// Another service, at one of its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The GID of its port.
    pub gid: Gid,
    /// The LID of its port; 0 without InfiniBand.
    pub lid: u16,
    /// The number of its queue pair (24 bits), which differs after a restart.
    pub qpn: u32,
    /// The socket address of its unicast frames, over UDP; `None` over queue pairs.
    pub at: Option<SocketAddr>,
    /// Our source address for frames to it, over UDP: the one it sent to by unicast; `None` for any.
    pub by: Option<IpAddr>,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The shortest round trip of a frame, if any came back.
    pub round_trip: Option<Duration>,
    /// Bytes of the largest datagram that passed both ways; 0 if none did.
    pub largest: usize,
    /// Why full-size frames did not pass.
    pub trouble: Option<Trouble>,
}

/// Why a probe did not pass in full size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No probe came back.
    #[error("no probe came back; check that the service runs there and that no firewall blocks its port")]
    Silent,
    /// Only smaller frames came back.
    #[error(
        "small probes come back but full-size ones do not; a hop on the path has a smaller MTU than its ends"
    )]
    FullLost,
    /// The interface does not send frames of full size.
    #[error("the interface does not send full-size probes; its MTU has been reduced")]
    FullRefused,
    /// The system has no route to the destination.
    #[error("no route to the destination; check the interface and its addresses")]
    NoWay,
}

/// What the carrier reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A MAD has arrived.
    Mad {
        /// The endpoint that received it.
        endpoint: EndpointId,
        /// The sender; an answer goes to it as it is.
        from: Peer,
        /// The group it was sent to; `None` for unicast.
        group: Option<Gid>,
        /// The MAD itself.
        mad: Box<Mad>,
    },
    /// A probe has ended.
    Probed {
        /// The probe that ended.
        probe: ProbeId,
        /// The result of the probe.
        result: Probed,
    },
    /// An endpoint has stopped working. Reported once; end it, or serve it again when its interface is back.
    Failed {
        /// The endpoint that stopped.
        endpoint: EndpointId,
        /// The error that stopped it.
        error: CarrierError,
    },
    /// The endpoint's subnet or its port has changed: it has to join its groups again.
    Renew {
        /// The endpoint whose memberships are to be renewed.
        endpoint: EndpointId,
    },
}

/// Why something could not be sent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CarrierError {
    /// No endpoint with this number is served.
    #[error("endpoint {} is not served; serve it before you use it", .0.0)]
    Unknown(EndpointId),
    /// The settings do not allow the interface.
    #[error("the interface {0} is not enabled; add it to doorbell_interfaces")]
    NotServed(String),
    /// The interface has no address of an enabled family.
    #[error("the interface {0} has no address of an enabled family; see doorbell_ipv4 and doorbell_ipv6")]
    NoFamily(String),
    /// A system call failed.
    #[error("cannot {step} on the interface {interface} ({kind}); check that it is up and has its addresses")]
    System {
        /// The operation that failed.
        step: &'static str,
        /// The interface's name.
        interface: String,
        /// The kind of the system's error.
        kind: io::ErrorKind,
    },
    /// The group is not a multicast GID.
    #[error("{0} is not a multicast GID, which begins with ff")]
    NoGroup(Gid),
    /// The address of the peer is not known.
    #[error("no address known for {0}: no frame has come from it on this interface")]
    NoPeer(Gid),
    /// A limit has been reached.
    #[error("too many {what}: at most {most} at a time; wait for some to end")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// The maximum number.
        most: usize,
    },
    /// The system does not allow pings.
    #[error(
        "pings are not allowed, so hosts beyond a router cannot be probed; allow ping sockets to the service's group \
         (sysctl net.ipv4.ping_group_range), or give the service CAP_NET_RAW"
    )]
    NoPing,
    /// The library or the device of a queue pair refuses something, in its own words.
    #[error("{0}")]
    QueuePair(String),
    /// The endpoint is not in the group.
    #[error("not in the group {0} (yet), so that nothing can be sent to it")]
    NotJoined(Gid),
    /// Messages over queue pairs cannot be authenticated.
    #[error(
        "messages over queue pairs are those of the original, which have no room for a tag: start the service without \
         a key (--key-file, doorbell_key_file), or set `doorbell_carrier udp`"
    )]
    NoTags,
    /// A path of InfiniBand cannot be probed.
    #[error(
        "paths of InfiniBand are not probed over queue pairs, where the original answers no probes: set \
         `doorbell_verify no`, or `doorbell_carrier udp`"
    )]
    NoProbe,
    /// The kernel returns no random numbers.
    #[error("cannot read random numbers from the kernel ({0})")]
    Random(String),
}

/// Builds the error of a failed operation on an interface.
fn system(step: &'static str, interface: &str) -> impl Fn(Errno) -> CarrierError {
    move |errno| CarrierError::System {
        step,
        interface: interface.to_owned(),
        kind: errno.kind(),
    }
}

fn random(to: &mut [u8]) -> Result<(), CarrierError> {
    getrandom::fill(to).map_err(|error| CarrierError::Random(error.to_string()))
}

fn must_be_group(gid: Gid) -> Result<(), CarrierError> {
    groups::is_group(gid)
        .then_some(())
        .ok_or(CarrierError::NoGroup(gid))
}

/// Returns what a turn goes through, in order from `first` on, and then from the beginning: what one endpoint
/// has much of is not always before the others.
fn from_on<T: Ord>(first: T, mut all: Vec<T>) -> Vec<T> {
    let at = all.partition_point(|each| *each < first);
    all.rotate_left(at);
    all
}

/// Adds a socket to the epoll set; closing it removes it.
fn watch(ready: &OwnedFd, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(ready, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

/// A group as the administrator of an InfiniBand subnet has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetGroup {
    /// The LID of the group.
    pub lid: u16,
    /// The properties of the group.
    pub like: Membership,
}

/// Sends and receives MADs, without blocking. Its descriptor is readable when a frame has arrived.
pub trait Carrier: AsFd {
    /// Returns the kind of the carrier: `udp` or `ud`.
    fn kind(&self) -> &'static str;

    /// Serves an endpoint, or updates one that is served already: what it still needs stays open, and what it
    /// lacks is opened.
    ///
    /// # Errors
    /// When the settings do not allow its interface, or the system refuses to serve it.
    fn update(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError>;

    /// Stops serving an endpoint.
    fn end(&mut self, id: EndpointId);

    /// Returns the endpoints served.
    fn served(&self) -> Vec<EndpointId>;

    /// Returns how much of an endpoint could not be opened; [`Carrier::update`] retries it.
    fn lacks(&self, id: EndpointId) -> usize;

    /// Whether an endpoint joins its groups through the administrator of its subnet before the carrier.
    fn joins_by_subnet(&self, endpoint: &Endpoint) -> bool;

    /// Whether messages to a peer need its socket address.
    fn needs_addresses(&self) -> bool;

    /// Returns the port and the queue pair that an endpoint is served by, if it has one.
    fn queue_pair(&self, id: EndpointId) -> Option<String>;

    /// Returns the counters.
    fn counters(&self) -> Counters;

    /// Joins a group. One that is joined already may have changed in its subnet.
    ///
    /// # Errors
    /// When the endpoint is unknown, the GID is not a multicast GID, or a system call fails.
    fn join_in(
        &mut self,
        endpoint: EndpointId,
        group: Gid,
        subnet: Option<SubnetGroup>,
    ) -> Result<(), CarrierError>;

    /// Joins a group outside of InfiniBand.
    ///
    /// # Errors
    /// As [`Carrier::join_in`].
    fn join(&mut self, endpoint: EndpointId, group: Gid) -> Result<(), CarrierError> {
        self.join_in(endpoint, group, None)
    }

    /// Whether an endpoint receives a group.
    fn is_in(&self, endpoint: EndpointId, group: Gid) -> bool;

    /// Leaves a group, where the carrier can leave a single one.
    fn leave(&mut self, endpoint: EndpointId, group: Gid);

    /// Sends to all services of a group, from a GID of the endpoint: `group_from`. Services of this host
    /// receive it too.
    ///
    /// # Errors
    /// When it could not be sent over any family. What was sent may still be lost.
    fn multicast(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        group_from: (Gid, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError>;

    /// Sends to one service, from a GID of the endpoint: `to_from`.
    ///
    /// # Errors
    /// When it could not be sent. What was sent may still be lost.
    fn send(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to_from: (&Peer, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError>;

    /// Probes a host beyond a router with packets of 256 bytes of payload and each larger MTU up to `mtu`,
    /// without fragmentation, from an address of the endpoint. [`Event::Probed`] reports the result within a
    /// second.
    ///
    /// # Errors
    /// When the endpoint is not served or has no address of that family, the system allows no socket for
    /// pings, or too many are in flight.
    fn reach(&mut self, now: Time, endpoint: EndpointId, to: Gid, mtu: Mtu) -> Result<ProbeId, CarrierError>;

    /// Probes a peer with frames of the sizes of packets with a payload of 256 bytes and each larger MTU up
    /// to `mtu`. [`Event::Probed`] reports the result within a second.
    ///
    /// # Errors
    /// When the probe cannot be started.
    fn probe(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: &Peer,
        from: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError>;

    /// Does a bounded amount of work and returns how much it did; what one endpoint has much of leaves room
    /// for the others. Before sleeping, call it until it returns 0, and take the events.
    fn turn(&mut self, now: Time) -> usize;

    /// Returns the next event, in order.
    fn event(&mut self) -> Option<Event>;

    /// Returns when something is due although nothing has arrived.
    fn next_deadline(&self) -> Time;
}

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
//! number. [`UdpCarrier`] does it over UDP sockets, for hosts without InfiniBand. Its queue pair number is
//! random in each run of a service, so that others notice a restart.
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
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::address::Gid;
use crate::path::Mtu;

pub use filter::{Dropped, Reason};
pub use frame::{BadFrame, FRAME, FRAME_TAGGED, Frame, GRH, Header, Kind, MAD, PROBE, PROBE_MAX, TAG};
pub use groups::ipv4_group;
pub use key::Key;
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
    /// The socket address of its unicast frames, over UDP; `None` where GID and LID suffice.
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
    /// The kernel returns no random numbers.
    #[error("cannot read random numbers from the kernel ({0})")]
    Random(String),
}

/// Sends and receives MADs, without blocking.
pub trait Carrier {
    /// Returns the queue pair number of this run: 24 bits.
    fn qpn(&self) -> u32;

    /// Joins a group.
    ///
    /// # Errors
    /// When the endpoint is unknown, the GID is not a multicast GID, or a system call fails.
    fn join(&mut self, endpoint: EndpointId, group: Gid) -> Result<(), CarrierError>;

    /// Sends to all services of a group, from a GID of the endpoint. Services of this host receive it too.
    ///
    /// # Errors
    /// When it could not be sent over any family. What was sent may still be lost.
    fn multicast(
        &mut self,
        endpoint: EndpointId,
        group: Gid,
        from: Gid,
        mad: &Mad,
    ) -> Result<(), CarrierError>;

    /// Sends to one service, from a GID of the endpoint.
    ///
    /// # Errors
    /// When it could not be sent. What was sent may still be lost.
    fn send(&mut self, endpoint: EndpointId, to: &Peer, from: Gid, mad: &Mad) -> Result<(), CarrierError>;

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

    /// Does a bounded amount of work and returns how much it did. Before sleeping, call it until it returns
    /// 0, and take the events.
    fn turn(&mut self, now: Time) -> usize;

    /// Returns the next event, in order.
    fn event(&mut self) -> Option<Event>;

    /// Returns when something is due although nothing has arrived.
    fn next_deadline(&self) -> Time;
}

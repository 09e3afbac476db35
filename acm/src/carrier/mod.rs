//! What carries frames between services: management datagrams (MADs) of 256 bytes, to a multicast group or to one peer.
//!
//! ```text
//!   resolver ── multicast(group, MAD) ──►  Carrier  ──►  every service that has joined the group
//!            ◄─ Event::Mad { from }    ──            ◄──  the one that owns the address, by unicast
//!            ── probe(peer)            ──►  frames of every size, there and back
//! ```
//!
//! [`Carrier`] is what a queue pair of unreliable datagrams can do: a peer is a GID, a LID and the number of a queue pair.
//! [`UdpCarrier`] does it over UDP sockets, for hosts without InfiniBand. There the number of the queue pair is drawn anew in
//! each life of a service, so that the others see that it has begun again.
//!
//! # What listens, and who is believed
//!
//! Nothing listens beyond the loopback unless the setting `interfaces` names an interface or says `all`. Frames have hop limit
//! 1 and must come from an address of the link. Without a key, everybody on the link is believed, as with InfiniBand; with
//! one, frames without its tag are dropped before anything else in them is looked at. A frame that was recorded can be sent
//! again by somebody on the link; what it says was true when it was made.
//!
//! | module | job |
//! |---|---|
//! | `frame` | the envelope: layout, one parse |
//! | `key` | tags |
//! | `groups` | the addresses of multicast groups |
//! | `guard` | which frames are taken; the others are counted by reason |
//! | `seen`, `buckets` | what came before; who sends too much: bounded memory |
//! | `sizes` | every size that a path may have, tried at the same time |
//! | `prober` | probes under way |
//! | `ping` | the same for hosts beyond a router |
//! | `udp` | sockets |
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
pub use frame::{FRAME, FRAME_TAGGED, Frame, GRH, Header, Kind, MAD, NoFrame, PROBE, PROBE_MAX, TAG};
pub use groups::ipv4_group;
pub use key::Key;
pub use udp::{Counters, Limits, Settings, UdpCarrier};

/// What a packet of RoCE v2 has beside its payload, without IPv6 and the header behind it: a full probe is as long.
const BESIDE: usize = crate::host::HEADERS as usize - 48;

/// A management datagram.
pub type Mad = [u8; MAD];

/// An endpoint, as whoever uses a carrier calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// A probe that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// Another service, at one of its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its GID.
    pub gid: Gid,
    /// Its LID; 0 without InfiniBand.
    pub lid: u16,
    /// The number of its queue pair: 24 bits. Another one means another life.
    pub qpn: u32,
    /// Where its unicast frames go to, over UDP; none where GID and LID say it.
    pub at: Option<SocketAddr>,
    /// Which of our addresses frames to it come from, over UDP: the one that it talked to alone; none where that is open.
    pub by: Option<IpAddr>,
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The shortest time that a frame took there and back, if any did.
    pub round_trip: Option<Duration>,
    /// Bytes of the largest datagram that passed both ways; 0 when none did.
    pub largest: usize,
    /// Why it was not the one of full size.
    pub trouble: Option<Trouble>,
}

/// Why a probe did not pass whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Nothing came back.
    #[error("no probe came back; see whether the service runs there and a firewall lets its port through")]
    Silent,
    /// Small ones came back, and none of full size.
    #[error(
        "small probes come back and full ones do not; something on the way has a smaller MTU than its ends"
    )]
    FullLost,
    /// The own link does not take one of full size.
    #[error("the own link does not take full probes; its MTU has become smaller")]
    FullRefused,
    /// The system does not send to there.
    #[error("there is no way to there any more; look at the interface and its addresses")]
    NoWay,
}

/// What a carrier tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// A MAD has come.
    Mad {
        /// By this endpoint.
        endpoint: EndpointId,
        /// From there: an answer goes to it as it is.
        from: Peer,
        /// To this group; none when it came to us alone.
        group: Option<Gid>,
        /// The MAD.
        mad: Box<Mad>,
    },
    /// A probe has ended.
    Probed {
        /// Which.
        probe: ProbeId,
        /// How.
        result: Probed,
    },
    /// An endpoint carries nothing any more. Told once; it is to be ended, or served anew when its interface is back.
    Failed {
        /// Which.
        endpoint: EndpointId,
        /// Why.
        error: CarrierError,
    },
}

/// Why something could not be carried.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CarrierError {
    /// No endpoint has this number.
    #[error("no endpoint {} is served; serve it before it is used", .0.0)]
    Unknown(EndpointId),
    /// The settings do not name it.
    #[error(
        "the interface {0} is not to be served; add it to the interfaces that services talk by (doorbell_interfaces)"
    )]
    NotServed(String),
    /// It has no address of a family that is carried.
    #[error(
        "the interface {0} has no address of a family that services talk over; see doorbell_ipv4 and doorbell_ipv6"
    )]
    NoFamily(String),
    /// The system refuses.
    #[error(
        "cannot {step} on the interface {interface} ({kind}); see whether it is still up and has its addresses"
    )]
    System {
        /// What could not be done.
        step: &'static str,
        /// The interface.
        interface: String,
        /// What the system said.
        kind: io::ErrorKind,
    },
    /// It is no multicast GID.
    #[error("{0} is no multicast GID: those begin with ff")]
    NoGroup(Gid),
    /// It has been said nowhere how frames get there.
    #[error("nobody has said how frames get to {0}: it has not been heard of over this carrier")]
    NoPeer(Gid),
    /// A limit is reached.
    #[error("more than {most} {what} cannot be under way; wait for some to end")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// Pings are not allowed.
    #[error(
        "pings are not allowed here, so that no host beyond a router can be tried; let the service's group have ping sockets \
         (sysctl net.ipv4.ping_group_range), or give it CAP_NET_RAW"
    )]
    NoPing,
    /// There is no randomness.
    #[error("the kernel gives no random numbers ({0})")]
    Random(String),
}

/// Carries MADs. Nothing here waits.
pub trait Carrier {
    /// The number of the queue pair in this life: 24 bits.
    fn qpn(&self) -> u32;

    /// Takes part in a group.
    ///
    /// # Errors
    /// When the endpoint is unknown, it is no group, or the system refuses.
    fn join(&mut self, endpoint: EndpointId, group: Gid) -> Result<(), CarrierError>;

    /// Sends to all services of a group, from a GID of the endpoint. Those of this host hear it, too.
    ///
    /// # Errors
    /// When it could be sent in no way. What was sent may be lost all the same.
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
    /// When it could not be sent. What was sent may be lost all the same.
    fn send(&mut self, endpoint: EndpointId, to: &Peer, from: Gid, mad: &Mad) -> Result<(), CarrierError>;

    /// Tries how frames get to a service and back: such that packets with a payload of 256 bytes, and of each larger size up to
    /// `mtu`, would have theirs. [`Event::Probed`] tells what came of it, within a second.
    ///
    /// # Errors
    /// When it cannot be begun.
    fn probe(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: &Peer,
        from: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError>;

    /// Does a bounded amount of what there is to do, and tells how much it was. Whoever sleeps first calls it until it was
    /// nothing, and takes the events.
    fn turn(&mut self, now: Time) -> usize;

    /// What has happened, in order.
    fn event(&mut self) -> Option<Event>;

    /// When there is something to do without anything having come.
    fn next_deadline(&self) -> Time;
}

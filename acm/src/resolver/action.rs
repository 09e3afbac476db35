//! Actions that the resolver requests, and the ids by which their outcome is reported to it.

use crate::address::Gid;
use crate::mad::{Group, MAD};
use crate::path::{Mtu, Path, Rate};
use crate::query::Answer;
use crate::sa::QueryId;

/// An endpoint of this host, for as long as the resolver has it; the number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// The caller's id of a query, unique among those that wait.
pub type Ticket = u64;

/// The number of a probe, for [`Resolver::probed`](super::Resolver::probed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// The address of another service's endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The GID of its port.
    pub gid: Gid,
    /// The LID of its port; 0 without InfiniBand.
    pub lid: u16,
    /// The queue pair (24 bits), which differs after a restart.
    pub qpn: u32,
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The GID of its port, from the message's header.
    pub gid: Gid,
    /// The LID of its port; 0 without InfiniBand.
    pub lid: u16,
    /// The queue pair (24 bits).
    pub qpn: u32,
    /// Whether it has proved that it has the job's key.
    pub trusted: bool,
}

impl Sender {
    /// Returns the address for messages to the sender.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        Peer {
            gid: self.gid,
            lid: self.lid,
            qpn: self.qpn,
        }
    }
}

/// The result of a probe that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The largest payload (bytes), of those requested, that came back.
    pub largest: u32,
}

/// Why a probe has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProbed {
    /// Not even the smallest packet came back.
    #[error("the destination does not answer probes: it is down, or runs no service")]
    Silent,
    /// No packet could be sent.
    #[error("no probe could be sent from this endpoint")]
    Unsent,
}

/// The properties of a group; a path between two members is at least as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The service level.
    pub sl: u8,
    /// The flow label (20 bits).
    pub flow_label: u32,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub tclass: u8,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The rate of the link.
    pub rate: Rate,
    /// The lifetime of a packet, as an exponent: 4.096 µs × 2^value.
    pub packet_lifetime: u8,
}

impl Membership {
    /// Returns the properties of a group of which only the GID is known.
    #[must_use]
    pub const fn of(group: Group) -> Self {
        Self {
            sl: 0,
            flow_label: 0,
            hop_limit: 0,
            tclass: group.tos,
            mtu: group.mtu,
            rate: group.rate,
            packet_lifetime: 18,
        }
    }
}

/// An action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer a query.
    Answer {
        /// The id of the query.
        ticket: Ticket,
        /// The answer to send.
        answer: Answer,
    },
    /// Join a multicast group; [`Resolver::joined`](super::Resolver::joined) may report its properties, or a
    /// failure.
    Join {
        /// The endpoint that joins.
        endpoint: EndpointId,
        /// The group to join.
        group: Gid,
    },
    /// Leave a multicast group.
    Leave {
        /// The endpoint that leaves; it may be gone already.
        endpoint: EndpointId,
        /// The group to leave.
        group: Gid,
    },
    /// Send a message to all members of a group.
    Multicast {
        /// The endpoint that sends.
        endpoint: EndpointId,
        /// The group to send to.
        group: Gid,
        /// The message to send.
        mad: Box<[u8; MAD]>,
    },
    /// Send a message to one service.
    Unicast {
        /// The endpoint that sends.
        endpoint: EndpointId,
        /// The receiver of the message.
        to: Peer,
        /// The message to send.
        mad: Box<[u8; MAD]>,
        /// Whether it is an answer: then the caller reports with [`Resolver::sent`](super::Resolver::sent)
        /// that it has gone.
        answer: bool,
    },
    /// Query the subnet administrator; [`Resolver::sa`](super::Resolver::sa) takes the answer.
    QuerySa {
        /// The number of the query.
        id: QueryId,
        /// The endpoint whose subnet is meant.
        endpoint: EndpointId,
        /// The path to look up: zero fields are open.
        path: Box<Path>,
    },
    /// Find the largest packet that passes both ways; [`Resolver::probed`](super::Resolver::probed) takes the
    /// result.
    Probe {
        /// The number of the probe.
        id: ProbeId,
        /// The endpoint that sends.
        endpoint: EndpointId,
        /// The GID of the endpoint at which the path begins.
        source: Gid,
        /// The GID to probe.
        destination: Gid,
        /// The largest payload to try (bytes): the path's MTU.
        large: u32,
    },
}

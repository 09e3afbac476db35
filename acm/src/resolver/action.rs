//! What the resolver wants done, and the names by which it is told of the end.

use crate::address::Gid;
use crate::ask::Answer;
use crate::mad::{Group, MAD};
use crate::path::{Mtu, Path, Rate};
use crate::sa::QueryId;

/// An endpoint of this host, as long as the resolver has it: never that of another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

/// A question's name, given by whoever asks; unique among those that wait.
pub type Ticket = u64;

/// A probe's number: [`Resolver::probed`](super::Resolver::probed) brings it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// Where a service is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its port.
    pub gid: Gid,
    /// Its port within the subnet; 0 without InfiniBand.
    pub lid: u16,
    /// Its queue pair: another one after a restart. 24 bits.
    pub qpn: u32,
}

/// Whom a message is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// His port, as the message's head has it.
    pub gid: Gid,
    /// His port within the subnet; 0 without InfiniBand.
    pub lid: u16,
    /// His queue pair.
    pub qpn: u32,
    /// Whether he has shown that he has the job's key.
    pub trusted: bool,
}

impl Sender {
    /// Where he is reached.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        Peer {
            gid: self.gid,
            lid: self.lid,
            qpn: self.qpn,
        }
    }
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The largest payload (bytes) of those asked for that came back.
    pub largest: u32,
}

/// Why a probe found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProbed {
    /// Not even the small one came back.
    #[error("the destination does not answer probes: it is down, or runs no service")]
    Silent,
    /// Nothing could be sent.
    #[error("no probe could be sent from this endpoint")]
    Unsent,
}

/// What a group is like, for whoever is in it: a path between two members is at least as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Service level.
    pub sl: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// How many routers are allowed.
    pub hop_limit: u8,
    /// Traffic class.
    pub tclass: u8,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Speed.
    pub rate: Rate,
    /// 4.096 µs × 2^value.
    pub packet_lifetime: u8,
}

impl Membership {
    /// Of a group of which no more is known than its GID says.
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

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Tell whoever asked.
    Answer {
        /// The question.
        ticket: Ticket,
        /// What to tell him.
        answer: Answer,
    },
    /// Become a member of a multicast group; [`Resolver::joined`](super::Resolver::joined) may say what it is like, or that it could not be.
    Join {
        /// The endpoint.
        endpoint: EndpointId,
        /// The group.
        group: Gid,
    },
    /// Be a member no longer.
    Leave {
        /// The endpoint; it may be gone already.
        endpoint: EndpointId,
        /// The group.
        group: Gid,
    },
    /// Send to all members of a group.
    Multicast {
        /// The endpoint.
        endpoint: EndpointId,
        /// The group.
        group: Gid,
        /// The message.
        mad: Box<[u8; MAD]>,
    },
    /// Send to one.
    Unicast {
        /// The endpoint.
        endpoint: EndpointId,
        /// To whom.
        to: Peer,
        /// The message.
        mad: Box<[u8; MAD]>,
        /// Whether it is an answer: then [`Resolver::sent`](super::Resolver::sent) is called when it is gone.
        answer: bool,
    },
    /// Ask the subnet's administration; [`Resolver::sa`](super::Resolver::sa) brings the answer.
    AskSa {
        /// The question's number.
        id: QueryId,
        /// The endpoint.
        endpoint: EndpointId,
        /// The path: what is zero is open.
        path: Box<Path>,
    },
    /// See up to which size packets come back; [`Resolver::probed`](super::Resolver::probed) brings the result.
    Probe {
        /// The probe's number.
        id: ProbeId,
        /// The endpoint.
        endpoint: EndpointId,
        /// From which of its GIDs: where the path begins.
        source: Gid,
        /// To whom.
        destination: Gid,
        /// Payload (bytes) of the largest one: the path's MTU.
        large: u32,
    },
}

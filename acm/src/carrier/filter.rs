//! The filter of incoming datagrams. Those that it drops are counted by reason.
//!
//! The checks, in order: the sender exceeds its rate; the bytes are not a frame, or their tag does not match;
//! the frame is our own, looped back; its destination is another host; its source is not on the link; it is
//! the copy of a frame that came over the other family.
//!
//! # The source
//!
//! Only datagrams from the link are accepted: their source address has to be in one of the endpoint's
//! networks, or an IPv6 link-local address. The same holds for the GID in the frame, if the endpoint has a
//! network of that family at all. The two need not be equal: a query is sent over both families, and has one
//! GID. Without a key, a host on the link can impersonate another host on the link. A host whose address has
//! no network (`/32`) is reached over link-local addresses only.
//!
//! An endpoint without an address of a family cannot determine which GIDs of that family are on its link, and
//! accepts them all: a neighbour with both families uses its IPv4 address as its GID, and a host that has
//! lost its own IPv4 address still has to answer it. Forging such a GID gains nothing: the answer only
//! repeats it, goes to the address that the frame came from, and the resolver neither learns nor uses a path
//! to it.

use std::fmt;
use std::hash::RandomState;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use doorbell_fabric::time::Time;

use super::EndpointId;
use super::frame::{BadFrame, Frame, Kind};
use super::key::Key;
use super::rate_limit::RateLimiter;
use super::replay::{CopyFilter, Family};
use crate::address::{Address, Gid};
use crate::endpoint::Endpoint;

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The sender exceeds its rate.
    Flood,
    /// The size is not that of a frame.
    Size,
    /// The magic number is wrong.
    Magic,
    /// The version is unknown.
    Version,
    /// The kind or the flags are unknown, or the kind is not for this socket.
    Kind,
    /// The frame has no tag, but there is a key.
    Untagged,
    /// The frame has a tag, but there is no key.
    Tagged,
    /// The tag does not match.
    Tag,
    /// The GRH is invalid.
    Grh,
    /// The frame is our own, looped back by the group. Nothing is wrong.
    Own,
    /// The destination is another group or another GID.
    NotForUs,
    /// The source address, or the source GID, is not on the link.
    Source,
    /// The frame is a copy of one that came over the other family. Nothing is wrong.
    Again,
    /// The frame is an echo of no open probe.
    Unasked,
}

impl Reason {
    /// Lists all reasons.
    pub const ALL: [Self; 14] = [
        Self::Flood,
        Self::Size,
        Self::Magic,
        Self::Version,
        Self::Kind,
        Self::Untagged,
        Self::Tagged,
        Self::Tag,
        Self::Grh,
        Self::Own,
        Self::NotForUs,
        Self::Source,
        Self::Again,
        Self::Unasked,
    ];
}

impl From<BadFrame> for Reason {
    fn from(why: BadFrame) -> Self {
        match why {
            BadFrame::Size => Self::Size,
            BadFrame::Magic => Self::Magic,
            BadFrame::Version => Self::Version,
            BadFrame::Kind => Self::Kind,
            BadFrame::Untagged => Self::Untagged,
            BadFrame::Tagged => Self::Tagged,
            BadFrame::Tag => Self::Tag,
            BadFrame::Grh => Self::Grh,
        }
    }
}

/// The number of datagrams dropped, by reason.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped([u64; Reason::ALL.len()]);

impl Dropped {
    /// Returns the number dropped for one reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the number for each reason.
    pub fn each(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.0)
    }

    pub(super) fn count(&mut self, reason: Reason) {
        self.add(reason, 1);
    }

    pub(super) fn add(&mut self, reason: Reason, count: u64) {
        self.0[reason as usize] += count;
    }
}

impl fmt::Debug for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.each().filter(|(_, count)| *count > 0))
            .finish()
    }
}

/// The socket at which a datagram arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) id: EndpointId,
    pub(super) endpoint: &'a Endpoint,
    /// The group of the socket; `None` for a unicast socket.
    pub(super) group: Option<Gid>,
    pub(super) family: Family,
    /// The number of our queue pair.
    pub(super) qpn: u32,
    /// Whether one of our own sockets sent it.
    pub(super) is_ours: bool,
}

/// Filters datagrams, and counts those it drops.
#[derive(Debug)]
pub(super) struct Filter {
    key: Option<Key>,
    limiter: RateLimiter,
    pub(super) dropped: Dropped,
}

impl Filter {
    pub(super) fn new(key: Option<Key>, hash: RandomState, rate: u32, burst: u32) -> Self {
        Self {
            key,
            limiter: RateLimiter::new(hash, rate, burst),
            dropped: Dropped::default(),
        }
    }

    pub(super) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Parses a datagram; returns the frame if it is accepted. `copies` are those of the endpoint.
    pub(super) fn accept<'a>(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: &'a [u8],
        place: &Arrival<'_>,
        copies: &mut CopyFilter,
    ) -> Option<Frame<'a>> {
        let judged = self.judge(now, from, bytes, place, copies);
        judged.map_err(|reason| self.dropped.count(reason)).ok()
    }

    fn judge<'a>(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: &'a [u8],
        place: &Arrival<'_>,
        copies: &mut CopyFilter,
    ) -> Result<Frame<'a>, Reason> {
        let must = |is: bool, reason: Reason| if is { Ok(()) } else { Err(reason) };
        must(self.limiter.allow(now, (place.id, from.ip())), Reason::Flood)?;
        let frame = Frame::read(bytes, self.key.as_ref())?;
        let header = &frame.header;
        let own = |gid: Gid| place.endpoint.has(&Address::Gid(gid));
        must(
            header.qpn != place.qpn || !place.is_ours || !own(header.sgid),
            Reason::Own,
        )?;
        // Probes and echoes are unicast only.
        must(place.group.is_none() || header.kind == Kind::Mad, Reason::Kind)?;
        must(
            place
                .group
                .map_or_else(|| own(header.dgid), |group| group == header.dgid),
            Reason::NotForUs,
        )?;
        let near = |ip| is_on_link(place.endpoint, ip);
        // Port 0 cannot be answered.
        let answerable = from.port() != 0 && near(from.ip());
        let sgid = header.sgid.ip();
        must(
            answerable && (near(sgid) || is_of_other_family(place.endpoint, sgid)),
            Reason::Source,
        )?;
        if let (Some(mad), Some(_)) = (frame.mad(), place.group) {
            must(copies.is_new(now, header, mad, place.family), Reason::Again)?;
        }
        Ok(frame)
    }
}

/// Whether an address is on the endpoint's link.
pub(super) fn is_on_link(endpoint: &Endpoint, ip: IpAddr) -> bool {
    let local = matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
    !ip.is_unspecified() && !ip.is_multicast() && (local || endpoint.is_near(ip))
}

/// Whether an address is a host address of a family in which the endpoint has none.
pub(super) fn is_of_other_family(endpoint: &Endpoint, ip: IpAddr) -> bool {
    let mut networks = endpoint.networks.iter();
    let known = networks.any(|network| Family::of(network.ip) == Family::of(ip));
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    !known && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && !broadcast
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Header, MAD};
    use super::*;
    use crate::endpoint::{DEFAULT_PKEY, Link, Network};
    use crate::path::{Mtu, Rate};

    fn endpoint() -> Endpoint {
        let ip = IpAddr::from([10, 0, 0, 1]);
        Endpoint {
            device: "eth0".to_owned(),
            other_names: Vec::new(),
            guid: 1,
            interface: 2,
            port: 1,
            ports: 1,
            pkey: DEFAULT_PKEY,
            link: Link::Ethernet,
            gid: Gid::of_ip(ip),
            lid: 0,
            mtu: Mtu::MAX,
            rate: Rate::MIN,
            subnet_timeout: 14,
            addresses: vec![ip.into()],
            networks: vec![Network { ip, prefix: 24 }],
        }
    }

    fn group() -> Gid {
        "ff15:4001:ffff:3:4::".parse().unwrap()
    }

    fn header() -> Header {
        Header {
            kind: Kind::Mad,
            qpn: 5,
            lid: 0,
            sgid: Gid::of_ip([10, 0, 0, 2].into()),
            dgid: group(),
        }
    }

    /// Runs the filter on a frame with this header, from this address, at the group's socket or at the
    /// unicast one.
    fn judged(header: Header, from: &str, at_group: bool) -> Result<(), Reason> {
        judged_by(&endpoint(), header, from, at_group)
    }

    fn judged_by(endpoint: &Endpoint, header: Header, from: &str, at_group: bool) -> Result<(), Reason> {
        let mut filter = Filter::new(None, RandomState::new(), 1000, 100);
        let mut bytes = Vec::new();
        let body = if header.kind == Kind::Mad {
            &[0; MAD][..]
        } else {
            &[0; 16]
        };
        header.write(body, 0, None, &mut bytes);
        let place = Arrival {
            id: EndpointId(1),
            endpoint,
            group: at_group.then(group),
            family: Family::V4,
            qpn: 9,
            is_ours: from == "10.0.0.1:900",
        };
        let from = from.parse().unwrap();
        let mut copies = CopyFilter::default();
        let judged = filter.judge(Time::from_nanos(1), from, &bytes, &place, &mut copies);
        judged.map(drop)
    }

    #[test]
    fn what_is_of_the_link_and_for_us_is_taken() {
        assert_eq!(judged(header(), "10.0.0.2:7", true), Ok(()));
        assert_eq!(
            judged(header(), "[fe80::2%3]:7", true),
            Ok(()),
            "its copy over IPv6"
        );
        let alone = Header {
            dgid: endpoint().gid,
            ..header()
        };
        assert_eq!(judged(alone, "10.0.0.2:7", false), Ok(()));
        assert_eq!(
            judged(
                Header {
                    kind: Kind::Probe,
                    ..alone
                },
                "10.0.0.2:7",
                false
            ),
            Ok(())
        );
    }

    #[test]
    fn a_host_that_has_lost_a_family_receives_from_those_that_have_it() {
        let six = "fd00::1".parse().unwrap();
        let alone = Endpoint {
            gid: Gid::of_ip(six),
            addresses: vec![six.into()],
            networks: vec![Network { ip: six, prefix: 64 }],
            ..endpoint()
        };
        let of = |sgid: &str| Header {
            sgid: sgid.parse().unwrap(),
            ..header()
        };
        let judged = |sgid: &str, from: &str| judged_by(&alone, of(sgid), from, true);
        for from in ["[fe80::2%3]:7", "[fd00::2]:7"] {
            assert_eq!(judged("::ffff:10.0.0.2", from), Ok(()), "{from}");
        }
        // From off the link, in the endpoint's family but off the link, or no host address.
        assert_eq!(judged("::ffff:10.0.0.2", "[fd01::2]:7"), Err(Reason::Source));
        assert_eq!(judged("::ffff:10.0.0.2", "10.0.0.2:7"), Err(Reason::Source));
        for sgid in [
            "fd01::2",
            "::ffff:0.0.0.0",
            "::ffff:224.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:255.255.255.255",
            "::",
            "::1",
        ] {
            assert_eq!(judged(sgid, "[fe80::2%3]:7"), Err(Reason::Source), "{sgid}");
        }
    }

    #[test]
    fn everything_else_has_its_reason() {
        let far = Gid::of_ip([10, 0, 1, 2].into());
        assert_eq!(judged(header(), "10.0.1.2:7", true), Err(Reason::Source));
        assert_eq!(
            judged(
                Header {
                    sgid: far,
                    ..header()
                },
                "10.0.0.2:7",
                true
            ),
            Err(Reason::Source)
        );
        assert_eq!(
            judged(
                Header {
                    sgid: group(),
                    ..header()
                },
                "10.0.0.2:7",
                true
            ),
            Err(Reason::Source)
        );
        assert_eq!(
            judged(
                Header {
                    dgid: far,
                    ..header()
                },
                "10.0.0.2:7",
                true
            ),
            Err(Reason::NotForUs)
        );
        assert_eq!(judged(header(), "10.0.0.2:7", false), Err(Reason::NotForUs));
        assert_eq!(
            judged(
                Header {
                    kind: Kind::Probe,
                    ..header()
                },
                "10.0.0.2:7",
                true
            ),
            Err(Reason::Kind)
        );
        let own = Header {
            qpn: 9,
            sgid: endpoint().gid,
            ..header()
        };
        assert_eq!(judged(own, "10.0.0.1:900", true), Err(Reason::Own));
        assert_eq!(
            judged(own, "10.0.0.1:901", true),
            Ok(()),
            "another service of this host"
        );
    }

    #[test]
    fn each_reason_has_its_own_count() {
        let mut dropped = Dropped::default();
        Reason::ALL.into_iter().for_each(|reason| dropped.count(reason));
        assert!(
            dropped
                .each()
                .all(|(reason, count)| count == 1 && dropped.of(reason) == 1)
        );
    }
}

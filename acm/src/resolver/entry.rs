//! A cache entry: what is known about one destination.
//!
//! ```text
//!   learned ──────────── confirmed ──┬── answers ─────┬─ confirm ──► revalidated first ─────── expires
//!                          ▲         └────────────────┘                    │
//!                          └──────────── the owner answers ────────────────┘
//! ```

use std::time::Duration;

use doorbell_fabric::time::Time;

use super::action::{EndpointId, Membership, Peer};
use crate::address::{Address, Gid};
use crate::endpoint::{Endpoint, Link};
use crate::mad::Group;
use crate::path::{Mtu, Path, Rate};

/// A destination, as reached from an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) endpoint: EndpointId,
    pub(super) address: Address,
}

/// Where a path comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The owner of the address, found by multicast.
    Multicast,
    /// A preloaded table.
    Static,
    /// The subnet administrator.
    Sa,
    /// The destination is this host, which has the address itself.
    Loopback,
    /// The kernel's routing table and a probe: the destination is beyond a router.
    Route,
}

/// How a destination is reached, without its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Unknown,
    /// A path with the properties of a group that both ends are in.
    Group(Membership),
    /// A path from a table or from the subnet administrator.
    Explicit(Box<Path>),
}

/// The largest size that a probe has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) most: Mtu,
    /// When larger sizes are tried again.
    pub(super) again: Time,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) peer: Peer,
    /// The route as received, not reduced by a probe.
    pub(super) route: Route,
    /// The result of the last probe; valid as long as the owner is the same.
    pub(super) tried: Option<Tried>,
    pub(super) origin: Origin,
    /// Whether it is refreshed in the background.
    pub(super) watched: bool,
    /// Whether another host has claimed the address: the owner is queried before the entry is used.
    pub(super) suspect: bool,
    pub(super) learned: Time,
    /// When a message of the owner was last received; [`Time::NEVER`] if the entry cannot be confirmed.
    pub(super) confirmed: Time,
    /// When the entry last answered a query; [`Time::ZERO`] for never.
    pub(super) used: Time,
    pub(super) address_until: Time,
    pub(super) route_until: Time,
}

const _: () = assert!(size_of::<Entry>() <= 112, "an entry is small");
const _: () = assert!(size_of::<Key>() <= 32, "a key is small");

impl Entry {
    pub(super) fn new(peer: Peer, origin: Origin, now: Time, until: Time) -> Self {
        Self {
            peer,
            route: Route::Unknown,
            tried: None,
            origin,
            watched: false,
            suspect: false,
            learned: now,
            confirmed: now,
            used: Time::ZERO,
            address_until: until,
            route_until: Time::ZERO,
        }
    }

    /// Whether any part of the entry is still valid.
    pub(super) fn is_alive(&self, now: Time) -> bool {
        self.address_until > now
    }

    pub(super) fn has_route(&self, now: Time) -> bool {
        self.route != Route::Unknown && self.route_until > now
    }

    /// Whether a message of the owner was received within `within`; zero needs no confirmation.
    pub(super) fn is_confirmed(&self, now: Time, within: Duration) -> bool {
        !self.suspect && (within.is_zero() || now.since(self.confirmed) < within)
    }

    /// Whether larger packets than the last probe passed should be tried now. `most` is the endpoint's MTU.
    pub(super) fn may_grow(&self, now: Time, most: Mtu) -> bool {
        let told = self.route.mtu().unwrap_or(most).min(most);
        self.tried
            .is_some_and(|tried| tried.most < told && tried.again <= now)
    }

    /// Returns when no part of the entry is valid any more.
    pub(super) fn expires(&self) -> Time {
        self.address_until.min(self.route_until)
    }
}

/// Returns the slower of two rates.
pub(super) fn slower(one: Rate, other: Rate) -> Rate {
    std::cmp::min_by_key(one, other, |rate| rate.megabits())
}

impl Membership {
    /// Returns the properties, reduced to what a port can do.
    pub(super) fn within(self, endpoint: &Endpoint) -> Self {
        Self {
            mtu: self.mtu.min(endpoint.mtu),
            rate: slower(self.rate, endpoint.rate),
            ..self
        }
    }

    /// Returns the properties of a port without a path.
    pub(super) fn of_port(endpoint: &Endpoint) -> Self {
        Self::of(Group::new(endpoint.pkey, endpoint.rate, endpoint.mtu))
    }
}

impl Route {
    /// Returns the route, with the MTU reduced to what a probe passed.
    pub(super) fn within(&self, tried: Option<Tried>) -> Self {
        let mut route = self.clone();
        match (&mut route, tried) {
            (Self::Unknown, _) | (_, None) => {}
            (Self::Group(like), Some(Tried { most, .. })) => like.mtu = like.mtu.min(most),
            (Self::Explicit(path), Some(Tried { most, .. })) => {
                path.mtu = Some(path.mtu.map_or(most, |mtu| mtu.min(most)));
            }
        }
        route
    }

    pub(super) fn mtu(&self) -> Option<Mtu> {
        match self {
            Self::Unknown => None,
            Self::Group(like) => Some(like.mtu),
            Self::Explicit(path) => path.mtu,
        }
    }
}

/// Returns the GID of a destination: without InfiniBand, an IP address is its own GID.
pub(super) fn gid_of(link: Link, destination: &Address, peer: Peer) -> Gid {
    match (link, destination) {
        (_, Address::Gid(gid)) => *gid,
        (Link::InfiniBand, _) => peer.gid,
        (_, destination) => destination.ip().map_or(peer.gid, Gid::of_ip),
    }
}

/// Builds the whole path.
pub(super) fn path(
    from: &Endpoint,
    source: &Address,
    to: &Address,
    peer: Peer,
    route: &Route,
) -> Option<Path> {
    let dgid = match route {
        Route::Explicit(path) => path.dgid,
        _ => gid_of(from.link, to, peer),
    };
    let sgid = from.gid_towards(source, dgid);
    match route {
        Route::Unknown => None,
        Route::Group(like) => {
            let like = like.within(from);
            Some(Path {
                service_id: 0,
                dgid,
                sgid,
                dlid: peer.lid,
                slid: from.lid,
                flow_label: like.flow_label,
                hop_limit: like.hop_limit,
                tclass: like.tclass,
                reversible: true,
                num_path: 1,
                pkey: from.pkey,
                qos_class: 0,
                sl: like.sl,
                mtu: Some(like.mtu),
                rate: Some(like.rate),
                packet_lifetime: like.packet_lifetime,
                preference: 0,
            })
        }
        Route::Explicit(path) => Some(Path {
            sgid: if from.link == Link::InfiniBand && !path.sgid.is_none() {
                path.sgid
            } else {
                sgid
            },
            slid: if path.slid == 0 { from.lid } else { path.slid },
            ..Path::clone(path)
        }),
    }
}

//! The multicast groups of an endpoint.
//!
//! Every endpoint is in the first group, which carries the queries. The others are faster, and advertise what
//! the endpoint can do: the owner of an address goes through the querier's groups from the end, and names the
//! first that it is in as well. A path between two members of a group has the properties of that group.
//!
//! Without InfiniBand nothing keeps a slow port out of a group, and no other group carries queries: all ports
//! are in the first group, and a slower port names in its answer the group that it would be in.
//!
//! reference: acm, section 10.

use super::action::Membership;
use super::entry::slower;
use super::options::{Options, RouteProtocol};
use crate::address::Gid;
use crate::endpoint::{Endpoint, Link};
use crate::mad::{Group, Groups};

/// A group that the endpoint is in, or is about to join.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) gid: Gid,
    pub(super) like: Membership,
    /// The position in the list, which begins with the group that all are in.
    place: usize,
}

/// All groups, the one that all are in first; and those that could not be joined, which may be joined later.
#[derive(Clone, Debug, Default)]
pub(super) struct Memberships(Vec<Joined>, Vec<Joined>);

/// Whether a port is as fast as a group requires.
fn can(endpoint: &Endpoint, group: Group) -> bool {
    group.rate.megabits() <= endpoint.rate.megabits() && group.mtu <= endpoint.mtu
}

impl Memberships {
    /// Returns the groups that an endpoint joins.
    pub(super) fn of(endpoint: &Endpoint, options: &Options) -> Self {
        if endpoint.link == Link::Loopback {
            return Self::default();
        }
        let group = |rate, mtu| Group::new(endpoint.pkey, rate, mtu);
        let first = group(options.min_rate, options.min_mtu);
        let own = group(endpoint.rate, endpoint.mtu);
        let sa =
            options.route_prot == RouteProtocol::Sa && (endpoint.link == Link::InfiniBand || options.has_sa);
        let more = options.groups.iter().map(|&(rate, mtu)| group(rate, mtu));
        let mut all: Vec<Group> = std::iter::once(first)
            .chain(more.filter(|group| can(endpoint, *group)))
            .collect();
        if !sa {
            all.push(own);
        }
        let mut kept: Vec<Group> = Vec::new();
        for group in all {
            if !kept.contains(&group) {
                kept.push(group);
            }
        }
        Self(
            Groups::new(kept.into_iter().map(Group::gid))
                .as_slice()
                .iter()
                .enumerate()
                .filter_map(|(place, &gid)| {
                    let like = Membership::of(Group::of(gid)?).within(endpoint);
                    Some(Joined { gid, like, place })
                })
                .collect(),
            Vec::new(),
        )
    }

    /// Returns the group that queries are sent to.
    pub(super) fn first(&self) -> Option<Gid> {
        self.0.first().map(|joined| joined.gid)
    }

    pub(super) fn list(&self) -> Groups {
        Groups::new(self.gids())
    }

    pub(super) fn gids(&self) -> impl Iterator<Item = Gid> {
        self.0.iter().map(|joined| joined.gid)
    }

    /// Records the properties of a group; `None` means that the endpoint could not join it.
    pub(super) fn joined(&mut self, group: Gid, like: Option<Membership>) {
        let (from, to) = match like {
            Some(_) => (&mut self.1, &mut self.0),
            None => (&mut self.0, &mut self.1),
        };
        to.extend(from.extract_if(.., |joined| joined.gid == group));
        to.sort_by_key(|joined| joined.place);
        let mut all = self.0.iter_mut();
        if let (Some(like), Some(joined)) = (like, all.find(|joined| joined.gid == group)) {
            joined.like = like;
        }
    }

    fn get(&self, group: Gid) -> Option<Membership> {
        let mut all = self.0.iter();
        all.find(|joined| joined.gid == group).map(|joined| joined.like)
    }

    /// Returns the best group in common with a peer that lists `theirs`, the name to answer with, and the
    /// properties of a path between the two.
    pub(super) fn common(&self, endpoint: &Endpoint, theirs: &Groups) -> Option<(Gid, Membership)> {
        let mut best_last = theirs.as_slice().iter().rev();
        let (gid, like) = best_last.find_map(|&gid| Some((gid, self.get(gid)?)))?;
        let group = Group::of(gid)?;
        if endpoint.link == Link::InfiniBand {
            return Some((gid, like));
        }
        // The last group in the peer's list is the limit of its port.
        let his = theirs
            .as_slice()
            .last()
            .and_then(|&gid| Group::of(gid))
            .unwrap_or(group);
        let less = Group {
            rate: slower(slower(group.rate, endpoint.rate), his.rate),
            mtu: group.mtu.min(endpoint.mtu).min(his.mtu),
            ..group
        };
        Some((
            less.gid(),
            Membership {
                mtu: less.mtu,
                rate: less.rate,
                ..like
            },
        ))
    }

    /// Returns the properties of a path to a peer that named this group.
    pub(super) fn named(&self, endpoint: &Endpoint, named: &Groups) -> Option<Membership> {
        let &gid = named.as_slice().last()?;
        if let Some(like) = self.get(gid) {
            return Some(like);
        }
        let group = Group::of(gid).filter(|group| group.pkey == endpoint.pkey | 0x8000)?;
        (endpoint.link == Link::Ethernet).then(|| Membership::of(group).within(endpoint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Mtu, Rate};
    use crate::resolver::tests::endpoint;

    fn acm() -> Options {
        Options {
            route_prot: RouteProtocol::Acm,
            ..Options::default()
        }
    }

    fn port(link: Link, megabits: u32, mtu: u32) -> (Endpoint, Memberships) {
        let endpoint = Endpoint {
            link,
            rate: Rate::within(megabits),
            mtu: Mtu::within(mtu).unwrap(),
            ..endpoint("n", 1)
        };
        let groups = Memberships::of(&endpoint, &acm());
        (endpoint, groups)
    }

    #[test]
    fn the_best_that_both_are_in() {
        let (fast, fasts) = port(Link::InfiniBand, 100_000, 4096);
        let (slow, slows) = port(Link::InfiniBand, 40_000, 4096);
        assert_eq!((fasts.0.len(), slows.0.len()), (2, 2));
        let (gid, like) = fasts.common(&fast, &fasts.list()).unwrap();
        assert_eq!(gid, fasts.0[1].gid);
        assert_eq!((like.rate.megabits(), like.mtu.bytes()), (100_000, 4096));
        let (gid, like) = fasts.common(&fast, &slows.list()).unwrap();
        assert_eq!(gid, fasts.0[0].gid, "only the one of all");
        assert_eq!((like.rate.megabits(), like.mtu.bytes()), (10_000, 2048));
        assert_eq!(slows.named(&slow, &Groups::new([gid])), Some(like));
        assert_eq!(
            slows.named(&slow, &fasts.list()),
            None,
            "it is not in that, and cannot be"
        );
        assert_eq!(fasts.common(&fast, &Groups::default()), None);
    }

    #[test]
    fn a_slow_port_without_infiniband_is_reported() {
        let (small, smalls) = port(Link::Ethernet, 10_000, 1500);
        let (fast, fasts) = port(Link::Ethernet, 100_000, 4096);
        let (gid, like) = smalls.common(&small, &fasts.list()).unwrap();
        assert_eq!(like.mtu.bytes(), 1024);
        let seen = fasts.named(&fast, &Groups::new([gid])).unwrap();
        assert_eq!((seen.mtu.bytes(), seen.rate.megabits()), (1024, 10_000));
        let (_, like) = fasts.common(&fast, &smalls.list()).unwrap();
        assert_eq!(like, seen, "both ends find the same");
        let alien = Group::new(0x8001, Rate::MIN, Mtu::MIN).gid();
        assert_eq!(fasts.named(&fast, &Groups::new([alien])), None);
    }

    #[test]
    fn further_groups_and_those_that_could_not_be_joined() {
        let options = Options {
            groups: vec![
                (Rate::within(40_000), Mtu::MAX),
                (Rate::within(400_000), Mtu::MAX),
            ],
            ..acm()
        };
        let (endpoint, _) = port(Link::InfiniBand, 100_000, 4096);
        let mut groups = Memberships::of(&endpoint, &options);
        assert_eq!(groups.0.len(), 3, "the port is not that fast");
        let (middle, like, first) = (groups.0[1].gid, groups.0[1].like, groups.first());
        let before: Vec<_> = groups.gids().collect();
        groups.joined(middle, None);
        assert_eq!((groups.0.len(), groups.first()), (2, first));
        groups.joined(middle, Some(like));
        assert_eq!(groups.gids().collect::<Vec<_>>(), before, "joined at last");
        let sa = Memberships::of(&endpoint, &Options::default());
        assert_eq!(sa.0.len(), 1, "the administration knows better");
    }
}

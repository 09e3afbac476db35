//! The endpoints served: a queue pair each, and its groups.

use std::os::fd::OwnedFd;

use doorbell_fabric::time::Time;
use doorbell_verbs::gid;
use doorbell_verbs::mads::{GROUP_PAIR, MadCounts, MadDestination, MadPlace};

use super::super::groups::ipv4_group;
use super::super::replay::{CopyFilter, Family};
use super::levels::Levels;
use super::{
    Carrier, CarrierError, EndpointId, Event, HOPS, Mad, Peer, QueuePair, SubnetGroup, UdCarrier, membership,
    system, watch,
};
use crate::address::Gid;
use crate::endpoint::{Endpoint, Link};

/// Maximum number of endpoints served.
const ENDS_MAX: usize = 256;
/// Maximum number of groups of an endpoint.
const GROUPS_MAX: usize = 8;

/// An endpoint that is served.
pub(super) struct ServedEndpoint<Q> {
    pub(super) endpoint: Endpoint,
    /// The interface's name, which differs from the device's with InfiniBand.
    pub(super) interface: String,
    /// Its queue pair; the loopback has none.
    pub(super) pair: Option<Q>,
    groups: Vec<Group>,
    pub(super) copies: CopyFilter,
    pub(super) levels: Levels,
    /// Whether its failure has been reported.
    pub(super) failed: bool,
}

/// A group that an endpoint is in.
struct Group {
    gid: Gid,
    /// Its properties in the subnet, on InfiniBand.
    subnet: Option<SubnetGroup>,
    /// Its GIDs on Ethernet, each with the socket that is in the IP group.
    forms: Vec<(Family, Gid, OwnedFd)>,
}

/// Returns where the queue pair of an endpoint is to be.
pub(super) fn place(endpoint: &Endpoint) -> MadPlace {
    match endpoint.link {
        Link::InfiniBand => MadPlace::Port {
            device: endpoint.device.clone(),
            port: endpoint.port,
            partition: endpoint.pkey,
        },
        _ => MadPlace::Interface(interface_of(endpoint)),
    }
}

/// Returns the sums of counters.
pub(super) fn sum(one: MadCounts, other: MadCounts) -> MadCounts {
    MadCounts {
        sent: one.sent + other.sent,
        unresolved: one.unresolved + other.unresolved,
        unsent: one.unsent + other.unsent,
        length: one.length + other.length,
        failed: one.failed + other.failed,
        resets: one.resets + other.resets,
    }
}

fn interface_of(endpoint: &Endpoint) -> String {
    doorbell_inet::name_of(endpoint.interface).unwrap_or_else(|_| endpoint.device.clone())
}

/// Returns the GID of a group in a family.
fn form(group: Gid, family: Family) -> Gid {
    match family {
        Family::V4 => Gid::of_ip(ipv4_group(group).into()),
        Family::V6 => group,
    }
}

fn to_verbs(gid: Gid) -> gid::Gid {
    gid::Gid(gid.0)
}

/// Whether an endpoint is served as it was by the same queue pair. On InfiniBand no message goes over its
/// interface.
fn is_like(one: &Endpoint, other: &Endpoint) -> bool {
    let of = |end: &Endpoint| {
        let interface = (end.link != Link::InfiniBand).then_some(end.interface);
        (end.link, end.device.clone(), end.port, end.pkey, interface)
    };
    of(one) == of(other)
}

impl<Q: QueuePair> UdCarrier<Q> {
    /// Serves an endpoint. One that is served already keeps its queue pair while its port and partition stay;
    /// a changed GID or LID calls for its groups to be joined again.
    pub(super) fn serve(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError> {
        if let Some(end) = self.ends.get_mut(&id)
            && !end.failed
            && is_like(&end.endpoint, endpoint)
        {
            let has_moved = (end.endpoint.gid, end.endpoint.lid) != (endpoint.gid, endpoint.lid);
            end.endpoint = endpoint.clone();
            end.join_missing(&self.settings.families().collect::<Vec<_>>());
            if has_moved {
                self.events.push_back(Event::Renew { endpoint: id });
            }
            return Ok(());
        }
        let is_other = self.ends.contains_key(&id);
        self.end(id);
        if self.ends.len() >= ENDS_MAX {
            return Err(CarrierError::Full {
                what: "endpoints",
                most: ENDS_MAX,
            });
        }
        if !self.settings.interfaces.serve(endpoint) {
            return Err(CarrierError::NotServed(endpoint.device.clone()));
        }
        let pair = if endpoint.link == Link::Loopback {
            None
        } else {
            let pair = (self.open)(endpoint, self.depth).map_err(CarrierError::QueuePair)?;
            watch(&self.ready, pair.as_fd()).map_err(system("wait for messages", &endpoint.device))?;
            Some(pair)
        };
        let end = ServedEndpoint {
            endpoint: endpoint.clone(),
            interface: interface_of(endpoint),
            pair,
            groups: Vec::new(),
            copies: CopyFilter::default(),
            levels: Levels::default(),
            failed: false,
        };
        self.ends.insert(id, end);
        if is_other {
            // Another queue pair is in no group.
            self.events.push_back(Event::Renew { endpoint: id });
        }
        Ok(())
    }
}

impl<Q: QueuePair> ServedEndpoint<Q> {
    fn is_infiniband(&self) -> bool {
        self.endpoint.link == Link::InfiniBand
    }

    /// Returns the families of these in which it can send.
    fn usable(&self, families: &[Family]) -> Vec<Family> {
        let own = self.pair.as_ref().map(QueuePair::gids).unwrap_or_default();
        let has = |family: &&Family| own.iter().any(|gid| Family::of(gid.ip()) == **family);
        families.iter().filter(has).copied().collect()
    }

    /// Returns the group that a GID belongs to.
    pub(super) fn group_of(&self, to: Gid) -> Option<Gid> {
        let is_it = |group: &&Group| {
            group.gid == to && self.is_infiniband() || group.forms.iter().any(|(_, form, _)| *form == to)
        };
        self.groups.iter().find(is_it).map(|group| group.gid)
    }

    pub(super) fn is_in(&self, group: Gid) -> bool {
        self.groups.iter().any(|other| other.gid == group)
    }

    /// Returns how many forms of its groups it is not in.
    pub(super) fn lacks(&self, families: &[Family]) -> usize {
        if self.is_infiniband() {
            return 0;
        }
        let families = self.usable(families);
        let missing = |group: &Group| {
            let is_in = |family: &&Family| group.forms.iter().any(|(of, ..)| of == *family);
            families.iter().filter(|family| !is_in(family)).count()
        };
        self.groups.iter().map(missing).sum()
    }

    /// Joins the forms of its groups that it could not join before, or could not send in.
    fn join_missing(&mut self, families: &[Family]) {
        if !self.is_infiniband() {
            for group in self.groups.iter().map(|group| group.gid).collect::<Vec<_>>() {
                // What is still missing is counted by `lacks`.
                let _ = self.join(group, None, families);
            }
        }
    }

    pub(super) fn join(
        &mut self,
        gid: Gid,
        subnet: Option<SubnetGroup>,
        families: &[Family],
    ) -> Result<(), CarrierError> {
        let at = self.groups.iter().position(|group| group.gid == gid);
        if at.is_none() && self.groups.len() >= GROUPS_MAX {
            return Err(CarrierError::Full {
                what: "groups of an endpoint",
                most: GROUPS_MAX,
            });
        }
        let usable = self.usable(families);
        let Some(pair) = self.pair.as_mut() else {
            return Ok(());
        };
        if self.endpoint.link == Link::InfiniBand {
            let subnet = subnet.ok_or(CarrierError::NotJoined(gid))?;
            pair.attach(gid, subnet.lid).map_err(CarrierError::QueuePair)?;
            let group = Group {
                gid,
                subnet: Some(subnet),
                forms: Vec::new(),
            };
            match at {
                Some(at) => self.groups[at] = group,
                None => self.groups.push(group),
            }
            return Ok(());
        }
        let mut group = match at {
            Some(at) => self.groups.swap_remove(at),
            None => Group {
                gid,
                subnet: None,
                forms: Vec::new(),
            },
        };
        let mut failed = None;
        for family in usable {
            if group.forms.iter().any(|(of, ..)| *of == family) {
                continue;
            }
            let form = form(gid, family);
            let joined = membership::join(form, self.endpoint.interface)
                .map_err(system("join a group", &self.interface))
                .and_then(|socket| {
                    pair.attach(form, 0).map_err(CarrierError::QueuePair)?;
                    Ok(socket)
                });
            match joined {
                Ok(socket) => group.forms.push((family, form, socket)),
                Err(error) => failed = Some(error),
            }
        }
        let is_in_none = group.forms.is_empty();
        if !is_in_none {
            self.groups.push(group);
        }
        match failed {
            Some(error) if is_in_none => Err(error),
            None if is_in_none => Err(CarrierError::NoFamily(self.endpoint.device.clone())),
            _ => Ok(()),
        }
    }

    pub(super) fn leave(&mut self, gid: Gid) {
        let Some(at) = self.groups.iter().position(|group| group.gid == gid) else {
            return;
        };
        let group = self.groups.swap_remove(at);
        if let Some(pair) = self.pair.as_mut() {
            if group.subnet.is_some() {
                pair.detach(gid);
            }
            group.forms.iter().for_each(|(_, form, _)| pair.detach(*form));
        }
    }

    pub(super) fn multicast(
        &mut self,
        now: Time,
        group: Gid,
        from: Gid,
        mad: &Mad,
    ) -> Result<(), CarrierError> {
        let found = self.groups.iter().find(|other| other.gid == group);
        let found = found.ok_or(CarrierError::NotJoined(group))?;
        let Some(pair) = self.pair.as_mut() else {
            return Ok(());
        };
        if let Some(SubnetGroup { lid, like }) = found.subnet {
            let to = MadDestination {
                gid: to_verbs(group),
                from: to_verbs(from),
                lid,
                pair: GROUP_PAIR,
                service_level: like.sl,
                path_bits: 0,
                rate: like.rate.code(),
                flow_label: like.flow_label,
                hop_limit: like.hop_limit,
                traffic_class: like.tclass,
            };
            return pair.send(now, &to, mad).map_err(CarrierError::QueuePair);
        }
        let own = pair.gids();
        let (mut any, mut failed) = (false, None);
        for (family, form, _) in &found.forms {
            let is_of = |gid: &Gid| Family::of(gid.ip()) == *family;
            let best = Some(from).filter(|gid| is_of(gid) && own.contains(gid));
            let Some(source) = best.or_else(|| own.iter().copied().find(is_of)) else {
                continue;
            };
            match pair.send(now, &on_link((*form, 0), source, GROUP_PAIR), mad) {
                Ok(()) => any = true,
                Err(why) => failed = Some(why),
            }
        }
        match failed {
            Some(why) if !any => Err(CarrierError::QueuePair(why)),
            None if !any => Err(CarrierError::NotJoined(group)),
            _ => Ok(()),
        }
    }

    pub(super) fn send(&mut self, now: Time, to: &Peer, from: Gid, mad: &Mad) -> Result<(), CarrierError> {
        let is_infiniband = self.is_infiniband();
        // Without a queue pair, as of a peer that is known from a file only, nothing can be sent.
        if to.qpn == 0 || is_infiniband && to.lid == 0 {
            return Err(CarrierError::NoPeer(to.gid));
        }
        let (service_level, path_bits) = self.levels.of((to.gid, to.lid));
        let Some(pair) = self.pair.as_mut() else {
            return Ok(());
        };
        let to = MadDestination {
            service_level,
            path_bits,
            ..on_link((to.gid, to.lid), from, to.qpn)
        };
        pair.send(now, &to, mad).map_err(CarrierError::QueuePair)
    }
}

/// Returns a destination on the link or in the subnet.
fn on_link((gid, lid): (Gid, u16), from: Gid, pair: u32) -> MadDestination {
    MadDestination {
        gid: to_verbs(gid),
        from: to_verbs(from),
        lid,
        pair,
        service_level: 0,
        path_bits: 0,
        rate: 0,
        flow_label: 0,
        hop_limit: HOPS,
        traffic_class: 0,
    }
}

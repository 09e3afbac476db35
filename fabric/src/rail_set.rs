//! Sets of rails: a name with a `*` stands for several rails of one kind, and each rank of a host takes one.
//!
//! ```text
//!   igbvf:0000:01:10.* ──► rails of the kind that match ─┬─ unusable, or held by a process ──► left out
//!                                                        └─ members: by NUMA node, then as they are listed
//!   members × ranks of this host ──► the nearest pairs first; of equals the lower rank, the first member
//! ```
//!
//! No two ranks of a host have one rail, because none of them chooses: [`shares`] is computed for all ranks
//! at once. A launcher that has chosen the ranks' cores computes it before it starts them, and passes each
//! its part. A rank of another launcher computes the same for all by itself, from what all ranks of the host
//! see alike: the members, and their number. Cores and holders, which they may see differently, do not count
//! then.

use std::path::Path;

use serde::Serialize;

use crate::cores::Topology;
use crate::cores::topology::node_of_rail;
use crate::discover::{Candidate, Discovery, Driver, Verdict};
use crate::error::RailError;
use crate::name::RailName;

/// Rails that a text lists at most; the number of the others follows.
const LISTED_MOST: usize = 4;

/// The rails that a set's name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailSet {
    /// The name of the set.
    pub name: RailName,
    /// The rails that ranks take, in the order in which they do where distances do not decide.
    pub members: Vec<Member>,
    /// The rails that match and cannot be taken.
    pub left_out: Vec<LeftOut>,
    /// Why no rail matches and what to do; `None` where some do.
    #[serde(skip)]
    empty: Option<(String, String)>,
}

/// A rail of a set that a rank can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The name of the rail.
    pub rail: RailName,
    /// The NUMA node of its device, where it has one.
    pub node: Option<usize>,
}

/// A rail of a set that no rank can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The name of the rail.
    pub rail: RailName,
    /// Why it is left out.
    pub reason: String,
}

/// The place of a rail's device in the machine.
pub trait Layout {
    /// Returns the NUMA node of a rail's device; `None` where it has none.
    fn node(&self, rail: &RailName) -> Option<usize>;

    /// Returns the distance between two nodes, as the firmware reports it.
    fn distance(&self, from: usize, to: usize) -> Option<usize>;
}

/// A machine as sysfs describes it.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Its cores, and the distances between its nodes.
    pub topology: &'a Topology,
    /// The root of its files.
    pub root: &'a Path,
}

impl Layout for Machine<'_> {
    fn node(&self, rail: &RailName) -> Option<usize> {
        node_of_rail(self.root, rail)
    }

    fn distance(&self, from: usize, to: usize) -> Option<usize> {
        self.topology.distance(from, to)
    }
}

/// Whether processes that hold a rail now count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// A rail that a process has is left out.
    Count,
    /// They do not: the process may be another rank, which has its rail already.
    Ignored,
}

impl RailName {
    /// Whether it stands for several rails.
    ///
    /// ```
    /// # use doorbell_fabric::name::RailName;
    /// let is_set = |text: &str| text.parse::<RailName>().map(|name| name.is_set());
    /// assert_eq!((is_set("udp:eth*")?, is_set("udp:eth0")?), (true, false));
    /// # Ok::<(), doorbell_fabric::error::RailError>(())
    /// ```
    pub fn is_set(&self) -> bool {
        self.object().contains('*')
    }

    /// Whether it is the name of a set that contains `rail`: of the same kind and the same wire format, and a
    /// `*` for any letters. So `verbs:mlx5_*` has the connections of all ports, and `verbs:mlx5_*:ud` their
    /// datagrams.
    pub fn contains(&self, rail: &Self) -> bool {
        let is_alike = self.kind() == rail.kind() && self.wire() == rail.wire();
        is_alike && self.is_set() && matches(self.object(), rail.object())
    }
}

/// Whether a text fits a pattern in which `*` stands for any letters, or none.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.is_empty()
}

impl RailSet {
    /// Returns what a set stands for, by what `drivers` have `found`.
    pub fn of(
        name: &RailName,
        drivers: &[&dyn Driver],
        found: &Discovery,
        layout: &dyn Layout,
        holders: Holders,
    ) -> Self {
        let driver = drivers.iter().find(|driver| driver.kind() == name.kind());
        let holder = |one: &Candidate| match (holders, driver) {
            (Holders::Count, Some(driver)) => driver.holder(&one.rail),
            _ => None,
        };
        let (mut members, mut left_out): (Vec<Member>, Vec<LeftOut>) = (Vec::new(), Vec::new());
        let mut addresses: Vec<(&str, RailName)> = Vec::new();
        let matching = found.candidates().filter(|one| name.contains(&one.rail));
        for one in matching.filter(|one| !one.rail.is_set()) {
            let address = address_of(one);
            let same = addresses.iter().find(|(other, _)| address == Some(*other));
            let why = match (&one.verdict, same) {
                (Verdict::Rejected { reason, remedy }, _) => Some(format!("{reason}; {remedy}")),
                (_, Some((address, other))) => Some(format!("{other} has its address ({address}), too")),
                _ => holder(one).map(|holder| format!("{holder} has it")),
            };
            addresses.extend(
                address
                    .filter(|_| why.is_none())
                    .map(|address| (address, one.rail.clone())),
            );
            let rail = one.rail.clone();
            match why {
                Some(reason) => left_out.push(LeftOut { rail, reason }),
                None => members.push(Member {
                    node: layout.node(&rail),
                    rail,
                }),
            }
        }
        members.sort_by_key(|member| member.node.unwrap_or(usize::MAX));
        let is_empty = members.is_empty() && left_out.is_empty();
        let empty = match found.named(name) {
            Err(RailError::Unusable { reason, remedy, .. }) if is_empty => Some((reason, remedy)),
            _ => None,
        };
        Self {
            name: name.clone(),
            members,
            left_out,
            empty,
        }
    }

    /// Returns the node of all members, where they are on one.
    #[must_use]
    pub fn node(&self) -> Option<usize> {
        let node = self.members.first()?.node;
        node.filter(|_| self.members.iter().all(|member| member.node == node))
    }

    /// The error of a host with too few rails for its ranks, of which `free` are left for this set.
    fn too_few(
        &self,
        free: &[&Member],
        ranks: usize,
        more: &dyn Fn(&RailName, usize) -> Option<String>,
    ) -> RailError {
        let (reason, remedy) = match &self.empty {
            Some((reason, remedy)) => {
                let more = more(&self.name, ranks).map(|more| format!("{more}; or "));
                (reason.clone(), more.unwrap_or_default() + remedy)
            }
            None => (self.lack(free, ranks), self.remedy(free.len(), ranks, more)),
        };
        RailError::Unusable {
            rail: self.name.to_string(),
            reason,
            remedy,
        }
    }

    fn lack(&self, free: &[&Member], ranks: usize) -> String {
        let who = match ranks {
            1 => "a rank takes one".to_owned(),
            ranks => format!("each of the {ranks} ranks of this host takes one"),
        };
        let names: Vec<&str> = free.iter().map(|member| member.rail.as_str()).collect();
        let list = match names.is_empty() {
            true => String::new(),
            false => format!(" ({})", few(&names)),
        };
        let count = match names.len() {
            0 => "none of those that it stands for is free".to_owned(),
            1 => "1 of those that it stands for is free".to_owned(),
            count => format!("{count} of those that it stands for are free"),
        };
        let mut text = format!("{who}, and {count}{list}");
        match self.members.len() - free.len() {
            0 => {}
            1 => text.push_str("; 1 is named itself, or another rank has it"),
            others => text.push_str(&format!(
                "; {others} are named themselves, or other ranks have them"
            )),
        }
        for out in self.left_out.iter().take(LISTED_MOST) {
            text.push_str(&format!("; {} is left out: {}", out.rail, out.reason));
        }
        if self.left_out.len() > LISTED_MOST {
            text.push_str(&format!(
                "; {} more are left out",
                self.left_out.len() - LISTED_MOST
            ));
        }
        text
    }

    fn remedy(&self, free: usize, ranks: usize, more: &dyn Fn(&RailName, usize) -> Option<String>) -> String {
        let fewer =
            "start fewer ranks on each host, or name a set of more rails (`doorbell info` lists them)";
        // Where there are as many, the reasons against those that are left out have the next step.
        let is_short = free + self.left_out.len() < ranks;
        let wanted = ranks + self.members.len() - free;
        match is_short.then(|| more(&self.name, wanted)).flatten() {
            Some(more) => format!("{more}; or {fewer}"),
            None => fewer.to_owned(),
        }
    }
}

/// Returns the address that a rail will have, where it is known before the rail is open.
fn address_of(candidate: &Candidate) -> Option<&str> {
    let fact = candidate.facts.iter().find(|fact| fact.name == "address")?;
    Some(&fact.value)
}

fn few(names: &[&str]) -> String {
    match names.get(..LISTED_MOST) {
        Some(first) if first.len() < names.len() => {
            format!("{} and {} more", first.join(", "), names.len() - LISTED_MOST)
        }
        _ => names.join(", "),
    }
}

/// What the ranks of one host are to take, and of what.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The rails and sets that are named.
    pub list: &'a [RailName],
    /// What each set of the list stands for.
    pub sets: &'a [RailSet],
    /// Rails that other ranks of this host have.
    pub taken: &'a [RailName],
    /// The node of each rank's cores, where it is known, by local rank.
    pub ranks: &'a [Option<usize>],
    /// How rails are near to ranks.
    pub layout: &'a dyn Layout,
    /// How a machine gets as many rails of a set, where a driver knows that.
    pub more: &'a dyn Fn(&RailName, usize) -> Option<String>,
}

/// Returns the rails of each rank: in the order of the list, with one rail in the place of each set. A rail
/// that is named itself, or taken for an earlier set, is in no set.
///
/// # Errors
/// [`RailError::Unusable`] for the first set with fewer rails than there are ranks, and where nothing would
/// lead from one of them to another.
pub fn shares(wanted: Wanted<'_>) -> Result<Vec<Vec<RailName>>, RailError> {
    let named = wanted.list.iter().filter(|name| !name.is_set());
    let mut taken: Vec<RailName> = named.chain(wanted.taken).cloned().collect();
    let mut each = vec![Vec::new(); wanted.ranks.len()];
    for name in wanted.list {
        let Some(set) = wanted.sets.iter().find(|set| set.name == *name) else {
            each.iter_mut().for_each(|rails| rails.push(name.clone()));
            continue;
        };
        let free: Vec<&Member> = set
            .members
            .iter()
            .filter(|member| !taken.contains(&member.rail))
            .collect();
        if free.len() < wanted.ranks.len() {
            return Err(set.too_few(&free, wanted.ranks.len(), wanted.more));
        }
        for (rank, member) in assign(&free, wanted.ranks, wanted.layout).into_iter().enumerate() {
            let rail = free[member].rail.clone();
            each[rank].push(rail.clone());
            taken.push(rail);
        }
    }
    apart(wanted)?;
    Ok(each)
}

/// Refuses several ranks of a host with different interfaces of the kernel and nothing else: frames from one
/// interface do not arrive at another one of the same host.
fn apart(wanted: Wanted<'_>) -> Result<(), RailError> {
    let is_apart = |name: &RailName| name.is_set() && matches!(name.kind(), "udp" | "xdp");
    let Some(name) = wanted.list.first() else {
        return Ok(());
    };
    let ranks = wanted.ranks.len() + wanted.taken.len() / wanted.list.len();
    if ranks < 2 || !wanted.list.iter().all(is_apart) {
        return Ok(());
    }
    Err(RailError::Unusable {
        rail: name.to_string(),
        reason: format!(
            "each of the {ranks} ranks of this host takes another interface, and two interfaces of one host do \
             not reach each other"
        ),
        remedy: "name a rail for ranks of one host beside it, as in `--rail shm`".to_owned(),
    })
}

/// Returns the member of each rank, of which there are no more than members: the nearest pairs first.
fn assign(members: &[&Member], ranks: &[Option<usize>], layout: &dyn Layout) -> Vec<usize> {
    let distance = |rank: Option<usize>, member: &Member| {
        let (from, to) = rank.zip(member.node)?;
        let same = (from == to).then_some(0);
        same.or_else(|| layout.distance(from, to))
    };
    let mut pairs = Vec::with_capacity(members.len() * ranks.len());
    for (rank, node) in ranks.iter().enumerate() {
        let each = members.iter().enumerate();
        pairs.extend(each.map(|(at, member)| (distance(*node, member).unwrap_or(usize::MAX), rank, at)));
    }
    pairs.sort_unstable();
    let (mut of_rank, mut is_taken) = (vec![None; ranks.len()], vec![false; members.len()]);
    for (_, rank, at) in pairs {
        if of_rank[rank].is_none() && !is_taken[at] {
            (of_rank[rank], is_taken[at]) = (Some(at), true);
        }
    }
    of_rank.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;

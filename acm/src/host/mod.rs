//! What this host has: the places where paths can begin, and their names; and which of them the kernel would take.
//!
//! ```text
//!   interfaces with addresses (netlink)         ─┐
//!   /sys/class/net: speed, kind                 ─┤
//!   /sys/class/infiniband: ports, GIDs, pkeys   ─┼──►  endpoints  ──►  watched: "something has changed, here they are"
//!   ibacm_addr.cfg, or the host's own names     ─┘
//! ```
//!
//! One endpoint is made for each interface that is up and has an address; the loopback is one of them. Of InfiniBand there
//! is one for each partition of each active port, and the addresses of interfaces over InfiniBand are its own.
//!
//! What is read of InfiniBand has been tried on made trees of files only, not on a device. The kernel's files tell neither
//! the MTU of a port nor how long its subnet takes to answer: usual values stand for both.
//!
//! reference: acm, sections 7 and 9.

mod infiniband;
mod interfaces;
mod names;
mod source;
mod sysfs;
mod watch;

use std::path::PathBuf;

use doorbell_inet::{Details, Nic, nics};

use crate::config::AddressEntry;
use crate::endpoint::{Endpoint, Link};

pub use interfaces::{Facts, HEADERS, endpoint};
pub use source::source_for;
pub use watch::HostWatch;

/// Where the system tells of itself, and what the administrator says of it.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The root of what is usually `/sys`.
    pub sys: PathBuf,
    /// The folder with `route` and `ipv6_route`.
    pub net: PathBuf,
    /// The file of host names.
    pub hosts: PathBuf,
    /// The host's own name.
    pub name: String,
    /// What `ibacm_addr.cfg` says; without any the host's own names are used.
    pub entries: Vec<AddressEntry>,
}

impl Sources {
    /// The usual ones of this system.
    #[must_use]
    pub fn of_system(entries: Vec<AddressEntry>) -> Self {
        Self {
            sys: "/sys".into(),
            // Of the thread that asks: its network namespace may be another one than the process's.
            net: "/proc/thread-self/net".into(),
            hosts: "/etc/hosts".into(),
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            entries,
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The endpoints: interfaces by their numbers, then InfiniBand by names of devices, ports, partitions.
    pub endpoints: Vec<Endpoint>,
    /// What of `ibacm_addr.cfg` belongs to none of them.
    pub unmatched: Vec<AddressEntry>,
    /// The names of all interfaces, alternative ones too, those among them that are no endpoints.
    pub interfaces: Vec<String>,
}

/// Why it cannot be found out what this host has.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel does not list its interfaces.
    #[error("the kernel does not list its network interfaces ({0}); see whether netlink is allowed here")]
    List(#[source] std::io::Error),
    /// The kernel does not tell of changes.
    #[error(
        "the kernel does not tell of changes to its network interfaces ({0}); see whether netlink is allowed here"
    )]
    Watch(#[source] std::io::Error),
}

/// Looks at everything.
///
/// ```
/// use doorbell_acm::endpoint::Link;
/// use doorbell_acm::host::{Sources, look};
/// let found = look(&Sources::of_system(Vec::new()))?;
/// assert!(found.endpoints.iter().any(|end| end.link == Link::Loopback));
/// # Ok::<(), doorbell_acm::host::HostError>(())
/// ```
///
/// # Errors
/// When the kernel cannot be asked. An interface that goes meanwhile is left out.
pub fn look(sources: &Sources) -> Result<Found, HostError> {
    let all = nics().map_err(HostError::List)?;
    Ok(found(sources, &all, |nic| facts(sources, nic)))
}

/// What the kernel says of an interface beyond its addresses.
fn facts(sources: &Sources, nic: &Nic) -> Option<Facts> {
    let (index, seen) = doorbell_inet::interface_state(&nic.name).ok()?;
    // Another one may have its name by now.
    let details = Details::of(index).ok().filter(|_| index == nic.index)?;
    Some(Facts {
        mac: details.mac,
        mtu: u32::try_from(seen.mtu).unwrap_or(u32::MAX),
        megabits: sysfs::speed(&sources.sys, &nic.name),
    })
}

/// The endpoints of these interfaces, and of the devices that the system's files tell of.
fn found(sources: &Sources, all: &[Nic], facts: impl Fn(&Nic) -> Option<Facts>) -> Found {
    let mut fabric = infiniband::endpoints(&sources.sys);
    let mut endpoints = Vec::new();
    for nic in all {
        let Some(end) = facts(nic).and_then(|facts| endpoint(nic, &facts)) else {
            continue;
        };
        let carrier = infiniband::below(&sources.sys, &nic.name);
        match carrier.and_then(|port| port.among(&mut fabric)) {
            Some(below) => {
                below.interface = end.interface;
                below.addresses.extend(end.addresses);
                below.networks.extend(end.networks);
            }
            None => endpoints.push(end),
        }
    }
    endpoints.append(&mut fabric);
    let unmatched = if sources.entries.is_empty() {
        name_by_host(sources, &mut endpoints);
        Vec::new()
    } else {
        names::by_entries(&sources.entries, &mut endpoints)
    };
    Found {
        endpoints,
        unmatched,
        interfaces: all
            .iter()
            .flat_map(|nic| std::iter::once(&nic.name).chain(&nic.alternatives))
            .cloned()
            .collect(),
    }
}

/// The host's own names are those of the endpoint that leads out of it, or of the first one that leads anywhere.
fn name_by_host(sources: &Sources, endpoints: &mut [Endpoint]) {
    let out = names::default_interfaces(&sources.net);
    let is_beyond = |end: &Endpoint| end.link != Link::Loopback;
    let leads_out = |end: &Endpoint| {
        is_beyond(end)
            && out.iter().any(|name| {
                *name == end.device || doorbell_inet::name_of(end.interface).is_ok_and(|own| own == *name)
            })
    };
    let at = endpoints.iter().position(leads_out);
    let at = at.or_else(|| endpoints.iter().position(is_beyond));
    let at = at.or(if endpoints.is_empty() { None } else { Some(0) });
    if let Some(at) = at {
        let own = names::of_host(&sources.name, &sources.hosts);
        names::put(&mut endpoints[at], own);
    }
    if let Some(lo) = endpoints.iter_mut().find(|end| end.link == Link::Loopback) {
        names::put(lo, names::of_loopback());
    }
}

#[cfg(test)]
mod tests;

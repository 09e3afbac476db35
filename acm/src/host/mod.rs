//! The endpoints of this host, their names, and the source address that the kernel would choose.
//!
//! ```text
//!   interfaces with addresses (netlink)         ─┐
//!   /sys/class/net: speed, kind                 ─┤
//!   /sys/class/infiniband: ports, GIDs, pkeys   ─┼──►  endpoints  ──►  watched for changes
//!   ibacm_addr.cfg, or the host's own names     ─┘
//! ```
//!
//! There is one endpoint for each interface that is up and has an address, the loopback included. InfiniBand
//! has one for each partition of each active port, to which the addresses of interfaces over InfiniBand
//! belong.
//!
//! Reading InfiniBand's properties has been tested on artificial trees of files only, not on a device. sysfs
//! has neither the MTU of a port nor the response time of its subnet: usual values replace both.
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

/// Where this host's properties are read from, and what the administrator has configured.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The root of sysfs, usually `/sys`.
    pub sys: PathBuf,
    /// The folder with `route` and `ipv6_route`.
    pub net: PathBuf,
    /// The file of host names.
    pub hosts: PathBuf,
    /// The name of this host.
    pub name: String,
    /// The entries of `ibacm_addr.cfg`; if there are none, the host's own names are used.
    pub entries: Vec<AddressEntry>,
}

impl Sources {
    /// Returns the default paths of this system.
    #[must_use]
    pub fn of_system(entries: Vec<AddressEntry>) -> Self {
        Self {
            sys: "/sys".into(),
            // Of the calling thread: its network namespace may differ from the process's.
            net: "/proc/thread-self/net".into(),
            hosts: "/etc/hosts".into(),
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            entries,
        }
    }
}

/// The endpoints that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInventory {
    /// The endpoints: interfaces by number, then InfiniBand by device, port and partition.
    pub endpoints: Vec<Endpoint>,
    /// The entries of `ibacm_addr.cfg` that match no endpoint.
    pub unmatched: Vec<AddressEntry>,
    /// The names of all interfaces, with alternative names, also of those that are no endpoints.
    pub interfaces: Vec<String>,
}

/// Why this host's interfaces cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel does not list its interfaces.
    #[error("cannot list the network interfaces ({0}); check that netlink is allowed here")]
    List(#[source] std::io::Error),
    /// The kernel does not report changes.
    #[error("cannot watch the network interfaces ({0}); check that netlink is allowed here")]
    Watch(#[source] std::io::Error),
}

/// Reads all endpoints of this host.
///
/// ```
/// use doorbell_acm::endpoint::Link;
/// use doorbell_acm::host::{Sources, scan};
/// let inventory = scan(&Sources::of_system(Vec::new()))?;
/// assert!(inventory.endpoints.iter().any(|end| end.link == Link::Loopback));
/// # Ok::<(), doorbell_acm::host::HostError>(())
/// ```
///
/// # Errors
/// When the kernel does not list its interfaces. One that disappears meanwhile is left out.
pub fn scan(sources: &Sources) -> Result<HostInventory, HostError> {
    let all = nics().map_err(HostError::List)?;
    Ok(found(sources, &all, |nic| facts(sources, nic)))
}

/// Returns the properties of an interface beyond its addresses.
fn facts(sources: &Sources, nic: &Nic) -> Option<Facts> {
    let (index, seen) = doorbell_inet::interface_state(&nic.name).ok()?;
    // Another interface may have its name by now.
    let details = Details::of(index).ok().filter(|_| index == nic.index)?;
    Some(Facts {
        mac: details.mac,
        mtu: u32::try_from(seen.mtu).unwrap_or(u32::MAX),
        megabits: sysfs::speed(&sources.sys, &nic.name),
    })
}

/// Returns the endpoints of these interfaces, and of the InfiniBand devices in sysfs.
fn found(sources: &Sources, all: &[Nic], facts: impl Fn(&Nic) -> Option<Facts>) -> HostInventory {
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
    HostInventory {
        endpoints,
        unmatched,
        interfaces: all
            .iter()
            .flat_map(|nic| std::iter::once(&nic.name).chain(&nic.alternatives))
            .cloned()
            .collect(),
    }
}

/// Gives the host's own names to the endpoint of its default route, or to the first one that leads to another
/// host.
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

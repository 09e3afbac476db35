//! InfiniBand devices, as read from the kernel's files; no device is opened.
//!
//! ```text
//!   class/infiniband/mlx5_0/node_guid                      b859:9f03:00d4:6f1e
//!                          /ports/1/link_layer             InfiniBand
//!                                  /state                  4: ACTIVE
//!                                  /lid                    0x5
//!                                  /rate                   100 Gb/sec (4X EDR)
//!                                  /gids/0                 fe80:0000:0000:0000:b859:9f03:00d4:6f1e
//!                                  /pkeys/0                0xffff
//!   class/net/ib0/device/infiniband/mlx5_0    dev_port  pkey         which port carries an interface
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use super::sysfs;
use crate::address::Gid;
use crate::endpoint::{DEFAULT_PKEY, Endpoint, Link};
use crate::path::{Mtu, Rate};

/// The MTU of today's ports; sysfs does not have it.
const MTU: u32 = 2048;
/// About a second: the default of subnet managers; sysfs does not have it.
const SUBNET_TIMEOUT: u8 = 18;
/// Maximum number of endpoints.
const ENDPOINTS_MAX: usize = 1024;
/// The number of the state in which a port carries packets.
const ACTIVE: &str = "4:";
/// The kernel's number for interfaces over InfiniBand (linux/if_arp.h).
const IPOIB: u64 = 32;

/// Returns an endpoint for each partition of each active port.
pub(super) fn endpoints(sys: &Path) -> Vec<Endpoint> {
    let folder = sys.join("class/infiniband");
    let mut all = Vec::new();
    for device in sysfs::names(&folder) {
        let ports = folder.join(&device).join("ports");
        let numbers: Vec<u8> = sysfs::names(&ports)
            .iter()
            .filter_map(|port| port.parse().ok())
            .collect();
        let guid = sysfs::text(&folder.join(&device).join("node_guid"));
        let guid = guid
            .and_then(|text| u64::from_str_radix(&text.replace(':', ""), 16).ok())
            .unwrap_or(0);
        let count = numbers.iter().copied().max().unwrap_or(0);
        for port in numbers {
            let whole = |pkey| port_endpoint(&ports.join(port.to_string()), &device, pkey);
            let keys = partitions(&ports.join(port.to_string()));
            let found = keys.into_iter().filter_map(whole);
            all.extend(found.map(|end| Endpoint {
                guid,
                port,
                ports: count,
                ..end
            }));
        }
    }
    all.truncate(ENDPOINTS_MAX);
    all
}

/// Whether this host may have ports of InfiniBand: the kernel's part for RDMA is there. Its devices come, go
/// and change without a notification that a watch of interfaces gets, where no interface is over them.
pub(super) fn may_have_ports(sys: &Path) -> bool {
    sys.join("class/infiniband").is_dir()
}

/// Returns the partitions of a port, in the order of its table, without duplicates.
fn partitions(port: &Path) -> Vec<u16> {
    let folder = port.join("pkeys");
    let mut known = BTreeSet::new();
    let keys = sysfs::names(&folder)
        .into_iter()
        .filter_map(|name| sysfs::number(&folder.join(name)));
    let keys = keys.filter_map(|key| u16::try_from(key).ok());
    keys.filter(|key| key & 0x7fff != 0 && known.insert(key & 0x7fff))
        .collect()
}

/// Returns a port in a partition, if it is an active InfiniBand port.
fn port_endpoint(port: &Path, device: &str, pkey: u16) -> Option<Endpoint> {
    let is =
        |file: &str, begin: &str| sysfs::text(&port.join(file)).is_some_and(|text| text.starts_with(begin));
    let lid = sysfs::number(&port.join("lid"))
        .and_then(|lid| u16::try_from(lid).ok())
        .unwrap_or(0);
    let gid: Gid = sysfs::text(&port.join("gids/0"))?.parse().ok()?;
    let active = is("link_layer", "InfiniBand") && is("state", ACTIVE) && lid != 0 && !gid.is_none();
    active.then(|| Endpoint {
        device: device.to_owned(),
        other_names: Vec::new(),
        guid: 0,
        interface: 0,
        port: 1,
        ports: 1,
        pkey,
        link: Link::InfiniBand,
        gid,
        lid,
        mtu: Mtu::within(MTU).unwrap_or(Mtu::MIN),
        rate: rate(&sysfs::text(&port.join("rate")).unwrap_or_default()),
        subnet_timeout: SUBNET_TIMEOUT,
        addresses: Vec::new(),
        networks: Vec::new(),
    })
}

/// Parses `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`; returns the slowest rate for anything else.
fn rate(text: &str) -> Rate {
    let mut words = text.split(' ');
    let (Some(number), Some("Gb/sec")) = (words.next(), words.next()) else {
        return Rate::MIN;
    };
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let parsed = whole.parse::<u32>().ok().zip(tenths.parse::<u32>().ok());
    // Some rates have a tenth that their code does not: 56.3 is 56.
    let megabits =
        parsed.map(|(whole, tenths)| whole.saturating_mul(1000).saturating_add(100 * tenths.min(9)));
    megabits.map_or(Rate::MIN, Rate::within)
}

/// The port and the partition that carry an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carries {
    device: String,
    port: u64,
    pkey: u16,
}

impl Carries {
    /// Returns the matching endpoint.
    pub(super) fn among(self, all: &mut [Endpoint]) -> Option<&mut Endpoint> {
        all.iter_mut().find(|end| {
            end.device == self.device
                && u64::from(end.port) == self.port
                && (end.pkey ^ self.pkey) & 0x7fff == 0
        })
    }
}

/// Returns what carries an interface, if it is one over InfiniBand.
pub(super) fn below(sys: &Path, interface: &str) -> Option<Carries> {
    let folder = sys.join("class/net").join(interface);
    if sysfs::number(&folder.join("type"))? != IPOIB {
        return None;
    }
    let device = sysfs::names(&folder.join("device/infiniband"))
        .into_iter()
        .next()?;
    // Older kernels report the port as dev_id.
    let told = ["dev_port", "dev_id"].map(|file| sysfs::number(&folder.join(file)).unwrap_or(0));
    let pkey = sysfs::number(&folder.join("pkey")).and_then(|key| u16::try_from(key).ok());
    Some(Carries {
        device,
        port: told[0].max(told[1]).min(255) + 1,
        pkey: pkey.unwrap_or(DEFAULT_PKEY),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_reported() {
        for (text, megabits) in [
            ("100 Gb/sec (4X EDR)", 100_000),
            ("2.5 Gb/sec (1X SDR)", 2_500),
            ("56 Gb/sec (4X FDR)", 56_000),
            ("56.3 Gb/sec (4X FDR)", 56_000),
            ("400 Gb/sec (4X NDR)", 400_000),
            ("", 2_500),
            ("fast", 2_500),
            ("99999999999 Gb/sec", 2_500),
        ] {
            assert_eq!(rate(text).megabits(), megabits, "{text}");
        }
    }
}

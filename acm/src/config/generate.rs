//! Generates both configuration files for a host in a cluster of a given size, with the reason for each
//! value.
//!
//! All hosts may query at once, and every host receives every multicast query: with `n` hosts that each have
//! `d` queries in flight, `n × d` queries arrive at every host. The depths and the timeout of an answer
//! follow from that.

use std::path::Path;
use std::time::Duration;

use super::addresses::{AddressEntry, Pkey, write_addresses};
use super::options::{Options, comment, write_options};
use super::values::{Depth, Interfaces, RouteProtocol};
use crate::address::Address;
use crate::endpoint::{DEFAULT_PKEY, Endpoint, Link};
use crate::path::{Mtu, Rate};

/// Queries that may arrive at a host at about the same time without avoidable losses.
const BURST: u32 = 4096;
/// Time that each further query in such a burst adds to an answer, with a margin.
const EACH: Duration = Duration::from_micros(500);
/// Time that an answer may take on an idle cluster.
const IDLE: Duration = Duration::from_millis(500);
/// Number of hosts from which a query is repeated once more, since larger bursts lose more.
const LARGE: u32 = 1024;

/// Both files, and their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The options that were generated.
    pub options: Options,
    /// The text of the options file.
    pub options_text: String,
    /// The address entries.
    pub addresses: Vec<AddressEntry>,
    /// The text of the addresses file.
    pub addresses_text: String,
}

/// Generates options and addresses for a host with these endpoints, in a cluster of this many nodes.
///
/// The options should be the same on all hosts of a cluster, since they define the group that all are in.
#[must_use]
pub fn generate(endpoints: &[Endpoint], nodes: u32) -> Generated {
    let nodes = nodes.max(2);
    let options = options_for(endpoints, nodes);
    let options_text = options_text(&options, nodes);
    let addresses = addresses_of(endpoints);
    let addresses_text = addresses_text(&addresses);
    Generated {
        options,
        options_text,
        addresses,
        addresses_text,
    }
}

/// Returns the endpoints that lead to other hosts.
fn beyond(endpoints: &[Endpoint]) -> impl Iterator<Item = &Endpoint> {
    endpoints.iter().filter(|end| end.link != Link::Loopback)
}

fn options_for(endpoints: &[Endpoint], nodes: u32) -> Options {
    let base = Options::default();
    let depth = (BURST / nodes).clamp(1, 16);
    let burst = nodes.saturating_mul(depth);
    // Tenths of a second: more digits would feign precision.
    let tenths = (IDLE + EACH * burst).as_millis().div_ceil(100).min(600);
    let has_infiniband = beyond(endpoints).any(|end| end.link == Link::InfiniBand);
    let narrowest = beyond(endpoints).map(|end| end.mtu).min();
    let slowest = beyond(endpoints)
        .map(|end| end.rate)
        .min_by_key(|rate| rate.megabits());
    let mut names: Vec<String> = beyond(endpoints)
        .filter(|end| end.link == Link::Ethernet)
        .map(|end| end.device.clone())
        .collect();
    names.sort();
    names.dedup();
    Options {
        route_prot: if has_infiniband {
            RouteProtocol::Sa
        } else {
            RouteProtocol::Acm
        },
        timeout: Duration::from_millis(100 * tenths as u64),
        retries: if nodes >= LARGE { 3 } else { base.retries },
        resolve_depth: Depth::within(depth),
        sa_depth: Depth::within((64 / nodes).clamp(1, 8)),
        send_depth: Depth::within(depth.max(4)),
        recv_depth: Depth::within(burst.min(u32::from(Depth::MAX)).next_power_of_two().max(1024)),
        min_mtu: narrowest.map_or(base.min_mtu, |own: Mtu| own.min(base.min_mtu)),
        min_rate: slowest
            .filter(|own: &Rate| own.megabits() < base.min_rate.megabits())
            .unwrap_or(base.min_rate),
        doorbell_interfaces: if names.is_empty() {
            Interfaces::Loopback
        } else {
            Interfaces::Named(names)
        },
        ..base
    }
}

fn options_text(options: &Options, nodes: u32) -> String {
    let mut text = String::new();
    let head = format!(
        "Options of address and route resolution, generated for a cluster of {nodes} nodes. They should be the same on all of \
         them."
    );
    comment(&mut text, &head);
    text.push('\n');
    let depth = u32::from(options.resolve_depth.get());
    let burst = nodes.saturating_mul(depth);
    let why = |name: &str| {
        Some(match name {
            "timeout" => format!(
                "how long to wait for an answer: {} ms on an idle cluster, and {} us for each of {burst} queries \
                 that all nodes may send at once; 60 s at most.",
                IDLE.as_millis(),
                EACH.as_micros()
            ),
            "retries" => format!("how often a query is repeated: once more than usual from {LARGE} nodes on."),
            "resolve_depth" => format!(
                "multicast queries in flight: all nodes together send {BURST} at most, where that \
                 leaves one for each."
            ),
            "recv_depth" => format!("frames that may be queued: all {nodes} nodes with {depth} queries each."),
            "sa_depth" => "queries to the subnet administrator in flight: it serves all nodes, so fewer for \
                           more of them."
                .to_owned(),
            "send_depth" => "answers in flight: as many as queries, at least 4.".to_owned(),
            "route_prot" => "how routes are resolved: by the subnet administrator (sa) where there is \
                             InfiniBand, otherwise from the group (acm)."
                .to_owned(),
            "min_mtu" => "the MTU of the group that every host joins: the smallest of this host, 2048 at most. The same \
                          on all of them."
                .to_owned(),
            "min_rate" => "the rate of the group that every host joins: the slowest of this host, 10 at most. The same \
                           on all of them."
                .to_owned(),
            "doorbell_interfaces" => "the interfaces for messages between services: those of this host. Nothing listens \
                                      beyond the loopback before others are named."
                .to_owned(),
            _ => return None,
        })
    };
    text + &write_options(options, why)
}

fn addresses_of(endpoints: &[Endpoint]) -> Vec<AddressEntry> {
    let mut entries = Vec::new();
    for end in beyond(endpoints) {
        let names = end
            .addresses
            .iter()
            .filter(|address| matches!(address, Address::Name(_)));
        entries.extend(names.map(|name| AddressEntry {
            address: name.clone(),
            device: end.device.clone(),
            port: end.port,
            pkey: if end.pkey == DEFAULT_PKEY {
                Pkey::Default
            } else {
                Pkey::Is(end.pkey)
            },
            line: 0,
        }));
    }
    entries
}

fn addresses_text(entries: &[AddressEntry]) -> String {
    let mut text = String::new();
    comment(
        &mut text,
        "Names of this host's ports: address device port pkey. IP addresses need not be listed.",
    );
    let lines = write_addresses(entries);
    if lines.is_empty() {
        comment(&mut text, "This host has no port but the loopback.");
    }
    text + "\n" + &lines
}

impl Generated {
    /// Writes both files into a folder, under their usual names.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join(super::OPTIONS_FILE), &self.options_text)?;
        std::fs::write(folder.join(super::ADDRESSES_FILE), &self.addresses_text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Gid, Name};
    use crate::config::{Warnings, read_addresses, read_options};

    fn end(link: Link, device: &str, mtu: u32, pkey: u16) -> Endpoint {
        Endpoint {
            device: device.to_owned(),
            other_names: Vec::new(),
            guid: 1,
            interface: 2,
            port: 1,
            ports: 1,
            pkey,
            link,
            gid: Gid::NONE,
            lid: 0,
            mtu: Mtu::within(mtu).unwrap(),
            rate: Rate::within(100_000),
            subnet_timeout: 18,
            addresses: vec![
                Address::Name(Name::new("node1").unwrap()),
                Address::V4([10, 0, 0, 1].into()),
            ],
            networks: Vec::new(),
        }
    }

    fn same_again(made: &Generated) {
        let mut warnings = Warnings::default();
        let options = read_options(made.options_text.as_bytes(), Path::new("o"), &mut warnings);
        assert_eq!(options, made.options);
        let entries = read_addresses(
            made.addresses_text.as_bytes(),
            Path::new("a"),
            false,
            &mut warnings,
        );
        assert_eq!(entries, made.addresses);
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn ethernet_alone_has_routes_from_the_group_that_fits_it() {
        let made = generate(
            &[
                end(Link::Loopback, "lo", 4096, 0xffff),
                end(Link::Ethernet, "eth0", 1024, 0xffff),
            ],
            16,
        );
        assert_eq!(made.options.route_prot, RouteProtocol::Acm);
        assert_eq!(made.options.min_mtu.bytes(), 1024);
        assert_eq!(
            made.options.doorbell_interfaces,
            Interfaces::Named(vec!["eth0".to_owned()])
        );
        assert_eq!(made.addresses_text.lines().last(), Some("node1 eth0 1 default"));
        same_again(&made);
    }

    #[test]
    fn infiniband_asks_the_administration_and_partitions_are_named() {
        let made = generate(&[end(Link::InfiniBand, "mlx5_0", 4096, 0x8001)], 2000);
        assert_eq!(made.options.route_prot, RouteProtocol::Sa);
        assert_eq!((made.options.retries, made.options.resolve_depth.get()), (3, 2));
        assert_eq!(made.addresses[0].pkey, Pkey::Is(0x8001));
        assert_eq!(made.options.doorbell_interfaces, Interfaces::Loopback);
        same_again(&made);
    }

    #[test]
    fn files_are_written_under_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let made = generate(&[], 2);
        made.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join("ibacm_opts.cfg")).unwrap();
        assert_eq!(text, made.options_text);
        assert!(folder.path().join("ibacm_addr.cfg").is_file());
        assert!(made.write(&folder.path().join("no")).is_err());
    }

    proptest! {
        #[test]
        fn any_size_of_cluster_is_read_again_and_has_room_for_all(nodes in any::<u32>(), small in 0..5000u32) {
            for nodes in [nodes, small] {
                let made = generate(&[end(Link::Ethernet, "eth0", 1024, 0xffff)], nodes);
                same_again(&made);
                let options = &made.options;
                let burst = u64::from(nodes) * u64::from(options.resolve_depth.get());
                prop_assert!(u64::from(options.recv_depth.get()) >= burst.min(Depth::MAX.into()));
                prop_assert!(options.timeout <= Duration::from_secs(60));
            }
        }
    }
}

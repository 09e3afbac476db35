//! Other interfaces of this host in the rail's own network (IPv4): by default Linux answers ARP for all of a
//! host's addresses at each of its interfaces, sends by the one that the routing table prefers, and may drop
//! what comes in by another one. A rail is one interface.
//!
//! Source: Documentation/networking/ip-sysctl.rst of Linux: of an interface's value and that of `all`, the
//! larger one holds.

use std::net::{IpAddr, Ipv4Addr};

use doorbell_fabric::pairs::within;
use doorbell_inet::{Assigned, Interface, assigned};

use super::chain::{Fix, Link, Walk};
use super::system::System;

/// `rp_filter`: a packet has to come in by the interface by which its answer would leave; or by any that
/// leads there.
const STRICT: u64 = 1;
const LOOSE: u64 = 2;

/// The step. `by_kernel`: whether the kernel's stack delivers frames to the rail, which then have to pass its
/// filters.
pub(super) fn step(
    walk: &mut Walk,
    system: &System,
    found: &Interface,
    peer: Option<IpAddr>,
    by_kernel: bool,
) -> Link {
    let IpAddr::V4(own) = found.address else {
        return Ok(());
    };
    if found.is_loopback() {
        return Ok(());
    }
    let all = assigned().unwrap_or_default();
    let others = beside(&all, found);
    if others.is_empty() {
        walk.ok("subnet", "no other interface of this host is in its network");
        return Ok(());
    }
    let to = peer.filter(|peer| within(found.address, *peer, found.prefix));
    let to = to.or_else(|| stranger(&all, own, found.prefix));
    let is_preferred = to.is_none_or(|to| found.is_preferred(to));
    judge(walk, system, &found.name, &others, is_preferred || !by_kernel)
}

/// The other interfaces with an address in the same network.
fn beside(all: &[Assigned], found: &Interface) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for one in all
        .iter()
        .filter(|one| one.interface != found.name && one.interface != "lo")
    {
        let is_near = |address: IpAddr| {
            within(found.address, address, found.prefix) && within(found.address, address, one.prefix)
        };
        if one.address.is_some_and(is_near) && one.prefix < 32 && !names.contains(&one.interface) {
            names.push(one.interface.clone());
        }
    }
    names
}

/// An address of the network that none of our interfaces has.
fn stranger(all: &[Assigned], own: Ipv4Addr, prefix: u8) -> Option<IpAddr> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let base = own.to_bits() & mask;
    let hosts = (1..=64).map(|at| IpAddr::from(Ipv4Addr::from_bits(base | at & !mask)));
    let mut free = hosts.filter(|ip| all.iter().all(|one| one.address != Some(*ip)));
    free.next()
}

/// The value that holds for an interface.
fn value(system: &System, name: &str, interface: &str) -> u64 {
    let of = |which: &str| {
        system
            .number(&format!("/proc/sys/net/ipv4/conf/{which}/{name}"))
            .unwrap_or(0)
    };
    of("all").max(of(interface))
}

/// The name of an interface's setting for sysctl(8): with slashes, since an interface's name may hold dots
/// (`eth0.100`).
fn key(interface: &str, name: &str) -> String {
    format!("net/ipv4/conf/{interface}/{name}")
}

fn judge(walk: &mut Walk, system: &System, own: &str, others: &[String], passes: bool) -> Link {
    let with = others.join(", ");
    let strict = value(system, "rp_filter", own);
    if strict == STRICT && !passes {
        return Err(walk.broken(
            "subnet",
            format!(
                "{own} and {with} are in one network, the routing table prefers another one than {own}, and \
                 rp_filter of {own} is {STRICT} (strict)"
            ),
            "the kernel drops what comes in by an interface by which its answer would not leave",
            vec![Fix::run(
                format!("sysctl -w {}={LOOSE}", key(own, "rp_filter")),
                "let packets in by any interface that leads to their sender",
            )],
        ));
    }
    let each: Vec<&str> = std::iter::once(own)
        .chain(others.iter().map(String::as_str))
        .collect();
    let least = |name: &str| each.iter().map(|one| value(system, name, one)).min().unwrap_or(0);
    let (ignore, announce, filter) = (least("arp_ignore"), least("arp_announce"), least("arp_filter"));
    let saw = format!(
        "{own} and {with} are in one network: rp_filter {strict}, arp_ignore {ignore}, arp_announce \
         {announce}, arp_filter {filter}, accept_local {}",
        value(system, "accept_local", own)
    );
    if ignore > 0 && announce > 0 || filter > 0 {
        walk.ok("subnet", saw);
        return Ok(());
    }
    let set = each
        .iter()
        .map(|one| format!("{}=1 {}=2", key(one, "arp_ignore"), key(one, "arp_announce")));
    let set: Vec<String> = set.collect();
    walk.note(
        "subnet",
        format!(
            "{saw}: each answers for the others' addresses, so that a peer's frames for {own} may come \
                 in by another one"
        ),
        vec![
            Fix::run(
                format!("sysctl -w {}", set.join(" ")),
                "let each interface answer for its own addresses only",
            ),
            Fix::hand("or give each interface a network of its own"),
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Chain, Is};
    use super::super::system::fake::Fake;
    use super::*;

    fn judged(fake: &Fake, passes: bool) -> Chain {
        let others = ["v1.100".to_owned()];
        Walk::along("udp:v0", |walk| {
            judge(walk, &fake.system(), "v0", &others, passes)
        })
    }

    #[test]
    fn two_interfaces_of_one_network_are_judged_by_what_the_kernel_does_with_them() {
        let fake = Fake::new();
        let set = |of: &str, name: &str, value: &str| {
            fake.file(&format!("/proc/sys/net/ipv4/conf/{of}/{name}"), value);
        };
        // As Linux has it by default: ARP is answered by all.
        let chain = judged(&fake, false);
        assert_eq!(chain.steps[0].is, Is::Note, "{chain:#?}");
        let command = chain.steps[0].fixes[0].command.as_deref().unwrap();
        assert!(command.contains("conf/v0/arp_ignore=1") && command.contains("conf/v1.100/arp_announce=2"));
        for name in ["arp_ignore", "arp_announce"] {
            set("v0", name, "1");
            assert_eq!(
                judged(&fake, false).steps[0].is,
                Is::Note,
                "one of the two is not enough"
            );
            set("v1.100", name, "2");
        }
        assert_eq!(judged(&fake, false).steps[0].is, Is::Ok);
        // The larger one of both values holds.
        set("all", "rp_filter", "1");
        let chain = judged(&fake, false);
        let step = &chain.steps[0];
        assert_eq!(
            (step.is, step.fixes[0].command.as_deref()),
            (Is::Broken, Some("sysctl -w net/ipv4/conf/v0/rp_filter=2")),
            "{chain:#?}"
        );
        assert_eq!(
            judged(&fake, true).steps[0].is,
            Is::Ok,
            "what is preferred passes"
        );
        set("v0", "rp_filter", "2");
        assert_eq!(judged(&fake, false).steps[0].is, Is::Ok);
    }

    #[test]
    fn a_name_with_a_dot_is_one_name_for_sysctl() {
        let fake = Fake::new();
        fake.file("/proc/sys/net/ipv4/conf/eth0.100/rp_filter", "1");
        let others = ["eth0".to_owned()];
        let chain = Walk::along("udp:eth0.100", |walk| {
            judge(walk, &fake.system(), "eth0.100", &others, false)
        });
        assert_eq!(
            chain.steps[0].fixes[0].command.as_deref(),
            Some("sysctl -w net/ipv4/conf/eth0.100/rp_filter=2")
        );
    }

    #[test]
    fn a_stranger_of_a_network_is_none_of_ours() {
        let one = |ip: [u8; 4]| Assigned {
            interface: "v0".to_owned(),
            address: Some(ip.into()),
            prefix: 24,
            label: None,
            alternatives: Vec::new(),
        };
        let all = [one([10, 9, 0, 1]), one([10, 9, 0, 2])];
        assert_eq!(
            stranger(&all, [10, 9, 0, 1].into(), 24),
            Some([10, 9, 0, 3].into())
        );
        assert_eq!(stranger(&all, [10, 9, 0, 1].into(), 32), None);
    }
}

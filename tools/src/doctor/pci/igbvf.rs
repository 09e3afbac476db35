//! The last steps of a virtual function of an 82576 or I350: with the rail itself, which resolves the
//! hardware address of the physical function's interface over the adapter's switch. (A function cannot send
//! to itself: the switch does not return its own packets to it.)

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram as _, Receive as _};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_igbvf::{IgbvfConfig, IgbvfRail};
use doorbell_vfio::{Bdf, Host, Role};

use super::Live;
use crate::doctor::chain::{Fix, Link, Walk};

/// How long an answer and an interrupt may take.
const ANSWER: Duration = Duration::from_secs(3);
const INTERRUPT: Duration = Duration::from_secs(1);
/// The kernel's records that are shown.
const SHOWN: usize = 1;

/// The steps of `igbvf`.
pub(in crate::doctor) struct IgbvfSteps;

impl Live for IgbvfSteps {
    fn kind(&self) -> &'static str {
        "igbvf"
    }

    fn memory(&self) -> u64 {
        IgbvfConfig::default().locked_bytes()
    }

    fn steps(&self, walk: &mut Walk, bdf: Bdf) -> Link {
        let mut rail = opened(walk, bdf)?;
        match rail.nic().speed() {
            Some((speed, full)) => {
                let half = if full { "" } else { ", half duplex" };
                walk.ok("link", format!("up, {speed} Mb/s{half}"));
            }
            None => {
                return Err(walk.broken(
                    "link",
                    "the function has no link",
                    "its physical function is down or has no cable, or the link of this one is turned off there",
                    vec![Fix::hand(
                        "`ip link` shows the physical function's interface and the state of its vf",
                    )],
                ));
            }
        }
        interrupt(walk, &mut rail)?;
        let framed = frame(walk, bdf, &mut rail);
        // Most useful where no frame passes.
        stopped(walk, bdf);
        framed
    }
}

/// Returns an address that is valid on this link only and that no other host has: it is used during the
/// diagnosis.
fn own_address() -> String {
    let number = std::process::id();
    format!("fe80::d00b:{:x}:{:x}/64", number >> 16, number & 0xffff)
}

fn opened(walk: &mut Walk, bdf: Bdf) -> Result<IgbvfRail, crate::doctor::chain::Ended> {
    let config = IgbvfConfig {
        address: Some(own_address()),
        ..IgbvfConfig::default()
    };
    let name = format!("igbvf:{bdf}").parse();
    match name.and_then(|name| IgbvfRail::open(&name, &config)) {
        Ok(rail) => {
            let [a, b, c, d, e, f] = rail.mac();
            walk.ok(
                "rings",
                format!(
                    "the physical function answers, and the queues are on ({}, hardware address \
                     {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x})",
                    rail.how()
                ),
            );
            Ok(rail)
        }
        Err(RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. }) => {
            Err(walk.broken(
                "rings",
                reason,
                "the device or its physical function does not do what the rail requests",
                vec![Fix::quoted(&remedy)],
            ))
        }
        Err(error) => Err(walk.broken("rings", error.to_string(), "the system refuses it", Vec::new())),
    }
}

fn interrupt(walk: &mut Walk, rail: &mut IgbvfRail) -> Link {
    if rail.nic().check_interrupt(INTERRUPT) {
        walk.ok("interrupt", "one that was raised by hand came by its eventfd");
        return Ok(());
    }
    Err(walk.broken(
        "interrupt",
        "one that was raised by hand did not come",
        "interrupt remapping is off, or the function's vectors are taken: a rail that sleeps would never wake",
        vec![Fix::hand(
            "boot without `intremap=off`, and look for the kernel's reason: `dmesg | grep -i remap`",
        )],
    ))
}

/// Sends a request through the rings that the kernel answers, at the physical function's interface.
fn frame(walk: &mut Walk, bdf: Bdf, rail: &mut IgbvfRail) -> Link {
    let Some((interface, address)) = neighbour(bdf) else {
        walk.unknown(
            "frame",
            "no neighbour can answer: its physical function's interface is not here, or has no link-local IPv6 address",
            vec![Fix::hand(
                "`doorbell links` or `doorbell pingpong` with a peer shows whether frames pass",
            )],
        );
        return Ok(());
    };
    let begun = Instant::now();
    let peer = RailAddress::inet("udp", SocketAddr::new(address, 56080));
    let peer = match rail.open(&peer, Incarnation(1)) {
        Ok(peer) => peer,
        Err(error) => {
            return Err(walk.broken("frame", error.to_string(), "an error of doorbell", Vec::new()));
        }
    };
    while !rail.is_resolved(peer) && begun.elapsed() < ANSWER {
        rail.split().1.poll(Channel::Priority, 16);
        let now = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        rail.progress(Time::from_nanos(now));
        std::thread::sleep(Duration::from_micros(200));
    }
    if rail.is_resolved(peer) {
        let bytes = rail.nic().bus_memory().map_or(0, |(_, bytes)| bytes);
        walk.ok(
            "dma",
            format!(
                "the device read a frame from {} KiB that it shares with us, and wrote one",
                bytes >> 10
            ),
        );
        walk.proved(
            "frame",
            format!("{interface} answered a request for its hardware address through the rings"),
        );
        return Ok(());
    }
    Err(walk.broken(
        "frame",
            format!("{interface} did not answer requests for its hardware address through the rings"),
        "the adapter's switch keeps the function's packets (a vlan, a spoof check, a firewall of the interface), or the IOMMU stops its DMA",
        vec![
            Fix::hand(format!("`ip link show {interface}` shows the vf's settings")),
            Fix::hand("`dmesg | grep -e DMAR -e AMD-Vi` shows what the IOMMU stopped"),
        ],
    ))
}

/// The physical function's interface, and an address that it answers for on its link.
fn neighbour(bdf: Bdf) -> Option<(String, IpAddr)> {
    let device = Host::here().device(bdf).ok()?;
    let Role::Virtual { interfaces, .. } = device.role else {
        return None;
    };
    let interface = interfaces.into_iter().next()?.name;
    let assigned = doorbell_inet::assigned().ok()?;
    let of_link = assigned.into_iter().find_map(|one| {
        let address = one.address.filter(|_| one.interface == interface)?;
        matches!(address, IpAddr::V6(six) if six.is_unicast_link_local()).then_some(address)
    })?;
    Some((interface, of_link))
}

/// Checks what the IOMMU stopped the device from doing, since the log begins.
fn stopped(walk: &mut Walk, bdf: Bdf) {
    match Host::here().faults(bdf) {
        Ok(faults) if faults.is_empty() => {
            walk.ok("iommu-faults", "the kernel's log has none of this device")
        }
        Ok(faults) => {
            let last: Vec<_> = faults.iter().rev().take(SHOWN).cloned().collect();
            walk.note(
                "iommu-faults",
                format!(
                    "the IOMMU stopped this device {} times from reaching memory that is not shared with it, last: {}",
                    faults.len(),
                    last.join("; ")
                ),
                vec![Fix::hand(
                    "its last driver gave it wrong addresses, or freed memory too early: report it to that driver's authors",
                )],
            );
        }
        Err(error) => walk.unknown(
            "iommu-faults",
            format!("the kernel's log cannot be read ({error})"),
            vec![Fix::hand("look as root: `dmesg | grep -e DMAR -e AMD-Vi`")],
        ),
    }
}

//! What is tried with queue pairs of the port itself.

use std::net::IpAddr;

use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::gid::Kind;
use doorbell_fabric::rail::Rail as _;
use doorbell_verbs::{Service, UdRail, VerbsConfig};

use super::{At, Ended, Facts, Fix, Link, Walk, connections, flow, peer, refused, windows};
use crate::doctor::firewall::{self, Fate, Frames};
use crate::doctor::frames;

/// The port of RoCE v2, by its registration.
const ROCE: u16 = 4791;
/// Bytes of a datagram's heads below Ethernet: IPv6, UDP, BTH, DETH, checksum.
pub(super) const HEADS: usize = 40 + 8 + 12 + 8 + 4;
/// Opens the rail and goes through the steps that need it.
pub(super) fn steps(
    walk: &mut Walk,
    at: &At<'_>,
    config: &VerbsConfig,
    facts: &Facts,
    towards: Option<IpAddr>,
) -> Link {
    // Its memory would count against the limit while rails of connections are opened.
    drop(queues(walk, at, config)?);
    match at.service {
        Service::Connections => windows::steps(walk, at, config),
        Service::Datagrams => walk.not_applicable("windows", "the rail carries datagrams"),
    }
    let mut rail = datagrams(walk, at, config)?;
    frames_pass(walk, &mut rail)?;
    drop(rail);
    match at.service {
        Service::Connections => connections::steps(walk, at, config)?,
        Service::Datagrams => walk.not_applicable("connection", "the rail carries datagrams"),
    }
    filter(walk, at, facts)?;
    flow::loss(walk, at);
    flow::flow_control(walk, facts, config);
    flow::privileged_keys(walk, at);
    match towards {
        Some(towards) => {
            let mut rail = datagrams(walk, at, config)?;
            peer::steps(walk, at, facts, &mut rail, towards)
        }
        None => {
            walk.not_applicable("peer", "none is named: `--peer ADDRESS` checks the path to one");
            Ok(())
        }
    }
}

/// Opens the datagrams of the port: a rail of connections has a queue pair of datagrams, too, by which it
/// finds its peers.
fn datagrams(walk: &mut Walk, at: &At<'_>, config: &VerbsConfig) -> Result<UdRail, Ended> {
    let name = format!("verbs:{}:{}:ud", at.device, at.port).parse();
    let rail = name.and_then(|name| UdRail::open(&name, config));
    rail.map_err(|error| refused(walk, "queues", &error))
}

fn queues(walk: &mut Walk, at: &At<'_>, config: &VerbsConfig) -> Result<UdRail, Ended> {
    let rail = datagrams(walk, at, config)?;
    let [wanted, granted] = rail.queues();
    let saw = format!(
        "{} sends, {} receives and {} bytes inline were requested, and {}, {} and {} granted",
        wanted.sends, wanted.receives, wanted.inline, granted.sends, granted.receives, granted.inline
    );
    walk.ok("queues", saw);
    Ok(rail)
}

/// Datagrams from the port to itself.
fn frames_pass(walk: &mut Walk, rail: &mut UdRail) -> Link {
    let own = rail.address();
    let life = rail.incarnation();
    let itself = match Datagram::open(rail, &own, life) {
        Ok(itself) => itself,
        Err(error) => return Err(refused(walk, "frames", &error)),
    };
    let Some(came) = frames::loop_back(rail, itself) else {
        return Err(walk.broken(
            "frames",
            "no datagram that the port sends to itself arrives",
            "the device does not loop datagrams back, its GID is not valid any more, or a queue pair is broken",
            vec![Fix::hand("look at the kernel's log: `dmesg`; `ibv_ud_pingpong` of ibverbs-utils tries the same")],
        ));
    };
    let saw = format!(
        "of {} datagrams each, {} of 64 bytes and {} of {} bytes came back from the port to itself",
        came.sent, came.short, came.full, came.length
    );
    if came.short * 2 > came.sent && came.full * 2 > came.sent {
        walk.proved("frames", saw);
        return Ok(());
    }
    Err(walk.broken(
        "frames",
        saw,
        "long datagrams are lost within the device: its MTU is not what the port reports",
        vec![Fix::hand(
            "set the MTU of its interface again, and look at the kernel's log",
        )],
    ))
}

/// Soft-RoCE's packets go through the kernel's rules; those of a card do not.
fn filter(walk: &mut Walk, at: &At<'_>, facts: &Facts) -> Link {
    let first = facts.port.gids.usable.first().map(|entry| entry.published);
    let interface = facts.port.interface.as_ref();
    let (Some(first), Some(interface), true) = (first, interface, facts.is_soft()) else {
        walk.not_applicable(
            "firewall",
            "a card's packets pass no rule of the kernel's packet filter",
        );
        return Ok(());
    };
    if first.kind != Kind::RoceV2 {
        walk.not_applicable(
            "firewall",
            "packets of RoCE v1 are not IP, and pass no rule for UDP",
        );
        return Ok(());
    }
    let frames = Frames {
        interface,
        is_ipv4: first.gid.address().is_ipv4(),
        ports: (ROCE, ROCE),
        longest: facts.port.mtu.unwrap_or(0) + HEADS,
    };
    judged(walk, firewall::judge(at.system, &frames))
}

/// What the packet filter does to packets of soft-RoCE.
pub(super) fn judged(walk: &mut Walk, fate: Fate) -> Link {
    match fate {
        Fate::Passes(saw) => walk.ok("firewall", saw),
        Fate::Drops { rule, way, fix } => {
            return Err(walk.broken(
                "firewall",
                format!("{rule} drops {}", way.what()),
                "soft-RoCE sends UDP packets to port 4791 through the kernel's packet filter",
                vec![Fix::run(fix, "let port 4791 pass (and at the peer)")],
            ));
        }
        Fate::MayDrop { rule, way, .. } => walk.unknown(
            "firewall",
            format!(
                "{rule} may drop {}, depending on what is not looked at here",
                way.what()
            ),
            vec![Fix::hand("let UDP port 4791 pass before it, at both ends")],
        ),
        Fate::Unknown { why, how } => walk.unknown("firewall", why, vec![Fix::hand(how)]),
    }
    Ok(())
}

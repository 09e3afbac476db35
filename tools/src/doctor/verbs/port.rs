//! A port: its state, partition and GIDs, the length of its datagrams, and the memory of a rail over it.

use doorbell_fabric::gid::{FULL_MEMBER, Link as LinkLayer};
use doorbell_verbs::gid::Entry;
use doorbell_verbs::inspect::PortFacts;
use doorbell_verbs::{Service, name_error};

use super::{At, Ended, Facts, Fix, Link, Stack, Walk, fault, machine};
use crate::doctor::memlock;

/// The longest datagram that a port can have, in bytes, and the MTU of an interface that it takes.
const MOST: usize = 4096;
const INTERFACE_MTU: u32 = 4200;

/// The steps of the port.
pub(super) fn steps(walk: &mut Walk, at: &At<'_>, stack: &impl Stack) -> Result<Facts, Ended> {
    let device = match stack.device(at.device) {
        Ok(device) => device,
        Err(error) => {
            return Err(fault(
                walk,
                "open",
                &error,
                "the device does not open for this process",
            ));
        }
    };
    let provider = device.provider.as_ref().map(|file| file.display().to_string());
    let mut saw = format!(
        "opened, driven by {}",
        provider.as_deref().unwrap_or("its provider")
    );
    if !device.firmware.is_empty() {
        saw.push_str(&format!(", firmware {}", device.firmware));
    }
    walk.ok("open", saw);
    if at.port > device.ports {
        let remedy = name_error(&at.tree, at.name).map(|error| error.to_string());
        return Err(walk.broken(
            "port",
            format!("{} has no port {}: it has {}", at.device, at.port, device.ports),
            "ports are counted from 1",
            vec![Fix::hand(
                remedy.unwrap_or_else(|| format!("name `verbs:{}:1`", at.device)),
            )],
        ));
    }
    let port = match stack.port(at.device, at.port) {
        Ok(port) => port,
        Err(error) => {
            return Err(fault(
                walk,
                "port",
                &error,
                "the port cannot be looked at, or a setting names what it lacks",
            ));
        }
    };
    state(walk, at, &port)?;
    partition(walk, &port)?;
    gids(walk, &port)?;
    mtu(walk, at, &port)?;
    let locked = match at.service {
        Service::Connections => port.locked_by_connections,
        Service::Datagrams => port.locked,
    };
    memlock::step(walk, at.system, locked as u64)?;
    fork(walk, at, stack.library().copies_at_fork);
    let flow = match &port.interface {
        Some(interface) => stack.flow(interface),
        None => Ok(None),
    };
    Ok(Facts { device, port, flow })
}

fn state(walk: &mut Walk, at: &At<'_>, port: &PortFacts) -> Link {
    if let Some(down) = &port.down {
        let cause = match port.link {
            LinkLayer::Ethernet => "the port follows its network interface: both are up, or both are down",
            LinkLayer::InfiniBand => "a port passes nothing before the subnet manager has made it ACTIVE",
        };
        return Err(fault(walk, "port", down, cause));
    }
    let speed = at
        .system
        .text(&format!(
            "/sys/class/infiniband/{}/ports/{}/rate",
            at.device, at.port
        ))
        .map_or_else(String::new, |speed| format!(", {speed}"));
    let on = port.interface.as_ref();
    let on = on.map_or_else(String::new, |interface| format!(" on {interface}"));
    walk.ok(
        "port",
        format!("{} ({}{on}{speed})", port.state, port.link.name()),
    );
    Ok(())
}

fn partition(walk: &mut Walk, port: &PortFacts) -> Link {
    if let Some(without) = &port.no_partition {
        return Err(fault(
            walk,
            "partition",
            without,
            "the subnet manager has given the port none",
        ));
    }
    let Some((index, key)) = port.partition else {
        return Ok(());
    };
    let saw = format!("{key:#06x}, at index {index}");
    if key & FULL_MEMBER == 0 {
        walk.note(
            "partition",
            format!("{saw}: a limited member, which reaches full members alone"),
            vec![Fix::hand(
                "have the subnet manager make it a full member, where ranks are on limited ones alone",
            )],
        );
    } else {
        walk.ok("partition", saw);
    }
    Ok(())
}

fn shown(entry: &Entry) -> String {
    let published = entry.published;
    format!("{} {} ({})", entry.index, published.gid, published.kind)
}

/// The table in order of preference, and what is not used of it.
fn gids(walk: &mut Walk, port: &PortFacts) -> Link {
    let usable = port.gids.usable.iter().enumerate().map(|(at, entry)| {
        let behind = port.gids.behind(at);
        behind.map_or_else(|| shown(entry), |why| format!("{}: {why}", shown(entry)))
    });
    let unusable = port.gids.unusable.iter();
    let unusable = unusable.map(|one| format!("not {}: it {}", shown(&one.entry), one.reason));
    let table: Vec<String> = usable.chain(unusable).collect();
    let table = table.join("; ");
    if let Some(without) = &port.no_gid {
        let saw = if table.is_empty() {
            without.reason.clone()
        } else {
            table
        };
        return Err(walk.broken(
            "gid",
            saw,
            match port.link {
                LinkLayer::Ethernet => {
                    "GIDs are made of the addresses of the port's interface, in this network namespace"
                }
                LinkLayer::InfiniBand => "GIDs of InfiniBand come from the subnet manager",
            },
            vec![Fix::quoted(&without.remedy)],
        ));
    }
    walk.ok("gid", table);
    Ok(())
}

fn mtu(walk: &mut Walk, at: &At<'_>, port: &PortFacts) -> Link {
    if let Some(without) = &port.no_mtu {
        return Err(fault(
            walk,
            "mtu",
            without,
            "its provider or its firmware is broken",
        ));
    }
    let active = port.mtu.unwrap_or(0);
    let saw = format!("datagrams of up to {active} bytes");
    let Some(interface) = port.interface.as_ref().filter(|_| active < MOST) else {
        walk.ok("mtu", saw);
        return Ok(());
    };
    let own = at.system.number(&format!("/sys/class/net/{interface}/mtu"));
    let own = own.map_or_else(String::new, |mtu| format!(", as {interface} has an MTU of {mtu}"));
    walk.note(
        "mtu",
        format!("{saw}{own}; an MTU of {INTERFACE_MTU} gives {MOST}"),
        vec![Fix::run(
            format!("ip link set {interface} mtu {INTERFACE_MTU}"),
            "at both ends, and where the switch between them takes packets as long",
        )],
    );
    Ok(())
}

/// Whether a child of fork(2) gets copies of pages that the device may write.
fn fork(walk: &mut Walk, at: &At<'_>, is_copied: bool) {
    match machine::release(at.system) {
        _ if is_copied => walk.ok(
            "fork",
            "the library reports that the kernel copies pages that a device may write for a child; a child uses no rail \
             of its parent",
        ),
        (0, 0) => walk.unknown("fork", "the kernel's version is not known", Vec::new()),
        version if version >= (5, 12) => walk.ok(
            "fork",
            "the kernel copies pages that a device may write for a child; a child uses no rail of its parent",
        ),
        (major, minor) => walk.note(
            "fork",
            format!(
                "Linux {major}.{minor} copies no pages that a device may write: the rail has the library keep them from \
                 children (`ibv_fork_init`), and copies borrowed memory"
            ),
            vec![Fix::hand(
                "where another part of the program registers memory before doorbell does, the library refuses that: set \
                 RDMAV_FORK_SAFE=1 for the program",
            )],
        ),
    }
}

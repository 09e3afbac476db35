//! The last steps of a VIC's usNIC function: what usNIC's own users check before they use one (enough functions, queue pairs and
//! completion queues), who steers for it, and the rail itself.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail as _;
use doorbell_usnic::{Object, UsnicConfig, UsnicRail};
use doorbell_vfio::{Bdf, Host, PciDevice, Role};
use std::time::Duration;

use super::Live;
use crate::doctor::chain::{Chain, Ended, Fix, Link, Walk};

/// How long an interrupt may take.
const INTERRUPT: Duration = Duration::from_secs(1);

/// The steps of `usnic`.
pub(in crate::doctor) struct UsnicSteps;

impl Live for UsnicSteps {
    fn kind(&self) -> &'static str {
        "usnic"
    }

    fn memory(&self) -> u64 {
        UsnicConfig::default().locked_bytes()
    }

    fn steps(&self, walk: &mut Walk, bdf: Bdf) -> Link {
        steps(walk, &format!("usnic:{bdf}"), &Object::Pci(bdf))
    }
}

/// The chain of a function that a process models.
pub(in crate::doctor) fn model(name: &RailName) -> Chain {
    Walk::along(name.as_str(), |walk| {
        let object = match Object::parse(name.object()) {
            Ok(object) => object,
            Err(reason) => {
                return Err(walk.broken(
                    "device",
                    reason,
                    "the name is short of something",
                    vec![Fix::hand("write usnic:model/DIR/vf0")],
                ));
            }
        };
        // Of any function, the first one is looked at that is there.
        let object = object.each().into_iter().next().unwrap_or(object);
        let socket = object.socket().unwrap_or_default();
        if !socket.exists() {
            return Err(walk.broken(
                "device",
                format!("nobody has made the socket {}", socket.display()),
                "the model does not run, or has another folder",
                vec![Fix::hand("start it: doorbell model vic --dir DIR")],
            ));
        }
        walk.ok(
            "device",
            format!("a model of a VIC's function, behind {}", socket.display()),
        );
        steps(walk, name.as_str(), &object)
    })
}

/// The physical function: the kernel's, an agent's, or nobody's.
pub(super) fn parent(walk: &mut Walk, device: &PciDevice) {
    let Role::Virtual {
        physical,
        driver,
        interfaces,
        ..
    } = &device.role
    else {
        return walk.not_applicable(
            "parent",
            "its physical function is not this machine's: a function that was handed to this guest, or one without any",
        );
    };
    let count = match Host::here().device(*physical).map(|one| one.role) {
        Ok(Role::Physical { virtuals, .. }) => virtuals.len(),
        _ => 0,
    };
    let saw = match (interfaces.first(), driver.as_deref()) {
        (Some(interface), _) => format!(
            "its physical function {physical} is the kernel's ({})",
            interface.name
        ),
        (None, Some("vfio-pci")) => format!("its physical function {physical} is for an agent (vfio-pci)"),
        (None, other) => format!(
            "nobody uses its physical function {physical} (driver: {})",
            other.unwrap_or("none")
        ),
    };
    walk.ok(
        "parent",
        format!("{saw}; functions for as many ranks of this host: {count}"),
    );
}

fn steps(walk: &mut Walk, name: &str, object: &Object) -> Link {
    agent(walk, object);
    let mut rail = opened(walk, name, object)?;
    queues(walk, &rail);
    link(walk, &rail)?;
    interrupt(walk, &mut rail)
}

/// Of this link only, and nobody's: it is used as long as the diagnosis takes.
fn own_address() -> String {
    let number = std::process::id();
    format!("169.254.{}.{}/16", 1 + (number >> 8) % 254, number % 254 + 1)
}

fn agent(walk: &mut Walk, object: &Object) {
    let Some(socket) = doorbell_usnic::agent_socket(&UsnicConfig::default(), object) else {
        return walk.not_applicable(
            "agent",
            "there is no physical function here whose agent could be asked",
        );
    };
    if socket.exists() {
        walk.ok("agent", format!("there is a socket of one: {}", socket.display()));
        return;
    }
    walk.note(
        "agent",
        format!("nobody has made the socket {}: the function itself is asked for filters", socket.display()),
        vec![Fix::hand(
            "a usNIC function may refuse that (error 3); then: doorbell agent usnic --pf BDF, with the physical function bound to vfio-pci",
        )],
    );
}

fn opened(walk: &mut Walk, name: &str, object: &Object) -> Result<UsnicRail, Ended> {
    let address = match object {
        Object::Pci(_) => Some(own_address()),
        Object::Model { .. } => None,
    };
    let config = UsnicConfig {
        address,
        ..UsnicConfig::default()
    };
    match name.parse().and_then(|name| UsnicRail::open(&name, &config)) {
        Ok(rail) => {
            let [a, b, c, d, e, f] = rail.mac();
            walk.ok(
                "rings",
                format!(
                    "frames are steered to the function, and its queues run ({}, hardware address \
                     {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x})",
                    rail.how()
                ),
            );
            Ok(rail)
        }
        Err(RailError::Unusable { reason, remedy, .. }) => Err(walk.broken(
            "rings",
            reason,
            "the device, its physical function or the agent does not do what the rail asks for",
            vec![Fix::quoted(&remedy)],
        )),
        Err(error) => Err(walk.broken("rings", error.to_string(), "the system refuses it", Vec::new())),
    }
}

/// usNIC's rule for a function: two queue pairs and two completion queues at least. The rail has refused fewer.
fn queues(walk: &mut Walk, rail: &UsnicRail) {
    let [sends, receives, completions, interrupts] = rail.resources();
    walk.ok(
        "queues",
        format!(
            "{sends} send queues, {receives} receive queues, {completions} completion queues, {interrupts} interrupts; a rail \
             uses 2, 2 and up to 3"
        ),
    );
    if rail.has_arp() {
        walk.ok("arp", "questions for its address come by a filter of their own");
    } else {
        walk.note(
            "arp",
            "questions for its address do not reach the function: the adapter refused the filter for them",
            vec![Fix::hand(
                "peers have to hear from this rail first; it asks for them by itself",
            )],
        );
    }
}

fn link(walk: &mut Walk, rail: &UsnicRail) -> Link {
    let Some(news) = rail.news() else {
        walk.unknown(
            "link",
            "neither the function nor an agent tells of the link: it is taken to be up",
            vec![Fix::hand("`ip link` shows the physical function's")],
        );
        return Ok(());
    };
    if rail.is_link_up() {
        walk.proved("link", format!("up, {} Mb/s, MTU {}", news.speed, news.mtu));
        return Ok(());
    }
    let mtu = rail.capabilities().limits.message;
    Err(walk.broken(
        "link",
        format!(
            "the link is {}, the vNIC's MTU {}, the firmware {}",
            if news.link { "up" } else { "down" },
            news.mtu,
            if news.fatal { "has failed" } else { "well" }
        ),
        format!("there is no cable, or the MTU is too short for frames of {mtu} bytes with their headers"),
        vec![Fix::hand(
            "look at the cable and the switch's port; set udp.mtu to the vNIC's MTU at most",
        )],
    ))
}

fn interrupt(walk: &mut Walk, rail: &mut UsnicRail) -> Link {
    match rail.check_interrupt(INTERRUPT) {
        Some(true) => walk.ok("interrupt", "one that was raised by hand came by its eventfd"),
        None => walk.not_applicable(
            "interrupt",
            "it has none: a rail that sleeps looks every millisecond",
        ),
        Some(false) => {
            return Err(walk.broken(
                "interrupt",
                "one that was raised by hand did not come",
                "interrupt remapping is off, or the function's vectors are taken: a rail that sleeps would wake late",
                vec![Fix::hand("set usnic.interrupts to off; `dmesg | grep -i remap` has the kernel's words")],
            ));
        }
    }
    Ok(())
}

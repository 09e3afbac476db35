//! The last steps of a VIC's usNIC function, with the settings that a rail would have: what usNIC's own users
//! check before they use one (enough functions, queue pairs and completion queues), who steers for it, the
//! rail itself, and frames through it.

mod frame;
mod place;
mod steer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use doorbell::Config;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail as _;
use doorbell_usnic::{Commands, Control, Object, UsnicConfig, UsnicRail, VfCommands};
use doorbell_vfio::{Bdf, Host, PciDevice, Role};

use self::place::{Socket, look, user};
use super::Live;
use crate::doctor::chain::{Chain, Ended, Fix, Link, Walk};

/// How long an interrupt may take.
const INTERRUPT: Duration = Duration::from_secs(1);

/// The steps of `usnic`, with these settings.
pub(in crate::doctor) struct UsnicSteps(UsnicConfig);

impl UsnicSteps {
    pub(in crate::doctor) fn new(config: &Config) -> Self {
        Self(doorbell::drivers::usnic_config(config))
    }
}

impl Live for UsnicSteps {
    fn kind(&self) -> &'static str {
        "usnic"
    }

    fn memory(&self) -> u64 {
        self.0.locked_bytes()
    }

    fn steps(&self, walk: &mut Walk, bdf: Bdf) -> Link {
        let (name, object) = (format!("usnic:{bdf}"), Object::Pci(bdf));
        let given = (self.0.address.as_deref()).filter(|text| !text.trim().is_empty());
        let mut config = self.0.clone();
        config.address = given.map_or_else(|| Some(own_address()), |text| Some(text.to_owned()));
        let opened = open(&name, &config);
        steps(walk, opened, &config, &object)?;
        if given.is_none() {
            // Everything else was tried by an address of the link, which was this diagnosis's alone.
            return Err(walk.broken(
                "address",
                "the function has no IPv4 address that a rail could have",
                "no kernel has one for it, and usnic.address is not set",
                vec![Fix::run(
                    format!("export DOORBELL_USNIC_ADDRESS={bdf}=10.0.0.5/24"),
                    "give it one of your network, for each function that a rank here uses",
                )],
            ));
        }
        Ok(())
    }
}

/// The chain of a function that a process models.
pub(in crate::doctor) fn model(name: &RailName, config: &Config) -> Chain {
    let config = doorbell::drivers::usnic_config(config);
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
        let (object, opened) = found(walk, &config, &object)?;
        steps(walk, opened, &config, &object)
    })
}

/// Returns the modelled function that is meant, opened or not; for any function, the first that opens. One
/// that another process uses is not opened: it accepts one process at a time, and would not answer.
fn found(
    walk: &mut Walk,
    config: &UsnicConfig,
    wanted: &Object,
) -> Result<(Object, Result<UsnicRail, RailError>), Ended> {
    let mut last = None;
    for object in wanted.each() {
        if look(&object.socket().unwrap_or_default()) != Socket::There {
            last = last.or(Some((object, None)));
            continue;
        }
        let opened = open(&format!("usnic:{object}"), config);
        let is_open = opened.is_ok();
        last = Some((object, Some(opened)));
        if is_open {
            break;
        }
    }
    match last {
        Some((object, Some(opened))) => {
            present(walk, &object, opened.as_ref().err())?;
            Ok((object, opened))
        }
        Some((object, None)) => Err(absent(walk, &object)),
        None => Err(absent(walk, wanted)),
    }
}

fn open(name: &str, config: &UsnicConfig) -> Result<UsnicRail, RailError> {
    name.parse().and_then(|name| UsnicRail::open(&name, config))
}

/// Returns the command that starts the model of a function.
fn start(object: &Object) -> Fix {
    match doorbell_usnic::model_command(object) {
        Ok(command) => Fix::run(
            command,
            "start the model, in a terminal of its own; it removes what a killed one left there",
        ),
        Err(why) => Fix::hand(why),
    }
}

fn folder(object: &Object) -> PathBuf {
    match object {
        Object::Model { folder, .. } => folder.clone(),
        Object::Pci(_) => PathBuf::new(),
    }
}

/// There is a socket: whether its process is.
fn present(walk: &mut Walk, object: &Object, error: Option<&RailError>) -> Link {
    let socket = object.socket().unwrap_or_default();
    let reason = error.map(ToString::to_string).unwrap_or_default();
    // The driver's text for a connection that is refused.
    if reason.contains("no process listens on") && reason.contains(&*socket.to_string_lossy()) {
        return Err(walk.broken(
            "device",
            format!("no process listens at {} any more", socket.display()),
            "the model that made it was killed",
            vec![start(object)],
        ));
    }
    let is_mute = ["did not answer", "more callers wait"]
        .iter()
        .any(|words| reason.contains(words));
    if is_mute && reason.contains(&*socket.to_string_lossy()) {
        return Err(walk.broken(
            "device",
            format!("there is the socket {}, and it does not answer", socket.display()),
            "the process that models it is stopped, or busy with others",
            vec![Fix::quoted(&doorbell_usnic::see_model(object))],
        ));
    }
    walk.ok(
        "device",
        format!("a process models it, and listens at {}", socket.display()),
    );
    Ok(())
}

/// There is no socket that could be called.
fn absent(walk: &mut Walk, object: &Object) -> Ended {
    let path = object.socket().unwrap_or_default();
    let socket = path.display();
    let (saw, cause, fix) = match look(&path) {
        Socket::Forbidden(whose) => (
            format!("{socket} is of {}, and this one may not connect", user(whose)),
            "a model serves its own user, and root".to_owned(),
            Fix::hand("run as the model's user, or start a model of your own in another folder"),
        ),
        Socket::File => (
            format!("{socket} is no socket"),
            "there is a file, which no model replaces".to_owned(),
            Fix::hand("remove it, or name another folder"),
        ),
        Socket::Missing | Socket::There => {
            let there = siblings(&folder(object));
            let (cause, fix) = match there.is_empty() {
                true => (
                    "the model does not run, or has another folder".to_owned(),
                    start(object),
                ),
                false => (
                    format!("the model there has {}, and no more", there.join(", ")),
                    Fix::quoted(&doorbell_usnic::make_function(object)),
                ),
            };
            (format!("there is no socket {socket}"), cause, fix)
        }
    };
    walk.broken("device", saw, cause, vec![fix])
}

/// The functions of a model, by its sockets.
fn siblings(folder: &Path) -> Vec<String> {
    let any = Object::parse(&format!("model/{}/vf*", folder.display()));
    let all = any.map(|any| any.each()).unwrap_or_default();
    let name = |object: &Object| match object {
        Object::Model { function, .. } => Some(function.clone()),
        Object::Pci(_) => None,
    };
    all.iter().filter_map(name).collect()
}

/// Reports what uses the physical function: the kernel, an agent, or nothing.
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
            "nothing uses its physical function {physical} (driver: {})",
            other.unwrap_or("none")
        ),
    };
    walk.ok(
        "parent",
        format!("{saw}; functions for as many ranks of this host: {count}"),
    );
}

fn steps(walk: &mut Walk, rail: Result<UsnicRail, RailError>, config: &UsnicConfig, object: &Object) -> Link {
    steer::step(walk, config, object, rail.as_ref().err())?;
    let mut rail = opened(walk, rail, config, object)?;
    queues(walk, config, &rail);
    link(walk, object, &rail)?;
    interrupt(walk, &mut rail)?;
    frame::step(walk, config, object, &mut rail)
}

/// Returns an address that is valid on this link only and that no other host has: it is used during the
/// diagnosis.
fn own_address() -> String {
    let number = std::process::id();
    format!("169.254.{}.{}/16", 1 + (number >> 8) % 254, number % 254 + 1)
}

fn opened(
    walk: &mut Walk,
    rail: Result<UsnicRail, RailError>,
    config: &UsnicConfig,
    object: &Object,
) -> Result<UsnicRail, Ended> {
    match rail {
        Ok(rail) => {
            let [a, b, c, d, e, f] = rail.mac();
            walk.ok(
                "rings",
                format!(
                    "filters were taken for {}, and the queues run ({}, hardware address \
                     {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x})",
                    rail.address(),
                    rail.how()
                ),
            );
            Ok(rail)
        }
        Err(RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. }) => {
            // Without an agent or a proxy, the function itself has refused, as is likely.
            let is_refusal = reason.contains("(error 3)") && config.control != Control::Proxy;
            let (cause, fixes) = match is_refusal {
                false if reason.contains("another process has") => (
                    "an open function is its process's alone: a rank, an agent, or another diagnosis",
                    vec![Fix::hand(remedy)],
                ),
                true => (
                    "a usNIC function does not install filters itself: the owner of its physical function does",
                    vec![steer::start(config, object)],
                ),
                false => (cause(config, &reason), vec![Fix::quoted(&remedy)]),
            };
            Err(walk.broken("rings", reason, cause, fixes))
        }
        Err(error) => {
            let help = error.help();
            Err(walk.broken("rings", error.to_string(), help.cause, vec![Fix::hand(help.next)]))
        }
    }
}

/// Returns the cause of an opening that failed: the setting that requires what failed, where one does, else
/// what has refused or does not answer.
fn cause(config: &UsnicConfig, reason: &str) -> &'static str {
    let says = |words: &str| reason.contains(words);
    let is_no = says("(error 3)") || says("(error 5)");
    if says("usnic.function is") {
        "usnic.function names another function of the adapter than the rail does"
    } else if says("has the address") {
        "usnic.address gives this function the address of another one that is open"
    } else if is_no && config.vf_commands == VfCommands::Need {
        "usnic.vf_commands is need, and the function does not take all commands"
    } else if is_no {
        "the firmware does not do this for the function"
    } else if says("resource table") && config.commands != Commands::Auto {
        "usnic.commands selects a command interface that the function does not have"
    } else if says("resource table") || says("a rail needs 2") {
        "the function is not configured for usNIC, or its model was started to show less"
    } else if says("hardware address") {
        "neither the function nor an agent reports the hardware address, and usnic.mac is not set"
    } else if config.control == Control::Proxy && (says("busy") || says("open already")) {
        "usnic.control is proxy, and another process, such as an agent, has the physical function"
    } else if config.control == Control::Proxy && says("ordinary vNIC") {
        "usnic.control is proxy, which is for virtual functions"
    } else if says("the agent") {
        "the agent refuses, or does not answer"
    } else if says("the device refused") {
        "the firmware refuses a command that the rail needs"
    } else if says("in time") || says("did not answer") || says("does not end it") {
        "the firmware, or the process that models it, does not answer"
    } else {
        "the function cannot be opened as it is"
    }
}

/// usNIC's rule for a function: two queue pairs and two completion queues at least. The rail has refused
/// fewer.
fn queues(walk: &mut Walk, config: &UsnicConfig, rail: &UsnicRail) {
    let [sends, receives, completions, interrupts] = rail.nic().resources();
    walk.ok(
        "queues",
        format!(
            "{sends} send queues, {receives} receive queues, {completions} completion queues, {interrupts} interrupts; a rail \
             uses 2, 2 and up to 3"
        ),
    );
    if rail.nic().has_arp() {
        walk.ok("arp", "questions for its address come by a filter of their own");
    } else if !config.arp {
        walk.not_applicable(
            "arp",
            "usnic.arp is off: peers have to receive a frame of this rail first",
        );
    } else {
        walk.note(
            "arp",
            "questions for its address do not reach the function: the adapter refused the filter for them",
            vec![Fix::hand(
                "peers have to receive a frame of this rail first; it sends requests to them by itself",
            )],
        );
    }
}

fn link(walk: &mut Walk, object: &Object, rail: &UsnicRail) -> Link {
    let Some(news) = rail.nic().news() else {
        walk.unknown(
            "link",
            "neither the function nor an agent reports the link's state: it is taken to be up",
            vec![Fix::hand("`ip link` shows the physical function's")],
        );
        return Ok(());
    };
    if rail.is_link_up() {
        walk.ok("link", format!("up, {} Mb/s, MTU {}", news.speed, news.mtu));
        return Ok(());
    }
    let mtu = rail.capabilities().limits.message;
    let saw = format!(
        "the link is {}, the vNIC's MTU {}, the firmware {}",
        if news.link { "up" } else { "down" },
        news.mtu,
        if news.fatal { "has failed" } else { "well" }
    );
    let is_model = matches!(object, Object::Model { .. });
    let (cause, fix) = match (news.fatal, news.link, is_model) {
        (true, _, true) => (
            "the model's script reports a fatal error",
            "take `link fatal` out of the script, and start the model again",
        ),
        (true, _, false) => (
            "the adapter's firmware reports a fatal error",
            "reset the adapter, or power-cycle the host",
        ),
        (_, false, true) => (
            "the model's script took it down: there is no cable",
            "wait until the script brings it up again (`at TIME link up`), or start the model without the script",
        ),
        (_, false, false) => (
            "there is no cable, or the switch's port is off",
            "look at the cable and the switch's port",
        ),
        (_, true, true) => (
            "",
            "start the model with a longer --mtu, or set udp.mtu to what it has",
        ),
        (_, true, false) => (
            "",
            "set udp.mtu to the vNIC's MTU at most, or the vNIC's higher (CIMC or UCSM)",
        ),
    };
    let cause = match cause {
        "" => format!("the vNIC's MTU is too short for frames of {mtu} bytes with their headers"),
        cause => cause.to_owned(),
    };
    Err(walk.broken("link", saw, cause, vec![Fix::hand(fix)]))
}

fn interrupt(walk: &mut Walk, rail: &mut UsnicRail) -> Link {
    match rail.nic().check_interrupt(INTERRUPT) {
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
                vec![Fix::hand("set usnic.interrupts to off; `dmesg | grep -i remap` shows the kernel's message")],
            ));
        }
    }
    Ok(())
}

//! The chain of `verbs:DEVICE:PORT`: from the library to messages over a reliable connection through the
//! port's own queue pairs; with `:ud` to datagrams.
//!
//! ```text
//!   library ─ module ─ device ─ provider ─ namespace ─ device-file ─ cgroup     machine.rs
//!     ─ open ─ port ─ partition ─ gid ─ mtu ─ memlock ─ fork                    port.rs
//!     ─ queues ─ windows ─ frames ─ connection                   live.rs, windows.rs, connections.rs
//!     ─ firewall                                                                live.rs
//!     ─ loss ─ flow control ─ q-keys ─ peer                                     flow.rs, peer.rs
//! ```
//!
//! What the system has of a device is read below the doctor's root; what the library reports comes by
//! [`Stack`], which tests replace.

mod connections;
mod flow;
mod live;
mod machine;
mod peer;
mod port;
#[cfg(test)]
mod tests;
mod windows;

use std::net::IpAddr;

use doorbell::Config;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::FlowControl;
use doorbell_verbs::inspect::{DeviceFacts, Fault, Inspector, LibraryFacts, PortFacts};
use doorbell_verbs::{PortName, Service, Tree, name_error};

use super::chain::{Chain, Ended, Fix, Link, Walk};
use super::system::System;
use crate::error::ToolError;

/// What the library reports.
trait Stack {
    fn library(&self) -> LibraryFacts;
    /// The devices that it has a provider for, and what it has written to standard error meanwhile.
    fn devices(&self) -> Result<(Vec<String>, String), Fault>;
    fn device(&self, device: &str) -> Result<DeviceFacts, Fault>;
    fn port(&self, device: &str, number: u8) -> Result<PortFacts, Fault>;
    /// What the driver of a network interface reports about pauses and DSCP; `None` where it reports nothing.
    fn flow(&self, interface: &str) -> Result<Option<FlowControl>, String>;
}

impl Stack for Inspector {
    fn library(&self) -> LibraryFacts {
        self.library()
    }

    fn devices(&self) -> Result<(Vec<String>, String), Fault> {
        self.devices()
    }

    fn device(&self, device: &str) -> Result<DeviceFacts, Fault> {
        self.device(device)
    }

    fn port(&self, device: &str, number: u8) -> Result<PortFacts, Fault> {
        self.port(device, number)
    }

    fn flow(&self, interface: &str) -> Result<Option<FlowControl>, String> {
        doorbell_inet::flow_control(interface).map_err(|error| error.to_string())
    }
}

/// A port, and where its device is described.
struct At<'a> {
    system: &'a System,
    tree: Tree,
    name: &'a RailName,
    device: &'a str,
    port: u8,
    service: Service,
}

/// Returns the tree of devices of a system.
pub(super) fn tree(system: &System) -> Tree {
    Tree::at(&system.path("/sys"))
}

/// Returns the rails of every port of this machine.
pub(super) fn all(system: &System) -> Vec<RailName> {
    let ports = tree(system).ports();
    let names = ports.iter().map(|(device, port)| rail_name(device, *port));
    names.flatten().collect()
}

/// Returns the rails of the ports that stand on a network interface.
pub(super) fn on(system: &System, interface: &str) -> Vec<RailName> {
    let tree = tree(system);
    let ports = tree.ports().into_iter();
    let on_it = ports.filter(|(device, port)| tree.interface(device, *port).as_deref() == Some(interface));
    on_it
        .filter_map(|(device, port)| rail_name(&device, port))
        .collect()
}

fn rail_name(device: &str, port: u8) -> Option<RailName> {
    format!("verbs:{device}:{port}").parse().ok()
}

/// Returns the rails that a name means: that of its port, or those of all ports of the device where it has no
/// port.
///
/// # Errors
/// If it names no device, or is no name of a rail of this kind; with the nearest one that is.
pub(super) fn named(system: &System, name: RailName) -> Result<Vec<RailName>, ToolError> {
    let device = name.object();
    if !device.is_empty() && !device.contains(':') {
        let ports = tree(system).ports_of(device);
        return Ok(ports
            .into_iter()
            .filter_map(|port| rail_name(device, port))
            .collect());
    }
    match PortName::of(&name) {
        Ok(_) => Ok(vec![name]),
        Err(error) => {
            let error = name_error(&tree(system), &name).unwrap_or(error);
            Err(ToolError::Usage(error.to_string()))
        }
    }
}

/// The chain of a port's rail, towards `peer` where one is named.
pub(super) fn chain(system: &System, config: &Config, name: &RailName, peer: Option<IpAddr>) -> Chain {
    let config = doorbell::drivers::verbs_config(config);
    let load = || Inspector::load(tree(system), &config);
    Walk::along(name.as_str(), |walk| {
        let named = PortName::of(name).map_err(|error| refused(walk, "name", &error))?;
        let at = At {
            system,
            tree: tree(system),
            name,
            device: &named.device,
            port: named.port,
            service: named.service,
        };
        let facts = before_queues(walk, &at, load)?;
        live::steps(walk, &at, &config, &facts, peer)
    })
}

/// The steps that open no queues.
fn before_queues<S: Stack>(
    walk: &mut Walk,
    at: &At<'_>,
    load: impl FnOnce() -> Result<S, Fault>,
) -> Result<Facts, Ended> {
    let stack = machine::library(walk, load)?;
    machine::steps(walk, at, &stack)?;
    port::steps(walk, at, &stack)
}

/// What the steps before the queues have found.
struct Facts {
    device: DeviceFacts,
    port: PortFacts,
    /// What the driver of the port's network interface reports about pauses.
    flow: Result<Option<FlowControl>, String>,
}

impl Facts {
    /// Whether it is soft-RoCE, whose packets go through the kernel's own stack.
    fn is_soft(&self) -> bool {
        let provider = self.device.provider.as_ref().and_then(|file| file.file_name());
        provider.is_some_and(|name| name.to_string_lossy().contains("librxe"))
    }
}

/// A step that is broken for a reason of the driver's, with its remedy.
fn fault(walk: &mut Walk, step: &'static str, fault: &Fault, cause: &str) -> Ended {
    walk.broken(step, &fault.reason, cause, vec![Fix::quoted(&fault.remedy)])
}

/// A rail, or a peer, that the driver refuses.
fn refused(walk: &mut Walk, step: &'static str, error: &RailError) -> Ended {
    walk.refused(step, error, "the device or its driver refuses it")
}

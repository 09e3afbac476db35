//! `doorbell doctor`: why a rail does not work, and what to do about it.
//!
//! ```text
//!   chains   machine · shm · udp:INTERFACE · xdp:INTERFACE · KIND:PCI-ADDRESS
//!            verbs:DEVICE:PORT[:ud]                                one for each rail
//!            ofi · one for each client of libfabric                                where it is named
//!   a step   ok │ broken (ends the chain: cause and fixes) │ unknown │ not applicable │ note (slow only)
//! ```
//!
//! It reads what the system reports, opens rails and sockets of its own, and changes nothing. The files that
//! it reads are below one root ([`system`]), which tests replace.

pub(crate) mod args;
mod between;
mod chain;
mod echo;
mod firewall;
mod frames;
mod interface;
mod limits;
mod machine;
mod memlock;
mod ofi;
mod pci;
mod shm;
mod subnet;
mod system;
mod table;
mod udp;
mod verbs;
mod xdp;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use doorbell::Config;
use doorbell_fabric::error::Exit;
use doorbell_fabric::name::{KINDS, RailName};
use doorbell_inet::{assigned, is_other_name, own_name, rails};
use doorbell_vfio::Bdf;
use serde::Serialize;

pub(crate) use between::doctor_peer;
use chain::{Chain, Fix, Verdict, Walk};
use system::System;

use crate::console;
use crate::doctor::args::DoctorArgs;
use crate::error::ToolError;
use crate::ofi::found::Places;

/// The JSON of `doorbell doctor`.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    /// That of the exit status: broken when one chain is.
    verdict: Verdict,
    chains: Vec<Chain>,
}

/// A chain to walk.
enum Wanted {
    Shm,
    Udp(RailName),
    /// Whether it may be opened.
    Xdp(RailName, bool),
    /// A PCI function, and the kind of rail where one was named.
    Pci(Bdf, Option<String>, bool),
    /// A function that a process models.
    Model(RailName),
    /// A port of an InfiniBand or RoCE device.
    Verbs(RailName),
    /// libfabric and our provider for it.
    Ofi,
    /// Rails of a kind that this build does not have, or that nothing can be wrong with.
    Other(RailName),
}

/// Runs `doorbell doctor`.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, ToolError> {
    let config = Config::from_environment()?;
    let system = System::here();
    let wanted = match args.rails.is_empty() {
        true => everything(&system)?,
        false => named(&system, &args.rails)?,
    };
    let mut chains = vec![machine::chain(&system)];
    chains.extend(wanted.iter().flat_map(|one| one.chains(&system, &config, args)));
    let is_broken = chains.iter().any(|chain| chain.verdict == Verdict::Broken);
    let untried = chains.iter().any(|chain| chain.verdict == Verdict::Untried);
    let report = Report {
        schema: "doorbell.doctor/1",
        version: env!("CARGO_PKG_VERSION"),
        verdict: match (is_broken, untried) {
            (true, _) => Verdict::Broken,
            (false, true) => Verdict::Untried,
            (false, false) => Verdict::Usable,
        },
        chains,
    };
    let text = if args.json {
        as_json(&report)?
    } else if args.fix {
        table::fixes(&report.chains)
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        table::table(&report.chains, console::width(), colour)
    };
    console::print(&text)?;
    Ok(if is_broken {
        Exit::Verdict.into()
    } else {
        Exit::Done.into()
    })
}

fn as_json(report: &Report) -> Result<String, ToolError> {
    let text = serde_json::to_string_pretty(report).map_err(|error| ToolError::System {
        what: "write what was found as JSON",
        source: error.into(),
    })?;
    Ok(text + "\n")
}

/// Every rail that this machine has, or could have.
fn everything(system: &System) -> Result<Vec<Wanted>, ToolError> {
    let mut all = vec![Wanted::Shm];
    all.extend(rails("udp")?.into_iter().map(Wanted::Udp));
    all.extend(rails("xdp")?.into_iter().map(|name| Wanted::Xdp(name, false)));
    all.extend(
        pci::all(system)
            .into_iter()
            .map(|address| Wanted::Pci(address, None, false)),
    );
    all.extend(verbs::all(system).into_iter().map(Wanted::Verbs));
    Ok(all)
}

/// Sorts what the user named: rails, PCI addresses, interfaces, addresses.
fn named(system: &System, names: &[String]) -> Result<Vec<Wanted>, ToolError> {
    let mut all = Vec::new();
    for text in names {
        if let Ok(address) = text.parse::<Bdf>() {
            all.push(Wanted::Pci(address, None, true));
            continue;
        }
        let kind = text.split(':').next().unwrap_or("");
        let has_interface = assigned().is_ok_and(|all| own_name(&all, text).is_some());
        if has_interface {
            all.push(Wanted::Udp(parse(&format!("udp:{text}"))?));
            all.push(Wanted::Xdp(parse(&format!("xdp:{text}"))?, true));
            all.extend(verbs::on(system, text).into_iter().map(Wanted::Verbs));
        } else if kind == "verbs" {
            all.extend(verbs::named(system, parse(text)?)?.into_iter().map(Wanted::Verbs));
        } else if KINDS.contains(&kind) {
            all.push(by_rail(parse(text)?)?);
        } else {
            let name: RailName = parse(&format!("udp:{text}")).map_err(|_| unknown(text))?;
            if !is_other_name(&name) {
                return Err(unknown(text));
            }
            all.push(Wanted::Udp(name));
        }
    }
    Ok(all)
}

fn by_rail(name: RailName) -> Result<Wanted, ToolError> {
    let without = || {
        ToolError::Usage(format!(
            "`{name}` names no interface; name one, as in `{name}:eth0`"
        ))
    };
    Ok(match name.kind() {
        "shm" if name.object().is_empty() => Wanted::Shm,
        "ofi" if name.object().is_empty() => Wanted::Ofi,
        "udp" | "xdp" if name.object().is_empty() => return Err(without()),
        "udp" => Wanted::Udp(name),
        "xdp" => Wanted::Xdp(name, true),
        "usnic" if name.object().starts_with("model/") => {
            doorbell_usnic::Object::parse(name.object()).map_err(ToolError::Usage)?;
            Wanted::Model(name)
        }
        "igbvf" | "usnic" => match name.object().parse::<Bdf>() {
            Ok(address) => Wanted::Pci(address, Some(name.kind().to_owned()), true),
            Err(_) => {
                let like = match name.kind() {
                    "usnic" => "`usnic:0000:3b:00.1`, or a model's, as in `usnic:model/DIR/vf0`",
                    _ => "`igbvf:0000:01:10.0`",
                };
                return Err(ToolError::Usage(format!(
                    "`{name}` names no PCI function; name one, as in {like}"
                )));
            }
        },
        _ => Wanted::Other(name),
    })
}

fn parse(text: &str) -> Result<RailName, ToolError> {
    Ok(text.parse::<RailName>()?)
}

/// A name that means nothing here, with those that do.
fn unknown(text: &str) -> ToolError {
    let mut names: Vec<String> = assigned()
        .unwrap_or_default()
        .into_iter()
        .map(|one| one.interface)
        .collect();
    names.sort_unstable();
    names.dedup();
    ToolError::Usage(format!(
        "`{text}` is no rail, no PCI function and no interface of this machine; its interfaces are {}, and rails are named \
         like shm, udp:eth0, xdp:eth0, igbvf:0000:01:10.0, usnic:0000:3b:00.1, usnic:model/DIR/vf0 or verbs:mlx5_0:1",
        names.join(", ")
    ))
}

impl Wanted {
    fn chains(&self, system: &System, config: &Config, args: &DoctorArgs) -> Vec<Chain> {
        let chain = match self {
            Self::Ofi => return ofi::chains(&Places::here()),
            Self::Shm => shm::chain(system, config),
            Self::Udp(name) => udp::chain(system, config, name, args.peer),
            Self::Xdp(name, tried) => xdp::chain(system, config, name, args.peer, *tried),
            Self::Pci(address, kind, named) => pci::chain(
                system,
                *address,
                (kind.as_deref(), *named),
                &[&pci::IgbvfSteps, &pci::UsnicSteps::new(config)],
            ),
            Self::Model(name) => pci::model(name, config),
            Self::Verbs(name) => verbs::chain(system, config, name, args.peer),
            Self::Other(name) => other(name),
        };
        vec![chain]
    }
}

/// A simulated network, or a rail without a driver.
fn other(name: &RailName) -> Chain {
    Walk::along(name.as_str(), |walk| {
        match name.kind() {
        "sim" => Err(walk.end_without(
            "driver",
            "a simulated network lives in one process, which makes it (`doorbell::simulated`): nothing of this machine is in it",
        )),
        "shm" => Err(walk.broken(
            "name",
            format!("`{name}` has something behind its kind"),
            "the shm rail is one for all",
            vec![Fix::hand("write `shm`")],
        )),
        kind => Err(walk.broken(
            "driver",
            format!("this build has no driver {kind}"),
            "it is planned, and not there yet",
            vec![Fix::hand("name a rail of another kind: `doorbell info` lists them")],
        )),
    }
    })
}

//! Discovers the rails of this machine, and opens those that the configuration names.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::discover::{Candidate, Discovery, Driver, Outcome, Report};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Kind;
use doorbell_fabric::rail::Rail;
use doorbell_igbvf::IgbvfDriver;
use doorbell_shm::{ShmConfig, ShmRail};
use doorbell_udp::UdpDriver;
use doorbell_usnic::UsnicDriver;
use doorbell_verbs::VerbsDriver;
use doorbell_xdp::XdpDriver;

use super::AnyRail;
use crate::config::drivers::{igbvf_config, shm_config, udp_config, usnic_config, verbs_config, xdp_config};
use crate::config::{Config, Value as _};
use crate::error::Error;

/// The drivers of kinds whose crates have none for discovery.
struct ShmDriver(ShmConfig);
struct SimDriver;
struct PortalsDriver;

impl Driver for ShmDriver {
    fn kind(&self) -> &'static str {
        "shm"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        let name: RailName = "shm".parse()?;
        // The only way to find out is to open it: a socket and a page of memory, closed again at the end of
        // this call.
        let rail = ShmRail::open(&name, &self.0)?;
        let pull = if rail.capabilities().features.get {
            "yes"
        } else {
            "no"
        };
        let candidate = Candidate::usable(name, *rail.capabilities()).fact("reads-from-peers", pull);
        let measured = rail.capabilities().features.get;
        Ok(vec![match measured.then(ShmRail::measured_lengths) {
            Some((least, most)) => candidate.fact(
                "at-once",
                format!(
                    "up to {least} to {most} B by what copies to each peer take, unless pml.eager is set"
                ),
            ),
            None => candidate,
        }])
    }
}

impl Driver for SimDriver {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        Ok(Vec::new())
    }

    fn named(&self, name: &RailName) -> Option<Candidate> {
        let reason = "a simulated network lives in one process";
        Some(Candidate::rejected(
            name.clone(),
            reason,
            "make its worlds with `doorbell::simulated`",
        ))
    }
}

impl Driver for PortalsDriver {
    fn kind(&self) -> &'static str {
        "portals"
    }

    /// Loads no vendor's library: loading one may have side effects, which a user who named no such rail does
    /// not expect.
    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        Ok(Vec::new())
    }

    fn named(&self, name: &RailName) -> Option<Candidate> {
        let reason = "a Portals interface carries active messages, and no messages of a rail";
        Some(Candidate::rejected(
            name.clone(),
            reason,
            "open it with `doorbell_portals::Settings`, and make a `doorbell_am::Conduit` of it",
        ))
    }
}

/// Returns every kind of rail with its verdict, and for each that cannot be used the reason.
///
/// ```
/// # use doorbell_job as doorbell;
/// let found = doorbell::discover(&doorbell::Config::default());
/// assert!(found.kinds.iter().any(|report| report.kind == "shm"));
/// ```
pub fn discover(config: &Config) -> Discovery {
    let drivers = Drivers::of(config);
    doorbell_fabric::discover::discover(&drivers.all(), &config.rails.list.get().0)
}

/// The drivers of this build, with the settings of a configuration.
pub(super) struct Drivers {
    shm: ShmDriver,
    udp: UdpDriver,
    xdp: XdpDriver,
    igbvf: IgbvfDriver,
    usnic: UsnicDriver,
    verbs: VerbsDriver,
}

impl Drivers {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            shm: ShmDriver(shm_config(config)),
            udp: UdpDriver {
                config: udp_config(config),
            },
            xdp: XdpDriver {
                config: xdp_config(config),
            },
            igbvf: IgbvfDriver {
                config: igbvf_config(config),
            },
            usnic: UsnicDriver {
                config: usnic_config(config),
            },
            verbs: VerbsDriver {
                config: verbs_config(config),
            },
        }
    }

    pub(super) fn all(&self) -> [&dyn Driver; 8] {
        [
            &self.shm,
            &self.udp,
            &self.xdp,
            &self.igbvf,
            &self.usnic,
            &self.verbs,
            &PortalsDriver,
            &SimDriver,
        ]
    }
}

/// Returns the udp rails that can be used, one for each interface, as [`discover`] lists them; nothing else
/// is looked for. None where the interfaces cannot be listed.
pub fn udp_rails(config: &Config) -> Vec<RailName> {
    let udp = UdpDriver {
        config: udp_config(config),
    };
    let found = doorbell_fabric::discover::discover(&[&udp], &[]);
    found.usable().map(|usable| usable.rail.clone()).collect()
}

/// Whether a rail of a kind, over an interface of a kind, leads to other hosts.
pub(crate) fn leads_out(kind: &str, interface: Kind) -> bool {
    kind != "shm" && interface != Kind::Loopback
}

/// Whether a rail that is not open leads to other hosts, by whatever it is named.
pub(crate) fn would_lead_out(name: &RailName, config: &Config) -> bool {
    let query = udp_config(config).interface_query();
    leads_out(name.kind(), doorbell_inet::place(name, &query).kind)
}

/// Returns those of the rails, which are named by their interfaces, that lead to other hosts, as far as the
/// routes show it. None where the routes cannot be listed.
pub fn leading_out(config: &Config, rails: &[RailName]) -> Vec<RailName> {
    let routed = doorbell_inet::routed(udp_config(config).family).unwrap_or_default();
    let is_routed = |rail: &&RailName| routed.iter().any(|name| name == rail.object());
    let rails = rails.iter().filter(is_routed);
    rails
        .filter(|rail| would_lead_out(rail, config))
        .cloned()
        .collect()
}

/// Returns how the system would route frames of a rail that is not open to `address`; `None` for rails that
/// it does not route.
pub fn way(name: &RailName, config: &Config, address: &RailAddress) -> Option<Result<String, String>> {
    let query = udp_config(config).interface_query();
    let way =
        matches!(name.kind(), "udp" | "xdp").then(|| doorbell_inet::next_hop_to(name, &query, address))?;
    Some(way.map(|way| way.to_string()).map_err(reason_of))
}

/// Returns why a peer cannot be reached, without the phrase that every such error has around its reason.
pub fn reason_of(error: RailError) -> String {
    match error {
        RailError::Unreachable { reason, .. } => reason,
        error => error.to_string(),
    }
}

/// Refuses two names of one interface: they would count as two rails of which one replaces the other.
fn no_rail_twice(config: &Config, found: &Discovery) -> Result<(), Error> {
    let list = &config.rails.list;
    let places: Vec<_> = list
        .get()
        .0
        .iter()
        .filter_map(|name| Some((name, place(found.named(name).ok()?)?)))
        .collect();
    for (at, (name, place)) in places.iter().enumerate() {
        let Some((other, _)) = places[..at].iter().find(|(_, other)| other == place) else {
            continue;
        };
        return Err(Error::BadValue {
            name: "rails.list",
            given: list.get().show(),
            origin: list.origin().to_string(),
            expected: format!("each rail once, but `{other}` and `{name}` are the same interface"),
        });
    }
    Ok(())
}

/// Returns what identifies a rail regardless of its name, where it has that: interface and address.
fn place(candidate: &Candidate) -> Option<[&str; 2]> {
    let fact = |name: &str| {
        let fact = candidate.facts.iter().find(|fact| fact.name == name)?;
        Some(fact.value.as_str())
    };
    Some([fact("interface")?, fact("address")?])
}

/// Opens the rails that the configuration names (each, or it is an error), or every one that may be chosen
/// unnamed. The second part is what selection judges: all candidates, also those that could not be opened.
pub fn open_all(config: &Config) -> Result<(Vec<AnyRail>, Vec<Candidate>), Error> {
    let found = discover(config);
    let named = &config.rails.list.get().0;
    for name in named {
        if let Err(error) = found.named(name) {
            // Discovery has the system's error as a text; opening has its number, too.
            let of_system = |report: &Report| {
                report.kind == name.kind() && matches!(report.outcome, Outcome::Failed { .. })
            };
            let opens = matches!(name.kind(), "shm" | "udp") && found.kinds.iter().any(of_system);
            let opened = opens.then(|| AnyRail::open(name, config).err()).flatten();
            return Err(opened.unwrap_or_else(|| error.into()));
        }
    }
    no_rail_twice(config, &found)?;
    let mut rails = Vec::new();
    let mut candidates: Vec<Candidate> = found.candidates().cloned().collect();
    for candidate in &mut candidates {
        let wanted = if named.is_empty() {
            candidate.is_automatic()
        } else {
            named.contains(&candidate.rail)
        };
        if !wanted || !candidate.is_usable() {
            continue;
        }
        match AnyRail::open(&candidate.rail, config) {
            Ok(rail) => rails.push(rail),
            Err(error) if !named.is_empty() => return Err(error),
            // A rail that fails to open does not hide the others: it becomes a rejected candidate.
            Err(error) => {
                *candidate = Candidate::rejected(candidate.rail.clone(), error.to_string(), error.remedy())
            }
        }
    }
    // A driver whose discovery failed is listed with its reason as well.
    for report in &found.kinds {
        if let (Outcome::Failed { reason, remedy }, Ok(rail)) = (&report.outcome, report.kind.parse()) {
            candidates.push(Candidate::rejected(rail, reason.clone(), remedy.as_str()));
        }
    }
    for fault in &config.fault.inject.get().0 {
        if !rails.iter().any(|rail| *rail.name() == fault.rail) {
            return Err(Error::BadValue {
                name: "fault.inject",
                given: config.fault.inject.get().to_string(),
                origin: config.fault.inject.origin().to_string(),
                expected: format!("rails that are in use, which {} is not", fault.rail),
            });
        }
    }
    Ok((rails, candidates))
}

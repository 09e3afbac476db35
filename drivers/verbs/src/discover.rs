//! Discovery: each port of each device as a candidate, with its properties.

use std::sync::{Mutex, PoisonError};

use doorbell_fabric::caps::{Capabilities, Features};
use doorbell_fabric::discover::{Candidate, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::gid::Link;
use doorbell_fabric::name::RailName;
use doorbell_inet::{frame_capabilities, unusable};

use crate::config::VerbsConfig;
use crate::error::VerbsError;
use crate::gid::{Entry, Published};
use crate::inspect::{self, DeviceFacts};
use crate::name::{PortName, Service};
use crate::nearest;
use crate::ports::{self, Port, Tree};
use crate::rc;
use crate::sys::{LIBRARY, Library, Listed};
use crate::ud;
use crate::ud::open::Source;

/// The library of this process, once it was loaded.
static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// The prefix of every InfiniBand subnet that was given none.
const DEFAULT_PREFIX: &str = "fe80:0000:0000:0000";

/// What to do about a GID that is not there.
pub(crate) const OTHER_INDEX: &str = "set verbs.gid_index to one of the table, or to auto";

/// The process's library, loaded at the first call.
pub(crate) fn library() -> Result<Library, VerbsError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = &*loaded {
        return Ok(library.clone());
    }
    let library = Library::load(LIBRARY)?;
    Ok(loaded.insert(library).clone())
}

/// What a rail of this name is opened with. Loads nothing on a machine without devices.
pub(crate) fn source(name: &RailName) -> Result<Source, RailError> {
    let tree = Tree::default();
    if tree.device_files().is_empty() {
        return Err(nearest::no_devices(name));
    }
    let library = library().map_err(|error| rejected_by(name, &error))?;
    Ok(Source { library, tree })
}

/// The device of this name in the library's list.
pub(crate) fn listed(library: &Library, device: &str) -> Result<Listed, VerbsError> {
    let mut devices = library.devices()?;
    let at = devices.list.iter().position(|listed| listed.name == device);
    let names: Vec<&str> = devices.list.iter().map(|listed| listed.name.as_str()).collect();
    let known = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    let at = at.ok_or_else(|| VerbsError::NoDevice {
        device: device.to_owned(),
        reason: match devices.said.as_str() {
            "" => format!("it lists {known}"),
            said => format!("it lists {known}, and prints: {said}"),
        },
    })?;
    Ok(devices.list.swap_remove(at))
}

/// A rail that an error of the library keeps from being used.
pub(crate) fn rejected_by(name: &RailName, error: &VerbsError) -> RailError {
    unusable(name, error.to_string(), remedy(error))
}

/// The same, where `bytes` were to be registered.
pub(crate) fn rejected_for(name: &RailName, error: &VerbsError, bytes: usize) -> RailError {
    let remedy = match error {
        VerbsError::Call { error, .. } if error.raw_os_error() == Some(libc::ENOMEM) => format!(
            "{} KiB of locked memory are needed: raise the limit (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock \
             of a container), or set verbs.send and verbs.receive lower",
            bytes.div_ceil(1024)
        ),
        error => remedy(error).to_owned(),
    };
    unusable(name, error.to_string(), remedy)
}

pub(crate) fn remedy(error: &VerbsError) -> &'static str {
    match error {
        VerbsError::Library { .. } => {
            "install libibverbs and the providers (Debian: libibverbs1, ibverbs-providers)"
        }
        VerbsError::NoDevice { .. } => {
            "`doorbell info` lists the devices; a device of the kernel that the library does not list lacks its provider \
             (Debian: ibverbs-providers)"
        }
        VerbsError::Call { error, .. } => match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                "allow this user to open /dev/infiniband/uverbs* (rdma-core's udev rules do)"
            }
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
                "pass the device file to the container: --device=/dev/infiniband/uverbs0"
            }
            Some(libc::EAGAIN) => "raise the limit of the RDMA control group (rdma.max)",
            _ => "look at the kernel's log",
        },
        VerbsError::Nonsense { .. } => "update the device's firmware and its provider",
    }
}

/// Finds verbs rails for [`discover`](doorbell_fabric::discover::discover): one candidate for each port of
/// each device. All are used only when named, as an open rail can be reached by the network. On a machine
/// without RDMA devices nothing is loaded.
#[derive(Clone, Debug, Default)]
pub struct VerbsDriver {
    /// The configuration that rails will be opened with.
    pub config: VerbsConfig,
}

impl VerbsDriver {
    fn ports_of(&self, library: &Library, listed: &Listed, tree: &Tree, limit: Option<u64>) -> Vec<Found> {
        let whole = |reason: String, remedy: String| Found::refused(&listed.name, &reason, &remedy);
        if let Some((reason, remedy)) = ports::reason_of_device(listed) {
            return whole(reason, remedy);
        }
        let opened = library.open(&listed.name).and_then(|open| {
            let device = inspect::device_facts(&open)?;
            Ok((open, device))
        });
        let (open, device) = match opened {
            Ok(opened) => opened,
            Err(error) => return whole(error.to_string(), remedy(&error).to_owned()),
        };
        let each = (1..=device.ports).flat_map(|number| {
            let found = Port::look_for(&open, number, tree, self.config.partition);
            let found = found.map_err(|error| (error.to_string(), remedy(&error).to_owned()));
            let port = found.and_then(|port| {
                port.only(self.config.gid_index)
                    .map_err(|reason| (reason, OTHER_INDEX.to_owned()))
            });
            let of_each = |name: RailName| {
                let candidate = match &port {
                    Ok(port) => {
                        let speed = tree.speed(&listed.name, number);
                        candidate(name, port, speed, (&self.config, limit))
                    }
                    Err((reason, remedy)) => Candidate::rejected(name, reason, remedy),
                };
                Found {
                    candidate: of_device(candidate, &device, tree.place(&listed.name)),
                    card: device.card_guid.clone(),
                }
            };
            rails(&listed.name, number)
                .into_iter()
                .map(of_each)
                .collect::<Vec<Found>>()
        });
        each.collect()
    }

    /// Every port of the devices that the library lists, and every device of the kernel that it does not, for
    /// a process that may lock `limit` bytes.
    fn found(
        &self,
        library: &Library,
        tree: &Tree,
        limit: Option<u64>,
    ) -> Result<Vec<Candidate>, VerbsError> {
        let devices = library.devices()?;
        let mut all: Vec<Found> = Vec::new();
        for listed in &devices.list {
            all.extend(self.ports_of(library, listed, tree, limit));
        }
        let said = [library.said.as_str(), devices.said.as_str()];
        let said: Vec<&str> = said.into_iter().filter(|said| !said.is_empty()).collect();
        let said = said.join("; ");
        for device in tree.devices() {
            if devices.list.iter().all(|listed| listed.name != device) {
                let reason = format!("no provider of {} drives it", library.file.display());
                let remedy = "install its provider (Debian: ibverbs-providers)";
                all.extend(Found::refused(&device, &reason, remedy));
            }
        }
        let version = format!("{}, version {}", library.file.display(), library.version);
        let told = cards(all).into_iter().map(|candidate| match said.as_str() {
            "" => candidate.fact("library", &version),
            said => candidate.fact("library", &version).fact("library-prints", said),
        });
        Ok(told.collect())
    }
}

/// A candidate, and the card that it is on.
struct Found {
    candidate: Candidate,
    /// Its GUID; empty where it is not known.
    card: String,
}

impl Found {
    /// A device that cannot be used as a whole, by the names of its first port.
    fn refused(device: &str, reason: &str, remedy: &str) -> Vec<Self> {
        let refused = |name| Self {
            candidate: Candidate::rejected(name, reason, remedy),
            card: String::new(),
        };
        rails(device, 1).into_iter().map(refused).collect()
    }
}

/// Adds to each rail which others are of its port, whose bandwidth they share, and which of its card, with
/// which they fail.
fn cards(all: Vec<Found>) -> Vec<Candidate> {
    let places: Vec<(String, RailName)> = all
        .iter()
        .map(|found| (found.card.clone(), found.candidate.rail.clone()))
        .collect();
    let with = |found: Found| {
        let others = places
            .iter()
            .filter(|(card, rail)| *card == found.card && !are_of_one_port(rail, &found.candidate.rail))
            .map(|(_, rail)| rail.to_string());
        let others: Vec<String> = others.collect();
        let beside = places.iter().map(|(_, rail)| rail);
        let beside = beside
            .filter(|rail| **rail != found.candidate.rail && are_of_one_port(rail, &found.candidate.rail));
        let beside: Vec<String> = beside.map(RailName::to_string).collect();
        let found = match beside.is_empty() {
            true => found,
            false => Found {
                candidate: found.candidate.fact("same-port", beside.join(" ")),
                ..found
            },
        };
        if found.card.is_empty() || others.is_empty() {
            return found.candidate;
        }
        found.candidate.fact("same-card", others.join(" "))
    };
    all.into_iter().map(with).collect()
}

/// The rails of a port: of connections, and of datagrams.
fn rails(device: &str, port: u8) -> Vec<RailName> {
    let names = [
        format!("verbs:{device}:{port}"),
        format!("verbs:{device}:{port}:ud"),
    ];
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// Whether two rails are of one port: they share its bandwidth, and fail together.
fn are_of_one_port(one: &RailName, other: &RailName) -> bool {
    let of = |name: &RailName| PortName::of(name).ok().map(|name| (name.device, name.port));
    of(one) == of(other)
}

/// The capabilities of a rail, with the number of its port: rails of one port share its bandwidth.
pub(crate) fn of_port(mut can: Capabilities, name: &RailName) -> Capabilities {
    if let Ok(of) = PortName::of(name) {
        can.features.port = Features::port_of(&format!("verbs:{}:{}", of.device, of.port));
    }
    can
}

/// Bytes that a rail locks, on a port of this MTU, where no more than `limit` may be locked.
fn locked(service: Service, config: &VerbsConfig, mtu: usize, limit: Option<u64>) -> usize {
    match service {
        Service::Connections => rc::locked(config, mtu, limit),
        Service::Datagrams => ud::locked(config, mtu),
    }
}

/// Why a rail that locks `bytes` does not open where `limit` may be locked.
fn too_much(bytes: usize, limit: Option<u64>) -> Option<(String, &'static str)> {
    let limit = limit.filter(|limit| bytes as u64 > *limit)?;
    let reason = format!(
        "it locks {} KiB, and this process may lock {} KiB",
        bytes.div_ceil(1024),
        limit >> 10
    );
    let remedy = "raise the limit (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock of a container), or set verbs.send \
                  and verbs.receive lower";
    Some((reason, remedy))
}

fn candidate(
    name: RailName,
    port: &Port,
    speed: Option<String>,
    (config, limit): (&VerbsConfig, Option<u64>),
) -> Candidate {
    let service = PortName::of(&name).map_or(Service::Connections, |name| name.service);
    let of_service = |mtu| match service {
        Service::Connections => rc::capabilities(config),
        Service::Datagrams => frame_capabilities(mtu, ud::ESTIMATE),
    };
    let candidate = match (port.reason(), port.mtu()) {
        (None, Some(mtu)) => match too_much(locked(service, config, mtu, limit), limit) {
            Some((reason, remedy)) => Candidate::rejected(name, reason, remedy),
            None => {
                let can = of_port(of_service(mtu), &name);
                Candidate::usable(name, can)
            }
        },
        (Some((reason, remedy)), _) => Candidate::rejected(name, reason, remedy),
        (None, None) => Candidate::rejected(name, "it has no MTU", "look at the device's driver"),
    };
    let candidate = candidate
        .only_when_named("an open rail can be reached by its network")
        .fact("state", port.state())
        .fact("link", port.link.name());
    let candidate = with(candidate, "speed", speed);
    let candidate = with(candidate, "interface", port.interface.as_ref());
    let carries = match service {
        Service::Connections => "messages over reliable connections",
        Service::Datagrams => "datagrams",
    };
    with_port(
        gids(candidate.fact("carries", carries), port),
        port,
        service,
        (config, limit),
    )
}

/// Adds a fact that is known.
fn with(candidate: Candidate, name: &'static str, value: Option<impl ToString>) -> Candidate {
    match value {
        Some(value) => candidate.fact(name, value.to_string()),
        None => candidate,
    }
}

/// Adds what a rail over a port uses.
fn with_port(
    candidate: Candidate,
    port: &Port,
    service: Service,
    (config, limit): (&VerbsConfig, Option<u64>),
) -> Candidate {
    let partition = port
        .partition
        .map(|(index, key)| format!("{key:#06x} (index {index})"));
    let mut candidate = with(candidate, "partition", partition);
    if port.link == Link::InfiniBand {
        let prefix = port.gids.usable.first();
        let prefix = prefix.map(|entry| match inspect::subnet_prefix(entry.published.gid) {
            prefix if prefix == DEFAULT_PREFIX => {
                format!("{prefix} (the default: ports of another subnet with it look like those of this one)")
            }
            prefix => prefix,
        });
        candidate = with(
            candidate.fact("lid", port.attributes.lid),
            "subnet-prefix",
            prefix,
        );
    }
    let Some(mtu) = port.mtu() else {
        return candidate;
    };
    let inline = match service {
        Service::Connections => rc::INLINE,
        Service::Datagrams => ud::INLINE.min(mtu),
    };
    let locked = locked(service, config, mtu, limit).div_ceil(1024);
    candidate
        .fact("mtu", format!("{mtu} bytes"))
        .fact(
            "inline",
            format!("up to {inline} bytes, where the device grants them"),
        )
        .fact("locks", format!("{locked} KiB"))
}

/// Adds what the device reports, and where it is.
fn of_device(
    candidate: Candidate,
    device: &DeviceFacts,
    (numa, bus): (Option<String>, Option<String>),
) -> Candidate {
    let candidate = with(with(candidate, "bus", bus), "numa", numa);
    let provider = device.provider.as_ref().and_then(|file| file.file_name());
    let provider = provider.map(|name| name.to_string_lossy().into_owned());
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let candidate = with(candidate, "provider", provider);
    let candidate = with(candidate, "firmware", known(&device.firmware));
    let windows = if device.windows { "type 2B" } else { "none" };
    let candidate = candidate.fact("windows", windows).fact("atomics", device.atomics);
    let candidate = with(candidate, "node-guid", known(&device.node_guid));
    with(candidate, "card-guid", known(&device.card_guid))
}

/// Adds the table of GIDs in order of preference, with the reason of each place.
fn gids(mut candidate: Candidate, port: &Port) -> Candidate {
    let shown = |entry: &Entry| {
        let Published { gid, kind, .. } = entry.published;
        let on = match entry.interface.as_str() {
            "" => String::new(),
            interface => format!(", {interface}"),
        };
        format!("{} {gid} ({kind}{on})", entry.index)
    };
    for (at, entry) in port.gids.usable.iter().enumerate() {
        let place = match port.gids.behind(at) {
            None => "the first choice".to_owned(),
            Some(why) => format!("not the first choice: {why}"),
        };
        candidate = candidate.fact("gid", format!("{}, {place}", shown(entry)));
    }
    for unusable in &port.gids.unusable {
        let text = format!("{}: it {}", shown(&unusable.entry), unusable.reason);
        candidate = candidate.fact("gid-not-used", text);
    }
    candidate
}

impl Driver for VerbsDriver {
    fn kind(&self) -> &'static str {
        "verbs"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        let tree = Tree::default();
        if tree.device_files().is_empty() {
            return Ok(Vec::new());
        }
        let kind: RailName = "verbs".parse()?;
        let found = library().and_then(|library| self.found(&library, &tree, rc::memory_limit()));
        found.map_err(|error| rejected_by(&kind, &error))
    }

    /// A name that is no port of a device is refused with the reason and the nearest name that is one.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        let refused = nearest::name_error(&Tree::default(), name)?;
        Some(doorbell_inet::rejected(name.clone(), refused))
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::discover::Verdict;

    use super::*;
    use crate::ports::fake::Fake;
    use crate::sys::model::{self, Spec};

    fn facts(candidate: &Candidate, name: &str) -> Vec<String> {
        let facts = candidate.facts.iter().filter(|fact| fact.name == name);
        facts.map(|fact| fact.value.clone()).collect()
    }

    fn found(fake: &Fake, spec: Spec, said: &str) -> Vec<Candidate> {
        let mut library = model::library(spec);
        library.said = said.to_owned();
        VerbsDriver::default()
            .found(&library, &fake.tree(), None)
            .unwrap()
    }

    #[test]
    fn a_port_has_its_facts_and_the_order_of_its_gids() {
        let fake = Fake::new();
        fake.device("found0", 0, &[1]);
        fake.file("class/infiniband/found0/parent", "lo");
        let mut spec = Spec::new("found0", [127, 0, 9, 11]);
        spec.addresses.push([127, 0, 9, 12]);
        let all = found(&fake, spec, "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.");
        let port = all
            .iter()
            .find(|one| one.rail.as_str() == "verbs:found0:1:ud")
            .unwrap();
        assert!(port.is_usable() && !port.is_automatic(), "{port:?}");
        for (name, value) in [
            ("state", "ACTIVE"),
            ("link", "Ethernet"),
            ("speed", "2.5 Gb/sec (1X SDR)"),
            ("interface", "lo"),
            ("mtu", "1024 bytes"),
            ("partition", "0xffff (index 0)"),
            ("firmware", "model 1"),
            ("node-guid", "0002:c903:0012:3456"),
            ("windows", "type 2B"),
            ("atomics", "with this device alone, not with the processors"),
            ("inline", "up to 128 bytes, where the device grants them"),
            ("library", "model, version 1.13"),
            (
                "library-prints",
                "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.",
            ),
        ] {
            assert_eq!(facts(port, name), [value], "{name}");
        }
        assert_eq!(
            facts(port, "gid"),
            [
                "0 ::ffff:127.0.9.11 (RoCE v2, lo), the first choice",
                "1 ::ffff:127.0.9.12 (RoCE v2, lo), not the first choice: the lower index comes first",
            ]
        );
        assert!(facts(port, "lid").is_empty() && facts(port, "subnet-prefix").is_empty());
        assert_eq!(facts(port, "provider").len(), 1);
    }

    #[test]
    fn a_rail_that_locks_more_than_the_process_may_is_refused_with_both_figures() {
        let fake = Fake::new();
        let library = model::library(Spec::new("found2", [127, 0, 9, 14]));
        let driver = VerbsDriver::default();
        let all = driver.found(&library, &fake.tree(), Some(3 << 20)).unwrap();
        let of = |name: &str| all.iter().find(|one| one.rail.as_str() == name).unwrap();
        // Datagrams fit, connections do not.
        assert!(of("verbs:found2:1:ud").is_usable());
        let Verdict::Rejected { reason, remedy } = &of("verbs:found2:1").verdict else {
            panic!("{all:?}");
        };
        assert!(
            reason.contains("may lock 3072 KiB") && remedy.contains("ulimit -l"),
            "{reason}; {remedy}"
        );
        let locks = facts(of("verbs:found2:1"), "locks").remove(0);
        assert!(
            reason.starts_with(&format!("it locks {locks}")),
            "{reason}: {locks}"
        );
        assert_eq!(too_much(4096, Some(4096)), None);
        // Under the usual limit of 8 MiB, connections have fewer slots to receive into.
        let all = driver.found(&library, &fake.tree(), Some(8 << 20)).unwrap();
        let of = |name: &str| all.iter().find(|one| one.rail.as_str() == name).unwrap();
        assert!(of("verbs:found2:1").is_usable());
        let locks = |limit| rc::locked(&VerbsConfig::default(), 1024, limit);
        let (least, usual, most) = (locks(Some(0)), locks(Some(8 << 20)), locks(None));
        assert!(least < 5 << 20 && usual > 7 << 20 && usual <= 8 << 20 && most > 8 << 20);
    }

    #[test]
    fn a_device_of_the_kernel_without_a_provider_is_listed_with_the_reason() {
        let fake = Fake::new();
        fake.device("orphan0", 0, &[1]);
        let all = found(&fake, Spec::new("found1", [127, 0, 9, 13]), "");
        let orphan = all
            .iter()
            .find(|one| one.rail.as_str() == "verbs:orphan0:1:ud")
            .unwrap();
        let Verdict::Rejected { reason, remedy } = &orphan.verdict else {
            panic!("{orphan:?}");
        };
        assert!(
            reason.contains("no provider") && remedy.contains("ibverbs-providers"),
            "{reason}; {remedy}"
        );
    }

    #[test]
    fn ports_of_one_card_name_each_other() {
        let port = |name: &str, card: &str| Found {
            candidate: Candidate::rejected(name.parse().unwrap(), "down", "set it up"),
            card: card.to_owned(),
        };
        let all = cards(vec![
            port("verbs:a:1", "0001"),
            port("verbs:a:1:ud", "0001"),
            port("verbs:b:1:ud", "0001"),
            port("verbs:c:1:ud", ""),
            port("verbs:d:1:ud", ""),
        ]);
        let same: Vec<Vec<String>> = all.iter().map(|one| facts(one, "same-card")).collect();
        assert_eq!(
            same,
            [
                vec!["verbs:b:1:ud"],
                vec!["verbs:b:1:ud"],
                vec!["verbs:a:1 verbs:a:1:ud"],
                vec![],
                vec![]
            ]
        );
        let beside: Vec<Vec<String>> = all.iter().map(|one| facts(one, "same-port")).collect();
        assert_eq!(beside[..3], [vec!["verbs:a:1:ud"], vec!["verbs:a:1"], vec![]]);
        let can = of_port(
            frame_capabilities(1024, ud::ESTIMATE),
            &"verbs:a:1".parse().unwrap(),
        );
        let of = |name: &str| of_port(can, &name.parse().unwrap()).features.port;
        assert!(
            of("verbs:a:1") != 0
                && of("verbs:a:1") == of("verbs:a:1:ud")
                && of("verbs:a:2") != of("verbs:a:1")
        );
    }
}

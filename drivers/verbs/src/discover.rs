//! Discovery: each port of each device as a candidate, with its properties.

use std::sync::{Mutex, PoisonError};

use doorbell_fabric::discover::{Candidate, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{frame_capabilities, unusable};

use crate::config::VerbsConfig;
use crate::error::VerbsError;
use crate::gid::Published;
use crate::nearest;
use crate::ports::{self, Port, Tree};
use crate::sys::{LIBRARY, Library, Listed};
use crate::ud::open::Source;

/// The library of this process, once it was loaded.
static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// The process's library, loaded at the first call.
fn library() -> Result<Library, VerbsError> {
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

fn remedy(error: &VerbsError) -> &'static str {
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
    fn ports_of(&self, library: &Library, listed: &Listed, tree: &Tree) -> Vec<Candidate> {
        let whole = |reason: String, remedy: String| {
            let name = rail_name(&listed.name, 1);
            name.map(|name| vec![Candidate::rejected(name, reason, remedy)])
                .unwrap_or_default()
        };
        if let Some((reason, remedy)) = ports::reason_of_device(listed) {
            return whole(reason, remedy);
        }
        let opened = library.open(&listed.name).and_then(|open| {
            let attributes = open.attributes()?;
            let count = ports::count(&listed.name, &attributes)?;
            Ok((open, attributes, count))
        });
        let (open, attributes, count) = match opened {
            Ok(opened) => opened,
            Err(error) => return whole(error.to_string(), remedy(&error).to_owned()),
        };
        let firmware: String = attributes
            .fw_ver
            .iter()
            .map(|byte| char::from(*byte as u8))
            .take_while(|byte| *byte != '\0')
            .collect();
        let each = (1..=count).filter_map(|number| {
            let name = rail_name(&listed.name, number)?;
            let found = Port::look(&open, number, tree);
            let found = found.map_err(|error| (error.to_string(), remedy(&error).to_owned()));
            let port = found.and_then(|port| {
                let hint = "set verbs.gid_index to one of the table";
                port.only(self.config.gid_index)
                    .map_err(|reason| (reason, hint.to_owned()))
            });
            Some(match port {
                Ok(port) => candidate(name, &port).fact("firmware", &firmware),
                Err((reason, remedy)) => Candidate::rejected(name, reason, remedy),
            })
        });
        let (numa, bus) = tree.place(&listed.name);
        let placed = each.map(|candidate| {
            let candidate = match &bus {
                Some(bus) => candidate.fact("bus", bus),
                None => candidate,
            };
            match &numa {
                Some(numa) => candidate.fact("numa", numa),
                None => candidate,
            }
        });
        placed.collect()
    }
}

fn rail_name(device: &str, port: u8) -> Option<RailName> {
    format!("verbs:{device}:{port}:ud").parse().ok()
}

fn candidate(name: RailName, port: &Port) -> Candidate {
    let candidate = match (port.reason(), port.mtu()) {
        (None, Some(mtu)) => Candidate::usable(name, frame_capabilities(mtu, crate::ud::ESTIMATE)),
        (Some((reason, remedy)), _) => Candidate::rejected(name, reason, remedy),
        (None, None) => Candidate::rejected(name, "it has no MTU", "look at the device's driver"),
    };
    let candidate = candidate.only_when_named("an open rail can be reached by its network");
    facts(candidate, port)
}

fn facts(candidate: Candidate, port: &Port) -> Candidate {
    let mut candidate = candidate
        .fact("state", port.state())
        .fact("link", port.link.name());
    if let Some(interface) = &port.interface {
        candidate = candidate.fact("interface", interface);
    }
    if let Some(mtu) = port.mtu() {
        candidate = candidate.fact("mtu", format!("{mtu} bytes"));
    }
    if let Some((index, key)) = port.partition {
        candidate = candidate.fact("partition", format!("{key:#06x} (index {index})"));
    }
    if port.attributes.lid != 0 {
        candidate = candidate.fact("lid", port.attributes.lid);
    }
    for entry in &port.gids.usable {
        let Published { gid, kind, .. } = entry.published;
        candidate = candidate.fact(
            "gid",
            format!("{} {gid} ({kind}, {})", entry.index, entry.interface),
        );
    }
    for unusable in &port.gids.unusable {
        let Published { gid, kind, .. } = unusable.entry.published;
        candidate = candidate.fact(
            "gid not used",
            format!("{} {gid} ({kind}): it {}", unusable.entry.index, unusable.reason),
        );
    }
    candidate
}

impl Driver for VerbsDriver {
    fn kind(&self) -> &'static str {
        "verbs"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        let tree = Tree::default();
        let files = tree.device_files();
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let kind: RailName = "verbs".parse()?;
        let library = library().map_err(|error| rejected_by(&kind, &error))?;
        let devices = library.devices().map_err(|error| rejected_by(&kind, &error))?;
        let mut all: Vec<Candidate> = Vec::new();
        for listed in &devices.list {
            all.extend(self.ports_of(&library, listed, &tree));
        }
        // Devices of the kernel that no provider drives.
        for device in files.iter().filter_map(|file| tree.device_of(file)) {
            if devices.list.iter().all(|listed| listed.name != device) {
                let said = if devices.said.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", devices.said)
                };
                all.extend(rail_name(&device, 1).map(|name| {
                    let reason = format!("no provider of {} drives it{said}", library.file.display());
                    Candidate::rejected(name, reason, "install its provider (Debian: ibverbs-providers)")
                }));
            }
        }
        let version = format!("{}, version {}", library.file.display(), library.version);
        let told = all.into_iter().map(|candidate| match library.said.as_str() {
            "" => candidate.fact("library", &version),
            said => candidate.fact("library", &version).fact("library prints", said),
        });
        Ok(told.collect())
    }

    /// A name that is no port of a device is refused with the reason and the nearest name that is one.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        let refused = nearest::refuse(&Tree::default(), name)?;
        Some(doorbell_inet::rejected(name.clone(), refused))
    }
}

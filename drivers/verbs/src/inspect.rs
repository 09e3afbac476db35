//! What the library reports about devices and ports, for a diagnosis that goes step by step.

use std::path::PathBuf;
use std::sync::Arc;

use doorbell_fabric::gid::Link;

use crate::config::VerbsConfig;
use crate::discover;
use crate::error::VerbsError;
use crate::gid::{Gid, Ranked};
use crate::ports::{self, Port, Tree};
use crate::rc;
use crate::sys::{Library, Open, numbers};
use crate::ud;

/// Why something cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason, without a full stop.
    pub reason: String,
    /// What to do; a command in it stands between backticks.
    pub remedy: String,
}

impl Fault {
    fn of((reason, remedy): (String, String)) -> Self {
        Self { reason, remedy }
    }
}

impl From<VerbsError> for Fault {
    fn from(error: VerbsError) -> Self {
        Self {
            reason: error.to_string(),
            remedy: discover::remedy(&error).to_owned(),
        }
    }
}

/// The loaded library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFacts {
    /// The file that was loaded.
    pub file: PathBuf,
    /// The newest symbol version of those that are known here.
    pub version: String,
    /// What it has written to standard error.
    pub said: String,
    /// Whether it reports that the kernel copies registered pages for children of fork.
    pub copies_at_fork: bool,
}

/// A device that was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The file of its provider.
    pub provider: Option<PathBuf>,
    /// The firmware's version; empty where it reports none.
    pub firmware: String,
    /// Its own GUID, in the manner of `ibstat`.
    pub node_guid: String,
    /// The GUID of its card.
    pub card_guid: String,
    /// Number of its ports.
    pub ports: u8,
    /// Most requests that a queue pair can have waiting; 0 where it reports none.
    pub requests: usize,
    /// Whether it has memory windows of type 2B.
    pub windows: bool,
    /// What its atomics are atomic with, in words.
    pub atomics: &'static str,
}

/// A port of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The name of its state.
    pub state: &'static str,
    /// Its link layer.
    pub link: Link,
    /// The network interface that it stands on.
    pub interface: Option<String>,
    /// The longest datagram, in bytes.
    pub mtu: Option<usize>,
    /// The partition that is used: its place in the table, and its key.
    pub partition: Option<(u16, u16)>,
    /// The table of GIDs, by rank.
    pub gids: Ranked,
    /// Bytes of locked memory that a rail of datagrams needs.
    pub locked: usize,
    /// Bytes of locked memory that a rail of reliable connections needs.
    pub locked_by_connections: usize,
    /// Why its state lets nothing pass.
    pub down: Option<Fault>,
    /// Why it has no partition.
    pub no_partition: Option<Fault>,
    /// Why it has no GID.
    pub no_gid: Option<Fault>,
    /// Why it has no MTU.
    pub no_mtu: Option<Fault>,
}

/// The library and the system's tree: looks at devices and ports.
#[derive(Debug)]
pub struct Inspector {
    library: Library,
    tree: Tree,
    config: VerbsConfig,
}

impl Inspector {
    /// Loads the library, which stays loaded until the process ends.
    ///
    /// # Errors
    /// If there is none, or it lacks functions.
    pub fn load(tree: Tree, config: &VerbsConfig) -> Result<Self, Fault> {
        Ok(Self {
            library: discover::library()?,
            tree,
            config: config.clone(),
        })
    }

    /// Returns what was loaded.
    #[must_use]
    pub fn library(&self) -> LibraryFacts {
        LibraryFacts {
            file: self.library.file.clone(),
            version: self.library.version.to_owned(),
            said: self.library.said.clone(),
            copies_at_fork: self.library.copies_at_fork(),
        }
    }

    /// Returns the names of the devices that the library has a provider for, and what was written to standard
    /// error while they were listed.
    ///
    /// # Errors
    /// If the system does not list any.
    pub fn devices(&self) -> Result<(Vec<String>, String), Fault> {
        let devices = self.library.devices()?;
        let names = devices.list.into_iter().map(|listed| listed.name);
        Ok((names.collect(), devices.said))
    }

    /// Opens a device, and closes it again.
    ///
    /// # Errors
    /// If it is of a kind that no rail drives, or the system does not open it.
    pub fn device(&self, device: &str) -> Result<DeviceFacts, Fault> {
        let listed = discover::listed(&self.library, device)?;
        if let Some(reason) = ports::reason_of_device(&listed) {
            return Err(Fault::of(reason));
        }
        Ok(device_facts(&*self.library.open(device)?)?)
    }

    /// Looks at a port.
    ///
    /// # Errors
    /// If the device cannot be opened, has no such port, or lacks the GID that `verbs.gid_index` names.
    pub fn port(&self, device: &str, number: u8) -> Result<PortFacts, Fault> {
        let open: Arc<Open> = self.library.open(device)?;
        let port = Port::look(&open, number, &self.tree)?;
        let port = port.only(self.config.gid_index).map_err(|reason| Fault {
            reason,
            remedy: discover::OTHER_INDEX.to_owned(),
        })?;
        Ok(port_facts(port, &self.config))
    }
}

/// What an open device reports.
///
/// # Errors
/// If it reports nothing, or nonsense.
pub(crate) fn device_facts(open: &Open) -> Result<DeviceFacts, VerbsError> {
    let attributes = open.attributes()?;
    let firmware = attributes.fw_ver.iter().map(|byte| char::from(*byte as u8));
    Ok(DeviceFacts {
        provider: open.provider(),
        firmware: firmware.take_while(|byte| *byte != '\0').collect(),
        node_guid: guid(u64::from_be(attributes.node_guid)),
        card_guid: guid(u64::from_be(attributes.sys_image_guid)),
        ports: ports::count(open.name(), &attributes)?,
        requests: usize::try_from(attributes.max_qp_wr).unwrap_or(0),
        windows: attributes.device_cap_flags & numbers::CAN_MW_TYPE_2B != 0 && open.makes_windows(),
        atomics: match attributes.atomic_cap {
            numbers::ATOMIC_NONE => "none",
            numbers::ATOMIC_GLOBAL => "with the processors and all devices",
            _ => "with this device alone, not with the processors",
        },
    })
}

/// A GUID as `ibstat` and `ibv_devinfo` show it; empty where there is none.
fn guid(guid: u64) -> String {
    let parts = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff));
    if guid == 0 { String::new() } else { parts.join(":") }
}

fn port_facts(port: Port, config: &VerbsConfig) -> PortFacts {
    PortFacts {
        state: port.state(),
        link: port.link,
        mtu: port.mtu(),
        partition: port.partition,
        locked: ud::locked(config, port.mtu().unwrap_or(0)),
        locked_by_connections: rc::locked(config, port.mtu().unwrap_or(0), Some(0)),
        down: port.reason_of_state().map(Fault::of),
        no_partition: port.reason_of_partition().map(Fault::of),
        no_gid: port.reason_of_gids().map(Fault::of),
        no_mtu: port.reason_of_mtu().map(Fault::of),
        interface: port.interface,
        gids: port.gids,
    }
}

/// The prefix of an InfiniBand subnet: the first half of a GID.
pub(crate) fn subnet_prefix(gid: Gid) -> String {
    let [a, b, c, d, e, f, g, h, ..] = gid.0;
    guid(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::fake::Fake;
    use crate::sys::model::{self, Spec};

    fn inspector(fake: &Fake, spec: Spec) -> Inspector {
        Inspector {
            library: model::library(spec),
            tree: fake.tree(),
            config: VerbsConfig::default(),
        }
    }

    #[test]
    fn a_port_is_looked_at_step_by_step() {
        let fake = Fake::rxe("lo");
        let mut spec = Spec::new("inspected0", [127, 0, 9, 1]);
        spec.state = numbers::PORT_DOWN;
        let inspector = inspector(&fake, spec);
        assert_eq!(inspector.library().version, "1.13");
        assert!(inspector.library().copies_at_fork);
        let (devices, said) = inspector.devices().unwrap();
        assert!(devices.iter().any(|name| name == "inspected0") && said.is_empty());
        let device = inspector.device("inspected0").unwrap();
        assert_eq!((device.firmware.as_str(), device.ports), ("model 1", 1));
        assert_eq!(device.node_guid, "0002:c903:0012:3456");
        let port = inspector.port("inspected0", 1).unwrap();
        assert_eq!((port.state, port.mtu), ("DOWN", Some(1024)));
        assert!(port.down.is_some() && port.no_gid.is_none() && port.no_partition.is_none());
        assert_eq!(port.gids.usable.len(), 1);
        assert!(port.locked > 1 << 20, "{}", port.locked);
        assert!(
            port.locked_by_connections > port.locked,
            "{}",
            port.locked_by_connections
        );
        assert!(
            inspector
                .port("inspected0", 2)
                .unwrap_err()
                .reason
                .contains("inspected0:2")
        );
    }

    #[test]
    fn what_no_rail_drives_is_refused_with_what_does() {
        let fake = Fake::new();
        let mut spec = Spec::new("inspected1", [127, 0, 9, 2]);
        spec.transport = numbers::TRANSPORT_IWARP;
        let inspector = inspector(&fake, spec);
        let refused = inspector.device("inspected1").unwrap_err();
        assert!(
            refused.reason.contains("iWARP") && refused.remedy.contains("udp"),
            "{refused:?}"
        );
        let missing = inspector.device("nosuch9").unwrap_err();
        assert!(missing.remedy.contains("ibverbs-providers"), "{missing:?}");
    }

    #[test]
    fn an_index_without_a_gid_is_refused() {
        let fake = Fake::new();
        let spec = Spec::new("inspected2", [127, 0, 9, 3]);
        let inspector = Inspector {
            config: VerbsConfig {
                gid_index: Some(7),
                ..VerbsConfig::default()
            },
            ..inspector(&fake, spec)
        };
        let refused = inspector.port("inspected2", 1).unwrap_err();
        assert!(refused.reason.contains("index 7"), "{refused:?}");
    }

    #[test]
    fn guids_are_written_in_four_groups() {
        assert_eq!(guid(0xfe80_0000_0000_0001), "fe80:0000:0000:0001");
        assert_eq!(guid(0), "");
    }
}

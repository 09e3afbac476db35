//! A port of a device: what it is, its GIDs, and whether datagrams can pass.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use doorbell_fabric::gid::{FULL_MEMBER, Link};
use doorbell_inet::Nic;

use crate::error::VerbsError;
use crate::gid::{self, Entry, Gid, Kind, Published, Ranked};
use crate::sys::{DeviceAttr, GidEntry, Listed, Open, PortAttr, numbers};

/// Most entries of a device's table of GIDs that are read. The kernel takes the length of what it may write
/// as a number of 16 bits, and refuses a longer one.
const TABLE: usize = u16::MAX as usize / size_of::<GidEntry>();
/// Most partitions of a port that are read.
const PARTITIONS: u16 = 128;
/// The link of the library's number for it.
fn link_of(number: u8) -> Link {
    match number {
        numbers::LINK_LAYER_ETHERNET => Link::Ethernet,
        _ => Link::InfiniBand,
    }
}

/// Where the system describes devices: `/sys` but in tests.
#[derive(Clone, Debug)]
pub struct Tree(PathBuf);

impl Default for Tree {
    fn default() -> Self {
        Self(PathBuf::from("/sys"))
    }
}

impl Tree {
    /// Returns the tree below another folder, which has `class/infiniband` and `class/infiniband_verbs`.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// The device files that exist, by name: `uverbs0`. Without one there is nothing to load a library for.
    #[must_use]
    pub fn device_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join("class/infiniband_verbs"));
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("uverbs")).collect();
        names.sort_unstable();
        names
    }

    /// The device of a device file.
    #[must_use]
    pub fn device_of(&self, file: &str) -> Option<String> {
        self.text(format!("class/infiniband_verbs/{file}/ibdev"))
    }

    /// The entry of a device file, which is there as long as the device is.
    pub(crate) fn entry(&self, file: &str) -> PathBuf {
        self.0.join("class/infiniband_verbs").join(file)
    }

    /// The device file of a device.
    #[must_use]
    pub fn file_of(&self, device: &str) -> Option<String> {
        let mut files = self.device_files().into_iter();
        files.find(|file| self.device_of(file).as_deref() == Some(device))
    }

    /// Every device of the kernel's that programs can drive, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        let files = self.device_files();
        let mut devices: Vec<String> = files.iter().filter_map(|file| self.device_of(file)).collect();
        devices.sort_unstable();
        devices
    }

    /// The ports of a device, in order; the first one where the system does not list them.
    #[must_use]
    pub fn ports_of(&self, device: &str) -> Vec<u8> {
        let entries = std::fs::read_dir(self.0.join(self.device(device).join("ports")));
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut ports: Vec<u8> = names.filter_map(|name| name.parse().ok()).collect();
        ports.sort_unstable();
        if ports.is_empty() { vec![1] } else { ports }
    }

    /// Every port of every device.
    #[must_use]
    pub fn ports(&self) -> Vec<(String, u8)> {
        let of = |device: String| {
            let ports = self.ports_of(&device);
            ports.into_iter().map(move |port| (device.clone(), port))
        };
        self.devices().into_iter().flat_map(of).collect()
    }

    /// The speed of a port, in the system's words: `100 Gb/sec (4X EDR)`.
    pub(crate) fn speed(&self, device: &str, port: u8) -> Option<String> {
        self.text(self.device(device).join(format!("ports/{port}/rate")))
    }

    fn device(&self, device: &str) -> PathBuf {
        Path::new("class/infiniband").join(device)
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Whether the kernel names the interface below a device, as it does for soft-RoCE.
    pub(crate) fn has_parent(&self, device: &str) -> bool {
        self.0.join(self.device(device)).join("parent").exists()
    }

    /// The network interface that a port stands on.
    #[must_use]
    pub fn interface(&self, device: &str, port: u8) -> Option<String> {
        let folder = self.device(device);
        let parent = self.text(folder.join("parent"));
        let entries = std::fs::read_dir(self.0.join(folder.join("device/net"))).ok();
        let own = || {
            let mut names: Vec<String> = entries
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort_unstable();
            let at = usize::from(port.saturating_sub(1));
            names.get(at).or(names.first()).cloned()
        };
        let first = || self.text(folder.join(format!("ports/{port}/gid_attrs/ndevs/0")));
        parent.or_else(own).or_else(first)
    }

    /// The device and the port that a network interface leads to: the port that stands on it, or that has
    /// GIDs of it (a VLAN's).
    #[must_use]
    pub fn port_on(&self, interface: &str) -> Option<(String, u8)> {
        let all = self.ports();
        let stands = |(device, port): &&(String, u8)| {
            self.interface(device, *port)
                .is_some_and(|name| name == interface)
        };
        let has = |(device, port): &&(String, u8)| {
            let folder = self.device(device).join(format!("ports/{port}/gid_attrs/ndevs"));
            let entries = std::fs::read_dir(self.0.join(folder)).into_iter().flatten();
            let mut names = entries
                .flatten()
                .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
            names.any(|name| name.trim() == interface)
        };
        all.iter().find(stands).or_else(|| all.iter().find(has)).cloned()
    }

    /// The NUMA node and the PCI address of a device, where it has them.
    pub(crate) fn place(&self, device: &str) -> (Option<String>, Option<String>) {
        let folder = self.device(device).join("device");
        let numa = self.text(folder.join("numa_node"));
        let target = std::fs::read_link(self.0.join(&folder)).ok();
        let bus = target.and_then(|target| Some(target.file_name()?.to_str()?.to_owned()));
        (numa, bus.filter(|bus| bus.contains(':')))
    }

    /// An entry of a port's table of GIDs, from files: for libraries that have no call for the table.
    fn gid_type(&self, device: &str, port: u8, index: usize) -> Option<Kind> {
        let folder = self.device(device).join(format!("ports/{port}/gid_attrs"));
        match self.text(folder.join(format!("types/{index}")))?.as_str() {
            "RoCE v2" => Some(Kind::RoceV2),
            "IB/RoCE v1" => Some(Kind::RoceV1),
            _ => None,
        }
    }

    fn gid_interface(&self, device: &str, port: u8, index: usize) -> Option<String> {
        let folder = self.device(device).join(format!("ports/{port}/gid_attrs"));
        self.text(folder.join(format!("ndevs/{index}")))
    }
}

/// A port as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) link: Link,
    pub(crate) attributes: PortAttr,
    /// The network interface that it stands on.
    pub(crate) interface: Option<String>,
    pub(crate) gids: Ranked,
    /// The partition that is used: its place in the table, and its key.
    pub(crate) partition: Option<(u16, u16)>,
    /// The key of the one that was looked for.
    wanted: Option<u16>,
}

impl Port {
    /// Looks at a port of an open device.
    ///
    /// # Errors
    /// If the library cannot read the port's state.
    pub(crate) fn look(open: &Open, number: u8, tree: &Tree) -> Result<Self, VerbsError> {
        Self::look_for(open, number, tree, None)
    }

    /// Looks at a port that is to be used in a partition, by its key: full and limited membership are the
    /// same partition.
    ///
    /// # Errors
    /// If the library cannot read the port's state.
    pub(crate) fn look_for(
        open: &Open,
        number: u8,
        tree: &Tree,
        wanted: Option<u16>,
    ) -> Result<Self, VerbsError> {
        let attributes = open.port(number)?;
        let device = open.name().to_owned();
        let link = link_of(attributes.link_layer);
        let interface = tree.interface(&device, number).filter(|_| link == Link::Ethernet);
        let table = table(open, (&device, number), &attributes, tree)?;
        let nics = doorbell_inet::nics().unwrap_or_default();
        let entries = table
            .into_iter()
            .map(|raw| raw.entry(link, interface.as_deref(), &nics));
        Ok(Self {
            gids: gid::rank(entries.collect()),
            partition: partition(open, number, &attributes, wanted),
            wanted,
            number,
            link,
            attributes,
            interface,
        })
    }

    /// The longest datagram, in bytes; `None` where the port reports none.
    pub(crate) fn mtu(&self) -> Option<usize> {
        match self.attributes.active_mtu {
            code @ numbers::MTU_256..=numbers::MTU_4096 => Some(128 << code),
            _ => None,
        }
    }

    /// Leaves one GID of its table, where one is set.
    ///
    /// # Errors
    /// If that one is not there or cannot be used, with the reason.
    pub(crate) fn only(mut self, index: Option<u8>) -> Result<Self, String> {
        let Some(index) = index else { return Ok(self) };
        let is_it = |entry: &Entry| entry.index == index;
        if let Some(unusable) = self.gids.unusable.iter().find(|unusable| is_it(&unusable.entry)) {
            let gid = unusable.entry.published.gid;
            return Err(format!("the GID of index {index}, {gid}, {}", unusable.reason));
        }
        self.gids.usable.retain(is_it);
        if self.gids.usable.is_empty() {
            return Err(format!("its table has no GID of index {index}"));
        }
        Ok(self)
    }

    /// Whether packets need a global routing header: always on Ethernet.
    pub(crate) fn needs_route(&self) -> bool {
        self.link == Link::Ethernet || self.attributes.flags & numbers::FLAG_GRH_REQUIRED != 0
    }

    /// Why no datagram can pass, and what to do; `None` where one can.
    pub(crate) fn reason(&self) -> Option<(String, String)> {
        let reasons = [
            Self::reason_of_state,
            Self::reason_of_gids,
            Self::reason_of_partition,
            Self::reason_of_mtu,
        ];
        reasons.into_iter().find_map(|reason| reason(self))
    }

    /// The name of its state, as the subnet manager's tools have it.
    pub(crate) fn state(&self) -> &'static str {
        match self.attributes.state {
            numbers::PORT_DOWN => "DOWN",
            numbers::PORT_INIT => "INIT",
            numbers::PORT_ARMED => "ARMED",
            numbers::PORT_ACTIVE => "ACTIVE",
            numbers::PORT_ACTIVE_DEFER => "ACTIVE (deferred)",
            _ => "unknown",
        }
    }

    /// Why its state lets nothing pass, and what to do.
    pub(crate) fn reason_of_state(&self) -> Option<(String, String)> {
        let state = self.attributes.state;
        if matches!(state, numbers::PORT_ACTIVE | numbers::PORT_ACTIVE_DEFER) {
            return None;
        }
        let interface = self.interface.as_deref().unwrap_or("its interface");
        Some(match (self.link, state) {
            (Link::Ethernet, _) => (
                format!("the port is down, as {interface} is down or has no carrier"),
                format!("set it up: `ip link set {interface} up`"),
            ),
            (Link::InfiniBand, numbers::PORT_INIT) => (
                "the port is in state INIT: no subnet manager has configured it".to_owned(),
                "start one on this subnet (opensm), or look at the one of the switch".to_owned(),
            ),
            (Link::InfiniBand, numbers::PORT_ARMED) => (
                "the port is in state ARMED: the subnet manager has not activated it".to_owned(),
                "look at the subnet manager's log".to_owned(),
            ),
            (Link::InfiniBand, _) => (
                "the port is down: there is no cable, or nothing at its other end".to_owned(),
                "connect it, and look at ibstat".to_owned(),
            ),
        })
    }

    /// Why no GID can be used, and what to do.
    pub(crate) fn reason_of_gids(&self) -> Option<(String, String)> {
        if !self.gids.usable.is_empty() {
            return None;
        }
        let interface = self.interface.as_deref().unwrap_or("its interface");
        let why = self.gids.unusable.first().map(|first| {
            let Published { gid, .. } = first.entry.published;
            format!("no GID can be used: {gid} {}", first.reason)
        });
        let reason = why.unwrap_or_else(|| "its table of GIDs is empty".to_owned());
        let remedy = match self.link {
            Link::Ethernet => {
                format!("give {interface} an address: `ip address add 192.0.2.1/24 dev {interface}`")
            }
            Link::InfiniBand => "look at the subnet manager's log".to_owned(),
        };
        Some((reason, remedy))
    }

    /// Why it has no partition, and what to do.
    pub(crate) fn reason_of_partition(&self) -> Option<(String, String)> {
        if self.partition.is_some() {
            return None;
        }
        Some(match self.wanted {
            None => (
                "its table of partitions is empty".to_owned(),
                "have the subnet manager put the port into one".to_owned(),
            ),
            Some(key) => (
                format!("it is not in the partition {key:#06x}"),
                "have the subnet manager put the port into it, or set verbs.pkey to another one".to_owned(),
            ),
        })
    }

    /// Why the length of packets is not known, and what to do.
    pub(crate) fn reason_of_mtu(&self) -> Option<(String, String)> {
        self.mtu().is_none().then(|| {
            let number = self.attributes.active_mtu;
            (
                format!("it reports the MTU number {number}, which there is not"),
                "update the device's firmware and its provider".to_owned(),
            )
        })
    }
}

/// Why a device as a whole cannot be used, and what to do.
pub(crate) fn reason_of_device(listed: &Listed) -> Option<(String, String)> {
    match listed.transport {
        numbers::TRANSPORT_IWARP => Some((
            "it is an iWARP device, whose connections are made by the kernel's connection manager alone"
                .to_owned(),
            "use udp over its interface".to_owned(),
        )),
        numbers::TRANSPORT_USNIC | numbers::TRANSPORT_USNIC_UDP => Some((
            "it is a usNIC device, whose queues are another rail's".to_owned(),
            "name usnic: and the PCI address of a virtual function".to_owned(),
        )),
        _ if listed.node_type != numbers::NODE_CA && listed.node_type != numbers::NODE_RNIC => Some((
            format!("it is no adapter, but a node of type {}", listed.node_type),
            "name an adapter".to_owned(),
        )),
        _ => None,
    }
}

/// The number of ports of a device.
///
/// # Errors
/// If the device reports none.
pub(crate) fn count(device: &str, attributes: &DeviceAttr) -> Result<u8, VerbsError> {
    match attributes.phys_port_cnt {
        0 => Err(VerbsError::Nonsense {
            device: device.to_owned(),
            what: "no port".to_owned(),
        }),
        count => Ok(count),
    }
}

/// The first partition of which the port is a full member, else its first; of those that are wanted.
fn partition(open: &Open, port: u8, attributes: &PortAttr, wanted: Option<u16>) -> Option<(u16, u16)> {
    let all = (0..attributes.pkey_tbl_len.min(PARTITIONS)).filter_map(|index| {
        let key = open.partition(port, index)?;
        let is_wanted = wanted.is_none_or(|wanted| (key ^ wanted) & !FULL_MEMBER == 0);
        (key & !FULL_MEMBER != 0 && is_wanted).then_some((index, key))
    });
    let all: Vec<(u16, u16)> = all.collect();
    let full = all.iter().find(|(_, key)| key & FULL_MEMBER != 0);
    full.or(all.first()).copied()
}

/// An entry of a table as it was read.
struct Raw {
    gid: Gid,
    index: u8,
    kind: Kind,
    interface: Option<String>,
}

impl Raw {
    fn entry(self, link: Link, own: Option<&str>, nics: &[Nic]) -> Entry {
        let interface = self.interface.unwrap_or_default();
        let nic = nics.iter().find(|nic| nic.name == interface);
        let address = self.gid.address();
        let prefix = nic.and_then(|nic| nic.addresses.iter().find(|own| own.ip == address));
        let prefix = match (prefix, link) {
            (Some(own), _) => own.prefix,
            (None, Link::InfiniBand) => 64,
            (None, Link::Ethernet) => 0,
        };
        Entry {
            published: Published {
                gid: self.gid,
                kind: self.kind,
                prefix,
            },
            index: self.index,
            is_own: own == Some(interface.as_str()),
            is_up: nic.is_some_and(Nic::is_up),
            interface,
        }
    }
}

/// Reads a port's table of GIDs, without the entries that are not in use.
fn table(
    open: &Open,
    (device, port): (&str, u8),
    attributes: &PortAttr,
    tree: &Tree,
) -> Result<Vec<Raw>, VerbsError> {
    let length = usize::try_from(attributes.gid_tbl_len).map_err(|_| VerbsError::Nonsense {
        device: format!("{device}:{port}"),
        what: format!("a table of {} GIDs", attributes.gid_tbl_len),
    })?;
    let by_call = open.gid_table(TABLE);
    let mut found = match by_call {
        Some(entries) => entries?
            .iter()
            .filter_map(|entry| of_entry(entry, port))
            .collect(),
        None => of_files(open, (device, port), length, tree),
    };
    found.retain(|raw: &Raw| !raw.gid.is_zero());
    Ok(found)
}

fn of_entry(entry: &GidEntry, port: u8) -> Option<Raw> {
    if entry.port_num != u32::from(port) {
        return None;
    }
    Some(Raw {
        gid: Gid(entry.gid.0),
        index: u8::try_from(entry.gid_index).ok()?,
        kind: Kind::of(entry.gid_type)?,
        interface: doorbell_inet::name_of(entry.ndev_ifindex).ok(),
    })
}

fn of_files(open: &Open, (device, port): (&str, u8), length: usize, tree: &Tree) -> Vec<Raw> {
    let read = |index: usize| {
        Some(Raw {
            gid: Gid(open.gid(port, index as i32)?),
            index: u8::try_from(index).ok()?,
            kind: tree.gid_type(device, port, index).unwrap_or(Kind::InfiniBand),
            interface: tree.gid_interface(device, port, index),
        })
    };
    (0..length.min(usize::from(u8::MAX) + 1))
        .filter_map(read)
        .collect()
}

/// The address of an IP network that a GID is, if it is one.
pub(crate) fn ip_of(published: &Published) -> Option<IpAddr> {
    (published.kind != Kind::InfiniBand).then(|| published.gid.address())
}

#[cfg(any(test, feature = "model"))]
#[cfg_attr(not(test), allow(dead_code, clippy::unwrap_used))]
pub(crate) mod fake {
    use std::fs;

    use super::Tree;

    /// A tree of devices in a folder.
    pub(crate) struct Fake(tempfile::TempDir);

    /// A tree in which every device file is there: which one is a device's depends on how many the model has.
    pub(crate) fn everything() -> Tree {
        thread_local! {
            static TREE: Fake = {
                let fake = Fake::new();
                fake.plug();
                fake
            };
        }
        TREE.with(Fake::tree)
    }

    impl Fake {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// One with soft-RoCE on an interface.
        pub(crate) fn rxe(interface: &str) -> Self {
            let fake = Self::new();
            fake.device("rxe0", 0, &[1]);
            fake.file("class/infiniband/rxe0/parent", interface);
            fake
        }

        /// Has every device file there.
        pub(crate) fn plug(&self) {
            for number in 0..8 {
                let entry = self
                    .0
                    .path()
                    .join(format!("class/infiniband_verbs/uverbs{number}"));
                fs::create_dir_all(entry).unwrap();
            }
        }

        /// Takes them all away.
        pub(crate) fn unplug(&self) {
            fs::remove_dir_all(self.0.path().join("class/infiniband_verbs")).unwrap();
        }

        pub(crate) fn tree(&self) -> Tree {
            Tree::at(self.0.path())
        }

        pub(crate) fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(crate) fn device(&self, name: &str, number: u32, ports: &[u8]) {
            self.file(&format!("class/infiniband_verbs/uverbs{number}/ibdev"), name);
            for port in ports {
                let rate = format!("class/infiniband/{name}/ports/{port}/rate");
                self.file(&rate, "2.5 Gb/sec (1X SDR)\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;

    #[test]
    fn the_tree_lists_devices_with_their_ports_interfaces_and_speeds() {
        let fake = Fake::rxe("eth0");
        fake.device("mlx5_0", 3, &[2, 1]);
        let tree = fake.tree();
        assert_eq!(tree.device_files(), ["uverbs0", "uverbs3"]);
        assert_eq!(tree.devices(), ["mlx5_0", "rxe0"]);
        let ports = [
            ("mlx5_0".to_owned(), 1),
            ("mlx5_0".to_owned(), 2),
            ("rxe0".to_owned(), 1),
        ];
        assert_eq!(tree.ports(), ports);
        assert_eq!(tree.file_of("mlx5_0").as_deref(), Some("uverbs3"));
        assert_eq!(tree.interface("rxe0", 1).as_deref(), Some("eth0"));
        assert_eq!(tree.speed("rxe0", 1).as_deref(), Some("2.5 Gb/sec (1X SDR)"));
        assert!(tree.file_of("rxe1").is_none() && tree.interface("mlx5_0", 1).is_none());
    }
}

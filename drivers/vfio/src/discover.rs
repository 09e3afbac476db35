//! What PCI devices there are, and all that decides whether a program can have one: driver, IOMMU group,
//! physical function.
//!
//! Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups of Linux.

use std::path::Path;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;

use crate::bdf::Bdf;
use crate::error::Error;
use crate::host::{Host, line, names, number, target};

/// Class of bridges between PCI buses, without the programming interface (PCI Code and ID Assignment, 1.7).
const BRIDGE: u32 = 0x0604;
/// Class of network controllers.
const NETWORK: u32 = 0x02;

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Its PCI address.
    pub bdf: Bdf,
    /// Number of its vendor.
    pub vendor: u16,
    /// Number that the vendor gave the device.
    pub device: u16,
    /// Its class: base class, subclass and programming interface, a byte each.
    pub class: u32,
    /// The driver that has it.
    pub driver: Option<String>,
    /// What it is in SR-IOV.
    pub role: Role,
    /// The devices that an IOMMU cannot distinguish from it, itself included; `None` when no IOMMU is on.
    pub group: Option<Group>,
    /// The memory that it is near to.
    pub numa_node: Option<u32>,
    /// Its network interfaces; none while a program has it.
    pub interfaces: Vec<Interface>,
}

/// What a function is in SR-IOV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has nothing to do with it.
    Plain,
    /// A physical function, which can have virtual ones.
    Physical {
        /// How many it can have.
        most: u32,
        /// Those that it has, in the order of their numbers.
        virtuals: Vec<Bdf>,
    },
    /// A virtual function.
    Virtual {
        /// Its number at the physical function, as in `ip link set INTERFACE vf NUMBER`; `None` if unknown.
        number: Option<u32>,
        /// The physical function.
        physical: Bdf,
        /// The driver of that.
        driver: Option<String>,
        /// The interfaces of that: its link is the one that a virtual function's frames take.
        interfaces: Vec<Interface>,
    },
}

/// A network interface of the kernel, as far as its device is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// Whether it is up and has a carrier; `None` if unknown.
    pub is_up: Option<bool>,
    /// Megabits a second; `None` while it is down.
    pub speed: Option<u32>,
}

/// A group of devices that an IOMMU cannot distinguish from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number, which is the name of its file in `/dev/vfio`.
    pub number: u32,
    /// All devices in it.
    pub members: Vec<Member>,
    /// What restricts their memory accesses.
    pub guard: Guard,
}

/// What restricts the memory accesses of a group's devices. The existence of a group alone does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// An IOMMU, which translates.
    Translates,
    /// An IOMMU that passes the kernel's own transfers unchanged (type `identity`, `iommu=pt`). A program's
    /// device is translated all the same: VFIO puts the group into a domain of its own.
    Identity,
    /// Nothing: VFIO created the group in its no-IOMMU mode (`enable_unsafe_noiommu_mode`).
    Nothing,
}

/// A device in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its PCI address.
    pub bdf: Bdf,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its PCI class.
    pub class: u32,
}

impl Member {
    /// Whether the group stays viable with this device: it has no driver or a VFIO driver, or it is a bridge,
    /// whose driver does no DMA.
    pub fn is_harmless(&self) -> bool {
        let idle = |driver: &str| is_for_programs(driver) || driver == "pci-stub" || driver == "pcieport";
        self.class >> 8 == BRIDGE || self.driver.as_deref().is_none_or(idle)
    }
}

impl Group {
    /// The members, but for `bdf`, because of which a program cannot have any of them.
    pub fn obstacles(&self, bdf: Bdf) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |member| member.bdf != bdf && !member.is_harmless())
    }
}

impl PciDevice {
    /// Returns the error if no IOMMU restricts its memory accesses.
    pub fn unguarded(&self) -> Option<Error> {
        let group = match &self.group {
            Some(group) if group.guard == Guard::Nothing => Some(group.number),
            Some(_) => return None,
            None => None,
        };
        Some(Error::NoIommu { bdf: self.bdf, group })
    }

    /// Whether it is bound to a VFIO driver.
    pub fn is_bound(&self) -> bool {
        self.driver.as_deref().is_some_and(is_for_programs)
    }

    /// Checks that a rail of this name could open it: it is bound to a driver for programs, and an IOMMU
    /// guards it.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the reason and the command that binds it.
    pub fn openable(&self, rail: &RailName) -> Result<(), RailError> {
        if self.is_bound() {
            // The driver that it is bound to may be set up to work without an IOMMU.
            let unguarded = self.unguarded();
            return unguarded.map_or(Ok(()), |error| Err(error.of_rail(rail.as_str())));
        }
        let driver = match &self.driver {
            Some(driver) => format!("the driver `{driver}` has it"),
            None => "no driver has it".to_owned(),
        };
        Err(RailError::Unusable {
            rail: rail.to_string(),
            reason: format!("{driver}, and not vfio-pci"),
            remedy: format!(
                "`doorbell doctor --fix {}` prints the commands that bind it",
                self.bdf
            ),
        })
    }

    /// Whether it is a network controller.
    pub fn is_network(&self) -> bool {
        self.class >> 16 == NETWORK
    }
}

/// `vfio-pci`, and the variants of it that some drivers bring (`mlx5_vfio_pci`).
fn is_for_programs(driver: &str) -> bool {
    driver == "vfio-pci" || driver.ends_with("_vfio_pci") || driver.ends_with("-vfio-pci")
}

impl Host {
    /// All PCI devices, in the order of their addresses.
    ///
    /// # Errors
    /// Where the kernel's folder of them cannot be read. A machine without PCI has none.
    pub fn devices(&self) -> Result<Vec<PciDevice>, Error> {
        let folder = self.devices_folder();
        let found =
            names(&folder).map_err(|source| Error::system("list", &folder.display().to_string(), source))?;
        let found = found.iter().filter_map(|name| name.parse().ok());
        // A device that disappears meanwhile is not listed.
        let mut devices: Vec<_> = found.filter_map(|bdf| self.device(bdf).ok()).collect();
        devices.sort_unstable_by_key(|device| device.bdf);
        Ok(devices)
    }

    /// One PCI device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is none at this address.
    pub fn device(&self, bdf: Bdf) -> Result<PciDevice, Error> {
        let folder = self.folder(bdf);
        let read = |name: &str| number(&folder.join(name)).ok_or(Error::NoDevice { bdf });
        Ok(PciDevice {
            bdf,
            vendor: read("vendor")? as u16,
            device: read("device")? as u16,
            class: read("class")? as u32,
            driver: target(&folder.join("driver")),
            role: self.role(bdf),
            group: self.group(bdf),
            // -1 if the firmware does not report it.
            numa_node: number(&folder.join("numa_node")).and_then(|node| node.try_into().ok()),
            interfaces: interfaces(&folder),
        })
    }

    fn role(&self, bdf: Bdf) -> Role {
        let folder = self.folder(bdf);
        if let Some(physical) = target(&folder.join("physfn")).and_then(|name| name.parse().ok()) {
            let above = self.folder(physical);
            return Role::Virtual {
                number: virtuals(&above)
                    .into_iter()
                    .find(|(_, found)| *found == bdf)
                    .map(|(number, _)| number),
                physical,
                driver: target(&above.join("driver")),
                interfaces: interfaces(&above),
            };
        }
        match number(&folder.join("sriov_totalvfs")) {
            None | Some(0) => Role::Plain,
            Some(most) => Role::Physical {
                most: most as u32,
                virtuals: virtuals(&folder).into_iter().map(|(_, bdf)| bdf).collect(),
            },
        }
    }

    fn group(&self, bdf: Bdf) -> Option<Group> {
        let number = target(&self.folder(bdf).join("iommu_group"))?.parse().ok()?;
        let folder = self.path(&format!("sys/kernel/iommu_groups/{number}/devices"));
        let members = names(&folder).unwrap_or_default();
        let members = members.iter().filter_map(|name| name.parse().ok()).map(|bdf| {
            let folder = self.folder(bdf);
            Member {
                bdf,
                driver: target(&folder.join("driver")),
                class: crate::host::number(&folder.join("class")).unwrap_or(0) as u32,
            }
        });
        Some(Group {
            number,
            members: members.collect(),
            guard: self.guard(number),
        })
    }
}

impl Host {
    /// Finds the group by its own files, and by the name of its device file (drivers/vfio/group.c of Linux).
    fn guard(&self, number: u32) -> Guard {
        let told = |what: &str| line(&self.path(&format!("sys/kernel/iommu_groups/{number}/{what}")));
        let is_nobodys = self.path(&format!("dev/vfio/noiommu-{number}")).exists();
        match told("type").as_deref() {
            _ if is_nobodys || told("name").as_deref() == Some("vfio-noiommu") => Guard::Nothing,
            Some("identity") => Guard::Identity,
            _ => Guard::Translates,
        }
    }
}

/// The virtual functions of the physical one with this folder, by their numbers.
fn virtuals(folder: &Path) -> Vec<(u32, Bdf)> {
    let names = names(folder).unwrap_or_default();
    let links = names.iter().filter_map(|name| {
        let number = name.strip_prefix("virtfn")?.parse().ok()?;
        Some((number, target(&folder.join(name))?.parse().ok()?))
    });
    let mut virtuals: Vec<_> = links.collect();
    virtuals.sort_unstable();
    virtuals
}

fn interfaces(folder: &Path) -> Vec<Interface> {
    let net = folder.join("net");
    let names = names(&net).unwrap_or_default();
    let interface = |name: String| {
        let folder = net.join(&name);
        Some(Interface {
            is_up: match line(&folder.join("operstate"))?.as_str() {
                "up" => Some(true),
                "unknown" => None,
                _ => Some(false),
            },
            // The kernel reports −1, or an error, if it is unknown.
            speed: number(&folder.join("speed"))
                .and_then(|speed| u32::try_from(speed).ok())
                .filter(|speed| *speed > 0),
            name,
        })
    };
    names.into_iter().filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    #[test]
    fn a_virtual_function_is_found_with_all_that_belongs_to_it() {
        let tree = Tree::new();
        tree.igb_with_two_virtual_functions();
        let host = tree.host();
        let devices = host.devices().unwrap();
        let names: Vec<_> = devices.iter().map(|device| device.bdf.to_string()).collect();
        assert_eq!(
            names,
            ["0000:00:1c.0", "0000:01:00.0", "0000:01:10.0", "0000:01:10.2"]
        );
        let vf = host.device("01:10.2".parse().unwrap()).unwrap();
        assert_eq!((vf.vendor, vf.device, vf.class), (0x8086, 0x10ca, 0x020000));
        assert!(vf.is_network() && !vf.is_bound());
        assert_eq!((vf.driver.as_deref(), vf.numa_node), (Some("igbvf"), Some(1)));
        let group = vf.group.unwrap();
        assert_eq!((group.number, group.members.len()), (8, 1));
        let Role::Virtual {
            number,
            physical,
            driver,
            interfaces,
        } = vf.role
        else {
            panic!("{:?}", vf.role)
        };
        assert_eq!((number, physical.to_string().as_str()), (Some(1), "0000:01:00.0"));
        assert_eq!(driver.as_deref(), Some("igb"));
        let link = Interface {
            name: "eth0".to_owned(),
            is_up: Some(true),
            speed: Some(1000),
        };
        assert_eq!(interfaces, std::slice::from_ref(&link));
        let pf = host.device(physical).unwrap();
        let Role::Physical { most, virtuals } = pf.role else {
            panic!("{:?}", pf.role)
        };
        assert_eq!((most, virtuals.len(), pf.interfaces), (7, 2, vec![link]));
        assert_eq!(pf.numa_node, None, "−1 is none");
    }

    #[test]
    fn what_is_missing_is_named() {
        let tree = Tree::new();
        assert_eq!(tree.host().devices().unwrap(), []);
        let error = tree.host().device("01:00.0".parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), "no-device");
        assert!(error.to_string().contains("0000:01:00.0"));
    }

    #[test]
    fn bridges_and_idle_devices_do_not_stand_in_the_way() {
        let member = |driver: Option<&str>, class| Member {
            bdf: "01:00.0".parse().unwrap(),
            driver: driver.map(str::to_owned),
            class,
        };
        for driver in [
            None,
            Some("vfio-pci"),
            Some("pci-stub"),
            Some("pcieport"),
            Some("mlx5_vfio_pci"),
        ] {
            assert!(member(driver, 0x020000).is_harmless(), "{driver:?}");
        }
        assert!(member(Some("shpchp"), 0x060400).is_harmless(), "a bridge");
        for driver in ["igb", "nvme", "uio_pci_generic", "xvfio"] {
            assert!(!member(Some(driver), 0x020000).is_harmless(), "{driver}");
        }
    }
}

//! The texts of each error: the reason and the fix.

use std::io;

use super::Error;
use crate::bdf::Bdf;

/// The step before a connection exists.
const CONNECT: &str = "connect";

impl Error {
    /// Returns what failed, and on what.
    pub fn reason(&self) -> String {
        match self {
            Self::BadAddress { given } => format!("`{given}` is not the address of a PCI function"),
            Self::NoDevice { bdf } => format!("there is no PCI device {bdf}"),
            Self::NoIommu { bdf, group: None } => {
                format!("no IOMMU restricts the memory accesses of device {bdf}")
            }
            Self::NoIommu {
                bdf,
                group: Some(group),
            } => format!(
                "no IOMMU restricts the memory accesses of device {bdf}: its group {group} is one of VFIO's \
                 no-IOMMU mode (enable_unsafe_noiommu_mode)"
            ),
            Self::NotBound { bdf, driver, .. } => {
                let driver = driver.as_deref();
                let has = driver.map_or("no driver".to_owned(), |name| format!("driver `{name}`"));
                format!("device {bdf} has {has}, not vfio-pci")
            }
            Self::NotViable {
                bdf, group, others, ..
            } => {
                let others: Vec<_> = others
                    .iter()
                    .map(|(bdf, driver)| format!("{bdf} (driver `{driver}`)"))
                    .collect();
                if others.is_empty() {
                    return format!(
                        "device {bdf} shares IOMMU group {group} with a device of a kernel driver, which the kernel does not name"
                    );
                }
                format!(
                    "device {bdf} shares IOMMU group {group} with devices of kernel drivers: {}",
                    others.join(", ")
                )
            }
            Self::NoFile { path, .. } => format!("there is no {}", path.display()),
            Self::Forbidden {
                path,
                owner,
                group,
                mode,
                user,
            } => format!(
                "user {user} may not open {}, which is user {owner}'s and group {group}'s, mode {mode:03o}",
                path.display()
            ),
            Self::WrongVersion => "this kernel's VFIO has another API version than 0".to_owned(),
            Self::NoType1 => {
                "this kernel's VFIO does not support the IOMMU model type 1, version 2".to_owned()
            }
            Self::Busy { path, holder } => {
                let holder = holder.as_deref().unwrap_or("a process that is not visible here");
                format!("{} is already open in {holder}", path.display())
            }
            Self::NotAttached { bdf, step, source } => {
                format!("could not {step} for device {bdf}: {source}")
            }
            Self::Memlock {
                needed,
                limit,
                locked,
            } => format!(
                "the device's memory is {} KiB, and this process may lock {} KiB, of which {} KiB are in use",
                needed.div_ceil(1024),
                limit / 1024,
                locked / 1024
            ),
            Self::Unreadable { device, what, found } => {
                format!("device {device} does not answer: {what} is {found}")
            }
            Self::Refused { device, step, source } => {
                format!("could not {step} on device {device}: {source}")
            }
            Self::OutOfRegion {
                device,
                region,
                at,
                length,
                reason,
            } => format!("{length} bytes at {at:#x} of {region} of device {device} {reason}"),
            Self::NoInterrupt {
                device,
                kind,
                has,
                wanted,
            } => format!("device {device} has {has} interrupts of kind {kind}, but {wanted} were requested"),
            Self::NoBusAddresses { device, wanted } => {
                format!("device {device} has no {wanted} contiguous bus addresses left")
            }
            Self::Memory(error) => error.to_string(),
            Self::NoHugePages { needed, source } => {
                // Without its advice, which is for memory of other kinds.
                let said = std::error::Error::source(source).map(ToString::to_string);
                format!(
                    "{} KiB of huge pages are not free: {}",
                    needed.div_ceil(1024),
                    said.unwrap_or_else(|| source.to_string())
                )
            }
            Self::Silent { device, step, waited } => format!(
                "device {device} did not answer within {} ms at the request to {step}",
                waited.as_millis()
            ),
            Self::Gone {
                device,
                step: CONNECT,
                source: Some(source),
            } => match source.kind() {
                io::ErrorKind::NotFound => format!("the socket of device {device} does not exist"),
                io::ErrorKind::ConnectionRefused => format!(
                    "no process listens on the socket of device {device}: the process that emulated the device has ended without removing it"
                ),
                io::ErrorKind::PermissionDenied => {
                    format!("the socket of device {device} belongs to another user: {source}")
                }
                io::ErrorKind::WouldBlock => format!(
                    "the connection backlog of device {device} is full: the process that emulates it is stopped or busy"
                ),
                _ => format!("could not connect to device {device}: {source}"),
            },
            Self::Gone { device, step, source } => {
                let source = source.as_ref().map(|source| format!(": {source}"));
                format!(
                    "device {device} is gone at the request to {step}{}",
                    source.unwrap_or_default()
                )
            }
            Self::Hostile { device, what } => format!("device {device} {what}"),
            Self::System { step, object, source } => format!("could not {step} {object}: {source}"),
        }
    }

    /// Returns what to do: commands joined by `; ` to be run as root, where commands fix it.
    pub fn fix(&self) -> String {
        match self {
            Self::BadAddress { .. } => {
                "write it as `lspci -D` does, like 0000:01:10.0, or without the domain".to_owned()
            }
            Self::NoDevice { .. } => "run `lspci -D`; a virtual function exists once their number is \
                 set, as in `echo 2 > /sys/bus/pci/devices/ADDRESS_OF_THE_PHYSICAL_FUNCTION/sriov_numvfs`"
                .to_owned(),
            Self::NoIommu { .. } => "enable VT-d or AMD-Vi in the firmware, boot with `intel_iommu=on` (Intel; AMD's is on \
                 by default), and run `dmesg | grep -iE 'dmar|iommu|amd-vi'`"
                .to_owned(),
            Self::NotBound {
                bdf,
                driver,
                interface,
            } => bind(*bdf, driver.is_some(), interface.as_deref()),
            Self::NotViable { group, others, .. } if others.is_empty() => {
                format!("check the drivers of /sys/kernel/iommu_groups/{group}/devices/*")
            }
            Self::NotViable {
                parent: Some(parent), ..
            } => format!(
                "{parent} is its physical function, which has to stay with the kernel; so put the card into a slot whose port isolates \
                 functions (`lspci -vv` shows Access Control Services), or enable ACS in the firmware"
            ),
            Self::NotViable { others, .. } => {
                let commands: Vec<_> = others.iter().map(|(bdf, _)| bind(*bdf, true, None)).collect();
                format!(
                    "bind these to vfio-pci as well, if they are not needed: `{}`; else put the card into another slot",
                    commands.join("; ").replace('`', "")
                )
            }
            Self::NoFile { fix, .. } => fix.clone(),
            Self::Forbidden { path, user, .. } => format!(
                "`chown {user} {}`, permanently by a udev rule, or run as the user who owns it",
                path.display()
            ),
            Self::WrongVersion | Self::NoType1 => {
                "`modprobe vfio_iommu_type1`, or boot a kernel with CONFIG_VFIO_IOMMU_TYPE1".to_owned()
            }
            Self::Busy { .. } => {
                "end that process, or use another device; a group belongs to one process at a time".to_owned()
            }
            Self::NotAttached { .. } => "see the last lines of `dmesg`; where interrupts cannot be isolated (no interrupt \
                 remapping), `modprobe vfio_iommu_type1 allow_unsafe_interrupts=1` gives up that protection"
                .to_owned(),
            Self::Memlock { needed, locked, .. } => format!(
                "`ulimit -l {}` as root before the program starts, `LimitMEMLOCK=` of its service, `memlock` in \
                 /etc/security/limits.conf, or CAP_IPC_LOCK",
                (needed + locked).div_ceil(1024)
            ),
            Self::Unreadable { .. } => "run `lspci -vv` and `dmesg`: its power, its link, or its physical function \
                 may be gone; a reset of the slot or of the machine may bring it back"
                .to_owned(),
            Self::Refused { source, .. } => refused(source).to_owned(),
            Self::OutOfRegion { .. } => {
                "this is a bug of the driver, or the device is not what the driver takes it for; report it with `lspci -vv`"
                    .to_owned()
            }
            Self::NoInterrupt { .. } => {
                "use fewer queues with interrupts, or poll without them".to_owned()
            }
            Self::NoBusAddresses { .. } => {
                "use less memory: smaller rings, or fewer regions at a time".to_owned()
            }
            Self::Memory(_) => {
                "free memory, or share less of it with the device: smaller rings, fewer regions".to_owned()
            }
            Self::NoHugePages { needed, .. } => format!(
                "add {} (pages of 2 MiB) to the number in /proc/sys/vm/nr_hugepages and write it there, or use normal pages",
                needed.div_ceil(2 << 20)
            ),
            Self::Gone {
                step: CONNECT,
                source: Some(source),
                ..
            } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "run as the user who started the process that emulates it, or start one of your own".to_owned()
                }
                io::ErrorKind::WouldBlock => {
                    "check whether the process that emulates the device is stopped, and continue it".to_owned()
                }
                _ => "start the process that emulates the device, or name the folder that it uses".to_owned(),
            },
            Self::Silent { .. } | Self::Gone { .. } => {
                "check whether the process that emulates the device still runs, and open the device again".to_owned()
            }
            Self::Hostile { .. } => {
                "it implements another version of vfio-user, or has a bug; open the device again".to_owned()
            }
            Self::System { source, .. } => refused(source).to_owned(),
        }
    }
}

/// The commands that bind a device to vfio-pci.
fn bind(bdf: Bdf, has_driver: bool, interface: Option<&str>) -> String {
    let folder = format!("/sys/bus/pci/devices/{bdf}");
    let unbind = if has_driver {
        format!("echo {bdf} > {folder}/driver/unbind; ")
    } else {
        String::new()
    };
    let commands = format!(
        "`modprobe vfio-pci; echo vfio-pci > {folder}/driver_override; {unbind}echo {bdf} > /sys/bus/pci/drivers_probe`"
    );
    match interface {
        None => commands,
        Some(name) => format!("{commands}, which takes interface `{name}` away from the kernel"),
    }
}

fn refused(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => "raise `ulimit -l`, use less memory for the device, or look at `free -m`",
        Some(libc::EMFILE) => "raise `ulimit -n`",
        Some(libc::EPERM | libc::EACCES) => {
            "run as the user who owns the device files, or with the rights that the container lacks"
        }
        Some(libc::EBUSY) => "end the process that uses it",
        Some(libc::ENODEV | libc::EIO) => {
            "the device is gone or broken: run `lspci` and `dmesg`, and reset it"
        }
        _ => "see the last lines of `dmesg`; `doorbell doctor` checks all steps of opening the device",
    }
}

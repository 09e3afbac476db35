//! What is said of each error: the reason, and the fix.

use std::io;

use super::Error;
use crate::bdf::Bdf;

/// The step at which nobody has been reached yet.
const CONNECT: &str = "connect";

impl Error {
    /// What failed, and on what.
    pub fn reason(&self) -> String {
        match self {
            Self::BadAddress { given } => format!("`{given}` is no address of a PCI function"),
            Self::NoDevice { bdf } => format!("there is no PCI device {bdf}"),
            Self::NoIommu { bdf, group: None } => {
                format!("no IOMMU stands between device {bdf} and this machine's memory")
            }
            Self::NoIommu {
                bdf,
                group: Some(group),
            } => format!(
                "no IOMMU stands between device {bdf} and this machine's memory: its group {group} is one \
                 of VFIO's own, which was told to do without (enable_unsafe_noiommu_mode)"
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
                        "device {bdf} shares IOMMU group {group} with a device of the kernel, which it does not name"
                    );
                }
                format!(
                    "device {bdf} shares IOMMU group {group} with devices of the kernel: {}",
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
                "user {user} may not open {}, which is user {owner}'s and group {group}'s with mode {mode:03o}",
                path.display()
            ),
            Self::WrongVersion => "this kernel speaks another version of VFIO than 0".to_owned(),
            Self::NoType1 => "this kernel's VFIO has no IOMMU model of type 1, version 2".to_owned(),
            Self::Busy { path, holder } => {
                let holder = holder
                    .as_deref()
                    .unwrap_or("a process that is not seen from here");
                format!("{} is open already, in {holder}", path.display())
            }
            Self::NotAttached { bdf, step, source } => {
                format!("could not {step} for device {bdf}: {source}")
            }
            Self::Memlock {
                needed,
                limit,
                locked,
            } => format!(
                "the device's memory is {} KiB, and this process may lock {} KiB, of which {} KiB are taken",
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
            } => format!("device {device} has {has} interrupts of kind {kind}, and {wanted} were asked for"),
            Self::NoBusAddresses { device, wanted } => {
                format!("no {wanted} bus addresses in a row are left for device {device}")
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
                "device {device} did not answer within {} ms when asked to {step}",
                waited.as_millis()
            ),
            Self::Gone {
                device,
                step: CONNECT,
                source: Some(source),
            } => match source.kind() {
                io::ErrorKind::NotFound => format!("nobody has made the socket of device {device}"),
                io::ErrorKind::ConnectionRefused => format!(
                    "nobody listens at the socket of device {device} any more: the process that modelled it has ended without taking it away"
                ),
                io::ErrorKind::PermissionDenied => {
                    format!("the socket of device {device} is of another user: {source}")
                }
                io::ErrorKind::WouldBlock => format!(
                    "more callers wait for device {device} than it takes: the process that models it is stopped, or busy"
                ),
                _ => format!("could not connect to device {device}: {source}"),
            },
            Self::Gone { device, step, source } => {
                let source = source.as_ref().map(|source| format!(": {source}"));
                format!(
                    "device {device} is gone when asked to {step}{}",
                    source.unwrap_or_default()
                )
            }
            Self::Hostile { device, what } => format!("device {device} {what}"),
            Self::System { step, object, source } => format!("could not {step} {object}: {source}"),
        }
    }

    /// What to do: where commands mend it, these, joined by `; `, to be run as root.
    pub fn fix(&self) -> String {
        match self {
            Self::BadAddress { .. } => {
                "write it as `lspci -D` does, like 0000:01:10.0, or without the domain".to_owned()
            }
            Self::NoDevice { .. } => "look at `lspci -D`; a virtual function is there once its number is \
                 written, as in `echo 2 > /sys/bus/pci/devices/ADDRESS_OF_THE_PHYSICAL_FUNCTION/sriov_numvfs`"
                .to_owned(),
            Self::NoIommu { .. } => "switch VT-d or AMD-Vi on in the firmware, boot with `intel_iommu=on` (Intel; AMD's is on \
                 by itself), and look at `dmesg | grep -iE 'dmar|iommu|amd-vi'`"
                .to_owned(),
            Self::NotBound {
                bdf,
                driver,
                interface,
            } => bind(*bdf, driver.is_some(), interface.as_deref()),
            Self::NotViable { group, others, .. } if others.is_empty() => {
                format!("look at the drivers of /sys/kernel/iommu_groups/{group}/devices/*")
            }
            Self::NotViable {
                parent: Some(parent), ..
            } => format!(
                "{parent} is its physical function, which has to stay with the kernel; so put the card into a slot whose port keeps functions \
                 apart (`lspci -vv` shows it with Access Control Services), or switch ACS on in the firmware"
            ),
            Self::NotViable { others, .. } => {
                let commands: Vec<_> = others.iter().map(|(bdf, _)| bind(*bdf, true, None)).collect();
                format!(
                    "give these to vfio-pci as well, if nobody needs them: `{}`; else put the card into another slot",
                    commands.join("; ").replace('`', "")
                )
            }
            Self::NoFile { fix, .. } => fix.clone(),
            Self::Forbidden { path, user, .. } => format!(
                "`chown {user} {}`, for good by a rule of udev, or run as the user who owns it",
                path.display()
            ),
            Self::WrongVersion | Self::NoType1 => {
                "`modprobe vfio_iommu_type1`, or boot a kernel with CONFIG_VFIO_IOMMU_TYPE1".to_owned()
            }
            Self::Busy { .. } => {
                "end that process, or take another device; a group is one process's at a time".to_owned()
            }
            Self::NotAttached { .. } => "look at the last lines of `dmesg`; where interrupts cannot be isolated (no interrupt \
                 remapping), `modprobe vfio_iommu_type1 allow_unsafe_interrupts=1` gives that protection up"
                .to_owned(),
            Self::Memlock { needed, locked, .. } => format!(
                "`ulimit -l {}` as root before the program starts, `LimitMEMLOCK=` of its service, `memlock` in \
                 /etc/security/limits.conf, or CAP_IPC_LOCK",
                (needed + locked).div_ceil(1024)
            ),
            Self::Unreadable { .. } => "look at `lspci -vv` for it and at `dmesg`: its power, its link, or its physical function \
                 may be gone; a reset of the slot or of the machine may bring it back"
                .to_owned(),
            Self::Refused { source, .. } => refused(source).to_owned(),
            Self::OutOfRegion { .. } => {
                "this is a fault of the driver, or another device than it takes it for; report it with `lspci -vv`"
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
                "add {} (pages of 2 MiB) to what `cat /proc/sys/vm/nr_hugepages` says, and write it there; or use normal pages",
                needed.div_ceil(2 << 20)
            ),
            Self::Gone {
                step: CONNECT,
                source: Some(source),
                ..
            } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "run as the user who started the process that models it, or start one of your own".to_owned()
                }
                io::ErrorKind::WouldBlock => {
                    "look whether the process that models the device is stopped, and let it go on".to_owned()
                }
                _ => "start the process that models the device, or name the folder that it has".to_owned(),
            },
            Self::Silent { .. } | Self::Gone { .. } => {
                "look whether the process that models the device still runs, and open the device again".to_owned()
            }
            Self::Hostile { .. } => {
                "it runs another version of vfio-user, or is damaged; open the device again".to_owned()
            }
            Self::System { source, .. } => refused(source).to_owned(),
        }
    }
}

/// The commands that give a device to vfio-pci.
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
            "the device is gone or broken: look at `lspci` and `dmesg`, and reset it"
        }
        _ => "look at the last lines of `dmesg`; `doorbell doctor` walks all steps of the device",
    }
}

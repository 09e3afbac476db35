//! One error per step: what failed, on what, the system's word, and the commands that mend it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::error::RailError;

use crate::bdf::Bdf;
use crate::device::{Irq, RegionIndex};

/// What failed. The variants down to [`Error::Unreadable`] are the steps of [`chain`](crate::chain), in their order.
///
/// Shown, it is one sentence: the [reason](Error::reason), and the [fix](Error::fix).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no address of a PCI function.
    BadAddress {
        /// The text.
        given: String,
    },
    /// No such PCI function.
    NoDevice {
        /// The address.
        bdf: Bdf,
    },
    /// No IOMMU stands between the device and memory.
    NoIommu {
        /// The device.
        bdf: Bdf,
    },
    /// The device is not the driver's that gives devices to programs.
    NotBound {
        /// The device.
        bdf: Bdf,
        /// The driver that has it.
        driver: Option<String>,
        /// Its network interface, if it has one.
        interface: Option<String>,
    },
    /// Others in the device's IOMMU group belong to the kernel.
    NotViable {
        /// The device.
        bdf: Bdf,
        /// The group.
        group: u32,
        /// The others with their drivers.
        others: Vec<(Bdf, String)>,
    },
    /// A device file is missing.
    NoFile {
        /// The file.
        path: PathBuf,
        /// What brings it back.
        fix: String,
    },
    /// A device file that this user may not open.
    Forbidden {
        /// The file.
        path: PathBuf,
        /// Number of the user that owns it.
        owner: u32,
        /// Number of the group that owns it.
        group: u32,
        /// Its permissions.
        mode: u32,
        /// Number of the user of this process.
        user: u32,
    },
    /// The kernel speaks another version of VFIO.
    WrongVersion,
    /// The kernel has no IOMMU model that a program can use.
    NoType1,
    /// The group, or the device, is open in another process.
    Busy {
        /// The device file.
        path: PathBuf,
        /// Who has it open, in words, where that is seen.
        holder: Option<String>,
    },
    /// The kernel did not put the device behind an IOMMU domain of ours.
    NotAttached {
        /// The device.
        bdf: Bdf,
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The memory that the device shall reach cannot be locked.
    Memlock {
        /// How many bytes are needed.
        needed: u64,
        /// How many this process may lock.
        limit: u64,
        /// How many it has locked.
        locked: u64,
    },
    /// The device does not answer.
    Unreadable {
        /// The device.
        device: String,
        /// What was read.
        what: String,
        /// What came of it.
        found: String,
    },
    /// A call on an open device failed.
    Refused {
        /// The device.
        device: String,
        /// The step.
        step: &'static str,
        /// The system's error, or that of the other end.
        source: io::Error,
    },
    /// An access that the device has no room for.
    OutOfRegion {
        /// The device.
        device: String,
        /// The region.
        region: RegionIndex,
        /// Offset in the region, in bytes.
        at: u64,
        /// Length of the access, in bytes.
        length: u64,
        /// Why not.
        reason: &'static str,
    },
    /// The device has not as many interrupts, or none of that kind.
    NoInterrupt {
        /// The device.
        device: String,
        /// The kind.
        kind: Irq,
        /// How many there are.
        has: u32,
        /// How many were asked for.
        wanted: u32,
    },
    /// No bus addresses are left.
    NoBusAddresses {
        /// The device.
        device: String,
        /// How many bytes were wanted.
        wanted: u64,
    },
    /// Memory could not be made.
    Memory(RailError),
    /// Fewer huge pages are free than are needed.
    NoHugePages {
        /// How many bytes are needed.
        needed: usize,
        /// Why they could not be had.
        source: RailError,
    },
    /// A device model did not answer in time.
    Silent {
        /// The device.
        device: String,
        /// What was asked.
        step: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A device model has ended, or cannot be reached.
    Gone {
        /// The device.
        device: String,
        /// What was asked.
        step: &'static str,
        /// The system's error, where there is one.
        source: Option<io::Error>,
    },
    /// A device model broke the rules of the protocol.
    Hostile {
        /// The device.
        device: String,
        /// What it did.
        what: &'static str,
    },
    /// A system call failed.
    System {
        /// The step.
        step: &'static str,
        /// On what.
        object: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(step: &'static str, object: &str, source: io::Error) -> Self {
        Self::System {
            step,
            object: object.to_owned(),
            source,
        }
    }

    pub(crate) fn refused(device: &str, step: &'static str, source: io::Error) -> Self {
        Self::Refused {
            device: device.to_owned(),
            step,
            source,
        }
    }

    pub(crate) fn hostile(device: &str, what: &'static str) -> Self {
        Self::Hostile {
            device: device.to_owned(),
            what,
        }
    }

    /// What failed, and on what.
    pub fn reason(&self) -> String {
        match self {
            Self::BadAddress { given } => format!("`{given}` is no address of a PCI function"),
            Self::NoDevice { bdf } => format!("there is no PCI device {bdf}"),
            Self::NoIommu { bdf } => {
                format!("no IOMMU stands between device {bdf} and this machine's memory")
            }
            Self::NotBound { bdf, driver, .. } => {
                let driver = driver.as_deref();
                let has = driver.map_or("no driver".to_owned(), |name| format!("driver `{name}`"));
                format!("device {bdf} has {has}, not vfio-pci")
            }
            Self::NotViable { bdf, group, others } => {
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
                format!("{} KiB of huge pages are not free: {source}", needed / 1024)
            }
            Self::Silent { device, step, waited } => format!(
                "device {device} did not answer within {} ms when asked to {step}",
                waited.as_millis()
            ),
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
            Self::Memory(error) => error.help().next.to_owned(),
            Self::NoHugePages { needed, .. } => format!(
                "add {} (pages of 2 MiB) to what `cat /proc/sys/vm/nr_hugepages` says, and write it there; or use normal pages",
                needed.div_ceil(2 << 20)
            ),
            Self::Silent { .. } | Self::Gone { .. } => {
                "look whether the process that models the device still runs, and open the device again".to_owned()
            }
            Self::Hostile { .. } => {
                "it runs another version of vfio-user, or is damaged; open the device again".to_owned()
            }
            Self::System { source, .. } => refused(source).to_owned(),
        }
    }

    /// A short name that stays the same for ever: for scripts, and for looking up.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadAddress { .. } => "bad-address",
            Self::NoDevice { .. } => "no-device",
            Self::NoIommu { .. } => "no-iommu",
            Self::NotBound { .. } => "not-bound",
            Self::NotViable { .. } => "group-not-viable",
            Self::NoFile { .. } => "no-file",
            Self::Forbidden { .. } => "forbidden",
            Self::WrongVersion => "wrong-version",
            Self::NoType1 => "no-type1",
            Self::Busy { .. } => "busy",
            Self::NotAttached { .. } => "not-attached",
            Self::Memlock { .. } => "memlock",
            Self::Unreadable { .. } => "unreadable",
            Self::Refused { .. } => "refused",
            Self::OutOfRegion { .. } => "out-of-region",
            Self::NoInterrupt { .. } => "no-interrupt",
            Self::NoBusAddresses { .. } => "no-bus-addresses",
            Self::Memory(_) => "memory",
            Self::NoHugePages { .. } => "no-huge-pages",
            Self::Silent { .. } => "silent",
            Self::Gone { .. } => "gone",
            Self::Hostile { .. } => "hostile",
            Self::System { .. } => "system",
        }
    }

    /// The same as an error of the rail that uses the device.
    pub fn of_rail(self, rail: &str) -> RailError {
        match self {
            Self::Memory(error) => error,
            other => RailError::Unusable {
                rail: rail.to_owned(),
                reason: other.reason(),
                remedy: other.fix(),
            },
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.reason(), self.fix())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotAttached { source, .. } | Self::Refused { source, .. } | Self::System { source, .. } => {
                Some(source)
            }
            Self::NoHugePages { source, .. } => Some(source),
            Self::Gone { source, .. } => source.as_ref().map(|source| source as _),
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RailError> for Error {
    fn from(error: RailError) -> Self {
        Self::Memory(error)
    }
}

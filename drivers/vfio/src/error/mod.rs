//! One error per step: what failed, on what, the system's error, and the commands that fix it.

mod text;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::error::RailError;

use crate::bdf::Bdf;
use crate::device::{Irq, RegionIndex};

/// What failed. The variants down to [`Error::Unreadable`] are the steps of [`chain`](crate::chain), in their
/// order.
///
/// Shown, it is one sentence: the [reason](Error::reason), and the [fix](Error::fix).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no address of a PCI function.
    BadAddress {
        /// The text that was given.
        given: String,
    },
    /// No such PCI function.
    NoDevice {
        /// The address without a device.
        bdf: Bdf,
    },
    /// No IOMMU restricts the device's memory accesses.
    NoIommu {
        /// The address of the device.
        bdf: Bdf,
        /// The number of the group that VFIO created for it in its no-IOMMU mode.
        group: Option<u32>,
    },
    /// The device is not bound to a VFIO driver.
    NotBound {
        /// The address of the device.
        bdf: Bdf,
        /// The driver that has it.
        driver: Option<String>,
        /// Its network interface, if it has one.
        interface: Option<String>,
    },
    /// Others in the device's IOMMU group belong to the kernel.
    NotViable {
        /// The address of the device.
        bdf: Bdf,
        /// The number of the IOMMU group.
        group: u32,
        /// The others with their drivers.
        others: Vec<(Bdf, String)>,
        /// Among them, the physical function of a virtual one.
        parent: Option<Bdf>,
    },
    /// A device file is missing.
    NoFile {
        /// The path of the device file.
        path: PathBuf,
        /// What brings it back.
        fix: String,
    },
    /// A device file that this user may not open.
    Forbidden {
        /// The path of the device file.
        path: PathBuf,
        /// Number of the user that owns it.
        owner: u32,
        /// Number of the group that owns it.
        group: u32,
        /// The file's permission bits.
        mode: u32,
        /// Number of the user of this process.
        user: u32,
    },
    /// The kernel has another version of VFIO.
    WrongVersion,
    /// The kernel has no IOMMU model that a program can use.
    NoType1,
    /// The group, or the device, is open in another process.
    Busy {
        /// The device file.
        path: PathBuf,
        /// The processes that have it open, if visible.
        holder: Option<String>,
    },
    /// The kernel did not put the device behind our IOMMU domain.
    NotAttached {
        /// The address of the device.
        bdf: Bdf,
        /// The step that failed.
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
        /// The name of the device.
        device: String,
        /// What was read.
        what: String,
        /// The value that was read.
        found: String,
    },
    /// A call on an open device failed.
    Refused {
        /// The name of the device.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// The system's error, or that of the other end.
        source: io::Error,
    },
    /// An access that the device has no room for.
    OutOfRegion {
        /// The name of the device.
        device: String,
        /// The number of the region.
        region: RegionIndex,
        /// Offset in the region, in bytes.
        at: u64,
        /// Length of the access, in bytes.
        length: u64,
        /// The reason for the refusal.
        reason: &'static str,
    },
    /// The device has not as many interrupts, or none of that kind.
    NoInterrupt {
        /// The name of the device.
        device: String,
        /// The kind of interrupt.
        kind: Irq,
        /// How many there are.
        has: u32,
        /// How many were requested.
        wanted: u32,
    },
    /// No bus addresses are left.
    NoBusAddresses {
        /// The name of the device.
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
        /// The cause, as the memory reported it.
        source: RailError,
    },
    /// A device model did not answer in time.
    Silent {
        /// The name of the device.
        device: String,
        /// The request that failed.
        step: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A device model has ended, or cannot be reached.
    Gone {
        /// The name of the device.
        device: String,
        /// The request that failed.
        step: &'static str,
        /// The system's error, where there is one.
        source: Option<io::Error>,
    },
    /// A device model broke the rules of the protocol.
    Hostile {
        /// The name of the device.
        device: String,
        /// What it did.
        what: &'static str,
    },
    /// A system call failed.
    System {
        /// The step that failed.
        step: &'static str,
        /// The file or object of that step.
        object: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Whether another process has the device.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        match self {
            Self::Busy { .. } => true,
            Self::Refused { source, .. } => source.kind() == io::ErrorKind::ResourceBusy,
            _ => false,
        }
    }

    /// The system refuses a step on something, for a reason of its own.
    pub fn system(step: &'static str, object: &str, source: io::Error) -> Self {
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

    /// Converts it to an error of the rail that uses the device.
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

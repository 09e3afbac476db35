//! The trait that kernel VFIO and vfio-user servers both implement.

use std::fmt;
use std::os::fd::BorrowedFd;

use doorbell_fabric::memory::Region;

use crate::bar::Bar;
use crate::error::Error;
use crate::iova::Range;

/// A region of a device, by its VFIO index (linux/vfio.h, `VFIO_PCI_*_REGION_INDEX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionIndex(u32);

impl RegionIndex {
    /// The expansion ROM.
    pub const ROM: Self = Self(6);
    /// The configuration space.
    pub const CONFIG: Self = Self(7);

    /// Base address register `number`, 0 to 5; `None` for others. A BAR of 64 bits has the lower of its two
    /// numbers.
    pub const fn bar(number: u8) -> Option<Self> {
        if number < 6 {
            Some(Self(number as u32))
        } else {
            None
        }
    }

    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// The region's number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RegionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ROM => f.write_str("the expansion ROM"),
            Self::CONFIG => f.write_str("the configuration space"),
            Self(number) => write!(f, "BAR {number}"),
        }
    }
}

/// A kind of interrupt, numbered as VFIO does (linux/vfio.h, `VFIO_PCI_*_IRQ_INDEX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Irq {
    /// The interrupt pin.
    Intx = 0,
    /// Message signalled interrupts.
    Msi = 1,
    /// Message signalled, one vector per queue.
    Msix = 2,
    /// Not an interrupt of the device itself: the bus reports an error that could not be recovered.
    Error = 3,
    /// Not an interrupt of the device itself: it has to be released (it is being unbound or unplugged), and
    /// the kernel waits until it is closed.
    Request = 4,
}

impl Irq {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Intx, Self::Msi, Self::Msix, Self::Error, Self::Request];
}

impl fmt::Display for Irq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intx => "INTx",
            Self::Msi => "MSI",
            Self::Msix => "MSI-X",
            Self::Error => "error",
            Self::Request => "request",
        })
    }
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Offset in the region, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
}

/// What a region is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Length in bytes; 0 where the device has no such region.
    pub length: u64,
    /// Whether it may be read.
    pub readable: bool,
    /// Whether it may be written.
    pub writable: bool,
    /// What of it can be mapped, in rising order: all of it, some pages, or nothing. The rest is reached by
    /// calls.
    pub areas: Vec<Area>,
}

/// What a kind of interrupt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// How many vectors there are; 0 where the device has none of this kind.
    pub count: u32,
    /// Whether it can be signalled by an eventfd.
    pub by_event: bool,
}

impl IrqInfo {
    /// Checks that `wanted` vectors of this kind are available.
    pub(crate) fn check(self, device: &str, kind: Irq, wanted: usize) -> Result<(), Error> {
        if wanted == 0 || wanted > self.count as usize || !self.by_event {
            return Err(Error::NoInterrupt {
                device: device.to_owned(),
                kind,
                has: self.count,
                wanted: wanted as u32,
            });
        }
        Ok(())
    }
}

/// How the device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's VFIO, by the group of the device and a container (`/dev/vfio/N`, `/dev/vfio/vfio`).
    Group,
    /// The kernel's VFIO, by the device's own file and an iommufd (`/dev/vfio/devices/vfioN`, `/dev/iommu`),
    /// Linux 6.6.
    Cdev,
    /// A process that models the device, over a Unix socket.
    User,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Group => "group and container",
            Self::Cdev => "device file and iommufd",
            Self::User => "vfio-user",
        })
    }
}

/// A PCI device that is open.
///
/// All of it is the control path: calls of the system or messages to another process, each of which ends. The
/// data path are the registers in a [`Bar`] and the memory in a [`SharedSlab`](crate::SharedSlab).
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns its name in errors: the address, or the socket.
    fn name(&self) -> &str;

    /// Returns how it is reached.
    fn backend(&self) -> Backend;

    /// Whether [`reset`](Self::reset) works.
    fn is_resettable(&self) -> bool;

    /// Whether the process that emulates the device has ended, without sending it anything. A device of this
    /// machine is never gone by this test; its registers read as all ones then.
    fn is_gone(&self) -> bool {
        false
    }

    /// Describes a region.
    ///
    /// # Errors
    /// Where the device model does not answer, or breaks the rules.
    fn region(&self, index: RegionIndex) -> Result<RegionInfo, Error>;

    /// Maps what can be mapped of a region. Maps keep the device open, and are not to be used while it is
    /// reset.
    ///
    /// # Errors
    /// Where nothing of it can be mapped, or the system refuses.
    fn map(&self, index: RegionIndex) -> Result<Bar, Error>;

    /// Reads a region by a call: what is not mapped, and the configuration space. One access of the device
    /// where `to` has 1, 2 or 4 bytes (or 8, on most) and `at` is a multiple of that.
    ///
    /// # Errors
    /// Where it is not all inside the region, or the device refuses.
    fn read(&self, index: RegionIndex, at: u64, to: &mut [u8]) -> Result<(), Error>;

    /// Writes a region by a call.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    fn write(&self, index: RegionIndex, at: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Describes a kind of interrupt.
    ///
    /// # Errors
    /// Where the device model does not answer, or breaks the rules.
    fn irq(&self, kind: Irq) -> Result<IrqInfo, Error>;

    /// Assigns an eventfd to each vector from the first, and enables them. The kernel keeps the eventfds, not
    /// the descriptors. A second call replaces all.
    ///
    /// # Errors
    /// [`Error::NoInterrupt`] when there are fewer vectors, or none of this kind.
    fn enable(&self, kind: Irq, events: &[BorrowedFd<'_>]) -> Result<(), Error>;

    /// No vector of this kind raises anything any more.
    ///
    /// # Errors
    /// Where the device refuses.
    fn disable(&self, kind: Irq) -> Result<(), Error>;

    /// Raises the event of an enabled vector in software, for testing.
    ///
    /// # Errors
    /// [`Error::NoInterrupt`] when there is no such vector; the system's when it is not enabled.
    fn raise(&self, kind: Irq, vector: u32) -> Result<(), Error>;

    /// Resets the function: registers and rings as after power-on, no DMA in progress, bus mastering off.
    ///
    /// # Errors
    /// When the device cannot be reset on its own, or the reset did not complete.
    fn reset(&self) -> Result<(), Error>;

    /// Returns the bus addresses that can be mapped for the device, in ascending order and without reserved
    /// ones.
    ///
    /// # Errors
    /// When the system refuses.
    fn bus_addresses(&self) -> Result<Vec<Range>, Error>;

    /// Maps all of a region's object for the device, for reading and writing, at the bus addresses from
    /// `iova`, a multiple of its page size. Drivers use [`Claim::share`](crate::Claim::share); other callers
    /// have to keep the region until [`unshare`](Self::unshare) has succeeded.
    ///
    /// # Errors
    /// When the memory cannot be locked or passed, or the addresses are in use.
    fn share(&self, memory: &Region, iova: u64) -> Result<(), Error>;

    /// The device does not reach the `length` bytes from `iova` on any more, which were shared as one. On an
    /// error it may still.
    ///
    /// # Errors
    /// Where they were not shared so, or the device model does not answer.
    fn unshare(&self, iova: u64, length: u64) -> Result<(), Error>;
}

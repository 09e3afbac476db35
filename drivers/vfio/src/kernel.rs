//! Devices by the kernel's VFIO, through vfio-ioctls where possible.
//!
//! | vfio-ioctls 0.10.0 | here |
//! |---|---|
//! | `region_read`, `region_write` return nothing, whatever happened | `pread`, `pwrite` on the device's descriptor |
//! | no map of a region | `mmap` on the same |
//! | `reset` returns nothing, and does nothing where it cannot | the call itself (`sys`) |
//! | `enable_irq` and its like drop the system's error | the call itself |
//! | IOMMU_GET_INFO is not queried, so reserved bus addresses are not known | the call itself |
//! | `VfioDevice::drop` looks into sysfs and panics where the device has left it | a second descriptor keeps it there until then |
//! | `VfioOps` cannot be implemented for other backends | a contract of our own, [`Device`] |

use std::error::Error as _;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::memory::Region;
use iommufd_ioctls::IommuFd;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_RESET, VFIO_IRQ_INFO_EVENTFD, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioIommufd, VfioOps, VfioRegionInfoCap};

use crate::bar::Bar;
use crate::bdf::Bdf;
use crate::device::{Area, Backend, Device, Irq, IrqInfo, RegionIndex, RegionInfo};
use crate::error::Error;
use crate::host::Host;
use crate::iova::Range;
use crate::sys;

/// The IOMMU domain that restricts a device's memory accesses.
#[derive(Clone)]
pub(crate) enum Domain {
    /// A VFIO container.
    Container(Arc<VfioContainer>),
    /// An address space of an iommufd.
    Iommufd(Arc<VfioIommufd>),
}

impl Domain {
    fn ops(&self) -> Arc<dyn VfioOps> {
        match self {
            Self::Container(container) => Arc::clone(container) as _,
            Self::Iommufd(iommufd) => Arc::clone(iommufd) as _,
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Container(_) => Backend::Group,
            Self::Iommufd(_) => Backend::Cdev,
        }
    }

    /// Opens `/dev/vfio/vfio`, and checks version and model.
    pub(crate) fn container() -> Result<Self, VfioError> {
        VfioContainer::new(None).map(|container| Self::Container(Arc::new(container)))
    }

    /// Opens `/dev/iommu`, and makes an address space.
    pub(crate) fn iommufd() -> Result<Self, VfioError> {
        let iommufd = IommuFd::new().map_err(VfioError::NewVfioIommufd)?;
        VfioIommufd::new(Arc::new(iommufd), None, None).map(|iommufd| Self::Iommufd(Arc::new(iommufd)))
    }
}

/// An open device. Its fields are dropped in this order.
pub(crate) struct Kernel {
    device: VfioDevice,
    domain: Domain,
    /// Keeps the device open until all above is gone: one that is being unplugged stays in sysfs as long,
    /// where `VfioDevice` still looks for its group when it is dropped.
    _keep: OwnedFd,
    name: String,
    is_resettable: bool,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", self.name, self.domain.backend())
    }
}

impl Kernel {
    /// Puts a device behind a domain and opens it.
    pub(crate) fn open(host: &Host, bdf: Bdf, domain: &Domain) -> Result<Self, VfioError> {
        let device = VfioDevice::new(&host.folder(bdf), domain.ops(), true)?;
        let descriptor = sys::descriptor(&device);
        let keep = descriptor
            .try_clone_to_owned()
            .map_err(VfioError::OpenContainer)?;
        let flags = sys::device_flags(descriptor).map_err(VfioError::OpenContainer)?;
        Ok(Self {
            device,
            domain: domain.clone(),
            _keep: keep,
            name: bdf.to_string(),
            is_resettable: flags & VFIO_DEVICE_FLAGS_RESET != 0,
        })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        sys::descriptor(&self.device)
    }

    /// Returns where in the descriptor an access of a region is.
    fn place(&self, index: RegionIndex, at: u64, length: usize) -> Result<u64, Error> {
        let number = index.number();
        let end = at.checked_add(length as u64);
        let is_inside = end.is_some_and(|end| end <= self.device.get_region_size(number));
        is_inside
            .then(|| self.device.get_region_offset(number) + at)
            .ok_or_else(|| Error::OutOfRegion {
                device: self.name.clone(),
                region: index,
                at,
                length: length as u64,
                reason: "are not all inside it",
            })
    }

    fn refused(&self, step: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::refused(&self.name, step, source)
    }
}

impl Device for Kernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn backend(&self) -> Backend {
        self.domain.backend()
    }

    fn is_resettable(&self) -> bool {
        self.is_resettable
    }

    fn region(&self, index: RegionIndex) -> Result<RegionInfo, Error> {
        let number = index.number();
        let length = self.device.get_region_size(number);
        let flags = self.device.get_region_flags(number);
        let has = |flag: u32| length > 0 && flags & flag != 0;
        let areas = if has(VFIO_REGION_INFO_FLAG_MMAP) {
            areas(length, &self.device.get_region_caps(number))
        } else {
            Vec::new()
        };
        Ok(RegionInfo {
            length,
            readable: has(VFIO_REGION_INFO_FLAG_READ),
            writable: has(VFIO_REGION_INFO_FLAG_WRITE),
            areas,
        })
    }

    fn map(&self, index: RegionIndex) -> Result<Bar, Error> {
        let RegionInfo { length, areas, .. } = self.region(index)?;
        let from = self.device.get_region_offset(index.number());
        Bar::new(&self.name, index, length, &areas, (self.descriptor(), from))
    }

    fn read(&self, index: RegionIndex, at: u64, to: &mut [u8]) -> Result<(), Error> {
        let place = self.place(index, at, to.len())?;
        let done = rustix::io::pread(self.descriptor(), &mut *to, place);
        whole(done, to.len()).map_err(self.refused("read a region"))
    }

    fn write(&self, index: RegionIndex, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = self.place(index, at, bytes.len())?;
        let done = rustix::io::pwrite(self.descriptor(), bytes, place);
        whole(done, bytes.len()).map_err(self.refused("write a region"))
    }

    fn irq(&self, kind: Irq) -> Result<IrqInfo, Error> {
        // A kind that the device lacks, the kernel does not describe.
        let info = self.device.get_irq_info(kind as u32);
        Ok(info.map_or(IrqInfo::default(), |info| IrqInfo {
            count: info.count,
            by_event: info.flags & VFIO_IRQ_INFO_EVENTFD != 0,
        }))
    }

    fn enable(&self, kind: Irq, events: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.irq(kind)?.check(&self.name, kind, events.len())?;
        sys::set_irqs(self.descriptor(), kind as u32, events).map_err(self.refused("enable interrupts"))
    }

    fn disable(&self, kind: Irq) -> Result<(), Error> {
        self.irq(kind)?.check(&self.name, kind, 1)?;
        sys::set_irqs(self.descriptor(), kind as u32, &[]).map_err(self.refused("disable interrupts"))
    }

    fn raise(&self, kind: Irq, vector: u32) -> Result<(), Error> {
        self.irq(kind)?.check(&self.name, kind, vector as usize + 1)?;
        sys::raise(self.descriptor(), kind as u32, vector).map_err(self.refused("raise an interrupt"))
    }

    fn reset(&self) -> Result<(), Error> {
        sys::reset(self.descriptor()).map_err(self.refused("reset the function"))
    }

    fn bus_addresses(&self) -> Result<Vec<Range>, Error> {
        let ranges = match &self.domain {
            Domain::Container(container) => {
                // The range of the narrowest IOMMUs, for old kernels that do not report it.
                const OLD: Range = Range {
                    first: 0,
                    last: (1 << 39) - 1,
                };
                sys::container_ranges(sys::descriptor(&**container))
                    .map(|told| told.unwrap_or_else(|| vec![OLD]))
            }
            Domain::Iommufd(domain) => {
                sys::ioas_ranges(sys::descriptor(&**domain.iommufd()), domain.ioas().id())
            }
        };
        ranges.map_err(self.refused("query its bus addresses"))
    }

    fn share(&self, memory: &Region, iova: u64) -> Result<(), Error> {
        sys::share(&*self.domain.ops(), memory, iova)
            .map_err(|error| Error::refused(&self.name, "map memory for it", reason(&error)))
    }

    fn unshare(&self, iova: u64, length: u64) -> Result<(), Error> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.domain
            .ops()
            .vfio_dma_unmap(iova, length)
            .map_err(|error| Error::refused(&self.name, "unmap memory", reason(&error)))
    }
}

/// The mappable areas of a region that is mappable in part.
fn areas(length: u64, capabilities: &[VfioRegionInfoCap]) -> Vec<Area> {
    let sparse = capabilities.iter().find_map(|capability| match capability {
        VfioRegionInfoCap::SparseMmap(sparse) => Some(&sparse.areas),
        _ => None,
    });
    let Some(sparse) = sparse else {
        return vec![Area { at: 0, length }];
    };
    let areas = sparse.iter().map(|area| Area {
        at: area.offset,
        length: area.size,
    });
    let mut areas: Vec<_> = areas.filter(|area| area.length > 0).collect();
    areas.sort_unstable_by_key(|area| area.at);
    areas
}

/// A call that has to do all at once.
fn whole(done: rustix::io::Result<usize>, wanted: usize) -> io::Result<()> {
    match done? {
        count if count == wanted => Ok(()),
        count => Err(io::Error::other(format!(
            "only {count} of {wanted} bytes were transferred"
        ))),
    }
}

/// The system's error in one of vfio-ioctls, which keeps it deep inside, or none.
pub(crate) fn reason(error: &VfioError) -> io::Error {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<vmm_sys_util::errno::Error>() {
            return io::Error::from_raw_os_error(cause.errno());
        }
        if let Some(number) = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return io::Error::from_raw_os_error(number);
        }
        source = cause.source();
    }
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfio_ioctls::{VfioRegionInfoCapSparseMmap, VfioRegionSparseMmapArea};

    #[test]
    fn what_can_be_mapped_is_all_or_what_the_kernel_lists() {
        let whole = [Area {
            at: 0,
            length: 0x4000,
        }];
        assert_eq!(areas(0x4000, &[]), whole);
        assert_eq!(areas(0x4000, &[VfioRegionInfoCap::MsixMappable]), whole);
        let listed = [(0x2000, 0x2000), (0x1000, 0), (0, 0x1000)];
        let listed = listed.map(|(offset, size)| VfioRegionSparseMmapArea { offset, size });
        let sparse = VfioRegionInfoCap::SparseMmap(VfioRegionInfoCapSparseMmap {
            areas: listed.to_vec(),
        });
        let pairs: Vec<_> = areas(0x4000, &[sparse])
            .iter()
            .map(|area| (area.at, area.length))
            .collect();
        assert_eq!(pairs, [(0, 0x1000), (0x2000, 0x2000)]);
    }

    #[test]
    fn the_systems_error_is_found_however_deep() {
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        assert_eq!(
            reason(&VfioError::OpenGroup(busy(), "7".into())).raw_os_error(),
            Some(libc::EBUSY)
        );
        let inner = vmm_sys_util::errno::Error::new(libc::ENOMEM);
        assert_eq!(
            reason(&VfioError::IommuDmaMap(inner)).raw_os_error(),
            Some(libc::ENOMEM)
        );
        assert!(reason(&VfioError::GroupViable).to_string().contains("viable"));
    }
}

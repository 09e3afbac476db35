//! The preflight steps, and what they have found so far.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD};
use vfio_ioctls::VfioError;

use super::Verdict;
use crate::bdf::Bdf;
use crate::config::Config;
use crate::device::{Backend, Device, RegionIndex};
use crate::discover::{Guard, Interface, PciDevice, Role};
use crate::error::Error;
use crate::holder;
use crate::host::{Host, names};
use crate::kernel::{Domain, Kernel, reason};
use crate::memlock::Memlock;

/// What the steps have found so far.
pub(super) struct Preflight {
    pub(super) host: Host,
    pub(super) bdf: Bdf,
    pub(super) memory: u64,
    pub(super) backend: Option<Backend>,
    pub(super) found: Option<PciDevice>,
    /// The domain or its error, which the step that it belongs to reports.
    pub(super) domain: Option<Result<Domain, VfioError>>,
    pub(super) open: Option<Arc<Kernel>>,
}

impl std::fmt::Debug for Preflight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the way to {}", self.bdf)
    }
}

/// The result of a step that needs a kernel, on a fake file tree.
const NO_KERNEL: Verdict = Verdict::Unknown("not checked: this is a file tree without a kernel");

fn passed(found: impl Into<String>) -> Result<Verdict, Error> {
    Ok(Verdict::Passed(found.into()))
}

impl Preflight {
    fn found(&self) -> Result<&PciDevice, Error> {
        self.found.as_ref().ok_or(Error::NoDevice { bdf: self.bdf })
    }

    pub(super) fn device(&mut self) -> Result<Verdict, Error> {
        let device = self.host.device(self.bdf)?;
        let summary = summary(&device);
        self.found = Some(device);
        passed(summary)
    }

    pub(super) fn iommu(&mut self) -> Result<Verdict, Error> {
        let device = self.found()?;
        if let Some(error) = device.unguarded() {
            return Err(error);
        }
        let Some(group) = &device.group else {
            return Err(self.without_iommu());
        };
        match group.guard {
            Guard::Identity => passed(format!(
                "group {}, of type identity: transfers are translated once a program has the device",
                group.number
            )),
            _ => passed(format!("group {}", group.number)),
        }
    }

    fn without_iommu(&self) -> Error {
        Error::NoIommu {
            bdf: self.bdf,
            group: None,
        }
    }

    pub(super) fn driver(&mut self) -> Result<Verdict, Error> {
        let device = self.found()?;
        if device.is_bound() {
            return passed(device.driver.clone().unwrap_or_default());
        }
        Err(Error::NotBound {
            bdf: self.bdf,
            driver: device.driver.clone(),
            interface: device.interfaces.first().map(|interface| interface.name.clone()),
        })
    }

    pub(super) fn group(&mut self) -> Result<Verdict, Error> {
        let bdf = self.bdf;
        let none = || self.without_iommu();
        let group = self.found()?.group.as_ref().ok_or_else(none)?;
        let name = |driver: &Option<String>| driver.clone().unwrap_or_default();
        let others: Vec<_> = group
            .obstacles(bdf)
            .map(|member| (member.bdf, name(&member.driver)))
            .collect();
        if !others.is_empty() {
            let parent = match self.found()?.role {
                Role::Virtual { physical, .. } => Some(physical),
                _ => None,
            };
            return Err(Error::NotViable {
                bdf,
                group: group.number,
                parent: parent.filter(|parent| others.iter().any(|(other, _)| other == parent)),
                others,
            });
        }
        match group.members.len() {
            0 | 1 => passed("no other devices"),
            count => passed(format!("with {} others, none of a kernel driver", count - 1)),
        }
    }

    /// The requested backend, or the one that exists.
    fn backend(&self) -> Result<Backend, Error> {
        if let Some(backend) = self.backend {
            return Ok(backend);
        }
        let has_group = self.host.path(&self.group_file()?).exists();
        let has_cdev = self
            .cdev_file()
            .is_some_and(|file| self.host.path(&file).exists());
        Ok(if has_cdev && !has_group {
            Backend::Cdev
        } else {
            Backend::Group
        })
    }

    fn group_file(&self) -> Result<String, Error> {
        let group = self.found()?.group.as_ref().ok_or_else(|| self.without_iommu())?;
        Ok(format!("dev/vfio/{}", group.number))
    }

    /// The device's own character device, if the kernel provides one (CONFIG_VFIO_DEVICE_CDEV).
    fn cdev_file(&self) -> Option<String> {
        let names = names(&self.host.folder(self.bdf).join("vfio-dev")).ok()?;
        names.first().map(|name| format!("dev/vfio/devices/{name}"))
    }

    /// The device file of the backend.
    fn file(&self) -> Result<PathBuf, Error> {
        let file = match self.backend()? {
            Backend::Cdev => self.cdev_file().unwrap_or_else(|| "dev/vfio/devices".to_owned()),
            _ => self.group_file()?,
        };
        Ok(self.host.path(&file))
    }

    pub(super) fn device_file(&mut self) -> Result<Verdict, Error> {
        let file = self.file()?;
        let fix = match self.backend()? {
            Backend::Cdev => {
                "boot a kernel with CONFIG_VFIO_DEVICE_CDEV (Linux 6.6), or open the device by its group"
            }
            _ => {
                "`modprobe vfio-pci` creates it once the device is bound; in a container, pass it in as a device"
            }
        };
        permitted(&file, fix)
    }

    pub(super) fn container_file(&mut self) -> Result<Verdict, Error> {
        let (file, fix) = match self.backend()? {
            Backend::Cdev => (
                "dev/iommu",
                "`modprobe iommufd`; in a container, pass it in as a device",
            ),
            _ => (
                "dev/vfio/vfio",
                "`modprobe vfio`; in a container, pass it in as a device",
            ),
        };
        permitted(&self.host.path(file), fix)
    }

    pub(super) fn version(&mut self) -> Result<Verdict, Error> {
        if !self.host.is_here() {
            return Ok(NO_KERNEL);
        }
        let backend = self.backend()?;
        let domain = match backend {
            Backend::Cdev => Domain::iommufd(),
            _ => Domain::container(),
        };
        let failed = match &domain {
            Err(VfioError::VfioApiVersion) => Some(Error::WrongVersion),
            Err(error @ (VfioError::OpenContainer(_) | VfioError::NewVfioIommufd(_))) => {
                let file = if backend == Backend::Cdev {
                    "/dev/iommu"
                } else {
                    "/dev/vfio/vfio"
                };
                Some(Error::system("open", file, reason(error)))
            }
            _ => None,
        };
        self.domain = Some(domain);
        match failed {
            Some(error) => Err(error),
            None => passed(format!("by {backend}")),
        }
    }

    pub(super) fn model(&mut self) -> Result<Verdict, Error> {
        match &self.domain {
            None => Ok(NO_KERNEL),
            Some(Ok(Domain::Container(_))) => passed("type 1, version 2"),
            Some(Ok(Domain::Iommufd(_))) => passed("an address space of an iommufd"),
            Some(Err(_)) => Err(Error::NoType1),
        }
    }

    pub(super) fn free(&mut self) -> Result<Verdict, Error> {
        let Some(Ok(domain)) = &self.domain else {
            return Ok(NO_KERNEL);
        };
        let opened = Kernel::open(&self.host, self.bdf, domain);
        match opened {
            Ok(device) => {
                self.open = Some(Arc::new(device));
                passed("open")
            }
            Err(error) => Err(self.not_opened(&error)?),
        }
    }

    /// Interprets the error of opening a device.
    pub(super) fn not_opened(&self, error: &VfioError) -> Result<Error, Error> {
        let (bdf, path, source) = (self.bdf, self.file()?, reason(error));
        // A device that is bound to another iommufd is an invalid argument to the kernel.
        let is_bound = matches!(error, VfioError::VfioDeviceBindIommufd(_))
            && source.raw_os_error() == Some(libc::EINVAL);
        let step = match error {
            VfioError::GroupViable => {
                return Ok(Error::NotViable {
                    bdf,
                    group: self.found()?.group.as_ref().map_or(0, |group| group.number),
                    others: Vec::new(),
                    parent: None,
                });
            }
            _ if is_bound || source.raw_os_error() == Some(libc::EBUSY) => {
                return Ok(Error::Busy {
                    holder: holder::of_file(&self.host, &path),
                    path,
                });
            }
            VfioError::OpenGroup(..) | VfioError::OpenDeviceCdev(_) => "open the device file",
            VfioError::GroupSetContainer => "put the group into a container",
            VfioError::ContainerSetIOMMU(_) | VfioError::VfioDeviceAttachIommufdPt(_) => "set up the IOMMU",
            VfioError::GroupGetDeviceFD(_) | VfioError::VfioDeviceBindIommufd(_) => "open the device",
            _ => "query the device",
        };
        Ok(Error::NotAttached { bdf, step, source })
    }

    pub(super) fn memlock(&mut self) -> Result<Verdict, Error> {
        let limits = Memlock::now();
        limits.room_for(self.memory)?;
        let needed = self.memory.div_ceil(1024);
        match limits.limit {
            None => passed(format!("{needed} KiB needed, no limit")),
            Some(limit) => passed(format!("{needed} KiB needed, {} KiB allowed", limit / 1024)),
        }
    }

    pub(super) fn answers(&mut self) -> Result<Verdict, Error> {
        let Some(device) = &self.open else {
            return Ok(NO_KERNEL);
        };
        let (vendor, number) = Config::of(&**device).identity()?;
        let bars = (0..6).filter_map(RegionIndex::bar);
        let bars = bars.map(|bar| device.region(bar).map(|info| (bar, info)));
        let bars: Vec<_> = bars.collect::<Result<_, _>>()?;
        let mappable = bars
            .iter()
            .find(|(_, info)| info.readable && !info.areas.is_empty());
        let Some((bar, info)) = mappable else {
            return passed(format!("{vendor:04x}:{number:04x}, no memory of its own"));
        };
        // Four bytes, as registers are read: nothing else detects a device that is powered off.
        let mut first = [0; 4];
        device.read(*bar, info.areas[0].at, &mut first)?;
        device.map(*bar)?;
        passed(format!(
            "{vendor:04x}:{number:04x}, {bar} of {} KiB",
            info.length / 1024
        ))
    }
}

/// Describes a device in one line.
fn summary(device: &PciDevice) -> String {
    let link = |interfaces: &[Interface]| match interfaces.first() {
        None => String::new(),
        Some(interface) => {
            let state = match (interface.is_up, interface.speed) {
                (Some(true), Some(speed)) => format!("up, {speed} Mbit/s"),
                (Some(false), _) => "down".to_owned(),
                _ => "up".to_owned(),
            };
            format!(" ({}: {state})", interface.name)
        }
    };
    let role = match &device.role {
        Role::Plain => String::new(),
        Role::Physical { most, virtuals } => {
            format!(
                ", physical function with {} of {most} virtual ones",
                virtuals.len()
            )
        }
        Role::Virtual {
            number,
            physical,
            interfaces,
            ..
        } => {
            let number = number.map_or("a".to_owned(), |number| number.to_string());
            format!(", virtual function {number} of {physical}{}", link(interfaces))
        }
    };
    format!(
        "{:04x}:{:04x}{role}{}",
        device.vendor,
        device.device,
        link(&device.interfaces)
    )
}

/// Whether this process may open a file for reading and writing.
fn permitted(path: &Path, fix: &str) -> Result<Verdict, Error> {
    let Ok(metadata) = std::fs::metadata(path) else {
        return Err(Error::NoFile {
            path: path.to_owned(),
            fix: fix.to_owned(),
        });
    };
    let (owner, group, mode) = (metadata.uid(), metadata.gid(), metadata.mode() & 0o777);
    if rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).is_ok() {
        return passed(format!("{}, user {owner}'s, mode {mode:03o}", path.display()));
    }
    Err(Error::Forbidden {
        path: path.to_owned(),
        owner,
        group,
        mode,
        user: rustix::process::geteuid().as_raw(),
    })
}

//! A claimed device: reset, then allowed to access memory, and kept from it again when it is released.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::bar::Bar;
use crate::bdf::Bdf;
use crate::config::Config;
use crate::device::{Backend, Device, Irq, RegionIndex};
use crate::dma::{Domain, SharedSlab, Slab};
use crate::error::Error;
use crate::event::Event;
use crate::host::Host;
use crate::preflight::Chain;
use crate::space::Space;
use crate::user::UserDevice;

/// A device that this process drives.
///
/// The order of leaving: drop all [`Block`](crate::Block)s and [`Bar`]s, [`close`](Self::close), then the
/// slabs. Slabs keep the device open: after `close` it reaches no memory, and the last one to go ends it.
#[derive(Debug)]
pub struct Claim {
    domain: Arc<Domain>,
    was_reset: bool,
    is_closed: bool,
}

impl Claim {
    /// Opens a device of this machine for a program that will share `memory` bytes with it, walking all steps
    /// of [`chain`](crate::chain).
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn open(bdf: Bdf, memory: u64) -> Result<Self, Error> {
        Self::over(Chain::new(&Host::here(), bdf, memory).finish()?)
    }

    /// Opens a device by one backend only, [`Backend::Group`] or [`Backend::Cdev`].
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_by(bdf: Bdf, memory: u64, backend: Backend) -> Result<Self, Error> {
        Self::over(Chain::new(&Host::here(), bdf, memory).by(backend).finish()?)
    }

    /// Connects to a process that emulates a device (vfio-user) at a Unix socket.
    ///
    /// # Errors
    /// When nothing listens there, or the protocol is violated.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        Self::over(Arc::new(UserDevice::connect(socket)?))
    }

    /// Claims an open device: resets it if possible, and turns bus mastering on, with no memory shared yet.
    ///
    /// # Errors
    /// When it does not respond or refuses.
    pub fn over(device: Arc<dyn Device>) -> Result<Self, Error> {
        let config = Config::of(&*device);
        config.identity()?;
        // Its last user may have left it in the middle of an operation.
        config.set_bus_master(false)?;
        let was_reset = device.is_resettable();
        if was_reset {
            device.reset()?;
        }
        let this = Self {
            domain: Arc::new(Domain::new(device)?),
            was_reset,
            is_closed: false,
        };
        this.config().set_bus_master(true)?;
        Ok(this)
    }

    /// The claimed device.
    pub fn device(&self) -> &dyn Device {
        &**self.domain.device()
    }

    /// Its configuration space.
    pub fn config(&self) -> Config<'_> {
        Config::of(self.device())
    }

    /// Whether it was reset when it was opened; otherwise it is as its last user left it.
    pub fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Maps base address register `number`.
    ///
    /// # Errors
    /// Where there is none, or nothing of it can be mapped.
    pub fn bar(&self, number: u8) -> Result<Bar, Error> {
        match RegionIndex::bar(number) {
            Some(index) => self.device().map(index),
            None => Err(Error::OutOfRegion {
                device: self.device().name().to_owned(),
                region: RegionIndex::numbered(number.into()),
                at: 0,
                length: 0,
                reason: "are of a BAR that does not exist: devices have BARs 0 to 5",
            }),
        }
    }

    /// Returns base address register `number`, by mapping or by calls. It keeps the device open, so it has to
    /// be dropped before the claim is closed, as bars have to.
    ///
    /// # Errors
    /// When there is no such register.
    pub fn space(&self, number: u8) -> Result<Space, Error> {
        Space::new(self.domain.device(), number)
    }

    /// Shares a slab with the device; an error returns the slab.
    ///
    /// # Errors
    /// [`Error::Memlock`] when it cannot be locked, [`Error::NoBusAddresses`] when no bus addresses are left,
    /// or the system's.
    pub fn share(&self, slab: Slab) -> Result<SharedSlab, (Slab, Error)> {
        self.domain.share(slab)
    }

    /// Bytes that could not be taken back from the device, and are never used again.
    pub fn leaked(&self) -> u64 {
        self.domain.leaked()
    }

    /// Returns an event that is raised when the device has to be released, because it is unbound or
    /// unplugged; that waits until the device is closed. `None` if the device does not support it.
    ///
    /// # Errors
    /// When descriptors run out, or the device refuses.
    pub fn watch_request(&self) -> Result<Option<Event>, Error> {
        self.watch(Irq::Request)
    }

    /// Returns an event that is raised when the bus reports an unrecoverable error of the device. `None` if
    /// the device does not support it.
    ///
    /// # Errors
    /// When descriptors run out, or the device refuses.
    pub fn watch_error(&self) -> Result<Option<Event>, Error> {
        self.watch(Irq::Error)
    }

    fn watch(&self, kind: Irq) -> Result<Option<Event>, Error> {
        if self.device().irq(kind)?.count == 0 {
            return Ok(None);
        }
        let event = Event::new()?;
        self.device().enable(kind, &[event.as_fd()])?;
        Ok(Some(event))
    }

    /// Assigns an event to each MSI-X vector, by index, and enables the vectors.
    ///
    /// # Errors
    /// [`Error::NoInterrupt`] when there are fewer vectors.
    pub fn enable_msix(&self, events: &[&Event]) -> Result<(), Error> {
        let events: Vec<_> = events.iter().map(|event| event.as_fd()).collect();
        self.device().enable(Irq::Msix, &events)
    }

    /// No MSI-X vector raises anything any more.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn disable_msix(&self) -> Result<(), Error> {
        self.device().disable(Irq::Msix)
    }

    /// Resets the claimed device and turns bus mastering on again: shared memory stays shared, all registers
    /// are as after power-on, and interrupts have to be enabled again. No register may be accessed meanwhile.
    ///
    /// # Errors
    /// When it cannot be reset; bus mastering is off then.
    pub fn reset(&self) -> Result<(), Error> {
        self.config().set_bus_master(false)?;
        self.device().reset()?;
        self.config().set_bus_master(true)
    }

    /// Keeps the device from all memory, and stops its interrupts.
    ///
    /// # Errors
    /// Where the device does not obey; slabs are still taken from it one by one, by the IOMMU.
    pub fn close(mut self) -> Result<(), Error> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let stopped = self.config().set_bus_master(false);
        let device = self.device();
        // One that has no such interrupts, or none enabled, has nothing to stop.
        let _ = device.disable(Irq::Msix);
        stopped
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A caller that needs the result calls `close`.
        let _ = self.leave();
    }
}

//! A device that is ours: reset, then allowed to reach memory, and kept from it again when we leave.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::bar::Bar;
use crate::bdf::Bdf;
use crate::checks::Chain;
use crate::config::Config;
use crate::device::{Backend, Device, Irq, RegionIndex};
use crate::dma::{Domain, SharedSlab, Slab};
use crate::error::Error;
use crate::event::Event;
use crate::host::Host;
use crate::space::Space;
use crate::user::UserDevice;

/// A device that this process drives.
///
/// The order of leaving: drop all [`Block`](crate::Block)s and [`Bar`]s, [`close`](Self::close), then the slabs. Slabs keep
/// the device open: after `close` it reaches no memory, and the last one to go ends it.
#[derive(Debug)]
pub struct Claim {
    domain: Arc<Domain>,
    was_reset: bool,
    is_closed: bool,
}

impl Claim {
    /// Opens a device of this machine for a program that will share `memory` bytes with it, walking all steps of
    /// [`chain`](crate::chain).
    ///
    /// # Errors
    /// That of the first step that is broken.
    pub fn open(bdf: Bdf, memory: u64) -> Result<Self, Error> {
        Self::over(Chain::new(&Host::here(), bdf, memory).finish()?)
    }

    /// The same by one of the two ways only, [`Backend::Group`] or [`Backend::Cdev`].
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_by(bdf: Bdf, memory: u64, backend: Backend) -> Result<Self, Error> {
        Self::over(Chain::new(&Host::here(), bdf, memory).by(backend).finish()?)
    }

    /// Connects to a process that models a device (vfio-user) at a Unix socket.
    ///
    /// # Errors
    /// Where nobody answers there, or not as the protocol says.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        Self::over(Arc::new(UserDevice::connect(socket)?))
    }

    /// Takes a device that is open: resets it where it can be reset, and lets it reach memory, of which it has none yet.
    ///
    /// # Errors
    /// Where it does not answer, or refuses.
    pub fn over(device: Arc<dyn Device>) -> Result<Self, Error> {
        let config = Config::of(&*device);
        config.identity()?;
        // Whoever had it before may have left it in the middle of something.
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

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &**self.domain.device()
    }

    /// Its configuration space.
    pub fn config(&self) -> Config<'_> {
        Config::of(self.device())
    }

    /// Whether it could be reset when it was opened; else it is as the last one who had it left it.
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

    /// Base address register `number`, by whichever way its registers are reached. It keeps the device open: it is dropped
    /// before the claim is closed, as bars are.
    ///
    /// # Errors
    /// Where there is none.
    pub fn space(&self, number: u8) -> Result<Space, Error> {
        Space::new(self.domain.device(), number)
    }

    /// Lets the device reach a slab; on an error it comes back.
    ///
    /// # Errors
    /// [`Error::Memlock`] where it cannot be locked, [`Error::NoBusAddresses`] where it fits nowhere, or the system's.
    pub fn share(&self, slab: Slab) -> Result<SharedSlab, (Slab, Error)> {
        self.domain.share(slab)
    }

    /// Bytes that could not be taken back from the device, and are never used again.
    pub fn leaked(&self) -> u64 {
        self.domain.leaked()
    }

    /// An event that happens when somebody wants the device back: it is unbound or unplugged, and that waits until the device
    /// is closed. `None` where the device cannot tell.
    ///
    /// # Errors
    /// Where descriptors run out, or the device refuses.
    pub fn watch_request(&self) -> Result<Option<Event>, Error> {
        self.watch(Irq::Request)
    }

    /// An event that happens when the bus reports an error of the device that could not be recovered. `None` where the device
    /// cannot tell.
    ///
    /// # Errors
    /// Where descriptors run out, or the device refuses.
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

    /// Lets each MSI-X vector raise the event of its number.
    ///
    /// # Errors
    /// [`Error::NoInterrupt`] where there are fewer vectors.
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

    /// Resets the device while we have it, and lets it reach memory again: what is shared stays shared, all registers are as
    /// after power-on, interrupts have to be enabled anew. No register may be read or written meanwhile.
    ///
    /// # Errors
    /// Where it cannot be reset; it reaches no memory then.
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
        // Who wants to know calls `close`.
        let _ = self.leave();
    }
}

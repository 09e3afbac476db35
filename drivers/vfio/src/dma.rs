//! Memory for a device, in two states by type.
//!
//! ```text
//!    Slab ──share──► SharedSlab          only this one has bus addresses
//!      ▲                 │
//!      └────unshare──────┘               where the device cannot be kept from it, it is leaked
//! ```
//!
//! A slab is a whole [`Region`]: a memfd, of huge pages where they are wanted, so that a process that models
//! a device can map it too. While it is shared, the device may write it at any time: its bytes are read by
//! copies, once, and what has to stay true is kept elsewhere.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_fabric::map::page_size;
use doorbell_fabric::memory::{Region, RegionSlice};

use crate::device::{Backend, Device};
use crate::error::Error;
use crate::iova::BusAddresses;
use crate::memlock::Memlock;

/// Memory that no device reaches through this handle yet.
#[derive(Debug)]
pub struct Slab {
    region: Region,
}

impl Slab {
    /// Makes `length` bytes of zeroes in normal pages.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(length: usize) -> Result<Self, Error> {
        Ok(Self {
            region: Region::new(length)?,
        })
    }

    /// Makes `length` bytes of zeroes in huge pages.
    ///
    /// # Errors
    /// [`Error::NoHugePages`] where too few have been set aside.
    pub fn huge(length: usize) -> Result<Self, Error> {
        let region = Region::huge(length).map_err(|error| Error::NoHugePages {
            needed: length,
            source: error,
        })?;
        Ok(Self { region })
    }

    /// The shared memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The memory, for other uses.
    pub fn into_region(self) -> Region {
        self.region
    }
}

impl From<Region> for Slab {
    /// Memory that others may use as well: what a device does to it meets what they do.
    fn from(region: Region) -> Self {
        Self { region }
    }
}

/// A device and the allocator of its bus addresses.
#[derive(Debug)]
pub(crate) struct Domain {
    device: Arc<dyn Device>,
    addresses: Mutex<BusAddresses>,
    leaked: AtomicU64,
}

impl Domain {
    pub(crate) fn new(device: Arc<dyn Device>) -> Result<Self, Error> {
        let ranges = device.bus_addresses()?;
        Ok(Self {
            addresses: Mutex::new(BusAddresses::new(&ranges, page_size() as u64)),
            leaked: AtomicU64::new(0),
            device,
        })
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes that could not be taken back from the device, and are never used again.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Relaxed)
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, BusAddresses> {
        // Nothing panics while it is locked; and if something did, the lists would be whole.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares a slab with the device.
    pub(crate) fn share(self: &Arc<Self>, slab: Slab) -> Result<SharedSlab, (Slab, Error)> {
        match self.map(&slab.region) {
            Ok(iova) => Ok(SharedSlab {
                region: Some(slab.region),
                iova,
                domain: Arc::clone(self),
            }),
            Err(error) => Err((slab, error)),
        }
    }

    fn map(&self, region: &Region) -> Result<u64, Error> {
        let (length, page) = (region.object().len() as u64, region.object().page() as u64);
        let iova = self
            .addresses()
            .take(length, page)
            .ok_or_else(|| Error::NoBusAddresses {
                device: self.device.name().to_owned(),
                wanted: length,
            })?;
        // Checked first, for a specific error: afterwards several causes have one error number.
        let room = match self.device.backend() {
            Backend::User => Ok(()),
            Backend::Group | Backend::Cdev => Memlock::now().room_for(length),
        };
        room.and_then(|()| self.device.share(region, iova))
            .inspect_err(|_| {
                self.addresses().release(iova);
            })?;
        Ok(iova)
    }

    /// Takes memory back, or leaks it.
    fn unmap(&self, region: Region, iova: u64) -> Result<Region, Error> {
        let length = region.object().len() as u64;
        match self.device.unshare(iova, length) {
            Ok(()) => {
                self.addresses().release(iova);
                Ok(region)
            }
            Err(error) => {
                self.leaked.fetch_add(length, Relaxed);
                // The device may still write it, and its bus addresses lead there: neither is used again.
                std::mem::forget(region);
                Err(error)
            }
        }
    }
}

/// Memory that a device reaches. Dropped, it is taken back, or leaked where that fails.
#[derive(Debug)]
pub struct SharedSlab {
    /// There until it is taken back.
    region: Option<Region>,
    iova: u64,
    domain: Arc<Domain>,
}

impl SharedSlab {
    /// The bus address of its first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// The bus address of `length` bytes at offset `at`; `None` where they are not all inside.
    #[inline]
    pub fn bus_address(&self, at: usize, length: usize) -> Option<u64> {
        let end = at.checked_add(length)?;
        (end <= self.region().len()).then_some(self.iova + at as u64)
    }

    /// The memory. The device may be writing it.
    #[inline]
    pub fn region(&self) -> &Region {
        // There until `unshare` or `drop`, which are the last to see it.
        self.region
            .as_ref()
            .expect("a slab is shared until it is taken back")
    }

    /// `length` bytes from offset `at`; `None` where they are not all inside.
    #[inline]
    pub fn slice(&self, at: usize, length: usize) -> Option<RegionSlice> {
        self.region().slice(at, length)
    }

    /// Takes it back: on success the device does not reach it any more.
    ///
    /// # Errors
    /// Where the device cannot be kept from it; the memory is leaked then.
    pub fn unshare(mut self) -> Result<Slab, Error> {
        let region = self
            .region
            .take()
            .expect("a slab is shared until it is taken back");
        self.domain.unmap(region, self.iova).map(Slab::from)
    }
}

impl Drop for SharedSlab {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            // If it fails, the memory is leaked, and counted.
            let _ = self.domain.unmap(region, self.iova);
        }
    }
}

//! The registers of one BAR for the control path: by loads and stores where they are mapped, by calls
//! elsewhere.
//!
//! An emulated device maps registers that a driver only writes, and handles by calls those that need an
//! immediate response (a command register that is busy as soon as it is written). So each register has its
//! own access path. The data path uses [`Block`]s.

use std::sync::Arc;

use volatile_register::RW;

use crate::bar::{Bar, Block, Put, Registers};
use crate::device::{Device, RegionIndex};
use crate::error::Error;

/// One BAR of a device. It keeps the device open, so it has to be dropped before the device is released.
#[derive(Clone, Debug)]
pub struct Space {
    device: Arc<dyn Device>,
    index: RegionIndex,
    bar: Option<Bar>,
    length: u64,
}

impl Space {
    pub(crate) fn new(device: &Arc<dyn Device>, number: u8) -> Result<Self, Error> {
        let none = |number: u32, reason| Error::OutOfRegion {
            device: device.name().to_owned(),
            region: RegionIndex::numbered(number),
            at: 0,
            length: 0,
            reason,
        };
        let index = RegionIndex::bar(number).ok_or_else(|| {
            none(
                number.into(),
                "are of a BAR that does not exist: devices have BARs 0 to 5",
            )
        })?;
        let info = device.region(index)?;
        if info.length == 0 {
            return Err(none(index.number(), "is not there"));
        }
        let bar = if info.areas.is_empty() {
            None
        } else {
            Some(device.map(index)?)
        };
        Ok(Self {
            device: Arc::clone(device),
            index,
            bar,
            length: info.length,
        })
    }

    /// Bytes of the BAR.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Never: one without bytes is not there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The registers at an offset as cells; `None` where they are not mapped, and reached by calls only.
    #[must_use]
    pub fn block<T: Registers>(&self, at: u64) -> Option<Block<T>> {
        self.bar.as_ref()?.block(at).ok()
    }

    /// Reads 32 bits.
    ///
    /// # Errors
    /// Where they are not inside, or the device does not answer.
    pub fn read32(&self, at: u64) -> Result<u32, Error> {
        if let Some(cell) = self.block::<RW<u32>>(at) {
            return Ok(cell.read());
        }
        let mut bytes = [0; 4];
        self.device.read(self.index, at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes 32 bits.
    ///
    /// # Errors
    /// Those of [`read32`](Self::read32).
    pub fn write32(&self, at: u64, value: u32) -> Result<(), Error> {
        if let Some(cell) = self.block::<RW<u32>>(at) {
            cell.put(value);
            return Ok(());
        }
        self.device.write(self.index, at, &value.to_le_bytes())
    }

    /// Reads 64 bits.
    ///
    /// # Errors
    /// Those of [`read32`](Self::read32).
    pub fn read64(&self, at: u64) -> Result<u64, Error> {
        if let Some(cell) = self.block::<RW<u64>>(at) {
            return Ok(cell.read());
        }
        let mut bytes = [0; 8];
        self.device.read(self.index, at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes 64 bits.
    ///
    /// # Errors
    /// Those of [`read32`](Self::read32).
    pub fn write64(&self, at: u64, value: u64) -> Result<(), Error> {
        if let Some(cell) = self.block::<RW<u64>>(at) {
            cell.put(value);
            return Ok(());
        }
        self.device.write(self.index, at, &value.to_le_bytes())
    }
}

//! The configuration space: identity, bus mastering, capabilities.
//!
//! Source: PCI Local Bus Specification 3.0, chapter 6; offsets as in linux/pci_regs.h.

use crate::device::{Device, RegionIndex};
use crate::error::Error;

/// Offsets of registers.
const VENDOR: u64 = 0x00;
const DEVICE: u64 = 0x02;
const COMMAND: u64 = 0x04;
const STATUS: u64 = 0x06;
const CAPABILITIES: u64 = 0x34;

/// Bits of the command register: answers accesses of its memory; may access memory itself.
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
/// Bit of the status register: there is a list of capabilities.
const HAS_CAPABILITIES: u16 = 1 << 4;

/// Capability of message signalled interrupts with a table of their own.
const MSIX: u8 = 0x11;

/// The value that reads from a removed device return.
const NO_DEVICE: u16 = 0xffff;

/// The configuration space of a device.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    device: &'a dyn Device,
}

impl<'a> Config<'a> {
    /// The configuration space of a device.
    pub fn of(device: &'a dyn Device) -> Self {
        Self { device }
    }

    /// One byte.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn read8(self, at: u64) -> Result<u8, Error> {
        let mut byte = [0];
        self.device.read(RegionIndex::CONFIG, at, &mut byte)?;
        Ok(byte[0])
    }

    /// Two bytes.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn read16(self, at: u64) -> Result<u16, Error> {
        let mut bytes = [0; 2];
        self.device.read(RegionIndex::CONFIG, at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn read32(self, at: u64) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.device.read(RegionIndex::CONFIG, at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes two bytes.
    ///
    /// # Errors
    /// Those of [`Device::write`].
    pub fn write16(self, at: u64, value: u16) -> Result<(), Error> {
        self.device.write(RegionIndex::CONFIG, at, &value.to_le_bytes())
    }

    /// Reads the vendor and device numbers.
    ///
    /// # Errors
    /// [`Error::Unreadable`] when the device no longer responds.
    pub fn identity(self) -> Result<(u16, u16), Error> {
        match self.read16(VENDOR)? {
            NO_DEVICE => Err(Error::Unreadable {
                device: self.device.name().to_owned(),
                what: "its vendor in the configuration space".to_owned(),
                found: format!("{NO_DEVICE:#06x}, as if no device responded"),
            }),
            vendor => Ok((vendor, self.read16(DEVICE)?)),
        }
    }

    /// Whether the device may access memory.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn is_bus_master(self) -> Result<bool, Error> {
        Ok(self.read16(COMMAND)? & BUS_MASTER != 0)
    }

    /// Turns bus mastering on or off. After it is off, no DMA is in progress.
    ///
    /// # Errors
    /// When the device refuses, or the register does not change.
    pub fn set_bus_master(self, on: bool) -> Result<(), Error> {
        let command = self.read16(COMMAND)?;
        let wanted = if on {
            command | BUS_MASTER | MEMORY
        } else {
            command & !BUS_MASTER
        };
        if wanted != command {
            self.write16(COMMAND, wanted)?;
        }
        let found = self.read16(COMMAND)?;
        if (found & BUS_MASTER != 0) == on && found != NO_DEVICE {
            return Ok(());
        }
        Err(Error::Unreadable {
            device: self.device.name().to_owned(),
            what: format!("its command register, to which {wanted:#06x} was written,"),
            found: format!("{found:#06x}"),
        })
    }

    /// Returns the offset of a capability, or `None` if the device lacks it.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn capability(self, wanted: u8) -> Result<Option<u64>, Error> {
        /// Capabilities have four bytes at least, and lie between the header and the end.
        const MOST: usize = (0x100 - 0x40) / 4;
        if self.read16(STATUS)? & HAS_CAPABILITIES == 0 {
            return Ok(None);
        }
        let mut at = u64::from(self.read8(CAPABILITIES)? & !3);
        for _ in 0..MOST {
            if at < 0x40 {
                break;
            }
            if self.read8(at)? == wanted {
                return Ok(Some(at));
            }
            at = u64::from(self.read8(at + 1)? & !3);
        }
        Ok(None)
    }

    /// Returns how many MSI-X vectors the device has; 0 where it has none.
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn msix_vectors(self) -> Result<u32, Error> {
        match self.capability(MSIX)? {
            // The size of the table is counted from 0.
            Some(at) => Ok(u32::from(self.read16(at + 2)? & 0x7ff) + 1),
            None => Ok(0),
        }
    }
}

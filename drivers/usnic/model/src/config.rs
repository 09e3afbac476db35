//! The configuration space of a function: identity, BARs, PCI Express and MSI-X capabilities, and which bits
//! can be written.
//!
//! Sources: PCI Local Bus Specification 3.0, chapter 6; PCI Express Base Specification, 7.8; offsets as in
//! linux/pci_regs.h; the reference's section 1 for the identity.

use crate::layout::MSIX_BAR;
use crate::options::Options;

/// Length of the configuration space of a PCI Express function.
pub(crate) const LENGTH: usize = 4096;
/// Length of the BAR with the MSI-X table.
pub(crate) const MSIX_LENGTH: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const EXPRESS: usize = 0x40;
const MSIX: usize = 0x80;

/// Command: memory, bus master, no INTx.
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const NO_INTX: u16 = 1 << 10;
/// PCI Express device capabilities and control: function level reset.
const FLR_ABLE: u32 = 1 << 28;
const FLR: u16 = 1 << 15;

/// What a write did beside being stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// The function is to be reset.
    Reset,
}

/// The configuration space.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    bytes: Vec<u8>,
    /// Bits that can be written.
    mask: Vec<u8>,
}

impl Config {
    /// The configuration space of a physical function or a virtual one, with registers of `bar` bytes.
    pub(crate) fn new(options: &Options, is_vf: bool, bar: usize) -> Self {
        let identity = options.identity;
        let mut config = Self {
            bytes: vec![0; LENGTH],
            mask: vec![0; LENGTH],
        };
        config.set16(0x00, 0x1137);
        config.set16(
            0x02,
            if is_vf {
                identity.vf_device
            } else {
                identity.pf_device
            },
        );
        // As the kernel hands a device out: it answers, and accesses no memory.
        config.set16(COMMAND, MEMORY);
        config.writable16(COMMAND, MEMORY | BUS_MASTER | NO_INTX);
        config.set16(STATUS, 1 << 4);
        let class = if is_vf { identity.class } else { 0x02_0000 };
        config.set32(0x08, class << 8 | u32::from(identity.revision));
        config.bar(0, bar, options.layout.wide);
        config.bar(usize::from(MSIX_BAR), MSIX_LENGTH, false);
        config.set16(0x2c, 0x1137);
        config.set16(0x2e, identity.subsystem);
        config.bytes[CAPABILITIES] = EXPRESS as u8;
        // No pin at 0x3d: the model has no interrupt by wire, and a driver that finds a pin requests its
        // interrupt.
        config.express(!options.behaviour.no_flr);
        config.msix(options.counts.intr + options.counts.spare);
        config
    }

    fn bar(&mut self, index: usize, length: usize, wide: bool) {
        let at = BAR0 + 4 * index;
        let mask = (length as u64 - 1) ^ u64::MAX;
        self.set32(at, if wide { 4 } else { 0 });
        self.mask[at..at + 4].copy_from_slice(&(mask as u32).to_le_bytes());
        if wide {
            self.mask[at + 4..at + 8].copy_from_slice(&((mask >> 32) as u32).to_le_bytes());
        }
    }

    /// An endpoint with function level reset. \[M\] whether a real one has it.
    fn express(&mut self, flr: bool) {
        self.bytes[EXPRESS] = 0x10;
        self.bytes[EXPRESS + 1] = MSIX as u8;
        self.set16(EXPRESS + 2, 2);
        self.set32(EXPRESS + 4, if flr { FLR_ABLE | 2 } else { 2 });
        self.writable16(EXPRESS + 8, 0x7fff);
        // x8 at 8 GT/s.
        self.set32(EXPRESS + 0x0c, 8 << 4 | 3);
        self.set16(EXPRESS + 0x12, 8 << 4 | 3);
    }

    fn msix(&mut self, vectors: usize) {
        self.bytes[MSIX] = 0x11;
        self.set16(MSIX + 2, vectors as u16 - 1);
        // Enable, and mask of the whole function.
        self.writable16(MSIX + 2, 0xc000);
        self.set32(MSIX + 4, u32::from(MSIX_BAR));
        self.set32(MSIX + 8, u32::from(MSIX_BAR) | 0x800);
    }

    fn set16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn set32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn writable16(&mut self, at: usize, mask: u16) {
        self.mask[at..at + 2].copy_from_slice(&mask.to_le_bytes());
    }

    /// Returns the value there; `None` outside.
    pub(crate) fn read(&self, at: usize, count: usize) -> Option<&[u8]> {
        self.bytes.get(at..at.checked_add(count)?)
    }

    /// Writes what can be written; `None` outside.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> Option<Effect> {
        self.bytes.get(at..at.checked_add(bytes.len())?)?;
        for (index, byte) in bytes.iter().enumerate() {
            let mask = self.mask[at + index];
            let cell = &mut self.bytes[at + index];
            *cell = *cell & !mask | byte & mask;
        }
        let high = EXPRESS + 9;
        let can = u32::from(self.bytes[EXPRESS + 7]) << 24 & FLR_ABLE != 0;
        let asked = can && (at..at + bytes.len()).contains(&high) && bytes[high - at] & (FLR >> 8) as u8 != 0;
        Some(if asked { Effect::Reset } else { Effect::Nothing })
    }

    /// Whether the function may access memory.
    pub(crate) fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(config: &Config, at: usize) -> u32 {
        u32::from_le_bytes(config.read(at, 4).unwrap().try_into().unwrap())
    }

    #[test]
    fn identity_and_resources() {
        let config = Config::new(&Options::default(), true, 64 << 10);
        assert_eq!(word(&config, 0), 0x00cf_1137);
        assert_eq!(word(&config, 8), 0x0200_00a2);
        assert_eq!(word(&config, 0x2c), 0x014d_1137);
        let mut at = usize::from(config.bytes[CAPABILITIES]);
        let mut kinds = Vec::new();
        while at != 0 {
            kinds.push(config.bytes[at]);
            at = usize::from(config.bytes[at + 1]);
        }
        assert_eq!(kinds, [0x10, 0x11]);
        assert_eq!(word(&config, MSIX) >> 16 & 0x7ff, 6, "seven vectors");
        let pf = Config::new(&Options::default(), false, 64 << 10);
        assert_eq!(word(&pf, 0), 0x0043_1137);
    }

    #[test]
    fn bars_are_measured_and_only_what_can_be_written_is() {
        let mut config = Config::new(&Options::default(), true, 64 << 10);
        assert_eq!(config.write(BAR0, &[0xff; 8]), Some(Effect::Nothing));
        assert_eq!(
            (word(&config, BAR0), word(&config, BAR0 + 4)),
            (0xffff_0004, u32::MAX)
        );
        config.write(0, &[0xff; 4]).unwrap();
        assert_eq!(word(&config, 0), 0x00cf_1137);
        assert!(!config.is_bus_master());
        config.write(COMMAND, &6u16.to_le_bytes()).unwrap();
        assert!(config.is_bus_master());
        assert_eq!(config.write(EXPRESS + 8, &[0, 0x80]), Some(Effect::Reset));
        assert_eq!(word(&config, EXPRESS + 8) & 0x8000, 0, "reads as 0");
        assert_eq!(config.write(LENGTH - 1, &[0, 0]), None);
        assert_eq!(config.read(usize::MAX, 2), None);
    }
}

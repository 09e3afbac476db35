//! A control block of registers at its place in a BAR, mapped or reached by calls.

use doorbell_vfio::{Block, Error, Registers, Space};

/// Registers from an offset of a BAR on.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    space: Space,
    at: u64,
}

impl Window {
    /// The caller has checked that the block is inside of the BAR.
    pub(crate) fn new(space: &Space, at: u64) -> Self {
        Self {
            space: space.clone(),
            at,
        }
    }

    pub(crate) fn read32(&self, at: usize) -> Result<u32, Error> {
        self.space.read32(self.at + at as u64)
    }

    pub(crate) fn write32(&self, at: usize, value: u32) -> Result<(), Error> {
        self.space.write32(self.at + at as u64, value)
    }

    pub(crate) fn read64(&self, at: usize) -> Result<u64, Error> {
        self.space.read64(self.at + at as u64)
    }

    pub(crate) fn write64(&self, at: usize, value: u64) -> Result<(), Error> {
        self.space.write64(self.at + at as u64, value)
    }

    /// The block as cells, where it is mapped.
    pub(crate) fn block<T: Registers>(&self, at: usize) -> Option<Block<T>> {
        self.space.block(self.at + at as u64)
    }
}

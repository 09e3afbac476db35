//! The last steps of a chain, which only the rail's own driver can walk: with the device open, in its hands.

use doorbell_vfio::Bdf;

use super::super::chain::{Link, Walk};

/// What a driver of a PCI function shows with the function open: BAR readable, link, speed, MTU, queues, a
/// frame through the real rings, what the device may reach by DMA, an interrupt. It ends with
/// [`Walk::proved`], or with the first broken step.
pub(in super::super) trait Live {
    /// The kind of rail.
    fn kind(&self) -> &'static str;

    /// Bytes that it locks for the device to reach, with the settings that hold here.
    fn memory(&self) -> u64;

    /// Opens the function and walks its steps; closes it again. Bounded in time.
    fn steps(&self, walk: &mut Walk, bdf: Bdf) -> Link;
}

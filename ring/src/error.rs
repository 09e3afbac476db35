//! What can go wrong, and the ordinary "full" that is no error.

use std::fmt;

/// Everything that a ring, a slab or their storage can refuse, with the object, the likely cause and the
/// remedy.
///
/// Values that came from the far side are reported as they were read; no variant holds a pointer into
/// shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A capacity that is not a power of two, or outside what the structure can index.
    #[error(
        "{what}: capacity {asked} is not usable: it must be a power of two from {least} to {most}; \
         round the setting up"
    )]
    Capacity {
        /// The structure that was to be built.
        what: &'static str,
        /// Requested capacity, in slots.
        asked: usize,
        /// Smallest usable capacity, in slots.
        least: usize,
        /// Largest usable capacity, in slots.
        most: usize,
    },

    /// A slot or buffer size that is zero, too large or not a multiple of the unit.
    #[error(
        "{what}: size {asked} bytes is not usable: it must be a multiple of {unit} from {unit} to {most}"
    )]
    Size {
        /// The structure that was to be built.
        what: &'static str,
        /// Requested size, in bytes.
        asked: usize,
        /// The size must be a multiple of this, in bytes.
        unit: usize,
        /// Largest usable size, in bytes.
        most: usize,
    },

    /// The memory handed over is shorter than the structure needs.
    #[error("{what}: needs {needed} bytes of memory, got {got}; both sides must agree on the geometry")]
    TooSmall {
        /// The structure or part that was to be placed.
        what: &'static str,
        /// Bytes that the area needs.
        needed: usize,
        /// Bytes that there are.
        got: usize,
    },

    /// The memory handed over does not begin at an address that the structure's words allow.
    #[error("{what}: address {address:#x} is not a multiple of {align}; place it on a page or cache line")]
    Misaligned {
        /// The structure or part that was to be placed.
        what: &'static str,
        /// The address (or, within an area, the offset) that was handed over.
        address: usize,
        /// Alignment needed, in bytes.
        align: usize,
    },

    /// The memory handed over is mapped read-only, but this side has to write it.
    #[error(
        "{what}: this side writes here, but the memory is mapped read-only; map one's own page read-write"
    )]
    ReadOnly {
        /// The structure or part that was to be placed.
        what: &'static str,
    },

    /// The allocator had no memory left.
    #[error("{what}: no memory for {bytes} bytes; make the structure smaller or raise the memory limit")]
    NoMemory {
        /// The structure that was to be built.
        what: &'static str,
        /// The requested number of bytes.
        bytes: usize,
    },

    /// The far side wrote a word that it cannot have written honestly: it is broken or hostile.
    ///
    /// Nothing was read or written on the strength of that word. The ring can still be used in the sense
    /// that memory stays safe, but its contents mean nothing any more: close it and count the peer as failed.
    #[error(
        "{what}: the far side wrote {value:#x}, where only {low:#x} to {high:#x} is possible; \
         the peer or device is broken or hostile: close this ring"
    )]
    Corrupt {
        /// Which word of which structure.
        what: &'static str,
        /// The value, as it was copied (once).
        value: u64,
        /// Lowest possible value (wrapping).
        low: u64,
        /// Highest possible value (wrapping).
        high: u64,
    },

    /// A handle whose slot has been given back, and perhaps taken again, since.
    #[error(
        "slab: handle to slot {index} is of generation {generation}, the slot is at {current}: \
         it was given back already; a handle must not be used twice"
    )]
    Stale {
        /// Number of the slot.
        index: u32,
        /// Generation in the handle.
        generation: u64,
        /// Generation of the slot now.
        current: u64,
    },

    /// A handle that names no slot of this slab.
    #[error(
        "slab: handle names slot {index}, but there are {capacity}; it belongs to another slab or came off a wire"
    )]
    NoSuchSlot {
        /// Slot number in the handle.
        index: u32,
        /// Slots of this slab.
        capacity: u32,
    },
}

/// The structure is full: an ordinary result that hands the value back.
///
/// Back-pressure is a value, not an error: try again after the far side has made progress.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("full: try again after the far side has made progress")
    }
}

/// Checks a capacity: a power of two within the limits.
pub(crate) fn check_capacity(
    what: &'static str,
    asked: usize,
    least: usize,
    most: usize,
) -> Result<(), RingError> {
    if asked.is_power_of_two() && asked >= least && asked <= most {
        Ok(())
    } else {
        Err(RingError::Capacity {
            what,
            asked,
            least,
            most,
        })
    }
}

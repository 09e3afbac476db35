//! Where the bytes of a payload, a put or a get come from or go to, and how a message is laid out in a chunk.
//!
//! ```text
//!   Short         arguments
//!   Medium        arguments, padded to 8 bytes │ payload
//!   packed Long   arguments, padded to 8 bytes │ offset in the segment (8 bytes, little endian) │ payload
//!   Long          arguments                      (its payload comes separately)
//! ```

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::Landing;

use crate::handler::MAX_ARGS;

/// Bytes of the offset that a packed Long carries in front of its payload.
pub(crate) const PACKED_OFFSET: usize = 8;
/// Bytes of the most arguments: what a full Medium leaves of a chunk.
pub(crate) const ARGS_BYTES: usize = MAX_ARGS * 4;

/// Bytes to be sent.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// Borrowed for the length of the call: copied.
    Bytes(&'a [u8]),
    /// Borrowed bytes that may change (a payload that has just arrived).
    Shared(SharedBytes<'a>),
    /// A part of the segment of this process: sent in place, not to be changed before the operation has
    /// completed.
    Segment {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Memory that stays until the operation has ended: through a temporary descriptor, if it is too long to
    /// be copied.
    Memory(Landing),
}

impl Source<'_> {
    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Shared(bytes) => bytes.len() as u64,
            Self::Segment { length, .. } => *length,
            Self::Memory(memory) => memory.len() as u64,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the memory outlives the call.
    pub(crate) const fn stays(&self) -> bool {
        matches!(self, Self::Segment { .. } | Self::Memory(_))
    }

    /// Returns the bytes. Those of the segment were checked to be inside.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, segment: &'b RegionSlice) -> SharedBytes<'b> {
        match self {
            Self::Bytes(bytes) => SharedBytes::of(bytes),
            Self::Shared(bytes) => *bytes,
            Self::Segment { offset, length } => {
                segment.as_shared().skip(*offset as usize).take(*length as usize)
            }
            Self::Memory(memory) => view(memory),
        }
    }

    /// Copies the bytes into `to` at `at`. Those of the segment were checked to be inside.
    #[inline]
    pub(crate) fn copy_into(&self, segment: &RegionSlice, to: &RegionSlice, at: usize) -> usize {
        match self {
            Self::Bytes(bytes) => to.write(at, bytes),
            _ => to.write_shared(at, self.bytes(segment)),
        }
    }
}

/// Returns the same bytes again, for a caller that keeps their description to try again.
impl<'a> From<&Source<'a>> for Source<'a> {
    fn from(source: &Source<'a>) -> Self {
        source.clone()
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<SharedBytes<'a>> for Source<'a> {
    fn from(bytes: SharedBytes<'a>) -> Self {
        Self::Shared(bytes)
    }
}

impl From<Landing> for Source<'_> {
    fn from(memory: Landing) -> Self {
        Self::Memory(memory)
    }
}

impl From<RegionSlice> for Source<'_> {
    fn from(memory: RegionSlice) -> Self {
        Self::Memory(Landing::Region(memory))
    }
}

/// Where the bytes of a get go.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Into the segment of this process.
    Segment {
        /// The offset of the first byte.
        offset: u64,
    },
    /// Into memory that stays until the operation has ended.
    Memory(Landing),
}

/// Returns the same place again, for a caller that keeps its description to try again.
impl From<&Destination> for Destination {
    fn from(destination: &Destination) -> Self {
        destination.clone()
    }
}

impl From<Landing> for Destination {
    fn from(memory: Landing) -> Self {
        Self::Memory(memory)
    }
}

impl From<RegionSlice> for Destination {
    fn from(memory: RegionSlice) -> Self {
        Self::Memory(Landing::Region(memory))
    }
}

/// Memory as bytes that may change.
#[inline]
pub(crate) fn view(memory: &Landing) -> SharedBytes<'_> {
    match memory {
        Landing::Loan(loan) => loan.as_shared(),
        Landing::Region(slice) => slice.as_shared(),
    }
}

/// Bytes of `count` arguments.
#[inline]
pub(crate) const fn args_bytes(count: usize) -> usize {
    count * 4
}

/// The offset of the payload behind the padded arguments.
#[inline]
pub(crate) const fn padded(count: usize) -> usize {
    (count * 4).next_multiple_of(8)
}

/// Arguments as they travel: little endian, one behind the other.
#[inline]
pub(crate) fn write_args(args: &[u32], to: &RegionSlice, at: usize) {
    // Two at a time, as one word: halves stored separately and loaded whole would stall on store forwarding.
    for (pair, at) in args.chunks(2).zip((at..).step_by(8)) {
        match *pair {
            [low, high] => {
                let both = u64::from(low) | u64::from(high) << 32;
                to.write(at, &both.to_le_bytes());
            }
            [last] => _ = to.write(at, &last.to_le_bytes()),
            _ => {}
        }
    }
}

/// Arguments as words of two, padded; and the last one as bytes.
#[inline]
pub(crate) fn pairs(args: &[u32]) -> ([u64; MAX_ARGS / 2], [u8; 4]) {
    let mut words = [0; MAX_ARGS / 2];
    for (word, pair) in words.iter_mut().zip(args.chunks(2)) {
        *word = match *pair {
            [low, high] => u64::from(low) | u64::from(high) << 32,
            [last] => u64::from(last),
            _ => 0,
        };
    }
    (words, args.last().copied().unwrap_or(0).to_le_bytes())
}

/// Reads `count` arguments, at most 16.
#[inline]
pub(crate) fn read_args(count: usize, from: SharedBytes<'_>) -> [u32; MAX_ARGS] {
    let mut args = [0; MAX_ARGS];
    // Two at a time, as far as they go: a call to copy would cost more than most messages have.
    for (at, pair) in args.chunks_exact_mut(2).take(count.div_ceil(2)).enumerate() {
        if let Some(bytes) = from.read(at * 8) {
            let both = u64::from_le_bytes(bytes);
            pair.copy_from_slice(&[both as u32, (both >> 32) as u32]);
        } else if let (Some(bytes), Some(first)) = (from.read(at * 8), pair.first_mut()) {
            *first = u32::from_le_bytes(bytes);
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::error::RailError;
    use doorbell_fabric::memory::Region;

    #[test]
    fn arguments_travel_in_little_endian() -> Result<(), RailError> {
        let memory = Region::new(128)?.whole();
        write_args(&[0x0403_0201, 0xFFFF_FFFE], &memory, 3);
        assert_eq!(
            memory.as_shared().skip(3).take(8).to_vec(),
            [1, 2, 3, 4, 0xFE, 0xFF, 0xFF, 0xFF]
        );
        assert_eq!(
            read_args(2, memory.as_shared().skip(3))[..3],
            [0x0403_0201, 0xFFFF_FFFE, 0]
        );
        let all: [u32; MAX_ARGS] = std::array::from_fn(|n| n as u32 * 7);
        write_args(&all, &memory, 0);
        assert_eq!(read_args(MAX_ARGS, memory.as_shared()), all);
        assert_eq!((padded(0), padded(1), padded(2), padded(3)), (0, 8, 8, 16));
        Ok(())
    }
}

//! Ready bits: one bit per peer is set while its lane has messages, so that an idle poll does not grow with
//! their number.
//!
//! Word 0 summarises words 1 to 64; bit `b` of the peers lies in word `1 + b / 64`. Setting a bit twice is
//! the same as setting it once, and a bit set for nothing costs one poll of a lane: a peer that dies in
//! between, or writes garbage, blocks no one else. A *lost* bit is found by the sweep (see `rail`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection, Words};

/// Bytes of a ready object.
pub(crate) const READY_BYTES: usize = 65 * 8;

/// A view of one receiver's ready bits, our own or a peer's.
pub(crate) struct Ready {
    words: Words,
}

impl Ready {
    pub(crate) fn map(object: &Object) -> Result<Self, RailError> {
        let words = Words::of(Arc::new(object.map(Protection::ReadWrite)?))?;
        if words.len() * 8 < READY_BYTES {
            return Err(RailError::hostile("passed a ready object that is too short"));
        }
        Ok(Self { words })
    }

    /// Sender: marks our lane as non-empty.
    pub(crate) fn set(&self, bit: u32) {
        let word = bit as usize / 64 % 64;
        if let (Some(own), Some(summary)) = (self.words.get(1 + word), self.words.get(0)) {
            // Release: a receiver that takes the bit sees the message committed before.
            own.fetch_or(1 << (bit % 64), Ordering::Release);
            summary.fetch_or(1 << word, Ordering::Release);
        }
    }

    /// Receiver: whether any bit may be set. One load.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.words
            .get(0)
            .is_some_and(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Receiver: clears all bits and calls `each` with their indices.
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        let Some(summary) = self.words.get(0) else { return };
        // The summary first: a bit set after this swap sets the summary again.
        for word in Bits(summary.swap(0, Ordering::AcqRel)) {
            let Some(own) = self.words.get(1 + word as usize) else {
                continue;
            };
            for bit in Bits(own.swap(0, Ordering::AcqRel)) {
                each(word * 64 + bit);
            }
        }
    }
}

#[cfg(test)]
impl Ready {
    pub(crate) fn scribble(&self, word: usize, value: u64) {
        self.words.get(word).unwrap().store(value, Ordering::Relaxed);
    }
}

/// Iterates over the set bits of a word, from the lowest.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.checked_ilog2().map(|_| self.0.trailing_zeros())?;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_set_by_a_peer_are_taken_once() {
        let object = Object::new("test", READY_BYTES).unwrap();
        let (ours, theirs) = (Ready::map(&object).unwrap(), Ready::map(&object).unwrap());
        assert!(!ours.any());
        for bit in [0, 63, 64, 4095, 64] {
            theirs.set(bit);
        }
        assert!(ours.any());
        let mut taken = Vec::new();
        ours.take(|bit| taken.push(bit));
        assert_eq!(taken, [0, 63, 64, 4095]);
        ours.take(|bit| panic!("bit {bit} taken twice"));
        assert!(!ours.any());
    }
}

//! Buffers for bytes that no receive waits for yet, in size classes, kept and used again.

use std::collections::HashMap;

use crate::rank::Rank;

/// The smallest class holds 64 bytes, each further one twice as many.
const FIRST: u32 = 6;
/// The largest class that is kept: 1 MiB.
const LAST: u32 = 20;
/// Bytes of unused buffers that a class keeps, at most.
const KEEP: usize = 8 << 20;

/// A buffer of the pool. Its length is that of its class; the user remembers how much of it is used.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Box<[u8]>);

impl Buffer {
    /// No bytes; costs nothing.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The pool: one list of unused buffers per class.
#[derive(Debug)]
pub(crate) struct Pool {
    classes: [Vec<Box<[u8]>>; (LAST - FIRST + 1) as usize],
    /// Bytes in buffers that hold messages to be sent.
    held: usize,
    /// Those of them that wait for each peer: a table of its own, since an idle peer is to cost nothing.
    waiting: HashMap<Rank, usize>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            classes: Default::default(),
            held: 0,
            waiting: HashMap::new(),
        }
    }

    fn class(length: usize) -> Option<usize> {
        let bits = length.next_power_of_two().trailing_zeros().max(FIRST);
        (bits <= LAST).then(|| (bits - FIRST) as usize)
    }

    /// A buffer of at least `length` bytes, with whatever was in it before.
    pub(crate) fn take(&mut self, length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        let Some(class) = Self::class(length) else {
            return Buffer(vec![0; length].into_boxed_slice());
        };
        match self.classes[class].pop() {
            Some(bytes) => Buffer(bytes),
            None => Buffer(vec![0; 1 << (class as u32 + FIRST)].into_boxed_slice()),
        }
    }

    /// Bytes in buffers that hold messages to be sent.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// What a message to be sent counts while it is held: its bytes, and something where it has hardly any.
    pub(crate) fn charge(length: usize) -> usize {
        length.max(1 << FIRST)
    }

    /// Bytes in buffers that hold messages to be sent to a rank.
    pub(crate) fn waiting(&self, to: Rank) -> usize {
        self.waiting.get(&to).copied().unwrap_or(0)
    }

    /// A buffer for `length` bytes of a message to be sent to a rank.
    pub(crate) fn hold(&mut self, to: Rank, length: usize) -> Buffer {
        let charge = Self::charge(length);
        self.held += charge;
        *self.waiting.entry(to).or_default() += charge;
        self.take(length)
    }

    /// Takes a buffer back that held `used` bytes of a message to be sent to a rank.
    pub(crate) fn release(&mut self, to: Rank, buffer: Buffer, used: usize) {
        let charge = Self::charge(used);
        self.held = self.held.saturating_sub(charge);
        if let Some(waiting) = self.waiting.get_mut(&to) {
            *waiting = waiting.saturating_sub(charge);
            if *waiting == 0 {
                self.waiting.remove(&to);
            }
        }
        self.give(buffer);
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let length = buffer.0.len();
        let Some(class) = Self::class(length).filter(|_| length.is_power_of_two()) else {
            return;
        };
        let list = &mut self.classes[class];
        if list.len() < KEEP >> (class as u32 + FIRST) {
            list.push(buffer.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_fit_and_come_back() {
        let mut pool = Pool::new();
        for length in [1, 63, 64, 65, 4096, 5000, 1 << 20] {
            let buffer = pool.take(length);
            assert!(buffer.bytes().len() >= length, "{length}");
            let at = buffer.bytes().as_ptr();
            pool.give(buffer);
            let again = pool.take(length);
            assert_eq!(again.bytes().as_ptr(), at, "{length}");
            pool.give(again);
        }
    }

    #[test]
    fn very_long_ones_are_not_kept_and_empty_ones_cost_nothing() {
        let mut pool = Pool::new();
        let buffer = pool.take((1 << 20) + 1);
        assert_eq!(buffer.bytes().len(), (1 << 20) + 1);
        pool.give(buffer);
        assert!(pool.take(0).bytes().is_empty());
        pool.give(Buffer::empty());
        assert!(pool.classes.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_class_keeps_a_bounded_number_of_bytes() {
        let mut pool = Pool::new();
        let taken: Vec<_> = (0..20).map(|_| pool.take(1 << 20)).collect();
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.classes[(LAST - FIRST) as usize].len(), 8);
    }
}

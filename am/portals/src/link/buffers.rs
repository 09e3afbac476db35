//! Buffers for messages that wait: size classes, kept and used again, so that nothing is allocated in the
//! steady state.

use std::collections::VecDeque;

use doorbell_fabric::message::{Body, Inbound};

/// The smallest class holds 64 bytes, each further one twice as many.
const FIRST: u32 = 6;
/// The largest class that is kept: 1 MiB.
const LAST: u32 = 20;
/// Bytes of unused buffers that a class keeps, at most.
const KEEP: usize = 4 << 20;

/// A message that waits, whole: head and body.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Box<[u8]>,
    length: usize,
}

impl Kept {
    /// The bytes of the message.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

/// The pool: one list of unused buffers per class.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    classes: [Vec<Box<[u8]>>; (LAST - FIRST + 1) as usize],
}

impl Buffers {
    fn class(length: usize) -> Option<usize> {
        let bits = length.checked_next_power_of_two()?.trailing_zeros().max(FIRST);
        (bits <= LAST).then(|| (bits - FIRST) as usize)
    }

    /// Room for `length` bytes, with whatever was in it before.
    pub(crate) fn take(&mut self, length: usize) -> Kept {
        let bytes = match Self::class(length) {
            None => vec![0; length].into_boxed_slice(),
            Some(class) => match self.classes[class].pop() {
                Some(bytes) => bytes,
                None => vec![0; 1 << (class as u32 + FIRST)].into_boxed_slice(),
            },
        };
        Kept { bytes, length }
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, kept: Kept) {
        let length = kept.bytes.len();
        let Some(class) = Self::class(length).filter(|_| length.is_power_of_two()) else {
            return;
        };
        let list = &mut self.classes[class];
        if list.len() < KEEP >> (class as u32 + FIRST) {
            list.push(kept.bytes);
        }
    }

    pub(crate) fn give_all(&mut self, all: &mut VecDeque<Kept>) {
        all.drain(..).for_each(|kept| self.give(kept));
    }

    /// A copy of plain bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Kept {
        let mut kept = self.take(bytes.len());
        kept.bytes_mut().copy_from_slice(bytes);
        kept
    }

    /// A copy of what arrived.
    pub(crate) fn copy_inbound(&mut self, inbound: &Inbound<'_>) -> Kept {
        let mut kept = self.take(inbound.len());
        inbound.copy_to(0, kept.bytes_mut());
        kept
    }

    /// A copy of what is to be sent.
    pub(crate) fn gather(&mut self, head: &[u8], body: &Body<'_>) -> Kept {
        let mut kept = self.take(head.len() + body.len());
        let (to, rest) = kept.bytes_mut().split_at_mut(head.len());
        to.copy_from_slice(head);
        body.copy_to(rest);
        kept
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::memory::ConstLoan;

    use super::*;

    #[test]
    fn buffers_fit_and_come_back() {
        let mut buffers = Buffers::default();
        for length in [0, 1, 63, 64, 65, 4096, 5000, 1 << 20] {
            let kept = buffers.take(length);
            assert_eq!(kept.len(), length);
            let at = kept.bytes.as_ptr();
            buffers.give(kept);
            let again = buffers.take(length);
            assert_eq!(again.bytes.as_ptr(), at, "{length}");
            buffers.give(again);
        }
    }

    #[test]
    fn a_class_keeps_a_bounded_number_of_bytes_and_very_long_ones_are_not_kept() {
        let mut buffers = Buffers::default();
        let mut taken: VecDeque<_> = (0..9).map(|_| buffers.take(1 << 20)).collect();
        buffers.give_all(&mut taken);
        assert_eq!(buffers.classes[(LAST - FIRST) as usize].len(), 4);
        let long = buffers.take((1 << 20) + 1);
        buffers.give(long);
        assert_eq!(buffers.classes.iter().map(Vec::len).sum::<usize>(), 4);
    }

    #[test]
    fn every_kind_of_body_is_gathered_behind_its_head() {
        let mut buffers = Buffers::default();
        let loan = ConstLoan::of_static(b"abcdef");
        let parts = [loan.part(0, 2), loan.part(2, 4)];
        for body in [
            Body::Bytes(b"abcdef"),
            Body::Loan(loan),
            Body::Parts(&parts),
            Body::Shared(loan.as_shared()),
        ] {
            let kept = buffers.gather(b"head", &body);
            assert_eq!(kept.bytes(), b"headabcdef");
        }
        assert_eq!(buffers.gather(b"head", &Body::Empty).bytes(), b"head");
    }
}

//! The state of one counter: what it has counted.

use libfabric_sys::*;

use crate::bell::Bell;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Operations that have ended.
    Completions,
    /// The bytes of operations that have ended.
    Bytes,
}

impl Counted {
    /// Returns what this number of libfabric's stands for.
    pub(crate) const fn of(events: fi_cntr_events) -> Option<Self> {
        match events {
            FI_CNTR_EVENTS_COMP => Some(Self::Completions),
            FI_CNTR_EVENTS_BYTES => Some(Self::Bytes),
            _ => None,
        }
    }
}

/// A counter: operations that ended well, and those that failed.
#[derive(Debug)]
pub(crate) struct Counter {
    counted: Counted,
    value: u64,
    errors: u64,
    /// Both, when they were read last.
    seen: (u64, u64),
    /// Wakes those that sleep until it has changed.
    pub(crate) bell: Bell,
}

impl Counter {
    /// A counter of nothing yet.
    pub(crate) fn new(counted: Counted, bell: Bell) -> Self {
        Self {
            counted,
            value: 0,
            errors: 0,
            seen: (0, 0),
            bell,
        }
    }

    /// An operation of this many bytes has ended well.
    #[inline]
    pub(crate) fn count(&mut self, bytes: u64) {
        let more = match self.counted {
            Counted::Completions => 1,
            Counted::Bytes => bytes,
        };
        self.add(more);
    }

    /// Adds to the operations that ended well.
    #[inline]
    pub(crate) fn add(&mut self, more: u64) {
        self.set(self.value.wrapping_add(more));
    }

    /// Adds to those that failed.
    pub(crate) fn add_errors(&mut self, more: u64) {
        self.set_errors(self.errors.wrapping_add(more));
    }

    /// Sets the operations that ended well.
    #[inline]
    pub(crate) fn set(&mut self, value: u64) {
        self.value = value;
        self.bell.ring();
    }

    /// Sets those that failed.
    pub(crate) fn set_errors(&mut self, errors: u64) {
        self.errors = errors;
        self.bell.ring();
    }

    /// The client reads it.
    #[inline]
    pub(crate) fn note_read(&mut self) {
        self.seen = (self.value, self.errors);
    }

    /// Whether it has changed since it was read last.
    pub(crate) fn has_changed(&self) -> bool {
        self.seen != (self.value, self.errors)
    }

    /// Returns the operations that ended well, or their bytes.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Returns those that failed.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_operations_or_bytes_and_failures_apart() {
        let mut completions = Counter::new(Counted::Completions, Bell::silent());
        let mut bytes = Counter::new(Counted::Bytes, Bell::silent());
        for counter in [&mut completions, &mut bytes] {
            counter.count(10);
            counter.count(0);
            counter.add_errors(3);
            counter.add(5);
        }
        assert_eq!((completions.value(), completions.errors()), (7, 3));
        assert_eq!((bytes.value(), bytes.errors()), (15, 3));
        assert!(bytes.has_changed());
        bytes.note_read();
        assert!(!bytes.has_changed());
        bytes.set(1);
        bytes.set_errors(0);
        assert_eq!((bytes.value(), bytes.errors()), (1, 0));
        assert_eq!(Counted::of(FI_CNTR_EVENTS_BYTES), Some(Counted::Bytes));
        assert_eq!(Counted::of(9), None);
    }
}

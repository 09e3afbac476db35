//! For the fuzzers (`tools/fuzz`) only: memory whose words the far side of a ring can write at any time.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::{Access, Area, Mapped};

/// Words that are zero at first, aligned as cache lines are.
#[derive(Clone, Debug)]
pub struct Pages(Arc<Vec<Line>>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

impl Pages {
    /// A lane of `bytes` bytes, rounded up to cache lines.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(
            (0..bytes.div_ceil(64)).map(|_| Line::default()).collect(),
        ))
    }

    /// One side's area. What [`Pages::set`] writes is what another process would write.
    #[must_use]
    pub fn area(&self, access: Access) -> Area {
        let base = NonNull::from(self.0.as_slice()).cast();
        // SAFETY: the owner keeps the vector, which never grows, and nothing but atomic words of it is
        // reached from elsewhere: a fuzzer has one thread, and no call of a ring runs while it writes.
        Area::new(unsafe { Mapped::new(base, self.0.len() * 64, access, self.0.clone()) })
    }

    /// The far side writes a word.
    pub fn set(&self, word: usize, value: u64) {
        self.0[word / 8].0[word % 8].store(value, Ordering::Release);
    }
}

//! A counting allocator, for tests that bound how much is allocated.
//!
//! A test program installs it once, and compares two readings:
//!
//! ```
//! use doorbell_testing::alloc::{self, Counting};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = alloc::of_thread();
//! let word = Box::new(7_u64);
//! let made = alloc::of_thread() - before;
//! assert_eq!((made.allocations, made.requested, made.held), (1, 8, 8));
//! drop(word);
//! assert_eq!((alloc::of_thread() - before).held, 0);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Sub;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The system's allocator, with every call counted. Zeroed memory comes from `alloc` and is counted there.
#[derive(Debug)]
pub struct Counting;

/// What has been allocated up to a moment; the difference of two readings is what was allocated between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls that made or resized an allocation.
    pub allocations: u64,
    /// Bytes that these calls requested; a resized allocation counts with its whole new size.
    pub requested: u64,
    /// Bytes allocated and not freed. Of a thread: may be negative, where it freed what others allocated.
    pub held: i64,
}

impl Count {
    const NONE: Self = Self {
        allocations: 0,
        requested: 0,
        held: 0,
    };
}

impl Sub for Count {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            requested: self.requested - before.requested,
            held: self.held - before.held,
        }
    }
}

thread_local! {
    static OF_THREAD: Cell<Count> = const { Cell::new(Count::NONE) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static REQUESTED: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);

/// Returns what this thread has allocated. The test harness has threads of its own, which this leaves out.
///
/// # Panics
/// If [`Counting`] is not the program's allocator: nothing would be counted, and no test could fail.
pub fn of_thread() -> Count {
    assert_installed();
    OF_THREAD.get()
}

/// Returns what all threads of the process have allocated.
///
/// # Panics
/// Those of [`of_thread`] does.
pub fn of_process() -> Count {
    assert_installed();
    Count {
        allocations: ALLOCATIONS.load(Ordering::SeqCst),
        requested: REQUESTED.load(Ordering::SeqCst),
        held: HELD.load(Ordering::SeqCst),
    }
}

/// Runs `round` `rounds` times to fill pools and caches, and as often again; the second half may allocate
/// nothing in this thread.
///
/// # Panics
/// If it allocates, with `what` in the message; or as [`of_thread`] does.
#[track_caller]
pub fn steady(what: &str, rounds: usize, mut round: impl FnMut()) {
    (0..rounds).for_each(|_| round());
    let before = of_thread();
    (0..rounds).for_each(|_| round());
    let made = of_thread() - before;
    assert_eq!(made.allocations, 0, "{what}: allocations in {rounds} rounds");
}

fn assert_installed() {
    // The runtime allocates before `main`, so a count of zero means that another allocator did it.
    let installed = ALLOCATIONS.load(Ordering::Relaxed) > 0;
    assert!(
        installed,
        "`Counting` is not this program's `#[global_allocator]`"
    );
}

fn count(made: u64, requested: usize, freed: usize) {
    let count = |count: &Cell<Count>| {
        let Count {
            allocations,
            requested: before,
            held,
        } = count.get();
        count.set(Count {
            allocations: allocations + made,
            requested: before + requested as u64,
            held: held + requested as i64 - freed as i64,
        });
    };
    // A thread that is ending no longer has a counter, and no test needs it.
    let _ = OF_THREAD.try_with(count);
    ALLOCATIONS.fetch_add(made, Ordering::Relaxed);
    REQUESTED.fetch_add(requested as u64, Ordering::Relaxed);
    HELD.fetch_add(requested as i64 - freed as i64, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing and touches no
// memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, 0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and `at` came from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

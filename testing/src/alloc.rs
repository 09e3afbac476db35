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
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

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
    /// Whether this is the thread that the process began with.
    static IS_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// What several threads have allocated.
struct Total {
    allocations: AtomicU64,
    requested: AtomicU64,
    held: AtomicI64,
}

/// The thread that the process began with: the runtime allocates there before `main`. It is the test
/// harness's, unless tests run one at a time.
static FIRST: Total = Total::new();
/// All other threads.
static OTHERS: Total = Total::new();
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

impl Total {
    const fn new() -> Self {
        Self {
            allocations: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            held: AtomicI64::new(0),
        }
    }

    fn add(&self, made: u64, requested: usize, freed: usize) {
        self.allocations.fetch_add(made, Ordering::Relaxed);
        self.requested.fetch_add(requested as u64, Ordering::Relaxed);
        self.held
            .fetch_add(requested as i64 - freed as i64, Ordering::Relaxed);
    }

    fn read(&self) -> Count {
        Count {
            allocations: self.allocations.load(Ordering::SeqCst),
            requested: self.requested.load(Ordering::SeqCst),
            held: self.held.load(Ordering::SeqCst),
        }
    }
}

/// Returns what this thread has allocated. The test harness has threads of its own, which this leaves out.
///
/// # Panics
/// If [`Counting`] is not the program's allocator: nothing would be counted, and no test could fail.
pub fn of_thread() -> Count {
    assert_installed();
    OF_THREAD.get()
}

/// Returns what all threads of the process have allocated, but for the harness: it reports a test that runs
/// for a minute, and allocates for that.
///
/// # Panics
/// As [`of_thread`] does.
pub fn of_process() -> Count {
    assert_installed();
    let others = OTHERS.read();
    if !IS_FIRST.get() {
        return others;
    }
    let first = FIRST.read();
    Count {
        allocations: first.allocations + others.allocations,
        requested: first.requested + others.requested,
        held: first.held + others.held,
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
    let installed = HAS_BEGUN.load(Ordering::Relaxed);
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
    total().add(made, requested, freed);
}

/// Returns the total that this thread belongs to.
fn total() -> &'static Total {
    if !HAS_BEGUN.load(Ordering::Relaxed) {
        HAS_BEGUN.store(true, Ordering::Relaxed);
        let _ = IS_FIRST.try_with(|is_first| is_first.set(true));
    }
    match IS_FIRST.try_with(Cell::get) {
        Ok(true) => &FIRST,
        _ => &OTHERS,
    }
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

//! Detects forks. A child of `fork` has copies of its parent's handles, but what they refer to, descriptors
//! aside, is the parent's: shared memory is not mapped in the child, threads do not exist, and data sent over
//! an inherited connection would be taken for the parent's.
//!
//! One page of this process is wiped in every child (`MADV_WIPEONFORK`), whichever call created it, so that a
//! handle detects with one load that it is a copy.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The process that made a handle.
#[derive(Clone, Copy)]
pub struct Maker {
    /// The number of the running process: zero in a child until something is made there.
    running: &'static AtomicU64,
    number: u64,
}

impl Maker {
    /// The running process.
    pub fn this() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let running = page();
        if running.load(Ordering::Relaxed) == 0 {
            // A child goes on counting where its parent was: no handle that it inherits has the same number.
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been first.
            let _ = running.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self {
            running,
            number: running.load(Ordering::Relaxed),
        }
    }

    /// Whether the running process is the one that made the handle, and no child of it.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) == self.number
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Maker({})", self.number)
    }
}

/// The word that is wiped in children. Where the kernel has no such page (before Linux 4.14), forks go
/// unnoticed.
fn page() -> &'static AtomicU64 {
    static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
    static PLAIN: AtomicU64 = AtomicU64::new(0);
    PAGE.get_or_init(|| wiped().unwrap_or(&PLAIN))
}

fn wiped() -> Option<&'static AtomicU64> {
    let length = super::page_size();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private map at an address of the kernel's choice touches no existing memory.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is the map just made; WIPEONFORK changes what a child inherits, not what we see.
    if unsafe { rustix::mm::madvise(start, length, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: the same map, to which nothing refers.
        let _ = unsafe { rustix::mm::munmap(start, length) };
        return None;
    }
    // SAFETY: the map is never removed, begins on a page, is zero-filled, and only this reference leads to
    // it.
    Some(unsafe { &*start.cast::<AtomicU64>() })
}

/// A value that only the process that created it drops. In a child of `fork` the copy is leaked: its
/// destructor would act for the parent, or touch memory that is not mapped there.
#[derive(Debug)]
pub struct Kept<T> {
    value: ManuallyDrop<T>,
    maker: Maker,
}

impl<T> Kept<T> {
    /// Keeps a value that was made by the running process.
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            maker: Maker::this(),
        }
    }

    /// Whether the running process made the value.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.maker.is_running()
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Kept<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped here and nowhere else, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Flag<'a>(&'a AtomicBool);

    impl Drop for Flag<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_child_is_not_the_maker_and_drops_nothing() {
        let dropped = AtomicBool::new(false);
        let (maker, kept) = (Maker::this(), Kept::new(Flag(&dropped)));
        assert!(maker.is_running() && kept.is_here());
        // SAFETY: the child reads and writes memory of its own and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A lock that another thread held at the fork is never released here: SIGALRM ends the wait.
            // SAFETY: only a system call.
            unsafe { libc::alarm(60) };
            let copy = !maker.is_running() && !kept.is_here();
            let own = Maker::this();
            let goes_on = own.is_running() && !maker.is_running();
            drop(kept);
            let good = copy && goes_on && !dropped.load(Ordering::Relaxed);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is our own child, and `status` a valid place.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(waited == child && libc::WIFEXITED(status), "{status:x}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
        assert!(maker.is_running());
        drop(kept);
        assert!(dropped.load(Ordering::Relaxed));
    }
}

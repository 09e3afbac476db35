//! The fence around every call: no unwind passes it, and a child of `fork` is kept out.
//!
//! An object opened before a `fork` belongs to the parent: its descriptors and its shared memory are the
//! parent's, and its connections are closed in the child (`doorbell_fabric::map::clofork`). The child may
//! close such objects, which does nothing, and may open its own.
//!
//! While a process ends, exit(3) sends what its domains have accepted, and other threads still make calls.
//! Their fences are closed before, and a call is -FI_EAGAIN then: some clients end the process by themselves,
//! with another exit status, where a call fails by any other number.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use libfabric_sys::{FI_EAGAIN, FI_EOPBADSTATE, FI_EOTHER, FI_LOG_CORE};

use crate::errno::{Answer, Errno, Result};

/// How many forks lie between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether the line about calls of a child was printed.
static WARNED: AtomicBool = AtomicBool::new(false);
/// The text and the place of the last panic.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());
/// The generation of a fence that a panic has closed.
const CLOSED: u32 = u32::MAX;
/// The generation of a fence whose domain sends what it has accepted, at the end of the process.
const LEAVING: u32 = u32::MAX - 1;
/// The generation of a fence whose domain has done that.
const LEFT: u32 = u32::MAX - 2;

/// What keeps the calls of one fabric or domain apart from forks and panics.
#[derive(Debug)]
pub(crate) struct Fence {
    generation: AtomicU32,
}

impl Fence {
    /// Returns the fence of an object that is opened now.
    pub(crate) fn new() -> Self {
        Self {
            generation: AtomicU32::new(GENERATION.load(Ordering::Relaxed)),
        }
    }

    /// Runs a call. An unwind is -FI_EOTHER, for this call and all later ones.
    #[inline]
    pub(crate) fn run<A: Answer>(&self, call: &'static str, work: impl FnOnce() -> Result<A>) -> A {
        if !self.is_open() {
            return A::of_errno(self.refusal(call));
        }
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(answer)) => answer,
            Ok(Err(errno)) => A::of_errno(errno),
            Err(_) => A::of_errno(self.shut(call)),
        }
    }

    /// Closes it to calls at the end of the process. Returns whether calls could run until now.
    pub(crate) fn begin_to_leave(&self) -> bool {
        let open = GENERATION.load(Ordering::Relaxed);
        self.replace(open, LEAVING)
    }

    /// The domain has sent what it had accepted, or cannot.
    pub(crate) fn has_left(&self) {
        self.replace(LEAVING, LEFT);
    }

    /// Whether the domain is sending what it has accepted, at the end of the process. Not after a panic.
    pub(crate) fn is_leaving(&self) -> bool {
        self.generation.load(Ordering::Acquire) == LEAVING
    }

    fn replace(&self, old: u32, new: u32) -> bool {
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        self.generation.compare_exchange(old, new, done, not).is_ok()
    }

    /// Closes an object: `give_up` frees it. An object of the parent, and one that a panic has left in an
    /// unknown state, is not freed: it stays as it is.
    pub(crate) fn close<T>(
        object: Box<T>,
        fence: impl Fn(&T) -> &Self,
        call: &'static str,
        give_up: impl FnOnce(Box<T>) -> Result<c_int>,
    ) -> c_int {
        if !fence(&object).is_open() {
            std::mem::forget(object);
            return 0;
        }
        guard(call, || give_up(object))
    }

    /// Whether calls may run.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed)
    }

    /// Whether a call may go on that has waited.
    ///
    /// # Errors
    /// The number for a call that may not.
    pub(crate) fn check(&self, call: &'static str) -> Result<()> {
        match self.is_open() {
            true => Ok(()),
            false => Err(self.refusal(call)),
        }
    }

    /// Why a call may not run.
    #[cold]
    fn refusal(&self, call: &'static str) -> Errno {
        match self.generation.load(Ordering::Relaxed) {
            CLOSED => return Errno(FI_EOTHER),
            LEAVING | LEFT => return Errno(FI_EAGAIN),
            _ => {}
        }
        if !WARNED.swap(true, Ordering::Relaxed) {
            crate::log::warn(
                FI_LOG_CORE,
                &format!(
                    "{call} on an object that was opened before a fork: the parent owns it; open one in this process"
                ),
            );
        }
        Errno(FI_EOPBADSTATE)
    }

    #[cold]
    fn shut(&self, call: &'static str) -> Errno {
        self.generation.store(CLOSED, Ordering::Relaxed);
        crate::log::warn(
            FI_LOG_CORE,
            &format!(
                "{call} has panicked, and its domain is closed to all operations: {}",
                last_panic()
            ),
        );
        Errno(FI_EOTHER)
    }
}

/// Whether this process is a child of `fork` of the one that loaded the library.
pub(crate) fn is_child() -> bool {
    GENERATION.load(Ordering::Relaxed) > 0
}

/// Runs a call that belongs to no object. An unwind is -FI_EOTHER.
pub(crate) fn guard<A: Answer>(call: &'static str, work: impl FnOnce() -> Result<A>) -> A {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(errno)) => A::of_errno(errno),
        Err(_) => {
            crate::log::warn(FI_LOG_CORE, &format!("{call} has panicked: {}", last_panic()));
            A::of_errno(Errno(FI_EOTHER))
        }
    }
}

/// Prepares the process: forks are counted, and panics of this library are kept for the log.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler adds to a counter and does nothing else. The library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.to_string().replace('\n', ": ");
            *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }));
    });
}

extern "C" fn in_child() {
    // The generations of closed fences are never reached.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    WARNED.store(false, Ordering::Relaxed);
}

fn last_panic() -> String {
    LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwind_becomes_an_error_and_closes_the_fence() {
        let fence = Fence::new();
        assert_eq!(fence.run("a call", || Ok(3)), 3);
        assert_eq!(fence.run::<c_int>("a call", || Err(Errno(7))), -7);
        let answer: isize = fence.run("a call", || panic!("on purpose"));
        assert_eq!(answer, -(FI_EOTHER as isize));
        assert!(!fence.is_open());
        assert_eq!(fence.run::<c_int>("a call", || Ok(3)), -FI_EOTHER);
        assert_eq!(guard::<c_int>("a call", || panic!("on purpose")), -FI_EOTHER);
    }

    #[test]
    fn calls_wait_for_ever_while_the_process_ends() {
        let fence = Fence::new();
        assert!(fence.begin_to_leave() && fence.is_leaving() && !fence.is_open());
        assert!(!fence.begin_to_leave(), "once");
        assert_eq!(fence.run::<c_int>("a call", || Ok(3)), -FI_EAGAIN);
        fence.has_left();
        assert!(!fence.is_leaving());
        assert_eq!(fence.run::<c_int>("a call", || Ok(3)), -FI_EAGAIN);
        // One that a panic has closed stays so.
        let fence = Fence::new();
        let _: c_int = fence.run("a call", || panic!("on purpose"));
        fence.has_left();
        assert!(!fence.begin_to_leave() && !fence.is_leaving());
        assert_eq!(fence.run::<c_int>("a call", || Ok(3)), -FI_EOTHER);
    }
}

//! The turns of a domain's calls: one at a time has its state.
//!
//! Where the client promises by `FI_THREAD_DOMAIN` that it makes one call at a time, no lock is taken. The
//! end of the process keeps no such promise: exit(3) runs in one thread while another one may be inside a
//! call. So a call without a lock notes that it is under way, by a plain store, and reads the fence after it:
//!
//! ```text
//!   a call                                   the end of the process
//!   busy = true                              closes the fence
//!   (no instruction)                         membarrier
//!   reads the fence: refused, or works       waits while busy
//!   busy = false                             works
//! ```
//!
//! The barrier is executed on every core that runs a thread of this process. So of a call and the end at
//! least one finds the other: the call a closed fence, or the end a call that is under way. The cost is at
//! the end alone. Where the kernel has no membarrier(2), the end works only if the process has no other
//! thread.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, TryLockError};

use libfabric_sys::{FI_EAGAIN, FI_EOTHER};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::errno::{Errno, Result};

/// What gives the state to one call at a time.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Held by each call, unless the client promises that it makes one call at a time. It counts them.
    lock: Option<Mutex<u64>>,
    /// Whether a call is under way. With a lock it means nothing, and is written all the same, which costs
    /// less than a branch.
    busy: AtomicBool,
}

/// A turn: by the lock, where there is one.
pub(crate) type Turn<'a> = Option<MutexGuard<'a, u64>>;

impl Turns {
    /// Turns by a lock.
    pub(crate) fn by_lock() -> Self {
        Self {
            lock: Some(Mutex::default()),
            busy: AtomicBool::new(false),
        }
    }

    /// Turns by the client's promise. The process is registered for the barrier.
    pub(crate) fn by_promise() -> Self {
        // Where this fails, the barrier does.
        let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        Self {
            lock: None,
            busy: AtomicBool::new(false),
        }
    }

    /// A call begins. The fence is to be read after it.
    #[inline(always)]
    pub(crate) fn begin(&self) {
        self.busy.store(true, Ordering::Relaxed);
        // The compiler keeps the order; that the processor may not is what the barrier is for.
        compiler_fence(Ordering::SeqCst);
    }

    /// A call has ended, or was refused.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// The turn of a call that has begun: waits for the lock, where there is one. `check` reads the fence
    /// again after that.
    ///
    /// # Errors
    /// Those of `check`; `FI_EOTHER` where the call before has panicked.
    #[inline(always)]
    pub(crate) fn take(&self, check: impl FnOnce() -> Result<()>) -> Result<Turn<'_>> {
        let Some(lock) = &self.lock else {
            return Ok(None);
        };
        let mut guard = lock.lock().map_err(|_| Errno(FI_EOTHER))?;
        check()?;
        *guard = guard.wrapping_add(1);
        Ok(Some(guard))
    }

    /// As [`Turns::take`], for what the domain's own thread does, which is no call.
    ///
    /// # Errors
    /// Those of [`Turns::take`]; `FI_EOTHER` where there is no lock.
    pub(crate) fn take_aside(&self, check: impl FnOnce() -> Result<()>) -> Result<Turn<'_>> {
        let lock = self.lock.as_ref().ok_or(Errno(FI_EOTHER))?;
        let guard = lock.lock().map_err(|_| Errno(FI_EOTHER))?;
        check()?;
        Ok(Some(guard))
    }

    /// How many calls have had the lock; it may wrap. `None` where there is none, and where one has panicked.
    pub(crate) fn made(&self) -> Option<u64> {
        Some(*self.lock.as_ref()?.lock().ok()?)
    }

    /// As [`Turns::take`], for a call that does not wait.
    ///
    /// # Errors
    /// Those of [`Turns::take`]; `FI_EAGAIN` where another call has the lock.
    #[inline(always)]
    pub(crate) fn try_take(&self, check: impl FnOnce() -> Result<()>) -> Result<Turn<'_>> {
        let Some(lock) = &self.lock else {
            return Ok(None);
        };
        let mut guard = lock.try_lock().map_err(|error| match error {
            TryLockError::Poisoned(_) => Errno(FI_EOTHER),
            TryLockError::WouldBlock => Errno(FI_EAGAIN),
        })?;
        check()?;
        *guard = guard.wrapping_add(1);
        Ok(Some(guard))
    }

    /// Has every call that began before the fence was closed be seen by [`Turns::last`]. Returns whether that
    /// is sure.
    pub(crate) fn find_calls(&self) -> bool {
        self.lock.is_some() || barrier() || is_single_threaded()
    }

    /// The turn of the end of the process, if no call is under way. To be called after the fence was closed,
    /// and [`Turns::find_calls`] has returned `true`.
    pub(crate) fn last(&self) -> Option<Turn<'_>> {
        match &self.lock {
            Some(lock) => lock.try_lock().ok().map(Some),
            None if self.busy.load(Ordering::Acquire) => None,
            None => Some(None),
        }
    }
}

/// Executes a barrier on every core that runs a thread of this process. Returns whether it could.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    let done = membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    fence(Ordering::SeqCst);
    done
}

/// Whether the process is known to have no other thread.
pub(crate) fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Calls of one thread beside an end in another one, as `Domain` makes them. Returns whether the two were
    /// ever inside at once.
    fn meet(turns: &Turns) -> bool {
        let (closed, inside, both) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
        let work = || {
            // No read-modify-write, which would order what is tried here.
            if inside.load(Ordering::Relaxed) != 0 {
                both.store(true, Ordering::Relaxed);
            }
            inside.store(1, Ordering::Relaxed);
            std::hint::spin_loop();
            inside.store(0, Ordering::Relaxed);
        };
        let call = || {
            turns.begin();
            let check = || match closed.load(Ordering::Relaxed) {
                true => Err(Errno(FI_EAGAIN)),
                false => Ok(()),
            };
            let entered = check().and_then(|()| turns.take(check));
            if entered.is_ok() {
                work();
            }
            let enters = entered.is_ok();
            drop(entered);
            turns.end();
            enters
        };
        std::thread::scope(|scope| {
            scope.spawn(|| while call() {});
            std::thread::yield_now();
            closed.store(true, Ordering::Relaxed);
            if turns.find_calls() {
                let turn = loop {
                    match turns.last() {
                        Some(turn) => break turn,
                        None => std::thread::yield_now(),
                    }
                };
                work();
                drop(turn);
            }
        });
        both.load(Ordering::Relaxed)
    }

    #[test]
    fn no_call_is_inside_with_the_end_of_the_process() {
        for _ in 0..30 {
            assert!(!meet(&Turns::by_promise()) && !meet(&Turns::by_lock()));
        }
    }

    #[test]
    fn the_end_of_the_process_has_its_turn_when_no_call_is_under_way() {
        for turns in [Turns::by_promise(), Turns::by_lock()] {
            turns.begin();
            let turn = turns.take(|| Ok(())).unwrap();
            assert!(turns.last().is_none());
            drop(turn);
            turns.end();
            assert!(turns.last().is_some());
        }
    }

    #[test]
    fn a_call_that_has_waited_for_the_lock_looks_at_the_fence_again() {
        let turns = Turns::by_lock();
        let refused = turns.take(|| Err(Errno(FI_EOTHER))).map(drop);
        assert_eq!(refused, Err(Errno(FI_EOTHER)));
        let held = turns.try_take(|| Ok(())).unwrap();
        assert_eq!(turns.try_take(|| Ok(())).map(drop), Err(Errno(FI_EAGAIN)));
        drop(held);
        // One whose holder has panicked, before the fence is closed.
        let _ = std::thread::scope(|scope| {
            let panics = || {
                let _turn = turns.take(|| Ok(()));
                panic!("on purpose");
            };
            scope.spawn(panics).join()
        });
        for refused in [
            turns.take(|| Ok(())).map(drop),
            turns.try_take(|| Ok(())).map(drop),
        ] {
            assert_eq!(refused, Err(Errno(FI_EOTHER)));
        }
        assert!(turns.last().is_none());
    }

    #[test]
    fn calls_are_found_where_the_kernel_has_the_barrier() {
        let has = rustix::thread::membarrier_query();
        let has = has.contains(rustix::thread::MembarrierQuery::PRIVATE_EXPEDITED);
        assert_eq!(Turns::by_promise().find_calls(), has || is_single_threaded());
        assert!(Turns::by_lock().find_calls());
    }
}

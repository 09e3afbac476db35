//! Automatic progress (`FI_PROGRESS_AUTO`): the thread of a domain that makes progress while the client makes
//! no calls. It is that of every C library of ours ([`doorbell_job::takeover`]).
//!
//! The client may promise one call at a time, but the thread promises nothing: such a domain has a lock.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_job::takeover::{Calls, Manner, Progress, Takeover};
use libfabric_sys::{FI_EAGAIN, FI_LOG_DOMAIN};

use crate::domain::{Domain, State};
use crate::errno::{Errno, Result};
use crate::log;
use crate::sleep::Nap;

/// The name of the thread, and of what it does, in the log.
const NAME: &str = "doorbell-auto";

/// What a domain with automatic progress has beside its state.
#[derive(Debug, Default)]
pub(crate) struct Auto {
    thread: Mutex<Option<Takeover>>,
    /// Calls that wait: they make progress themselves.
    waiting: AtomicU32,
    stop: AtomicBool,
}

/// A call that waits, for as long as it is there.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Auto);

impl<'a> Waiting<'a> {
    fn begin(auto: &'a Auto) -> Self {
        auto.waiting.fetch_add(1, Ordering::SeqCst);
        Self(auto)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(thread) = &*self.0.thread()
        {
            thread.waits_have_ended();
        }
    }
}

impl Auto {
    fn thread(&self) -> MutexGuard<'_, Option<Takeover>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A domain, for its thread.
struct Charge(*const Domain);

// SAFETY: domains may be used by all threads.
unsafe impl Send for Charge {}

impl Charge {
    fn domain(&self) -> &Domain {
        // SAFETY: the domain's close joins the thread before it frees the domain. Where that does not come so
        // far, and at the end of the process, the domain stays where it is.
        unsafe { &*self.0 }
    }

    /// Works on the state; nothing where the fence is closed, or a call has panicked.
    fn work<R>(&self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut result = None;
        let _: c_int = self.domain().run_aside(NAME, |state| {
            result = Some(work(state));
            Ok(0)
        });
        result
    }
}

impl Progress for Charge {
    fn calls(&self) -> Option<Calls> {
        let domain = self.domain();
        let auto = domain.auto()?;
        if auto.stop.load(Ordering::SeqCst) {
            return None;
        }
        Some(Calls {
            made: domain.calls_made()?,
            waits: auto.waiting.load(Ordering::SeqCst) > 0,
        })
    }

    fn keep(&self) {
        self.work(|state| {
            // A call that sleeps has a timer for it.
            if !state.is_armed() {
                state.keep_member();
            }
        });
    }

    fn look(&self) -> usize {
        let found = self.work(|state| {
            // A client that sleeps on its own descriptors is left asleep: nothing has come.
            !state.is_armed() && state.advance()
        });
        usize::from(found.unwrap_or(false))
    }

    fn sleep(&self) -> bool {
        let prepared = self.work(|state| {
            let auto = self.domain().auto()?;
            let is_over = auto.stop.load(Ordering::SeqCst) || auto.waiting.load(Ordering::SeqCst) > 0;
            if is_over { None } else { state.nap() }
        });
        prepared.flatten().map(Nap::sleep).is_some()
    }
}

impl Domain {
    /// Starts the domain's thread, where progress is automatic.
    ///
    /// # Errors
    /// Those of the system, which has no thread or no descriptor left.
    pub(crate) fn start_thread(&self, manner: Manner) -> Result<()> {
        let Some(auto) = self.auto() else {
            return Ok(());
        };
        let answer: c_int = self.run("fi_domain", |state| state.make_thread_bell().map(|()| 0));
        if answer < 0 {
            return Err(Errno(-answer));
        }
        let thread = Takeover::start(NAME, manner, Charge(self)).map_err(|error| {
            log::warn(
                FI_LOG_DOMAIN,
                &format!(
                    "fi_domain: no thread for FI_PROGRESS_AUTO: {error}; raise `ulimit -u`, leave \
                     FI_DOORBELL_CORE away, or request FI_PROGRESS_MANUAL"
                ),
            );
            Errno(error.raw_os_error().unwrap_or(FI_EAGAIN))
        })?;
        *auto.thread() = Some(thread);
        Ok(())
    }

    /// Ends the thread, where there is one, and waits for its end.
    pub(crate) fn stop_thread(&self) {
        let Some(auto) = self.auto() else {
            return;
        };
        auto.stop.store(true, Ordering::SeqCst);
        // A thread that is about to sleep sees it, since both have the lock.
        let _: c_int = self.run("fi_close of a domain", |state| {
            state.wake_thread();
            Ok(0)
        });
        let thread = auto.thread().take();
        if let Some(thread) = thread {
            thread.join();
        }
    }

    /// Notes that a call waits, which makes progress itself.
    pub(crate) fn note_waiting(&self) -> Option<Waiting<'_>> {
        // In a child of a fork, another thread of the parent may have had the lock that its end takes.
        self.auto().filter(|_| self.may_run()).map(Waiting::begin)
    }
}

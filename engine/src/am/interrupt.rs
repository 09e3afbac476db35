//! SIGINT as the end of a job, where that was asked for: a flag for each job that lives, and nothing else.
//!
//! The first signal sets the flags. What follows does what it does without a handler: a second signal, for a rank that computes
//! looks at no flag, and any once no such job is left. A process keeps its handler for good, so all jobs share one that says so.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::signals::{self, Installed};
use rustix::process::Signal;

const SIGINT: i32 = Signal::INT.as_raw();

/// The jobs of this process that SIGINT ends in order.
struct Jobs {
    live: usize,
    /// The next signal ends the process. Made with the first job.
    over: Option<Arc<AtomicBool>>,
}

static JOBS: Mutex<Jobs> = Mutex::new(Jobs { live: 0, over: None });

fn jobs() -> MutexGuard<'static, Jobs> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One job's share of SIGINT, until it is dropped.
pub(super) struct Interrupt(Installed);

impl Interrupt {
    /// Has SIGINT set this flag; a process that ignores SIGINT goes on ignoring it.
    ///
    /// # Errors
    /// When the system installs no handler.
    pub(super) fn open(set: &Arc<AtomicBool>) -> io::Result<Self> {
        let mut jobs = jobs();
        let over = match &jobs.over {
            Some(over) => Arc::clone(over),
            None => {
                let over = Arc::new(AtomicBool::new(false));
                // Handlers run in this order: the signal that says that the next one counts is not that one.
                signals::default_when(SIGINT, &over)?;
                signals::set_flag(SIGINT, &over)?;
                jobs.over = Some(Arc::clone(&over));
                over
            }
        };
        let installed = signals::set_flag(SIGINT, set)?;
        if jobs.live == 0 {
            over.store(false, Ordering::SeqCst);
        }
        jobs.live += 1;
        Ok(Self(installed))
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut jobs = jobs();
        jobs.live -= 1;
        if let (0, Some(over)) = (jobs.live, &jobs.over) {
            over.store(true, Ordering::SeqCst);
        }
        signals::remove(self.0.take());
    }
}

//! SIGINT as the end of a job, where that was asked for: a flag for each job that lives, and nothing else.
//!
//! The first signal sets the flags. What follows does what it does without a handler: a second signal, for a rank that computes
//! looks at no flag, and any once no such job is left. A process keeps its handler for good, so all jobs share one that says so.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::SIGINT;
use signal_hook::{SigId, flag, low_level};

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
pub(super) struct Interrupt(SigId);

impl Interrupt {
    /// Has SIGINT set this flag.
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
                flag::register_conditional_default(SIGINT, Arc::clone(&over))?;
                flag::register(SIGINT, Arc::clone(&over))?;
                jobs.over = Some(Arc::clone(&over));
                over
            }
        };
        let id = flag::register(SIGINT, Arc::clone(set))?;
        if jobs.live == 0 {
            over.store(false, Ordering::SeqCst);
        }
        jobs.live += 1;
        Ok(Self(id))
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut jobs = jobs();
        jobs.live -= 1;
        if let (0, Some(over)) = (jobs.live, &jobs.over) {
            over.store(true, Ordering::SeqCst);
        }
        low_level::unregister(self.0);
    }
}

//! SIGINT as the end of a job, for jobs that enable it: a flag for each such job, and nothing else.
//!
//! The first signal sets the flags. Any further one has its default effect: a second signal, since a rank
//! that computes checks no flag, and every signal once no such job is left. A process keeps its handler for
//! good, so all jobs share one flag that enables the default effect.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::signals::{self, Installed};
use rustix::process::Signal;

const SIGINT: i32 = Signal::INT.as_raw();

/// The jobs of this process that end in order at SIGINT.
struct Jobs {
    live: usize,
    /// Whether the next signal ends the process. Made with the first job.
    over: Option<Arc<AtomicBool>>,
}

static JOBS: Mutex<Jobs> = Mutex::new(Jobs { live: 0, over: None });

fn jobs() -> MutexGuard<'static, Jobs> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registration of one job's flag for SIGINT, until it is dropped.
pub(super) struct Interrupt(Installed);

impl Interrupt {
    /// Makes SIGINT set this flag. A process that ignores SIGINT goes on ignoring it.
    ///
    /// # Errors
    /// When the system installs no handler.
    pub(super) fn open(set: &Arc<AtomicBool>) -> io::Result<Self> {
        let mut jobs = jobs();
        let over = match &jobs.over {
            Some(over) => Arc::clone(over),
            None => {
                let over = Arc::new(AtomicBool::new(false));
                // Handlers run in this order, so the signal that sets `over` does not itself end the process.
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

//! The launcher's own sentences, written by a thread of their own: a standard error that is not read must
//! not keep the launcher from ending the job.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::out;
use crate::run::prefix::Unfinished;

/// A sentence waits this long for output that is being written; if it takes longer, that is not read.
const TURN: Duration = Duration::from_millis(250);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Which lines of ranks are unfinished, for all threads that write.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Unfinished>>);

impl Shared {
    /// Waits for the current writer.
    pub(super) fn lock(&self) -> MutexGuard<'_, Unfinished> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits only until then.
    fn lock_until(&self, until: Instant) -> Option<MutexGuard<'_, Unfinished>> {
        loop {
            match self.0.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            }
        }
    }
}

/// Where sentences are left to be written.
#[derive(Debug)]
pub(super) struct Sentences {
    /// `None` when there are no more to come.
    to: Option<Sender<String>>,
    /// Closed when all are written.
    written: Receiver<()>,
    unfinished: Shared,
}

impl Sentences {
    /// Starts the thread.
    pub(super) fn begin() -> io::Result<Self> {
        let (to, texts) = channel::<String>();
        let (open, written) = channel::<()>();
        let unfinished = Shared(Arc::new(Mutex::new(Unfinished::here())));
        let shared = unfinished.clone();
        let thread = std::thread::Builder::new().name("sentences".to_owned());
        thread.spawn(move || {
            let _open = open;
            texts.into_iter().for_each(|text| write(&shared, &text));
        })?;
        Ok(Self {
            to: Some(to),
            written,
            unfinished,
        })
    }

    /// What ranks have not finished on this process's outputs.
    pub(super) fn unfinished(&self) -> Shared {
        self.unfinished.clone()
    }

    /// Leaves a text to be written, and returns at once. An empty one only clears what is to be overwritten.
    pub(super) fn say(&self, text: String) {
        if let Some(to) = &self.to {
            // The thread lives as long as this.
            let _ = to.send(text);
        }
    }

    /// Waits until all are written, or for this long.
    pub(super) fn end(&mut self, limit: Duration) {
        self.to = None;
        let _ = self.written.recv_timeout(limit);
    }
}

fn write(unfinished: &Shared, text: &str) {
    // Held while the sentence is written: output begins behind it.
    let mut turn = unfinished.lock_until(Instant::now() + TURN);
    if let Some(unfinished) = &mut turn {
        unfinished.end();
    }
    // A rank may have shown something there that was to be overwritten.
    out::pass("");
    if !text.is_empty() {
        out::say(text);
    }
}

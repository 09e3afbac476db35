//! Writes the launcher's own messages in a thread of its own: a standard error that is not read must not keep
//! the launcher from ending the job.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::console;
use crate::run::prefix::Unfinished;

/// How long a message waits for output that is being written; if it takes longer, that output is not being
/// read.
const TURN: Duration = Duration::from_millis(250);
/// Interval between two attempts.
const LOOK: Duration = Duration::from_millis(1);

/// The unfinished lines of ranks, shared by all threads that write.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Unfinished>>);

impl Shared {
    /// Waits for the current writer.
    pub(super) fn lock(&self) -> MutexGuard<'_, Unfinished> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the current writer until a deadline.
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

/// The queue of messages to the standard error.
#[derive(Debug)]
pub(super) struct Sentences {
    /// `None` when there will be no more.
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

    /// Returns the unfinished lines on this process's outputs.
    pub(super) fn unfinished(&self) -> Shared {
        self.unfinished.clone()
    }

    /// Queues a text, without waiting. An empty one only clears what is to be overwritten.
    pub(super) fn say(&self, text: String) {
        if let Some(to) = &self.to {
            // The thread lives as long as this.
            let _ = to.send(text);
        }
    }

    /// Waits until all are written, at most this long.
    pub(super) fn end(&mut self, limit: Duration) {
        self.to = None;
        let _ = self.written.recv_timeout(limit);
    }
}

fn write(unfinished: &Shared, text: &str) {
    // Held while the message is written, so that output follows it.
    let mut turn = unfinished.lock_until(Instant::now() + TURN);
    if let Some(unfinished) = &mut turn {
        unfinished.end();
    }
    // A rank may have shown text that was to be overwritten.
    console::pass("");
    if !text.is_empty() {
        console::say(text);
    }
}

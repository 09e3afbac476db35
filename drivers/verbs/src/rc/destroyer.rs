//! Destroys the queue pairs of connections that are over, in a thread of its own: the kernel may wait until
//! the last packet of one has left the interface, which lasts while the interface is held back.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::link::Link;
use crate::sys::Requests;

/// How long the end of a rail waits for what is being destroyed. What takes longer goes on without it.
#[cfg(not(test))]
const PATIENCE: Duration = Duration::from_millis(100);
/// Tests count objects, on hosts whose threads may have to wait for long.
#[cfg(test)]
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue pair in error, with what its requests name. It is dropped, and has no other use.
pub(crate) enum Over {
    /// Of a connection.
    Messages(#[allow(dead_code)] Box<Link>),
    /// Of one-sided operations, and what marks that it is destroyed.
    OneSided(#[allow(dead_code)] Requests, #[allow(dead_code)] Mark),
}

/// Whether a queue pair is destroyed: until then, a device may write where its reads land.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destroyed(Arc<AtomicBool>);

impl Destroyed {
    /// Whether it is.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// What sets it when it is dropped, behind the queue pair.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.clone())
    }
}

/// Marks that a queue pair is destroyed.
pub(crate) struct Mark(Destroyed);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

/// The thread, once there was something to destroy.
#[derive(Default)]
pub(crate) struct Destroyer {
    running: Option<Running>,
}

struct Running {
    queue: Sender<Over>,
    thread: JoinHandle<()>,
    /// What it was given and has not destroyed yet.
    left: Arc<AtomicUsize>,
    /// The process that has the thread.
    process: u32,
}

impl Destroyer {
    /// Destroys a queue pair that is in error, some time soon.
    pub(crate) fn take(&mut self, over: Over) {
        // These libraries have no locks then.
        let is_single = |name| std::env::var_os(name).is_some_and(|value| value != "0");
        if is_single("MLX5_SINGLE_THREADED") || is_single("MLX4_SINGLE_THREADED") {
            return;
        }
        if self.running.is_none() {
            self.running = Running::start();
        }
        // Without a thread of this process, it is destroyed here.
        if let Some(running) = self.running.as_ref().filter(|running| running.is_ours()) {
            running.left.fetch_add(1, Ordering::Relaxed);
            if running.queue.send(over).is_err() {
                running.left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether everything that it was given is destroyed.
    pub(crate) fn is_idle(&self) -> bool {
        let running = self.running.as_ref().filter(|running| running.is_ours());
        running.is_none_or(|running| running.left.load(Ordering::Acquire) == 0)
    }
}

impl Running {
    fn start() -> Option<Self> {
        let (queue, received) = channel::<Over>();
        let left = Arc::new(AtomicUsize::new(0));
        let left_there = Arc::clone(&left);
        let thread = thread::Builder::new().name("verbs-destroyer".to_owned());
        let thread = thread.spawn(move || {
            for over in received {
                drop(over);
                left_there.fetch_sub(1, Ordering::Release);
            }
        });
        Some(Self {
            queue,
            thread: thread.ok()?,
            left,
            process: process::id(),
        })
    }

    fn is_ours(&self) -> bool {
        self.process == process::id()
    }
}

impl Destroyer {
    /// Waits until everything is destroyed, if that is soon.
    pub(crate) fn finish(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        // A child of `fork` does not have the thread, which may have had a lock of the queue.
        if !running.is_ours() {
            return std::mem::forget(running);
        }
        drop(running.queue);
        let start = Instant::now();
        while !running.thread.is_finished() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Destroyer {
    fn drop(&mut self) {
        self.finish();
    }
}

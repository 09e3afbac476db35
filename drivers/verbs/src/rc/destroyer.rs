//! Destroys the queue pairs of connections that are over, in a thread of its own: the kernel may wait until
//! the last packet of one has left the interface, which lasts while the interface is held back.

use std::process;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::link::Link;

/// How long the end of a rail waits for what is being destroyed. What takes longer goes on without it.
#[cfg(not(test))]
const PATIENCE: Duration = Duration::from_millis(100);
/// Tests count objects, on hosts whose threads may have to wait for long.
#[cfg(test)]
const PATIENCE: Duration = Duration::from_secs(10);

/// The thread, once there was something to destroy.
#[derive(Default)]
pub(crate) struct Destroyer {
    running: Option<Running>,
}

struct Running {
    links: Sender<Link>,
    thread: JoinHandle<()>,
    /// The process that has the thread.
    process: u32,
}

impl Destroyer {
    /// Destroys a queue pair that is in error, some time soon.
    pub(crate) fn take(&mut self, link: Link) {
        if self.running.is_none() {
            self.running = Running::start();
        }
        if let Some(running) = &self.running {
            // Without a thread, it is destroyed here.
            drop(running.links.send(link));
        }
    }
}

impl Running {
    fn start() -> Option<Self> {
        let (links, received) = channel();
        let thread = thread::Builder::new().name("verbs-destroyer".to_owned());
        let thread = thread.spawn(move || received.into_iter().for_each(drop::<Link>));
        Some(Self {
            links,
            thread: thread.ok()?,
            process: process::id(),
        })
    }
}

impl Destroyer {
    /// Waits until everything is destroyed, if that is soon.
    pub(crate) fn finish(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.links);
        // A child of `fork` does not have the thread.
        if running.process != process::id() {
            return;
        }
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

//! The progress thread: it runs a core and its transports, and does nothing else.
//!
//! ```text
//!  caller ── Request ──► mailbox (bounded)          thread `doorbell-oob`, a tokio runtime of its own
//!                                        ▼
//!            ┌──────────────── Core (node) ────────────────┐
//!            │ Command ▼                         ▲ Event   │   one turn: the mailbox, the clock, the events
//!            │   Carrier: tcp     Carrier: rail  …         │   of the transports, and all that follows
//!            └─────────────────────────────────────────────┘
//!                       sleeps in epoll │ or polls, on a core of its own
//! ```
//!
//! It shares nothing with the progress of messages over the ranks' rails: neither ever waits for the other. A
//! turn does a bounded amount of each job. By default the thread sleeps in the kernel when there is nothing
//! to do; with [`Progress::Spin`] it never does, which saves the time to wake a thread at the cost of a core.

mod turn;

use std::io;
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::cores::{self, CoreSet};
use doorbell_fabric::time::Time;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, channel};

use crate::error::OobError;
use crate::lines::Clock;
use crate::transport::{Command, Event, TransportId};

/// The name of the progress thread.
pub const THREAD: &str = "doorbell-oob";

/// The core: it decides which peers are called over which path, and what happens to messages.
pub trait Core: Send + 'static {
    /// A request of a caller.
    type Request: Send + 'static;
    /// Handles a request of a caller.
    fn request(&mut self, now: Time, request: Self::Request);
    /// Handles an event of a transport.
    fn handle(&mut self, now: Time, transport: TransportId, event: Event);
    /// Handles everything that is due.
    fn tick(&mut self, now: Time);
    /// Returns when [`Core::tick`] is due.
    fn next_deadline(&self) -> Option<Time>;
    /// Returns the next command to a transport.
    fn command(&mut self) -> Option<(TransportId, Command)>;
    /// Whether all requests of callers have been completed.
    fn is_quiet(&self) -> bool;
    /// Whether it has ended by itself.
    fn is_over(&self) -> bool {
        false
    }
    /// Ends the core: all pending requests are completed with an error.
    fn end(&mut self, now: Time);
}

/// A transport, as driven by the thread.
pub trait Carrier {
    /// Carries out a command of the core.
    fn command(&mut self, now: Time, command: Command);
    /// Returns the next event.
    fn event(&mut self) -> Option<Event>;
    /// Handles what has happened; the task of `cx` is woken by the next event.
    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()>;
    /// Handles everything that is due.
    fn tick(&mut self, now: Time);
    /// Returns when [`Carrier::tick`] is due.
    fn next_deadline(&self) -> Option<Time>;
    /// Closes everything once the queued data is written.
    fn leave(&mut self, now: Time);
    /// Whether everything is closed.
    fn is_quiet(&self) -> bool;
}

/// What the thread does when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It sleeps until there is something to do.
    #[default]
    Block,
    /// It polls: on this core of those that the process may use, or on any.
    Spin(Option<usize>),
}

/// The settings of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it sleeps or spins.
    pub progress: Progress,
    /// Capacity of the mailbox.
    pub mailbox: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            progress: Progress::Block,
            mailbox: 4096,
        }
    }
}

/// Creates the transports, in the order of their numbers, on the thread that will drive them.
pub type Carriers = Box<dyn FnOnce(Clock) -> Result<Vec<Box<dyn Carrier>>, OobError> + Send>;

/// A request that was not accepted, and why.
#[derive(Debug)]
pub enum Refused<A> {
    /// The mailbox is full.
    Full(A),
    /// The thread has ended.
    Ended(A),
}

enum Message<A> {
    Request(A),
    /// A request to end within this time.
    Finish(Duration),
}

/// The mailbox for the requests of callers, which never blocks.
#[derive(Debug)]
pub struct Mailbox<A>(Sender<Message<A>>);

impl<A> Clone for Mailbox<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A> std::fmt::Debug for Message<A> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Request(_) => "Request",
            Self::Finish(_) => "Finish",
        })
    }
}

impl<A: Send> Mailbox<A> {
    /// Puts a request into the mailbox.
    ///
    /// # Errors
    /// [`Refused`], with the request.
    pub fn put(&self, request: A) -> Result<(), Refused<A>> {
        self.0
            .try_send(Message::Request(request))
            .map_err(|error| match error {
                TrySendError::Full(Message::Request(request)) => Refused::Full(request),
                TrySendError::Closed(Message::Request(request)) => Refused::Ended(request),
                TrySendError::Full(Message::Finish(_)) | TrySendError::Closed(Message::Finish(_)) => {
                    unreachable!("a request was put in")
                }
            })
    }
}

/// The thread. Dropping it ends the thread at once and waits for it.
#[derive(Debug)]
pub struct Runner<A: Send + 'static> {
    mailbox: Mailbox<A>,
    thread: Option<JoinHandle<()>>,
    /// Set by the thread itself in order to end within this time.
    left: Arc<OnceLock<Duration>>,
}

impl<A: Send + 'static> Runner<A> {
    /// Starts the thread, and its transports; waits until they are ready. The thread is in the caller's
    /// network namespace.
    ///
    /// # Errors
    /// The errors of the transports; [`OobError::Thread`]; [`OobError::Setting`] for a processor core that
    /// this process may not use.
    pub fn start<C: Core<Request = A>>(
        settings: Settings,
        core: impl FnOnce(Clock) -> C + Send + 'static,
        carriers: Carriers,
    ) -> Result<Self, OobError> {
        let (put, mailbox) = channel(settings.mailbox.max(1));
        let (tell, told) = std_mpsc::channel();
        let left = Arc::new(OnceLock::new());
        let leaves = left.clone();
        let failed = |source| OobError::Thread {
            what: "the progress thread of the control plane",
            source,
        };
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                let runtime = match begin(settings.progress) {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(tell.send(Err(error))),
                };
                runtime.block_on(async {
                    let clock = Clock::start();
                    match carriers(clock) {
                        Ok(carriers) => {
                            let _ = tell.send(Ok(()));
                            let spin = settings.progress != Progress::Block;
                            turn::Turn::new(core(clock), carriers, (mailbox, leaves), clock, spin)
                                .run()
                                .await;
                        }
                        Err(error) => drop(tell.send(Err(error))),
                    }
                });
            })
            .map_err(failed)?;
        let runner = Self {
            mailbox: Mailbox(put),
            thread: Some(thread),
            left,
        };
        told.recv()
            .unwrap_or_else(|_| Err(failed(io::Error::other("it ended before it was ready"))))?;
        Ok(runner)
    }

    /// Returns the mailbox.
    #[must_use]
    pub fn mailbox(&self) -> Mailbox<A> {
        self.mailbox.clone()
    }

    /// Ends the thread: pending requests are carried out as far as possible within half of this time; then
    /// everything is closed, and queued data is written in the other half. Waits for the thread, unless it is
    /// called by it.
    pub fn finish(mut self, within: Duration) {
        self.stop(within);
    }

    fn stop(&mut self, within: Duration) {
        let Some(thread) = self.thread.take() else { return };
        if thread.thread().id() == std::thread::current().id() {
            // It can wait neither for itself nor for room in its own mailbox.
            let _ = self.left.set(within);
            return;
        }
        // The thread empties the mailbox, so there will be room; after its end, the request is pointless.
        let mut message = Message::Finish(within);
        while let Err(TrySendError::Full(back)) = self.mailbox.0.try_send(message) {
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

impl<A: Send + 'static> Drop for Runner<A> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Creates the runtime, on the requested core.
fn begin(progress: Progress) -> Result<tokio::runtime::Runtime, OobError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    if let Progress::Spin(core) = progress {
        if let Some(core) = core {
            pin(core)?;
        }
        // Every pass polls the sockets.
        builder.event_interval(1);
    }
    builder.enable_all().build().map_err(|source| OobError::Thread {
        what: "the event loop of the control plane",
        source,
    })
}

fn pin(core: usize) -> Result<(), OobError> {
    let allowed = cores::allowed();
    if allowed.contains(core) {
        return cores::bind(&CoreSet::from_iter([core])).map_err(|source| OobError::Thread {
            what: "the thread of the control plane on its core",
            source,
        });
    }
    Err(OobError::Setting {
        setting: "core",
        given: core.to_string(),
        reason: format!(
            "this process may not use that core, only {allowed} (`taskset -p` shows and changes them)"
        ),
    })
}

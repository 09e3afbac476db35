//! The progress thread: it runs a core and the transports that carry for it, and does nothing else.
//!
//! ```text
//!    caller ── Ask ──► mailbox (bounded) ──┐       thread `doorbell-oob`, a tokio runtime of its own
//!                                          ▼
//!              ┌──────────────── Core (node) ────────────────┐
//!              │ Command ▼                         ▲ Event   │     one turn: the mailbox, the clock, what the transports
//!              │   Carrier: tcp     Carrier: rail  …         │     have to tell, and all that follows from it
//!              └─────────────────────────────────────────────┘
//!                         sleeps in epoll │ or polls, on a core of its own
//! ```
//!
//! It shares nothing with the progress of messages over rails: neither ever waits for the other. A turn does a bounded
//! amount of each job. By default the thread sleeps in the kernel when there is nothing to do; with [`Progress::Spin`] it
//! never does, and answers sooner by the time that it takes to wake a thread, at the price of a core.

mod turn;

use std::io;
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, channel};

use crate::error::OobError;
use crate::net::{Clock, Tcp};
use crate::transport::{Command, Event, TransportId};

/// The name of the thread.
pub const THREAD: &str = "doorbell-oob";

/// What decides: who is spoken to, by which way, and what is done with what comes.
pub trait Core: Send + 'static {
    /// What a caller may want of it.
    type Ask: Send + 'static;
    /// A caller wants something.
    fn ask(&mut self, now: Time, ask: Self::Ask);
    /// A transport tells something.
    fn handle(&mut self, now: Time, transport: TransportId, event: Event);
    /// Looks at the time.
    fn tick(&mut self, now: Time);
    /// When [`Core::tick`] has something to do.
    fn next_deadline(&self) -> Option<Time>;
    /// What a transport is to do.
    fn command(&mut self) -> Option<(TransportId, Command)>;
    /// Whether all that callers have given it has ended.
    fn is_quiet(&self) -> bool;
    /// Whether it wants to end by itself.
    fn is_over(&self) -> bool {
        false
    }
    /// Ends: whoever waits for something is told.
    fn end(&mut self, now: Time);
}

/// A transport, as the thread drives it.
pub trait Carrier {
    /// Does what the core wants.
    fn command(&mut self, now: Time, command: Command);
    /// What happened next.
    fn event(&mut self) -> Option<Event>;
    /// Takes in what has happened; wakes the task of `cx` when something does.
    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()>;
    /// Looks at the time.
    fn tick(&mut self, now: Time);
    /// When [`Carrier::tick`] has something to do.
    fn next_deadline(&self) -> Option<Time>;
    /// Closes everything, when what was given to it has been written.
    fn leave(&mut self, now: Time);
    /// Whether nothing is left open.
    fn is_quiet(&self) -> bool;
}

impl Carrier for Tcp {
    fn command(&mut self, now: Time, command: Command) {
        self.command(now, command);
    }

    fn event(&mut self) -> Option<Event> {
        self.event()
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        self.poll(cx, now)
    }

    fn tick(&mut self, now: Time) {
        self.tick(now);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn leave(&mut self, now: Time) {
        self.leave(now);
    }

    fn is_quiet(&self) -> bool {
        self.is_quiet()
    }
}

/// What the thread does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Sleeps until there is.
    #[default]
    Block,
    /// Looks again at once: on this core, of those that the process may use, or on any.
    Spin(Option<usize>),
}

/// The settings of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sleep or spin.
    pub progress: Progress,
    /// What callers may have asked for that the thread has not looked at yet.
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

/// Makes the transports, in the order of their numbers, on the thread that will drive them.
pub type Carriers = Box<dyn FnOnce(Clock) -> Result<Vec<Box<dyn Carrier>>, OobError> + Send>;

/// What was not taken, and why.
#[derive(Debug)]
pub enum Refused<A> {
    /// The thread is behind: so much waits for it as is allowed.
    Full(A),
    /// The thread has ended.
    Ended(A),
}

enum Mail<A> {
    Ask(A),
    /// End, until then.
    Finish(Duration),
}

/// Where callers put what they want. It never waits.
#[derive(Debug)]
pub struct Door<A>(Sender<Mail<A>>);

impl<A> Clone for Door<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A> std::fmt::Debug for Mail<A> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Ask(_) => "Ask",
            Self::Finish(_) => "Finish",
        })
    }
}

impl<A: Send> Door<A> {
    /// Puts it into the mailbox.
    ///
    /// # Errors
    /// [`Refused`], with what was not taken.
    pub fn put(&self, ask: A) -> Result<(), Refused<A>> {
        self.0.try_send(Mail::Ask(ask)).map_err(|error| match error {
            TrySendError::Full(Mail::Ask(ask)) => Refused::Full(ask),
            TrySendError::Closed(Mail::Ask(ask)) => Refused::Ended(ask),
            TrySendError::Full(Mail::Finish(_)) | TrySendError::Closed(Mail::Finish(_)) => {
                unreachable!("an ask was put in")
            }
        })
    }
}

/// The thread. When it is dropped, it is ended at once, and waited for.
#[derive(Debug)]
pub struct Runner<A: Send + 'static> {
    door: Door<A>,
    thread: Option<JoinHandle<()>>,
    /// Said by the thread to itself: end, until then.
    left: Arc<OnceLock<Duration>>,
}

impl<A: Send + 'static> Runner<A> {
    /// Starts the thread, and on it the transports; waits until they are there. The network namespace is the caller's.
    ///
    /// # Errors
    /// Of the transports; [`OobError::Thread`]; [`OobError::Setting`] of a core that this process may not use.
    pub fn start<C: Core<Ask = A>>(
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
            door: Door(put),
            thread: Some(thread),
            left,
        };
        told.recv()
            .unwrap_or_else(|_| Err(failed(io::Error::other("it ended before it began"))))?;
        Ok(runner)
    }

    /// Where callers put what they want.
    #[must_use]
    pub fn door(&self) -> Door<A> {
        self.door.clone()
    }

    /// Ends: what callers have given is carried out first, as far as that is possible within half of this time; then
    /// everything is closed, and in the other half what was given to connections is written. Waits for the thread, unless
    /// it is the thread itself that calls this.
    pub fn finish(mut self, within: Duration) {
        self.stop(within);
    }

    fn stop(&mut self, within: Duration) {
        let Some(thread) = self.thread.take() else { return };
        if thread.thread().id() == std::thread::current().id() {
            // It cannot wait for itself, nor for room in its own mailbox.
            let _ = self.left.set(within);
            return;
        }
        // The thread empties the mailbox, so there is room soon; and when it has ended, nothing is to be said.
        let mut mail = Mail::Finish(within);
        while let Err(TrySendError::Full(back)) = self.door.0.try_send(mail) {
            mail = back;
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

/// Makes the runtime, on the core that was asked for.
fn begin(progress: Progress) -> Result<tokio::runtime::Runtime, OobError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    if let Progress::Spin(core) = progress {
        if let Some(core) = core {
            pin(core)?;
        }
        // Every pass looks at the sockets.
        builder.event_interval(1);
    }
    builder.enable_all().build().map_err(|source| OobError::Thread {
        what: "the event loop of the control plane",
        source,
    })
}

fn pin(core: usize) -> Result<(), OobError> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let found = allowed.iter().find(|id| id.id == core).copied();
    if let Some(found) = found {
        let mut set = CpuSet::new();
        set.set(found.id);
        return sched_setaffinity(None, &set).map_err(|errno| OobError::Thread {
            what: "the thread of the control plane on its core",
            source: errno.into(),
        });
    }
    let allowed: Vec<String> = allowed.iter().map(|id| id.id.to_string()).collect();
    Err(OobError::Setting {
        setting: "core",
        given: core.to_string(),
        reason: format!(
            "this process may not use that core; those that it may use are {} (`taskset -p` shows and changes them)",
            allowed.join(",")
        ),
    })
}

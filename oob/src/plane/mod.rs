//! The control plane for its users: [`Oob`], a handle that any thread may hold, and whose calls never block.
//!
//! ```text
//!  Oob::send ─► Completion  Oob::receive ─► Completion  Oob::inbox ─► Inbox Oob::broadcasts, events ─► Inbox
//!       │           ▲             │             ▲            │          ▲                                ▲
//!       ▼ mailbox   │             ▼             │            ▼          │ bounded                        │
//! ┌────────────────────────────────────────── progress thread ─────────────────────────────────────────────┐
//! │  core::Plane: node::Node, and who waits for what    transports: tcp::Tcp, a module for each NIC        │
//! │                                                                 rail::Rails, a module for each rail    │
//! └────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A request goes into a bounded mailbox, or is refused at once ([`Busy`]). Results go into a [`Completion`]
//! (to be waited for with a limit, or awaited), to a function that runs on the progress thread, or into an
//! [`Inbox`]. When an inbox is full its receive is cancelled: further messages wait in the node, whose window
//! closes, so that in the end the sender waits, and this process's memory does not grow.
//!
//! Nothing here is shared with the progress of messages over the ranks' rails: neither delays the other.
//!
//! # Functions on the progress thread
//! [`Oob::send_then`], [`Oob::receive_then`] and [`Oob::receive_each`] take functions that the progress
//! thread calls. They must not block: everything else waits for them. They may make requests, and may drop
//! the last handle. If one panics, the control plane of this process ends, and all pending operations with
//! it.
//! # The end
//! A job ends its control plane together, for example with a [gather](Oob::gather) of nothing: a process that
//! has ended looks to its peers like one that is lost. [`Oob::finish`], or dropping the last handle, closes
//! everything. So does the loss of the lifeline, unless [`Policy::Persist`](crate::config::Policy::Persist)
//! is configured; it is the last of the [events](Oob::events).
//!
//! ```
//! use std::time::Duration;
//!
//! use doorbell_oob::config::{Config, Transport};
//! use doorbell_oob::name::{Epoch, From, Name};
//! use doorbell_oob::lines::tcp;
//! use doorbell_oob::plane::Oob;
//!
//! let limit = Duration::from_secs(30);
//! // Two processes of a job, here both in one; they are reached over loopback, because no NICs are named.
//! let start = |rank| {
//!     let config = Config::new(Name::new(7, rank), Epoch(1), 2, vec![Transport::direct("tcp")]);
//!     Oob::start(config, tcp::Settings::default(), None, Default::default())
//! };
//! let (zero, one) = (start(0)?, start(1)?);
//! // A launcher carries the contacts from one to the other.
//! let contacts = [&zero, &one].map(|oob| oob.contact());
//! for contact in contacts {
//!     let contact = contact?.wait(limit).flatten().ok_or("no contact")?;
//!     zero.learn(vec![contact.clone()])?;
//!     one.learn(vec![contact])?;
//! }
//! zero.begin()?;
//! one.begin()?;
//!
//! let answer = one.receive(From::only(zero.name()), 200)?;
//! let sent = zero.send(one.name(), 200, b"hello".into(), None)?;
//! let message = answer.wait(limit).ok_or("nothing came")??;
//! assert_eq!(&*message.body, b"hello");
//! println!("{:?}", sent.wait(limit));
//! zero.finish(limit);
//! one.finish(limit);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod completion;
mod core;
mod inbox;
mod results;
mod stats;
mod transports;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::completion::Completion;
use self::completion::{Answer, promise};
use self::core::{Plane, Request};
pub use self::inbox::Inbox;
use self::inbox::Wants;
pub use self::results::{Busy, Counters, Gathered, Message, NotReceived, Received, Sent, Spread};
use self::stats::{Board, look};
pub use self::stats::{Carriage, Counted};
pub use self::transports::Carried;
use crate::bytes::Bytes;
use crate::config::Config;
use crate::contact::Contact;
use crate::error::OobError;
use crate::event::{Event, SendError};
use crate::key::JobKey;
use crate::lines::Clock;
use crate::name::{From, Name};
use crate::runner::{self, Mailbox, Refused, Runner};

/// Maximum number of events that wait to be taken.
const EVENTS: usize = 4096;

/// A handle to the control plane of this process, which can be copied. The control plane ends with
/// [`Oob::finish`], or when the last copy is dropped.
#[derive(Clone)]
pub struct Oob {
    mailbox: Mailbox<Request>,
    events: Inbox<Event>,
    broadcasts: Inbox<Message>,
    board: Board,
    runner: Arc<Mutex<Option<Runner<Request>>>>,
    name: Name,
}

/// Start and end.
impl Oob {
    /// Starts the control plane of a process: its thread, and its transports, which are those that `config`
    /// names, in the same order: the first is preferred, and each is direct or along the tree. The settings
    /// of `tcp` suffice for a configuration that names no other. They listen from here on; no peer is called
    /// before [`Oob::begin`].
    ///
    /// # Errors
    /// [`OobError::Setting`] for a configuration that names other transports, or a rank outside the job; the
    /// errors of [`Tcp::start`](crate::lines::tcp::Tcp::start),
    /// [`Rails::start`](crate::lines::rail::Rails::start) and [`Runner::start`].
    pub fn start(
        mut config: Config,
        carried: impl Into<Carried>,
        key: Option<JobKey>,
        settings: runner::Settings,
    ) -> Result<Self, OobError> {
        let carried = carried.into();
        carried.agree(&mut config)?;
        check(&config)?;
        let name = config.name;
        let board = Board::default();
        let events = Inbox::new(EVENTS, Wants::Nothing);
        let broadcasts = Inbox::new(config.unmatched_total, Wants::Nothing);
        let carriers = carried.carriers(&config, key, settings, &board);
        let told = (events.inner(), broadcasts.inner());
        let plane = move |clock: Clock| Plane::new(config, clock.now(), told);
        let runner = Runner::start(settings, plane, carriers)?;
        Ok(Self {
            mailbox: runner.mailbox(),
            events,
            broadcasts,
            board,
            runner: Arc::new(Mutex::new(Some(runner))),
            name,
        })
    }

    /// Returns the name of this process.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// Returns the addresses of this process; `None` after its end.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn contact(&self) -> Result<Completion<Option<Contact>>, Busy> {
        let (answer, completion) = promise(|| None);
        self.put(Request::Contact(answer))?;
        Ok(completion)
    }

    /// Passes on the addresses of other processes.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn learn(&self, contacts: Vec<Contact>) -> Result<(), Busy> {
        self.put(Request::Learn(contacts))
    }

    /// Requests the addresses of a process, through the tree. The answer is used, and reported as
    /// [`Event::Found`].
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn look_up(&self, name: Name) -> Result<(), Busy> {
        self.put(Request::LookUp(name))
    }

    /// Starts: looks for the parent in the tree, whose contact has to be known, or that of an ancestor.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn begin(&self) -> Result<(), Busy> {
        self.put(Request::Begin)
    }

    /// Ends the control plane for all copies of this handle: pending requests are carried out as far as
    /// possible in the first half of this time; then everything is closed. Waits for the thread; no socket
    /// and no thread is left. Called on the progress thread, it does not wait: the end follows when the
    /// function has returned.
    pub fn finish(&self, within: Duration) {
        let runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runner) = runner {
            runner.finish(within);
        }
    }
}

/// Messages between processes.
impl Oob {
    /// Sends a message, without copying it. It ends `within` this time, or the configured one.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn send(
        &self,
        to: Name,
        tag: u32,
        body: Bytes,
        within: Option<Duration>,
    ) -> Result<Completion<Sent>, Busy> {
        let (answer, completion) = promise(|| Err(SendError::Ended));
        self.put(Request::Send(to, tag, body, within, answer))?;
        Ok(completion)
    }

    /// Sends a message, and calls this function on the progress thread with the result.
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped then.
    pub fn send_then(
        &self,
        to: Name,
        tag: u32,
        body: Bytes,
        within: Option<Duration>,
        then: impl FnOnce(Sent) + Send + 'static,
    ) -> Result<(), Busy> {
        let answer = Answer::call(|| Err(SendError::Ended), then);
        self.put(Request::Send(to, tag, body, within, answer))
    }

    /// Cancels a send that has not ended: it ends as [`Status::Cancelled`](crate::event::Status::Cancelled).
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn give_up(&self, send: &Completion<Sent>) -> Result<(), Busy> {
        self.put(Request::GiveUp(send.same()))
    }

    /// Receives one message. [Cancel](Oob::cancel) the receive if it is no longer wanted: dropping the
    /// completion does not, and the message would be lost.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn receive(&self, from: From, tag: u32) -> Result<Completion<Received>, Busy> {
        let (answer, completion) = promise(|| Err(NotReceived::Ended));
        self.put(Request::Receive(from, tag, answer))?;
        Ok(completion)
    }

    /// Receives one message, and calls this function on the progress thread with it.
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped then.
    pub fn receive_then(
        &self,
        from: From,
        tag: u32,
        then: impl FnOnce(Received) + Send + 'static,
    ) -> Result<(), Busy> {
        let answer = Answer::call(|| Err(NotReceived::Ended), then);
        self.put(Request::Receive(from, tag, answer))
    }

    /// Receives all messages until [`Oob::cancel`], and calls this function on the progress thread with each.
    /// The completion reports whether the receive was posted.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn receive_each(
        &self,
        from: From,
        tag: u32,
        each: impl FnMut(Message) + Send + 'static,
    ) -> Result<Completion<Result<(), NotReceived>>, Busy> {
        let (answer, completion) = promise(|| Err(NotReceived::Ended));
        self.put(Request::Each(from, tag, Box::new(each), answer))?;
        Ok(completion)
    }

    /// Receives all messages into an inbox, until that is dropped: about `room` bytes of them (plus 64 each),
    /// and the rest when there is room. A full inbox also holds up everything that its senders send later,
    /// whatever the tag: a sender has one window.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn inbox(&self, from: From, tag: u32, room: usize) -> Result<Inbox<Message>, Busy> {
        let inbox = Inbox::new(room, Wants::More(self.mailbox.clone(), from, tag));
        self.put(Request::Inbox(from, tag, inbox.inner()))?;
        Ok(inbox)
    }

    /// Cancels the receive that was posted with exactly these senders and this tag.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn cancel(&self, from: From, tag: u32) -> Result<(), Busy> {
        self.put(Request::Cancel(from, tag))
    }
}

/// The collective operations: broadcasts and gathers.
impl Oob {
    /// Broadcasts to all ranks including this one, where it arrives in [`Oob::broadcasts`].
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn broadcast(&self, tag: u32, body: Bytes, within: Duration) -> Result<Completion<Spread>, Busy> {
        let (answer, completion) = promise(|| Err(SendError::Ended));
        self.put(Request::Broadcast(tag, body, within, answer))?;
        Ok(completion)
    }

    /// Returns the inbox of all broadcasts, in the same order at all ranks. If they are not taken, and as
    /// much waits as the limit for unreceived messages (`unmatched_total`) allows, the newest are dropped and
    /// counted ([`Inbox::missed`]).
    #[must_use]
    pub fn broadcasts(&self) -> Inbox<Message> {
        self.broadcasts.clone()
    }

    /// Takes part in an all-gather: all ranks use the same number, once in a job.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn gather(&self, id: u32, body: Bytes, within: Duration) -> Result<Completion<Gathered>, Busy> {
        let nothing = || Gathered {
            table: None,
            missing: Vec::new(),
        };
        let (answer, completion) = promise(nothing);
        self.put(Request::Gather(id, body, within, answer))?;
        Ok(completion)
    }
}

/// Events and reports.
impl Oob {
    /// Returns the inbox of events: peers lost or back, the lifeline, room for more, contacts found. If they
    /// are not taken, the newest are dropped and counted ([`Inbox::missed`]).
    #[must_use]
    pub fn events(&self) -> Inbox<Event> {
        self.events.clone()
    }

    /// Calls this function on the progress thread with each event from now on, before [`Oob::events`] gets
    /// it.
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped then.
    pub fn watch_events(&self, each: impl FnMut(&Event) + Send + 'static) -> Result<(), Busy> {
        self.put(Request::Watch(Box::new(each)))
    }

    /// Stops reporting events: for a process that is about to agree with the others on the end of the job,
    /// and does not regard their end as a loss.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn hush(&self) -> Result<(), Busy> {
        self.put(Request::Hush)
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn counters(&self) -> Result<Completion<Counters>, Busy> {
        let (answer, completion) = promise(Counters::default);
        let tcp = look(&self.board).tcp();
        self.put(Request::Counters(tcp, answer))?;
        Ok(completion)
    }

    /// Returns what each transport has carried, in their order, as of the thread's last turn.
    #[must_use]
    pub fn carriages(&self) -> Vec<Carriage> {
        look(&self.board).carriages.clone()
    }

    /// Returns problems of interest to a user: connects without an answer, differing keys, ports in
    /// use.
    #[must_use]
    pub fn troubles(&self) -> Vec<OobError> {
        look(&self.board).troubles.drain(..).collect()
    }

    /// Describes what is known about another process, for finding out why something waits.
    ///
    /// # Errors
    /// [`Busy`], when the mailbox is full or the thread has ended.
    pub fn explain(&self, name: Name) -> Result<Completion<String>, Busy> {
        let (answer, completion) = promise(|| Busy::Ended.to_string());
        self.put(Request::Explain(name, answer))?;
        Ok(completion)
    }

    fn put(&self, request: Request) -> Result<(), Busy> {
        self.mailbox.put(request).map_err(|refused| match refused {
            Refused::Full(_) => Busy::Full,
            Refused::Ended(_) => Busy::Ended,
        })
    }
}

impl std::fmt::Debug for Oob {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Oob({})", self.name)
    }
}

/// Checks a configuration.
fn check(config: &Config) -> Result<(), OobError> {
    if config.name.rank >= config.ranks {
        return Err(OobError::Setting {
            setting: "ranks",
            given: config.ranks.to_string(),
            reason: format!(
                "{} is outside the job: ranks are numbered from 0; give the size of the job",
                config.name
            ),
        });
    }
    Ok(())
}

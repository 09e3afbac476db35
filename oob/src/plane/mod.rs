//! The control plane as its users see it: [`Oob`], a handle that any thread may hold, and that nothing ever blocks.
//!
//! ```text
//!   Oob::send ─► Completion   Oob::receive ─► Completion   Oob::inbox ─► Inbox   Oob::broadcasts, events ─► Inbox
//!        │            ▲             │              ▲            │          ▲                        ▲
//!        ▼ mailbox    │             ▼              │            ▼          │ bounded                │
//!  ┌────────────────────────────────────────── progress thread ───────────────────────────────────────────────┐
//!  │  core::Plane: node::Node, and who waits for what       transports: net::Tcp, a module for each NIC        │
//!  │                                                                    rail::Rails, a module for each rail    │
//!  └──────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What a caller wants goes into a bounded mailbox, or is refused at once ([`Busy`]). What comes back goes into a
//! [`Completion`] (to be waited for with a limit, or as a future), to a function that runs on the progress thread, or into
//! an [`Inbox`]. A full inbox takes its receive back: what comes then waits in the node, whose window closes, so that in
//! the end the sender waits, and this process's memory does not grow.
//!
//! Nothing here is shared with the progress of messages over rails: a thread that polls rails, and stalls, delays nothing
//! here, nor the other way round.
//!
//! # Functions on the progress thread
//! [`Oob::send_then`], [`Oob::receive_then`] and [`Oob::receive_each`] take functions that the progress thread calls.
//! They must not wait: everything else waits for them meanwhile. They may ask for more, and they may let go of the last
//! handle. One that panics ends the control plane of this process; whoever waits for something is told.
//!
//! # The end
//! A job ends its control plane together, for example with a [gather](Oob::gather) of nothing: the peers of a process that
//! has ended cannot tell it from one that is lost. [`Oob::finish`], or the drop of the last handle, closes all that was
//! open. So does the loss of the lifeline, unless [`Policy::Persist`](crate::config::Policy::Persist) says otherwise; the
//! last of the [events](Oob::events) tells of it.
//!
//! ```
//! use std::time::Duration;
//!
//! use doorbell_oob::config::{Config, Transport};
//! use doorbell_oob::name::{Epoch, From, Name};
//! use doorbell_oob::net;
//! use doorbell_oob::plane::Oob;
//!
//! let limit = Duration::from_secs(30);
//! // Two processes of a job, here both in one; they are reached over loopback, because no NICs are named.
//! let start = |rank| {
//!     let config = Config::new(Name::new(7, rank), Epoch(1), 2, vec![Transport::direct("tcp")]);
//!     Oob::start(config, net::Settings::default(), None, Default::default())
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

mod transports;
mod completion;
mod core;
mod inbox;
mod results;
mod stats;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::transports::Carried;
pub use self::completion::Completion;
use self::completion::{Answer, promise};
use self::core::{Ask, Plane};
pub use self::inbox::Inbox;
use self::inbox::Wants;
pub use self::results::{Busy, Counters, Gathered, Message, NotReceived, Received, Sent, Spread};
use self::stats::{Board, look};
pub use self::stats::{Carriage, Counted};
use crate::bytes::Bytes;
use crate::config::Config;
use crate::contact::Contact;
use crate::error::OobError;
use crate::event::{Event, SendError};
use crate::key::JobKey;
use crate::name::{From, Name};
use crate::net::Clock;
use crate::runner::{self, Door, Refused, Runner};

/// Events that wait for whoever wants them, at most.
const EVENTS: usize = 4096;

/// A handle to the control plane of this process; copies are the same. It ends when [`Oob::finish`] is called, or the last
/// copy is dropped.
#[derive(Clone)]
pub struct Oob {
    door: Door<Ask>,
    events: Inbox<Event>,
    broadcasts: Inbox<Message>,
    board: Board,
    runner: Arc<Mutex<Option<Runner<Ask>>>>,
    name: Name,
}

/// Beginning and end.
impl Oob {
    /// Starts the control plane of a process: its thread, and its transports, which are those that `config` names, in the
    /// same order: the first is preferred, each is direct or along the tree. Settings of `tcp` alone will do for a
    /// configuration that names no other. They listen from here on; nobody is called before [`Oob::begin`].
    ///
    /// # Errors
    /// [`OobError::Setting`] of a configuration that names other transports, or a rank that the job does not have; those of
    /// [`Tcp::start`](crate::net::Tcp::start), [`Rails::start`](crate::rail::Rails::start) and [`Runner::start`].
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
            door: runner.door(),
            events,
            broadcasts,
            board,
            runner: Arc::new(Mutex::new(Some(runner))),
            name,
        })
    }

    /// Who this is.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// Where this process can be reached; `None` when it has ended.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn contact(&self) -> Result<Completion<Option<Contact>>, Busy> {
        let (answer, completion) = promise(|| None);
        self.put(Ask::Contact(answer))?;
        Ok(completion)
    }

    /// Says where others can be reached.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn learn(&self, contacts: Vec<Contact>) -> Result<(), Busy> {
        self.put(Ask::Learn(contacts))
    }

    /// Asks a process, through the tree, where it can be reached. The answer is used, and told as [`Event::Found`].
    ///
    /// # Errors
    /// [`Busy`].
    pub fn look_up(&self, name: Name) -> Result<(), Busy> {
        self.put(Ask::LookUp(name))
    }

    /// Begins: looks for the parent in the tree, whose contact has to be known, or that of an ancestor.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn begin(&self) -> Result<(), Busy> {
        self.put(Ask::Begin)
    }

    /// Ends the control plane for all copies of this handle: what was asked for is carried out in the first half of this
    /// time, as far as it can be; then all is closed. Waits for the thread; no socket and no thread is left. Called on the
    /// progress thread, it does not wait: the end comes when the function has returned.
    pub fn finish(&self, within: Duration) {
        let runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runner) = runner {
            runner.finish(within);
        }
    }
}

/// Messages from one to another.
impl Oob {
    /// Sends a message, which may be given to many: it is not copied. Ends `within` this time, or the configured one.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn send(
        &self,
        to: Name,
        tag: u32,
        body: Bytes,
        within: Option<Duration>,
    ) -> Result<Completion<Sent>, Busy> {
        let (answer, completion) = promise(|| Err(SendError::Ended));
        self.put(Ask::Send(to, tag, body, within, answer))?;
        Ok(completion)
    }

    /// The same; the end is told to this function, on the progress thread.
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped.
    pub fn send_then(
        &self,
        to: Name,
        tag: u32,
        body: Bytes,
        within: Option<Duration>,
        then: impl FnOnce(Sent) + Send + 'static,
    ) -> Result<(), Busy> {
        let answer = Answer::call(|| Err(SendError::Ended), then);
        self.put(Ask::Send(to, tag, body, within, answer))
    }

    /// Gives up a send that has not ended: it ends as [`Status::Cancelled`](crate::event::Status::Cancelled).
    ///
    /// # Errors
    /// [`Busy`].
    pub fn give_up(&self, send: &Completion<Sent>) -> Result<(), Busy> {
        self.put(Ask::GiveUp(send.same()))
    }

    /// Receives one message. Whoever does not want it any more [cancels](Oob::cancel) it: to drop the completion does not,
    /// and the message would be lost.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn receive(&self, from: From, tag: u32) -> Result<Completion<Received>, Busy> {
        let (answer, completion) = promise(|| Err(NotReceived::Ended));
        self.put(Ask::Receive(from, tag, answer))?;
        Ok(completion)
    }

    /// The same; it is told to this function, on the progress thread.
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped.
    pub fn receive_then(
        &self,
        from: From,
        tag: u32,
        then: impl FnOnce(Received) + Send + 'static,
    ) -> Result<(), Busy> {
        let answer = Answer::call(|| Err(NotReceived::Ended), then);
        self.put(Ask::Receive(from, tag, answer))
    }

    /// Receives all messages, until [`Oob::cancel`]: each is told to this function, on the progress thread. The completion
    /// says whether it was posted.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn receive_each(
        &self,
        from: From,
        tag: u32,
        each: impl FnMut(Message) + Send + 'static,
    ) -> Result<Completion<Result<(), NotReceived>>, Busy> {
        let (answer, completion) = promise(|| Err(NotReceived::Ended));
        self.put(Ask::Each(from, tag, Box::new(each), answer))?;
        Ok(completion)
    }

    /// Receives all messages into an inbox, until that is dropped; about `room` bytes of them (and 64 for
    /// each), and the rest when there is room. What is kept out of a full inbox keeps out all that its
    /// senders send after it, whatever the tag: a sender has one window.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn inbox(&self, from: From, tag: u32, room: usize) -> Result<Inbox<Message>, Busy> {
        let inbox = Inbox::new(room, Wants::More(self.door.clone(), from, tag));
        self.put(Ask::Inbox(from, tag, inbox.inner()))?;
        Ok(inbox)
    }

    /// Takes a receive back: the one that was posted with exactly these.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn cancel(&self, from: From, tag: u32) -> Result<(), Busy> {
        self.put(Ask::Cancel(from, tag))
    }
}

/// Messages to all.
impl Oob {
    /// Sends something to all ranks, this one included, where it comes out of [`Oob::broadcasts`].
    ///
    /// # Errors
    /// [`Busy`].
    pub fn broadcast(&self, tag: u32, body: Bytes, within: Duration) -> Result<Completion<Spread>, Busy> {
        let (answer, completion) = promise(|| Err(SendError::Ended));
        self.put(Ask::Broadcast(tag, body, within, answer))?;
        Ok(completion)
    }

    /// The broadcasts of all ranks: in the same order everywhere. When nobody takes them, and as much waits as may wait of
    /// messages that nobody has received (`unmatched_total`), the newest are dropped and counted ([`Inbox::missed`]).
    #[must_use]
    pub fn broadcasts(&self) -> Inbox<Message> {
        self.broadcasts.clone()
    }

    /// Takes part in an all-gather: all ranks name the same number, which is used once in a job.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn gather(&self, id: u32, body: Bytes, within: Duration) -> Result<Completion<Gathered>, Busy> {
        let nothing = || Gathered {
            table: None,
            missing: Vec::new(),
        };
        let (answer, completion) = promise(nothing);
        self.put(Ask::Gather(id, body, within, answer))?;
        Ok(completion)
    }
}

/// What happens.
impl Oob {
    /// Peers that are lost or come back, the lifeline, room for more, contacts that were found. When nobody takes them, the
    /// newest are dropped and counted ([`Inbox::missed`]).
    #[must_use]
    pub fn events(&self) -> Inbox<Event> {
        self.events.clone()
    }

    /// Tells each event from now on to this function as well, on the progress thread, before it comes out of
    /// [`Oob::events`].
    ///
    /// # Errors
    /// [`Busy`]; the function is dropped.
    pub fn watch_events(&self, each: impl FnMut(&Event) + Send + 'static) -> Result<(), Busy> {
        self.put(Ask::Watch(Box::new(each)))
    }

    /// Tells no event from now on: for one that is about to agree with the others that the job is over, and to whom it is no
    /// loss when they are gone.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn hush(&self) -> Result<(), Busy> {
        self.put(Ask::Hush)
    }

    /// What was counted.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn counters(&self) -> Result<Completion<Counters>, Busy> {
        let (answer, completion) = promise(Counters::default);
        let tcp = look(&self.board).tcp();
        self.put(Ask::Counters(tcp, answer))?;
        Ok(completion)
    }

    /// What each transport has carried, in their order, as of the thread's last turn.
    #[must_use]
    pub fn carriages(&self) -> Vec<Carriage> {
        look(&self.board).carriages.clone()
    }

    /// What a person may want to know of: connects that nobody answered, keys that differ, ports that are taken.
    #[must_use]
    pub fn troubles(&self) -> Vec<OobError> {
        look(&self.board).troubles.drain(..).collect()
    }

    /// What is known of another process, for a person who wants to know why something waits.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn explain(&self, name: Name) -> Result<Completion<String>, Busy> {
        let (answer, completion) = promise(|| Busy::Ended.to_string());
        self.put(Ask::Explain(name, answer))?;
        Ok(completion)
    }

    fn put(&self, ask: Ask) -> Result<(), Busy> {
        self.door.put(ask).map_err(|refused| match refused {
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

/// Whether a node can be made of it here.
fn check(config: &Config) -> Result<(), OobError> {
    if config.name.rank >= config.ranks {
        return Err(OobError::Setting {
            setting: "ranks",
            given: config.ranks.to_string(),
            reason: format!(
                "{} is none of so many: ranks are numbered from 0, give the job's size",
                config.name
            ),
        });
    }
    Ok(())
}

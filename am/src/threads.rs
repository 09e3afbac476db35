//! PAR: other threads use a conduit that one thread owns (GASNet's threading modes; gasnet.md section 2).
//!
//! ```text
//!   Client (any thread, cloned) ── Job ──► mailbox ──► Desk::serve(&mut Conduit)   (the owner's thread,
//!        Ticket  ◄──────────────── one word ───────────────┘                       between polls)
//! ```
//!
//! A job describes what is to be sent and carries a ticket; the owner's thread writes the result into the
//! ticket's word, and the client reads it. Nothing here locks or allocates: a ticket is created once and
//! reused. Jobs to one rank are sent in the order of submission; one that has to wait delays no other rank's.
//!
//! Payloads are short bytes that travel in the job, or memory that stays: a place in the segment, or a
//! [`Landing`]. Handlers run on the owner's thread, and communicate with other threads as the program likes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::Ni;
use doorbell_ring::RingError;
use doorbell_ring::mpsc::{Receiver, Refused, Sender, mailbox};

use crate::conduit::Conduit;
use crate::error::{AmError, Try};
use crate::handler::MAX_ARGS;
use crate::ops::Handle;
use crate::putget::Remote;
use crate::source::{Destination, Source};

/// Bytes that travel in a job.
pub const INLINE: usize = 64;

/// A payload that a job carries, or that stays where it is until the job is done.
#[derive(Clone, Debug)]
pub enum Owned {
    /// Bytes in the job itself.
    Inline {
        /// The bytes of the payload.
        bytes: [u8; INLINE],
        /// How many of them.
        length: u8,
    },
    /// A part of the segment of this process.
    Segment {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Memory that stays.
    Memory(Landing),
}

impl Owned {
    /// Short bytes; `None` if they are more than [`INLINE`].
    #[must_use]
    pub fn inline(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self::Inline {
            bytes,
            length: from.len() as u8,
        })
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Inline { bytes, length } => {
                Source::Bytes(bytes.get(..usize::from(*length)).unwrap_or(bytes))
            }
            Self::Segment { offset, length } => Source::Segment {
                offset: *offset,
                length: *length,
            },
            Self::Memory(memory) => Source::Memory(memory.clone()),
        }
    }
}

/// The arguments of a job's request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Args {
    words: [u32; MAX_ARGS],
    count: u8,
}

impl Args {
    /// Makes a list of these arguments; `None` if they are more than 16.
    #[must_use]
    pub fn new(args: &[u32]) -> Option<Self> {
        let mut words = [0; MAX_ARGS];
        words.get_mut(..args.len())?.copy_from_slice(args);
        Some(Self {
            words,
            count: args.len() as u8,
        })
    }

    fn get(&self) -> &[u32] {
        self.words.get(..usize::from(self.count)).unwrap_or(&self.words)
    }
}

/// An operation that a client requests.
#[derive(Clone, Debug)]
pub enum Work {
    /// A Short request. Done when it was sent.
    Short {
        /// The destination rank.
        to: u32,
        /// The number of the handler.
        handler: u8,
        /// The arguments of the handler.
        args: Args,
    },
    /// A Medium request. Done when it was sent and its payload may be changed.
    Medium {
        /// The destination rank.
        to: u32,
        /// The number of the handler.
        handler: u8,
        /// The arguments of the handler.
        args: Args,
        /// The payload of the message.
        payload: Owned,
    },
    /// A Long request. Done when it was sent and its payload may be changed.
    Long {
        /// The destination rank.
        to: u32,
        /// The number of the handler.
        handler: u8,
        /// The arguments of the handler.
        args: Args,
        /// The payload of the message.
        payload: Owned,
        /// Where in the segment of that rank.
        place: u64,
    },
    /// A put. Done when the bytes are there.
    Put {
        /// The destination of the bytes.
        to: Remote,
        /// The bytes to put.
        from: Owned,
    },
    /// A get. Done when the bytes are here.
    Get {
        /// The destination of the bytes.
        into: Destination,
        /// The source of the bytes.
        from: Remote,
        /// The number of bytes.
        length: u64,
    },
}

impl Work {
    const fn rank(&self) -> u32 {
        match self {
            Self::Short { to, .. } | Self::Medium { to, .. } | Self::Long { to, .. } => *to,
            Self::Put { to, .. } => to.rank,
            Self::Get { from, .. } => from.rank,
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// The job has not ended.
    Pending = 0,
    /// It ended without an error.
    Done = 1,
    /// The job is impossible: arguments, lengths, places.
    Refused = 2,
    /// The rank is lost.
    Lost = 3,
    /// The operation was started and failed at its target.
    Failed = 4,
    /// The job ends, or the conduit is broken or gone.
    Over = 5,
}

impl Outcome {
    const fn of(word: u32) -> Self {
        match word {
            0 => Self::Pending,
            1 => Self::Done,
            2 => Self::Refused,
            3 => Self::Lost,
            4 => Self::Failed,
            _ => Self::Over,
        }
    }

    const fn of_error(error: &AmError) -> Self {
        match error {
            AmError::PeerLost { .. } => Self::Lost,
            AmError::Operation { .. } => Self::Failed,
            AmError::Fault(_) | AmError::ShuttingDown { .. } | AmError::Unclean(_) => Self::Over,
            _ => Self::Refused,
        }
    }
}

/// A client's view of its job's result. Created once, used for one job after the other.
#[derive(Debug, Default)]
pub struct Ticket(Arc<AtomicU32>);

impl Ticket {
    /// Returns a ticket of no job yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how the job ended, if it has.
    #[inline]
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        // Acquire pairs with the Release of `settle`: what a get brought is visible.
        Outcome::of(self.0.load(Ordering::Acquire))
    }
}

/// A job in the mailbox. Dropped with its mailbox, it reports its end.
#[derive(Debug)]
struct Job {
    work: Work,
    word: Word,
}

/// The owner's end of a ticket.
#[derive(Debug)]
struct Word(Option<Arc<AtomicU32>>);

impl Word {
    fn settle(mut self, outcome: Outcome) {
        if let Some(word) = self.0.take() {
            // Release pairs with the Acquire of `Ticket::outcome`.
            word.store(outcome as u32, Ordering::Release);
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        if let Some(word) = self.0.take() {
            word.store(Outcome::Over as u32, Ordering::Release);
        }
    }
}

/// What other threads hold: cloned for each, or shared.
#[derive(Clone)]
pub struct Client {
    sender: Sender<Job>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client")
            .field("capacity", &self.sender.capacity())
            .finish()
    }
}

/// Why a client's job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The mailbox is full: try again.
    #[error("the mailbox of the conduit's thread is full: try again, or enlarge it")]
    Full,
    /// The ticket's job before has not ended.
    #[error("the job of this ticket has not ended")]
    Busy,
    /// The mailbox is no longer served.
    #[error("the conduit's thread no longer serves the mailbox")]
    Closed,
}

impl Client {
    /// Submits a job; the ticket reports its result.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn begin(&self, ticket: &mut Ticket, work: Work) -> Result<(), NotTaken> {
        // Two references for a ticket of a running job: the client's and the job's.
        if Arc::strong_count(&ticket.0) > 1 {
            return Err(NotTaken::Busy);
        }
        ticket.0.store(Outcome::Pending as u32, Ordering::Relaxed);
        let word = Word(Some(Arc::clone(&ticket.0)));
        match self.sender.send(Job { work, word }) {
            Ok(()) => Ok(()),
            Err(Refused::Full(_)) => Err(NotTaken::Full),
            Err(Refused::Closed(_)) => Err(NotTaken::Closed),
        }
    }
}

/// The owner's end of the mailbox.
pub struct Desk {
    receiver: Receiver<Job>,
    /// Jobs that have to wait, in order.
    waiting: VecDeque<Job>,
    /// Ranks that one of them waits for, in one pass.
    stalled: Vec<u32>,
    /// Operations in progress.
    open: Vec<(Handle, Word)>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Desk")
            .field("waiting", &self.waiting.len())
            .field("open", &self.open.len())
            .finish_non_exhaustive()
    }
}

/// Creates a mailbox for `capacity` jobs, a power of two.
///
/// # Errors
/// [`RingError`].
pub fn desk(capacity: usize) -> Result<(Client, Desk), RingError> {
    let (sender, receiver) = mailbox(capacity)?;
    let desk = Desk {
        receiver,
        waiting: VecDeque::with_capacity(capacity),
        stalled: Vec::with_capacity(capacity),
        open: Vec::with_capacity(capacity),
    };
    Ok((Client { sender }, desk))
}

impl Desk {
    /// Starts the jobs that can be started, and reports those that have ended; returns the work done. To be
    /// called between polls of the conduit.
    pub fn serve<N: Ni>(&mut self, conduit: &mut Conduit<N>) -> usize {
        let mut work = self.tell(conduit);
        self.stalled.clear();
        for _ in 0..self.waiting.len() {
            let Some(job) = self.waiting.pop_front() else {
                break;
            };
            work += self.attempt(conduit, job);
        }
        // As many may wait as the mailbox holds: then it fills, and clients get an error.
        while self.waiting.len() < self.receiver.capacity() {
            let Some(job) = self.receiver.recv() else {
                break;
            };
            work += 1 + self.attempt(conduit, job);
        }
        conduit.flush();
        work
    }

    /// Waiting jobs and operations in progress.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.open.len()
    }

    /// Whether [`serve`](Self::serve) has work that no message announces: a queued job, or the end of all
    /// clients. Check it before the owner sleeps.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let has_room = self.waiting.len() < self.receiver.capacity();
        has_room && !self.receiver.is_empty() || self.is_abandoned()
    }

    /// Whether all clients are gone and all jobs have ended.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.receiver.is_abandoned() && self.receiver.is_empty() && self.pending() == 0
    }

    /// Reports the operations that have ended.
    fn tell<N: Ni>(&mut self, conduit: &mut Conduit<N>) -> usize {
        let (mut at, mut told) = (0, 0);
        while let Some((handle, _)) = self.open.get(at) {
            let outcome = match conduit.try_sync(*handle) {
                // A conduit that cannot go on ends none of them.
                Ok(false) => match conduit.health() {
                    Ok(()) => {
                        at += 1;
                        continue;
                    }
                    Err(error) => Outcome::of_error(&error),
                },
                Ok(true) => Outcome::Done,
                Err(error) => Outcome::of_error(&error),
            };
            self.open.swap_remove(at).1.settle(outcome);
            told += 1;
        }
        told
    }

    /// Tries a job; it goes to the end of the queue when it, or an earlier one to the same rank, has to wait.
    fn attempt<N: Ni>(&mut self, conduit: &mut Conduit<N>, job: Job) -> usize {
        let rank = job.work.rank();
        if self.stalled.contains(&rank) {
            self.waiting.push_back(job);
            return 0;
        }
        match begin(conduit, &job.work) {
            Ok(Try::Stalled(_)) => {
                self.stalled.push(rank);
                self.waiting.push_back(job);
                return 0;
            }
            Ok(Try::Done(None)) => job.word.settle(Outcome::Done),
            Ok(Try::Done(Some(handle))) => self.open.push((handle, job.word)),
            Err(error) => job.word.settle(Outcome::of_error(&error)),
        }
        1
    }
}

/// Starts a job; `Some` is an operation that ends later.
fn begin<N: Ni>(conduit: &mut Conduit<N>, work: &Work) -> Result<Try<Option<Handle>>, AmError> {
    match work {
        Work::Short { to, handler, args } => {
            let sent = conduit.try_request_short(*to, *handler, args.get())?;
            Ok(sent.map(|()| None))
        }
        Work::Medium {
            to,
            handler,
            args,
            payload,
        } => {
            let sent = conduit.try_request_medium(*to, *handler, args.get(), payload.source())?;
            Ok(sent.map(|()| None))
        }
        Work::Long {
            to,
            handler,
            args,
            payload,
            place,
        } => {
            let sent = conduit.try_request_long(*to, *handler, args.get(), payload.source(), *place)?;
            Ok(sent.map(|sent| sent.source))
        }
        Work::Put { to, from } => Ok(conduit.put_bulk(*to, from.source())?.map(Some)),
        Work::Get { into, from, length } => Ok(conduit.get(into.clone(), *from, *length)?.map(Some)),
    }
}

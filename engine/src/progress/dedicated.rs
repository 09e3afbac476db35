//! The dedicated thread: takes commands out of the mailbox, polls, writes completions into slots, sleeps when
//! idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use doorbell_fabric::memory::{ConstLoan, MutLoan, RegionSlice};
use doorbell_fabric::time::Time;
use doorbell_job::error::Error;
use doorbell_job::types::Status;
use doorbell_job::wait::turns::{Patience, Turn, Waiter};
use doorbell_pml::{Aborted, MessageId, Payload, RecvArgs, RequestId, SendArgs, Sent, Target};
use doorbell_ring::mpsc::Receiver;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};

use super::completion_slots::{CompletionSlots, State};
use super::core::Core;
use super::one_sided::{Flush, Operation, OperationKind, RegionOperation, WindowAddress};
use super::pinned::Pinned;
use super::{Envelope, RequestToken};

/// Commands taken in one pass, at most, so that a pass stays bounded.
const COMMANDS: usize = 64;
/// The number that means that there is no slot.
const NONE: u32 = u32::MAX;

/// A step without a command of its own: rare, so it may be boxed.
pub(super) type Call = Box<dyn FnOnce(&mut ThreadState) + Send>;

/// A command from a caller to the thread. The loans stay valid until the slot shows that the request has
/// ended: that is the promise of the `scope` module, which waits for the slot.
pub(super) enum Command {
    /// A send out of borrowed memory.
    Send {
        slot: u32,
        envelope: Envelope,
        loan: ConstLoan,
    },
    /// A send out of a region.
    SendRegion {
        slot: u32,
        envelope: Envelope,
        slice: RegionSlice,
    },
    /// Any other send.
    SendOther(u32, Box<SendArgs>),
    /// A receive into borrowed memory.
    Recv {
        slot: u32,
        envelope: Envelope,
        loan: MutLoan,
    },
    /// A receive into a region.
    RecvRegion {
        slot: u32,
        envelope: Envelope,
        slice: RegionSlice,
    },
    /// Any other receive.
    RecvOther(u32, Box<RecvArgs>),
    /// An operation on a window, with borrowed memory: the fields of [`Operation`], one by one so that it
    /// fits.
    Operate {
        slot: u32,
        kind: OperationKind,
        rank: u32,
        key: u32,
        offset: u64,
        from: ConstLoan,
        into: MutLoan,
    },
    /// An operation on a window, with a region.
    OperateRegion { slot: u32, operation: RegionOperation },
    /// Completes the slot when all operations on windows of a rank have ended.
    Flush { slot: u32, rank: Option<u32> },
    /// Completes the slot when a matching message has arrived, and leaves it to be received.
    Watch { slot: u32, envelope: Envelope },
    /// Ends a request at once.
    End(u32),
    /// Lets a request run on without its handle.
    Detach(u32),
    /// Runs any other step.
    Call(Call),
    /// Closes the connections to the peers and ends the thread.
    Close(Duration),
}
// With the mailbox's stamp, a command fills one cache line.
const _: () = assert!(size_of::<Command>() <= 56);

/// A flag and an event descriptor: a sleeper can be woken, and one that is awake costs the other side a
/// single load.
pub(crate) struct Bell {
    asleep: AtomicBool,
    descriptor: OwnedFd,
}

impl Bell {
    pub(crate) fn new(of: &str) -> Result<Self, Error> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("make an event descriptor", of, error.into(), "check `ulimit -n`"))?;
        Ok(Self {
            asleep: AtomicBool::new(false),
            descriptor,
        })
    }

    /// Wakes the sleeper, if there is one. Called after something was published.
    #[inline]
    pub(crate) fn ring(&self) {
        // SeqCst fences on both sides: either the sleeper's check after `prepare` sees what was published
        // before this fence, or this load sees its flag. With less, both could miss each other: a lost
        // wake-up.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // A write that fails because the counter is full is as good: the descriptor is readable already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Raises the flag before a sleep; the caller then checks once more whether there is something.
    pub(crate) fn prepare(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Lowers the flag after a sleep, or instead of it.
    pub(crate) fn finish(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }

    pub(crate) fn descriptor(&self) -> impl AsFd + '_ {
        &self.descriptor
    }
}

/// The state that both sides share.
pub(super) struct Shared {
    pub(super) slots: CompletionSlots,
    /// Wakes the caller.
    pub(super) caller: Bell,
    /// Wakes the progress thread.
    pub(super) engine: Bell,
    /// Set once the thread does not access a caller's memory any more.
    pub(super) ended: AtomicBool,
    /// The reason, if the thread was not ended by a caller.
    pub(super) reason: Mutex<String>,
    /// Why the thread has no core of its own any more.
    pub(super) lost_core: Mutex<Option<String>>,
}

/// A probe that waits for its message.
struct Watch {
    slot: u32,
    envelope: Envelope,
}

/// The thread's own state.
pub(super) struct ThreadState {
    pub(super) core: Core,
    shared: Arc<Shared>,
    /// The slot of each request, by the index in the request's number.
    slot_of: Vec<u32>,
    /// The request of each slot.
    request_of: Vec<Option<RequestId>>,
    watches: Vec<Watch>,
    /// Waits for operations, each with its slot.
    flushes: Vec<(u32, Flush)>,
    /// CompletionSlots whose requests a rail has not released yet.
    ending: Vec<u32>,
    completed: bool,
    /// Whether to ring for every pass that found work, because a foreign event loop sleeps.
    pub(super) tell: bool,
    closing: Option<Duration>,
    pinned: Pinned,
}

/// Signals that the thread has ended, whatever way it ends. It is dropped after the desk, so that the thread
/// cannot access a caller's memory once the flag is up.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0.reason.lock().unwrap_or_else(PoisonError::into_inner) = "it panicked".to_owned();
        }
        // Release pairs with the Acquire of the callers: everything the thread wrote is visible.
        self.0.ended.store(true, Ordering::Release);
        self.0.caller.ring();
    }
}

/// The thread's main function.
pub(super) fn run(core: Core, shared: Arc<Shared>, mut mailbox: Receiver<Command>, pinned: Pinned) {
    let _ending = Ending(Arc::clone(&shared));
    let mut desk = ThreadState {
        core,
        shared,
        slot_of: Vec::new(),
        request_of: Vec::new(),
        watches: Vec::new(),
        flushes: Vec::new(),
        ending: Vec::new(),
        completed: false,
        tell: false,
        closing: None,
        pinned,
    };
    desk.duty(&mut mailbox);
    let limit = desk.closing.unwrap_or_default();
    desk.core.close(limit);
    // What follows relies on the order of drops: the mailbox closes, the desk is dropped with every rail, and
    // then `_ending` raises its flag.
    drop(mailbox);
    drop(desk);
}

impl ThreadState {
    fn duty(&mut self, mailbox: &mut Receiver<Command>) {
        let clock = self.core.clock.clone();
        // This wait never ends by itself: it has no deadline, and nothing to report as quiet.
        let begin = |patience| Waiter::new(&clock, patience, Duration::MAX, Duration::MAX);
        let mut waiter = begin(self.core.patience);
        while self.closing.is_none() {
            let commands = mailbox.drain(COMMANDS, |command| self.take(command));
            if commands == 0 && mailbox.is_abandoned() {
                return;
            }
            let work = commands + self.core.poll() + self.complete();
            if self.completed || (self.tell && work > 0) {
                self.completed = false;
                self.shared.caller.ring();
            }
            match waiter.turn(work > 0) {
                Turn::Again | Turn::Quiet(_) | Turn::Expired(_) => {}
                Turn::Housekeep(now) | Turn::Sleep(now, _) if self.pinned.is_due(now) => {
                    if let Some(patience) = self.look_at_core(now) {
                        waiter = begin(patience);
                    }
                }
                Turn::Housekeep(now) => _ = self.core.progress_at(now),
                Turn::Pass => thread::yield_now(),
                Turn::Yield(now) => {
                    if self.core.progress_at(now) == 0 {
                        thread::yield_now();
                    }
                }
                Turn::Sleep(now, until) => self.sleep(now, until, mailbox),
            }
        }
    }

    /// Looks whether the thread still has its core. Returns how it waits from now on, if not.
    #[cold]
    fn look_at_core(&mut self, now: Time) -> Option<Patience> {
        let (text, patience) = self.pinned.look(now)?;
        let mut lost = self
            .shared
            .lost_core
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *lost = Some(text);
        Some(patience)
    }

    #[cold]
    fn sleep(&mut self, now: Time, until: Time, mailbox: &Receiver<Command>) {
        if self.core.progress_at(now) > 0 || !self.ending.is_empty() || !self.watches.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        shared.engine.prepare();
        if mailbox.is_empty() && !mailbox.is_abandoned() {
            let bell = shared.engine.descriptor();
            self.core.sleep(now, until, bell.as_fd());
        }
        shared.engine.finish();
    }

    #[inline]
    fn take(&mut self, command: Command) {
        match command {
            Command::Send { slot, envelope, loan } => self.send(slot, envelope.send(Payload::Loan(loan))),
            Command::Recv { slot, envelope, loan } => self.recv(slot, envelope.recv(Target::Loan(loan))),
            Command::SendRegion {
                slot,
                envelope,
                slice,
            } => self.send(slot, envelope.send(Payload::Region(slice))),
            Command::RecvRegion {
                slot,
                envelope,
                slice,
            } => self.recv(slot, envelope.recv(Target::Region(slice))),
            Command::SendOther(slot, args) => self.send(
                slot,
                SendArgs {
                    notify: true,
                    ..*args
                },
            ),
            Command::RecvOther(slot, args) => self.recv(
                slot,
                RecvArgs {
                    notify: true,
                    ..*args
                },
            ),
            Command::Operate {
                slot,
                kind,
                rank,
                key,
                offset,
                from,
                into,
            } => {
                let at = WindowAddress { rank, key, offset };
                let started = self.core.operate(Operation { kind, at, from, into }, true);
                self.started(slot, started);
            }
            Command::OperateRegion { slot, operation } => {
                let started = self.core.operate_region(operation, true);
                self.started(slot, started);
            }
            Command::Flush { slot, rank } => self.flushes.push((slot, Flush::new(rank))),
            Command::Watch { slot, envelope } => self.watches.push(Watch { slot, envelope }),
            Command::End(slot) => self.end(slot),
            Command::Detach(slot) => self.detach(slot),
            Command::Call(call) => call(self),
            Command::Close(limit) => self.closing = Some(limit),
        }
    }

    #[inline]
    fn send(&mut self, slot: u32, args: SendArgs) {
        let status = Status {
            source: args.to.0,
            tag: args.tag,
            len: length(&args.payload),
        };
        match self.core.pml.send(args) {
            Ok(Sent::Done) => self.succeed(slot, status),
            Ok(Sent::Pending(id)) => self.link(slot, id),
            Err(error) => self.fail(slot, self.core.explained(error)),
        }
    }

    #[inline]
    fn recv(&mut self, slot: u32, args: RecvArgs) {
        match self.core.pml.recv(args) {
            Ok(id) => self.link(slot, id),
            Err(error) => self.fail(slot, self.core.explained(error)),
        }
    }

    #[inline]
    fn started(&mut self, slot: u32, started: Result<RequestId, Error>) {
        match started {
            Ok(id) => self.link(slot, id),
            Err(error) => self.fail(slot, error),
        }
    }

    #[inline]
    pub(super) fn link(&mut self, slot: u32, id: RequestId) {
        let index = index_of(id);
        if self.slot_of.len() <= index {
            self.slot_of.resize((index + 1).next_power_of_two(), NONE);
        }
        self.slot_of[index] = slot;
        let place = slot as usize;
        if self.request_of.len() <= place {
            self.request_of.resize((place + 1).next_power_of_two(), None);
        }
        self.request_of[place] = Some(id);
    }

    fn unlink(&mut self, slot: u32) -> Option<RequestId> {
        let id = self.request_of.get_mut(slot as usize)?.take()?;
        self.slot_of[index_of(id)] = NONE;
        Some(id)
    }

    #[inline]
    fn succeed(&mut self, slot: u32, status: Status) {
        self.shared.slots.succeed(slot, status);
        self.completed = true;
    }

    #[cold]
    fn fail(&mut self, slot: u32, error: Error) {
        self.shared.slots.fail(slot, error);
        self.completed = true;
    }

    /// Writes the completions of requests that have ended into their slots; bounded by their number.
    #[inline]
    fn complete(&mut self) -> usize {
        let mut work = 0;
        while let Some(id) = self.core.pml.next_completion() {
            work += 1;
            self.complete_one(id);
        }
        if !self.ending.is_empty() || !self.watches.is_empty() || !self.flushes.is_empty() {
            work += self.retry();
        }
        work
    }

    #[inline]
    fn complete_one(&mut self, id: RequestId) {
        match self.slot_of.get(index_of(id)) {
            Some(&slot) if slot != NONE && self.request_of[slot as usize] == Some(id) => {
                let outcome = self.core.take(RequestToken(id.to_bits()));
                self.unlink(slot);
                match outcome {
                    Some(Ok(status)) => self.succeed(slot, status),
                    Some(Err(error)) => self.fail(slot, error),
                    // Only this thread tests requests of slots; should one be gone all the same, the caller
                    // must not wait.
                    None => self.fail(slot, Error::Cancelled),
                }
            }
            // It was started through the raw interface, which has a queue of its own.
            _ => self.core.raw_completions.push_back(id),
        }
    }

    #[cold]
    fn retry(&mut self) -> usize {
        let mut work = 0;
        for slot in std::mem::take(&mut self.ending) {
            self.end(slot);
        }
        let mut at = 0;
        while let Some((slot, flush)) = self.flushes.get_mut(at) {
            let slot = *slot;
            match self.core.is_flushed(flush) {
                Some(outcome) => {
                    self.flushes.swap_remove(at);
                    let status = Status {
                        source: self.core.rank,
                        tag: 0,
                        len: 0,
                    };
                    match outcome {
                        Ok(()) => self.succeed(slot, status),
                        Err(error) => self.fail(slot, error),
                    }
                    work += 1;
                }
                None => at += 1,
            }
        }
        let mut at = 0;
        while let Some(watch) = self.watches.get(at) {
            let (slot, envelope) = (watch.slot, watch.envelope);
            match self.core.probe_or_lost(envelope) {
                Some(outcome) => {
                    self.watches.swap_remove(at);
                    match outcome {
                        Ok(status) => self.succeed(slot, status),
                        Err(error) => self.fail(slot, error),
                    }
                    work += 1;
                }
                None => at += 1,
            }
        }
        work
    }

    /// Ends the request or probe of a slot. A slot that has its outcome already keeps it: nothing is open any
    /// more.
    fn end(&mut self, slot: u32) {
        if let Some(at) = self.watches.iter().position(|watch| watch.slot == slot) {
            self.watches.swap_remove(at);
        } else if let Some(at) = self.flushes.iter().position(|(this, _)| *this == slot) {
            self.flushes.swap_remove(at);
        } else {
            let Some(Some(id)) = self.request_of.get(slot as usize).copied() else {
                return;
            };
            if self.core.pml.abort(id) == Aborted::Wait {
                self.ending.push(slot);
                return;
            }
            self.unlink(slot);
        }
        self.shared.slots.close(slot, State::Ended);
        self.completed = true;
    }

    fn detach(&mut self, slot: u32) {
        match self.unlink(slot) {
            Some(id) => self.core.pml.detach(id),
            // It has ended before: its error, if any, is of no interest.
            None => _ = self.shared.slots.outcome(slot),
        }
        self.shared.slots.close(slot, State::Free);
    }

    /// Receives a claimed message for a slot.
    pub(super) fn recv_claimed(&mut self, slot: u32, message: MessageId, target: Target) {
        match self.core.pml.recv_claimed(message, target, true) {
            Ok(id) => self.link(slot, id),
            Err(error) => self.fail(slot, self.core.explained(error)),
        }
    }

    /// Returns the request of a slot that is still open.
    pub(super) fn request(&self, slot: u32) -> Option<RequestId> {
        self.request_of.get(slot as usize).copied().flatten()
    }
}

/// Returns the number of bytes of a payload.
#[inline]
fn length(payload: &Payload) -> usize {
    match payload {
        Payload::Loan(loan) => loan.len(),
        Payload::Region(slice) => slice.len(),
        Payload::Parts(parts) => parts.iter().map(ConstLoan::len).sum(),
        Payload::Strided(strided) => strided.block.saturating_mul(strided.count),
    }
}

/// Returns the index half of a request's number: small and reused.
#[inline]
fn index_of(id: RequestId) -> usize {
    (id.to_bits() & u64::from(u32::MAX)) as usize
}

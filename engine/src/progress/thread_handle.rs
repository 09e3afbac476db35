//! The caller's side of dedicated mode: puts commands into the mailbox and polls slots.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell_fabric::cores::{self, CoreSet, Narrowed};
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::time::Time;
use doorbell_job::binding::Binding;
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::types::Status;
use doorbell_job::wait::turns::{Clock, Patience, Turn, Waiter};
use doorbell_ring::mpsc::{Refused, Sender, mailbox};
use rustix::event::{PollFd, PollFlags, poll};

use super::completion_slots::{CompletionSlots, State};
use super::core::Core;
use super::dedicated::{Bell, Command, Shared, ThreadState, run};
use super::pinned::Pinned;
use super::{Look, RequestToken};

/// Interval between two checks of a long wait for raw completions.
const ASK_EVERY: Duration = Duration::from_micros(200);

/// The handle of the dedicated thread.
pub(crate) struct ThreadHandle {
    mailbox: Sender<Command>,
    shared: Arc<Shared>,
    pool: RefCell<Pool>,
    /// The process that runs the thread.
    maker: Maker,
    clock: Clock,
    patience: Patience,
    quiet: Duration,
    thread: Option<JoinHandle<()>>,
    /// The cores that the caller's thread has without this world.
    _narrowed: Option<Narrowed>,
}

/// CompletionSlots that are not in use.
#[derive(Default)]
struct Pool {
    free: Vec<u32>,
    /// Detached slots: free as soon as the thread marks them so.
    limbo: Vec<u32>,
    made: u32,
}

impl Pool {
    #[inline]
    fn take(&mut self, slots: &CompletionSlots) -> Option<u32> {
        self.free.pop().or_else(|| self.refill(slots))
    }

    #[cold]
    fn refill(&mut self, slots: &CompletionSlots) -> Option<u32> {
        let free = &mut self.free;
        self.limbo.retain(|slot| {
            let gone = slots.state(*slot) == State::Free;
            if gone {
                free.push(*slot);
            }
            !gone
        });
        if self.free.is_empty() && self.made < CompletionSlots::most() {
            self.free.push(self.made);
            self.made += 1;
        }
        self.free.pop()
    }
}

impl ThreadHandle {
    /// Starts the thread, and binds it and the calling thread as `binding` has it. Should its core be lost
    /// later, the thread waits with the patience `crowded`.
    pub(crate) fn start(
        core: Core,
        commands: u32,
        binding: &Binding,
        crowded: Patience,
    ) -> Result<Self, Error> {
        let capacity = (commands.clamp(2, 1 << 20) as usize).next_power_of_two();
        let (sender, receiver) = mailbox(capacity).map_err(|error| Error::Job {
            reason: error.to_string(),
        })?;
        let shared = Arc::new(Shared {
            slots: CompletionSlots::default(),
            caller: Bell::new("the progress thread")?,
            engine: Bell::new("the progress thread")?,
            ended: AtomicBool::new(false),
            reason: Mutex::new("a caller closed it".to_owned()),
            lost_core: Mutex::new(None),
        });
        let narrowed = binding.own_cores.as_ref().map(narrow).transpose()?;
        let (clock, patience, quiet) = (core.clock.clone(), core.patience, core.quiet);
        let name = format!("doorbell-{}", core.rank);
        let pinned = Pinned::to(binding.progress, core.rank, crowded);
        let of_thread = Arc::clone(&shared);
        let (report, bound) = std::sync::mpsc::sync_channel(1);
        let progress = binding.progress;
        let thread = thread::Builder::new().name(name).spawn(move || {
            let to = progress.map(|core| CoreSet::from_iter([core]));
            let _ = report.send(to.map_or(Ok(()), |to| cores::bind(&to)));
            run(core, of_thread, receiver, pinned);
        });
        let thread = thread.map_err(|source| {
            let remedy = "check `ulimit -u` and the container's limit of threads";
            Error::io("start the progress thread", "this process", source, remedy)
        })?;
        let link = Self {
            mailbox: sender,
            shared,
            pool: RefCell::default(),
            maker: Maker::this(),
            clock,
            patience,
            quiet,
            thread: Some(thread),
            _narrowed: narrowed,
        };
        match (bound.recv(), binding.progress) {
            (Ok(Err(source)), Some(core)) => {
                let remedy = "leave the setting `progress.core` away";
                Err(Error::io(
                    "bind the progress thread",
                    &format!("core {core}"),
                    source,
                    remedy,
                ))
            }
            _ => Ok(link),
        }
    }

    /// Returns why the thread lost the core that it was bound to, if it did.
    pub(crate) fn lost_core(&self) -> Option<String> {
        let lost = self.shared.lost_core.lock();
        lost.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a command into the mailbox, and waits for room.
    #[inline]
    fn post(&self, command: Command) -> Result<(), Error> {
        self.here()?;
        let mut command = command;
        loop {
            match self.mailbox.send(command) {
                Ok(()) => {
                    self.shared.engine.ring();
                    return Ok(());
                }
                Err(Refused::Closed(_)) => return Err(self.ended()),
                Err(Refused::Full(back)) => {
                    command = back;
                    self.shared.engine.ring();
                    thread::yield_now();
                }
            }
        }
    }

    /// # Errors
    /// [`Error::Forked`] in a child, where the thread is not.
    #[inline]
    fn here(&self) -> Result<(), Error> {
        match self.maker.is_running() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    #[cold]
    fn ended(&self) -> Error {
        let reason = self
            .shared
            .reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Error::Ended { reason }
    }

    fn has_ended(&self) -> bool {
        // Acquire pairs with the Release in `Ending`.
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Starts a request: takes a free slot and posts the command that `make` builds for it.
    #[inline]
    pub(super) fn start_request(&self, make: impl FnOnce(u32) -> Command) -> Result<RequestToken, Error> {
        let slot = self.pool.borrow_mut().take(&self.shared.slots);
        let slot = slot.ok_or_else(|| Error::Job {
            reason: "too many requests are open at once".to_owned(),
        })?;
        self.shared.slots.open(slot);
        match self.post(make(slot)) {
            Ok(()) => Ok(RequestToken(u64::from(slot))),
            Err(error) => {
                self.give_back(slot);
                Err(error)
            }
        }
    }

    fn give_back(&self, slot: u32) {
        self.pool.borrow_mut().free.push(slot);
    }

    /// Takes the outcome of a request that has ended, and returns its slot to the pool.
    #[inline]
    pub(crate) fn take(&self, token: RequestToken) -> Option<Result<Status, Error>> {
        let outcome = match self.shared.slots.outcome(token.slot()) {
            None if self.has_ended() => Err(self.ended()),
            outcome => outcome?,
        };
        self.give_back(token.slot());
        Some(outcome)
    }

    /// Ends a request: returns when the thread does not access its memory any more.
    #[cold]
    pub(crate) fn end(&self, token: RequestToken) {
        let slot = token.slot();
        if self.here().is_err() {
            // No rail in a child of `fork` accesses the memory.
            return;
        }
        if self.post(Command::End(slot)).is_ok() {
            let mut spins = 0u32;
            while self.shared.slots.state(slot) == State::Open && !self.has_ended() {
                spins = spins.saturating_add(1);
                if spins > 1_000 {
                    thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
            }
        } else {
            // The mailbox is closed: the thread is about to end, and raises its flag last.
            while !self.has_ended() {
                thread::yield_now();
            }
        }
        drop(self.shared.slots.outcome(slot));
        self.give_back(slot);
    }

    /// Lets a request run on without its handle.
    #[cold]
    pub(crate) fn detach(&self, token: RequestToken) {
        if self.post(Command::Detach(token.slot())).is_ok() {
            self.pool.borrow_mut().limbo.push(token.slot());
        }
    }

    /// Runs `step` on the thread and returns its result.
    #[cold]
    pub(super) fn call<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut ThreadState) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.post(Command::Call(Box::new(move |desk| {
            let _ = sender.send(step(desk));
        })))?;
        // When the thread ends, the mailbox drops the unused sender: an error, never a hang.
        receiver.recv().map_err(|_| self.ended())
    }

    /// Waits until `done` returns something.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the explanation, when `limit` passes first; [`Error::Ended`].
    #[inline]
    pub(crate) fn wait<R>(
        &self,
        limit: Duration,
        what: impl Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
        mut done: impl FnMut(&mut &Self) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        let mut this = self;
        let mut waiter = Waiter::new(&self.clock, self.patience, limit, self.quiet);
        loop {
            if let Some(result) = done(&mut this) {
                return Ok(result);
            }
            match waiter.turn(false) {
                Turn::Again => {}
                Turn::Housekeep(_) => {
                    if self.has_ended() {
                        return done(&mut this).ok_or_else(|| self.ended());
                    }
                }
                Turn::Yield(_) | Turn::Pass => thread::yield_now(),
                Turn::Sleep(now, until) => {
                    if self.has_ended() {
                        return done(&mut this).ok_or_else(|| self.ended());
                    }
                    self.shared.caller.prepare();
                    let result = done(&mut this);
                    if result.is_none() && !self.has_ended() {
                        self.sleep(now, until);
                    }
                    self.shared.caller.finish();
                    if let Some(result) = result {
                        return Ok(result);
                    }
                }
                Turn::Quiet(now) => {
                    notice(&self.explain(what(), waiter.waited(now)));
                    self.here()?;
                }
                Turn::Expired(now) => {
                    return Err(self.expired(what(), waiter.waited(now)));
                }
            }
        }
    }

    /// Waits until `step`, which the thread runs repeatedly, returns something.
    ///
    /// # Errors
    /// Those of [`ThreadHandle::wait`].
    pub(super) fn wait_asking<R: Send + 'static>(
        &self,
        limit: Duration,
        what: Awaited,
        notice: &mut dyn FnMut(&Waiting),
        step: impl Fn(&mut ThreadState) -> Option<R> + Copy + Send + 'static,
    ) -> Result<R, Error> {
        // Between two checks the caller is idle from the start: each check is a round trip already.
        let patience = Patience {
            spins: 0,
            yields: self.patience.yields,
        };
        let mut waiter = Waiter::new(&self.clock, patience, limit, self.quiet);
        loop {
            if let Some(found) = self.call(step)? {
                return Ok(found);
            }
            match waiter.turn(false) {
                Turn::Again | Turn::Housekeep(_) => {}
                Turn::Yield(_) | Turn::Pass => thread::yield_now(),
                Turn::Sleep(..) => thread::sleep(ASK_EVERY),
                Turn::Quiet(now) => notice(&self.explain(what, waiter.waited(now))),
                Turn::Expired(now) => {
                    return Err(self.expired(what, waiter.waited(now)));
                }
            }
        }
    }

    /// Returns the bell that wakes the caller.
    pub(super) fn bell(&self) -> &Bell {
        &self.shared.caller
    }

    /// Returns a copy of the descriptor on which the caller sleeps.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Error> {
        let copy = self.bell().descriptor().as_fd().try_clone_to_owned();
        copy.map_err(|source| {
            Error::io(
                "copy a descriptor",
                "the descriptor of completions",
                source,
                "check `ulimit -n`",
            )
        })
    }

    #[cold]
    fn sleep(&self, now: Time, until: Time) {
        let bell = self.shared.caller.descriptor();
        let timeout = doorbell_fabric::poll::timespec(until.since(now));
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
    }

    #[cold]
    fn explain(&self, what: Awaited, waited: Duration) -> Waiting {
        self.call(move |desk| desk.core.explain(what, waited))
            .unwrap_or_else(|error| unknown(what, waited, &error))
    }

    /// Builds the error of a wait that has reached its limit.
    #[cold]
    fn expired(&self, what: Awaited, waited: Duration) -> Error {
        self.call(move |desk| desk.core.expired(what, waited))
            .unwrap_or_else(|error| Error::Timeout(Box::new(unknown(what, waited, &error))))
    }

    /// Ends the thread, which first closes the connections to the peers, for at most `limit`.
    pub(crate) fn close(&mut self, limit: Duration) {
        let _ = self.post(Command::Close(limit));
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic, and every waiting caller got the error.
            let _ = thread.join();
        }
    }
}

impl Look for &ThreadHandle {
    #[inline]
    fn is_done(&mut self, token: RequestToken) -> bool {
        !matches!(self.shared.slots.state(token.slot()), State::Open | State::Free) || self.has_ended()
    }

    #[inline]
    fn take_well_ended(&mut self, token: RequestToken) -> Option<Status> {
        if self.shared.slots.state(token.slot()) != State::Done {
            return None;
        }
        let status = self.shared.slots.outcome(token.slot())?.ok()?;
        self.give_back(token.slot());
        Some(status)
    }
}

/// The explanation of a wait when the thread that could explain it has ended.
fn unknown(what: Awaited, waited: Duration, error: &Error) -> Waiting {
    Waiting {
        rank: 0,
        what,
        waited,
        peers: vec![error.to_string()],
        is_cut_off: false,
        recent: Vec::new(),
    }
}

/// Keeps the calling thread off the cores of progress threads.
pub(crate) fn narrow(own: &CoreSet) -> Result<Narrowed, Error> {
    Narrowed::bind(own).map_err(|source| {
        let remedy = "leave the setting `progress.core` away";
        Error::io(
            "bind the rank's own thread",
            &format!("cores {own}"),
            source,
            remedy,
        )
    })
}

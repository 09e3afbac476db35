//! The node of a rank above which there is no PML: Portals or active messages, with or without a progress
//! thread.
//!
//! ```text
//!   inline       owner ─► node                               no lock
//!   dedicated    owner ─► lock ─► node ◄─ lock ◄─ thread     one of them at a time
//! ```
//!
//! The thread is the one that takes over from the calls of a program ([`doorbell_job::takeover`]). It leaves
//! the node alone while a call of the owner waits, since that call makes progress itself; such a call takes
//! the lock for each pass and sleeps without it. So what the owner waits for has either been found before its
//! wait began, or is found by the wait.
//!
//! The owner has precedence: the thread does not take the lock while the owner wants it.
//!
//! Only the process that made the node takes the lock. In a child of `fork` there is no thread, and the lock
//! may have been held when it forked: every call checks that before.

use std::any::Any;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use doorbell_am_portals::Seen;
use doorbell_fabric::cores::Narrowed;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::time::Time;
use doorbell_job::binding::Binding;
use doorbell_job::config::Wait;
use doorbell_job::error::{Awaited, Error};
use doorbell_job::handle::Job;
use doorbell_job::takeover::{Calls, Manner, Progress, Takeover};
use doorbell_job::wait::sleep::Sleeper;
use doorbell_job::wait::turns::Clock;
use doorbell_job::wait::{NodeWaiter, PollableNode};
use rustix::fd::{AsFd, BorrowedFd};

use crate::progress::{Bell, narrow};

#[cfg(test)]
mod tests;

/// The longest sleep of the thread without a look. In its tests none of them helps out.
const LONGEST_NAP: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// What a panic was called with.
type Payload = Box<dyn Any + Send>;

/// A node that a progress thread may move. Its own methods are those of the owner's calls.
pub(crate) trait Beside: PollableNode + Send + 'static {
    /// Makes one bounded pass without the clock on the progress thread; returns the work found.
    fn poll_beside(&mut self) -> usize {
        self.poll()
    }

    /// Makes one bounded pass of what depends on the time on the progress thread; returns the work done.
    fn progress_beside(&mut self, now: Time) -> usize {
        self.progress(now)
    }

    /// Prepares a sleep of the progress thread, after a pass that found nothing. Returns whether there is
    /// work for it already, or a rail that cannot be slept on.
    fn arm_beside(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.arm(each)
    }
}

/// A node, which its owner has alone or shares with a progress thread. It is stored inline and not behind a
/// pointer: that saves one load per call.
#[allow(clippy::large_enum_variant)]
pub(crate) enum SharedNode<T: Beside> {
    /// The owner's alone: progress is made inline.
    Own(T),
    /// Shared with a progress thread.
    Shared(Threaded<T>),
}

/// A node, held for one call of its owner.
pub(crate) enum Hold<'a, T> {
    /// The owner's own node.
    Own(&'a mut T),
    /// The lock of one that is shared.
    Shared(MutexGuard<'a, State<T>>),
}

impl<T> Deref for Hold<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::Own(node) => node,
            Self::Shared(state) => &state.node,
        }
    }
}

impl<T> DerefMut for Hold<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Own(node) => node,
            Self::Shared(state) => &mut state.node,
        }
    }
}

impl<T: Beside> SharedNode<T> {
    /// Takes a node over, and starts its progress thread where `binding` has one.
    ///
    /// # Errors
    /// Those of the system, which has no thread or descriptor left, or does not let a thread be bound.
    pub(crate) fn new(node: T, binding: Option<&Binding>, job: &Job, clock: &Clock) -> Result<Self, Error> {
        let Some(binding) = binding else {
            return Ok(Self::Own(node));
        };
        let manner = Manner {
            core: binding.progress,
            // On a core that it shares it would keep the program from running.
            spins: *job.config().progress.wait.get() == Wait::LowestLatency && binding.shares.is_none(),
        };
        let narrowed = binding.own_cores.as_ref().map(narrow).transpose()?;
        Threaded::start(node, job.rank(), manner, clock.clone(), narrowed).map(Self::Shared)
    }

    /// Holds the node for a call that does not wait. A panic of a handler on the progress thread goes on
    /// here.
    #[inline]
    pub(crate) fn hold(&mut self) -> Hold<'_, T> {
        match self {
            Self::Own(node) => Hold::Own(node),
            Self::Shared(threaded) => Hold::Shared(threaded.shared.enter()),
        }
    }

    /// Looks at the node.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        match self {
            Self::Own(node) => look(node),
            Self::Shared(threaded) => look(&threaded.shared.enter().node),
        }
    }

    /// Waits as [`NodeWaiter::wait`] does.
    ///
    /// # Errors
    /// Those of [`NodeWaiter::wait`].
    #[inline]
    pub(crate) fn wait<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        mut done: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        match self {
            Self::Own(node) => waiter.wait(node, limit, what, done),
            Self::Shared(threaded) => threaded.wait(waiter, limit, what, &mut done),
        }
    }

    /// Waits as [`NodeWaiter::wait_by`] does.
    ///
    /// # Errors
    /// Those of [`NodeWaiter::wait`].
    #[inline]
    pub(crate) fn wait_by<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        mut linger: impl FnMut(&mut T, u32) -> Seen,
        mut done: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        match self {
            Self::Own(node) => waiter.wait_by(node, limit, what, linger, done),
            Self::Shared(threaded) => threaded.wait_by(waiter, limit, what, &mut linger, &mut done),
        }
    }

    /// Repeats a call until it has room, as [`NodeWaiter::begin`] does.
    ///
    /// # Errors
    /// Those of [`NodeWaiter::wait`].
    #[inline]
    pub(crate) fn begin<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        mut begun: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        match self {
            Self::Own(node) => waiter.begin(node, limit, what, begun),
            Self::Shared(threaded) => threaded.begin(waiter, limit, what, &mut begun),
        }
    }

    /// Waits until rails hold nothing back, as [`NodeWaiter::hand_over`] does.
    #[inline]
    pub(crate) fn hand_over(&mut self, waiter: &mut NodeWaiter, limit: Duration, what: Awaited) {
        match self {
            Self::Own(node) => waiter.hand_over(node, limit, what),
            Self::Shared(threaded) => waiter.hand_over(&mut threaded.turns(), limit, what),
        }
    }

    /// Makes one bounded pass with everything; returns the work found.
    pub(crate) fn progress(&mut self, waiter: &mut NodeWaiter) -> usize {
        match self {
            Self::Own(node) => waiter.progress(node),
            Self::Shared(_) if waiter.here().is_err() => 0,
            Self::Shared(threaded) => waiter.progress(&mut threaded.turns()),
        }
    }

    /// Ends the progress thread, and waits for its end: from here on nothing but the owner's calls reaches
    /// the node. Returns the panic of a handler that the owner has not got yet.
    pub(crate) fn stop(&mut self) -> Option<Payload> {
        match self {
            Self::Own(_) => None,
            Self::Shared(threaded) => threaded.stop(),
        }
    }

    /// Sends what was accepted and disconnects from the peers, as [`NodeWaiter::close`] does. The thread was
    /// stopped.
    pub(crate) fn close(&mut self, waiter: &mut NodeWaiter, limit: Duration) {
        match self {
            Self::Own(node) => waiter.close(node, limit),
            Self::Shared(threaded) => waiter.close(&mut threaded.turns(), limit),
        }
    }
}

/// Continues a panic that ended the progress thread, unless another one is under way.
pub(crate) fn resume(panic: Option<Payload>) {
    if let Some(payload) = panic.filter(|_| !thread::panicking()) {
        resume_unwind(payload);
    }
}

/// A node that is shared with its progress thread.
pub(crate) struct Threaded<T: Beside> {
    shared: Arc<Shared<T>>,
    thread: Option<Takeover>,
    /// The process that runs the thread.
    maker: Maker,
    /// The cores that the owner's thread has without this job.
    _narrowed: Option<Narrowed>,
}

/// What the owner and the thread share.
struct Shared<T> {
    state: Mutex<State<T>>,
    /// The owner's calls so far.
    made: AtomicU64,
    /// Whether a call of the owner waits, which makes progress itself.
    waits: AtomicBool,
    /// Whether the owner wants the lock.
    wanted: AtomicBool,
    /// Whether the thread is to end.
    stop: AtomicBool,
    /// Wakes the thread.
    bell: Bell,
}

/// What the lock is for.
pub(crate) struct State<T> {
    node: T,
    /// Whether the rails are armed for a sleep of the thread.
    asleep: bool,
    /// The panic of a handler on the thread, for the owner's next call.
    panic: Option<Payload>,
}

impl<T: Beside> Shared<T> {
    /// Takes the lock for a call of the owner, and takes a thread that sleeps off the rails.
    fn enter(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock_first();
        let made = self.made.load(Ordering::Relaxed).wrapping_add(1);
        self.made.store(made, Ordering::Relaxed);
        if state.asleep {
            self.wake(&mut state);
        }
        if state.panic.is_some() {
            let panic = state.panic.take();
            drop(state);
            resume(panic);
            return self.lock_first();
        }
        state
    }

    /// Takes the lock before the thread takes it again.
    fn lock_first(&self) -> MutexGuard<'_, State<T>> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_first(),
        }
    }

    #[cold]
    fn wait_first(&self) -> MutexGuard<'_, State<T>> {
        // A lock goes to the first that comes, which would be the thread that has just released it.
        self.wanted.store(true, Ordering::SeqCst);
        let state = self.lock();
        self.wanted.store(false, Ordering::SeqCst);
        state
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn wake(&self, state: &mut State<T>) {
        state.asleep = false;
        state.node.disarm();
        self.bell.ring();
    }

    /// Takes the lock for the thread; `None` while a call of the owner waits, and when the thread is to end.
    fn enter_beside(&self) -> Option<MutexGuard<'_, State<T>>> {
        while self.wanted.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let state = self.lock();
        // Both change without the lock. A change is seen at the latest once the owner has had the lock after
        // it: a wait takes it before its first look.
        let is_free = !self.waits.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst);
        is_free.then_some(state)
    }
}

impl<T: Beside> Threaded<T> {
    /// Starts the thread of a node.
    fn start(
        node: T,
        rank: u32,
        manner: Manner,
        clock: Clock,
        narrowed: Option<Narrowed>,
    ) -> Result<Self, Error> {
        let object = "the progress thread";
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                node,
                asleep: false,
                panic: None,
            }),
            made: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            bell: Bell::new(object)?,
        });
        let sleeper = Sleeper::new();
        let sleeper =
            sleeper.map_err(|source| Error::io("make an epoll set", object, source, "check `ulimit -n`"))?;
        let on = Charge {
            shared: Arc::clone(&shared),
            sleeper: RefCell::new(sleeper),
            clock,
        };
        let started = Takeover::start(&format!("doorbell-{rank}"), manner, on);
        let thread = started.map_err(|source| match manner.core {
            Some(core) => {
                let remedy = "leave the setting `progress.core` away, or check `ulimit -u`";
                Error::io(
                    "start the progress thread",
                    &format!("core {core}"),
                    source,
                    remedy,
                )
            }
            None => {
                let remedy = "check `ulimit -u` and the container's limit of threads";
                Error::io("start the progress thread", "this process", source, remedy)
            }
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
            maker: Maker::this(),
            _narrowed: narrowed,
        })
    }

    /// Begins a wait of the owner, which ends when this is dropped.
    pub(crate) fn turns(&mut self) -> Turns<'_, T> {
        self.shared.waits.store(true, Ordering::SeqCst);
        Turns(self)
    }

    #[inline(never)]
    fn wait<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        done: &mut dyn FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        waiter.here()?;
        let turns = &mut self.turns();
        waiter.wait(turns, limit, what, |at| done(&mut at.hold()))
    }

    #[inline(never)]
    fn wait_by<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        linger: &mut dyn FnMut(&mut T, u32) -> Seen,
        done: &mut dyn FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        waiter.here()?;
        let turns = &mut self.turns();
        let linger = |at: &mut Turns<'_, T>, looks| linger(&mut at.hold(), looks);
        waiter.wait_by(turns, limit, what, linger, |at| done(&mut at.hold()))
    }

    #[inline(never)]
    fn begin<R>(
        &mut self,
        waiter: &mut NodeWaiter,
        limit: Duration,
        what: Awaited,
        begun: &mut dyn FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Error> {
        waiter.here()?;
        let turns = &mut self.turns();
        waiter.begin(turns, limit, what, |at| begun(&mut at.hold()))
    }

    fn stop(&mut self) -> Option<Payload> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut state = self.shared.lock_first();
        // A thread that is about to sleep sees that it is to end, since both have the lock.
        if state.asleep {
            self.shared.wake(&mut state);
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        self.shared.lock().panic.take()
    }
}

impl<T: Beside> Drop for Threaded<T> {
    fn drop(&mut self) {
        if self.maker.is_running() {
            // What has stopped the thread before has reported its panic.
            drop(self.stop());
        }
    }
}

/// A shared node during a wait of its owner: each call takes the lock by itself.
pub(crate) struct Turns<'a, T: Beside>(&'a Threaded<T>);

impl<T: Beside> Turns<'_, T> {
    /// Holds the node.
    pub(crate) fn hold(&self) -> Hold<'_, T> {
        Hold::Shared(self.0.shared.enter())
    }
}

impl<T: Beside> Drop for Turns<'_, T> {
    fn drop(&mut self) {
        self.0.shared.waits.store(false, Ordering::SeqCst);
        if let Some(thread) = &self.0.thread {
            thread.waits_have_ended();
        }
    }
}

impl<T: Beside> PollableNode for Turns<'_, T> {
    fn poll(&mut self) -> usize {
        self.hold().poll()
    }

    fn linger(&mut self, looks: u32) -> bool {
        self.hold().linger(looks)
    }

    fn progress(&mut self, now: Time) -> usize {
        self.hold().progress(now)
    }

    fn wants_time(&self) -> bool {
        self.hold().wants_time()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.hold().next_deadline()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.hold().arm(each)
    }

    fn disarm(&mut self) {
        self.hold().disarm();
    }

    fn lost(&mut self) -> Option<(u32, DownReason)> {
        self.hold().lost()
    }

    fn ended(&mut self, rank: u32, reason: DownReason) {
        self.hold().ended(rank, reason);
    }

    fn flush(&mut self) {
        self.hold().flush();
    }

    fn forget_held(&mut self) {
        self.hold().forget_held();
    }

    fn holds_back(&mut self) -> bool {
        self.hold().holds_back()
    }

    fn give_up_held(&mut self) {
        self.hold().give_up_held();
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.hold().close(now, by)
    }

    fn troubles(&self) -> Vec<String> {
        self.hold().troubles()
    }

    fn is_cut_off(&self) -> bool {
        self.hold().is_cut_off()
    }

    fn recorded(&self, rank: u32) -> Vec<String> {
        self.hold().recorded(rank)
    }
}

/// What the thread is in charge of.
struct Charge<T> {
    shared: Arc<Shared<T>>,
    sleeper: RefCell<Sleeper>,
    clock: Clock,
}

impl<T: Beside> Charge<T> {
    /// Works on the node. `None` where the owner's call does, when the thread is to end, and after a panic.
    fn work<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.attempt(&mut *self.shared.enter_beside()?, work)
    }

    /// Works on the node; a panic, as of a handler, is kept for the owner's next call, and ends the thread.
    fn attempt<R>(&self, state: &mut State<T>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(|| work(&mut state.node))) {
            Ok(result) => Some(result),
            Err(panic) => {
                state.panic = Some(panic);
                self.shared.stop.store(true, Ordering::SeqCst);
                None
            }
        }
    }

    /// Makes a pass with everything.
    fn pass(&self, node: &mut T) -> usize {
        let work = node.poll_beside();
        work + node.progress_beside(self.clock.now())
    }
}

impl<T: Beside> Progress for Charge<T> {
    fn calls(&self) -> Option<Calls> {
        let calls = Calls {
            made: self.shared.made.load(Ordering::Relaxed),
            waits: self.shared.waits.load(Ordering::SeqCst),
        };
        (!self.shared.stop.load(Ordering::SeqCst)).then_some(calls)
    }

    fn keep(&self) {
        // It polls, too: a program may make calls all the time of which none makes progress.
        self.work(|node| self.pass(node));
    }

    fn look(&self) -> usize {
        let found = self.work(|node| match node.poll_beside() {
            work if node.wants_time() => work + node.progress_beside(self.clock.now()),
            work => work,
        });
        found.unwrap_or(0)
    }

    fn sleep(&self) -> bool {
        let Some(mut state) = self.shared.enter_beside() else {
            return true;
        };
        // A pass under the same lock: what the owner's last call has left in a queue shows on no
        // descriptor.
        match self.attempt(&mut state, |node| self.pass(node)) {
            Some(0) => {}
            Some(_) => return false,
            None => return true,
        }
        let (bell, mut sleeper) = (&self.shared.bell, self.sleeper.borrow_mut());
        bell.prepare();
        sleeper.begin();
        sleeper.watch(bell.descriptor().as_fd());
        if state.node.arm_beside(&mut |descriptor| sleeper.watch(descriptor)) {
            state.node.disarm();
            bell.finish();
            return false;
        }
        state.asleep = true;
        let due = state.node.next_deadline();
        let longest = due.map_or(LONGEST_NAP, |due| due.since(self.clock.now()).min(LONGEST_NAP));
        drop(state);
        let has_slept = sleeper.sleep(longest);
        bell.finish();
        let mut state = self.shared.lock();
        // The owner's call has done so where it came first.
        if std::mem::take(&mut state.asleep) {
            state.node.disarm();
        }
        has_slept
    }
}

//! What the library holds, under its one lock: the member, its interfaces, and who sleeps.

use std::os::fd::OwnedFd;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell::lobby::{Desk, Member};
use doorbell::takeover::{Manner, Takeover, without_signals};
use doorbell_fabric::ni::{Kind, NiLimits};
use doorbell_fabric::poll::timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::thread::Library;

/// The name of the library's thread.
const NAME: &str = "libportals";

static CORE: Mutex<Core> = Mutex::new(Core::new());
/// Notified when something may have changed for those that sleep while another thread watches the rails.
pub(crate) static CHANGED: Condvar = Condvar::new();
/// Whether this process is a child of the one that has the interfaces.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Arrivals that one look shows at most.
const BUDGET: usize = 64;
/// Housekeeping is done once in this many looks; a power of two.
const KEEP: u32 = 64;
/// The desk is polled once in this many looks; a power of two. The thread polls more often.
const SERVE: u32 = 1024;
/// The longest sleep without a look.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Between two attempts at the lock, at the end of the process.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) type Guard = MutexGuard<'static, Core>;

/// What sleepers watch.
#[derive(Debug)]
pub(crate) struct Watch {
    set: OwnedFd,
    /// Wakes a sleeper.
    bell: OwnedFd,
    /// Ends who serves the desk only.
    quit: OwnedFd,
}

const BELL: u64 = 1;
const OTHER: u64 = 0;

impl Watch {
    fn new() -> std::io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (bell, quit) = (event()?, event()?);
        epoll::add(&set, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self { set, bell, quit })
    }

    fn ring(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Answers those who call at the desk, until it is over.
    pub(crate) fn serve(&self, desk: &Desk) {
        loop {
            let mut both = [
                PollFd::new(&self.quit, PollFlags::IN),
                PollFd::from_borrowed_fd(desk.ready(), PollFlags::IN),
            ];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let [is_over, calls] = both.map(|fd| !fd.revents().is_empty());
            if is_over {
                return;
            }
            if calls {
                desk.serve();
            }
        }
    }

    fn sleep(&self, limit: Duration) {
        let limit = timespec(limit);
        let mut found = [const {
            epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(OTHER),
            }
        }; 8];
        // Whatever ends it, the caller looks.
        if let Ok(count) = epoll::wait(&self.set, &mut found[..], Some(&limit))
            && found.iter().take(count).any(|event| event.data.u64() == BELL)
        {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }
}

/// The library's thread.
#[derive(Debug)]
enum Helper {
    /// It makes progress between calls.
    Progress(Takeover),
    /// It answers at the desk only.
    Desk(JoinHandle<()>),
}

impl Helper {
    /// Waits for its end, for which it was woken.
    fn join(self) {
        match self {
            Self::Progress(takeover) => takeover.join(),
            // It cannot panic.
            Self::Desk(thread) => drop(thread.join()),
        }
    }
}

/// The process's rails and interfaces, from its first interface on.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) member: Member,
    /// How often each kind was initialised.
    pub(crate) counts: [u32; 4],
    pub(crate) limits: [NiLimits; 4],
    /// Bundles that are open.
    pub(crate) bundles: u32,
    watch: Arc<Watch>,
    /// The thread, where there is one.
    thread: Option<Helper>,
    looks: u32,
}

impl Live {
    pub(crate) fn new(member: Member) -> std::io::Result<Self> {
        Ok(Self {
            member,
            counts: [0; 4],
            limits: [NiLimits::default(); 4],
            bundles: 0,
            watch: Arc::new(Watch::new()?),
            thread: None,
            looks: 0,
        })
    }

    /// Polls the rails once; does housekeeping now and then.
    #[inline]
    pub(crate) fn look(&mut self) -> usize {
        self.looks = self.looks.wrapping_add(1);
        if self.looks & (KEEP - 1) == 0 {
            self.keep();
        }
        self.member.poll(BUDGET)
    }

    #[cold]
    fn keep(&mut self) {
        if self.looks & (SERVE - 1) == 0 {
            self.member.desk().serve();
        }
        self.progress();
    }

    /// Does what is due by the clock, and accepts connections. Returns the work done.
    pub(crate) fn housekeeping(&mut self) -> usize {
        self.member.desk().serve();
        self.progress()
    }

    fn progress(&mut self) -> usize {
        let work = self.member.progress();
        if let Some(shortage) = self.member.take_shortage() {
            crate::call::warn(&format!("other processes wait to be met: {shortage}"));
        }
        work
    }

    /// Sends what was begun, unless a bundle is open.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.bundles == 0 {
            self.member.flush();
        }
    }

    /// No call waits any more.
    pub(crate) fn waits_have_ended(&self) {
        if let Some(Helper::Progress(takeover)) = &self.thread {
            takeover.waits_have_ended();
        }
    }

    fn arm(&mut self) -> bool {
        let mut failed = false;
        let watch = &self.watch;
        let ready = self.member.arm(&mut |fd| {
            match epoll::add(&watch.set, fd, EventData::new_u64(OTHER), EventFlags::IN) {
                // One that is there stays: rails and listener close their descriptors with the member.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(_) => failed = true,
            }
        });
        ready || failed
    }
}

/// The whole state of the library.
#[derive(Debug)]
pub(crate) struct Core {
    /// `PtlInit` less `PtlFini`.
    pub(crate) inits: u32,
    pub(crate) live: Option<Live>,
    /// Calls so far: by it the thread knows whether calls are made.
    pub(crate) activity: u64,
    /// Callers inside of a wait.
    pub(crate) waiting: u32,
    /// The waiting callers that sleep.
    asleep: u32,
    /// A thread watches the rails' descriptors.
    watched: bool,
    /// Whether the thread watches them, and was not woken yet.
    thread_sleeps: bool,
    /// Whether there was work instead when the thread was about to watch them the last time.
    pub(crate) thread_has_work: bool,
    /// The thread is to end.
    pub(crate) stop: bool,
    /// The interfaces are on their way out.
    ending: bool,
}

impl Core {
    const fn new() -> Self {
        Self {
            inits: 0,
            live: None,
            activity: 0,
            waiting: 0,
            asleep: 0,
            watched: false,
            thread_sleeps: false,
            thread_has_work: false,
            stop: false,
            ending: false,
        }
    }

    /// The member with an interface of this kind.
    #[inline]
    pub(crate) fn with(&mut self, kind: Kind) -> Option<&mut Live> {
        let live = self.live.as_mut()?;
        (live.counts[kind.number() as usize] > 0).then_some(live)
    }

    /// Begins a call: sleepers have to look again, and the library's thread leaves the rails to the caller.
    #[inline]
    fn stir(&mut self) {
        self.activity = self.activity.wrapping_add(1);
        if self.thread_sleeps {
            self.thread_sleeps = false;
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        if let Some(live) = &self.live {
            live.watch.ring();
        }
    }

    /// Wakes those who sleep in a wait: what they wait for may be there.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.asleep > 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        if self.watched {
            self.ring();
        }
        CHANGED.notify_all();
    }

    /// Starts the thread that makes progress between calls, or one that answers at the desk only.
    pub(crate) fn start_thread(&mut self, progress: Option<Manner>) -> std::io::Result<()> {
        self.stop = false;
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        live.thread = Some(if let Some(manner) = progress {
            Helper::Progress(Takeover::start(NAME, manner, Library)?)
        } else {
            let (watch, desk) = (Arc::clone(&live.watch), live.member.desk().clone());
            let thread = std::thread::Builder::new().name(NAME.to_owned());
            Helper::Desk(without_signals(|| thread.spawn(move || watch.serve(&desk)))?)
        });
        Ok(())
    }
}

/// Takes the lock without counting as a call.
pub(crate) fn lock() -> Guard {
    CORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, for a call.
#[inline]
pub(crate) fn enter() -> Guard {
    let mut core = lock();
    core.stir();
    core
}

/// Whether calls are to fail, because this process is a child.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Marks a child of fork: the interfaces are the parent's.
pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Wakes all sleepers, for them to see that waits are to end.
pub(crate) fn wake_all() {
    let core = lock();
    core.ring();
    CHANGED.notify_all();
}

/// Sleeps until something may have come, or `limit` is over: one of all sleeping callers watches the rails,
/// the others wait for it.
pub(crate) fn nap(mut core: Guard, limit: Option<Duration>, is_thread: bool) -> Guard {
    let limit = limit.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
    if !is_thread {
        core.asleep += 1;
    }
    if core.watched {
        let waited = CHANGED.wait_timeout(core, limit);
        core = waited.unwrap_or_else(PoisonError::into_inner).0;
    } else {
        core = watch(core, limit, is_thread);
    }
    if !is_thread {
        core.asleep -= 1;
    }
    core
}

fn watch(mut core: Guard, limit: Duration, is_thread: bool) -> Guard {
    let Some(live) = &mut core.live else {
        return core;
    };
    if live.arm() {
        live.member.disarm();
        live.housekeeping();
        if is_thread {
            // It goes on soon, and so for as long as no call takes what waits: calls get their turn in
            // between.
            core.thread_has_work = true;
            drop(core);
            std::thread::yield_now();
            core = lock();
        }
        return core;
    }
    let limit = live.member.idle().map_or(limit, |idle| idle.min(limit));
    let watch = Arc::clone(&live.watch);
    core.watched = true;
    core.thread_sleeps = is_thread;
    drop(core);
    watch.sleep(limit);
    core = lock();
    core.watched = false;
    if is_thread {
        core.thread_sleeps = false;
    }
    if let Some(live) = &mut core.live {
        live.member.disarm();
        live.housekeeping();
    }
    // One of those who wait for us watches next.
    if core.asleep > 0 {
        CHANGED.notify_all();
    }
    core
}

/// Waits until interfaces that are on their way out are gone.
pub(crate) fn until_ended(mut core: Guard) -> Guard {
    while core.ending {
        core = CHANGED.wait(core).unwrap_or_else(PoisonError::into_inner);
    }
    core
}

/// Ends everything: the thread first, then what was sent is pushed out.
pub(crate) fn end(core: Guard, limit: Duration) {
    let mut core = until_ended(core);
    // Another thread may have started, or ended, the library meanwhile.
    if core.inits > 0 || core.live.is_none() {
        return;
    }
    core.ending = true;
    core.stop = true;
    core.ring();
    CHANGED.notify_all();
    if let Some(live) = &core.live {
        let _ = rustix::io::write(&live.watch.quit, &1_u64.to_ne_bytes());
    }
    let thread = core.live.as_mut().and_then(|live| live.thread.take());
    drop(core);
    if let Some(thread) = thread {
        thread.join();
    }
    let live = lock().live.take();
    // It is over also where closing panics.
    let _over = Over;
    if let Some(mut live) = live {
        live.member.close(limit);
    }
}

/// Opens the door to those who wait for the end.
struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        lock().ending = false;
        CHANGED.notify_all();
    }
}

/// Ends the library at the end of the process, like [`end`], without waiting for the thread, and for `limit`
/// at most for a thread that holds the lock.
pub(crate) fn end_at_exit(limit: Duration) {
    if is_forked() {
        return;
    }
    // A launcher takes a process that ends without PMI's finalize for failed, so a panic must not prevent
    // that.
    let _ = catch_unwind(|| {
        if let Some(mut core) = lock_until(Instant::now() + limit) {
            core.stop = true;
            if let Some(mut live) = core.live.take() {
                live.watch.ring();
                live.member.close(limit);
                // Rails that are dropped may wait for a peer. The system takes what they have.
                live.member.forget();
            }
        }
    });
    doorbell::lobby::finish();
}

/// Takes the lock, if its holder releases it until then.
fn lock_until(until: Instant) -> Option<Guard> {
    loop {
        match CORE.try_lock() {
            Ok(core) => return Some(core),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(RETRY),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// A copy of the desk.
pub(crate) fn desk(core: &Core) -> Option<Desk> {
    core.live.as_ref().map(|live| live.member.desk().clone())
}

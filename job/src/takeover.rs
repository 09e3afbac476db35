//! The thread that makes progress while the program makes no calls: one for every C library of ours.
//!
//! ```text
//!   ticking ── no call for a tick ──►  in charge: looks, then sleeps on the rails' descriptors
//!      ▲  └── housekeeping on every tick           │
//!      └────────────── a call ─────────────────────┘
//! ```
//!
//! While a call of the program waits, that call makes progress, and the thread is parked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

/// How long no call has to be made before the thread takes over.
const TICK: Duration = Duration::from_micros(500);
/// A wait that goes on is looked at this often.
const PARKED: Duration = Duration::from_millis(100);
/// Rounds in which nothing is found and no sleep can begin, before the thread rests for a tick.
const ROUNDS: u32 = 64;
/// Looks without letting a call in between.
const LOOKS: usize = 16;

/// What the thread has learned about the program's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// How many were made; it may wrap.
    pub made: u64,
    /// Whether one waits, and so makes progress itself.
    pub waits: bool,
}

/// What the thread makes progress of. Each function takes the library's lock by itself, and counts as no
/// call.
pub trait Progress {
    /// Returns what is known of the program's calls; `None` when the thread is to end.
    fn calls(&self) -> Option<Calls>;

    /// Does what depends on the clock.
    fn keep(&self);

    /// Makes a bounded pass. Returns the work found.
    fn look(&self) -> usize;

    /// Sleeps, without the lock, until a look may find something or a call is made. Returns `false` at once
    /// when there may be something already, and where no sleep is possible.
    fn sleep(&self) -> bool;
}

/// A thread that was started.
#[derive(Debug)]
pub struct Takeover {
    pause: Arc<Pause>,
    thread: JoinHandle<()>,
}

impl Takeover {
    /// Starts the thread, with all signals blocked: it never takes those of the program.
    ///
    /// # Errors
    /// Those of the system, which has no thread left.
    pub fn start(name: &str, on: impl Progress + Send + 'static) -> std::io::Result<Self> {
        let pause = Arc::new(Pause::default());
        let own = Arc::clone(&pause);
        // A panic ends the thread, and not the program; calls go on making progress.
        let work = move || drop(catch_unwind(AssertUnwindSafe(|| run(&on, &own))));
        let thread = without_signals(|| std::thread::Builder::new().name(name.to_owned()).spawn(work))?;
        Ok(Self { pause, thread })
    }

    /// No call waits any more: [`Progress::calls`] returns that from now on.
    #[inline]
    pub fn waits_have_ended(&self) {
        // Either this sees a thread that parks, or that one sees that no call waits.
        if self.pause.is_parked.load(Ordering::SeqCst) {
            self.pause.wake();
        }
    }

    /// Waits until the thread has ended. [`Progress::calls`] returns `None`, and [`Progress::sleep`] was
    /// woken.
    pub fn join(self) {
        self.pause.wake();
        // It has caught its own panics.
        let _ = self.thread.join();
    }
}

/// Does something with all signals blocked: a thread that it starts takes none of the program's.
pub fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let result = work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}

/// Where the thread pauses.
#[derive(Debug, Default)]
struct Pause {
    /// Whether it is to go on at once.
    woken: Mutex<bool>,
    changed: Condvar,
    /// Whether it pauses because calls wait.
    is_parked: AtomicBool,
}

impl Pause {
    fn woken(&self) -> MutexGuard<'_, bool> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        *self.woken() = true;
        self.changed.notify_all();
    }

    /// Pauses for this time, or until it is woken.
    fn rest(&self, limit: Duration) {
        let waited = self
            .changed
            .wait_timeout_while(self.woken(), limit, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Pauses while calls wait.
    fn park(&self, on: &impl Progress) {
        // A wait that ends after the look at it finds the thread parked, and wakes it.
        self.is_parked.store(true, Ordering::SeqCst);
        if on.calls().is_some_and(|calls| calls.waits) {
            self.rest(PARKED);
        }
        self.is_parked.store(false, Ordering::Relaxed);
    }
}

fn run(on: &impl Progress, pause: &Pause) {
    // The call that starts it is one.
    let mut seen = None;
    let mut fruitless = 0;
    while let Some(calls) = on.calls() {
        if calls.waits {
            pause.park(on);
            on.keep();
        } else if seen != Some(calls.made) {
            seen = Some(calls.made);
            pause.rest(TICK);
            on.keep();
        } else if (0..LOOKS).all(|_| on.look() > 0) {
            fruitless = 0;
            std::thread::yield_now();
        } else if on.sleep() {
            fruitless = 0;
        } else if fruitless < ROUNDS {
            fruitless += 1;
        } else {
            // Sends wait for a peer that makes no calls, or there is nothing to sleep on.
            pause.rest(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::Instant;

    use super::*;

    /// A library: its calls, and how often the thread did what.
    #[derive(Debug, Default)]
    struct Library {
        over: AtomicBool,
        /// Whether calls are made all the time.
        calls: AtomicBool,
        made: AtomicU64,
        waits: AtomicBool,
        /// Whether no sleep is possible.
        awake: AtomicBool,
        kept: AtomicU32,
        looks: AtomicU32,
        work: AtomicU32,
        sleeps: AtomicU32,
    }

    impl Progress for Arc<Library> {
        fn calls(&self) -> Option<Calls> {
            let more = u64::from(self.calls.load(Ordering::SeqCst));
            let made = self.made.fetch_add(more, Ordering::SeqCst);
            let waits = self.waits.load(Ordering::SeqCst);
            (!self.over.load(Ordering::SeqCst)).then_some(Calls { made, waits })
        }

        fn keep(&self) {
            self.kept.fetch_add(1, Ordering::SeqCst);
        }

        fn look(&self) -> usize {
            self.looks.fetch_add(1, Ordering::SeqCst);
            let less = |work: u32| work.checked_sub(1);
            usize::from(
                self.work
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                    .is_ok(),
            )
        }

        fn sleep(&self) -> bool {
            self.sleeps.fetch_add(1, Ordering::SeqCst);
            if self.awake.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
            true
        }
    }

    fn until(what: impl Fn() -> bool) {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < Duration::from_secs(20), "it never comes");
            std::thread::yield_now();
        }
    }

    fn start(library: &Arc<Library>) -> Takeover {
        Takeover::start("takeover", Arc::clone(library)).unwrap()
    }

    #[test]
    fn it_takes_over_when_no_calls_are_made_and_does_what_there_is() {
        let library = Arc::new(Library::default());
        library.work.store(100, Ordering::SeqCst);
        let thread = start(&library);
        until(|| library.work.load(Ordering::SeqCst) == 0 && library.sleeps.load(Ordering::SeqCst) > 2);
        library.over.store(true, Ordering::SeqCst);
        thread.join();
    }

    #[test]
    fn it_keeps_out_while_calls_are_made() {
        let library = Arc::new(Library::default());
        library.calls.store(true, Ordering::SeqCst);
        let thread = start(&library);
        until(|| library.kept.load(Ordering::SeqCst) > 5);
        assert_eq!(library.looks.load(Ordering::SeqCst), 0);
        library.calls.store(false, Ordering::SeqCst);
        until(|| library.sleeps.load(Ordering::SeqCst) > 0);
        library.over.store(true, Ordering::SeqCst);
        thread.join();
    }

    #[test]
    fn it_is_parked_while_a_call_waits_and_woken_when_none_does() {
        let library = Arc::new(Library::default());
        library.waits.store(true, Ordering::SeqCst);
        let thread = start(&library);
        until(|| thread.pause.is_parked.load(Ordering::SeqCst));
        assert_eq!(library.looks.load(Ordering::SeqCst), 0);
        library.waits.store(false, Ordering::SeqCst);
        thread.waits_have_ended();
        until(|| library.sleeps.load(Ordering::SeqCst) > 0);
        library.over.store(true, Ordering::SeqCst);
        thread.join();
    }

    #[test]
    fn it_rests_where_no_sleep_is_possible_and_nothing_is_found() {
        let library = Arc::new(Library::default());
        library.awake.store(true, Ordering::SeqCst);
        let thread = start(&library);
        until(|| library.sleeps.load(Ordering::SeqCst) > ROUNDS);
        let before = library.looks.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        let looks = library.looks.load(Ordering::SeqCst) - before;
        assert!(looks < 1000, "{looks} looks in a hundred ticks");
        library.over.store(true, Ordering::SeqCst);
        thread.join();
    }

    #[test]
    fn its_signals_are_blocked_and_the_callers_are_as_before() {
        let before = SigSet::thread_get_mask().unwrap();
        let inside = without_signals(|| SigSet::thread_get_mask().unwrap());
        assert!(inside.contains(nix::sys::signal::Signal::SIGINT));
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}

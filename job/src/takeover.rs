//! The thread that makes progress while the program makes no calls: one for every C library of ours.
//!
//! ```text
//!   ticking ── no call for a tick ──►  in charge: looks, then sleeps on the rails' descriptors
//!      ▲  └── housekeeping on every tick           │
//!      └────────────── a call ─────────────────────┘
//! ```
//!
//! While a call of the program waits, that call makes progress, and the thread is parked.
//!
//! With a core of its own ([`Manner`]) it may look without end instead of sleeping, and takes over sooner.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_fabric::cores::{self, CoreSet};
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::binding;
use crate::config::{Config, Wait};
use crate::error::Error;

/// How long no call has to be made before the thread takes over.
const TICK: Duration = Duration::from_micros(500);
/// A wait that goes on is looked at this often.
const PARKED: Duration = Duration::from_millis(100);
/// Rounds in which nothing is found and no sleep can begin, before the thread rests for a tick.
const ROUNDS: u32 = 64;
/// Looks without letting a call in between.
const LOOKS: usize = 16;
/// A thread that spins does what depends on the clock once in this many looks that find nothing.
const KEEP_EVERY: u32 = 256;

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

/// How long no call has to be made before a thread that spins takes over: longer than a program needs
/// between two calls of a loop.
const SOON: Duration = Duration::from_micros(20);

/// Where the thread runs, and what it does while nothing comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// The core that it is bound to.
    pub core: Option<usize>,
    /// Whether it looks without end, and never sleeps.
    pub spins: bool,
}

impl Manner {
    /// Reads the settings: `progress.core` has the core, and with `progress.wait = lowest-latency` the thread
    /// spins, unless it has to share its core, which is reported on the standard error. With `auto` it is
    /// bound to none.
    ///
    /// # Errors
    /// Those of [`binding::of_takeover`].
    pub fn of(config: &Config) -> Result<Self, Error> {
        let binding = binding::of_takeover(config)?;
        Ok(Self {
            core: binding.progress,
            // On a core that it shares it would keep the program from running.
            spins: *config.progress.wait.get() == Wait::LowestLatency && binding.shares.is_none(),
        })
    }

    /// Whether it is neither bound nor spins.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
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
    /// Those of the system, which has no thread left, or does not let it be bound.
    pub fn start(name: &str, manner: Manner, on: impl Progress + Send + 'static) -> std::io::Result<Self> {
        let pause = Arc::new(Pause::default());
        let own = Arc::clone(&pause);
        let (report, bound) = mpsc::sync_channel(1);
        let work = move || {
            let to = manner.core.map(|core| CoreSet::from_iter([core]));
            let is_bound = to.map_or(Ok(()), |to| cores::bind(&to));
            let goes_on = is_bound.is_ok();
            // The other end waits for it.
            let _ = report.send(is_bound);
            if goes_on {
                // A panic ends the thread, and not the program; calls go on making progress.
                drop(catch_unwind(AssertUnwindSafe(|| run(&on, &own, manner))));
            }
        };
        let thread = without_signals(|| std::thread::Builder::new().name(name.to_owned()).spawn(work))?;
        // A thread that ended before it could report has panicked while it was bound: it is not there.
        bound
            .recv()
            .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))?;
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

/// Waits until no call was made for long enough to take over, or one was.
fn let_calls_pass(on: &impl Progress, pause: &Pause, manner: Manner, seen: u64) {
    if !manner.spins {
        return pause.rest(TICK);
    }
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        std::hint::spin_loop();
    }
    // A program that makes calls all the time is looked at seldom: each look takes its lock.
    if on.calls().is_some_and(|calls| calls.made != seen) {
        pause.rest(TICK);
    }
}

/// Looks without end while nothing comes; does what depends on the clock now and then.
fn spin(on: &impl Progress, manner: Manner, fruitless: &mut u32) {
    *fruitless = fruitless.wrapping_add(1);
    if fruitless.is_multiple_of(KEEP_EVERY) {
        on.keep();
        // Without a core of its own it may be in the way of the program.
        if manner.core.is_none() {
            std::thread::yield_now();
        }
    }
    std::hint::spin_loop();
}

fn run(on: &impl Progress, pause: &Pause, manner: Manner) {
    // The call that starts it is one.
    let mut seen = None;
    let mut fruitless = 0;
    while let Some(calls) = on.calls() {
        if calls.waits {
            pause.park(on);
            on.keep();
        } else if seen != Some(calls.made) {
            seen = Some(calls.made);
            let_calls_pass(on, pause, manner, calls.made);
            on.keep();
        } else if (0..LOOKS).all(|_| on.look() > 0) {
            fruitless = 0;
            if !manner.spins {
                std::thread::yield_now();
            }
        } else if manner.spins {
            spin(on, manner, &mut fruitless);
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
        Takeover::start("takeover", Manner::default(), Arc::clone(library)).unwrap()
    }

    #[test]
    fn with_a_core_it_spins_there_and_never_sleeps() {
        let core = cores::allowed().iter().next_back();
        let manner = Manner { core, spins: true };
        let library = Arc::new(Library::default());
        let thread = Takeover::start("spinning", manner, Arc::clone(&library)).unwrap();
        until(|| library.looks.load(Ordering::SeqCst) > 100 * KEEP_EVERY);
        assert_eq!(library.sleeps.load(Ordering::SeqCst), 0);
        assert!(library.kept.load(Ordering::SeqCst) >= 100);
        assert_eq!(cores_of("spinning"), core.map(|core| core.to_string()));
        // It gives way to calls, and finds what comes afterwards.
        library.calls.store(true, Ordering::SeqCst);
        let after = |rounds| {
            let kept = library.kept.load(Ordering::SeqCst);
            until(|| library.kept.load(Ordering::SeqCst) >= kept + rounds);
            library.looks.load(Ordering::SeqCst)
        };
        // What it had begun ends with the first of them.
        let before = after(3);
        assert_eq!(after(3), before);
        library.calls.store(false, Ordering::SeqCst);
        library.work.store(1, Ordering::SeqCst);
        until(|| library.work.load(Ordering::SeqCst) == 0);
        library.over.store(true, Ordering::SeqCst);
        thread.join();
    }

    /// The cores of the thread of this process with this name, as the kernel has them.
    fn cores_of(name: &str) -> Option<String> {
        let folders = std::fs::read_dir("/proc/self/task").unwrap();
        let read = |folder: &std::path::Path, file: &str| std::fs::read_to_string(folder.join(file)).ok();
        let folder = folders
            .map(|folder| folder.unwrap().path())
            .find(|folder| read(folder, "comm").is_some_and(|found| found.trim() == name))?;
        let status = read(&folder, "status")?;
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(list.trim().to_owned())
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        let manner = Manner {
            core: Some(8000),
            spins: false,
        };
        assert!(Takeover::start("nowhere", manner, Arc::new(Library::default())).is_err());
    }

    #[test]
    fn settings_name_core_and_spinning() {
        let of = |settings: &[(&str, &str)]| {
            let mut config = Config::default();
            for (name, value) in settings {
                config.set(name, value).unwrap();
            }
            Manner::of(&config)
        };
        assert!(of(&[]).unwrap().is_usual());
        let last = cores::allowed().iter().next_back().unwrap();
        let text = last.to_string();
        let core = of(&[
            ("progress.core", text.as_str()),
            ("progress.wait", "lowest-latency"),
        ])
        .unwrap();
        assert_eq!(
            core,
            Manner {
                core: Some(last),
                spins: true
            }
        );
        assert!(of(&[("progress.core", "8000")]).is_err());
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

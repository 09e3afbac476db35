//! The thread that makes progress between calls.
//!
//! ```text
//!   ticking ── no call for a tick ──►  in charge: looks, then sleeps on the rails' descriptors
//!      ▲  └── housekeeping on every tick           │
//!      └────────────── a call ─────────────────────┘
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use crate::state::{Guard, HANDED, lock, nap};

/// How long no call has to be made before the thread takes over.
const TICK: Duration = Duration::from_micros(500);
/// A wait that goes on is looked at this often.
const PARKED: Duration = Duration::from_millis(100);
/// Looks without letting a call in between.
const LOOKS: usize = 16;

pub(crate) fn run() {
    // A panic ends the thread, and not the program; calls go on making progress.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn work() {
    let mut core = lock();
    let mut seen = core.activity;
    core = tick(core, TICK);
    while !core.stop {
        if core.waiting > 0 {
            core.thread_parked = true;
            core = tick(core, PARKED);
            core.thread_parked = false;
            continue;
        }
        if core.activity != seen {
            seen = core.activity;
            core = tick(core, TICK);
            continue;
        }
        core = take_charge(core);
    }
}

fn tick(core: Guard, limit: Duration) -> Guard {
    let waited = HANDED.wait_timeout(core, limit);
    let mut core = waited.unwrap_or_else(PoisonError::into_inner).0;
    if let Some(live) = &mut core.live
        && live.housekeeping() > 0
    {
        core.wake();
    }
    core
}

fn take_charge(mut core: Guard) -> Guard {
    let Some(live) = &mut core.live else {
        return tick(core, PARKED);
    };
    for _ in 0..LOOKS {
        if live.look() == 0 {
            live.housekeeping();
            live.member.flush();
            return nap(core, None, true);
        }
    }
    core.wake();
    drop(core);
    std::thread::yield_now();
    lock()
}

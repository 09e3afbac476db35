//! Calls that wait: they look for a short while, then sleep until something comes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::call::{ABORTED, Code};
use crate::state::{Core, Guard, enter, lock, nap, wake_all};

/// How long a wait looks before it sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;

/// How often `PtlAbort` was called: it ends every wait that began with another number.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// The limit of a call's wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Looks once, without waiting.
    Now,
    /// Until this time.
    At(Instant),
    /// Waits until it has what it waits for.
    Never,
}

impl Limit {
    /// The limit of a `ptl_time_t`: milliseconds.
    pub(crate) fn of_ms(ms: u32) -> Self {
        match ms {
            0 => Self::Now,
            u32::MAX => Self::Never,
            ms => Self::At(Instant::now() + Duration::from_millis(u64::from(ms))),
        }
    }

    fn left(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::At(until) => Some(until.saturating_duration_since(Instant::now())),
            Self::Never => None,
        }
    }
}

/// Ends the waits that are under way.
pub(crate) fn abort() {
    EPOCH.fetch_add(1, Ordering::SeqCst);
    // A thread that has read the number before sleeps by now, as both are done under the lock.
    wake_all();
}

/// Counts a caller as waiting for as long as it is there.
struct Waiting;

impl Waiting {
    fn begin(core: &mut Core) -> Self {
        core.waiting += 1;
        Self
    }

    fn end(self, core: &mut Core) {
        core.waiting -= 1;
        core.activity = core.activity.wrapping_add(1);
        if core.waiting == 0
            && let Some(live) = &core.live
        {
            live.waits_have_ended();
        }
    }
}

/// Looks until `done` finds something; `None` when the time is up before.
///
/// # Errors
/// Those of `done`; `PTL_ABORTED`.
pub(crate) fn wait<R>(
    limit: Limit,
    done: impl FnMut(&mut Core) -> Result<Option<R>, Code>,
) -> Result<Option<R>, c_int> {
    let epoch = EPOCH.load(Ordering::SeqCst);
    wait_on(enter(), limit, Some(epoch), done).1
}

/// Waits like [`wait`], with the lock that the caller has; without the number that it began with, `PtlAbort`
/// does not end it.
pub(crate) fn wait_on<R>(
    mut core: Guard,
    limit: Limit,
    epoch: Option<u32>,
    mut done: impl FnMut(&mut Core) -> Result<Option<R>, Code>,
) -> (Guard, Result<Option<R>, c_int>) {
    if core.live.is_none() {
        let code = crate::call::absent(&core);
        return (core, Err(code));
    }
    match look(&mut core, &mut done) {
        Err(code) => return (core, Err(code)),
        Ok(Some(found)) => return (core, Ok(Some(found))),
        Ok(None) if matches!(limit, Limit::Now) => return (core, Ok(None)),
        Ok(None) => {}
    }
    let waiting = Waiting::begin(&mut core);
    let (mut core, result) = go_on(core, limit, epoch, &mut done);
    waiting.end(&mut core);
    (core, result)
}

fn look<R>(
    core: &mut Core,
    done: &mut impl FnMut(&mut Core) -> Result<Option<R>, Code>,
) -> Result<Option<R>, c_int> {
    let Some(live) = &mut core.live else {
        return Err(crate::call::absent(core));
    };
    if live.member.has_strangers() {
        live.member.look_up(None);
    }
    if live.look() > 0 {
        // Triggered operations leave now: the caller may not come back for long.
        live.flush();
        core.wake();
    }
    done(core)
}

fn go_on<R>(
    mut core: Guard,
    limit: Limit,
    epoch: Option<u32>,
    done: &mut impl FnMut(&mut Core) -> Result<Option<R>, Code>,
) -> (Guard, Result<Option<R>, c_int>) {
    let began = Instant::now();
    let mut looks = 0_u32;
    loop {
        if epoch.is_some_and(|epoch| epoch != EPOCH.load(Ordering::SeqCst)) {
            return (core, Err(ABORTED));
        }
        match look(&mut core, done) {
            Ok(None) => {}
            Ok(found) => return (core, Ok(found)),
            Err(code) => return (core, Err(code)),
        }
        looks = looks.wrapping_add(1);
        if !looks.is_multiple_of(LOOKS) {
            drop(core);
            std::hint::spin_loop();
            core = lock();
            continue;
        }
        let left = limit.left();
        if left.is_some_and(|left| left.is_zero()) {
            return (core, Ok(None));
        }
        if began.elapsed() < SPIN {
            drop(core);
            std::thread::yield_now();
            core = lock();
        } else {
            core = nap(core, left, false);
        }
    }
}

/// Looks once, for a call that does not wait.
///
/// # Errors
/// Those of `done`.
pub(crate) fn glance<R>(done: impl FnOnce(&mut Core) -> Result<R, Code>) -> Result<R, c_int> {
    let mut core = enter();
    let Some(live) = &mut core.live else {
        return Err(crate::call::absent(&core));
    };
    if live.member.has_strangers() {
        live.member.look_up(None);
    }
    if live.look() > 0 {
        live.flush();
        core.wake();
    }
    done(&mut core)
}

//! Waits: a call that waits spins for a while, then sleeps on descriptors without the domain's lock; a client
//! with an event loop of its own sleeps on them itself, after fi_trywait(3).
//!
//! ```text
//!   spin ── nothing ──► arm the member ── nothing ──► sleep ──► disarm, look
//! ```
//!
//! A signal that interrupts the sleep does not end the call. While the member is armed its peers ring, which
//! costs them; so every call that finds it armed disarms it, and wakes those who sleep: they look, and arm it
//! again. A call that goes to sleep itself arms it again, and leaves the others asleep: two that sleep would
//! wake each other for ever.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libfabric_sys::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as System;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::bell::Bell;
use crate::cq::Outlet;
use crate::domain::{Domain, State};
use crate::errno::{Answer, Errno, Result};
use crate::wait::{WaitKind, WaitSet};

/// Looks between two readings of the clock.
const LOOKS: u64 = 64;
/// The longest sleep without a look.
const LONGEST: Duration = Duration::from_secs(1);
/// Passes without the clock, for one with it; while peers are being met, each that finds nothing has it.
const KEEP: u32 = 64;
/// Passes in a row that find nothing, before those with the clock yield the core, where the setting
/// `progress.spins` is automatic: some ten microseconds.
pub(crate) const IDLE: u32 = 512;

/// How long a call that waits looks before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spin {
    /// It looks for this time.
    For(Duration),
    /// It looks this many times.
    Looks(u32),
    /// It never sleeps.
    Always,
}

impl Spin {
    /// By the setting `progress.spins`, of which the largest number means always, as for every other wait.
    pub(crate) fn of(spins: Option<u32>) -> Self {
        match spins {
            None => Self::For(Duration::from_micros(100)),
            Some(u32::MAX) => Self::Always,
            Some(looks) => Self::Looks(looks),
        }
    }

    /// Whether it is over after this number of looks, in this time.
    fn is_over(self, looks: u64, waited: Duration) -> bool {
        match self {
            Self::For(time) => waited >= time,
            Self::Looks(most) => looks >= u64::from(most),
            Self::Always => false,
        }
    }

    /// Whether the core is yielded now and then after this number of looks.
    fn yields(self, looks: u64) -> bool {
        match self {
            Self::For(_) => true,
            Self::Looks(_) | Self::Always => self.is_over(looks, Duration::ZERO),
        }
    }
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Until it has what it waits for.
    Never,
    /// At most this time.
    After(Duration),
}

impl Limit {
    /// The limit of a number of milliseconds, of which a negative one means none.
    pub(crate) fn of(milliseconds: c_int) -> Self {
        match u64::try_from(milliseconds) {
            Ok(milliseconds) => Self::After(Duration::from_millis(milliseconds)),
            Err(_) => Self::Never,
        }
    }

    /// What is left after this time, for one sleep.
    pub(crate) fn left(self, waited: Duration) -> Duration {
        match self {
            Self::Never => LONGEST,
            Self::After(limit) => limit.saturating_sub(waited),
        }
    }
}

/// Waits until an attempt has a result, for at most `limit`; `None` when that is over. `sleep` sleeps until
/// another attempt is of use. For objects of a fabric: what waits in a domain is [`Domain::wait`].
///
/// # Errors
/// Those of the attempt and of the sleep.
pub(crate) fn until<R>(
    limit: Limit,
    mut attempt: impl FnMut() -> Result<Option<R>>,
    sleep: impl Fn(Duration) -> Result<()>,
) -> Result<Option<R>> {
    let began = Instant::now();
    loop {
        let found = attempt()?;
        let left = limit.left(began.elapsed());
        if found.is_some() || left.is_zero() {
            return Ok(found);
        }
        sleep(left)?;
    }
}

/// One attempt of a call that waits.
enum Step<R> {
    Done(R),
    /// There is no answer yet.
    Again,
    /// There is none yet, and a sleep is prepared.
    Sleep(Nap),
    Failed(Errno),
}

impl<R> Answer for Step<R> {
    fn of_errno(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl Domain {
    /// Waits until `done` has an answer, for at most `limit`; then it is `expired`. Between two attempts the
    /// domain is free for calls of other threads.
    pub(crate) fn wait<R: Answer>(
        &self,
        call: &'static str,
        limit: Limit,
        mut done: impl FnMut(&mut State) -> Result<Option<R>>,
        bell: impl Fn(&mut State) -> Option<&mut Bell>,
        expired: Errno,
    ) -> R {
        let _waiting = self.note_waiting();
        let mut began = None;
        let mut looks = 0_u64;
        let mut waited = Duration::ZERO;
        loop {
            let left = limit.left(waited);
            let sleeps = self.spin().is_over(looks, waited) && !left.is_zero();
            let mut has_slept = false;
            let step = self.run_among_sleepers(call, |state| {
                if let Some(answer) = done(state)? {
                    return Ok(Step::Done(answer));
                }
                let nap = if sleeps { state.sleep_on(&bell, left) } else { None };
                Ok(nap.map_or(Step::Again, Step::Sleep))
            });
            match step {
                Step::Done(answer) => return answer,
                Step::Failed(errno) => return R::of_errno(errno),
                Step::Again => std::hint::spin_loop(),
                Step::Sleep(nap) => {
                    nap.sleep();
                    has_slept = true;
                }
            }
            if has_slept || looks.is_multiple_of(LOOKS) {
                waited = began.get_or_insert_with(Instant::now).elapsed();
                if limit.left(waited).is_zero() {
                    return R::of_errno(expired);
                }
                if self.spin().yields(looks) {
                    std::thread::yield_now();
                }
            }
            looks += 1;
        }
    }

    /// Prepares a client's own sleep on the descriptor of a bell.
    ///
    /// # Errors
    /// `FI_EAGAIN` when `any` finds something, or a rail does; `FI_EINVAL` for a silent bell.
    pub(crate) fn prepare(
        &self,
        any: impl FnOnce(&mut State) -> bool,
        bell: impl Fn(&mut State) -> Option<&mut Bell>,
    ) -> Result<c_int> {
        let answer: c_int = self.run_among_sleepers("fi_trywait", |state| {
            if any(state) {
                return Err(Errno(FI_EAGAIN));
            }
            let found = bell(state).filter(|bell| !bell.is_silent());
            found.ok_or(Errno(FI_EINVAL))?.await_next();
            if !state.arm() {
                return Err(Errno(FI_EAGAIN));
            }
            Ok(0)
        });
        if answer < 0 { Err(Errno(-answer)) } else { Ok(0) }
    }
}

/// A sleep that is prepared: on a descriptor that becomes readable when there may be something.
#[derive(Debug)]
pub(crate) struct Nap {
    descriptor: OwnedFd,
    longest: Duration,
}

impl Nap {
    /// Sleeps, without the domain's lock. Whatever ends it, the caller looks.
    pub(crate) fn sleep(self) {
        let mut one = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let _ = poll(&mut one, Some(&doorbell_fabric::poll::timespec(self.longest)));
    }
}

/// The descriptors of the member, in one set that becomes readable when it has work; with a timer for what is
/// due by the clock.
#[derive(Debug)]
pub(crate) struct Watch {
    set: OwnedFd,
    timer: OwnedFd,
}

impl Watch {
    fn new() -> std::result::Result<Self, System> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&set, &timer, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { set, timer })
    }

    /// Becomes readable after this time, or for `None` by the member alone.
    fn set_timer(&self, after: Option<Duration>) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let it_value = match after {
            // Zero would stop it.
            Some(after) => doorbell_fabric::poll::timespec(after.max(Duration::from_micros(1))),
            None => zero,
        };
        let once = Itimerspec {
            it_interval: zero,
            it_value,
        };
        // It fails for times that cannot be, which these are not.
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// Whether the member's peers are to ring.
#[derive(Debug, Default)]
pub(crate) struct Arming {
    watch: Option<Watch>,
    armed: bool,
    /// Of the domain's own thread, where progress is automatic.
    thread: Bell,
}

impl State {
    /// Runs a part of a call that sleeps, or is about to. Others that sleep go on, if the member is armed at
    /// its end; else they are woken.
    pub(crate) fn among_sleepers<A>(&mut self, work: impl FnOnce(&mut Self) -> Result<A>) -> Result<A> {
        let was_armed = self.arming.armed;
        if was_armed {
            self.disarm();
        }
        let result = work(self);
        if was_armed && !self.arming.armed {
            self.ring();
        }
        result
    }

    /// Makes a bounded pass of the member, every so often with what depends on the clock.
    #[inline(always)]
    pub(crate) fn look(&mut self) {
        let work = self.member.poll();
        self.looks = self.looks.wrapping_add(1);
        self.idle = if work == 0 { self.idle.saturating_add(1) } else { 0 };
        if self.looks.is_multiple_of(KEEP) || (work == 0 && self.meeting) {
            self.keep();
        }
    }

    /// Makes a pass at some of the calls that need none: a client whose calls never need one, since all that
    /// it sends leaves at once, has to learn of a peer's end all the same.
    #[inline(always)]
    pub(crate) fn look_seldom(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(KEEP) {
            self.look_and_keep();
        }
    }

    #[cold]
    fn look_and_keep(&mut self) {
        self.member.poll();
        if self.member.pml().has_accesses() {
            self.take_accesses();
        }
        self.keep();
    }

    #[cold]
    fn keep(&mut self) {
        self.keep_member();
        if self.idle > self.idle_most && self.looks.is_multiple_of(KEEP) {
            // The process that is to send something may be waiting for this core.
            std::thread::yield_now();
        }
    }

    /// The bell of an object with this wait object, in the client's wait set if there is one.
    ///
    /// # Errors
    /// `FI_EMFILE` when the process has no descriptor left.
    pub(crate) fn bell_for(&mut self, wait: WaitKind, set: Option<&WaitSet>) -> Result<Bell> {
        if wait == WaitKind::Nothing {
            return Ok(Bell::silent());
        }
        let watch = match self.arming.watch.take() {
            Some(watch) => watch,
            None => Watch::new().map_err(no_descriptor)?,
        };
        let bell = Bell::new(watch.set.as_fd()).map_err(no_descriptor);
        self.arming.watch = Some(watch);
        let mut bell = bell?;
        if let Some(set) = set {
            bell.enter(set)?;
        }
        Ok(bell)
    }

    /// Prepares a sleep: `None` when there is work first, or nothing to sleep on.
    fn sleep_on(&mut self, bell: impl Fn(&mut Self) -> Option<&mut Bell>, left: Duration) -> Option<Nap> {
        let bell = bell(self)?;
        bell.await_next();
        let descriptor = bell.copy().ok()?;
        let longest = left.min(LONGEST);
        self.arm().then_some(Nap { descriptor, longest })
    }

    /// Prepares a sleep of the domain's own thread, beside others that sleep; `None` when something was
    /// found.
    pub(crate) fn nap(&mut self) -> Option<Nap> {
        let prepared = self.among_sleepers(|state| {
            if state.advance() {
                return Ok(None);
            }
            Ok(state.sleep_on(|state| Some(&mut state.arming.thread), LONGEST))
        });
        prepared.ok().flatten()
    }

    /// Makes what wakes the domain's own thread.
    ///
    /// # Errors
    /// `FI_EMFILE` when the process has no descriptor left.
    pub(crate) fn make_thread_bell(&mut self) -> Result<()> {
        self.arming.thread = self.bell_for(WaitKind::Chosen, None)?;
        Ok(())
    }

    /// Wakes the domain's own thread.
    pub(crate) fn wake_thread(&mut self) {
        self.arming.thread.ring_now();
    }

    /// Whether peers are to ring, since a call or the client sleeps.
    pub(crate) fn is_armed(&self) -> bool {
        self.arming.armed
    }

    /// Has the member's peers ring from now on. Returns whether a sleep may begin; not when there is work.
    fn arm(&mut self) -> bool {
        self.keep_member();
        // What ended in that pass is in its queue, or counted, before the sleep: it rings.
        self.drain(&mut Outlet::closed());
        let Some(watch) = &self.arming.watch else {
            return false;
        };
        let mut failed = false;
        let ready = self.member.arm(&mut |descriptor| {
            match epoll::add(&watch.set, descriptor, EventData::new_u64(1), EventFlags::IN) {
                // One that is there stays: rails and listener close their descriptors with the member.
                Ok(()) | Err(System::EXIST) => {}
                Err(_) => failed = true,
            }
        });
        watch.set_timer(self.member.idle());
        self.arming.armed = true;
        if ready || failed {
            self.disarm();
        }
        self.arming.armed
    }

    /// What every call does first: peers need not ring while calls are made.
    #[inline(always)]
    pub(crate) fn awake(&mut self) -> &mut Self {
        if self.arming.armed {
            self.wake();
        }
        self
    }

    #[cold]
    fn wake(&mut self) {
        self.disarm();
        self.ring();
    }

    /// Wakes those that sleep, on what is not armed any more.
    #[cold]
    fn ring(&mut self) {
        self.queues.bells().for_each(Bell::ring);
        self.counters.bells().for_each(Bell::ring);
        self.arming.thread.ring();
    }

    #[cold]
    fn disarm(&mut self) {
        self.arming.armed = false;
        self.member.disarm();
    }
}

#[cold]
fn no_descriptor(error: System) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_milliseconds_and_a_negative_one_is_none() {
        assert_eq!(Limit::of(-1), Limit::Never);
        let limit = Limit::of(20);
        assert_eq!(limit.left(Duration::from_millis(5)), Duration::from_millis(15));
        assert!(limit.left(Duration::from_secs(5)).is_zero() && Limit::of(0).left(Duration::ZERO).is_zero());
        assert_eq!(Limit::Never.left(Duration::MAX), LONGEST);
    }

    #[test]
    fn a_call_looks_for_a_time_or_for_a_number_of_times_before_it_sleeps() {
        let (short, long) = (Duration::from_micros(99), Duration::from_micros(100));
        let spin = Spin::of(None);
        assert!(spin.yields(0) && !spin.is_over(u64::MAX, short) && spin.is_over(0, long));
        let spin = Spin::of(Some(3));
        assert!(!spin.is_over(2, Duration::MAX) && spin.is_over(3, Duration::ZERO));
        assert!(!spin.yields(2) && spin.yields(3));
        assert!(Spin::of(Some(0)).is_over(0, Duration::ZERO));
        let spin = Spin::of(Some(u32::MAX));
        assert!(!spin.is_over(u64::MAX, Duration::MAX) && !spin.yields(u64::MAX));
    }

    #[test]
    fn the_member_is_watched_until_its_timer_ends_the_sleep() {
        let watch = Watch::new().unwrap();
        let is_readable = || doorbell_fabric::poll::state(&watch.set, PollFlags::IN) == Ok(PollFlags::IN);
        assert!(!is_readable());
        watch.set_timer(Some(Duration::ZERO));
        let mut one = [PollFd::new(&watch.set, PollFlags::IN)];
        poll(&mut one, None).unwrap();
        assert!(is_readable());
        watch.set_timer(None);
        assert!(!is_readable());
    }
}

//! The job's clock: the processor's time stamp counter where it can be trusted, `CLOCK_MONOTONIC` elsewhere.
//!
//! ```text
//!   raw clock ──┬─ pair ──────── window ──────── pair ─┬──►  frequency = ticks between / nanoseconds between
//!   counter   ──┴─ t0 r t1                     t0 r t1 ┴──►  the narrowest of many brackets t0 r t1 counts
//! ```
//!
//! Protocol code never sees this type: it is given [`Time`] values. The owner of a progress loop reads it
//! once per pass and only when a deadline needs it; benchmarks take raw ticks and convert differences
//! afterwards.
//!
//! The counter is trusted when Linux uses it as its own clock source, or when the processor guarantees that
//! it never stops or changes its rate (CPUID leaf 0x8000_0007, EDX bit 8: AMD64 APM volume 3, appendix E.4.7;
//! Intel SDM volume 3, section 19.17.1) and Linux has not found it unstable since. Otherwise the clock
//! reports why not.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::Serialize;

use crate::time::Time;

/// What the clock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The processor's time stamp counter, by `rdtsc`.
    Tsc,
    /// The system's `CLOCK_MONOTONIC`; its ticks are nanoseconds.
    Monotonic,
}

/// How good the clock is: what a benchmark writes above its figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// The raw clock that is read.
    pub source: Source,
    /// Ticks per second.
    pub frequency_hz: f64,
    /// Bound on the error of the frequency against the system's raw clock, in millionths.
    pub error_ppm: f64,
    /// The smallest step by which the clock was seen to advance, in nanoseconds: no single difference is
    /// finer.
    pub step_ns: f64,
    /// Why this source was chosen, and how it was calibrated.
    pub how: &'static str,
}

/// How far the clock has moved away from the system's raw clock since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// Time since then, in nanoseconds.
    pub over_ns: u64,
    /// Difference of the rates, in millionths; positive when this clock is fast.
    pub ppm: f64,
    /// Bound on the error of `ppm`, from the width of the two readings.
    pub bound_ppm: f64,
}

/// A calibrated clock. Plain values: copy it to wherever time is read; it never changes by itself.
///
/// Its epoch is the machine's start, so the clocks of all processes of one machine agree within their error.
///
/// ```
/// let clock = doorbell_fabric::clock::Clock::start();
/// let before = clock.ticks();
/// let deadline = clock.now() + std::time::Duration::from_secs(1);
/// assert!(clock.now() < deadline);
/// let nanoseconds = clock.ticks_to_nanos(clock.ticks() - before);
/// assert!(nanoseconds < 1_000_000_000);
/// println!("{}", clock.calibration());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    scale: Scale,
    /// Where conversion starts: `base_ticks` were read at `base_nanos`.
    base_ticks: u64,
    base_nanos: u64,
    /// The first reading, from which the frequency is measured again later.
    anchor: Pair,
    error_ppm: f64,
    step_ns: f64,
    how: &'static str,
}

/// How long [`Clock::start`] measures.
pub const START_WINDOW: Duration = Duration::from_millis(10);

impl Clock {
    /// A clock calibrated over [`START_WINDOW`]; sleeps for that long when it uses the counter.
    pub fn start() -> Self {
        Self::calibrate(START_WINDOW)
    }

    /// A clock calibrated over `window` (at least a millisecond), during which the thread sleeps. The longer,
    /// the smaller the error: about 5 millionths for 10 ms, 0.5 for 100 ms.
    pub fn calibrate(window: Duration) -> Self {
        match counter::trusted() {
            Ok(how) => Self::from_counter(window.max(Duration::from_millis(1)), how),
            Err(why_not) => Self::from_system(why_not),
        }
    }

    /// The system's clock as the source, whatever the machine offers: for comparisons.
    pub fn system() -> Self {
        Self::from_system("CLOCK_MONOTONIC, as requested")
    }

    fn from_counter(window: Duration, how: &'static str) -> Self {
        let anchor = Pair::narrowest(Source::Tsc);
        std::thread::sleep(window);
        let end = Pair::narrowest(Source::Tsc);
        let scale = Scale::between(&anchor, &end);
        Self {
            source: Source::Tsc,
            scale,
            base_ticks: anchor.ticks,
            base_nanos: anchor.nanos,
            anchor,
            error_ppm: Pair::error_ppm(&anchor, &end, scale),
            step_ns: smallest_step(Source::Tsc) * scale.nanos_per_tick(),
            how,
        }
    }

    fn from_system(how: &'static str) -> Self {
        Self {
            source: Source::Monotonic,
            scale: Scale::ONE,
            base_ticks: 0,
            base_nanos: 0,
            anchor: Pair::narrowest(Source::Monotonic),
            error_ppm: 0.0,
            step_ns: smallest_step(Source::Monotonic),
            how,
        }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Time {
        self.time_of(self.ticks())
    }

    /// The counter now. The processor may take it somewhat early or late among the instructions around it.
    #[inline]
    pub fn ticks(&self) -> u64 {
        match self.source {
            Source::Tsc => counter::read(),
            Source::Monotonic => monotonic(),
        }
    }

    /// The counter, after everything before has been executed and before anything behind it is: for
    /// measurements of single short pieces. Costs some tens of nanoseconds more.
    #[inline]
    pub fn ticks_ordered(&self) -> u64 {
        match self.source {
            Source::Tsc => counter::read_ordered(),
            Source::Monotonic => monotonic(),
        }
    }

    /// The time at which [`Clock::ticks`] gave `ticks`. Before the calibration, it is the calibration's.
    #[inline]
    pub fn time_of(&self, ticks: u64) -> Time {
        let since = self.scale.nanos(ticks.saturating_sub(self.base_ticks));
        Time::from_nanos(self.base_nanos.saturating_add(since))
    }

    /// A difference of ticks in nanoseconds, rounded down.
    #[inline]
    pub fn ticks_to_nanos(&self, ticks: u64) -> u64 {
        self.scale.nanos(ticks)
    }

    /// A difference of ticks in nanoseconds with its fraction: for means over many exchanges.
    #[inline]
    pub fn ticks_to_nanos_f64(&self, ticks: u64) -> f64 {
        ticks as f64 * self.scale.nanos_per_tick()
    }

    /// The number of ticks that take `duration`, rounded down.
    #[inline]
    pub fn ticks_in(&self, duration: Duration) -> u64 {
        self.scale
            .ticks(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns how good this clock is.
    pub fn calibration(&self) -> Calibration {
        Calibration {
            source: self.source,
            frequency_hz: 1e9 / self.scale.nanos_per_tick(),
            error_ppm: self.error_ppm,
            step_ns: self.step_ns,
            how: self.how,
        }
    }

    /// Compares the rate with the system's raw clock again, over all the time since the clock was made.
    pub fn drift(&self) -> Drift {
        let now = Pair::narrowest(self.source);
        let over_ns = now.nanos.saturating_sub(self.anchor.nanos).max(1);
        let ours = self.ticks_to_nanos_f64(now.ticks.saturating_sub(self.anchor.ticks));
        Drift {
            over_ns,
            ppm: (ours - over_ns as f64) / over_ns as f64 * 1e6,
            bound_ppm: Pair::error_ppm(&self.anchor, &now, self.scale),
        }
    }

    /// Returns this clock with its rate measured over all the time since it was created. Time does not jump:
    /// it continues from this clock's current time at the better rate.
    #[must_use]
    pub fn refined(&self) -> Self {
        if self.source == Source::Monotonic {
            return *self;
        }
        let now = Pair::narrowest(self.source);
        let scale = Scale::between(&self.anchor, &now);
        Self {
            scale,
            base_ticks: now.ticks,
            base_nanos: self.time_of(now.ticks).nanos(),
            error_ppm: Pair::error_ppm(&self.anchor, &now, scale),
            ..*self
        }
    }
}

impl fmt::Display for Calibration {
    /// Writes one line for the head of a table of figures.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Tsc => "tsc",
            Source::Monotonic => "monotonic",
        };
        write!(
            out,
            "clock {source}, {:.6} GHz +/- {:.1} ppm, step {:.1} ns ({})",
            self.frequency_hz / 1e9,
            self.error_ppm,
            self.step_ns,
            self.how
        )
    }
}

/// Nanoseconds per tick as a fixed-point number with [`Scale::SHIFT`] binary places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale(u64);

impl Scale {
    /// Fine enough for an error below 10⁻¹³, coarse enough for counters down to 16 kHz.
    const SHIFT: u32 = 48;
    /// One nanosecond per tick.
    const ONE: Self = Self(1 << Self::SHIFT);

    /// The rate between two readings; one nanosecond per tick when they make no sense.
    fn between(first: &Pair, last: &Pair) -> Self {
        let ticks = u128::from(last.ticks.saturating_sub(first.ticks));
        let nanos = u128::from(last.nanos.saturating_sub(first.nanos));
        let scale = ((nanos << Self::SHIFT) + ticks / 2)
            .checked_div(ticks)
            .and_then(|scale| u64::try_from(scale).ok());
        scale.filter(|scale| *scale > 0).map_or(Self::ONE, Self)
    }

    /// `ticks` in nanoseconds, rounded down; the product cannot overflow, and the result saturates.
    #[inline]
    fn nanos(self, ticks: u64) -> u64 {
        let wide = (u128::from(ticks) * u128::from(self.0)) >> Self::SHIFT;
        u64::try_from(wide).unwrap_or(u64::MAX)
    }

    /// `nanos` in ticks, rounded down, saturating.
    #[inline]
    fn ticks(self, nanos: u64) -> u64 {
        let wide = (u128::from(nanos) << Self::SHIFT) / u128::from(self.0);
        u64::try_from(wide).unwrap_or(u64::MAX)
    }

    #[inline]
    fn nanos_per_tick(self) -> f64 {
        self.0 as f64 / (1u64 << Self::SHIFT) as f64
    }
}

/// A reading of both clocks: `nanos` was read while the counter went from `ticks - half` to `ticks + half`.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ticks: u64,
    half: u64,
    nanos: u64,
}

impl Pair {
    /// The narrowest of many brackets: the one in which nothing interrupted us.
    fn narrowest(source: Source) -> Self {
        if source == Source::Monotonic {
            let ticks = monotonic();
            return Self {
                ticks,
                half: 0,
                nanos: ticks,
            };
        }
        let bracket = |_| {
            let before = counter::read_ordered();
            let nanos = nanos_of(clock_gettime(ClockId::MonotonicRaw));
            let half = counter::read_ordered().saturating_sub(before) / 2;
            Self {
                ticks: before + half,
                half,
                nanos,
            }
        };
        let first = bracket(0);
        (1..BRACKETS)
            .map(bracket)
            .fold(first, |best, one| if one.half < best.half { one } else { best })
    }

    /// Bound on the error of a rate taken between two readings, in millionths.
    fn error_ppm(first: &Self, last: &Self, scale: Scale) -> f64 {
        let doubt = (first.half + last.half) as f64 * scale.nanos_per_tick();
        doubt / last.nanos.saturating_sub(first.nanos).max(1) as f64 * 1e6
    }
}

/// Number of brackets per reading.
const BRACKETS: u32 = 64;

/// The smallest step between readings in a row, in ticks: the mean of the steps that are as small as the
/// smallest one give or take a quarter, because a scaled counter steps by 24 and by 25 in turn.
fn smallest_step(source: Source) -> f64 {
    let read = || match source {
        Source::Tsc => counter::read(),
        Source::Monotonic => monotonic(),
    };
    let mut steps = [0u64; 512];
    let mut last = read();
    for step in &mut steps {
        let mut now = read();
        while now == last {
            now = read();
        }
        *step = now.wrapping_sub(last);
        last = now;
    }
    let least = steps.iter().copied().min().unwrap_or(1);
    let near = steps.iter().filter(|step| **step <= least + least / 4);
    let (sum, count) = near.fold((0, 0), |(sum, count), step| (sum + step, count + 1));
    sum as f64 / f64::from(count.max(1))
}

#[inline]
fn monotonic() -> u64 {
    nanos_of(clock_gettime(ClockId::Monotonic))
}

#[inline]
fn nanos_of(time: Timespec) -> u64 {
    // Neither field of a monotonic clock is ever negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The counter of this architecture.
#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
    use std::fs::read_to_string;

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction; Linux lets user space use it.
        unsafe { _rdtsc() }
    }

    /// `lfence` before waits for everything earlier, `lfence` behind holds back everything later (Intel SDM,
    /// RDTSC; on AMD since Linux makes `lfence` serialising).
    #[inline]
    pub(super) fn read_ordered() -> u64 {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_lfence() };
        let ticks = read();
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_lfence() };
        ticks
    }

    /// Whether the counter can be used as a clock, with the reason either way.
    pub(super) fn trusted() -> Result<&'static str, &'static str> {
        const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/";
        let current = read_to_string(format!("{SOURCES}current_clocksource")).ok();
        let available = read_to_string(format!("{SOURCES}available_clocksource")).ok();
        judge(invariant(), current.as_deref(), available.as_deref())
    }

    /// Reads the processor's promise. Some compilers declare the query safe, some do not.
    #[allow(unused_unsafe)]
    fn invariant() -> bool {
        const HIGHEST: u32 = 0x8000_0000;
        const POWER: u32 = 0x8000_0007;
        // SAFETY: every x86-64 processor has the instruction and this leaf.
        let highest = unsafe { __cpuid(HIGHEST) }.eax;
        // SAFETY: as above; the leaf exists by the comparison before it.
        highest >= POWER && unsafe { __cpuid(POWER) }.edx & (1 << 8) != 0
    }

    /// Weighs the processor's promise and the system's choice.
    pub(super) fn judge(
        invariant: bool,
        current: Option<&str>,
        available: Option<&str>,
    ) -> Result<&'static str, &'static str> {
        let lists =
            |names: Option<&str>| names.map(|names| names.split_whitespace().any(|name| name == "tsc"));
        match (invariant, lists(current), lists(available)) {
            (_, Some(true), _) => Ok("Linux uses the counter as its clock; against CLOCK_MONOTONIC_RAW"),
            (true, _, Some(true)) => Ok("invariant by CPUID and kept by Linux; against CLOCK_MONOTONIC_RAW"),
            (true, _, None) => Ok("invariant by CPUID; against CLOCK_MONOTONIC_RAW"),
            (true, _, Some(false)) => Err("CLOCK_MONOTONIC, because Linux found the counter unstable"),
            (false, ..) => {
                Err("CLOCK_MONOTONIC, because the processor's counter may stop or change its rate")
            }
        }
    }
}

/// Architectures whose counter is not supported: the system's clock is used.
#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn read() -> u64 {
        super::monotonic()
    }

    pub(super) fn read_ordered() -> u64 {
        super::monotonic()
    }

    pub(super) fn trusted() -> Result<&'static str, &'static str> {
        Err("CLOCK_MONOTONIC, because doorbell does not support this architecture's counter")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_sources_agree_with_the_system_about_a_second_hand() {
        for clock in [Clock::start(), Clock::system()] {
            let (began, from) = (std::time::Instant::now(), clock.now());
            std::thread::sleep(Duration::from_millis(20));
            let (ours, theirs) = (clock.now() - from, began.elapsed());
            let gap = ours.abs_diff(theirs);
            // One preemption between the two readings is forgiven; a wrong rate of one in a hundred is not.
            assert!(
                gap < Duration::from_millis(5),
                "{ours:?} and {theirs:?} by {}",
                clock.calibration()
            );
        }
    }

    #[test]
    fn the_rate_is_as_good_as_reported() {
        let clock = Clock::calibrate(Duration::from_millis(20));
        let report = clock.calibration();
        assert!(
            report.error_ppm < 500.0 && report.step_ns > 0.0 && report.frequency_hz > 1e6,
            "{report}"
        );
        std::thread::sleep(Duration::from_millis(30));
        let drift = clock.drift();
        assert!(drift.over_ns >= 30_000_000);
        // The clock's own error, the error of looking, and what the kernel itself may be steering.
        assert!(
            drift.ppm.abs() <= report.error_ppm + drift.bound_ppm + 100.0,
            "{drift:?} against {report}"
        );
    }

    #[test]
    fn a_refined_clock_goes_on_where_the_old_one_stood() {
        let clock = Clock::calibrate(Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(20));
        let before = clock.now();
        let refined = clock.refined();
        assert!(refined.now() >= before);
        assert!(refined.calibration().error_ppm <= clock.calibration().error_ppm);
        assert!(refined.now() - before < Duration::from_secs(1));
    }

    #[test]
    fn time_never_runs_backwards_on_one_thread() {
        for clock in [Clock::start(), Clock::system()] {
            let mut last = clock.now();
            for _ in 0..100_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
            assert!(clock.ticks_ordered() <= clock.ticks_ordered());
        }
    }

    #[test]
    fn ticks_before_the_calibration_do_not_wrap() {
        let clock = Clock::start();
        assert_eq!(clock.time_of(0).nanos(), clock.base_nanos);
        assert!(clock.time_of(u64::MAX) > clock.now());
    }

    #[test]
    fn the_fallback_has_a_reason() {
        let clock = Clock::system();
        let report = clock.calibration();
        assert_eq!((report.source, report.frequency_hz), (Source::Monotonic, 1e9));
        assert!(report.to_string().contains("as requested"), "{report}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_counter_is_trusted_only_with_a_reason() {
        use super::counter::judge;
        assert!(judge(true, Some("tsc\n"), Some("tsc hpet\n")).is_ok());
        assert!(judge(false, Some("tsc\n"), Some("tsc \n")).is_ok());
        assert!(judge(true, Some("kvm-clock\n"), Some("kvm-clock tsc\n")).is_ok());
        assert!(judge(true, None, None).is_ok());
        assert!(judge(true, Some("hpet\n"), Some("hpet acpi_pm\n")).is_err());
        assert!(judge(false, Some("kvm-clock\n"), Some("kvm-clock tsc\n")).is_err());
        assert!(judge(false, None, None).is_err());
        assert!(judge(false, Some("hyperv_clocksource_tsc_page\n"), None).is_err());
    }

    #[test]
    fn readings_that_make_no_sense_give_a_usable_scale() {
        let pair = |ticks, nanos| Pair {
            ticks,
            half: 0,
            nanos,
        };
        assert_eq!(Scale::between(&pair(5, 5), &pair(5, 9)), Scale::ONE);
        assert_eq!(Scale::between(&pair(9, 9), &pair(5, 5)), Scale::ONE);
        assert_eq!(Scale::between(&pair(0, 0), &pair(1, u64::MAX)), Scale::ONE);
        assert_eq!(Scale::between(&pair(0, 0), &pair(u64::MAX, 1)), Scale::ONE);
    }

    proptest! {
        /// Conversion against exact arithmetic: at most a nanosecond plus the rounding of the scale off.
        #[test]
        fn conversion_is_exact_to_a_nanosecond(hertz in 1_000_000u64..10_000_000_000, ticks: u64) {
            let scale = Scale::between(
                &Pair { ticks: 0, half: 0, nanos: 0 },
                &Pair { ticks: hertz, half: 0, nanos: 1_000_000_000 },
            );
            let exact = u128::from(ticks) * 1_000_000_000 / u128::from(hertz);
            let exact = u64::try_from(exact).unwrap_or(u64::MAX);
            let slack = (u128::from(ticks) >> Scale::SHIFT) as u64 + 1;
            prop_assert!(scale.nanos(ticks).abs_diff(exact) <= slack);
        }

        #[test]
        fn ticks_and_nanoseconds_convert_back(nanos in 0u64..1 << 60) {
            let scale = Scale(((1u128 << Scale::SHIFT) * 10 / 24) as u64);
            prop_assert!(nanos - scale.nanos(scale.ticks(nanos)) <= 1);
        }
    }
}

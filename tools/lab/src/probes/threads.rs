//! The hand-over of dedicated mode alone: a command through the mailbox, its completion by one cache
//! line.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use doorbell_bench::baseline::Baseline;
use doorbell_bench::error::BenchError;
use doorbell_bench::pin;
use doorbell_fabric::clock::Clock;
use doorbell_ring::mpsc;

/// A measured hand-over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HandOver {
    /// Command there and completion back, in nanoseconds.
    pub(crate) nanos: f64,
    /// Half round trip of the bare exchange between the same two cores, at the same time.
    pub(crate) bare_ns: f64,
}

impl HandOver {
    /// The hand-over in cache-line exchanges: one exchange is one line from one core to the other.
    pub(crate) fn exchanges(self) -> f64 {
        self.nanos / self.bare_ns
    }
}

/// A line of its own, and the one that the prefetcher takes along.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Commands for one look.
const COMMANDS: u64 = 20_000;
/// Rounds of the bare exchange, before and after.
const ROUNDS: u32 = 3;
/// Slots of the mailbox, as the engine's default.
const SLOTS: usize = 256;
/// Spins before the time slice is given away: the threads may share a core in a test.
const SPINS: u32 = 1 << 14;

/// Measures it between two cores.
///
/// # Errors
/// When a core cannot be used, or memory runs out.
pub(crate) fn hand_over(cores: [usize; 2]) -> Result<HandOver, BenchError> {
    let ended = |reason: &str| BenchError::Thread {
        what: "the hand-over",
        reason: reason.to_owned(),
    };
    let (sender, mut receiver) = mpsc::mailbox::<u64>(SLOTS).map_err(|error| ended(&error.to_string()))?;
    let done = Line::default();
    let over = AtomicBool::new(false);
    let mut near = Baseline::make()?;
    let mut far = Baseline::open(near.place())?;
    thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let _over = Over(&over);
            pin::bind(cores[1])?;
            far.pong(ROUNDS)?;
            for n in 1..=COMMANDS {
                if !until(&over, || receiver.recv() == Some(n)) {
                    return Err(ended("its caller ended before it"));
                }
                done.0.store(n, Ordering::Release);
            }
            far.pong(ROUNDS)
        });
        let caller = scope.spawn(|| {
            let _over = Over(&over);
            pin::bind(cores[0])?;
            let clock = Clock::start();
            let before = near.ping(&clock, ROUNDS)?;
            let start = clock.ticks();
            for n in 1..=COMMANDS {
                let taken = until(&over, || sender.send(n).is_ok());
                if !taken || !until(&over, || done.0.load(Ordering::Acquire) == n) {
                    return Err(ended("its other side ended before it"));
                }
            }
            let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / COMMANDS as f64;
            let after = near.ping(&clock, ROUNDS)?;
            Ok(HandOver {
                nanos,
                bare_ns: before.midpoint(after),
            })
        });
        let measured = caller.join().map_err(|_| ended("it panicked"))?;
        engine.join().map_err(|_| ended("its other side panicked"))??;
        measured
    })
}

/// Marks a side as ended when dropped, however it ends: the other one waits for nothing then.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits; `false` when it never will be, because the other side is over.
fn until(over: &AtomicBool, mut ready: impl FnMut() -> bool) -> bool {
    let mut spins = 0;
    while !ready() {
        spins += 1;
        if spins == SPINS {
            if over.load(Ordering::Acquire) {
                // Its last step may have been what is waited for.
                return ready();
            }
            thread::yield_now();
            spins = 0;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_over_takes_a_few_exchanges() {
        let cores = pin::allowed();
        // Other work may fall on one of the two measurements, but not every time.
        let is_plausible = (0..10).any(|_| {
            let measured = hand_over([cores[0], *cores.last().unwrap()]).unwrap();
            assert!(measured.nanos > 0.0 && measured.bare_ns > 0.0);
            measured.exchanges() > 0.1
        });
        assert!(
            is_plausible,
            "a hand-over is quicker than an exchange in each of ten tries"
        );
        assert!(hand_over([100_000, 0]).is_err());
    }

    #[test]
    fn no_side_waits_for_one_that_has_ended() {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| until(&over, || false));
            drop(Over(&over));
            assert!(!waiting.join().unwrap());
        });
        assert!(until(&over, || true));
    }
}

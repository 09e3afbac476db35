//! How much of a large receive is hidden behind the receiver's own computation in dedicated mode.
//!
//! ```text
//!   communication alone   ├── receive ──┤
//!   computation alone     ├── compute ──┤
//!   both                  ├─ receive posted, compute, wait ─┤      hidden = (a + b - both) / min(a, b)
//! ```

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use doorbell::{Config, World};
use doorbell_bench::error::BenchError;
use doorbell_bench::stats::median;
use doorbell_fabric::clock::Clock;
use serde::{Deserialize, Serialize};

/// Length of the message: far above any eager limit.
const BYTES: usize = 4 << 20;
/// Receives of each kind.
const REPEATS: usize = 9;
/// Tag of the messages, and of the small one that requests the next.
const TAG: u64 = 0x0e;
const NEXT: u64 = 0x0f;
/// A receive takes a millisecond or so: this is for machines that stand still.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a receive and a computation take, alone and together, in nanoseconds: medians.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Overlap {
    /// The receive alone.
    pub(crate) alone: f64,
    /// The computation alone.
    pub(crate) computing: f64,
    /// The computation between posting the receive and waiting for it.
    pub(crate) both: f64,
}

/// How long the computation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Computation {
    /// About as long as a receive alone takes here.
    AsTheReceive,
    /// A number of steps, the same for all stacks that are compared.
    Steps(u64),
}

impl Overlap {
    /// The share of the shorter of the two that is hidden behind the other, 0 to 1.
    pub(crate) fn hidden(self) -> f64 {
        let shorter = self.alone.min(self.computing).max(1.0);
        ((self.alone + self.computing - self.both) / shorter).clamp(0.0, 1.0)
    }
}

/// The share that is hidden of a 4 MiB receive; two ranks in this process, each with a progress thread.
///
/// # Errors
/// When the worlds cannot be made or a message is lost.
pub(crate) fn overlap_share() -> Result<f64, BenchError> {
    let mut config = Config::default();
    config.set("progress.mode", "dedicated")?;
    let mut worlds = doorbell::local(2, &config)?.into_iter();
    let (Some(receiver), Some(sender)) = (worlds.next(), worlds.next()) else {
        return Err(ended("two worlds were requested"));
    };
    thread::scope(|scope| {
        let sending = scope.spawn(move || overlap_serve(&sender, BYTES));
        let receiving = scope.spawn(move || overlap(&receiver, BYTES, Computation::AsTheReceive));
        let share = receiving.join().map_err(|_| ended("the receiver panicked"))?;
        sending.join().map_err(|_| ended("the sender panicked"))??;
        share.map(Overlap::hidden)
    })
}

fn ended(reason: &str) -> BenchError {
    BenchError::Thread {
        what: "the overlap",
        reason: reason.to_owned(),
    }
}

/// Rank 1: sends a message of `bytes` for each request, until rank 0 has enough of this size.
///
/// # Errors
/// When rank 0 is lost or falls silent.
pub(crate) fn overlap_serve(world: &World, bytes: usize) -> Result<(), BenchError> {
    let body = vec![7; bytes];
    let patient = world.within(PATIENCE);
    loop {
        let mut next = [0];
        patient.recv(0, NEXT, &mut next)?;
        if next == [0] {
            return Ok(());
        }
        patient.send(0, TAG, &body)?;
    }
}

/// Rank 0: receives messages of `bytes` with and without computing meanwhile; rank 1 is in [`overlap_serve`].
///
/// # Errors
/// When rank 1 is lost or falls silent.
pub(crate) fn overlap(world: &World, bytes: usize, computation: Computation) -> Result<Overlap, BenchError> {
    let clock = Clock::start();
    let mut into = vec![0; bytes];
    let mut alone = Vec::with_capacity(REPEATS);
    let mut both = Vec::with_capacity(REPEATS);
    let mut computing = Vec::with_capacity(REPEATS);
    // The first one connects and faults pages in; the others show how long the computation has to be.
    for _ in 0..REPEATS {
        alone.push(one(world, &clock, &mut into, 0)?);
    }
    let warm = alone.drain(..).fold(f64::INFINITY, f64::min);
    let steps = match computation {
        Computation::AsTheReceive => steps_for(&clock, warm),
        Computation::Steps(steps) => steps,
    };
    for _ in 0..REPEATS {
        alone.push(one(world, &clock, &mut into, 0)?);
        let start = clock.ticks();
        compute(steps);
        computing.push(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)));
        both.push(one(world, &clock, &mut into, steps)?);
    }
    world.within(PATIENCE).send(1, NEXT, &[0])?;
    let middle = |values: &[f64]| median(values).unwrap_or(0.0);
    Ok(Overlap {
        alone: middle(&alone),
        computing: middle(&computing),
        both: middle(&both),
    })
}

/// One receive with `steps` of computation between posting and waiting; nanoseconds.
fn one(world: &World, clock: &Clock, into: &mut [u8], steps: u64) -> Result<f64, BenchError> {
    let start = clock.ticks();
    world.within(PATIENCE).scope(|scope| {
        let request = scope.irecv(1, TAG, into)?;
        world.send(1, NEXT, &[1])?;
        compute(steps);
        request.wait_within(PATIENCE)
    })?;
    Ok(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)))
}

/// Work that needs no memory: what is measured is the core.
fn compute(steps: u64) {
    let mut state = 1u64;
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Returns how many steps take `nanos`.
fn steps_for(clock: &Clock, nanos: f64) -> u64 {
    const PROBE: u64 = 200_000;
    let start = clock.ticks();
    compute(PROBE);
    let each = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / PROBE as f64;
    (nanos / each.max(0.01)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_no_longer_together_is_hidden() {
        let hidden = |alone, computing, both| {
            let times = Overlap {
                alone,
                computing,
                both,
            };
            times.hidden()
        };
        assert_eq!(hidden(100.0, 200.0, 200.0), 1.0);
        assert_eq!(hidden(100.0, 200.0, 300.0), 0.0);
        assert_eq!(hidden(100.0, 200.0, 250.0), 0.5);
        assert_eq!((hidden(0.0, 0.0, 5.0), hidden(100.0, 100.0, 50.0)), (0.0, 1.0));
    }

    #[test]
    fn a_share_is_a_share() {
        let share = overlap_share().unwrap();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}

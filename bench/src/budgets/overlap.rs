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
use doorbell_fabric::clock::Clock;

use crate::error::BenchError;
use crate::stats::median;

/// Length of the message: far above any eager limit.
const BYTES: usize = 4 << 20;
/// Receives of each kind.
const REPEATS: usize = 9;
/// Tag of the messages, and of the small one that asks for the next.
const TAG: u64 = 0x0e;
const NEXT: u64 = 0x0f;
/// A receive takes a millisecond or so: this is for machines that stand still.
const PATIENCE: Duration = Duration::from_secs(20);

/// The share of the shorter of the two that is hidden behind the other, 0 to 1; two ranks in this process, each with
/// a progress thread.
///
/// # Errors
/// When the worlds cannot be made or a message is lost.
pub fn overlap_share() -> Result<f64, BenchError> {
    let mut config = Config::default();
    config.set("progress.mode", "dedicated")?;
    let mut worlds = doorbell::local(2, &config)?.into_iter();
    let (Some(receiver), Some(sender)) = (worlds.next(), worlds.next()) else {
        return Err(ended("two worlds were asked for"));
    };
    thread::scope(|scope| {
        let sending = scope.spawn(move || serve(&sender));
        let receiving = scope.spawn(move || receive(&receiver));
        let share = receiving.join().map_err(|_| ended("the receiver panicked"))?;
        sending.join().map_err(|_| ended("the sender panicked"))??;
        share
    })
}

fn ended(reason: &str) -> BenchError {
    BenchError::Thread {
        what: "the overlap",
        reason: reason.to_owned(),
    }
}

/// Sends the message whenever it is asked for; a zero ends it.
fn serve(world: &World) -> Result<(), BenchError> {
    let body = vec![7; BYTES];
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

fn receive(world: &World) -> Result<f64, BenchError> {
    let clock = Clock::start();
    let mut into = vec![0; BYTES];
    let mut alone = Vec::with_capacity(REPEATS);
    let mut both = Vec::with_capacity(REPEATS);
    let mut computing = Vec::with_capacity(REPEATS);
    // The first one connects and faults pages in.
    let warm = one(world, &clock, &mut into, 0)?;
    let steps = steps_for(&clock, warm);
    for _ in 0..REPEATS {
        alone.push(one(world, &clock, &mut into, 0)?);
        let start = clock.ticks();
        compute(steps);
        computing.push(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)));
        both.push(one(world, &clock, &mut into, steps)?);
    }
    world.within(PATIENCE).send(1, NEXT, &[0])?;
    let middle = |values: &[f64]| median(values).unwrap_or(0.0);
    let (a, b, c) = (middle(&alone), middle(&computing), middle(&both));
    Ok(((a + b - c) / a.min(b).max(1.0)).clamp(0.0, 1.0))
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

/// As many steps as take `nanos`.
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
    fn a_share_is_a_share() {
        let share = overlap_share().unwrap();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}

//! Measurements on one thread: our SPSC ring beside rtrb, and the PML with its driver taken out.

use std::hint::black_box;

use doorbell_bench::error::BenchError;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_pml::{RailId, Rank};
use doorbell_ring::spsc;

use super::null;

/// Slots of the rings.
const SLOTS: usize = 1024;
/// Values at a time.
const CHUNK: usize = 64;
/// Values per look at the clock.
const VALUES: usize = 400_000;
/// Looks at each ring, in turn; the best of each counts, since everything else is disturbance.
const TURNS: usize = 5;

/// Our rate as a share of rtrb's: one value at a time, and 64 values by slice.
///
/// # Errors
/// When memory runs out.
pub(crate) fn ring_ratios(clock: &Clock) -> Result<[f64; 2], BenchError> {
    let (mut ours_in, mut ours_out) = spsc::ring::<u64>(SLOTS).map_err(no_ring)?;
    let (mut their_in, mut their_out) = rtrb::RingBuffer::<u64>::new(SLOTS);
    let (values, mut taken) = ([7u64; CHUNK], [0u64; CHUNK]);
    let mut best = [f64::INFINITY; 4];
    for _ in 0..TURNS {
        let mut look = |at: usize, work: &mut dyn FnMut()| {
            let start = clock.ticks();
            work();
            best[at] = best[at].min(clock.ticks().saturating_sub(start) as f64);
        };
        look(0, &mut || {
            for _ in 0..VALUES {
                let _ = black_box((ours_in.push(black_box(7)).is_ok(), ours_out.pop()));
            }
        });
        look(1, &mut || {
            for _ in 0..VALUES {
                let _ = black_box((their_in.push(black_box(7)).is_ok(), their_out.pop().ok()));
            }
        });
        look(2, &mut || {
            for _ in 0..VALUES / CHUNK {
                black_box((
                    ours_in.push_slice(black_box(&values)),
                    ours_out.pop_slice(&mut taken),
                ));
            }
        });
        look(3, &mut || {
            for _ in 0..VALUES / CHUNK {
                let pushed = their_in.push_entire_slice(black_box(&values)).is_ok();
                black_box((pushed, their_out.pop_entire_slice(&mut taken).is_ok()));
            }
        });
    }
    Ok([best[1] / best[0], best[3] / best[2]])
}

fn no_ring(error: doorbell_ring::RingError) -> BenchError {
    BenchError::Thread {
        what: "the ring",
        reason: error.to_string(),
    }
}

/// Messages for one look at the PML.
const MESSAGES: u32 = 200_000;
/// Looks, of which the best counts.
const LOOKS: u32 = 3;
const TAG: u64 = 7;
const PAYLOAD: usize = 8;

/// Nanoseconds that the PML takes for one 8-byte message: accepted, matched and completed at one end, sent at
/// the other, over a rail that costs nothing.
///
/// # Errors
/// When the PML refuses what it must not refuse.
pub(crate) fn pml_nanos(clock: &Clock) -> Result<f64, BenchError> {
    // A few bytes per measurement, leaked: a loan without a guard has to live for ever.
    let from = ConstLoan::of_static(&[7; PAYLOAD]);
    let into = MutLoan::of_static(vec![0; PAYLOAD].leak());
    let failed = |error: doorbell_pml::PmlError| BenchError::Thread {
        what: "the PML without a driver",
        reason: error.to_string(),
    };
    let mut pml = null::pml(TAG, PAYLOAD);
    let mut best = f64::INFINITY;
    for _ in 0..LOOKS {
        let start = clock.ticks();
        for _ in 0..MESSAGES {
            let _ = black_box(pml.send_loan(Rank(1), 0, TAG, black_box(from)).map_err(failed)?);
            let request = pml
                .recv_loan(Rank(1).into(), 0, TAG, 0, black_box(into))
                .map_err(failed)?;
            if let Some(rail) = pml.rail_mut(RailId(0)) {
                rail.ready = true;
            }
            while !pml.is_done(request) {
                pml.poll();
            }
            if let Some(ended) = pml.test(request) {
                black_box(ended.map_err(failed)?);
            }
        }
        let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
        best = best.min(nanos / f64::from(MESSAGES));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_measurements_give_sane_figures() {
        let clock = Clock::start();
        for ratio in ring_ratios(&clock).unwrap() {
            assert!(ratio > 0.01 && ratio < 100.0, "{ratio}");
        }
        let nanos = pml_nanos(&clock).unwrap();
        assert!(nanos > 1.0 && nanos < 100_000.0, "{nanos}");
    }
}

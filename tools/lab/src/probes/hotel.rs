//! The hotel with 4,096 rooms: a guest in and out, and a tick at which no guest leaves.

use std::hint::black_box;

use doorbell_bench::error::BenchError;
use doorbell_fabric::clock::Clock;
use doorbell_hotel::Hotel;

/// Rooms; one of them is free.
const ROOMS: usize = 4096;
/// Deadlines are this far away, in nanoseconds, and further: a retransmission's.
const AWAY: u64 = 200_000;
/// Stays for one look at the clock.
const STAYS: u32 = 200_000;
/// Looks, of which the best counts, since everything else is disturbance.
const LOOKS: u32 = 15;

/// Nanoseconds of a check-in with the check-out that follows it, and of a tick when nothing expires, with
/// 4,095 guests in the house.
///
/// # Errors
/// When the hotel cannot be built, or turns away a guest that has a room.
pub(crate) fn hotel_nanos(clock: &Clock) -> Result<[f64; 2], BenchError> {
    let failed = |reason: String| BenchError::Thread {
        what: "the hotel",
        reason,
    };
    let mut hotel = Hotel::<u64>::new(ROOMS, 0).map_err(|error| failed(error.to_string()))?;
    for guest in 1..ROOMS as u64 {
        let booked = hotel.check_in(guest, AWAY * 1_000 + guest * 64);
        booked.map_err(|_| failed("it is full too early".to_owned()))?;
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..LOOKS {
        let start = clock.ticks();
        for stay in 0..u64::from(STAYS) {
            // Deadlines move as they do when time passes, over all slots of the wheel's first levels.
            let key = hotel
                .check_in(black_box(stay), AWAY + stay % 4_096 * 64)
                .map_err(|_| failed("it is full".to_owned()))?;
            black_box(
                hotel
                    .check_out(black_box(key))
                    .map_err(|error| failed(error.to_string()))?,
            );
        }
        best[0] = best[0].min(each(clock, start));
        let (start, now) = (clock.ticks(), hotel.now());
        let mut evicted = 0;
        for tick in 1..=u64::from(STAYS) {
            // A nanosecond each: a hotel whose time stands still has nothing to do at all.
            evicted += hotel.tick(black_box(now + tick), |_| {});
        }
        best[1] = best[1].min(each(clock, start));
        if evicted > 0 {
            return Err(failed(format!("{evicted} guests left before their time")));
        }
    }
    Ok(best)
}

fn each(clock: &Clock, start: u64) -> f64 {
    clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / f64::from(STAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_are_sane_and_no_guest_is_evicted() {
        let [stay, tick] = hotel_nanos(&Clock::start()).unwrap();
        assert!(stay > 0.5 && stay < 100_000.0, "{stay}");
        assert!(tick > 0.0 && tick < 100_000.0, "{tick}");
    }
}

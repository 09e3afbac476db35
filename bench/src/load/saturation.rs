//! The knee: the highest rate of an open loop that is sustained. Above it the queue grows as long as the load
//! lasts, and a latency depends more on the length of the run than on the rail.
//!
//! A trial sends requests at one rate for some tens of milliseconds, or two hundred of them where exchanges
//! are slow. It is sustained when the last answer comes about as long behind its intended time as a single
//! exchange takes: a queue that grows would be behind by (1 - capacity / rate) of the whole trial by then. A
//! trial that fails is made once more, because a machine that pauses for a moment is not a limit. The rate is
//! doubled until it is not sustained any more, then the gap is halved (geometrically).

use serde::{Deserialize, Serialize};

use super::open::Counted;
use crate::error::BenchError;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    /// The highest rate that was sustained.
    pub(crate) per_second: f64,
    pub(crate) limit: KneeLimit,
}

/// How the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KneeLimit {
    /// A rate a few percent higher was not sustained.
    Found,
    /// No rate that was tried was too high.
    NotReached,
    /// No rate that was tried was low enough: this is the lowest.
    NotSustained,
}

/// How often the rate is doubled, or halved when the first one is too high already.
const DOUBLINGS: u32 = 12;
/// How often the gap is halved: a factor of 2 becomes one of 2^(1/32), 2 %.
const HALVINGS: u32 = 5;
/// An answer may be behind by this share of a trial.
const BEHIND: f64 = 0.02;
/// An answer may be behind by this many exchanges.
const EXCHANGES: f64 = 4.0;

/// Returns the length of a trial, in nanoseconds, for rows of `seconds` seconds and exchanges of `each`
/// nanoseconds. It is long enough that [`EXCHANGES`] are no more than [`BEHIND`] of it: otherwise the knee of
/// slow exchanges would be found too high by the delay that they are allowed. It is no longer than a row.
pub(crate) fn trial_nanos(seconds: f64, each: f64) -> f64 {
    let row = seconds * 1e9;
    let exact = (EXCHANGES / BEHIND * each).min(row);
    (row / 10.0).clamp(10e6, 40e6).max(exact)
}

/// Whether the queue did not grow, when a single exchange takes `each` nanoseconds.
pub(crate) fn is_sustained(counted: &Counted, each: f64) -> bool {
    counted.behind() <= (BEHIND * counted.intended_ns).max(EXCHANGES * each)
}

/// Searches from `first` messages per second on; `sustains` makes one trial.
pub(crate) fn find(
    first: f64,
    mut sustains: impl FnMut(f64) -> Result<bool, BenchError>,
) -> Result<Found, BenchError> {
    let mut holds = |rate: f64| Ok::<_, BenchError>(sustains(rate)? || sustains(rate)?);
    let found = |per_second, limit| Ok(Found { per_second, limit });
    let (mut low, mut high) = (first, first);
    if holds(first)? {
        let mut doublings = 0;
        while doublings < DOUBLINGS && low >= high {
            high = low * 2.0;
            if holds(high)? {
                low = high;
            }
            doublings += 1;
        }
        if low >= high {
            return found(low, KneeLimit::NotReached);
        }
    } else {
        let mut halvings = 0;
        while low >= high {
            low = high / 2.0;
            halvings += 1;
            if holds(low)? {
                break;
            }
            if halvings == DOUBLINGS {
                return found(low, KneeLimit::NotSustained);
            }
            high = low;
        }
    }
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    found(low, KneeLimit::Found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(capacity: f64, first: f64) -> Found {
        find(first, |rate| Ok(rate <= capacity)).unwrap()
    }

    #[test]
    fn it_is_found_from_below_and_from_above_within_a_few_percent() {
        for capacity in [1.0e3, 7.7e5, 3.3e6] {
            for first in [
                capacity / 300.0,
                capacity * 0.99,
                capacity * 1.01,
                capacity * 200.0,
            ] {
                let found = of(capacity, first);
                assert_eq!(found.limit, KneeLimit::Found);
                let share = found.per_second / capacity;
                assert!((0.97..=1.0).contains(&share), "{capacity} from {first}: {share}");
            }
        }
    }

    #[test]
    fn without_a_limit_the_search_ends_as_not_reached() {
        assert_eq!(of(f64::INFINITY, 1.0).limit, KneeLimit::NotReached);
        let never = of(0.0, 1e6);
        assert_eq!(never.limit, KneeLimit::NotSustained);
        assert!(never.per_second < 1e6 / 1_000.0);
    }

    #[test]
    fn one_bad_moment_is_not_a_limit() {
        let mut trials = 0;
        let found = find(1e3, |rate| {
            trials += 1;
            // Every other look is disturbed.
            Ok(rate <= 1e5 && trials % 2 == 0)
        });
        assert!(found.unwrap().per_second > 0.97e5);
    }

    #[test]
    fn a_trial_is_long_enough_for_slow_exchanges_and_no_longer_than_a_row() {
        assert_eq!(trial_nanos(1.0, 200.0), 40e6);
        assert_eq!(trial_nanos(0.2, 400e3), 80e6);
        assert_eq!(trial_nanos(0.2, 5e6), 200e6);
        // 5 % above the capacity of one that takes 400 µs, for a whole trial.
        let counted = Counted {
            intended_ns: 80e6,
            answered_ns: 84e6,
            ..Counted::default()
        };
        assert!(!is_sustained(&counted, 400e3));
    }

    #[test]
    fn a_queue_that_grows_is_not_sustained() {
        let counted = |behind: f64| Counted {
            intended_ns: 40e6,
            answered_ns: 40e6 + behind,
            ..Counted::default()
        };
        assert!(is_sustained(&counted(500.0), 200.0));
        assert!(is_sustained(&counted(0.5e6), 200.0));
        assert!(!is_sustained(&counted(2e6), 200.0), "5 % above the capacity");
        assert!(is_sustained(&counted(2e6), 1e6), "exchanges that take long");
    }
}

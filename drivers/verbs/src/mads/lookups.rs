//! When neighbours whose hardware addresses are not known are looked up: each lookup takes several calls of
//! the kernel, and the senders of queries decide how many neighbours answers go to.

use std::net::IpAddr;
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;

/// Neighbours whose lookups are remembered; a further one is not looked up until one of them is forgotten.
const MOST: usize = 1024;
/// Time between the first two lookups of a neighbour. Each later interval is twice as long, up to the last.
const FIRST: Duration = Duration::from_millis(10);
const LAST: Duration = Duration::from_millis(80);
/// How long after its next lookup was due a neighbour is remembered: nothing waits for it any more.
const MEMORY: Duration = Duration::from_secs(1);

/// The next lookup of a neighbour.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    due: Time,
    /// Time from it to the one behind it.
    apart: Duration,
}

/// The neighbours that were looked up and not found.
#[derive(Debug, Default)]
pub(super) struct Lookups(FxHashMap<IpAddr, Lookup>);

impl Lookups {
    /// Whether a neighbour may be looked up now; the caller does it then.
    pub(super) fn is_due(&mut self, now: Time, neighbour: IpAddr) -> bool {
        if let Some(lookup) = self.0.get_mut(&neighbour) {
            let is_due = lookup.due <= now;
            if is_due {
                lookup.due = now + lookup.apart;
                lookup.apart = (2 * lookup.apart).min(LAST);
            }
            return is_due;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, lookup| now < lookup.due + MEMORY);
        }
        if self.0.len() >= MOST {
            return false;
        }
        let lookup = Lookup {
            due: now + FIRST,
            apart: 2 * FIRST,
        };
        self.0.insert(neighbour, lookup);
        true
    }

    /// Forgets a neighbour: the kernel knows it.
    pub(super) fn forget(&mut self, neighbour: IpAddr) {
        self.0.remove(&neighbour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(1 + millis)
    }

    #[test]
    fn a_neighbour_is_looked_up_once_in_each_interval() {
        let (mut lookups, one) = (Lookups::default(), IpAddr::from([10, 0, 0, 1]));
        let due: Vec<u64> = (0..=400)
            .filter(|millis| lookups.is_due(at(*millis), one))
            .collect();
        assert_eq!(due, [0, 10, 30, 70, 150, 230, 310, 390]);
        assert!(lookups.is_due(at(391), [10, 0, 0, 2].into()), "another one");
        lookups.forget(one);
        assert!(
            lookups.is_due(at(391), one),
            "it is known, and is looked up again"
        );
    }

    #[test]
    fn their_number_has_a_bound_and_old_ones_make_room() {
        let mut lookups = Lookups::default();
        let neighbour = |number: u32| IpAddr::from(number.to_be_bytes());
        let count = |lookups: &mut Lookups, millis, from: u32| {
            let each = from..from + 2 * MOST as u32;
            each.filter(|number| lookups.is_due(at(millis), neighbour(*number)))
                .count()
        };
        assert_eq!(count(&mut lookups, 0, 0), MOST);
        assert_eq!(count(&mut lookups, 500, 9999), 0);
        assert_eq!(count(&mut lookups, 1010, 9999), MOST);
    }
}

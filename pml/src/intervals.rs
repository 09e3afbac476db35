//! Which bytes of a transfer have arrived: sorted, merged ranges, so that no byte is counted twice.

use doorbell_paths::PATHS_MAX;

use crate::paths::stripe::DEEPER;
use crate::request::Pipeline;

/// Most separate ranges of one transfer. A sender has at most twice its pipeline of fragments under way over
/// each path; only where many that were given back are cut into many pieces, for paths with shorter ones, may
/// there be more. What finds no place is not lost: the receiver has the sender begin again.
const MOST: usize = 2 * PATHS_MAX * DEEPER * Pipeline::MOST;

/// Why a range was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// All or part of it is there already.
    Repeated,
    /// Too many holes.
    TooMany,
}

/// The ranges that have arrived. Its memory is used again by the next transfer.
#[derive(Debug, Default)]
pub(crate) struct Intervals(Vec<(u64, u64)>);

impl Intervals {
    /// Forgets all ranges.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns how many bytes have arrived.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|range| range.1 - range.0).sum()
    }

    /// Returns how many have arrived from the front, without a hole.
    pub(crate) fn front(&self) -> u64 {
        self.0
            .first()
            .filter(|range| range.0 == 0)
            .map_or(0, |range| range.1)
    }

    /// The holes below `until`, lowest first.
    pub(crate) fn holes(&self, until: u64) -> impl Iterator<Item = (u64, u64)> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|range| range.1));
        let ends = self.0.iter().map(|range| range.0).chain(std::iter::once(until));
        starts.zip(ends).filter(|(from, to)| from < to)
    }

    /// Forgets everything from `at` on.
    pub(crate) fn cut(&mut self, at: u64) {
        self.0.retain(|range| range.0 < at);
        if let Some(last) = self.0.last_mut() {
            last.1 = last.1.min(at);
        }
    }

    /// Adds `[from, to)`; refuses it as a whole when any of its bytes is there already.
    pub(crate) fn add(&mut self, from: u64, to: u64) -> Result<(), Rejected> {
        if from >= to {
            return Ok(());
        }
        let at = self.0.partition_point(|range| range.1 <= from);
        // ranges[at] is the first that ends after `from`.
        if self.0.get(at).is_some_and(|range| range.0 < to) {
            return Err(Rejected::Repeated);
        }
        let joins_left = at > 0 && self.0[at - 1].1 == from;
        let joins_right = self.0.get(at).is_some_and(|range| range.0 == to);
        match (joins_left, joins_right) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = to,
            (false, true) => self.0[at].0 = from,
            (false, false) if self.0.len() == MOST => return Err(Rejected::TooMany),
            (false, false) => self.0.insert(at, (from, to)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_agree_with_a_table_of_bytes(ranges in prop::collection::vec((0u64..40, 1u64..6), 1..60)) {
            let mut table = [false; 64];
            let mut intervals = Intervals::default();
            for (from, length) in ranges {
                let span = from as usize..(from + length) as usize;
                let fresh = table[span.clone()].iter().all(|seen| !seen);
                prop_assert_eq!(intervals.add(from, from + length).is_ok(), fresh);
                if fresh {
                    table[span].fill(true);
                }
                let runs = table.windows(2).filter(|pair| !pair[0] && pair[1]).count() + usize::from(table[0]);
                prop_assert_eq!(intervals.0.len(), runs);
            }
        }
    }

    #[test]
    fn holes_are_returned_and_cut() {
        let mut intervals = Intervals::default();
        assert_eq!(intervals.holes(9).collect::<Vec<_>>(), [(0, 9)]);
        for (from, to) in [(0, 10), (20, 30), (40, 50)] {
            intervals.add(from, to).unwrap();
        }
        assert_eq!((intervals.total(), intervals.front()), (30, 10));
        assert_eq!(
            intervals.holes(60).collect::<Vec<_>>(),
            [(10, 20), (30, 40), (50, 60)]
        );
        assert_eq!(intervals.holes(50).collect::<Vec<_>>(), [(10, 20), (30, 40)]);
        intervals.cut(25);
        assert_eq!(intervals.holes(60).collect::<Vec<_>>(), [(10, 20), (25, 60)]);
    }

    #[test]
    fn holes_are_bounded() {
        let mut intervals = Intervals::default();
        for at in 0..MOST as u64 {
            assert_eq!(intervals.add(at * 2, at * 2 + 1), Ok(()));
        }
        let beyond = 2 * MOST as u64;
        assert_eq!(intervals.add(beyond, beyond + 1), Err(Rejected::TooMany));
        assert_eq!(intervals.add(1, 2), Ok(()), "filling a hole needs no room");
    }
}

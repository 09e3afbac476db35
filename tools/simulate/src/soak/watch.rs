//! The resources of processes, sampled, and whether they grew.
//!
//! A process takes what it needs when it needs it first (rings, slabs of segments, buffers of the longest
//! message), so that some growth at the beginning is right. What is compared are the most of the second
//! quarter of the time and of the last: by then all there is has been used many times. What leaks with
//! messages, or with time, is more in the last.

use serde::Serialize;

use super::process::Holds;

/// More memory in the last quarter than this, in KiB, and than this share, is growth: what an epoch takes and
/// gives back (the plan's bytes and the longest message, a little more than 2 MiB), which a sample may have
/// met or not.
const KIB: u64 = 3 * 1_024;
const SHARE: f64 = 0.05;

/// All samples of one process.
#[derive(Debug, Default)]
pub(super) struct Samples {
    pub(super) name: String,
    all: Vec<Holds>,
}

/// What they come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Growth {
    pub(super) process: String,
    /// KiB of resident memory, the most of the second quarter and of the last.
    kib: [u64; 2],
    descriptors: [usize; 2],
    pub(super) grew: bool,
}

impl Samples {
    pub(super) fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            all: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, holds: Holds) {
        self.all.push(holds);
    }

    pub(super) fn last(&self) -> Holds {
        self.all.last().copied().unwrap_or_default()
    }

    pub(super) fn growth(&self) -> Growth {
        let quarter = self.all.len() / 4;
        let most = |samples: &[Holds]| {
            let kib = samples.iter().map(|one| one.kib).max();
            let descriptors = samples.iter().map(|one| one.descriptors).max();
            (kib.unwrap_or(0), descriptors.unwrap_or(0))
        };
        let early = most(&self.all[quarter..2 * quarter]);
        let late = most(&self.all[self.all.len() - quarter..]);
        let allowed = early.0 + KIB.max((early.0 as f64 * SHARE) as u64);
        Growth {
            process: self.name.clone(),
            kib: [early.0, late.0],
            descriptors: [early.1, late.1],
            // Too few samples show nothing, and that is not good.
            grew: quarter == 0 || late.0 > allowed || late.1 > early.1,
        }
    }
}

impl Growth {
    pub(super) fn line(&self) -> String {
        let [kib, late_kib] = self.kib;
        let [descriptors, late_descriptors] = self.descriptors;
        let verdict = if self.grew { "GREW" } else { "steady" };
        format!(
            "{:<8} {kib:>8} KiB, then {late_kib:>8}; {descriptors:>4} descriptors, then {late_descriptors:>4}: {verdict}",
            self.process
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(samples: impl IntoIterator<Item = (u64, usize)>) -> bool {
        let mut all = Samples::of("one");
        for (kib, descriptors) in samples {
            all.add(Holds { kib, descriptors });
        }
        all.growth().grew
    }

    #[test]
    fn what_leaks_is_seen_and_what_begins_is_not() {
        assert!(!growth(
            (0..40).map(|at| (20_000 + 5_000 * u64::from(at > 4), 30))
        ));
        assert!(!growth(
            (0..40).map(|at| (20_000 + at % 7 * 50, 30 + at as usize % 3))
        ));
        assert!(growth((0..40).map(|at| (20_000 + at * 200, 30))), "memory");
        assert!(growth((0..40).map(|at| (20_000, 30 + at / 19))), "a descriptor");
        assert!(growth([(1, 1); 3]), "three samples are too few for a verdict");
    }
}

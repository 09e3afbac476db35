//! A row is made of slices of some tens of milliseconds, each between two looks at the bare exchange.
//!
//! The two cores of a virtual machine move between "near" and "far" within seconds. A slice whose two looks
//! are of different bands is thrown away; the others are collected per band, so that no row mixes them. A row
//! by time ends with its time, a row by samples with the first band that has enough, or at a cap; the fuller
//! band is shown, and marked when the row did not stay in it.

use crate::baseline::Band;
use crate::stats::{Recorder, median};

use super::open::Counted;
use super::row::{Reference, Repeat};

/// What one slice measured.
#[derive(Debug)]
pub(crate) struct Slice {
    /// Number of exchanges or messages.
    pub(crate) samples: u64,
    /// Measured time, in nanoseconds.
    pub(crate) nanos: f64,
    /// Nanoseconds per exchange or message of each round.
    pub(crate) rounds: Vec<f64>,
    /// The samples of its exchanges.
    pub(crate) recorder: Recorder,
    /// Nanoseconds of a half round trip, to be compared with the bare one; `None` for streams.
    pub(crate) half: Option<f64>,
    /// What this slice reached as a share of what memcpy allows; `None` for pingpong.
    pub(crate) memcpy: Option<Memcpy>,
    /// An open loop's counts, and its times from when messages left.
    pub(crate) open: Option<(Counted, Recorder)>,
    /// The repetitions that it is worth.
    pub(crate) repeats: Vec<Repeat>,
}

/// A slice of a stream beside a copy of the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memcpy {
    pub(crate) bytes_per_second: f64,
    pub(crate) share: f64,
}

/// Everything that was collected in one band.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    pub(crate) samples: u64,
    pub(crate) nanos: f64,
    pub(crate) rounds: Vec<f64>,
    pub(crate) recorder: Recorder,
    pub(crate) open: (Counted, Recorder),
    pub(crate) repeats: Vec<Repeat>,
    bares: Vec<f64>,
    ratios: Vec<f64>,
    memcpy: Vec<Memcpy>,
}

/// The condition under which a row has enough.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// This many nanoseconds have passed, everything included.
    Time(f64),
    /// The row holds this many samples, all of one band.
    Samples(u64),
}

/// What is kept apart: each band, and everything when there is no reference.
const HEAPS: [Option<Band>; 4] = [Some(Band::Sibling), Some(Band::Near), Some(Band::Far), None];

/// The slices of one row.
#[derive(Debug)]
pub(crate) struct Slices {
    target: Target,
    heaps: [Heap; HEAPS.len()],
    first: Option<f64>,
    last: Option<f64>,
    taken: u32,
    repeated: u32,
    /// Samples of the slices that were thrown away, and the longest of them.
    dropped: (u64, Option<f64>),
    /// Samples and measured nanoseconds of all slices, also of those that were thrown away.
    all: (u64, f64),
}

/// Returns how long the part of a slice may take that was planned to take `planned` nanoseconds, in a slice
/// of about `slice` when `left` are left: twice as long as either and [`LONG_NANOS`] at least, so that only
/// what has become much slower meanwhile is cut, and no longer than the row. Ranks that come to share a core
/// exchange a thousand times slower.
pub(crate) fn limit(planned: f64, slice: f64, left: f64) -> f64 {
    let long = (2.0 * planned.max(slice)).max(LONG_NANOS);
    long.min(left.max(SLICE_MIN_NANOS))
}

/// The least limit of the time of a slice, in nanoseconds: on a busy machine it waits for its turn, and is
/// not shorter for it, as the looks around it wait as well.
const LONG_NANOS: f64 = 1e9;

/// A row takes at most this many times the samples requested, repeats and both bands together.
const CAP: f64 = 5.0;
/// Slices that a row may take before the cap counts, or while it has none that could be kept: short rows have
/// few.
const SLICES_MIN: u32 = 12;
/// A row whose slices of one band are less than this share of all did not stay in it.
const STEADY: f64 = 0.5;
/// A slice shorter than this is not worth its looks at the bare exchange.
const SLICE_MIN_NANOS: f64 = 4e6;

impl Slices {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            heaps: Default::default(),
            first: None,
            last: None,
            taken: 0,
            repeated: 0,
            dropped: (0, None),
            all: (0, 0.0),
        }
    }

    /// Takes a slice with the looks at the bare exchange before and after it.
    pub(crate) fn take(&mut self, before: Option<f64>, slice: Slice, after: Option<f64>) {
        self.first = self.first.or(before);
        self.last = after.or(self.last);
        self.taken += 1;
        self.all.0 += slice.samples;
        self.all.1 += slice.nanos;
        let bands = (before.map(Band::of), after.map(Band::of));
        let heap = match bands {
            (Some(a), Some(b)) if a != b => {
                self.repeated += 1;
                self.dropped.0 += slice.samples;
                let longest = slice.recorder.percentiles().max;
                self.dropped.1 = self.dropped.1.into_iter().chain(longest).reduce(f64::max);
                return;
            }
            (band, _) => {
                let index = HEAPS.iter().position(|of| *of == band).unwrap_or(0);
                &mut self.heaps[index]
            }
        };
        heap.samples += slice.samples;
        heap.nanos += slice.nanos;
        heap.rounds.extend_from_slice(&slice.rounds);
        heap.recorder.merge(&slice.recorder);
        heap.memcpy.extend(slice.memcpy);
        heap.repeats.extend(slice.repeats);
        if let Some((counted, actual)) = slice.open {
            heap.open.0.add(&counted);
            heap.open.1.merge(&actual);
        }
        if let (Some(before), Some(after)) = (before, after) {
            let bare = before.midpoint(after);
            heap.bares.push(bare);
            heap.ratios.extend(slice.half.map(|half| half / bare));
        }
    }

    /// The nanoseconds that are left after `elapsed`; endless when samples are counted.
    pub(crate) fn left(&self, elapsed: f64) -> f64 {
        match self.target {
            // A slice more, when the row has none yet.
            Target::Time(nanos) => (nanos - elapsed).max(SLICE_MIN_NANOS),
            Target::Samples(_) => f64::INFINITY,
        }
    }

    /// The share that is done after `elapsed` nanoseconds, 0 to 1.
    pub(crate) fn share(&self, elapsed: f64) -> f64 {
        let done = match self.target {
            Target::Time(nanos) => elapsed / nanos,
            Target::Samples(wanted) => self.fullest() as f64 / wanted as f64,
        };
        done.min(1.0)
    }

    fn fullest(&self) -> u64 {
        self.heaps.iter().map(|heap| heap.samples).max().unwrap_or(0)
    }

    /// Whether there is enough, or no sense in going on.
    pub(crate) fn done(&self, elapsed: f64) -> bool {
        match self.target {
            Target::Time(nanos) => {
                let over = elapsed + SLICE_MIN_NANOS >= nanos && self.taken > 0;
                over && (self.fullest() > 0 || self.taken >= SLICES_MIN)
            }
            Target::Samples(wanted) => {
                let most = wanted as f64 * CAP;
                self.fullest() >= wanted || (self.taken >= SLICES_MIN && self.all.0 as f64 >= most)
            }
        }
    }

    /// The fuller band's heap, and the reference of the row.
    pub(crate) fn finish(self) -> (Heap, Reference) {
        let worth = |heap: &Heap| match self.target {
            Target::Time(_) => heap.nanos,
            Target::Samples(_) => heap.samples as f64,
        };
        let fuller = |a: &(usize, Heap), b: &(usize, Heap)| worth(&a.1).total_cmp(&worth(&b.1));
        let (index, heap) = self
            .heaps
            .into_iter()
            .enumerate()
            .max_by(fuller)
            .unwrap_or_default();
        let unsteady = match self.target {
            Target::Time(_) => heap.nanos < STEADY * self.all.1,
            Target::Samples(wanted) => heap.samples < wanted,
        };
        let speeds: Vec<f64> = heap.memcpy.iter().map(|m| m.bytes_per_second).collect();
        let shares: Vec<f64> = heap.memcpy.iter().map(|m| m.share).collect();
        let reference = Reference {
            cache_line_half_rtt_ns: median(&heap.bares),
            before_ns: self.first,
            after_ns: self.last,
            band: HEAPS[index],
            slice_ratio: median(&heap.ratios),
            repeated: self.repeated,
            dropped: self.dropped.0,
            dropped_max_ns: self.dropped.1,
            unsteady,
            memcpy_bytes_per_second: median(&speeds),
            slice_memcpy_share: median(&shares),
            // Of the row's own figures, which are not known here.
            ratio: None,
            memcpy_share: None,
        };
        (heap, reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(half: f64) -> Slice {
        let mut recorder = Recorder::new();
        recorder.record((half * 2.0) as u64);
        Slice {
            samples: 10,
            nanos: 1.0,
            rounds: vec![half * 2.0],
            recorder,
            half: Some(half),
            memcpy: None,
            open: None,
            repeats: vec![Repeat::default()],
        }
    }

    #[test]
    fn a_slice_whose_band_changed_is_repeated() {
        let mut slices = Slices::new(Target::Samples(30));
        slices.take(Some(50.0), slice(100.0), Some(250.0));
        assert_eq!(slices.share(1e9), 0.0);
        (0..3).for_each(|_| slices.take(Some(50.0), slice(60.0), Some(50.0)));
        assert!(slices.done(0.0));
        let (heap, reference) = slices.finish();
        assert_eq!((heap.samples, heap.recorder.samples()), (30, 3));
        assert_eq!((reference.repeated, reference.unsteady), (1, false));
        assert_eq!((reference.dropped, reference.dropped_max_ns), (10, Some(200.0)));
        assert_eq!(
            (reference.band, reference.slice_ratio),
            (Some(Band::Near), Some(1.2))
        );
    }

    #[test]
    fn bands_are_not_mixed() {
        let mut slices = Slices::new(Target::Time(1e9));
        (0..2).for_each(|_| slices.take(Some(50.0), slice(60.0), Some(52.0)));
        (0..3).for_each(|_| slices.take(Some(250.0), slice(280.0), Some(250.0)));
        let (heap, reference) = slices.finish();
        assert_eq!((&heap.rounds[..], heap.repeats.len()), (&[560.0; 3][..], 3));
        assert_eq!((reference.band, reference.unsteady), (Some(Band::Far), false));
    }

    #[test]
    fn a_band_that_never_stays_ends_the_row_and_marks_it() {
        let mut slices = Slices::new(Target::Samples(40));
        let mut taken = 0;
        while !slices.done(0.0) {
            slices.take(Some(50.0), slice(60.0), Some(250.0));
            taken += 1;
        }
        assert_eq!(taken, 20);
        assert!(slices.finish().1.unsteady);
    }

    #[test]
    fn time_ends_a_row_whatever_was_thrown_away() {
        let mut slices = Slices::new(Target::Time(1e9));
        assert!(!slices.done(2e9), "a row without a slice is not done");
        (0..2).for_each(|_| slices.take(Some(50.0), slice(60.0), Some(250.0)));
        assert!(!slices.done(2e9), "a row without a slice that counts is not done");
        slices.take(Some(50.0), slice(60.0), Some(50.0));
        assert!(!slices.done(0.9e9));
        assert!(slices.done(1e9));
        assert!((slices.left(0.4e9) - 0.6e9).abs() < 1.0 && slices.share(0.4e9) == 0.4);
        assert!(slices.finish().1.unsteady, "one of three slices was kept");
        let mut never = Slices::new(Target::Time(1e9));
        (0..SLICES_MIN).for_each(|_| never.take(Some(50.0), slice(60.0), Some(250.0)));
        assert!(never.done(1e9));
    }

    #[test]
    fn without_a_reference_everything_is_one_heap() {
        let mut slices = Slices::new(Target::Samples(20));
        slices.take(None, slice(1.0), None);
        assert!(!slices.done(0.0));
        slices.take(None, slice(1.0), None);
        assert!(slices.done(0.0));
        let (heap, reference) = slices.finish();
        assert_eq!(
            (heap.samples, reference.slice_ratio, reference.band),
            (20, None, None)
        );
    }
}

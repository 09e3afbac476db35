//! A row is made of slices of some tens of milliseconds, each between two looks at the bare exchange.
//!
//! The two cores of a virtual machine move between "near" and "far" within seconds. A slice whose two looks are of
//! different bands is thrown away and repeated; the others are collected per band, so that no row mixes them. The
//! first band with enough wins; when none gets there within the cap, the fuller one is taken and marked.

use crate::bare::Band;
use crate::stats::{Recorder, median};

use super::row::Reference;

/// What one slice measured.
#[derive(Debug)]
pub(crate) struct Slice {
    /// Samples (stamped exchanges) or messages.
    pub(crate) samples: u64,
    /// Measured time, in nanoseconds.
    pub(crate) nanos: f64,
    /// Nanoseconds per exchange or message of each whole round.
    pub(crate) rounds: Vec<f64>,
    /// The stamped exchanges.
    pub(crate) recorder: Recorder,
    /// Nanoseconds of a half round trip, to be compared with the bare one; `None` for streams.
    pub(crate) half: Option<f64>,
    /// What this slice reached as a share of what memcpy allows; `None` for pingpong.
    pub(crate) memcpy: Option<Memcpy>,
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
    bares: Vec<f64>,
    ratios: Vec<f64>,
    memcpy: Vec<Memcpy>,
}

/// When a row has enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) nanos: f64,
    pub(crate) samples: Option<u64>,
}

impl Target {
    /// What so much time or so many samples are worth.
    fn part(&self, nanos: f64, samples: u64) -> f64 {
        match self.samples {
            Some(wanted) => samples as f64 / wanted as f64,
            None => nanos / self.nanos,
        }
    }

    fn share(&self, heap: &Heap) -> f64 {
        self.part(heap.nanos, heap.samples)
    }
}

/// The slices of one row.
#[derive(Debug)]
pub(crate) struct Slices {
    target: Target,
    heaps: [Heap; 3],
    first: Option<f64>,
    last: Option<f64>,
    taken: u32,
    repeated: u32,
    /// What the slices that were thrown away would have been worth, as a share of the target.
    wasted: f64,
}

/// A row takes at most this many times the target, repeats and both bands together.
const CAP: f64 = 5.0;
/// Slices that a row may take before the cap counts: short rows have few.
const SLICES_MIN: u32 = 12;

impl Slices {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            heaps: Default::default(),
            first: None,
            last: None,
            taken: 0,
            repeated: 0,
            wasted: 0.0,
        }
    }

    /// Takes a slice with the looks at the bare exchange before and after it.
    pub(crate) fn take(&mut self, before: Option<f64>, slice: Slice, after: Option<f64>) {
        self.first = self.first.or(before);
        self.last = after.or(self.last);
        self.taken += 1;
        let bands = (before.map(Band::of), after.map(Band::of));
        let heap = match bands {
            (Some(a), Some(b)) if a != b => {
                self.repeated += 1;
                self.wasted += self.target.part(slice.nanos, slice.samples);
                return;
            }
            (Some(Band::Near), _) => &mut self.heaps[0],
            (Some(Band::Far), _) => &mut self.heaps[1],
            (None, _) => &mut self.heaps[2],
        };
        heap.samples += slice.samples;
        heap.nanos += slice.nanos;
        heap.rounds.extend_from_slice(&slice.rounds);
        heap.recorder.merge(&slice.recorder);
        heap.memcpy.extend(slice.memcpy);
        if let (Some(before), Some(after)) = (before, after) {
            let bare = before.midpoint(after);
            heap.bares.push(bare);
            heap.ratios.extend(slice.half.map(|half| half / bare));
        }
    }

    /// The share that is done, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.heaps
            .iter()
            .map(|heap| self.target.share(heap))
            .fold(0.0, f64::max)
            .min(1.0)
    }

    /// Whether there is enough, or no sense in going on.
    pub(crate) fn done(&self) -> bool {
        let kept: f64 = self.heaps.iter().map(|heap| self.target.share(heap)).sum();
        self.share() >= 1.0 || (self.taken >= SLICES_MIN && kept + self.wasted >= CAP)
    }

    /// The fuller band's heap, and the reference of the row.
    pub(crate) fn finish(self) -> (Heap, Reference) {
        let unsteady = self.share() < 1.0;
        let target = self.target;
        let fuller = |a: &(usize, Heap), b: &(usize, Heap)| target.share(&a.1).total_cmp(&target.share(&b.1));
        let (index, heap) = self
            .heaps
            .into_iter()
            .enumerate()
            .max_by(fuller)
            .unwrap_or_default();
        let speeds: Vec<f64> = heap.memcpy.iter().map(|m| m.bytes_per_second).collect();
        let shares: Vec<f64> = heap.memcpy.iter().map(|m| m.share).collect();
        let reference = Reference {
            cache_line_half_rtt_ns: median(&heap.bares),
            before_ns: self.first,
            after_ns: self.last,
            band: [Some(Band::Near), Some(Band::Far), None][index],
            ratio: median(&heap.ratios),
            repeated: self.repeated,
            unsteady,
            memcpy_bytes_per_second: median(&speeds),
            memcpy_share: median(&shares),
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
        }
    }

    const TARGET: Target = Target {
        nanos: 3.0,
        samples: None,
    };

    #[test]
    fn a_slice_whose_band_changed_is_repeated() {
        let mut slices = Slices::new(TARGET);
        slices.take(Some(50.0), slice(100.0), Some(250.0));
        assert_eq!(slices.share(), 0.0);
        (0..3).for_each(|_| slices.take(Some(50.0), slice(60.0), Some(50.0)));
        assert!(slices.done());
        let (heap, reference) = slices.finish();
        assert_eq!((heap.samples, heap.recorder.samples()), (30, 3));
        assert_eq!((reference.repeated, reference.unsteady), (1, false));
        assert_eq!((reference.band, reference.ratio), (Some(Band::Near), Some(1.2)));
    }

    #[test]
    fn bands_are_not_mixed() {
        let mut slices = Slices::new(TARGET);
        (0..2).for_each(|_| slices.take(Some(50.0), slice(60.0), Some(52.0)));
        (0..3).for_each(|_| slices.take(Some(250.0), slice(280.0), Some(250.0)));
        let (heap, reference) = slices.finish();
        assert_eq!(heap.rounds, [560.0; 3]);
        assert_eq!(reference.band, Some(Band::Far));
    }

    #[test]
    fn a_band_that_never_stays_ends_the_row_and_marks_it() {
        let quarter = Target { nanos: 4.0, ..TARGET };
        let mut slices = Slices::new(quarter);
        let mut taken = 0;
        while !slices.done() {
            slices.take(Some(50.0), slice(60.0), Some(250.0));
            taken += 1;
        }
        assert_eq!(taken, 20);
        assert!(slices.finish().1.unsteady);
    }

    #[test]
    fn without_a_reference_everything_is_one_heap() {
        let mut slices = Slices::new(Target {
            nanos: 1.0,
            samples: Some(20),
        });
        slices.take(None, slice(1.0), None);
        assert!(!slices.done());
        slices.take(None, slice(1.0), None);
        assert!(slices.done());
        let (heap, reference) = slices.finish();
        assert_eq!((heap.samples, reference.ratio, reference.band), (20, None, None));
    }
}

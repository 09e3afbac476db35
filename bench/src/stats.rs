//! Recording: a histogram of fixed size that never loses a value, and percentiles that are refused when there
//! are too few samples to know them.
//!
//! Recorded values are full round trips in nanoseconds. Half round trips are the same values halved: nothing
//! here pretends to know one direction by itself.

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// The highest value that keeps its place in the histogram: one minute, in nanoseconds. Anything longer is
/// counted in the overflow bucket, and its true maximum is kept beside it.
pub const HIGHEST_NS: u64 = 60_000_000_000;

/// How many samples have to lie beyond a percentile before it is shown.
pub const BEYOND: f64 = 10.0;

/// Latencies of one kind of exchange. The size is fixed, however long the run.
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
    overflow: u64,
    longest: f64,
    shortest: f64,
    sum: f64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty recorder: three significant digits from 1 ns to [`HIGHEST_NS`], a quarter of a megabyte.
    pub fn new() -> Self {
        Self {
            // The bounds are constants: 1 < 60e9 and 3 digits are within the crate's limits.
            histogram: Histogram::new_with_bounds(1, HIGHEST_NS, 3).expect("constant bounds are valid"),
            overflow: 0,
            longest: 0.0,
            shortest: f64::INFINITY,
            sum: 0.0,
        }
    }

    /// Records one value, in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.record_exact(nanos as f64);
    }

    /// Records one value, in nanoseconds with their fraction: the histogram rounds it, the mean and both
    /// extremes keep it.
    #[inline]
    pub fn record_exact(&mut self, nanos: f64) {
        let whole = nanos.round() as u64;
        self.overflow += u64::from(whole > HIGHEST_NS);
        self.longest = self.longest.max(nanos);
        self.shortest = self.shortest.min(nanos);
        self.sum += nanos;
        self.histogram.saturating_record(whole.min(HIGHEST_NS));
    }

    /// Adds everything that `other` recorded.
    pub fn merge(&mut self, other: &Self) {
        // Same bounds on both sides, so that every value of the other fits.
        self.histogram
            .add(&other.histogram)
            .expect("recorders have the same bounds");
        self.overflow += other.overflow;
        self.longest = self.longest.max(other.longest);
        self.shortest = self.shortest.min(other.shortest);
        self.sum += other.sum;
    }

    /// Returns how many values were recorded.
    pub fn samples(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns how many of them were above [`HIGHEST_NS`].
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Returns the histogram, for exports.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// The value at `quantile` (0 to 1), or `None` when fewer than [`BEYOND`] samples lie beyond it.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        knows(self.samples(), quantile).then(|| self.shown(self.histogram.value_at_quantile(quantile)))
    }

    /// A value of the histogram as every view shows it. A bucket is shown by its top, the last one by the
    /// longest value that was really seen.
    pub fn shown(&self, value: u64) -> f64 {
        if value >= self.histogram.max() {
            return self.longest;
        }
        (value as f64).max(self.shortest).min(self.longest)
    }

    /// Returns the mean of all values, or `None` for none.
    pub fn mean(&self) -> Option<f64> {
        let samples = self.samples();
        // A sum of many equal values may be off in its last digit: no mean lies outside of what was seen.
        (samples > 0).then(|| (self.sum / samples as f64).max(self.shortest).min(self.longest))
    }

    /// All percentiles of full round trips, in nanoseconds.
    pub fn percentiles(&self) -> Percentiles {
        let any = self.samples() > 0;
        Percentiles {
            min: any.then_some(self.shortest),
            p50: self.at(0.5),
            p90: self.at(0.9),
            p99: self.at(0.99),
            p999: self.at(0.999),
            p9999: self.at(0.9999),
            max: any.then_some(self.longest),
            mean: self.mean(),
        }
    }

    /// The number of values above `threshold` nanoseconds.
    pub fn above(&self, threshold: u64) -> u64 {
        let within = self.histogram.count_between(0, threshold.min(HIGHEST_NS));
        self.samples().saturating_sub(within)
    }

    /// The histogram as text (HdrHistogram V2, compressed, base64): lossless, to be merged by anyone.
    pub fn encoded(&self) -> String {
        let mut bytes = Vec::new();
        // Writing into memory cannot fail.
        V2DeflateSerializer::new()
            .serialize(&self.histogram, &mut bytes)
            .expect("a histogram fits into memory");
        base64(&bytes)
    }

    /// Reads back what [`Recorder::encoded`] made; `None` when it is something else.
    pub fn decoded(text: &str) -> Option<Self> {
        let bytes = unbase64(text)?;
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).ok()?;
        let mut recorder = Self::new();
        for value in read.iter_recorded() {
            let nanos = value.value_iterated_to();
            recorder
                .histogram
                .saturating_record_n(nanos.min(HIGHEST_NS), value.count_at_value());
            recorder.longest = recorder.longest.max(nanos as f64);
            recorder.shortest = recorder.shortest.min(nanos as f64);
        }
        recorder.sum = recorder.histogram.mean() * recorder.samples() as f64;
        Some(recorder)
    }

    /// Decodes as [`Recorder::decoded`] does, with the extremes and the mean of `exact`, which the histogram
    /// keeps to three digits.
    pub fn decoded_with(text: &str, exact: &Percentiles) -> Option<Self> {
        let mut recorder = Self::decoded(text)?;
        recorder.longest = exact.max.unwrap_or(recorder.longest);
        recorder.shortest = exact.min.unwrap_or(recorder.shortest);
        if let Some(mean) = exact.mean {
            recorder.sum = mean * recorder.samples() as f64;
        }
        Some(recorder)
    }
}

/// Whether `samples` are enough to speak of `quantile`: at least [`BEYOND`] of them lie beyond it.
pub fn knows(samples: u64, quantile: f64) -> bool {
    let tail = (1.0 - quantile).max(0.0);
    // Rounded: a tenth of 100 samples is ten, whatever the last bit of 0.9 is.
    (samples as f64 * tail * 1e6).round() >= BEYOND * 1e6
}

/// Percentiles in nanoseconds; `None` where the samples are too few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The smallest sample.
    pub min: Option<f64>,
    /// The 50th percentile.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The 99.9th percentile.
    pub p999: Option<f64>,
    /// The 99.99th percentile.
    pub p9999: Option<f64>,
    /// The largest sample.
    pub max: Option<f64>,
    /// The mean of the same samples.
    pub mean: Option<f64>,
}

impl Percentiles {
    /// Every value multiplied by `factor`: a half turns round trips into half round trips.
    pub fn scaled(self, factor: f64) -> Self {
        let by = |value: Option<f64>| value.map(|v| v * factor);
        Self {
            min: by(self.min),
            p50: by(self.p50),
            p90: by(self.p90),
            p99: by(self.p99),
            p999: by(self.p999),
            p9999: by(self.p9999),
            max: by(self.max),
            mean: by(self.mean),
        }
    }
}

/// The mean of finite values; `None` for none.
pub fn mean(values: &[f64]) -> Option<f64> {
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
}

/// The middle of finite values (the mean of the two middle ones of an even number); `None` for none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let half = finite.len() / 2;
    match finite.len() {
        0 => None,
        n if n % 2 == 1 => Some(finite[half]),
        _ => Some(finite[half - 1].midpoint(finite[half])),
    }
}

/// The smallest, middle and largest of a few values, and their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest value.
    pub min: Option<f64>,
    /// The median value.
    pub p50: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// The mean value.
    pub mean: Option<f64>,
}

impl Spread {
    /// Computes the spread of the finite values.
    pub fn of(values: &[f64]) -> Self {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        Self {
            min: finite().min_by(f64::total_cmp),
            p50: median(values),
            max: finite().max_by(f64::total_cmp),
            mean: mean(values),
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding (RFC 4648, section 4), as interval logs use it.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let symbol = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { symbol as char } else { '=' });
        }
    }
    text
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut word, mut bits) = (0u32, 0);
    for symbol in digits.bytes() {
        let value = ALPHABET.iter().position(|known| *known == symbol)?;
        word = word << 6 | value as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_percentile_without_enough_samples_is_refused() {
        let mut recorder = Recorder::new();
        assert_eq!(recorder.percentiles(), Percentiles::default());
        (0..99).for_each(|_| recorder.record(100));
        let few = recorder.percentiles();
        assert_eq!((few.p50, few.p90, few.max), (Some(100.0), None, Some(100.0)));
        recorder.record(100);
        assert_eq!(recorder.percentiles().p90, Some(100.0));
        assert_eq!(recorder.percentiles().p99, None);
        (0..99_900).for_each(|_| recorder.record(100));
        assert_eq!(recorder.percentiles().p9999, Some(100.0));
    }

    #[test]
    fn a_value_beyond_the_top_is_counted_and_its_maximum_kept() {
        let mut recorder = Recorder::new();
        recorder.record(u64::MAX);
        recorder.record(5);
        assert_eq!((recorder.samples(), recorder.overflow()), (2, 1));
        assert_eq!(recorder.percentiles().max, Some(u64::MAX as f64));
        assert_eq!(recorder.above(1_000), 1);
    }

    #[test]
    fn the_mean_and_the_extremes_keep_what_the_histogram_rounds() {
        let mut recorder = Recorder::new();
        recorder.record_exact(1_000_000.75);
        let one = recorder.percentiles();
        assert_eq!(
            (one.min, one.mean, one.max),
            (Some(1_000_000.75), Some(1_000_000.75), Some(1_000_000.75))
        );
        recorder.record_exact(0.25);
        assert_eq!(recorder.mean(), Some(500_000.5));
        let exact = recorder.percentiles();
        let back = Recorder::decoded_with(&recorder.encoded(), &exact).unwrap();
        assert_eq!(back.percentiles(), exact);
        assert_eq!(Recorder::new().mean(), None);
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(unbase64(coded).unwrap(), plain.as_bytes());
        }
        assert!(unbase64("~~").is_none());
    }

    #[test]
    fn nothing_and_not_a_number_have_no_middle() {
        assert_eq!((mean(&[]), median(&[])), (None, None));
        assert_eq!((mean(&[f64::NAN]), median(&[f64::INFINITY])), (None, None));
        assert_eq!(median(&[3.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    proptest! {
        #[test]
        fn percentiles_rise_and_stay_within_what_was_seen(values in prop::collection::vec(any::<u64>(), 1..3000)) {
            let mut recorder = Recorder::new();
            values.iter().for_each(|value| recorder.record(*value));
            let p = recorder.percentiles();
            let known: Vec<f64> = [p.min, p.p50, p.p90, p.p99, p.p999, p.max].into_iter().flatten().collect();
            prop_assert!(known.is_sorted(), "{known:?}");
            let mean = p.mean.unwrap();
            prop_assert!(p.min.unwrap() <= mean && mean <= p.max.unwrap(), "{p:?}");
            prop_assert_eq!(p.min.unwrap(), *values.iter().min().unwrap() as f64);
            prop_assert_eq!(p.max.unwrap(), *values.iter().max().unwrap() as f64);
            prop_assert_eq!(recorder.samples(), values.len() as u64);
            prop_assert_eq!(recorder.overflow(), values.iter().filter(|v| **v > HIGHEST_NS).count() as u64);
        }

        #[test]
        fn merging_is_recording_both(a in prop::collection::vec(0..HIGHEST_NS, 0..200),
                                     b in prop::collection::vec(0..HIGHEST_NS, 0..200)) {
            let (mut left, mut right, mut both) = (Recorder::new(), Recorder::new(), Recorder::new());
            a.iter().for_each(|v| { left.record(*v); both.record(*v) });
            b.iter().for_each(|v| { right.record(*v); both.record(*v) });
            left.merge(&right);
            // The sum of two sums differs from the sum of all in its last digits.
            let but_mean = |of: &Recorder| Percentiles { mean: None, ..of.percentiles() };
            prop_assert_eq!(but_mean(&left), but_mean(&both));
            let means = (left.mean().unwrap_or(0.0), both.mean().unwrap_or(0.0));
            prop_assert!((means.0 - means.1).abs() <= 1e-9 * means.1, "{:?}", means);
            prop_assert_eq!(left.histogram(), both.histogram());
        }

        #[test]
        fn an_encoded_histogram_reads_back(values in prop::collection::vec(0..HIGHEST_NS, 0..300)) {
            let mut recorder = Recorder::new();
            values.iter().for_each(|value| recorder.record(*value));
            let back = Recorder::decoded(&recorder.encoded()).unwrap();
            prop_assert_eq!(back.samples(), recorder.samples());
            prop_assert_eq!(back.histogram(), recorder.histogram());
        }

        #[test]
        fn strange_text_is_no_histogram(text in "\\PC{0,80}") {
            prop_assert!(Recorder::decoded(&text).is_none());
        }
    }
}

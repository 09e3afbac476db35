//! Axes of the pictures: decades with 2 and 5 between them, nines, and powers of two.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{bytes, count, per_second, time};
use crate::size::Size;

/// The unit of the numbers of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanoseconds,
    BytesPerSecond,
    MessagesPerSecond,
    Bytes,
    Count,
}

/// A logarithmic axis over positive values.
#[derive(Clone, Debug)]
pub(super) struct Decades {
    range: Range<f64>,
    unit: Unit,
}

impl Decades {
    /// An axis that shows all of `values`, rounded outwards to 1, 2 or 5 times a power of ten.
    pub(super) fn around(values: impl Iterator<Item = f64> + Clone, unit: Unit) -> Self {
        let positive = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .map(|value| value.clamp(SMALLEST, LARGEST));
        let low = positive.clone().fold(f64::INFINITY, f64::min);
        let high = positive.fold(0.0, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        Self {
            range: outwards(low, false)..outwards(high * 1.0001, true),
            unit,
        }
    }
}

/// The smallest and largest values shown: no figure is below a picosecond or above what a memory could ever
/// move, and values beyond are cut.
const SMALLEST: f64 = 1e-3;
const LARGEST: f64 = 1e18;

/// The nearest 1, 2 or 5 times a power of ten below or above.
fn outwards(value: f64, up: bool) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    if up {
        steps.into_iter().find(|step| *step >= value).unwrap_or(steps[3])
    } else {
        steps
            .into_iter()
            .rev()
            .find(|step| *step <= value * 1.0001)
            .unwrap_or(steps[0])
    }
}

fn place(value: f64, range: &Range<f64>, limit: (i32, i32)) -> i32 {
    let share = (value - range.start) / (range.end - range.start);
    let share = if share.is_finite() { share } else { 0.0 };
    limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
}

impl Ranged for Decades {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let range = self.range.start.log10()..self.range.end.log10();
        place(value.max(f64::MIN_POSITIVE).log10(), &range, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let decades = (self.range.end / self.range.start).log10();
        let steps: &[f64] = if decades > 5.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = self.range.start.log10().floor() as i32;
        let last = self.range.end.log10().ceil() as i32;
        (first..=last)
            .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|value| *value >= self.range.start * 0.999 && *value <= self.range.end * 1.001)
            .collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Decades {
    fn format_ext(&self, value: &f64) -> String {
        let text = match self.unit {
            Unit::Nanoseconds => time(value.round()),
            Unit::BytesPerSecond => per_second(*value, "B"),
            Unit::MessagesPerSecond => per_second(*value, ""),
            Unit::Bytes => bytes(*value),
            Unit::Count => return count(*value),
        };
        // Ticks are round numbers: "5.00 µs" is "5 µs".
        match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => text,
        }
    }
}

/// The percentile axis: every nine takes the same width. Values are quantiles below 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nines {
    /// The number of nines that are shown.
    pub(super) count: i32,
}

impl Nines {
    /// Enough for `samples`: the last nine has ten samples beyond it.
    pub(super) fn for_samples(samples: u64) -> Self {
        let nines = (samples as f64 / 10.0).max(10.0).log10().ceil();
        Self {
            count: (nines as i32).clamp(1, 9),
        }
    }

    /// The largest quantile shown.
    pub(super) fn last(self) -> f64 {
        1.0 - 10f64.powi(-self.count)
    }
}

impl Ranged for Nines {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let nines = -(1.0 - value.clamp(0.0, self.last())).log10();
        place(nines, &(0.0..f64::from(self.count)), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let nines = (1..=self.count).map(|nine| 1.0 - 10f64.powi(-nine));
        [0.0, 0.5].into_iter().chain(nines).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.last()
    }
}

impl ValueFormatter<f64> for Nines {
    fn format_ext(&self, value: &f64) -> String {
        let nines = -(1.0 - value).log10();
        format!(
            "{:.*} %",
            (nines.round() as usize).saturating_sub(2),
            value * 100.0
        )
    }
}

/// Message sizes: every doubling takes the same width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doublings {
    low: i32,
    high: i32,
}

/// The number of doublings up to which each has a tick.
const TICKS: i32 = 10;

impl Doublings {
    /// Creates an axis that shows all of `sizes`.
    pub(super) fn around(sizes: impl Iterator<Item = u64> + Clone) -> Self {
        let low = sizes.clone().min().unwrap_or(1).max(1).ilog2() as i32;
        let high = sizes.max().unwrap_or(1).max(1);
        let above = i32::from(!high.is_power_of_two());
        let high = high.ilog2() as i32 + above;
        // A single size still needs a width, and with every second tick shown both ends need one.
        let odd = i32::from(low == high || (high - low > TICKS && (high - low) % 2 == 1));
        Self {
            low: low - odd.min(low),
            high: high + if low == 0 || low == high { odd } else { 0 },
        }
    }
}

impl Ranged for Doublings {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        place(
            value.max(1.0).log2(),
            &(f64::from(self.low)..f64::from(self.high)),
            limit,
        )
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let step = if self.high - self.low > TICKS { 2 } else { 1 };
        (self.low..=self.high)
            .step_by(step)
            .map(|power| 2f64.powi(power))
            .collect()
    }

    fn range(&self) -> Range<f64> {
        2f64.powi(self.low)..2f64.powi(self.high)
    }
}

impl ValueFormatter<f64> for Doublings {
    fn format_ext(&self, value: &f64) -> String {
        Size::new(*value as usize).map_or_else(String::new, |size| size.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::coord::ranged1d::BoldPoints;
    use proptest::prelude::*;

    #[test]
    fn axes_end_on_round_numbers() {
        let axis = Decades::around([55.0, 1_234.0].into_iter(), Unit::Nanoseconds);
        assert_eq!(axis.range(), 50.0..2_000.0);
        let ticks: Vec<String> = axis
            .key_points(BoldPoints(9))
            .iter()
            .map(|v| axis.format_ext(v))
            .collect();
        assert_eq!(ticks, ["50 ns", "100 ns", "200 ns", "500 ns", "1 µs", "2 µs"]);
        let nines = Nines::for_samples(100_000);
        let ticks: Vec<String> = nines
            .key_points(BoldPoints(9))
            .iter()
            .map(|v| nines.format_ext(v))
            .collect();
        assert_eq!(ticks, ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        let sizes = Doublings::around([8, 1000].into_iter());
        assert_eq!(sizes.range(), 8.0..1024.0);
        assert_eq!(sizes.format_ext(&1024.0), "1 KiB");
    }

    proptest! {
        #[test]
        fn strange_values_make_a_finite_axis(values in prop::collection::vec(prop::num::f64::ANY, 0..20)) {
            let axis = Decades::around(values.iter().copied(), Unit::BytesPerSecond);
            let range = axis.range();
            prop_assert!(range.start > 0.0 && range.start < range.end);
            for value in values {
                axis.map(&value, (0, 100));
            }
            prop_assert!(!axis.key_points(BoldPoints(5)).is_empty());
        }
    }
}

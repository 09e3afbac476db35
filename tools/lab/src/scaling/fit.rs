//! The growth of a figure with the number of something.

use serde::{Deserialize, Serialize};

/// The growth of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slope {
    /// `e`, where the figure grows as the count to the power of `e`: least squares over the logarithms.
    pub(crate) exponent: f64,
    /// What one more costs, from the first point to the last, in the unit of the figure.
    pub(crate) each: f64,
}

/// Exponents up to these have these names.
const NAMES: [(f64, &str); 5] = [
    (-0.05, "falls"),
    (0.05, "flat"),
    (0.35, "grows slowly"),
    (0.85, "grows, but slower than in proportion"),
    (1.15, "grows in proportion"),
];

impl Slope {
    /// The slope of points (count, figure), from left to right; `None` for fewer than two that can be used.
    pub(crate) fn of(points: &[(f64, f64)]) -> Option<Self> {
        let usable: Vec<(f64, f64)> = points
            .iter()
            .copied()
            .filter(|(x, y)| x.is_finite() && y.is_finite() && *x > 0.0 && *y > 0.0)
            .collect();
        let (&(first_x, first_y), &(last_x, last_y)) = (usable.first()?, usable.last()?);
        let logs: Vec<(f64, f64)> = usable.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        let many = logs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / many;
        let (across, up) = (mean(|log| log.0), mean(|log| log.1));
        let spread: f64 = logs.iter().map(|(x, _)| (x - across).powi(2)).sum();
        let together: f64 = logs.iter().map(|(x, y)| (x - across) * (y - up)).sum();
        (spread > 0.0 && last_x > first_x).then(|| Self {
            exponent: together / spread,
            each: (last_y - first_y) / (last_x - first_x),
        })
    }

    /// Whether it neither falls nor grows.
    pub(crate) fn is_flat(self) -> bool {
        self.exponent > NAMES[0].0 && self.exponent <= NAMES[1].0
    }

    /// Describes the slope in words.
    pub(crate) fn name(self) -> &'static str {
        let named = NAMES.iter().find(|(most, _)| self.exponent <= *most);
        named.map_or("grows faster than in proportion", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn growth_has_the_name_that_it_deserves() {
        let curve = |of: fn(f64) -> f64| {
            let points = [1.0, 4.0, 16.0, 256.0].map(|x| (x, of(x)));
            Slope::of(&points).unwrap().name()
        };
        assert_eq!(curve(|_| 7.0), "flat");
        assert_eq!(curve(|x| 100.0 / x), "falls");
        assert_eq!(curve(|x| 10.0 + x.ln()), "grows slowly");
        assert_eq!(curve(f64::sqrt), "grows, but slower than in proportion");
        assert_eq!(curve(|x| 3.0 * x), "grows in proportion");
        assert_eq!(curve(|x| x * x), "grows faster than in proportion");
    }

    #[test]
    fn too_little_has_no_slope() {
        assert_eq!(Slope::of(&[]), None);
        assert_eq!(Slope::of(&[(1.0, 1.0)]), None);
        assert_eq!(Slope::of(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(Slope::of(&[(1.0, f64::NAN), (2.0, 3.0)]), None);
    }

    proptest! {
        #[test]
        fn a_power_is_found_again(e in -2.0f64..2.0, scale in 1e-3f64..1e6) {
            let points: Vec<(f64, f64)> = (0..6).map(|n| (f64::from(1 << (2 * n)), scale)).map(|(x, s)| (x, s * x.powf(e))).collect();
            let found = Slope::of(&points).unwrap();
            prop_assert!((found.exponent - e).abs() < 1e-6, "{found:?}");
        }
    }
}

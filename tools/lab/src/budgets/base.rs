//! The reference of a ratio, measured before and after it: whether it was stable enough to compare with.

/// A raw half round trip slower than this, in nanoseconds, is a bad base, and not a good result: it takes a
/// few microseconds when nothing disturbs it.
pub(super) const BAD_NS: f64 = 10_000.0;
/// And so is one that moves by more than this factor meanwhile: what is judged by it may be fifteen percent
/// above it.
const MOVES: f64 = 1.1;

/// One that can be compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Base {
    /// The mean of both.
    pub(super) value: f64,
}

impl Base {
    /// Judges a raw half round trip, measured before and after.
    pub(super) fn raw(before: f64, after: f64) -> Option<Self> {
        Self::steady(before, after).filter(|_| before.max(after) <= BAD_NS)
    }

    /// Judges any figure that stayed about as it was.
    pub(super) fn steady(before: f64, after: f64) -> Option<Self> {
        let (least, most) = (before.min(after), before.max(after));
        (least > 0.0 && most <= MOVES * least).then(|| Self {
            value: before.midpoint(after),
        })
    }

    /// Returns why nothing is judged when there never was one.
    pub(super) fn never(times: u32) -> String {
        format!(
            "the raw ping-pong below it was above {:.0} µs or did not stay as it was, {times} times",
            BAD_NS / 1e3
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_quick_and_stays_as_it_was() {
        assert_eq!(Base::raw(2_000.0, 2_200.0), Some(Base { value: 2_100.0 }));
        assert_eq!(Base::raw(2_000.0, 2_201.0), None);
        assert_eq!(Base::raw(10_001.0, 9_500.0), None);
        assert_eq!(Base::steady(2.2e9, 2e9), Some(Base { value: 2.1e9 }));
        assert_eq!(Base::steady(0.0, 0.0), None);
        assert_eq!(Base::steady(f64::NAN, f64::NAN), None);
    }
}

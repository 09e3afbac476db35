//! Message sizes as people write and read them: `8`, `64`, `4Ki`, `1MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Largest message that a measurement sends: 1 GiB.
pub const LARGEST: usize = 1 << 30;

/// A message size in bytes, 1 to [`LARGEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(usize);

impl Size {
    /// Creates a size, when it is within 1 to [`LARGEST`].
    pub fn new(bytes: usize) -> Option<Self> {
        (1..=LARGEST).contains(&bytes).then_some(Self(bytes))
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Powers of two from 1 B to 4 MiB: what a measurement takes when no size is named.
    pub fn all() -> Vec<Self> {
        (0..=22).map(|power| Self(1 << power)).collect()
    }
}

/// Returns a number of bytes as a size is written, also beyond [`LARGEST`].
pub(crate) fn text_of(bytes: u64) -> String {
    usize::try_from(bytes)
        .ok()
        .and_then(Size::new)
        .map_or_else(|| format!("{bytes} B"), |size| size.to_string())
}

impl FromStr for Size {
    type Err = BenchError;

    /// Reads bytes with an optional binary unit: `Ki`, `Mi`, `Gi`, each with an optional `B`.
    fn from_str(text: &str) -> Result<Self, BenchError> {
        let bad = |reason| BenchError::BadSize {
            given: text.to_owned(),
            reason,
        };
        if text.starts_with('-') {
            return Err(bad("it is below one byte"));
        }
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "ki" | "kib" => 10,
            "m" | "mi" | "mib" => 20,
            "g" | "gi" | "gib" => 30,
            _ => return Err(bad("the unit is unknown")),
        };
        let number: usize = digits.parse().map_err(|_| bad("it is not a number"))?;
        let bytes = number
            .checked_mul(1 << shift)
            .ok_or_else(|| bad("it is above 1 GiB"))?;
        match Self::new(bytes) {
            Some(size) => Ok(size),
            None if bytes == 0 => Err(bad("it has to be at least one byte")),
            None => Err(bad("it is above 1 GiB")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let text = units
            .iter()
            .find(|(shift, _)| self.0 >> shift > 0 && self.0.trailing_zeros() >= *shift)
            .map_or_else(
                || format!("{} B", self.0),
                |(shift, unit)| format!("{} {unit}", self.0 >> shift),
            );
        out.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("1", 1),
            ("64", 64),
            ("4Ki", 4096),
            ("4 KiB", 4096),
            ("1MiB", 1 << 20),
            ("1g", 1 << 30),
        ] {
            assert_eq!(text.parse::<Size>().unwrap().bytes(), bytes, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("0", "at least one byte"),
            ("2Gi", "above 1 GiB"),
            ("eight", "unit is unknown"),
            ("", "not a number"),
            ("8q", "unit is unknown"),
            ("-8", "below one byte"),
            ("99999999999999999999", "not a number"),
            ("18446744073709551615Ki", "above 1 GiB"),
        ] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_default_is_one_byte_to_four_mebibytes() {
        let all = Size::all();
        assert_eq!((all[0].bytes(), all[22].bytes(), all.len()), (1, 4 << 20, 23));
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read_again(bytes in 1usize..=LARGEST) {
            let size = Size::new(bytes).unwrap();
            prop_assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<Size>();
        }
    }
}

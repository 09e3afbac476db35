//! API levels: the release that a caller was written for.

use std::fmt;
use std::str::FromStr;

/// An API level, which is a release: 1.17, 2.6. Greater is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u32);

impl Level {
    /// The first release of libfabric.
    pub const FIRST: Self = Self::new(1, 0);
    /// The oldest library that is loaded: older ones were not tried.
    pub const OLDEST: Self = Self::new(1, 17);
    /// The newest release whose layouts are here. A provider reports it, and a client passes no later one.
    pub const NEWEST: Self = Self::new(2, 6);
    /// The release that the development branch after [`NEWEST`](Self::NEWEST) is to become.
    ///
    /// What that branch has added so far is of this level. It is in the layouts, so that structures allocated
    /// here have room for it.
    pub const NEXT: Self = Self::new(2, 7);

    /// Returns the level of a release.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// Returns the level that a call has in its argument `version`, the macro `FI_VERSION`.
    pub const fn from_version(version: u32) -> Self {
        Self(version)
    }

    /// Returns the number for an argument `version`.
    pub const fn version(self) -> u32 {
        self.0
    }

    /// Returns the number before the point.
    pub const fn major(self) -> u32 {
        self.0 >> 16
    }

    /// Returns the number after the point.
    pub const fn minor(self) -> u32 {
        self.0 & 0xffff
    }

    /// Whether a caller of this level knows what came with level `since`.
    pub const fn has(self, since: Self) -> bool {
        since.0 <= self.0
    }

    /// Reads "1.17", in constants too.
    pub(crate) const fn read(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut parts = [0u32; 2];
        let (mut at, mut part, mut digits) = (0, 0, 0);
        while at < bytes.len() {
            match bytes[at] {
                digit @ b'0'..=b'9' if digits < 4 => {
                    parts[part] = parts[part] * 10 + (digit - b'0') as u32;
                    digits += 1;
                }
                b'.' if part == 0 && digits > 0 => {
                    part = 1;
                    digits = 0;
                }
                _ => return None,
            }
            at += 1;
        }
        if part == 1 && digits > 0 {
            Some(Self(parts[0] << 16 | parts[1]))
        } else {
            None
        }
    }

    /// Reads a level that stands in the source.
    pub(crate) const fn literal(text: &str) -> Self {
        match Self::read(text) {
            Some(level) => level,
            None => panic!("an API level is written as 1.17"),
        }
    }

    /// Returns the later of two levels.
    pub(crate) const fn later(self, other: Self) -> Self {
        if self.0 > other.0 { self } else { other }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// A text that is no API level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no release of libfabric; write it as 1.17")]
pub struct NoLevel(String);

impl FromStr for Level {
    type Err = NoLevel;

    fn from_str(text: &str) -> Result<Self, NoLevel> {
        Self::read(text).ok_or_else(|| NoLevel(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_the_number_of_the_macro_and_minor_numbers_count_as_numbers() {
        assert_eq!(Level::new(1, 17).version(), 0x1_0011);
        assert!(Level::new(1, 9) < Level::new(1, 10) && Level::new(1, 22) < Level::new(2, 0));
        assert!(Level::NEWEST.has(Level::FIRST) && !Level::OLDEST.has(Level::NEWEST));
        assert_eq!(Level::from_version(0x2_0006), Level::NEWEST);
    }

    #[test]
    fn levels_are_read_as_they_are_printed() {
        for level in [Level::FIRST, Level::OLDEST, Level::NEWEST, Level::NEXT] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert_ne!(Level::literal("1.2"), Level::literal("1.20"));
        for wrong in ["", "1", "1.", ".1", "1.2.3", "a.b", "1.99999"] {
            assert!(wrong.parse::<Level>().is_err(), "{wrong}");
        }
    }
}

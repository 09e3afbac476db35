//! Path MTUs, and what was found out about one.

use std::fmt;

/// A size of packets: 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mtu(u8);

impl Mtu {
    /// The smallest of them, 256 bytes.
    #[cfg(test)]
    pub(crate) const LEAST: Self = Self(1);

    /// The size of this number: 1 for 256 bytes, up to 5 for 4,096.
    pub(crate) const fn of(number: u8) -> Option<Self> {
        match number {
            1..=5 => Some(Self(number)),
            _ => None,
        }
    }

    /// Its number, for the library and on the wire.
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// Returns its bytes.
    pub(crate) const fn bytes(self) -> usize {
        128 << self.0
    }

    /// The next smaller one.
    pub(crate) const fn smaller(self) -> Option<Self> {
        Self::of(self.0 - 1)
    }
}

/// The size of a message that proves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// A short message.
    Small,
    /// A message of the path MTU.
    Full,
}

/// What was found out about a path: that it carries less than both ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    /// The smallest size that did not pass.
    pub(crate) failed: Mtu,
    /// The one that is used.
    pub(crate) uses: Mtu,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, uses) = (self.failed.bytes(), self.uses.bytes());
        write!(
            out,
            "small frames pass, {failed}-byte frames do not; using {uses}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_from_4096_to_256() {
        let all = std::iter::successors(Mtu::of(5), |mtu| mtu.smaller());
        let bytes: Vec<usize> = all.map(Mtu::bytes).collect();
        assert_eq!(bytes, [4096, 2048, 1024, 512, 256]);
        assert!(Mtu::of(0).is_none() && Mtu::of(6).is_none() && Mtu::LEAST.smaller().is_none());
    }

    #[test]
    fn a_narrow_path_is_named() {
        let (failed, uses) = (Mtu::of(5).unwrap(), Mtu::of(3).unwrap());
        assert_eq!(
            Diagnosis { failed, uses }.to_string(),
            "small frames pass, 4096-byte frames do not; using 1024"
        );
    }
}

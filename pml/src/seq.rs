//! The sequence number of one peer's messages: the one place where numbers wrap.

/// A sequence number. Compared by distance, so that it may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub(crate) u32);

/// Where a sequence number lies as seen from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the expected one.
    Expected,
    /// That many numbers after it (at least 1).
    Ahead(u32),
    /// Before it: it was taken already.
    Behind,
}

impl Seq {
    /// The number after this one.
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Where this number lies when `expected` is the next to be taken. Half of the space is ahead.
    #[inline]
    pub(crate) const fn place(self, expected: Self) -> Place {
        match self.0.wrapping_sub(expected.0) {
            0 => Place::Expected,
            ahead if ahead < 1 << 31 => Place::Ahead(ahead),
            _ => Place::Behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_across_the_wrap() {
        let expected = Seq(u32::MAX);
        assert_eq!(expected.place(expected), Place::Expected);
        assert_eq!(expected.next(), Seq(0));
        assert_eq!(Seq(0).place(expected), Place::Ahead(1));
        assert_eq!(Seq(41).place(expected), Place::Ahead(42));
        assert_eq!(Seq(u32::MAX - 1).place(expected), Place::Behind);
        assert_eq!(Seq(0).place(Seq(1)), Place::Behind);
        assert_eq!(Seq(1 << 31).place(Seq(0)), Place::Behind);
        assert_eq!(Seq((1 << 31) - 1).place(Seq(0)), Place::Ahead((1 << 31) - 1));
    }
}

//! Order and duplicates: the sequence numbers of one peer's messages (the one place where they wrap), and the
//! messages that arrived ahead of an earlier one.

use std::collections::VecDeque;

/// A sequence number. Compared by distance, so that it may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

/// Where a sequence number lies relative to the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is the expected one.
    Expected,
    /// It is this many numbers after the expected one (at least 1).
    Ahead(u32),
    /// Before it: it was taken already.
    Behind,
}

impl Seq {
    /// Returns the number after this one.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns where this number lies when `expected` is the next to be taken. Half of the space is ahead.
    #[must_use]
    #[inline]
    pub const fn place(self, expected: Self) -> Place {
        match self.0.wrapping_sub(expected.0) {
            0 => Place::Expected,
            ahead if ahead < 1 << 31 => Place::Ahead(ahead),
            _ => Place::Behind,
        }
    }
}

/// Messages that arrived ahead of the expected one, which they wait for. They are kept by their distance from
/// it.
#[derive(Debug)]
pub struct Ahead<T>(VecDeque<Option<T>>);

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Ahead<T> {
    /// Whether the message `distance` (at least 1) after the expected one is here already: then it came
    /// twice.
    #[must_use]
    pub fn holds(&self, distance: u32) -> bool {
        self.0.get(distance as usize - 1).is_some_and(Option::is_some)
    }

    /// Keeps the message `distance` (at least 1) after the expected one. How far ahead a message may be is
    /// the caller's to bound.
    pub fn hold(&mut self, distance: u32, message: T) {
        let at = distance as usize - 1;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(message);
    }

    /// Takes the message that has become the expected one; `None` when it has not come yet. To be called once
    /// each time that the expected number advances.
    pub fn advance(&mut self) -> Option<T> {
        self.0.pop_front().flatten()
    }

    /// Returns the number of messages that are held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether no message is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all messages that are held, in order.
    pub fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_right_across_the_wrap() {
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

    /// A receiver over a rail that reorders, and that brings messages twice after a failover.
    #[test]
    fn messages_are_taken_in_order_and_once_across_the_wrap() {
        let mut expected = Seq(u32::MAX - 1);
        let (mut ahead, mut taken, mut twice) = (Ahead::default(), Vec::new(), 0);
        for seq in [0, u32::MAX, 1, 0, u32::MAX - 1, 3, 1, 3, 2, u32::MAX, 4] {
            match Seq(seq).place(expected) {
                Place::Behind => twice += 1,
                Place::Ahead(distance) if ahead.holds(distance) => twice += 1,
                Place::Ahead(distance) => ahead.hold(distance, seq),
                Place::Expected => {
                    taken.push(seq);
                    expected = expected.next();
                    while let Some(seq) = ahead.advance() {
                        taken.push(seq);
                        expected = expected.next();
                    }
                }
            }
        }
        assert_eq!(taken, [u32::MAX - 1, u32::MAX, 0, 1, 2, 3, 4]);
        assert_eq!((twice, ahead.count()), (4, 0));
    }

    #[test]
    fn what_is_held_is_counted_and_given_back_in_order() {
        let mut ahead = Ahead::default();
        ahead.hold(7, 'b');
        ahead.hold(3, 'a');
        assert!(ahead.holds(3) && !ahead.holds(4) && !ahead.holds(900));
        assert_eq!(ahead.count(), 2);
        assert_eq!(ahead.advance(), None);
        assert_eq!(ahead.take().collect::<String>(), "ab");
        assert_eq!(ahead.count(), 0);
    }
}

//! Sequence numbers of segments, and the one comparison of them.
//!
//! They have 32 bits on the wire, where the usNIC BTL has 16 (reference: vic, section 6.4). With a window of
//! 4,096, 16 bits would do on a rail that never holds a frame back; but at ten million frames a second they
//! come round every 6.5 ms, and a frame that a switch held back for so long would be taken for a new one. 32
//! bits come round after seven minutes, longer than any frame lives.

/// The number of a segment among those sent to one peer. It wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// How far this one is after `from`; negative when it is before. The one comparison of sequence numbers:
    /// right for everything less than 2³¹ apart.
    #[inline]
    pub const fn after(self, from: Self) -> i32 {
        self.0.wrapping_sub(from.0) as i32
    }

    /// The number `n` further on.
    #[inline]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// The number before.
    #[inline]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right_across_the_wrap() {
        for start in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let start = Seq(start);
            for n in [0, 1, 4095, 4096, 0x7fff_ffff] {
                assert_eq!(start.plus(n).after(start), n as i32);
                assert_eq!(start.after(start.plus(n)), -(n as i32));
            }
            assert_eq!(start.previous().plus(1), start);
        }
    }
}

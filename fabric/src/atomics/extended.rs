//! Numbers of the x87, which are `long double` of C on x86: Rust has no type for them, and there is no unsafe
//! code here that could use the processor's own. Sums, products and comparisons are those of an x87 with its
//! usual control word: 64 bits of mantissa, rounded to the nearest, ties to even (Intel's manual, volume 1,
//! chapters 4 and 8).
//!
//! ```text
//!   byte 0               8          10               16
//!   mantissa, with its   exponent   padding
//!   leading bit          and sign
//! ```

use std::cmp::Ordering;
use std::ops::{Add, Mul, Neg, Sub};

/// A number: `mantissa · 2^(exponent − 16446)`, where an exponent of zero counts as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extended {
    negative: bool,
    exponent: u16,
    mantissa: u64,
}

/// The exponent of infinities and of what is no number.
const LARGEST: u16 = 0x7fff;
const BIAS: i32 = 16383;
/// The leading bit of the mantissa, which all numbers but the smallest have.
const LEADING: u64 = 1 << 63;
/// The bit that makes a NaN a quiet one.
const QUIET: u64 = 1 << 62;

/// What an operation without a result gives.
const INDEFINITE: Extended = Extended {
    negative: true,
    exponent: LARGEST,
    mantissa: LEADING | QUIET,
};

impl Extended {
    pub(super) fn of(bytes: [u8; 16]) -> Self {
        let [m0, m1, m2, m3, m4, m5, m6, m7, e0, e1, ..] = bytes;
        let top = u16::from_le_bytes([e0, e1]);
        Self {
            negative: top >> 15 != 0,
            exponent: top & LARGEST,
            mantissa: u64::from_le_bytes([m0, m1, m2, m3, m4, m5, m6, m7]),
        }
    }

    /// The bytes in memory; the padding is zero.
    pub(super) fn bytes(self) -> [u8; 16] {
        let top = self.exponent | u16::from(self.negative) << 15;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.mantissa.to_le_bytes());
        bytes[8..10].copy_from_slice(&top.to_le_bytes());
        bytes
    }

    /// The number one, which stands for true.
    pub(super) const ONE: Self = Self {
        negative: false,
        exponent: BIAS as u16,
        mantissa: LEADING,
    };
    /// Zero, without a sign.
    pub(super) const ZERO: Self = Self::zero(false);

    const fn zero(negative: bool) -> Self {
        Self {
            negative,
            exponent: 0,
            mantissa: 0,
        }
    }

    const fn infinity(negative: bool) -> Self {
        Self {
            negative,
            exponent: LARGEST,
            mantissa: LEADING,
        }
    }

    /// Bytes that are no encoding: the leading bit is missing.
    const fn is_malformed(self) -> bool {
        self.exponent != 0 && self.mantissa & LEADING == 0
    }

    const fn is_nan(self) -> bool {
        self.exponent == LARGEST && self.mantissa != LEADING
    }

    const fn is_infinite(self) -> bool {
        self.exponent == LARGEST && self.mantissa == LEADING
    }

    pub(super) const fn is_zero(self) -> bool {
        self.exponent == 0 && self.mantissa == 0
    }

    /// The exponent that the mantissa has.
    fn scale(self) -> i32 {
        i32::from(self.exponent.max(1))
    }

    /// Size without sign, in order.
    fn size(self) -> (i32, u64) {
        (self.scale(), self.mantissa)
    }

    /// The result where an operand is no number: the one with the larger mantissa, made quiet.
    fn nan_of(self, other: Self) -> Option<Self> {
        if self.is_malformed() || other.is_malformed() {
            return Some(INDEFINITE);
        }
        let nan = match (self.is_nan(), other.is_nan()) {
            (false, false) => return None,
            (true, false) => self,
            (false, true) => other,
            (true, true) => self.larger_nan(other),
        };
        Some(Self {
            mantissa: nan.mantissa | QUIET,
            ..nan
        })
    }

    /// Chooses between two: a quiet one is taken; of two of one kind the one with the larger mantissa; of
    /// equal ones the positive one.
    fn larger_nan(self, other: Self) -> Self {
        let order = |nan: Self| (nan.mantissa & QUIET, nan.mantissa, !nan.negative);
        if order(self) >= order(other) { self } else { other }
    }

    /// The number nearest to `bits · 2^(exponent − BIAS − 126)`; the lowest bit may represent all that are
    /// below it.
    fn nearest(negative: bool, exponent: i32, bits: u128) -> Self {
        if bits == 0 {
            return Self::zero(negative);
        }
        // The first bit comes to the top.
        let empty = bits.leading_zeros();
        let (mut bits, mut exponent) = (bits << empty, exponent + 1 - empty as i32);
        let is_small = exponent < 1;
        if is_small {
            bits = shifted(bits, exponent.abs_diff(1));
            exponent = 1;
        }
        let (mut mantissa, rest) = ((bits >> 64) as u64, bits as u64);
        if rest > LEADING || rest == LEADING && mantissa & 1 != 0 {
            mantissa = mantissa.wrapping_add(1);
            if mantissa == 0 {
                (mantissa, exponent) = (LEADING, exponent + 1);
            }
        }
        if exponent >= i32::from(LARGEST) {
            return Self::infinity(negative);
        }
        Self {
            negative,
            exponent: if mantissa & LEADING == 0 {
                0
            } else {
                exponent as u16
            },
            mantissa,
        }
    }

    /// The lesser one; the other one where one is no number.
    pub(super) fn min(self, other: Self) -> Self {
        if self.is_nan() || other < self {
            other
        } else {
            self
        }
    }

    /// The greater one; the other one where one is no number.
    pub(super) fn max(self, other: Self) -> Self {
        if self.is_nan() || other > self {
            other
        } else {
            self
        }
    }
}

/// Shifts bits to the right; the lowest one is set if any lost one was.
fn shifted(bits: u128, by: u32) -> u128 {
    if by == 0 {
        return bits;
    }
    if by > 127 {
        return u128::from(bits != 0);
    }
    let lost = bits & ((1 << by) - 1) != 0;
    bits >> by | u128::from(lost)
}

impl Add for Extended {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        if let Some(nan) = self.nan_of(other) {
            return nan;
        }
        match (self.is_infinite(), other.is_infinite()) {
            (true, true) if self.negative != other.negative => return INDEFINITE,
            (true, _) => return self,
            (_, true) => return other,
            _ => {}
        }
        let (large, small) = if self.size() >= other.size() {
            (self, other)
        } else {
            (other, self)
        };
        let apart = large.scale().abs_diff(small.scale());
        let (one, other) = (
            u128::from(large.mantissa) << 63,
            shifted(u128::from(small.mantissa) << 63, apart),
        );
        if large.negative == small.negative {
            return Self::nearest(large.negative, large.scale(), one + other);
        }
        // A result of zero is positive.
        let negative = large.negative && one != other;
        Self::nearest(negative, large.scale(), one - other)
    }
}

impl Neg for Extended {
    type Output = Self;

    fn neg(self) -> Self {
        // The sign of what is no number means nothing, and a difference keeps it.
        let is_number = !self.is_nan();
        Self {
            negative: self.negative != is_number,
            ..self
        }
    }
}

impl Sub for Extended {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Extended {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        if let Some(nan) = self.nan_of(other) {
            return nan;
        }
        let negative = self.negative != other.negative;
        if self.is_infinite() || other.is_infinite() {
            if self.is_zero() || other.is_zero() {
                return INDEFINITE;
            }
            return Self::infinity(negative);
        }
        let bits = u128::from(self.mantissa) * u128::from(other.mantissa);
        Self::nearest(negative, self.scale() + other.scale() - BIAS, bits)
    }
}

impl PartialEq for Extended {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Extended {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let is_number = |it: &Self| !it.is_nan() && !it.is_malformed();
        if !is_number(self) || !is_number(other) {
            return None;
        }
        if self.is_zero() && other.is_zero() {
            return Some(Ordering::Equal);
        }
        Some(match (self.negative, other.negative) {
            (false, false) => self.size().cmp(&other.size()),
            (true, true) => other.size().cmp(&self.size()),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(negative: bool, exponent: u16, mantissa: u64) -> Extended {
        Extended {
            negative,
            exponent,
            mantissa,
        }
    }

    /// A whole number.
    fn whole(value: i64) -> Extended {
        Extended::nearest(value < 0, BIAS + 126, u128::from(value.unsigned_abs()))
    }

    fn same(is: Extended, wanted: Extended) {
        assert_eq!(is.bytes(), wanted.bytes(), "{is:?} and not {wanted:?}");
    }

    #[test]
    fn bytes_are_those_of_the_x87() {
        assert_eq!(whole(1).bytes()[..10], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
        assert_eq!(whole(-6).bytes()[..10], [0, 0, 0, 0, 0, 0, 0, 0xc0, 0x01, 0xc0]);
        let padded = [7, 1, 2, 3, 4, 5, 6, 0x87, 8, 9, 1, 1, 1, 1, 1, 1];
        let mut clean = padded;
        clean[10..].fill(0);
        assert_eq!(Extended::of(padded).bytes(), clean);
    }

    #[test]
    fn infinities_and_what_is_no_number() {
        let (inf, minus) = (Extended::infinity(false), Extended::infinity(true));
        let (zero, one) = (Extended::zero(false), whole(1));
        same(inf + one, inf);
        same(one + minus, minus);
        same(inf + minus, INDEFINITE);
        same(inf * whole(-2), minus);
        same(inf * zero, INDEFINITE);
        same(inf - inf, INDEFINITE);
        let signalling = number(false, LARGEST, LEADING | 5);
        let quiet = number(true, LARGEST, LEADING | QUIET | 1);
        same(signalling + one, number(false, LARGEST, LEADING | QUIET | 5));
        same(one - quiet, quiet);
        same(signalling * quiet, quiet);
        // Without its leading bit it is nothing at all.
        same(number(false, 7, 1) + one, INDEFINITE);
        same(number(false, LARGEST, 0) * quiet, INDEFINITE);
        assert!(quiet.partial_cmp(&one).is_none() && quiet != quiet && number(false, 7, 1) != one);
        assert!(minus < one && one < inf && inf == inf);
        same(quiet.min(one), one);
        same(one.max(quiet), one);
    }

    #[test]
    fn zeros_have_signs_and_are_equal() {
        let (zero, minus) = (Extended::zero(false), Extended::zero(true));
        assert_eq!(zero, minus);
        same(minus + minus, minus);
        same(zero + minus, zero);
        same(whole(3) - whole(3), zero);
        same(zero * whole(-3), minus);
    }

    #[test]
    fn the_smallest_and_the_largest() {
        let tiny = number(false, 0, 1);
        same(tiny + tiny, number(false, 0, 2));
        same(tiny * whole(-1), number(true, 0, 1));
        let half = number(false, BIAS as u16 - 1, LEADING);
        same(tiny * half, Extended::zero(false));
        same(number(false, 0, 3) * half, number(false, 0, 2));
        // The sum of small ones is an ordinary number.
        same(number(false, 0, LEADING - 1) + tiny, number(false, 1, LEADING));
        // A leading bit with an exponent of zero counts as one of one.
        assert_eq!(number(false, 0, LEADING), number(false, 1, LEADING));
        let most = number(true, LARGEST - 1, u64::MAX);
        same(most + most, Extended::infinity(true));
        same(most * most, Extended::infinity(false));
        // Half of the last place of the largest rounds to infinity; less does not.
        let half_place = number(true, LARGEST - 1 - 64, LEADING);
        same(most + half_place, Extended::infinity(true));
        same(most + number(true, LARGEST - 1 - 65, u64::MAX), most);
    }

    #[test]
    fn ties_go_to_the_even_one() {
        let half_place = |of: Extended| number(false, of.exponent - 64, LEADING);
        let odd = number(false, BIAS as u16, LEADING | 1);
        let even = number(false, BIAS as u16, LEADING | 2);
        same(odd + half_place(odd), even);
        same(even + half_place(even), even);
        same(odd - half_place(odd), number(false, BIAS as u16, LEADING));
        // Bits far below still break the tie.
        let beyond = number(false, 1, LEADING);
        same(even + half_place(even) + beyond, even);
        let more = number(false, even.exponent - 64, LEADING | 1);
        same(even + more, number(false, BIAS as u16, LEADING | 3));
    }

    proptest! {
        /// Doubles are among these numbers: what is exact there is the same here.
        #[test]
        fn whole_numbers_are_added_multiplied_and_compared(a in -(1i64 << 31)..1 << 31, b in -(1i64 << 31)..1 << 31) {
            let (x, y) = (whole(a), whole(b));
            prop_assert_eq!((x + y).bytes(), whole(a + b).bytes());
            prop_assert_eq!((x - y).bytes(), whole(a - b).bytes());
            let negative_zero = a * b == 0 && (a < 0 || b < 0);
            prop_assert_eq!((x * y).bytes(), if negative_zero { Extended::zero(true) } else { whole(a * b) }.bytes());
            prop_assert_eq!(x.partial_cmp(&y), a.partial_cmp(&b));
            prop_assert_eq!((x.min(y).bytes(), x.max(y).bytes()), (whole(a.min(b)).bytes(), whole(a.max(b)).bytes()));
        }

        /// The exact sum of two significands fits 128 bits, and is rounded here by division, not by shifts.
        #[test]
        fn rounding_is_to_the_nearest(a in any::<u64>(), b in any::<u64>(), apart in 0..64u16) {
            let (a, b) = (a | LEADING, b | LEADING);
            let (x, y) = (number(false, BIAS as u16 + apart, a), number(false, BIAS as u16, b));
            let exact = (u128::from(a) << apart).checked_add(u128::from(b));
            prop_assume!(exact.is_some_and(|exact| exact >> 127 == 0));
            let exact = exact.unwrap();
            let unit = 1u128 << (64 - exact.leading_zeros());
            let (floor, over) = (exact / unit, exact % unit);
            let up = over * 2 > unit || over * 2 == unit && floor % 2 == 1;
            let wanted = (floor + u128::from(up)) * unit;
            let sum = x + y;
            let is = u128::from(sum.mantissa) << (sum.exponent - BIAS as u16);
            prop_assert_eq!(is, wanted);
        }
    }
}

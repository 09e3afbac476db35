//! The arithmetic of atomics: every operation on every type that it is for (reference: portals, section 10).
//! Portals and the one-sided operations of the PML share it.
//!
//! Integers wrap. MIN and MAX of floating numbers take the other operand where one is not a number. A logical
//! operation gives one or zero; what is no number is true, as in C. Portals has them for integers alone
//! ([`is_in_portals`]). An ordered CSWAP compares `operand ? target`: LT stores when the operand is
//! less than the target. READ stores nothing.
//!
//! `long double` is the x87's 80 bits on x86 (`Extended`); its padding becomes zero where an operation
//! stores. On other processors it has another format, which nothing here computes with: there READ, SWAP,
//! CSWAP and CSWAP_NE move and compare its bytes, and all other operations on it are refused
//! ([`is_defined`]). To compute with fewer bits than C does would be worse.
//!
//! A complex product is the textbook's, each step rounded. Where a part is infinite it may be no number,
//! where C's own multiplication would still find an infinity (C11, annex G).
//!
//! ```
//! use doorbell_fabric::atomics::{Arithmetic, Element, apply};
//!
//! let mut target = 40u128.to_le_bytes();
//! apply(Arithmetic::Sum, Element::Uint128, &mut target, &2u128.to_le_bytes(), &[]);
//! assert_eq!(u128::from_le_bytes(target), 42);
//! ```

mod extended;

use crate::ni::{AtomicKind, Datatype};

use extended::Extended;

/// Whether `long double` is the x87's.
const X87: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));

/// An operation of atomics: those of Portals under their numbers, and READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Min = 0,
    Max = 1,
    Sum = 2,
    Prod = 3,
    Lor = 4,
    Land = 5,
    Bor = 6,
    Band = 7,
    Lxor = 8,
    Bxor = 9,
    Swap = 10,
    Cswap = 11,
    CswapNe = 12,
    CswapLe = 13,
    CswapLt = 14,
    CswapGe = 15,
    CswapGt = 16,
    Mswap = 17,
    Read = 18,
}

impl Arithmetic {
    /// All of them, by number.
    pub const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Swap,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
        Self::Read,
    ];

    /// The operation with that number.
    #[inline]
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether the operation is one of a swap.
    #[inline]
    #[must_use]
    pub const fn is_swap(self) -> bool {
        self as u8 >= Self::Swap as u8 && self as u8 <= Self::Mswap as u8
    }

    /// Whether it needs an operand to compare with, or a mask.
    #[inline]
    #[must_use]
    pub const fn has_operand(self) -> bool {
        self as u8 > Self::Swap as u8 && self as u8 <= Self::Mswap as u8
    }
}

impl From<AtomicKind> for Arithmetic {
    fn from(kind: AtomicKind) -> Self {
        Self::ALL[kind as usize]
    }
}

/// The type of one element: those of Portals under their numbers, and integers of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Element {
    Int8 = 0,
    Uint8 = 1,
    Int16 = 2,
    Uint16 = 3,
    Int32 = 4,
    Uint32 = 5,
    Float = 6,
    Int64 = 7,
    Uint64 = 8,
    Double = 9,
    FloatComplex = 10,
    DoubleComplex = 11,
    LongDouble = 12,
    LongDoubleComplex = 13,
    Int128 = 14,
    Uint128 = 15,
}

impl Element {
    /// All of them, by number.
    pub const ALL: [Self; 16] = [
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Float,
        Self::Int64,
        Self::Uint64,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
        Self::LongDouble,
        Self::LongDoubleComplex,
        Self::Int128,
        Self::Uint128,
    ];

    /// The type with that number.
    #[inline]
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Bytes of one element, as C on x86-64 has them.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::LongDouble | Self::Int128 | Self::Uint128 => 16,
            Self::LongDoubleComplex => 32,
        }
    }

    const fn is_complex(self) -> bool {
        matches!(
            self,
            Self::FloatComplex | Self::DoubleComplex | Self::LongDoubleComplex
        )
    }

    const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::Int8
                | Self::Int16
                | Self::Int32
                | Self::Int64
                | Self::Int128
                | Self::Uint8
                | Self::Uint16
                | Self::Uint32
                | Self::Uint64
                | Self::Uint128
        )
    }

    /// Whether the type is one that is only moved and compared here.
    const fn is_opaque(self) -> bool {
        !X87 && matches!(self, Self::LongDouble | Self::LongDoubleComplex)
    }
}

impl From<Datatype> for Element {
    fn from(datatype: Datatype) -> Self {
        Self::ALL[datatype as usize]
    }
}

/// Whether the operation is one that there is on this type.
#[must_use]
pub const fn is_defined(kind: Arithmetic, element: Element) -> bool {
    use Arithmetic::{
        Band, Bor, Bxor, Cswap, CswapGe, CswapGt, CswapLe, CswapLt, CswapNe, Land, Lor, Lxor, Max, Min,
        Mswap, Prod, Read, Sum, Swap,
    };
    match kind {
        Min | Max => !element.is_complex() && !element.is_opaque(),
        Sum | Prod | Lor | Land | Lxor => !element.is_opaque(),
        Bor | Band | Bxor | Mswap => element.is_integer(),
        Swap | Cswap | CswapNe | Read => true,
        CswapLe | CswapLt | CswapGe | CswapGt => !element.is_complex() && !element.is_opaque(),
    }
}

/// Whether the operation is one that Portals has on this type.
#[must_use]
pub const fn is_in_portals(kind: Arithmetic, element: Element) -> bool {
    use Arithmetic::{Land, Lor, Lxor};
    is_defined(kind, element) && (element.is_integer() || !matches!(kind, Lor | Land | Lxor))
}

/// Whether the operation takes this many bytes where it has one operand at most, as those of Portals do.
#[must_use]
pub const fn length_fits(kind: Arithmetic, element: Element, length: u64) -> bool {
    let size = element.size() as u64;
    if kind.has_operand() {
        length == size
    } else {
        length.is_multiple_of(size)
    }
}

/// Applies the operation to `target`, element by element: `with` is what the initiator sent, `operand` one
/// element more for CSWAP and MSWAP. The three are whole numbers of elements, `target` and `with` as many;
/// anything else is left alone.
pub fn apply(kind: Arithmetic, element: Element, target: &mut [u8], with: &[u8], operand: &[u8]) {
    let size = element.size();
    for (target, with) in target.chunks_exact_mut(size).zip(with.chunks_exact(size)) {
        apply_one(kind, element, target, with, operand);
    }
}

fn apply_one(kind: Arithmetic, element: Element, target: &mut [u8], with: &[u8], operand: &[u8]) {
    match element {
        Element::Int8 => whole::<i8, 1>(kind, target, with, operand),
        Element::Uint8 => whole::<u8, 1>(kind, target, with, operand),
        Element::Int16 => whole::<i16, 2>(kind, target, with, operand),
        Element::Uint16 => whole::<u16, 2>(kind, target, with, operand),
        Element::Int32 => whole::<i32, 4>(kind, target, with, operand),
        Element::Uint32 => whole::<u32, 4>(kind, target, with, operand),
        Element::Int64 => whole::<i64, 8>(kind, target, with, operand),
        Element::Uint64 => whole::<u64, 8>(kind, target, with, operand),
        Element::Float => real::<f32, 4>(kind, target, with, operand),
        Element::Double => real::<f64, 8>(kind, target, with, operand),
        Element::FloatComplex => complex::<f32, 4>(kind, target, with, operand),
        Element::DoubleComplex => complex::<f64, 8>(kind, target, with, operand),
        Element::Int128 => whole::<i128, 16>(kind, target, with, operand),
        Element::Uint128 => whole::<u128, 16>(kind, target, with, operand),
        _ if element.is_opaque() => opaque(kind, target, with, operand),
        Element::LongDouble => real::<Extended, 16>(kind, target, with, operand),
        Element::LongDoubleComplex => complex::<Extended, 16>(kind, target, with, operand),
    }
}

/// A number in memory.
trait Number<const N: usize>: Copy + PartialOrd {
    fn of(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    /// Whether it is not zero.
    fn truth(self) -> bool;
    fn of_truth(truth: bool) -> Self;
}

/// A number with bits that mean something one by one.
trait Bits {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
}

macro_rules! integers {
    ($($type:ty, $size:expr;)*) => {$(
        impl Number<$size> for $type {
            fn of(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            fn bytes(self) -> [u8; $size] { self.to_le_bytes() }
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn least(self, other: Self) -> Self { self.min(other) }
            fn most(self, other: Self) -> Self { self.max(other) }
            fn truth(self) -> bool { self != 0 }
            fn of_truth(truth: bool) -> Self { Self::from(truth) }
        }
        impl Bits for $type {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
            fn not(self) -> Self { !self }
        }
    )*};
}
integers! { u8, 1; u16, 2; u32, 4; u64, 8; u128, 16; i8, 1; i16, 2; i32, 4; i64, 8; i128, 16; }

macro_rules! reals {
    ($($type:ty, $size:expr;)*) => {$(
        impl Number<$size> for $type {
            fn of(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            fn bytes(self) -> [u8; $size] { self.to_le_bytes() }
            fn sum(self, other: Self) -> Self { self + other }
            fn product(self, other: Self) -> Self { self * other }
            fn least(self, other: Self) -> Self { self.min(other) }
            fn most(self, other: Self) -> Self { self.max(other) }
            fn truth(self) -> bool { self != 0.0 }
            fn of_truth(truth: bool) -> Self { f32::from(u8::from(truth)).into() }
        }
    )*};
}
reals! { f32, 4; f64, 8; }

impl Number<16> for Extended {
    fn of(bytes: [u8; 16]) -> Self {
        Self::of(bytes)
    }

    fn bytes(self) -> [u8; 16] {
        self.bytes()
    }

    fn sum(self, other: Self) -> Self {
        self + other
    }

    fn product(self, other: Self) -> Self {
        self * other
    }

    fn least(self, other: Self) -> Self {
        self.min(other)
    }

    fn most(self, other: Self) -> Self {
        self.max(other)
    }

    fn truth(self) -> bool {
        !self.is_zero()
    }

    fn of_truth(truth: bool) -> Self {
        if truth { Self::ONE } else { Self::ZERO }
    }
}

fn number<T: Number<N>, const N: usize>(bytes: &[u8]) -> Option<T> {
    bytes.first_chunk::<N>().map(|bytes| T::of(*bytes))
}

/// The result of a logical operation.
fn logical(kind: Arithmetic, target: bool, with: bool) -> bool {
    match kind {
        Arithmetic::Lor => target || with,
        Arithmetic::Land => target && with,
        _ => target != with,
    }
}

/// Returns what is stored instead of `target`, for the operations that all numbers have.
fn common<T: Number<N>, const N: usize>(
    kind: Arithmetic,
    target: T,
    with: T,
    operand: Option<T>,
) -> Option<T> {
    let swaps = |holds: fn(&T, &T) -> bool| operand.filter(|operand| holds(operand, &target)).map(|_| with);
    match kind {
        Arithmetic::Min => Some(target.least(with)),
        Arithmetic::Max => Some(target.most(with)),
        Arithmetic::Sum => Some(target.sum(with)),
        Arithmetic::Prod => Some(target.product(with)),
        Arithmetic::Lor | Arithmetic::Land | Arithmetic::Lxor => {
            Some(T::of_truth(logical(kind, target.truth(), with.truth())))
        }
        Arithmetic::Swap => Some(with),
        Arithmetic::Cswap => swaps(T::eq),
        Arithmetic::CswapNe => swaps(T::ne),
        Arithmetic::CswapLe => swaps(T::le),
        Arithmetic::CswapLt => swaps(T::lt),
        Arithmetic::CswapGe => swaps(T::ge),
        Arithmetic::CswapGt => swaps(T::gt),
        _ => None,
    }
}

fn store<T: Number<N>, const N: usize>(to: &mut [u8], value: Option<T>) {
    if let Some(value) = value
        && let Some(to) = to.first_chunk_mut::<N>()
    {
        *to = value.bytes();
    }
}

fn whole<T: Number<N> + Bits, const N: usize>(kind: Arithmetic, to: &mut [u8], with: &[u8], operand: &[u8]) {
    let (Some(target), Some(with)) = (number::<T, N>(to), number::<T, N>(with)) else {
        return;
    };
    let operand = number::<T, N>(operand);
    let value = match kind {
        Arithmetic::Bor => Some(target.or(with)),
        Arithmetic::Band => Some(target.and(with)),
        Arithmetic::Bxor => Some(target.xor(with)),
        Arithmetic::Mswap => operand.map(|mask| with.and(mask).or(target.and(mask.not()))),
        _ => common(kind, target, with, operand),
    };
    store(to, value);
}

fn real<T: Number<N>, const N: usize>(kind: Arithmetic, to: &mut [u8], with: &[u8], operand: &[u8]) {
    if let (Some(target), Some(with)) = (number::<T, N>(to), number::<T, N>(with)) {
        store(to, common(kind, target, with, number(operand)));
    }
}

/// Two numbers, real and imaginary.
fn complex<T, const N: usize>(kind: Arithmetic, to: &mut [u8], with: &[u8], operand: &[u8])
where
    T: Number<N> + std::ops::Sub<Output = T>,
{
    let pair = |bytes: &[u8]| Some((number::<T, N>(bytes)?, number::<T, N>(bytes.get(N..)?)?));
    let (Some((a, b)), Some((c, d))) = (pair(to), pair(with)) else {
        return;
    };
    let value = match kind {
        Arithmetic::Sum => Some((a.sum(c), b.sum(d))),
        Arithmetic::Prod => Some((a.product(c) - b.product(d), a.product(d).sum(b.product(c)))),
        Arithmetic::Lor | Arithmetic::Land | Arithmetic::Lxor => {
            let truth = logical(kind, a.truth() || b.truth(), c.truth() || d.truth());
            Some((T::of_truth(truth), T::of_truth(false)))
        }
        Arithmetic::Swap => Some((c, d)),
        Arithmetic::Cswap => pair(operand).filter(|operand| *operand == (a, b)).map(|_| (c, d)),
        Arithmetic::CswapNe => pair(operand).filter(|operand| *operand != (a, b)).map(|_| (c, d)),
        _ => None,
    };
    if let Some((real, imaginary)) = value {
        store(to, Some(real));
        if let Some(rest) = to.get_mut(N..) {
            store(rest, Some(imaginary));
        }
    }
}

/// Moves and compares operands as bytes.
#[cold]
fn opaque(kind: Arithmetic, to: &mut [u8], with: &[u8], operand: &[u8]) {
    let operand = operand.get(..to.len());
    let store = match kind {
        Arithmetic::Swap => true,
        Arithmetic::Cswap => operand.is_some_and(|operand| operand == to),
        Arithmetic::CswapNe => operand.is_some_and(|operand| operand != to),
        _ => false,
    };
    if store && to.len() == with.len() {
        to.copy_from_slice(with);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arithmetic::*;

    fn run<const N: usize>(
        kind: Arithmetic,
        element: Element,
        target: [u8; N],
        with: [u8; N],
        operand: &[u8],
    ) -> [u8; N] {
        let mut target = target;
        apply(kind, element, &mut target, &with, operand);
        target
    }

    #[test]
    fn integers_wrap_and_signs_count() {
        let i32s = |kind, a: i32, b: i32| {
            i32::from_le_bytes(run(kind, Element::Int32, a.to_le_bytes(), b.to_le_bytes(), &[]))
        };
        assert_eq!(i32s(Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(i32s(Prod, 1 << 20, 1 << 20), 0);
        assert_eq!((i32s(Min, -1, 1), i32s(Max, -1, 1)), (-1, 1));
        assert_eq!((i32s(Lor, 0, 7), i32s(Land, 5, 7), i32s(Lxor, 5, 7)), (1, 1, 0));
        assert_eq!((i32s(Bor, 5, 3), i32s(Band, 5, 3), i32s(Bxor, 5, 3)), (7, 1, 6));
        let u8s = |kind, a: u8, b: u8| run(kind, Element::Uint8, [a], [b], &[])[0];
        assert_eq!((u8s(Min, 255, 1), u8s(Max, 255, 1)), (1, 255));
    }

    #[test]
    fn swaps_compare_the_operand_with_the_target() {
        let swap = |kind, target: i64, operand: i64| {
            let with = 99i64.to_le_bytes();
            let after = run(
                kind,
                Element::Int64,
                target.to_le_bytes(),
                with,
                &operand.to_le_bytes(),
            );
            i64::from_le_bytes(after) == 99
        };
        for (kind, less, same, more) in [
            (Cswap, false, true, false),
            (CswapNe, true, false, true),
            (CswapLt, true, false, false),
            (CswapLe, true, true, false),
            (CswapGt, false, false, true),
            (CswapGe, false, true, true),
            (Swap, true, true, true),
        ] {
            assert_eq!(
                [swap(kind, 5, 4), swap(kind, 5, 5), swap(kind, 5, 6)],
                [less, same, more],
                "{kind:?}"
            );
        }
        let masked = run(Mswap, Element::Uint16, [0xaa, 0xbb], [0x11, 0x22], &[0xff, 0x0f]);
        assert_eq!(masked, [0x11, 0xb2]);
    }

    #[test]
    fn floats_complex_numbers_and_several_elements() {
        let f = |kind, a: f32, b: f32| {
            f32::from_le_bytes(run(kind, Element::Float, a.to_le_bytes(), b.to_le_bytes(), &[]))
        };
        assert_eq!((f(Sum, 1.5, 2.0), f(Prod, 1.5, 2.0)), (3.5, 3.0));
        assert_eq!((f(Min, f32::NAN, 2.0), f(Max, 1.0, f32::NAN)), (2.0, 1.0));
        let two = |a: f64, b: f64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&a.to_le_bytes());
            bytes[8..].copy_from_slice(&b.to_le_bytes());
            bytes
        };
        let product = run(Prod, Element::DoubleComplex, two(1.0, 2.0), two(3.0, 4.0), &[]);
        assert_eq!(product, two(-5.0, 10.0));
        let equal = run(
            Cswap,
            Element::DoubleComplex,
            two(1.0, 2.0),
            two(3.0, 4.0),
            &two(1.0, 2.0),
        );
        assert_eq!(equal, two(3.0, 4.0));
        assert_eq!(
            run(Sum, Element::Uint16, [1, 0, 2, 0], [1, 0, 1, 0], &[]),
            [2, 0, 3, 0]
        );
    }

    #[test]
    fn what_is_not_zero_is_true() {
        let double = |number: f64| number.to_le_bytes();
        for (a, b) in [(0.0, 0.0), (-0.0, 2.5), (0.25, 0.0), (f64::NAN, -1.0)] {
            let (x, y) = (a != 0.0, b != 0.0);
            for (kind, truth) in [(Lor, x || y), (Land, x && y), (Lxor, x != y)] {
                let wanted = double(f64::from(u8::from(truth)));
                assert_eq!(run(kind, Element::Double, double(a), double(b), &[]), wanted);
                // One of the two parts of a complex number is enough.
                let pair =
                    |re: f64, im: f64| -> [u8; 16] { [double(re), double(im)].concat().try_into().unwrap() };
                let complex = run(kind, Element::DoubleComplex, pair(0.0, a), pair(b, 0.0), &[]);
                assert_eq!(complex[..8], wanted);
                assert_eq!(complex[8..], [0; 8]);
            }
        }
        if !X87 {
            return;
        }
        let mut one = [0; 16];
        (one[7], one[8], one[9]) = (0x80, 0xff, 0x3f);
        let mut less = one;
        (less[9], less[12]) = (0xbf, 9);
        for (a, b, truths) in [
            (one, less, [true, true, false]),
            ([0; 16], less, [true, false, true]),
        ] {
            for (kind, truth) in [Lor, Land, Lxor].into_iter().zip(truths) {
                let wanted = if truth { one } else { [0; 16] };
                assert_eq!(run(kind, Element::LongDouble, a, b, &[]), wanted);
            }
        }
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[test]
    fn long_doubles_are_computed_with_and_their_padding_means_nothing() {
        // 1.5, 2 and 3, with something in the padding.
        let of = |top: u8, exponent: u8, padding: u8| {
            let mut bytes = [padding; 16];
            bytes[..10].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, top, exponent, 0x3f]);
            bytes[9] = if exponent < 0x80 { 0x40 } else { 0x3f };
            bytes
        };
        let (a, b, c) = (of(0xc0, 0xff, 0xee), of(0x80, 0, 0x11), of(0xc0, 0, 0));
        let (mut clean_a, mut clean_b) = (a, b);
        clean_a[10..].fill(0);
        clean_b[10..].fill(0);
        let long = |kind, target, with, operand: &[u8]| run(kind, Element::LongDouble, target, with, operand);
        assert_eq!(long(Prod, a, b, &[]), c);
        assert_eq!((long(Min, a, b, &[]), long(Max, a, b, &[])), (clean_a, clean_b));
        assert_eq!(long(Cswap, a, b, &clean_a), clean_b);
        assert_eq!(long(CswapNe, a, b, &clean_a), a);
        assert_eq!(long(CswapLt, b, a, &clean_a), clean_a, "1.5 is less than 2");
        // (1.5 + 2i)(2 + 1.5i) = 0 + 6.25i, and the sum is 3.5 + 3.5i.
        let pair = |x: [u8; 16], y: [u8; 16]| -> [u8; 32] { [x, y].concat().try_into().unwrap() };
        let complex = |kind| run(kind, Element::LongDoubleComplex, pair(a, b), pair(b, a), &[]);
        let number = |value: f64| {
            let mut bytes = [0; 16];
            let bits = value.to_bits();
            bytes[..8].copy_from_slice(&(1 << 63 | bits << 11).to_le_bytes());
            bytes[8..10].copy_from_slice(&((bits >> 52 & 0x7ff) as u16 + 16383 - 1023).to_le_bytes());
            bytes
        };
        assert_eq!(complex(Prod), pair([0; 16], number(6.25)));
        assert_eq!(complex(Sum), pair(number(3.5), number(3.5)));
    }

    #[test]
    fn what_only_has_bytes_is_swapped_and_compared() {
        let mut to = [7; 32];
        opaque(Cswap, &mut to, &[1; 32], &[8; 32]);
        opaque(CswapNe, &mut to, &[1; 32], &[7; 32]);
        opaque(Cswap, &mut to, &[1; 32], &[7; 16]);
        opaque(Sum, &mut to, &[1; 32], &[7; 32]);
        assert_eq!(to, [7; 32]);
        opaque(Cswap, &mut to, &[1; 32], &[7; 32]);
        assert_eq!(to, [1; 32]);
    }

    #[test]
    fn what_is_not_defined_is_not() {
        assert!(!is_defined(Min, Element::FloatComplex) && !is_defined(Band, Element::Double));
        assert!(!is_defined(CswapLt, Element::DoubleComplex) && !is_defined(Mswap, Element::Float));
        assert!(is_defined(Sum, Element::FloatComplex));
        for kind in [Lor, Land, Lxor] {
            assert!(is_defined(kind, Element::Float) && !is_in_portals(kind, Element::Float));
            assert!(is_in_portals(kind, Element::Int8));
        }
        assert!(length_fits(Sum, Element::Int32, 0) && length_fits(Sum, Element::Int32, 12));
        assert!(!length_fits(Sum, Element::Int32, 10) && !length_fits(Cswap, Element::Int32, 8));
        assert!(length_fits(Swap, Element::Int32, 8) && length_fits(Mswap, Element::Int32, 4));
        assert_eq!(
            (Arithmetic::of_number(18), Arithmetic::of_number(19)),
            (Some(Read), None)
        );
        assert_eq!(
            (Element::of_number(15), Element::of_number(16)),
            (Some(Element::Uint128), None)
        );
    }

    #[test]
    fn those_of_portals_keep_their_names_numbers_and_sizes() {
        for kind in AtomicKind::ALL {
            let ours = Arithmetic::from(kind);
            assert_eq!(
                (ours as u8, format!("{ours:?}")),
                (kind as u8, format!("{kind:?}"))
            );
            assert_eq!(Arithmetic::of_number(kind as u8), Some(ours));
        }
        for datatype in Datatype::ALL {
            let ours = Element::from(datatype);
            assert_eq!((ours as u8, ours.size()), (datatype as u8, datatype.size()));
            assert_eq!(format!("{ours:?}"), format!("{datatype:?}"));
        }
    }

    #[test]
    fn integers_of_128_bits_wrap_and_signs_count() {
        let signed = |kind, a: i128, b: i128| {
            i128::from_le_bytes(run(kind, Element::Int128, a.to_le_bytes(), b.to_le_bytes(), &[]))
        };
        assert_eq!(signed(Sum, i128::MAX, 1), i128::MIN);
        assert_eq!((signed(Min, -1, 1), signed(Max, -1, 1)), (-1, 1));
        let unsigned = |kind, a: u128, b: u128, operand: &[u8]| {
            u128::from_le_bytes(run(
                kind,
                Element::Uint128,
                a.to_le_bytes(),
                b.to_le_bytes(),
                operand,
            ))
        };
        assert_eq!(unsigned(Max, u128::MAX, 1, &[]), u128::MAX);
        assert_eq!(unsigned(Prod, 1 << 100, 1 << 30, &[]), 0);
        assert_eq!(unsigned(Cswap, 7 << 70, 9, &(7u128 << 70).to_le_bytes()), 9);
        assert_eq!(unsigned(Cswap, 7 << 70, 9, &(7u128).to_le_bytes()), 7 << 70);
        assert_eq!(
            unsigned(Mswap, 0xaa << 64, 0xbb << 64, &(0xfu128 << 64).to_le_bytes()),
            0xab << 64
        );
    }

    #[test]
    fn a_read_changes_nothing() {
        for element in Element::ALL {
            let mut target = [0x5a; 32];
            let target = &mut target[..element.size()];
            assert!(is_defined(Read, element) && !Read.is_swap() && !Read.has_operand());
            apply(Read, element, target, &[1; 32][..element.size()], &[]);
            assert!(target.iter().all(|byte| *byte == 0x5a), "{element:?}");
        }
    }
}

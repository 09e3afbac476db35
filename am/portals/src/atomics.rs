//! The arithmetic of atomics: every operation on every type that it is for (reference: portals, section 10).
//!
//! Integers wrap. MIN and MAX of floating numbers take the other operand where one is not a number. A logical
//! operation gives one or zero. An ordered CSWAP compares `operand ? target`: LT stores when the operand is
//! less than the target.
//!
//! `long double` is the x87's 80 bits on x86 ([`Extended`]); its padding becomes zero where an operation
//! stores. On other processors it has another format, which nothing here computes with: there SWAP, CSWAP and
//! CSWAP_NE move and compare its bytes, and all other operations on it are refused, with
//! [`NiError::ArgInvalid`](doorbell_fabric::ni::NiError::ArgInvalid). To compute with fewer bits than C does
//! would be worse.
//!
//! A complex product is the textbook's, each step rounded. Where a part is infinite it may be no number,
//! where C's own multiplication would still find an infinity (C11, annex G).

use doorbell_fabric::ni::{AtomicKind, Datatype};

use crate::extended::Extended;

/// Whether `long double` is the x87's.
const X87: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));

/// The operation with that number.
pub(crate) fn kind_of(number: u8) -> Option<AtomicKind> {
    AtomicKind::ALL.get(usize::from(number)).copied()
}

/// The type with that number.
pub(crate) fn datatype_of(number: u8) -> Option<Datatype> {
    Datatype::ALL.get(usize::from(number)).copied()
}

fn is_complex(datatype: Datatype) -> bool {
    use Datatype::{DoubleComplex, FloatComplex, LongDoubleComplex};
    matches!(datatype, FloatComplex | DoubleComplex | LongDoubleComplex)
}

fn is_integer(datatype: Datatype) -> bool {
    use Datatype::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    matches!(
        datatype,
        Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32 | Uint64
    )
}

/// Whether the type is one that is only moved and compared here.
fn is_opaque(datatype: Datatype) -> bool {
    !X87 && matches!(datatype, Datatype::LongDouble | Datatype::LongDoubleComplex)
}

/// Whether the operation is one of a swap.
pub(crate) fn is_swap(kind: AtomicKind) -> bool {
    kind as u8 >= AtomicKind::Swap as u8
}

/// Whether it needs the operand.
pub(crate) fn has_operand(kind: AtomicKind) -> bool {
    kind as u8 > AtomicKind::Swap as u8
}

/// Whether the operation is one that there is on this type.
pub(crate) fn is_defined(kind: AtomicKind, datatype: Datatype) -> bool {
    use AtomicKind::{
        Band, Bor, Bxor, Cswap, CswapGe, CswapGt, CswapLe, CswapLt, CswapNe, Land, Lor, Lxor, Max, Min,
        Mswap, Prod, Sum, Swap,
    };
    match kind {
        Min | Max => !is_complex(datatype) && !is_opaque(datatype),
        Sum | Prod => !is_opaque(datatype),
        Lor | Land | Lxor | Bor | Band | Bxor | Mswap => is_integer(datatype),
        Swap | Cswap | CswapNe => true,
        CswapLe | CswapLt | CswapGe | CswapGt => !is_complex(datatype) && !is_opaque(datatype),
    }
}

/// Whether the operation takes this many bytes.
pub(crate) fn length_fits(kind: AtomicKind, datatype: Datatype, length: u64) -> bool {
    let size = datatype.size() as u64;
    if has_operand(kind) {
        length == size
    } else {
        length.is_multiple_of(size)
    }
}

/// Applies the operation to `target`, element by element: `with` is what the initiator sent, `operand` one
/// element more for CSWAP and MSWAP. The three are whole numbers of elements, `target` and `with` as many;
/// anything else is left alone.
pub(crate) fn apply(kind: AtomicKind, datatype: Datatype, target: &mut [u8], with: &[u8], operand: &[u8]) {
    let size = datatype.size();
    for (target, with) in target.chunks_exact_mut(size).zip(with.chunks_exact(size)) {
        element(kind, datatype, target, with, operand);
    }
}

fn element(kind: AtomicKind, datatype: Datatype, target: &mut [u8], with: &[u8], operand: &[u8]) {
    match datatype {
        Datatype::Int8 => whole::<i8, 1>(kind, target, with, operand),
        Datatype::Uint8 => whole::<u8, 1>(kind, target, with, operand),
        Datatype::Int16 => whole::<i16, 2>(kind, target, with, operand),
        Datatype::Uint16 => whole::<u16, 2>(kind, target, with, operand),
        Datatype::Int32 => whole::<i32, 4>(kind, target, with, operand),
        Datatype::Uint32 => whole::<u32, 4>(kind, target, with, operand),
        Datatype::Int64 => whole::<i64, 8>(kind, target, with, operand),
        Datatype::Uint64 => whole::<u64, 8>(kind, target, with, operand),
        Datatype::Float => real::<f32, 4>(kind, target, with, operand),
        Datatype::Double => real::<f64, 8>(kind, target, with, operand),
        Datatype::FloatComplex => complex::<f32, 4>(kind, target, with, operand),
        Datatype::DoubleComplex => complex::<f64, 8>(kind, target, with, operand),
        _ if is_opaque(datatype) => opaque(kind, target, with, operand),
        Datatype::LongDouble => real::<Extended, 16>(kind, target, with, operand),
        Datatype::LongDoubleComplex => complex::<Extended, 16>(kind, target, with, operand),
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
}

/// A number with bits that mean something one by one.
trait Bits {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn truth(self) -> bool;
    fn of_truth(truth: bool) -> Self;
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
        }
        impl Bits for $type {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
            fn not(self) -> Self { !self }
            fn truth(self) -> bool { self != 0 }
            fn of_truth(truth: bool) -> Self { Self::from(truth) }
        }
    )*};
}
integers! { u8, 1; u16, 2; u32, 4; u64, 8; i8, 1; i16, 2; i32, 4; i64, 8; }

macro_rules! reals {
    ($($type:ty, $size:expr;)*) => {$(
        impl Number<$size> for $type {
            fn of(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            fn bytes(self) -> [u8; $size] { self.to_le_bytes() }
            fn sum(self, other: Self) -> Self { self + other }
            fn product(self, other: Self) -> Self { self * other }
            fn least(self, other: Self) -> Self { self.min(other) }
            fn most(self, other: Self) -> Self { self.max(other) }
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
}

fn number<T: Number<N>, const N: usize>(bytes: &[u8]) -> Option<T> {
    bytes.first_chunk::<N>().map(|bytes| T::of(*bytes))
}

/// Returns what is stored instead of `target`, for the operations that all numbers have.
fn common<T: Number<N>, const N: usize>(
    kind: AtomicKind,
    target: T,
    with: T,
    operand: Option<T>,
) -> Option<T> {
    let swaps = |holds: fn(&T, &T) -> bool| operand.filter(|operand| holds(operand, &target)).map(|_| with);
    match kind {
        AtomicKind::Min => Some(target.least(with)),
        AtomicKind::Max => Some(target.most(with)),
        AtomicKind::Sum => Some(target.sum(with)),
        AtomicKind::Prod => Some(target.product(with)),
        AtomicKind::Swap => Some(with),
        AtomicKind::Cswap => swaps(T::eq),
        AtomicKind::CswapNe => swaps(T::ne),
        AtomicKind::CswapLe => swaps(T::le),
        AtomicKind::CswapLt => swaps(T::lt),
        AtomicKind::CswapGe => swaps(T::ge),
        AtomicKind::CswapGt => swaps(T::gt),
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

fn whole<T: Number<N> + Bits, const N: usize>(kind: AtomicKind, to: &mut [u8], with: &[u8], operand: &[u8]) {
    let (Some(target), Some(with)) = (number::<T, N>(to), number::<T, N>(with)) else {
        return;
    };
    let operand = number::<T, N>(operand);
    let value = match kind {
        AtomicKind::Lor => Some(T::of_truth(target.truth() || with.truth())),
        AtomicKind::Land => Some(T::of_truth(target.truth() && with.truth())),
        AtomicKind::Lxor => Some(T::of_truth(target.truth() != with.truth())),
        AtomicKind::Bor => Some(target.or(with)),
        AtomicKind::Band => Some(target.and(with)),
        AtomicKind::Bxor => Some(target.xor(with)),
        AtomicKind::Mswap => operand.map(|mask| with.and(mask).or(target.and(mask.not()))),
        _ => common(kind, target, with, operand),
    };
    store(to, value);
}

fn real<T: Number<N>, const N: usize>(kind: AtomicKind, to: &mut [u8], with: &[u8], operand: &[u8]) {
    if let (Some(target), Some(with)) = (number::<T, N>(to), number::<T, N>(with)) {
        store(to, common(kind, target, with, number(operand)));
    }
}

/// Two numbers, real and imaginary.
fn complex<T, const N: usize>(kind: AtomicKind, to: &mut [u8], with: &[u8], operand: &[u8])
where
    T: Number<N> + std::ops::Sub<Output = T>,
{
    let pair = |bytes: &[u8]| Some((number::<T, N>(bytes)?, number::<T, N>(bytes.get(N..)?)?));
    let (Some((a, b)), Some((c, d))) = (pair(to), pair(with)) else {
        return;
    };
    let value = match kind {
        AtomicKind::Sum => Some((a.sum(c), b.sum(d))),
        AtomicKind::Prod => Some((a.product(c) - b.product(d), a.product(d).sum(b.product(c)))),
        AtomicKind::Swap => Some((c, d)),
        AtomicKind::Cswap => pair(operand).filter(|operand| *operand == (a, b)).map(|_| (c, d)),
        AtomicKind::CswapNe => pair(operand).filter(|operand| *operand != (a, b)).map(|_| (c, d)),
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
fn opaque(kind: AtomicKind, to: &mut [u8], with: &[u8], operand: &[u8]) {
    let operand = operand.get(..to.len());
    let store = match kind {
        AtomicKind::Swap => true,
        AtomicKind::Cswap => operand.is_some_and(|operand| operand == to),
        AtomicKind::CswapNe => operand.is_some_and(|operand| operand != to),
        _ => false,
    };
    if store && to.len() == with.len() {
        to.copy_from_slice(with);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AtomicKind::*;

    fn run<const N: usize>(
        kind: AtomicKind,
        datatype: Datatype,
        target: [u8; N],
        with: [u8; N],
        operand: &[u8],
    ) -> [u8; N] {
        let mut target = target;
        apply(kind, datatype, &mut target, &with, operand);
        target
    }

    #[test]
    fn integers_wrap_and_signs_count() {
        let i32s = |kind, a: i32, b: i32| {
            i32::from_le_bytes(run(kind, Datatype::Int32, a.to_le_bytes(), b.to_le_bytes(), &[]))
        };
        assert_eq!(i32s(Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(i32s(Prod, 1 << 20, 1 << 20), 0);
        assert_eq!((i32s(Min, -1, 1), i32s(Max, -1, 1)), (-1, 1));
        assert_eq!((i32s(Lor, 0, 7), i32s(Land, 5, 7), i32s(Lxor, 5, 7)), (1, 1, 0));
        assert_eq!((i32s(Bor, 5, 3), i32s(Band, 5, 3), i32s(Bxor, 5, 3)), (7, 1, 6));
        let u8s = |kind, a: u8, b: u8| run(kind, Datatype::Uint8, [a], [b], &[])[0];
        assert_eq!((u8s(Min, 255, 1), u8s(Max, 255, 1)), (1, 255));
    }

    #[test]
    fn swaps_compare_the_operand_with_the_target() {
        let swap = |kind, target: i64, operand: i64| {
            let with = 99i64.to_le_bytes();
            let after = run(
                kind,
                Datatype::Int64,
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
        let masked = run(Mswap, Datatype::Uint16, [0xaa, 0xbb], [0x11, 0x22], &[0xff, 0x0f]);
        assert_eq!(masked, [0x11, 0xb2]);
    }

    #[test]
    fn floats_complex_numbers_and_several_elements() {
        let f = |kind, a: f32, b: f32| {
            f32::from_le_bytes(run(kind, Datatype::Float, a.to_le_bytes(), b.to_le_bytes(), &[]))
        };
        assert_eq!((f(Sum, 1.5, 2.0), f(Prod, 1.5, 2.0)), (3.5, 3.0));
        assert_eq!((f(Min, f32::NAN, 2.0), f(Max, 1.0, f32::NAN)), (2.0, 1.0));
        let two = |a: f64, b: f64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&a.to_le_bytes());
            bytes[8..].copy_from_slice(&b.to_le_bytes());
            bytes
        };
        let product = run(Prod, Datatype::DoubleComplex, two(1.0, 2.0), two(3.0, 4.0), &[]);
        assert_eq!(product, two(-5.0, 10.0));
        let equal = run(
            Cswap,
            Datatype::DoubleComplex,
            two(1.0, 2.0),
            two(3.0, 4.0),
            &two(1.0, 2.0),
        );
        assert_eq!(equal, two(3.0, 4.0));
        assert_eq!(
            run(Sum, Datatype::Uint16, [1, 0, 2, 0], [1, 0, 1, 0], &[]),
            [2, 0, 3, 0]
        );
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
        let long =
            |kind, target, with, operand: &[u8]| run(kind, Datatype::LongDouble, target, with, operand);
        assert_eq!(long(Prod, a, b, &[]), c);
        assert_eq!((long(Min, a, b, &[]), long(Max, a, b, &[])), (clean_a, clean_b));
        assert_eq!(long(Cswap, a, b, &clean_a), clean_b);
        assert_eq!(long(CswapNe, a, b, &clean_a), a);
        assert_eq!(long(CswapLt, b, a, &clean_a), clean_a, "1.5 is less than 2");
        // (1.5 + 2i)(2 + 1.5i) = 0 + 6.25i, and the sum is 3.5 + 3.5i.
        let pair = |x: [u8; 16], y: [u8; 16]| -> [u8; 32] { [x, y].concat().try_into().unwrap() };
        let complex = |kind| run(kind, Datatype::LongDoubleComplex, pair(a, b), pair(b, a), &[]);
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
        assert!(!is_defined(Min, Datatype::FloatComplex) && !is_defined(Band, Datatype::Double));
        assert!(!is_defined(CswapLt, Datatype::DoubleComplex) && !is_defined(Mswap, Datatype::Float));
        assert!(!is_defined(Lor, Datatype::Float) && is_defined(Sum, Datatype::FloatComplex));
        assert!(length_fits(Sum, Datatype::Int32, 0) && length_fits(Sum, Datatype::Int32, 12));
        assert!(!length_fits(Sum, Datatype::Int32, 10) && !length_fits(Cswap, Datatype::Int32, 8));
        assert!(length_fits(Swap, Datatype::Int32, 8) && length_fits(Mswap, Datatype::Int32, 4));
        assert_eq!((kind_of(17), kind_of(18)), (Some(Mswap), None));
        assert_eq!(
            (datatype_of(13), datatype_of(14)),
            (Some(Datatype::LongDoubleComplex), None)
        );
    }
}

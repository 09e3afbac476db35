//! The arithmetic of atomics, one element after the other (reference: portals, section 10).

use doorbell_fabric::ni::{AtomicKind, Datatype};

use super::Wrong;

/// The target's bytes after the operation.
pub(crate) fn apply(
    wrong: Option<Wrong>,
    kind: AtomicKind,
    datatype: Datatype,
    target: &[u8],
    data: &[u8],
    operand: &[u8; 32],
) -> Vec<u8> {
    let size = datatype.size();
    let mut after = Vec::new();
    for (old, new) in target.chunks(size).zip(data.chunks(size)) {
        // A message that was cut off in the middle of an element leaves that as it is.
        if old.len() < size || new.len() < size {
            after.extend_from_slice(old);
            continue;
        }
        let with = if wrong == Some(Wrong::CswapComparesData) {
            new
        } else {
            &operand[..size]
        };
        after.extend(element(wrong, kind, datatype, old, new, with));
    }
    after
}

fn element(
    wrong: Option<Wrong>,
    kind: AtomicKind,
    datatype: Datatype,
    old: &[u8],
    new: &[u8],
    operand: &[u8],
) -> Vec<u8> {
    use AtomicKind as A;
    let pick = |takes: bool| if takes { new.to_vec() } else { old.to_vec() };
    match kind {
        A::Swap => new.to_vec(),
        A::Mswap => {
            let masked = |at: usize| {
                let mask = if wrong == Some(Wrong::MaskedSwapIsInverted) {
                    !operand[at]
                } else {
                    operand[at]
                };
                new[at] & mask | old[at] & !mask
            };
            (0..old.len()).map(masked).collect()
        }
        A::Cswap => pick(compare(datatype, operand, old).is_some_and(|order| order.is_eq())),
        A::CswapNe => pick(compare(datatype, operand, old).is_none_or(|order| order.is_ne())),
        A::CswapLe | A::CswapLt | A::CswapGe | A::CswapGt => {
            let order = if wrong == Some(Wrong::CswapIsTurned) {
                compare(datatype, old, operand)
            } else {
                compare(datatype, operand, old)
            };
            pick(order.is_some_and(|order| match kind {
                A::CswapLe => order.is_le(),
                A::CswapLt => order.is_lt(),
                A::CswapGe => order.is_ge(),
                _ => order.is_gt(),
            }))
        }
        A::Bor => bytes(old, new, |a, b| a | b),
        A::Band => bytes(old, new, |a, b| a & b),
        A::Bxor => bytes(old, new, |a, b| a ^ b),
        A::Lor => truth(old, is_true(old) | is_true(new)),
        A::Land => truth(old, is_true(old) & is_true(new)),
        A::Lxor => truth(old, is_true(old) ^ is_true(new)),
        A::Min => pick(compare(datatype, new, old).is_some_and(|order| order.is_lt())),
        A::Max => pick(compare(datatype, new, old).is_some_and(|order| order.is_gt())),
        A::Sum | A::Prod => reckon(kind == A::Sum, datatype, old, new),
    }
}

fn bytes(old: &[u8], new: &[u8], f: impl Fn(u8, u8) -> u8) -> Vec<u8> {
    old.iter().zip(new).map(|(a, b)| f(*a, *b)).collect()
}

fn is_true(number: &[u8]) -> bool {
    number.iter().any(|byte| *byte != 0)
}

fn truth(like: &[u8], value: bool) -> Vec<u8> {
    let mut bytes = vec![0; like.len()];
    bytes[0] = u8::from(value);
    bytes
}

/// As an integer, with its sign.
fn integer(datatype: Datatype, number: &[u8]) -> i128 {
    use Datatype as D;
    let unsigned = number
        .iter()
        .rev()
        .fold(0i128, |sum, byte| sum << 8 | i128::from(*byte));
    let signed = matches!(datatype, D::Int8 | D::Int16 | D::Int32 | D::Int64);
    let bits = number.len() * 8;
    if signed && unsigned >> (bits - 1) & 1 == 1 {
        unsigned - (1 << bits)
    } else {
        unsigned
    }
}

fn float(number: &[u8]) -> f32 {
    f32::from_le_bytes(number.try_into().expect("four bytes"))
}

fn double(number: &[u8]) -> f64 {
    f64::from_le_bytes(number.try_into().expect("eight bytes"))
}

/// An 80-bit number of the x87 that a double holds exactly: the model computes with no others.
fn long_double(number: &[u8]) -> f64 {
    let mantissa = u64::from_le_bytes(number[..8].try_into().expect("eight bytes"));
    let top = u16::from_le_bytes([number[8], number[9]]);
    let size = mantissa as f64 * 2f64.powi(i32::from(top & 0x7fff) - 16383 - 63);
    let value = if top >> 15 == 0 { size } else { -size };
    assert_eq!(of_double(value)[..10], number[..10], "no double holds it");
    value
}

/// A double as an 80-bit number of the x87, in 16 bytes.
pub(crate) fn of_double(value: f64) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    let bits = value.to_bits();
    let mut top = (bits >> 63 << 15) as u16;
    if value != 0.0 {
        bytes[..8].copy_from_slice(&(1 << 63 | bits << 11).to_le_bytes());
        top |= (bits >> 52 & 0x7ff) as u16 + 16383 - 1023;
    }
    bytes[8..10].copy_from_slice(&top.to_le_bytes());
    bytes
}

fn compare(datatype: Datatype, a: &[u8], b: &[u8]) -> Option<std::cmp::Ordering> {
    use Datatype as D;
    match datatype {
        D::Float => float(a).partial_cmp(&float(b)),
        D::Double => double(a).partial_cmp(&double(b)),
        // Complex numbers are equal or not.
        D::FloatComplex => {
            (a.chunks(4).map(float).eq(b.chunks(4).map(float))).then_some(std::cmp::Ordering::Equal)
        }
        D::DoubleComplex => {
            (a.chunks(8).map(double).eq(b.chunks(8).map(double))).then_some(std::cmp::Ordering::Equal)
        }
        D::LongDouble => long_double(a).partial_cmp(&long_double(b)),
        D::LongDoubleComplex => {
            let equal = a.chunks(16).map(long_double).eq(b.chunks(16).map(long_double));
            equal.then_some(std::cmp::Ordering::Equal)
        }
        _ => Some(integer(datatype, a).cmp(&integer(datatype, b))),
    }
}

/// Sums and products; integers wrap.
fn reckon(sum: bool, datatype: Datatype, old: &[u8], new: &[u8]) -> Vec<u8> {
    use Datatype as D;
    match datatype {
        D::Float => {
            let (a, b) = (float(old), float(new));
            (if sum { a + b } else { a * b }).to_le_bytes().to_vec()
        }
        D::Double => {
            let (a, b) = (double(old), double(new));
            (if sum { a + b } else { a * b }).to_le_bytes().to_vec()
        }
        D::FloatComplex => {
            let (a, b) = (
                [float(&old[..4]), float(&old[4..])],
                [float(&new[..4]), float(&new[4..])],
            );
            let c = if sum {
                [a[0] + b[0], a[1] + b[1]]
            } else {
                [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
            };
            c.iter().flat_map(|part| part.to_le_bytes()).collect()
        }
        D::DoubleComplex => {
            let (a, b) = (
                [double(&old[..8]), double(&old[8..])],
                [double(&new[..8]), double(&new[8..])],
            );
            let c = if sum {
                [a[0] + b[0], a[1] + b[1]]
            } else {
                [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
            };
            c.iter().flat_map(|part| part.to_le_bytes()).collect()
        }
        D::LongDouble => {
            let (a, b) = (long_double(old), long_double(new));
            of_double(if sum { a + b } else { a * b })
        }
        D::LongDoubleComplex => {
            let parts = |pair: &[u8]| [long_double(&pair[..16]), long_double(&pair[16..])];
            let (a, b) = (parts(old), parts(new));
            let c = if sum {
                [a[0] + b[0], a[1] + b[1]]
            } else {
                [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
            };
            c.map(of_double).concat()
        }
        _ => {
            let (a, b) = (integer(datatype, old), integer(datatype, new));
            let result = if sum { a + b } else { a.wrapping_mul(b) };
            result.to_le_bytes()[..old.len()].to_vec()
        }
    }
}

//! The memory of descriptors and entries: bytes in, bytes out, whatever pieces they lie in.

use doorbell_fabric::message::{Body, Inbound, Landing};
use doorbell_fabric::ni::Memory;

/// `length` bytes from `at`, if they are all inside.
#[inline]
pub(crate) fn range(size: u64, at: u64, length: u64) -> bool {
    at.checked_add(length).is_some_and(|end| end <= size)
}

/// Copies `length` bytes of a message, from its byte `from` on, to offset `at`. They fit: the caller has
/// checked that.
#[inline(always)]
pub(crate) fn land(memory: &Memory, at: usize, inbound: Inbound<'_>, from: usize, length: usize) {
    match memory {
        Memory::One(Landing::Loan(loan)) => {
            inbound.copy_to_loan(from, &loan.part(at, length), 0);
        }
        Memory::One(Landing::Region(slice)) => {
            if length == 8
                && let Some(word) = inbound.read::<8>(from)
            {
                slice.write(at, &word);
                return;
            }
            inbound.copy_to_region(from, slice, at, length);
        }
        _ => land_other(memory, at, inbound, from, length),
    }
}

#[inline(never)]
fn land_other(memory: &Memory, at: usize, inbound: Inbound<'_>, from: usize, length: usize) {
    let mut from = from;
    each_piece(memory, at, length, |piece, at, length| {
        match piece {
            Landing::Loan(loan) => inbound.copy_to_loan(from, &loan.part(at, length), 0),
            Landing::Region(slice) => inbound.copy_to_region(from, slice, at, length),
        };
        from += length;
    });
}

/// Copies bytes out, from offset `at` on.
pub(crate) fn read(memory: &Memory, at: usize, to: &mut [u8]) {
    let mut done = 0;
    each_piece(memory, at, to.len(), |piece, at, length| {
        let to = &mut to[done..done + length];
        match piece {
            Landing::Loan(loan) => loan.part(at, length).as_shared().copy_to(0, to),
            Landing::Region(slice) => slice.copy_to(at, to),
        };
        done += length;
    });
}

/// Copies bytes in, from offset `at` on.
pub(crate) fn write(memory: &Memory, at: usize, bytes: &[u8]) {
    let mut done = 0;
    each_piece(memory, at, bytes.len(), |piece, at, length| {
        piece.write(at, &bytes[done..done + length]);
        done += length;
    });
}

/// Shows the parts of pieces that `length` bytes from `at` lie in: piece, offset in it, length.
pub(crate) fn each_piece(
    memory: &Memory,
    at: usize,
    length: usize,
    mut each: impl FnMut(&Landing, usize, usize),
) {
    let pieces = match memory {
        Memory::Empty => &[],
        Memory::One(piece) => std::slice::from_ref(piece),
        Memory::Many(pieces) => &pieces[..],
    };
    let (mut at, mut left) = (at, length);
    for piece in pieces {
        if left == 0 {
            break;
        }
        let size = piece.len();
        if at >= size {
            at -= size;
            continue;
        }
        let here = left.min(size - at);
        each(piece, at, here);
        (at, left) = (0, left - here);
    }
}

/// The piece that all of `length` bytes from `at` lie in, if it is one, and where in it.
pub(crate) fn in_one_piece(memory: &Memory, at: usize, length: usize) -> Option<Landing> {
    let mut found = None;
    each_piece(memory, at, length, |piece, at, here| {
        found = (here == length).then(|| piece.part(at, here));
    });
    found
}

/// The bytes as a body that is copied before `send` returns. Several pieces are gathered in `scratch`.
#[inline(always)]
pub(crate) fn body<'a>(memory: &'a Memory, at: usize, length: usize, scratch: &'a mut Vec<u8>) -> Body<'a> {
    match memory {
        _ if length == 0 => Body::Empty,
        Memory::One(Landing::Loan(loan)) => Body::Loan(loan.as_const().part(at, length)),
        Memory::One(Landing::Region(slice)) => Body::Shared(slice.as_shared().skip(at).take(length)),
        _ => gathered(memory, at, length, scratch),
    }
}

#[inline(never)]
fn gathered<'a>(memory: &Memory, at: usize, length: usize, scratch: &'a mut Vec<u8>) -> Body<'a> {
    scratch.clear();
    scratch.resize(length, 0);
    read(memory, at, scratch);
    Body::Bytes(scratch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::{MutLoan, Region, SharedBytes};

    fn pieces(sizes: &[usize]) -> Memory {
        Memory::Many(
            sizes
                .iter()
                .enumerate()
                .map(|(at, &size)| match at % 2 {
                    0 => Landing::Loan(MutLoan::of_static(vec![0; size].leak())),
                    _ => Landing::Region(Region::new(size).unwrap().whole()),
                })
                .collect(),
        )
    }

    #[test]
    fn pieces_are_one_memory_at_every_offset() {
        let memory = pieces(&[3, 0, 5, 1, 7]);
        let bytes: Vec<u8> = (1..=16).collect();
        write(&memory, 0, &bytes);
        for at in 0..16 {
            for length in 0..=16 - at {
                let mut out = vec![0; length];
                read(&memory, at, &mut out);
                assert_eq!(out, bytes[at..at + length], "{length} at {at}");
                let mut scratch = Vec::new();
                let body = body(&memory, at, length, &mut scratch);
                assert_eq!(body.len(), length);
            }
        }
        let message = [9; 6];
        land(&memory, 2, Inbound::whole(SharedBytes::of(&message)), 1, 5);
        let mut out = [0; 16];
        read(&memory, 0, &mut out);
        assert_eq!(out, [1, 2, 9, 9, 9, 9, 9, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert!(in_one_piece(&memory, 3, 5).is_some_and(|piece| piece.len() == 5));
        assert!(in_one_piece(&memory, 2, 5).is_none());
    }
}

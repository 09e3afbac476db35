//! The memory of clients, lent for operations.

use std::ffi::c_void;

use doorbell_fabric::memory::{ConstLoan, MutLoan};
use libc::iovec;
use libfabric_sys::{FI_EINVAL, FI_EMSGSIZE, fi_ioc};

use crate::ep::{Bytes, Room, limits};
use crate::errno::{Errno, Result};

/// Lends memory to be sent from.
///
/// # Safety
/// `length` bytes at `start` may be read, until the operation has ended.
#[inline(always)]
pub(crate) unsafe fn lent(start: *const c_void, length: usize) -> ConstLoan {
    if length == 0 {
        return ConstLoan::EMPTY;
    }
    // SAFETY: by the contract of this function.
    unsafe { ConstLoan::new(start.cast(), length) }
}

/// Lends memory to be received into.
///
/// # Safety
/// `length` bytes at `start` may be written, until the operation has ended.
#[inline(always)]
pub(crate) unsafe fn room(start: *mut c_void, length: usize) -> MutLoan {
    if length == 0 {
        return MutLoan::EMPTY;
    }
    // SAFETY: by the contract of this function.
    unsafe { MutLoan::new(start.cast(), length) }
}

/// Bytes that are taken before the call returns.
///
/// # Safety
/// `length` bytes at `start` may be read, and do not change, until the call returns.
///
/// # Errors
/// `FI_EMSGSIZE` for more than may be injected.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(start: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if length > limits::INJECT {
        return Err(Errno(FI_EMSGSIZE));
    }
    // SAFETY: by the contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) })
}

/// The pieces of memory of a call.
///
/// # Safety
/// `count` of them may be read at `pieces`.
unsafe fn pieces<'a>(pieces: *const iovec, count: usize) -> Result<&'a [iovec]> {
    match count {
        0 => Ok(&[]),
        1..=limits::PIECES if !pieces.is_null() => {
            // SAFETY: by the contract of this function.
            Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
        }
        _ => Err(Errno(FI_EINVAL)),
    }
}

/// The pieces of memory of a call that counts elements of this size, in bytes.
///
/// # Safety
/// `count` pieces at `ioc` may be read.
///
/// # Errors
/// `FI_EINVAL` for more pieces than an operation may have; `FI_EMSGSIZE` for more bytes than there is memory.
#[inline]
pub(crate) unsafe fn elements(
    ioc: *const fi_ioc,
    count: usize,
    size: usize,
) -> Result<([iovec; limits::PIECES], usize)> {
    const NONE: iovec = iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let mut pieces = [NONE; limits::PIECES];
    if count > limits::PIECES || ioc.is_null() && count > 0 {
        return Err(Errno(FI_EINVAL));
    }
    for (at, piece) in pieces[..count].iter_mut().enumerate() {
        // SAFETY: one of the caller's pieces.
        let given = unsafe { ioc.wrapping_add(at).read() };
        *piece = iovec {
            iov_base: given.addr,
            iov_len: given.count.checked_mul(size).ok_or(Errno(FI_EMSGSIZE))?,
        };
    }
    Ok((pieces, count))
}

/// Lends pieces of memory to be sent from.
///
/// # Safety
/// `count` pieces at `iov` may be read, and their bytes until the operation has ended.
///
/// # Errors
/// `FI_EINVAL` for more pieces than an operation may have.
pub(crate) unsafe fn lent_pieces(iov: *const iovec, count: usize) -> Result<Bytes> {
    // SAFETY: the caller's pieces.
    let all = unsafe { pieces(iov, count) }?;
    // SAFETY: the caller's memory.
    let loan = |piece: &iovec| unsafe { lent(piece.iov_base, piece.iov_len) };
    Ok(match all {
        [] => Bytes::One(ConstLoan::EMPTY),
        [one] => Bytes::One(loan(one)),
        several => Bytes::Pieces(several.iter().map(loan).collect()),
    })
}

/// Lends pieces of memory to be received into.
///
/// # Safety
/// `count` pieces at `iov` may be read, and their bytes written until the operation has ended.
///
/// # Errors
/// `FI_EINVAL` for more pieces than an operation may have; `FI_EMSGSIZE` for several with more bytes together
/// than there is memory.
pub(crate) unsafe fn room_pieces(iov: *const iovec, count: usize) -> Result<Room> {
    // SAFETY: the caller's pieces.
    let all = unsafe { pieces(iov, count) }?;
    // SAFETY: the caller's memory.
    let loan = |piece: &iovec| unsafe { room(piece.iov_base, piece.iov_len) };
    Ok(match all {
        [] => Room::One(MutLoan::EMPTY),
        [one] => Room::One(loan(one)),
        several => {
            let mut lengths = several.iter().map(|piece| piece.iov_len);
            lengths
                .try_fold(0, usize::checked_add)
                .ok_or(Errno(FI_EMSGSIZE))?;
            Room::Pieces(several.iter().map(loan).collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_counted_and_one_needs_no_list() {
        let memory = [7_u8; 9];
        let piece = |at: usize, length| iovec {
            iov_base: memory[at..].as_ptr().cast_mut().cast(),
            iov_len: length,
        };
        let list = [piece(0, 4), piece(4, 5)];
        // SAFETY: the memory outlives the loans.
        let lists = unsafe { [0, 1, 2].map(|count| lent_pieces(list.as_ptr(), count).unwrap()) };
        assert!(matches!(&lists[0], Bytes::One(loan) if loan.is_empty()));
        assert!(matches!(&lists[1], Bytes::One(loan) if loan.len() == 4));
        assert!(matches!(&lists[2], Bytes::Pieces(pieces) if pieces.len() == 2));
        // SAFETY: too many are not read.
        let refused = unsafe { room_pieces(list.as_ptr(), limits::PIECES + 1) };
        assert_eq!(refused.map(|_| ()), Err(Errno(FI_EINVAL)));
        let counted = |count| fi_ioc {
            addr: memory.as_ptr().cast_mut().cast(),
            count,
        };
        let list = [counted(2), counted(1)];
        // SAFETY: the list has as many.
        let (pieces, count) = unsafe { elements(list.as_ptr(), 2, 4) }.unwrap();
        assert_eq!((pieces.map(|piece| piece.iov_len), count), ([8, 4, 0, 0], 2));
        let refused = |list: *const fi_ioc, count| {
            // SAFETY: as above, or none are read.
            unsafe { elements(list, count, 4) }.map(|_| ())
        };
        assert_eq!(refused(list.as_ptr(), limits::PIECES + 1), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(std::ptr::null(), 1), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(std::ptr::null(), 0), Ok(()));
        let long = counted(usize::MAX / 2);
        assert_eq!(refused(&raw const long, 1), Err(Errno(FI_EMSGSIZE)));
        // SAFETY: none are read.
        assert_eq!(unsafe { bytes(std::ptr::null(), 0) }, Ok(&[][..]));
        // SAFETY: too many are not read.
        let many = unsafe { bytes(memory.as_ptr().cast(), 4097) };
        assert_eq!(many, Err(Errno(FI_EMSGSIZE)));
    }
}

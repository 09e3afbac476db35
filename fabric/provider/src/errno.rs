//! The results of calls: a value, or an error number of libfabric.

use std::ffi::{c_char, c_int};

use libfabric_sys::{FI_EBADFLAGS, FI_EOPNOTSUPP};

/// An error number of libfabric (`FI_E*`), positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// The result of a call before it is converted for C.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// A type that a call of C returns.
pub(crate) trait Answer {
    /// Returns the value that reports a failure.
    fn of_errno(errno: Errno) -> Self;
}

impl Answer for c_int {
    fn of_errno(errno: Errno) -> Self {
        -errno.0
    }
}

impl Answer for isize {
    fn of_errno(errno: Errno) -> Self {
        -(errno.0 as isize)
    }
}

/// A counter that cannot be read has counted nothing.
impl Answer for u64 {
    fn of_errno(_: Errno) -> Self {
        0
    }
}

/// A text that cannot be given is empty.
impl Answer for *const c_char {
    fn of_errno(_: Errno) -> Self {
        c"".as_ptr()
    }
}

/// Checks the flags of a call of which `ours` are offered, and `known` are libfabric's.
///
/// # Errors
/// `FI_EOPNOTSUPP` for flags that are known and not offered, `FI_EBADFLAGS` for all others.
pub(crate) fn check_flags(flags: u64, ours: u64, known: u64) -> Result<()> {
    match flags & !ours {
        0 => Ok(()),
        others if others & !known == 0 => Err(Errno(FI_EOPNOTSUPP)),
        _ => Err(Errno(FI_EBADFLAGS)),
    }
}

/// Converts what a call has returned for C back: whether it is not 0.
///
/// # Errors
/// The error number of a negative answer.
pub(crate) fn checked(answer: c_int) -> Result<bool> {
    match answer {
        errno @ ..0 => Err(Errno(-errno)),
        value => Ok(value != 0),
    }
}

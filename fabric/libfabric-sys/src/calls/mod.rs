//! What libfabric's headers define as inline functions: calls through the tables of an object.
//!
//! Each looks at the table first: that there is one, that it is long enough, and that its entry is not null.
//! C's own functions do so only for entries that came late, and jump to address 0 elsewhere; these return the
//! value of [`Absent`], `-FI_ENOSYS` for all that return a number with a sign.
//!
//! A table of the size 0 does not state its length: some of libfabric's own providers forget to set it
//! (`util_av_set_ops` of 1.17, `hook_debug_tagged_ops`), which no function of C notices. Such a table is
//! taken to have the entries of the release that brought the table.
//!
//! # Safety of all calls
//! The object was opened and is not closed, its provider's tables are as in the headers, and all pointers
//! among the arguments are as the man page of the C function requires; memory that is handed over stays where
//! it is until the operation has completed.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;

use crate::abi::errno::FI_ENOSYS;
use crate::layout::Layout;
use crate::level::Level;

/// What a call returns where the provider has no such entry.
pub trait Absent {
    /// The value that stands for an entry that is not there.
    const ABSENT: Self;
}

impl Absent for c_int {
    const ABSENT: Self = -FI_ENOSYS;
}

impl Absent for isize {
    const ABSENT: Self = -(FI_ENOSYS as isize);
}

/// A counter that cannot be read has counted nothing.
impl Absent for u64 {
    const ABSENT: Self = 0;
}

/// A call without a result does nothing.
impl Absent for () {
    const ABSENT: Self = ();
}

impl Absent for *const c_char {
    const ABSENT: Self = std::ptr::null();
}

/// Whether a table whose size field is `size` has the entry at `offset`, which came at level `since` into a
/// table of level `first`.
#[inline]
const fn reaches(size: usize, offset: usize, since: Level, first: Level) -> bool {
    size > offset || size == 0 && first.has(since)
}

/// Whether a table has the entry at `offset`, which came at level `since`.
///
/// # Safety
/// The table is null, or can be read as far as its size field states.
#[inline]
unsafe fn has_entry<T: Layout>(table: *const T, offset: usize, since: Level) -> bool {
    if table.is_null() {
        return false;
    }
    // SAFETY: not null; the first field of every table is its size.
    let size = unsafe { table.cast::<usize>().read() };
    reaches(size, offset, since, T::STRUCTURE.since)
}

/// Looks an entry up: the object, the type that has the table, its field, the table's type, the entry. `None`
/// where the object has no such entry.
macro_rules! entry_of {
    ($object:expr, $head:ident.$field:ident: $table:ident.$entry:ident) => {{
        const SINCE: $crate::level::Level = $crate::layout::level_of::<$table>(stringify!($entry));
        const OFFSET: usize = std::mem::offset_of!($table, $entry);
        // SAFETY: the object is open, so that its head can be read.
        let table: *const $table = unsafe { (*$object.cast::<$head>()).$field };
        // SAFETY: the table of an open object.
        if unsafe { $crate::calls::has_entry(table, OFFSET, SINCE) } {
            // SAFETY: the table is there and has the entry.
            unsafe { (*table).$entry }
        } else {
            None
        }
    }};
}

/// Declares calls that pass their arguments on: the arguments, then where the entry is, as for `entry_of`.
macro_rules! calls {
    ($(
        $name:ident($object:ident: *mut $kind:ty $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty
            = $head:ident.$field:ident: $table:ident.$entry:ident;
    )*) => {
        $(
            #[doc = concat!("Calls the entry `", stringify!($entry), "` of the object's [`", stringify!($table), "`].")]
            ///
            /// # Safety
            /// As for [all calls](crate::calls).
            #[inline]
            #[allow(clippy::too_many_arguments)] // those of C
            pub unsafe fn $name($object: *mut $kind $(, $argument: $type)*) -> $result {
                match entry_of!($object, $head.$field: $table.$entry) {
                    // SAFETY: the caller keeps the contract of the call.
                    Some(call) => unsafe { call($object.cast() $(, $argument)*) },
                    None => <$result as $crate::calls::Absent>::ABSENT,
                }
            }
        )*
    };
}

pub mod addresses;
pub mod collectives;
pub mod composed;
pub mod endpoints;
pub mod memory;
pub mod messages;
pub mod objects;
pub mod onesided;
pub mod queues;

// The calls rely on it: the head of every object is at its start.
const _: () = {
    assert!(offset_of!(crate::abi::fabric::fid_fabric, fid) == 0);
    assert!(offset_of!(crate::abi::domain::fid_domain, fid) == 0);
    assert!(offset_of!(crate::abi::endpoint::fid_ep, fid) == 0);
    assert!(offset_of!(crate::abi::endpoint::fid_pep, fid) == 0);
    assert!(offset_of!(crate::abi::mr::fid_mr, fid) == 0);
    assert!(offset_of!(crate::abi::av::fid_av, fid) == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reaches_as_far_as_its_size_and_one_without_size_as_far_as_its_first_release() {
        let (first, later) = (Level::FIRST, Level::new(1, 20));
        assert!(reaches(16, 8, first, first) && !reaches(8, 8, first, first));
        assert!(reaches(72, 64, later, first) && !reaches(64, 64, later, first));
        assert!(reaches(0, 8, first, first) && !reaches(0, 64, later, first));
    }
}

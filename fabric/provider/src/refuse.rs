//! Tables of functions, all of whose entries are set.
//!
//! The headers call most entries without looking whether they are there, and those of newer releases call
//! entries that this table's release does not have. So a table begins as one whose entries all refuse, and
//! eight refusing words follow it.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

/// Refusing words after each table.
const SPARE: usize = 8;

/// A table of functions and the refusing words after it. It is static: objects point to it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table<T> {
    table: T,
    spare: [unsafe extern "C" fn() -> isize; SPARE],
}

impl<T: Layout> Table<T> {
    /// Returns a table with its spare words.
    pub(crate) const fn new(table: T) -> Self {
        Self {
            table,
            spare: [refuse; SPARE],
        }
    }

    /// Returns the pointer that objects have.
    pub(crate) fn pointer(&'static self) -> *mut T {
        (&raw const *self).cast_mut().cast()
    }
}

/// Refuses a call of an entry that is not known here. C's callers pass and remove the arguments themselves.
unsafe extern "C" fn refuse() -> isize {
    -(FI_ENOSYS as isize)
}

/// Refuses to bind: -FI_EINVAL is what clients take for "this pair of objects cannot be bound".
pub(crate) unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -FI_EINVAL
}

/// Refuses an option: the number that fi_endpoint(3) has for one that is not known.
unsafe extern "C" fn getopt(_: *mut fid, _: c_int, _: c_int, _: *mut c_void, _: *mut usize) -> c_int {
    -FI_ENOPROTOOPT
}

/// Refuses an option, as above.
unsafe extern "C" fn setopt(_: *mut fid, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -FI_ENOPROTOOPT
}

/// The common table of an object that can only be closed.
pub(crate) const FI_OPS: fi_ops = fi_ops {
    bind: Some(bind),
    ..fi_ops::REFUSING
};

/// The table of an endpoint without options.
pub(crate) const EP: fi_ops_ep = fi_ops_ep {
    getopt: Some(getopt),
    setopt: Some(setopt),
    ..fi_ops_ep::REFUSING
};

/// The table of an endpoint that offers no collectives.
pub(crate) static COLLECTIVE: Table<fi_ops_collective> = Table::new(fi_ops_collective::REFUSING);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_followed_by_words_that_refuse() {
        type Entry = unsafe extern "C" fn() -> isize;
        static TABLE: Table<fi_ops_eq> = Table::new(fi_ops_eq::REFUSING);
        let pointer = TABLE.pointer();
        // SAFETY: the table is static.
        let size = unsafe { (*pointer).size };
        assert_eq!(size, size_of::<fi_ops_eq>());
        for word in 0..SPARE {
            let place = pointer.cast::<Entry>().wrapping_byte_add(size).wrapping_add(word);
            // SAFETY: the words after the table are functions of this type.
            let entry = unsafe { place.read() };
            // SAFETY: it takes no arguments.
            assert_eq!(unsafe { entry() }, -(FI_ENOSYS as isize));
        }
    }
}

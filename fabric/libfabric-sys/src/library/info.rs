//! A list of entries that the library allocated, and gives back at its end.

use std::fmt;

use super::{CallError, Library, text};
use crate::abi::info::fi_info;

/// A list of entries of `fi_getinfo`, or hints for it.
///
/// The entries are the library's: its layout is that of its release, which may be shorter than that of the
/// types here. Fields that came after [`Level::OLDEST`](crate::Level::OLDEST) are read by
/// [`field_at`](crate::field_at).
pub struct InfoList {
    library: Library,
    first: *mut fi_info,
}

impl InfoList {
    pub(super) fn new(library: Library, first: *mut fi_info) -> Self {
        Self { library, first }
    }

    /// Returns the first entry, or null; for calls of C.
    pub fn as_ptr(&self) -> *const fi_info {
        self.first
    }

    /// Returns the first entry, or null, to be filled in; the list still gives it back.
    pub fn as_mut_ptr(&mut self) -> *mut fi_info {
        self.first
    }

    /// Returns the entries in their order, as pointers that are valid as long as the list.
    pub fn iter(&self) -> InfoIter<'_> {
        InfoIter {
            next: self.first,
            list: std::marker::PhantomData,
        }
    }

    /// Copies one entry, with all that it points to, into a list of its own.
    ///
    /// # Safety
    /// The entry is of a list of this library that still lives.
    ///
    /// # Errors
    /// `FI_ENOMEM` if the library has no memory.
    pub unsafe fn copy_of(&self, entry: *const fi_info) -> Result<Self, CallError> {
        self.library.duplicate(entry)
    }
}

impl Drop for InfoList {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the list comes from this library and is given back once.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

impl fmt::Debug for InfoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(Names::of)).finish()
    }
}

impl<'a> IntoIterator for &'a InfoList {
    type Item = *mut fi_info;
    type IntoIter = InfoIter<'a>;

    fn into_iter(self) -> InfoIter<'a> {
        self.iter()
    }
}

/// The entries of a list, one after the other.
#[derive(Debug)]
pub struct InfoIter<'a> {
    next: *mut fi_info,
    list: std::marker::PhantomData<&'a InfoList>,
}

impl Iterator for InfoIter<'_> {
    type Item = *mut fi_info;

    fn next(&mut self) -> Option<*mut fi_info> {
        let entry = self.next;
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry of a list that lives as long as this iterator; `next` is in every release.
        self.next = unsafe { (*entry).next };
        Some(entry)
    }
}

/// The three names by which an entry is known: provider, fabric, domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The provider's name, with those of its layers: `udp;ofi_rxd`.
    pub provider: String,
    /// The fabric's name.
    pub fabric: String,
    /// The domain's name.
    pub domain: String,
}

impl Names {
    /// Reads the names of an entry; a name that is not set is empty.
    fn of(entry: *mut fi_info) -> Self {
        // SAFETY: called with entries of a list that lives; the pointer is in every release.
        let fabric = unsafe { (*entry).fabric_attr };
        // SAFETY: as above.
        let domain = unsafe { (*entry).domain_attr };
        let mut names = Self::default();
        if !fabric.is_null() {
            // SAFETY: an attribute of the entry; the name is in every release.
            names.provider = text(unsafe { (*fabric).prov_name });
            // SAFETY: as above.
            names.fabric = text(unsafe { (*fabric).name });
        }
        if !domain.is_null() {
            // SAFETY: an attribute of the entry; the name is in every release.
            names.domain = text(unsafe { (*domain).name });
        }
        names
    }
}

impl InfoList {
    /// Returns the names of the entries, in their order.
    pub fn names(&self) -> Vec<Names> {
        self.iter().map(Names::of).collect()
    }
}

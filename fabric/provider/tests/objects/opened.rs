//! Hints, and opened objects.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

/// An object that is closed at its end.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) *mut T);

impl<T> Object<T> {
    /// The common head of the object.
    pub(crate) fn fid(&self) -> *mut fid {
        self.0.cast()
    }

    /// Closes it and returns the result.
    pub(crate) fn close(self) -> c_int {
        let object = self.fid();
        std::mem::forget(self);
        // SAFETY: it was opened and is closed once.
        unsafe { fi_close(object) }
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: every object begins with its head, was opened, and is closed once.
        let result = unsafe { fi_close(self.fid()) };
        if !std::thread::panicking() {
            assert_eq!(result, 0, "fi_close");
        }
    }
}

/// Opens an object by a call that writes its address.
///
/// # Errors
/// With the number that the call returns.
pub(crate) fn try_open<T>(open: impl FnOnce(*mut *mut T) -> c_int) -> Result<Object<T>, c_int> {
    let mut object = ptr::null_mut();
    match open(&raw mut object) {
        0 => {
            assert!(!object.is_null());
            Ok(Object(object))
        }
        errno => {
            assert!(object.is_null());
            Err(errno)
        }
    }
}

/// Opens an object by a call that must not fail.
pub(crate) fn open<T>(call: &str, open: impl FnOnce(*mut *mut T) -> c_int) -> Object<T> {
    try_open(open).unwrap_or_else(|errno| panic!("{call}: {errno}"))
}

/// Hints, which are changed through [`set`].
pub(crate) fn hints(library: &Library) -> InfoList {
    library.hints().unwrap()
}

/// Sets a field of hints or of one of their attributes: `set!(hints, domain_attr.mr_mode = 0)`.
#[macro_export]
macro_rules! set {
    ($list:expr, $part:ident.$field:ident = $value:expr) => {{
        let entry: *mut fi_info = $list.as_mut_ptr();
        // SAFETY: libfabric gave the hints all their attributes.
        let part = unsafe { (*entry).$part };
        let value = $value;
        // SAFETY: as above.
        unsafe { (*part).$field = value };
    }};
    ($list:expr, $field:ident = $value:expr) => {{
        let entry: *mut fi_info = $list.as_mut_ptr();
        let value = $value;
        // SAFETY: the entry of the hints.
        unsafe { (*entry).$field = value };
    }};
}

/// Reads a field of the first entry of a list, or of one of its attributes.
#[macro_export]
macro_rules! get {
    ($list:expr, $part:ident.$field:ident) => {{
        let entry: *const fi_info = $list.as_ptr();
        // SAFETY: an entry has all its attributes.
        let part = unsafe { (*entry).$part };
        // SAFETY: as above.
        unsafe { (*part).$field }
    }};
    ($list:expr, $field:ident) => {{
        let entry: *const fi_info = $list.as_ptr();
        // SAFETY: an entry of the list.
        unsafe { (*entry).$field }
    }};
}

/// Makes a text that libfabric frees.
pub(crate) fn text(text: &std::ffi::CStr) -> *mut std::ffi::c_char {
    // SAFETY: the text ends with a zero byte.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// A fabric and a domain. Fields are dropped in this order.
pub(crate) struct Opened {
    pub(crate) domain: Object<fid_domain>,
    pub(crate) fabric: Object<fid_fabric>,
    pub(crate) info: InfoList,
}

impl Opened {
    /// Opens what the hints match.
    pub(crate) fn by(library: Library, hints: &InfoList) -> Self {
        let info = library
            .getinfo(library.level(), None, None, 0, Some(hints))
            .unwrap();
        let entry = info.as_ptr().cast_mut();
        let attributes = get!(info, fabric_attr);
        let null = ptr::null_mut::<c_void>();
        // SAFETY: the attributes are the library's.
        let fabric = open("fi_fabric", |to| unsafe { library.fabric(attributes, to, null) });
        // SAFETY: the fabric is open, and the entry is of its provider.
        let domain = open("fi_domain", |to| unsafe { fi_domain(fabric.0, entry, to, null) });
        Self { domain, fabric, info }
    }

    /// Opens what is offered first.
    pub(crate) fn any(library: Library) -> Self {
        Self::by(library, &hints(&library))
    }

    /// Opens an event queue.
    pub(crate) fn queue(&self, size: usize, flags: u64, wait_obj: fi_wait_obj) -> Object<fid_eq> {
        let mut attributes = fi_eq_attr {
            size,
            flags,
            wait_obj,
            ..Layout::zeroed()
        };
        // SAFETY: the fabric is open.
        open("fi_eq_open", |to| unsafe {
            fi_eq_open(self.fabric.0, &raw mut attributes, to, ptr::null_mut())
        })
    }
}

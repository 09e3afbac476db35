//! The dynamic loader's functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A library that the loader holds. It is never given back: its functions are called until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle(*mut c_void);

/// Returns the library of this name if the process has it already.
pub(super) fn loaded(name: &CStr) -> Option<Handle> {
    open(name, libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD).ok()
}

/// Loads a library by its name; its symbols are seen by no other library.
pub(super) fn by_name(name: &CStr) -> Result<Handle, String> {
    open(name, libc::RTLD_NOW | libc::RTLD_LOCAL)
}

/// Loads a library by its path.
pub(super) fn by_path(path: &Path) -> Result<Handle, String> {
    // Without a slash the loader would take it for a name.
    let path = if path.components().count() == 1 {
        Path::new(".").join(path)
    } else {
        path.to_path_buf()
    };
    let path =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a zero byte".to_owned())?;
    by_name(&path)
}

impl Handle {
    /// Returns the address of a function, in its default version.
    pub(super) fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle comes from dlopen and is never closed; the name ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

fn open(name: &CStr, flags: c_int) -> Result<Handle, String> {
    // SAFETY: the name ends with a zero byte. What a library does when it is loaded is its own matter, as
    // with one that the program was linked to.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        Err(last_error())
    } else {
        Ok(Handle(handle))
    }
}

fn last_error() -> String {
    // SAFETY: dlerror may be called at any time; it returns null, or a text of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not null, so it is a text that ends with a zero byte, valid until this thread's next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

//! Loads libpmix by name, with the functions that are used.

use std::ffi::{CStr, CString, c_char};

use super::abi::{self, Symbol};
use crate::launch::LaunchError;

/// The file name of libpmix for all versions of the standard from 2 on.
pub(crate) const LIBRARY: &str = "libpmix.so.2";

/// The functions of the loaded library. It is never unloaded, so their addresses stay valid.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) init: abi::Init,
    pub(super) finalize: abi::Finalize,
    pub(super) abort: abi::Abort,
    pub(super) put: abi::Put,
    pub(super) commit: abi::Commit,
    pub(super) fence: abi::Fence,
    pub(super) get: abi::Get,
    pub(super) spawn: abi::Spawn,
    pub(super) error_string: abi::ErrorString,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Library(PMIx)")
    }
}

/// Checks that the library exists and has the functions needed.
pub(crate) fn loads(name: &str) -> Result<(), LaunchError> {
    Library::load(name).map(drop)
}

/// Casts the address of a function to its type.
macro_rules! function {
    ($handle:expr, $library:expr, $symbol:literal as $type:ty) => {{
        let address = symbol($handle, $library, $symbol)?;
        // SAFETY: dlsym found the function of this name, whose signature in pmix.h is the one of the type;
        // the library is never unloaded.
        unsafe { std::mem::transmute::<Symbol, $type>(address) }
    }};
}

impl Library {
    /// Loads the library.
    pub(super) fn load(name: &str) -> Result<Self, LaunchError> {
        let refused = |reason: String| LaunchError::Library {
            name: name.to_owned(),
            reason,
        };
        let c_name = CString::new(name).map_err(|_| refused("its name contains a zero byte".to_owned()))?;
        // SAFETY: the name ends with a zero byte; what the library does when it is loaded is its own matter,
        // as with any library that the program was linked to.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refused(last_error()));
        }
        Ok(Self {
            init: function!(handle, name, c"PMIx_Init" as abi::Init),
            finalize: function!(handle, name, c"PMIx_Finalize" as abi::Finalize),
            abort: function!(handle, name, c"PMIx_Abort" as abi::Abort),
            put: function!(handle, name, c"PMIx_Put" as abi::Put),
            commit: function!(handle, name, c"PMIx_Commit" as abi::Commit),
            fence: function!(handle, name, c"PMIx_Fence" as abi::Fence),
            get: function!(handle, name, c"PMIx_Get" as abi::Get),
            spawn: function!(handle, name, c"PMIx_Spawn" as abi::Spawn),
            error_string: function!(handle, name, c"PMIx_Error_string" as abi::ErrorString),
        })
    }
}

fn symbol(handle: Symbol, library: &str, name: &CStr) -> Result<Symbol, LaunchError> {
    // SAFETY: the handle comes from dlopen and was not closed; the name ends with a zero byte.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(LaunchError::Library {
            name: library.to_owned(),
            reason: format!("it has no {}", name.to_string_lossy()),
        });
    }
    Ok(address)
}

fn last_error() -> String {
    // SAFETY: dlerror has no preconditions; it gives null or a text.
    let text = unsafe { libc::dlerror() };
    text_of(text).unwrap_or_else(|| "the system gives no reason".to_owned())
}

/// Copies a C string.
pub(super) fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller has it from a function that returns texts ending in a zero byte, valid
    // until the next call of it in this thread.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_here_or_another_one_is_refused_with_the_reason() {
        for (name, word) in [
            ("libnosuch.so.9", "libnosuch.so.9"),
            ("libc.so.6", "it has no PMIx_Init"),
            ("a\0b", "zero byte"),
        ] {
            let error = loads(name).unwrap_err();
            assert_eq!(error.code(), "launch.library");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

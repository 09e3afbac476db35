//! What the library offers to the providers that it loads: its log, and the registry of parameters.
//!
//! A provider must not load a libfabric of its own: it takes the one that is in the process already, or does
//! without. So each function may be missing by itself.
//!
//! Sources: `rdma/providers/fi_log.h`, `rdma/providers/fi_prov.h`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;

use super::{LIBRARY, loader};
use crate::abi::errno::{FI_ENODATA, FI_ENOSYS};
use crate::abi::provider::{FI_PARAM_STRING, fi_log_level, fi_log_subsys, fi_param_type, fi_provider};

type LogEnabled = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type Log = unsafe extern "C" fn(
    *const fi_provider,
    fi_log_level,
    fi_log_subsys,
    *const c_char,
    c_int,
    *const c_char,
    ...
);
type ParamDefine =
    unsafe extern "C" fn(*const fi_provider, *const c_char, fi_param_type, *const c_char, ...) -> c_int;
type ParamGet = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;

/// The functions for providers of the libfabric that the process has loaded.
#[derive(Clone, Copy, Default)]
pub struct Services {
    log_enabled: Option<LogEnabled>,
    log: Option<Log>,
    param_define: Option<ParamDefine>,
    param_get: Option<ParamGet>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("has_log", &self.has_log())
            .field("has_params", &self.has_params())
            .finish()
    }
}

impl Services {
    /// Finds the functions of the library that the process has loaded; none where there is no such library.
    pub fn find() -> Self {
        let Some(handle) = loader::loaded(LIBRARY) else {
            return Self::default();
        };
        macro_rules! function {
            ($name:literal as $type:ty) => {
                handle.symbol($name).map(|address| {
                    // SAFETY: the loader found the function of this name, whose signature in the headers is
                    // that of the type; the library is never unloaded.
                    unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
                })
            };
        }
        Self {
            log_enabled: function!(c"fi_log_enabled" as LogEnabled),
            log: function!(c"fi_log" as Log),
            param_define: function!(c"fi_param_define" as ParamDefine),
            param_get: function!(c"fi_param_get" as ParamGet),
        }
    }

    /// Whether the library has a log.
    pub fn has_log(&self) -> bool {
        self.log_enabled.is_some() && self.log.is_some()
    }

    /// Whether the library has a registry of parameters.
    pub fn has_params(&self) -> bool {
        self.param_define.is_some() && self.param_get.is_some()
    }

    /// Whether the log shows lines of this level and subsystem.
    ///
    /// # Safety
    /// `provider` was registered with the library.
    pub unsafe fn log_enabled(
        &self,
        provider: *const fi_provider,
        level: fi_log_level,
        subsystem: fi_log_subsys,
    ) -> bool {
        // SAFETY: by the contract of this function.
        self.log_enabled
            .is_some_and(|enabled| unsafe { enabled(provider, level, subsystem) } != 0)
    }

    /// Writes a line to the log; `function` names the place that it comes from. The caller's `errno` stays.
    ///
    /// # Safety
    /// `provider` was registered with the library.
    pub unsafe fn log(
        &self,
        provider: *const fi_provider,
        level: fi_log_level,
        subsystem: fi_log_subsys,
        function: &CStr,
        line: &str,
    ) {
        let (Some(log), Ok(line)) = (self.log, CString::new(format!("{line}\n").replace('\0', " "))) else {
            return;
        };
        // SAFETY: the location of `errno` is this thread's.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { *errno };
        // SAFETY: the format takes one text, and both end with zero bytes; the rest is the contract of this
        // function.
        unsafe {
            log(
                provider,
                level,
                subsystem,
                function.as_ptr(),
                0,
                c"%s".as_ptr(),
                line.as_ptr(),
            )
        };
        // SAFETY: as above.
        unsafe { *errno = before };
    }

    /// Defines a parameter that is a text: its variable is `FI_PROVIDER_NAME` in capitals, and `fi_info -e`
    /// lists it with its help. Returns 0 or a negative error number.
    ///
    /// # Safety
    /// `provider` is that of the entry, and lives as long as the process.
    pub unsafe fn param_define(&self, provider: *const fi_provider, name: &CStr, help: &CStr) -> c_int {
        let Some(define) = self.param_define else {
            return -FI_ENOSYS;
        };
        // SAFETY: the format takes one text, and all texts end with zero bytes; the library copies what it
        // keeps. The rest is the contract of this function.
        unsafe {
            define(
                provider,
                name.as_ptr(),
                FI_PARAM_STRING,
                c"%s".as_ptr(),
                help.as_ptr(),
            )
        }
    }

    /// Returns the value of a parameter that was defined as a text; `None` where the user has set none.
    ///
    /// # Errors
    /// With a positive error number.
    ///
    /// # Safety
    /// As for [`param_define`](Self::param_define).
    pub unsafe fn param_get(
        &self,
        provider: *mut fi_provider,
        name: &CStr,
    ) -> Result<Option<CString>, c_int> {
        let Some(get) = self.param_get else {
            return Err(FI_ENOSYS);
        };
        let mut value: *const c_char = ptr::null();
        // SAFETY: a parameter of this type writes a pointer to a text; the rest is the contract of this
        // function.
        let result = unsafe { get(provider, name.as_ptr(), (&raw mut value).cast()) };
        match result {
            0 if value.is_null() => Ok(None),
            // SAFETY: not null, so it is a text that ends with a zero byte, and stays until the environment
            // or the registry changes.
            0 => Ok(Some(unsafe { CStr::from_ptr(value) }.to_owned())),
            result if result == -FI_ENODATA => Ok(None),
            result => Err(result.saturating_neg()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Library;

    #[test]
    fn the_services_are_those_of_a_library_that_is_loaded() {
        if Library::open().is_err() {
            doorbell_testing::skipped("services", "package libfabric1: libfabric.so.1 not found");
            return;
        }
        let services = Services::find();
        assert!(services.has_log() && services.has_params(), "{services:?}");
    }

    #[test]
    fn without_a_library_nothing_is_there() {
        let services = Services::default();
        assert!(!services.has_log() && !services.has_params());
        // SAFETY: nothing is called.
        let result = unsafe { services.param_define(ptr::null(), c"x", c"y") };
        assert_eq!(result, -FI_ENOSYS);
    }
}

//! libibverbs itself, loaded when a rail of verbs is looked for, and never unloaded.
//!
//! Each function is looked up by its name and symbol version: several exist twice, with other structures
//! behind. One of version 1.1 that is missing makes the library unusable; a missing later one turns off what
//! needs it. What the library and its providers print while they are loaded is caught, and kept.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::abi::{
    Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr, RawGid, Srq, SrqAttr, SrqInitAttr,
};
use super::{numbers, said};
use crate::error::VerbsError;

/// The name of the library since its first release of version 1.1.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    (
        needed { $($name:ident $symbol:literal $version:literal ($($argument:ty),*) -> $result:ty;)* }
        optional { $($other:ident $other_symbol:literal $other_version:literal ($($other_argument:ty),*) -> $other_result:ty;)* }
    ) => {
        /// The functions of a library.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(crate) $other: Option<unsafe extern "C" fn($($other_argument),*) -> $other_result>,)*
        }

        impl Functions {
            /// Looks all of them up.
            fn of(handle: *mut c_void) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($name: {
                        let address = symbol(handle, $symbol, $version).ok_or($symbol)?;
                        // SAFETY: the loader found the function of this name and version, whose signature in
                        // the headers is the one of the field; the library is never unloaded.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address) }
                    },)*
                    $($other: symbol(handle, $other_symbol, $other_version).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($other_argument),*) -> $other_result>(address) }
                    }),)*
                })
            }
        }
    };
}

functions! {
    needed {
        get_device_list c"ibv_get_device_list" c"IBVERBS_1.1" (*mut c_int) -> *mut *mut Device;
        free_device_list c"ibv_free_device_list" c"IBVERBS_1.1" (*mut *mut Device) -> ();
        open_device c"ibv_open_device" c"IBVERBS_1.1" (*mut Device) -> *mut Context;
        close_device c"ibv_close_device" c"IBVERBS_1.1" (*mut Context) -> c_int;
        get_async_event c"ibv_get_async_event" c"IBVERBS_1.1" (*mut Context, *mut AsyncEvent) -> c_int;
        ack_async_event c"ibv_ack_async_event" c"IBVERBS_1.1" (*mut AsyncEvent) -> ();
        query_device c"ibv_query_device" c"IBVERBS_1.1" (*mut Context, *mut DeviceAttr) -> c_int;
        query_port c"ibv_query_port" c"IBVERBS_1.1" (*mut Context, u8, *mut PortAttr) -> c_int;
        query_gid c"ibv_query_gid" c"IBVERBS_1.1" (*mut Context, u8, c_int, *mut RawGid) -> c_int;
        query_pkey c"ibv_query_pkey" c"IBVERBS_1.1" (*mut Context, u8, c_int, *mut u16) -> c_int;
        alloc_pd c"ibv_alloc_pd" c"IBVERBS_1.1" (*mut Context) -> *mut Pd;
        dealloc_pd c"ibv_dealloc_pd" c"IBVERBS_1.1" (*mut Pd) -> c_int;
        reg_mr c"ibv_reg_mr" c"IBVERBS_1.1" (*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        dereg_mr c"ibv_dereg_mr" c"IBVERBS_1.1" (*mut Mr) -> c_int;
        create_comp_channel c"ibv_create_comp_channel" c"IBVERBS_1.0" (*mut Context) -> *mut CompChannel;
        destroy_comp_channel c"ibv_destroy_comp_channel" c"IBVERBS_1.0" (*mut CompChannel) -> c_int;
        create_cq c"ibv_create_cq" c"IBVERBS_1.1" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        destroy_cq c"ibv_destroy_cq" c"IBVERBS_1.1" (*mut Cq) -> c_int;
        get_cq_event c"ibv_get_cq_event" c"IBVERBS_1.1" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ack_cq_events c"ibv_ack_cq_events" c"IBVERBS_1.1" (*mut Cq, c_uint) -> ();
        create_srq c"ibv_create_srq" c"IBVERBS_1.1" (*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        modify_srq c"ibv_modify_srq" c"IBVERBS_1.1" (*mut Srq, *mut SrqAttr, c_int) -> c_int;
        destroy_srq c"ibv_destroy_srq" c"IBVERBS_1.1" (*mut Srq) -> c_int;
        create_qp c"ibv_create_qp" c"IBVERBS_1.1" (*mut Pd, *mut QpInitAttr) -> *mut Qp;
        modify_qp c"ibv_modify_qp" c"IBVERBS_1.1" (*mut Qp, *mut QpAttr, c_int) -> c_int;
        destroy_qp c"ibv_destroy_qp" c"IBVERBS_1.1" (*mut Qp) -> c_int;
        create_ah c"ibv_create_ah" c"IBVERBS_1.1" (*mut Pd, *mut AhAttr) -> *mut Ah;
        destroy_ah c"ibv_destroy_ah" c"IBVERBS_1.1" (*mut Ah) -> c_int;
        fork_init c"ibv_fork_init" c"IBVERBS_1.1" () -> c_int;
        attach_mcast c"ibv_attach_mcast" c"IBVERBS_1.1" (*mut Qp, *const RawGid, u16) -> c_int;
        detach_mcast c"ibv_detach_mcast" c"IBVERBS_1.1" (*mut Qp, *const RawGid, u16) -> c_int;
    }
    optional {
        query_gid_table c"_ibv_query_gid_table" c"IBVERBS_1.11" (*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
        is_fork_initialized c"ibv_is_fork_initialized" c"IBVERBS_1.13" () -> c_int;
        query_data_in_order c"ibv_query_qp_data_in_order" c"IBVERBS_1.14" (*mut Qp, c_int, u32) -> c_int;
    }
}

/// A loaded library.
#[derive(Clone)]
pub(crate) struct Library {
    /// The file that was loaded.
    pub(crate) file: PathBuf,
    /// The newest symbol version of those that are known here.
    pub(crate) version: &'static str,
    /// What it printed while it was loaded.
    pub(crate) said: String,
    pub(super) functions: Functions,
    /// Whether registered pages are kept from children of fork, once that was requested.
    pub(super) fork: Arc<OnceLock<ForkSafety>>,
}

/// What becomes of registered pages in a child of fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkSafety {
    /// The kernel copies them for the child: nothing has to be done.
    Copied,
    /// The library keeps them from children, which lack them.
    KeptBack,
    /// They may be lost to the parent: the library's error number.
    Refused(c_int),
}

impl fmt::Debug for Library {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Library({})", self.file.display())
    }
}

/// The symbol versions that tell releases of rdma-core apart, newest first.
const VERSIONS: &[(&CStr, &CStr, &str)] = &[
    (
        c"ibv_query_port_speed",
        c"IBVERBS_1.16",
        "1.16 (rdma-core 62 or later)",
    ),
    (c"ibv_reg_mr_ex", c"IBVERBS_1.15", "1.15 (rdma-core 59 or later)"),
    (
        c"ibv_query_qp_data_in_order",
        c"IBVERBS_1.14",
        "1.14 (rdma-core 36 or later)",
    ),
    (c"ibv_is_fork_initialized", c"IBVERBS_1.13", "1.13 (rdma-core 35)"),
    (c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12", "1.12 (rdma-core 34)"),
    (c"_ibv_query_gid_table", c"IBVERBS_1.11", "1.11 (rdma-core 32)"),
    (c"ibv_reg_mr_iova2", c"IBVERBS_1.8", "1.8 (rdma-core 28)"),
];

impl Library {
    /// Loads the library by its name, or the file of that path.
    ///
    /// # Errors
    /// If it cannot be loaded, or lacks a function of version 1.1.
    pub(crate) fn load(name: &str) -> Result<Self, VerbsError> {
        let missing = |reason: String| VerbsError::Library {
            name: name.to_owned(),
            reason,
        };
        let text =
            std::ffi::CString::new(name).map_err(|_| missing("its name has a zero byte".to_owned()))?;
        let (handle, said) = said::caught(|| {
            // SAFETY: the name ends with a zero byte. The library's constructors run; those of rdma-core have
            // no preconditions.
            unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        });
        if handle.is_null() {
            return Err(missing(loader_error()));
        }
        let functions = Functions::of(handle)
            .map_err(|symbol| missing(format!("it has no {} of version 1.1", symbol.to_string_lossy())))?;
        let mut versions = VERSIONS.iter();
        let version =
            versions.find(|(symbol_name, version, _)| symbol(handle, symbol_name, version).is_some());
        Ok(Self {
            file: file_of(functions.get_device_list as *const c_void)
                .unwrap_or_else(|| Path::new(name).to_owned()),
            version: version.map_or("1.1", |(_, _, version)| version),
            said,
            functions,
            fork: Arc::default(),
        })
    }

    /// Whether the kernel copies registered pages at fork, so that children miss none of them and parents
    /// keep theirs. An older library cannot report it.
    pub(crate) fn copies_at_fork(&self) -> bool {
        let Some(status) = self.functions.is_fork_initialized else {
            return false;
        };
        // SAFETY: no preconditions.
        unsafe { status() == numbers::FORK_UNNEEDED }
    }

    /// Has registered pages kept from children of fork where the kernel does not copy them: a write of the
    /// parent would give it another page than the one that the device writes. To be called before the first
    /// registration, after which the library refuses it; requested once.
    pub(crate) fn make_fork_safe(&self) -> ForkSafety {
        *self.fork.get_or_init(|| {
            if self.copies_at_fork() {
                return ForkSafety::Copied;
            }
            // SAFETY: no preconditions: it refuses to begin after a registration, and repeats are harmless.
            match unsafe { (self.functions.fork_init)() } {
                0 => ForkSafety::KeptBack,
                error => ForkSafety::Refused(error),
            }
        })
    }
}

/// Finds a function by its name and version.
pub(super) fn symbol(handle: *mut c_void, name: &CStr, version: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle is of a library that is loaded; both texts end with zero bytes.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// The loader's words for what went wrong last in this thread.
pub(super) fn loader_error() -> String {
    // SAFETY: no preconditions; the text is the loader's until the next of its calls in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: not null, so a text that ends with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The file that a function was loaded from.
pub(super) fn file_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be looked up; the result is written to `info`.
    let found = unsafe { libc::dladdr(function, info.as_mut_ptr()) };
    // SAFETY: zero bytes are valid for its pointers, and the call wrote the rest.
    let name: *const c_char = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return None;
    }
    // SAFETY: the loader's text of a loaded file, which ends with a zero byte and stays.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_is_named_with_the_reason() {
        let refused = |name: &str| Library::load(name).unwrap_err().to_string();
        assert!(refused("libnosuch-verbs.so.1").contains("libnosuch-verbs.so.1"));
        assert!(refused("/etc/hostname").contains("/etc/hostname"));
        let other = refused("libm.so.6");
        assert!(
            other.contains("it has no ibv_get_device_list of version 1.1"),
            "{other}"
        );
        assert!(refused("a\0b").contains("zero byte"));
    }

    #[test]
    fn the_installed_one_is_loaded_with_its_file_and_version() {
        let Ok(library) = Library::load(LIBRARY) else {
            return doorbell_testing::skipped(
                "the_installed_one_is_loaded_with_its_file_and_version",
                "package libibverbs1: libibverbs.so.1 is not installed",
            );
        };
        assert!(
            library.file.to_string_lossy().contains("libibverbs.so"),
            "{library:?}"
        );
        assert!(library.version.starts_with("1."), "{}", library.version);
    }
}

//! The entry, the one symbol that the library exports.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};

use libfabric_sys::{FI_ENODATA, Level, fi_context, fi_info, fi_provider};

use crate::errno::Errno;
use crate::fabric;
use crate::fence::{self, guard};

/// The provider's own version.
const VERSION: u32 = Level::new(1, 0).version();

/// What the entry returns. libfabric writes into its `context`.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this library does not touch it after it was initialized; libfabric writes under its own lock.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: Level::NEWEST.version(),
    context: fi_context {
        internal: [std::ptr::null_mut(); 4],
    },
    name: c"doorbell".as_ptr(),
    getinfo: Some(getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// Returns the provider to libfabric, which calls this once when it has loaded the library. Opens and starts
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    fence::install();
    PROVIDER.0.get()
}

unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi_info,
    _info: *mut *mut fi_info,
) -> c_int {
    guard("fi_getinfo", || Err(Errno(FI_ENODATA)))
}

/// Called by libfabric when the process ends or unloads it.
unsafe extern "C" fn cleanup() {}

//! The entry, the one symbol that the library exports.

use std::cell::UnsafeCell;

use libfabric_sys::{Level, fi_context, fi_provider};

use crate::fence::{self, guard};
use crate::{exit, fabric, info, params};

/// The provider's own version.
pub(crate) const VERSION: u32 = Level::new(1, 0).version();

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
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// Returns the provider to libfabric, which calls this once when it has loaded the library. Opens and starts
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    fence::install();
    guard("fi_prov_ini", || {
        params::define();
        Ok(0)
    });
    provider()
}

/// Returns the provider's structure, by which libfabric knows it.
pub(crate) fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// Called by libfabric when the process ends or unloads it.
unsafe extern "C" fn cleanup() {
    guard("cleanup", || {
        exit::leave_all();
        Ok(0)
    });
}

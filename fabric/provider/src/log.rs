//! Lines for the user, through libfabric's log where the library is found, else to the standard error.
//!
//! A warning is something that the user can act on. Why something was not chosen is information, which
//! libfabric shows at `FI_LOG_LEVEL=info`.

use std::io::Write as _;
use std::sync::OnceLock;

use libfabric_sys::{FI_LOG_INFO, FI_LOG_WARN, Services, fi_log_level, fi_log_subsys};

use crate::entry;

/// Returns the functions of the libfabric that has loaded this library. They are looked up once.
pub(crate) fn services() -> &'static Services {
    static SERVICES: OnceLock<Services> = OnceLock::new();
    SERVICES.get_or_init(Services::find)
}

/// Prints a line that the user can act on.
#[cold]
pub(crate) fn warn(subsystem: fi_log_subsys, line: &str) {
    if services().has_log() {
        return log(FI_LOG_WARN, subsystem, line);
    }
    // In one write, as several processes may print at once.
    let _ = std::io::stderr().write_all(format!("doorbell: {line}\n").as_bytes());
}

/// Prints what explains a decision, where the user wants to read that. The line is made when it is shown.
#[cold]
pub(crate) fn info(subsystem: fi_log_subsys, line: impl FnOnce() -> String) {
    if is_shown(FI_LOG_INFO, subsystem) {
        log(FI_LOG_INFO, subsystem, &line());
    }
}

fn is_shown(level: fi_log_level, subsystem: fi_log_subsys) -> bool {
    // SAFETY: the provider is static, and the library's entry was called by the library.
    unsafe { services().log_enabled(entry::provider(), level, subsystem) }
}

fn log(level: fi_log_level, subsystem: fi_log_subsys, line: &str) {
    if is_shown(level, subsystem) {
        // SAFETY: as above.
        unsafe { services().log(entry::provider(), level, subsystem, c"doorbell", line) };
    }
}

//! Lines for the user, through libfabric's log where the library is found, else to the standard error.

use std::io::Write as _;

/// Prints a line that the user can act on.
#[cold]
pub(crate) fn warn(line: &str) {
    // In one write, as several processes may print at once.
    let _ = std::io::stderr().write_all(format!("doorbell: {line}\n").as_bytes());
}

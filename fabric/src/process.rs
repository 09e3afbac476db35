//! Starts processes where the system refuses the usual calls.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

/// Spawns like [`Command::spawn`]. Where that is refused with EPERM, by fork and exec: container profiles
/// that are older than the C library refuse its clone3 with that error, and do not hide the call, which would
/// have the library do without.
///
/// # Errors
/// Those of [`Command::spawn`].
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    match command.spawn() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            // The group that it has anyway: with one to set, the standard library forks.
            command.gid(rustix::process::getegid().as_raw()).spawn()
        }
        spawned => spawned,
    }
}

//! The limit of open files, where peers are met.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Most descriptors that a peer takes while it is met: a call and a caller at the desk, and over shared
/// memory a lane and two connections. One of them stays.
pub(crate) const DESCRIPTORS: u64 = 5;

/// Whether an error means that the limit of open files is reached.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Returns how many files this process may have open.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the sentence for a process that has no descriptor left for `more` peers: how many are needed, how
/// many there may be, and what to type.
pub(crate) fn files_needed(more: usize) -> String {
    let present = limit();
    let needed = present.saturating_add(DESCRIPTORS - 1 + more.max(1) as u64);
    let line = match getrlimit(Resource::Nofile).maximum {
        Some(hard) if hard < needed => {
            format!("the line `* hard nofile {needed}` in /etc/security/limits.conf")
        }
        _ => format!("`ulimit -n {needed}`"),
    };
    format!(
        "no file descriptor is left: {needed} are needed at least, since each peer takes one, and up to {DESCRIPTORS} \
         while it is met, and the limit of open files is {present}: raise it by {line}"
    )
}

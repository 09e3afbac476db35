//! The limit of open files: raised for the launcher itself, and as it was for everything that the launcher
//! starts.
//!
//! Programs close all descriptors up to the limit, or count on `select`, which takes 1,024.

use std::sync::OnceLock;

use doorbell_fabric::error::advice;
use doorbell_fabric::limits::{Limit, Resource};
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit, prlimit};

use crate::out;

/// The soft limit before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// A job of 1,024 ranks needs five descriptors for each; the soft limit is often 1,024.
pub(super) fn raise_open_files() {
    let limit = Limit::of(Resource::RLIMIT_NOFILE);
    let raised = Limit {
        soft: limit.hard,
        ..limit
    };
    // When it is refused, starting a rank says so with its own error.
    if let (Some(before), Ok(())) = (limit.soft, raised.set(Resource::RLIMIT_NOFILE))
        && limit.hard != limit.soft
    {
        let _ = BEFORE.set(before);
    }
}

/// The soft limit that a process is to have which this one starts, if it is another than this one's.
pub(super) fn open_files() -> Option<u64> {
    BEFORE.get().copied()
}

/// Gives `process`, which was just started, the limit that this one had. It reads its own only after a word
/// of ours.
pub(super) fn restore_of(process: Pid) {
    if let Some(before) = open_files() {
        let limit = Rlimit {
            current: Some(before),
            maximum: Limit::of(Resource::RLIMIT_NOFILE).hard,
        };
        // One of another user keeps what it has inherited.
        let _ = prlimit(Some(process), rustix::process::Resource::Nofile, limit);
    }
}

/// Gives this process the limit that its launcher had.
pub(super) fn restore(before: u64) {
    let limit = Limit {
        soft: Some(before),
        ..Limit::of(Resource::RLIMIT_NOFILE)
    };
    // A lower limit is never refused.
    let _ = limit.set(Resource::RLIMIT_NOFILE);
}

/// Says once that ends of processes are not seen by descriptors.
pub(super) fn say_unwatched(errno: Errno) {
    static SAID: OnceLock<()> = OnceLock::new();
    if SAID.set(()).is_ok() {
        let error = std::io::Error::from(errno);
        let advice = advice(&error).map_or_else(String::new, |advice| format!("; {advice}"));
        out::say(&format!(
            "doorbell: pidfd_open is refused ({error}); ends of processes are seen by SIGCHLD instead{advice}"
        ));
    }
}

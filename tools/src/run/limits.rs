//! The limit of open files: raised for the launcher itself, and as it was for everything that the launcher starts.
//!
//! Programs close all descriptors up to the limit, or count on `select`, which takes 1,024.

use std::sync::OnceLock;

use doorbell_fabric::error::advice;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::out;

/// The soft limit before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// A job of 1,024 ranks needs four descriptors for each; the soft limit is often 1,024.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // When it is refused, starting a rank says so with its own error.
    if let (Some(before), Ok(())) = (limit.current, setrlimit(Resource::Nofile, raised))
        && limit.maximum != limit.current
    {
        let _ = BEFORE.set(before);
    }
}

/// The soft limit that a process is to have which this one starts, if it is another than this one's.
pub(super) fn open_files() -> Option<u64> {
    BEFORE.get().copied()
}

/// Gives `process`, which was just started, the limit that this one had. It reads its own only after a word of ours.
pub(super) fn restore_of(process: Pid) {
    if let Some(before) = open_files() {
        let limit = with_soft(before);
        // One of another user keeps what it has inherited.
        let _ = prlimit(Some(process), Resource::Nofile, limit);
    }
}

/// Gives this process the limit that its launcher had.
pub(super) fn restore(before: u64) {
    // A lower limit is never refused.
    let _ = setrlimit(Resource::Nofile, with_soft(before));
}

fn with_soft(before: u64) -> Rlimit {
    Rlimit {
        current: Some(before),
        ..getrlimit(Resource::Nofile)
    }
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

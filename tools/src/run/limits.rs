//! The limit of open files: raised for the launcher itself, and restored for everything that it starts.
//!
//! Programs may close all descriptors up to the limit, or rely on `select`, which handles 1,024.

use std::sync::OnceLock;

use doorbell_fabric::error::advice;
use doorbell_fabric::limits::{Limit, Resource};
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit, prlimit};

use crate::console;

/// The soft limit before it was raised.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the limit: a job of 1,024 ranks needs several descriptors for each, and the soft limit is often
/// 1,024.
pub(super) fn raise_open_files() {
    let limit = Limit::of(Resource::RLIMIT_NOFILE);
    let raised = Limit {
        soft: limit.hard,
        ..limit
    };
    // If it is refused, starting a rank reports its own error.
    if let (Some(before), Ok(())) = (limit.soft, raised.set(Resource::RLIMIT_NOFILE))
        && limit.hard != limit.soft
    {
        let _ = BEFORE.set(before);
    }
}

/// Returns the soft limit for started processes, if it differs from this one's.
pub(super) fn open_files() -> Option<u64> {
    BEFORE.get().copied()
}

/// Gives `process`, which was just started, the original limit. It reads its own only after a message from
/// us.
pub(super) fn restore_of(process: Pid) {
    if let Some(before) = open_files() {
        let limit = Rlimit {
            current: Some(before),
            maximum: Limit::of(Resource::RLIMIT_NOFILE).hard,
        };
        // A process of another user keeps what it has inherited.
        let _ = prlimit(Some(process), rustix::process::Resource::Nofile, limit);
    }
}

/// Gives this process the original limit of its launcher.
pub(super) fn restore(before: u64) {
    let limit = Limit {
        soft: Some(before),
        ..Limit::of(Resource::RLIMIT_NOFILE)
    };
    // Lowering a limit is never refused.
    let _ = limit.set(Resource::RLIMIT_NOFILE);
}

/// Reports once that ends of processes are not noticed by descriptors.
pub(super) fn say_unwatched(errno: Errno) {
    static SAID: OnceLock<()> = OnceLock::new();
    if SAID.set(()).is_ok() {
        let error = std::io::Error::from(errno);
        let advice = advice(&error).map_or_else(String::new, |advice| format!("; {advice}"));
        console::say(&format!(
            "doorbell: pidfd_open is refused ({error}); ends of processes are noticed by SIGCHLD instead{advice}"
        ));
    }
}

//! Unsafe room: whether the standard output was closed when the program was started.
//!
//! Before `main`, Rust's runtime opens `/dev/null` in the place of a standard stream that is closed; from then on it
//! cannot be told from one that the user sent there, and a result that is lost would look like success. So it is looked
//! at before that: the loader calls what stands in `.init_array` first.

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls each entry once, in the C calling convention, before any thread is made. `look` has that
// signature (arguments that it does not take are ignored), makes one system call and stores one flag.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // Only "there is no such link" is a closed stream; without /proc nothing is known, and nothing claimed.
    let closed = rustix::fs::readlinkat_raw(
        rustix::fs::CWD,
        c"/proc/self/fd/1",
        &mut [std::mem::MaybeUninit::uninit(); 8],
    )
    .is_err_and(|errno| errno == rustix::io::Errno::NOENT)
        && rustix::fs::access(c"/proc/self/fd", rustix::fs::Access::EXISTS).is_ok();
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Whether nobody can ever see what is written to the standard output.
pub(crate) fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

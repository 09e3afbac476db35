//! The end of the process: domains that were not closed still send what they have accepted.
//!
//! exit(3) runs in one thread, and others go on. First all domains are closed to calls; then each is waited
//! for until no call is inside (`turns`), and sends, all of them side by side, until their time is over.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use crate::domain::{Domain, Leave};
use crate::fence;

/// The domains that are open.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// A domain, which takes itself out of the list before it is freed.
struct Open(*const Domain);

// SAFETY: it is used at the end of the process alone, and domains may be used by all threads.
unsafe impl Send for Open {}

/// Notes a domain that is opened.
pub(crate) fn note(domain: &Domain) {
    OPEN.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Open(domain));
}

/// Forgets a domain that is closed. Returns `false` where the end of the process has taken it before, which
/// may still use it.
pub(crate) fn forget(domain: &Domain) -> bool {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = open.len();
    open.retain(|other| !std::ptr::eq(other.0, domain));
    open.len() < before
}

/// States that something which was accepted is lost.
pub(crate) fn unsent(call: &str) -> String {
    format!(
        "{call}: some messages that were accepted have not left in time and are lost: their peers make no \
         calls, or do not receive; FI_DOORBELL_CLOSE gives more time"
    )
}

/// Ends all domains that are open. They stay where they are: a thread of the client may still use them.
pub(crate) fn leave_all() {
    let began = Instant::now();
    let Some(mut open) = open_domains() else {
        return;
    };
    let domains: Vec<Open> = open.drain(..).collect();
    let mut leaving: Vec<Leave<'_>> = domains
        .iter()
        // SAFETY: it was in the list, so it was not closed, and the list is locked. One that leaves is not
        // freed any more, since `forget` finds it no more; the others are not used again.
        .filter_map(|Open(domain)| Leave::begin(unsafe { &**domain }, began))
        .collect();
    drop(open);
    while !leaving.is_empty() {
        leaving.retain_mut(|domain| !domain.pass());
        std::thread::yield_now();
    }
}

/// The list, locked. `None` in a child of `fork` where it will never be free.
fn open_domains() -> Option<MutexGuard<'static, Vec<Open>>> {
    match OPEN.try_lock() {
        Ok(open) => Some(open),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        // A thread of the parent held it at the fork, and releases it in the parent alone.
        Err(TryLockError::WouldBlock) if fence::is_child() => None,
        Err(TryLockError::WouldBlock) => Some(OPEN.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

//! The end of the process: domains that were not closed still send what they have accepted.

use std::sync::{Mutex, PoisonError, TryLockError};

use crate::domain::Domain;
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

/// Forgets a domain that is closed.
pub(crate) fn forget(domain: &Domain) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|other| !std::ptr::eq(other.0, domain));
}

/// Ends all domains that are open. They stay where they are: a thread of the client may still use them.
pub(crate) fn leave_all() {
    let open = match OPEN.try_lock() {
        Ok(open) => open,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // A thread of the parent held it at the fork, and releases it in the parent alone.
        Err(TryLockError::WouldBlock) if fence::is_child() => return,
        Err(TryLockError::WouldBlock) => OPEN.lock().unwrap_or_else(PoisonError::into_inner),
    };
    let domains: Vec<Open> = { open }.drain(..).collect();
    for Open(domain) in domains {
        // SAFETY: it is in the list until it is closed, and a domain is closed by the client alone.
        unsafe { &*domain }.leave();
    }
}

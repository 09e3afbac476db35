//! Attention: what a receiver asks of its senders after each message, and how its sleep is made safe.
//!
//! | attention | the receiver | the sender, after a commit |
//! |---|---|---|
//! | [`HOT`] | looks at this lane in every poll | does nothing |
//! | [`COLD`] | looks at its ready bits | sets its ready bit |
//! | [`ASLEEP`] | sleeps on its sockets | sets its ready bit and sends a byte over the lane's socket |
//!
//! The sender's commit (a store) and its look at the attention word (a load) may pass each other in the store
//! buffer. A fence in the sender would stop that, at the price of some 8 ns per message; instead the one who goes
//! to sleep pays: after it has written `ASLEEP` everywhere, `membarrier` makes every sender's running thread pass
//! a barrier, and only then it looks at the lanes for the last time. Where the kernel has no membarrier, the
//! receiver says so in its `Welcome` and the sender fences. A lane that is merely cold can in principle be passed
//! by in the same way; the sweep of one cold lane per idle poll finds it.

use std::sync::atomic::{Ordering, fence};

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// Polled all the time.
pub(crate) const HOT: u64 = 0;
/// Polled when its ready bit is set.
pub(crate) const COLD: u64 = 1;
/// Not polled at all until the descriptor is signalled.
pub(crate) const ASLEEP: u64 = 2;

/// What the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    available: bool,
}

impl Barrier {
    /// Registers this process with the kernel, where it can.
    pub(crate) fn register() -> Self {
        let wanted = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        let available = membarrier_query().contains(wanted)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        Self { available }
    }

    /// Whether senders have to fence after each message because this receiver cannot make them.
    pub(crate) fn needs_fence(self) -> bool {
        !self.available
    }

    /// Whether a process that registered by [`Barrier::register`] passes the barriers of others.
    pub(crate) fn registered(self) -> bool {
        self.available
    }

    /// Every sender's commits from before are visible after this, and later ones see our attention.
    pub(crate) fn pass(self) {
        fence(Ordering::SeqCst);
        if self.available {
            // Cannot fail once registered; and if it did, senders' next messages or the timeout of the sleep remain.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }
}

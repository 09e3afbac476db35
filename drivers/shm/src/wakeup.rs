//! Attention: how a receiver wants to be notified of messages, and how going to sleep is made race-free.
//!
//! | attention | the receiver | the sender, after a commit |
//! |---|---|---|
//! | [`HOT`] | polls this lane in every poll | does nothing |
//! | [`COLD`] | polls its ready bits | sets its ready bit |
//! | [`ASLEEP`] | sleeps on its sockets | sets its ready bit and sends a byte over the lane's socket |
//!
//! The sender's commit (a store) and its load of the attention word may be reordered by the store buffer. A
//! fence in the sender would prevent that, at some 8 ns per message; instead the receiver pays when it goes
//! to sleep: after it has written `ASLEEP` everywhere, `membarrier` executes a barrier on every running
//! thread of the senders, and only then it checks the lanes for the last time. Where the kernel has no
//! membarrier, the receiver sets that in its `Welcome` and the sender fences. A cold lane can in principle be
//! missed in the same way; the sweep of one cold lane per idle poll finds it.

use std::sync::atomic::{Ordering, fence};

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// Polled in every poll.
pub(crate) const HOT: u64 = 0;
/// Polled when its ready bit is set.
pub(crate) const COLD: u64 = 1;
/// Not polled at all until the descriptor is signalled.
pub(crate) const ASLEEP: u64 = 2;

/// Whether the kernel's membarrier is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    available: bool,
}

impl Barrier {
    /// Registers this process for membarrier, if the kernel has it.
    pub(crate) fn register() -> Self {
        let wanted = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        let available = membarrier_query().contains(wanted)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        Self { available }
    }

    /// Whether senders have to fence after each message, because this receiver cannot run a barrier on their
    /// threads.
    pub(crate) fn needs_fence(self) -> bool {
        !self.available
    }

    /// Whether this process takes part in other processes' barriers.
    pub(crate) fn registered(self) -> bool {
        self.available
    }

    /// Makes every earlier commit of the senders visible to us, and our attention visible to every later one.
    pub(crate) fn pass(self) {
        fence(Ordering::SeqCst);
        if self.available {
            // Cannot fail once registered; if it did, the senders' next messages or the timeout of the sleep
            // would remain.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }
}

//! The sizes of a rail of reliable connections.

use std::time::Duration;

use super::PROOF_MOST;
use crate::rc::head::{HEAD, LENGTH};
use crate::rc::link::{LINE, Retries};
use crate::rc::{onesided, ring};
use crate::sys::PIECES;

/// Bytes that go with a request itself, where the device can.
pub(crate) const INLINE: usize = 128;

/// Sizes of a rail of reliable connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of a slot, and so of a send.
    pub(crate) slot: usize,
    /// Slots to send from.
    pub(crate) sends: usize,
    /// Slots to receive into: at the beginning, and at most.
    pub(crate) receives: (usize, usize),
    /// Peers at most.
    pub(crate) peers: usize,
    /// Bytes that go with a request itself, where the device can.
    pub(crate) inline: usize,
    /// Pieces of a request.
    pub(crate) pieces: usize,
    /// The length from which on a region's bytes are sent from where they lie.
    pub(crate) zero_copy: usize,
    pub(crate) retries: Retries,
    /// How long a connection may be idle before the peer is tried.
    pub(crate) keep_alive: Duration,
    pub(crate) one_sided: onesided::Sizes,
    pub(crate) ring: ring::Sizes,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            slot: 8 << 10,
            sends: 256,
            receives: (64, 512),
            peers: 1024,
            inline: INLINE,
            pieces: PIECES,
            zero_copy: 4 << 10,
            retries: Retries {
                count: 6,
                timeout: 14,
            },
            keep_alive: Duration::from_millis(500),
            one_sided: onesided::Sizes::default(),
            ring: ring::Sizes::default(),
        }
    }
}

impl Sizes {
    /// Bytes of memory that a rail locks at most, besides what contact has.
    pub(crate) fn locked(&self) -> usize {
        let messages = (self.sends + self.receives.1) * self.slot;
        messages + self.peers * LINE + PROOF_MOST + self.one_sided.locked() + self.ring.locked()
    }

    /// With as many slots to receive into as a limit of locked memory leaves room for, besides `others`
    /// bytes, but no fewer than it begins with.
    pub(crate) fn fit(mut self, limit: Option<u64>, others: usize) -> Self {
        let (first, most) = self.receives;
        let rest = self.locked() - most * self.slot + others;
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            let room = limit.saturating_sub(rest) / self.slot;
            self.receives.1 = most.min((room - room % first).max(first));
        }
        self
    }

    /// The longest message.
    pub(crate) fn message(&self) -> usize {
        self.slot - HEAD - LENGTH
    }
}

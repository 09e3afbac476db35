//! What rails are to release before the poll that found out returns.

use doorbell_fabric::message::{PeerIndex, RemoteKey};

use crate::rails::RailId;

/// What a rail is to release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Withdrawal {
    /// A key of exposed memory.
    Key(RailId, RemoteKey),
    /// A peer that is lost, and everything that was accepted for it.
    Peer(RailId, PeerIndex),
}

/// What rails are to release.
#[derive(Debug)]
pub(crate) struct Withdrawals(Vec<Withdrawal>);

impl Withdrawals {
    /// Nothing, with some room.
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(16))
    }

    /// Adds what is to be released.
    pub(crate) fn push(&mut self, withdrawal: Withdrawal) {
        self.0.push(withdrawal);
    }

    /// Takes the last one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Withdrawal> {
        self.0.pop()
    }

    /// Whether there is nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

//! Counters of a transport's connections, by reason.

use crate::connect;
use crate::error::OobError;

/// Counters since the transport was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted, from any peer.
    pub accepted: u64,
    /// Connections rejected before the handshake, since too many of the same source had failed.
    pub throttled: u64,
    /// Connections dropped during the handshake, since too many others followed.
    pub evicted: u64,
    /// Peers with a different key. (Or a bit was changed on the way: the two look the same.)
    pub wrong_key: u64,
    /// Peers where only one side has a key.
    pub key_missing: u64,
    /// Peers with another version of the session protocol.
    pub wrong_version: u64,
    /// Peers that wanted another service.
    pub wrong_purpose: u64,
    /// Peers that sent no valid handshake.
    pub garbage: u64,
    /// Peers that did not finish the handshake in time.
    pub late: u64,
    /// Peers that failed the proof of freshness: a replayed recording, or a changed record.
    pub unproved: u64,
    /// Connections that ended during the handshake.
    pub broken: u64,
    /// Peers whose hello named another process than the handshake.
    pub impostors: u64,
    /// Links closed because of a record that did not decrypt or was too long.
    pub forged: u64,
    /// Failed listings of the interfaces, of the transport `tcp`.
    pub blind: u64,
    /// The counters of the meeting, about peers with the key.
    pub meeting: connect::Counters,
}

impl Counters {
    /// Counts a failed handshake by its reason.
    pub(super) fn refused(&mut self, why: Option<&OobError>) {
        *match why {
            Some(OobError::WrongKey) => &mut self.wrong_key,
            Some(OobError::KeyMissing { .. }) => &mut self.key_missing,
            Some(OobError::Version { .. }) => &mut self.wrong_version,
            Some(OobError::Purpose { .. }) => &mut self.wrong_purpose,
            Some(OobError::Stranger { .. }) => &mut self.garbage,
            Some(OobError::HandshakeLate { .. } | OobError::Late { .. }) => &mut self.late,
            Some(OobError::Forged { .. } | OobError::TooLong { .. }) => &mut self.unproved,
            _ => &mut self.broken,
        } += 1;
    }

    /// Returns the number of connections rejected before they had proved the key.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.throttled
            + self.evicted
            + self.wrong_key
            + self.key_missing
            + self.wrong_version
            + self.wrong_purpose
            + self.garbage
            + self.late
            + self.unproved
            + self.broken
    }
}

//! What the transport has counted, by reason.

use crate::connect;
use crate::error::OobError;

/// Everything since the transport was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were accepted by a door, whoever was behind them.
    pub accepted: u64,
    /// Turned away before the handshake: others of the same address have failed too often.
    pub throttled: u64,
    /// Turned away during the handshake, because too many others came after them.
    pub evicted: u64,
    /// Their key is another one. (Or a bit was changed on the way: the two cannot be told apart.)
    pub wrong_key: u64,
    /// One side has a key and the other none.
    pub key_missing: u64,
    /// They speak another version of the session.
    pub wrong_version: u64,
    /// They wanted something else than the control plane.
    pub wrong_purpose: u64,
    /// What they said is no handshake at all.
    pub garbage: u64,
    /// They did not finish the handshake in time.
    pub late: u64,
    /// They could not prove to be there: a recording was played back, or a record was changed.
    pub unproved: u64,
    /// The connection ended during the handshake.
    pub broken: u64,
    /// They said in the hello to be somebody else than in the handshake.
    pub impostors: u64,
    /// Links that ended because what came over them could not be opened, or was too long.
    pub forged: u64,
    /// Lists of interfaces that could not be had.
    pub blind: u64,
    /// What the meeting has counted: those who have the key.
    pub meeting: connect::Counters,
}

impl Counters {
    /// Counts why somebody did not get through the handshake.
    pub(crate) fn refused(&mut self, why: &OobError) {
        *match why {
            OobError::WrongKey => &mut self.wrong_key,
            OobError::KeyMissing { .. } => &mut self.key_missing,
            OobError::Version { .. } => &mut self.wrong_version,
            OobError::Purpose { .. } => &mut self.wrong_purpose,
            OobError::Stranger { .. } => &mut self.garbage,
            OobError::HandshakeLate { .. } | OobError::Late { .. } => &mut self.late,
            OobError::Forged { .. } | OobError::TooLong { .. } => &mut self.unproved,
            _ => &mut self.broken,
        } += 1;
    }

    /// All that were turned away before they had proved the key.
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

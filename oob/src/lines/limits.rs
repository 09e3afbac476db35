//! The identity of a process, and the limits that all kinds of lines have.

use std::time::Duration;

use crate::connect;
use crate::key::JobKey;
use crate::name::{Epoch, Name};
use crate::session::Terms;
use crate::wire;

/// The identity of this process.
#[derive(Clone, Debug)]
pub struct Who {
    /// The name of this process.
    pub name: Name,
    /// The epoch of this process.
    pub epoch: Epoch,
    /// The key of the job. Without one, only lines within this host are used.
    pub key: Option<JobKey>,
}

impl Who {
    /// Returns the terms of this process's sessions for a purpose.
    pub(super) fn terms(&self, purpose: u16, limits: &Limits) -> Terms {
        Terms {
            name: self.name,
            handshake: limits.handshake,
            longest: limits.longest.saturating_add(wire::HEAD_MAX),
            ..Terms::new(self.key.clone(), purpose, self.epoch.0)
        }
    }
}

/// The limits of a transport's connections, whatever they run over.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a message (bytes).
    pub longest: usize,
    /// The limits of the meeting, for peers with the key.
    pub meeting: connect::Limits,
    /// How long a handshake may take. A missing peer does not answer; then the core tries another path.
    pub handshake: Duration,
    /// How long a connection that is being closed may take to send the rest.
    pub linger: Duration,
    /// Maximum number of handshakes with callers; the oldest is dropped when there are more.
    pub guests: usize,
    /// Maximum number of handshakes with callers of one source: an address beyond this host, or a peer of a
    /// rail.
    pub guests_each: usize,
    /// Number of failed handshakes of one source before it is rejected.
    pub failures: u32,
    /// How long until one failure is forgotten.
    pub forgive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            longest: 16 << 20,
            meeting: connect::Limits::default(),
            handshake: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            guests: 64,
            guests_each: 16,
            failures: 64,
            forgive: Duration::from_millis(250),
        }
    }
}

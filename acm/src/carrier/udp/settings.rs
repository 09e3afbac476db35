//! The settings and the counters of carriers.

use super::super::filter::Dropped;
use super::super::key::Key;
use super::super::replay::Family;
use crate::config::{Interfaces, Options};

/// Bounds of the carrier's work and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum rate of frames accepted from a sender (frames/s).
    pub rate: u32,
    /// Maximum burst of frames accepted from a sender.
    pub burst: u32,
    /// Maximum frames received from a socket, or from a queue pair, per turn; a turn ends after as many.
    pub turn: usize,
    /// Maximum number of queued events; beyond it, nothing is received.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rate: 2000,
            burst: 4000,
            turn: 64,
            events: 1024,
        }
    }
}

/// The settings of a carrier.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port of the groups, the same on all hosts.
    pub port: u16,
    /// The port that it sends from, or the first free one above; 0 for any.
    pub sender_port: u16,
    /// Whether IPv4 is used where an interface has it.
    pub ipv4: bool,
    /// Whether IPv6 is used where an interface has it.
    pub ipv6: bool,
    /// The interfaces that may be served: the loopback, and others only by name.
    pub interfaces: Interfaces,
    /// The key: with one, frames are authenticated, and those without a tag are dropped.
    pub key: Option<Key>,
    /// Bounds of work and memory.
    pub limits: Limits,
}

impl Settings {
    /// Returns the settings of these options; the key is configured elsewhere.
    #[must_use]
    pub fn of(options: &Options, key: Option<Key>) -> Self {
        Self {
            port: options.doorbell_port,
            sender_port: 0,
            ipv4: options.doorbell_ipv4,
            ipv6: options.doorbell_ipv6,
            interfaces: options.doorbell_interfaces.clone(),
            key,
            limits: Limits::default(),
        }
    }

    /// Returns the families in which messages are sent on Ethernet.
    pub(in super::super) fn families(&self) -> impl Iterator<Item = Family> + use<> {
        let each = [(self.ipv4, Family::V4), (self.ipv6, Family::V6)];
        each.into_iter()
            .filter(|(used, _)| *used)
            .map(|(_, family)| family)
    }
}

/// The counters of the carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that the system did not send.
    pub unsent: u64,
    /// Datagrams that were accepted.
    pub taken: u64,
    /// Echoes that were sent.
    pub echoes: u64,
    /// Datagrams that were dropped, by reason.
    pub dropped: Dropped,
    /// Datagrams whose destinations had no hardware address in time, over queue pairs.
    pub unresolved: u64,
    /// Receives that ended with an error, over queue pairs.
    pub failed: u64,
    /// How often queue pairs were set up again.
    pub resets: u64,
}

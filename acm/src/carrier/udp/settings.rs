//! What a carrier over UDP is told, and what it counts.

use super::super::guard::Dropped;
use super::super::key::Key;
use crate::config::{Interfaces, Options};

/// Bounds of the work and the memory of a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames a second that are taken of each sender.
    pub rate: u32,
    /// Frames that are taken of each sender at once.
    pub burst: u32,
    /// Frames that are looked at in a turn, of each socket.
    pub turn: usize,
    /// Events that wait to be taken. While there are so many, nothing is received.
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

/// The settings of a carrier over UDP.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port of groups: the same on all hosts.
    pub port: u16,
    /// The port that it sends from, the first that is free from there on; 0 for any.
    pub sender_port: u16,
    /// Whether IPv4 is used where an interface has it.
    pub ipv4: bool,
    /// Whether IPv6 is used where an interface has it.
    pub ipv6: bool,
    /// The interfaces that may be served: the loopback, and others only where they are named.
    pub interfaces: Interfaces,
    /// With a key, frames are signed, and those that are not are dropped.
    pub key: Option<Key>,
    /// Bounds.
    pub limits: Limits,
}

impl Settings {
    /// Those of the options; the key is read elsewhere.
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
}

/// What a carrier counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams that the system did not send.
    pub unsent: u64,
    /// Datagrams that were taken.
    pub taken: u64,
    /// Echoes that were sent.
    pub echoes: u64,
    /// Datagrams that were dropped.
    pub dropped: Dropped,
}

//! Counters of the transport.

use crate::lines;

/// Counters since the transport was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handshakes and links, by reason.
    pub sessions: lines::Counters,
    /// Segments that rails have taken.
    pub pieces_sent: u64,
    /// Segments received for open lines.
    pub pieces_received: u64,
    /// Segments among those that arrived early.
    pub reordered: u64,
    /// Duplicate segments, which were dropped.
    pub duplicates: u64,
    /// Malformed messages that arrived.
    pub garbage: u64,
    /// Messages longer than a segment can be, which were not even copied.
    pub oversized: u64,
    /// Segments of unknown lines.
    pub stray: u64,
    /// Number of times a rail was full.
    pub full: u64,
    /// Peers lost over a rail: down, or silent for too long.
    pub peers_down: u64,
    /// Peers that came back.
    pub peers_back: u64,
    /// Calls to peers that are down.
    pub revivals: u64,
}

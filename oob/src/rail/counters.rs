//! What the transport has counted.

use crate::net;

/// Everything since the transport was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handshakes and links, by the same reasons as of the transport `tcp`.
    pub sessions: net::Counters,
    /// Pieces that rails took.
    pub pieces_sent: u64,
    /// Pieces that came, and fitted their lines.
    pub pieces_received: u64,
    /// Of these, pieces that came before one that is before them.
    pub reordered: u64,
    /// Pieces that came twice, and were dropped.
    pub duplicates: u64,
    /// Messages that are none of ours.
    pub garbage: u64,
    /// Messages that were longer than a piece can be: not even copied.
    pub oversized: u64,
    /// Pieces of lines that are not there (any more).
    pub stray: u64,
    /// Times that a rail was full.
    pub full: u64,
    /// Peers that were lost over a rail: down, or silent for too long.
    pub peers_down: u64,
    /// Peers that were there again.
    pub peers_back: u64,
    /// Calls to peers that are down.
    pub revivals: u64,
}

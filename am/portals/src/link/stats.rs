//! The counters of a link: plain numbers, which any caller may read and print.

/// Counts of the links of a node since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Messages that arrived ahead of an earlier one and were held.
    pub held: u64,
    /// Messages that were here already: dropped.
    pub duplicates: u64,
    /// Messages further ahead than an honest peer sends, or more than it may have under way: dropped.
    pub too_far_ahead: u64,
    /// Messages too short for the first word of all messages: dropped.
    pub short: u64,
    /// Control messages that are invalid or name a path that does not exist: dropped.
    pub bad_words: u64,
    /// Control messages about a connection that has been replaced since.
    pub late_words: u64,
    /// Messages of senders that are not connected here, or are lost: dropped.
    pub from_nobody: u64,
    /// Messages that were refused because there was no room.
    pub refused: u64,
    /// Urgent messages that had to wait.
    pub waited: u64,
    /// Messages that a rail gave back, and that were sent over another path.
    pub resent: u64,
    /// Paths that were given up while they carried messages.
    pub paths_down: u64,
    /// Paths that came back.
    pub paths_returned: u64,
    /// Calls over paths that were down.
    pub calls: u64,
    /// Probes over paths that are used, or return.
    pub probes: u64,
    /// Peers that were lost.
    pub lost: u64,
}

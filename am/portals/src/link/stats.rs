//! What a link counts: plain numbers, read by whoever shows them.

/// Counts of a link since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Messages that arrived ahead of an earlier one and were held.
    pub(crate) held: u64,
    /// Messages that were here already: dropped.
    pub(crate) duplicates: u64,
    /// Messages further ahead than an honest peer sends, or more than it may have under way: dropped.
    pub(crate) too_far_ahead: u64,
    /// Messages without a whole [`First`](super::First): dropped.
    pub(crate) short: u64,
    /// Words of the link's own that mean nothing, or name a way that is not there: dropped.
    pub(crate) bad_words: u64,
    /// News of a connection that is not the last one any more.
    pub(crate) late_words: u64,
    /// Messages of nobody who is connected here, or who is lost: dropped.
    pub(crate) from_nobody: u64,
    /// Messages that were refused for want of room.
    pub(crate) refused: u64,
    /// Urgent messages that had to wait.
    pub(crate) waited: u64,
    /// Messages that a rail gave back, and that were sent over another way.
    pub(crate) resent: u64,
    /// Ways that were given up while they carried messages, and ways that came back.
    pub(crate) ways_down: u64,
    pub(crate) ways_returned: u64,
    /// Calls over ways that were down, and probes over others.
    pub(crate) calls: u64,
    pub(crate) probes: u64,
    /// Peers that were lost.
    pub(crate) lost: u64,
}

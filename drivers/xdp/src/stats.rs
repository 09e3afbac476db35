//! What the rail counts.

/// Totals of one rail, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStats {
    /// Frames that the kernel took.
    pub sent: u64,
    /// System calls made to have it send them.
    pub send_calls: u64,
    /// Of those, the ones that the kernel could not take everything in.
    pub send_full: u64,
    /// Frames dropped here because the next station's hardware address is not known (yet).
    pub unresolved: u64,
    /// Frames that were still in the ring at the end, because the interface was down or gone.
    pub unsendable: u64,
    /// Frames received.
    pub received: u64,
    /// Of those, frames of nobody who was opened.
    pub strangers: u64,
    /// Frames whose UDP checksum was wrong.
    pub corrupt: u64,
    /// Frames whose checksum their sender left to a device that they never passed: a neighbour on the same machine.
    pub unfinished: u64,
    /// Frames that are no whole datagram for this rail.
    pub malformed: u64,
    /// Entries of rings that could not be true.
    pub nonsense: u64,
    /// Frames that the kernel dropped: for want of room in the rail's rings, or because they are longer than its chunks.
    pub overrun: u64,
    /// Frames that came by the kernel's own stack instead: fragments, or frames of queues that have no socket.
    pub astray: u64,
    /// How often a zero-copy device found no chunk to fill: what it dropped for that, its own counters tell (`ethtool -S`).
    pub starved: u64,
}

impl XdpStats {
    /// Every total with its name; names and order never change.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent),
            ("send_calls", self.send_calls),
            ("send_full", self.send_full),
            ("unresolved", self.unresolved),
            ("unsendable", self.unsendable),
            ("received", self.received),
            ("strangers", self.strangers),
            ("corrupt", self.corrupt),
            ("unfinished", self.unfinished),
            ("malformed", self.malformed),
            ("nonsense", self.nonsense),
            ("overrun", self.overrun),
            ("astray", self.astray),
            ("starved", self.starved),
        ]
        .into_iter()
    }
}

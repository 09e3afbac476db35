//! What the rail counts.

/// Totals of one rail, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsnicStats {
    /// Frames that were put into a ring.
    pub sent: u64,
    /// Doorbells: writes of a posted index for frames to send.
    pub doorbells: u64,
    /// Frames dropped here because the next station's hardware address is not known (yet), or because the queues are off.
    pub unresolved: u64,
    /// Frames received.
    pub received: u64,
    /// Of those, frames of nobody who was opened.
    pub strangers: u64,
    /// Frames whose UDP checksum was wrong.
    pub corrupt: u64,
    /// Of all frames received, those whose checksums the device had found right.
    pub checked_by_device: u64,
    /// Packets for this function that are no whole datagram for this rail, and no question for its address.
    pub malformed: u64,
    /// Packets longer than the room for them.
    pub cut: u64,
    /// Packets that were not as they had been on the wire.
    pub spoilt: u64,
    /// Entries that the device wrote and that could not be true: wrong queues, descriptors, types.
    pub nonsense: u64,
    /// Questions for the function's address that were answered.
    pub answered: u64,
    /// Doorbells that were rung once more because nothing came of them.
    pub rung_again: u64,
    /// Looks at the notify area that found it torn, however often it was read.
    pub torn: u64,
    /// How often the queues were made anew.
    pub resets: u64,
}

impl UsnicStats {
    /// Every total with its name; names and order never change.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent),
            ("doorbells", self.doorbells),
            ("unresolved", self.unresolved),
            ("received", self.received),
            ("strangers", self.strangers),
            ("corrupt", self.corrupt),
            ("checked_by_device", self.checked_by_device),
            ("malformed", self.malformed),
            ("cut", self.cut),
            ("spoilt", self.spoilt),
            ("nonsense", self.nonsense),
            ("answered", self.answered),
            ("rung_again", self.rung_again),
            ("torn", self.torn),
            ("resets", self.resets),
        ]
        .into_iter()
    }
}

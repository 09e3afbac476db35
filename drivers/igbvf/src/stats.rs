//! What the rail counts.

/// Totals of one rail, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgbvfStats {
    /// Frames that were put into a ring.
    pub sent: u64,
    /// Doorbells: writes of a tail register for frames to send.
    pub doorbells: u64,
    /// Frames dropped here because the next station's hardware address is not known (yet), or because the queues are off.
    pub unresolved: u64,
    /// Frames received.
    pub received: u64,
    /// Of those, frames of nobody who was opened.
    pub strangers: u64,
    /// Frames whose UDP checksum was wrong.
    pub corrupt: u64,
    /// Of all frames received, those whose checksum the device had checked.
    pub checked_by_device: u64,
    /// Packets for this function that are no whole datagram for this rail, and no question for its address.
    pub malformed: u64,
    /// What the device wrote and could not be true.
    pub nonsense: u64,
    /// Questions for the function's address that were answered.
    pub answered: u64,
    /// How often the physical function began anew, and this one with it.
    pub resets: u64,
}

impl IgbvfStats {
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
            ("nonsense", self.nonsense),
            ("answered", self.answered),
            ("resets", self.resets),
        ]
        .into_iter()
    }
}

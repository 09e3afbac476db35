//! The counters of a rail.

use doorbell_packet::PacketStats;

doorbell_packet::stats! {
    /// Totals of one rail, since it was opened: those of [`PacketStats`], and the function's own.
    pub struct UsnicStats {
        /// Frames that were put into a ring.
        sent,
        /// Doorbells: writes of a posted index for frames to send.
        doorbells,
        /// Frames dropped here because the next hop's hardware address is not known (yet), or because the
        /// queues are off.
        unresolved,
        /// Frames that were received.
        received,
        /// Received frames of senders that are no peers.
        strangers,
        /// Frames whose UDP checksum was wrong.
        corrupt,
        /// Received frames whose checksums the device had found right.
        checked_by_device,
        /// Packets for this function that are no whole datagram for this rail, and no request for its
        /// address.
        malformed,
        /// Packets longer than the room for them.
        cut,
        /// Packets that were not as they had been on the wire.
        spoilt,
        /// Entries that the device wrote and that cannot be true: wrong queues, descriptors, types.
        nonsense,
        /// Questions for the function's address that were answered.
        answered,
        /// Doorbells that were rung once more because nothing came of them.
        rung_again,
        /// Looks at the notify area that found it torn, however often it was read.
        torn,
        /// How often the queues were set up again.
        resets,
    }
}

impl From<PacketStats> for UsnicStats {
    fn from(common: PacketStats) -> Self {
        Self {
            sent: common.sent,
            doorbells: common.doorbells,
            unresolved: common.unresolved,
            received: common.received,
            strangers: common.strangers,
            corrupt: common.corrupt,
            checked_by_device: common.checked_by_device,
            malformed: common.malformed,
            nonsense: common.nonsense,
            answered: common.answered,
            resets: common.resets,
            ..Self::default()
        }
    }
}

//! The counters of a rail.

doorbell_packet::stats! {
    /// Totals of one rail, since it was opened.
    pub struct XdpStats {
        /// Frames that the kernel took.
        sent,
        /// System calls made to have it send them.
        send_calls,
        /// Such calls after which the kernel had not taken everything.
        send_full,
        /// Frames dropped here because the next hop's hardware address is not known (yet).
        unresolved,
        /// Frames that were still in the ring at the end, because the interface was down or gone.
        unsendable,
        /// Frames that were received.
        received,
        /// Received frames of senders that are no peers.
        strangers,
        /// Frames whose UDP checksum was wrong.
        corrupt,
        /// Frames whose checksum their sender left to a device that they never passed: a neighbour on the
        /// same machine.
        unfinished,
        /// Frames that are no whole datagram for this rail.
        malformed,
        /// Entries of rings that could not be true.
        nonsense,
        /// Frames that the kernel dropped: for want of room in the rail's rings, or because they are longer
        /// than its chunks.
        overrun,
        /// Frames that came by the kernel's own stack instead: fragments, or frames of queues that have no
        /// socket.
        astray,
        /// How often a zero-copy device found no chunk to fill: its own counters show what it dropped for
        /// that (`ethtool -S`).
        starved,
    }
}

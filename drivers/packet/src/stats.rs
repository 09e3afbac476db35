//! The counters of a rail.

/// Declares a struct of totals, and gives it `named`: every total with its name, in the order of declaration.
#[macro_export]
macro_rules! stats {
    ($(#[$about:meta])* pub struct $stats:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $stats {
            /// Every total with its name; names and order never change.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

stats! {
    /// Totals of one rail since it was opened: those that every card has.
    pub struct PacketStats {
        /// Frames that were put into a ring.
        sent,
        /// Doorbells rung for frames to send: writes of a register.
        doorbells,
        /// Frames dropped here because the next hop's hardware address is not known (yet), or because the
        /// queues are off.
        unresolved,
        /// Frames that were received.
        received,
        /// Of those, frames of senders that are no peers.
        strangers,
        /// Frames whose UDP checksum was wrong.
        corrupt,
        /// Of all frames received, those whose checksums the card had checked.
        checked_by_device,
        /// Packets for this rail that are no whole datagram, and no request for its address.
        malformed,
        /// What the card wrote and cannot be true: wrong queues, descriptors, types, lengths.
        nonsense,
        /// Questions for the rail's address that were answered.
        answered,
        /// How often the queues were set up again.
        resets,
    }
}

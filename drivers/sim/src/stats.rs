//! What the network did: plain counts, per plane.

use std::ops::AddAssign;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of what went over one plane (or all of them), and of the faults that were injected.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Stats {
            /// Every count with its name, in the order of declaration.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counts! {
    /// Messages put on a link.
    messages_sent,
    /// Messages taken by an upper layer.
    messages_delivered,
    /// Messages that no upper layer will see: a link, NIC or process failed around them.
    messages_failed,
    /// Messages and frames held back by the reorder fault.
    reordered,
    /// Messages, operations and replies that waited for a closed path to open again.
    stalled,
    /// Calls that were answered with `Full`.
    refused_full,
    /// One-sided operations that the target executed.
    operations_executed,
    /// One-sided operations that the target refused.
    operations_denied,
    /// One-sided operations whose memory was withdrawn while they were in flight.
    operations_withdrawn,
    /// One-sided operations that ended because the path or the peer went down.
    operations_failed,
    /// Puts and atomics that arrived a second time with the same identity, and were not executed again.
    operations_repeated,
    /// Frames that were posted.
    frames_sent,
    /// Calls that found less room in a send ring than they needed.
    reserves_short,
    /// Frames (with duplicates) that reached a receive ring.
    frames_delivered,
    /// Frames lost at random, in bursts or alone.
    lost,
    /// Frames that were lost in bursts, which are among those.
    lost_in_bursts,
    /// Frames lost because of an aim.
    lost_by_aim,
    /// Frames that an aim hit, lost or not.
    aimed,
    /// Frames that were sent twice by the duplication fault.
    duplicated,
    /// Frames (or one copy of a duplicated frame) with flipped bits.
    corrupted,
    /// Frames (or copies) that were cut off.
    truncated,
    /// Frames (or copies) that bytes were added to.
    lengthened,
    /// Frames that an aim sent a second time, later.
    replayed,
    /// Frames longer than the link's MTU, gone.
    cut,
    /// Frames dropped because the bytes waiting for the link exceeded its queue.
    queue_dropped,
    /// Frames dropped at a full shared bottleneck.
    trunk_dropped,
    /// Frames dropped at the full port of their receiver.
    port_dropped,
    /// Frames that found the link, the way or the receiver closed.
    unreachable,
    /// Frames that found the receive ring full.
    overrun,
    /// Frames that reached a receive ring after their sender's NIC had ended.
    stale,
}

impl Stats {
    /// Frames and copies that were dropped, for whatever reason. When nothing is under way,
    /// `frames_sent + duplicated + replayed` is this and `frames_delivered`.
    pub fn frames_dropped(&self) -> u64 {
        self.lost
            + self.lost_by_aim
            + self.cut
            + self.queue_dropped
            + self.trunk_dropped
            + self.port_dropped
            + self.unreachable
            + self.overrun
    }
}

//! What contact counts: frames by what became of them.

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Drop {
    /// It is too short.
    Short,
    /// It is too long.
    Long,
    /// It has another version of the layout.
    Version,
    /// A field has a value that cannot be, or claims what was never sent.
    Malformed,
    /// Its sender is not open here: a stranger, if it calls.
    Stranger,
    /// It is for another life of this process, or from another one of the peer's.
    OtherLife,
    /// It comes from a GID, LID or queue pair that the peer's address does not have.
    Source,
    /// Its MAC is wrong.
    Forged,
    /// It is of a connection that is over.
    Old,
    /// The peer has ended for good, or we have.
    Over,
}

/// Reasons to drop a frame.
pub(crate) const DROPS: usize = 10;

impl Drop {
    /// All, in the order of their counters.
    #[cfg(test)]
    pub(crate) const ALL: [Self; DROPS] = [
        Self::Short,
        Self::Long,
        Self::Version,
        Self::Malformed,
        Self::Stranger,
        Self::OtherLife,
        Self::Source,
        Self::Forged,
        Self::Old,
        Self::Over,
    ];
}

/// The totals of a rail's contact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContactCounts {
    /// How many frames were sent.
    pub(crate) sent: u64,
    /// Frames received and understood.
    pub(crate) received: u64,
    /// Connections that came up.
    pub(crate) connected: u64,
    /// Connections and attempts that ended.
    pub(crate) ended: u64,
    /// Path MTUs that did not pass.
    pub(crate) narrowed: u64,
    dropped: [u64; DROPS],
}

impl ContactCounts {
    pub(crate) fn drop(&mut self, why: Drop) {
        self.dropped[why as usize] += 1;
    }

    /// Frames dropped for this reason.
    #[cfg(test)]
    pub(crate) fn dropped(&self, why: Drop) -> u64 {
        self.dropped[why as usize]
    }

    /// Every counter with its name. Names and order never change.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; DROPS] = [
            "contact_short",
            "contact_long",
            "contact_version",
            "contact_malformed",
            "contact_strangers",
            "contact_other_life",
            "contact_source",
            "contact_forged",
            "contact_old",
            "contact_over",
        ];
        let first = [
            ("contact_sent", self.sent),
            ("contact_received", self.received),
            ("contact_connected", self.connected),
            ("contact_ended", self.ended),
            ("contact_narrowed", self.narrowed),
        ];
        first.into_iter().chain(NAMES.into_iter().zip(self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        for (at, why) in Drop::ALL.into_iter().enumerate() {
            let mut counts = ContactCounts::default();
            counts.drop(why);
            let raised: Vec<usize> = (0..DROPS).filter(|i| counts.dropped[*i] == 1).collect();
            assert_eq!((raised, counts.dropped(why)), (vec![at], 1));
            assert_eq!(counts.named().filter(|(_, count)| *count == 1).count(), 1);
        }
    }
}

//! Counts of everything that was sent, sent again, received and dropped, by reason (reference: vic, section
//! 6.6).

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one BTL since it was made. Plain numbers, to be copied.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every count with its name, in the order of declaration.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages accepted from the upper layer.
    messages_sent,
    /// Messages shown to the upper layer.
    messages_delivered,
    /// Segments sent for the first time.
    segments_sent,
    /// Bytes of those segments, their headers aside.
    bytes_sent,
    /// Segments sent again, all reasons together.
    resends,
    /// Resends because a later segment of the same channel was acknowledged.
    resends_fast,
    /// Resends because nothing was acknowledged in time.
    resends_timeout,
    /// Resends because the last of a burst was not acknowledged after two round trips.
    resends_tail,
    /// Resends that arrived a second time: the first had not been lost.
    resends_vain,
    /// Acknowledgements that were frames of their own.
    acks_sent,
    /// Acknowledgements that rode on a segment.
    acks_carried,
    /// Frames sent that are probes.
    pings_sent,
    /// Answers to probes sent.
    pongs_sent,
    /// Calls of peers that were down, and answers to theirs.
    calls_sent,
    /// Calls and answers received, of present lives.
    calls_received,
    /// Peers that were down and came up again.
    revivals,
    /// Frames sent that are hellos.
    hellos_sent,
    /// Hellos received for doors that are open here.
    hellos_received,
    /// Frames received, whatever they were.
    frames_received,
    /// Acknowledgements received that repeated an earlier one.
    acks_duplicate,
    /// Acknowledgements received that were older than the last.
    acks_old,
    /// Acknowledgements of what was never sent: dropped.
    acks_bad,
    /// One-sided operations of peers that were executed.
    operations_served,
    /// One-sided operations of peers that were refused.
    operations_denied,
    /// Times that a peer became suspect.
    suspects,
    /// `Full` answered to the upper layer.
    refused_full,
    /// Frames dropped: shorter than their headers claim.
    dropped_short,
    /// Frames dropped: of another version.
    dropped_version,
    /// Frames dropped: of no known kind.
    dropped_kind,
    /// Frames dropped: wrong CRC, or none where there must be one.
    dropped_corrupt,
    /// Frames dropped: wrong MAC, or none where there must be one.
    dropped_forged,
    /// Frames dropped: their connection id is of no peer's present life.
    dropped_unknown,
    /// Frames dropped: of a peer that is down.
    dropped_down,
    /// Segments dropped: they had arrived before.
    dropped_duplicate,
    /// Segments dropped: beyond the window.
    dropped_window,
    /// Segments dropped: malformed.
    dropped_malformed,
    /// Segments dropped, to come again: no room for another reassembly or answer.
    dropped_room,
    /// Hellos dropped: as many waited to be taken as are kept.
    dropped_hellos,
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Shorter than its header claims.
    Short,
    /// The frame has another protocol version.
    Version,
    /// The frame has an unknown kind.
    Kind,
    /// Wrong CRC, or none where there must be one.
    Corrupt,
    /// Wrong MAC, or none where there must be one.
    Forged,
    /// Its connection id is of no peer's present life.
    Unknown,
    /// The frame is from a peer that is down.
    Down,
    /// It had arrived before.
    Duplicate,
    /// Beyond the window.
    Window,
    /// Its contents contradict the protocol.
    Malformed,
    /// No room for another reassembly or answer: it will come again.
    Room,
    /// As many hellos wait to be taken as are kept.
    Hellos,
}

impl Drop {
    /// The reason, in a few words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Short => "shorter than its header claims",
            Self::Version => "of another version",
            Self::Kind => "of no known kind",
            Self::Corrupt => "its CRC is wrong",
            Self::Forged => "its MAC is wrong",
            Self::Unknown => "of an unknown connection",
            Self::Down => "of a peer that is down",
            Self::Duplicate => "it had arrived before",
            Self::Window => "beyond the window",
            Self::Malformed => "malformed",
            Self::Room => "no room for it now",
            Self::Hellos => "too many hellos wait",
        }
    }
}

impl Counters {
    /// Frames of known connections that no correct peer sends, whatever the network loses, duplicates or
    /// reorders.
    pub(crate) fn impossible(&self) -> u64 {
        self.acks_bad + self.dropped_kind + self.dropped_window + self.dropped_malformed
    }

    /// Counts a dropped frame.
    #[cold]
    pub(crate) fn dropped(&mut self, why: Drop) {
        let count = match why {
            Drop::Short => &mut self.dropped_short,
            Drop::Version => &mut self.dropped_version,
            Drop::Kind => &mut self.dropped_kind,
            Drop::Corrupt => &mut self.dropped_corrupt,
            Drop::Forged => &mut self.dropped_forged,
            Drop::Unknown => &mut self.dropped_unknown,
            Drop::Down => &mut self.dropped_down,
            Drop::Duplicate => &mut self.dropped_duplicate,
            Drop::Window => &mut self.dropped_window,
            Drop::Malformed => &mut self.dropped_malformed,
            Drop::Room => &mut self.dropped_room,
            Drop::Hellos => &mut self.dropped_hellos,
        };
        *count += 1;
    }
}

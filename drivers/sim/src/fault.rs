//! Fault types that need parameters: bursts, aimed faults, shared pipes, corruption; and the fate of a frame.

use std::time::Duration;

use doorbell_fabric::datagram::Channel;

use crate::stats::Stats;

/// Losses that come together (Gilbert, 1960; Elliott, 1963): a link is good or bad, and may turn with every
/// frame.
///
/// A bad time lasts `1 / end` frames on average, and `begin / (begin + end)` of all frames fall into one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Probability that a good link turns bad.
    pub begin: f64,
    /// Probability that a bad link turns good.
    pub end: f64,
    /// Probability that a frame is lost while the link is bad; while it is good,
    /// [`Faults::loss`](crate::Faults) is.
    pub loss: f64,
}

/// Which part of a frame a flipped bit hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Any byte of the frame.
    #[default]
    Anywhere,
    /// A byte among the first `n`.
    Head(usize),
    /// A byte beyond the first `n`; a frame without any is left unchanged.
    Body(usize),
}

impl Part {
    /// The first byte and the number of bytes of a frame that may be hit.
    pub(crate) fn of(self, length: usize) -> (usize, usize) {
        match self {
            Self::Anywhere => (0, length),
            Self::Head(head) => (0, head.min(length)),
            Self::Body(head) => (head, length.saturating_sub(head)),
        }
    }
}

/// A bottleneck that several flows share, with a bandwidth and a finite queue that drops what arrives when it
/// is full.
///
/// Lengths are those of the frames, without the headers that a network adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    /// Bytes per second.
    pub bandwidth: u64,
    /// Bytes that may wait, the new frame included. A frame that finds the pipe idle always passes.
    pub queue: usize,
}

/// A fault for chosen frames of one direction: "lose the third", "duplicate all ACKs".
///
/// ```
/// use doorbell_sim::{Aim, Effect, Pick};
///
/// // Frames of at most 40 bytes whose byte 2 is 7, from the third on, and every second of these, ten times.
/// let aim = Aim {
///     pick: Pick { longest: 40, offset: 2, mask: 0xff, value: 7, ..Pick::ALL },
///     first: 3,
///     every: 2,
///     times: 10,
///     effect: Effect::Lose,
/// };
/// assert!(aim.pick.takes(doorbell_fabric::datagram::Channel::Data, &[0, 0, 7]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The frames that count.
    pub pick: Pick,
    /// The first of them that is hit: 1 is the first since the faults of this direction were set.
    pub first: u64,
    /// After that, every n-th one (0 counts as 1).
    pub every: u64,
    /// How many are hit at most.
    pub times: u64,
    /// What happens to them.
    pub effect: Effect,
}

impl Aim {
    /// The nth frame that `pick` takes, and no other.
    pub const fn nth(pick: Pick, n: u64, effect: Effect) -> Self {
        Self {
            pick,
            first: n,
            every: 1,
            times: 1,
            effect,
        }
    }

    /// Every frame that `pick` takes.
    pub const fn each(pick: Pick, effect: Effect) -> Self {
        Self {
            pick,
            first: 1,
            every: 1,
            times: u64::MAX,
            effect,
        }
    }

    /// Whether the `n`th picked frame (from 1) is hit.
    pub(crate) fn hits(&self, n: u64) -> bool {
        let Some(after) = n.checked_sub(self.first.max(1)) else {
            return false;
        };
        let every = self.every.max(1);
        after.is_multiple_of(every) && after / every < self.times
    }
}

/// Selects frames by channel, length, and a word of their bytes. Plain numbers, so that a seed and a script
/// suffice to repeat a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Frames of this channel only.
    pub channel: Option<Channel>,
    /// Shortest length in bytes.
    pub shortest: usize,
    /// Longest length in bytes.
    pub longest: usize,
    /// Offset of the word of eight bytes, little-endian. Beyond the end of the frame it reads zero.
    pub offset: usize,
    /// The bits of the word that are compared.
    pub mask: u64,
    /// What they must be.
    pub value: u64,
}

impl Pick {
    /// Hits every frame.
    pub const ALL: Self = Self {
        channel: None,
        shortest: 0,
        longest: usize::MAX,
        offset: 0,
        mask: 0,
        value: 0,
    };

    /// Frames with this byte at this place.
    pub const fn byte(offset: usize, value: u8) -> Self {
        Self {
            // A frame that ends before the byte has none.
            shortest: offset.saturating_add(1),
            offset,
            mask: 0xff,
            value: value as u64,
            ..Self::ALL
        }
    }

    /// Whether this frame is one of them.
    pub fn takes(&self, channel: Channel, frame: &[u8]) -> bool {
        let mut word = [0; 8];
        let rest = frame.get(self.offset..).unwrap_or_default();
        let n = rest.len().min(8);
        word[..n].copy_from_slice(&rest[..n]);
        self.channel.is_none_or(|wanted| wanted == channel)
            && (self.shortest..=self.longest).contains(&frame.len())
            && u64::from_le_bytes(word) & self.mask == self.value
    }
}

/// What an [`Aim`] does to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The frame is lost.
    Lose,
    /// The frame arrives twice.
    Duplicate,
    /// The frame arrives, and once more after this time: also at the next life of the receiver, and after the
    /// sender's end.
    Replay(Duration),
    /// The frame arrives late by this time.
    Delay(Duration),
    /// The frame arrives after this many later frames (or when [`Faults::reorder_window`](crate::Faults) has
    /// passed).
    Overtaken(u32),
    /// One to three bits of the frame are flipped, in [`Faults::corrupt_part`](crate::Faults).
    Corrupt,
    /// The frame is cut off at this length.
    Truncate(usize),
    /// This many random bytes are added, up to the NIC's MTU.
    Lengthen(usize),
}

/// Why a frame does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    LostInBurst,
    Aimed,
    Cut,
    Unreachable,
    QueueFull,
    TrunkFull,
    PortFull,
    Overrun,
}

impl Fate {
    pub(crate) fn count(self, stats: &mut Stats) {
        match self {
            Self::Lost => stats.lost += 1,
            Self::LostInBurst => {
                stats.lost += 1;
                stats.lost_in_bursts += 1;
            }
            Self::Aimed => stats.lost_by_aim += 1,
            Self::Cut => stats.cut += 1,
            Self::Unreachable => stats.unreachable += 1,
            Self::QueueFull => stats.queue_dropped += 1,
            Self::TrunkFull => stats.trunk_dropped += 1,
            Self::PortFull => stats.port_dropped += 1,
            Self::Overrun => stats.overrun += 1,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Lost => "dropped: loss",
            Self::LostInBurst => "dropped: loss in a burst",
            Self::Aimed => "dropped: aimed at",
            Self::Cut => "dropped: longer than the path's MTU",
            Self::Unreachable => "dropped: link, path or receiver closed",
            Self::QueueFull => "dropped: the sender's queue is full",
            Self::TrunkFull => "dropped: the shared bottleneck's queue is full",
            Self::PortFull => "dropped: the receiver's port is full",
            Self::Overrun => "dropped: the receive ring is full",
        }
    }
}

/// What was done to a frame in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    pub(crate) const COPY: Self = Self(1);
    pub(crate) const REPLAYED: Self = Self(2);
    pub(crate) const FLIPPED: Self = Self(4);
    pub(crate) const CUT_OFF: Self = Self(8);
    pub(crate) const LENGTHENED: Self = Self(16);
    pub(crate) const HELD: Self = Self(32);
    pub(crate) const STALE: Self = Self(64);
    const TEXTS: [&'static str; 7] = [
        "fault: a second copy",
        "fault: replayed",
        "fault: bits flipped",
        "fault: cut off",
        "fault: bytes added",
        "fault: held back",
        "of a sender that has ended",
    ];

    pub(crate) fn add(&mut self, mark: Self) {
        self.0 |= mark.0;
    }

    pub(crate) fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    pub(crate) fn texts(self) -> impl Iterator<Item = &'static str> {
        (0..)
            .zip(Self::TEXTS)
            .filter_map(move |(bit, text)| (self.0 >> bit & 1 == 1).then_some(text))
    }
}

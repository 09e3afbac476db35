//! Messages that arrived before a receive matched them: their envelopes and buffered bytes.
//!
//! One record serves three stations of a message's life: *held* (an earlier one is missing), *kept* (no
//! receive matches yet) and *claimed* (taken out of matching, not yet received).

use doorbell_fabric::message::Remote;

use crate::credit::ENVELOPE;
use crate::pool::Buffer;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::RequestId;
use crate::wire::{flag, kind};

/// The envelope of a message, as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) rank: Rank,
    pub(crate) rail: RailId,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) context: u16,
    pub(crate) seq: u32,
    pub(crate) tag: u64,
    /// Length of the whole message.
    pub(crate) length: u64,
    /// The sender's request; for a message to ourselves that waits, our own.
    pub(crate) sender: u64,
    /// Bytes that came with it.
    pub(crate) body: usize,
    pub(crate) remote: Option<Remote>,
    /// The number of the attempt.
    pub(crate) restart: u32,
    /// The checksum of the whole message.
    pub(crate) checksum: Option<u32>,
    /// The immediate data that held at its turn; none before it.
    pub(crate) data: Option<u64>,
    /// Announcement of an operation: bytes of what it is, which lie where otherwise the body begins.
    pub(crate) lead: usize,
}

impl Envelope {
    /// Whether it is an operation on a window, or what one returns.
    #[inline]
    pub(crate) fn is_of_operation(&self) -> bool {
        self.flags & (flag::OPERATION | flag::REPLY) != 0
    }

    /// Returns what it counts against the sender's window.
    #[inline]
    pub(crate) fn charge(&self) -> u64 {
        self.body as u64 + ENVELOPE
    }

    /// The immediate data of all messages behind this one, if it is such a word and no message.
    pub(crate) fn immediate(&self) -> Option<Option<u64>> {
        let word = self.kind == kind::MATCH && self.flags & flag::IMMEDIATE != 0;
        word.then(|| (self.flags & flag::NO_DATA == 0).then_some(self.tag))
    }

    /// Notes the number of an attempt that is to begin.
    pub(crate) fn set_attempt(&mut self, attempt: u32) {
        self.restart = attempt;
    }

    /// The message was announced once more. What came with the first announcement stays, and so does what it
    /// counts against the window.
    pub(crate) fn begin_again(&mut self, again: &Self) {
        (self.kind, self.flags, self.rail) = (again.kind, again.flags, again.rail);
        (self.remote, self.restart) = (again.remote, again.restart);
    }

    /// The sender's request, of a message to ourselves.
    pub(crate) fn own_request(&self) -> RequestId {
        RequestId::from_bits(self.sender)
    }
}

/// Where a recorded message is in [`Unexpected`], while it is there; matching knows it by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedIndex(u32);

impl UnexpectedIndex {
    /// The end of the list of free records.
    const NONE: Self = Self(u32::MAX);

    /// Converts it to what matching keeps.
    #[inline]
    pub(crate) const fn token(self) -> u64 {
        self.0 as u64
    }

    /// Back from [`UnexpectedIndex::token`].
    #[inline]
    pub(crate) const fn of_token(token: u64) -> Self {
        Self(token as u32)
    }

    #[inline]
    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Where a recorded message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    Free(UnexpectedIndex),
    Held,
    Kept,
    Claimed,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    station: Station,
    envelope: Envelope,
    bytes: Buffer,
}

/// The records of all such messages.
#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Vec<Entry>,
    free: UnexpectedIndex,
}

impl Unexpected {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            entries: Vec::with_capacity(room),
            free: UnexpectedIndex::NONE,
        }
    }

    /// Records a message; returns its number.
    pub(crate) fn put(&mut self, station: Station, envelope: Envelope, bytes: Buffer) -> UnexpectedIndex {
        if self.free == UnexpectedIndex::NONE {
            let index = UnexpectedIndex(self.entries.len() as u32);
            // Every record costs over 100 bytes: memory ends long before the numbers do.
            assert!(
                index != UnexpectedIndex::NONE,
                "more unexpected messages than can be numbered"
            );
            self.entries.push(Entry {
                generation: 1,
                station,
                envelope,
                bytes,
            });
            return index;
        }
        let index = self.free;
        let entry = &mut self.entries[index.at()];
        if let Station::Free(next) = entry.station {
            self.free = next;
        }
        entry.station = station;
        entry.envelope = envelope;
        entry.bytes = bytes;
        index
    }

    /// Takes a record out.
    pub(crate) fn take(&mut self, index: UnexpectedIndex) -> (Envelope, Buffer) {
        let entry = &mut self.entries[index.at()];
        entry.station = Station::Free(self.free);
        entry.generation = entry.generation.wrapping_add(1);
        self.free = index;
        (entry.envelope, std::mem::take(&mut entry.bytes))
    }

    /// Records that are taken.
    pub(crate) fn taken(&self) -> usize {
        let free = |entry: &&Entry| !matches!(entry.station, Station::Free(_));
        self.entries.iter().filter(free).count()
    }

    /// The envelope of a record.
    pub(crate) fn envelope(&self, index: UnexpectedIndex) -> &Envelope {
        &self.entries[index.at()].envelope
    }

    /// Notes the immediate data of a message, whose turn it is.
    pub(crate) fn set_data(&mut self, index: UnexpectedIndex, data: Option<u64>) {
        self.entries[index.at()].envelope.data = data;
    }

    /// Moves a record on to another station.
    pub(crate) fn station(&mut self, index: UnexpectedIndex, station: Station) {
        self.entries[index.at()].station = station;
    }

    /// Whether an announcement of that request is recorded.
    pub(crate) fn holds(&self, rank: Rank, sender: u64) -> bool {
        self.entries.iter().any(|entry| {
            !matches!(entry.station, Station::Free(_))
                && (entry.envelope.rank, entry.envelope.sender) == (rank, sender)
        })
    }

    /// The announcement with this number that is held, kept or claimed.
    pub(crate) fn find(&mut self, rank: Rank, seq: u32) -> Option<&mut Envelope> {
        let mut entries = self.entries.iter_mut();
        let found = entries.find(|entry| {
            !matches!(entry.station, Station::Free(_))
                && matches!(entry.envelope.kind, kind::RNDV | kind::RGET)
                && (entry.envelope.rank, entry.envelope.seq) == (rank, seq)
        });
        found.map(|entry| &mut entry.envelope)
    }

    /// The records of a rank.
    pub(crate) fn of(&self, rank: Rank) -> impl Iterator<Item = UnexpectedIndex> {
        let entries = (0..).zip(&self.entries);
        let these = entries.filter(move |(_, entry)| {
            !matches!(entry.station, Station::Free(_)) && entry.envelope.rank == rank
        });
        these.map(|(index, _)| UnexpectedIndex(index))
    }

    /// The public name of a claimed message.
    pub(crate) fn name(&self, index: UnexpectedIndex) -> u64 {
        index.token() | u64::from(self.entries[index.at()].generation) << 32
    }

    /// The claimed message of that name.
    pub(crate) fn claimed(&self, name: u64) -> Option<UnexpectedIndex> {
        let index = UnexpectedIndex::of_token(name);
        let entry = self.entries.get(index.at())?;
        let live = entry.generation == (name >> 32) as u32 && entry.station == Station::Claimed;
        live.then_some(index)
    }
}

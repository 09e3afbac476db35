//! Messages that arrived before anybody wanted them: their envelopes and buffered bytes.
//!
//! One record serves three stations of a message's life: *held* (an earlier one is missing), *kept* (no receive
//! matches yet) and *claimed* (taken out of matching, not yet received).

use doorbell_fabric::message::Remote;

use crate::peer::ENVELOPE;
use crate::pool::Buffer;
use crate::request::RequestId;
use crate::wire::kind;

/// The envelope of a message, as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) rank: u32,
    pub(crate) rail: u16,
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
    /// The attempt.
    pub(crate) restart: u32,
    /// Of the whole message.
    pub(crate) checksum: Option<u32>,
}

impl Envelope {
    /// What it counts against the sender's window.
    #[inline]
    pub(crate) fn charge(&self) -> u64 {
        self.body as u64 + ENVELOPE
    }

    /// The sender's request, of a message to ourselves.
    pub(crate) fn own_request(&self) -> RequestId {
        RequestId::from_bits(self.sender)
    }
}

/// Where a recorded message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    Free(u32),
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

/// The records.
#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Vec<Entry>,
    free: u32,
}

const NONE: u32 = u32::MAX;

impl Unexpected {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            entries: Vec::with_capacity(room),
            free: NONE,
        }
    }

    /// Records a message; returns its number.
    pub(crate) fn put(&mut self, station: Station, envelope: Envelope, bytes: Buffer) -> u32 {
        if self.free == NONE {
            let index = self.entries.len() as u32;
            // Every record costs over 100 bytes: memory ends long before the numbers do.
            assert!(index != NONE, "more unexpected messages than can be numbered");
            self.entries.push(Entry {
                generation: 1,
                station,
                envelope,
                bytes,
            });
            return index;
        }
        let index = self.free;
        let entry = &mut self.entries[index as usize];
        if let Station::Free(next) = entry.station {
            self.free = next;
        }
        entry.station = station;
        entry.envelope = envelope;
        entry.bytes = bytes;
        index
    }

    /// Takes a record out.
    pub(crate) fn take(&mut self, index: u32) -> (Envelope, Buffer) {
        let entry = &mut self.entries[index as usize];
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
    pub(crate) fn envelope(&self, index: u32) -> &Envelope {
        &self.entries[index as usize].envelope
    }

    /// Moves a record on to another station.
    pub(crate) fn station(&mut self, index: u32, station: Station) {
        self.entries[index as usize].station = station;
    }

    /// Whether an announcement of that request is recorded.
    pub(crate) fn holds(&self, rank: u32, sender: u64) -> bool {
        self.entries.iter().any(|entry| {
            !matches!(entry.station, Station::Free(_))
                && (entry.envelope.rank, entry.envelope.sender) == (rank, sender)
        })
    }

    /// The announcement with this number that is held, kept or claimed.
    pub(crate) fn find(&mut self, rank: u32, seq: u32) -> Option<&mut Envelope> {
        let mut entries = self.entries.iter_mut();
        let found = entries.find(|entry| {
            !matches!(entry.station, Station::Free(_))
                && matches!(entry.envelope.kind, kind::RNDV | kind::RGET)
                && (entry.envelope.rank, entry.envelope.seq) == (rank, seq)
        });
        found.map(|entry| &mut entry.envelope)
    }

    /// The public name of a claimed message.
    pub(crate) fn name(&self, index: u32) -> u64 {
        u64::from(index) | u64::from(self.entries[index as usize].generation) << 32
    }

    /// The claimed message of that name.
    pub(crate) fn claimed(&self, name: u64) -> Option<u32> {
        let index = name as u32;
        let entry = self.entries.get(index as usize)?;
        let live = entry.generation == (name >> 32) as u32 && entry.station == Station::Claimed;
        live.then_some(index)
    }
}

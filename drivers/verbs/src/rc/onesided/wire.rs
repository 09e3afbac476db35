//! What both ends of a connection send each other about one-sided operations: 32 bytes behind the head of a
//! send that carries no messages.
//!
//! ```text
//! 0     1      2  4      8     12        16     20   24
//! kind  flags  0  round  pair  sequence  reads  key  name of the exposure
//! ```
//!
//! Words about a ring have its first lap in `round`, its slots and their bytes in `pair` and `sequence`, its
//! key and its address in `key` and `name`. Little endian. All checks of what a peer sends are here.

use doorbell_fabric::memory::SharedBytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::rc::head::Impossible;
use crate::rc::ring::layout::{SLOT, SLOTS};
use crate::rc::ring::wire::{self as ring, Word};

/// Bytes of one.
pub(crate) const CONTROL: usize = size_of::<Raw>();

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    flags: u8,
    reserved: U16,
    round: U32,
    pair: U32,
    sequence: U32,
    reads: U32,
    key: U32,
    name: U64,
}
const _: () = assert!(CONTROL == 32);

/// The other end's word about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It never was good for this peer, or what was done under it is not allowed.
    Unknown,
    /// It was good once.
    Withdrawn,
    /// The device knows it by this key now.
    Good(u32),
}

/// One end's queue pair of one-sided operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Which queue pair of the connection: 1, 2, 3, …
    pub(crate) round: u32,
    pub(crate) pair: u32,
    /// The number of the first packet that it sends.
    pub(crate) sequence: u32,
    /// Reads and atomics that it answers at a time.
    pub(crate) reads: u32,
    /// Whether it is connected to the receiver's.
    pub(crate) is_connected: bool,
    /// Whether the one before ended because the receiver refused an operation.
    pub(crate) was_refused: bool,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Offer(Offer),
    /// By which key the device knows an exposure.
    Lookup(u64),
    /// The answer, which holds for this round.
    Reply(u64, u32, Verdict),
    /// About a ring of short messages.
    Ring(Word),
}

const OFFER: u8 = 1;
const LOOKUP: u8 = 2;
const REPLY: u8 = 3;
const RING: u8 = 4;
/// Highest number of a queue pair, and of a packet.
const NUMBER_MOST: u32 = 0x00ff_ffff;
/// Most reads that a queue pair can answer at a time.
const READS_MOST: u32 = 255;

impl Control {
    /// Returns the bytes that are sent.
    pub(crate) fn write(&self) -> [u8; CONTROL] {
        let mut raw = Raw {
            kind: OFFER,
            flags: 0,
            reserved: 0.into(),
            round: 0.into(),
            pair: 0.into(),
            sequence: 0.into(),
            reads: 0.into(),
            key: 0.into(),
            name: 0.into(),
        };
        match *self {
            Self::Offer(offer) => {
                raw.flags = u8::from(offer.is_connected) | u8::from(offer.was_refused) << 1;
                (raw.round, raw.pair) = (offer.round.into(), offer.pair.into());
                (raw.sequence, raw.reads) = (offer.sequence.into(), offer.reads.into());
            }
            Self::Lookup(name) => (raw.kind, raw.name) = (LOOKUP, name.into()),
            Self::Reply(name, round, verdict) => {
                (raw.kind, raw.name, raw.round) = (REPLY, name.into(), round.into());
                match verdict {
                    Verdict::Unknown => {}
                    Verdict::Withdrawn => raw.flags = 1,
                    Verdict::Good(key) => (raw.flags, raw.key) = (2, key.into()),
                }
            }
            Self::Ring(word) => {
                raw.kind = RING;
                match word {
                    Word::Offer(offer) => {
                        (raw.pair, raw.sequence) = ((SLOTS as u32).into(), (SLOT as u32).into());
                        raw.round = offer.first_lap.into();
                        (raw.key, raw.name) = (offer.key.into(), offer.address.into());
                    }
                    Word::Pause => raw.flags = 1,
                    Word::Paused => raw.flags = 2,
                    Word::Resume => raw.flags = 3,
                }
            }
        }
        raw.as_bytes().try_into().unwrap_or([0; CONTROL])
    }

    /// Reads one, once, and checks it.
    pub(crate) fn read(bytes: SharedBytes<'_>) -> Result<Self, Impossible> {
        if bytes.len() != CONTROL {
            return Err(Impossible);
        }
        let bytes = bytes.read::<CONTROL>(0).ok_or(Impossible)?;
        let raw = Raw::read_from_bytes(&bytes).map_err(|_| Impossible)?;
        let (round, pair, sequence) = (raw.round.get(), raw.pair.get(), raw.sequence.get());
        let read = match (raw.kind, raw.flags) {
            (OFFER, 0..=3) => {
                let is_possible = round > 0
                    && (1..=NUMBER_MOST).contains(&pair)
                    && sequence <= NUMBER_MOST
                    && raw.reads.get() <= READS_MOST;
                Self::Offer(
                    is_possible
                        .then_some(Offer {
                            round,
                            pair,
                            sequence,
                            reads: raw.reads.get(),
                            is_connected: raw.flags & 1 != 0,
                            was_refused: raw.flags & 2 != 0,
                        })
                        .ok_or(Impossible)?,
                )
            }
            (LOOKUP, 0) => Self::Lookup(raw.name.get()),
            (REPLY, 0) => Self::Reply(raw.name.get(), round, Verdict::Unknown),
            (REPLY, 1) => Self::Reply(raw.name.get(), round, Verdict::Withdrawn),
            (REPLY, 2) => Self::Reply(raw.name.get(), round, Verdict::Good(raw.key.get())),
            // Slots and their bytes are those of this version, or it is none.
            (RING, 0) if round > 0 => Self::Ring(Word::Offer(ring::Offer {
                address: raw.name.get(),
                key: raw.key.get(),
                first_lap: round,
            })),
            (RING, 1) => Self::Ring(Word::Pause),
            (RING, 2) => Self::Ring(Word::Paused),
            (RING, 3) => Self::Ring(Word::Resume),
            _ => return Err(Impossible),
        };
        // What a kind does not have is zero.
        if read.write() == bytes {
            Ok(read)
        } else {
            Err(Impossible)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Offer = Offer {
        round: 7,
        pair: 0x0001_0203,
        sequence: 0x000a_0b0c,
        reads: 16,
        is_connected: true,
        was_refused: false,
    };

    fn read(bytes: &[u8]) -> Result<Control, Impossible> {
        Control::read(SharedBytes::of(bytes))
    }

    #[test]
    fn golden_offer_and_every_kind_comes_back() {
        let mut golden = [0; CONTROL];
        golden[..20].copy_from_slice(&[
            1, 1, 0, 0, 7, 0, 0, 0, 3, 2, 1, 0, 0x0c, 0x0b, 0x0a, 0, 16, 0, 0, 0,
        ]);
        assert_eq!(Control::Offer(OFFERED).write(), golden);
        let name = 0x0102_0304_0506_0708;
        for control in [
            Control::Offer(OFFERED),
            Control::Lookup(name),
            Control::Reply(name, 9, Verdict::Unknown),
            Control::Reply(name, 9, Verdict::Withdrawn),
            Control::Reply(name, 9, Verdict::Good(0xffff_ff01)),
            Control::Ring(Word::Offer(OFFERED_RING)),
            Control::Ring(Word::Pause),
            Control::Ring(Word::Paused),
            Control::Ring(Word::Resume),
        ] {
            assert_eq!(read(&control.write()), Ok(control));
        }
    }

    const OFFERED_RING: ring::Offer = ring::Offer {
        address: 0x0102_0304_0506_0708,
        key: 0x1122_3344,
        first_lap: 0x5566_7788,
    };

    #[test]
    fn golden_offer_of_a_ring() {
        #[rustfmt::skip]
        let golden = [
            4, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 16, 0, 0, 0, 0x10, 4, 0, 0,
            0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 8, 7, 6, 5, 4, 3, 2, 1,
        ];
        let offer = Control::Ring(Word::Offer(OFFERED_RING));
        assert_eq!(offer.write(), golden);
        // Flags that there are not; no first lap; other slots, and others of their bytes; reads.
        for (at, byte) in [(1, 4), (1, 1), (8, 15), (8, 0), (12, 0), (13, 5), (16, 1)] {
            let mut bytes = golden;
            bytes[at] = byte;
            assert_eq!(read(&bytes), Err(Impossible), "{byte} at {at}");
        }
        let mut bytes = golden;
        bytes[4..8].fill(0);
        assert_eq!(read(&bytes), Err(Impossible), "no first lap");
    }

    #[test]
    fn what_no_peer_can_have_sent_is_impossible() {
        let good = Control::Offer(OFFERED).write();
        assert_eq!(read(&good[..31]), Err(Impossible));
        assert_eq!(read(&[&good[..], &[0]].concat()), Err(Impossible));
        // Kind, flags, a reserved byte, the round, numbers of more than 24 bits, too many reads, another's.
        let lies = [
            (0, 0),
            (0, 4),
            (0, 5),
            (0, 255),
            (1, 4),
            (2, 1),
            (4, 0),
            (11, 1),
            (15, 1),
            (17, 1),
            (20, 1),
            (24, 1),
        ];
        for (at, byte) in lies {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(read(&bytes), Err(Impossible), "{byte} at {at}");
        }
        let mut lookup = Control::Lookup(1).write();
        lookup[20] = 1;
        assert_eq!(read(&lookup), Err(Impossible), "a LOOKUP has no key");
    }
}

//! Contact frames: at most 256 bytes, little endian, with a MAC at the end.
//!
//! ```text
//! 0        1     2    3       4         8     16    24   32    40     48
//! version  kind  ask  reason  reserved  link  from  to   ours  yours  …       every kind
//!   48: GIDs ours 16, yours 16 · kind, mtu, port, 0 · partition, 0 · credits, slot    CALL and ANSWER
//!   96: pairs 2 × 4 · sequences 2 × 4 · ring 8 · counters 8 · their keys 2 × 4 · ring's slots 4 · 0 4
//!   last 16: MAC
//! ```
//!
//! `link` is the id of the direction, `from` and `to` are the incarnations of both ends, `ours` and `yours`
//! their epochs: the sender's, and the receiver's as it knows it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use doorbell_fabric::message::Incarnation;

use super::counts::Drop;
use super::epoch::{Epoch, RawEpoch};
use super::key::{ContactKey, TAG};
use super::mtu::Mtu;
use crate::gid::{Gid, GidPair, Kind as GidKind};

/// The version of the layout.
const VERSION: u8 = 1;
/// Longest frame of any version, in bytes.
pub(crate) const LONGEST: usize = 256;
/// Highest number of a queue pair, and of a packet.
const NUMBER_MOST: u32 = 0x00ff_ffff;

/// What a frame reports, in the order of a connection's stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The sender has queue pairs, and is not connected.
    Call = 1,
    /// It is connected to the queue pairs of the receiver's epoch.
    Answer = 2,
    /// What it sent over the connection has passed.
    Ready = 3,
    /// It makes no connection with what was called.
    Refused = 4,
    /// It has no connection; its former ones are over.
    Gone = 5,
}

impl Kind {
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Answer,
            3 => Self::Ready,
            4 => Self::Refused,
            5 => Self::Gone,
            _ => return None,
        })
    }

    const fn has_terms(self) -> bool {
        matches!(self, Self::Call | Self::Answer)
    }

    /// Length of its frames, in bytes.
    pub(crate) const fn length(self) -> usize {
        if self.has_terms() { FULL } else { BRIEF }
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    kind: u8,
    ask: u8,
    reason: u8,
    reserved: U32,
    link: U64,
    from: U64,
    to: U64,
    ours: RawEpoch,
    yours: RawEpoch,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTerms {
    our_gid: [u8; 16],
    your_gid: [u8; 16],
    gid_kind: u8,
    mtu: u8,
    port: u8,
    reserved: u8,
    partition: U16,
    reserved2: U16,
    credits: U32,
    slot: U32,
    pairs: [U32; 2],
    sequences: [U32; 2],
    ring: U64,
    counters: U64,
    keys: [U32; 2],
    ring_slots: U32,
    reserved3: U32,
}

const HEAD: usize = size_of::<Head>();
const BRIEF: usize = HEAD + TAG;
const FULL: usize = HEAD + size_of::<RawTerms>() + TAG;
const _: () = assert!(HEAD == 48 && size_of::<RawTerms>() == 96 && FULL == 160 && FULL <= LONGEST);

/// Memory of an end that its peer writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its address; 0 where there is none.
    pub(crate) address: u64,
    /// Its remote key.
    pub(crate) key: u32,
}

/// The numbers of one end's queue pairs, and what belongs to them: for one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The queue pair of messages; that of contact, where it is not the published one any more, else 0.
    pub(crate) pairs: [u32; 2],
    /// The number of the first packet that each sends: 24 bits, random.
    pub(crate) sequences: [u32; 2],
    /// Messages that the other end may send at first.
    pub(crate) credits: u32,
    /// The longest of them, in bytes.
    pub(crate) slot: u32,
    /// The ring of eager messages.
    pub(crate) ring: Target,
    /// Slots of the ring.
    pub(crate) ring_slots: u32,
    /// Where the other end writes what it has consumed.
    pub(crate) counters: Target,
}

/// What an end offers for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) gids: GidPair,
    /// The largest MTU that it offers, and that of its port.
    pub(crate) mtu: Mtu,
    pub(crate) port: Mtu,
    pub(crate) partition: u16,
    pub(crate) numbers: Numbers,
}

/// A frame, without its MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Whether the sender waits for something of the receiver's.
    pub(crate) ask: bool,
    /// Of REFUSED and GONE.
    pub(crate) reason: u8,
    pub(crate) link: u64,
    pub(crate) from: Incarnation,
    pub(crate) to: Incarnation,
    pub(crate) ours: Epoch,
    pub(crate) yours: Epoch,
    /// Of CALL and ANSWER.
    pub(crate) terms: Option<Terms>,
}

impl Frame {
    /// Writes it with its MAC; returns its length. `terms` are there where the kind has them.
    pub(crate) fn write(&self, key: &ContactKey, into: &mut [u8; LONGEST]) -> usize {
        let head = Head {
            version: VERSION,
            kind: self.kind as u8,
            ask: self.ask.into(),
            reason: self.reason,
            reserved: 0.into(),
            link: self.link.into(),
            from: self.from.0.into(),
            to: self.to.0.into(),
            ours: self.ours.into(),
            yours: self.yours.into(),
        };
        into[..HEAD].copy_from_slice(head.as_bytes());
        if let Some(terms) = &self.terms {
            into[HEAD..FULL - TAG].copy_from_slice(terms.raw().as_bytes());
        }
        let length = self.kind.length();
        let (bytes, tag) = into[..length].split_at_mut(length - TAG);
        tag.copy_from_slice(&key.tag(bytes));
        length
    }

    /// Reads one, without a look at its MAC.
    ///
    /// # Errors
    /// [`Drop`]: the reason why it is none.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Drop> {
        if bytes.len() > LONGEST {
            return Err(Drop::Long);
        }
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| Drop::Short)?;
        if head.version != VERSION {
            return Err(Drop::Version);
        }
        let kind = Kind::of(head.kind).ok_or(Drop::Malformed)?;
        match bytes.len().cmp(&kind.length()) {
            std::cmp::Ordering::Less => return Err(Drop::Short),
            std::cmp::Ordering::Greater => return Err(Drop::Long),
            std::cmp::Ordering::Equal => {}
        }
        let has_reason = matches!(kind, Kind::Refused | Kind::Gone);
        if head.ask > 1 || head.reserved.get() != 0 || has_reason != (head.reason != 0) {
            return Err(Drop::Malformed);
        }
        let terms = match kind.has_terms() {
            true => {
                let (raw, _) = RawTerms::read_from_prefix(rest).map_err(|_| Drop::Short)?;
                Some(Terms::of(&raw).ok_or(Drop::Malformed)?)
            }
            false => None,
        };
        Ok(Self {
            kind,
            ask: head.ask == 1,
            reason: head.reason,
            link: head.link.get(),
            from: Incarnation(head.from.get()),
            to: Incarnation(head.to.get()),
            ours: head.ours.into(),
            yours: head.yours.into(),
            terms,
        })
    }
}

/// Whether a frame that was read has the MAC of this key.
pub(crate) fn holds(key: &ContactKey, bytes: &[u8]) -> bool {
    let parts = bytes.split_last_chunk::<TAG>();
    parts.is_some_and(|(bytes, tag)| key.holds(bytes, tag))
}

impl Terms {
    fn raw(&self) -> RawTerms {
        let Numbers {
            pairs,
            sequences,
            credits,
            slot,
            ring,
            ring_slots,
            counters,
        } = self.numbers;
        RawTerms {
            our_gid: self.gids.ours.0,
            your_gid: self.gids.theirs.0,
            gid_kind: self.gids.kind as u8,
            mtu: self.mtu.number(),
            port: self.port.number(),
            reserved: 0,
            partition: self.partition.into(),
            reserved2: 0.into(),
            credits: credits.into(),
            slot: slot.into(),
            pairs: pairs.map(U32::new),
            sequences: sequences.map(U32::new),
            ring: ring.address.into(),
            counters: counters.address.into(),
            keys: [ring.key, counters.key].map(U32::new),
            ring_slots: ring_slots.into(),
            reserved3: 0.into(),
        }
    }

    /// Reads them; `None` where they cannot be.
    fn of(raw: &RawTerms) -> Option<Self> {
        let pairs = raw.pairs.map(U32::get);
        let sequences = raw.sequences.map(U32::get);
        let are_pairs =
            (2..=NUMBER_MOST).contains(&pairs[0]) && (pairs[1] == 0 || (2..=NUMBER_MOST).contains(&pairs[1]));
        let reserved = u32::from(raw.reserved) | u32::from(raw.reserved2.get()) | raw.reserved3.get();
        if !are_pairs || sequences.iter().any(|first| *first > NUMBER_MOST) || reserved != 0 {
            return None;
        }
        let target = |address: U64, key: U32| Target {
            address: address.get(),
            key: key.get(),
        };
        Some(Self {
            gids: GidPair {
                ours: Gid(raw.our_gid),
                theirs: Gid(raw.your_gid),
                kind: GidKind::of(raw.gid_kind.into())?,
            },
            mtu: Mtu::of(raw.mtu)?,
            port: Mtu::of(raw.port)?,
            partition: raw.partition.get(),
            numbers: Numbers {
                pairs,
                sequences,
                credits: raw.credits.get(),
                slot: raw.slot.get(),
                ring: target(raw.ring, raw.keys[0]),
                ring_slots: raw.ring_slots.get(),
                counters: target(raw.counters, raw.keys[1]),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last])
    }

    fn call() -> Frame {
        Frame {
            kind: Kind::Call,
            ask: true,
            reason: 0,
            link: 0x0807_0605_0403_0201,
            from: Incarnation(0x11),
            to: Incarnation(0x22),
            ours: Epoch { term: 1, count: 2 },
            yours: Epoch { term: 3, count: 4 },
            terms: Some(Terms {
                gids: GidPair {
                    ours: gid(1),
                    theirs: gid(2),
                    kind: GidKind::RoceV2,
                },
                mtu: Mtu::of(3).unwrap(),
                port: Mtu::of(5).unwrap(),
                partition: 0xffff,
                numbers: Numbers {
                    pairs: [0x12, 0],
                    sequences: [0x0a_bcde, 0],
                    credits: 4,
                    slot: 8192,
                    ring: Target {
                        address: 0x1000,
                        key: 7,
                    },
                    ring_slots: 16,
                    counters: Target {
                        address: 0x2000,
                        key: 8,
                    },
                },
            }),
        }
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut into = [0; LONGEST];
        let length = frame.write(&ContactKey::new(&[7; 32]), &mut into);
        into[..length].to_vec()
    }

    /// Both ends may be of different builds: the bytes may not change without a new version.
    #[test]
    fn golden_bytes_of_a_call() {
        let written = bytes(&call());
        #[rustfmt::skip]
        let golden = [
            1, 1, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
            0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0,
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 2,
            2, 3, 5, 0, 255, 255, 0, 0, 4, 0, 0, 0, 0, 32, 0, 0,
            0x12, 0, 0, 0, 0, 0, 0, 0, 0xde, 0xbc, 0x0a, 0, 0, 0, 0, 0,
            0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0,
            7, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(written[..FULL - TAG], golden);
        assert_eq!(Frame::read(&written), Ok(call()));
        assert!(holds(&ContactKey::new(&[7; 32]), &written));
        assert!(!holds(&ContactKey::new(&[8; 32]), &written));
    }

    #[test]
    fn golden_bytes_of_a_farewell() {
        let gone = Frame {
            kind: Kind::Gone,
            reason: 1,
            terms: None,
            ..call()
        };
        let written = bytes(&gone);
        assert_eq!(written.len(), BRIEF);
        assert_eq!(written[..8], [1, 5, 1, 1, 0, 0, 0, 0]);
        assert_eq!(Frame::read(&written), Ok(gone));
    }

    #[test]
    fn frames_of_other_lengths_and_versions_are_none() {
        let written = bytes(&call());
        for length in 0..written.len() {
            assert_eq!(
                Frame::read(&written[..length]),
                Err(Drop::Short),
                "{length} bytes"
            );
        }
        for length in written.len() + 1..300 {
            let mut long = written.clone();
            long.resize(length, 0);
            assert_eq!(Frame::read(&long), Err(Drop::Long));
        }
        let mut other = written;
        other[0] = 2;
        assert_eq!(Frame::read(&other), Err(Drop::Version));
    }

    #[test]
    fn every_bit_matters() {
        let key = ContactKey::new(&[7; 32]);
        let written = bytes(&call());
        for bit in 0..8 * written.len() {
            let mut other = written.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!holds(&key, &other));
            let read = Frame::read(&other);
            assert!(
                bit / 8 >= FULL - TAG || read != Ok(call()),
                "bit {bit} is not read"
            );
        }
    }
}

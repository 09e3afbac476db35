//! The wire format: a plain head before each handshake message, and the frame of a record.
//!
//! ```text
//!   handshake   0        8         10     11      12        14       16
//!               │bell-oob│ version │ kind │ flags │ purpose │ length │ Noise message (`length` bytes)
//!   record      0        2
//!               │ length │ Noise ciphertext of: piece kind (1 byte), bytes
//! ```
//!
//! All numbers are little-endian. The caller's head is the prologue of the handshake: both sides hash it, so
//! that a change on the way fails like a wrong key.

use super::Peer;
use crate::error::OobError;
use crate::name::Name;

/// The version of this format.
pub(super) const VERSION: u16 = 2;
/// Bytes of a head.
pub(super) const HEAD: usize = 16;
/// Bytes of the payload of both handshake messages: incarnation (8), job (8), rank (4).
pub(super) const PAYLOAD: usize = 20;
/// Bytes of a handshake message: ephemeral key, encrypted payload, its tag.
pub(super) const SHAKE: usize = 32 + PAYLOAD + TAG;
/// Bytes that encryption adds to a text.
pub(super) const TAG: usize = 16;
/// Bytes of a record's length.
pub(super) const PREFIX: usize = 2;
/// Maximum bytes of a ciphertext: the limit of Noise.
pub(super) const CIPHERTEXT_MAX: usize = 65_535;
/// Maximum bytes of a message in one record.
pub(super) const PIECE_MAX: usize = CIPHERTEXT_MAX - TAG - 1;
const MAGIC: [u8; 8] = *b"bell-oob";
const KEYED: u8 = 1;

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The caller's handshake message.
    Call,
    /// The answerer's handshake message.
    Answer,
    /// A refusal; nothing follows.
    Refuse(Refusal),
}

/// Why the session is refused. It is sent in the clear and unauthenticated: it explains a failure, but causes
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The version differs.
    Version,
    /// The keys differ.
    Key,
    /// Only one side has a key.
    Keyed,
    /// The purposes differ.
    Purpose,
}

/// The type of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The last segment of a message.
    Last,
    /// A segment with more to follow.
    More,
    /// The sender closes the session.
    Close,
    /// The caller's proof that it is live.
    Confirm,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Call => 1,
            Self::Answer => 2,
            Self::Refuse(Refusal::Version) => 16,
            Self::Refuse(Refusal::Key) => 17,
            Self::Refuse(Refusal::Keyed) => 18,
            Self::Refuse(Refusal::Purpose) => 19,
        }
    }

    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Answer,
            16 => Self::Refuse(Refusal::Version),
            17 => Self::Refuse(Refusal::Key),
            18 => Self::Refuse(Refusal::Keyed),
            19 => Self::Refuse(Refusal::Purpose),
            _ => return None,
        })
    }
}

impl Piece {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Last => 0,
            Self::More => 1,
            Self::Close => 2,
            Self::Confirm => 3,
        }
    }

    pub(super) fn of(number: u8) -> Option<Self> {
        [Self::Last, Self::More, Self::Close, Self::Confirm]
            .into_iter()
            .find(|piece| piece.number() == number)
    }
}

/// A head that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u16,
    pub(super) kind: Kind,
    pub(super) keyed: bool,
    pub(super) purpose: u16,
}

impl Head {
    pub(super) fn of(kind: Kind, keyed: bool, purpose: u16) -> Self {
        Self {
            version: VERSION,
            kind,
            keyed,
            purpose,
        }
    }

    pub(super) fn bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10] = self.kind.number();
        bytes[11] = if self.keyed { KEYED } else { 0 };
        bytes[12..14].copy_from_slice(&self.purpose.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.follows().to_le_bytes());
        bytes
    }

    /// Returns how many bytes follow the head.
    pub(super) fn follows(self) -> u16 {
        match self.kind {
            Kind::Call | Kind::Answer => SHAKE as u16,
            Kind::Refuse(_) => 0,
        }
    }

    /// Parses a head. Of another version, only what all versions have in common is checked: magic and
    /// version.
    pub(super) fn parse(bytes: &[u8; HEAD]) -> Result<Self, OobError> {
        let strange = |what| Err(OobError::Stranger { what });
        if bytes[..8] != MAGIC {
            return strange("wrong magic number");
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        let purpose = u16::from_le_bytes([bytes[12], bytes[13]]);
        if version != VERSION {
            return Ok(Self {
                version,
                kind: Kind::Refuse(Refusal::Version),
                keyed: false,
                purpose,
            });
        }
        let Some(kind) = Kind::of(bytes[10]) else {
            return strange("a head of an unknown type");
        };
        let head = Self {
            version,
            kind,
            keyed: bytes[11] == KEYED,
            purpose,
        };
        if bytes[11] > KEYED || u16::from_le_bytes([bytes[14], bytes[15]]) != head.follows() {
            return strange("an invalid head");
        }
        Ok(head)
    }

    /// Whether `bytes` can still become a head, so that other protocols are detected by their first byte.
    pub(super) fn may_begin(bytes: &[u8]) -> bool {
        let known = bytes.len().min(MAGIC.len());
        bytes[..known] == MAGIC[..known]
    }
}

/// Encodes our identity.
pub(super) fn payload(name: Name, incarnation: u64) -> [u8; PAYLOAD] {
    let mut bytes = [0; PAYLOAD];
    bytes[..8].copy_from_slice(&incarnation.to_le_bytes());
    bytes[8..16].copy_from_slice(&name.job.to_le_bytes());
    bytes[16..].copy_from_slice(&name.rank.to_le_bytes());
    bytes
}

/// Decodes the identity of the other side.
pub(super) fn read_payload(bytes: &[u8]) -> Option<Peer> {
    let (incarnation, rest) = bytes.split_first_chunk()?;
    let (job, rank) = rest.split_first_chunk()?;
    Some(Peer {
        name: Name::new(
            u64::from_le_bytes(*job),
            u32::from_le_bytes(rank.try_into().ok()?),
        ),
        incarnation: u64::from_le_bytes(*incarnation),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let head = Head::of(Kind::Call, true, 0x0102);
        let bytes = head.bytes();
        assert_eq!(&bytes, b"bell-oob\x02\x00\x01\x01\x02\x01\x44\x00");
        assert_eq!(Head::parse(&bytes).unwrap(), head);
        let refusal = Head::of(Kind::Refuse(Refusal::Key), false, 7);
        assert_eq!(&refusal.bytes(), b"bell-oob\x02\x00\x11\x00\x07\x00\x00\x00");
        assert_eq!(Head::parse(&refusal.bytes()).unwrap(), refusal);
    }

    #[test]
    fn the_identity_is_written_in_its_fixed_form() {
        let bytes = payload(Name::new(0x0102, 3), 4);
        let golden = [4, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(bytes, golden);
        let peer = read_payload(&bytes).unwrap();
        assert_eq!((peer.name, peer.incarnation), (Name::new(0x0102, 3), 4));
        assert!(read_payload(&bytes[..PAYLOAD - 1]).is_none() && read_payload(&[0; PAYLOAD + 1]).is_none());
    }

    #[test]
    fn every_changed_byte_is_seen_or_means_something_else() {
        let head = Head::of(Kind::Answer, true, 7);
        for at in 0..HEAD {
            for bit in 0..8 {
                let mut bytes = head.bytes();
                bytes[at] ^= 1 << bit;
                assert!(
                    Head::parse(&bytes).is_err() || Head::parse(&bytes).unwrap() != head,
                    "{at} {bit}"
                );
            }
        }
        assert!(Head::may_begin(b"") && Head::may_begin(b"bell") && !Head::may_begin(b"GET / HTTP/1.1"));
    }
}

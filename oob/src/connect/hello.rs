//! The hello: 72 bytes each way that identify both processes before a connection becomes a link, inside the
//! encrypted session.
//!
//! ```text
//!    0        8         12     13      14    16          24     28
//!    │bell-who│ version │ kind │ reason│ 0 0 │ from: job │ rank │
//!    28         32         40      48      56      64    72
//!    │ to: rank │ to: job  │ epoch │ nonce │ heard │ 0…  │
//! ```
//!
//! All numbers are in network byte order. `nonce` numbers the attempts of an epoch in ascending order; an
//! answer repeats it. `heard` is the highest nonce that the sender has ever received from the other side: it
//! distinguishes a call made without knowledge of the existing link (they crossed) from one made because that
//! link is gone.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::name::{Epoch, Name};
use crate::session::Peer;

/// Bytes of a hello.
pub const HELLO: usize = 72;
const MAGIC: [u8; 8] = *b"bell-who";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    kind: u8,
    reason: u8,
    zero: [u8; 2],
    from_job: U64,
    from_rank: U32,
    to_rank: U32,
    to_job: U64,
    epoch: U64,
    nonce: U64,
    heard: U64,
    rest: [u8; 8],
}

const _: () = assert!(size_of::<Raw>() == HELLO);

/// The kind of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// A call: "I am …, and want a link."
    Call,
    /// The answer that accepts a call.
    Welcome,
    /// The answer that rejects a call.
    Nack(Nack),
}

/// Why a call is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nack {
    /// Both sides call at the same time, and the other call is kept.
    Tie,
    /// A later call of the same process has come already.
    Stale,
    /// The protocol version differs.
    Version,
    /// The call is for another process.
    Name,
    /// A later epoch of the caller is known.
    OldEpoch,
}

impl Nack {
    const ALL: [Self; 5] = [Self::Tie, Self::Stale, Self::Version, Self::Name, Self::OldEpoch];

    fn number(self) -> u8 {
        match self {
            Self::Tie => 1,
            Self::Stale => 2,
            Self::Version => 3,
            Self::Name => 4,
            Self::OldEpoch => 5,
        }
    }
}

/// A hello, parsed or to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of the whole protocol.
    pub version: u32,
    /// The kind of the hello.
    pub said: HelloKind,
    /// The sender's name.
    pub from: Name,
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The receiver's name.
    pub to: Name,
    /// The attempt of the caller that it belongs to.
    pub nonce: u64,
    /// The highest nonce that the sender has received from the other side.
    pub heard: u64,
}

impl Hello {
    /// Returns the bytes of the hello.
    #[must_use]
    pub fn bytes(&self) -> [u8; HELLO] {
        let (kind, reason) = match self.said {
            HelloKind::Call => (1, 0),
            HelloKind::Welcome => (2, 0),
            HelloKind::Nack(why) => (3, why.number()),
        };
        let raw = Raw {
            magic: MAGIC,
            version: self.version.into(),
            kind,
            reason,
            zero: [0; 2],
            from_job: self.from.job.into(),
            from_rank: self.from.rank.into(),
            to_rank: self.to.rank.into(),
            to_job: self.to.job.into(),
            epoch: self.epoch.0.into(),
            nonce: self.nonce.into(),
            heard: self.heard.into(),
            rest: [0; 8],
        };
        zerocopy::transmute!(raw)
    }

    /// Parses a hello; `None` if it is malformed. Of another version, only version, kind and nonce are
    /// reliable.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw = Raw::ref_from_bytes(bytes).ok()?;
        let said = match (raw.kind, raw.reason) {
            (1, 0) => HelloKind::Call,
            (2, 0) => HelloKind::Welcome,
            (3, reason) => HelloKind::Nack(Nack::ALL.into_iter().find(|why| why.number() == reason)?),
            _ => return None,
        };
        let sound = raw.magic == MAGIC && raw.zero == [0; 2] && raw.rest == [0; 8];
        let known = raw.epoch.get() != 0 && raw.nonce.get() != 0;
        (sound && known).then(|| Self {
            version: raw.version.get(),
            said,
            from: Name::new(raw.from_job.get(), raw.from_rank.get()),
            epoch: Epoch(raw.epoch.get()),
            to: Name::new(raw.to_job.get(), raw.to_rank.get()),
            nonce: raw.nonce.get(),
            heard: raw.heard.get(),
        })
    }

    /// Whether a hello names the same sender as the handshake of its session. Malformed hellos are handled
    /// elsewhere.
    pub(crate) fn agrees(peer: Peer, bytes: &[u8]) -> bool {
        Self::read(bytes).is_none_or(|hello| hello.from == peer.name && hello.epoch.0 == peer.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(said: HelloKind) -> Hello {
        Hello {
            version: 0x0102_0304,
            said,
            from: Name::new(0x11, 0x12),
            epoch: Epoch(0x15),
            to: Name::new(0x14, 0x13),
            nonce: 0x16,
            heard: 0x17,
        }
    }

    #[test]
    fn golden_bytes_of_a_nack() {
        let mut golden = [0; HELLO];
        golden[..8].copy_from_slice(b"bell-who");
        for (at, byte) in [(8, 1), (9, 2), (10, 3), (11, 4), (12, 3), (13, 5)] {
            golden[at] = byte;
        }
        for (at, byte) in [
            (23, 0x11),
            (27, 0x12),
            (31, 0x13),
            (39, 0x14),
            (47, 0x15),
            (55, 0x16),
            (63, 0x17),
        ] {
            golden[at] = byte;
        }
        let hello = sample(HelloKind::Nack(Nack::OldEpoch));
        assert_eq!(hello.bytes(), golden);
        assert_eq!(Hello::read(&golden), Some(hello));
    }

    #[test]
    fn what_is_no_hello_is_refused() {
        let good = sample(HelloKind::Call).bytes();
        assert!(Hello::read(&good).is_some());
        assert!(Hello::read(&good[..HELLO - 1]).is_none());
        for (at, byte) in [
            (0, b'B'),
            (12, 4),
            (12, 0),
            (13, 1),
            (14, 1),
            (71, 1),
            (47, 0),
            (55, 0),
        ] {
            let mut bad = good;
            bad[at] = byte;
            assert!(Hello::read(&bad).is_none(), "byte {at} as {byte}");
        }
        let mut bad = sample(HelloKind::Nack(Nack::Tie)).bytes();
        bad[13] = 6;
        assert!(Hello::read(&bad).is_none());
    }
}

//! The envelope of a MAD in a UDP datagram.
//!
//! ```text
//!   0            4      5     6      7        10      12      14      16           56          312
//!   │ magic dbAC │ ver. │kind │flags │ QPN 24 │ LID   │ length│ 0 0   │ GRH 40     │ MAD 256 … │ tag 32
//! ```
//!
//! From the GRH on it has the layout that an unreliable-datagram queue pair leaves in a receive buffer.
//! `length` counts everything before the tag. Instead of a MAD, a probe has a token of 16 bytes followed by
//! zeros; an echo is the probe returned. All numbers are in network byte order. The tag covers everything
//! before it.
//!
//! reference: acm, section 10 (MAD, GRH); InfiniBand Architecture Specification, volume 1, 8.3 (GRH).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::Key;
use crate::address::Gid;

/// Bytes of a MAD.
pub const MAD: usize = 256;
/// Bytes of a GRH.
pub const GRH: usize = 40;
/// Bytes of a tag.
pub const TAG: usize = 32;
/// Bytes of a frame with a MAD.
pub const FRAME: usize = HEAD + MAD;
/// Bytes of a frame with a MAD and a tag.
pub const FRAME_TAGGED: usize = FRAME + TAG;
/// Bytes of the smallest probe, without a tag.
pub const PROBE: usize = HEAD + TOKEN;
/// Bytes of the largest probe, with its tag: the UDP payload of a packet of the largest MTU.
pub const PROBE_MAX: usize = 4096 + 48;
/// Bytes of a token.
pub(super) const TOKEN: usize = 16;
const HEAD: usize = size_of::<Head>();

const MAGIC: [u8; 4] = *b"dbAC";
const VERSION: u8 = 1;
/// Flag: a tag follows.
const TAGGED: u8 = 1;
/// IP version 6, in the first four bits.
const GRH_VERSION: u32 = 6 << 28;
/// Next header of a GRH: InfiniBand's transport.
const NEXT: u8 = 0x1b;
const HOPS: u8 = 1;
/// What the payload length of a GRH includes: transport header (12), datagram header (8), check sum (4).
const TRANSPORT: usize = 12 + 8 + 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    flags: u8,
    qpn: [u8; 3],
    lid: U16,
    length: U16,
    reserved: [u8; 2],
    // The layout of a receive buffer begins here.
    version_class_flow: U32,
    payload: U16,
    next: u8,
    hops: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}

const _: () = assert!(HEAD == 16 + GRH && FRAME == 312 && FRAME_TAGGED == 344 && PROBE == 72);
// The answer fits into one packet at the smallest MTU of IPv4.
const _: () = assert!(FRAME_TAGGED + 28 <= 576 && PROBE + TAG < FRAME);

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The frame has a MAD.
    Mad = 1,
    /// The frame is to be returned.
    Probe = 2,
    /// The frame is a probe that was returned.
    Echo = 3,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The purpose of the frame.
    pub kind: Kind,
    /// The sender's queue pair: 24 bits.
    pub qpn: u32,
    /// The LID of the sender's port.
    pub lid: u16,
    /// The GID of the sender's port.
    pub sgid: Gid,
    /// The destination: a GID or a group.
    pub dgid: Gid,
}

/// A frame that was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The header of the frame.
    pub header: Header,
    /// The content: a MAD, or a token followed by zeros.
    pub body: &'a [u8],
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The size is wrong, or differs from the length field.
    #[error("the size is not that of a frame")]
    Size,
    /// The magic number is wrong.
    #[error("the magic number is wrong")]
    Magic,
    /// The version is unknown.
    #[error("the version is unknown")]
    Version,
    /// The kind or the flags are unknown.
    #[error("the kind or the flags are unknown")]
    Kind,
    /// The frame has no tag, but a key is configured here.
    #[error("the frame has no tag, but this service has a key; give all services the same key")]
    Untagged,
    /// The frame has a tag, but no key is configured here.
    #[error("the frame has a tag, but this service has no key; give all services the same key")]
    Tagged,
    /// The tag does not match.
    #[error("the tag is of another key; give all services the same key")]
    Tag,
    /// The GRH is invalid.
    #[error("the GRH is invalid")]
    Grh,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Mad, Self::Probe, Self::Echo]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

impl Header {
    /// Writes a frame into `to`, replacing its content. A probe is padded with zeros to `size` bytes, its tag
    /// included; other kinds ignore `size`.
    pub fn write(&self, body: &[u8], size: usize, key: Option<&Key>, to: &mut Vec<u8>) {
        let tag = key.map_or(0, |_| TAG);
        let least = HEAD + body.len();
        let length = if self.kind == Kind::Mad {
            least
        } else {
            size.min(PROBE_MAX).saturating_sub(tag).max(least)
        };
        let [_, qpn @ ..] = self.qpn.to_be_bytes();
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            flags: if key.is_some() { TAGGED } else { 0 },
            qpn,
            lid: self.lid.into(),
            length: (length as u16).into(),
            reserved: [0; 2],
            version_class_flow: GRH_VERSION.into(),
            payload: ((length - HEAD + TRANSPORT) as u16).into(),
            next: NEXT,
            hops: HOPS,
            sgid: self.sgid.0,
            dgid: self.dgid.0,
        };
        to.clear();
        to.extend_from_slice(head.as_bytes());
        to.extend_from_slice(body);
        to.resize(length, 0);
        if let Some(key) = key {
            to.extend_from_slice(&key.tag(&to[..length]));
        }
    }
}

impl<'a> Frame<'a> {
    /// Parses a datagram. With a key, the tag is checked before any other content.
    ///
    /// # Errors
    /// [`BadFrame`], when the bytes are not a frame.
    pub fn read(bytes: &'a [u8], key: Option<&Key>) -> Result<Self, BadFrame> {
        if bytes.len() > PROBE_MAX {
            return Err(BadFrame::Size);
        }
        let (head, _) = Head::read_from_prefix(bytes).map_err(|_| BadFrame::Size)?;
        if head.magic != MAGIC {
            return Err(BadFrame::Magic);
        }
        if head.version != VERSION {
            return Err(BadFrame::Version);
        }
        let signed = match (head.flags, key) {
            (0, None) => bytes,
            (TAGGED, Some(key)) => key.checked(bytes).ok_or(BadFrame::Tag)?,
            (0, Some(_)) => return Err(BadFrame::Untagged),
            (TAGGED, None) => return Err(BadFrame::Tagged),
            _ => return Err(BadFrame::Kind),
        };
        let kind = Kind::of(head.kind).ok_or(BadFrame::Kind)?;
        let body = signed.get(HEAD..).ok_or(BadFrame::Size)?;
        let fits = if kind == Kind::Mad {
            body.len() == MAD
        } else {
            body.len() >= TOKEN
        };
        if !fits || usize::from(head.length.get()) != signed.len() {
            return Err(BadFrame::Size);
        }
        if head.version_class_flow.get() >> 28 != 6 || head.next != NEXT {
            return Err(BadFrame::Grh);
        }
        let [a, b, c] = head.qpn;
        let header = Header {
            kind,
            qpn: u32::from_be_bytes([0, a, b, c]),
            lid: head.lid.get(),
            sgid: Gid(head.sgid),
            dgid: Gid(head.dgid),
        };
        Ok(Self { header, body })
    }

    /// Returns the MAD, if the frame has one.
    #[must_use]
    pub fn mad(&self) -> Option<&'a [u8; MAD]> {
        self.body.first_chunk().filter(|_| self.header.kind == Kind::Mad)
    }

    /// Returns the token of a probe or an echo.
    #[must_use]
    pub(super) fn token(&self) -> Option<[u8; TOKEN]> {
        self.body
            .first_chunk()
            .copied()
            .filter(|_| self.header.kind != Kind::Mad)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            qpn: 0x01_0203,
            lid: 0x0405,
            sgid: "::ffff:10.0.0.1".parse().unwrap(),
            dgid: "ff15:4001:ffff:3:4::".parse().unwrap(),
        }
    }

    fn written(kind: Kind, body: &[u8], size: usize, key: Option<&Key>) -> Vec<u8> {
        let mut bytes = vec![7; 3];
        header(kind).write(body, size, key, &mut bytes);
        bytes
    }

    #[test]
    fn golden_bytes() {
        let mad = [0xab; MAD];
        let bytes = written(Kind::Mad, &mad, 0, None);
        let golden = [
            b'd', b'b', b'A', b'C', 1, 1, 0, 1, 2, 3, 4, 5, 1, 56, 0, 0, //
            0x60, 0, 0, 0, 1, 24, 0x1b, 1, //
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, //
            0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[..HEAD], golden);
        assert_eq!((bytes.len(), &bytes[HEAD..]), (FRAME, &mad[..]));
        let frame = Frame::read(&bytes, None).unwrap();
        assert_eq!((frame.header, frame.mad()), (header(Kind::Mad), Some(&mad)));
    }

    #[test]
    fn probes_have_the_requested_size() {
        let key = Key::of_job(&[1; 32]);
        for key in [None, Some(&key)] {
            for size in [PROBE + TAG, 1000, PROBE_MAX] {
                let bytes = written(Kind::Probe, &[9; TOKEN], size, key);
                assert_eq!(bytes.len(), size);
                let frame = Frame::read(&bytes, key).unwrap();
                assert_eq!((frame.token(), frame.mad()), (Some([9; TOKEN]), None));
            }
            assert_eq!(written(Kind::Echo, &[9; TOKEN], 1 << 20, key).len(), PROBE_MAX);
            assert!(written(Kind::Echo, &[9; TOKEN], 0, key).len() <= PROBE + TAG);
        }
    }

    #[test]
    fn every_byte_is_under_the_tag() {
        let key = Key::of_job(&[1; 32]);
        let bytes = written(Kind::Mad, &[5; MAD], 0, Some(&key));
        assert_eq!(bytes.len(), FRAME_TAGGED);
        assert!(Frame::read(&bytes, Some(&key)).is_ok());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(Frame::read(&other, Some(&key)).is_err(), "byte {at}");
        }
        let stranger = Key::of_job(&[2; 32]);
        assert_eq!(Frame::read(&bytes, Some(&stranger)), Err(BadFrame::Tag));
        assert_eq!(Frame::read(&bytes, None), Err(BadFrame::Tagged));
        let open = written(Kind::Mad, &[5; MAD], 0, None);
        assert_eq!(Frame::read(&open, Some(&key)), Err(BadFrame::Untagged));
    }

    #[test]
    fn what_is_no_frame_is_said_why() {
        let good = written(Kind::Mad, &[5; MAD], 0, None);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (at, byte, why) in [
            (0, 0, BadFrame::Magic),
            (4, 2, BadFrame::Version),
            (5, 0, BadFrame::Kind),
            (6, 2, BadFrame::Kind),
            (13, 0, BadFrame::Size),
            (16, 0x40, BadFrame::Grh),
            (22, 17, BadFrame::Grh),
        ] {
            assert_eq!(Frame::read(&with(at, byte), None), Err(why), "byte {at}");
        }
        for cut in 0..good.len() {
            assert!(Frame::read(&good[..cut], None).is_err(), "{cut} bytes");
        }
        assert_eq!(Frame::read(&[0; PROBE_MAX + 1], None), Err(BadFrame::Size));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500), ours in any::<bool>()) {
            let head = if ours { &MAGIC[..] } else { &[] };
            let bytes = [head, &bytes].concat();
            let _ = Frame::read(&bytes, None);
            let _ = Frame::read(&bytes, Some(&Key::of_job(&[1; 32])));
        }
    }
}

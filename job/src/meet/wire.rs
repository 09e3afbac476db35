//! Frames between the ranks and rank 0: sixteen fixed bytes, then JSON of limited length.
//!
//! ```text
//!   0        8         10      12        16
//!   │doorbell│ version │ kind  │ length  │ body …
//! ```

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian};

/// The version of these frames.
pub(super) const VERSION: u16 = 3;
/// Longest hello or refusal, in bytes.
pub(super) const LONGEST_HELLO: usize = 64 << 10;
/// Longest table, in bytes.
pub(super) const LONGEST_TABLE: usize = 256 << 20;
const MAGIC: [u8; 8] = *b"doorbell";

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What a rank publishes about itself.
    Hello,
    /// The hellos of all ranks.
    Table,
    /// The hellos contradict each other; the body has the reason.
    Refusal,
    /// Ranks did not join; the body names them.
    Absent,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::Hello => 1,
            Self::Table => 2,
            Self::Refusal => 3,
            Self::Absent => 4,
        }
    }

    fn longest(self) -> usize {
        if self == Self::Table {
            LONGEST_TABLE
        } else {
            LONGEST_HELLO
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: little_endian::U16,
    kind: little_endian::U16,
    length: little_endian::U32,
}
const HEAD: usize = 16;
const _: () = assert!(size_of::<Head>() == HEAD);

/// Makes a frame, ready to be sent; `None` when the body is longer than its kind allows.
pub(super) fn frame(kind: Kind, body: &[u8]) -> Option<Vec<u8>> {
    if body.len() > kind.longest() {
        return None;
    }
    let head = Head {
        magic: MAGIC,
        version: VERSION.into(),
        kind: kind.number().into(),
        length: u32::try_from(body.len()).ok()?.into(),
    };
    Some([head.as_bytes(), body].concat())
}

/// Why bytes are no valid frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// The magic number of another protocol.
    Magic,
    /// Another version of the protocol.
    Version(u16),
    /// A kind that is not expected now.
    Kind(u16),
    /// A body longer than its kind allows.
    Length(u32),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => out.write_str("it speaks another protocol"),
            Self::Version(theirs) => write!(
                out,
                "it speaks version {theirs} of the meeting, we speak {VERSION}"
            ),
            Self::Kind(kind) => write!(out, "it sent a frame of kind {kind} out of turn"),
            Self::Length(length) => write!(out, "it announced {length} bytes, which is too long"),
        }
    }
}

/// Collects the bytes of one frame, in whatever pieces they arrive.
#[derive(Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    /// Returns how many more bytes the next step needs: first the head, then the length that it announces.
    pub(super) fn wanted(&self, allowed: &[Kind]) -> Result<usize, Bad> {
        let Some((head, _)) = self
            .bytes
            .get(..HEAD)
            .and_then(|head| Head::read_from_prefix(head).ok())
        else {
            return Ok(HEAD - self.bytes.len());
        };
        if head.magic != MAGIC {
            return Err(Bad::Magic);
        }
        if head.version.get() != VERSION {
            return Err(Bad::Version(head.version.get()));
        }
        let kind = allowed.iter().find(|kind| kind.number() == head.kind.get());
        let kind = kind.ok_or(Bad::Kind(head.kind.get()))?;
        let length = head.length.get() as usize;
        if length > kind.longest() {
            return Err(Bad::Length(head.length.get()));
        }
        Ok((HEAD + length).saturating_sub(self.bytes.len()))
    }

    /// Returns the frame's kind and body, once it is complete.
    pub(super) fn finished(&self, allowed: &[Kind]) -> Result<Option<(Kind, &[u8])>, Bad> {
        if self.bytes.len() < HEAD || self.wanted(allowed)? > 0 {
            return Ok(None);
        }
        let number = u16::from_le_bytes([self.bytes[10], self.bytes[11]]);
        let kind = allowed.iter().copied().find(|kind| kind.number() == number);
        kind.map(|kind| Some((kind, &self.bytes[HEAD..])))
            .ok_or(Bad::Kind(number))
    }

    /// Adds bytes without a socket.
    #[cfg(any(test, fuzzing))]
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads what `socket` has, never more than the frame; `Ok(false)` when the other side has closed.
    pub(super) fn read(&mut self, socket: &OwnedFd, allowed: &[Kind]) -> io::Result<bool> {
        let mut piece = [0; 4096];
        loop {
            let wanted = match self.wanted(allowed) {
                Ok(0) => return Ok(true),
                Ok(wanted) => wanted.min(piece.len()),
                Err(bad) => return Err(io::Error::new(io::ErrorKind::InvalidData, bad.to_string())),
            };
            match recv(socket, &mut piece[..wanted], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(false),
                Ok((n, _)) => self.bytes.extend_from_slice(&piece[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Writes the rest of `bytes` from `at`; returns the new position. Never blocks, never raises SIGPIPE.
pub(super) fn write(socket: &OwnedFd, bytes: &[u8], mut at: usize) -> io::Result<usize> {
    while at < bytes.len() {
        match send(socket, &bytes[at..], SendFlags::NOSIGNAL) {
            Ok(n) => at += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let bytes = frame(Kind::Hello, b"{}").unwrap();
        assert_eq!(bytes, b"doorbell\x03\x00\x01\x00\x02\x00\x00\x00{}");
        let mut reader = Reader::default();
        for byte in &bytes {
            assert_eq!(reader.finished(&[Kind::Hello]), Ok(None));
            reader.take(&[*byte]);
        }
        assert_eq!(
            reader.finished(&[Kind::Hello]),
            Ok(Some((Kind::Hello, &b"{}"[..])))
        );
        assert_eq!(reader.finished(&[Kind::Table]), Err(Bad::Kind(1)));
    }

    #[test]
    fn too_long_bodies_are_refused_on_both_sides() {
        assert!(frame(Kind::Hello, &vec![0; LONGEST_HELLO + 1]).is_none());
        let mut reader = Reader::default();
        reader.take(b"doorbell\x03\x00\x01\x00\xff\xff\xff\xff");
        assert_eq!(reader.finished(&[Kind::Hello]), Err(Bad::Length(u32::MAX)));
        let mut reader = Reader::default();
        reader.take(b"doorbell\x01\x00\x01\x00\x00\x00\x00\x00");
        assert_eq!(reader.finished(&[Kind::Hello]), Err(Bad::Version(1)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), ours in any::<bool>()) {
            let mut reader = Reader::default();
            if ours { reader.take(b"doorbell\x03\x00"); }
            reader.take(&bytes);
            let _ = reader.finished(&[Kind::Hello, Kind::Refusal]);
        }
    }
}

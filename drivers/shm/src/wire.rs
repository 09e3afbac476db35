//! The two handshake messages, little endian, sent once per lane over its socket.
//!
//! [`Hello`] (with the lane object and the lease object) goes from the sender to the receiver, [`Welcome`]
//! (with the control object, the ready object and the lease object, in this order) comes back. Every field is
//! validated before use.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use doorbell_ring::lane::Geometry;

/// `DBSHMLNE`, as bytes on the wire.
const MAGIC: [u8; 8] = *b"DBSHMLNE";
/// Raised whenever a layout in this file, of the lane, of the control block or of the leases changes.
const VERSION: u32 = 8;

/// Identity of a rail: the random name of its socket.
pub(crate) type Id = [u8; 16];

/// The first message on a lane's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    magic: [u8; 8],
    version: U32,
    /// Epoch of the connection at the sender's end (`reconnect`).
    pub(crate) epoch: U32,
    /// Identity of the sender.
    pub(crate) id: Id,
    /// Incarnation of the sender.
    pub(crate) incarnation: U64,
    /// Incarnation of the receiver that the sender expects.
    pub(crate) expected: U64,
    cells: U32,
    data: U32,
    /// Address of `nonce` in the sender's memory.
    pub(crate) nonce_address: U64,
    pub(crate) nonce: [u8; 16],
    /// Epoch of the receiver's end, as far as the sender knows.
    pub(crate) peer_epoch: U32,
    /// The sender's acquaintance with the receiver (`forget`).
    pub(crate) term: U32,
    /// The receiver's with the sender, as far as the sender knows; zero if it does not.
    pub(crate) peer_term: U32,
    reserved: U32,
}
const _: () = assert!(size_of::<Hello>() == 96);

/// The receiver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Welcome {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    /// The sender's bit in the ready object.
    pub(crate) bit: U32,
    /// The receiver's acquaintance with the sender.
    pub(crate) term: U32,
    /// Incarnation of the receiver.
    pub(crate) incarnation: U64,
    /// Address of `nonce` in the receiver's memory.
    pub(crate) nonce_address: U64,
    pub(crate) nonce: [u8; 16],
}
const _: () = assert!(size_of::<Welcome>() == 56);

/// Flag: the receiver can read the sender's memory, so leases are useful.
const CAN_PULL: u32 = 1;
/// Flag: the receiver has no membarrier, so the sender has to fence after each message.
const NEEDS_FENCE: u32 = 2;
/// Flag: no welcome at all, but the word that the receiver has forgotten the sender; nothing else counts, and
/// no descriptor is passed.
const FORGOTTEN: u32 = 4;

impl Hello {
    pub(crate) fn new(
        id: Id,
        incarnation: u64,
        expected: u64,
        geometry: Geometry,
        nonce: (&[u8; 16], u64),
        epochs: [u32; 2],
        terms: [u32; 2],
    ) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION.into(),
            epoch: epochs[0].into(),
            id,
            incarnation: incarnation.into(),
            expected: expected.into(),
            cells: (geometry.cells() as u32).into(),
            data: (geometry.data() as u32).into(),
            nonce_address: nonce.1.into(),
            nonce: *nonce.0,
            peer_epoch: epochs[1].into(),
            term: terms[0].into(),
            peer_term: terms[1].into(),
            reserved: 0.into(),
        }
    }

    /// Parses and validates a hello.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, Geometry), &'static str> {
        let hello = Self::read_from_bytes(bytes).map_err(|_| "sent a first message of the wrong length")?;
        if hello.magic != MAGIC || hello.version.get() != VERSION {
            return Err("speaks another version of the shm rail");
        }
        let geometry = Geometry::new(hello.cells.get() as usize, hello.data.get() as usize)
            .map_err(|_| "named an impossible lane size")?;
        Ok((hello, geometry))
    }
}

impl Welcome {
    pub(crate) fn new(
        (bit, term): (u32, u32),
        incarnation: u64,
        (can_pull, needs_fence): (bool, bool),
        nonce: (&[u8; 16], u64),
    ) -> Self {
        let flags = if can_pull { CAN_PULL } else { 0 } | if needs_fence { NEEDS_FENCE } else { 0 };
        Self {
            magic: MAGIC,
            version: VERSION.into(),
            flags: flags.into(),
            bit: bit.into(),
            term: term.into(),
            incarnation: incarnation.into(),
            nonce_address: nonce.1.into(),
            nonce: *nonce.0,
        }
    }

    /// The answer to a sender that speaks of an acquaintance which the receiver has ended.
    pub(crate) fn forgotten(incarnation: u64) -> Self {
        let mut word = Self::new((0, 0), incarnation, (false, false), (&[0; 16], 0));
        word.flags = FORGOTTEN.into();
        word
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let welcome = Self::read_from_bytes(bytes).map_err(|_| "sent an answer of the wrong length")?;
        if welcome.magic != MAGIC || welcome.version.get() != VERSION {
            return Err("speaks another version of the shm rail");
        }
        if welcome.bit.get() as usize >= crate::config::PEERS_MAX {
            return Err("named an impossible ready bit");
        }
        Ok(welcome)
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.flags.get() & FORGOTTEN != 0
    }

    pub(crate) fn can_pull(&self) -> bool {
        self.flags.get() & CAN_PULL != 0
    }

    pub(crate) fn needs_fence(&self) -> bool {
        self.flags.get() & NEEDS_FENCE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_hello() {
        let geometry = Geometry::new(1024, 65536).unwrap();
        let hello = Hello::new(
            [0xab; 16],
            0x0102_0304_0506_0708,
            9,
            geometry,
            (&[0xcd; 16], 0x1122),
            [0x0a0b, 0x0c0d],
            [0x0e0f, 0x1011],
        );
        let mut golden = b"DBSHMLNE\x08\0\0\0\x0b\x0a\0\0".to_vec();
        golden.extend([0xab; 16]);
        golden.extend([8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0, 4, 0, 0, 0, 0, 1, 0]);
        golden.extend([0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        golden.extend([0xcd; 16]);
        golden.extend([0x0d, 0x0c, 0, 0, 0x0f, 0x0e, 0, 0, 0x11, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(hello.as_bytes(), golden);
        assert_eq!(Hello::parse(&golden), Ok((hello, geometry)));
    }

    #[test]
    fn golden_welcome() {
        let welcome = Welcome::new((3, 0x0506), 7, (true, false), (&[0xee; 16], 0x3344));
        let mut golden = b"DBSHMLNE\x08\0\0\0\x01\0\0\0".to_vec();
        golden.extend([3, 0, 0, 0, 6, 5, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0x44, 0x33, 0, 0, 0, 0, 0, 0]);
        golden.extend([0xee; 16]);
        assert_eq!(welcome.as_bytes(), golden);
        assert_eq!(Welcome::parse(&golden), Ok(welcome));
        assert!(welcome.can_pull() && !welcome.needs_fence() && !welcome.is_forgotten());
        let word = Welcome::forgotten(7);
        assert!(Welcome::parse(word.as_bytes()).unwrap().is_forgotten());
        assert_eq!(
            word.as_bytes()[..24],
            *b"DBSHMLNE\x08\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0"
        );
    }

    #[test]
    fn strange_bytes_are_refused_with_a_reason() {
        let geometry = Geometry::new(1024, 65536).unwrap();
        let good = Hello::new([1; 16], 2, 3, geometry, (&[4; 16], 5), [0, 0], [1, 0]);
        assert!(Hello::parse(&good.as_bytes()[1..]).is_err());
        for (at, value) in [(0, b'X'), (8, 1), (48, 3), (51, 0xff)] {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            assert!(Hello::parse(&bytes).is_err(), "byte {at}");
        }
        let mut bytes = Welcome::new((0, 1), 1, (false, true), (&[0; 16], 0))
            .as_bytes()
            .to_vec();
        bytes[18] = 1;
        assert!(Welcome::parse(&bytes).is_err());
    }
}

//! Descriptors: what the rings hold (82576EB datasheet, sections 7.1.5 and 7.2.2, "advanced").
//!
//! All numbers are little endian.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of every descriptor.
pub(crate) const DESCRIPTOR: usize = 16;

/// What the device is given to receive into.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReceiveDescriptor {
    pub(crate) packet: U64,
    /// The buffer of headers apart; the device looks at its lowest bit as "done" until it writes it.
    pub(crate) header: U64,
}

/// The descriptor when the device has written it back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Received {
    pub(crate) kind: U32,
    pub(crate) hash: U32,
    /// Status in the lower bits, errors from bit 20 on.
    pub(crate) status: U32,
    pub(crate) length: U16,
    pub(crate) vlan: U16,
}

/// Where in a descriptor a status is.
pub(crate) const RECEIVED_STATUS: usize = 8;
/// Status: done; the end of its packet; the transport's checksum was checked (bit 4 means that it was UDP's).
pub(crate) const DONE: u32 = 1;
pub(crate) const END: u32 = 1 << 1;
pub(crate) const CHECKED_TRANSPORT: u32 = 1 << 5;
/// Errors: the transport's checksum, IPv4's, and what the wire did.
pub(crate) const WRONG_TRANSPORT: u32 = 1 << 29;
pub(crate) const WRONG_IP: u32 = 1 << 30;
pub(crate) const WRONG_FRAME: u32 = 1 << 31;

/// What is sent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SendDescriptor {
    pub(crate) packet: U64,
    pub(crate) command: U32,
    /// Status in the lowest bits once it is written back.
    pub(crate) options: U32,
}

/// Where in a descriptor these are.
pub(crate) const SEND_COMMAND: usize = 8;
pub(crate) const SEND_STATUS: usize = 12;

/// Command: advanced data; the end of a packet; with the link's checksum; report when done.
pub(crate) const DATA: u32 = 0x0030_0000 | 1 << 29;
pub(crate) const CONTEXT: u32 = 0x0020_0000 | 1 << 29;
pub(crate) const END_OF_PACKET: u32 = 1 << 24;
pub(crate) const LINK_CHECKSUM: u32 = 1 << 25;
pub(crate) const REPORT: u32 = 1 << 27;
/// Options: the length of the payload is from here on; insert the transport's checksum.
pub(crate) const PAYLOAD_SHIFT: u32 = 14;
pub(crate) const INSERT_TRANSPORT: u32 = 1 << 9;

/// What the packets after it have in common, until the next one: with it the device finds UDP's header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ContextDescriptor {
    pub(crate) lengths: U32,
    pub(crate) seed: U32,
    pub(crate) kind: U32,
    pub(crate) index: U32,
}

/// Bit of `kind`: IPv4. The transport is UDP where no other is set.
pub(crate) const KIND_IPV4: u32 = 1 << 10;

impl ContextDescriptor {
    /// Packets of UDP over IPv4 or IPv6 without options.
    pub(crate) fn udp(is_ipv4: bool) -> Self {
        let (link, ip) = (14u32, if is_ipv4 { 20 } else { 40 });
        Self {
            lengths: (link << 9 | ip).into(),
            seed: 0.into(),
            kind: (CONTEXT | if is_ipv4 { KIND_IPV4 } else { 0 }).into(),
            index: 0.into(),
        }
    }
}

impl SendDescriptor {
    /// A whole packet of `length` bytes.
    pub(crate) fn packet(at: u64, length: usize, checksum: bool) -> Self {
        let length = length as u32;
        Self {
            packet: at.into(),
            command: (DATA | END_OF_PACKET | LINK_CHECKSUM | length).into(),
            options: (length << PAYLOAD_SHIFT | if checksum { INSERT_TRANSPORT } else { 0 }).into(),
        }
    }
}

const _: () = assert!(size_of::<ReceiveDescriptor>() == DESCRIPTOR && size_of::<Received>() == DESCRIPTOR);
const _: () =
    assert!(size_of::<SendDescriptor>() == DESCRIPTOR && size_of::<ContextDescriptor>() == DESCRIPTOR);
const _: () = assert!(memoffset::offset_of!(Received, status) == RECEIVED_STATUS);
const _: () = assert!(memoffset::offset_of!(SendDescriptor, command) == SEND_COMMAND);
const _: () = assert!(memoffset::offset_of!(SendDescriptor, options) == SEND_STATUS);

#[cfg(test)]
mod tests {
    use super::*;

    /// As the datasheet has them.
    #[test]
    fn descriptors_have_these_bytes() {
        let data = SendDescriptor::packet(0x1122_3344_5566_7788, 0x5a, true);
        #[rustfmt::skip]
        let expected = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
            0x5a, 0x00, 0x30, 0x23,
            0x00, 0x82, 0x16, 0x00,
        ];
        assert_eq!(data.as_bytes(), expected);
        let four = ContextDescriptor::udp(true);
        assert_eq!(
            four.as_bytes(),
            [0x14, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0x04, 0x20, 0x20, 0, 0, 0, 0]
        );
        let six = ContextDescriptor::udp(false);
        assert_eq!(
            six.as_bytes(),
            [0x28, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x20, 0x20, 0, 0, 0, 0]
        );
        let back =
            Received::read_from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0x20, 0x5a, 1, 0, 0]).unwrap();
        assert_eq!(
            back.status.get(),
            DONE | END | 1 << 4 | CHECKED_TRANSPORT | WRONG_TRANSPORT
        );
        assert_eq!(back.length.get(), 0x15a);
    }
}

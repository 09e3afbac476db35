//! Descriptors and completions: what the rings hold. All numbers are little endian, all entries have 16
//! bytes.
//!
//! Sources: libfabric `usnic_direct/{wq_enet_desc,rq_enet_desc,cq_desc,cq_enet_desc}.h`, DPDK
//! `enic/base/cq_enet_desc.h`.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of every descriptor and completion.
pub const ENTRY: usize = 16;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendDescriptor {
    /// Bus address of the bytes.
    pub address: U64,
    /// Bits 0 to 13: how many. (0 means 16384 `[I]`; it is never sent from here.)
    pub length: U16,
    /// Bit 1: loopback; bits 2 to 15: `mss`, which selects checksums where the mode is 0.
    pub mss: U16,
    /// Bits 0 to 9: header length; 10, 11: offload mode; then the flags below.
    pub flags: U16,
    /// The tag to insert, where a flag requests it.
    pub vlan: U16,
}

/// Where in a descriptor its flags are.
pub(crate) const SEND_FLAGS: usize = 12;
/// The end of a frame; a completion is wanted.
pub(crate) const END: u16 = 1 << 12;
pub(crate) const REPORT: u16 = 1 << 13;
/// What usNIC puts into `mss` in mode 0: bit 0 requests IPv4's checksum, bit 1 UDP's, both from scratch. The
/// meaning of bit 2 is unknown `[U]`; libfabric sets it in every descriptor, so it is set here too.
const BOTH_CHECKSUMS: u16 = 7 << 2;

impl SendDescriptor {
    /// A whole frame of `length` bytes, without a report.
    #[must_use]
    pub fn frame(address: u64, length: u16, checksums: bool) -> Self {
        Self {
            address: address.into(),
            length: length.into(),
            mss: if checksums { BOTH_CHECKSUMS } else { 0 }.into(),
            flags: END.into(),
            vlan: 0.into(),
        }
    }

    /// Returns the same descriptor with the request for a completion.
    #[must_use]
    pub fn reported(self) -> Self {
        Self {
            flags: (self.flags.get() | REPORT).into(),
            ..self
        }
    }
}

/// What is received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveDescriptor {
    /// Bus address of the room.
    pub address: U64,
    /// Bits 0 to 13: how much there is; 14, 15: type, of which 0 is "a frame begins here", 1 "continues
    /// here".
    pub length: U16,
    /// Reserved bytes, which are zero.
    pub reserved: [u8; 6],
}

impl ReceiveDescriptor {
    /// Room for a whole frame. Continuation buffers are not used here: how the device skips those that it
    /// does not need is only inferred `[I]`.
    #[must_use]
    pub fn frame(address: u64, length: u16) -> Self {
        Self {
            address: address.into(),
            length: (length & LENGTH).into(),
            reserved: [0; 6],
        }
    }
}

/// Bits of a length.
pub(crate) const LENGTH: u16 = 0x3fff;

/// What the device writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Completion {
    /// Bits 0 to 11: the descriptor; in a received one also its first and last buffer.
    pub index: U16,
    /// Bits 0 to 9: the queue, as the function numbers its own; bit 14: no checksums.
    pub queue: U16,
    /// The hash; of a classified one, the filter and the interface.
    pub hash: U32,
    /// Bits 0 to 13: bytes in this buffer; bit 14: cut off, or spoilt.
    pub bytes: U16,
    /// The tag that was stripped.
    pub vlan: U16,
    /// The checksum over the packet.
    pub checksum: U16,
    /// What was found of checksums.
    pub verdict: u8,
    /// Bit 7: the colour; the rest: the type. Written last.
    pub kind: u8,
}

/// Where in a completion the colour is.
pub(crate) const KIND: usize = 15;
/// The colour in it, and the type: usNIC's fast path takes seven bits.
pub(crate) const COLOR: u8 = 0x80;
pub(crate) const TYPE: u8 = 0x7f;
/// Types: a frame was sent; one was received by a function without filters; one was received by a filter.
pub const SENT: u8 = 0;
/// A frame was received, in the way of an ordinary vNIC.
pub const RECEIVED: u8 = 3;
/// A frame was received, in the way of usNIC.
pub const CLASSIFIED: u8 = 7;
/// `index`: the descriptor; the last and the first buffer of a frame.
pub(crate) const INDEX: u16 = 0x0fff;
pub(crate) const FRAME_END: u16 = 1 << 14;
pub(crate) const FRAME_START: u16 = 1 << 15;
/// `queue`: its number; no checksums were calculated.
pub(crate) const QUEUE: u16 = 0x03ff;
pub(crate) const UNCHECKED: u16 = 1 << 14;
/// `bytes`: cut off, or not as it was on the wire.
pub(crate) const TRUNCATED: u16 = 1 << 14;
/// `verdict`: the transport's checksum, IPv4's, and the link's are right.
pub(crate) const TRANSPORT_OK: u8 = 1;
pub(crate) const IPV4_OK: u8 = 1 << 3;
pub(crate) const FCS_OK: u8 = 1 << 7;

impl Completion {
    /// The type of the completion.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind & TYPE
    }

    /// The descriptor that it is about.
    #[inline]
    #[must_use]
    pub fn descriptor(&self) -> usize {
        usize::from(self.index.get() & INDEX)
    }

    /// The queue that it is about, as the function numbers its own.
    #[inline]
    #[must_use]
    pub fn number(&self) -> usize {
        usize::from(self.queue.get() & QUEUE)
    }

    /// Bytes in the buffer.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        usize::from(self.bytes.get() & LENGTH)
    }

    /// Whether it is about a frame in one buffer.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let both = FRAME_END | FRAME_START;
        self.index.get() & both == both
    }

    /// Returns how a received frame is.
    #[inline]
    #[must_use]
    pub fn state(&self) -> State {
        const GOOD: u8 = TRANSPORT_OK | IPV4_OK;
        if self.bytes.get() & TRUNCATED != 0 {
            // The link's checksum was not found right: a length of zero means "no room", any other "damaged".
            if self.verdict & FCS_OK == 0 && self.length() == 0 {
                State::Cut
            } else {
                State::Spoilt
            }
        } else if self.queue.get() & UNCHECKED != 0 {
            State::Unchecked
        } else if self.verdict & GOOD == GOOD {
            State::Good
        } else {
            State::Doubtful
        }
    }
}

/// How a received frame is, by the device's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Both checksums were found right.
    Good,
    /// The device did not look.
    Unchecked,
    /// The device did not find both checksums right: wrong, or there is none. (usNIC's own rule drops it.)
    Doubtful,
    /// Longer than the room for it.
    Cut,
    /// The frame is not as it was on the wire.
    Spoilt,
}

const _: () = assert!(size_of::<SendDescriptor>() == ENTRY && size_of::<ReceiveDescriptor>() == ENTRY);
const _: () = assert!(size_of::<Completion>() == ENTRY);
const _: () = assert!(memoffset::offset_of!(SendDescriptor, flags) == SEND_FLAGS);
const _: () = assert!(memoffset::offset_of!(Completion, kind) == KIND);
const _: () = assert!(memoffset::offset_of!(Completion, bytes) == 8);

/// A work queue's doorbell with a prefetch hint: what the device is about to read, in lines of 32 bytes.
///
/// Bits 0 to 11: the index; 16 to 20: lines, 0 for more than 31; 21 to 63: the address without its lowest
/// five bits.
#[inline]
#[must_use]
pub fn hinted(index: u32, address: u64, length: usize) -> u64 {
    let lines = ((address & 31) as usize + length).div_ceil(32);
    let lines = if lines > 31 { 0 } else { lines as u64 };
    u64::from(index & u32::from(INDEX)) | lines << 16 | (address >> 5) << 21
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_send_descriptor_has_these_bytes() {
        let sent = SendDescriptor::frame(0x1122_3344_5566_7788, 100, true).reported();
        #[rustfmt::skip]
        let expected = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
            0x64, 0x00, 0x1c, 0x00, 0x00, 0x30, 0x00, 0x00,
        ];
        assert_eq!(sent.as_bytes(), expected);
        let plain = SendDescriptor::frame(1, 60, false);
        assert_eq!(
            plain.as_bytes(),
            [1, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0x10, 0, 0]
        );
    }

    #[test]
    fn a_receive_descriptor_marks_the_start_of_a_frame() {
        let room = ReceiveDescriptor::frame(0x0102_0304_0506_0708, 2048);
        assert_eq!(
            room.as_bytes(),
            [8, 7, 6, 5, 4, 3, 2, 1, 0x00, 0x08, 0, 0, 0, 0, 0, 0]
        );
        let most = ReceiveDescriptor::frame(0, u16::MAX);
        assert_eq!(most.length.get(), LENGTH, "never of another type");
    }

    fn received(bytes: [u8; ENTRY]) -> Completion {
        Completion::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn a_good_usnic_receive_reads_as_one() {
        // Descriptor 0x123, first and last buffer; queue 5; 64 bytes; everything found right; classified,
        // colour 1.
        let good = received([0x23, 0xc1, 5, 0, 9, 0, 2, 0, 64, 0, 0, 0, 0, 0, 0xab, 0x87]);
        assert_eq!(
            (good.kind(), good.descriptor(), good.number(), good.length()),
            (CLASSIFIED, 0x123, 5, 64)
        );
        assert!(good.is_whole() && good.kind & COLOR != 0);
        assert_eq!(good.state(), State::Good);
        let plain = received([0, 0xc0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0xab, 3]);
        assert_eq!((plain.kind(), plain.kind & COLOR), (RECEIVED, 0));
    }

    #[test]
    fn every_way_of_being_wrong_has_its_name() {
        let with = |queue: u16, bytes: u16, verdict: u8| {
            received([
                0,
                0xc0,
                queue as u8,
                (queue >> 8) as u8,
                0,
                0,
                0,
                0,
                bytes as u8,
                (bytes >> 8) as u8,
                0,
                0,
                0,
                0,
                verdict,
                0x87,
            ])
            .state()
        };
        assert_eq!(with(0, 64, 0xab), State::Good);
        assert_eq!(with(UNCHECKED, 64, 0xab), State::Unchecked);
        assert_eq!(with(0, 64, 0xab & !TRANSPORT_OK), State::Doubtful);
        assert_eq!(with(0, 64, 0xab & !IPV4_OK), State::Doubtful);
        assert_eq!(with(0, TRUNCATED, 0x20), State::Cut);
        assert_eq!(with(0, TRUNCATED | 64, 0x20), State::Spoilt);
        assert_eq!(
            with(0, TRUNCATED, 0xab),
            State::Spoilt,
            "by the rule of usNIC's library"
        );
        assert!(!received([0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x87]).is_whole());
    }

    #[test]
    fn the_reference_doorbell_with_its_hint() {
        assert_eq!(hinted(1, 0x10000, 100), 0x0000_0001_0004_0001);
        assert_eq!(hinted(0x1fff, 0, 1), 0x0001_0fff, "the index has twelve bits");
        assert_eq!(hinted(2, 31, 2) >> 16 & 31, 2, "two lines are touched");
        assert_eq!(hinted(2, 0, 32 * 32) >> 16 & 31, 0, "too many for the field");
        assert_eq!(hinted(0, u64::MAX, 0) >> 21, (1 << 43) - 1);
    }
}

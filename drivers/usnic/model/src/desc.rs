//! Descriptors and completion entries, as bytes (4.5).

/// Bytes of each.
pub(crate) const LENGTH: usize = 16;
/// The most entries of a send or receive ring, and the bits of an index.
pub(crate) const RING_MOST: u32 = 4096;
pub(crate) const INDEX_MASK: u32 = 0xfff;

/// The offload mode of a frame: which checksums and segments the device makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The bits of `mss` select checksums.
    Csum,
    Reserved,
    /// Software has put the pseudo header's sum there.
    CsumL4,
    /// Segments of `mss` bytes.
    Tso,
}

/// A send descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WqDesc {
    pub(crate) address: u64,
    /// The length as it is in the descriptor: 0 to 16383.
    pub(crate) length: u16,
    pub(crate) loopback: bool,
    pub(crate) mss: u16,
    pub(crate) header_length: u16,
    pub(crate) mode: Mode,
    pub(crate) eop: bool,
    pub(crate) cq_entry: bool,
    pub(crate) fcoe: bool,
    pub(crate) vlan: Option<u16>,
}

impl WqDesc {
    pub(crate) fn parse(bytes: &[u8; LENGTH]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (mss, flags) = (word(10), word(12));
        Self {
            address: address(bytes),
            length: word(8) & 0x3fff,
            loopback: mss & 2 != 0,
            mss: mss >> 2,
            header_length: flags & 0x3ff,
            mode: match flags >> 10 & 3 {
                0 => Mode::Csum,
                1 => Mode::Reserved,
                2 => Mode::CsumL4,
                _ => Mode::Tso,
            },
            eop: flags & 1 << 12 != 0,
            cq_entry: flags & 1 << 13 != 0,
            fcoe: flags & 1 << 14 != 0,
            vlan: (flags & 1 << 15 != 0).then(|| word(14)),
        }
    }
}

fn address(bytes: &[u8; LENGTH]) -> u64 {
    let mut address = [0; 8];
    address.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(address)
}

/// What a receive buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RqKind {
    /// A frame starts in it.
    OnlySop,
    /// The buffer continues a frame.
    NotSop,
    Reserved,
}

/// A receive descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RqDesc {
    pub(crate) address: u64,
    /// The length in bytes; 0 means 16384 \[I\].
    pub(crate) length: usize,
    pub(crate) kind: RqKind,
}

impl RqDesc {
    pub(crate) fn parse(bytes: &[u8; LENGTH]) -> Self {
        let word = u16::from_le_bytes([bytes[8], bytes[9]]);
        let length = usize::from(word & 0x3fff);
        Self {
            address: address(bytes),
            length: if length == 0 { 16_384 } else { length },
            kind: match word >> 14 {
                0 => RqKind::OnlySop,
                1 => RqKind::NotSop,
                _ => RqKind::Reserved,
            },
        }
    }
}

/// Types of completion entries.
pub(crate) mod entry {
    pub(crate) const WQ_ENET: u8 = 0;
    pub(crate) const RQ_ENET: u8 = 3;
    pub(crate) const CLASSIFIER: u8 = 7;
}

/// A completion entry, but for the colour, which the queue puts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) [u8; LENGTH]);

impl Entry {
    /// The completion of a send descriptor.
    pub(crate) fn sent(index: u16, queue: usize) -> Self {
        let mut bytes = [0; LENGTH];
        bytes[..2].copy_from_slice(&index.to_le_bytes());
        bytes[2..4].copy_from_slice(&(queue as u16 & 0x3ff).to_le_bytes());
        bytes[15] = entry::WQ_ENET;
        Self(bytes)
    }

    /// The completion of a receive buffer.
    pub(crate) fn received(part: &Received) -> Self {
        let mut bytes = [0; LENGTH];
        let first = part.index & 0xfff | u16::from(part.eop) << 14 | u16::from(part.sop) << 15;
        bytes[..2].copy_from_slice(&first.to_le_bytes());
        // No RSS, so no hash; the checksum's value is in no field of a usNIC's.
        bytes[2..4].copy_from_slice(&(part.queue as u16 & 0x3ff).to_le_bytes());
        if part.kind == entry::CLASSIFIER {
            bytes[4..6].copy_from_slice(&part.filter.to_le_bytes());
        }
        let third =
            part.bytes & 0x3fff | u16::from(part.truncated) << 14 | u16::from(part.vlan.is_some()) << 15;
        bytes[8..10].copy_from_slice(&third.to_le_bytes());
        bytes[10..12].copy_from_slice(&part.vlan.unwrap_or(0).to_le_bytes());
        bytes[14] = part.flags;
        bytes[15] = part.kind;
        Self(bytes)
    }
}

/// Flags of a received frame (byte 14).
pub(crate) mod flag {
    pub(crate) const L4_OK: u8 = 0x01;
    pub(crate) const UDP: u8 = 0x02;
    pub(crate) const TCP: u8 = 0x04;
    pub(crate) const IPV4_OK: u8 = 0x08;
    pub(crate) const IPV6: u8 = 0x10;
    pub(crate) const IPV4: u8 = 0x20;
    pub(crate) const FRAGMENT: u8 = 0x40;
    pub(crate) const FCS_OK: u8 = 0x80;
}

/// The fields of the completion of one buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) index: u16,
    pub(crate) queue: usize,
    pub(crate) sop: bool,
    pub(crate) eop: bool,
    pub(crate) bytes: u16,
    pub(crate) truncated: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) filter: u16,
    pub(crate) flags: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> [u8; LENGTH] {
        let bytes: Vec<u8> = text
            .split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        bytes.try_into().unwrap()
    }

    #[test]
    fn the_references_send_descriptor_is_read_as_specified() {
        let desc = WqDesc::parse(&bytes("88 77 66 55 44 33 22 11 64 00 1c 00 00 30 00 00"));
        let wanted = WqDesc {
            address: 0x1122_3344_5566_7788,
            length: 100,
            loopback: false,
            mss: 7,
            header_length: 0,
            mode: Mode::Csum,
            eop: true,
            cq_entry: true,
            fcoe: false,
            vlan: None,
        };
        assert_eq!(desc, wanted);
        let other = WqDesc::parse(&bytes("00 00 00 00 00 00 00 00 ff ff 02 00 ff cf 34 12"));
        assert_eq!((other.length, other.loopback, other.mss), (0x3fff, true, 0));
        assert_eq!(
            (other.header_length, other.mode, other.eop),
            (0x3ff, Mode::Tso, false)
        );
        assert_eq!((other.fcoe, other.vlan), (true, Some(0x1234)));
    }

    #[test]
    fn receive_descriptors_have_two_kinds() {
        let desc = RqDesc::parse(&bytes("01 00 00 00 00 00 00 80 dc 05 00 00 00 00 00 00"));
        assert_eq!(
            (desc.address, desc.length, desc.kind),
            (1 << 63 | 1, 1500, RqKind::OnlySop)
        );
        let desc = RqDesc::parse(&bytes("00 00 00 00 00 00 00 00 00 40 00 00 00 00 00 00"));
        assert_eq!((desc.length, desc.kind), (16_384, RqKind::NotSop));
    }

    #[test]
    fn entries_have_these_bytes() {
        assert_eq!(
            Entry::sent(0xabc, 5).0,
            bytes("bc 0a 05 00 00 00 00 00 00 00 00 00 00 00 00 00")
        );
        let part = Received {
            kind: entry::CLASSIFIER,
            index: 0x123,
            queue: 2,
            sop: true,
            eop: true,
            bytes: 60,
            truncated: false,
            vlan: None,
            filter: 9,
            flags: 0xab,
        };
        assert_eq!(
            Entry::received(&part).0,
            bytes("23 c1 02 00 09 00 00 00 3c 00 00 00 00 00 ab 07")
        );
        let cut = Received {
            sop: false,
            bytes: 0,
            truncated: true,
            vlan: Some(0x2005),
            flags: 0,
            ..part
        };
        assert_eq!(
            Entry::received(&cut).0,
            bytes("23 41 02 00 09 00 00 00 00 c0 05 20 00 00 00 07")
        );
    }
}

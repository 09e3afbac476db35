//! Frames as the device looks at them: Ethernet, a VLAN tag, IPv4, UDP or TCP, and their checksums.

use crate::desc::flag;

/// The longest frame that is sent (4.10).
pub(crate) const TX_MOST: usize = 9208;
/// The shortest on the wire, without its FCS.
const LEAST: usize = 60;
/// Room for any frame that goes through the model, with what a tag or padding adds.
pub(crate) const ROOM: usize = 16_640;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAG: u16 = 0x8100;
pub(crate) const UDP: u8 = 17;
const TCP: u8 = 6;

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    frame
        .get(at..at + 2)
        .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The hardware address at an offset.
pub(crate) fn mac(frame: &[u8], at: usize) -> Option<[u8; 6]> {
    frame.get(at..at + 6)?.try_into().ok()
}

/// The header fields of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The type behind a tag, if there is one.
    pub(crate) ethertype: u16,
    pub(crate) vlan: Option<u16>,
    /// Where the IP header begins.
    pub(crate) ip: usize,
    pub(crate) ipv4: Option<Ipv4>,
}

/// The fields of a valid IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4 {
    /// Bytes of the header, and of the packet.
    pub(crate) header: usize,
    pub(crate) total: usize,
    pub(crate) is_fragment: bool,
    pub(crate) protocol: u8,
    /// The source address as a number (the first octet is the highest).
    pub(crate) source: u32,
    pub(crate) destination: u32,
    /// The ports of UDP and TCP, where the packet begins with their header.
    pub(crate) ports: Option<(u16, u16)>,
}

/// Reads a frame.
pub(crate) fn parse(frame: &[u8]) -> Parts {
    let mut parts = Parts {
        ip: 14,
        ..Parts::default()
    };
    let Some(mut kind) = u16_at(frame, 12) else {
        return parts;
    };
    if kind == TAG {
        let (Some(tag), Some(inner)) = (u16_at(frame, 14), u16_at(frame, 16)) else {
            return parts;
        };
        parts.vlan = Some(tag);
        parts.ip = 18;
        kind = inner;
    }
    parts.ethertype = kind;
    if kind == IPV4 {
        parts.ipv4 = ipv4(frame.get(parts.ip..).unwrap_or_default());
    }
    parts
}

fn ipv4(packet: &[u8]) -> Option<Ipv4> {
    let first = *packet.first()?;
    let header = usize::from(first & 15) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    if first >> 4 != 4 || header < 20 || total < header || total > packet.len() {
        return None;
    }
    let fragment = u16_at(packet, 6)?;
    let word = |at: usize| Some(u32::from(u16_at(packet, at)?) << 16 | u32::from(u16_at(packet, at + 2)?));
    let protocol = packet[9];
    let has_ports = matches!(protocol, UDP | TCP) && fragment & 0x1fff == 0 && total >= header + 4;
    Some(Ipv4 {
        header,
        total,
        // More to come, or not the first.
        is_fragment: fragment & 0x3fff != 0,
        protocol,
        source: word(12)?,
        destination: word(16)?,
        ports: match has_ports {
            true => Some((u16_at(packet, header)?, u16_at(packet, header + 2)?)),
            false => None,
        },
    })
}

/// Adds up 16-bit words, most significant byte first.
fn add(bytes: &[u8], mut sum: u64) -> u64 {
    let mut pairs = bytes.chunks_exact(2);
    for pair in &mut pairs {
        sum += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        sum += u64::from(*last) << 8;
    }
    sum
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The sum over UDP's or TCP's part and its pseudo header: 0 where the checksum in it is right.
fn l4(packet: &[u8], ip: &Ipv4) -> u16 {
    let part = &packet[ip.header..ip.total];
    let pseudo = add(&packet[12..20], u64::from(ip.protocol) + part.len() as u64);
    fold(add(part, pseudo))
}

/// Finishes a checksum over everything from `from` on, in whose field the sender has left the sum of the
/// pseudo header, as Linux's enic requests it: where it begins is in the descriptor's header length, and
/// where its field is in the segment size. Returns whether the field is there.
pub(crate) fn finish_checksum(frame: &mut [u8], from: usize, field: usize) -> bool {
    /// UDP's field is there, and zero means none.
    const OF_UDP: usize = 6;
    if field < from || field.checked_add(2).is_none_or(|end| end > frame.len()) {
        return false;
    }
    let sum = match fold(add(&frame[from..], 0)) {
        0 if field - from == OF_UDP => 0xffff,
        sum => sum,
    };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Makes checksums from scratch, whatever is there: of the IPv4 header, of UDP or TCP behind it (4.5).
pub(crate) fn make_checksums(frame: &mut [u8], of_ip: bool, of_l4: bool) {
    let parts = parse(frame);
    let Some(ip) = parts.ipv4 else { return };
    let packet = &mut frame[parts.ip..];
    if of_ip {
        packet[10..12].fill(0);
        let sum = fold(add(&packet[..ip.header], 0));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let field = match ip.protocol {
        UDP => 6,
        TCP => 16,
        _ => return,
    };
    let at = ip.header + field;
    if !of_l4 || ip.is_fragment || at + 2 > ip.total {
        return;
    }
    packet[at..at + 2].fill(0);
    let sum = match l4(packet, &ip) {
        // Zero would mean that there is none.
        0 if ip.protocol == UDP => 0xffff,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns what the device found, as flags of a completion (8.6): without the FCS, which is the wire's.
pub(crate) fn flags(frame: &[u8], parts: &Parts) -> u8 {
    if parts.ethertype == IPV6 {
        return flag::IPV6;
    }
    if parts.ethertype != IPV4 {
        return 0;
    }
    let Some(ip) = &parts.ipv4 else { return flag::IPV4 };
    let packet = &frame[parts.ip..];
    let mut flags = flag::IPV4;
    if fold(add(&packet[..ip.header], 0)) == 0 {
        flags |= flag::IPV4_OK;
    }
    if ip.is_fragment {
        return flags | flag::FRAGMENT;
    }
    let (kind, field) = match ip.protocol {
        UDP => (flag::UDP, 6),
        TCP => (flag::TCP, 16),
        _ => return flags,
    };
    flags |= kind;
    let at = ip.header + field;
    if at + 2 > ip.total {
        return flags;
    }
    // UDP without a checksum cannot be wrong.
    let has_none = ip.protocol == UDP && packet[at..at + 2] == [0, 0];
    if has_none || l4(packet, ip) == 0 {
        flags |= flag::L4_OK;
    }
    flags
}

/// Pads a frame to what is sent at least; the new length. One without bytes stays so.
pub(crate) fn pad(room: &mut [u8], length: usize) -> usize {
    if length == 0 || length >= LEAST {
        return length;
    }
    room[length..LEAST].fill(0);
    LEAST
}

/// Puts a VLAN tag behind the addresses of the frame of `length` bytes in `room`; the new length.
pub(crate) fn tag(room: &mut [u8], length: usize, vlan: u16) -> usize {
    if length < 12 || length + 4 > room.len() {
        return length;
    }
    room.copy_within(12..length, 16);
    room[12..14].copy_from_slice(&TAG.to_be_bytes());
    room[14..16].copy_from_slice(&vlan.to_be_bytes());
    length + 4
}

/// Takes the tag away; the new length.
pub(crate) fn strip(room: &mut [u8], length: usize) -> usize {
    room.copy_within(16..length, 12);
    length - 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// UDP from 10.0.0.1:7 to 10.0.0.5:5000.
    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
        frame.extend((28 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 8, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 5]);
        frame.extend([0, 7, 0x13, 0x88]);
        frame.extend((8 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_prepared_checksum_is_finished_to_the_one_made_from_scratch() {
        for body in [&b"a"[..], b"abcdef", b""] {
            let mut whole = udp(body);
            make_checksums(&mut whole, true, true);
            let mut prepared = whole.clone();
            // The pseudo header's sum, not inverted.
            let length = (prepared.len() - 34) as u64;
            let pseudo = !fold(add(&prepared[26..34], u64::from(UDP) + length));
            prepared[40..42].copy_from_slice(&pseudo.to_be_bytes());
            assert!(finish_checksum(&mut prepared, 34, 40));
            assert_eq!(prepared, whole);
        }
        let mut short = [0; 60];
        for (from, field) in [(34, 59), (34, 60), (34, 33), (34, usize::MAX), (61, 62)] {
            assert!(!finish_checksum(&mut short, from, field), "{from} {field}");
        }
        assert_eq!(short, [0; 60]);
    }

    #[test]
    fn checksums_are_those_of_a_known_frame() {
        // IPv4: 4500 001d 0000 4000 0811 (1e98) 0a00 0001 0a00 0005; UDP: 0007 1388 0009 (cc37) 00 pads 'a'
        let mut frame = udp(b"a");
        make_checksums(&mut frame, true, true);
        let words: u32 = [0x4500, 0x001d, 0, 0x4000, 0x0811, 0x0a00, 1, 0x0a00, 5]
            .iter()
            .sum();
        let folded = (words & 0xffff) + (words >> 16);
        assert_eq!(u32::from(u16_at(&frame, 24).unwrap()), !folded & 0xffff);
        let words: u32 = [0x0a00, 1, 0x0a00, 5, 17, 9, 7, 0x1388, 9, 0x6100].iter().sum();
        let folded = (words & 0xffff) + (words >> 16);
        assert_eq!(u32::from(u16_at(&frame, 40).unwrap()), !folded & 0xffff);
        assert_eq!(
            flags(&frame, &parse(&frame)),
            flag::IPV4 | flag::IPV4_OK | flag::UDP | flag::L4_OK
        );
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let mut frame = udp(b"payload");
        make_checksums(&mut frame, true, true);
        let mut bad = frame.clone();
        bad[45] ^= 1;
        assert_eq!(flags(&bad, &parse(&bad)), flag::IPV4 | flag::IPV4_OK | flag::UDP);
        let mut bad = frame.clone();
        bad[22] ^= 1; // its time to live
        assert_eq!(flags(&bad, &parse(&bad)), flag::IPV4 | flag::UDP | flag::L4_OK);
        let mut part = frame.clone();
        part[20] = 0x20;
        make_checksums(&mut part, true, true);
        assert_eq!(
            flags(&part, &parse(&part)),
            flag::IPV4 | flag::IPV4_OK | flag::FRAGMENT
        );
        let parts = parse(&frame).ipv4.unwrap();
        assert_eq!((parts.destination, parts.ports), (0x0a00_0005, Some((7, 5000))));
    }

    #[test]
    fn tags_go_in_and_out() {
        let frame = udp(b"x");
        let mut room = [0; 128];
        room[..frame.len()].copy_from_slice(&frame);
        let length = tag(&mut room, frame.len(), 0x2005);
        assert_eq!(
            (length, parse(&room[..length]).vlan),
            (frame.len() + 4, Some(0x2005))
        );
        assert_eq!(parse(&room[..length]).ipv4, parse(&frame).ipv4);
        assert_eq!(strip(&mut room, length), frame.len());
        assert_eq!(room[..frame.len()], frame);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_looked_at(mut frame in prop::collection::vec(any::<u8>(), 0..120), ip in any::<bool>()) {
            if ip && frame.len() > 15 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            }
            let parts = parse(&frame);
            let _ = flags(&frame, &parts);
            make_checksums(&mut frame, true, true);
            if parts.ipv4.is_some_and(|ip| !ip.is_fragment) {
                prop_assert!(flags(&frame, &parse(&frame)) & flag::IPV4_OK != 0);
            }
        }
    }
}

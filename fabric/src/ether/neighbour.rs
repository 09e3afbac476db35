//! Packets of the Address Resolution Protocol (RFC 826) for IPv4 and of Neighbour Discovery (RFC 4861,
//! sections 4.3, 4.4, 7.2) for IPv6. This module has layouts and packets only; the neighbour cache is
//! `doorbell-inet`'s.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Ipv4, Ipv6, Mac, VERSION_6, fold, sum};

/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;

/// Bytes of the longest packet of either protocol.
pub const NEIGHBOUR_PACKET_MAX: usize = ETHERNET + size_of::<Ipv6>() + size_of::<Discovery>();

/// An ARP packet for IPv4 over Ethernet, whose 28 bytes have a fixed layout.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Arp {
    hardware: U16,
    protocol: U16,
    hardware_length: u8,
    protocol_length: u8,
    operation: U16,
    from_mac: [u8; 6],
    from: [u8; 4],
    to_mac: [u8; 6],
    to: [u8; 4],
}

/// A neighbour solicitation or advertisement with one option, the link-layer address of its sender.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Discovery {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: U32,
    target: [u8; 16],
    option: u8,
    /// The length of the option, in units of eight bytes.
    option_length: u8,
    mac: [u8; 6],
}

const _: () = assert!(size_of::<Arp>() == 28 && size_of::<Discovery>() == 32);
const _: () = assert!(size_of::<Ipv4>() == 20);

const HARDWARE_ETHERNET: u16 = 1;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

const PROTOCOL_ICMPV6: u8 = 58;
/// Hop limit that NDP requires: a routed packet has a smaller one, so no host beyond the link can forge a
/// message.
const HOP_LIMIT_DISCOVERY: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOLICITED: u32 = 1 << 30;
const OVERRIDES: u32 = 1 << 29;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Bytes of a solicitation without its option.
const DISCOVERY_HEADER: usize = size_of::<Discovery>() - 8;

const BROADCAST_MAC: Mac = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An ARP or NDP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// An ARP request or neighbour solicitation for `target`. Without a sender address it only checks for
    /// duplicates.
    Request {
        /// The sender's addresses; `None` where it has no IP address yet or omits its hardware address.
        from: Option<(IpAddr, Mac)>,
        /// The hardware address that a reply goes to.
        reply_to: Mac,
        /// The address that is to be resolved.
        target: IpAddr,
    },
    /// An ARP reply or neighbour advertisement: `target` has the hardware address `mac`.
    Reply {
        /// The resolved address.
        target: IpAddr,
        /// The hardware address of the sender or target.
        mac: Mac,
    },
}

/// The bytes of an ARP or NDP packet.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourPacket {
    bytes: [u8; NEIGHBOUR_PACKET_MAX],
    length: u8,
}

impl std::ops::Deref for NeighbourPacket {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl NeighbourMessage {
    /// Reads a packet; `None` if it is neither ARP nor NDP, or breaks the protocol's rules.
    ///
    /// ```
    /// use doorbell_fabric::ether::{NeighbourMessage, neighbour_request};
    /// let (own, wanted) = (("10.0.0.1".parse().unwrap(), [2, 0, 0, 0, 0, 1]), "10.0.0.2".parse().unwrap());
    /// let request = neighbour_request(own, wanted).unwrap();
    /// let Some(NeighbourMessage::Request { from, target, .. }) = NeighbourMessage::read(&request) else {
    ///     panic!()
    /// };
    /// assert_eq!((from, target), (Some(own), wanted));
    /// ```
    #[must_use]
    pub fn read(packet: &[u8]) -> Option<Self> {
        let (ethernet, rest) = Ethernet::ref_from_prefix(packet).ok()?;
        match ethernet.kind.get() {
            ETHERTYPE_ARP => read_arp(rest),
            ETHERTYPE_IPV6 => read_discovery(ethernet, rest),
            _ => None,
        }
    }
}

fn is_unicast(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

fn read_arp(rest: &[u8]) -> Option<NeighbourMessage> {
    let (arp, _) = Arp::ref_from_prefix(rest).ok()?;
    let kinds = (
        arp.hardware.get(),
        arp.protocol.get(),
        arp.hardware_length,
        arp.protocol_length,
    );
    if kinds != (HARDWARE_ETHERNET, ETHERTYPE_IPV4, 6, 4) || !is_unicast(arp.from_mac) {
        return None;
    }
    let (from, to) = (Ipv4Addr::from(arp.from), Ipv4Addr::from(arp.to));
    let is_host = !from.is_multicast() && !from.is_loopback() && from != Ipv4Addr::BROADCAST;
    match arp.operation.get() {
        ARP_REQUEST if is_host => Some(NeighbourMessage::Request {
            from: (!from.is_unspecified()).then_some((from.into(), arp.from_mac)),
            reply_to: arp.from_mac,
            target: to.into(),
        }),
        ARP_REPLY if is_host && !from.is_unspecified() => Some(NeighbourMessage::Reply {
            target: from.into(),
            mac: arp.from_mac,
        }),
        _ => None,
    }
}

fn read_discovery(ethernet: &Ethernet, rest: &[u8]) -> Option<NeighbourMessage> {
    let (ip, rest) = Ipv6::ref_from_prefix(rest).ok()?;
    let body = rest.get(..usize::from(ip.length.get()))?;
    let is_ours =
        ip.version.get() >> 28 == 6 && ip.protocol == PROTOCOL_ICMPV6 && ip.hop_limit == HOP_LIMIT_DISCOVERY;
    // The sum over a message with a right checksum is all ones.
    if !is_ours || body.len() < DISCOVERY_HEADER || fold(pseudo(ip, body.len()) + sum(body)) != u16::MAX {
        return None;
    }
    let (bare, options) = body.split_at(DISCOVERY_HEADER);
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&bare[8..]).ok()?);
    let from = Ipv6Addr::from(ip.from);
    if bare[1] != 0 || target.is_multicast() || target.is_unspecified() {
        return None;
    }
    match bare[0] {
        SOLICITATION => {
            let mac = option(options, OPTION_SOURCE)?;
            let known = mac.filter(|_| !from.is_unspecified());
            Some(NeighbourMessage::Request {
                from: known.map(|mac| (from.into(), mac)),
                reply_to: known.unwrap_or(ethernet.from),
                target: target.into(),
            })
        }
        ADVERTISEMENT => Some(NeighbourMessage::Reply {
            target: target.into(),
            mac: option(options, OPTION_TARGET)??,
        }),
        _ => None,
    }
}

/// Finds a link-layer address among the options; `None` if an option's length is invalid.
fn option(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let length = usize::from(units) * 8;
        if length == 0 || length > options.len() {
            return None;
        }
        if kind == wanted && length == 8 {
            found = <Mac>::try_from(&options[2..8])
                .ok()
                .filter(|mac| is_unicast(*mac));
        }
        options = &options[length..];
    }
    options.is_empty().then_some(found)
}

fn pseudo(ip: &Ipv6, length: usize) -> u64 {
    sum(&ip.from) + sum(&ip.to) + length as u64 + u64::from(PROTOCOL_ICMPV6)
}

/// Builds a request for `target` from the `own` addresses; `None` if they are of different families.
#[must_use]
pub fn neighbour_request(own: (IpAddr, Mac), target: IpAddr) -> Option<NeighbourPacket> {
    match (own.0, target) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            Some(arp(ARP_REQUEST, (from, own.1), (target, [0; 6]), BROADCAST_MAC))
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let group = solicited_node(target);
            let said = (SOLICITATION, 0, target, OPTION_SOURCE);
            Some(discovery((from, own.1), (group, group_mac(group)), said))
        }
        _ => None,
    }
}

/// Builds the reply that `own` has the requested address; `None` if the families differ.
#[must_use]
pub fn neighbour_reply(own: (IpAddr, Mac), asker: Option<IpAddr>, reply_to: Mac) -> Option<NeighbourPacket> {
    match (own.0, asker) {
        (IpAddr::V4(from), asker) => {
            let to = match asker {
                Some(IpAddr::V4(to)) => to,
                None => Ipv4Addr::UNSPECIFIED,
                Some(IpAddr::V6(_)) => return None,
            };
            Some(arp(ARP_REPLY, (from, own.1), (to, reply_to), reply_to))
        }
        (IpAddr::V6(from), Some(IpAddr::V6(to))) => {
            let said = (ADVERTISEMENT, SOLICITED | OVERRIDES, from, OPTION_TARGET);
            Some(discovery((from, own.1), (to, reply_to), said))
        }
        (IpAddr::V6(_), None) => neighbour_announcement(own),
        _ => None,
    }
}

/// Builds a gratuitous ARP request or an unsolicited advertisement, which updates all caches that have
/// another entry.
#[must_use]
pub fn neighbour_announcement(own: (IpAddr, Mac)) -> Option<NeighbourPacket> {
    match own.0 {
        IpAddr::V4(from) => Some(arp(ARP_REQUEST, (from, own.1), (from, [0; 6]), BROADCAST_MAC)),
        IpAddr::V6(from) => {
            let said = (ADVERTISEMENT, OVERRIDES, from, OPTION_TARGET);
            Some(discovery((from, own.1), (ALL_NODES, group_mac(ALL_NODES)), said))
        }
    }
}

/// The solicited-node multicast group of an address (RFC 4291, section 2.7.1).
#[must_use]
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = target.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// The multicast hardware address of an IPv6 group (RFC 2464, section 7).
#[must_use]
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn arp(operation: u16, own: (Ipv4Addr, Mac), target: (Ipv4Addr, Mac), to: Mac) -> NeighbourPacket {
    let ethernet = Ethernet {
        to,
        from: own.1,
        kind: ETHERTYPE_ARP.into(),
    };
    let arp = Arp {
        hardware: HARDWARE_ETHERNET.into(),
        protocol: ETHERTYPE_IPV4.into(),
        hardware_length: 6,
        protocol_length: 4,
        operation: operation.into(),
        from_mac: own.1,
        from: own.0.octets(),
        to_mac: target.1,
        to: target.0.octets(),
    };
    packet(&[ethernet.as_bytes(), arp.as_bytes()])
}

fn discovery(
    own: (Ipv6Addr, Mac),
    to: (Ipv6Addr, Mac),
    (kind, flags, target, option): (u8, u32, Ipv6Addr, u8),
) -> NeighbourPacket {
    let ethernet = Ethernet {
        to: to.1,
        from: own.1,
        kind: ETHERTYPE_IPV6.into(),
    };
    let ip = Ipv6 {
        version: VERSION_6.into(),
        length: (size_of::<Discovery>() as u16).into(),
        protocol: PROTOCOL_ICMPV6,
        hop_limit: HOP_LIMIT_DISCOVERY,
        from: own.0.octets(),
        to: to.0.octets(),
    };
    let mut body = Discovery {
        kind,
        code: 0,
        checksum: 0.into(),
        flags: flags.into(),
        target: target.octets(),
        option,
        option_length: 1,
        mac: own.1,
    };
    body.checksum = (!fold(pseudo(&ip, size_of::<Discovery>()) + sum(body.as_bytes()))).into();
    packet(&[ethernet.as_bytes(), ip.as_bytes(), body.as_bytes()])
}

fn packet(parts: &[&[u8]]) -> NeighbourPacket {
    let mut packet = NeighbourPacket {
        bytes: [0; NEIGHBOUR_PACKET_MAX],
        length: 0,
    };
    for part in parts {
        let at = usize::from(packet.length);
        packet.bytes[at..at + part.len()].copy_from_slice(part);
        packet.length += part.len() as u8;
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Golden bytes, as the standard has them.
    #[test]
    fn a_question_in_arp_has_these_bytes() {
        let packet = neighbour_request((ip("10.0.0.1"), OWN), ip("10.0.0.2")).unwrap();
        #[rustfmt::skip]
        let expected = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06,
            0, 1, 0x08, 0x00, 6, 4, 0, 1,
            2, 0, 0, 0, 0, 1, 10, 0, 0, 1,
            0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
        ];
        assert_eq!(packet[..], expected);
    }

    #[test]
    fn a_question_in_ipv6_goes_to_the_group_of_the_address() {
        let packet = neighbour_request((ip("fd00::1"), OWN), ip("fd00::12:3456")).unwrap();
        assert_eq!(packet.len(), NEIGHBOUR_PACKET_MAX);
        assert_eq!(packet[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(packet[12..14], [0x86, 0xdd]);
        assert_eq!((packet[20], packet[21]), (58, 255), "ICMPv6, and from this link");
        let group: Ipv6Addr = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(packet[38..54], group.octets());
        assert_eq!((packet[54], packet[55]), (135, 0));
        assert_eq!(packet[78..], [1, 1, 2, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn requests_and_replies_are_read_as_written() {
        for (own, other) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (own, other) = ((ip(own), OWN), (ip(other), OTHER));
            assert_eq!(
                NeighbourMessage::read(&neighbour_request(own, other.0).unwrap()),
                Some(NeighbourMessage::Request {
                    from: Some(own),
                    reply_to: OWN,
                    target: other.0
                })
            );
            let told = Some(NeighbourMessage::Reply {
                target: other.0,
                mac: OTHER,
            });
            let packet = neighbour_reply(other, Some(own.0), OWN).unwrap();
            assert_eq!(
                (packet[..6].to_vec(), NeighbourMessage::read(&packet)),
                (OWN.to_vec(), told)
            );
            let said = NeighbourMessage::read(&neighbour_announcement(other).unwrap());
            // IPv4 announces with a request for the own address.
            let asked = Some(NeighbourMessage::Request {
                from: Some(other),
                reply_to: OTHER,
                target: other.0,
            });
            assert_eq!(said, if other.0.is_ipv4() { asked } else { told });
        }
        assert!(neighbour_request((ip("10.0.0.1"), OWN), ip("fd00::2")).is_none());
    }

    #[test]
    fn an_address_probe_is_answered_too() {
        let own = (ip("fd00::1"), OWN);
        let mut packet = neighbour_request((ip("::"), OTHER), own.0).unwrap();
        // RFC 4862: without an address, and without the option.
        packet.bytes[18..20].copy_from_slice(&24u16.to_be_bytes());
        packet.length -= 8;
        packet.bytes[56..58].fill(0);
        let (ip6, _) = Ipv6::ref_from_prefix(&packet.bytes[ETHERNET..]).unwrap();
        let right = !fold(pseudo(ip6, DISCOVERY_HEADER) + sum(&packet.bytes[54..78]));
        packet.bytes[56..58].copy_from_slice(&right.to_be_bytes());
        let asked = NeighbourMessage::Request {
            from: None,
            reply_to: OTHER,
            target: own.0,
        };
        assert_eq!(NeighbourMessage::read(&packet), Some(asked));
        let answered = neighbour_reply(own, None, OTHER).unwrap();
        assert_eq!(answered[38..54], ALL_NODES.octets(), "to everybody");
    }

    #[test]
    fn invalid_packets_are_ignored() {
        let good = neighbour_request((ip("fd00::1"), OWN), ip("fd00::2")).unwrap();
        for (at, value) in [
            (21, 64),
            (55, 1),
            (57, 0xff),
            (79, 0),
            (79, 2),
            (19, 31),
            (20, 17),
        ] {
            let mut bad = good;
            bad.bytes[at] = value;
            assert_eq!(NeighbourMessage::read(&bad), None, "byte {at} as {value}");
        }
        let good = neighbour_request((ip("10.0.0.1"), OWN), ip("10.0.0.2")).unwrap();
        for (at, value) in [(15, 2), (18, 8), (21, 3), (22, 3), (28, 224)] {
            let mut bad = good;
            bad.bytes[at] = value;
            assert_eq!(NeighbourMessage::read(&bad), None, "byte {at} as {value}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(kind in prop::sample::select(vec![ETHERTYPE_ARP, ETHERTYPE_IPV6, 0]), rest: Vec<u8>) {
            let mut packet = [0; ETHERNET].to_vec();
            packet[12..].copy_from_slice(&kind.to_be_bytes());
            packet.extend(rest);
            let _ = NeighbourMessage::read(&packet);
        }
    }
}

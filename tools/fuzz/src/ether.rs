//! Headers of packets that came from anywhere: what is made of them lies inside of the packet, and what was
//! written is read.

use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::ether::{Arrived, HEADERS_IPV4, HEADERS_IPV6, Headers, sum};

use crate::script::Script;

/// Reads the input as a packet, and a packet that was written by it, with a few bytes changed.
pub fn run(input: &[u8]) {
    read(input);
    let mut script = Script::new(input);
    let (from, to) = (address(&mut script), address(&mut script));
    let length = script.below(300);
    let frame = script.take(length);
    let mut packet = Headers::new(from, to)
        .for_frame(frame.len(), Some(sum(frame)))
        .to_vec();
    packet.extend_from_slice(frame);
    if from.is_ipv4() == to.is_ipv4()
        && let Some(arrived) = Arrived::read(&packet, packet.len())
    {
        assert_eq!((arrived.from, arrived.to), (from, to));
        assert_eq!(&packet[arrived.at..], frame);
        assert!(arrived.is_intact(sum(frame)));
    }
    for _ in 0..8 {
        let at = script.below(packet.len());
        packet[at] = script.byte();
        read(&packet);
    }
    packet.truncate(script.below(packet.len() + 1));
    read(&packet);
}

fn address(script: &mut Script<'_>) -> SocketAddr {
    let (kind, number) = (script.byte(), script.long());
    let ip = if kind & 1 == 0 {
        IpAddr::from((number as u32).to_be_bytes())
    } else {
        IpAddr::from(
            u128::from(number)
                .wrapping_mul(0x1_0000_0001_0000_0001)
                .to_be_bytes(),
        )
    };
    SocketAddr::new(ip, script.short())
}

fn read(packet: &[u8]) {
    // As drivers do: the headers are copied first.
    let headers = &packet[..packet.len().min(HEADERS_IPV6)];
    let Some(arrived) = Arrived::read(headers, packet.len()) else {
        return;
    };
    assert!(arrived.at == HEADERS_IPV4 || arrived.at == HEADERS_IPV6);
    let frame = packet.get(arrived.at..arrived.at + arrived.length);
    let frame = frame.expect("the frame lies inside of the packet");
    let _ = (arrived.is_intact(sum(frame)), arrived.is_partial_checksum());
    assert!(!arrived.from.ip().is_unspecified() && !arrived.from.ip().is_multicast());
    assert_eq!(
        Arrived::read(packet, packet.len()),
        Some(arrived),
        "the headers are all that counts"
    );
}

//! Captures: the reader comes to an end whatever the file holds, reports where it went wrong, and reads what
//! the writer wrote.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::pcapng::{Block, Blocks, Direction, Packet, Wrap, Writer};
use doorbell_fabric::time::Time;

use crate::script::Script;

/// Reads the input as a capture, and writes one by it as by a script.
pub fn run(input: &[u8]) {
    read(input);
    write(&mut Script::new(input));
}

fn read(input: &[u8]) {
    let (mut interfaces, mut bytes, mut over) = (0, 0, false);
    for block in Blocks::of(input) {
        assert!(!over, "something follows a malformed block");
        match block {
            Ok(Block::Section) => {}
            Ok(Block::Interface { .. }) => interfaces += 1,
            Ok(Block::Packet(packet)) => {
                assert!(packet.interface < interfaces && packet.bytes.len() <= packet.original as usize);
                bytes += packet.bytes.len();
                assert!(
                    packet
                        .payload()
                        .is_none_or(|payload| packet.bytes.ends_with(payload))
                );
            }
            Err(malformed) => {
                assert!(malformed.at < input.len());
                over = true;
            }
        }
    }
    assert!(bytes <= input.len());
}

/// What was written of a packet.
struct Written<'a> {
    direction: Direction,
    at: Time,
    id: u64,
    payload: &'a [u8],
    comment: String,
}

fn write(script: &mut Script<'_>) {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "fuzz", 0);
    let wraps = [("10.0.0.1:1", "10.0.0.2:2"), ("[fe80::1]:1", "[fe80::2]:2")].map(|(from, to)| Wrap::Udp {
        from: from.parse().expect("an address"),
        to: to.parse().expect("an address"),
    });
    let interface = writer.interface("udp:eth0", "");
    let mut all = Vec::new();
    while !script.is_over() && all.len() < 16 {
        let choice = script.byte();
        let length = script.below(300);
        let written = Written {
            direction: if choice & 1 == 0 {
                Direction::In
            } else {
                Direction::Out
            },
            at: Time::from_nanos(script.long()),
            id: script.any(),
            payload: script.take(length),
            comment: String::from_utf8_lossy(script.take(usize::from(choice >> 2))).into_owned(),
        };
        let (first, second) = written.payload.split_at(written.payload.len() / 2);
        writer.packet(&Packet {
            interface,
            at: written.at,
            direction: written.direction,
            wrap: wraps[usize::from(choice >> 1 & 1)],
            bytes: &[SharedBytes::of(first), SharedBytes::of(second)],
            id: written.id,
            comments: &[&written.comment],
        });
        all.push(written);
    }
    writer.flush();
    assert_eq!((writer.written(), writer.lost()), (all.len() as u64, 0));
    drop(writer);
    let blocks: Vec<Block<'_>> = Blocks::of(&file).map(|block| block.expect("our own")).collect();
    let packets = blocks.iter().filter_map(|block| match block {
        Block::Packet(packet) => Some(packet),
        _ => None,
    });
    let mut count = 0;
    for (packet, written) in packets.zip(&all) {
        assert_eq!(packet.payload(), Some(written.payload));
        assert_eq!(
            (packet.direction, packet.at, packet.id),
            (written.direction, written.at, written.id)
        );
        assert_eq!(packet.comments.concat(), written.comment);
        count += 1;
    }
    assert_eq!((count, blocks.len()), (all.len(), all.len() + 2));
}

//! The writer against fixed bytes, its own strict reader, limits and failing files.

use std::io::{self, Write};

use super::*;

const FROM_4: &str = "10.0.0.1:56080";
const TO_4: &str = "10.0.0.2:56080";

fn udp(from: &str, to: &str) -> Wrap {
    Wrap::Udp {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    }
}

fn plain<'a>(interface: Interface, bytes: &'a [SharedBytes<'a>]) -> Packet<'a> {
    Packet {
        interface,
        at: Time::ZERO,
        direction: Direction::In,
        wrap: udp(FROM_4, TO_4),
        bytes,
        id: 0,
        comments: &[],
    }
}

fn read(file: &[u8]) -> Vec<Block<'_>> {
    Blocks::of(file).collect::<Result<_, _>>().unwrap()
}

#[test]
fn the_bytes_are_these() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "db", 0);
    let interface = writer.interface("sim:1", "");
    writer.packet(&Packet {
        interface,
        at: Time::from_nanos(0x1_0000_0002),
        direction: Direction::Out,
        wrap: udp(FROM_4, TO_4),
        bytes: &[SharedBytes::of(b"ab"), SharedBytes::of(b"c")],
        id: 7,
        comments: &["lost"],
    });
    drop(writer);
    #[rustfmt::skip]
    let golden: &[u8] = &[
        // Section: kind, length, magic, 1.0, length unknown, application "db", end, length.
        0x0a, 0x0d, 0x0d, 0x0a, 40, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
        255, 255, 255, 255, 255, 255, 255, 255, 4, 0, 2, 0, b'd', b'b', 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
        // Interface: Ethernet, snap length, name, resolution, end, length.
        1, 0, 0, 0, 44, 0, 0, 0, 1, 0, 0, 0, 62, 0, 1, 0,
        2, 0, 5, 0, b's', b'i', b'm', b':', b'1', 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 44, 0, 0, 0,
        // Packet: interface, time high and low, lengths.
        6, 0, 0, 0, 112, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 45, 0, 0, 0, 45, 0, 0, 0,
        // Ethernet, IPv4, UDP, three bytes, padding.
        2, 0xdb, 10, 0, 0, 2, 2, 0xdb, 10, 0, 0, 1, 8, 0,
        0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x26, 0xcc, 10, 0, 0, 1, 10, 0, 0, 2,
        0xdb, 0x10, 0xdb, 0x10, 0, 11, 0, 0, b'a', b'b', b'c', 0, 0, 0,
        // Comment, flags, number, end, length.
        1, 0, 4, 0, b'l', b'o', b's', b't', 2, 0, 4, 0, 2, 0, 0, 0, 5, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 112, 0, 0, 0,
    ];
    assert_eq!(file, golden);
}

#[test]
fn what_is_written_is_read_back() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "doorbell", 1_000);
    let first = writer.interface("udp:eth0", "a rail");
    let second = writer.interface("udp:eth1", "");
    let body = vec![0x5a; 1471];
    for (interface, direction, length, id) in [
        (first, Direction::In, 0, 0),
        (second, Direction::Out, 1, 9),
        (first, Direction::Out, 1471, u64::MAX),
    ] {
        writer.packet(&Packet {
            at: Time::from_nanos(length as u64),
            direction,
            bytes: &[SharedBytes::of(&body[..length])],
            id,
            comments: &["one", "", "two"][..length.min(3)],
            ..plain(interface, &[])
        });
    }
    assert_eq!((writer.written(), writer.lost()), (3, 0));
    drop(writer);
    let blocks = read(&file);
    assert_eq!(blocks[0], Block::Section);
    let (name, description) = ("udp:eth0", "a rail");
    assert_eq!(blocks[1], Block::Interface { name, description });
    let packets: Vec<&PacketBlock<'_>> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Packet(packet) => Some(packet),
            _ => None,
        })
        .collect();
    let seen: Vec<_> = packets
        .iter()
        .map(|p| {
            (
                p.interface,
                p.direction,
                p.at.nanos(),
                p.payload().unwrap().len(),
                p.id,
            )
        })
        .collect();
    let expected = [
        (0, Direction::In, 1_000, 0, 0),
        (1, Direction::Out, 1_001, 1, 9),
        (0, Direction::Out, 2_471, 1471, u64::MAX),
    ];
    assert_eq!(seen, expected);
    assert_eq!(packets[2].payload().unwrap(), body);
    assert_eq!(packets[2].comments, ["one", "two"], "an empty remark is none");
}

#[test]
fn ipv6_packets_have_checksums_that_fit() {
    for (from, to, length) in [
        ("[fe80::1]:4000", "[fe80::2]:4001", 5),
        ("10.0.0.1:4000", "[2001:db8::7]:9", 1452),
        ("[::1]:1", "[::1]:1", 0),
    ] {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, "doorbell", 0);
        let interface = writer.interface("udp:lo", "");
        let body: Vec<u8> = (0..length).map(|n: usize| n as u8).collect();
        writer.packet(&Packet {
            wrap: udp(from, to),
            ..plain(interface, &[SharedBytes::of(&body)])
        });
        drop(writer);
        let blocks = read(&file);
        let Some(Block::Packet(packet)) = blocks.last() else {
            panic!("no packet");
        };
        assert_eq!(packet.payload(), Some(&body[..]));
        // With its checksum in place, the whole sums up to all ones.
        let udp = &packet.bytes[54..];
        let pseudo = crate::ether::sum(&packet.bytes[22..54]) + udp.len() as u64 + 17;
        assert_eq!(
            crate::ether::fold(pseudo + crate::ether::sum(udp)),
            u16::MAX,
            "{from} {to}"
        );
    }
}

#[test]
fn long_packets_and_long_remarks_are_cut_and_say_so() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "x", 0);
    let interface = writer.interface(&"é".repeat(4000), &"d".repeat(4000));
    let long = vec![1; SNAP + 1000];
    let remark = "ü".repeat(COMMENTS_MAX);
    let comments = [&remark[..]; 40];
    for wrap in [Wrap::None, udp(FROM_4, TO_4), udp("[::1]:1", "[::1]:1")] {
        writer.packet(&Packet {
            wrap,
            comments: &comments,
            ..plain(interface, &[SharedBytes::of(&long)])
        });
    }
    drop(writer);
    for block in read(&file).iter().skip(2) {
        let Block::Packet(packet) = block else {
            panic!("{block:?}");
        };
        assert_eq!(packet.bytes.len(), SNAP);
        assert!(packet.original as usize >= SNAP + 1000);
        assert_eq!(packet.comments, [&remark[..COMMENTS_MAX]]);
    }
}

/// Takes `room` bytes, then refuses.
struct Small {
    room: usize,
    calls: usize,
}

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        let n = bytes.len().min(self.room);
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_is_reported_once_and_counts_the_rest() {
    let mut small = Small {
        room: 300_000,
        calls: 0,
    };
    let mut writer = Writer::new(&mut small, "doorbell", 0);
    let interface = writer.interface("sim:1", "");
    let body = [0; 1000];
    for _ in 0..1000 {
        writer.packet(&plain(interface, &[SharedBytes::of(&body)]));
    }
    writer.flush();
    assert_eq!(writer.written() + writer.lost(), 1000);
    assert!(writer.written() > 100 && writer.lost() > 600, "{writer:?}");
    assert_eq!(
        writer.take_error().map(|error| error.kind()),
        Some(io::ErrorKind::StorageFull)
    );
    assert!(writer.take_error().is_none());
    drop(writer);
    assert!(small.calls < 6, "{} calls", small.calls);
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut writer = Writer::new(io::sink(), "doorbell", 0);
    let interface = writer.interface("sim:1", "");
    let capacity = writer.buffer.capacity();
    let body = vec![0; 40_000];
    for n in 0..2000 {
        writer.packet(&plain(interface, &[SharedBytes::of(&body[..n * 20])]));
    }
    assert_eq!((writer.buffer.capacity(), writer.written()), (capacity, 2000));
}

#[test]
fn a_foreign_interface_is_a_lost_packet() {
    let mut other = Writer::new(io::sink(), "other", 0);
    let foreign = other.interface("a", "");
    let mut writer = Writer::new(io::sink(), "this", 0);
    writer.packet(&plain(foreign, &[]));
    assert_eq!((writer.written(), writer.lost()), (0, 1));
}

/// Where the nth block ends.
fn end_of(file: &[u8], n: usize) -> usize {
    (0..n).fold(0, |at, _| {
        at + u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()) as usize
    })
}

#[test]
fn broken_files_are_refused_where_they_break_and_never_panic() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, "doorbell", 0);
    let interface = writer.interface("sim:1", "text");
    writer.packet(&Packet {
        comments: &["why"],
        id: 3,
        ..plain(interface, &[SharedBytes::of(b"body")])
    });
    drop(writer);
    // Where a block ends, and so where a shorter file is whole.
    let ends: Vec<usize> = (1..=3).map(|n| end_of(&file, n)).collect();
    assert_eq!(ends[2], file.len());
    for cut in 1..file.len() {
        let read: Vec<_> = Blocks::of(&file[..cut]).collect();
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        assert_eq!(read.iter().filter(|block| block.is_ok()).count(), whole, "{cut}");
        let start = if whole == 0 { 0 } else { ends[whole - 1] };
        match read.last() {
            Some(Err(error)) => assert_eq!(error.at, start),
            other => assert!(other.is_some() && cut == start, "{cut}: {other:?}"),
        }
    }
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut bad = file.clone();
            bad[at] ^= 1 << bit;
            assert!(Blocks::of(&bad).count() <= 8, "an end is reached");
        }
    }
    assert!(Blocks::of(b"plain text, and more of it").all(|block| block.is_err()));
}

//! The capture: read back by the reader of the format, and by a tool of Wireshark's where there is one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_fabric::pcapng::{Block, Blocks, Direction, PacketBlock};
use doorbell_sim::{Aim, DATA_PORT, Effect, Faults, Pick};

use super::two::{Two, two};

/// A file in memory that two can hold.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn faulty() -> Two {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        corrupt: 0.1,
        reorder: 0.1,
        reorder_window: Duration::from_micros(5),
        aim: Some(Aim::nth(Pick::ALL, 5, Effect::Lose)),
        ..Faults::NONE
    };
    two(5, faults)
}

fn packets(bytes: &[u8]) -> (Vec<String>, Vec<PacketBlock<'_>>) {
    let (mut interfaces, mut packets) = (Vec::new(), Vec::new());
    for block in Blocks::of(bytes) {
        match block.unwrap() {
            Block::Section => {}
            Block::Interface { name, .. } => interfaces.push(name.to_owned()),
            Block::Packet(packet) => packets.push(packet),
        }
    }
    (interfaces, packets)
}

#[test]
fn every_frame_is_there_with_its_fate() {
    let mut two = faulty();
    let file = Shared::default();
    two.net.dump(file.clone());
    let stats = two.run(500);
    let end = two.net.end_dump().unwrap();
    assert!(end.error.is_none() && end.lost == 0 && two.net.end_dump().is_none());
    let bytes = file.0.lock().unwrap();
    let (interfaces, packets) = packets(&bytes);
    assert_eq!(interfaces, ["sim:5::rank0", "sim:5::rank1"]);
    assert_eq!(packets.len() as u64, end.written);
    let (mut out, mut came) = (BTreeMap::new(), Vec::new());
    let mut said: BTreeMap<&str, u64> = BTreeMap::new();
    for packet in &packets {
        packet
            .comments
            .iter()
            .for_each(|&text| *said.entry(text).or_default() += 1);
        match packet.direction {
            Direction::Out => assert!(out.insert(packet.id, packet).is_none(), "each leaves once"),
            Direction::In => came.push((packet.at, packet.payload().unwrap().to_vec(), packet.id)),
        }
    }
    assert_eq!(
        (out.len() as u64, came.len() as u64),
        (stats.frames_sent, stats.frames_delivered)
    );
    assert!(came.iter().all(|(at, _, id)| out[id].at < *at));
    for ((at, bytes, _), (taken, got)) in came.iter().zip(&two.got) {
        assert!(
            bytes == got && at <= taken,
            "what was received is what the capture contains"
        );
    }
    assert_eq!(said.get("dropped: loss"), Some(&stats.lost));
    assert_eq!(said.get("dropped: aimed at"), Some(&1));
    assert_eq!(said.get("fault: a second copy"), Some(&stats.duplicated));
    assert_eq!(said.get("fault: bits flipped"), Some(&stats.corrupted));
    assert_eq!(said.get("fault: held back"), Some(&stats.reordered));
    let first = out[&1].bytes;
    assert_eq!(
        first[26..34],
        [10, 0, 0, 0, 10, 0, 0, 1],
        "rank 0 of plane 0, to rank 1"
    );
    assert_eq!(first[34..38], [DATA_PORT.to_be_bytes(); 2].concat());
}

#[test]
fn a_file_that_fails_is_reported_and_the_traffic_goes_on() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut two = two(6, Faults::NONE);
    two.net.dump(Full);
    assert_eq!(two.run(100).frames_delivered, 100);
    let end = two.net.end_dump().unwrap();
    assert_eq!((end.written, end.lost), (0, 200));
    assert_eq!(
        end.error.map(|error| error.kind()),
        Some(io::ErrorKind::StorageFull)
    );
}

/// Reports to the run of all tests that this one did not take place.
fn skip(test: &str, reason: &str) {
    doorbell_testing::skipped(&format!("doorbell-sim::faults::dumped::{test}"), reason);
}

#[test]
fn capinfos_counts_the_same() {
    let path = std::env::temp_dir().join(format!("doorbell-sim-{}.pcapng", std::process::id()));
    let mut two = faulty();
    two.net.dump(std::fs::File::create(&path).unwrap());
    two.run(500);
    let end = two.net.end_dump().unwrap();
    let output = Command::new("capinfos")
        .args(["-T", "-r", "-c", "-B"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).unwrap();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            return skip(
                "capinfos_counts_the_same",
                &format!("package tshark: capinfos: {error}"),
            );
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let fields: Vec<&str> = text.trim().split('\t').collect();
    assert_eq!(fields[1], end.written.to_string(), "{text}");
}

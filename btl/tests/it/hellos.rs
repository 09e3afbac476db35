//! Frames of first contact, between ends that have not opened each other.

use std::time::Duration;

use crate::common::{End, RACK, World, rings};
use doorbell_btl::BtlConfig;
use doorbell_fabric::datagram::{Channel, Datagram, Receive};
use doorbell_fabric::message::Message;
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Faults, SimConfig, SimNet};

/// The number of a door.
const DOOR: u64 = 0x0807_0605_0403_0201;

/// Ends that have opened no peer.
fn apart(seed: u64, n: usize, sim: SimConfig, config: &BtlConfig) -> World {
    let net = SimNet::new(seed, sim);
    let ends = (0..n).map(|_| End::new(net.attach_datagram(), config, 1));
    World {
        ends: ends.collect(),
        net,
        peers: Vec::new(),
    }
}

fn taken(end: &mut End) -> Vec<Vec<u8>> {
    let mut bytes = vec![1, 2, 3];
    let mut all = Vec::new();
    while end.btl.next_hello(&mut bytes) {
        all.push(bytes.clone());
    }
    assert!(bytes.is_empty());
    all
}

/// Numbered, and of all lengths that fit.
fn hello(n: u32, room: usize) -> Vec<u8> {
    let mut bytes = vec![n as u8; 4 + (n as usize * 97) % (room - 3)];
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn step(world: &mut World) {
    world.net.advance_to(world.now() + Duration::from_micros(100));
    world.turn();
}

fn for_a_while(world: &mut World) {
    (0..50).for_each(|_| step(world));
}

#[test]
fn a_hello_gets_through_an_open_door_and_through_no_other() {
    let mut world = apart(1, 2, rings(RACK), &BtlConfig::default());
    let there = world.ends[1].btl.address();
    let room = world.ends[0].btl.hello_room();
    assert_eq!(room, 1024);
    world.ends[1].btl.open_door(DOOR);
    for (door, bytes) in [
        (DOOR, b"one".to_vec()),
        (DOOR ^ 1, b"two".to_vec()),
        (DOOR, Vec::new()),
    ] {
        world.ends[0].btl.send_hello(&there, door, &bytes).unwrap();
    }
    world.ends[0]
        .btl
        .send_hello(&there, DOOR, &vec![9; room])
        .unwrap();
    assert!(
        world.ends[0]
            .btl
            .send_hello(&there, DOOR, &vec![9; room + 1])
            .is_err()
    );
    for_a_while(&mut world);
    assert_eq!(
        taken(&mut world.ends[1]),
        [b"one".to_vec(), Vec::new(), vec![9; room]]
    );
    assert_eq!(taken(&mut world.ends[0]), Vec::<Vec<u8>>::new());
    let counters = *world.ends[1].btl.counters();
    assert_eq!(
        (
            counters.hellos_received,
            counters.dropped_unknown,
            counters.frames_received
        ),
        (3, 1, 4)
    );
    assert_eq!(world.ends[0].btl.counters().hellos_sent, 4);
    assert!(
        world.ends[1].btl.stranger().is_none(),
        "a hello is no call of a peer"
    );
    world.ends[1].btl.close_door(DOOR);
    world.ends[0].btl.send_hello(&there, DOOR, b"late").unwrap();
    for_a_while(&mut world);
    assert_eq!(taken(&mut world.ends[1]), Vec::<Vec<u8>>::new());
}

/// The frame is what other builds send.
#[test]
fn the_bytes_of_a_hello() {
    let net = SimNet::new(1, rings(RACK));
    let mut raw = net.attach_datagram();
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut end = End::new(net.attach_datagram(), &config, 1);
        end.btl.send_hello(&raw.address(), DOOR, b"hello").unwrap();
        net.advance_to(net.now() + Duration::from_millis(1));
        let (_, rx) = raw.split();
        assert_eq!(rx.poll(Channel::Priority, 8), 1);
        let frame = rx.frame(Channel::Priority, 0).unwrap().bytes;
        let mut bytes = vec![0; frame.len()];
        frame.copy_to(0, &mut bytes);
        // The CRC by another implementation of CRC-32C.
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 13, 0x14, 0, 0, 0, 0, b'h', b'e', b'l',
            b'l', b'o',
        ];
        assert_eq!(bytes[..20], golden[..20]);
        assert_eq!(bytes[20..24], 0xe4d9_0665_u32.to_le_bytes());
        assert_eq!(bytes[24..], golden[24..]);
    }
}

#[test]
fn hellos_over_a_bad_network_come_whole_or_not_at_all() {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        corrupt: 0.1,
        ..RACK
    };
    for seed in 0..10 {
        let config = BtlConfig {
            frame_mac: seed % 2 == 1,
            ..BtlConfig::default()
        };
        let mut world = apart(seed, 2, rings(faults), &config);
        let (there, room) = (world.ends[1].btl.address(), world.ends[0].btl.hello_room());
        world.ends[1].btl.open_door(DOOR);
        let mut came = vec![0; 500];
        for n in 0..500 {
            world.ends[0]
                .btl
                .send_hello(&there, DOOR, &hello(n, room))
                .unwrap();
            step(&mut world);
            for bytes in taken(&mut world.ends[1]) {
                let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                assert_eq!(bytes, hello(number, room));
                came[number as usize] += 1;
            }
        }
        let some = came.iter().filter(|times| **times > 0).count();
        assert!(
            (350..480).contains(&some),
            "{some} of 500 came: {:?}\n{}",
            world.ends[1].btl.counters(),
            world.report()
        );
        assert!(came.iter().any(|times| *times > 1), "some came twice");
        let counters = world.ends[1].btl.counters();
        assert!(counters.dropped_corrupt > 10, "{counters:?}");
        assert_eq!(counters.hellos_received, came.iter().sum::<u64>());
    }
}

//! Loom: every ordering of the shared ring. The two control blocks are words, the payload is checked cells.
#![cfg(loom)]

use doorbell_ring::shared::{self, CONTROL_BYTES, Consumer, Geometry, Producer};
use doorbell_ring::storage::Area;
use loom::thread;

fn ring(slots: usize) -> (Producer, Consumer) {
    let geometry = Geometry::new(slots, 8).unwrap();
    let lengths = (0..slots).map(|slot| slot * geometry.stride());
    shared::pair_in(
        geometry,
        Area::loom(CONTROL_BYTES, [0]),
        Area::loom(geometry.slots_bytes(), lengths),
        Area::loom(CONTROL_BYTES, [0]),
    )
    .unwrap()
}

fn stream(slots: usize, messages: u8) {
    let (mut producer, mut consumer) = ring(slots);
    let sender = thread::spawn(move || {
        let mut next = 0;
        while next < messages {
            // Lengths differ, so that a stale length would be noticed as well as a stale payload.
            if producer.push(&[next; 8][..1 + usize::from(next)]).unwrap() {
                next += 1;
            } else {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < messages {
        let mut out = [0xff; 8];
        match consumer.pop(&mut out).unwrap() {
            Some(len) => {
                assert_eq!(out[..len], [expected; 8][..1 + usize::from(expected)]);
                expected += 1;
            }
            None => thread::yield_now(),
        }
    }
    sender.join().unwrap();
}

#[test]
fn stream_through_two_slots() {
    loom::model(|| stream(2, 3));
}

#[test]
fn one_slot_is_not_rewritten_while_it_is_copied() {
    loom::model(|| stream(1, 2));
}

#[test]
fn slots_committed_together_appear_together() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let sender = thread::spawn(move || {
            let mut room = producer.reserve(2).unwrap();
            for byte in [1, 2] {
                room.next_slot(1).unwrap().copy_from(&[byte]);
            }
            assert_eq!(room.commit(), 2);
        });
        let mut chunk = consumer.read(2).unwrap();
        let mut got = Vec::new();
        while let Some(bytes) = chunk.next_slot().unwrap() {
            got.push(bytes.read::<1>(0).unwrap()[0]);
        }
        chunk.release();
        assert!(got.is_empty() || got == [1, 2], "{got:?}");
        sender.join().unwrap();
    });
}

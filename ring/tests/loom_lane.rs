//! Loom: every ordering of the message lane. Marks, indices and attention are words, the bytes are checked cells.
#![cfg(loom)]

use doorbell_ring::lane::{self, CELL_BYTES, CONTROL_BYTES, Consumer, Geometry, Producer};
use doorbell_ring::storage::Area;
use loom::thread;

fn lane(cells: usize) -> (Producer, Consumer) {
    let geometry = Geometry::new(cells, 128).unwrap();
    let marks = (0..cells).map(|cell| cell * CELL_BYTES);
    lane::pair_in(
        geometry,
        Area::loom(geometry.bytes(), marks),
        Area::loom(CONTROL_BYTES, [0, 8, 64]),
    )
    .unwrap()
}

/// Even messages fit their cell, odd ones continue in the data area; lengths differ.
fn send(producer: &mut Producer, number: u8) -> bool {
    if number.is_multiple_of(2) {
        let word = u64::from_ne_bytes([number; 8]);
        return producer.push_short(1 + usize::from(number), [word; 3]).unwrap();
    }
    let Some(mut room) = producer.reserve(25).unwrap() else {
        return false;
    };
    let (mut first, mut rest) = room.parts();
    first.copy_from(&[number; 24]);
    rest.copy_from(&[number]);
    room.commit();
    true
}

fn check(consumer: &mut Consumer, number: u8) -> bool {
    let Some(arrival) = consumer.peek().unwrap() else {
        return false;
    };
    let len = if number.is_multiple_of(2) {
        1 + usize::from(number)
    } else {
        25
    };
    assert_eq!(arrival.len(), len);
    assert!(arrival.first().iter().all(|&byte| byte == number));
    if arrival.rest().len() == 1 {
        assert_eq!(arrival.rest().read::<1>(0), Some([number]));
    }
    consumer.release();
    true
}

fn stream(cells: usize, messages: u8) {
    let (mut producer, mut consumer) = lane(cells);
    let sender = thread::spawn(move || {
        let mut next = 0;
        while next < messages {
            if send(&mut producer, next) {
                next += 1;
            } else {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < messages {
        if check(&mut consumer, expected) {
            expected += 1;
            consumer.publish();
        } else {
            thread::yield_now();
        }
    }
    sender.join().unwrap();
}

#[test]
fn messages_are_whole_when_their_mark_is_seen() {
    loom::model(|| stream(2, 2));
}

/// Three messages through two cells: the first cell is used again.
#[test]
fn a_cell_is_not_rewritten_while_it_is_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| stream(2, 3));
}

/// Two long messages through one data area: the second waits until the first was copied.
#[test]
fn data_is_not_rewritten_while_it_is_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = lane(4);
        let sender = thread::spawn(move || {
            for number in [1, 3, 5] {
                while !send(&mut producer, number) {
                    thread::yield_now();
                }
            }
        });
        for number in [1, 3, 5] {
            while !check(&mut consumer, number) {
                thread::yield_now();
            }
            consumer.publish();
        }
        sender.join().unwrap();
    });
}

//! Two or more threads at full speed. Loom proves the orderings on small cases; this shows that the real
//! atomics, over many laps, lose, double and tear nothing.
#![cfg(not(loom))]

use std::sync::Arc;
use std::thread;

use doorbell_ring::indexed::{Places, bytes_of, pair};
use doorbell_ring::storage::Area;
use doorbell_ring::{mpsc, spsc};

const MANY: u64 = 40_000;

#[test]
fn spsc_single_values() {
    let (mut p, mut q) = spsc::ring::<Box<u64>>(64).unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            for n in 0..MANY {
                let mut value = Box::new(n);
                while let Err(full) = p.push(value) {
                    value = full.0;
                    thread::yield_now();
                }
            }
        });
        for n in 0..MANY {
            let value = loop {
                match q.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*value, n);
        }
        assert!(q.pop().is_none());
    });
}

#[test]
fn spsc_chunks_of_changing_size() {
    let (mut p, mut q) = spsc::ring::<u64>(64).unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            let mut next = 0;
            while next < MANY {
                let mut room = p.reserve(1 + (next % 50) as usize);
                next += room.fill(next..MANY) as u64;
                if room.commit() == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < MANY {
            let before = expected;
            for value in q.read(1 + (expected % 30) as usize).drain() {
                assert_eq!(value, expected);
                expected += 1;
            }
            if expected == before {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn mailbox_keeps_each_senders_order() {
    const SENDERS: usize = 4;
    let (sender, mut receiver) = mpsc::mailbox::<(usize, u64)>(32).unwrap();
    thread::scope(|s| {
        for id in 0..SENDERS {
            let sender = sender.clone();
            s.spawn(move || {
                for n in 0..MANY / 4 {
                    while sender.send((id, n)).is_err() {
                        thread::yield_now();
                    }
                }
            });
        }
        drop(sender);
        let mut expected = [0; SENDERS];
        loop {
            let over = receiver.is_abandoned();
            let got = receiver.drain(16, |(id, n)| {
                assert_eq!(n, expected[id]);
                expected[id] += 1;
            });
            match got {
                0 if over => break,
                0 => thread::yield_now(),
                _ => {}
            }
        }
        assert_eq!(expected, [MANY / 4; SENDERS]);
    });
}

/// The receiver goes in the middle: every value is dropped once, in the mailbox or as refused.
#[test]
fn mailbox_closes_under_load() {
    for _ in 0..50 {
        let counted = Arc::new(());
        let (sender, mut receiver) = mpsc::mailbox::<Arc<()>>(8).unwrap();
        thread::scope(|s| {
            for _ in 0..2 {
                let (sender, counted) = (sender.clone(), counted.clone());
                s.spawn(move || {
                    while !matches!(sender.send(counted.clone()), Err(mpsc::Refused::Closed(_))) {
                        thread::yield_now();
                    }
                });
            }
            s.spawn(move || {
                for _ in 0..20 {
                    receiver.recv();
                    thread::yield_now();
                }
            });
        });
        drop(sender);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}

/// Both sides of a ring notify each other by index words, many laps of it.
#[test]
fn indexed_entries_are_whole() {
    const PLACES: Places = Places {
        producer: 0,
        consumer: 64,
        flags: 128,
        entries: 192,
    };
    let area = Area::heap(bytes_of::<16>(PLACES.entries, 64)).unwrap();
    let (mut producer, mut consumer) = pair::<16>("stress", area, 64, PLACES).unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            for n in 0..MANY {
                let mut entry = [n as u8; 16];
                entry[..8].copy_from_slice(&n.to_le_bytes());
                while producer.push(entry).is_err() {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        for n in 0..MANY {
            let entry = loop {
                match consumer.take() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry[..8], n.to_le_bytes());
            assert_eq!(entry[8..], [n as u8; 8]);
            consumer.release();
        }
        assert_eq!((consumer.take(), consumer.nonsense()), (None, 0));
    });
}

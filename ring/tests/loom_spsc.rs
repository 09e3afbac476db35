//! Loom: every ordering of the private SPSC ring, under all interleavings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p doorbell-ring --release --test 'loom*'`
#![cfg(loom)]

use doorbell_ring::spsc;
use loom::thread;

/// Heap values through a ring smaller than the stream, so that both "full" and "empty" are met: loom sees
/// the slots' cells and both indices.
#[test]
fn stream_keeps_order_and_loses_nothing() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::ring::<Box<u32>>(2).unwrap();
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < 3 {
                match producer.push(Box::new(next)) {
                    Ok(()) => next += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(*value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert!(consumer.pop().is_none());
        sender.join().unwrap();
    });
}

/// One slot: every push has to wait for the pop before it, so a slot is rewritten as early as the orderings
/// allow.
#[test]
fn one_slot_is_not_rewritten_while_it_is_taken() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::ring::<u32>(1).unwrap();
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < 2 {
                match producer.push(next) {
                    Ok(()) => next += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        for expected in 0..2 {
            let value = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        sender.join().unwrap();
    });
}

/// Chunks: values written under one reservation appear together, and an abandoned reservation does not.
#[test]
fn chunks_appear_whole() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::ring::<u32>(2).unwrap();
        let sender = thread::spawn(move || {
            let mut thrown_away = producer.reserve(1);
            thrown_away.push(99).unwrap();
            drop(thrown_away);
            let mut room = producer.reserve(2);
            room.push(1).unwrap();
            room.push(2).unwrap();
            assert_eq!(room.commit(), 2);
        });
        let got: Vec<u32> = consumer.read(2).drain().collect();
        assert!(got.is_empty() || got == [1, 2], "{got:?}");
        sender.join().unwrap();
        let rest: Vec<u32> = consumer.read(2).drain().collect();
        assert_eq!(got.len() + rest.len(), 2);
    });
}

/// Once the producer is seen to be gone, all that it had put in is visible.
#[test]
fn abandoned_means_all_is_there() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::ring::<u32>(2).unwrap();
        let sender = thread::spawn(move || {
            producer.push(1).unwrap();
            producer.push(2).unwrap();
        });
        if consumer.is_abandoned() {
            assert_eq!(consumer.pop(), Some(1));
            assert_eq!(consumer.pop(), Some(2));
        }
        sender.join().unwrap();
        assert!(consumer.is_abandoned());
    });
}

/// Values left behind are dropped once, by whichever end goes last (loom reports leaked `Arc`s).
#[test]
fn what_is_left_is_dropped_by_the_last() {
    loom::model(|| {
        let counted = loom::sync::Arc::new(());
        let (mut producer, consumer) = spsc::ring(2).unwrap();
        let value = counted.clone();
        let sender = thread::spawn(move || producer.push(value).map_err(|_| ()).unwrap());
        drop(consumer);
        sender.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&counted), 1);
    });
}

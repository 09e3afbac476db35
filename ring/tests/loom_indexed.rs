//! Loom: every ordering of the rings whose sides notify each other by index words.
#![cfg(loom)]

use doorbell_ring::indexed::{Places, pair};
use doorbell_ring::storage::Area;
use loom::thread;

const SLOTS: usize = 2;

/// An entry that carries its number in both words.
fn entry(n: u8) -> [u8; 16] {
    [n; 16]
}

fn number(entry: &[u8; 16]) -> u8 {
    assert_eq!(entry[0], entry[8], "words of two entries in one");
    entry[0]
}

/// Where the words of a small indexed ring are.
const PLACES: Places = Places {
    producer: 0,
    consumer: 8,
    flags: 16,
    entries: 24,
};

/// More entries than the ring has go through it: each is whole when it is taken, and none is written over
/// before.
#[test]
fn indices_come_after_entries_both_ways() {
    loom::model(|| {
        let words = (0..SLOTS * 2).map(|word| PLACES.entries + word * 8);
        let halves = [PLACES.producer, PLACES.consumer, PLACES.flags];
        let area = Area::loom_with_halves(PLACES.entries + SLOTS * 16, words, halves);
        let (mut producer, mut consumer) = pair::<16>("loom", area, SLOTS, PLACES).unwrap();
        let handle = thread::spawn(move || {
            for n in 1..=3 {
                while producer.push(entry(n)).is_err() {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        for expected in 1..=3 {
            let taken = loop {
                match consumer.take() {
                    Some(taken) => break taken,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(number(&taken), expected);
            consumer.release();
        }
        handle.join().unwrap();
        assert_eq!(consumer.nonsense(), 0);
    });
}

//! The far side of an indexed ring as an enemy: every word that it can write takes any value at any moment.
//! (The lane's are in `src/lane/tests.rs`.)
//!
//! What must hold: no panic, no access out of bounds (the blocks have the exact size, so AddressSanitizer
//! sees one byte too many), and never more than a capacity.
#![cfg(not(loom))]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use doorbell_ring::indexed::{Consumer, Places, Producer, bytes_of};
use doorbell_ring::storage::{Access, Area, Mapped};
use doorbell_testing::Random;

const STEPS: u64 = 1_000_000;
const COUNT: u32 = 8;
const PLACES: Places = Places {
    producer: 0,
    consumer: 8,
    flags: 16,
    entries: 24,
};

/// A value that an attacker would try: near what is expected, at the edges, or anything.
fn nasty(random: &mut Random, near: u32) -> u32 {
    match random.below(6) {
        0 => near.wrapping_add(random.below(20) as u32).wrapping_sub(10),
        1 => u32::MAX - random.below(3) as u32,
        2 => 1 << random.below(32),
        3 => random.below(100) as u32,
        4 => near,
        _ => random.next_u64() as u32,
    }
}

/// Memory that the test can write behind the ring's back, as another process would: each index word is alone
/// in a word of 64 bits.
#[derive(Clone)]
struct Pages(Arc<Vec<AtomicU64>>);

impl Pages {
    fn new() -> Self {
        let bytes = bytes_of::<16>(PLACES.entries, COUNT as usize);
        Self(Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    fn area(&self) -> Area {
        let base = NonNull::new(self.0.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the vector is kept alive by the owner, and never grows; the test plays the far side's part,
        // and writes words only.
        Area::new(unsafe { Mapped::new(base, self.0.len() * 8, Access::ReadWrite, self.0.clone()) })
    }

    fn set(&self, at: usize, value: u32) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        self.0[at / 8].store(u64::from_ne_bytes(bytes), Ordering::Release);
    }

    fn get(&self, at: usize) -> u32 {
        let [a, b, c, d, ..] = self.0[at / 8].load(Ordering::Acquire).to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Writes any word of the entries, or what is not this side's index.
    fn spoil(&self, random: &mut Random, index: usize, near: u32) {
        match random.below(3) {
            0 => self.set(index, nasty(random, near)),
            1 => self.set(PLACES.flags, nasty(random, 0)),
            _ => self.set(PLACES.entries + random.below(16) as usize * 8, nasty(random, 0)),
        }
    }

    fn producer(&self) -> Producer<16> {
        Producer::new("hostile", self.area(), COUNT as usize, PLACES).unwrap()
    }

    fn consumer(&self) -> Consumer<16> {
        Consumer::new("hostile", self.area(), COUNT as usize, PLACES).unwrap()
    }
}

#[test]
fn a_producer_survives_any_consumer() {
    let pages = Pages::new();
    let (mut producer, mut random) = (pages.producer(), Random::new(0xbad));
    let (mut pushed, mut told) = (0u32, 0u32);
    for _ in 0..STEPS {
        match random.below(4) {
            0 => pages.spoil(&mut random, PLACES.consumer, told),
            // Its own index is not read back.
            1 => pages.set(PLACES.producer, random.next_u64() as u32),
            2 => {
                let free = producer.free(1 + random.below(10) as u32);
                assert!(free <= COUNT);
                let result = producer.push([0xaa; 16]);
                assert!(result.is_ok() || free == 0);
                pushed += u32::from(result.is_ok());
            }
            _ => {
                if producer.publish() > 0 {
                    told = pushed;
                    assert_eq!(pages.get(PLACES.producer), told, "the private index is the truth");
                }
                assert!(producer.pending() <= producer.outstanding() && producer.outstanding() <= COUNT);
            }
        }
    }
    assert!(
        producer.nonsense() > STEPS / 100 && u64::from(pushed) > STEPS / 100,
        "{} refused, {pushed} pushed",
        producer.nonsense()
    );
}

#[test]
fn a_consumer_survives_any_producer() {
    let pages = Pages::new();
    let (mut consumer, mut random) = (pages.consumer(), Random::new(0x5eed));
    let (mut taken, mut told) = (0u32, 0u32);
    for _ in 0..STEPS {
        match random.below(4) {
            0 => pages.spoil(&mut random, PLACES.producer, taken),
            1 => pages.set(PLACES.consumer, random.next_u64() as u32),
            2 => {
                let ready = consumer.is_ready();
                let entry = consumer.take();
                assert!(entry.is_some() || !ready);
                taken += u32::from(entry.is_some());
            }
            _ if taken != told => {
                consumer.release();
                told = taken;
                assert_eq!(pages.get(PLACES.consumer), told, "the private index is the truth");
            }
            _ => {}
        }
        assert!(taken.wrapping_sub(told) <= COUNT, "more than a ring was taken");
    }
    assert!(
        consumer.nonsense() > STEPS / 100 && u64::from(taken) > STEPS / 100,
        "{} refused, {taken} taken",
        consumer.nonsense()
    );
}

/// The words change while the ring works, not only between its calls.
#[test]
fn both_sides_survive_words_that_change_under_them() {
    let (outward, inward) = (Pages::new(), Pages::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut random = Random::new(0xf00d);
            while !over.load(Ordering::Relaxed) {
                outward.spoil(&mut random, PLACES.consumer, outward.get(PLACES.producer));
                inward.spoil(&mut random, PLACES.producer, inward.get(PLACES.consumer));
            }
        });
        let (mut producer, mut consumer) = (outward.producer(), inward.consumer());
        for _ in 0..STEPS / 4 {
            let _ = producer.push([1; 16]);
            producer.publish();
            assert!(producer.waiting() <= COUNT);
            let taken = (0..=COUNT).take_while(|_| consumer.take().is_some()).count();
            assert!(taken <= COUNT as usize);
            consumer.release();
        }
        over.store(true, Ordering::Relaxed);
    });
}

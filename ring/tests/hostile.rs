//! The far side as an enemy: every word that it can write takes any value at any moment.
//!
//! What must hold: no panic, no access out of bounds (the blocks have the exact size, so AddressSanitizer sees
//! one byte too many), `Corrupt` or plausible garbage as the only results, and never more than a capacity.
#![cfg(not(loom))]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use doorbell_ring::RingError;
use doorbell_ring::desc::{Bit, Layout, device};
use doorbell_ring::shared::{CONTROL_BYTES, Consumer, Geometry, Producer};
use doorbell_ring::storage::{Access, Area, Mapped};

const STEPS: u64 = 1_000_000;

/// Marsaglia's xorshift: the same steps in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A value that an attacker would try: near what is expected, at the edges, or anything.
    fn nasty(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => near.wrapping_add(self.below(20)).wrapping_sub(10),
            1 => u64::MAX - self.below(3),
            2 => 1 << self.below(64),
            3 => self.below(100),
            4 => near,
            _ => self.next(),
        }
    }
}

/// Memory that the test can write behind the ring's back, as another process would.
#[derive(Clone)]
struct Pages(Arc<Vec<AtomicU64>>);

impl Pages {
    fn new(bytes: usize) -> Self {
        Self(Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    fn area(&self, access: Access) -> Area {
        let base = NonNull::new(self.0.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: the vector is kept alive by the owner, and never grows; the test plays the far side's part: it
        // writes words only, and payload only while the ring does not touch it.
        Area::new(unsafe { Mapped::new(base, self.0.len() * 8, access, self.0.clone()) })
    }

    fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Release);
    }

    fn get(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Acquire)
    }
}

struct Scene {
    geometry: Geometry,
    tail: Pages,
    slots: Pages,
    head: Pages,
}

impl Scene {
    fn new() -> Self {
        let geometry = Geometry::new(8, 24).unwrap();
        Self {
            geometry,
            tail: Pages::new(CONTROL_BYTES),
            slots: Pages::new(geometry.slots_bytes()),
            head: Pages::new(CONTROL_BYTES),
        }
    }

    fn producer(&self) -> Producer {
        let (near, slots) = (
            self.tail.area(Access::ReadWrite),
            self.slots.area(Access::ReadWrite),
        );
        Producer::attach(self.geometry, near, slots, self.head.area(Access::ReadOnly)).unwrap()
    }

    fn consumer(&self) -> Consumer {
        let (near, slots) = (
            self.head.area(Access::ReadWrite),
            self.slots.area(Access::ReadOnly),
        );
        Consumer::attach(self.geometry, near, slots, self.tail.area(Access::ReadOnly)).unwrap()
    }
}

fn assert_corrupt<T: std::fmt::Debug>(result: Result<T, RingError>) -> bool {
    match result {
        Ok(_) => false,
        Err(RingError::Corrupt { value, low, high, .. }) => {
            assert!(
                value.wrapping_sub(low) > high.wrapping_sub(low),
                "{value:#x} is within {low:#x}..={high:#x}"
            );
            true
        }
        Err(other) => panic!("not what a hostile word leads to: {other}"),
    }
}

#[test]
fn consumer_survives_any_producer() {
    let scene = Scene::new();
    let (mut consumer, mut random) = (scene.consumer(), Random(0x5eed));
    let (mut refused, mut taken) = (0u64, 0u64);
    for _ in 0..STEPS {
        match random.below(4) {
            0 => scene.tail.set(0, random.nasty(taken)),
            1 => {
                let word = random.below(scene.geometry.slots_bytes() as u64 / 8) as usize;
                // Half of them lengths that fit, or the first bad one would be the end of the test.
                let value = if random.below(2) == 0 {
                    random.below(25)
                } else {
                    random.nasty(24)
                };
                scene.slots.set(word, value);
            }
            2 => {
                let mut out = [0; 24];
                let popped = consumer.pop(&mut out);
                assert!(popped.is_err() || popped.unwrap().is_none_or(|len| len <= 24));
                taken += u64::from(popped.is_ok_and(|got| got.is_some()));
                refused += u64::from(assert_corrupt(popped));
            }
            _ => {
                let asked = random.below(12) as usize;
                match consumer.read(asked) {
                    Ok(mut chunk) => {
                        assert!(chunk.left() <= asked.min(8));
                        while let Ok(Some(bytes)) = chunk.next_slot() {
                            assert!(bytes.len() <= 24);
                            assert_eq!(bytes.to_vec().len(), bytes.len());
                        }
                        taken += chunk.release() as u64;
                    }
                    error => refused += u64::from(assert_corrupt(error.map(|_| ()))),
                }
            }
        }
        assert_eq!(scene.head.get(0), taken, "this side's own index is the truth");
    }
    assert!(
        refused > STEPS / 100 && taken > STEPS / 100,
        "{refused} refused, {taken} taken"
    );
}

#[test]
fn producer_survives_any_consumer() {
    let scene = Scene::new();
    let (mut producer, mut random) = (scene.producer(), Random(0xbad));
    let (mut refused, mut pushed) = (0u64, 0u64);
    for _ in 0..STEPS {
        match random.below(4) {
            0 => scene.head.set(0, random.nasty(pushed)),
            // The consumer has our pages read-only, but nothing here may depend on that: own words are not read.
            1 => scene.tail.set(0, random.next()),
            2 => {
                let len = random.below(25) as usize;
                let result = producer.push(&[0xaa; 24][..len]);
                pushed += u64::from(result == Ok(true));
                refused += u64::from(assert_corrupt(result));
            }
            _ => {
                let asked = random.below(12) as usize;
                match producer.reserve(asked) {
                    Ok(mut room) => {
                        assert!(room.room() <= asked.min(8));
                        while let Some(mut slot) = room.next_slot(24) {
                            slot.copy_from(&[0xbb; 24]);
                        }
                        pushed += room.commit() as u64;
                        assert_eq!(scene.tail.get(0), pushed, "this side's own index is the truth");
                    }
                    error => refused += u64::from(assert_corrupt(error.map(|_| ()))),
                }
            }
        }
    }
    assert!(
        refused > STEPS / 100 && pushed > STEPS / 100,
        "{refused} refused, {pushed} pushed"
    );
}

/// The words change while the ring works, not only between its calls.
#[test]
fn both_ends_survive_words_that_change_under_them() {
    let scene = Scene::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut random = Random(0xf00d);
            while !over.load(Ordering::Relaxed) {
                let (near_tail, near_head) = (scene.head.get(0), scene.tail.get(0));
                scene.tail.set(0, random.nasty(near_tail));
                scene.head.set(0, random.nasty(near_head));
                let slot = random.below(8) as usize;
                scene
                    .slots
                    .set(slot * scene.geometry.stride() / 8, random.nasty(24));
            }
        });
        let (mut producer, mut consumer) = (scene.producer(), scene.consumer());
        let mut out = [0; 24];
        for _ in 0..STEPS / 4 {
            assert_corrupt(producer.push(&[1; 24]));
            assert_corrupt(consumer.pop(&mut out));
            if let Ok(mut chunk) = consumer.read(8) {
                while let Ok(Some(bytes)) = chunk.next_slot() {
                    assert!(bytes.len() <= 24);
                }
                chunk.release();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

enum Entry {}

impl Layout for Entry {
    const NAME: &'static str = "hostile device";
    const COLOUR: Option<Bit> = Some(Bit::new(15, 7));
    const DONE: Option<Bit> = Some(Bit::new(8, 0));
}

/// A device that overruns and scribbles: `poll` gives at most one entry a call, of bytes that were there.
#[test]
fn completions_survive_any_device() {
    let (mut queue, mut device) = device::completions::<Entry, 16>(Area::heap(16 * 16).unwrap(), 16).unwrap();
    let mut random = Random(0xdead);
    let mut polled = 0u64;
    for _ in 0..STEPS {
        match random.below(3) {
            0 => device.scribble(random.next() as u32, random.next() as usize, random.next()),
            1 => (0..random.below(20)).for_each(|_| device.complete([0xcc; 16])),
            _ => {
                let mut out = [[0; 16]; 20];
                let n = queue.poll_into(&mut out);
                assert!(n <= 20 && queue.position() < 16);
                polled += n as u64;
            }
        }
    }
    assert!(polled > STEPS / 10, "{polled}");
}

/// A device that reports any slot as done, and writes over what was posted.
#[test]
fn posts_survive_any_device() {
    let (mut posts, mut device) = device::posts::<Entry, 16>(Area::heap(16 * 16).unwrap(), 16).unwrap();
    let mut random = Random(0xcafe);
    let (mut refused, mut freed) = (0u64, 0u64);
    for step in 0..STEPS {
        match random.below(5) {
            0 => device.scribble(random.next() as u32, random.next() as usize, random.next()),
            1 => {
                let descriptor = (step as u128).to_le_bytes();
                if let Ok(slot) = posts.post(descriptor) {
                    device.scribble(slot, 0, random.next());
                    assert_eq!(
                        posts.shadow(slot).unwrap()[..8],
                        descriptor[..8],
                        "read back what the device wrote"
                    );
                }
            }
            2 => drop(posts.doorbell()),
            3 => {
                let before = posts.outstanding();
                let slot = random.nasty(8) as u32;
                match posts.complete(slot) {
                    Ok(n) => {
                        assert!(n >= 1 && n <= before && posts.outstanding() == before - n);
                        freed += u64::from(n);
                    }
                    Err(error) => {
                        assert!(matches!(error, RingError::Corrupt { .. }));
                        assert_eq!(posts.outstanding(), before);
                        refused += 1;
                    }
                }
            }
            _ => {
                assert!(
                    posts
                        .peek_done(random.nasty(8) as u32)
                        .is_none_or(|entry| entry[8] & 1 == 1)
                );
                if let Some((slot, entry)) = posts.poll_done() {
                    assert!(slot < 16 && entry[8] & 1 == 1);
                    freed += 1;
                }
            }
        }
        assert!(posts.outstanding() <= 15 && posts.unannounced() <= posts.outstanding());
    }
    assert!(
        refused > STEPS / 100 && freed > STEPS / 100,
        "{refused} refused, {freed} freed"
    );
}

//! Loom: every ordering of the descriptor rings, with the device as the other thread.
#![cfg(loom)]

use doorbell_ring::desc::indexed::{Places, indexed};
use doorbell_ring::desc::{Bit, Layout, device};
use doorbell_ring::storage::Area;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const SLOTS: usize = 2;

fn area() -> Area {
    Area::loom(SLOTS * 16, (0..SLOTS * 2).map(|word| word * 8))
}

enum Coloured {}
impl Layout for Coloured {
    const NAME: &'static str = "coloured";
    const COLOUR: Option<Bit> = Some(Bit::new(15, 7));
}

enum Plain {}
impl Layout for Plain {
    const NAME: &'static str = "plain";
}

enum Done {}
impl Layout for Done {
    const NAME: &'static str = "done bit";
    const DONE: Option<Bit> = Some(Bit::new(8, 0));
}

/// An entry that says its number in both words.
fn entry(n: u8) -> [u8; 16] {
    let mut entry = [n; 16];
    (entry[8], entry[15]) = (0, 0);
    entry
}

fn number(entry: &[u8; 16]) -> u8 {
    assert_eq!(entry[0], entry[9], "words of two entries in one");
    entry[0]
}

/// The device writes a lap; every entry seen by its colour is whole.
#[test]
fn colour_comes_last() {
    loom::model(|| {
        let (mut queue, mut device) = device::completions::<Coloured, 16>(area(), SLOTS).unwrap();
        let handle = thread::spawn(move || {
            device.complete(entry(1));
            device.complete(entry(2));
        });
        for expected in 1..=2 {
            let polled = loop {
                match queue.poll() {
                    Some(polled) => break polled,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(number(&polled), expected);
        }
        assert_eq!(queue.poll(), None);
        handle.join().unwrap();
    });
}

/// Over the colour's flip: the device waits for its turn (as flow control by outstanding work makes it),
/// then writes the second lap.
#[test]
fn colour_flips() {
    loom::model(|| {
        let (mut queue, mut device) = device::completions::<Coloured, 16>(area(), SLOTS).unwrap();
        device.complete(entry(1));
        device.complete(entry(2));
        assert!(queue.poll().is_some() && queue.poll().is_some());
        let handle = thread::spawn(move || device.complete(entry(3)));
        if let Some(polled) = queue.poll() {
            assert_eq!(number(&polled), 3);
        }
        handle.join().unwrap();
    });
}

/// The device reads the doorbell register, then the descriptor: it is the one that was posted.
#[test]
fn descriptor_before_doorbell() {
    loom::model(|| {
        let (mut posts, mut device) = device::posts::<Plain, 16>(area(), SLOTS).unwrap();
        let register = Arc::new(AtomicU32::new(0));
        let rung = register.clone();
        let handle = thread::spawn(move || {
            let posted_index = rung.load(Ordering::Acquire);
            device.fetch(posted_index)
        });
        posts.post(entry(7)).unwrap();
        let doorbell = posts.doorbell().unwrap();
        // Relaxed: the fence in `doorbell` is what is tested.
        register.store(doorbell.index, Ordering::Relaxed);
        if let Some((slot, descriptor)) = handle.join().unwrap() {
            assert_eq!((slot, number(&descriptor)), (0, 7));
        }
    });
}

/// The device writes a descriptor back: what is seen by its done bit is the device's, not what was posted.
#[test]
fn done_comes_last() {
    loom::model(|| {
        let (mut posts, mut device) = device::posts::<Done, 16>(area(), SLOTS).unwrap();
        posts.post(entry(1)).unwrap();
        posts.doorbell().unwrap();
        let handle = thread::spawn(move || device.write_back(0, entry(2)));
        if let Some((slot, back)) = posts.poll_done() {
            assert_eq!((slot, number(&back)), (0, 2));
        }
        handle.join().unwrap();
    });
}

/// Where the words of a small indexed ring are.
const PLACES: Places = Places {
    producer: 0,
    consumer: 8,
    flags: 16,
    entries: 24,
};

/// More entries than the ring has go through it: each is whole when it is taken, and none is written over before.
#[test]
fn indices_come_after_entries_both_ways() {
    loom::model(|| {
        let words = (0..SLOTS * 2).map(|word| PLACES.entries + word * 8);
        let halves = [PLACES.producer, PLACES.consumer, PLACES.flags];
        let area = Area::loom_with_halves(PLACES.entries + SLOTS * 16, words, halves);
        let (mut producer, mut consumer) = indexed::<Plain, 16>(area, SLOTS, PLACES).unwrap();
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

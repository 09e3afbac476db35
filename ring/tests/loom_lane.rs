//! Loom: every ordering of the message lane. Marks, indices and attention are words, the bytes are checked
//! cells.
//!
//! Every Acquire and Release of `lane.rs` was made Relaxed in turn, and each time a test here failed; so did
//! the two full barriers of the test about attention made AcqRel, and `publish` with its two stores
//! exchanged:
//!
//! | weakened | caught by |
//! |---|---|
//! | the mark, stored in `commit` | all but `attention…` and `the_watermark…` |
//! | the mark of a run, stored in `push_run` | `a_run…`, `a_look_at_a_run…`, `a_cell_behind…` |
//! | the mark, loaded in `peek` | `messages…`, `a_cell…`, `data…`, `what_is_shown…`, `a_run…` |
//! | the mark, loaded in `expect` | `what_a_look_shows…`, `a_look_keeps…`, `a_look_at_a_run…` |
//! | cells consumed, in `publish` and `look` | `a_cell…`, `a_look…`, `the_watermark…`, `a_run…` |
//! | data consumed, in `publish` and `look` | `data…`, `what_is_shown…` |
//! | data stored before cells in `publish` | `what_is_shown…` |
//! | either full barrier around attention | `attention…` |
//!
//! What is Relaxed already needs no more: attention (a hint, but for the barriers) and `is_ready` (nothing is
//! read on the strength of it). To repeat one: change the word and run `cargo xtask test --only loom`.
#![cfg(loom)]

use doorbell_ring::lane::{
    self, Backing, CELL_BYTES, CONTROL_BYTES, Consumer, Geometry, Look, Producer, Run,
};
use doorbell_ring::storage::Area;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;

fn lane(cells: usize) -> (Producer, Consumer) {
    let geometry = Geometry::new(cells, 128).unwrap();
    // Beside the marks, the lines of the data area, which `expect` prefetches by their first words.
    let marks = (0..cells).map(|cell| cell * CELL_BYTES);
    let lines = [0, 64].map(|line| geometry.cells_bytes() + line);
    lane::pair_in(
        geometry,
        Area::loom(geometry.bytes(), marks.chain(lines)),
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

/// A run of two cells: five words, one of which lies where the second cell has its mark.
fn send_run(producer: &mut Producer, number: u64) -> bool {
    let word = |i: usize| if i < 2 { HEAD[i] } else { number };
    match producer.push_run(40, word).unwrap() {
        Run::Sent => true,
        Run::Full => false,
        Run::Unfit => panic!("a run that goes around the end"),
    }
}

/// Three runs through a ring that holds two: the cells of the first are used again, as those of a run and of
/// two messages by turns.
fn runs(receive: fn(&mut Consumer, u64) -> bool) {
    bounded(move || {
        let (mut producer, mut consumer) = lane(4);
        let sender = thread::spawn(move || {
            for number in [3, 5, 7] {
                while !send_run(&mut producer, number) {
                    thread::yield_now();
                }
            }
        });
        for number in [3, 5, 7] {
            while !receive(&mut consumer, number) {
                thread::yield_now();
            }
            consumer.publish();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_run_is_whole_and_not_rewritten_while_it_is_read() {
    runs(|consumer, number| {
        let Some(arrival) = consumer.peek().unwrap() else {
            return false;
        };
        assert_eq!(arrival.first()[16..24], number.to_ne_bytes());
        assert_eq!(
            arrival.rest().to_vec(),
            [number; 2].map(u64::to_ne_bytes).concat()
        );
        consumer.release();
        true
    });
}

#[test]
fn a_look_at_a_run_shows_it_whole() {
    runs(|consumer, number| {
        match consumer.expect(HEAD, 64, 2, 0) {
            Look::Nothing => return false,
            Look::Long { len, last, rest } => {
                assert_eq!((len, last), (40, number));
                assert_eq!(rest.to_vec(), [number; 2].map(u64::to_ne_bytes).concat());
            }
            other => panic!("{other:?}"),
        }
        consumer.release();
        true
    });
}

/// The cell that a run went on in is the next message's, a lap later.
#[test]
fn a_cell_behind_a_run_is_no_message_before_it_is_written() {
    bounded(|| {
        let (mut producer, mut consumer) = lane(2);
        let sender = thread::spawn(move || {
            assert!(send_run(&mut producer, 3));
            for number in [0, 2] {
                while !send(&mut producer, number) {
                    thread::yield_now();
                }
            }
        });
        while !matches!(consumer.expect(HEAD, 64, 1, 0), Look::Long { .. }) {
            thread::yield_now();
        }
        consumer.release();
        for number in [0, 2] {
            while !check(&mut consumer, number) {
                thread::yield_now();
            }
            consumer.publish();
        }
        sender.join().unwrap();
    });
}

/// The lane gets memory while it is used: the receiver does not notice it.
#[test]
fn a_lane_that_grows_is_whole() {
    bounded(|| {
        let geometry = Geometry::new(4, 128).unwrap();
        let marks = (0..4).map(|cell| cell * CELL_BYTES);
        let area = Area::loom(
            geometry.bytes(),
            marks.chain([0, 64].map(|line| geometry.cells_bytes() + line)),
        );
        let control = Area::loom(CONTROL_BYTES, [0, 8, 64]);
        // SAFETY: the two ends of one lane.
        let lane_far = unsafe { area.alias() }.into_read_only();
        // SAFETY: as above.
        let control_far = unsafe { control.alias() }.into_read_only();
        let first = Backing { cells: 2, data: 0 };
        let mut producer = Producer::attach_partly(geometry, area, control_far, first).unwrap();
        let mut consumer = Consumer::attach(geometry, control, lane_far).unwrap();
        let sender = thread::spawn(move || {
            assert!(send(&mut producer, 0));
            assert!(!send(&mut producer, 1), "beyond its memory");
            producer.extend(Backing { cells: 4, data: 64 }).unwrap();
            assert!(send(&mut producer, 1));
        });
        for number in 0..2 {
            while !check(&mut consumer, number) {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
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

/// Messages shown as not consumed have their bytes, wherever the receiver is between storing one index and
/// the other: the data of a consumed one is overwritten only when it is not shown any more.
#[test]
fn what_is_shown_as_not_consumed_is_whole() {
    bounded(|| {
        let (mut producer, mut consumer) = lane(4);
        let receiver = thread::spawn(move || {
            if check(&mut consumer, 1) {
                consumer.publish();
            }
        });
        let mut sent = Vec::new();
        for number in [1, 3, 5] {
            if send(&mut producer, number) {
                sent.push(number);
            }
        }
        producer
            .unconsumed(|index, first, rest| {
                let number = sent[index as usize];
                assert!(first.iter().all(|&byte| byte == number));
                assert_eq!(rest.read::<1>(0), Some([number]), "message {index}");
            })
            .unwrap();
        receiver.join().unwrap();
    });
}

/// The words of a message that a call prefetches.
const HEAD: [u64; 2] = [1, 2];

/// As the sender of an answer does it: the line is prefetched, then written. Odd ones do not fit their cell.
fn answer(producer: &mut Producer, number: u64) -> bool {
    let long = number % 2 == 1;
    producer.expect_to_send(if long { 100 } else { 0 });
    if !long {
        return producer.push_short(24, [1, 2, number]).unwrap();
    }
    let Some(mut room) = producer.reserve(25).unwrap() else {
        return false;
    };
    let (mut first, mut rest) = room.parts();
    first.copy_from(&[1, 2, number].map(u64::to_ne_bytes).concat());
    rest.copy_from(&[number as u8]);
    room.commit();
    true
}

/// Looks twice in one call; whether the message was there.
fn look(consumer: &mut Consumer, number: u64) -> bool {
    match consumer.expect(HEAD, 64, 2, 0) {
        Look::Nothing => return false,
        Look::Other => panic!("a message that is not the one sent"),
        Look::Short { len, last } => assert_eq!((len, last, number % 2), (24, number, 0)),
        Look::Long { len, last, rest } => {
            assert_eq!((len, last, number % 2), (25, number, 1));
            assert_eq!(rest.read::<1>(0), Some([number as u8]));
        }
    }
    consumer.release();
    true
}

fn answers(cells: usize, numbers: std::ops::Range<u64>) {
    let (mut producer, mut consumer) = lane(cells);
    let sent = numbers.clone();
    let sender = thread::spawn(move || {
        for number in sent {
            while !answer(&mut producer, number) {
                thread::yield_now();
            }
        }
    });
    for number in numbers {
        while !look(&mut consumer, number) {
            thread::yield_now();
        }
    }
    sender.join().unwrap();
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// A short message and a long one, by the loop that waits for one message only.
#[test]
fn what_a_look_shows_is_whole() {
    bounded(|| answers(2, 0..2));
}

/// The first cell is used again; `release` alone publishes what was consumed.
#[test]
fn a_look_keeps_its_cell_until_it_is_released() {
    bounded(|| answers(2, 1..4));
}

/// A message that the watermark has passed was dealt with: what its receiver did before is there.
#[test]
fn the_watermark_shows_that_a_message_was_handled() {
    bounded(|| {
        let (mut producer, mut consumer) = lane(2);
        let done = Arc::new(AtomicBool::new(false));
        let theirs = done.clone();
        assert!(answer(&mut producer, 0));
        let receiver = thread::spawn(move || {
            while !look_then(&mut consumer, || theirs.store(true, Ordering::Relaxed)) {
                thread::yield_now();
            }
        });
        while producer.consumed().unwrap() == 0 {
            thread::yield_now();
        }
        assert!(done.load(Ordering::Relaxed));
        producer
            .unconsumed(|index, _, _| panic!("message {index} was consumed"))
            .unwrap();
        receiver.join().unwrap();
    });
}

fn look_then(consumer: &mut Consumer, work: impl FnOnce()) -> bool {
    if !matches!(consumer.expect(HEAD, 64, 1, 0), Look::Short { .. }) {
        return false;
    }
    work();
    consumer.release();
    true
}

/// The receiver requests attention and checks the lane once more; the sender commits and loads the attention
/// word. With a full barrier in between on both sides, at least one of them sees the other's store.
#[test]
fn attention_and_a_message_do_not_pass_each_other_unseen() {
    loom::model(|| {
        let (mut producer, mut consumer) = lane(2);
        let sender = thread::spawn(move || {
            assert!(producer.push_short(24, [1, 2, 3]).unwrap());
            fence(Ordering::SeqCst);
            producer.attention()
        });
        consumer.set_attention(2);
        fence(Ordering::SeqCst);
        let ready = consumer.is_ready();
        let attention = sender.join().unwrap();
        assert!(ready || attention == 2, "the message would wait for the next one");
    });
}

//! A lane against a queue, against its limits, and against a far side that writes what it likes.

use std::collections::VecDeque;

use doorbell_testing::Random;
use proptest::prelude::*;

use super::*;

mod growing;
mod runs;

/// Sends a message as a rail does: in cells, or where it does not fit them by the data area.
fn send(producer: &mut Producer, message: &[u8]) -> bool {
    match send_run(producer, message) {
        Run::Sent => true,
        Run::Full => false,
        Run::Unfit => send_by_reserve(producer, message),
    }
}

fn send_run(producer: &mut Producer, message: &[u8]) -> Run {
    if message.len() <= FIRST_BYTES || message.len() > RUN_BYTES {
        return Run::Unfit;
    }
    let mut bytes = [0; RUN_BYTES];
    bytes[..message.len()].copy_from_slice(message);
    let words = bytes.as_chunks().0;
    producer
        .push_run(message.len(), |i| u64::from_ne_bytes(words[i]))
        .unwrap()
}

/// A message of any length, the rest of it in the data area.
fn send_by_reserve(producer: &mut Producer, message: &[u8]) -> bool {
    let Some(mut room) = producer.reserve(message.len()).unwrap() else {
        return false;
    };
    let (mut first, mut rest) = room.parts();
    let n = first.copy_from(message_first(message));
    rest.copy_from(&message[n..]);
    room.commit();
    true
}

fn message_first(message: &[u8]) -> &[u8] {
    &message[..message.len().min(FIRST_BYTES)]
}

fn receive(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let arrival = consumer.peek().unwrap()?;
    let mut message = arrival.first().to_vec();
    message.extend(arrival.rest().to_vec());
    assert_eq!(message.len(), arrival.len());
    consumer.release();
    Some(message)
}

#[test]
fn a_short_message_by_words_is_the_same_as_one_by_bytes() {
    let (mut producer, mut consumer) = pair(Geometry::new(8, 128).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..24).collect();
    let words = [0, 8, 16].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()));
    assert!(producer.push_short(20, words).unwrap());
    assert_eq!(receive(&mut consumer).unwrap(), &bytes[..20]);
    assert!(matches!(
        producer.push_short(25, words),
        Err(RingError::TooSmall { .. })
    ));
}

/// The result of a look, without the borrow.
fn look(consumer: &mut Consumer, head: [u64; 2], most: usize) -> Result<(usize, u64, Vec<u8>), bool> {
    match consumer.expect(head, most, 1, 0) {
        Look::Nothing => Err(false),
        Look::Other => Err(true),
        Look::Short { len, last } => Ok((len, last, vec![])),
        Look::Long { len, last, rest } => Ok((len, last, rest.to_vec())),
    }
}

#[test]
fn a_look_shows_the_message_it_asks_for_and_leaves_every_other() {
    let (mut producer, mut consumer) = pair(Geometry::new(8, 256).unwrap()).unwrap();
    assert_eq!(look(&mut consumer, [1, 2], 64), Err(false));
    assert!(producer.push_short(24, [1, 2, 3]).unwrap() && producer.push_short(20, [1, 2, 4]).unwrap());
    assert_eq!(look(&mut consumer, [1, 3], 64), Err(true));
    assert_eq!(look(&mut consumer, [1, 2], 23), Err(true));
    for (len, last) in [(24, 3), (20, 4)] {
        assert_eq!(look(&mut consumer, [1, 2], 64), Ok((len, last, vec![])));
        consumer.release();
    }
    let words = [1u64, 2, 3, 4, 5].map(u64::to_ne_bytes).concat();
    assert!(
        send(&mut producer, &words) && send(&mut producer, &words[..32]) && send(&mut producer, &words[..15])
    );
    assert_eq!(look(&mut consumer, [1, 2], 39), Err(true));
    assert_eq!(look(&mut consumer, [1, 2], 40), Ok((40, 3, words[24..].to_vec())));
    consumer.release();
    assert_eq!(receive(&mut consumer).unwrap(), &words[..32]);
    assert_eq!(look(&mut consumer, [1, 2], 64), Err(true));
    assert_eq!(receive(&mut consumer).unwrap(), &words[..15]);
}

#[test]
fn a_full_lane_takes_nothing_and_goes_on_after_a_release() {
    let (mut producer, mut consumer) = pair(Geometry::new(8, 1024).unwrap()).unwrap();
    for i in 0..8u8 {
        assert!(send(&mut producer, &[i]));
    }
    assert!(!send(&mut producer, &[9]) && !producer.push_short(1, [9, 0, 0]).unwrap());
    assert_eq!(receive(&mut consumer).unwrap(), [0]);
    consumer.publish();
    assert!(send(&mut producer, &[8]));
    for i in 1..=8u8 {
        assert_eq!(receive(&mut consumer).unwrap(), [i]);
    }
    assert_eq!(receive(&mut consumer), None);
}

#[test]
fn the_longest_message_fits_wherever_the_last_one_ended() {
    let geometry = Geometry::new(8, 1024).unwrap();
    for before in 0..16 {
        let (mut producer, mut consumer) = pair(geometry).unwrap();
        for _ in 0..before {
            assert!(send_by_reserve(&mut producer, &[1; FIRST_BYTES + 1]));
            receive(&mut consumer).unwrap();
            consumer.publish();
        }
        let longest: Vec<u8> = (0..geometry.longest()).map(|i| i as u8).collect();
        assert!(send(&mut producer, &longest), "after {before} lines");
        assert_eq!(receive(&mut consumer).unwrap(), longest);
    }
    let (mut producer, _consumer) = pair(geometry).unwrap();
    assert!(matches!(
        producer.reserve(geometry.longest() + 1),
        Err(RingError::TooSmall { .. })
    ));
}

#[test]
fn a_producer_that_stops_before_its_commit_has_sent_nothing() {
    let (mut producer, mut consumer) = pair(Geometry::new(8, 128).unwrap()).unwrap();
    {
        let mut room = producer.reserve(60).unwrap().unwrap();
        room.parts().1.copy_from(&[0xff; 36]);
    }
    assert!(consumer.peek().unwrap().is_none() && !consumer.is_ready());
}

#[test]
fn what_was_not_consumed_is_shown_in_order_with_all_its_bytes() {
    let (mut producer, mut consumer) = pair(Geometry::new(16, 4096).unwrap()).unwrap();
    let message = |i: usize| vec![i as u8; i * 37];
    for i in 0..10 {
        assert!(send(&mut producer, &message(i)));
    }
    for _ in 0..4 {
        receive(&mut consumer).unwrap();
    }
    consumer.publish();
    let mut shown = Vec::new();
    producer
        .unconsumed(|index, first, rest| shown.push((index, [first.to_vec(), rest.to_vec()].concat())))
        .unwrap();
    assert_eq!(shown, (4..10).map(|i| (i as u64, message(i))).collect::<Vec<_>>());
    assert_eq!((producer.consumed().unwrap(), producer.committed()), (4, 10));
}

/// A consumer that is killed between its two stores has published one index without the other.
#[test]
fn unconsumed_messages_are_found_whichever_index_was_published_first() {
    for (told, value) in [(8, 5 * 64), (0, 3 << 32 | 3)] {
        let geometry = Geometry::new(8, 1024).unwrap();
        let control = Area::heap(CONTROL_BYTES).unwrap();
        // SAFETY: test equipment: the consumer's own words, which are atomics.
        let far = unsafe { control.alias() };
        let lane = Area::heap(geometry.bytes()).unwrap();
        let mut producer = Producer::attach(geometry, lane, control).unwrap();
        for i in 0..6u8 {
            assert!(send_by_reserve(&mut producer, &[i; 60]));
        }
        // SAFETY: one of the control block's words.
        unsafe { far.word(told) }.store(value, Ordering::Relaxed);
        let mut next = if told == 0 { 3 } else { 0 };
        producer
            .unconsumed(|index, first, rest| {
                assert_eq!(index, next);
                assert_eq!([first.to_vec(), rest.to_vec()].concat(), [index as u8; 60]);
                next += 1;
            })
            .unwrap();
        assert_eq!(next, 6);
    }
}

#[test]
fn attention_passes_from_the_consumer_to_the_producer() {
    let (producer, mut consumer) = pair(Geometry::new(8, 128).unwrap()).unwrap();
    assert_eq!(producer.attention(), 0);
    consumer.set_attention(2);
    assert_eq!(producer.attention(), 2);
}

#[test]
fn an_impossible_length_is_an_error_and_reads_nothing() {
    let geometry = Geometry::new(8, 128).unwrap();
    let lane = Area::heap(geometry.bytes()).unwrap();
    // SAFETY: test equipment: the hostile producer's own words, which are atomics.
    let far = unsafe { lane.alias() };
    let mut consumer = Consumer::attach(geometry, Area::heap(CONTROL_BYTES).unwrap(), lane).unwrap();
    for len in [geometry.longest() as u64 + 1, u64::from(u32::MAX)] {
        // SAFETY: the first word of the first cell.
        unsafe { far.word(0) }.store(1 << 32 | len, Ordering::Relaxed);
        assert!(matches!(consumer.peek(), Err(RingError::Corrupt { .. })));
    }
}

proptest! {
    #[test]
    fn a_lane_is_a_queue(
        cells in 3u32..7,
        data in 7u32..12,
        steps in prop::collection::vec((any::<bool>(), 0usize..3000), 1..400),
    ) {
        let geometry = Geometry::new(1 << cells, 1 << data).unwrap();
        let (mut producer, mut consumer) = pair(geometry).unwrap();
        let mut model = VecDeque::new();
        for (i, (sends, len)) in steps.into_iter().enumerate() {
            if sends {
                let message: Vec<u8> = (0..len % (geometry.longest() + 1)).map(|k| (k + i) as u8).collect();
                if send(&mut producer, &message) {
                    model.push_back(message);
                } else {
                    prop_assert!(!model.is_empty(), "an empty lane refused a message");
                }
            } else {
                prop_assert_eq!(receive(&mut consumer), model.pop_front());
                consumer.publish();
            }
        }
        while let Some(expected) = model.pop_front() {
            prop_assert_eq!(receive(&mut consumer), Some(expected));
        }
        prop_assert_eq!(receive(&mut consumer), None);
    }
}

/// The exact-size heap blocks make every access outside them visible to AddressSanitizer.
#[test]
fn a_consumer_survives_any_producer() {
    let geometry = Geometry::new(8, 256).unwrap();
    let mut random = Random::new(1);
    let mut out = vec![0; 512];
    let (mut delivered, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let lane = Area::heap(geometry.bytes()).unwrap();
        // SAFETY: test equipment: the hostile side of the same lane, in the same thread.
        let mut far = unsafe { lane.alias() };
        let mut consumer = Consumer::attach(geometry, Area::heap(CONTROL_BYTES).unwrap(), lane).unwrap();
        for _ in 0..100 {
            for _ in 0..4 {
                let at = random.next_u64() as usize % (geometry.bytes() / 8) * 8;
                let index = consumer.head + random.next_u64() % 2;
                let value = match random.next_u64() % 4 {
                    0 => random.next_u64(),
                    1 => mark(index, RUN | (random.next_u64() as usize % 140)),
                    _ => mark(index, random.next_u64() as usize % 200),
                };
                let at = if random.next_u64().is_multiple_of(2) {
                    at
                } else {
                    (index as usize % 8) * CELL_BYTES
                };
                far.view_mut(at, 8).unwrap().copy_from(&value.to_ne_bytes());
            }
            match consumer.peek() {
                Ok(Some(arrival)) => {
                    assert!(arrival.first().len() <= FIRST_BYTES);
                    assert_eq!(arrival.first().len() + arrival.rest().len(), arrival.len());
                    arrival.rest().copy_to(&mut out);
                    consumer.release();
                    delivered += 1;
                }
                Ok(None) => {}
                Err(RingError::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(
        delivered > 10_000 && refused > 10,
        "{delivered} delivered, {refused} refused"
    );
}

/// The same for the fast path: `expect` returns only the requested message, inside the lane, and the
/// announced lengths hold.
#[test]
fn a_look_survives_any_producer() {
    let geometry = Geometry::new(8, 256).unwrap();
    let longest = geometry.longest() as u64;
    // Lengths around every limit, and their neighbours in the mark.
    let lengths = [
        0,
        15,
        16,
        23,
        24,
        25,
        RUN as u64 | 24,
        RUN as u64 | 25,
        RUN as u64 | 120,
        RUN as u64 | 121,
        longest - 1,
        longest,
        longest + 1,
        1 << 31,
        u64::from(u32::MAX),
    ];
    let mut random = Random::new(3);
    let mut out = vec![0; 512];
    // Nothing, other, short, long, refused.
    let mut shown = [0; 5];
    for _ in 0..2_000 {
        let lane = Area::heap(geometry.bytes()).unwrap();
        // SAFETY: test equipment: the hostile side of the same lane, in the same thread.
        let mut far = unsafe { lane.alias() };
        let mut consumer = Consumer::attach(geometry, Area::heap(CONTROL_BYTES).unwrap(), lane).unwrap();
        for _ in 0..100 {
            let at = (consumer.head as usize % 8) * CELL_BYTES;
            let mut write = |at: usize, value: u64| {
                far.view_mut(at, 8).unwrap().copy_from(&value.to_ne_bytes());
            };
            write(at + 8, random.next_u64() % 2);
            write(at + 16, 2);
            write(
                random.next_u64() as usize % (geometry.bytes() / 8) * 8,
                random.next_u64(),
            );
            let len = lengths[random.next_u64() as usize % lengths.len()];
            let word = match random.next_u64() % 8 {
                0 => random.next_u64(),
                // The laps before and after this one.
                1 => mark(consumer.head.wrapping_sub(8), 0) | len,
                2 => mark(consumer.head + 8, 0) | len,
                _ => mark(consumer.head, 0) | len,
            };
            write(at, word);
            let most = [24, 100, usize::MAX][random.next_u64() as usize % 3];
            match consumer.expect([1, 2], most, 2, 1) {
                Look::Nothing => {
                    assert_ne!((word >> 32) as u32, lap_mark(consumer.head));
                    shown[0] += 1;
                }
                Look::Other => {
                    shown[1] += 1;
                    match consumer.peek() {
                        Ok(Some(arrival)) => {
                            arrival.rest().copy_to(&mut out);
                            consumer.release();
                        }
                        Ok(None) => {}
                        Err(RingError::Corrupt { .. }) => shown[4] += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
                Look::Short { len, .. } => {
                    assert!((16..=FIRST_BYTES.min(most)).contains(&len));
                    consumer.release();
                    shown[2] += 1;
                }
                Look::Long { len, rest, .. } => {
                    assert!(len > FIRST_BYTES && len <= most && len <= geometry.longest());
                    assert_eq!(rest.len(), len - FIRST_BYTES);
                    rest.copy_to(&mut out);
                    consumer.release();
                    shown[3] += 1;
                }
            }
        }
    }
    assert!(shown.iter().all(|&times| times > 1_000), "{shown:?}");
}

/// Whatever a consumer is fed, what it publishes never goes back and never beyond what can have been sent.
#[test]
fn told_indices_only_grow_whatever_the_producer_writes() {
    let geometry = Geometry::new(8, 256).unwrap();
    let mut random = Random::new(4);
    for _ in 0..500 {
        let (lane, control) = (
            Area::heap(geometry.bytes()).unwrap(),
            Area::heap(CONTROL_BYTES).unwrap(),
        );
        // SAFETY: test equipment: the hostile producer's own lane, in the same thread.
        let mut far = unsafe { lane.alias() };
        // SAFETY: as above, the consumer's words as its producer reads them.
        let told = unsafe { control.alias() };
        let mut consumer = Consumer::attach(geometry, control, lane).unwrap();
        let mut before = [0; 3];
        for _ in 0..200 {
            let at = (consumer.head as usize % 8) * CELL_BYTES;
            let len = random.next_u64() as usize % (geometry.longest() + 2);
            let run = if random.next_u64().is_multiple_of(2) {
                RUN
            } else {
                0
            };
            let word = mark(consumer.head, len | run);
            far.view_mut(at, 8).unwrap().copy_from(&word.to_ne_bytes());
            let taken = match consumer.expect([0, 0], usize::MAX, 1, 0) {
                Look::Short { .. } | Look::Long { .. } => true,
                _ => matches!(consumer.peek(), Ok(Some(_))),
            };
            if taken {
                consumer.release();
            }
            // SAFETY: words of the control block.
            let now = [0, 8].map(|word| unsafe { told.word(word) }.load(Ordering::Relaxed));
            let now = [now[0] >> 32, now[0] & u64::from(u32::MAX), now[1]];
            assert!((0..3).all(|which| now[which] >= before[which]));
            assert!(now[0] <= consumer.consumed() && now[0] <= now[1] && now[1] <= consumer.head);
            assert!(now[2] <= consumer.consumed() * geometry.data as u64);
            before = now;
        }
        assert!(
            before[0] > 50 && before[1] > before[0] && before[2] > 0,
            "{before:?}"
        );
    }
}

/// The words change while they are looked at, not only between the calls: both ways to receive, against a
/// producer in a thread of its own that stores any word anywhere; and a sender, against indices that are
/// hardly ever true.
#[test]
fn both_ends_survive_words_that_change_under_them() {
    let geometry = Geometry::new(8, 256).unwrap();
    let lane = Area::heap(geometry.bytes()).unwrap();
    let told = Area::heap(CONTROL_BYTES).unwrap();
    // SAFETY: test equipment: the hostile sender, which stores whole words only, as atomics.
    let far_lane = unsafe { lane.alias() };
    // SAFETY: as above, the hostile receiver.
    let far_told = unsafe { told.alias() };
    // What the enemies aim at: messages consumed, messages sent, data sent.
    let aims = [const { AtomicU64::new(0) }; 3];
    let over = std::sync::atomic::AtomicBool::new(false);
    // Times a message was shown by a look, by a peek, refused; sent, refused.
    let mut times = [0u64; 5];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(6);
            let longest = geometry.longest() as u64;
            while !over.load(Ordering::Relaxed) {
                let [consumed, sent, data] = [0, 1, 2].map(|aim: usize| aims[aim].load(Ordering::Relaxed));
                let index = consumed + random.next_u64() % 3;
                let cell = (index as usize % 8) * CELL_BYTES;
                let run = RUN as u64;
                let len = [
                    16,
                    24,
                    25,
                    100,
                    longest,
                    longest + 1,
                    u64::from(u32::MAX),
                    run | 60,
                    run | 121,
                ][random.next_u64() as usize % 9];
                let anywhere = random.next_u64() as usize % (geometry.bytes() / 8) * 8;
                let stores = [
                    (anywhere, random.next_u64()),
                    (cell + 8, random.next_u64() % 2),
                    (cell + 16, 2),
                    (cell, mark(index, 0) | len),
                ];
                for (at, value) in stores {
                    // SAFETY: whole words inside the lane.
                    unsafe { far_lane.word(at) }.store(value, Ordering::Relaxed);
                }
                let stores = [
                    (0, {
                        let half = |random: u64| sent.wrapping_sub(random % 10).wrapping_add(1) as u32;
                        let [cells, messages] = [random.next_u64(), random.next_u64()].map(half);
                        u64::from(messages) << 32 | u64::from(cells)
                    }),
                    (8, data.wrapping_sub(random.next_u64() % 300).wrapping_add(1)),
                    (ATTENTION, random.next_u64()),
                ];
                for (at, value) in stores {
                    // SAFETY: words of the control block.
                    unsafe { far_told.word(at) }.store(value, Ordering::Relaxed);
                }
            }
        });
        let started = std::time::Instant::now();
        let mut random = Random::new(7);
        let (mut consumer, mut producer) = (
            Consumer::attach(geometry, Area::heap(CONTROL_BYTES).unwrap(), lane).unwrap(),
            Producer::attach(geometry, Area::heap(geometry.bytes()).unwrap(), told).unwrap(),
        );
        let mut out = [0; 512];
        let mut steps = 0;
        // On a busy machine, the other thread may not run for a while.
        while (steps < 100_000 || times.iter().any(|&times| times < 1_000))
            && started.elapsed().as_secs() < 20
        {
            steps += 1;
            let (which, len, rest) = match consumer.expect([1, 2], 200, 4, 1) {
                Look::Short { len, .. } => (0, len, None),
                Look::Long { len, rest, .. } => (0, len, Some(rest)),
                Look::Other | Look::Nothing => match consumer.peek() {
                    Ok(Some(arrival)) => (1, arrival.len(), Some(arrival.rest())),
                    Ok(None) => (5, 0, None),
                    Err(RingError::Corrupt { .. }) => (2, 0, None),
                    Err(other) => panic!("{other}"),
                },
            };
            assert!(len <= geometry.longest());
            if let Some(rest) = rest {
                assert_eq!(rest.len(), len.saturating_sub(FIRST_BYTES));
                rest.copy_to(&mut out);
            }
            if which < 5 {
                times[which] += 1;
                // A refused one too: a rail would end here, the test wants to see more.
                consumer.release();
            }
            match producer.reserve(random.next_u64() as usize % (geometry.longest() + 1)) {
                Ok(Some(mut room)) => {
                    let (mut first, mut rest) = room.parts();
                    first.copy_from(&[1; FIRST_BYTES]);
                    rest.copy_from(&[2; 128]);
                    room.commit();
                    times[3] += 1;
                }
                Ok(None) => {}
                Err(RingError::Corrupt { .. }) => times[4] += 1,
                Err(other) => panic!("{other}"),
            }
            let _ = producer.unconsumed(|_, first, rest| {
                assert!(first.len() + rest.len() <= geometry.longest());
            });
            let aimed = [consumer.head, producer.tail, producer.data_tail];
            (0..3).for_each(|aim| aims[aim].store(aimed[aim], Ordering::Relaxed));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(times.iter().all(|&times| times >= 1_000), "{times:?}");
}

#[test]
fn a_producer_survives_any_consumer() {
    let geometry = Geometry::new(8, 256).unwrap();
    let mut random = Random::new(2);
    let (mut sent, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let control = Area::heap(CONTROL_BYTES).unwrap();
        // SAFETY: test equipment: the hostile side of the same words, in the same thread.
        let far = unsafe { control.alias() };
        let mut producer =
            Producer::attach(geometry, Area::heap(geometry.bytes()).unwrap(), control).unwrap();
        for _ in 0..100 {
            let word = [0, 8, ATTENTION][random.next_u64() as usize % 3];
            let value = if random.next_u64().is_multiple_of(8) {
                random.next_u64()
            } else {
                random.next_u64() % 600
            };
            // SAFETY: one of the control block's words.
            unsafe { far.word(word) }.store(value, Ordering::Relaxed);
            let len = random.next_u64() as usize % (geometry.longest() + 1);
            match producer.reserve(len) {
                Ok(Some(mut room)) => {
                    let (mut first, mut rest) = room.parts();
                    first.copy_from(&[1; FIRST_BYTES]);
                    rest.copy_from(&[2; 128]);
                    room.commit();
                    sent += 1;
                }
                Ok(None) => {}
                Err(RingError::Corrupt { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            let _ =
                producer.unconsumed(|_, first, rest| assert!(first.len() + rest.len() <= geometry.longest()));
        }
    }
    assert!(sent > 1_000 && refused > 1_000, "{sent} sent, {refused} refused");
}

#[test]
fn two_threads_lose_nothing_and_keep_the_order() {
    let (mut producer, mut consumer) = pair(Geometry::new(64, 4096).unwrap()).unwrap();
    const MESSAGES: u64 = 200_000;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..MESSAGES {
                let mut message = [0; 100];
                message[..8].copy_from_slice(&i.to_le_bytes());
                let len = 8 + (i % 93) as usize;
                message[len - 1] = if len > 8 { i as u8 } else { message[7] };
                while !send(&mut producer, &message[..len]) {
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..MESSAGES {
            let message = loop {
                match receive(&mut consumer) {
                    Some(message) => break message,
                    None => {
                        consumer.publish();
                        std::thread::yield_now();
                    }
                }
            };
            assert_eq!(message.len() as u64, 8 + i % 93);
            assert_eq!(message[..8], i.to_le_bytes());
            assert!(message.len() == 8 || message[message.len() - 1] == i as u8);
        }
    });
}

#[test]
fn a_place_is_prefetched_once_for_each_message_and_only_while_it_is_free() {
    let (mut producer, mut consumer) = pair(Geometry::new(8, 8192).unwrap()).unwrap();
    let warm = |producer: &mut Producer| {
        let steps = (0..100).take_while(|_| {
            let cold = producer.is_cold();
            if cold {
                producer.warm();
            }
            cold
        });
        steps.count()
    };
    assert_eq!(warm(&mut producer), 0);
    assert!(send(&mut producer, &[1; 1000]));
    assert_eq!(
        warm(&mut producer),
        0,
        "the next one's lines come while an answer is read"
    );
    assert!(send(&mut producer, &[2; 3000]));
    assert_eq!(warm(&mut producer), 3, "47 lines, sixteen at a time");
    assert_eq!(warm(&mut producer), 0);
    assert!(send(&mut producer, &[3; 3000]));
    assert_eq!(warm(&mut producer), 1, "there is no room for another one");
    while consumer.peek().unwrap().is_some() {
        consumer.release();
    }
    consumer.publish();
    // A short message changes nothing; the next long one starts over, at the front of the lane.
    assert!(send(&mut producer, &[4; 8]));
    assert_eq!(warm(&mut producer), 0);
    assert!(send(&mut producer, &[5; 3000]));
    assert_eq!(warm(&mut producer), 3);
}

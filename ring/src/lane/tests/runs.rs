//! Messages in runs of cells: every length at every place, and bytes that look like marks.

use super::*;

const GEOMETRY: (usize, usize) = (16, 1024);

fn lane() -> (Producer, Consumer) {
    pair(Geometry::new(GEOMETRY.0, GEOMETRY.1).unwrap()).unwrap()
}

/// Brings both ends to a cell, a few laps on.
fn go_to((producer, consumer): &mut (Producer, Consumer), cell: u64) {
    while consumer.head < cell {
        assert!(producer.push_short(1, [7, 0, 0]).unwrap());
        assert_eq!(receive(consumer).unwrap(), [7]);
        consumer.publish();
    }
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

#[test]
fn every_length_arrives_at_every_cell_by_a_peek_and_by_a_look() {
    for cell in 30..50 {
        for len in 0..=130 {
            let message = numbered(len);
            let mut lane = lane();
            go_to(&mut lane, cell);
            let (producer, consumer) = &mut lane;
            assert!(send(producer, &message) && send(producer, &[9]));
            if len >= 16 {
                let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap());
                let (got, last, rest) = look(consumer, [word(0), word(8)], len).unwrap();
                let first = &last.to_ne_bytes()[..(len - 16).min(8)];
                assert_eq!((got, [first, &rest].concat()), (len, message[16..].to_vec()));
                assert_eq!(look(consumer, [word(0), word(8)], len - 1), Err(true));
                assert_eq!(look(consumer, [word(0), !word(8)], len), Err(true));
            }
            assert_eq!(receive(consumer).unwrap(), message, "at {cell}");
            assert_eq!(receive(consumer).unwrap(), [9]);
            assert_eq!(receive(consumer), None);
            assert_eq!((consumer.consumed(), producer.committed()), (cell + 2, cell + 2));
            consumer.publish();
            assert_eq!(producer.consumed().unwrap(), cell + 2);
        }
    }
}

/// Two cells for 25 to 56 bytes, three up to 88, four up to 120; none at all where the ring ends.
#[test]
fn a_run_takes_as_many_cells_as_its_bytes_and_goes_around_no_end() {
    for (len, cells) in [(25, 2), (56, 2), (57, 3), (88, 3), (89, 4), (120, 4)] {
        for slot in 0..16 {
            let mut lane = lane();
            go_to(&mut lane, 16 + slot);
            let sent = send_run(&mut lane.0, &numbered(len));
            let fits = slot + cells <= 16;
            assert_eq!(sent, if fits { Run::Sent } else { Run::Unfit }, "{len} at {slot}");
            assert_eq!(lane.0.tail, 16 + slot + if fits { cells } else { 0 });
        }
    }
    let mut producer = lane().0;
    for len in [24, 121] {
        assert!(matches!(
            producer.push_run(len, |_| 0),
            Err(RingError::TooSmall { .. })
        ));
    }
}

/// Spaced, a run takes what is left of its last line, too, where the ring has it; and the cell that it leaves
/// out is no message, now or a lap later.
#[test]
fn a_spaced_run_ends_with_a_line() {
    for (len, cells) in [(25, 2), (56, 2), (57, 3), (88, 3), (89, 4), (120, 4)] {
        for slot in 0..16 {
            let mut lane = lane();
            go_to(&mut lane, 16 + slot);
            lane.0.space_runs(true);
            let message = numbered(len);
            let sent = send_run(&mut lane.0, &message);
            let taken = cells + (slot + cells) % 2;
            assert_eq!(
                sent,
                if slot + cells <= 16 { Run::Sent } else { Run::Unfit },
                "{len} at {slot}"
            );
            if sent != Run::Sent {
                continue;
            }
            assert_eq!(
                (lane.0.tail, lane.0.committed()),
                (16 + slot + taken, 16 + slot + 1)
            );
            let shown = std::cell::RefCell::new(Vec::new());
            let consumed = lane.0.unconsumed(|number, first, rest| {
                shown
                    .borrow_mut()
                    .push((number, [first, &rest.to_vec()].concat()));
            });
            assert_eq!(
                (consumed.unwrap(), shown.into_inner()),
                (16 + slot, vec![(16 + slot, message.clone())])
            );
            assert_eq!(receive(&mut lane.1).unwrap(), message);
            assert_eq!(receive(&mut lane.1), None);
            assert_eq!(lane.1.head, lane.0.tail);
            lane.1.publish();
            go_to(&mut lane, 16 + slot + taken + 16);
            assert_eq!(receive(&mut lane.1), None);
        }
    }
}

/// As they go where answers sometimes come at once, and sometimes not.
#[test]
fn spaced_runs_and_others_arrive_in_order() {
    let (mut producer, mut consumer) = lane();
    let mut random = Random::new(9);
    let mut sent = VecDeque::new();
    for _ in 0..20_000 {
        producer.space_runs(random.next_u64().is_multiple_of(2));
        let message = numbered((random.next_u64() % 150) as usize);
        if send(&mut producer, &message) {
            sent.push_back(message);
        }
        if random.next_u64().is_multiple_of(2) {
            assert_eq!(receive(&mut consumer), sent.pop_front());
            consumer.publish();
        }
    }
    while let Some(message) = sent.pop_front() {
        assert_eq!(receive(&mut consumer), Some(message));
    }
    assert_eq!(receive(&mut consumer), None);
}

#[test]
fn a_full_lane_takes_no_run_and_goes_on_after_a_release() {
    let (mut producer, mut consumer) = lane();
    for _ in 0..7 {
        assert_eq!(send_run(&mut producer, &[1; 50]), Run::Sent);
    }
    assert!(send(&mut producer, &[2]));
    // One cell is left.
    assert_eq!(send_run(&mut producer, &[1; 50]), Run::Unfit);
    assert!(send(&mut producer, &[3]) && !send(&mut producer, &[3]));
    assert_eq!(send_run(&mut producer, &[4; 100]), Run::Full);
    assert_eq!(receive(&mut consumer).unwrap(), [1; 50]);
    consumer.publish();
    assert_eq!(send_run(&mut producer, &[4; 100]), Run::Full);
    assert_eq!(send_run(&mut producer, &[4; 56]), Run::Sent);
    assert_eq!(producer.wants(100), None, "it has all memory");
}

/// Bytes where a cell has its mark are that mark, of this lap or the next: they go by the data area.
#[test]
fn bytes_that_could_be_taken_for_a_mark_go_another_way() {
    for cell in [16u64, 20, 24] {
        for (word, ahead) in [(3, 1), (7, 2), (11, 3)] {
            for lap in 0..4 {
                let mut lane = lane();
                go_to(&mut lane, cell);
                let message = with_mark(cell + ahead + 16 * lap, word, 8);
                let looks_alike = lap < 2;
                let sent = send_run(&mut lane.0, &message);
                assert_eq!(sent == Run::Unfit, looks_alike, "word {word}, lap {lap}");
                assert!(sent == Run::Sent || send(&mut lane.0, &message));
                assert_eq!(receive(&mut lane.1).unwrap(), message);
                assert_eq!(receive(&mut lane.1), None);
            }
        }
    }
}

/// A message of the longest run, with the mark of a cell as one of its words.
fn with_mark(index: u64, word: usize, len: usize) -> Vec<u8> {
    let mut message = vec![0xff; RUN_BYTES];
    message[8 * word..8 * (word + 1)].copy_from_slice(&mark(index, len).to_ne_bytes());
    message
}

proptest! {
    /// Whatever the bytes are, a cell that the sender has not written again is no message, lap after lap.
    #[test]
    fn no_stale_cell_is_a_message_whatever_its_bytes_are(
        steps in prop::collection::vec((0usize..=RUN_BYTES, 0usize..15, 0u64..40, 0usize..3), 1..200),
    ) {
        let (mut producer, mut consumer) = lane();
        for (len, word, ahead, after) in steps {
            // Marks of the cells that come, in every word that may lie where one is.
            let marks = (0..15).map(|place| (consumer.head + ahead + place / 4).wrapping_sub(place % 2 * 3));
            let words: Vec<u8> = marks.flat_map(|index| mark(index, 8).to_ne_bytes()).collect();
            let mut message = words[..len].to_vec();
            message.iter_mut().skip(8 * word).step_by(9).for_each(|byte| *byte = 0);
            prop_assert!(send(&mut producer, &message));
            prop_assert_eq!(receive(&mut consumer), Some(message));
            prop_assert_eq!(receive(&mut consumer), None);
            for _ in 0..after {
                prop_assert!(send(&mut producer, &[1]));
                prop_assert_eq!(receive(&mut consumer), Some(vec![1]));
                prop_assert_eq!(receive(&mut consumer), None);
            }
            consumer.publish();
        }
    }
}

/// The consumer's look finds what is there, until the mark: a producer that stops before it has sent nothing.
#[test]
fn a_run_without_its_mark_is_not_there() {
    let mut lane = lane();
    go_to(&mut lane, 19);
    // It stops in the middle of its cells, at a word that looks like a mark.
    let message = with_mark(19 + 2, 7, 8);
    assert_eq!(send_run(&mut lane.0, &message), Run::Unfit);
    assert!(lane.1.peek().unwrap().is_none() && !lane.1.is_ready());
    // The cells that it has written are used for others.
    for i in 0..16 {
        assert!(send(&mut lane.0, &[i]));
        assert_eq!(receive(&mut lane.1).unwrap(), [i]);
        assert_eq!(receive(&mut lane.1), None);
        lane.1.publish();
    }
}

#[test]
fn runs_that_were_not_consumed_are_shown_with_all_their_bytes() {
    let (mut producer, mut consumer) = lane();
    let messages: Vec<_> = [3, 30, 60, 24, 90, 200].map(numbered).into();
    for message in &messages {
        assert!(send(&mut producer, message));
    }
    for taken in 0..=messages.len() {
        let mut shown = Vec::new();
        let first = producer
            .unconsumed(|index, first, rest| shown.push((index, [first.to_vec(), rest.to_vec()].concat())));
        assert_eq!(first.unwrap(), taken as u64);
        let left = (taken as u64..).zip(messages[taken..].iter().cloned());
        assert_eq!(shown, left.collect::<Vec<_>>());
        receive(&mut consumer);
        consumer.publish();
    }
}

/// Whatever a consumer reports: only whole messages are shown, each by its own number.
#[test]
fn a_consumer_that_reports_the_middle_of_a_run_is_shown_what_follows_it() {
    let messages: Vec<_> = [30, 3, 100, 60, 120].map(numbered).into();
    for (cells, numbers) in (0..=14u32).flat_map(|cells| (0..=5u32).map(move |numbers| (cells, numbers))) {
        let geometry = Geometry::new(16, 1024).unwrap();
        let control = Area::heap(CONTROL_BYTES).unwrap();
        // SAFETY: test equipment: the hostile consumer's own words, which are atomics.
        let far = unsafe { control.alias() };
        let lane = Area::heap(geometry.bytes()).unwrap();
        let mut producer = Producer::attach(geometry, lane, control).unwrap();
        for message in &messages {
            assert!(send(&mut producer, message));
        }
        assert_eq!(producer.tail, 2 + 1 + 4 + 3 + 4);
        // SAFETY: the first word of the control block.
        unsafe { far.word(0) }.store(u64::from(numbers) << 32 | u64::from(cells), Ordering::Relaxed);
        assert_eq!(producer.consumed().unwrap(), u64::from(numbers));
        let whole = [0, 2, 3, 7, 10].iter().filter(|&&start| start < cells).count();
        let mut next = whole as u64;
        let shown = producer.unconsumed(|index, first, rest| {
            assert_eq!(index, next);
            assert_eq!([first.to_vec(), rest.to_vec()].concat(), messages[next as usize]);
            next += 1;
        });
        assert_eq!(
            (shown.unwrap(), next),
            (whole as u64, 5),
            "{cells} cells reported"
        );
    }
}

#[test]
fn an_impossible_run_is_an_error_and_reads_nothing() {
    let geometry = Geometry::new(8, 1024).unwrap();
    let lane = Area::heap(geometry.bytes()).unwrap();
    // SAFETY: test equipment: the hostile producer's own words, which are atomics.
    let far = unsafe { lane.alias() };
    let mut consumer = Consumer::attach(geometry, Area::heap(CONTROL_BYTES).unwrap(), lane).unwrap();
    let refuse = |consumer: &mut Consumer, len: usize| {
        let at = consumer.head as usize % 8 * CELL_BYTES;
        // SAFETY: the first word of a cell.
        unsafe { far.word(at) }.store(mark(consumer.head, RUN | len), Ordering::Relaxed);
        assert!(matches!(consumer.peek(), Err(RingError::Corrupt { .. })), "{len}");
        assert!(matches!(consumer.expect([0, 0], usize::MAX, 1, 0), Look::Other));
    };
    for len in [0, 1, 16, 24, 121, 200, RUN - 1] {
        refuse(&mut consumer, len);
    }
    // Around the end.
    for index in 0..8 {
        for (len, cells) in [(25, 2), (56, 2), (57, 3), (120, 4)] {
            if index + cells > 8 {
                refuse(&mut consumer, len);
            }
        }
        // SAFETY: the first word of a cell.
        unsafe { far.word(index * CELL_BYTES) }.store(mark(consumer.head, 1), Ordering::Relaxed);
        receive(&mut consumer).unwrap();
    }
}

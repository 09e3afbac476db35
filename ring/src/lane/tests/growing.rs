//! Lanes of which only a part has memory: the other part is never touched, and nothing else differs.

use super::*;

const NONE: Backing = Backing { cells: 2, data: 0 };

fn partly(geometry: Geometry, backed: Backing) -> (Producer, Consumer) {
    let (lane, control) = (
        Area::heap(geometry.bytes()).unwrap(),
        Area::heap(CONTROL_BYTES).unwrap(),
    );
    // SAFETY: the two ends of one lane.
    let lane_far = unsafe { lane.alias() }.into_read_only();
    // SAFETY: as above.
    let control_far = unsafe { control.alias() }.into_read_only();
    (
        Producer::attach_partly(geometry, lane, control_far, backed).unwrap(),
        Consumer::attach(geometry, control, lane_far).unwrap(),
    )
}

/// Nothing has been written or will be looked at where there is no memory.
fn assert_inside(producer: &Producer, consumer: &Consumer) {
    let (all, backed) = (producer.geometry(), producer.backed());
    if backed.cells < all.cells() {
        assert!(producer.tail < backed.cells as u64 && consumer.head < backed.cells as u64);
    }
    if backed.data < all.data() {
        assert!(producer.data_tail <= backed.data as u64);
    }
}

#[test]
fn a_lane_ends_where_its_memory_does_and_goes_on_after_more() {
    let (mut producer, mut consumer) = partly(Geometry::new(8, 1024).unwrap(), Backing { cells: 4, data: 0 });
    for i in 0..3u8 {
        assert!(send(&mut producer, &[i]));
        assert_eq!(receive(&mut consumer).unwrap(), [i]);
        consumer.publish();
    }
    assert!(
        !send(&mut producer, &[3]),
        "the last cell is for the receiver's look"
    );
    assert_eq!(producer.wants(1), Some(Backing { cells: 5, data: 0 }));
    assert_eq!(producer.wants(25), Some(Backing { cells: 6, data: 64 }));
    producer.extend(Backing { cells: 8, data: 0 }).unwrap();
    assert!(send(&mut producer, &[3]) && !send_by_reserve(&mut producer, &[4; 25]));
    assert_eq!(producer.wants(1), None);
    // Less than before changes nothing, and more than all is all.
    producer.extend(NONE).unwrap();
    assert_eq!(producer.backed().cells, 8);
    producer
        .extend(Backing {
            cells: 99,
            data: 9999,
        })
        .unwrap();
    assert_eq!(producer.backed(), Backing { cells: 8, data: 1024 });
    assert!(send(&mut producer, &[4; 25]));
    assert_eq!(receive(&mut consumer).unwrap(), [3]);
    assert_eq!(receive(&mut consumer).unwrap(), [4; 25]);
}

#[test]
fn a_lane_that_its_receiver_has_not_emptied_wants_no_memory() {
    let (mut producer, _consumer) = pair(Geometry::new(4, 128).unwrap()).unwrap();
    for i in 0..4u8 {
        assert!(send(&mut producer, &[i]));
    }
    assert!(!send(&mut producer, &[4]));
    assert_eq!(producer.wants(1), None);
    let geometry = Geometry::new(8, 128).unwrap();
    assert!(matches!(
        Producer::attach_partly(
            geometry,
            Area::heap(geometry.bytes()).unwrap(),
            Area::heap(CONTROL_BYTES).unwrap(),
            Backing { cells: 1, data: 0 },
        ),
        Err(RingError::TooSmall { .. })
    ));
}

proptest! {
    #[test]
    fn a_growing_lane_is_a_queue(
        cells in 1u32..7,
        data in 7u32..12,
        first in (2usize..80, 0usize..2048),
        more in (1usize..40, 0usize..600),
        steps in prop::collection::vec((any::<bool>(), 0usize..3000), 1..400),
    ) {
        let geometry = Geometry::new(1 << cells, 1 << data).unwrap();
        let (mut producer, mut consumer) = partly(geometry, Backing { cells: first.0, data: first.1 });
        let mut model = VecDeque::new();
        for (i, (sends, len)) in steps.into_iter().enumerate() {
            if sends {
                let message: Vec<u8> = (0..len % (geometry.longest() + 1)).map(|k| (k + i) as u8).collect();
                let mut sent = send(&mut producer, &message);
                if !sent && let Some(needed) = producer.wants(message.len()) {
                    let needed = Backing { cells: needed.cells + more.0, data: needed.data + more.1 };
                    producer.extend(needed).unwrap();
                    sent = send(&mut producer, &message);
                    prop_assert!(sent, "what it wanted was not enough");
                }
                if sent {
                    model.push_back(message);
                } else {
                    prop_assert!(!model.is_empty(), "an empty lane refused a message");
                }
            } else {
                prop_assert_eq!(receive(&mut consumer), model.pop_front());
                consumer.publish();
            }
            assert_inside(&producer, &consumer);
        }
        let mut shown = Vec::new();
        producer
            .unconsumed(|_, first, rest| shown.push([first.to_vec(), rest.to_vec()].concat()))
            .unwrap();
        prop_assert_eq!(&shown, model.make_contiguous());
        while let Some(expected) = model.pop_front() {
            prop_assert_eq!(receive(&mut consumer), Some(expected));
        }
        prop_assert_eq!(receive(&mut consumer), None);
    }
}

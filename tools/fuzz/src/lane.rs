//! The two ends of a message lane in shared memory, each against the other one: what the far side can write
//! takes any value between the calls. No index is believed that cannot be, no length that does not fit is
//! shown, and what this side has written is its own truth.

use doorbell_ring::RingError;
use doorbell_ring::fuzzing::Pages;
use doorbell_ring::lane::{CONTROL_BYTES, Consumer, FIRST_BYTES, Geometry, Look, Producer, RUN_BYTES, Run};
use doorbell_ring::storage::Access;

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 1000;

/// Runs a script: its first byte selects the end that is attacked.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let geometry = Geometry::new(8, 512).expect("a good geometry");
    let (lane, control) = (Pages::new(geometry.bytes()), Pages::new(CONTROL_BYTES));
    if script.byte() & 1 == 0 {
        let near = lane.area(Access::ReadOnly);
        let consumer = Consumer::attach(geometry, control.area(Access::ReadWrite), near);
        attack_consumer(consumer.expect("it fits"), geometry, &lane, &mut script);
    } else {
        let far = control.area(Access::ReadOnly);
        let producer = Producer::attach(geometry, lane.area(Access::ReadWrite), far);
        attack_producer(producer.expect("it fits"), geometry, &control, &mut script);
    }
}

/// A cell's first word holds lap and length; half of the time one that will be believed.
fn attack_consumer(mut consumer: Consumer, geometry: Geometry, lane: &Pages, script: &mut Script<'_>) {
    let mut taken = 0;
    for _ in 0..STEPS {
        if script.is_over() {
            return;
        }
        match script.byte() {
            0..64 => {
                let word = script.below(geometry.bytes() / 8);
                lane.set(word, script.any());
            }
            64..128 => {
                let about = u64::from(script.byte());
                let length = script.near(about) as u32 | u32::from(script.byte() & 1) << 31;
                let index = consumer.cells();
                let cell = (index as usize % geometry.cells()) * 4;
                lane.set(cell, (index + 1) << 32 | u64::from(length));
            }
            128..192 => match consumer.peek() {
                Ok(None) => {}
                Ok(Some(arrival)) => {
                    assert!(arrival.len() <= geometry.longest());
                    assert_eq!(arrival.first().len(), arrival.len().min(FIRST_BYTES));
                    assert_eq!(
                        arrival.rest().to_vec().len(),
                        arrival.len() - arrival.first().len()
                    );
                    consumer.release();
                    taken += 1;
                }
                Err(RingError::Corrupt { value, high, .. }) => assert!(value > high),
                Err(other) => panic!("{other}"),
            },
            192..240 => {
                let head = [script.any(), script.any()];
                let most = script.below(600);
                let shown = match consumer.expect(head, most, 2, 0) {
                    Look::Nothing | Look::Other => None,
                    Look::Short { len, .. } => Some((len, 0)),
                    Look::Long { len, rest, .. } => Some((len, rest.to_vec().len())),
                };
                if let Some((len, rest)) = shown {
                    assert!((16..=most).contains(&len) && rest == len.saturating_sub(FIRST_BYTES));
                    consumer.release();
                    taken += 1;
                }
            }
            _ => _ = consumer.publish(),
        }
        assert_eq!(consumer.consumed(), taken, "its own index is the truth");
        assert!((taken..=4 * taken).contains(&consumer.cells()));
    }
}

fn attack_producer(mut producer: Producer, geometry: Geometry, control: &Pages, script: &mut Script<'_>) {
    let (mut pushed, mut believed) = (0, 0);
    for _ in 0..STEPS {
        if script.is_over() {
            return;
        }
        match script.byte() {
            0..96 => {
                let near = if script.byte() & 1 == 0 { pushed } else { believed };
                let word = script.near(near);
                match script.byte() & 3 {
                    0 => control.set(0, word),
                    1 => control.set(0, word << 32 | script.near(near) & u64::from(u32::MAX)),
                    _ => control.set(8, word),
                }
            }
            96..144 => {
                let length = script.below(FIRST_BYTES + 2);
                match producer.push_short(length, [script.any(); 3]) {
                    Ok(done) => pushed += u64::from(done),
                    Err(RingError::TooSmall { .. }) => assert!(length > FIRST_BYTES),
                    Err(RingError::Corrupt { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            144..176 => {
                let length = script.below(RUN_BYTES + 2);
                match producer.push_run(length, |_| script.any()) {
                    Ok(run) => pushed += u64::from(run == Run::Sent),
                    Err(RingError::TooSmall { .. }) => {
                        assert!(length <= FIRST_BYTES || length > RUN_BYTES);
                    }
                    Err(RingError::Corrupt { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            176..208 => {
                let length = script.below(300);
                match producer.reserve(length) {
                    Ok(None) | Err(RingError::Corrupt { .. }) => {}
                    Ok(Some(mut room)) => {
                        let (mut first, mut rest) = room.parts();
                        assert_eq!(first.len() + rest.len(), length);
                        first.copy_from(&[1; FIRST_BYTES]);
                        rest.copy_from(&[2; 300]);
                        if script.byte() & 7 > 0 {
                            room.commit();
                            pushed += 1;
                        }
                    }
                    Err(RingError::TooSmall { .. }) => assert!(length > geometry.longest()),
                    Err(other) => panic!("{other}"),
                }
            }
            208..232 => match producer.consumed() {
                Ok(now) => {
                    assert!(
                        (believed..=pushed).contains(&now),
                        "{now} of {pushed}, after {believed}"
                    );
                    believed = now;
                }
                Err(RingError::Corrupt { .. }) => {}
                Err(other) => panic!("{other}"),
            },
            _ => {
                let mut count = 0;
                let shown = producer.unconsumed(|_, first, rest| {
                    assert!(first.len() <= FIRST_BYTES && first.len() + rest.len() <= geometry.longest());
                    count += 1;
                });
                assert!(shown.is_err() || count <= geometry.cells());
            }
        }
        assert_eq!(producer.committed(), pushed, "its own index is the truth");
    }
}

//! Messages of several frames, and puts: what is acknowledged, what is copied, and that every byte is right
//! however the frames fall into polls.

use std::rc::Rc;
use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_fabric::datagram::Channel;
use doorbell_fabric::memory::{ConstLoan, Region, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, Body, Exposure, Inbound, Message, OpError, OpId, PeerIndex, Refused,
};
use doorbell_fabric::rail::Rail;

use crate::lane::Two;

/// What arrived, and the ends of operations.
#[derive(Default)]
struct Sink {
    messages: Vec<Vec<u8>>,
    ended: Vec<(OpId, Result<u64, OpError>)>,
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
        self.messages.push(bytes);
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push((op, outcome));
    }
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + (i >> 8) + salt) as u8).collect()
}

/// Two ends that have shaken hands, with a window that nothing here fills.
fn two() -> Two<Sink> {
    let config = BtlConfig {
        initial_window: 256,
        ..BtlConfig::default()
    };
    let mut two = Two::new(true, &config);
    for i in 0..2 {
        let to = two.to[i];
        two.ends[i].send(to, b"hello", Body::Empty).expect("room");
        two.ends[i].flush();
    }
    for _ in 0..20 {
        two.turn(Duration::from_micros(100));
    }
    two.sinks = Default::default();
    two
}

#[test]
fn an_answer_takes_the_acknowledgement_of_a_long_message_along() {
    let mut two = two();
    let before = two.ends.each_ref().map(|end| end.counters().acks_sent);
    let body = pattern(4096, 0);
    for _ in 0..200 {
        for i in 0..2 {
            let to = two.to[i];
            two.ends[i].send(to, b"head", Body::Bytes(&body)).expect("room");
            two.ends[i].flush();
            two.now += Duration::from_micros(5);
            two.turn_of(1 - i);
        }
    }
    for ((end, sink), before) in two.ends.iter().zip(&two.sinks).zip(before) {
        let counters = end.counters();
        assert_eq!(sink.messages.len(), 200);
        assert_eq!((counters.acks_sent - before, counters.resends), (0, 0));
    }
}

/// Its receiver may make no further call for long: the acknowledgement leaves in the one that takes it.
#[test]
fn a_long_message_that_is_awaited_is_acknowledged_at_once() {
    let mut two = two();
    let to = two.to[0];
    for length in [1500, 4096, 20_000] {
        for is_awaited in [true, false, true] {
            if is_awaited {
                two.ends[0].await_next(to);
            }
            let body = pattern(length, 0);
            let number = two.ends[0].send(to, b"head", Body::Bytes(&body)).expect("room");
            two.ends[0].flush();
            two.now += Duration::from_micros(5);
            two.turn_of(1);
            two.turn_of(0);
            let is_known = two.ends[0].handed_over(to) == number;
            assert_eq!(is_known, is_awaited, "{length} bytes");
            two.turn(Duration::from_millis(1));
            two.turn(Duration::from_millis(1));
            assert_eq!(two.ends[0].handed_over(to), number, "{length} bytes");
        }
    }
}

/// Its watermark is that of all before it, which may lie where its receiver rarely looks.
#[test]
fn a_long_message_that_is_awaited_is_acknowledged_with_what_was_sent_before_it() {
    let mut two = two();
    let to = two.to[0];
    two.ends[1].driver_mut().hush(Channel::Priority);
    for _ in 0..5 {
        two.ends[0].send(to, b"short", Body::Empty).expect("room");
    }
    two.ends[0].await_next(to);
    let body = pattern(4096, 0);
    let number = two.ends[0].send(to, b"head", Body::Bytes(&body)).expect("room");
    two.ends[0].flush();
    two.now += Duration::from_micros(5);
    two.ends[1].poll(16, &mut two.sinks[1]);
    assert_eq!(two.sinks[1].messages.len(), 6, "in one poll");
    two.turn_of(0);
    assert_eq!(two.ends[0].handed_over(to), number);
}

/// The network may change the order of frames: what closes the gap is acknowledged at once, whether its
/// sender requested that or not.
#[test]
fn what_closes_a_gap_is_acknowledged_at_once() {
    for last in 0..3 {
        let mut two = two();
        let to = two.to[0];
        two.ends[0].await_next(to);
        let body = pattern(4000, 0);
        let number = two.ends[0].send(to, b"head", Body::Bytes(&body)).expect("room");
        two.ends[0].flush();
        let ring = Rc::clone(&two.ends[1].driver_mut().incoming()[Channel::Data.index()]);
        let mut frames: Vec<_> = std::iter::from_fn(|| ring.borrow_mut().pop()).collect();
        assert_eq!(frames.len(), 3);
        let late = frames.remove(last);
        for frame in frames.iter().chain([&late]) {
            two.now += Duration::from_micros(5);
            ring.borrow_mut().push(frame, SharedBytes::EMPTY);
            two.turn_of(1);
        }
        assert_eq!(two.sinks[1].messages.len(), 1);
        two.turn_of(0);
        assert_eq!(two.ends[0].handed_over(to), number, "frame {last} was the last");
    }
}

#[test]
fn a_stream_of_long_messages_is_acknowledged_now_and_then() {
    let mut two = two();
    let before = two.ends[1].counters().acks_sent;
    let body = pattern(4096, 0);
    let mut sent = 0;
    while sent < 1000 {
        match two.ends[0].send(two.to[0], &[], Body::Bytes(&body)) {
            Ok(_) => sent += 1,
            Err(refused) => assert_eq!(refused, Refused::Full),
        }
        two.ends[0].flush();
        two.turn(Duration::from_micros(1));
    }
    // Three frames each, and an acknowledgement for 48.
    let acks = two.ends[1].counters().acks_sent - before;
    assert!((50..=150).contains(&acks), "{acks}");
    assert_eq!(two.ends[0].counters().resends, 0);
}

/// Whether all frames of a message are in one poll, or fall into several, makes no difference.
#[test]
fn every_length_arrives_whole_however_polls_cut_it() {
    for budget in [1, 2, 3, 7, 64] {
        let mut two = two();
        let lengths = [
            1437,
            1448,
            2872,
            2873,
            4096,
            16_000,
            64 * 1024,
            100_000,
            3000,
            150_000,
        ];
        let mut expected = Vec::new();
        for (salt, length) in lengths.into_iter().enumerate() {
            let bytes = pattern(length, salt);
            let (head, body) = bytes.split_at(16);
            while two.ends[0].send(two.to[0], head, Body::Bytes(body)) == Err(Refused::Full) {
                two.turn(Duration::from_micros(10));
            }
            two.ends[0].flush();
            expected.push(bytes);
            for _ in 0..400 {
                two.now += Duration::from_micros(3);
                two.turn_of(0);
                two.ends[1].progress(two.now);
                two.ends[1].poll(budget, &mut two.sinks[1]);
            }
        }
        for _ in 0..1000 {
            two.turn(Duration::from_micros(20));
        }
        assert!(two.sinks[1].messages == expected, "polls of {budget}");
    }
}

/// A put of lent memory reads it until it has ended, and each byte lands where it should.
#[test]
fn a_put_of_lent_memory_lands_whole() {
    static LENT: [u8; 300_000] = {
        let (mut bytes, mut i) = ([0; 300_000], 0);
        while i < bytes.len() {
            bytes[i] = (i * 7 + (i >> 8)) as u8;
            i += 1;
        }
        bytes
    };
    let mut two = two();
    let region = Region::new(LENT.len()).expect("memory");
    let (to, from) = (two.to[0], two.to[1]);
    let exposure = Exposure::Region(region.whole());
    let remote = two.ends[1]
        .expose(exposure, Access::Write, Some(from))
        .expect("room");
    for length in [1, 1400, 1409, 5000, LENT.len()] {
        region.write(0, &vec![0xee; LENT.len()]);
        let part = remote.part(0, length as u64).expect("inside");
        let loan = ConstLoan::of_static(&LENT).part(0, length);
        two.ends[0]
            .put(to, OpId(length as u64), Body::Loan(loan), &part)
            .expect("room");
        for _ in 0..2000 {
            two.turn(Duration::from_micros(10));
        }
        let mut landed = vec![0; LENT.len()];
        region.read(0, &mut landed);
        assert!(landed[..length] == LENT[..length] && landed[length..].iter().all(|byte| *byte == 0xee));
        assert_eq!(two.sinks[0].ended.pop(), Some((OpId(length as u64), Ok(0))));
    }
    assert_eq!(two.ends[0].counters().resends, 0);
}

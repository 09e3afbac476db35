use std::time::Duration;

use doorbell_fabric::time::Time;
use proptest::prelude::*;

use super::*;
use crate::bytes::Bytes;
use crate::config::Config;
use crate::event::SendId;
use crate::name::{Epoch, Name};
use crate::wire::{Seq, WINDOW_UNIT};

fn config() -> Config {
    Config {
        window: 4096,
        unmatched: 4096,
        window_messages: 16,
        ..Config::new(Name::new(7, 0), Epoch(1), 2, Vec::new())
    }
}

fn message(number: u64, length: usize, deadline: Time) -> Message {
    Message {
        id: Some(SendId(number)),
        tag: 200,
        body: vec![number as u8; length].into(),
        deadline,
        sent_at: None,
    }
}

fn push(tx: &mut Tx, number: u64, length: usize) {
    tx.push(Time::ZERO, config().rto, message(number, length, Time::NEVER));
}

/// What is sent now: (place, back, first byte).
fn sent(tx: &mut Tx, now: Time) -> Vec<(u32, u16, u8)> {
    let config = config();
    let mut all = Vec::new();
    while let Some((sequence, back, message)) = tx.transmit(now, &config) {
        all.push((
            sequence.0,
            back,
            message.body.first().copied().unwrap_or_default(),
        ));
    }
    all
}

fn ids(done: &[Message]) -> Vec<u64> {
    done.iter()
        .filter_map(|message| message.id)
        .map(|id| id.0)
        .collect()
}

const SOON: Time = Time::from_nanos(1_000_000);

#[test]
fn acknowledgements_are_cumulative_and_what_cannot_be_is_ignored() {
    let mut tx = Tx::new(&config(), Seq(u32::MAX));
    (1..=4).for_each(|number| push(&mut tx, number, 10));
    assert_eq!(
        sent(&mut tx, Time::ZERO),
        [(u32::MAX, 0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4)]
    );
    let mut done = Vec::new();
    for wrong in [Seq(4), Seq(u32::MAX - 1), Seq(1 << 31)] {
        tx.on_ack(SOON, wrong, 0, &config(), &mut done);
        assert!(done.is_empty(), "{wrong:?}");
    }
    tx.on_ack(SOON, Seq(2), 4096, &config(), &mut done);
    assert_eq!(ids(&done), [1, 2, 3]);
    assert_eq!((tx.waiting(), tx.is_empty()), (74, false));
    tx.on_ack(SOON, Seq(3), 4096, &config(), &mut done);
    assert!(tx.is_empty() && tx.next_deadline() == Time::NEVER);
}

#[test]
fn messages_and_bytes_in_flight_are_bounded_and_a_long_one_goes_alone() {
    let mut tx = Tx::new(&config(), Seq(0));
    (0..40).for_each(|number| push(&mut tx, number, 1));
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 16, "messages");
    let mut tx = Tx::new(&config(), Seq(0));
    (0..10).for_each(|number| push(&mut tx, number, 1000));
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 3, "3 × 1064 of 4096");
    let mut tx = Tx::new(&config(), Seq(0));
    (0..2).for_each(|number| push(&mut tx, number, 100_000));
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 1);
}

#[test]
fn a_new_path_replays_what_is_not_acknowledged_and_silence_one_message_first() {
    let mut tx = Tx::new(&config(), Seq(0));
    (1..=5).for_each(|number| push(&mut tx, number, 10));
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 5);
    tx.replay(SOON, &config());
    assert_eq!(
        sent(&mut tx, SOON),
        [(0, 0, 1), (1, 1, 2), (2, 2, 3), (3, 3, 4), (4, 4, 5)]
    );
    let late = tx.next_deadline();
    assert!(late > SOON && !tx.late(SOON, &config()) && tx.late(late, &config()));
    assert_eq!(sent(&mut tx, late), [(0, 0, 1)]);
    let first = tx.next_deadline().since(late);
    let later = tx.next_deadline();
    assert!(tx.late(later, &config()));
    assert_eq!(tx.next_deadline().since(later), first * 2, "back-off");
    assert_eq!(sent(&mut tx, later).len(), 1);
    let mut done = Vec::new();
    tx.on_ack(later, Seq(1), 4096, &config(), &mut done);
    assert_eq!(
        sent(&mut tx, later).len(),
        2,
        "twice as many for each that arrived"
    );
}

#[test]
fn a_relay_without_a_path_is_tried_again_less_and_less_often() {
    let mut tx = Tx::new(&config(), Seq(0));
    push(&mut tx, 1, 10);
    let mut now = Time::ZERO;
    let mut waits = Vec::new();
    for _ in 0..4 {
        assert_eq!(sent(&mut tx, now).len(), 1);
        tx.on_nack(now, &config());
        assert_eq!(sent(&mut tx, now), [], "not at once");
        let next = tx.next_deadline();
        waits.push(next.since(now));
        now = next;
        assert!(tx.late(now, &config()));
    }
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
}

#[test]
fn what_is_given_up_ends_once_and_the_receiver_skips_it() {
    let mut tx = Tx::new(&config(), Seq(0));
    for number in 1..=5 {
        let deadline = if number % 2 == 0 { SOON } else { Time::NEVER };
        tx.push(Time::ZERO, config().rto, message(number, 10, deadline));
    }
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 5);
    let mut done = Vec::new();
    tx.expire(SOON, &mut done);
    assert_eq!(ids(&done), [2, 4]);
    tx.expire(SOON, &mut done);
    tx.cancel(SendId(1), &mut done);
    assert_eq!(ids(&done), [2, 4, 1]);
    // The first two are skipped; the fourth is an empty place in the middle.
    tx.replay(SOON, &config());
    assert_eq!(sent(&mut tx, SOON), [(2, 0, 3), (3, 1, 0), (4, 2, 5)]);
    let mut rx = Rx::new(Seq(0));
    let item = || Item {
        tag: 200,
        body: Bytes::default(),
    };
    assert_eq!(rx.arrive(SOON, Seq(3), 1, item(), &config()), Arrival::Kept);
    assert_eq!((rx.expected(), rx.gap()), (Seq(2), Some(Seq(3))));
    tx.clear(&config(), &mut done);
    assert_eq!(ids(&done), [2, 4, 1, 3, 5]);
    assert_eq!(tx.waiting(), 0);
    push(&mut tx, 6, 10);
    assert_eq!(sent(&mut tx, SOON), [(5, 0, 6)], "no place is used twice");
}

#[test]
fn a_closed_window_keeps_messages_with_the_sender_until_it_opens() {
    let mut tx = Tx::new(&config(), Seq(0));
    (1..=2).for_each(|number| push(&mut tx, number, 10));
    assert_eq!(sent(&mut tx, Time::ZERO).len(), 2);
    let mut done = Vec::new();
    tx.on_ack(SOON, Seq(1), 0, &config(), &mut done);
    let late = tx.next_deadline();
    assert!(tx.late(late, &config()) && tx.is_shut());
    assert_eq!(sent(&mut tx, late), []);
    tx.on_ack(late, Seq(1), WINDOW_UNIT, &config(), &mut done);
    assert!(!tx.is_shut());
    assert_eq!(sent(&mut tx, late), [(1, 0, 2)]);
}

#[test]
fn the_receiver_holds_what_is_beyond_a_gap_within_bounds_and_reports_it() {
    let mut rx = Rx::new(Seq(u32::MAX));
    let item = |length: usize| Item {
        tag: 200,
        body: vec![0; length].into(),
    };
    assert_eq!(rx.arrive(SOON, Seq(1), 2, item(2000), &config()), Arrival::Kept);
    assert_eq!((rx.gap(), rx.due(), rx.ready()), (Some(Seq(1)), SOON, None));
    assert_eq!(
        rx.arrive(SOON, Seq(1), 2, item(2000), &config()),
        Arrival::Duplicate
    );
    assert_eq!(
        rx.arrive(SOON, Seq(2), 3, item(3000), &config()),
        Arrival::Refused,
        "bytes"
    );
    assert_eq!(
        rx.arrive(SOON, Seq(15), 16, item(1), &config()),
        Arrival::Refused,
        "messages"
    );
    assert_eq!(rx.window(4096), (2032 / WINDOW_UNIT) as u16);
    for (next, back) in [(u32::MAX, 0), (0, 1)] {
        assert_eq!(
            rx.arrive(SOON, Seq(next), back, item(0), &config()),
            Arrival::Kept
        );
    }
    assert_eq!(rx.gap(), None);
    assert_eq!(std::iter::from_fn(|| rx.pop(SOON, &config())).count(), 3);
    assert_eq!((rx.expected(), rx.window(4096)), (Seq(2), 16));
    assert_eq!(rx.arrive(SOON, Seq(1), 0, item(0), &config()), Arrival::Duplicate);
}

#[test]
fn acknowledgements_wait_for_company_but_not_for_the_sixteenth_message() {
    let mut rx = Rx::new(Seq(0));
    rx.acknowledged(16);
    for number in 0..16 {
        let item = Item {
            tag: 200,
            body: Bytes::default(),
        };
        assert_eq!(rx.arrive(SOON, Seq(number), 0, item, &config()), Arrival::Kept);
        assert!(rx.pop(SOON, &config()).is_some());
        let wait = if number == 15 {
            Duration::ZERO
        } else {
            config().ack_delay
        };
        assert_eq!(rx.due(), SOON + wait, "{number}");
    }
    rx.acknowledged(16);
    assert_eq!(rx.due(), Time::NEVER);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u16),
    Transmit,
    /// The nth frame on its way arrives, or is lost, or arrives and stays.
    Frame(u8, u8),
    Ack(u8, u8),
    NewPath,
    Wait(u16),
    Cancel(u8),
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..1500u16).prop_map(Step::Push),
        3 => Just(Step::Transmit),
        6 => (any::<u8>(), 0..4u8).prop_map(|(nth, how)| Step::Frame(nth, how)),
        3 => (any::<u8>(), 0..4u8).prop_map(|(nth, how)| Step::Ack(nth, how)),
        1 => Just(Step::NewPath),
        2 => (1..2000u16).prop_map(Step::Wait),
        1 => any::<u8>().prop_map(Step::Cancel),
        2 => Just(Step::Take),
    ];
    proptest::collection::vec(step, 1..200)
}

/// Both ends, and what is between them.
struct Pair {
    tx: Tx,
    rx: Rx,
    frames: Vec<(Seq, u16, u32, Bytes)>,
    acks: Vec<(Seq, u16, bool)>,
    now: Time,
    pushed: u64,
    ended: Vec<u64>,
    cancelled: Vec<u64>,
    got: Vec<u64>,
    /// Handed up and not received: what the window is made of.
    kept: Vec<u32>,
}

impl Pair {
    fn step(&mut self, step: Step) {
        let config = config();
        match step {
            Step::Push(length) if self.tx.waiting() < 20_000 => {
                let mut body = vec![0; usize::from(length) + 8];
                body[..8].copy_from_slice(&self.pushed.to_be_bytes());
                let message = Message {
                    body: body.into(),
                    ..message(self.pushed, 0, Time::NEVER)
                };
                self.tx.push(self.now, config.rto, message);
                self.pushed += 1;
            }
            Step::Transmit => {
                while let Some((sequence, back, message)) = self.tx.transmit(self.now, &config) {
                    self.frames
                        .push((sequence, back, message.tag, message.body.clone()));
                }
            }
            Step::Frame(nth, how) if !self.frames.is_empty() => {
                let nth = usize::from(nth) % self.frames.len();
                let frame = if how == 1 {
                    self.frames[nth].clone()
                } else {
                    self.frames.remove(nth)
                };
                if how != 0 {
                    self.arrive(frame);
                }
            }
            Step::Ack(nth, how) if !self.acks.is_empty() => {
                let nth = usize::from(nth) % self.acks.len();
                let ack = self.acks.remove(nth);
                if how != 0 {
                    self.acked(ack);
                }
            }
            Step::NewPath => self.tx.replay(self.now, &config),
            Step::Wait(millis) => {
                self.now += Duration::from_millis(u64::from(millis));
                self.tx.late(self.now, &config);
                if self.tx.is_shut() {
                    self.acknowledge();
                }
            }
            Step::Cancel(nth) => {
                let mut done = Vec::new();
                self.tx.cancel(SendId(u64::from(nth)), &mut done);
                self.cancelled.extend(ids(&done));
            }
            Step::Take => {
                if let Some(less) = self.kept.pop() {
                    self.rx.received(self.now, less, config.unmatched);
                    self.acknowledge();
                }
            }
            _ => {}
        }
    }

    fn arrive(&mut self, (sequence, back, tag, body): (Seq, u16, u32, Bytes)) {
        let config = config();
        self.rx
            .arrive(self.now, sequence, back, Item { tag, body }, &config);
        while let Some(charge) = self.rx.ready() {
            if self.rx.unmatched > 0 && self.rx.unmatched + charge > config.unmatched {
                self.rx.refuse(self.now);
                break;
            }
            let item = self.rx.pop(self.now, &config).expect("it is ready");
            if item.tag == 200 {
                self.got.push(u64::from_be_bytes(
                    item.body[..8].try_into().expect("eight bytes"),
                ));
                self.rx.unmatched += charge;
                self.kept.push(charge);
            }
        }
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        let window = self.rx.window(config().unmatched);
        self.rx.acknowledged(window);
        self.acks
            .push((self.rx.expected(), window, self.rx.gap().is_some()));
    }

    fn acked(&mut self, (ack, window, gap): (Seq, u16, bool)) {
        let mut done = Vec::new();
        self.tx.on_ack(
            self.now,
            ack,
            u32::from(window) * WINDOW_UNIT,
            &config(),
            &mut done,
        );
        if gap {
            self.tx.on_gap(self.now, &config());
        }
        self.ended.extend(ids(&done));
    }
}

proptest! {
    #[test]
    fn whatever_is_lost_repeated_or_late_each_message_arrives_once_and_in_order(
        first in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()],
        steps in steps(),
    ) {
        let mut pair = Pair {
            tx: Tx::new(&config(), Seq(first)),
            rx: Rx::new(Seq(first)),
            frames: Vec::new(),
            acks: Vec::new(),
            now: Time::ZERO,
            pushed: 0,
            ended: Vec::new(),
            cancelled: Vec::new(),
            got: Vec::new(),
            kept: Vec::new(),
        };
        for step in steps {
            pair.step(step);
            prop_assert!(pair.got.windows(2).all(|two| two[0] < two[1]), "order: {:?}", pair.got);
            prop_assert!(pair.rx.unmatched <= config().unmatched.max(1600));
            prop_assert!(pair.ended.iter().all(|id| pair.got.contains(id)), "acknowledged, and not here");
        }
        // From here on nothing is lost, and everything ends.
        for _ in 0..400 {
            if pair.tx.is_empty() {
                break;
            }
            for step in [Step::Wait(6000), Step::Transmit] {
                pair.step(step);
            }
            while !pair.frames.is_empty() {
                pair.step(Step::Frame(0, 2));
            }
            while !pair.kept.is_empty() {
                pair.step(Step::Take);
            }
            while !pair.acks.is_empty() {
                pair.step(Step::Ack(0, 2));
            }
        }
        prop_assert!(pair.tx.is_empty(), "it does not end: {:?} {:?}", pair.tx, pair.rx);
        prop_assert_eq!(pair.tx.waiting(), 0);
        let mut all: Vec<u64> = pair.ended.iter().chain(&pair.cancelled).copied().collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..pair.pushed), "each ends once");
    }
}

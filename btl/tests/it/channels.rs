//! Which channel a frame takes, and which pass does what: claims of the usNIC BTL (reference: vic, section
//! 6), seen from the driver.

use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_btl::wire::Kind;
use doorbell_fabric::datagram::Channel;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};

use crate::lane::{self, Step};

const ACK: u8 = Kind::Ack as u8;

/// Counts the messages that arrive.
#[derive(Default)]
struct Sink(u64);

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.0 += 1;
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// A sender, and a receiver that only answers.
type Two = lane::Two<Sink>;

/// Time between two turns.
const STEP: Duration = Duration::from_micros(20);

/// Two ends that know each other, and have nothing left to do.
fn two(config: &BtlConfig) -> Two {
    let mut two = Two::new(true, config);
    two.send(8);
    (0..1000).for_each(|_| two.turn(STEP));
    assert_eq!((two.sinks[1].0, two.taken()), (1, 1));
    two.ends.iter_mut().for_each(|end| drop(end.driver().steps()));
    two
}

impl Two {
    fn send(&mut self, length: usize) {
        self.ends[0]
            .send(self.to[0], &[], Body::Bytes(&vec![7; length]))
            .unwrap();
        self.ends[0].flush();
    }

    /// How many messages the receiver has acknowledged.
    fn taken(&mut self) -> u64 {
        self.ends[0].handed_over(self.to[0]).0
    }

    /// One pass of one end; how much it showed.
    fn pass(&mut self, end: usize) -> usize {
        self.ends[end].poll(64, &mut self.sinks[end])
    }

    fn until_taken(&mut self, count: u64) {
        for _ in 0..100_000 {
            if self.taken() == count {
                return;
            }
            self.turn(STEP);
        }
        panic!("never acknowledged: {:?}", self.ends[0].counters());
    }

    fn steps(&mut self, end: usize) -> Vec<Step> {
        self.ends[end].driver().steps()
    }
}

/// Fast receive: the first completion of a pass is handed up at once; the other channel, and the
/// acknowledgement even where it is due, are the next pass's.
#[test]
fn the_first_message_of_a_pass_is_shown_before_all_bookkeeping() {
    let mut two = two(&BtlConfig {
        ack_every: 1,
        ..BtlConfig::default()
    });
    let mut acks = 0;
    for round in 2..50 {
        two.send(8);
        assert_eq!(two.pass(1), 1, "round {round}");
        assert_eq!(two.sinks[1].0, round);
        assert_eq!(
            two.steps(1),
            [Step::Polled(Channel::Priority, 1)],
            "round {round}"
        );
        // The second pass is a long one: it looks at both channels, and acknowledges.
        assert_eq!(two.pass(1), 0);
        let steps = two.steps(1);
        let polled = |channel| {
            let is = |step: &Step| matches!(step, Step::Polled(at, _) if *at == channel);
            steps.iter().any(is)
        };
        assert!(polled(Channel::Priority) && polled(Channel::Data), "{steps:?}");
        acks += steps
            .iter()
            .filter(|step| matches!(step, Step::Posted(_, ACK, _)))
            .count();
        two.pass(0);
    }
    assert!(acks > 0, "an acknowledgement was due in some round");
}

#[test]
fn what_goes_again_goes_on_the_data_channel() {
    let mut two = two(&BtlConfig::default());
    two.send(8);
    let posted = two.steps(0);
    let [Step::Posted(Channel::Priority, kind, number)] = posted[..] else {
        panic!("a short message is one frame on the priority channel: {posted:?}");
    };
    let lost = two.ends[1].driver().incoming()[0].borrow_mut().pop();
    assert_eq!(lost.map(|frame| frame[18]), Some(kind));
    two.until_taken(2);
    let is_it = |step: &Step| matches!(step, Step::Posted(_, k, n) if (*k, *n) == (kind, number));
    let again: Vec<Step> = two.steps(0).into_iter().filter(is_it).collect();
    assert!(!again.is_empty());
    assert!(
        again
            .iter()
            .all(|step| matches!(step, Step::Posted(Channel::Data, ..))),
        "{again:?}"
    );
    assert_eq!(
        (two.sinks[1].0, two.ends[0].counters().resends),
        (2, again.len() as u64)
    );
}

#[test]
fn acknowledgements_of_data_go_on_the_priority_channel() {
    let mut two = two(&BtlConfig::default());
    for count in 2..10 {
        two.send(20_000);
        two.until_taken(count);
    }
    let sent = two.steps(0);
    let data = sent
        .iter()
        .filter(|step| matches!(step, Step::Posted(Channel::Data, ..)))
        .count();
    assert!(
        data >= 8 * 20_000 / lane::MTU,
        "{data} frames on the data channel"
    );
    let steps = two.steps(1);
    let posted: Vec<&Step> = steps
        .iter()
        .filter(|step| matches!(step, Step::Posted(..)))
        .collect();
    assert!(!posted.is_empty());
    assert!(
        posted
            .iter()
            .all(|step| matches!(step, Step::Posted(Channel::Priority, ACK, _))),
        "the receiver sends nothing but acknowledgements: {posted:?}"
    );
}

//! What the driver reports about itself and about single peers, what the owner does when a link goes, and
//! sleeping.

use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, MsgId, OpError, OpId, PeerIndex, Refused};
use doorbell_fabric::rail::{Armed, Rail};

use crate::lane::Two;

#[derive(Default)]
struct Sink(Vec<Vec<u8>>);

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        self.0.push(bytes);
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// Two ends, of which each may stop polling; and what the first one reports, but for suspicions.
struct Pair {
    two: Two<Sink>,
    polls: [bool; 2],
    events: Vec<RailEvent>,
}

impl std::ops::Deref for Pair {
    type Target = Two<Sink>;
    fn deref(&self) -> &Two<Sink> {
        &self.two
    }
}

impl std::ops::DerefMut for Pair {
    fn deref_mut(&mut self) -> &mut Two<Sink> {
        &mut self.two
    }
}

fn two() -> Pair {
    let mut two = Pair {
        two: Two::new(true, &BtlConfig::default()),
        polls: [true; 2],
        events: Vec::new(),
    };
    two.send(b"hello");
    two.pass(Duration::from_millis(50));
    let to = two.to[0];
    assert_eq!((two.sinks[1].0.len(), two.ends[0].handed_over(to)), (1, MsgId(1)));
    two.events.clear();
    two
}

impl Pair {
    fn send(&mut self, bytes: &[u8]) {
        let to = self.to[0];
        self.ends[0].send(to, bytes, Body::Empty).unwrap();
        self.ends[0].flush();
    }

    /// Lets time pass, in small steps.
    fn pass(&mut self, time: Duration) {
        let by = self.now + time;
        while self.now < by {
            self.now += Duration::from_micros(500);
            let Self { two, polls, events } = self;
            for (i, (end, sink)) in two.ends.iter_mut().zip(&mut two.sinks).enumerate() {
                end.progress(two.now);
                while let Some(event) = end.event() {
                    let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
                    if i == 0 && !doubts.contains(&event.kind) {
                        events.push(event);
                    }
                }
                if polls[i] {
                    while end.poll(64, sink) > 0 {}
                }
            }
        }
    }

    /// The driver of end 0 reports something.
    fn report(&mut self, scope: Scope, kind: EventKind) {
        let at = self.now;
        self.ends[0].driver_mut().events.push_back(RailEvent {
            at,
            scope,
            kind,
            life: Life::FIRST,
        });
    }
}

#[test]
fn a_hint_about_a_peer_is_believed_when_the_peer_stays_silent() {
    let refused = EventKind::PeerDown(DownReason::Died);
    // The peer answers the probes that follow: nothing is reported, whatever the driver reports.
    let mut pair = two();
    for _ in 0..5 {
        pair.report(Scope::Peer(PeerIndex(0)), refused);
        pair.pass(Duration::from_secs(1));
    }
    assert_eq!(pair.events, []);
    pair.send(b"still there");
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.sinks[1].0.len(), 2);
    // It does not: it is down long before the bound for those that nothing is known of.
    for outstanding in [false, true] {
        let mut pair = two();
        pair.polls[1] = false;
        if outstanding {
            pair.send(b"too late");
        }
        pair.report(Scope::Peer(PeerIndex(0)), refused);
        pair.pass(Duration::from_millis(900));
        assert_eq!(pair.events, []);
        pair.pass(Duration::from_millis(600));
        let reported: Vec<_> = pair
            .events
            .iter()
            .map(|event| (event.scope, event.kind))
            .collect();
        assert_eq!(reported, [(Scope::Peer(pair.to[0]), refused)]);
        let to = pair.to[0];
        assert_eq!(pair.ends[0].send(to, b"", Body::Empty), Err(Refused::PeerDown));
    }
}

#[test]
fn events_of_the_whole_rail_are_passed_on() {
    let mut pair = two();
    pair.report(Scope::Rail, EventKind::LinkDown);
    pair.report(Scope::Rail, EventKind::LinkUp);
    pair.pass(Duration::from_millis(1));
    let reported: Vec<_> = pair
        .events
        .iter()
        .map(|event| (event.scope, event.kind))
        .collect();
    assert_eq!(
        reported,
        [
            (Scope::Rail, EventKind::LinkDown),
            (Scope::Rail, EventKind::LinkUp)
        ]
    );
}

/// After a link event, what was not handed over goes elsewhere; the rail is used again when the link is back.
#[test]
fn what_a_living_peer_has_not_taken_can_be_given_back() {
    let mut pair = two();
    pair.polls[1] = false;
    let long = vec![9; 10_000];
    pair.send(b"second");
    let to = pair.to[0];
    pair.ends[0].send(to, &[], Body::Bytes(&long)).unwrap();
    let mut given = Vec::new();
    pair.ends[0].reclaim(to, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
    assert_eq!(given, [(2, b"second".to_vec()), (3, long.clone())]);
    pair.ends[0].reclaim(to, &mut |id, _| panic!("{id:?} was given back twice"));
    pair.polls[1] = true;
    pair.send(b"afterwards");
    pair.pass(Duration::from_millis(400));
    // What was under way may arrive all the same, each once, and what came afterwards does.
    assert_eq!(pair.sinks[1].0.len(), 4);
    assert_eq!(
        pair.sinks[1]
            .0
            .iter()
            .filter(|bytes| **bytes == b"afterwards")
            .count(),
        1
    );
    assert_eq!(pair.ends[0].handed_over(to), MsgId(4));
}

/// An owner that goes to sleep leaves no acknowledgement behind, and knows when to wake.
#[test]
fn no_owner_sleeps_on_an_acknowledgement() {
    let mut pair = two();
    pair.send(b"one more");
    let pair = &mut pair.two;
    pair.ends[1].poll(64, &mut pair.sinks[1]);
    let before = pair.ends[1].counters().acks_sent;
    assert!(pair.ends[1].next_deadline().is_some());
    assert!(matches!(pair.ends[1].arm(), Ok(Armed::Ready | Armed::Sleep(_))));
    assert_eq!(pair.ends[1].counters().acks_sent, before + 1);
    pair.ends[0].poll(64, &mut pair.sinks[0]);
    assert_eq!(pair.ends[0].handed_over(pair.to[0]), MsgId(2));
}

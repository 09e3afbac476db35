//! Calls of the library for a message and for an operation, counted by the model. Each post is a system call
//! over soft-RoCE.

use doorbell_fabric::memory::{MutLoan, Region};
use doorbell_fabric::message::{
    Access, Arrivals, Between, Body, Exposure, Inbound, Look, Message, OpError, OpId, PeerIndex, Watch,
};
use doorbell_sim::conformance::Pair;

use super::{RcRail, connected};
use crate::sys::model::Driven;

/// Rounds that are counted.
const ROUNDS: u64 = 128;
/// A head that a look compares, as two words.
const HEAD: [u8; 16] = *b"sixteen bytes it";

#[derive(Default)]
struct Seen {
    messages: u64,
    ended: u64,
}

impl Arrivals for Seen {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.messages += 1;
    }

    fn completed(&mut self, _: OpId, outcome: Result<u64, OpError>) {
        assert_eq!(outcome, Ok(0));
        self.ended += 1;
    }
}

fn send(rail: &mut RcRail, to: PeerIndex) {
    rail.send(to, &HEAD, Body::Bytes(b"8 bytes.")).unwrap();
    assert!(rail.flush_for(to));
}

fn look(rail: &mut RcRail, from: PeerIndex) -> Look {
    let words = [0, 8].map(|at| u64::from_ne_bytes(*HEAD[at..].first_chunk().unwrap()));
    let mut bytes = [0; 8];
    let room = MutLoan::of_static(Box::leak(Box::new([0; 8])));
    let look = rail.look(
        from,
        words,
        room.into(),
        Watch {
            looks: 1,
            between: Between::Pauses(0),
            answer: true,
        },
    );
    room.as_shared().copy_to(0, &mut bytes);
    assert_eq!(bytes, *b"8 bytes.");
    look
}

/// Counts what both ends call in some rounds, after as many that are not counted.
fn driven(pair: &mut Pair<RcRail>, mut round: impl FnMut(&mut Pair<RcRail>)) -> Driven {
    (0..ROUNDS).for_each(|_| round(pair));
    let before = Driven::now();
    (0..ROUNDS).for_each(|_| round(pair));
    before.since()
}

#[test]
fn a_message_of_a_ping_pong_is_one_request_and_one_poll() {
    let mut pair = connected();
    let driven = driven(&mut pair, |pair| {
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        send(&mut pair.a, to_b);
        assert_eq!(look(pair.b(), to_a), Look::Taken(8));
        send(pair.b(), to_a);
        assert_eq!(look(&mut pair.a, to_b), Look::Taken(8));
    });
    let messages = 2 * ROUNDS;
    assert_eq!(
        (driven.posts, driven.requests),
        (messages, messages),
        "{driven:?}"
    );
    // Where the outbox is full, it is looked what has ended.
    assert!(driven.polls <= messages + messages / 16, "{driven:?}");
    assert!(driven.receives <= messages / 8, "{driven:?}");
}

#[test]
fn a_message_that_a_poll_shows_is_one_request_and_one_poll() {
    let mut pair = connected();
    let mut seen = Seen::default();
    let driven = driven(&mut pair, |pair| {
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        send(&mut pair.a, to_b);
        assert_eq!(pair.b().poll(64, &mut seen), 1);
        send(pair.b(), to_a);
        assert_eq!(pair.a.poll(64, &mut seen), 1);
    });
    let messages = 2 * ROUNDS;
    assert_eq!(seen.messages, 2 * messages);
    // Counters go to a peer that has few credits left, before the answer can bring them.
    assert!(driven.posts <= messages + messages / 16, "{driven:?}");
    assert_eq!(driven.posts, driven.requests);
    assert!(driven.polls <= messages + messages / 16, "{driven:?}");
    assert!(driven.receives <= messages / 8, "{driven:?}");
}

#[test]
fn a_put_is_one_request_and_one_call_of_poll() {
    let mut pair = connected();
    let to_a = pair.to_a;
    let there = Region::new(64).unwrap();
    let memory = Exposure::Region(there.whole());
    let remote = pair.b().expose(memory, Access::Write, Some(to_a)).unwrap();
    let remote = remote.part(0, 8).unwrap();
    let mut seen = Seen::default();
    let put = |pair: &mut Pair<RcRail>, number: u64| {
        let started = pair
            .a
            .put(pair.to_b, OpId(number), Body::Bytes(b"8 bytes."), &remote);
        assert_eq!(started, Ok(()));
        pair.a.flush();
    };
    // The first one makes the queue pair that they go over.
    put(&mut pair, 0);
    pair.until("the first one ends", |pair| !pair.at_a.ended.is_empty());
    let driven = driven(&mut pair, |pair| {
        put(pair, 1);
        assert_eq!(pair.a.poll(64, &mut seen), 1);
    });
    assert_eq!(seen.ended, 2 * ROUNDS);
    assert_eq!((driven.posts, driven.requests), (ROUNDS, ROUNDS), "{driven:?}");
    // Of the queue of what is received, of the queue of operations, and at times of the queue of sends.
    assert!(driven.polls <= 2 * ROUNDS + ROUNDS / 16, "{driven:?}");
    assert_eq!(driven.receives, 0);
    let mut bytes = [0; 8];
    there.read(0, &mut bytes);
    assert_eq!(bytes, *b"8 bytes.");
}

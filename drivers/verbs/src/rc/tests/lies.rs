//! Peers and devices that lie, and systems that refuse: all that is sent and reported is checked, and nothing
//! is left behind.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, Message};
use doorbell_sim::conformance::Pair;
use zerocopy::IntoBytes;

use super::{connected, counts, device_of, downs, pair};
use crate::rc::head::{Head, RETURNS};
use crate::rc::rail::RcRail;
use crate::sys::{Wc, model};

/// Has bytes arrive at `a` as a send of `b`, behind a true head; how the connection ends, and how many
/// messages it shows. What `b` makes of the answers is left aside.
fn arrives(bytes: &[u8]) -> (Vec<DownReason>, usize) {
    let mut pair = connected();
    let seen = pair.at_a.messages.len();
    let (consumed, granted) = true_numbers(&mut pair);
    model::inject(&device_of(&pair.a), &head(consumed, granted, 0, 0));
    model::inject(&device_of(&pair.a), bytes);
    (0..100).for_each(|_| pair.turn_a());
    pair.a.core.slots.check();
    assert_eq!(counts(&pair.a).nonsense, 0);
    // Each lie is one drop, with its reason.
    let ends = downs(&pair);
    let drops: u64 = counts(&pair.a).dropped.iter().sum();
    assert_eq!(drops, ends.len() as u64, "{:?}", counts(&pair.a));
    (ends, pair.at_a.messages.len() - seen)
}

fn head(consumed: u64, granted: u32, count: u16, flags: u16) -> Vec<u8> {
    let head = Head {
        consumed: consumed.into(),
        granted: granted.into(),
        count: count.into(),
        flags: flags.into(),
    };
    head.as_bytes().to_vec()
}

/// What `b` would send truly: the numbers of its end, which has taken one message.
fn true_numbers(pair: &mut Pair<RcRail>) -> (u64, u32) {
    let to_a = pair.to_a.index();
    let link = pair.b().core.peers[to_a].link.as_ref().unwrap();
    (link.consumed, link.granted() as u32)
}

#[test]
fn sends_that_are_cut_are_hostile() {
    let (consumed, granted) = true_numbers(&mut connected());
    let mut whole = head(consumed, granted, 2, 0);
    whole.extend(b"\x03\0one\x03\0two");
    assert_eq!(arrives(&whole), (vec![], 2), "the truth is none");
    for length in 0..whole.len() {
        let (downs, shown) = arrives(&whole[..length]);
        assert_eq!(downs, [DownReason::Hostile], "cut at {length}");
        // The first message may be whole: it was shown before the second was looked at.
        assert!(shown <= usize::from(length >= 21), "cut at {length}");
    }
    whole.push(0);
    assert_eq!(arrives(&whole).0, [DownReason::Hostile], "a byte too many");
}

#[test]
fn counters_in_heads_that_jump_or_shrink_are_hostile() {
    let (consumed, granted) = true_numbers(&mut connected());
    let lies = [
        (consumed - 1, granted, "takes back what it has taken"),
        (consumed + 1, granted, "has taken what was not sent"),
        (u64::MAX, granted, "has taken everything"),
        (consumed, granted - 1, "takes credits back"),
        (consumed, granted + 100_000, "grants what cannot be"),
    ];
    for (consumed, granted, what) in lies {
        let lie = head(consumed, granted, 0, 0);
        assert_eq!(arrives(&lie).0, [DownReason::Hostile], "{what}");
    }
    assert_eq!(arrives(&head(consumed, granted, 0, 0)).0, [], "the truth");
    assert_eq!(
        arrives(&head(consumed, granted, 60, RETURNS)).0,
        [DownReason::Hostile],
        "gives back what it has not"
    );
}

#[test]
fn counters_that_are_written_and_jump_or_shrink_are_hostile() {
    // The three words: taken, granted, credits requested; what is added to each, twice.
    for (at, more, is_hostile) in [
        (0, [0, 0], false),
        (0, [0, -1], true),
        (0, [0, 1], true),
        (0, [1 << 60, 0], true),
        (8, [1, 1], false),
        (8, [1, -1], true),
        (8, [1 << 40, 0], true),
        (16, [3, 0], false),
        (16, [3, -1], true),
    ] {
        let mut pair = connected();
        let to_b = pair.to_b;
        for more in more {
            if let Some(link) = &pair.a.core.peers[to_b.index()].link {
                link.lie_in_page(at, more);
            }
            (0..30).for_each(|_| pair.turn_a());
            pair.a.handed_over(to_b);
        }
        (0..100).for_each(|_| pair.turn_a());
        let expected = if is_hostile {
            vec![DownReason::Hostile]
        } else {
            vec![]
        };
        assert_eq!(downs(&pair), expected, "{more:?} at {at}");
        assert!(pair.a.handed_over(to_b).0 <= 1);
    }
}

#[test]
fn one_receive_twice_and_receives_of_nobody_are_counted() {
    let mut pair = connected();
    let device = device_of(pair.b());
    let before = counts(pair.b());
    let mut lie = Wc::zeroed();
    (lie.wr_id, lie.qp_num, lie.byte_len) = (pair.b().core.slots.posted_one(), 77, 100);
    model::lie_received(&device, lie);
    model::lie_received(&device, lie);
    (0..50).for_each(|_| pair.turn());
    let after = counts(pair.b());
    assert_eq!(
        (after.stale - before.stale, after.nonsense - before.nonsense),
        (1, 1)
    );
    assert_eq!(downs(&pair), []);
    // Statuses and operations that there are not: the connection ends, and no slot is lost.
    for status in [99, -1, i32::MAX] {
        let mut pair = connected();
        let device = device_of(&pair.a);
        let number = pair.a.core.by_pair.any().unwrap();
        (lie.wr_id, lie.qp_num) = (pair.a.core.slots.posted_one(), number);
        (lie.status, lie.opcode) = (status, 1234);
        model::lie_received(&device, lie);
        (0..100).for_each(|_| pair.turn());
        assert_eq!(downs(&pair), [DownReason::Abandoned], "status {status}");
        pair.a.core.slots.refill(true);
        assert_eq!((pair.a.core.slots.posted, pair.a.core.slots.promised), (32, 0));
    }
}

#[test]
fn ends_of_sends_that_were_never_posted_or_have_ended_are_counted() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    let number = pair.a.core.by_pair.any().unwrap();
    let mut lie = Wc::zeroed();
    for id in [0, 1, 1000, u64::MAX] {
        (lie.wr_id, lie.qp_num) = (id, number);
        model::lie_sent(&device, lie);
    }
    lie.qp_num = 77;
    model::lie_sent(&device, lie);
    let before = counts(&pair.a);
    let seen = pair.at_b.messages.len();
    // While nothing is under way, the queue is not looked at.
    pair.a.send(pair.to_b, b"true", Body::Empty).unwrap();
    pair.until("it is shown", |pair| pair.at_b.messages.len() == seen + 1);
    // Few requests under way are looked at when there is time for it.
    (0..20).for_each(|_| pair.turn());
    let after = counts(&pair.a);
    assert_eq!(
        (after.nonsense - before.nonsense, after.stale - before.stale),
        (4, 1)
    );
    assert_eq!(downs(&pair), []);
}

#[test]
fn queues_that_answer_nonsense_end_connections_by_time() {
    for answer in [-1, i32::MIN, 17, i32::MAX] {
        let mut pair = connected();
        let device = device_of(&pair.a);
        model::answer_polls(&device, Some(answer));
        pair.a.send(pair.to_b, b"lost", Body::Empty).unwrap();
        (0..1300).for_each(|_| pair.turn());
        model::answer_polls(&device, None);
        pair.until("it is down", |pair| !downs(pair).is_empty());
        assert_eq!(downs(&pair)[0], DownReason::Silent, "polls answer {answer}");
        assert_eq!(pair.a.core.requests_under_way(), 0);
    }
}

#[test]
fn every_step_of_connecting_that_is_refused_leaves_nothing() {
    let mut refused = Vec::new();
    for count in 0.. {
        let mut pair = pair().connect();
        let (to_a, device) = (pair.to_a, device_of(pair.b()));
        (0..60).for_each(|_| pair.turn());
        let before = model::outcome(&device).1 - model::handles(&device);
        model::refuse_after(&device, Some(count));
        pair.a.send(pair.to_b, b"hello", Body::Empty).unwrap();
        (0..300).for_each(|_| pair.turn());
        let Some(call) = model::first_refused(&device) else {
            assert_eq!(pair.at_b.messages.len(), 1, "nothing was refused");
            model::refuse_after(&device, None);
            break;
        };
        refused.push(call);
        assert!(pair.at_b.messages.is_empty());
        // An end that has no way to its peer waits for one, until the peer or it gives up.
        pair.a.abandon(pair.to_b);
        pair.b().abandon(to_a);
        (0..100).for_each(|_| pair.turn());
        pair.b().core.destroyer.finish();
        // The handle of a peer's port is kept.
        let objects = model::outcome(&device).1 - model::handles(&device);
        assert_eq!(objects, before, "objects are left behind {call}");
        model::refuse_after(&device, None);
        // It works as soon as the system grants it.
        for _ in 0..3000 {
            pair.a.revive(pair.to_b);
            pair.b().revive(to_a);
            pair.turn();
            if pair.a.send(pair.to_b, b"again", Body::Empty).is_ok() {
                break;
            }
        }
        pair.until("it is shown", |pair| !pair.at_b.messages.is_empty());
    }
    for call in ["reg_mr", "create_qp", "modify_qp"] {
        assert!(refused.contains(&call), "{refused:?}");
    }
    assert!(refused.len() >= 5, "{refused:?}");
}

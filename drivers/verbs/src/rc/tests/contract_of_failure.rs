//! What a rail promises about failures, each promise by its name.

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, Body, Exposure, Message, OpError, OpId, Refused, Remote};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::Pair;

use super::{RcRail, connected, counts, device_of, downs, fresh, pair, small};
use crate::config::VerbsConfig;
use crate::ports::Tree;
use crate::sys::model::{self, Fault, Spec};
use crate::sys::{Wc, numbers};
use crate::ud::open::Source;

fn try_send(pair: &mut Pair<RcRail>, n: u64) -> bool {
    let body = [n as u8; 2000];
    let sent = pair.a.send(pair.to_b, &n.to_le_bytes(), Body::Bytes(&body));
    sent.is_ok()
}

fn send(pair: &mut Pair<RcRail>, n: u64) {
    assert!(try_send(pair, n));
}

fn fail(rail: &RcRail, after: u32, status: i32, is_carried: bool) {
    let fault = Fault {
        after,
        status,
        is_carried,
    };
    model::fail_request(&device_of(rail), fault);
}

/// The numbers of the messages that are given back, which have to be whole and in order.
fn reclaimed(pair: &mut Pair<RcRail>) -> Vec<u64> {
    let mut numbers = Vec::new();
    pair.a.reclaim(pair.to_b, &mut |_, bytes| {
        let n = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes[8..], [n as u8; 2000]);
        numbers.push(n);
    });
    assert!(numbers.is_sorted());
    numbers
}

#[test]
fn of_an_error_only_request_status_and_queue_pair_are_looked_at() {
    // What else there is of one is nonsense in the model; a flush without a cause is an end of its own.
    let mut pair = connected();
    fail(&pair.a, 0, numbers::WR_FLUSH_ERR, false);
    send(&mut pair, 1);
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Abandoned]);
    assert!(counts(&pair.a).flushed > 0);
}

#[test]
fn every_reason_has_its_word() {
    let reasons = [
        (numbers::RETRY_EXC_ERR, DownReason::Silent),
        (numbers::RNR_RETRY_EXC_ERR, DownReason::Abandoned),
        (numbers::LOC_PROT_ERR, DownReason::Resources),
        (numbers::REM_ACCESS_ERR, DownReason::Abandoned),
        (1000, DownReason::Abandoned),
        (-1, DownReason::Abandoned),
    ];
    for (status, reason) in reasons {
        let mut pair = connected();
        pair.a.core.expects_rnr = status == numbers::RNR_RETRY_EXC_ERR;
        fail(&pair.a, 0, status, false);
        send(&mut pair, 1);
        pair.until("the end is reported", |pair| !downs(pair).is_empty());
        pair.settle();
        assert_eq!(downs(&pair), [reason], "status {status}, reported once");
    }
}

#[test]
fn every_request_that_was_posted_ends_exactly_once() {
    for after in 0..12 {
        for is_carried in [false, true] {
            let mut pair = connected();
            fail(&pair.a, after, numbers::RETRY_EXC_ERR, is_carried);
            (1..=30).for_each(|n| {
                // An end may have been noticed.
                try_send(&mut pair, n);
                if n % 3 == 0 {
                    pair.a.flush();
                }
            });
            pair.until("the end is reported", |pair| !downs(pair).is_empty());
            pair.settle();
            assert_eq!(pair.a.core.requests_under_way(), 0);
            assert_eq!(counts(&pair.a).nonsense, 0);
            assert_eq!(pair.a.core.free_slots(), 64, "every slot came back");
            assert_eq!(downs(&pair).len(), 1);
        }
    }
}

#[test]
fn nothing_is_lost_and_what_is_given_back_twice_was_not_known() {
    for after in (0..20).step_by(3) {
        for is_carried in [false, true] {
            let mut pair = connected();
            fail(&pair.a, after, numbers::RETRY_EXC_ERR, is_carried);
            let mut sent = 0;
            while sent < 30 && try_send(&mut pair, sent + 1) {
                sent += 1;
                if sent % 4 == 0 {
                    pair.turn();
                }
            }
            pair.until("the end is reported", |pair| !downs(pair).is_empty());
            let watermark = pair.a.handed_over(pair.to_b).0;
            let given = reclaimed(&mut pair);
            pair.settle();
            let shown: Vec<u64> = pair.at_b.messages[1..]
                .iter()
                .map(|(_, bytes)| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
                .collect();
            assert_eq!(
                shown,
                (1..=shown.len() as u64).collect::<Vec<_>>(),
                "each once, in order"
            );
            // One message, of the connection's beginning, came before.
            assert_eq!(given, (watermark..=sent).filter(|n| *n > 0).collect::<Vec<_>>());
            assert!(shown.len() as u64 + 1 >= watermark, "a success is no delivery");
        }
    }
}

#[test]
fn what_was_stored_and_never_posted_is_given_back_like_what_was_posted() {
    let mut pair = connected();
    // More than there are credits for, several in each send, and a body that lies elsewhere.
    (1..=60).for_each(|n| send(&mut pair, n));
    let region = Region::new(5000).unwrap();
    pair.a
        .send(pair.to_b, b"far", Body::Region(&region.whole()))
        .unwrap();
    pair.a.flush();
    assert!(pair.a.holds_back(Some(pair.to_b)), "no credit for all");
    pair.a.abandon(pair.to_b);
    assert_eq!(pair.a.send(pair.to_b, b"", Body::Empty), Err(Refused::PeerDown));
    let mut lengths = Vec::new();
    pair.a
        .reclaim(pair.to_b, &mut |id, bytes| lengths.push((id.0, bytes.len())));
    let expected: Vec<_> = (2..=61).map(|id| (id, 2008)).chain([(62, 5003)]).collect();
    assert_eq!(lengths, expected);
}

#[test]
fn what_waits_for_a_connection_that_is_never_made_is_given_back() {
    let mut pair = pair().connect();
    let other = device_of(pair.b());
    model::mute(&other, true);
    (1..=3).for_each(|n| send(&mut pair, n));
    let remote = Remote {
        key: 7.into(),
        address: 0x1000.into(),
        length: 8.into(),
    };
    let (to_b, body) = (pair.to_b, Body::Bytes(&[0; 8]));
    assert_eq!(pair.a.put(to_b, OpId(9), body, &remote), Ok(()));
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Silent]);
    assert_eq!(reclaimed(&mut pair), [1, 2, 3]);
    pair.until("the operation ends", |pair| !pair.at_a.ended.is_empty());
    assert_eq!(pair.at_a.ended, [(OpId(9), Err(OpError::NotDone))]);
}

#[test]
fn the_first_error_takes_both_queue_pairs_of_a_peer_down() {
    let mut pair = connected();
    let (region, to_a, to_b) = (Region::new(64).unwrap(), pair.to_a, pair.to_b);
    let exposed = Exposure::Region(region.whole());
    let remote = pair.b().expose(exposed, Access::ReadWrite, Some(to_a)).unwrap();
    let put = |pair: &mut Pair<RcRail>, op| pair.a.put(to_b, OpId(op), Body::Bytes(&[1; 64]), &remote);
    assert_eq!(put(&mut pair, 1), Ok(()));
    pair.until("it is done", |pair| pair.at_a.ended.len() == 1);
    let device = device_of(&pair.a);
    assert_eq!(model::states(&device), [numbers::RTS; 2]);
    // An operation that has ended before is honoured, and one that has not ends.
    assert_eq!(put(&mut pair, 2), Ok(()));
    pair.a.flush();
    model::hold_requests(&device, true);
    assert_eq!(put(&mut pair, 3), Ok(()));
    pair.a.flush();
    model::hold_requests(&device, false);
    fail(&pair.a, 0, numbers::RETRY_EXC_ERR, false);
    send(&mut pair, 1);
    pair.a.flush();
    pair.a.core.reap();
    assert_eq!(model::states(&device), [numbers::ERR; 2]);
    assert!(pair.a.event().is_none(), "what has come is shown before");
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    pair.settle();
    let outcomes: Vec<_> = pair.at_a.ended[1..].iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, [Ok(0), Err(OpError::Indeterminate)]);
    assert_eq!(downs(&pair), [DownReason::Silent]);
}

#[test]
fn a_farewell_is_closed_and_what_the_peer_gave_up_is_abandoned() {
    let mut pair = connected();
    let to_a = pair.to_a;
    pair.b().abandon(to_a);
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Abandoned]);
    let mut pair = connected();
    let now = pair.b().core.now;
    let by = now + std::time::Duration::from_secs(3);
    while !pair.b().close(now, by) {
        pair.turn_a();
    }
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Closed]);
}

#[test]
fn a_request_that_never_ends_is_bounded_by_time() {
    let mut pair = connected();
    model::hold_requests(&device_of(&pair.a), true);
    (1..=3).for_each(|n| send(&mut pair, n));
    pair.a.flush();
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Silent]);
    assert_eq!(reclaimed(&mut pair), [1, 2, 3]);
    assert_eq!(pair.a.core.requests_under_way(), 0);
}

#[test]
fn what_has_come_is_shown_before_the_end_is_reported() {
    let mut pair = connected();
    let to_a = pair.to_a;
    for n in 0..3u8 {
        pair.b().send(to_a, &[n], Body::Empty).unwrap();
    }
    pair.b().flush();
    model::break_pairs(&device_of(&pair.a));
    let seen = pair.at_a.messages.len();
    send(&mut pair, 1);
    pair.a.flush();
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(pair.at_a.messages.len(), seen + 3);
}

#[test]
fn the_other_end_is_told_and_finds_out_by_itself() {
    for is_told in [true, false] {
        let mut pair = connected();
        fail(&pair.a, 0, numbers::RETRY_EXC_ERR, false);
        model::mute(&device_of(&pair.a), !is_told);
        send(&mut pair, 1);
        pair.until("the end is reported", |pair| !downs(pair).is_empty());
        let mut reasons = Vec::new();
        for _ in 0..3000 {
            pair.turn();
            while let Some(event) = pair.b().event() {
                if let EventKind::PeerDown(reason) = event.kind {
                    reasons.push(reason);
                }
            }
        }
        assert_eq!(reasons.len(), 1, "notified: {is_told}: {reasons:?}");
    }
}

#[test]
fn a_completion_of_an_older_life_is_dropped_and_counted() {
    let mut pair = connected();
    (1..=3).for_each(|n| send(&mut pair, n));
    pair.a.flush();
    let seen = pair.at_b.messages.len();
    let to_a = pair.to_a;
    pair.b().abandon(to_a);
    pair.settle();
    assert_eq!(pair.at_b.messages.len(), seen, "nothing of it is shown");
    assert!(counts(pair.b()).stale > 0);
    let slots = &pair.b().core.slots;
    assert_eq!(slots.promised, 0, "its promises hold no more");
}

#[test]
fn flushes_of_the_shared_queue_cost_nobody_anything() {
    let mut pair = connected();
    let device = device_of(pair.b());
    let promised = pair.b().core.slots.promised;
    let mut flush = Wc::zeroed();
    // The generation of a slot that was posted once; its queue pair is none of ours.
    (flush.wr_id, flush.status, flush.qp_num) = (31 | 1 << 32, numbers::WR_FLUSH_ERR, 5);
    model::lie(&device, flush);
    (0..20).for_each(|_| pair.turn());
    pair.b().core.slots.refill(true);
    let now = (pair.b().core.slots.posted, pair.b().core.slots.promised);
    assert_eq!(now, (32, promised), "the slot came back, and no credit went");
    assert_eq!(downs(&pair), []);
}

#[test]
fn completions_that_lie_are_counted_and_change_nothing() {
    let mut pair = connected();
    let device = device_of(pair.b());
    let number = model::connection_numbers(&device)[0];
    let mut lie = Wc::zeroed();
    // Never given, of a generation that is over, twice; of queue pairs that are, and are not.
    for (id, pair) in [
        (u64::MAX, number),
        (1 << 40, number),
        (7, number),
        (7 | 2 << 32, number),
        (u64::MAX, 1),
        (0, 0xffff_ffff),
    ] {
        (lie.wr_id, lie.qp_num, lie.opcode) = (id, pair, -7);
        model::lie(&device, lie);
    }
    // While nothing is under way, the queue of sends is not looked at.
    let to_a = pair.to_a;
    pair.b().send(to_a, b"true", Body::Empty).unwrap();
    (0..100).for_each(|_| pair.turn());
    let counted = counts(pair.b());
    assert!(counted.nonsense >= 10 && counted.stale == 2, "{counted:?}");
    let seen = pair.at_b.messages.len();
    send(&mut pair, 9);
    pair.until("the truth is shown", |pair| pair.at_b.messages.len() == seen + 1);
    assert_eq!(downs(&pair), []);
}

#[test]
fn a_length_above_the_slot_ends_the_peer() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    let number = model::connection_numbers(&device)[0];
    let mut lie = Wc::zeroed();
    (lie.wr_id, lie.qp_num, lie.byte_len) = (31 | 1 << 32, number, 8193);
    model::lie(&device, lie);
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    assert_eq!(downs(&pair), [DownReason::Hostile]);
}

#[test]
fn a_number_that_runs_ahead_of_what_was_sent_is_hostile() {
    for by_head in [true, false] {
        let mut pair = connected();
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        let link = &mut pair.b().core.peers[to_a.index()].link;
        link.as_mut().unwrap().consumed += 1000;
        if by_head {
            pair.b().send(to_a, b"lie", Body::Empty).unwrap();
        } else {
            pair.b().core.mark_owed(to_a.0);
        }
        let before = pair.a.handed_over(to_b);
        pair.a.send(to_b, b"hello", Body::Empty).unwrap();
        pair.until("the end is reported", |pair| !downs(pair).is_empty());
        assert_eq!(downs(&pair), [DownReason::Hostile]);
        assert!(pair.a.handed_over(to_b).0 <= before.0 + 1);
    }
}

#[test]
fn every_step_that_is_refused_leaves_nothing() {
    let number = fresh();
    let name = super::device(number);
    let rail = format!("verbs:{name}:1").parse().unwrap();
    let library = model::library(Spec::new(&name, [127, 2, 0, number as u8]));
    let mut refused = Vec::new();
    for count in 0.. {
        model::refuse_after(&name, Some(count));
        let source = Source {
            library: library.clone(),
            tree: Tree::default(),
        };
        let made = RcRail::open_from(&rail, &VerbsConfig::default(), small(), &source);
        let (call, _) = model::outcome(&name);
        let Some(call) = call else {
            drop(made.expect("nothing was refused"));
            break;
        };
        let said = made.expect_err("a step was refused").to_string();
        assert!(said.contains(&format!("ibv_{call}")), "{call}: {said}");
        assert_eq!(model::outcome(&name).1, 0, "objects are left behind {call}");
        refused.push(call);
    }
    assert!(
        ["create_srq", "reg_mr", "create_cq", "create_qp", "modify_qp"]
            .iter()
            .all(|call| refused.contains(call)),
        "{refused:?}"
    );
    model::refuse_after(&name, None);
    assert_eq!(model::outcome(&name).1, 0);
}

#[test]
fn what_is_left_of_a_connection_is_not_taken_when_the_next_one_is_made() {
    let mut pair = connected();
    let known = pair.a.handed_over(pair.to_b);
    fail(&pair.a, 0, numbers::RETRY_EXC_ERR, false);
    (1..=5).for_each(|n| send(&mut pair, n));
    pair.until("the end is reported", |pair| !downs(pair).is_empty());
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    pair.until("the next one is up", |pair| {
        pair.a.revive(to_b);
        pair.b().revive(to_a);
        pair.a.core.is_up(to_b.0)
    });
    assert_eq!(pair.a.handed_over(to_b), known);
    assert_eq!(reclaimed(&mut pair), [1, 2, 3, 4, 5]);
}

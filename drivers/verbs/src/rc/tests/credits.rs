//! Credits: what is promised is posted, a sender that has more requests more, and idle credits come back.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{
    Arrivals, Between, Body, Inbound, Look, Message, OpError, OpId, PeerIndex, Watch,
};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use super::{connected, counts, device_of, fresh, pair, rail, small};
use crate::rc::core::Sizes;
use crate::rc::head::{Head, RETURNS};
use crate::rc::rail::RcRail;
use crate::sys::{Wc, model, numbers};

/// Counts the messages that arrive.
#[derive(Default)]
pub(super) struct Count(pub(super) usize);

impl Arrivals for Count {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.0 += 1;
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// One rail that receives, and several that send to it.
struct Star {
    now: Time,
    hub: RcRail,
    seen: Count,
    others: Vec<(RcRail, PeerIndex)>,
}

impl Star {
    fn new(hub: Sizes, others: usize) -> Self {
        let (mut hub, life) = rail(hub);
        let others = (0..others).map(|_| {
            let (mut other, its) = rail(small());
            let to_hub = other.open(&hub.address(), life).unwrap();
            hub.open(&other.address(), its).unwrap();
            (other, to_hub)
        });
        let others = others.collect();
        Self {
            now: Time::ZERO,
            hub,
            seen: Count::default(),
            others,
        }
    }

    fn turn(&mut self) {
        self.now += Duration::from_millis(1);
        self.hub.progress(self.now);
        self.hub.poll(64, &mut self.seen);
        for (other, _) in &mut self.others {
            other.progress(self.now);
            other.poll(64, &mut Count::default());
        }
    }

    /// Has a rail send until all its messages were taken.
    fn send(&mut self, from: usize, messages: usize) {
        let goal = self.seen.0 + messages;
        let mut left = messages;
        for _ in 0..20_000 {
            let (other, to_hub) = &mut self.others[from];
            while left > 0 && other.send(*to_hub, &[7; 200], Body::Bytes(&[7; 5000])).is_ok() {
                left -= 1;
            }
            self.turn();
            if self.seen.0 == goal {
                return;
            }
        }
        panic!("{} of {goal}: {:?}", self.seen.0, self.hub);
    }
}

#[test]
fn idle_credits_are_asked_back_for_those_that_have_none() {
    // Two connections that were busy have everything; then a third one needs some.
    let sizes = Sizes {
        receives: (24, 24),
        ..small()
    };
    let mut star = Star::new(sizes, 3);
    star.send(0, 200);
    star.send(1, 200);
    let slots = &star.hub.core.slots;
    assert!(slots.unpromised() <= 4, "{} are left", slots.unpromised());
    (0..200).for_each(|_| star.turn());
    assert!(star.hub.core.slots.unpromised() > 8, "they came back");
    star.send(2, 200);
    let hub = star.hub.stats();
    assert!(hub.recalled > 0, "{hub:?}");
    let returned: u64 = star.others.iter().map(|(other, _)| other.stats().returned).sum();
    assert!(returned > 0);
    // Those that gave them back go on.
    star.send(0, 50);
    star.send(1, 50);
    assert_eq!(star.hub.stats().nonsense, 0);
}

#[test]
fn nobody_is_asked_while_there_are_credits() {
    let mut star = Star::new(
        Sizes {
            receives: (64, 512),
            ..small()
        },
        2,
    );
    star.send(0, 300);
    (0..200).for_each(|_| star.turn());
    star.send(1, 300);
    assert_eq!(star.hub.stats().recalled, 0);
}

#[test]
fn only_a_sender_that_has_more_asks_for_more() {
    // Each message is taken before the next one: four credits are enough.
    let mut pair = connected();
    for n in 1..100u64 {
        pair.a.send(pair.to_b, b"one", Body::Bytes(&[7; 5000])).unwrap();
        pair.until("it is taken", |pair| pair.a.handed_over(pair.to_b).0 == n + 1);
    }
    assert_eq!(counts(&pair.a).asked, 0);
    let to_a = pair.to_a.0 as usize;
    let granted = pair.b().core.peers[to_a].link.as_ref().unwrap().promised();
    assert!(granted <= 4, "{granted}");
    (0..20).for_each(|_| {
        pair.a.send(pair.to_b, b"many", Body::Bytes(&[7; 5000])).unwrap();
    });
    pair.until("all are taken", |pair| pair.a.handed_over(pair.to_b).0 == 120);
    assert!(counts(&pair.a).asked > 0);
}

#[test]
fn credits_given_back_that_were_never_granted_are_hostile() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    let lie = Head {
        consumed: 1.into(),
        granted: 4.into(),
        count: 60.into(),
        flags: RETURNS.into(),
    };
    model::inject(&device, zerocopy::IntoBytes::as_bytes(&lie));
    let is_down =
        |event: &doorbell_fabric::event::RailEvent| event.kind == EventKind::PeerDown(DownReason::Hostile);
    pair.until("the end is reported", |pair| pair.events.iter().any(is_down));
    pair.settle();
    pair.a.core.slots.check();
}

#[test]
fn a_slot_that_no_promise_stands_behind_is_posted_at_once() {
    // Every slot that is posted is promised; then completions of no connection take some of them.
    let sizes = Sizes {
        receives: (32, 32),
        ..small()
    };
    let (mut hub, life) = rail(sizes);
    let device = device_of(&hub);
    let (mut seen, mut now) = (Count::default(), Time::ZERO);
    let mut others = Vec::new();
    for _ in 0..8 {
        let (mut other, its) = rail(small());
        hub.open(&other.address(), its).unwrap();
        let to_hub = other.open(&hub.address(), life).unwrap();
        other.send(to_hub, b"hello", Body::Empty).unwrap();
        others.push(other);
        // One after the other, so that each has what it begins with before the next one does.
        for _ in 0..100 {
            now += Duration::from_millis(1);
            hub.progress(now);
            hub.poll(64, &mut seen);
            for other in &mut others {
                other.progress(now);
                other.poll(64, &mut seen);
            }
        }
    }
    // What came back last waits for others to be posted with.
    hub.core.slots.refill(true);
    (0..8).for_each(|peer| hub.core.mark_owed(peer));
    hub.core.tell(false);
    let slots = &hub.core.slots;
    assert_eq!((seen.0, slots.promised, slots.posted), (8, 32, 32), "{slots:?}");
    let mut lie = Wc::zeroed();
    (lie.wr_id, lie.status, lie.qp_num) = (slots.posted_one(), numbers::WR_FLUSH_ERR, fresh());
    model::lie_received(&device, lie);
    hub.poll(64, &mut seen);
    assert_eq!((hub.core.slots.promised, hub.core.slots.posted), (32, 32));
}

#[test]
#[should_panic(expected = "left: 1")]
fn a_broken_promise_fails_every_test_that_does_not_make_it() {
    let mut pair = pair().connect();
    pair.a.core.stats.rnr = 1;
}

#[test]
fn peers_that_only_look_and_answer_grant_each_other_credits() {
    let mut pair = connected();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let words = [7_u64, 8];
    let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let watch = Watch {
        looks: 1,
        between: Between::Pauses(0),
        answer: true,
    };
    let room = MutLoan::of_static(vec![0; 64].leak());
    let told = counts(&pair.a).told;
    for number in 0..500 {
        pair.a.send(to_b, &head, Body::Empty).unwrap();
        pair.a.flush();
        let taken = pair.b().look(to_a, words, room.into(), watch);
        assert!(matches!(taken, Look::Taken(0)), "{number} there: {taken:?}");
        pair.b().send(to_a, &head, Body::Empty).unwrap();
        pair.b().flush();
        let taken = pair.a.look(to_b, words, room.into(), watch);
        assert!(matches!(taken, Look::Taken(0)), "{number} back: {taken:?}");
    }
    assert_eq!(counts(&pair.a).told, told);
}

#[test]
fn a_peer_that_waits_for_it_learns_at_once_what_was_taken() {
    let mut pair = connected();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    // With credits enough, so that none are granted meanwhile: they would bring the number along.
    for turn in 0..40 {
        pair.a.send(to_b, &[turn; 8], Body::Empty).unwrap();
        pair.until("it is known to be taken", |pair| {
            pair.a.handed_over(to_b).0 == u64::from(turn) + 2
        });
    }
    let last = pair.a.send(to_b, &[7; 8], Body::Bytes(&[7; 3000])).unwrap();
    pair.a.flush();
    let mut seen = Count::default();
    for _ in 0..1000 {
        pair.b().poll(64, &mut seen);
        if seen.0 == 1 {
            break;
        }
    }
    assert_eq!(seen.0, 1);
    let watermark = |rail: &mut RcRail| {
        for _ in 0..1000 {
            rail.poll(64, &mut Count::default());
        }
        rail.handed_over(to_b)
    };
    assert!(
        watermark(&mut pair.a) < last,
        "its receiver has made no call since"
    );
    pair.b().acknowledge(to_a);
    assert_eq!(watermark(&mut pair.a), last);
    // There is nothing more to report.
    let told = counts(pair.b()).told;
    pair.b().acknowledge(to_a);
    assert_eq!(counts(pair.b()).told, told);
}

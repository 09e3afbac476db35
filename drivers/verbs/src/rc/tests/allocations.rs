//! Nothing is allocated for a message: counted by the allocator itself, without what the model allocates.

use doorbell_fabric::memory::{ConstLoan, Region, RegionSlice};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Pair;
use doorbell_testing::alloc;

use super::{RcRail, connected};
use crate::sys::model;

/// Counts the messages that are shown.
struct Count(u64);

impl Arrivals for Count {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.0 += 1;
    }
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// Every kind of body both ways, alone and many at once, then quiet.
fn exchange(pair: &mut Pair<RcRail>, far: &RegionSlice, seen: &mut Count, now: Time, alone: bool) {
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let loan = ConstLoan::of_static(&[7; 600]);
    let parts = [loan, ConstLoan::EMPTY, loan];
    let bodies = [
        Body::Empty,
        Body::Bytes(&[7; 8]),
        Body::Loan(loan),
        Body::Parts(&parts),
        Body::Region(far),
    ];
    for count in [1, 20] {
        let goal = seen.0 + 2 * count * bodies.len() as u64;
        for body in bodies {
            for _ in 0..count {
                for at in [0, 1] {
                    loop {
                        let sent = match at {
                            0 => pair.a.send(to_b, b"head", body),
                            _ => pair.b().send(to_a, b"head", body),
                        };
                        if sent.is_ok() {
                            if alone {
                                pair.a.flush();
                                pair.b().flush();
                            }
                            break;
                        }
                        pair.a.poll(64, seen);
                        pair.b().poll(64, seen);
                    }
                }
            }
        }
        while seen.0 < goal {
            pair.a.poll(64, seen);
            pair.b().poll(64, seen);
        }
    }
    for _ in 0..100 {
        pair.a.poll(64, seen);
        pair.b().poll(64, seen);
    }
    pair.a.handed_over(to_b);
    pair.a.progress(now);
    pair.b().progress(now);
}

#[test]
fn messages_allocate_nothing() {
    assert_eq!(count(&mut connected(), false), 0);
}

/// What two ends allocate for many messages, once both have had some: each `alone` in its send, or several.
pub(super) fn count(pair: &mut Pair<RcRail>, alone: bool) -> u64 {
    let far = Region::new(5000).unwrap().whole();
    // Once a second the port's table is read, which allocates.
    pair.a.watch.rest();
    pair.b().watch.rest();
    let (mut seen, mut now) = (Count(0), pair.a.core.now);
    let mut round = |seen: &mut Count| {
        now += std::time::Duration::from_millis(30);
        exchange(pair, &far, seen, now, alone);
    };
    (0..30).for_each(|_| round(&mut seen));
    let (before, own) = (alloc::of_thread().allocations, model::own_allocations());
    (0..100).for_each(|_| round(&mut seen));
    let made = alloc::of_thread().allocations - before;
    assert!(seen.0 > 10_000, "{}", seen.0);
    made - (model::own_allocations() - own)
}

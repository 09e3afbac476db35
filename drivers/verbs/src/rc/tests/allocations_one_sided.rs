//! Nothing is allocated for a one-sided operation or an exposure: counted by the allocator itself, without
//! what the model allocates.

use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Landing, Message, OpError, OpId,
    PeerIndex, RemoteKey,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::Pair;
use doorbell_testing::alloc;

use super::{RcRail, connect, pair_over, small};
use crate::sys::model::{self, Windows};

/// Counts the operations that have ended well.
struct Ended(u64);

impl Arrivals for Ended {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {}
    fn completed(&mut self, _: OpId, outcome: Result<u64, OpError>) {
        assert!(outcome.is_ok());
        self.0 += 1;
    }
}

struct Stage {
    pair: Pair<RcRail>,
    there: Region,
    here: Region,
    lent: MutLoan,
    ended: Ended,
}

impl Stage {
    /// An exposure, every kind of operation on it, a fence, and the exposure's end.
    fn round(&mut self) {
        let (to_a, to_b) = (self.pair.to_a, self.pair.to_b);
        let memory = Exposure::Region(self.there.whole());
        let remote = self.pair.b().expose(memory, Access::ReadWrite, Some(to_a));
        let remote = remote.expect("an exposure");
        let whole = self.here.whole();
        let at = remote.part(0, 8).expect("inside");
        let short = remote.part(8, 600).expect("inside");
        let landing = || Landing::Region(whole.clone());
        let part = Landing::Region(self.here.slice(0, 600).expect("inside"));
        let loan = ConstLoan::of_static(&[3; 600]);
        let goal = self.ended.0 + 9;
        let rail = &mut self.pair.a;
        let started = [
            rail.get(to_b, OpId(1), &remote, landing()),
            rail.get(to_b, OpId(2), &short, part),
            rail.get(to_b, OpId(3), &short, Landing::Loan(self.lent)),
            rail.put(to_b, OpId(4), Body::Bytes(&[4; 8]), &at),
            rail.put(to_b, OpId(5), Body::Loan(loan), &short),
            rail.put(to_b, OpId(6), Body::Region(&whole), &remote),
            rail.atomic(to_b, OpId(7), &at, AtomicOp::Add(1)),
            rail.atomic(to_b, OpId(8), &at, AtomicOp::Xor(5)),
            rail.fence(FenceScope::Rail, OpId(9)),
        ];
        assert!(started.iter().all(Result::is_ok), "{started:?}");
        while self.ended.0 < goal {
            self.pair.a.poll(64, &mut self.ended);
            self.pair.b().poll(64, &mut self.ended);
        }
        self.pair.b().withdraw(RemoteKey(remote.key.get()));
    }
}

#[test]
fn one_sided_operations_allocate_nothing() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = connect(pair_over(small(), |spec| spec.windows = windows));
        // Once a second the port's table is read, which allocates.
        pair.a.watch.rest();
        pair.b().watch.rest();
        let mut now = pair.a.core.now;
        let mut stage = Stage {
            pair,
            there: Region::new(5000).expect("memory"),
            here: Region::new(5000).expect("memory"),
            lent: MutLoan::of_static(vec![0; 600].leak()),
            ended: Ended(0),
        };
        // The first exposure waits for its queue pair.
        let to_a = stage.pair.to_a;
        let memory = Exposure::Region(stage.there.whole());
        let first = stage.pair.b().expose(memory, Access::Read, Some(to_a));
        assert!(first.is_ok());
        let mut rounds = |count: usize| {
            for _ in 0..count {
                now += std::time::Duration::from_millis(1);
                stage.round();
                stage.pair.a.progress(now);
                stage.pair.b().progress(now);
            }
        };
        // Withdrawn names are remembered, up to a bound.
        rounds(400);
        let (before, own) = (alloc::of_thread().allocations, model::own_allocations());
        rounds(200);
        let made = alloc::of_thread().allocations - before;
        assert_eq!(made - (model::own_allocations() - own), 0, "{windows:?}");
    }
}

//! The credit state allocates its table once, when it is made, and nothing afterwards: counted by the
//! allocator itself.

use doorbell_am::credit::{Ask, Chunk, CreditConfig, CreditState, Peer};
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: u32 = 10_000;

#[test]
fn the_table_of_ten_thousand_is_one_allocation_and_the_last() {
    let terms = CreditConfig {
        per_node: Some(4),
        banked: Some(64),
        chunks_per_buffer: 256,
        ..CreditConfig::new(NODES, 0, Chunk::Small)
    };
    let (allocations, bytes) = (alloc::of_thread().allocations, alloc::of_thread().requested);
    let mut x = CreditState::new(&terms).unwrap();
    assert_eq!(alloc::of_thread().allocations - allocations, 1);
    let bytes = (alloc::of_thread().requested - bytes) as usize;
    assert_eq!(bytes, NODES as usize * size_of::<Peer>());
    assert!(bytes < 400_000, "{bytes}");

    let mut y = CreditState::new(&CreditConfig { me: 1, ..terms }).unwrap();
    let before = alloc::of_thread().allocations;
    let mut moved = 0;
    for _ in 0..20_000 {
        let mut ask = Ask::new(3);
        let first = x.take(1, &mut Ask::new(4)).unwrap();
        let second = x.take(1, &mut ask);
        let due = y.arrived(0, first).unwrap();
        x.replied(1, y.answer(0, due)).unwrap();
        let second = second.or_else(|_| x.take(1, &mut ask)).unwrap();
        let due = y.arrived(0, second).unwrap();
        moved += x.replied(1, y.answer(0, due)).unwrap();
        while let Some(revoke) = y.next_revoke() {
            let told = x.revoked(1, revoke.epoch).unwrap();
            y.returned(0, told.give, told.epoch).unwrap();
        }
    }
    assert!(moved > 0 && y.counters().epochs > 10);
    assert_eq!(alloc::of_thread().allocations, before, "of 40,000 requests");
}

//! An economy allocates its table when it is made, once, and nothing afterwards: counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use doorbell_am::credit::{Ask, Chunk, Economy, Peer, Terms};

struct Counting;

thread_local! {
    // Of this thread alone: the test harness has threads of its own, which allocate when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // A thread that is ending has no counter any more, and nothing that we ask about.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
}

// SAFETY: everything is passed on to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: u32 = 10_000;

#[test]
fn the_table_of_ten_thousand_is_one_allocation_and_the_last() {
    let terms = Terms {
        per_node: Some(4),
        banked: Some(64),
        chunks_per_buffer: 256,
        ..Terms::new(NODES, 0, Chunk::Small)
    };
    let (allocations, bytes) = (ALLOCATIONS.get(), BYTES.get());
    let mut x = Economy::new(&terms).unwrap();
    assert_eq!(ALLOCATIONS.get() - allocations, 1);
    let bytes = BYTES.get() - bytes;
    assert_eq!(bytes, NODES as usize * size_of::<Peer>());
    assert!(bytes < 400_000, "{bytes}");

    let mut y = Economy::new(&Terms { me: 1, ..terms }).unwrap();
    let before = ALLOCATIONS.get();
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
    assert_eq!(ALLOCATIONS.get(), before, "of 40,000 requests");
}

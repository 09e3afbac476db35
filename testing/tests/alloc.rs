//! The counting allocator counts every kind of call, of a thread and of the process.
#![forbid(unsafe_code)]

use std::hint::black_box;

use doorbell_testing::alloc::{self, Count, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn every_kind_of_call_is_counted() {
    let before = alloc::of_thread();
    let mut bytes = black_box(Vec::<u8>::with_capacity(100));
    bytes.reserve_exact(300);
    let zeroed = black_box(vec![0_u8; 50]);
    let made = alloc::of_thread() - before;
    let expected = Count {
        allocations: 3,
        requested: 100 + 300 + 50,
        held: 300 + 50,
    };
    assert_eq!(made, expected);
    drop((bytes, zeroed));
    assert_eq!((alloc::of_thread() - before).held, 0);
}

#[test]
fn what_another_thread_allocates_is_the_process_alone() {
    let before = alloc::of_process();
    let other = std::thread::spawn(|| {
        let before = alloc::of_thread();
        (0..1000).for_each(|_| drop(black_box(Box::new(1_u64))));
        (alloc::of_thread() - before).allocations
    });
    let here = alloc::of_thread();
    assert_eq!(other.join().unwrap(), 1000);
    // Joining may allocate a little.
    assert!((alloc::of_thread() - here).allocations < 100);
    assert!((alloc::of_process() - before).allocations >= 1000);
}

#[test]
#[should_panic(expected = "a box: allocations in 10 rounds")]
fn a_round_that_allocates_is_found() {
    alloc::steady("a box", 10, || drop(black_box(Box::new(1_u64))));
}

#[test]
fn what_allocates_at_first_only_is_steady() {
    let mut kept = Vec::new();
    alloc::steady("a buffer", 10, || {
        kept.clear();
        kept.extend([1_u64; 100]);
    });
}

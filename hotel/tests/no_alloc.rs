//! After construction, nothing is allocated: counted by the allocator itself.

use doorbell_hotel::{Hotel, Key};
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every call there is, from an empty hotel to an overbooked one and back. Counts what was evicted.
fn everything(hotel: &mut Hotel<u64>, keys: &mut Vec<Key>) -> usize {
    let start = hotel.now();
    while let Some(vacancy) = hotel.vacancy() {
        let at = keys.len() as u64;
        // Stays of all sizes, from a nanosecond to half a minute.
        keys.push(vacancy.check_in(at, start + (1 << (at % 35)) + at));
    }
    assert!(hotel.check_in(0, start).is_err());
    let mut evicted = 0;
    for (at, key) in keys.iter().enumerate() {
        match at % 4 {
            0 => drop(hotel.check_out(*key)),
            1 => drop(hotel.re_book(*key, start + (1 << (at % 36)))),
            2 => drop(hotel.knock(*key).copied()),
            _ => evicted += usize::from(hotel.evict(start + at as u64).is_some()),
        }
        let _ = hotel.check_in(at as u64, start + 17);
    }
    while let Some(next) = hotel.next_deadline().filter(|&next| next < start + (1 << 33)) {
        evicted += hotel.tick(next, drop);
    }
    assert!(hotel.guests().count() > 0);
    hotel.clear();
    keys.clear();
    evicted + hotel.tick(start + (1 << 36), drop)
}

#[test]
fn nothing_is_allocated_after_construction() {
    let mut keys = Vec::with_capacity(4096);
    let before = alloc::of_thread().allocations;
    let mut hotel = Hotel::new(4096, 1000).unwrap();
    assert!(alloc::of_thread().allocations > before, "the counter counts");
    let before = alloc::of_thread().allocations;
    let evicted: usize = (0..4).map(|_| everything(&mut hotel, &mut keys)).sum();
    assert_eq!(alloc::of_thread().allocations - before, 0);
    assert!(evicted > 4 * 4096, "{evicted}");
}

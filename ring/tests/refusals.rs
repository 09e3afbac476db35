//! What is refused when something is built, and what areas and views allow.
#![cfg(not(loom))]

use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_ring::desc::{Bit, Completions, Layout, Posts};
use doorbell_ring::shared::{self, CONTROL_BYTES, Geometry};
use doorbell_ring::slab::{Buffers, MOST_SLOTS, SharedBuffers, Slab};
use doorbell_ring::storage::{Access, Area, Mapped};
use doorbell_ring::view::{SharedSlice, SharedSliceMut};
use doorbell_ring::{RingError, mpsc, spsc};

enum Entry {}

impl Layout for Entry {
    const NAME: &'static str = "refusals";
    const COLOUR: Option<Bit> = Some(Bit::new(7, 7));
}

#[test]
fn capacities_are_powers_of_two_within_limits() {
    for bad in [0, 3, 12, (1 << 31) + 1, 1 << 32] {
        assert!(matches!(spsc::ring::<u8>(bad), Err(RingError::Capacity { asked, .. }) if asked == bad));
        assert!(matches!(
            mpsc::mailbox::<u8>(bad),
            Err(RingError::Capacity { .. })
        ));
        assert!(matches!(Geometry::new(bad, 8), Err(RingError::Capacity { .. })));
        let area = Area::heap(4096).unwrap();
        assert!(matches!(
            Posts::<Entry, 8>::new(area, bad),
            Err(RingError::Capacity { .. })
        ));
    }
    assert!(
        mpsc::mailbox::<u8>(1).is_err(),
        "with one slot, full and free look the same"
    );
    assert!(
        spsc::ring::<[u8; 1 << 40]>(1 << 31).is_err(),
        "more than an address space"
    );
    for bad in [0, 7, 12, (1 << 30) + 8] {
        assert!(matches!(Geometry::new(8, bad), Err(RingError::Size { asked, .. }) if asked == bad));
    }
}

#[test]
fn slabs_have_limits() {
    for bad in [0, MOST_SLOTS + 1] {
        assert!(matches!(Slab::<u8>::new(bad), Err(RingError::Size { .. })));
        assert!(matches!(Buffers::new(bad, 1), Err(RingError::Size { .. })));
    }
    assert!(matches!(Buffers::new(1, 0), Err(RingError::Size { .. })));
    let small = Area::heap(10).unwrap();
    assert!(matches!(
        SharedBuffers::new(small, 11),
        Err(RingError::TooSmall {
            needed: 11,
            got: 10,
            ..
        })
    ));
    let read_only = Area::heap(10).unwrap().into_read_only();
    assert!(matches!(
        SharedBuffers::new(read_only, 5),
        Err(RingError::ReadOnly { .. })
    ));
}

#[test]
fn shared_rings_check_their_memory() {
    let geometry = Geometry::new(4, 8).unwrap();
    let control = || Area::heap(CONTROL_BYTES).unwrap();
    let slots = || Area::heap(geometry.slots_bytes()).unwrap();
    let odd = |mut area: Area| {
        area.split_to(4).unwrap();
        area
    };
    let attach = |tail, slots, head| shared::pair_in(geometry, tail, slots, head).map(drop);
    assert_eq!(attach(control(), slots(), control()), Ok(()));
    let short = Area::heap(geometry.slots_bytes() - 1).unwrap();
    assert!(matches!(
        attach(control(), short, control()),
        Err(RingError::TooSmall { .. })
    ));
    let short = Area::heap(CONTROL_BYTES - 8).unwrap();
    assert!(matches!(
        attach(short, slots(), control()),
        Err(RingError::TooSmall { .. })
    ));
    let skewed = odd(Area::heap(geometry.slots_bytes() + 4).unwrap());
    assert!(matches!(
        attach(control(), skewed, control()),
        Err(RingError::Misaligned { .. })
    ));
    let read_only = slots().into_read_only();
    assert!(matches!(
        attach(control(), read_only, control()),
        Err(RingError::ReadOnly { .. })
    ));
    let read_only = control().into_read_only();
    assert!(matches!(
        attach(control(), slots(), read_only),
        Err(RingError::ReadOnly { .. })
    ));
}

#[test]
fn slots_hold_what_they_hold() {
    let (mut producer, mut consumer) = shared::pair(Geometry::new(2, 8).unwrap()).unwrap();
    assert!(matches!(
        producer.push(&[0; 9]),
        Err(RingError::TooSmall {
            needed: 9,
            got: 8,
            ..
        })
    ));
    assert!(producer.reserve(1).unwrap().next_slot(9).is_none());
    assert_eq!(producer.push(b"12345678"), Ok(true));
    assert!(matches!(
        consumer.pop(&mut [0; 7]),
        Err(RingError::TooSmall {
            needed: 8,
            got: 7,
            ..
        })
    ));
    assert_eq!(consumer.pop(&mut [0; 8]), Ok(Some(8)), "a refused message stays");
}

#[test]
fn descriptor_rings_check_their_memory() {
    let area = |bytes| Area::heap(bytes).unwrap();
    assert!(matches!(
        Posts::<Entry, 8>::new(area(31), 4),
        Err(RingError::TooSmall { needed: 32, .. })
    ));
    assert!(matches!(
        Posts::<Entry, 8>::new(area(32).into_read_only(), 4),
        Err(RingError::ReadOnly { .. })
    ));
    let mut skewed = area(36);
    skewed.split_to(4).unwrap();
    assert!(matches!(
        Completions::<Entry, 8>::new(skewed, 4),
        Err(RingError::Misaligned { .. })
    ));
    // A device's ring may be mapped read-only: polling writes nothing.
    let mut queue = Completions::<Entry, 8>::new(area(32).into_read_only(), 4).unwrap();
    assert_eq!((queue.poll(), queue.bytes(), queue.count()), (None, 32, 4));
}

#[test]
fn a_reset_ring_starts_anew() {
    let mut posts = Posts::<Entry, 8>::new(Area::heap(32).unwrap(), 4).unwrap();
    for _ in 0..3 {
        posts.post([1; 8]).unwrap();
    }
    assert!(posts.post([1; 8]).is_err(), "one less than the ring has");
    assert!(
        posts.complete(0).is_err(),
        "not announced, so the device cannot have it"
    );
    posts.doorbell().unwrap();
    assert_eq!(posts.complete(1), Ok(2));
    posts.reset();
    assert_eq!(
        (posts.free(), posts.outstanding(), posts.doorbell()),
        (3, 0, None)
    );
    assert_eq!((posts.shadow(0), posts.shadow(4)), (Some(&[0; 8]), None));
    assert_eq!(posts.post([2; 8]), Ok(0));
}

#[test]
fn areas_are_cut_and_end_where_they_end() {
    assert!(matches!(Area::heap(0), Err(RingError::Size { .. })));
    assert!(matches!(Area::heap(usize::MAX), Err(RingError::Size { .. })));
    let mut rest = Area::heap(100).unwrap();
    let start = rest.address();
    let mut front = rest.split_to(40).unwrap();
    assert_eq!((front.len(), rest.len(), rest.address() - start), (40, 60, 40));
    assert!(rest.split_to(61).is_err());
    assert_eq!(front.view_mut(36, 4).unwrap().copy_from(&[9; 8]), 4);
    assert!(
        front.view(37, 4).is_err()
            && front.view(usize::MAX, 2).is_err()
            && front.view(1, usize::MAX).is_err()
    );
    drop(front);
    assert_eq!(
        rest.view(0, 60).unwrap().to_vec(),
        [0; 60],
        "the rest keeps the block, and was not written"
    );
    assert!(matches!(
        rest.into_read_only().view_mut(0, 1),
        Err(RingError::ReadOnly { .. })
    ));
}

#[test]
fn the_owner_lives_as_long_as_any_area() {
    let owner = Arc::new(vec![0u64; 16]);
    let base = NonNull::new(owner.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: the vector is kept by the owner and touched by nothing else; it is not written (read-only access).
    let map = unsafe { Mapped::new(base, 128, Access::ReadOnly, owner.clone()) };
    let mut rest = Area::new(map);
    let front = rest.split_to(64).unwrap();
    drop(rest);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(front);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn views_copy_and_stay_inside() {
    let mut bytes = *b"0123456789";
    let view = SharedSlice::from_private(&bytes);
    assert_eq!((view.read::<3>(7), view.read::<3>(8)), (Some(*b"789"), None));
    assert_eq!(
        (view.read::<0>(10), view.read::<0>(11), view.read::<11>(0)),
        (Some([]), None, None)
    );
    assert_eq!(view.read::<1>(usize::MAX), None);
    let middle = view.slice(2, 5).unwrap();
    assert_eq!((middle.to_vec(), middle.read::<4>(2)), (b"23456".to_vec(), None));
    assert!(view.slice(6, 5).is_none() && view.slice(usize::MAX, 2).is_none() && view.slice(10, 0).is_some());
    let mut short = [0; 3];
    assert_eq!((view.copy_to(&mut short), short), (3, *b"012"));

    let mut view = SharedSliceMut::from_private(&mut bytes);
    assert!(view.write(8, b"xy") && !view.write(9, b"xy") && !view.write(usize::MAX, b"x"));
    assert_eq!(view.slice(4, 2).unwrap().copy_from(b"abcd"), 2);
    assert!(view.slice(9, 2).is_none());
    assert_eq!(view.as_shared().to_vec(), b"0123ab67xy");
}

#[test]
fn errors_say_what_to_do() {
    let error = Geometry::new(3, 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shared ring: capacity 3 is not usable: it must be a power of two from 1 to 16777216; round the setting up"
    );
}

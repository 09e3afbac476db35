//! What is refused when something is built, and what areas and views allow.
#![cfg(not(loom))]

use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_ring::lane::Geometry;
use doorbell_ring::slab::{MOST_SLOTS, Slab};
use doorbell_ring::storage::{Access, Area, Mapped};
use doorbell_ring::view::{SharedSlice, SharedSliceMut};
use doorbell_ring::{RingError, mpsc, spsc};

#[test]
fn capacities_are_powers_of_two_within_limits() {
    for bad in [0, 3, 12, (1 << 31) + 1, 1 << 32] {
        assert!(matches!(spsc::ring::<u8>(bad), Err(RingError::Capacity { asked, .. }) if asked == bad));
        assert!(matches!(
            mpsc::mailbox::<u8>(bad),
            Err(RingError::Capacity { .. })
        ));
        assert!(matches!(Geometry::new(bad, 8), Err(RingError::Capacity { .. })));
    }
    assert!(
        mpsc::mailbox::<u8>(1).is_err(),
        "with one slot, full and free look the same"
    );
    assert!(
        spsc::ring::<[u8; 1 << 40]>(1 << 31).is_err(),
        "more than an address space"
    );
}

#[test]
fn slabs_have_limits() {
    for bad in [0, MOST_SLOTS + 1] {
        assert!(matches!(Slab::<u8>::new(bad), Err(RingError::Size { .. })));
    }
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
    // SAFETY: the vector is kept by the owner and touched by nothing else; it is not written (read-only
    // access).
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
        "message lane: capacity 3 is not usable: it must be a power of two from 2 to 1048576; round the setting up"
    );
}

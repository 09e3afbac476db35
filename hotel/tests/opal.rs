//! The rules of `opal_hotel`, one test each (reference: vic, section 6.7), and what is ours beside them.

use std::rc::Rc;

use doorbell_hotel::{Evicted, Hotel, HotelError, Key, MOST_ROOMS, Overbooked};

const NEVER: u64 = u64::MAX;

fn hotel(rooms: usize) -> Hotel<&'static str> {
    Hotel::new(rooms, 0).expect("a few rooms")
}

// init: "BAD_PARAM when rooms ≤ 0"
#[test]
fn a_hotel_without_rooms_is_refused_and_so_is_one_with_too_many() {
    for asked in [0, MOST_ROOMS + 1, usize::MAX] {
        let refused = Hotel::<u8>::new(asked, 0).err();
        assert_eq!(refused, Some(HotelError::Rooms { asked }));
    }
    assert_eq!(Hotel::<()>::new(MOST_ROOMS, 0).unwrap().vacancies(), MOST_ROOMS);
}

// init: "event base null → no timers ever"
#[test]
fn a_guest_without_a_deadline_is_never_evicted() {
    let mut hotel = hotel(2);
    let key = hotel.check_in("stays", NEVER).unwrap();
    assert_eq!(hotel.evict(NEVER - 1), None);
    assert_eq!(hotel.check_out(key), Ok("stays"));
}

// checkin: "the first room given is rooms − 1, then LIFO order"
#[test]
fn the_highest_room_is_given_first_and_then_the_one_left_last() {
    let mut hotel = hotel(4);
    let keys: Vec<Key> = (0..4).map(|_| hotel.check_in("guest", NEVER).unwrap()).collect();
    assert_eq!(
        keys.iter().map(|key| key.room()).collect::<Vec<_>>(),
        [3, 2, 1, 0]
    );
    hotel.check_out(keys[1]).unwrap();
    hotel.check_out(keys[3]).unwrap();
    assert_eq!(hotel.check_in("guest", NEVER).unwrap().room(), keys[3].room());
    assert_eq!(hotel.check_in("guest", NEVER).unwrap().room(), keys[1].room());
}

// checkin: "stack empty → TEMP_OUT_OF_RESOURCE and the room output is untouched"
#[test]
fn an_overbooked_hotel_hands_the_guest_back_and_takes_it_after_a_departure() {
    let mut hotel = hotel(1);
    let first = hotel.check_in("first", 10).unwrap();
    assert_eq!(hotel.check_in("second", 5), Err(Overbooked("second")));
    assert_eq!(
        (hotel.len(), hotel.next_deadline()),
        (1, Some(10)),
        "nothing has changed"
    );
    hotel.check_out(first).unwrap();
    assert!(hotel.check_in("second", 5).is_ok());
}

// checkin_with_res: "same, no check; caller must know there is a vacancy": here the caller holds it
#[test]
fn a_vacancy_in_hand_cannot_fail_and_knows_the_key() {
    let mut hotel = hotel(1);
    drop(hotel.vacancy().expect("one room"));
    assert!(hotel.is_empty(), "a vacancy that is dropped stays vacant");
    let vacancy = hotel.vacancy().expect("still one room");
    let promised = vacancy.key();
    assert_eq!(vacancy.check_in("guest", 7), promised);
    assert_eq!(
        (hotel.knock(promised), hotel.deadline(promised)),
        (Ok(&"guest"), Ok(7))
    );
    assert!(hotel.vacancy().is_none());
}

// checkout: "no-op if the room is empty"
#[test]
fn a_second_check_out_changes_nothing() {
    let mut hotel = hotel(2);
    let key = hotel.check_in("guest", 9).unwrap();
    assert_eq!(hotel.check_out(key), Ok("guest"));
    assert_eq!(hotel.check_out(key), Err(HotelError::Stale(key)));
    assert_eq!((hotel.vacancies(), hotel.next_deadline()), (2, None));
}

// checkout_and_return_occupant: "same, returns occupant or null"; the timer is cancelled
#[test]
fn check_out_returns_the_guest_and_cancels_its_timer() {
    let mut hotel = Hotel::new(2, 0).unwrap();
    let key = hotel.check_in(vec![1, 2], 9).unwrap();
    assert_eq!(hotel.check_out(key), Ok(vec![1, 2]));
    assert_eq!(hotel.evict(NEVER), None);
}

// knock: "peek; null if empty"
#[test]
fn knock_looks_and_leaves_everything_as_it_is() {
    let mut hotel = Hotel::new(2, 0).unwrap();
    let key = hotel.check_in(5u32, 9).unwrap();
    assert_eq!(hotel.knock(key), Ok(&5));
    *hotel.knock_mut(key).unwrap() += 1;
    assert_eq!(
        (hotel.knock(key), hotel.len(), hotel.next_deadline()),
        (Ok(&6), 1, Some(9))
    );
    hotel.check_out(key).unwrap();
    assert_eq!(hotel.knock(key), Err(HotelError::Stale(key)));
}

// is_empty: "last_unoccupied_room = rooms − 1"
#[test]
fn empty_means_all_rooms_are_vacant() {
    let mut hotel = hotel(2);
    assert!(hotel.is_empty());
    let key = hotel.check_in("guest", 9).unwrap();
    assert!(!hotel.is_empty());
    hotel.check_out(key).unwrap();
    assert!(hotel.is_empty());
}

// eviction: "occupant is removed and room pushed before the callback runs"
#[test]
fn at_eviction_the_room_is_vacant_again() {
    let mut hotel = hotel(1);
    let key = hotel.check_in("guest", 100).unwrap();
    assert_eq!(hotel.evict(99), None, "not before its time");
    let evicted = hotel.evict(100).expect("at its time");
    assert_eq!(
        evicted,
        Evicted {
            key,
            guest: "guest",
            deadline: 100
        }
    );
    let again = hotel.check_in(evicted.guest, 200).expect("the room is vacant");
    assert_eq!(again.room(), key.room());
}

// eviction: "the callback must not call checkout on it. Late checkout is a no-op"
#[test]
fn a_late_check_out_is_refused_even_when_the_room_is_taken_again() {
    let mut hotel = hotel(1);
    let late = hotel.check_in("first", 100).unwrap();
    assert_eq!(hotel.tick(100, drop), 1);
    assert_eq!(hotel.check_out(late), Err(HotelError::Stale(late)));
    let present = hotel.check_in("second", 200).unwrap();
    assert_eq!((present.room(), present == late), (late.room(), false));
    assert_eq!(hotel.check_out(late), Err(HotelError::Stale(late)));
    assert_eq!(hotel.re_book(late, 300), Err(HotelError::Stale(late)));
    assert_eq!(
        (hotel.knock(present), hotel.deadline(present)),
        (Ok(&"second"), Ok(200))
    );
}

// destructor: "cancels all timers, no callbacks, frees arrays"
#[test]
fn guests_are_dropped_once_by_the_hotel_or_by_their_owner() {
    let guest = Rc::new(());
    let mut hotel = Hotel::new(4, 0).unwrap();
    let keys: Vec<Key> = (0..4)
        .map(|at| hotel.check_in(guest.clone(), 10 + at).unwrap())
        .collect();
    assert_eq!(Rc::strong_count(&guest), 5);
    drop(hotel.check_out(keys[3]));
    assert_eq!(Rc::strong_count(&guest), 4);
    hotel.tick(10, drop);
    assert_eq!(Rc::strong_count(&guest), 3);
    hotel.clear();
    assert_eq!((Rc::strong_count(&guest), hotel.is_empty()), (1, true));
    assert_eq!((hotel.next_deadline(), hotel.evict(NEVER)), (None, None));
    assert!(hotel.check_out(keys[1]).is_err());
    let _ = hotel.check_in(guest.clone(), 0);
    drop(hotel);
    assert_eq!(Rc::strong_count(&guest), 1);
}

// Beside opal_hotel: a deadline for each guest.

#[test]
fn guests_leave_in_the_order_of_their_deadlines() {
    let mut hotel = Hotel::new(64, 0).unwrap();
    let deadlines = [
        5_000_000,
        3,
        200_000,
        70,
        199_999,
        64,
        1 << 40,
        63,
        200_001,
        512,
        511,
        0,
    ];
    for deadline in deadlines {
        let _ = hotel.check_in(deadline, deadline).unwrap();
    }
    let mut order = Vec::new();
    hotel.tick(1 << 50, |evicted| order.push(evicted.guest));
    let mut sorted = deadlines;
    sorted.sort_unstable();
    assert_eq!(order, sorted);
}

#[test]
fn evictions_can_be_taken_in_portions() {
    let mut hotel = Hotel::new(40, 0).unwrap();
    for at in 0..40 {
        let _ = hotel.check_in(at, 100 + at).unwrap();
    }
    let portion = |hotel: &mut Hotel<u64>, now| {
        let evicted = std::iter::from_fn(|| hotel.evict(now)).take(16);
        evicted.map(|evicted| evicted.guest).collect::<Vec<_>>()
    };
    assert_eq!(portion(&mut hotel, 1000), (0..16).collect::<Vec<_>>());
    assert_eq!(
        hotel.next_deadline(),
        Some(116),
        "the next one has been due since"
    );
    // A guest that books between two portions is put where its deadline belongs.
    let _ = hotel.check_in(999, 120).unwrap();
    let second = portion(&mut hotel, 1000);
    assert!(
        second.is_sorted_by_key(|&guest| if guest == 999 { 20 } else { guest }),
        "{second:?}"
    );
    assert!(second.contains(&999));
    assert_eq!((portion(&mut hotel, 1000).len(), hotel.is_empty()), (9, true));
}

#[test]
fn a_deadline_that_has_passed_is_due_at_the_next_tick_also_at_the_same_time() {
    let mut hotel = hotel(2);
    assert_eq!(hotel.evict(1000), None);
    let _ = hotel.check_in("late", 3).unwrap();
    let _ = hotel.check_in("now", 1000).unwrap();
    assert!(hotel.next_deadline() <= Some(1000));
    let mut deadlines = [0; 2];
    let mut at = 0;
    assert_eq!(
        hotel.tick(1000, |evicted| (deadlines[at], at) = (evicted.deadline, at + 1)),
        2
    );
    deadlines.sort_unstable();
    assert_eq!(deadlines, [3, 1000], "as they were booked");
}

#[test]
fn re_booking_keeps_room_and_key_and_takes_either_direction() {
    let mut hotel = hotel(2);
    let key = hotel.check_in("guest", 100).unwrap();
    hotel.re_book(key, 1_000_000).unwrap();
    assert_eq!(hotel.evict(999_999), None, "later");
    hotel.re_book(key, 2_000_000).unwrap();
    hotel.re_book(key, 1_000_005).unwrap();
    assert_eq!(hotel.next_deadline(), Some(1_000_005), "sooner");
    assert_eq!(hotel.evict(1_000_005).map(|evicted| evicted.key), Some(key));
}

#[test]
fn time_does_not_go_back() {
    let mut hotel = hotel(2);
    assert_eq!(hotel.evict(5000), None);
    let _ = hotel.check_in("guest", 4000).unwrap();
    assert_eq!(hotel.tick(10, drop), 1, "an earlier time counts as the latest");
    assert_eq!(hotel.now(), 5000);
}

#[test]
fn the_end_of_time_is_a_time_like_any_other() {
    let mut hotel = Hotel::new(8, NEVER - 100).unwrap();
    for back in [0, 1, 63, 64, 100] {
        let _ = hotel.check_in(back, NEVER - back).unwrap();
    }
    let mut order = Vec::new();
    hotel.tick(NEVER - 1, |evicted| order.push(evicted.guest));
    assert_eq!(order, [100, 64, 63, 1]);
    assert_eq!(hotel.next_deadline(), Some(NEVER));
    assert_eq!(hotel.evict(NEVER).map(|evicted| evicted.guest), Some(0));
    let _ = hotel.check_in(7, 7).unwrap();
    assert_eq!(hotel.evict(0).map(|evicted| evicted.guest), Some(7));
    assert_eq!((hotel.evict(NEVER), hotel.next_deadline()), (None, None));
}

#[test]
fn a_jump_over_centuries_costs_the_guests_and_not_the_distance() {
    let mut hotel = Hotel::new(64, 0).unwrap();
    for bit in 0..64 {
        let _ = hotel.check_in(bit, 1u64 << bit).unwrap();
    }
    let mut order = Vec::new();
    assert_eq!(hotel.tick(NEVER, |evicted| order.push(evicted.guest)), 64);
    assert!(order.is_sorted());
}

#[test]
fn keys_of_a_larger_hotel_are_refused_by_name() {
    let (mut small, mut large) = (hotel(2), hotel(10));
    let key = large.check_in("guest", 1).unwrap();
    let refused = small.check_out(key).unwrap_err();
    assert_eq!(refused, HotelError::NoSuchRoom { key, rooms: 2 });
    assert_eq!(
        refused.to_string(),
        "room 9, stay 1: there is no such room, this hotel has 2; the key is of another hotel"
    );
    assert!(
        HotelError::Stale(key)
            .to_string()
            .starts_with("room 9, stay 1: this stay has ended")
    );
}

#[test]
fn guests_are_listed_by_room() {
    let mut hotel = hotel(3);
    let first = hotel.check_in("first", 10).unwrap();
    let second = hotel.check_in("second", 20).unwrap();
    let listed: Vec<_> = hotel.guests().collect();
    assert_eq!(listed, [(second, &"second", 20), (first, &"first", 10)]);
    assert_eq!(
        format!("{hotel:?}"),
        "Hotel { rooms: 3, guests: 2, now: 0, next_deadline: Some(10) }"
    );
}

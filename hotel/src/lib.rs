//! The timer hotel: a fixed number of rooms, each for one guest with a deadline.
//!
//! A protocol checks in each message that must be answered, with the time by which the answer is due. The
//! answer checks it out. Guests whose answer does not come in time are evicted, in the order of their
//! deadlines: send again.
//!
//! ```text
//!   check_in(guest, deadline) ──► Key ──► check_out(key)         the answer came
//!                                  │ └──► re_book(key, later)    not yet: back off
//!                                  └────► evict(now)             it did not come in time
//! ```
//!
//! * **Fixed**: all memory is taken by [`Hotel::new`]; nothing is allocated afterwards. Without a vacancy,
//!   [`Overbooked`] hands the guest back.
//! * **Constant**: check-in, check-out and re-booking take the same few steps whatever the number of guests;
//!   a tick at which no guest is due is one comparison.
//! * **Exact**: deadlines are nanoseconds, and nobody is evicted before their own, or after somebody with a
//!   later one.
//! * **Stale keys are refused**: a [`Key`] names one stay in one room. Once the guest has left, the key opens
//!   nothing, whoever lives there now: an answer that comes after the eviction is told so, with
//!   [`HotelError::Stale`].
//! * **No clock**: the time is an argument, so that a simulator can be the clock. One thread owns a hotel.
//!
//! # Retransmission
//!
//! ```
//! use doorbell_hotel::{Hotel, Key};
//!
//! /// What is kept of a segment that was sent and not yet acknowledged.
//! #[derive(Clone, Copy, Debug, PartialEq)]
//! struct Segment {
//!     sequence: u16,
//!     tries: u32,
//! }
//!
//! const TIMEOUT: u64 = 200_000; // ns
//!
//! let mut now = 0; // whatever the caller's clock says
//! let mut hotel = Hotel::new(4096, now)?;
//! let send = |hotel: &mut Hotel<Segment>, now: u64, segment: Segment| -> Option<Key> {
//!     let wait = TIMEOUT << segment.tries.min(6); // back off
//!     hotel.check_in(segment, now.saturating_add(wait)).ok() // none: the window is full, send later
//! };
//! let first = send(&mut hotel, now, Segment { sequence: 1, tries: 0 }).expect("the window is open");
//! let second = send(&mut hotel, now, Segment { sequence: 2, tries: 0 }).expect("the window is open");
//!
//! // The first is acknowledged in time.
//! now += 10_000;
//! assert_eq!(hotel.check_out(first)?.sequence, 1);
//!
//! // The second is not. A sleeper looks again at `next_deadline`.
//! assert!(hotel.next_deadline().is_some_and(|wake| wake <= TIMEOUT));
//! now += TIMEOUT;
//! let mut again = Vec::new();
//! while let Some(evicted) = hotel.evict(now) {
//!     let segment = Segment { tries: evicted.guest.tries + 1, ..evicted.guest };
//!     again.extend(send(&mut hotel, now, segment));
//! }
//! assert_eq!(again.len(), 1);
//!
//! // Its acknowledgement was only late: the old key is refused, although the room is taken again.
//! assert!(hotel.check_out(second).is_err());
//! assert_eq!(hotel.check_out(again[0])?, Segment { sequence: 2, tries: 1 });
//! assert!(hotel.is_empty());
//! # Ok::<(), doorbell_hotel::HotelError>(())
//! ```
//!
//! # Time
//!
//! Nanoseconds of whatever clock the caller has, from 0 to `u64::MAX`.
//!
//! * The hotel's time is the latest that was passed to it, by [`Hotel::new`], [`Hotel::evict`] or
//!   [`Hotel::tick`].
//!   **It does not go back**: an earlier time counts as the latest one.
//! * It may **jump** any distance. Every guest that became due on the way is evicted, in order; the cost is
//!   that of the guests, not of the distance.
//! * A deadline that has **passed** at check-in is due at once: the next tick evicts the guest, also at the
//!   same time.
//! * `u64::MAX` is a deadline like any other. As no clock gets there, it means "never".
//!
//! # Costs and memory
//!
//! A timing wheel of 21 levels with 64 slots each, whose occupancy is one bit a slot ([`Hotel`] has the
//! picture). A guest far from its deadline waits in a wide slot, and is moved to narrower ones on the way:
//! the first time after at least 7/8 of its stay, at most 10 times in all, twice for a stay of 200 µs. So a
//! guest that is checked out in time is hardly ever touched in between, and a tick costs what expires then or
//! soon will.
//!
//! The wheel takes 11 KiB, a room 28 bytes and `Option<T>`. Take one hotel for a rail, not one for each peer.
//! Protocols with a few deadlines by key, whose number is not known beforehand, have
//! `doorbell_fabric::timers` instead.
//!
//! reference: vic, section 6.7 (the origin of the name: `opal_hotel` of the usNIC BTL). What differs: a
//! deadline for each guest instead of one timeout for all; keys instead of room numbers; eviction is
//! requested instead of called back by an event loop.
#![forbid(unsafe_code)]

mod error;
mod hotel;
mod key;
mod slot;
mod wheel;

pub use error::{HotelError, Overbooked};
pub use hotel::{Evicted, Hotel, Vacancy};
pub use key::{Key, MOST_ROOMS};

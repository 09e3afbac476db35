//! A ring of the peer's, as this end writes to it.

use super::layout::{LONGEST, SLOTS, lap, place, start};
use super::wire::Offer;
use crate::rc::outbox::Frame;

/// A ring of the peer's.
#[derive(Debug)]
pub(crate) struct RingOut {
    /// Where it is, under which key.
    address: u64,
    key: u32,
    first_lap: u32,
    /// Sends that were written, and those whose slots are free again.
    written: u64,
    taken: u64,
    /// By slot: the number of the last message of its send.
    ends: [u64; SLOTS],
    /// The peer does not look at it now.
    pub(crate) is_paused: bool,
}

/// The place of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Where its bytes begin in the peer's memory, and the key.
    pub(crate) at: (u64, u32),
    pub(crate) lap: u32,
}

impl RingOut {
    /// The ring that the peer offers.
    pub(crate) fn new(offer: &Offer) -> Self {
        Self {
            address: offer.address,
            key: offer.key,
            first_lap: offer.first_lap,
            written: 0,
            taken: 0,
            ends: [0; SLOTS],
            is_paused: false,
        }
    }

    /// Sends that were written in all.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// The slot of the next send, of `length` bytes, whose last message has this number; `None` where it has
    /// to go over the queue. A slot is free again when the peer has taken its messages, up to `consumed`.
    #[inline]
    pub(crate) fn next(&mut self, frame: &Frame, last_message: u64, consumed: u64) -> Option<Slot> {
        if self.is_paused || !frame.is_short(LONGEST) {
            return None;
        }
        while self.taken < self.written && self.ends[self.taken as usize % SLOTS] <= consumed {
            self.taken += 1;
        }
        if self.written - self.taken == SLOTS as u64 {
            return None;
        }
        let slot = Slot {
            at: (
                self.address
                    .wrapping_add((place(self.written) + start(frame.bytes())) as u64),
                self.key,
            ),
            lap: lap(self.first_lap, self.written),
        };
        self.ends[self.written as usize % SLOTS] = last_message;
        self.written += 1;
        Some(slot)
    }

    /// The last `count` sends were prepared and not taken.
    pub(crate) fn step_back(&mut self, count: u64) {
        self.written -= count;
    }
}

#[cfg(test)]
impl RingOut {
    pub(crate) fn begin_with(&mut self, first_lap: u32) {
        self.first_lap = first_lap;
    }

    /// Another one has written a send.
    pub(crate) fn skip_one(&mut self) {
        self.written += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::SLOT;
    use super::*;
    use crate::rc::outbox::frame_of;

    #[test]
    fn a_slot_is_free_when_its_messages_were_taken() {
        let mut ring = RingOut::new(&Offer {
            address: 0x1000,
            key: 7,
            first_lap: u32::MAX,
        });
        let frame = frame_of(100, 2);
        for number in 0..16 {
            let slot = ring.next(&frame, 2 * (number + 1), 0).unwrap();
            let at = 0x1000 + number * SLOT as u64 + (LONGEST - 100) as u64;
            assert_eq!((slot.at, slot.lap), ((at, 7), u32::MAX));
        }
        assert_eq!(ring.next(&frame, 34, 1), None, "half of the first one was taken");
        let slot = ring.next(&frame, 34, 2).unwrap();
        assert_eq!(slot.lap, 0, "the next lap");
        assert_eq!(ring.next(&frame, 36, 3), None);
        ring.step_back(1);
        assert_eq!(ring.written(), 16);
        assert_eq!(ring.next(&frame, 34, 2), Some(slot));
        assert!(ring.next(&frame_of(LONGEST + 1, 1), 35, 34).is_none(), "too long");
        ring.is_paused = true;
        assert!(ring.next(&frame, 36, 34).is_none(), "paused");
    }
}

//! Eager rings: short sends of a peer that are written into memory of this end, where polls find them without
//! a look at the queue of completions.
//!
//! ```text
//!   sender                                           receiver
//!   Outbox ─ Link::post ─┬─ RingOut: a write ──────► RingIn ─┐ copied, checked
//!                        └─ a send ─► shared queue ──────────┴─► Inbox: in the order of sending
//! ```
//!
//! | file | job |
//! |---|---|
//! | `layout` | the bytes of a slot, and when they are believed |
//! | `wire` | how a ring is offered, and paused while its owner sleeps |
//! | `sender` | the peer's ring, as this end writes to it |
//! | `receiver` | the rings of this end |
//!
//! Each send has a place in one order over both ways: a slot names how many sends went over the queue before
//! it, the head of a send over the queue how many went over the ring. What comes early over one of them
//! waits: in its slot, or in its receive slot, of which a peer has no more than credits.
//!
//! A slot is free when its messages were taken, which the counter of consumed messages reports: it rides in
//! every head, and is written to a peer that has used half of its ring.
//!
//! A write raises no event. A process that sleeps has its peers send over the queue until it does not sleep
//! any more; until they have answered, it looks every two milliseconds.

pub(crate) mod layout;
mod receiver;
mod sender;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::{Region, SharedBytes};

use self::layout::RING;
use self::receiver::{Early, RingIn, State};
pub(crate) use self::receiver::{Rings, Turn};
pub(crate) use self::sender::RingOut;
use self::wire::{Offer, Word};
use super::core::Core;
use super::head::{self, Head, WANTS_MORE};
use super::inbox::{Begun, Current};
use super::onesided::wire::Control;
use super::record::Drop;
use crate::config::RingUse;
use crate::sys::Registered;

/// Messages that a peer has sent before it gets a ring, and between looks before it gets it back.
const ENOUGH: u64 = 16;
/// What the place of a send in the ring's copy is called among the slots.
pub(crate) const COPY: u32 = u32::MAX;

/// Which peers get rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) uses: RingUse,
    /// Peers that have one at a time, at most.
    pub(crate) peers: usize,
    /// Messages that a peer has sent before.
    pub(crate) after: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            uses: RingUse::Auto,
            peers: 16,
            after: ENOUGH,
        }
    }
}

impl Sizes {
    /// Bytes of memory of all rings.
    pub(crate) fn locked(&self) -> usize {
        if self.uses == RingUse::Off {
            0
        } else {
            self.peers * RING
        }
    }
}

impl Core {
    // Receiving.

    /// Opens the next send that came over a ring, or over the queue and has waited for one over a ring;
    /// whether there was any.
    #[inline]
    pub(crate) fn open_ring(&mut self) -> bool {
        let mut from = 0;
        while let Some(at) = self.rings.find(from) {
            if self.open_at(at) {
                return true;
            }
            from = self.rings.steps_to(at) + 1;
        }
        false
    }

    /// Opens the next send that a connection on its way to its end has left in its ring; whether there was
    /// any. There are no more of them than the ring had places for.
    #[cold]
    pub(crate) fn open_ring_of_ending(&mut self) -> bool {
        for at in 0..self.ending.len() {
            let Some(&index) = self.ending.get(at) else { break };
            let place = self.rings.place_of_ending(index);
            if place.is_some_and(|place| self.open_at(place)) {
                self.rings.took_of_ending(index);
                return true;
            }
        }
        false
    }

    fn open_at(&mut self, at: usize) -> bool {
        let (ring, copy) = self.rings.at(at);
        let index = ring.peer;
        if let Some(early) = ring.next_early() {
            self.open_early(index, &early);
            return true;
        }
        let Some(tail) = ring.peek(copy) else { return false };
        let length = usize::from(tail.length.get());
        let Some(link) = &mut self.peers[index as usize].link else {
            return false;
        };
        let ahead = tail.queued.get().wrapping_sub(link.queued_here() as u32) as i32;
        if ahead > 0 && ahead as usize <= link.promised() {
            // One over the queue comes before it.
            return false;
        }
        let Ok(head) = head::check(SharedBytes::of(&copy[..length])) else {
            return self.refuse_ring(index, Drop::Head);
        };
        if ahead > 0 || head.flags.get() & !WANTS_MORE != 0 || head.count.get() == 0 {
            return self.refuse_ring(index, Drop::Ring);
        }
        let peer = &mut self.peers[index as usize];
        let accepted = peer.accepted();
        let Some(link) = &mut peer.link else { return false };
        let Ok(is_news) = link.arrived_in_ring(&head, accepted, self.now) else {
            return self.refuse_ring(index, Drop::Credit);
        };
        self.rings.at(at).0.step();
        self.rings.took(at);
        self.stats.ring_received += u64::from(head.count.get());
        if is_news {
            self.release_together(index);
        }
        self.mark_owed(index);
        self.inbox
            .show(Current::new(index, COPY, length, head.count.get()));
        true
    }

    /// A peer has broken a rule of the wire in its ring: always `false`. What it has written is looked at
    /// until its connection is over, and counted once.
    #[cold]
    fn refuse_ring(&mut self, index: u32, why: Drop) -> bool {
        if self.is_up(index) {
            self.drop_send(index, why);
            self.end(index, DownReason::Hostile);
        }
        false
    }

    #[cold]
    fn open_early(&mut self, index: u32, early: &Early) {
        if let Some(link) = &mut self.peers[index as usize].link {
            link.early -= 1;
        }
        match self.open_send(index, early.slot, early.length, &early.head) {
            Begun::Messages(count) => {
                let current = Current::new(index, early.slot, early.length, count);
                self.inbox.show(current);
            }
            Begun::Nothing => {}
            Begun::Broken => {
                self.slots.give_back(early.slot);
                self.end(index, DownReason::Hostile);
            }
        }
    }

    /// Whether a send that came over the queue is the next one.
    #[inline]
    pub(crate) fn turn_of(&mut self, index: u32, head: &Head) -> Turn {
        match self.rings.of(index) {
            Some(ring) => ring.turn_of(head),
            None if head.ring_number() == 0 => Turn::Now,
            None => Turn::Never,
        }
    }

    /// Keeps a send that came over the queue until those over the ring before it have come.
    #[cold]
    pub(crate) fn set_aside(&mut self, index: u32, slot: u32, length: usize, head: &Head) {
        let early = Early {
            slot,
            length,
            head: *head,
        };
        if let (Some(ring), Some(link)) = (self.rings.of(index), &mut self.peers[index as usize].link) {
            ring.keep(early);
            link.early += 1;
        }
    }

    /// A connection is over: its ring is of no use, and what has waited for it is not shown.
    pub(crate) fn drop_ring(&mut self, index: u32) {
        for early in self.rings.remove(index) {
            self.slots.give_back(early.slot);
        }
    }

    // What both ends agree on.

    /// Makes a ring for a peer that has sent enough, if there is room for one, and offers it.
    #[cold]
    pub(crate) fn offer_ring(&mut self, index: u32) {
        let (after, now) = (self.rings.sizes.after, self.now);
        if !self.is_up(index) || !self.rings.has_room() {
            return;
        }
        let (Some(link), Some(device)) = (&mut self.peers[index as usize].link, &self.device) else {
            return;
        };
        if link.consumed < after || std::mem::replace(&mut link.was_tried, true) {
            return;
        }
        let is_wanted = match self.rings.sizes.uses {
            RingUse::On => true,
            RingUse::Off => false,
            RingUse::Auto => link.is_written_in_order(),
        };
        if !is_wanted {
            return;
        }
        let made = Region::new(RING).map_err(|error| error.to_string());
        let made = made.and_then(|region| {
            Registered::written(&device.domain, region.whole()).map_err(|error| error.to_string())
        });
        let memory = match made {
            Ok(memory) => memory,
            Err(reason) => {
                self.memory.refusal = Some(reason);
                return;
            }
        };
        let offer = Offer {
            address: memory.memory().address() as u64,
            key: memory.remote_key(),
            first_lap: first_lap(),
        };
        let mut ring = RingIn::new(index, Arc::clone(&memory), offer.first_lap, now);
        ring.seen = link.consumed;
        link.ring_memory = Some(memory);
        self.rings.add(ring);
        self.stats.rings += 1;
        self.send_control(index, Control::Ring(Word::Offer(offer)));
    }

    /// What the other end has sent about a ring; `false` if no peer can have sent it.
    pub(crate) fn ring_word(&mut self, index: u32, word: Word) -> bool {
        let uses = self.rings.sizes.uses;
        let Some(link) = &mut self.peers[index as usize].link else {
            return false;
        };
        match (word, &mut link.ring) {
            (Word::Offer(_), Some(_)) => return false,
            (Word::Offer(offer), ring) => {
                *ring = (uses != RingUse::Off).then(|| Box::new(RingOut::new(&offer)));
            }
            (Word::Pause, ring) => {
                ring.iter_mut().for_each(|ring| ring.is_paused = true);
                self.send_control(index, Control::Ring(Word::Paused));
            }
            (Word::Resume, ring) => ring.iter_mut().for_each(|ring| ring.is_paused = false),
            (Word::Paused, _) => {
                let pausing = self.rings.of(index);
                let Some(ring) = pausing.filter(|ring| ring.state == State::Pausing) else {
                    return false;
                };
                ring.state = State::Paused;
            }
        }
        true
    }

    /// This process is about to sleep, and a write does not wake it: peers send over the queue from now on.
    pub(crate) fn pause_rings(&mut self) {
        self.rings.has_slept = true;
        while let Some(index) = self.rings.pause_one() {
            self.send_control(index, Control::Ring(Word::Pause));
        }
        self.flush();
    }

    /// Looks at the rings: one with a hole ends its connection, one that is paused is used again if its peer
    /// sends much and this process does not sleep.
    pub(crate) fn look_at_rings(&mut self, longest_step: Duration) {
        let (now, bound) = (self.now, self.bound());
        let is_awake = !std::mem::take(&mut self.rings.has_slept);
        let mut at = 0;
        while at < self.rings.len() {
            let (ring, _) = self.rings.at(at);
            let index = ring.peer;
            at += 1;
            if ring.hole(now, longest_step) >= bound {
                self.end(index, DownReason::Abandoned);
                continue;
            }
            let Some(link) = &self.peers[index as usize].link else {
                continue;
            };
            let count = link.consumed - std::mem::replace(&mut ring.seen, link.consumed);
            if ring.state == State::Paused && is_awake && count >= ENOUGH {
                ring.state = State::Open;
                self.send_control(index, Control::Ring(Word::Resume));
            }
        }
    }
}

/// A number that memory which was never written does not have; another one in each life.
fn first_lap() -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers it begins with 1.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes).max(1)
}

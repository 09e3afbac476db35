//! What was received and not shown yet: completions that were taken off the queue, and the send whose
//! messages are being shown.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::{Room, SharedBytes};
use doorbell_fabric::message::{Arrivals, Inbound, Look, PeerIndex, Watch};

use super::core::{Core, Step, enlist};
use super::head::{self, CONTROLS, HEAD, Head};
use super::link::State;
use super::onesided::wire::Control;
use super::record::Drop;
use super::ring::{COPY, Turn};
use super::slots::Slots;
use crate::sys::{Wc, numbers};

mod single;

/// Completions that are taken off the queue at a time.
const BATCH: usize = 16;
/// Bytes of a head that [`Core::look`] compares.
const HEAD_WORDS: usize = 16;

/// What a send is that was checked.
pub(crate) enum Begun {
    /// It has this many messages to be shown.
    Messages(u16),
    /// It has none, or they have to wait.
    Nothing,
    /// It breaks a rule of the wire; its slot is not given back.
    Broken,
}

/// A send whose messages are being shown.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    peer: u32,
    /// Its slot, or [`COPY`].
    slot: u32,
    length: u32,
    at: u32,
    left: u16,
}

impl Current {
    /// A send of which nothing was shown yet.
    pub(crate) fn new(peer: u32, slot: u32, length: usize, count: u16) -> Self {
        Self {
            peer,
            slot,
            length: length as u32,
            at: HEAD as u32,
            left: count,
        }
    }

    #[inline(always)]
    fn give_back(&self, slots: &mut Slots) {
        if self.slot != COPY {
            slots.give_back(self.slot);
        }
    }
}

/// What was received and not shown yet.
pub(crate) struct Inbox {
    found: [Wc; BATCH],
    next: usize,
    count: usize,
    /// Completions that were taken off the queue in all.
    pub(crate) fetched: u64,
    current: Option<Current>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            found: [Wc::zeroed(); BATCH],
            next: 0,
            count: 0,
            fetched: 0,
            current: None,
        }
    }
}

impl Inbox {
    /// A peer's connection is over: what is left of its send is not shown.
    pub(crate) fn forget(&mut self, peer: u32, slots: &mut Slots) {
        if let Some(current) = self.current.take_if(|current| current.peer == peer) {
            current.give_back(slots);
        }
    }

    /// Whether none is left of the completions that were taken off the queue.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// The messages of a send are the next to be shown.
    #[inline]
    pub(crate) fn show(&mut self, current: Current) {
        self.current = Some(current);
    }
}

impl Core {
    /// Shows up to `budget` messages; returns how many.
    #[inline]
    pub(crate) fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        self.flush();
        let (mut shown, mut was_drained) = (0, false);
        while shown < budget {
            if self.is_queue_alone() {
                if self.inbox.is_empty() {
                    // It had no more a moment ago: another look would be in vain mostly.
                    if was_drained || !self.fetch() {
                        break;
                    }
                    was_drained = self.inbox.count < BATCH;
                }
                if self.show_single(sink) {
                    shown += 1;
                    continue;
                }
            }
            let Some(current) = self.open_next() else { break };
            match self.message_of(&current) {
                Some((message, end)) => {
                    sink.message(PeerIndex(current.peer), Inbound::whole(message));
                    self.is_low |= self.shown(current, end);
                    shown += 1;
                }
                None => self.refuse(current),
            }
        }
        self.stats.received += shown as u64;
        if budget > 0 {
            self.after_poll(shown > 0);
        }
        shown
    }

    /// Takes the send whose messages come next: the present one, or the next one that is there. The caller
    /// puts it back, unless it shows its last message.
    #[inline(always)]
    fn open_next(&mut self) -> Option<Current> {
        loop {
            if self.inbox.current.is_some() {
                return self.inbox.current.take();
            }
            if self.rings.are_first() && self.open_ring() {
                continue;
            }
            self.rings.look_at_queue();
            if self.inbox.next == self.inbox.count {
                if !self.fetch() {
                    return None;
                }
                // A ring may have had something, too.
                continue;
            }
            if let Some(current) = self.take_next() {
                return Some(current);
            }
        }
    }

    /// Takes completions off the queue; whether there were any, or something in the rings.
    #[inline]
    fn fetch(&mut self) -> bool {
        // A broken queue brings nothing: time ends its connections.
        let device = self.device.as_ref();
        let found = device.map(|device| device.received.poll(&mut self.inbox.found));
        let count = found.and_then(Result::ok).unwrap_or(0);
        (self.inbox.next, self.inbox.count) = (0, count);
        if count == 0 {
            let has_rings = self.rings.are_used();
            // What a connection that ends has left in its ring is shown before its end. What others write may
            // go on without end, and is shown behind it.
            if has_rings && !self.ending.is_empty() && self.open_ring_of_ending() {
                return true;
            }
            self.received_all();
            return has_rings && self.open_ring();
        }
        let before = self.inbox.fetched;
        self.inbox.fetched = before + count as u64;
        if !self.ending.is_empty() || self.has_leaving() {
            self.finish_passed(before);
        }
        true
    }

    /// The queue may never be empty while others send: connections are over whose sends were taken off it,
    /// where this many were in all.
    #[cold]
    fn finish_passed(&mut self, fetched: u64) {
        self.destroy_passed(fetched);
        if !self.rings.are_used() || !self.open_ring_of_ending() {
            self.finish_ending(fetched);
        }
    }

    /// One completion: a send of a connection that is alive, whose head is possible, is the next to be shown.
    #[inline(always)]
    fn take_next(&mut self) -> Option<Current> {
        let completion = self.inbox.found.get(self.inbox.next)?;
        self.inbox.next += 1;
        let Some(slot) = self.slots.take(completion.wr_id) else {
            self.stats.nonsense += 1;
            return None;
        };
        let Some(index) = self.by_pair.get(completion.qp_num) else {
            self.stats.stale += 1;
            self.settle_one();
            self.slots.give_back(slot);
            return None;
        };
        if completion.status != numbers::SUCCESS {
            self.failed_receive(index, slot, completion.status);
            return None;
        }
        let length = completion.byte_len as usize;
        match self.begin(index, slot, length) {
            Begun::Messages(count) => Some(Current::new(index, slot, length, count)),
            Begun::Nothing => None,
            Begun::Broken => {
                self.slots.give_back(slot);
                self.end(index, DownReason::Hostile);
                None
            }
        }
    }

    #[cold]
    fn failed_receive(&mut self, index: u32, slot: u32, status: i32) {
        self.slots.give_back(slot);
        // A flush belongs to no connection.
        if status != numbers::WR_FLUSH_ERR {
            self.end(index, DownReason::Abandoned);
        }
    }

    /// Checks a send: how many messages it has that are to be shown now.
    #[inline(always)]
    fn begin(&mut self, index: u32, slot: u32, length: usize) -> Begun {
        if length > self.sizes.slot {
            self.stats.nonsense += 1;
            return self.broken(index, Drop::Length);
        }
        let Ok(head) = head::check(self.slots.bytes(slot, length)) else {
            return self.broken(index, Drop::Head);
        };
        if self.is_beginning(index) && !self.arrived_early(index, &head) {
            return self.broken(index, Drop::Early);
        }
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return Begun::Broken;
        };
        let accepted = peer.accepted();
        let Some(link) = &mut peer.link else {
            return Begun::Broken;
        };
        let Ok(is_news) = link.arrived(&head, accepted, &mut self.slots, self.now) else {
            return self.broken(index, Drop::Credit);
        };
        enlist(&mut self.owed, &mut peer.is_owed, index);
        if is_news {
            self.release_together(index);
        }
        let is_plain = head.flags.get() & !head::WANTS_MORE == 0 && head.count.get() > 0;
        if is_plain && !self.rings.are_used() {
            return Begun::Messages(head.count.get());
        }
        self.begin_rarely(index, slot, length, &head)
    }

    /// Acts on a send that is not of messages alone, or that has its place among those over a ring.
    fn begin_rarely(&mut self, index: u32, slot: u32, length: usize, head: &Head) -> Begun {
        if !head.is_word() || head.flags.get() == head::RETURNS {
            self.is_low = true;
            self.slots.give_back(slot);
            return Begun::Nothing;
        }
        match self.turn_of(index, head) {
            Turn::Now => self.open_send(index, slot, length, head),
            Turn::Later => {
                self.is_low = true;
                self.set_aside(index, slot, length, head);
                Begun::Nothing
            }
            Turn::Never => self.broken(index, Drop::Ring),
        }
    }

    #[cold]
    fn broken(&mut self, index: u32, why: Drop) -> Begun {
        self.drop_send(index, why);
        Begun::Broken
    }

    /// Acts on a send, or counts its messages.
    pub(crate) fn open_send(&mut self, index: u32, slot: u32, length: usize, head: &Head) -> Begun {
        if head.flags.get() & CONTROLS == 0 {
            return Begun::Messages(head.count.get());
        }
        let control = Control::read(self.slots.bytes(slot, length).skip(HEAD));
        let is_possible = control.is_ok_and(|control| self.control(index, &control));
        if !is_possible {
            return self.broken(index, Drop::Control);
        }
        self.is_low = true;
        self.slots.give_back(slot);
        Begun::Nothing
    }

    /// Something has come over a connection that is being made: its other end is connected, and up if it is a
    /// message. `false`: a message came before both ends can be.
    #[cold]
    fn arrived_early(&mut self, index: u32, head: &Head) -> bool {
        if !head.is_word() {
            self.steps.push_back((index, Step::Established));
            return true;
        }
        let link = self.peers[index as usize].link.as_ref();
        let is_proved = link.is_some_and(|link| link.is_proved());
        if is_proved {
            self.steps.push_back((index, Step::Heard));
            self.ready(index);
        }
        is_proved
    }

    #[inline(always)]
    fn message_of(&self, current: &Current) -> Option<(SharedBytes<'_>, usize)> {
        let bytes = match current.slot {
            COPY => self.rings.copied(current.length as usize),
            slot => self.slots.bytes(slot, current.length as usize),
        };
        head::message(bytes, current.at as usize, current.left == 1).ok()
    }

    /// A message was taken by the layer above; whether its peer has to wait for credits soon.
    #[inline(always)]
    fn shown(&mut self, current: Current, end: usize) -> bool {
        let Some(peer) = self.peers.get_mut(current.peer as usize) else {
            return false;
        };
        // The counters may have been sent since its send began.
        enlist(&mut self.owed, &mut peer.is_owed, current.peer);
        let mut is_low = false;
        if let Some(link) = &mut peer.link {
            link.consumed += 1;
            if link.consumed == self.rings.sizes.after {
                self.rings.wanted.push(current.peer);
            }
            is_low = link.is_low();
        }
        if current.left == 1 {
            current.give_back(&mut self.slots);
        } else {
            self.inbox.current = Some(Current {
                at: end as u32,
                left: current.left - 1,
                ..current
            });
        }
        is_low
    }

    #[cold]
    fn refuse(&mut self, current: Current) {
        current.give_back(&mut self.slots);
        self.drop_send(current.peer, Drop::Message);
        self.end(current.peer, DownReason::Hostile);
    }

    /// Takes the next message of a peer, if it begins with these words and fits: see
    /// [`Message::look`](doorbell_fabric::message::Message::look).
    #[inline]
    pub(crate) fn look(&mut self, peer: PeerIndex, words: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        for _ in 0..watch.looks.max(1) {
            if self.is_queue_alone() {
                if self.inbox.is_empty() && !self.fetch() {
                    continue;
                }
                if let Some(length) = self.look_at_single(peer, words, room) {
                    return Look::Taken(length);
                }
            }
            if let Some(look) = self.look_once(peer, words, room) {
                return look;
            }
            // Without pauses: they leave a line to the processor that writes it, and here a device does.
        }
        Look::Nothing
    }

    /// Looks at the next message, whatever its send is; `None` where there is none.
    #[inline(never)]
    fn look_once(&mut self, peer: PeerIndex, words: [u64; 2], room: Room<'_>) -> Option<Look> {
        let current = self.open_next()?;
        Some(self.look_at(current, peer, words, room))
    }

    #[inline(always)]
    fn look_at(&mut self, current: Current, peer: PeerIndex, words: [u64; 2], room: Room<'_>) -> Look {
        let Some((message, end)) = self.message_of(&current) else {
            self.inbox.show(current);
            return Look::Other;
        };
        let word = |at| message.read(at).map(u64::from_ne_bytes);
        let is_it = current.peer == peer.0 && word(0) == Some(words[0]) && word(8) == Some(words[1]);
        if !is_it || message.len() - HEAD_WORDS > room.len() {
            self.inbox.show(current);
            return Look::Other;
        }
        let length = room.write_shared(0, message.skip(HEAD_WORDS));
        self.stats.received += 1;
        if self.shown(current, end) {
            self.is_low = true;
            self.grant_more(current.peer);
        }
        Look::Taken(length)
    }

    /// Checks up to `looks` times whether something has come; what was seen is kept for the next poll.
    #[inline]
    pub(crate) fn linger(&mut self, looks: u32) -> bool {
        for _ in 0..looks.max(1) {
            if self.has_arrivals() {
                return true;
            }
        }
        false
    }

    /// Whether there is something to show, or something has come since the last poll.
    pub(crate) fn has_arrivals(&mut self) -> bool {
        let is_there = self.inbox.current.is_some() || self.inbox.next < self.inbox.count;
        is_there || self.rings.are_used() && self.open_ring() || self.fetch()
    }

    /// Whether a connection of this peer is on its way to its end.
    pub(crate) fn is_ending(&self, index: u32) -> bool {
        let link = &self.peers[index as usize].link;
        link.as_ref()
            .is_some_and(|link| matches!(link.state, State::Ending(..)))
    }
}

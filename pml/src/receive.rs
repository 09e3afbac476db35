//! The receiving side: an arrival meets a posted receive, or a new receive meets a kept message.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Inbound;
use doorbell_matching::{Entry, MatchKey, Pattern, Posted, Unexpected};

use crate::args::Delivery;
use crate::convertor::to_usize;
use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::hot::about;
use crate::rails::RailId;
use crate::rank::{Rank, Source};
use crate::request::RequestIndex;
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::unexpected::UnexpectedIndex;
use crate::unexpected::{Envelope, Station};
use crate::wire::{MATCH_LEN, kind};

/// A message to ourselves whose bytes are still with its sender: a kind that never travels.
pub(crate) const SELF_WAIT: u8 = 0;

impl Core {
    /// The fast path: the expected message, whole. `UNUSUAL`: its sender has endpoints or immediate data.
    #[inline]
    pub(crate) fn on_eager<const UNUSUAL: bool>(
        &mut self,
        rank: Rank,
        rail: RailId,
        context: u16,
        tag: u64,
        inbound: &Inbound<'_>,
    ) {
        let length = inbound.len() - MATCH_LEN;
        self.counters.arrived += 1;
        let (key, data) = if UNUSUAL {
            (self.key(rank, context, tag), self.immediate.received(rank))
        } else {
            (MatchKey::new(u32::from(context), rank.0, tag), None)
        };
        if let Some(found) = self.matcher.arrive(key, length as u64) {
            let index = RequestId::from_bits(found.token).index();
            let slot = self.requests.slot(index);
            if let Some(room) = slot.plain_room(length) {
                inbound.copy_to_loan(MATCH_LEN, room, 0);
                slot.matched(rank, tag, length as u64);
                slot.turn(Event::Completed);
                let notify = slot.is(mark::NOTIFY);
                if UNUSUAL {
                    self.requests.note(index, context, data);
                }
                if notify {
                    self.reports.push_request(RequestId::from_bits(found.token));
                }
                self.counters.matched += 1;
                self.consume(rank, length as u64 + ENVELOPE);
            } else {
                let envelope = self.eager_envelope(rank, rail, context, tag, length);
                let envelope = Envelope { data, ..envelope };
                self.deliver(&found.into(), &envelope, inbound, MATCH_LEN);
            }
        } else {
            let envelope = self.eager_envelope(rank, rail, context, tag, length);
            let envelope = Envelope { data, ..envelope };
            self.keep(&envelope, key, inbound, MATCH_LEN);
        }
    }

    #[cold]
    fn eager_envelope(&self, rank: Rank, rail: RailId, context: u16, tag: u64, length: usize) -> Envelope {
        Envelope {
            rank,
            rail,
            kind: kind::MATCH,
            flags: 0,
            context,
            seq: self.hot[rank].expected_seq().0.wrapping_sub(1),
            tag,
            length: length as u64,
            sender: 0,
            body: length,
            remote: None,
            restart: 0,
            checksum: None,
            data: None,
            lead: 0,
        }
    }

    /// A message whose turn it is.
    pub(crate) fn take_in(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        if envelope.is_of_operation() {
            return self.operation_turn(envelope, inbound, at);
        }
        self.counters.arrived += 1;
        let key = self.key_of(envelope);
        match self.matcher.arrive(key, envelope.length) {
            Some(found) => self.deliver(&found.into(), envelope, inbound, at),
            None => self.keep(envelope, key, inbound, at),
        }
    }

    /// A held message whose turn it is.
    pub(crate) fn take_in_held(&mut self, index: UnexpectedIndex) {
        let envelope = *self.unexpected.envelope(index);
        if envelope.is_of_operation() {
            return self.held_operation(index);
        }
        self.counters.arrived += 1;
        let key = self.key_of(&envelope);
        match self.matcher.arrive(key, envelope.length) {
            Some(found) => self.deliver_recorded(&found.into(), index),
            None if self.is_closed(envelope.context) => self.reject_recorded(index),
            None => {
                self.counters.unexpected += 1;
                self.unexpected.station(index, Station::Kept);
                self.matcher.keep(key, envelope.length, index.token());
            }
        }
    }

    /// A held operation, or what one returns.
    fn held_operation(&mut self, index: UnexpectedIndex) {
        let (envelope, buffer) = self.unexpected.take(index);
        self.peers[envelope.rank].release(envelope.charge());
        let bytes = SharedBytes::of(&buffer.bytes()[..envelope.lead + envelope.body]);
        self.operation_turn(&envelope, &Inbound::whole(bytes), 0);
        self.pool.give(buffer);
    }

    /// Copies a message to a record.
    pub(crate) fn record(
        &mut self,
        station: Station,
        envelope: &Envelope,
        inbound: &Inbound<'_>,
        at: usize,
    ) -> UnexpectedIndex {
        let length = envelope.lead + envelope.body;
        let mut buffer = self.pool.take(length);
        inbound.copy_to(at, &mut buffer.bytes_mut()[..length]);
        self.unexpected.put(station, *envelope, buffer)
    }

    #[cold]
    fn keep(&mut self, envelope: &Envelope, key: MatchKey, inbound: &Inbound<'_>, at: usize) {
        if self.is_closed(envelope.context) {
            self.reject(envelope);
            return;
        }
        self.counters.unexpected += 1;
        let index = self.record(Station::Kept, envelope, inbound, at);
        self.matcher.keep(key, envelope.length, index.token());
        self.keep_charge(envelope.rank, envelope.charge());
    }

    /// Gives a recorded message to the receive that it matched.
    pub(crate) fn deliver_recorded(&mut self, found: &Landing, index: UnexpectedIndex) {
        let (envelope, buffer) = self.unexpected.take(index);
        self.peers[envelope.rank].release(envelope.charge());
        if envelope.kind == SELF_WAIT {
            self.deliver_own(found, &envelope);
            return;
        }
        let inbound = Inbound::whole(SharedBytes::of(&buffer.bytes()[..envelope.body]));
        self.deliver(found, &envelope, &inbound, 0);
        self.pool.give(buffer);
    }

    /// Gives a message to the receive that it matched.
    pub(crate) fn deliver(&mut self, found: &Landing, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        self.counters.matched += 1;
        let index = found.request.index();
        let slot = self.requests.slot(index);
        if slot.is(mark::MULTI) {
            self.deliver_multi(found, envelope, inbound, at);
            return;
        }
        self.matched(index, envelope);
        self.begin(index, envelope, inbound, at);
        self.consume(envelope.rank, envelope.charge());
    }

    /// The message of a receive is known.
    fn matched(&mut self, index: RequestIndex, envelope: &Envelope) {
        let slot = self.requests.slot(index);
        slot.matched(envelope.rank, envelope.tag, envelope.length);
        if self.hot[envelope.rank].is(about::DATA | about::ENDPOINTS) {
            self.requests.note(index, envelope.context, envelope.data);
        }
    }

    /// The message of a receive is known: copies what came with it, and sees to the rest.
    pub(crate) fn begin(
        &mut self,
        index: RequestIndex,
        envelope: &Envelope,
        inbound: &Inbound<'_>,
        at: usize,
    ) {
        let (slot, record) = self.requests.both(index);
        let until = envelope.length.min(record.memory.capacity(slot));
        let body = until.min(envelope.body as u64);
        record.memory.fill(slot, 0, inbound, at, to_usize(body));
        if until < envelope.length || envelope.kind != kind::MATCH || envelope.checksum.is_some() {
            slot.set(mark::RECORD);
            record.progress.set(body, until);
            record.checksums.set_announced(envelope.checksum);
        }
        if envelope.kind == kind::MATCH {
            self.finish_received(index);
        } else {
            self.begin_transfer(index, envelope);
        }
    }

    /// Ends a receive whose bytes are all there.
    pub(crate) fn finish_received(&mut self, index: RequestIndex) {
        let outcome = self.judge(index);
        self.finish(index, outcome);
    }

    fn deliver_multi(&mut self, found: &Landing, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        let index = found.request.index();
        let (slot, record) = self.requests.both(index);
        record.multi.fill(found.length);
        if envelope.kind == kind::MATCH {
            record
                .memory
                .fill(slot, found.offset, inbound, at, to_usize(found.length));
            record.multi.delivered();
            // While it is being posted, it is not linked yet and counts one transfer more.
            let others = record.multi.children() - u32::from(slot.entry().is_none());
            let last = found.unlinked && others == 0;
            let intact = self.is_intact(index, found, envelope);
            let delivery = Delivery {
                request: found.request,
                offset: found.offset,
                delivered: found.length,
                status: self.status_of(envelope),
                intact,
                last,
            };
            self.deliveries.push(delivery, envelope.charge());
        } else {
            record.multi.child_begins();
            let (context, room) = (
                slot.context(),
                slot.room().part(to_usize(found.offset), to_usize(found.length)),
            );
            let part = record.memory.region_part(found.offset, found.length);
            let (child, slot) = self.requests.take();
            slot.post_part(mark::CHILD | mark::RECORD, context, room);
            if part.is_some() {
                slot.set(mark::APART);
            }
            self.matched(child.index(), envelope);
            let record = self.requests.record(child.index());
            if let Some(part) = part {
                record.memory.set_target(part);
            }
            record.multi.set_parent(found.request, found.offset);
            self.begin(child.index(), envelope, inbound, at);
            self.consume(envelope.rank, envelope.charge());
        }
        if found.unlinked {
            self.requests.slot(index).unlink();
            self.release_multi(index, Outcome::Ok);
        }
    }

    /// The deliveries of a multi-receive will not be taken: gives back what they count.
    pub(crate) fn drop_deliveries(&mut self, id: RequestId) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        deliveries.drop_of(id, |rank, charge| {
            if charge > 0 {
                self.consume(rank, charge);
            }
        });
        self.deliveries = deliveries;
    }

    /// The owner has taken a message of a multi-receive, whose end it is notified of behind the last one.
    pub(crate) fn delivery_taken(&mut self, id: RequestId) {
        // None, where its end was looked at before.
        let Some(slot) = self.requests.get(id) else {
            return;
        };
        let (state, marks) = (slot.state(), slot.marks());
        let multi = &mut self.requests.record(id.index()).multi;
        multi.taken();
        let wants = marks & (mark::NOTIFY | mark::ABORTED) == mark::NOTIFY;
        if wants && state == State::Done && !multi.has_untaken() {
            self.reports.push_request(id);
        }
    }

    /// A multi-receive that is not linked any more ends when no transfer goes into it.
    pub(crate) fn release_multi(&mut self, index: RequestIndex, outcome: Outcome) {
        let (slot, record) = self.requests.both(index);
        slot.end_later(outcome, record.multi.filled());
        if record.multi.children() == 0 && slot.entry().is_none() {
            self.finish(index, outcome);
        }
    }

    /// A transfer into a multi-receive has ended.
    pub(crate) fn child_finished(&mut self, index: RequestIndex) {
        let status = self.status(index);
        let (slot, record) = self.requests.both(index);
        let delivered = record.progress.until().min(slot.length());
        let Some((parent, offset)) = record.multi.parent() else {
            return;
        };
        let intact = matches!(slot.outcome(), Outcome::Ok | Outcome::Truncated);
        let aborted = slot.is(mark::ABORTED);
        self.free(index);
        let (slot, record) = self.requests.both(parent.index());
        record.multi.child_ended();
        let outcome = slot.outcome();
        let is_released = record.multi.children() == 0 && slot.entry().is_none();
        if !aborted {
            let delivery = Delivery {
                request: parent,
                offset,
                delivered,
                status,
                intact,
                last: is_released && outcome == Outcome::Ok,
            };
            record.multi.delivered();
            self.deliveries.push(delivery, 0);
        }
        self.release_multi(parent.index(), outcome);
    }

    /// Posts a receive that leaves nothing open; otherwise as [`Core::post`].
    #[inline(always)]
    pub(crate) fn post_exact(&mut self, id: RequestId, key: MatchKey, room: u64) {
        match self.matcher.post(&Entry::once(key.into(), room, id.to_bits())) {
            Posted::Linked(handle) => self.requests.slot(id.index()).link(handle),
            Posted::Found(kept) => self.found_kept(id, &kept),
        }
        if self.lazy.any_apart() {
            self.look_apart(id, key.into());
        }
    }

    #[inline(never)]
    fn found_kept(&mut self, id: RequestId, kept: &Unexpected) {
        self.deliver_recorded(
            &Landing::of(id, kept.length),
            UnexpectedIndex::of_token(kept.token),
        );
    }

    /// Posts the entry of a single receive whose slot is filled in. Finds a kept message, or links.
    #[inline(always)]
    pub(crate) fn post(&mut self, id: RequestId, pattern: Pattern, room: u64) {
        match self.matcher.post(&Entry::once(pattern, room, id.to_bits())) {
            Posted::Linked(handle) => self.requests.slot(id.index()).link(handle),
            Posted::Found(kept) => self.found_kept(id, &kept),
        }
        if self.lazy.any_apart() {
            self.look_apart(id, pattern);
        }
    }

    /// A receive that waits for a lost peer ends at once; one that waits for a peer without a
    /// connection requests one.
    #[cold]
    pub(crate) fn look_apart(&mut self, id: RequestId, pattern: Pattern) {
        if pattern.source_ignore != 0 {
            return;
        }
        let Some(from) = Source::of_number(pattern.source).rank() else {
            return;
        };
        let lost = self.hot[from].is(about::LOST);
        let slot = self.requests.slot(id.index());
        if slot.state() == State::Done {
            return;
        }
        if !lost {
            self.want(from);
            return;
        }
        let Some(entry) = slot.unlink() else { return };
        slot.matched(from, pattern.bits, slot.length());
        if self.matcher.cancel(entry).is_ok() {
            match self.requests.slot(id.index()).state() {
                State::Multi => self.release_multi(id.index(), Outcome::PeerLost),
                _ => self.finish(id.index(), Outcome::PeerLost),
            }
        }
    }
}

/// Where a message lands: the request, and for a multi-receive the place in its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    pub(crate) request: RequestId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) unlinked: bool,
}

impl Landing {
    /// The landing of a single receive.
    pub(crate) fn of(request: RequestId, length: u64) -> Self {
        Self {
            request,
            offset: 0,
            length,
            unlinked: true,
        }
    }
}

impl From<doorbell_matching::Match> for Landing {
    #[inline]
    fn from(found: doorbell_matching::Match) -> Self {
        Self {
            request: RequestId::from_bits(found.token),
            offset: found.offset,
            length: found.length,
            unlinked: found.unlinked,
        }
    }
}

/// Returns what a receive or probe matches.
#[inline]
pub(crate) fn pattern(from: Source, context: u16, tag: u64, ignore: u64) -> Pattern {
    let table = u32::from(context);
    match from.number() {
        Some(source) => Pattern::exact(table, source, tag).ignoring(ignore),
        None => Pattern::any_source(table, tag).ignoring(ignore),
    }
}

//! Sending: numbers, the way that a message takes, and what waits for room.
//!
//! Small messages take one way, the one of the least latency. Long ones take several where that brings bandwidth: each
//! the way on which it will be there first, by what is under way and what the rails' estimates say of their rates; a way
//! that is slower than estimated has more under way, and is given less.
//!
//! What waits goes first, and in this order: news of ways, what rails gave back, urgent messages. Those are not numbered
//! before they go, so that the window holds for them as well.

use doorbell_fabric::caps::Limits;
use doorbell_fabric::event::Life;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Inbound, Message, MsgId, Refused};

use super::buffers::Kept;
use super::flight::charge;
use super::way::{State, Way, Why};
use super::{Core, FIRST_LEN, First, HEAD_MOST, Link, NO_RUN, PeerId, Sizes, Upper, each, kind};

/// Where the number is in a message.
const SEQ_AT: usize = 4;
/// Shorter messages are never striped: the ways' latencies would cost more than their rates bring.
const STRIPED_FROM: usize = 4096;

impl<M: Message> Link<M> {
    /// Sends `head`, which begins with [`First`] and has at most 64 bytes, and `body`. The number is filled in here. An
    /// urgent message that finds no room waits here, with its bytes; for all others, back-pressure is the caller's.
    ///
    /// # Errors
    /// [`Refused::Full`] when there is no room: try again after a poll. [`Refused::PeerDown`] when the peer is lost, or
    /// was never connected. [`Refused::TooLong`] for more than [`Sizes::message`], or a head that is none.
    #[inline]
    pub(crate) fn send(
        &mut self,
        peer: PeerId,
        head: &mut [u8],
        body: Body<'_>,
        urgent: bool,
    ) -> Result<(), Refused> {
        let length = head.len() + body.len();
        if let Some(hot) = self.core.hot.get_mut(peer.index())
            && let Some(first) = head.first_chunk_mut::<FIRST_LEN>()
            && length <= hot.limit as usize
            && hot.charged + charge(length) <= hot.check
            && let Some(slot) = self.rails.get_mut(usize::from(hot.rail))
        {
            number(first, hot.next);
            match slot.rail.send(hot.index, head, body) {
                Ok(id) => {
                    hot.charged += charge(length);
                    let seq = hot.next;
                    hot.next = seq.wrapping_add(1);
                    if !slot.rail.flush_soon(hot.index) {
                        (self.gathers, self.core.busy) = (true, true);
                    }
                    if id.0.wrapping_sub(u64::from(seq)) != hot.run {
                        self.core.begin_run(peer.0, id, seq);
                    }
                    return Ok(());
                }
                Err(Refused::Full) if !urgent => {
                    self.core.stats.refused += 1;
                    return Err(Refused::Full);
                }
                Err(_) => {}
            }
        }
        self.send_slowly(peer, head, &body, urgent)
    }

    /// Whether a message that is not urgent would probably be taken now.
    #[inline]
    pub(crate) fn room(&self, peer: PeerId) -> bool {
        if peer == PeerId::SELF {
            return self.core.own_bytes < self.core.config.backlog;
        }
        self.core.hot.get(peer.index()).is_some_and(|hot| hot.limit > 0)
    }

    #[cold]
    #[inline(never)]
    fn send_slowly(
        &mut self,
        peer: PeerId,
        head: &mut [u8],
        body: &Body<'_>,
        urgent: bool,
    ) -> Result<(), Refused> {
        let length = head.len() + body.len();
        if head.len() < FIRST_LEN || head.len() > HEAD_MOST || length > self.sizes(peer).message {
            return Err(Refused::TooLong);
        }
        if peer == PeerId::SELF {
            return self.core.send_own(head, body);
        }
        let known = self.core.peers.get_mut(peer.index()).ok_or(Refused::PeerDown)?;
        if known.lost || known.ways.is_empty() {
            return Err(Refused::PeerDown);
        }
        if !std::mem::replace(&mut known.introduced, true) && known.ways.len() > 1 {
            self.core.watch(peer.0);
        }
        if self.drain_peer(peer.0) {
            match self.send_now(peer.0, head, body) {
                Err(Refused::Full) => {}
                sent => return sent,
            }
        }
        if self.core.peers[peer.index()].lost {
            return Err(Refused::PeerDown);
        }
        if !urgent {
            self.core.stats.refused += 1;
            return Err(Refused::Full);
        }
        self.core.put_off(peer.0, head, body)
    }

    /// Numbers a message and sends it, if a way has room, and the window.
    fn send_now(&mut self, peer: u32, head: &mut [u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        if !self.window(peer, length) {
            return Err(Refused::Full);
        }
        let seq = self.core.hot[peer as usize].next;
        if let Some(first) = head.first_chunk_mut::<FIRST_LEN>() {
            number(first, seq);
        }
        self.send_numbered(peer, head, body, seq)?;
        let hot = &mut self.core.hot[peer as usize];
        hot.next = seq.wrapping_add(1);
        hot.charged += charge(length);
        Ok(())
    }

    /// Sends a message that has its number over the way that suits it; when that is full, over another that does.
    fn send_numbered(&mut self, peer: u32, head: &[u8], body: &Body<'_>, seq: u32) -> Result<(), Refused> {
        let length = head.len() + body.len();
        let mut tried = 0;
        loop {
            if self.core.peers[peer as usize].lost {
                return Err(Refused::PeerDown);
            }
            let at = self.pick(peer, length, tried).ok_or(Refused::Full)?;
            tried |= 1 << at;
            match self.send_over(peer, at, head, body, seq) {
                Err(Refused::Full) => {}
                // What it carried waits to be sent again, and goes first.
                Err(Refused::PeerDown) => {
                    self.way_broken(peer, at, Why::Link);
                    return Err(Refused::Full);
                }
                sent => return sent,
            }
        }
    }

    /// The way that a message takes.
    fn pick(&mut self, peer: u32, length: usize, tried: u64) -> Option<usize> {
        let known = &mut self.core.peers[peer as usize];
        if known.stripes == 0 || length < known.stripe_from {
            let at = known.current;
            let fits = |way: &Way| {
                way.state.is_used() && self.rails[usize::from(way.rail)].can.limits.message >= length
            };
            return (tried & 1 << at == 0 && known.ways.get(at).is_some_and(fits)).then_some(at);
        }
        let mut best = None;
        for at in each(known.stripes & !tried) {
            let way = &mut known.ways[at];
            let slot = &mut self.rails[usize::from(way.rail)];
            if slot.can.limits.message < length {
                continue;
            }
            let bytes = way.flight.bytes(slot.rail.handed_over(way.index)) + length as u64;
            let there = u128::from(bytes) * 1_000_000_000 / u128::from(slot.can.estimate.bandwidth.max(1))
                + u128::from(slot.can.estimate.latency_ns);
            if best.is_none_or(|(least, _)| there < least) {
                best = Some((there, at));
            }
        }
        best.map(|(_, at)| at)
    }

    fn send_over(
        &mut self,
        peer: u32,
        at: usize,
        head: &[u8],
        body: &Body<'_>,
        seq: u32,
    ) -> Result<(), Refused> {
        let known = &mut self.core.peers[peer as usize];
        let way = &mut known.ways[at];
        let slot = &mut self.rails[usize::from(way.rail)];
        let sent = match (slot.rail.send(way.index, head, *body), body) {
            // More parts than this rail takes.
            (Err(Refused::Unsupported | Refused::TooLong), Body::Parts(_)) => {
                let kept = self.core.buffers.gather(&[], body);
                let sent = slot.rail.send(way.index, head, Body::Bytes(kept.bytes()));
                self.core.buffers.give(kept);
                sent
            }
            (sent, _) => sent,
        };
        let id = sent?;
        if !slot.rail.flush_soon(way.index) {
            (self.gathers, self.core.busy) = (true, true);
        }
        let striped = known.stripes & 1 << at != 0;
        let bytes = if striped { head.len() + body.len() } else { 0 };
        if at == known.current {
            self.core.settle(peer);
            let hot = &mut self.core.hot[peer as usize];
            // What is sent again is not followed by the next new message.
            hot.run = if seq == hot.next {
                id.0.wrapping_sub(u64::from(seq))
            } else {
                NO_RUN
            };
        }
        let way = &mut self.core.peers[peer as usize].ways[at];
        way.flight.add(id, seq, bytes as u64);
        Ok(())
    }

    /// Whether the window has room for a message of `length` bytes.
    fn window(&mut self, peer: u32, length: usize) -> bool {
        let cost = charge(length);
        let hot = &self.core.hot[peer as usize];
        if hot.charged + cost <= hot.check {
            return true;
        }
        let oldest = self.oldest(peer);
        let hot = &mut self.core.hot[peer as usize];
        let window = &mut self.core.peers[peer as usize].window;
        match window.open(hot.next, hot.charged, cost, oldest) {
            Some(end) => hot.check = end,
            None => return false,
        }
        true
    }

    /// The number of the oldest message to a peer that is not known to be taken.
    fn oldest(&mut self, peer: u32) -> Option<u32> {
        self.core.settle(peer);
        let next = self.core.hot[peer as usize].next;
        let known = &mut self.core.peers[peer as usize];
        let mut oldest = known.again.front().map(seq_of);
        for way in &mut known.ways {
            let rail = &mut self.rails[usize::from(way.rail)].rail;
            let of_way = way.flight.oldest_over(|| rail.handed_over(way.index));
            let age = |seq: u32| next.wrapping_sub(seq);
            if let Some(seq) = of_way
                && oldest.is_none_or(|known| age(seq) > age(known))
            {
                oldest = Some(seq);
            }
        }
        oldest
    }

    /// Sends what waits, of all peers. Returns how many messages went.
    pub(super) fn drain(&mut self) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(&peer) = self.core.waiting.get(at) {
            let before = self.core.hot[peer as usize]
                .next
                .wrapping_add(self.core.stats.resent as u32);
            let done = self.drain_peer(peer);
            let after = self.core.hot[peer as usize]
                .next
                .wrapping_add(self.core.stats.resent as u32);
            work += after.wrapping_sub(before) as usize;
            // Without a way there is nothing to try: it is listed again when there is one.
            let known = &mut self.core.peers[peer as usize];
            if done || known.lost || !known.ways.iter().any(|way| way.state.is_used()) {
                known.is_waiting = false;
                self.core.waiting.swap_remove(at);
            } else {
                at += 1;
            }
        }
        work
    }

    /// Sends what waits of one peer, as far as there is room. Whether nothing waits any more.
    pub(super) fn drain_peer(&mut self, peer: u32) -> bool {
        if !self.core.peers[peer as usize].waits() {
            return true;
        }
        while let Some(&(way, life)) = self.core.peers[peer as usize].news.last() {
            if !self.tell_all(peer, way, life) {
                return false;
            }
            self.core.peers[peer as usize].news.pop();
        }
        while let Some(kept) = self.core.peers[peer as usize].again.pop_front() {
            let seq = seq_of(&kept);
            let (head, body) = kept.bytes().split_at(kept.len().min(HEAD_MOST));
            let sent = self.send_numbered(peer, head, &body_of(body), seq);
            if sent.is_err() {
                self.core.keep_again(peer, kept);
                return self.none_fits(peer);
            }
            self.core.buffers.give(kept);
            self.core.stats.resent += 1;
        }
        while let Some(mut kept) = self.core.peers[peer as usize].fresh.pop_front() {
            let length = kept.len();
            let (head, body) = kept.bytes_mut().split_at_mut(length.min(HEAD_MOST));
            if self.send_now(peer, head, &body_of(body)).is_err() {
                let known = &mut self.core.peers[peer as usize];
                if known.lost {
                    self.core.buffers.give(kept);
                } else {
                    known.fresh.push_front(kept);
                }
                return self.none_fits(peer);
            }
            self.core.peers[peer as usize].fresh_bytes -= length;
            self.core.buffers.give(kept);
        }
        self.reopen(peer);
        true
    }

    /// What waits could not be sent. When that is because no way takes so long a message, it never will be. `false`: it
    /// waits.
    fn none_fits(&mut self, peer: u32) -> bool {
        let known = &self.core.peers[peer as usize];
        let Some(length) = known.again.front().or(known.fresh.front()).map(Kept::len) else {
            return false;
        };
        let hopes = |way: &Way| !way.dead && self.rails[usize::from(way.rail)].can.limits.message >= length;
        if !known.ways.iter().any(hopes) {
            self.lose(peer, Why::NotReclaimable);
        }
        false
    }

    /// Decides again which ways a peer's messages take, and with which sizes.
    pub(super) fn refresh(&mut self, peer: u32) {
        self.core.settle(peer);
        let rails = &self.rails;
        let can = |way: &Way| &rails[usize::from(way.rail)].can;
        let known = &mut self.core.peers[peer as usize];
        let mut used = known.ways_that(|way| way.state == State::Up);
        if used == 0 {
            used = known.ways_that(|way| way.state == State::Suspect);
        }
        let latency = |at: &usize| (can(&known.ways[*at]).estimate.latency_ns, *at);
        let best = each(used).min_by_key(latency);
        let within = each(used).any(|at| can(&known.ways[at]).features.within_host);
        let stripes = used & known.ways_that(|way| way.met);
        known.stripes = if within || stripes.count_ones() < 2 {
            0
        } else {
            stripes
        };
        known.current = best.unwrap_or(known.current);
        let over = if known.stripes == 0 {
            best.map_or(0, |at| 1 << at)
        } else {
            known.stripes
        };
        let least = |of: fn(&Limits) -> usize| {
            move |set: u64, ways: &[Way]| each(set).map(|at| of(&can(&ways[at]).limits)).min()
        };
        let all = known.ways_that(|way| !way.dead);
        let message = least(|limits| limits.message)(all, &known.ways);
        let get = each(used)
            .map(|at| can(&known.ways[at]))
            .filter(|can| can.features.get)
            .map(|can| can.limits.get_from)
            .min();
        if let Some(message) = message {
            let fragment = least(|limits| limits.fragment)(over, &known.ways)
                .unwrap_or(message)
                .min(message);
            let eager = best
                .map_or(message, |at| can(&known.ways[at]).limits.eager)
                .min(message);
            known.stripe_from = (fragment / 2).max(STRIPED_FROM);
            known.sizes = Some(Sizes {
                message,
                eager,
                fragment,
                get_from: get,
            });
        }
        self.core.hot[peer as usize].run = NO_RUN;
        self.reopen(peer);
    }

    /// Opens the short way for the messages of a peer, if nothing waits and a way is used.
    pub(super) fn reopen(&mut self, peer: u32) {
        let known = &self.core.peers[peer as usize];
        let hot = &mut self.core.hot[peer as usize];
        hot.limit = 0;
        let Some(way) = known
            .ways
            .get(known.current)
            .filter(|way| !known.lost && way.state.is_used())
        else {
            return;
        };
        (hot.rail, hot.index) = (way.rail, way.index);
        if known.waits() {
            self.core.list(peer);
            return;
        }
        let longest = known.sizes.map_or(0, |sizes| sizes.message);
        let short = if known.stripes == 0 {
            longest
        } else {
            longest.min(known.stripe_from - 1)
        };
        hot.limit = u32::try_from(short).unwrap_or(u32::MAX);
    }

    /// Sends a word over one way and no other; `false` when its rail does not take it.
    pub(super) fn say_over(&mut self, peer: u32, at: usize, kind: u8, about: u16, number: u32) -> bool {
        let way = &self.core.peers[peer as usize].ways[at];
        let rail = &mut self.rails[usize::from(way.rail)].rail;
        let word = First {
            kind,
            flags: 0,
            short: about.into(),
            seq: number.into(),
        };
        let word: [u8; FIRST_LEN] = zerocopy::transmute!(word);
        let sent = rail.send(way.index, &word, Body::Empty).is_ok();
        if sent {
            rail.flush();
            // The answer is waited for.
            self.paces.expect(usize::from(way.rail));
        }
        sent
    }

    /// Tells the peer over all of the ways that are used that one is given up. Whether one of them took it.
    pub(super) fn tell_all(&mut self, peer: u32, broken: u16, life: Life) -> bool {
        let mut told = false;
        for at in each(self.core.peers[peer as usize].ways_that(|way| way.state.is_used())) {
            told |= self.say_over(peer, at, kind::BROKEN, broken, life.0);
        }
        told
    }
}

impl Core {
    /// A message to a peer was the first of a run.
    #[cold]
    #[inline(never)]
    fn begin_run(&mut self, peer: u32, id: MsgId, seq: u32) {
        let hot = &mut self.hot[peer as usize];
        let before = std::mem::replace(&mut hot.run, id.0.wrapping_sub(u64::from(seq)));
        let known = &mut self.peers[peer as usize];
        if let Some(way) = known.ways.get_mut(known.current) {
            if before != NO_RUN {
                way.flight
                    .extend(before.wrapping_add(u64::from(seq.wrapping_sub(1))));
            }
            way.flight.add(id, seq, 0);
        }
    }

    /// What the data path knows of the current way's last run is written where it belongs.
    pub(super) fn settle(&mut self, peer: u32) {
        let hot = &self.hot[peer as usize];
        let known = &mut self.peers[peer as usize];
        if hot.run != NO_RUN
            && let Some(way) = known.ways.get_mut(known.current)
        {
            way.flight
                .extend(hot.run.wrapping_add(u64::from(hot.next.wrapping_sub(1))));
        }
    }

    /// An urgent message waits for room.
    fn put_off(&mut self, peer: u32, head: &[u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        let known = &mut self.peers[peer as usize];
        if known.fresh_bytes + length > self.config.backlog {
            self.stats.refused += 1;
            return Err(Refused::Full);
        }
        known.fresh_bytes += length;
        known.fresh.push_back(self.buffers.gather(head, body));
        self.stats.waited += 1;
        self.list(peer);
        Ok(())
    }

    /// What was to be sent again waits on, in its place.
    pub(super) fn keep_again(&mut self, peer: u32, kept: Kept) {
        let next = self.hot[peer as usize].next;
        let known = &mut self.peers[peer as usize];
        if known.lost {
            return self.buffers.give(kept);
        }
        let age = |kept: &Kept| next.wrapping_sub(seq_of(kept));
        let place = known.again.partition_point(|other| age(other) >= age(&kept));
        known.again.insert(place, kept);
    }

    /// A message to this process itself.
    fn send_own(&mut self, head: &mut [u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        if self.own_bytes + length > self.config.backlog {
            self.stats.refused += 1;
            return Err(Refused::Full);
        }
        let hot = &mut self.hot[PeerId::SELF.index()];
        if let Some(first) = head.first_chunk_mut::<FIRST_LEN>() {
            number(first, hot.next);
        }
        hot.next = hot.next.wrapping_add(1);
        self.own_bytes += length;
        self.busy = true;
        self.own.push_back(self.buffers.gather(head, body));
        Ok(())
    }

    /// Shows messages to this process itself, at most those that are there now.
    #[cold]
    pub(super) fn show_own<U: Upper>(&mut self, budget: usize, upper: &mut U) -> usize {
        let count = self.own.len().min(budget);
        for _ in 0..count {
            let Some(kept) = self.own.pop_front() else { break };
            self.own_bytes -= kept.len();
            if let Some(first) = kept.bytes().first_chunk::<FIRST_LEN>() {
                let inbound = Inbound::whole(SharedBytes::of(kept.bytes()));
                upper.message(PeerId::SELF, zerocopy::transmute!(*first), inbound);
            }
            self.buffers.give(kept);
        }
        count
    }
}

/// Writes a number into the first eight bytes of a message: as one word, since a rail reads them so.
#[inline(always)]
fn number(first: &mut [u8; FIRST_LEN], seq: u32) {
    let word = u64::from_le_bytes(*first) & u64::from(u32::MAX) | u64::from(seq) << (8 * SEQ_AT);
    *first = word.to_le_bytes();
}

/// The number of a message that has one.
pub(super) fn seq_of(kept: &Kept) -> u32 {
    let bytes = kept.bytes().get(SEQ_AT..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn body_of(bytes: &[u8]) -> Body<'_> {
    if bytes.is_empty() {
        Body::Empty
    } else {
        Body::Bytes(bytes)
    }
}

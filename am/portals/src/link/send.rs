//! Sending: message numbers, and how much may be in flight.
//!
//! A message that is not long, to a peer whose path has room and for which nothing waits, goes straight to
//! the rail that [`Hot`](super::Hot) names.

use doorbell_fabric::message::{Body, Message, MsgId, Refused};
use doorbell_paths::{Reason, broken};

use super::in_flight::charge;
use super::waiting::seq_of;
use super::{Core, FIRST_LEN, HEAD_MOST, Link, NO_RUN, PeerId};

/// Where the number is in a message.
pub(super) const SEQ_AT: usize = 4;

impl<M: Message> Link<M> {
    /// Sends `head`, which begins with [`First`](super::First) and has at most 64 bytes, and `body`. The
    /// number is filled in here. An urgent message that finds no room waits here, with its bytes; for all
    /// others, back-pressure is the caller's.
    ///
    /// # Errors
    /// [`Refused::Full`] when there is no room: try again after a poll. [`Refused::PeerDown`] when the peer
    /// is lost, or was never connected. [`Refused::TooLong`] for more than
    /// [`Sizes::message`](super::Sizes::message), or a head that is none.
    #[inline(never)]
    pub(crate) fn send(
        &mut self,
        peer: PeerId,
        head: &mut [u8],
        body: Body<'_>,
        urgent: bool,
    ) -> Result<(), Refused> {
        self.send_here(peer, head, body, urgent)
    }

    /// Sends like `send`, as a part of its caller: for the one that knows what kind of body it is, which need
    /// not be stored then to be looked at.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    #[inline(always)]
    pub(crate) fn send_here(
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
                        if slot.rail.holds_back(Some(hot.index)) {
                            let taken = slot.rail.handed_over(hot.index);
                            self.held.note((hot.rail, hot.index), taken);
                        }
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
        // A copy: so the body itself need not lie in memory on the short way.
        self.send_slowly(peer, head, &{ body }, urgent)
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
        if known.lost || known.paths.is_empty() {
            return Err(Refused::PeerDown);
        }
        if !std::mem::replace(&mut known.introduced, true) && known.paths.len() > 1 {
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

    /// Numbers a message and sends it, if a path has room, and the window.
    pub(super) fn send_now(&mut self, peer: u32, head: &mut [u8], body: &Body<'_>) -> Result<(), Refused> {
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

    /// Sends a message that has its number over the path that suits it; when that is full, over another that
    /// does.
    pub(super) fn send_numbered(
        &mut self,
        peer: u32,
        head: &[u8],
        body: &Body<'_>,
        seq: u32,
    ) -> Result<(), Refused> {
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
                // Its messages wait to be sent again, and go first.
                Err(Refused::PeerDown) => {
                    let now = self.core.now;
                    broken(self, now, peer, at, Reason::Link);
                    return Err(Refused::Full);
                }
                sent => return sent,
            }
        }
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
        let path = &mut known.paths[at];
        let slot = &mut self.rails[usize::from(path.rail)];
        let sent = match (slot.rail.send(path.index, head, *body), body) {
            // More parts than this rail takes.
            (Err(Refused::Unsupported | Refused::TooLong), Body::Parts(_)) => {
                let kept = self.core.buffers.gather(&[], body);
                let sent = slot.rail.send(path.index, head, Body::Bytes(kept.bytes()));
                self.core.buffers.give(kept);
                sent
            }
            (sent, _) => sent,
        };
        let id = sent?;
        if !slot.rail.flush_soon(path.index) {
            (self.gathers, self.core.busy) = (true, true);
            if slot.rail.holds_back(Some(path.index)) {
                let taken = slot.rail.handed_over(path.index);
                self.held.note((path.rail, path.index), taken);
            }
        }
        // Messages that take turns are counted, to be shared by rate.
        let length = head.len() + body.len();
        let takes_turns = known.stripes & 1 << at != 0 && length >= known.stripe_from;
        let bytes = if takes_turns { length } else { 0 };
        if at == known.current {
            self.core.settle(peer);
            let hot = &mut self.core.hot[peer as usize];
            // A message that is sent again is not followed by the next new one.
            hot.run = if seq == hot.next {
                id.0.wrapping_sub(u64::from(seq))
            } else {
                NO_RUN
            };
        } else if seq == self.core.hot[peer as usize].next {
            // The current path's run ends here: the numbers that follow are not all its own.
            self.core.settle(peer);
            self.core.hot[peer as usize].run = NO_RUN;
        }
        let path = &mut self.core.peers[peer as usize].paths[at];
        path.flight.add(id, seq, bytes as u64);
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
    pub(super) fn oldest(&mut self, peer: u32) -> Option<u32> {
        self.core.settle(peer);
        let next = self.core.hot[peer as usize].next;
        let known = &mut self.core.peers[peer as usize];
        let mut oldest = known.again.front().map(seq_of);
        for path in &mut known.paths {
            let rail = &mut self.rails[usize::from(path.rail)].rail;
            let of_path = path.flight.oldest_over(|| rail.handed_over(path.index));
            let age = |seq: u32| next.wrapping_sub(seq);
            if let Some(seq) = of_path
                && oldest.is_none_or(|known| age(seq) > age(known))
            {
                oldest = Some(seq);
            }
        }
        oldest
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
        if let Some(path) = known.paths.get_mut(known.current) {
            if before != NO_RUN {
                path.flight
                    .extend(before.wrapping_add(u64::from(seq.wrapping_sub(1))));
            }
            path.flight.add(id, seq, 0);
        }
    }

    /// Writes what the data path keeps about the current path's last run where it belongs.
    pub(super) fn settle(&mut self, peer: u32) {
        let hot = &self.hot[peer as usize];
        let known = &mut self.peers[peer as usize];
        if hot.run != NO_RUN
            && let Some(path) = known.paths.get_mut(known.current)
        {
            path.flight
                .extend(hot.run.wrapping_add(u64::from(hot.next.wrapping_sub(1))));
        }
    }
}

/// Writes a number into the first eight bytes of a message: as one word, since a rail reads them so.
#[inline(always)]
pub(super) fn number(first: &mut [u8; FIRST_LEN], seq: u32) {
    let word = u64::from_le_bytes(*first) & u64::from(u32::MAX) | u64::from(seq) << (8 * SEQ_AT);
    *first = word.to_le_bytes();
}

//! Received frames. Each is hostile until its connection id, its CRC or MAC, and its contents have been
//! checked.
//!
//! The header is copied before it is looked at. Where a CRC or MAC is to be checked, the whole frame is
//! copied, and what was checked is what is used. Where none is, the payload stays where it lies: its sender's
//! device may still write it, which changes its bytes and nothing else.

use doorbell_fabric::datagram::{Channel, Receive};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Arrivals, Inbound, PeerIndex};

use crate::core::Core;
use crate::counters::Drop;
use crate::peer::about;
use crate::peers::NoPeer;
use crate::recv_window::PARTS;
use crate::seq::Seq;
use crate::wire::{self, BASIC, Kind, MAC, Parsed, flag, parse};

/// Frames that one poll handles at most, where they show nothing to the upper layer: a flood of them must not
/// keep it from returning.
pub(crate) const BATCH: usize = 64;

impl Core {
    /// Shows up to `budget` messages of one channel; returns how many.
    #[inline]
    pub(crate) fn receive<R: Receive, S: Arrivals>(
        &mut self,
        rx: &mut R,
        channel: Channel,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        let (mut shown, mut left) = (0, BATCH.max(2 * budget));
        while shown < budget && left > 0 {
            let asked = (budget - shown).min(left).min(BATCH);
            let n = rx.poll(channel, asked);
            let mut i = 0;
            while i < n {
                if channel == Channel::Data && i + 1 < n {
                    let together = self.take_together(rx, i, n, sink);
                    if together > 0 {
                        shown += 1;
                        i += together;
                        continue;
                    }
                }
                if let Some(frame) = rx.frame(channel, i) {
                    shown += usize::from(self.on_frame(frame.bytes, sink));
                }
                i += 1;
            }
            left -= n;
            self.clock.count_frames(n);
            if n < asked {
                break;
            }
        }
        shown
    }

    /// Something is missing before what has come on the data channel: looks for it on the priority channel,
    /// everywhere. It may be there, where this pass has not looked; and a caller that has what it waited for
    /// may not call again for long, while its peer waits for the report that all before it has come, too.
    /// Returns how many messages were shown.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_for_missing<R: Receive, S: Arrivals>(
        &mut self,
        rx: &mut R,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        rx.look_everywhere();
        let mut shown = 0;
        // As many polls as there may be frames: one may find no more than one.
        for _ in 0..BATCH {
            let n = rx.poll(Channel::Priority, (budget - shown).min(BATCH));
            for i in 0..n {
                if let Some(frame) = rx.frame(Channel::Priority, i) {
                    shown += usize::from(self.on_frame(frame.bytes, sink));
                }
            }
            self.clock.count_frames(n);
            if n == 0 {
                break;
            }
        }
        shown
    }

    /// Handles one frame. Returns whether a message was shown.
    #[inline(never)]
    pub(crate) fn on_frame<S: Arrivals>(&mut self, frame: SharedBytes<'_>, sink: &mut S) -> bool {
        self.counters.frames_received += 1;
        match self.take_frame(frame, sink) {
            Ok(shown) => shown,
            Err(why) => {
                self.drop_frame(why);
                false
            }
        }
    }

    #[inline(always)]
    fn take_frame<S: Arrivals>(&mut self, frame: SharedBytes<'_>, sink: &mut S) -> Result<bool, Drop> {
        let parsed = parse(&frame)?;
        let peer = match self.peers.recent(parsed.connection) {
            Some(peer) => peer,
            None => match self.lookup_peer(&parsed, frame) {
                Ok(peer) => peer,
                Err(outcome) => return outcome.map(|()| false),
            },
        };
        if self.framing.must_check(&parsed) {
            return self.take_checked(peer, &parsed, frame, sink);
        }
        self.take_payload(peer, &parsed, frame.skip(BASIC).take(parsed.length), sink)
    }

    /// Handles a frame that is copied and checked before anything of it is used.
    #[inline(never)]
    fn take_checked<S: Arrivals>(
        &mut self,
        peer: PeerIndex,
        parsed: &Parsed,
        frame: SharedBytes<'_>,
        sink: &mut S,
    ) -> Result<bool, Drop> {
        let mac = if parsed.flags & flag::MAC != 0 { MAC } else { 0 };
        let mut private = self.framing.lend_private();
        let result = match private.get_mut(..BASIC + parsed.length + mac) {
            None => Err(Drop::Short),
            Some(bytes) => {
                frame.copy_to(0, bytes);
                self.verify(peer, bytes).and_then(|parsed| {
                    let payload = SharedBytes::of(&bytes[BASIC..BASIC + parsed.length]);
                    self.take_payload(peer, &parsed, payload, sink)
                })
            }
        };
        self.framing.return_private(private);
        result
    }

    /// Looks up the peer of a frame by its connection id.
    ///
    /// # Errors
    /// The frame is of no peer, and is dropped, or taken as a hello.
    fn lookup_peer(
        &mut self,
        parsed: &Parsed,
        frame: SharedBytes<'_>,
    ) -> Result<PeerIndex, Result<(), Drop>> {
        let found = self.peers.find(parsed.connection, parsed.kind);
        found.map_err(|why| match why {
            NoPeer::Unknown => self.on_stranger(parsed, frame),
            NoPeer::CallsOnly => Err(Drop::Unknown),
        })
    }

    /// Checks CRC or MAC of a private copy of a peer's frame, and reads its header again.
    #[inline]
    fn verify(&self, peer: PeerIndex, bytes: &mut [u8]) -> Result<Parsed, Drop> {
        let parsed = self.framing.verify(bytes, |kind| match kind {
            Kind::Call => self.call_macs(peer),
            _ => self.peers[peer].macs(),
        })?;
        // The connection was found by what the first look read; it is what this one reads.
        if self.peers.is_of(parsed.connection, parsed.kind, peer) {
            Ok(parsed)
        } else {
            Err(Drop::Unknown)
        }
    }

    /// Handles a frame whose peer, checksum and MAC are verified.
    #[inline(always)]
    fn take_payload<S: Arrivals>(
        &mut self,
        peer: PeerIndex,
        parsed: &Parsed,
        payload: SharedBytes<'_>,
        sink: &mut S,
    ) -> Result<bool, Drop> {
        if self.peers[peer].is(about::GONE) {
            match self.on_frame_while_down(peer, parsed, &payload) {
                Ok(true) => {}
                other => return other,
            }
        }
        if parsed.kind.is_segment() {
            self.mark_alive(peer);
            if let Some(ack) = parsed.ack {
                self.on_ack(peer, ack);
            }
            return self.take_segment(peer, parsed, payload, sink);
        }
        match parsed.kind {
            Kind::Call => return self.on_call(peer, parsed.connection, &payload).map(|()| false),
            // It is of no connection.
            Kind::Hello => return Err(Drop::Kind),
            _ => {}
        }
        self.mark_alive(peer);
        match (parsed.kind, parsed.ack) {
            (Kind::Ack, Some(ack)) => self.on_explicit_ack(peer, ack, parsed.sequence.0, payload),
            (Kind::Ack, None) => return Err(Drop::Malformed),
            (kind, _) => self.on_probe(peer, kind, &payload),
        }
        Ok(false)
    }

    /// Handles a frame of a peer that is down. Returns whether that brought it up, so that the frame is to be
    /// handled as any other. A peer that did not receive our acknowledgement of its BYE sends it again; a
    /// CALL begins a new connection.
    #[cold]
    fn on_frame_while_down(
        &mut self,
        peer: PeerIndex,
        parsed: &Parsed,
        payload: &SharedBytes<'_>,
    ) -> Result<bool, Drop> {
        if self.peers[peer].is(about::LEAVING) {
            return self.on_frame_while_leaving(peer, parsed, payload).map(|()| false);
        }
        match parsed.kind {
            Kind::Call => return self.on_call(peer, parsed.connection, payload).map(|()| false),
            Kind::Hello => return Err(Drop::Kind),
            _ => {}
        }
        if self.peers[peer].is(about::COMING) && !self.phase.is_closing() {
            return self.on_frame_while_coming(peer, parsed.kind, payload);
        }
        if self.peers[peer].is(about::CLOSED) && parsed.kind == Kind::Bye {
            self.ack_now(peer);
        }
        Err(Drop::Down)
    }

    #[inline(always)]
    fn take_segment<S: Arrivals>(
        &mut self,
        peer: PeerIndex,
        parsed: &Parsed,
        payload: SharedBytes<'_>,
        sink: &mut S,
    ) -> Result<bool, Drop> {
        let (seq, window) = (parsed.sequence, self.config.window);
        if let Err(why) = self.peers[peer].recv.check(seq, window) {
            // It probably missed our acknowledgement.
            let state = &mut self.peers[peer];
            state.recv.count_refused(why);
            state.set(about::EXPLICIT);
            self.acks.now(peer, state);
            return Err(why);
        }
        if self.phase.is_closing() {
            return self.take_while_closing(peer, parsed);
        }
        let shown = match parsed.kind {
            Kind::Frag => {
                self.counters.messages_delivered += 1;
                sink.message(peer, Inbound::whole(payload));
                true
            }
            Kind::Chunk => self.on_chunk(peer, parsed, payload, sink)?,
            Kind::Put => self.on_put(peer, seq, payload).map(|()| false)?,
            Kind::Get => self.on_get(peer, seq, payload).map(|()| false)?,
            Kind::Data => self.on_data(peer, payload).map(|()| false)?,
            Kind::Atomic => self.on_atomic(peer, seq, payload).map(|()| false)?,
            Kind::End => self.on_end(peer, payload).map(|()| false)?,
            Kind::Bye => {
                self.peers[peer].recv.set_bye(seq);
                false
            }
            Kind::Ack | Kind::Ping | Kind::Pong | Kind::Call | Kind::Hello => {
                return Err(Drop::Kind);
            }
        };
        let state = &mut self.peers[peer];
        let in_order = state.recv.take(seq, &mut self.bitmaps);
        state.recv.count(parsed.length > self.config.priority_limit);
        // Also where a gap is closed: what was behind it may have been awaited.
        let urgent = !in_order || parsed.flags & flag::URGENT != 0;
        let part = parsed.kind == Kind::Chunk;
        self.owe_ack(peer, urgent, part, part && shown);
        if self.peers[peer].recv.has_bye() {
            self.see_off(peer);
        }
        Ok(shown)
    }

    /// A peer is owed an acknowledgement: at once, with all that has come, where that is `urgent` or much has
    /// come, else with the next segment to it, or after a while. `part`: what came is a part of a message;
    /// `whole`: the last of it.
    #[inline(always)]
    pub(crate) fn owe_ack(&mut self, peer: PeerIndex, urgent: bool, part: bool, whole: bool) {
        let state = &mut self.peers[peer];
        if urgent {
            state.set(about::EXPLICIT);
            self.acks.now(peer, state);
        } else if state.recv.owes(if part {
            PARTS * self.config.ack_every
        } else {
            self.config.ack_every
        }) {
            self.acks.now(peer, state);
        } else {
            self.ack_later(peer, whole);
        }
    }

    /// Handles a part of a message. Returns whether the message is complete and was shown.
    #[inline(never)]
    fn on_chunk<S: Arrivals>(
        &mut self,
        peer: PeerIndex,
        parsed: &Parsed,
        payload: SharedBytes<'_>,
        sink: &mut S,
    ) -> Result<bool, Drop> {
        let header: wire::Chunk = zerocopy::transmute!(payload.read::<12>(0).ok_or(Drop::Malformed)?);
        let bytes = payload.skip(12);
        let (first, total, size) = (header.first.get(), header.total.get() as usize, header.size.get());
        let place = parsed.sequence.0.wrapping_sub(first) as usize;
        let at = place.saturating_mul(usize::from(size));
        let right = total <= self.config.eager_limit
            && at < total
            && bytes.len() == usize::from(size).min(total - at);
        if !right {
            return Err(Drop::Malformed);
        }
        let state = &mut self.peers[peer];
        let first = Seq(first);
        let turn = first.after(state.recv.awaited()) <= 0;
        let found = self
            .reassemblies
            .find(&mut state.partial, first, total as u32, size, turn);
        let id = found.map_err(|why| match why {
            crate::reassembly::Missing::Room => Drop::Room,
            crate::reassembly::Missing::Sense => Drop::Malformed,
        })?;
        let Some(message) = self.reassemblies.get(id).write(at, bytes) else {
            return Ok(false);
        };
        self.counters.messages_delivered += 1;
        sink.message(peer, Inbound::whole(SharedBytes::of(message)));
        self.reassemblies.remove(&mut self.peers[peer].partial, id);
        Ok(true)
    }
}

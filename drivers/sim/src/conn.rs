//! Messages between two NICs: accepted, on the link, arrived, delivered, acknowledged, reclaimed.
//!
//! ```text
//!   accept ─► (flush) ─► link ─► arrive ─► inbox ─► poll: taken ─► delivered ─► link back ─► acked
//!                         │        └ path closed: stalled, continues when it opens
//!                         └ the connection failed: lost; for messages already in the inbox a coin decides
//! ```
//! A message is kept (`retained`) by its sender until the watermark passes it or `reclaim` returns it, and
//! separately by the network while it `travels`. The watermark is cumulative, as it would be on a wire:
//! messages taken ahead of a gap are above it, and `reclaim` returns them like the rest ("may or may not have
//! arrived").

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_fabric::event::{EventKind, Life, Scope};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, MsgId, PeerIndex, Refused};

use crate::agenda::Due;
use crate::state::Net;
use crate::trace::Happened;

/// A NIC's view of an opened peer.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The peer's NIC.
    pub(crate) nic: u32,
    pub(crate) link_out: u32,
    pub(crate) link_back: u32,
    /// Incremented by each failure: operations of earlier epochs are void.
    pub(crate) epoch: u32,
    /// The id of the last message accepted.
    pub(crate) last: u64,
    pub(crate) watermark: u64,
    /// What the peer has taken without a gap; the watermark follows one delay later.
    pub(crate) taken: u64,
    /// The last id that `reclaim` returned.
    given: u64,
    /// Accepted, not yet below the watermark, not reclaimed.
    pub(crate) retained: VecDeque<u32>,
    /// What waits for the path to open.
    pub(crate) stalled: Vec<Due>,
    /// `PeerDown` was reported, and `PeerUp` not yet.
    pub(crate) down: bool,
    /// How often it went down.
    pub(crate) falls: u32,
    /// Whether its owner has given it up: only a reconnect request brings it up again.
    pub(crate) abandoned: bool,
    /// Whether one of its ends has forgotten the other: it never comes up again.
    pub(crate) over: bool,
    /// `PeerUp` was reported.
    pub(crate) greeted: bool,
    /// The state of the path when it was last checked, and the number of changes seen.
    pub(crate) seen_open: bool,
    pub(crate) turn: u32,
}

impl Conn {
    /// Takes the connection down.
    pub(crate) fn fall(&mut self) {
        self.down = true;
        self.falls = self.falls.wrapping_add(1);
    }
}

/// A message between `send` and the end of its bytes.
#[derive(Debug)]
pub(crate) struct Msg {
    pub(crate) id: u64,
    pub(crate) from: u32,
    pub(crate) conn: u32,
    pub(crate) to: u32,
    epoch: u32,
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) region: Option<RegionSlice>,
    serial: u64,
    taken: bool,
    retained: bool,
    travels: bool,
}

impl Msg {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.region.as_ref().map_or(0, RegionSlice::len)
    }
}

impl Net {
    pub(crate) fn connect(&mut self, nic: u32, to: u32) -> u32 {
        if let Some(&peer) = self.nics[nic as usize].peers.get(&to) {
            return peer;
        }
        let plane = self.nics[nic as usize].plane;
        let (near, far) = (self.nics[nic as usize].rank, self.nics[to as usize].rank);
        let place = self.nics[nic as usize].forgotten.pop();
        // What is still about the connection that had this place is void.
        let (epoch, turn) = place.map_or((0, 0), |place| {
            let before = self.conn(nic, place);
            (before.epoch + 1, before.turn + 1)
        });
        let conn = Conn {
            nic: to,
            link_out: self.link(plane, near, far),
            link_back: self.link(plane, far, near),
            epoch,
            last: 0,
            watermark: 0,
            taken: 0,
            given: 0,
            retained: VecDeque::new(),
            stalled: Vec::new(),
            down: false,
            falls: 0,
            abandoned: false,
            over: false,
            greeted: false,
            seen_open: true,
            turn,
        };
        let state = &mut self.nics[nic as usize];
        let peer = match place {
            Some(place) => {
                state.conns[place as usize] = conn;
                place
            }
            None => {
                state.conns.push(conn);
                state.conns.len() as u32 - 1
            }
        };
        state.peers.insert(to, peer);
        let messages = &self.messages;
        let (known, strangers) = state
            .strangers
            .drain(..)
            .partition(|&key| messages[key].from == to);
        state.strangers = strangers;
        state.unknown.forget(to);
        let known: VecDeque<u32> = known;
        state.inbox.extend(known);
        self.look_at_peer(nic, peer);
        peer
    }

    #[inline]
    pub(crate) fn conn(&self, nic: u32, conn: u32) -> &Conn {
        &self.nics[nic as usize].conns[conn as usize]
    }

    #[inline]
    pub(crate) fn conn_mut(&mut self, nic: u32, conn: u32) -> &mut Conn {
        &mut self.nics[nic as usize].conns[conn as usize]
    }

    /// Refuses when `peer` cannot be sent to.
    pub(crate) fn check_peer(&self, nic: u32, peer: PeerIndex) -> Result<(), Refused> {
        let state = &self.nics[nic as usize];
        let usable = state.ended.is_none() && !state.told_down;
        match state.conns.get(peer.index()) {
            Some(conn) if usable && !conn.down => Ok(()),
            _ => Err(Refused::PeerDown),
        }
    }

    /// Refuses a body that is longer or in more parts than the capabilities allow.
    pub(crate) fn check_body(&self, head: usize, body: &Body<'_>, longest: usize) -> Result<(), Refused> {
        let capabilities = &self.config.capabilities;
        if let Body::Parts(parts) = body {
            if !capabilities.features.gather {
                return Err(Refused::Unsupported);
            }
            if parts.len() > capabilities.limits.parts {
                return Err(Refused::TooLong);
            }
        }
        match head.checked_add(body.len()) {
            Some(length) if head <= capabilities.limits.head && length <= longest => Ok(()),
            _ => Err(Refused::TooLong),
        }
    }

    pub(crate) fn send(
        &mut self,
        nic: u32,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<MsgId, Refused> {
        self.check_peer(nic, peer)?;
        self.check_body(head.len(), &body, self.config.capabilities.limits.message)?;
        let conn = self.conn(nic, peer.0);
        let (to, link, epoch) = (conn.nic, conn.link_out, conn.epoch);
        let full = conn.retained.len() >= self.config.queue_depth;
        if full || self.backlog(nic, link) > self.faults(link).queue {
            self.stats(nic).refused_full += 1;
            return Err(Refused::Full);
        }
        let mut bytes = self.buffer();
        let region = fill(&mut bytes, head, body);
        let state = &mut self.nics[nic as usize];
        if region.is_some() {
            state.serial += 1;
            state.regions.push((state.serial, peer.0));
        }
        let conn = &mut state.conns[peer.index()];
        conn.last += 1;
        let id = conn.last;
        let message = self.messages.insert(Msg {
            id,
            from: nic,
            conn: peer.0,
            to,
            epoch,
            bytes,
            region,
            serial: state.serial,
            taken: false,
            retained: true,
            travels: true,
        });
        conn.retained.push_back(message);
        state.unflushed.push(message);
        Ok(MsgId(id))
    }

    pub(crate) fn flush(&mut self, nic: u32) {
        if self.nics[nic as usize].unflushed.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.nics[nic as usize].unflushed);
        for message in waiting.drain(..) {
            let (to, length, id) = (
                self.messages[message].to,
                self.messages[message].len(),
                self.messages[message].id,
            );
            let link = self.conn(nic, self.messages[message].conn).link_out;
            let leaves = self.serialise(nic, link, length);
            let at = self.transit(link, leaves);
            self.agenda.push(at, Due::Arrive { message });
            self.stats(nic).messages_sent += 1;
            self.note(Happened::Sent, nic, to, id, length);
        }
        self.nics[nic as usize].unflushed = waiting;
    }

    pub(crate) fn arrive(&mut self, message: u32) {
        let (from, to, conn) = {
            let msg = &self.messages[message];
            (msg.from, msg.to, msg.conn)
        };
        let (epoch, link) = (self.conn(from, conn).epoch, self.conn(from, conn).link_out);
        let msg = &self.messages[message];
        let (id, length) = (msg.id, msg.len());
        if msg.epoch != epoch {
            return self.lose(message);
        }
        if !self.passes(from, to, link) {
            return self.stall(from, conn, Due::Arrive { message });
        }
        self.note(Happened::Arrived, from, to, id, length);
        self.note_sender(to, from);
        self.queue(to, message);
    }

    /// Whether `nic` has opened a peer, which has not forgotten it since.
    pub(crate) fn knows(&self, nic: u32, peer: u32) -> bool {
        let conn = self.nics[nic as usize].peers.get(&peer);
        conn.is_some_and(|conn| !self.conn(nic, *conn).over)
    }

    /// A message waits to be seen at `nic`: in the inbox, or apart while its sender has not been opened
    /// there.
    pub(crate) fn queue(&mut self, nic: u32, message: u32) {
        let from = self.messages[message].from;
        let known = self.knows(nic, from);
        let receiver = &mut self.nics[nic as usize];
        if known {
            receiver.inbox.push_back(message);
        } else {
            receiver.strangers.push_back(message);
        }
    }

    /// Whether a message was sent over the connection that its sender has there now, if it has one.
    pub(crate) fn is_of(&self, message: u32, conn: Option<u32>) -> bool {
        let msg = &self.messages[message];
        conn.is_some_and(|conn| msg.conn == conn && msg.epoch == self.conn(msg.from, conn).epoch)
    }

    /// Drops a message from the network.
    pub(crate) fn lose(&mut self, message: u32) {
        let msg = &self.messages[message];
        let (from, to, id, length) = (msg.from, msg.to, msg.id, msg.len());
        self.stats(from).messages_failed += 1;
        self.note(Happened::Failed, from, to, id, length);
        self.messages[message].travels = false;
        self.release(message);
    }

    /// The upper layer of `message`'s receiver took it.
    pub(crate) fn delivered(&mut self, message: u32) {
        let msg = &mut self.messages[message];
        msg.taken = true;
        msg.travels = false;
        let (from, to, conn, id, length) = (msg.from, msg.to, msg.conn, msg.id, msg.len());
        self.stats(to).messages_delivered += 1;
        self.note(Happened::Delivered, from, to, id, length);
        if let Some(&peer) = self.nics[to as usize].peers.get(&from) {
            self.greet(to, peer);
        }
        let before = self.conn(from, conn).taken;
        self.count_taken(from, conn);
        if self.conn(from, conn).taken > before {
            self.acknowledge(from, conn);
        }
        self.release(message);
    }

    /// Moves `taken` over everything that was taken without a gap.
    fn count_taken(&mut self, nic: u32, conn: u32) {
        let conn = &mut self.nics[nic as usize].conns[conn as usize];
        let Some(&front) = conn.retained.front() else {
            return;
        };
        let first = self.messages[front].id;
        let mut at = (conn.taken + 1).saturating_sub(first) as usize;
        while let Some(&next) = conn.retained.get(at) {
            if !self.messages[next].taken {
                break;
            }
            conn.taken = self.messages[next].id;
            at += 1;
        }
    }

    /// Sends an acknowledgement of what was taken back to the sender, unless the last of it was reclaimed.
    pub(crate) fn acknowledge(&mut self, nic: u32, conn: u32) {
        let state = self.conn(nic, conn);
        if state.taken <= state.given {
            return;
        }
        let (epoch, upto, link) = (state.epoch, state.taken, state.link_back);
        let at = self.transit(link, self.now);
        self.agenda.push(
            at,
            Due::Ack {
                nic,
                conn,
                epoch,
                upto,
            },
        );
    }

    pub(crate) fn acked(&mut self, nic: u32, conn: u32, epoch: u32, upto: u64) {
        let state = self.conn(nic, conn);
        let (peer, link) = (state.nic, state.link_back);
        if state.epoch != epoch || self.nics[nic as usize].ended.is_some() {
            return;
        }
        if !self.passes(peer, nic, link) {
            return self.stall(
                nic,
                conn,
                Due::Ack {
                    nic,
                    conn,
                    epoch,
                    upto,
                },
            );
        }
        self.greet(nic, conn);
        let state = self.conn_mut(nic, conn);
        if upto <= state.watermark {
            return;
        }
        state.watermark = upto;
        self.note(Happened::HandedOver, nic, peer, upto, 0);
        while let Some(&front) = self.conn(nic, conn).retained.front() {
            if self.messages[front].id > upto {
                break;
            }
            self.let_go(nic, conn);
        }
    }

    /// Releases the oldest message that the sender keeps for `conn`.
    pub(crate) fn let_go(&mut self, nic: u32, conn: u32) {
        if let Some(message) = self.conn_mut(nic, conn).retained.pop_front() {
            self.messages[message].retained = false;
            self.release(message);
        }
    }

    /// Returns the oldest retained message up to `last`: its id, its bytes, and its region.
    pub(crate) fn take_back(
        &mut self,
        nic: u32,
        conn: u32,
        last: u64,
    ) -> Option<(u64, Arc<Vec<u8>>, Option<RegionSlice>)> {
        let &front = self.conn(nic, conn).retained.front()?;
        let msg = &self.messages[front];
        if msg.id > last {
            return None;
        }
        let given = (msg.id, msg.bytes.clone(), msg.region.clone());
        let (to, length) = (msg.to, msg.len());
        self.note(Happened::Reclaimed, nic, to, given.0, length);
        // Reclaimed ids are no gap: the watermark may pass them with the next message that is taken.
        let state = self.conn_mut(nic, conn);
        state.taken = state.taken.max(given.0);
        state.given = given.0;
        self.let_go(nic, conn);
        Some(given)
    }

    /// The owner of `nic` is gone, so nothing it retained can be reclaimed.
    pub(crate) fn discard(&mut self, nic: u32) {
        for conn in 0..self.nics[nic as usize].conns.len() as u32 {
            while !self.conn(nic, conn).retained.is_empty() {
                self.let_go(nic, conn);
            }
        }
        self.nics[nic as usize].completions.clear();
    }

    /// Frees a message that neither its sender nor the network needs.
    fn release(&mut self, message: u32) {
        let msg = &self.messages[message];
        if msg.retained || msg.travels {
            return;
        }
        if let Some(msg) = self.messages.remove(message) {
            self.recycle(msg.bytes);
            if msg.region.is_some() {
                self.nics[msg.from as usize]
                    .regions
                    .retain(|&(serial, _)| serial != msg.serial);
                self.check_fences(msg.from);
            }
        }
    }

    /// The generation of the connection that comes up now: the failures of both ends, so that it is the same
    /// at both, whichever is notified first.
    pub(crate) fn life_of_conn(&self, nic: u32, conn: u32) -> Life {
        let ours = self.conn(nic, conn);
        let theirs = self.nics[ours.nic as usize].peers.get(&nic);
        let theirs = theirs.map_or(0, |&theirs| self.conn(ours.nic, theirs).falls);
        Life::of(ours.falls, theirs)
    }

    /// Reports that the peer is up: at the first handshake, and once more after each `PeerDown`.
    fn greet(&mut self, nic: u32, conn: u32) {
        let state = self.conn_mut(nic, conn);
        if !state.greeted && !state.down {
            state.greeted = true;
            self.report(nic, Scope::Peer(PeerIndex(conn)), EventKind::PeerUp);
        }
    }
}

/// Copies head and body into `bytes`; a region's slice is kept by reference instead.
pub(crate) fn fill(bytes: &mut Arc<Vec<u8>>, head: &[u8], body: Body<'_>) -> Option<RegionSlice> {
    let bytes = Arc::make_mut(bytes);
    bytes.extend_from_slice(head);
    if let Body::Region(slice) = body {
        return Some(slice.clone());
    }
    let at = bytes.len();
    bytes.resize(at + body.len(), 0);
    body.copy_to(&mut bytes[at..]);
    None
}

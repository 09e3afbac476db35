//! Messages received over rails, and how lines end.

use doorbell_fabric::time::Time;

use super::{GHOSTS, Rails, module_id};
use crate::bytes::Bytes;
use crate::connect::{Conn, Hello};
use crate::error::OobError;
use crate::net::{End, Order};
use crate::rail::connection::{Arrival, Spot};
use crate::rail::peer::LineId;
use crate::rail::wire::{Head, Kind};
use crate::session::{self, Peer};
use crate::transport::{Event, LinkId, Loss, Refusal};

impl Rails {
    /// Handles a message of a peer.
    pub(super) fn arrived(&mut self, now: Time, spot: Spot, bytes: &[u8]) {
        let Some((head, piece)) = Head::read(bytes) else {
            self.counters.garbage += 1;
            return;
        };
        let Some(peer) = self.modules[spot.module].peer(spot.peer) else {
            self.counters.stray += 1;
            return;
        };
        if !peer.is_up() {
            // It was shown together with the end of its connection.
            self.counters.stray += 1;
            return;
        }
        peer.mark_alive(now);
        let line = self.of_wire.get(&(spot, !head.caller, head.line)).copied();
        match (head.kind, line) {
            (Kind::Ask, _) => self.word(spot, Head::alone(Kind::Here)),
            (Kind::Here, _) => {}
            (Kind::Gone, Some(id)) => {
                let end = End {
                    loss: Loss::Broken,
                    refusal: Refusal::Broken,
                    error: None,
                };
                self.over(now, id, end);
                self.act(now);
            }
            (Kind::Call, None) => self.called(now, spot, head.line, piece),
            (Kind::Call | Kind::Piece | Kind::End, Some(id)) => self.piece(now, id, head.sequence, piece),
            (Kind::Piece, None) => {
                self.counters.stray += 1;
                self.gone(spot, head.line, !head.caller);
            }
            (Kind::End | Kind::Gone, None) => {}
        }
    }

    /// Handles a call of a peer.
    fn called(&mut self, now: Time, spot: Spot, number: u64, piece: &[u8]) {
        self.counters.sessions.accepted += 1;
        let settings = &self.settings;
        let failures = self.modules[spot.module]
            .peer(spot.peer)
            .map_or(0, |peer| peer.failures(now, false, settings));
        if failures >= settings.failures.max(1) {
            self.counters.sessions.throttled += 1;
            return self.gone(spot, number, false);
        }
        if self.leaving.is_some() {
            return self.gone(spot, number, false);
        }
        self.evict(now, spot);
        match self.line(now, spot, Some(number)) {
            Ok(id) => self.piece(now, id, 0, piece),
            Err(error) => self.troubled(error),
        }
    }

    /// Makes room for one more handshake: of this peer, and in all.
    fn evict(&mut self, now: Time, spot: Spot) {
        let guest = |id: &LineId| self.lines.get(id).is_some_and(|line| line.is_guest());
        let lines = self.modules[spot.module].peer(spot.peer);
        let own: Vec<LineId> = lines.map_or_else(Vec::new, |peer| peer.lines.clone());
        let own: Vec<LineId> = own.into_iter().filter(guest).collect();
        let oldest = if own.len() >= self.settings.guests_each.max(1) {
            own.first().copied()
        } else if self.guests >= self.settings.guests.max(1) {
            self.lines.keys().find(|id| guest(id)).copied()
        } else {
            None
        };
        if let Some(id) = oldest {
            self.counters.sessions.evicted += 1;
            self.end(now, id, Refusal::Cancelled, Loss::Broken);
        }
    }

    /// Handles a segment of a line; an empty one is its end.
    fn piece(&mut self, now: Time, id: LineId, sequence: u64, piece: &[u8]) {
        let Some(line) = self.lines.get_mut(&id).filter(|line| !line.ghost) else {
            return;
        };
        self.modules[line.spot.module].busy.insert(line.spot.peer);
        let came = line.take(sequence, piece);
        match came {
            Ok(Arrival::Twice) => self.counters.duplicates += 1,
            Ok(Arrival::Ahead) => self.counters.reordered += 1,
            Ok(Arrival::Next) | Err(_) => {}
        }
        self.counters.pieces_received += u64::from(!matches!(came, Ok(Arrival::Twice)));
        while let Some(event) = self.lines.get_mut(&id).and_then(|line| line.event()) {
            match event {
                session::Event::Ready(peer) => self.ready(now, id, peer),
                session::Event::Message(bytes) => self.message(now, id, bytes.into()),
                session::Event::Closed => self.leaves(now, id),
            }
            self.act(now);
        }
        if let Err(end) = came {
            self.over(now, id, end);
        }
        self.act(now);
    }

    fn leaves(&mut self, now: Time, id: LineId) {
        let until = now + self.settings.linger;
        if let Some(line) = self.lines.get_mut(&id) {
            line.leave();
            line.deadline.get_or_insert(until);
            self.book(until);
        }
    }

    /// Handles a completed handshake: the peer has the key.
    fn ready(&mut self, now: Time, id: LineId, who: Peer) {
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        self.guests -= usize::from(line.is_guest());
        line.peer = Some(who);
        line.deadline = None;
        if line.ours {
            if let Some(conn) = line.conn {
                self.meeting.dialled(now, conn);
            }
            return;
        }
        match self.meeting.accepted(now, module_id(line.spot.module)) {
            Some(conn) => {
                line.conn = Some(conn);
                self.of_conn.insert(conn, id);
            }
            None => self.end(now, id, Refusal::Cancelled, Loss::Broken),
        }
    }

    fn message(&mut self, now: Time, id: LineId, bytes: Bytes) {
        let Some(line) = self.lines.get(&id) else { return };
        if let Some(link) = line.link {
            return self.events.push_back(Event::Received { link, frame: bytes });
        }
        let Some(conn) = line.conn else { return };
        if !line.peer.is_some_and(|peer| Hello::agrees(peer, &bytes)) {
            self.counters.sessions.impostors += 1;
            return self.end(now, id, Refusal::WrongName, Loss::Protocol);
        }
        self.meeting.received(now, conn, &bytes);
    }

    /// Handles the end of a line.
    pub(super) fn over(&mut self, now: Time, id: LineId, end: End) {
        let Some(line) = self.lines.get(&id).filter(|line| !line.ghost) else {
            return;
        };
        let (spot, guest, loss) = (line.spot, line.is_guest(), line.why.unwrap_or(end.loss));
        // A peer that drops its own call, because ours was kept, has done nothing wrong.
        let offence = !matches!(end.error, None | Some(OobError::Unanswered | OobError::Truncated));
        if guest {
            match &end.error {
                Some(error) => self.counters.sessions.refused(error),
                None => self.counters.sessions.broken += 1,
            }
            let settings = &self.settings;
            if let Some(peer) = self.modules[spot.module].peer(spot.peer).filter(|_| offence) {
                peer.failures(now, true, settings);
            }
        } else if line.link.is_some() && end.loss == Loss::Protocol {
            self.counters.sessions.forged += 1;
        }
        let attempts = line.ours && line.conn.is_some() && line.link.is_none();
        if let Some(error) = end.error.filter(|_| attempts) {
            self.troubled(error);
        }
        self.end(now, id, end.refusal, loss);
    }

    /// Ends a line, and informs the meeting and the core if they have an entry for it. What is sealed is
    /// still sent, such as the reason of a refusal.
    pub(super) fn end(&mut self, now: Time, id: LineId, refusal: Refusal, loss: Loss) {
        let Some(line) = self.lines.get_mut(&id).filter(|line| !line.ghost) else {
            return;
        };
        self.guests -= usize::from(line.is_guest());
        let (conn, link) = (line.conn.take(), line.link.take());
        let why = line.why.unwrap_or(loss);
        let spot = line.spot;
        line.haunt();
        line.deadline = Some(now + self.settings.linger);
        self.book(now + self.settings.linger);
        self.ghosts += 1;
        self.modules[spot.module].busy.insert(spot.peer);
        if let Some(link) = link {
            self.of_link.remove(&link);
            self.events.push_back(Event::Lost { link, why });
        }
        if let Some(conn) = conn {
            self.of_conn.remove(&conn);
            self.meeting.ended(now, conn, refusal);
        }
        if self.ghosts > GHOSTS
            || !self.is_up(spot)
            || self.lines.get(&id).is_some_and(|line| line.is_at_rest())
        {
            let oldest = self.lines.iter().find(|(_, line)| line.ghost).map(|(&id, _)| id);
            let which = if self.ghosts > GHOSTS { oldest } else { Some(id) };
            which.into_iter().for_each(|id| self.bury(id));
        }
    }

    /// Removes a line.
    pub(super) fn bury(&mut self, id: LineId) {
        let Some(line) = self.lines.remove(&id) else {
            return;
        };
        self.ghosts -= usize::from(line.ghost);
        self.guests -= usize::from(line.is_guest());
        self.of_wire.remove(&(line.spot, line.ours, line.number));
        if let Some(peer) = self.modules[line.spot.module].peer(line.spot.peer) {
            peer.lines.retain(|&other| other != id);
        }
    }

    /// Closes a link for the core.
    pub(super) fn close(&mut self, now: Time, link: LinkId, why: Loss) {
        let Some(&id) = self.of_link.get(&link) else {
            return;
        };
        let conn = self.lines.get_mut(&id).and_then(|line| line.conn.take());
        self.parts(now, id, why);
        if let Some(conn) = conn {
            self.of_conn.remove(&conn);
            self.meeting.ended(now, conn, Refusal::Broken);
        }
    }

    /// Closes a connection for the meeting, which has forgotten it.
    pub(super) fn part(&mut self, now: Time, conn: Conn, why: Loss) {
        let Some(id) = self.of_conn.remove(&conn) else {
            return;
        };
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        line.conn = None;
        if line.peer.is_none() {
            return self.end(now, id, Refusal::Cancelled, why);
        }
        self.parts(now, id, why);
    }

    /// Sends only what was queued before.
    fn parts(&mut self, now: Time, id: LineId, why: Loss) {
        let until = now + self.settings.linger;
        if let Some(line) = self.lines.get_mut(&id).filter(|line| line.why.is_none()) {
            line.order(Order::Leave);
            line.why = Some(why);
            line.deadline = Some(until);
            self.modules[line.spot.module].busy.insert(line.spot.peer);
            self.book(until);
        }
    }

    /// Reports to the peer that there is no such line; `caller`: whether we made the call.
    fn gone(&mut self, spot: Spot, line: u64, caller: bool) {
        let head = Head {
            kind: Kind::Gone,
            caller,
            line,
            sequence: 0,
        };
        self.word(spot, head);
    }

    pub(super) fn word(&mut self, spot: Spot, word: Head) {
        if let Some(peer) = self.modules[spot.module].peer(spot.peer) {
            peer.word(word);
            self.modules[spot.module].busy.insert(spot.peer);
        }
    }
}

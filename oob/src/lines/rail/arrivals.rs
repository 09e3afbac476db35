//! Messages received over rails: control headers, calls, and segments of lines.

use doorbell_fabric::time::Time;

use super::Rails;
use super::line::{Arrival, Spot};
use super::wire::{Head, Kind};
use crate::lines::connections::{LineId, Lines};
use crate::lines::stream::End;
use crate::session;
use crate::transport::{Loss, Refusal};

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
                self.over(now, id, End::plain(Loss::Broken, Refusal::Broken));
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
        if !self.connections.is_admitted(now, Some(spot)) || self.leaving.is_some() {
            return self.gone(spot, number, false);
        }
        match self.line(now, spot, Some(number)) {
            Ok(id) => {
                self.enter(now, id, Some(spot));
                self.piece(now, id, 0, piece);
            }
            Err(error) => self.connections.troubled(error),
        }
    }

    /// Handles a segment of a line; an empty one is its end.
    fn piece(&mut self, now: Time, id: LineId, sequence: u64, piece: &[u8]) {
        let Some(connection) = self.connections.live(id) else {
            return;
        };
        let line = &mut connection.line;
        self.modules[line.spot.module].busy.insert(line.spot.peer);
        let came = line.take(sequence, piece);
        match came {
            Ok(Arrival::Twice) => self.counters.duplicates += 1,
            Ok(Arrival::Ahead) => self.counters.reordered += 1,
            Ok(Arrival::Next) | Err(_) => {}
        }
        self.counters.pieces_received += u64::from(!matches!(came, Ok(Arrival::Twice)));
        while let Some(event) = self.connections.all.get_mut(&id).and_then(|own| own.line.event()) {
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
        let until = now + self.settings.limits.linger;
        if let Some(connection) = self.connections.all.get_mut(&id) {
            connection.line.leave();
            connection.line.deadline.get_or_insert(until);
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

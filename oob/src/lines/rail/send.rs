//! Sending: control headers, then segments of all lines in turn, as far as the rail and the window allow.

use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::time::Time;

use super::Rails;
use super::line::Spot;
use super::wire::Head;
use crate::lines::connections::{LineId, Lines};
use crate::lines::stream::End;
use crate::transport::Loss;

/// Maximum segments to one peer per turn.
const TURN: usize = 128;

/// The outcome of an attempt to send something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendOutcome {
    /// The rail has taken it.
    Yes,
    /// There was nothing to send.
    Nothing,
    /// The rail is full.
    Later,
    /// The peer is down.
    Down,
}

impl Rails {
    pub(super) fn service_all(&mut self, now: Time) {
        for module in 0..self.modules.len() {
            self.service(now, module);
        }
    }

    /// Handles what peers have taken, and sends what is queued; returns whether there was anything of either.
    pub(super) fn service(&mut self, now: Time, at: usize) -> bool {
        let busy: Vec<PeerIndex> = self.modules[at].busy.iter().copied().collect();
        if busy.is_empty() || self.modules[at].closing {
            return false;
        }
        let module = &mut self.modules[at];
        module.wake.end(&mut *module.rail);
        let mut any = false;
        for peer in busy {
            let spot = Spot { module: at, peer };
            any |= self.landed(now, spot);
            any |= self.send_queued(now, spot);
            self.rest(now, spot);
        }
        let module = &mut self.modules[at];
        if any {
            module.rail.flush();
            module.stirs(now, &self.settings);
        }
        any
    }

    /// Handles what the peer has taken since the last call.
    fn landed(&mut self, now: Time, spot: Spot) -> bool {
        let mut any = false;
        let module = &mut self.modules[spot.module];
        if module.peer(spot.peer).is_none_or(|peer| !peer.is_waited_for()) {
            return false;
        }
        let up_to = module.rail.handed_over(spot.peer);
        while let Some((id, length)) = self.modules[spot.module]
            .peer(spot.peer)
            .and_then(|peer| peer.landed(up_to))
        {
            any = true;
            let line = self.connections.all.get_mut(&id);
            if let Some(frames) = line.and_then(|own| own.line.handed(length)) {
                self.connections.sent(id, frames);
            }
        }
        if let Some(peer) = self.modules[spot.module].peer(spot.peer).filter(|_| any) {
            peer.mark_alive(now);
        }
        any
    }

    /// Sends what is queued for a peer.
    fn send_queued(&mut self, now: Time, spot: Spot) -> bool {
        if !self.is_up(spot) {
            return false;
        }
        let mut any = false;
        while let Some(word) = self.modules[spot.module]
            .peer(spot.peer)
            .and_then(|peer| peer.words.front().copied())
        {
            match self.send_control(spot, word) {
                SendOutcome::Yes => any = true,
                SendOutcome::Down => {
                    self.peer_down(now, spot, Loss::Broken);
                    return true;
                }
                SendOutcome::Nothing | SendOutcome::Later => return any,
            }
        }
        // Serve the lines in turn, until none has anything left.
        let mut idle = 0;
        for _ in 0..TURN {
            let Some(peer) = self.modules[spot.module]
                .peer(spot.peer)
                .filter(|peer| peer.has_room())
            else {
                break;
            };
            let lines = peer.lines.len();
            let Some(id) = peer.next_line().filter(|_| idle < lines) else {
                break;
            };
            match self.send_piece(now, spot, id) {
                SendOutcome::Yes => (any, idle) = (true, 0),
                SendOutcome::Nothing => idle += 1,
                SendOutcome::Later => break,
                SendOutcome::Down => {
                    self.peer_down(now, spot, Loss::Broken);
                    return true;
                }
            }
        }
        any
    }

    fn send_control(&mut self, spot: Spot, word: Head) -> SendOutcome {
        let module = &mut self.modules[spot.module];
        match module.rail.send(spot.peer, &word.bytes(), &[]) {
            Ok(_) => {
                if let Some(peer) = module.peer(spot.peer) {
                    peer.words.pop_front();
                }
                SendOutcome::Yes
            }
            Err(refused) => self.refused(refused),
        }
    }

    fn send_piece(&mut self, now: Time, spot: Spot, id: LineId) -> SendOutcome {
        let Some(connection) = self.connections.all.get_mut(&id) else {
            return SendOutcome::Nothing;
        };
        let line = &mut connection.line;
        let module = &mut self.modules[spot.module];
        let (caller, number) = (line.is_ours(), line.number);
        let next = match line.piece(module.piece) {
            Ok(Some(next)) => next,
            Ok(None) => return SendOutcome::Nothing,
            Err(end) => {
                self.over(now, id, end);
                self.act(now);
                return SendOutcome::Nothing;
            }
        };
        let head = Head {
            kind: next.kind,
            caller,
            line: number,
            sequence: next.sequence,
        };
        let length = next.bytes.len();
        match module.rail.send(spot.peer, &head.bytes(), next.bytes) {
            Ok(message) => {
                line.given(length);
                if let Some(peer) = module.peer(spot.peer) {
                    peer.flies(message, id, length);
                }
                self.counters.pieces_sent += 1;
                SendOutcome::Yes
            }
            Err(refused) => self.refused(refused),
        }
    }

    fn refused(&mut self, refused: Refused) -> SendOutcome {
        match refused {
            Refused::Full => {
                self.counters.full += 1;
                SendOutcome::Later
            }
            // A rail that refuses what its limits allow is unusable.
            Refused::PeerDown | Refused::TooLong | Refused::Unsupported | Refused::BadMemory => {
                SendOutcome::Down
            }
        }
    }

    /// Removes ended lines that have sent everything, and marks a peer idle that has nothing queued.
    fn rest(&mut self, now: Time, spot: Spot) {
        let lines = self.modules[spot.module].peer(spot.peer);
        let lines = lines.map_or_else(Vec::new, |peer| peer.lines.clone());
        let mut waits = false;
        for id in lines {
            let Some(connection) = self.connections.all.get(&id) else {
                continue;
            };
            let line = &connection.line;
            waits |= !line.is_sent();
            if connection.over && line.is_at_rest() {
                self.bury(id);
            } else if line.is_over() {
                self.over(now, id, End::closed());
                self.bury(id);
                self.act(now);
            }
        }
        let peer = self.modules[spot.module].peer(spot.peer);
        if !waits && peer.is_none_or(|peer| !peer.is_waited_for()) {
            self.modules[spot.module].busy.remove(&spot.peer);
        }
    }
}

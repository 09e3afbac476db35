//! Sending: control headers, then segments of all lines in turn, as far as the rail and the window allow.

use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::time::Time;

use super::Rails;
use crate::net::End;
use crate::rail::connection::Spot;
use crate::rail::peer::LineId;
use crate::rail::wire::Head;
use crate::transport::Event;
use crate::transport::Loss;

/// Maximum segments to one peer per turn.
const TURN: usize = 128;

/// The outcome of an attempt to send something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
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
            any |= self.say(now, spot);
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
            let Some(line) = self.lines.get_mut(&id) else {
                continue;
            };
            if let Some((frames, link)) = line.handed(length).zip(line.link) {
                self.events.push_back(Event::Sent { link, frames });
            }
        }
        if let Some(peer) = self.modules[spot.module].peer(spot.peer).filter(|_| any) {
            peer.heard(now);
        }
        any
    }

    /// Sends what is queued for a peer.
    fn say(&mut self, now: Time, spot: Spot) -> bool {
        if !self.is_up(spot) {
            return false;
        }
        let mut any = false;
        while let Some(word) = self.modules[spot.module]
            .peer(spot.peer)
            .and_then(|peer| peer.words.front().copied())
        {
            match self.say_word(spot, word) {
                Said::Yes => any = true,
                Said::Down => {
                    self.peer_down(now, spot, Loss::Broken);
                    return true;
                }
                Said::Nothing | Said::Later => return any,
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
            match self.say_piece(now, spot, id) {
                Said::Yes => (any, idle) = (true, 0),
                Said::Nothing => idle += 1,
                Said::Later => break,
                Said::Down => {
                    self.peer_down(now, spot, Loss::Broken);
                    return true;
                }
            }
        }
        any
    }

    fn say_word(&mut self, spot: Spot, word: Head) -> Said {
        let module = &mut self.modules[spot.module];
        match module.rail.send(spot.peer, &word.bytes(), &[]) {
            Ok(_) => {
                if let Some(peer) = module.peer(spot.peer) {
                    peer.words.pop_front();
                }
                Said::Yes
            }
            Err(refused) => self.refused(refused),
        }
    }

    fn say_piece(&mut self, now: Time, spot: Spot, id: LineId) -> Said {
        let Some(line) = self.lines.get_mut(&id) else {
            return Said::Nothing;
        };
        let module = &mut self.modules[spot.module];
        let (caller, number) = (line.ours, line.number);
        let next = match line.piece(module.piece) {
            Ok(Some(next)) => next,
            Ok(None) => return Said::Nothing,
            Err(end) => {
                self.over(now, id, end);
                self.act(now);
                return Said::Nothing;
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
                Said::Yes
            }
            Err(refused) => self.refused(refused),
        }
    }

    fn refused(&mut self, refused: Refused) -> Said {
        match refused {
            Refused::Full => {
                self.counters.full += 1;
                Said::Later
            }
            // A rail that refuses what its limits allow is unusable.
            Refused::PeerDown | Refused::TooLong | Refused::Unsupported | Refused::BadMemory => Said::Down,
        }
    }

    /// Removes ended lines that have sent everything, and marks a peer idle that has nothing queued.
    fn rest(&mut self, now: Time, spot: Spot) {
        let lines = self.modules[spot.module].peer(spot.peer);
        let lines = lines.map_or_else(Vec::new, |peer| peer.lines.clone());
        let mut waits = false;
        for id in lines {
            let Some(line) = self.lines.get(&id) else { continue };
            waits |= !line.is_said();
            if line.is_at_rest() {
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

//! A peer of a rail: whether it is up, what is in flight to it, and when something has to be done about it.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::event::Life;
use doorbell_fabric::message::MsgId;
use doorbell_fabric::time::Time;

use super::settings::Settings;
use super::wire::{Head, WINDOW};
use crate::lines::connections::LineId;
use crate::name::Name;

/// Maximum control headers queued for a peer.
const WORDS: usize = 32;

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Messages pass, as far as is known.
    Up,
    /// Messages do not pass; the peer is called at this time, and then after twice as long.
    Down(Time, Duration),
    /// Its process has ended.
    Over,
}

/// A peer of a rail.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stand: PeerState,
    /// The connection of the rail that is used.
    pub(super) life: Life,
    /// The processes whose contacts name this address.
    pub(super) names: Vec<Name>,
    pub(super) lines: Vec<LineId>,
    /// The index of the line whose turn it is.
    turn: usize,
    /// Segments that the peer has not taken: the rail's number, the line, the bytes.
    flight: VecDeque<(MsgId, LineId, usize)>,
    pub(super) words: VecDeque<Head>,
    /// The time at which something was last received from it, and that of a probe since then.
    pub(super) alive: Time,
    pub(super) asked: Option<Time>,
}

impl Peer {
    pub(super) fn new(now: Time) -> Self {
        Self {
            stand: PeerState::Up,
            life: Life::FIRST,
            names: Vec::new(),
            lines: Vec::new(),
            turn: 0,
            flight: VecDeque::new(),
            words: VecDeque::new(),
            alive: now,
            asked: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stand == PeerState::Up
    }

    /// Records that something of it arrived, or was taken by it.
    pub(super) fn mark_alive(&mut self, now: Time) {
        self.alive = now;
        self.asked = None;
    }

    /// Queues a control header, if there is room for it.
    pub(super) fn word(&mut self, word: Head) {
        if self.words.len() < WORDS {
            self.words.push_back(word);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        (self.flight.len() as u64) < WINDOW
    }

    pub(super) fn flies(&mut self, id: MsgId, line: LineId, length: usize) {
        self.flight.push_back((id, line, length));
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.flight.is_empty() || !self.words.is_empty()
    }

    /// Returns the next segment that the peer has taken, up to this one.
    pub(super) fn landed(&mut self, up_to: MsgId) -> Option<(LineId, usize)> {
        let &(id, line, length) = self.flight.front()?;
        (id <= up_to).then(|| {
            self.flight.pop_front();
            (line, length)
        })
    }

    /// Returns the line whose turn it is.
    pub(super) fn next_line(&mut self) -> Option<LineId> {
        self.turn = self.turn.wrapping_add(1);
        let at = self.turn.checked_rem(self.lines.len())?;
        self.lines.get(at).copied()
    }

    /// Drops everything that was in flight.
    pub(super) fn clear(&mut self) {
        self.flight.clear();
        self.words.clear();
        self.asked = None;
    }

    /// Returns when a peer with links has to be probed or given up; the latter is true.
    pub(super) fn due(&self, settings: &Settings) -> (Time, bool) {
        match self.asked {
            None => (self.alive + settings.idle, false),
            // If we stalled ourselves, restart the answer timer: the reply may be queued unread.
            Some(asked) => {
                let silence = settings.silence.max(settings.idle);
                let answer = asked + (silence - settings.idle);
                ((self.alive + silence).max(answer), true)
            }
        }
    }

    /// Returns what to do about a peer with links now.
    pub(super) fn judge(&self, now: Time, settings: &Settings) -> Liveness {
        match self.due(settings) {
            (at, _) if at > now => Liveness::Wait(at),
            (_, false) => Liveness::Probe,
            // This process did not run when the answer was due, and the peer may not have run either:
            // stopped, frozen or suspended together. Whatever it sends from now on counts.
            (at, true) if now.since(at) > LATE => Liveness::Probe,
            (_, true) => Liveness::Silent,
        }
    }
}

/// A check that is this much later than due is no evidence about the peer.
const LATE: Duration = Duration::from_millis(200);

/// What to do about a peer with links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// There is nothing to do before that time.
    Wait(Time),
    /// A probe has to be sent.
    Probe,
    /// It has to be given up, because it did not answer in time.
    Silent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lands_is_reported_up_to_the_watermark_and_every_line_has_its_turn() {
        let mut peer = Peer::new(Time::ZERO);
        peer.lines = vec![LineId(1), LineId(2)];
        let turns: Vec<_> = (0..4).filter_map(|_| peer.next_line()).collect();
        assert!(turns[0] != turns[1] && turns[..2] == turns[2..]);
        for id in 1..=WINDOW {
            assert!(peer.has_room());
            peer.flies(MsgId(id), LineId(id % 2), id as usize);
        }
        assert!(!peer.has_room());
        assert_eq!(peer.landed(MsgId(0)), None);
        assert_eq!(peer.landed(MsgId(2)), Some((LineId(1), 1)));
        assert_eq!(peer.landed(MsgId(2)), Some((LineId(0), 2)));
        assert_eq!(peer.landed(MsgId(2)), None);
        peer.clear();
        assert!(peer.has_room() && !peer.is_waited_for());
    }

    #[test]
    fn a_silent_peer_is_probed_and_then_given_up() {
        let settings = Settings::default();
        let mut peer = Peer::new(Time::ZERO);
        assert_eq!(peer.due(&settings), (Time::ZERO + settings.idle, false));
        peer.asked = Some(Time::ZERO);
        assert_eq!(peer.due(&settings), (Time::ZERO + settings.silence, true));
        let late = Time::ZERO + settings.silence * 3;
        peer.asked = Some(late);
        let answered = late + (settings.silence - settings.idle);
        assert_eq!(peer.due(&settings), (answered, true), "probed late");
        peer.mark_alive(Time::from_nanos(5));
        assert_eq!(peer.due(&settings), (Time::from_nanos(5) + settings.idle, false));
    }

    #[test]
    fn a_look_after_a_suspension_is_no_judgement() {
        let settings = Settings::default();
        let mut peer = Peer::new(Time::ZERO);
        peer.asked = Some(Time::ZERO);
        let (due, _) = peer.due(&settings);
        assert_eq!(peer.judge(Time::ZERO, &settings), Liveness::Wait(due));
        assert_eq!(peer.judge(due, &settings), Liveness::Silent);
        // Both ends were frozen for an hour: probe again, and wait for the answer.
        let thawed = due + Duration::from_secs(3600);
        assert_eq!(peer.judge(thawed, &settings), Liveness::Probe);
        peer.asked = Some(thawed);
        let again = thawed + (settings.silence - settings.idle);
        assert_eq!(peer.judge(thawed, &settings), Liveness::Wait(again));
        assert_eq!(peer.judge(again, &settings), Liveness::Silent);
    }
}

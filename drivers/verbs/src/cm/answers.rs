//! The rail's answers, and the transitions of an attempt.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::contact::{Contact, FAREWELL};
use super::event::{Attempt, Connect, Event, Farewell, Refusal};
use super::mtu::{Diagnosis, Mtu, Size};
use super::peer::{Effort, Phase, UnderWay};
use super::wire::{Kind, Numbers};

impl Contact {
    /// The rail has made the queue pairs of an attempt, or has none.
    pub(crate) fn made(&mut self, attempt: Attempt, numbers: Option<Numbers>, now: Time) {
        self.now = now;
        let index = attempt.peer.0;
        if !self.is_present(attempt) || self.phase(index) != Phase::Making {
            return;
        }
        let Some(numbers) = numbers else {
            return self.refuse_for_lack(index);
        };
        let Some(way) = self.under_way(index) else {
            return;
        };
        *way.phase = Phase::Calling;
        way.effort.numbers = numbers;
        way.effort.progress(now);
        if way.effort.theirs.is_some() {
            return self.connect(index);
        }
        self.repeat(index);
    }

    /// The queue pairs of an attempt are connected to the peer's, or cannot be.
    pub(crate) fn connected(&mut self, attempt: Attempt, outcome: Result<(), DownReason>, now: Time) {
        if let Err(reason) = outcome {
            return self.died(attempt, reason, now);
        }
        self.now = now;
        let index = attempt.peer.0;
        if !self.is_present(attempt) || self.phase(index) != Phase::Connecting {
            return;
        }
        if let Some(way) = self.under_way(index) {
            *way.phase = Phase::Connected;
            way.effort.progress(now);
        }
        self.repeat(index);
        self.advance(index);
    }

    /// A message that proves the connection was acknowledged.
    pub(crate) fn passed(&mut self, attempt: Attempt, size: Size, now: Time) {
        self.now = now;
        let index = attempt.peer.0;
        if !self.is_present(attempt) || self.phase(index) != Phase::Proving {
            return;
        }
        let Some(way) = self.under_way(index) else {
            return;
        };
        way.effort.passed[size as usize] = true;
        if way.effort.passed != [true; 2] {
            return;
        }
        *way.phase = Phase::Proved;
        way.effort.progress(now);
        self.repeat(index);
        self.advance(index);
    }

    /// Something of the peer has arrived over the connection: it is connected (COMM_EST).
    pub(crate) fn is_established(&mut self, attempt: Attempt, now: Time) {
        self.now = now;
        if self.is_present(attempt) {
            self.see(attempt.peer.0, Kind::Answer);
        }
    }

    /// A message of the peer's layer above has arrived over the connection: the peer is up.
    pub(crate) fn heard_over(&mut self, attempt: Attempt, now: Time) {
        self.now = now;
        if self.is_present(attempt) {
            self.see(attempt.peer.0, Kind::Ready);
        }
    }

    /// The peer has come so far.
    pub(super) fn see(&mut self, index: u32, kind: Kind) {
        let Some(way) = self.under_way(index) else {
            return;
        };
        if *way.phase >= Phase::Connecting && way.effort.seen < Some(kind) {
            way.effort.seen = Some(kind);
            self.advance(index);
        }
    }

    /// Goes on where the peer has come far enough.
    fn advance(&mut self, index: u32) {
        let Some(way) = self.under_way(index) else {
            return;
        };
        match *way.phase {
            Phase::Connected if way.effort.seen >= Some(Kind::Answer) => self.prove(index),
            Phase::Proved if way.effort.seen >= Some(Kind::Ready) => self.come_up(index),
            _ => {}
        }
    }

    /// An attempt of the present epoch begins: queue pairs are made.
    pub(super) fn begin(&mut self, index: u32) {
        let port = self.mtu;
        let Some(way) = self.under_way(index) else {
            return;
        };
        way.effort.theirs = None;
        way.effort.seen = None;
        way.effort.passed = [false; 2];
        way.effort.due = Time::NEVER;
        (*way.phase, *way.refusal) = (Phase::Making, None);
        let path = way.path.unwrap_or(port);
        way.effort.offer = way.effort.most.min(port).min(path);
        let attempt = way.attempt;
        self.events.push_back(Event::Make(attempt));
    }

    /// Both ends' numbers are known.
    pub(super) fn connect(&mut self, index: u32) {
        let partition = self.local.address.partition;
        let Some(way) = self.under_way(index) else {
            return;
        };
        let Some(theirs) = way.effort.theirs else {
            return;
        };
        *way.phase = Phase::Connecting;
        *way.used = true;
        let connect = Connect {
            attempt: way.attempt,
            to: theirs.numbers,
            gids: way.gids,
            mtu: way.effort.agreed(),
            partition,
            life: way.life,
        };
        self.wait_on(index);
        self.events.push_back(Event::Connect(connect));
    }

    fn prove(&mut self, index: u32) {
        let until = self.now + self.config.proof;
        let Some(way) = self.under_way(index) else {
            return;
        };
        *way.phase = Phase::Proving;
        way.effort.due = until;
        let mtu = way.effort.agreed();
        let attempt = way.attempt;
        self.arm(index, until);
        // Before the making of others: its time runs, and it takes no call of the kernel.
        self.events.push_front(Event::Prove(attempt, mtu));
    }

    fn come_up(&mut self, index: u32) {
        let port = self.mtu;
        let Some(way) = self.under_way(index) else {
            return;
        };
        *way.phase = Phase::Up;
        way.effort.due = Time::NEVER;
        let mtu = way.effort.agreed();
        let port = way.path.map_or(port, |path| path.min(port));
        let expected = way.effort.theirs.map_or(port, |theirs| theirs.port.min(port));
        let event = Event::Up {
            attempt: way.attempt,
            life: way.life,
            mtu,
            diagnosis: diagnose(mtu, expected),
        };
        self.counts.connected += 1;
        self.events.push_back(event);
    }

    /// Where a short message passes and the MTU does not, the next smaller one is tried, with fresh queue
    /// pairs.
    pub(super) fn fall_or_rest(&mut self, index: u32) {
        let now = self.now;
        let Some(way) = self.under_way(index) else {
            return;
        };
        let smaller = way
            .effort
            .agreed()
            .smaller()
            .filter(|_| way.effort.passed[Size::Small as usize]);
        let Some(smaller) = smaller else {
            return self.rest(index);
        };
        way.effort.most = smaller;
        way.effort.since = now;
        self.counts.narrowed += 1;
        self.renew(index);
    }

    /// The attempt is over, and another begins at once.
    pub(super) fn renew(&mut self, index: u32) {
        self.discard(index);
        match self.peer(index).is_none_or(|peer| peer.over) {
            true => self.end(index, Some(DownReason::Silent)),
            false => self.begin(index),
        }
    }

    /// The attempt is over, and another begins after a while.
    pub(super) fn rest(&mut self, index: u32) {
        self.discard(index);
        let now = self.now;
        let Some(way) = self.under_way(index) else {
            return;
        };
        if now >= way.effort.end() {
            return self.finish(index, Some(DownReason::Silent), Farewell::Abandoned);
        }
        way.effort.due = way.effort.rest(now);
        let due = way.effort.due;
        self.arm(index, due);
    }

    /// The queue pairs of an attempt that no layer above has seen go, and its epoch with them.
    fn discard(&mut self, index: u32) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let attempt = peer.attempt(index);
        if peer.phase > Phase::Resting {
            peer.phase = Phase::Resting;
            peer.next_epoch();
            self.events.push_back(Event::Discard(attempt));
            self.counts.ended += 1;
        }
    }

    /// What is under way is over. It is reported where it was up, or wanted, and there is a `reason`; the
    /// peer learns of it by `farewell`.
    pub(super) fn finish(&mut self, index: u32, reason: Option<DownReason>, farewell: Farewell) {
        self.end(index, reason);
        if let Some(peer) = self.peer(index) {
            peer.farewell = farewell;
            self.bid_farewell(index);
        }
    }

    /// What is under way is over, as [`Contact::finish`] has it, for a peer that knows.
    pub(super) fn end(&mut self, index: u32, reason: Option<DownReason>) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let attempt = peer.attempt(index);
        let was = std::mem::replace(&mut peer.phase, Phase::Down);
        let wanted = peer.effort.take().is_some_and(|effort| effort.wanted);
        if was > Phase::Resting {
            peer.next_epoch();
            self.counts.ended += 1;
        }
        let event = match reason {
            Some(reason) if was == Phase::Up || wanted => Some(Event::Down(attempt, reason)),
            _ if was > Phase::Resting && was < Phase::Up => Some(Event::Discard(attempt)),
            _ => None,
        };
        self.events.extend(event);
    }

    /// Repeats that there is no connection, until the peer knows.
    pub(super) fn bid_farewell(&mut self, index: u32) {
        let (now, mtu) = (self.now, self.mtu);
        if let Some(peer) = self.peer(index) {
            peer.effort = Some(Box::new(Effort::new(now, FAREWELL, mtu)));
            self.repeat(index);
        }
    }

    /// We have no queue pair or memory for it: a value of the wire for the peer, and the end of the attempt.
    pub(super) fn refuse_for_lack(&mut self, index: u32) {
        let called = self.peer(index).is_some_and(|peer| peer.heard);
        self.end(index, Some(DownReason::Resources));
        if called {
            if let Some(peer) = self.peer(index) {
                peer.refusal = Some(Refusal::Resources);
            }
            self.reply_refusal(index);
        }
    }

    /// No connection is made with what the peer calls with.
    pub(super) fn refuse(&mut self, index: u32, refusal: Refusal) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let is_news = peer.refusal.replace(refusal) != Some(refusal);
        if is_news || peer.phase != Phase::Down {
            self.end_refused(index, refusal, true);
        }
        self.reply_refusal(index);
    }

    /// No connection is made, and an event gives the rail the reason.
    pub(super) fn end_refused(&mut self, index: u32, refusal: Refusal, by_us: bool) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let attempt = peer.attempt(index);
        let was = std::mem::replace(&mut peer.phase, Phase::Down);
        (peer.effort, peer.refusal) = (None, Some(refusal));
        if was > Phase::Resting {
            peer.next_epoch();
            self.counts.ended += 1;
        }
        self.events.push_back(Event::Refused {
            attempt,
            refusal,
            by_us,
        });
    }

    /// A peer's attempt or connection.
    pub(super) fn under_way(&mut self, index: u32) -> Option<UnderWay<'_>> {
        self.peer(index)?.under_way(PeerIndex(index))
    }
}

/// What a connection with a smaller MTU than both ports' shows.
fn diagnose(uses: Mtu, expected: Mtu) -> Option<Diagnosis> {
    let failed = Mtu::of(uses.number() + 1).filter(|_| uses < expected)?;
    Some(Diagnosis { failed, uses })
}

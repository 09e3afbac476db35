//! Arbitration of hellos: whether a call is accepted, rejected or parked.

use doorbell_fabric::time::Time;

use super::{Action, Conn, Hello, HelloKind, Key, Link, Meeting, Nack, State};
use crate::name::Name;
use crate::transport::{Loss, Refusal};

/// The decision about a call.
enum Verdict {
    Take,
    /// Decide later, when our own attempt has ended.
    Park,
    Refuse(Nack),
}

impl Meeting {
    /// Handles a message on a connection that is not a link yet.
    pub fn received(&mut self, now: Time, conn: Conn, bytes: &[u8]) {
        let Some(open) = self.open.get(&conn).copied() else {
            return;
        };
        let hello = Hello::read(bytes);
        match (hello, open.peer) {
            (Some(call), None) if call.said == HelloKind::Call => self.called(now, conn, call),
            (Some(answer), Some(name)) if answer.said != HelloKind::Call && self.is_asking(name, conn) => {
                self.answered(now, conn, name, answer);
            }
            // A parked call has nothing more to send.
            _ => {
                self.ended(now, conn, Refusal::Broken);
                self.actions.push_back(Action::Close {
                    conn,
                    why: Loss::Protocol,
                });
            }
        }
    }

    fn is_asking(&self, name: Name, conn: Conn) -> bool {
        let own = self.peers.get(&name).and_then(|peer| peer.attempt.as_ref());
        own.is_some_and(|own| own.conn == Some(conn))
    }

    fn called(&mut self, now: Time, conn: Conn, call: Hello) {
        match self.judge(&call) {
            Verdict::Refuse(why) => self.nack(conn, &call, why),
            Verdict::Take => self.welcome(now, conn, call),
            Verdict::Park => {
                self.counters.ties += 1;
                self.belongs(conn, call.from);
                let before = self
                    .peers
                    .get_mut(&call.from)
                    .and_then(|peer| peer.parked.replace((conn, call)));
                if let Some((conn, call)) = before {
                    self.nack(conn, &call, Nack::Stale);
                }
            }
        }
    }

    /// Checks a call, in the order of the reference.
    fn judge(&mut self, call: &Hello) -> Verdict {
        if call.version != self.version {
            return Verdict::Refuse(Nack::Version);
        }
        if call.to != self.name || call.from == self.name {
            return Verdict::Refuse(Nack::Name);
        }
        let me = self.name;
        let name = self.known(call.from);
        let Some(peer) = self.peers.get_mut(&name) else {
            return Verdict::Refuse(Nack::Name);
        };
        if call.epoch < peer.epoch {
            return Verdict::Refuse(Nack::OldEpoch);
        }
        if call.epoch > peer.epoch {
            // A new epoch: what the previous one sent, and its link, are void.
            peer.epoch = call.epoch;
        } else if call.nonce <= peer.heard {
            return Verdict::Refuse(Nack::Stale);
        } else if let Some(link) = peer.link
            && link.ours
            && call.heard < link.nonce
        {
            peer.heard = call.nonce;
            return Verdict::Refuse(Nack::Tie);
        }
        peer.heard = call.nonce;
        let calling = peer.attempt.as_ref().is_some_and(|own| own.conn.is_some());
        if calling && me > name {
            return Verdict::Park;
        }
        Verdict::Take
    }

    /// Accepts a call: its connection becomes the link, in place of any other.
    pub(super) fn welcome(&mut self, now: Time, conn: Conn, call: Hello) {
        let name = call.from;
        self.belongs(conn, name);
        let bytes = self.hello(name, HelloKind::Welcome, call.nonce).bytes();
        self.actions.push_back(Action::Send { conn, bytes });
        if let Some(peer) = self.peers.get_mut(&name) {
            self.counters.ties += u64::from(peer.attempt.is_some());
            if let Some((other, call)) = peer.parked.take() {
                self.nack(other, &call, Nack::Stale);
            }
        }
        let link = Link {
            conn,
            ours: false,
            nonce: call.nonce,
        };
        self.up(name, link, None);
        self.give_up(now, name, Refusal::Yielded);
    }

    fn answered(&mut self, now: Time, conn: Conn, name: Name, answer: Hello) {
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(own) = &peer.attempt else { return };
        if answer.nonce != own.nonce {
            return; // an answer to an earlier call
        }
        if answer.version != self.version {
            return self.failed(now, name, Refusal::WrongVersion);
        }
        if answer.from != name || answer.to != self.name {
            return self.failed(now, name, Refusal::WrongName);
        }
        match answer.said {
            HelloKind::Nack(Nack::Tie) => self.yields(now, name),
            HelloKind::Nack(why) => self.failed(now, name, why.refusal()),
            _ if answer.epoch < peer.epoch => self.failed(now, name, Refusal::OldEpoch),
            _ => {
                if answer.epoch > peer.epoch {
                    peer.epoch = answer.epoch;
                    peer.heard = 0;
                }
                let link = Link {
                    conn,
                    ours: true,
                    nonce: own.nonce,
                };
                let attempt = peer.attempt.take().map(|own| own.attempt);
                let parked = peer.parked.take();
                self.timers.clear(Key::Peer(name));
                self.up(name, link, attempt);
                if let Some((conn, call)) = parked {
                    self.nack(conn, &call, Nack::Tie);
                }
            }
        }
    }

    /// Gives up our call after a lost tie: the peer's own is on its way, or here already.
    fn yields(&mut self, now: Time, name: Name) {
        self.counters.ties += 1;
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(own) = &mut peer.attempt else { return };
        let conn = own.conn.take();
        let until = own.deadline.min(now + self.limits.yielding);
        if peer.link.is_some() {
            self.give_up(now, name, Refusal::Yielded);
        } else {
            peer.state = State::Yielding;
            self.timers.set(Key::Peer(name), until);
        }
        if let Some(conn) = conn {
            self.close(conn, Loss::Replaced);
        }
    }

    fn up(&mut self, name: Name, link: Link, attempt: Option<crate::transport::Attempt>) {
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let before = peer.link.replace(link);
        peer.state = State::Connected;
        let epoch = peer.epoch;
        self.counters.links += 1;
        // Report the new link first: a core that loses its only link calls again at once.
        if let Some(open) = self.open.get(&link.conn) {
            self.actions.push_back(Action::Up {
                conn: link.conn,
                module: open.module,
                peer: name,
                epoch,
                attempt,
            });
        }
        if let Some(before) = before {
            self.close(before.conn, Loss::Replaced);
        }
    }

    /// Assigns an accepted connection to the peer that its hello names.
    fn belongs(&mut self, conn: Conn, name: Name) {
        if let Some(open) = self.open.get_mut(&conn)
            && open.peer.is_none()
        {
            open.peer = Some(name);
            self.strangers -= 1;
            self.timers.clear(Key::Stranger(conn));
        }
    }

    fn nack(&mut self, conn: Conn, call: &Hello, why: Nack) {
        self.counters.nacks += 1;
        let bytes = self.hello(call.from, HelloKind::Nack(why), call.nonce).bytes();
        self.actions.push_back(Action::Send { conn, bytes });
        self.close(conn, Loss::Replaced);
    }
}

impl Nack {
    fn refusal(self) -> Refusal {
        match self {
            Self::Tie => Refusal::Yielded,
            Self::Stale => Refusal::Broken,
            Self::Version => Refusal::WrongVersion,
            Self::Name => Refusal::WrongName,
            Self::OldEpoch => Refusal::OutOfDate,
        }
    }
}

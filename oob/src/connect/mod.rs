//! Who is at the other end of a connection, and which of two connections is kept: the part of every transport that makes
//! connections, without the connections.
//!
//! One [`Meeting`] serves a whole transport: all its modules, all its peers. The transport dials and listens, makes the
//! encrypted session, and tells what happened; the meeting says what to do ([`Action`]).
//!
//! ```text
//!    Command::Connect ─► connect() ─► Dial ─► dialled() ─► Say(call) ─► heard(welcome) ─► Up
//!    a stranger dials ─► accepted() ─────────────────────► heard(call) ─► Say(welcome) ─► Up
//!
//!                     connect             dialled              heard welcome
//!    Unconnected ──────────────► Connecting ──────► Greeting ─────────────────► Connected ──► Closed, as Unconnected
//!         │  ▲                    │   ▲  │ all        │ │ nack: tie               ▲   ▲
//!         │  └── Failed ◄─────────┼───┼──┘ failed ◄───┘ └────────► Yielding ──────┘   │
//!         │                       │   └───────── waited too long ────────┘  their call │
//!         └───────────────────────┴── a call that is taken ────────────────────────────┘
//! ```
//!
//! # Two that call each other at the same time
//!
//! The call of the one with the **higher name** is kept. The lower one, when it is called, takes that call and drops its
//! own. The higher one *parks* the call of the lower until its own has ended: when it was taken, the parked one gets a
//! nack; when it failed (perhaps only one of the two can call the other), the parked one is taken. So nobody waits for
//! somebody who waits for him, and where only one direction works, it is found without trying again.
//!
//! A call that comes when there is a link already is judged by its nonces. A later call of the one who made the link, or
//! a call by somebody who had heard of our link when he made it, means that the link is gone at the other end: it is
//! replaced. A call in ignorance of our link has crossed it, and gets a nack.
//!
//! reference: oob, section 4 (peer states, checks, simultaneous connect) and section 9 (the nack).

#[cfg(test)]
mod errors;
mod hello;
mod arbitrate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_fabric::timers::Timers;

pub use self::hello::{HELLO, Hello, Nack, Said};
use crate::name::{Epoch, Name};
use crate::transport::{Address, Attempt, Loss, ModuleId, Refusal};

/// A connection of the transport, whether it is a link already or not. Numbered by the meeting; no number comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// What the transport is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the address over the module, and make a session. Ends with [`Meeting::dialled`] or [`Meeting::ended`].
    Dial {
        /// What to call the connection.
        conn: Conn,
        /// Over which module.
        module: ModuleId,
        /// Where.
        address: Address,
    },
    /// Send these bytes as one message of the session.
    Say {
        /// Over which connection.
        conn: Conn,
        /// What.
        bytes: [u8; HELLO],
    },
    /// The connection is a link: tell the core [`Event::Connected`](crate::transport::Event::Connected). What comes over
    /// it from here on is frames.
    Up {
        /// Which.
        conn: Conn,
        /// Over which module.
        module: ModuleId,
        /// Who is there.
        peer: Name,
        /// In which life.
        epoch: Epoch,
        /// Which attempt this ends.
        attempt: Option<Attempt>,
    },
    /// Close the connection, when what was to be said over it is written. Of a link, tell the core
    /// [`Event::Lost`](crate::transport::Event::Lost). It is not told back by [`Meeting::ended`].
    Close {
        /// Which.
        conn: Conn,
        /// Why.
        why: Loss,
    },
    /// Tell the core [`Event::Refused`](crate::transport::Event::Refused).
    Refused {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        why: Refusal,
    },
}

/// Where a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nothing was tried.
    Unconnected,
    /// An address is dialled.
    Connecting,
    /// We have called; the answer is not there.
    Greeting,
    /// Our call has lost the tie; the peer's own is on its way.
    Yielding,
    /// There is a link.
    Connected,
    /// There was a link.
    Closed,
    /// All addresses have failed.
    Failed,
}

/// The limits of a meeting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often each address is tried in one attempt.
    pub tries: u32,
    /// How long somebody who has connected may take to say who he is, in all.
    pub hello: Duration,
    /// How long to wait for the peer's own connection after a lost tie, before calling again.
    pub yielding: Duration,
    /// How many connections may be open whose other end is not known yet.
    pub strangers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tries: 2,
            hello: Duration::from_secs(5),
            yielding: Duration::from_secs(1),
            strangers: 64,
        }
    }
}

/// What a meeting has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls and calls back that made links.
    pub links: u64,
    /// Ties that were seen from this side.
    pub ties: u64,
    /// Calls that were answered by a nack.
    pub nacks: u64,
    /// Connections closed because they did not say who they are: nothing in time, or nonsense.
    pub strangers: u64,
    /// Connections turned away because too many strangers are there.
    pub crowded: u64,
}

/// What is known of a peer.
#[derive(Debug)]
struct Peer {
    state: State,
    /// The latest life that was heard of.
    epoch: Epoch,
    /// The highest nonce that was heard of that life.
    heard: u64,
    attempt: Option<Try>,
    link: Option<Link>,
    /// A call that waits for the end of our own.
    parked: Option<(Conn, Hello)>,
}

/// An attempt of ours.
#[derive(Debug)]
struct Try {
    attempt: Attempt,
    module: ModuleId,
    addresses: Vec<Address>,
    /// How many dials were made.
    dials: usize,
    conn: Option<Conn>,
    nonce: u64,
    deadline: Time,
    /// The last thing that failed.
    why: Refusal,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    conn: Conn,
    /// Whether we have called.
    ours: bool,
    nonce: u64,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Open {
    module: ModuleId,
    /// Whose it is; a stranger's until it has said so.
    peer: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Stranger(Conn),
    Peer(Name),
}

/// The meeting place of a transport. See the module's own words.
#[derive(Debug)]
pub struct Meeting {
    name: Name,
    epoch: Epoch,
    version: u32,
    limits: Limits,
    peers: BTreeMap<Name, Peer>,
    open: BTreeMap<Conn, Open>,
    strangers: usize,
    conns: u64,
    nonces: u64,
    timers: Timers<Key>,
    actions: VecDeque<Action>,
    counters: Counters,
}

impl Meeting {
    /// For a process of this name, life and version (of everything that is spoken over links).
    #[must_use]
    pub fn new(name: Name, epoch: Epoch, version: u32, limits: Limits) -> Self {
        Self {
            name,
            epoch,
            version,
            limits,
            peers: BTreeMap::new(),
            open: BTreeMap::new(),
            strangers: 0,
            conns: 0,
            nonces: 0,
            timers: Timers::new(),
            actions: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// What to do next.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Meeting::tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Where a peer is.
    #[must_use]
    pub fn state(&self, peer: Name) -> State {
        self.peers
            .get(&peer)
            .map_or(State::Unconnected, |peer| peer.state)
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Begins an attempt: [`Command::Connect`](crate::transport::Command::Connect).
    #[allow(clippy::too_many_arguments)]
    pub fn connect(
        &mut self,
        now: Time,
        attempt: Attempt,
        name: Name,
        epoch: Epoch,
        module: ModuleId,
        addresses: Vec<Address>,
        deadline: Time,
    ) {
        let peer = self.known(name);
        let busy = self.own(peer).is_some();
        if name == self.name || busy || addresses.is_empty() || deadline <= now {
            let why = if addresses.is_empty() {
                Refusal::NoRoute
            } else if deadline <= now {
                Refusal::TimedOut
            } else {
                Refusal::Cancelled
            };
            return self.actions.push_back(Action::Refused { attempt, why });
        }
        let Some(record) = self.peers.get_mut(&peer) else {
            return;
        };
        if epoch > record.epoch {
            record.epoch = epoch;
            record.heard = 0;
        }
        record.attempt = Some(Try {
            attempt,
            module,
            addresses,
            dials: 0,
            conn: None,
            nonce: 0,
            deadline,
            why: Refusal::NoRoute,
        });
        self.timers.set(Key::Peer(peer), deadline);
        self.dial(now, peer);
    }

    /// Gives an attempt up: [`Command::Cancel`](crate::transport::Command::Cancel).
    pub fn cancel(&mut self, now: Time, attempt: Attempt) {
        let of = |peer: &Peer| peer.attempt.as_ref().is_some_and(|own| own.attempt == attempt);
        let found = self.peers.iter().find(|(_, peer)| of(peer));
        if let Some((&name, _)) = found {
            self.give_up(now, name, Refusal::Cancelled);
        }
    }

    /// A dial has succeeded: the connection and its session are there.
    pub fn dialled(&mut self, now: Time, conn: Conn) {
        let Some(name) = self.open.get(&conn).and_then(|open| open.peer) else {
            return;
        };
        let call = self.hello(name, Said::Call, 0);
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(own) = peer.attempt.as_mut().filter(|own| own.conn == Some(conn)) else {
            return;
        };
        if peer.link.is_none() {
            peer.state = State::Greeting;
        }
        let bytes = Hello {
            nonce: own.nonce,
            ..call
        }
        .bytes();
        self.timers
            .set(Key::Peer(name), own.deadline.min(now + self.limits.hello));
        self.actions.push_back(Action::Say { conn, bytes });
    }

    /// Somebody has connected to us over this module, and the session is there. `None`: there are too many strangers
    /// already; close it.
    pub fn accepted(&mut self, now: Time, module: ModuleId) -> Option<Conn> {
        if self.strangers >= self.limits.strangers {
            self.counters.crowded += 1;
            return None;
        }
        let conn = self.conn(module, None);
        self.strangers += 1;
        self.timers.set(Key::Stranger(conn), now + self.limits.hello);
        Some(conn)
    }

    /// A dial has failed, or a connection has ended, for a reason that the transport knows best.
    pub fn ended(&mut self, now: Time, conn: Conn, why: Refusal) {
        let Some(open) = self.forget(conn) else { return };
        let Some(name) = open.peer else {
            self.counters.strangers += 1;
            return;
        };
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        if peer.link.is_some_and(|link| link.conn == conn) {
            peer.link = None;
            peer.settle(State::Closed);
        }
        if peer.parked.is_some_and(|(parked, _)| parked == conn) {
            peer.parked = None;
        }
        if peer.attempt.as_ref().is_some_and(|own| own.conn == Some(conn)) {
            self.failed(now, name, why);
        }
    }

    /// Looks at the time.
    pub fn tick(&mut self, now: Time) {
        while let Some(key) = self.timers.due(now) {
            match key {
                Key::Stranger(conn) => {
                    self.counters.strangers += 1;
                    self.close(conn, Loss::Silent);
                }
                Key::Peer(name) => self.late(now, name),
            }
        }
    }

    fn late(&mut self, now: Time, name: Name) {
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(own) = &mut peer.attempt else { return };
        if own.deadline <= now {
            return self.give_up(now, name, Refusal::TimedOut);
        }
        // The answer is late, or the one to whom we yielded does not come: the next address.
        self.failed(now, name, Refusal::TimedOut);
    }

    /// The connection of our attempt is no good: another dial, or the end.
    fn failed(&mut self, now: Time, name: Name, why: Refusal) {
        let Some(own) = self.own(name) else { return };
        own.why = why;
        if let Some(conn) = own.conn.take() {
            self.close(conn, Loss::Broken);
        }
        // Somebody waits for the end of our attempt: take him.
        if let Some(conn) = self
            .peers
            .get(&name)
            .and_then(|peer| peer.parked)
            .map(|(conn, _)| conn)
        {
            return self.take_parked(now, name, conn);
        }
        self.dial(now, name);
    }

    fn dial(&mut self, now: Time, name: Name) {
        let tries = self.limits.tries.max(1) as usize;
        let Some(own) = self.own(name) else { return };
        let (module, why) = (own.module, own.why);
        let last = own.dials >= own.addresses.len() * tries;
        let address = own.addresses.get(own.dials % own.addresses.len().max(1)).cloned();
        let Some(address) = address.filter(|_| !last) else {
            return self.give_up(now, name, why);
        };
        let conn = self.conn(module, Some(name));
        self.nonces += 1;
        let nonce = self.nonces;
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        peer.settle(State::Connecting);
        if let Some(own) = &mut peer.attempt {
            own.dials += 1;
            own.conn = Some(conn);
            own.nonce = nonce;
            self.timers.set(Key::Peer(name), own.deadline);
        }
        self.actions.push_back(Action::Dial {
            conn,
            module,
            address,
        });
    }

    /// Ends our attempt.
    fn give_up(&mut self, now: Time, name: Name, why: Refusal) {
        let Some(peer) = self.peers.get_mut(&name) else {
            return;
        };
        let Some(own) = peer.attempt.take() else { return };
        peer.settle(State::Failed);
        let parked = peer.parked;
        self.timers.clear(Key::Peer(name));
        if let Some(conn) = own.conn {
            self.close(conn, Loss::Broken);
        }
        self.actions.push_back(Action::Refused {
            attempt: own.attempt,
            why: if parked.is_some() { Refusal::Yielded } else { why },
        });
        if let Some((conn, call)) = parked {
            self.unpark(name);
            self.welcome(now, conn, call);
        }
    }

    fn take_parked(&mut self, now: Time, name: Name, conn: Conn) {
        debug_assert!(self.open.contains_key(&conn), "a parked call that is gone");
        self.give_up(now, name, Refusal::Yielded);
    }

    fn unpark(&mut self, name: Name) {
        if let Some(peer) = self.peers.get_mut(&name) {
            peer.parked = None;
        }
    }

    fn own(&mut self, name: Name) -> Option<&mut Try> {
        self.peers.get_mut(&name)?.attempt.as_mut()
    }

    /// Makes sure that there is a record of the peer.
    fn known(&mut self, name: Name) -> Name {
        self.peers.entry(name).or_insert(Peer {
            state: State::Unconnected,
            epoch: Epoch::UNKNOWN,
            heard: 0,
            attempt: None,
            link: None,
            parked: None,
        });
        name
    }

    fn conn(&mut self, module: ModuleId, peer: Option<Name>) -> Conn {
        self.conns += 1;
        let conn = Conn(self.conns);
        self.open.insert(conn, Open { module, peer });
        conn
    }

    /// The connection is gone, or about to be.
    fn forget(&mut self, conn: Conn) -> Option<Open> {
        let open = self.open.remove(&conn)?;
        if open.peer.is_none() {
            self.strangers -= 1;
            self.timers.clear(Key::Stranger(conn));
        }
        Some(open)
    }

    fn close(&mut self, conn: Conn, why: Loss) {
        if self.forget(conn).is_some() {
            self.actions.push_back(Action::Close { conn, why });
        }
    }

    fn hello(&self, to: Name, said: Said, nonce: u64) -> Hello {
        Hello {
            version: self.version,
            said,
            from: self.name,
            epoch: self.epoch,
            to,
            nonce,
            heard: self.peers.get(&to).map_or(0, |peer| peer.heard),
        }
    }
}

impl Peer {
    /// The state without an attempt's end: a link that is there outweighs everything.
    fn settle(&mut self, state: State) {
        self.state = if self.link.is_some() {
            State::Connected
        } else {
            state
        };
    }
}

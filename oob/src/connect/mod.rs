//! Identification of the peer of a connection, and arbitration between two connections: the part of every
//! transport that makes connections, sans I/O.
//!
//! One [`Meeting`] serves a whole transport: all its modules, all its peers. The transport dials and listens,
//! sets up the encrypted session, and reports what happened; the meeting returns what to do ([`Action`]).
//!
//! ```text
//!    Command::Connect ─► connect() ─► Dial ─► dialled() ─► Send(call) ─► received(welcome) ─► Up
//!    a stranger dials ─► accepted() ─────────────────────► received(call) ─► Send(welcome) ─► Up
//!
//!                     connect             dialled              welcome
//!    Unconnected ──────────────► Connecting ──────► Greeting ─────────────────► Connected ──► Closed
//!         │  ▲                    │   ▲  │ all        │ │ nack: tie               ▲   ▲
//!         │  └── Failed ◄─────────┼───┼──┘ failed ◄───┘ └────────► Yielding ──────┘   │
//!         │                       │   └───────── waited too long ────────┘  their call │
//!         └───────────────────────┴── a call that is taken ────────────────────────────┘
//! ```
//!
//! The transitions from Closed are those from Unconnected.
//!
//! # Simultaneous calls
//!
//! The call of the one with the **higher name** is kept. The lower one accepts a call that comes, and drops
//! its own. The higher one *parks* the call of the lower until its own has ended: if that was accepted, the
//! parked call gets a nack; if it failed (perhaps only one direction works), the parked call is accepted. So
//! the two never wait for each other, and if only one direction works it is found without another attempt.
//!
//! A call that comes while a link is up is judged by its nonces. A later call of the process that made the
//! link, or a call by one that has our link on record, means that the link is gone at the other end: it is
//! replaced. A call without knowledge of our link has crossed it, and gets a nack.
//!
//! reference: oob, section 4 (peer states, checks, simultaneous connect) and section 9 (the nack).

mod arbitrate;
#[cfg(test)]
mod errors;
mod hello;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_fabric::timers::Timers;

pub use self::hello::{HELLO, Hello, HelloKind, Nack};
use crate::name::{Epoch, Name};
use crate::transport::{Address, Attempt, Loss, ModuleId, Refusal};

/// A connection of the transport, whether it is a link already or not; the meeting never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// What the transport is to do; actions are in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the address over the module, and set up a session. Ends with [`Meeting::dialled`] or
    /// [`Meeting::ended`].
    Dial {
        /// The number of the new connection.
        conn: Conn,
        /// The module to connect over.
        module: ModuleId,
        /// The address to connect to.
        address: Address,
    },
    /// Send these bytes as one message of the session.
    Send {
        /// The connection to send on.
        conn: Conn,
        /// The bytes of the hello.
        bytes: [u8; HELLO],
    },
    /// The connection is a link: report [`Event::Connected`](crate::transport::Event::Connected) to the core.
    /// From here on it carries frames.
    Up {
        /// The connection that became a link.
        conn: Conn,
        /// The module it goes over.
        module: ModuleId,
        /// The name of the peer.
        peer: Name,
        /// The epoch of the peer.
        epoch: Epoch,
        /// The attempt that this ends, if it was ours.
        attempt: Option<Attempt>,
    },
    /// Close the connection once everything queued on it is written. Report
    /// [`Event::Lost`](crate::transport::Event::Lost) if it was a link. No [`Meeting::ended`] follows.
    Close {
        /// The connection to close.
        conn: Conn,
        /// The reason for closing.
        why: Loss,
    },
    /// Report [`Event::Refused`](crate::transport::Event::Refused) to the core.
    Refused {
        /// The attempt that failed.
        attempt: Attempt,
        /// The reason why it failed.
        why: Refusal,
    },
}

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No attempt was made.
    Unconnected,
    /// An address is being dialled.
    Connecting,
    /// We have sent a call and wait for the answer.
    Greeting,
    /// Our call has lost the tie; the peer's own is on its way.
    Yielding,
    /// A link is up.
    Connected,
    /// A link was up, and has ended.
    Closed,
    /// All addresses have failed.
    Failed,
}

/// The limits of a meeting.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many times each address is tried in one attempt.
    pub tries: u32,
    /// How long an accepted connection may take to send its hello.
    pub hello: Duration,
    /// How long to wait for the peer's own connection after a lost tie, before calling again.
    pub yielding: Duration,
    /// Maximum number of accepted connections without a hello.
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

/// Counters of a meeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls, made or accepted, that became links.
    pub links: u64,
    /// Ties seen from this side.
    pub ties: u64,
    /// Calls rejected with a nack.
    pub nacks: u64,
    /// Connections closed because no valid hello came in time.
    pub strangers: u64,
    /// Connections closed because too many others were without a hello.
    pub crowded: u64,
}

/// What is known about a peer.
#[derive(Debug)]
struct Peer {
    state: State,
    /// The latest epoch seen.
    epoch: Epoch,
    /// The highest nonce received from that epoch.
    heard: u64,
    attempt: Option<Try>,
    link: Option<Link>,
    /// A call that waits for the end of our own.
    parked: Option<(Conn, Hello)>,
}

/// One of our attempts.
#[derive(Debug)]
struct Try {
    attempt: Attempt,
    module: ModuleId,
    addresses: Vec<Address>,
    /// Number of dials made.
    dials: usize,
    conn: Option<Conn>,
    nonce: u64,
    deadline: Time,
    /// The last failure.
    why: Refusal,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    conn: Conn,
    /// Whether we made the call.
    ours: bool,
    nonce: u64,
}

/// An open connection.
#[derive(Clone, Copy, Debug)]
struct Open {
    module: ModuleId,
    /// The peer it belongs to; `None` until its hello has come.
    peer: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Stranger(Conn),
    Peer(Name),
}

/// Identifies peers and arbitrates between connections; see the module's documentation.
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
    /// Creates a meeting for a process with this name, epoch and protocol version.
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

    /// Returns the next action.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when [`Meeting::tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns the state of a peer.
    #[must_use]
    pub fn state(&self, peer: Name) -> State {
        self.peers
            .get(&peer)
            .map_or(State::Unconnected, |peer| peer.state)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Starts an attempt: [`Command::Connect`](crate::transport::Command::Connect).
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

    /// Cancels an attempt: [`Command::Cancel`](crate::transport::Command::Cancel).
    pub fn cancel(&mut self, now: Time, attempt: Attempt) {
        let of = |peer: &Peer| peer.attempt.as_ref().is_some_and(|own| own.attempt == attempt);
        let found = self.peers.iter().find(|(_, peer)| of(peer));
        if let Some((&name, _)) = found {
            self.give_up(now, name, Refusal::Cancelled);
        }
    }

    /// Takes a dial that succeeded: the connection and its session are ready.
    pub fn dialled(&mut self, now: Time, conn: Conn) {
        let Some(name) = self.open.get(&conn).and_then(|open| open.peer) else {
            return;
        };
        let call = self.hello(name, HelloKind::Call, 0);
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
        self.actions.push_back(Action::Send { conn, bytes });
    }

    /// Takes an accepted connection whose session is ready. Returns `None` if too many are without a hello;
    /// then close it.
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

    /// Takes a dial that failed or a connection that ended, with the transport's reason.
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

    /// Handles everything that is due.
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
        // The answer is late, or the peer we yielded to does not call: try the next address.
        self.failed(now, name, Refusal::TimedOut);
    }

    /// Ends the dial or connection of our attempt: dials again, or ends the attempt.
    fn failed(&mut self, now: Time, name: Name, why: Refusal) {
        let Some(own) = self.own(name) else { return };
        own.why = why;
        if let Some(conn) = own.conn.take() {
            self.close(conn, Loss::Broken);
        }
        // A parked call waits for the end of our attempt: accept it.
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

    /// Ends our attempt without a link.
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
        debug_assert!(
            self.open.contains_key(&conn),
            "a parked call without a connection"
        );
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

    /// Creates the record of a peer if there is none.
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

    /// Removes a connection that is gone, or about to be.
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

    fn hello(&self, to: Name, said: HelloKind, nonce: u64) -> Hello {
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
    /// Sets the state of a peer without an attempt; an existing link takes precedence.
    fn settle(&mut self, state: State) {
        self.state = if self.link.is_some() {
            State::Connected
        } else {
            state
        };
    }
}

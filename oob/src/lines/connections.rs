//! The connections of a transport: their peers, how they become links, and how they end. Independent of what
//! they run over, and without waiting.
//!
//! ```text
//!   Dial ─► call() ──┐                    ┌─ ours: dialled() ──┐
//!                    ├─► line ─► ready() ─┤                    ├─► hello ─► Up: a link ─► close(), over()
//!   admit() ─► enter()── a guest          └─ theirs: accepted()┘
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};

use doorbell_fabric::time::Time;

use super::counters::Counters;
use super::guests::Guests;
use super::limits::{Limits, Who};
use super::stream::{End, Order};
use crate::bytes::Bytes;
use crate::connect::{Action, Conn, Hello, Meeting};
use crate::error::OobError;
use crate::lines::TROUBLES;
use crate::session::Peer;
use crate::transport::{Address, Command, Event, LinkId, Loss, ModuleId, Refusal};

/// The version of everything sent over links: hello, headers, streams.
const VERSION: u32 = 1;
/// Maximum number of connections that are closing and have no owner any more.
const ENDING: usize = 64;

/// Numbers a connection within its transport, before its peer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LineId(pub(super) u64);

/// A connection, as the transport knows it.
#[derive(Debug)]
pub(super) struct Connection<L> {
    pub(super) module: ModuleId,
    /// Whether we made the call.
    ours: bool,
    /// Its number in the meeting, as long as that knows it.
    conn: Option<Conn>,
    /// Its number in the core, if it is a link.
    pub(super) link: Option<LinkId>,
    /// The peer, as the handshake identified it.
    pub(super) peer: Option<Peer>,
    /// Why it is being closed.
    pub(super) why: Option<Loss>,
    /// Whether it has ended for meeting and core: the line may still send what is sealed.
    pub(super) over: bool,
    /// What it runs over.
    pub(super) line: L,
}

/// All connections of a transport, over lines `L` from sources `S`.
#[derive(Debug)]
pub(super) struct Connections<L, S> {
    pub(super) limits: Limits,
    pub(super) meeting: Meeting,
    pub(super) all: BTreeMap<LineId, Connection<L>>,
    of_conn: HashMap<Conn, LineId>,
    of_link: HashMap<LinkId, LineId>,
    /// Number of connections so far.
    count: u64,
    guests: Guests<S>,
    pub(super) events: VecDeque<Event>,
    pub(super) troubles: VecDeque<OobError>,
    pub(super) counters: Counters,
}

impl<L, S: Copy + Ord> Connections<L, S> {
    pub(super) fn new(who: &Who, limits: Limits) -> Self {
        Self {
            limits,
            meeting: Meeting::new(who.name, who.epoch, VERSION, limits.meeting),
            all: BTreeMap::new(),
            of_conn: HashMap::new(),
            of_link: HashMap::new(),
            count: 0,
            guests: Guests::new(),
            events: VecDeque::new(),
            troubles: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the number that the next connection gets.
    pub(super) fn next_id(&self) -> LineId {
        LineId(self.count + 1)
    }

    /// Adds a connection that runs over a line, with [`Connections::next_id`].
    pub(super) fn add(&mut self, module: ModuleId, ours: bool, line: L) -> LineId {
        self.count += 1;
        let connection = Connection {
            module,
            ours,
            conn: None,
            link: None,
            peer: None,
            why: None,
            over: false,
            line,
        };
        self.all.insert(LineId(self.count), connection);
        LineId(self.count)
    }

    /// Returns a connection that has not ended.
    pub(super) fn live(&mut self, id: LineId) -> Option<&mut Connection<L>> {
        self.all.get_mut(&id).filter(|connection| !connection.over)
    }

    /// Counts a call of a peer. Returns whether one from this source is served at all.
    pub(super) fn is_admitted(&mut self, now: Time, source: Option<S>) -> bool {
        self.counters.accepted += 1;
        let admitted = self.guests.is_accepted(now, source, &self.limits);
        self.counters.throttled += u64::from(!admitted);
        admitted
    }

    /// Counts a connection that is about to end with its peer, if it is a guest.
    pub(super) fn broken(&mut self, now: Time, id: LineId) {
        let guest = self.guests.leave(now, id, false, &self.limits);
        self.counters.broken += u64::from(guest);
    }

    /// Reports how many frames of a connection were sent so far.
    pub(super) fn sent(&mut self, id: LineId, frames: u64) {
        if let Some(link) = self.all.get(&id).and_then(|connection| connection.link) {
            self.events.push_back(Event::Sent { link, frames });
        }
    }

    pub(super) fn troubled(&mut self, error: OobError) {
        if self.troubles.len() == TROUBLES {
            self.troubles.pop_front();
        }
        self.troubles.push_back(error);
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            meeting: self.meeting.counters(),
            ..self.counters
        }
    }

    /// Returns the number of handshakes with callers.
    pub(super) fn guests(&self) -> usize {
        self.guests.len()
    }
}

/// A transport over one kind of line: what it adds to its [`Connections`], and what follows from them.
pub(super) trait Lines {
    /// What a connection runs over.
    type Line;
    /// Where a call comes from; callers of one source share limits.
    type Source: Copy + Ord;

    /// Returns the connections of the transport.
    fn connections(&mut self) -> &mut Connections<Self::Line, Self::Source>;

    /// Calls an address over a module.
    fn call(&mut self, now: Time, module: ModuleId, address: &Address) -> Result<LineId, Refusal>;

    /// Passes an instruction to a line. After [`Order::Leave`] it gets no other, and has a limited time.
    fn order(&mut self, now: Time, id: LineId, order: Order);

    /// Handles the end of a handshake: the peer has the key.
    fn is_ready(&mut self, _now: Time, _id: LineId) {}

    /// Ends the line of a connection that has ended, and removes it at some time.
    fn ended(&mut self, now: Time, id: LineId);

    /// Whether a guest that ended in this way counts as a failure of its source.
    fn is_offence(_: &End) -> bool {
        true
    }

    /// Carries out a command of the core; `Reach` is the caller's own.
    fn obey(&mut self, now: Time, command: Command) {
        match command {
            Command::Reach { .. } => {}
            Command::Connect {
                attempt,
                peer,
                epoch,
                module,
                addresses,
                deadline,
            } => self
                .connections()
                .meeting
                .connect(now, attempt, peer, epoch, module, addresses, deadline),
            Command::Cancel { attempt } => self.connections().meeting.cancel(now, attempt),
            Command::Send { link, frame } => {
                if let Some(&id) = self.connections().of_link.get(&link) {
                    self.instruct(now, id, Order::Frame(frame));
                }
            }
            Command::Close { link, why } => self.close(now, link, why),
        }
    }

    /// Carries out all actions that the meeting requests.
    fn act(&mut self, now: Time) {
        while let Some(action) = self.connections().meeting.action() {
            match action {
                Action::Dial {
                    conn,
                    module,
                    address,
                } => self.dial(now, conn, module, &address),
                Action::Send { conn, bytes } => {
                    if let Some(&id) = self.connections().of_conn.get(&conn) {
                        self.instruct(now, id, Order::Hello(bytes));
                    }
                }
                Action::Up {
                    conn,
                    module,
                    peer,
                    epoch,
                    attempt,
                } => {
                    let connections = self.connections();
                    let Some(&id) = connections.of_conn.get(&conn) else {
                        continue;
                    };
                    let link = LinkId(conn.0);
                    if let Some(connection) = connections.all.get_mut(&id) {
                        connection.link = Some(link);
                    }
                    connections.of_link.insert(link, id);
                    connections.events.push_back(Event::Connected {
                        link,
                        module,
                        peer,
                        epoch,
                        attempt,
                    });
                }
                Action::Close { conn, why } => self.part(now, conn, why),
                Action::Refused { attempt, why } => {
                    let event = Event::Refused { attempt, why };
                    self.connections().events.push_back(event);
                }
            }
        }
    }

    fn dial(&mut self, now: Time, conn: Conn, module: ModuleId, address: &Address) {
        match self.call(now, module, address) {
            Ok(id) => self.know(conn, id),
            Err(why) => self.connections().meeting.ended(now, conn, why),
        }
    }

    /// Records the meeting's number of a connection.
    fn know(&mut self, conn: Conn, id: LineId) {
        let connections = self.connections();
        if let Some(connection) = connections.all.get_mut(&id) {
            connection.conn = Some(conn);
            connections.of_conn.insert(conn, id);
        }
    }

    fn instruct(&mut self, now: Time, id: LineId, order: Order) {
        let connection = self.connections().live(id);
        if connection.is_some_and(|connection| connection.why.is_none()) {
            self.order(now, id, order);
        }
    }

    /// Handles a call of a peer: its connection is a guest until it has proved the key. The oldest one makes
    /// room for it.
    fn enter(&mut self, now: Time, id: LineId, source: Option<Self::Source>) {
        let connections = self.connections();
        if let Some(oldest) = connections.guests.enter(id, source, &connections.limits) {
            connections.counters.evicted += 1;
            self.end(now, oldest, Refusal::Cancelled, Loss::Broken);
        }
    }

    /// Handles a completed handshake: the peer has the key.
    fn ready(&mut self, now: Time, id: LineId, peer: Peer) {
        let connections = self.connections();
        connections.guests.leave(now, id, false, &connections.limits);
        let Some(connection) = connections.live(id) else {
            return;
        };
        connection.peer = Some(peer);
        let (ours, conn, module) = (connection.ours, connection.conn, connection.module);
        self.is_ready(now, id);
        let meeting = &mut self.connections().meeting;
        match (ours, conn) {
            (true, Some(conn)) => meeting.dialled(now, conn),
            (true, None) => {}
            (false, _) => match meeting.accepted(now, module) {
                Some(conn) => self.know(conn, id),
                None => self.end(now, id, Refusal::Cancelled, Loss::Broken),
            },
        }
    }

    fn message(&mut self, now: Time, id: LineId, bytes: Bytes) {
        let connections = self.connections();
        let Some(connection) = connections.live(id) else {
            return;
        };
        let (link, peer) = (connection.link, connection.peer);
        if let Some(link) = link {
            let event = Event::Received { link, frame: bytes };
            return connections.events.push_back(event);
        }
        let Some(conn) = connection.conn else { return };
        if !peer.is_some_and(|peer| Hello::agrees(peer, &bytes)) {
            connections.counters.impostors += 1;
            return self.end(now, id, Refusal::WrongName, Loss::Protocol);
        }
        connections.meeting.received(now, conn, &bytes);
    }

    /// Handles the end of a line.
    fn over(&mut self, now: Time, id: LineId, end: End) {
        let connections = self.connections();
        let Some(connection) = connections.live(id) else {
            return;
        };
        let loss = connection.why.unwrap_or(end.loss);
        let linked = connection.link.is_some();
        let attempts = connection.ours && connection.conn.is_some() && !linked;
        let guest = connections
            .guests
            .leave(now, id, Self::is_offence(&end), &connections.limits);
        if guest {
            connections.counters.refused(end.error.as_ref());
        } else if linked && end.loss == Loss::Protocol {
            connections.counters.forged += 1;
        }
        // Record why our attempt failed, unless the meeting has given it up already.
        if let Some(error) = end.error.filter(|_| attempts) {
            connections.troubled(error);
        }
        self.end(now, id, end.refusal, loss);
    }

    /// Ends a connection, and informs the meeting and the core if they have an entry for it.
    fn end(&mut self, now: Time, id: LineId, refusal: Refusal, loss: Loss) {
        let connections = self.connections();
        connections.guests.leave(now, id, false, &connections.limits);
        let Some(connection) = connections.live(id) else {
            return;
        };
        connection.over = true;
        let why = connection.why.unwrap_or(loss);
        let (link, conn) = (connection.link.take(), connection.conn.take());
        if let Some(link) = link {
            connections.of_link.remove(&link);
            connections.events.push_back(Event::Lost { link, why });
        }
        if let Some(conn) = conn {
            connections.of_conn.remove(&conn);
            connections.meeting.ended(now, conn, refusal);
        }
        self.ended(now, id);
    }

    /// Closes a link for the core.
    fn close(&mut self, now: Time, link: LinkId, why: Loss) {
        let connections = self.connections();
        let Some(&id) = connections.of_link.get(&link) else {
            return;
        };
        let conn = connections.live(id).and_then(|connection| connection.conn.take());
        if let Some(conn) = conn {
            connections.of_conn.remove(&conn);
            connections.meeting.ended(now, conn, Refusal::Broken);
        }
        self.leave_line(now, id, why);
    }

    /// Closes a connection for the meeting, which has forgotten it.
    fn part(&mut self, now: Time, conn: Conn, why: Loss) {
        let connections = self.connections();
        let Some(id) = connections.of_conn.remove(&conn) else {
            return;
        };
        let Some(connection) = connections.live(id) else {
            return;
        };
        connection.conn = None;
        // Before the end of the handshake nothing was queued that is worth waiting for.
        if connection.peer.is_none() {
            return self.end(now, id, Refusal::Cancelled, why);
        }
        let linked = connection.link.is_some();
        self.leave_line(now, id, why);
        if !linked {
            self.crowd(now);
        }
    }

    /// Sends only what was queued before.
    fn leave_line(&mut self, now: Time, id: LineId, why: Loss) {
        self.instruct(now, id, Order::Leave);
        if let Some(connection) = self.connections().live(id) {
            connection.why.get_or_insert(why);
        }
    }

    /// Limits the number of closing connections.
    fn crowd(&mut self, now: Time) {
        let all = self.connections().all.iter();
        let going = all.filter(|(_, line)| line.why.is_some() && line.link.is_none() && !line.over);
        let going: Vec<LineId> = going.map(|(&id, _)| id).collect();
        let more = going.len().saturating_sub(ENDING);
        for id in going.into_iter().take(more) {
            self.end(now, id, Refusal::Cancelled, Loss::Broken);
        }
    }

    /// Closes all links once everything queued is sent, and ends all other connections.
    fn leave_all(&mut self, now: Time) {
        let links: Vec<LinkId> = self.connections().of_link.keys().copied().collect();
        for link in links {
            self.close(now, link, Loss::Finished);
        }
        let others = self.connections().all.iter();
        let others: Vec<LineId> = others
            .filter(|(_, line)| line.link.is_none())
            .map(|(&id, _)| id)
            .collect();
        for id in others {
            self.end(now, id, Refusal::Cancelled, Loss::Finished);
        }
        self.act(now);
    }
}

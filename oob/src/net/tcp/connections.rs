//! Connections: how they begin and end, and what is sent over them.

use doorbell_fabric::time::Time;
use tokio::sync::mpsc::unbounded_channel;

use super::{ENDING, Line, Tcp};
use crate::connect::{Conn, Hello};
use crate::net::connection::{self, Begin, End, Io, Note, Order};
use crate::net::listener::Incoming;
use crate::net::pending::Source;
use crate::session::Peer;
use crate::transport::{Event, LinkId, Loss, ModuleId, Refusal};

impl Tcp {
    /// Handles a note.
    pub(super) fn note(&mut self, now: Time, note: Note) {
        match note {
            Note::Incoming(incoming) => self.incoming(now, incoming),
            Note::Ready(io, peer) => self.ready(now, io, peer),
            Note::Message(io, bytes) => self.message(now, io, bytes),
            Note::Sent(io, frames) => {
                if let Some(link) = self.lines.get(&io).and_then(|line| line.link) {
                    self.events.push_back(Event::Sent { link, frames });
                }
            }
            Note::Over(io, end) => self.over(now, io, end),
            Note::Changed => self.look(now),
        }
    }

    /// Starts a connection.
    pub(super) fn line(&mut self, module: ModuleId, local: std::net::IpAddr, begin: Begin) -> Option<Io> {
        let runtime = self.modules.get(&module)?.runs.handle();
        self.ios += 1;
        let io = Io(self.ios);
        let (orders, taken) = unbounded_channel();
        let live = connection::live(io, begin, self.shared.clone(), taken, self.tell.clone());
        let line = Line {
            module,
            local,
            orders,
            task: runtime.spawn(live).abort_handle(),
            conn: None,
            link: None,
            peer: None,
            why: None,
        };
        self.lines.insert(io, line);
        Some(io)
    }

    fn incoming(&mut self, now: Time, incoming: Incoming) {
        self.counters.accepted += 1;
        let source = Source::of(incoming.from.ip(), &self.host);
        if !self.pending.is_accepted(now, source, &self.shared.settings) {
            self.counters.throttled += 1;
            return;
        }
        let Ok(local) = incoming.stream.local_addr() else {
            return;
        };
        let up = self
            .modules
            .get(&incoming.module)
            .is_some_and(|module| module.has(local.ip()));
        if self.leaving || !up {
            return;
        }
        let begun = self.line(incoming.module, local.ip(), Begin::Accepted(incoming.stream));
        let Some(io) = begun else { return };
        if let Some(oldest) = self.pending.enter(io, source, &self.shared.settings) {
            self.counters.evicted += 1;
            self.drop_line(oldest);
        }
    }

    /// Handles a completed handshake: the peer has the key.
    fn ready(&mut self, now: Time, io: Io, peer: Peer) {
        let was_pending = self.pending.leave(now, io, false, &self.shared.settings);
        let Some(line) = self.lines.get_mut(&io) else {
            return;
        };
        line.peer = Some(peer);
        if let Some(conn) = line.conn {
            return self.meeting.dialled(now, conn);
        }
        if !was_pending {
            return;
        }
        match self.meeting.accepted(now, line.module) {
            Some(conn) => {
                line.conn = Some(conn);
                self.of_conn.insert(conn, io);
            }
            None => drop(self.drop_line(io)),
        }
    }

    fn message(&mut self, now: Time, io: Io, bytes: crate::bytes::Bytes) {
        let Some(line) = self.lines.get(&io) else { return };
        if let Some(link) = line.link {
            return self.events.push_back(Event::Received { link, frame: bytes });
        }
        let Some(conn) = line.conn else { return };
        if !line.peer.is_some_and(|peer| Hello::agrees(peer, &bytes)) {
            self.counters.impostors += 1;
            return self.end(now, io, Refusal::WrongName, Loss::Protocol);
        }
        self.meeting.received(now, conn, &bytes);
    }

    fn over(&mut self, now: Time, io: Io, end: End) {
        let was_pending = self.pending.leave(now, io, true, &self.shared.settings);
        let Some(line) = self.lines.get(&io) else { return };
        let loss = line.why.unwrap_or(end.loss);
        if was_pending {
            match &end.error {
                Some(error) => self.counters.refused(error),
                None => self.counters.broken += 1,
            }
        } else if line.link.is_some() && end.loss == Loss::Protocol {
            self.counters.forged += 1;
        }
        // Record why our attempt failed, unless the meeting has given it up already.
        if let Some(error) = end.error
            && line.conn.is_some()
            && line.link.is_none()
            && !was_pending
        {
            self.troubled(error);
        }
        self.end(now, io, end.refusal, loss);
    }

    /// Ends a connection, and informs the meeting and the core if they have an entry for it.
    pub(super) fn end(&mut self, now: Time, io: Io, refusal: Refusal, loss: Loss) {
        let _ = self.pending.leave(now, io, false, &self.shared.settings);
        let Some(line) = self.drop_line(io) else { return };
        if let Some(link) = line.link {
            let why = line.why.unwrap_or(loss);
            self.events.push_back(Event::Lost { link, why });
        }
        if let Some(conn) = line.conn {
            self.meeting.ended(now, conn, refusal);
        }
    }

    pub(super) fn drop_line(&mut self, io: Io) -> Option<Line> {
        let line = self.lines.remove(&io)?;
        line.task.abort();
        if let Some(conn) = line.conn {
            self.of_conn.remove(&conn);
        }
        if let Some(link) = line.link {
            self.of_link.remove(&link);
        }
        Some(line)
    }

    pub(super) fn send(&mut self, link: LinkId, order: Order) {
        let line = self.of_link.get(&link).and_then(|io| self.lines.get(io));
        if let Some(line) = line.filter(|line| line.why.is_none()) {
            let _ = line.orders.send(order);
        }
    }

    /// Closes a link for the core.
    pub(super) fn close(&mut self, now: Time, link: LinkId, why: Loss) {
        let Some(&io) = self.of_link.get(&link) else {
            return;
        };
        let Some(line) = self.lines.get_mut(&io) else {
            return;
        };
        let conn = line.conn.take();
        leave(line, why);
        if let Some(conn) = conn {
            self.of_conn.remove(&conn);
            self.meeting.ended(now, conn, Refusal::Broken);
        }
    }

    /// Closes a connection for the meeting, which has forgotten it.
    pub(super) fn part(&mut self, conn: Conn, why: Loss) {
        let Some(io) = self.of_conn.remove(&conn) else {
            return;
        };
        let Some(line) = self.lines.get_mut(&io) else {
            return;
        };
        line.conn = None;
        // Before the end of the handshake nothing was queued that is worth waiting for.
        if line.peer.is_none() {
            self.drop_line(io);
            return;
        }
        leave(line, why);
        if line.link.is_none() {
            self.crowd();
        }
    }

    /// Limits the number of closing connections.
    fn crowd(&mut self) {
        let going = |line: &Line| line.why.is_some() && line.link.is_none();
        let all = self.lines.iter().filter(|(_, line)| going(line));
        let mut all: Vec<Io> = all.map(|(&io, _)| io).collect();
        if all.len() > ENDING {
            all.sort_unstable();
            let more = all.len() - ENDING;
            all.into_iter().take(more).for_each(|io| drop(self.drop_line(io)));
        }
    }
}

/// Writes only what was queued before.
fn leave(line: &mut Line, why: Loss) {
    if line.why.is_none() {
        line.why = Some(why);
        let _ = line.orders.send(Order::Leave);
    }
}

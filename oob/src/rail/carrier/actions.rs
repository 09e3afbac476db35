//! Carries out the actions that the meeting requests.

use doorbell_fabric::time::Time;

use super::Rails;
use crate::connect::{Action, Conn};
use crate::error::OobError;
use crate::net::Order;
use crate::rail::connection::{Line, Spot};
use crate::rail::peer::LineId;
use crate::transport::{Address, Event, LinkId, ModuleId, Refusal};

impl Rails {
    /// Carries out all actions.
    pub(super) fn act(&mut self, now: Time) {
        while let Some(action) = self.meeting.action() {
            match action {
                Action::Dial {
                    conn,
                    module,
                    address,
                } => self.dial(now, conn, module, &address),
                Action::Send { conn, bytes } => {
                    if let Some(&id) = self.of_conn.get(&conn) {
                        self.order(id, Order::Hello(bytes));
                    }
                }
                Action::Up {
                    conn,
                    module,
                    peer,
                    epoch,
                    attempt,
                } => {
                    let Some(&id) = self.of_conn.get(&conn) else {
                        continue;
                    };
                    let link = LinkId(conn.0);
                    if let Some(line) = self.lines.get_mut(&id) {
                        line.link = Some(link);
                    }
                    self.of_link.insert(link, id);
                    self.book(now + self.settings.idle);
                    self.events.push_back(Event::Connected {
                        link,
                        module,
                        peer,
                        epoch,
                        attempt,
                    });
                }
                Action::Close { conn, why } => self.part(now, conn, why),
                Action::Refused { attempt, why } => {
                    self.events.push_back(Event::Refused { attempt, why });
                }
            }
        }
    }

    fn dial(&mut self, now: Time, conn: Conn, module: ModuleId, address: &Address) {
        let spot = self
            .spot(module, address)
            .filter(|_| self.leaving.is_none())
            .filter(|&spot| self.is_up(spot));
        let Some(spot) = spot else {
            return self.meeting.ended(now, conn, Refusal::NoRoute);
        };
        match self.line(now, spot, None) {
            Ok(id) => {
                if let Some(line) = self.lines.get_mut(&id) {
                    line.conn = Some(conn);
                }
                self.of_conn.insert(conn, id);
            }
            Err(error) => {
                self.troubled(error);
                self.meeting.ended(now, conn, Refusal::Broken);
            }
        }
    }

    /// Starts a line: ours, or one that the peer numbers.
    pub(super) fn line(&mut self, now: Time, spot: Spot, theirs: Option<u64>) -> Result<LineId, OobError> {
        self.count += 1;
        let id = LineId(self.count);
        let (ours, number) = (theirs.is_none(), theirs.unwrap_or(self.count));
        let line = Line::new(spot, (ours, number), &self.terms, now)?;
        self.book(now + self.terms.handshake);
        self.guests += usize::from(line.is_guest());
        self.lines.insert(id, line);
        self.of_wire.insert((spot, ours, number), id);
        if let Some(peer) = self.modules[spot.module].peer(spot.peer) {
            peer.lines.push(id);
        }
        self.modules[spot.module].busy.insert(spot.peer);
        Ok(id)
    }

    /// Gives an instruction to a line.
    pub(super) fn order(&mut self, id: LineId, order: Order) {
        if let Some(line) = self.lines.get_mut(&id).filter(|line| line.why.is_none()) {
            line.order(order);
            self.modules[line.spot.module].busy.insert(line.spot.peer);
        }
    }
}

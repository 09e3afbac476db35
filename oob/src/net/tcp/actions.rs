//! Carries out the actions that the meeting requests.

use doorbell_fabric::time::Time;

use super::Tcp;
use crate::connect::{Action, Conn};
use crate::net::address::{self, Place};
use crate::net::connection::{Begin, Order};
use crate::net::socket::Endpoints;
use crate::transport::{Address, Event, LinkId, ModuleId, Refusal};

impl Tcp {
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
                    let line = self.of_conn.get(&conn).and_then(|io| self.lines.get(io));
                    if let Some(line) = line {
                        let _ = line.orders.send(Order::Hello(bytes));
                    }
                }
                Action::Up {
                    conn,
                    module,
                    peer,
                    epoch,
                    attempt,
                } => {
                    let Some(&io) = self.of_conn.get(&conn) else {
                        continue;
                    };
                    let link = LinkId(conn.0);
                    if let Some(line) = self.lines.get_mut(&io) {
                        line.link = Some(link);
                    }
                    self.of_link.insert(link, io);
                    self.events.push_back(Event::Connected {
                        link,
                        module,
                        peer,
                        epoch,
                        attempt,
                    });
                }
                Action::Close { conn, why } => self.part(conn, why),
                Action::Refused { attempt, why } => {
                    self.events.push_back(Event::Refused { attempt, why });
                }
            }
        }
    }

    fn dial(&mut self, now: Time, conn: Conn, module: ModuleId, address: &Address) {
        let io = self
            .endpoints(module, address)
            .and_then(|(endpoints, nic)| self.line(module, endpoints.from.ip(), Begin::Dial(endpoints, nic)));
        match io.filter(|_| !self.leaving) {
            Some(io) => {
                if let Some(line) = self.lines.get_mut(&io) {
                    line.conn = Some(conn);
                }
                self.of_conn.insert(conn, io);
            }
            None => self.meeting.ended(now, conn, Refusal::NoRoute),
        }
    }

    /// Returns the end points of a dial, and the name of the NIC.
    fn endpoints(&self, module: ModuleId, address: &Address) -> Option<(Endpoints, String)> {
        let module = self.modules.get(&module).filter(|module| module.is_up())?;
        let place: Place = address.parse().ok()?;
        if self.shared.terms.key.is_none() && !place.ip.is_loopback() {
            return None;
        }
        let nic = module.nic();
        let (from, weight) = nic.source(&place, &self.host)?;
        let bound = nic.has_to_be_bound(from, &place, weight);
        let endpoints = Endpoints {
            from: address::socket(from, 0, module.index),
            to: place.socket(module.index),
            device: bound.then(|| module.name.clone()),
        };
        Some((endpoints, module.name.clone()))
    }
}

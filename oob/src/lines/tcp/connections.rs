//! The connections of this transport: tasks that are started, instructed, and report by notes.

use std::net::IpAddr;

use doorbell_fabric::time::Time;
use tokio::sync::mpsc::unbounded_channel;

use super::Tcp;
use super::address::{self, Place};
use super::line::{self, Begin, Note};
use super::listener::Incoming;
use super::socket::Endpoints;
use super::source::Source;
use super::transport::Task;
use crate::lines::connections::{Connections, LineId, Lines};
use crate::lines::stream::Order;
use crate::transport::{Address, ModuleId, Refusal};

impl Lines for Tcp {
    type Line = Task;
    type Source = Source;

    fn connections(&mut self) -> &mut Connections<Task, Source> {
        &mut self.connections
    }

    fn call(&mut self, _: Time, module: ModuleId, address: &Address) -> Result<LineId, Refusal> {
        self.endpoints(module, address)
            .filter(|_| !self.leaving)
            .and_then(|(endpoints, nic)| {
                self.line(module, true, endpoints.from.ip(), Begin::Dial(endpoints, nic))
            })
            .ok_or(Refusal::NoRoute)
    }

    fn order(&mut self, _: Time, id: LineId, order: Order) {
        if let Some(connection) = self.connections.all.get(&id) {
            let _ = connection.line.orders.send(order);
        }
    }

    fn ended(&mut self, _: Time, id: LineId) {
        self.connections.all.remove(&id);
    }
}

impl Tcp {
    /// Handles a note.
    pub(super) fn note(&mut self, now: Time, note: Note) {
        match note {
            Note::Incoming(incoming) => self.incoming(now, incoming),
            Note::Ready(id, peer) => self.ready(now, id, peer),
            Note::Message(id, bytes) => self.message(now, id, bytes),
            Note::Sent(id, frames) => self.connections.sent(id, frames),
            Note::Over(id, end) => self.over(now, id, end),
            Note::Changed => self.look(now),
        }
    }

    /// Starts a connection.
    fn line(&mut self, module: ModuleId, ours: bool, local: IpAddr, begin: Begin) -> Option<LineId> {
        let runtime = self.modules.get(&module)?.runs.handle();
        let (orders, taken) = unbounded_channel();
        let id = self.connections.next_id();
        let live = line::live(id, begin, self.shared.clone(), taken, self.tell.clone());
        let task = Task {
            local,
            orders,
            task: runtime.spawn(live).abort_handle(),
        };
        Some(self.connections.add(module, ours, task))
    }

    fn incoming(&mut self, now: Time, incoming: Incoming) {
        let source = Source::of(incoming.from.ip(), &self.host);
        if !self.connections.is_admitted(now, source) {
            return;
        }
        let (module, stream) = (incoming.module, incoming.stream);
        let Ok(local) = stream.local_addr() else { return };
        let up = self.modules.get(&module).is_some_and(|own| own.has(local.ip()));
        if self.leaving || !up {
            return;
        }
        if let Some(id) = self.line(module, false, local.ip(), Begin::Accepted(stream)) {
            self.enter(now, id, source);
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

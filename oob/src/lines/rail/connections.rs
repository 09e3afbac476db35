//! The connections of this transport: lines that are called, instructed and ended.

use doorbell_fabric::time::Time;

use super::Rails;
use super::line::{Line, Spot};
use super::transport::module_id;
use crate::error::OobError;
use crate::lines::connections::{Connections, LineId, Lines};
use crate::lines::stream::{End, Order};
use crate::transport::{Address, ModuleId, Refusal};

/// Maximum number of ended lines that still have something to send.
const GHOSTS: usize = 64;

impl Lines for Rails {
    type Line = Line;
    type Source = Spot;

    fn connections(&mut self) -> &mut Connections<Line, Spot> {
        &mut self.connections
    }

    fn call(&mut self, now: Time, module: ModuleId, address: &Address) -> Result<LineId, Refusal> {
        let spot = self
            .spot(module, address)
            .filter(|&spot| self.leaving.is_none() && self.is_up(spot))
            .ok_or(Refusal::NoRoute)?;
        self.line(now, spot, None).map_err(|error| {
            self.connections.troubled(error);
            Refusal::Broken
        })
    }

    fn order(&mut self, now: Time, id: LineId, order: Order) {
        let until = now + self.settings.limits.linger;
        let Some(connection) = self.connections.all.get_mut(&id) else {
            return;
        };
        let (leaves, line) = (matches!(order, Order::Leave), &mut connection.line);
        line.order(order);
        self.modules[line.spot.module].busy.insert(line.spot.peer);
        if leaves {
            line.deadline = Some(until);
            self.book(until);
        }
    }

    fn is_ready(&mut self, now: Time, id: LineId) {
        if let Some(connection) = self.connections.all.get_mut(&id) {
            (connection.line.proved, connection.line.deadline) = (true, None);
        }
        self.book(now + self.settings.idle);
    }

    /// What is sealed is still sent, such as the reason of a refusal.
    fn ended(&mut self, now: Time, id: LineId) {
        let until = now + self.settings.limits.linger;
        let Some(connection) = self.connections.all.get_mut(&id) else {
            return;
        };
        let line = &mut connection.line;
        line.haunt();
        line.deadline = Some(until);
        let (spot, rests) = (line.spot, line.is_at_rest());
        self.book(until);
        self.ghosts += 1;
        self.modules[spot.module].busy.insert(spot.peer);
        if self.ghosts > GHOSTS {
            let all = &self.connections.all;
            let oldest = all.iter().find(|(_, own)| own.over).map(|(&id, _)| id);
            oldest.into_iter().for_each(|id| self.bury(id));
        } else if rests || !self.is_up(spot) {
            self.bury(id);
        }
    }

    /// A peer that drops its own call, because ours was kept, has done nothing wrong.
    fn is_offence(end: &End) -> bool {
        !matches!(end.error, None | Some(OobError::Unanswered | OobError::Truncated))
    }
}

impl Rails {
    /// Starts a line: ours, or one that the peer numbers.
    pub(super) fn line(&mut self, now: Time, spot: Spot, theirs: Option<u64>) -> Result<LineId, OobError> {
        let (ours, number) = (theirs.is_none(), theirs.unwrap_or(self.connections.next_id().0));
        let line = Line::new(spot, (ours, number), &self.terms, now)?;
        let id = self.connections.add(module_id(spot.module), ours, line);
        self.book(now + self.terms.handshake);
        self.of_wire.insert((spot, ours, number), id);
        if let Some(peer) = self.modules[spot.module].peer(spot.peer) {
            peer.lines.push(id);
        }
        self.modules[spot.module].busy.insert(spot.peer);
        Ok(id)
    }

    /// Removes a line that has ended.
    pub(super) fn bury(&mut self, id: LineId) {
        let Some(connection) = self.connections.all.remove(&id) else {
            return;
        };
        let line = connection.line;
        self.ghosts -= usize::from(connection.over);
        self.of_wire.remove(&(line.spot, line.is_ours(), line.number));
        if let Some(peer) = self.modules[line.spot.module].peer(line.spot.peer) {
            peer.lines.retain(|&other| other != id);
        }
    }
}

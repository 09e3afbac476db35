//! A few processes and every message between them, delivered in any order: whatever choices come in is a run.

use std::collections::VecDeque;

use super::checker::{Judge, Verdict};
use crate::credit::mutants::{Mutants, Rule};
use crate::credit::{Ask, CreditByte, CreditConfig, CreditState, Due, NoCredits, Violation};

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Request(CreditByte),
    Reply(CreditByte),
    Revoke { epoch: bool },
    Return { give: u16, epoch: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) message: Message,
}

pub(super) struct World {
    pub(super) nodes: Vec<CreditState>,
    pub(super) wires: Vec<Wire>,
    /// Requests that arrived and whose handlers have not run: the receiver, the sender.
    pub(super) held: Vec<(u32, u32, Due)>,
    /// Requests that wait for credits: the sender, the receiver.
    waiting: VecDeque<(u32, u32, Ask)>,
    judge: Judge,
}

impl World {
    pub(super) fn new(terms: CreditConfig, rule: Option<Rule>) -> Self {
        let node = |me| {
            let mut credits = CreditState::new(&CreditConfig { me, ..terms }).unwrap();
            credits.mutants = rule.map_or(Mutants::NONE, Mutants);
            credits
        };
        let nodes: Vec<CreditState> = (0..terms.nodes).map(node).collect();
        Self {
            judge: Judge::new(&nodes),
            nodes,
            wires: Vec::new(),
            held: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Makes one step, which the choice selects.
    pub(super) fn step(&mut self, choice: u64) -> Verdict {
        let count = self.nodes.len() as u64;
        let at = choice >> 8;
        match choice % 16 {
            0..=4 => {
                let from = at % count;
                let to = (from + 1 + at / count % (count - 1)) % count;
                let credits = 1 + at / count / count % 4;
                self.send(from as u32, to as u32, Ask::new(credits as u8))
            }
            5..=10 if !self.wires.is_empty() => self.deliver((at % self.wires.len() as u64) as usize),
            11 if !self.waiting.is_empty() => {
                self.waiting
                    .rotate_left((at % self.waiting.len() as u64) as usize);
                self.retry()
            }
            12 => self.revoke((at % count) as u32),
            _ if !self.held.is_empty() => self.handle((at % self.held.len() as u64) as usize),
            _ => Ok(()),
        }
    }

    /// Everything under way arrives, every handler runs, and who waits is served; anything left over is a
    /// fault.
    pub(super) fn drain(&mut self) -> Verdict {
        for _ in 0..100_000 {
            if !self.wires.is_empty() {
                self.deliver(0)?;
            } else if !self.held.is_empty() {
                self.handle(0)?;
            } else if !self.waiting.is_empty() {
                self.retry()?;
            } else {
                return self.judge.at_rest(&self.nodes);
            }
        }
        Err(format!("{} requests wait for ever", self.waiting.len()))
    }

    fn send(&mut self, from: u32, to: u32, mut ask: Ask) -> Verdict {
        if self.waiting.len() > 64 {
            return Ok(());
        }
        let before = self.nodes[from as usize].peer(to);
        match self.nodes[from as usize].take(to, &mut ask) {
            Ok(byte) => {
                self.judge.sent(from, to, &ask, byte)?;
                self.post(from, to, Message::Request(byte))
            }
            Err(NoCredits::Stalled) => {
                self.judge.stalled(before, &ask)?;
                self.waiting.push_back((from, to, ask));
                self.judge.look(&self.nodes, &self.wires, &self.held)
            }
            Err(other) => Err(other.to_string()),
        }
    }

    fn retry(&mut self) -> Verdict {
        let Some((from, to, ask)) = self.waiting.pop_front() else {
            return Ok(());
        };
        self.send(from, to, ask)
    }

    fn post(&mut self, from: u32, to: u32, message: Message) -> Verdict {
        let wire = Wire { from, to, message };
        self.judge.posted(wire)?;
        self.wires.push(wire);
        self.judge.look(&self.nodes, &self.wires, &self.held)
    }

    fn deliver(&mut self, index: usize) -> Verdict {
        let Wire { from, to, message } = self.wires.swap_remove(index);
        let node = &mut self.nodes[to as usize];
        let before: Vec<_> = (0..node.nodes()).map(|rank| node.peer(rank)).collect();
        let wrong = |violation: Violation| violation.to_string();
        let mut answer = None;
        match message {
            Message::Request(byte) => {
                let due = node.arrived(from, byte).map_err(wrong)?;
                self.judge.arrived(to, from, &due)?;
                self.held.push((to, from, due));
            }
            Message::Reply(byte) => _ = node.replied(from, byte).map_err(wrong)?,
            Message::Revoke { epoch } => {
                let told = node.revoked(from, epoch).map_err(wrong)?;
                self.judge.gave(to, from, told.give, epoch)?;
                answer = Some(Message::Return {
                    give: told.give,
                    epoch: told.epoch,
                });
            }
            Message::Return { give, epoch } => node.returned(from, give, epoch).map_err(wrong)?,
        }
        self.judge
            .delivered(&self.nodes[to as usize], from, &message, &before)?;
        match answer {
            Some(answer) => self.post(to, from, answer),
            None => self.judge.look(&self.nodes, &self.wires, &self.held),
        }
    }

    fn handle(&mut self, index: usize) -> Verdict {
        let (at, from, due) = self.held.swap_remove(index);
        let byte = self.nodes[at as usize].answer(from, due);
        self.post(at, from, Message::Reply(byte))
    }

    fn revoke(&mut self, at: u32) -> Verdict {
        while let Some(revoke) = self.nodes[at as usize].next_revoke() {
            self.judge.revoking(&self.nodes[at as usize], revoke.to)?;
            self.post(at, revoke.to, Message::Revoke { epoch: revoke.epoch })?;
        }
        Ok(())
    }
}

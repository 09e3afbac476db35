//! Broadcasts.
//!
//! The root numbers all broadcasts and sends them down the tree, so that all ranks get them in one order.
//! Reception is reported up the tree: at once when a whole branch has it, else partially after a while. Each
//! rank keeps a broadcast until then, so that a child of a dead relay gets what it missed, and a branch
//! reports again to a new parent what the old one may not have passed on. A broadcast ends when all ranks
//! that are not lost have it, or at its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::codec::{CAST, CAST_ENDED, CAST_REQUEST, REACHED, Reader, Writer};
use super::{Key, Node, Purpose};
use crate::bytes::Bytes;
use crate::event::{Event, OpId};
use crate::name::{Epoch, Name};

/// A broadcast of a user.
const USERS: u8 = 0;
/// The result of an all-gather.
const GATHERED: u8 = 1;
/// A report on the sender's branch, except the ranks listed.
const BRANCH_BUT: u8 = 0;
/// A report on the ranks listed.
const LISTED: u8 = 1;

/// All broadcasts of a rank.
#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    /// The epoch of the root that numbers them.
    epoch: Epoch,
    last: u64,
    open: BTreeMap<u64, Broadcast>,
    /// Our own broadcasts that have not ended.
    own: BTreeSet<OpId>,
}

#[derive(Debug)]
struct Broadcast {
    body: Bytes,
    /// Ranks of the branch not known to have it.
    left: BTreeSet<u32>,
    deadline: Time,
    hold: Time,
    /// Whether there is something new to report to the parent.
    fresh: bool,
    /// At the root, the process that is informed of the end.
    origin: Option<(Name, OpId)>,
}

/// The header of a broadcast.
struct BroadcastHead {
    epoch: Epoch,
    number: u64,
    oldest: u64,
    left: Duration,
    kind: u8,
    from: Name,
    op: u64,
    tag: u32,
    body: Bytes,
}

impl BroadcastHead {
    fn read(body: &Bytes) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(Self {
            epoch: reader.epoch()?,
            number: reader.long()?,
            oldest: reader.long()?,
            left: Duration::from_millis(u64::from(reader.word()?)),
            kind: reader.byte()?,
            from: reader.name()?,
            op: reader.long()?,
            tag: reader.word()?,
            body: reader.all(),
        })
    }

    fn write(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.long(self.epoch.0).long(self.number).long(self.oldest);
        writer.word(millis(self.left)).byte(self.kind);
        writer
            .name(self.from)
            .long(self.op)
            .word(self.tag)
            .rest(&self.body)
            .done()
    }
}

pub(super) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl Broadcasts {
    /// Returns the last broadcast received, and the root's epoch.
    pub(super) fn last_received(&self) -> (Epoch, u64) {
        (self.epoch, self.last)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.own.is_empty() && self.open.values().all(|cast| cast.left.is_empty())
    }

    pub(super) fn memory(&self) -> usize {
        let each = |cast: &Broadcast| size_of::<Broadcast>() + 16 * cast.left.len() + cast.body.len();
        self.open.values().map(each).sum()
    }
}

impl Node {
    pub(super) fn begin_cast(&mut self, op: OpId, tag: u32, body: &Bytes, within: Duration) {
        self.casts.own.insert(op);
        let mut writer = Writer::default();
        writer.word(millis(within)).long(op.0).word(tag).rest(body);
        let root = self.rank(0);
        self.send_control(root, CAST_REQUEST, writer.done(), Some(Purpose::CastRequest(op)));
    }

    pub(super) fn on_cast_request(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let within = Duration::from_millis(u64::from(reader.word()?));
        let (op, tag, from) = (reader.long()?, reader.word()?, self.of(ix).name);
        if !self.is_root() || from.job != self.config.name.job {
            return None;
        }
        let body = reader.all();
        if self.casts.open.len() >= self.config.operations {
            // Too many at once: inform the sender that no rank has it.
            self.answer_cast(from, OpId(op), &self.others());
            return Some(());
        }
        self.cast(USERS, from, op, tag, body, within);
        Some(())
    }

    /// Broadcasts the result of an all-gather.
    pub(super) fn cast_gathered(&mut self, id: u32, body: Bytes) {
        let within = self.config.margin;
        self.cast(GATHERED, self.config.name, u64::from(id), 0, body, within);
    }

    fn cast(&mut self, kind: u8, from: Name, op: u64, tag: u32, body: Bytes, within: Duration) {
        let number = self.casts.last + 1;
        let oldest = self.casts.open.keys().next().copied().unwrap_or(number);
        let said = BroadcastHead {
            epoch: self.config.epoch,
            number,
            oldest,
            left: within,
            kind,
            from,
            op,
            tag,
            body,
        };
        let body = said.write();
        self.take_cast(said, body);
        if let Some(cast) = self.casts.open.get_mut(&number) {
            cast.origin = (kind == USERS).then_some((from, OpId(op)));
        }
        self.review_cast(number);
    }

    pub(super) fn on_cast(&mut self, body: &Bytes) -> Option<()> {
        let said = BroadcastHead::read(body)?;
        if self.is_root() {
            return None;
        }
        let number = said.number;
        self.take_cast(said, body.clone());
        self.review_cast(number);
        Some(())
    }

    fn take_cast(&mut self, said: BroadcastHead, body: Bytes) {
        if said.epoch < self.casts.epoch {
            return;
        }
        if said.epoch > self.casts.epoch {
            // A new epoch of the root starts counting again.
            self.casts.epoch = said.epoch;
            self.casts.last = 0;
            let old = std::mem::take(&mut self.casts.open);
            old.keys()
                .for_each(|&number| self.timers.clear(Key::Broadcast(number)));
        }
        if !self.is_root() {
            let later = self.casts.open.split_off(&said.oldest);
            for number in std::mem::replace(&mut self.casts.open, later).into_keys() {
                self.timers.clear(Key::Broadcast(number));
            }
        }
        if said.number <= self.casts.last {
            // The sender does not know that we have it.
            if let Some(cast) = self.casts.open.get_mut(&said.number) {
                cast.fresh = true;
            }
            return;
        }
        self.casts.last = said.number;
        let mut left: BTreeSet<u32> = self
            .routed
            .tree
            .branch(self.config.name.rank)
            .into_iter()
            .collect();
        left.remove(&self.config.name.rank);
        let cast = Broadcast {
            body: body.clone(),
            left,
            deadline: self.now + said.left,
            hold: Time::NEVER,
            fresh: true,
            origin: None,
        };
        self.casts.open.insert(said.number, cast);
        for child in self.routed.children.clone() {
            let ix = self.rank(child);
            self.send_control(ix, CAST, body.clone(), None);
        }
        match said.kind {
            GATHERED => self.gathered(said.op as u32, &said.body),
            _ => self.emit(Event::Broadcast {
                from: said.from,
                tag: said.tag,
                body: said.body,
            }),
        }
    }

    /// Sends a newly attached child the broadcasts after `last`.
    pub(super) fn cast_again(&mut self, ix: u32, epoch: Epoch, last: u64) {
        let last = if epoch == self.casts.epoch { last } else { 0 };
        let missed = self.casts.open.range(last + 1..);
        let bodies: Vec<Bytes> = missed.map(|(_, cast)| cast.body.clone()).collect();
        for body in bodies {
            self.send_control(ix, CAST, body, None);
        }
    }

    pub(super) fn on_reached(&mut self, ix: u32, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let (epoch, number, mode) = (reader.epoch()?, reader.long()?, reader.byte()?);
        let list = reader.list()?;
        if epoch != self.casts.epoch {
            return Some(());
        }
        let branch = self.routed.tree.branch(self.of(ix).name.rank);
        let Some(cast) = self.casts.open.get_mut(&number) else {
            return Some(());
        };
        let before = cast.left.len();
        if mode == LISTED {
            list.iter().for_each(|rank| _ = cast.left.remove(rank));
        } else {
            let but: BTreeSet<u32> = list.into_iter().collect();
            let reached = branch.iter().filter(|rank| !but.contains(rank));
            reached.for_each(|rank| _ = cast.left.remove(rank));
        }
        cast.fresh |= cast.left.len() < before;
        self.review_cast(number);
        Some(())
    }

    /// Ends a broadcast, or reports on it, if there is something to report.
    fn review_cast(&mut self, number: u64) {
        let Some(cast) = self.casts.open.get(&number) else {
            return;
        };
        let complete = cast.left.iter().all(|&rank| self.is_lost(rank));
        if complete && self.is_root() {
            return self.end_cast(number);
        }
        if complete && cast.fresh {
            self.report_cast(number);
        }
        let until = self.now + self.config.hold;
        let margin = self.config.margin;
        let root = self.is_root();
        let Some(cast) = self.casts.open.get_mut(&number) else {
            return;
        };
        if cast.fresh && !complete && cast.hold == Time::NEVER && !root {
            cast.hold = until;
        }
        let end = if root {
            cast.deadline
        } else {
            cast.deadline + margin
        };
        let at = end.min(cast.hold);
        self.timers.set(Key::Broadcast(number), at);
    }

    fn report_cast(&mut self, number: u64) {
        let Some(parent) = self.routed.parent else { return };
        let me = self.config.name.rank;
        let branch = self.routed.tree.branch(me);
        let Some(cast) = self.casts.open.get_mut(&number) else {
            return;
        };
        cast.fresh = false;
        let mut writer = Writer::default();
        writer.long(self.casts.epoch.0).long(number);
        if cast.left.len() <= branch.len() / 2 {
            let left: Vec<u32> = cast.left.iter().copied().collect();
            writer.byte(BRANCH_BUT).list(left.iter());
        } else {
            let reached: Vec<u32> = branch
                .into_iter()
                .filter(|rank| !cast.left.contains(rank))
                .collect();
            writer.byte(LISTED).list(reached.iter());
        }
        let body = writer.done();
        let ix = self.rank(parent);
        self.send_control(ix, REACHED, body, None);
    }

    pub(super) fn cast_due(&mut self, number: u64) {
        let (now, margin) = (self.now, self.config.margin);
        let Some(cast) = self.casts.open.get_mut(&number) else {
            return;
        };
        if cast.hold <= now {
            cast.hold = Time::NEVER;
            if cast.fresh {
                self.report_cast(number);
            }
        }
        let Some(cast) = self.casts.open.get(&number) else {
            return;
        };
        if self.is_root() && cast.deadline <= now {
            return self.end_cast(number);
        }
        if cast.deadline + margin <= now {
            self.casts.open.remove(&number);
            return;
        }
        self.review_cast(number);
    }

    fn end_cast(&mut self, number: u64) {
        self.timers.clear(Key::Broadcast(number));
        let Some(cast) = self.casts.open.remove(&number) else {
            return;
        };
        if let Some((origin, op)) = cast.origin {
            let missing: Vec<u32> = cast.left.into_iter().collect();
            self.answer_cast(origin, op, &missing);
        }
    }

    fn answer_cast(&mut self, origin: Name, op: OpId, missing: &[u32]) {
        let ix = self.peer(origin);
        let body = Writer::default().long(op.0).list(missing.iter()).done();
        self.send_control(ix, CAST_ENDED, body, None);
    }

    pub(super) fn on_cast_ended(&mut self, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let (op, missing) = (OpId(reader.long()?), reader.list()?);
        self.own_ended(op, missing);
        Some(())
    }

    /// Ends a broadcast whose root did not answer or was not reached: no rank is known to have it.
    pub(super) fn op_due(&mut self, op: OpId) {
        let missing = self.others();
        self.own_ended(op, missing);
    }

    fn own_ended(&mut self, op: OpId, missing: Vec<u32>) {
        if self.casts.own.remove(&op) {
            self.timers.clear(Key::Op(op));
            self.emit(Event::BroadcastEnded { op, missing });
        }
    }

    fn others(&self) -> Vec<u32> {
        (0..self.config.ranks)
            .filter(|&rank| rank != self.config.name.rank)
            .collect()
    }

    /// Ends all broadcasts with the node.
    pub(super) fn end_casts(&mut self) {
        for op in std::mem::take(&mut self.casts.own) {
            let missing = self.others();
            self.emit(Event::BroadcastEnded { op, missing });
        }
        self.casts.open.clear();
    }

    /// Reviews all broadcasts after a loss.
    pub(super) fn review_all(&mut self) {
        let numbers: Vec<u64> = self.casts.open.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.review_cast(number));
        self.review_gathers();
    }

    /// Reports everything again to a new parent.
    pub(super) fn report_all(&mut self) {
        let numbers: Vec<u64> = self.casts.open.keys().copied().collect();
        for number in numbers {
            self.report_cast(number);
            self.review_cast(number);
        }
        self.gather_again();
    }
}

//! All-gathers.
//!
//! Contributions are collected up the tree: a relay waits for its whole branch, or for a while, and reports.
//! The root makes a table once all ranks that are not lost have contributed, or at the deadline, and
//! broadcasts it. A rank with a new parent sends it everything collected so far.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::broadcast::millis;
use super::codec::{GATHER, Reader, Writer};
use super::{Key, Node};
use crate::bytes::Bytes;
use crate::event::Event;

/// Number of results remembered, so that late contributions are recognised.
const REMEMBERED: usize = 256;

/// All gathers of a rank.
#[derive(Debug, Default)]
pub(super) struct Gathers {
    open: BTreeMap<u32, Gather>,
    ended: BTreeSet<u32>,
}

#[derive(Debug)]
struct Gather {
    /// Whether the user has contributed.
    called: bool,
    values: BTreeMap<u32, Bytes>,
    /// Contributions not yet sent to the parent.
    fresh: BTreeSet<u32>,
    deadline: Time,
    hold: Time,
}

impl Gathers {
    pub(super) fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn memory(&self) -> usize {
        let value = |value: &Bytes| value.len() + 64;
        let each = |gather: &Gather| size_of::<Gather>() + gather.values.values().map(value).sum::<usize>();
        self.open.values().map(each).sum()
    }

    fn end(&mut self, id: u32) -> Option<Gather> {
        self.ended.insert(id);
        if self.ended.len() > REMEMBERED {
            self.ended.pop_first();
        }
        self.open.remove(&id)
    }
}

impl Node {
    pub(super) fn begin_gather(&mut self, id: u32, body: &Bytes, within: Duration) {
        let me = self.config.name.rank;
        if self.ended || self.gathers.ended.contains(&id) {
            return self.emit(Event::GatherFailed {
                id,
                missing: vec![me],
            });
        }
        let deadline = self.now + within;
        let gather = self.gather_of(id, deadline);
        gather.called = true;
        gather.values.insert(me, body.clone());
        gather.fresh.insert(me);
        self.review_gather(id);
    }

    fn gather_of(&mut self, id: u32, deadline: Time) -> &mut Gather {
        self.gathers.open.entry(id).or_insert_with(|| Gather {
            called: false,
            values: BTreeMap::new(),
            fresh: BTreeSet::new(),
            deadline,
            hold: Time::NEVER,
        })
    }

    pub(super) fn on_gather(&mut self, body: &Bytes) -> Option<()> {
        let mut reader = Reader::new(body);
        let (id, left) = (reader.word()?, Duration::from_millis(u64::from(reader.word()?)));
        let crowded =
            self.gathers.open.len() >= self.config.operations && !self.gathers.open.contains_key(&id);
        if crowded || self.gathers.ended.contains(&id) {
            return Some(());
        }
        let values = read_table(&mut reader)?;
        let (deadline, ranks) = (self.now + left, self.config.ranks);
        let gather = self.gather_of(id, deadline);
        for (rank, value) in values.into_iter().filter(|&(rank, _)| rank < ranks) {
            if gather.values.insert(rank, value).is_none() {
                gather.fresh.insert(rank);
            }
        }
        self.review_gather(id);
        Some(())
    }

    pub(super) fn review_gathers(&mut self) {
        let ids: Vec<u32> = self.gathers.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.review_gather(id));
    }

    fn is_complete(&self, gather: &Gather) -> bool {
        let me = self.config.name.rank;
        let lost = self.notices.len();
        // Do not compute the branch before it can be complete.
        let branch = self.routed.tree.branch(me);
        gather.values.len() + lost >= branch.len()
            && branch
                .iter()
                .all(|&rank| gather.values.contains_key(&rank) || self.is_lost(rank))
    }

    fn review_gather(&mut self, id: u32) {
        let Some(gather) = self.gathers.open.get(&id) else {
            return;
        };
        let complete = self.is_complete(gather);
        if complete && self.is_root() {
            return self.publish(id);
        }
        if complete && !gather.fresh.is_empty() {
            self.report_gather(id);
        }
        let (until, root) = (self.now + self.config.hold, self.is_root());
        let margin = self.config.margin * 2;
        let Some(gather) = self.gathers.open.get_mut(&id) else {
            return;
        };
        if !gather.fresh.is_empty() && !complete && gather.hold == Time::NEVER && !root {
            gather.hold = until;
        }
        let end = if root {
            gather.deadline
        } else {
            gather.deadline + margin
        };
        let at = end.min(gather.hold);
        self.timers.set(Key::Gather(id), at);
    }

    fn report_gather(&mut self, id: u32) {
        let Some(parent) = self.routed.parent else { return };
        let now = self.now;
        let Some(gather) = self.gathers.open.get_mut(&id) else {
            return;
        };
        let fresh = std::mem::take(&mut gather.fresh);
        let values = fresh
            .iter()
            .filter_map(|rank| Some((*rank, gather.values.get(rank)?)));
        let mut writer = Writer::default();
        writer.word(id).word(millis(gather.deadline.since(now)));
        write_table(&mut writer, values.collect());
        let body = writer.done();
        let ix = self.rank(parent);
        self.send_control(ix, GATHER, body, None);
    }

    pub(super) fn gather_due(&mut self, id: u32) {
        let (now, margin) = (self.now, self.config.margin * 2);
        let Some(gather) = self.gathers.open.get_mut(&id) else {
            return;
        };
        if gather.hold <= now {
            gather.hold = Time::NEVER;
            if !gather.fresh.is_empty() {
                self.report_gather(id);
            }
        }
        let Some(gather) = self.gathers.open.get(&id) else {
            return;
        };
        if self.is_root() && gather.deadline <= now {
            return self.publish(id);
        }
        if gather.deadline + margin <= now {
            return self.gather_failed(id);
        }
        self.review_gather(id);
    }

    fn gather_failed(&mut self, id: u32) {
        self.timers.clear(Key::Gather(id));
        let Some(gather) = self.gathers.end(id) else {
            return;
        };
        if gather.called {
            let missing = (0..self.config.ranks).filter(|rank| !gather.values.contains_key(rank));
            let missing = missing.collect();
            self.emit(Event::GatherFailed { id, missing });
        }
    }

    /// Publishes the table, with all contributions that will come.
    fn publish(&mut self, id: u32) {
        let Some(gather) = self.gathers.open.get(&id) else {
            return;
        };
        let missing: Vec<u32> = (0..self.config.ranks)
            .filter(|rank| !gather.values.contains_key(rank))
            .collect();
        let mut writer = Writer::default();
        writer.list(missing.iter());
        write_table(
            &mut writer,
            gather.values.iter().map(|(rank, value)| (*rank, value)).collect(),
        );
        let body = writer.done();
        self.cast_gathered(id, body);
    }

    /// Handles a result.
    pub(super) fn gathered(&mut self, id: u32, body: &Bytes) {
        self.timers.clear(Key::Gather(id));
        let called = self.gathers.end(id).is_some_and(|gather| gather.called);
        let mut reader = Reader::new(body);
        let read = reader
            .list()
            .and_then(|missing| Some((missing, read_table(&mut reader)?)));
        match read {
            Some((missing, table)) if called => self.emit(Event::Gathered { id, table, missing }),
            Some(_) => {}
            None => self.counters.malformed += 1,
        }
    }

    /// Sends everything to a new parent.
    pub(super) fn gather_again(&mut self) {
        for gather in self.gathers.open.values_mut() {
            gather.fresh = gather.values.keys().copied().collect();
        }
        self.review_gathers();
    }

    /// Ends all gathers with the node.
    pub(super) fn end_gathers(&mut self) {
        let ids: Vec<u32> = self.gathers.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.gather_failed(id));
    }
}

fn write_table(writer: &mut Writer, values: Vec<(u32, &Bytes)>) {
    writer.word(values.len() as u32);
    for (rank, value) in values {
        writer.word(rank).word(value.len() as u32).rest(value);
    }
}

fn read_table(reader: &mut Reader<'_>) -> Option<Vec<(u32, Bytes)>> {
    let count = reader.word()? as usize;
    // Each takes at least eight bytes.
    if count > reader.rest.len() / 8 {
        return None;
    }
    let mut table = Vec::with_capacity(count);
    for _ in 0..count {
        let (rank, length) = (reader.word()?, reader.word()? as usize);
        table.push((rank, reader.bytes(length)?));
    }
    Some(table)
}

//! The receiving end.

use std::collections::BTreeMap;

use doorbell_fabric::time::Time;

use super::charge;
use crate::bytes::Bytes;
use crate::config::Config;
use crate::wire::{Seq, WINDOW_UNIT};

/// After so many messages an acknowledgement waits no longer.
const ACK_EVERY: u32 = 16;

/// A message that came.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) tag: u32,
    pub(crate) body: Bytes,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is the next one, or was kept until it is.
    Kept,
    /// It was here already.
    Duplicate,
    /// There is no room, or it is far ahead: its sender keeps it.
    Refused,
}

#[derive(Debug)]
pub(crate) struct Rx {
    /// Counted from the beginning of time; its low half is the place on the wire.
    expected: u64,
    held: BTreeMap<u64, Item>,
    held_charge: u32,
    /// Of messages that were handed up and that nobody has received.
    pub(crate) unmatched: u32,
    /// When an acknowledgement is due.
    due: Time,
    since: u32,
    /// The window that was last told.
    told: u32,
}

impl Rx {
    /// A stream that begins at this place.
    pub(crate) fn new(first: Seq) -> Self {
        Self {
            // High enough that places before it can be told from negative ones.
            expected: (1 << 32) + u64::from(first.0),
            held: BTreeMap::new(),
            held_charge: 0,
            unmatched: 0,
            due: Time::NEVER,
            since: 0,
            told: u32::MAX,
        }
    }

    pub(crate) fn expected(&self) -> Seq {
        Seq(self.expected as u32)
    }

    /// The first place beyond the gap, if there is one.
    pub(crate) fn gap(&self) -> Option<Seq> {
        self.held
            .keys()
            .next()
            .filter(|&&first| first != self.expected)
            .map(|&first| Seq(first as u32))
    }

    /// A message came: of this place, in a stream that begins `back` places before it.
    pub(crate) fn arrive(
        &mut self,
        now: Time,
        sequence: Seq,
        back: u16,
        item: Item,
        config: &Config,
    ) -> Arrival {
        let ahead = i64::from(self.expected().until(sequence));
        let floor = ahead - i64::from(back);
        if floor > 0 {
            self.skip(floor as u64);
        }
        let ahead = i64::from(self.expected().until(sequence));
        if ahead < 0 {
            self.due = now;
            return Arrival::Duplicate;
        }
        if ahead > 0 {
            self.due = now;
        }
        let charge = charge(item.body.len());
        let full = self.held_charge.saturating_add(charge) > config.unmatched;
        let at = self.expected + ahead as u64;
        if self.held.contains_key(&at) {
            return Arrival::Duplicate;
        }
        if ahead >= i64::from(config.window_messages) || (ahead > 0 && full) {
            return Arrival::Refused;
        }
        self.held.insert(at, item);
        self.held_charge += charge;
        Arrival::Kept
    }

    /// What is before that was given up by its sender.
    fn skip(&mut self, by: u64) {
        self.expected += by;
        let later = self.held.split_off(&self.expected);
        for item in std::mem::replace(&mut self.held, later).into_values() {
            self.held_charge -= charge(item.body.len());
        }
    }

    /// What the next message counts for, if it is here.
    pub(crate) fn ready(&self) -> Option<u32> {
        self.held.get(&self.expected).map(|item| charge(item.body.len()))
    }

    /// Its tag.
    pub(crate) fn tag(&self) -> Option<u32> {
        self.held.get(&self.expected).map(|item| item.tag)
    }

    /// Takes the next message.
    pub(crate) fn pop(&mut self, now: Time, config: &Config) -> Option<Item> {
        let item = self.held.remove(&self.expected)?;
        self.held_charge -= charge(item.body.len());
        self.expected += 1;
        self.since += 1;
        let wait = if self.since >= ACK_EVERY {
            now
        } else {
            now + config.ack_delay
        };
        self.due = self.due.min(wait);
        Some(item)
    }

    /// There is no room for the next message: its sender keeps it, and so need not we.
    pub(crate) fn refuse(&mut self, now: Time) {
        self.held.clear();
        self.held_charge = 0;
        // Whatever is told now, the sender waits for news.
        self.told = 0;
        self.due = now;
    }

    /// A receive has taken messages that count for so much. Whoever was told of a narrow window is told that it is wider.
    pub(crate) fn received(&mut self, now: Time, less: u32, most: u32) {
        self.unmatched = self.unmatched.saturating_sub(less);
        if self.told < most / 4 && self.unmatched <= most / 2 {
            self.told = u32::MAX;
            self.due = now;
        }
    }

    /// Whether the sender was told of so narrow a window that it may be waiting.
    pub(crate) fn is_shut(&self, most: u32) -> bool {
        self.told < most / 4
    }

    /// For how much there is room, in units of the wire.
    pub(crate) fn window(&self, most: u32) -> u16 {
        let room = most
            .saturating_sub(self.unmatched)
            .saturating_sub(self.held_charge);
        u16::try_from(room / WINDOW_UNIT).unwrap_or(u16::MAX)
    }

    /// When an acknowledgement is due.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// An acknowledgement is wanted at once.
    pub(crate) fn hurry(&mut self, now: Time) {
        self.due = now;
    }

    /// One is being sent, which tells of so much room.
    pub(crate) fn acknowledged(&mut self, window: u16) {
        self.told = u32::from(window) * WINDOW_UNIT;
        self.due = Time::NEVER;
        self.since = 0;
    }
}

//! The receiving end of a stream.

use std::collections::BTreeMap;

use doorbell_fabric::time::Time;

use super::charge;
use crate::bytes::Bytes;
use crate::config::Config;
use crate::wire::{Seq, WINDOW_UNIT};

/// Number of messages after which an acknowledgement is sent at once.
const ACK_EVERY: u32 = 16;

/// A received message.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) tag: u32,
    pub(crate) body: Bytes,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is the next one, or is kept until its turn.
    Kept,
    /// It is a duplicate.
    Duplicate,
    /// There is no room, or it is too far ahead: its sender keeps it.
    Refused,
}

#[derive(Debug)]
pub(crate) struct Rx {
    /// The position expected next, as a 64-bit count; its low half is on the wire.
    expected: u64,
    held: BTreeMap<u64, Item>,
    held_charge: u32,
    /// Bytes delivered that no receive has taken.
    pub(crate) unmatched: u32,
    /// The time at which an acknowledgement is due.
    due: Time,
    since: u32,
    /// The window that was last advertised.
    told: u32,
}

impl Rx {
    /// Creates a stream that begins at this position.
    pub(crate) fn new(first: Seq) -> Self {
        Self {
            // High enough that earlier positions do not become negative.
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

    /// Returns the first position beyond the gap, if there is one.
    pub(crate) fn gap(&self) -> Option<Seq> {
        self.held
            .keys()
            .next()
            .filter(|&&first| first != self.expected)
            .map(|&first| Seq(first as u32))
    }

    /// Takes a message at this position, of a stream that begins `back` positions before it.
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

    /// Skips positions that the sender has given up.
    fn skip(&mut self, by: u64) {
        self.expected += by;
        let later = self.held.split_off(&self.expected);
        for item in std::mem::replace(&mut self.held, later).into_values() {
            self.held_charge -= charge(item.body.len());
        }
    }

    /// Returns what the next message counts for, if it is here.
    pub(crate) fn ready(&self) -> Option<u32> {
        self.held.get(&self.expected).map(|item| charge(item.body.len()))
    }

    /// Returns the tag of the next message.
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

    /// Drops the next message for lack of room: its sender keeps it.
    pub(crate) fn refuse(&mut self, now: Time) {
        self.held.clear();
        self.held_charge = 0;
        // Whatever window is advertised now, the sender waits for an update.
        self.told = 0;
        self.due = now;
    }

    /// Widens the window after a receive has taken messages, and advertises it if it was narrow.
    pub(crate) fn received(&mut self, now: Time, less: u32, most: u32) {
        self.unmatched = self.unmatched.saturating_sub(less);
        if self.told < most / 4 && self.unmatched <= most / 2 {
            self.told = u32::MAX;
            self.due = now;
        }
    }

    /// Whether the advertised window is so narrow that the sender may be waiting.
    pub(crate) fn is_shut(&self, most: u32) -> bool {
        self.told < most / 4
    }

    /// Returns the window, in units of the wire.
    pub(crate) fn window(&self, most: u32) -> u16 {
        let room = most
            .saturating_sub(self.unmatched)
            .saturating_sub(self.held_charge);
        u16::try_from(room / WINDOW_UNIT).unwrap_or(u16::MAX)
    }

    /// Returns when an acknowledgement is due.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Makes an acknowledgement due at once.
    pub(crate) fn hurry(&mut self, now: Time) {
        self.due = now;
    }

    /// Records an acknowledgement that advertises this window.
    pub(crate) fn acknowledged(&mut self, window: u16) {
        self.told = u32::from(window) * WINDOW_UNIT;
        self.due = Time::NEVER;
        self.since = 0;
    }
}

//! The address handles of destinations, in a table of fixed size.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;

use super::MadDestination;
use crate::rc::mail::Mail;
use crate::sys::{AddressHandle, AhAttr, Domain};
use crate::ways::SendsBy;

/// Destinations whose handles are kept; the one that was made longest ago makes room.
const MOST: usize = 1024;
/// How long a handle is used: the hardware address behind it may change.
const FRESH: Duration = Duration::from_secs(10);
/// How long a handle that is not used any more is kept: what was sent by it has gone by then.
const RETIRED: Duration = Duration::from_secs(2);

/// A destination without the queue pair, which a handle does not name.
type Key = MadDestination;

/// The handles of destinations, by their slots.
#[derive(Debug, Default)]
pub(super) struct HandleTable {
    slots: Vec<Option<(Key, Time)>>,
    of: FxHashMap<Key, u32>,
    next: u32,
    retired: VecDeque<(Time, AddressHandle)>,
}

fn key(to: &MadDestination) -> Key {
    MadDestination { pair: 0, ..*to }
}

impl HandleTable {
    /// Returns the slot of a destination's handle, which is made where there is none and nothing has to be
    /// waited for; `None` where something would have to be.
    pub(super) fn slot(
        &mut self,
        now: Time,
        to: &MadDestination,
        attributes: AhAttr,
        domain: &Arc<Domain>,
        mail: &mut Mail,
        mut is_ready: impl FnMut() -> bool,
    ) -> io::Result<Option<u32>> {
        while self.retired.front().is_some_and(|(until, _)| *until <= now) {
            self.retired.pop_front();
        }
        let key = key(to);
        let known = self.of.get(&key).copied();
        let made = known.and_then(|slot| self.slots.get(slot as usize).copied().flatten());
        if let (Some(slot), Some((_, made))) = (known, made)
            && now < made + FRESH
        {
            return Ok(Some(slot));
        }
        // Answers to many senders use up handles: the next one is made when old ones are destroyed.
        if self.retired.len() >= MOST {
            return Ok(known.filter(|_| made.is_some()));
        }
        if !is_ready() {
            return Ok(None);
        }
        let handle = AddressHandle::new(domain, attributes)?;
        let slot = known.unwrap_or_else(|| self.take_slot());
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some((key, now));
        }
        self.of.insert(key, slot);
        let before = mail.replace(slot, Some(handle));
        self.retired.extend(before.map(|handle| (now + RETIRED, handle)));
        Ok(Some(slot))
    }

    /// Returns a slot that is free, or that is made so.
    fn take_slot(&mut self) -> u32 {
        if self.slots.len() < MOST {
            self.slots.push(None);
            return self.slots.len() as u32 - 1;
        }
        let slot = self.next;
        self.next = (slot + 1) % MOST as u32;
        if let Some((key, _)) = self.slots.get_mut(slot as usize).and_then(Option::take) {
            self.of.remove(&key);
        }
        slot
    }

    /// Every handle may lead elsewhere: all are made again when they are needed. Those that there are keep
    /// entries of the port's table of GIDs.
    pub(super) fn clear(&mut self, now: Time, mail: &mut Mail) {
        self.of.clear();
        for (slot, place) in self.slots.iter_mut().enumerate() {
            if place.take().is_some() {
                let handle = mail.replace(slot as u32, None);
                self.retired.extend(handle.map(|handle| (now + RETIRED, handle)));
            }
        }
    }
}

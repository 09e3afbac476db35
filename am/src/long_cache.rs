//! The LID cache: keeps the first half of an unpacked Long until the second arrives (gasnet.md section 4).
//!
//! Header and data of an unpacked Long arrive as two messages, in either order. The first is inserted under
//! its source and its LID (a request's is the offset of its chunk, a reply's has bit 23 set); the second
//! removes it.
//!
//! A table with open addressing and backward shift: no tombstones, and no allocation except when it grows, up
//! to the most that can be outstanding. Anything beyond that breaks the protocol.
//!
//! Headers are bounded: those of requests hold credits, those of replies our chunks. Data is not, so it is
//! counted for each source, and a source that sends data without headers takes no room from others.

use crate::credit::Due;
use crate::handler::MAX_ARGS;
use crate::match_bits::REPLY_LID;

/// What arrived first.
#[derive(Debug)]
pub(crate) enum Half {
    /// A request's header.
    Request(RequestHeader),
    /// A reply's header.
    Reply(ReplyHeader),
    /// The data, there.
    Data {
        /// Offset in the segment.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
}

/// The fields of a request's header, kept until its data arrives.
#[derive(Debug)]
pub(crate) struct RequestHeader {
    pub(crate) handler: u8,
    pub(crate) count: u8,
    pub(crate) args: [u32; MAX_ARGS],
    /// Offset of the requester's chunk, for the reply.
    pub(crate) chunk: u32,
    pub(crate) due: Due,
}

/// The fields of a reply's header, kept until its data arrives. Its arguments stay in their chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyHeader {
    /// The number of our chunk that it lies in.
    pub(crate) chunk: u32,
    pub(crate) handler: u8,
    pub(crate) count: u8,
}

#[derive(Debug)]
struct Slot {
    key: u64,
    half: Half,
}

/// Halves by source and LID.
#[derive(Debug)]
pub(crate) struct LidCache {
    slots: Vec<Option<Slot>>,
    used: usize,
    most: usize,
    /// Data that waits, of each source: of requests, and of replies.
    data: Box<[[u16; 2]]>,
}

impl LidCache {
    const SMALLEST: usize = 64;

    /// Creates a cache for `most` halves of `sources` sources.
    pub(crate) fn new(most: usize, sources: usize) -> Self {
        let slots = Self::SMALLEST.min((most.max(1) * 2).next_power_of_two());
        Self {
            slots: std::iter::repeat_with(|| None).take(slots.max(2)).collect(),
            used: 0,
            most,
            data: vec![[0; 2]; sources].into(),
        }
    }

    /// Returns how much data of a source waits for headers like the one of this LID.
    pub(crate) fn data(&self, source: u32, lid: u32) -> u16 {
        let of_source = self.data.get(source as usize);
        of_source.map_or(0, |data| data[usize::from(lid & REPLY_LID != 0)])
    }

    fn data_mut(&mut self, key: u64) -> Option<&mut u16> {
        let of_source = self.data.get_mut((key >> 32) as usize)?;
        of_source.get_mut(usize::from(key as u32 & REPLY_LID != 0))
    }

    /// Returns how many halves wait.
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    /// Takes out what arrived before, if it did.
    pub(crate) fn take(&mut self, source: u32, lid: u32) -> Option<Half> {
        let at = self.find(key(source, lid))?;
        self.used -= 1;
        let taken = self.slots[at].take();
        self.close_gap(at);
        taken.map(|slot| self.taken(slot))
    }

    /// Inserts the half that arrived first; its key must not be present.
    ///
    /// # Errors
    /// The half, when more are present than can be outstanding.
    pub(crate) fn put(&mut self, source: u32, lid: u32, half: Half) -> Result<(), Half> {
        if self.used >= self.most {
            return Err(half);
        }
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let key = key(source, lid);
        if let Half::Data { .. } = half
            && let Some(data) = self.data_mut(key)
        {
            *data = data.saturating_add(1);
        }
        self.insert(Slot { key, half });
        Ok(())
    }

    fn taken(&mut self, slot: Slot) -> Half {
        if let Half::Data { .. } = slot.half
            && let Some(data) = self.data_mut(slot.key)
        {
            *data = data.saturating_sub(1);
        }
        slot.half
    }

    /// Takes out everything of a source that is lost; `each` sees it.
    #[cold]
    pub(crate) fn forget(&mut self, source: u32, mut each: impl FnMut(Half)) {
        let mut at = 0;
        while at < self.slots.len() {
            let is_lost = self.slots[at]
                .as_ref()
                .is_some_and(|slot| (slot.key >> 32) as u32 == source);
            if !is_lost {
                at += 1;
                continue;
            }
            self.used -= 1;
            let taken = self.slots[at].take();
            // The entry that moved into the gap is looked at next.
            self.close_gap(at);
            if let Some(slot) = taken {
                each(self.taken(slot));
            }
        }
        // A shift around the end can bring one behind the place where the walk began: once more finds it.
        if self
            .slots
            .iter()
            .flatten()
            .any(|slot| (slot.key >> 32) as u32 == source)
        {
            self.forget(source, each);
        }
    }

    fn home(&self, key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    fn find(&self, key: u64) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        // At most half of the slots are used: there is an end.
        while let Some(slot) = &self.slots[at] {
            if slot.key == key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn insert(&mut self, slot: Slot) {
        let mask = self.slots.len() - 1;
        let mut at = self.home(slot.key);
        while self.slots[at].is_some() {
            at = (at + 1) & mask;
        }
        self.slots[at] = Some(slot);
        self.used += 1;
    }

    /// Moves those that follow a gap, as far as their homes allow.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut at = (gap + 1) & mask;
        while let Some(slot) = &self.slots[at] {
            let home = self.home(slot.key);
            let from_home = at.wrapping_sub(home) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.slots[gap] = self.slots[at].take();
                gap = at;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let wider = std::iter::repeat_with(|| None)
            .take(self.slots.len() * 2)
            .collect();
        let old = std::mem::replace(&mut self.slots, wider);
        self.used = 0;
        for slot in old.into_iter().flatten() {
            self.insert(slot);
        }
    }
}

const fn key(source: u32, lid: u32) -> u64 {
    (source as u64) << 32 | lid as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn data(offset: u64) -> Half {
        Half::Data { offset, length: 1 }
    }

    fn offset(half: Option<Half>) -> Option<u64> {
        match half {
            Some(Half::Data { offset, .. }) => Some(offset),
            _ => None,
        }
    }

    #[test]
    fn more_than_can_be_under_way_is_refused() {
        let mut cache = LidCache::new(2, 3);
        assert!(cache.put(1, 0, data(1)).is_ok());
        assert!(cache.put(1, 1024, data(2)).is_ok());
        assert_eq!(
            offset(cache.put(2, 0, data(3)).err()),
            Some(3),
            "it is given back"
        );
        assert_eq!((cache.data(1, 7), cache.data(2, 7)), (2, 0));
        assert_eq!(cache.data(1, REPLY_LID), 0, "those of replies are others");
        assert_eq!(offset(cache.take(1, 0)), Some(1));
        assert!(cache.put(2, 0, data(3)).is_ok());
        assert_eq!((cache.data(1, 7), cache.data(2, 7)), (1, 1));
        cache.forget(1, |_| ());
        assert_eq!((cache.data(1, 7), cache.data(2, 7)), (0, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Against a map that is plainly right.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u32..6, 0u32..40, any::<bool>(), any::<u64>()), 1..600)) {
            let mut cache = LidCache::new(200, 6);
            let mut model: HashMap<(u32, u32), u64> = HashMap::new();
            for (source, lid, forget, value) in steps {
                if forget && value % 16 == 0 {
                    let mut seen = 0;
                    cache.forget(source, |_| seen += 1);
                    let before = model.len();
                    model.retain(|key, _| key.0 != source);
                    prop_assert_eq!(seen, before - model.len());
                } else if let Some(there) = model.remove(&(source, lid)) {
                    prop_assert_eq!(offset(cache.take(source, lid)), Some(there));
                } else {
                    prop_assert!(cache.take(source, lid).is_none());
                    prop_assert!(cache.put(source, lid, data(value)).is_ok());
                    model.insert((source, lid), value);
                }
                prop_assert_eq!(cache.len(), model.len());
                let of_source = model.keys().filter(|key| key.0 == source).count();
                prop_assert_eq!(usize::from(cache.data(source, 0)), of_source);
            }
        }
    }
}

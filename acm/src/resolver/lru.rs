//! A bounded map that evicts the least recently used entry.
//!
//! ```text
//!   index: key ─► slot         slots: [ ··· | key, value, newer, older | ··· ]
//!                               newest ─► ○ ─► ○ ─► ○ ◄─ oldest: goes first
//! ```

use std::collections::HashMap;
use std::hash::Hash;

const NONE: u32 = u32::MAX;

/// A bounded map with least-recently-used eviction; see the module's documentation.
pub(super) struct Lru<K, V> {
    places: HashMap<K, u32>,
    slots: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    most: usize,
}

pub(super) struct Slot<K, V> {
    key: K,
    value: V,
    newer: u32,
    older: u32,
}

/// The position of a new value in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The value counts as just used.
    Newest,
    /// The value was only overheard: the next such value replaces it, and no value that was used is evicted
    /// for it.
    Oldest,
}

impl<K: Clone + Eq + Hash, V> Lru<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            places: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            most: most.clamp(1, NONE as usize - 1),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// Returns the value that is evicted next.
    pub(super) fn oldest(&self) -> Option<&V> {
        let slot = self.slots.get(self.oldest as usize)?.as_ref()?;
        Some(&slot.value)
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let at = *self.places.get(key)?;
        self.slots[at as usize].as_ref().map(|slot| &slot.value)
    }

    /// Returns the value without marking it as used.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        self.slots[at as usize].as_mut().map(|slot| &mut slot.value)
    }

    /// Returns the value and marks it as used.
    pub(super) fn touch(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        self.unlink(at);
        self.link(at, Rank::Newest);
        self.slots[at as usize].as_mut().map(|slot| &mut slot.value)
    }

    /// Inserts or replaces a value; returns the entry that was evicted for it.
    pub(super) fn insert(&mut self, key: K, value: V, rank: Rank) -> Option<(K, V)> {
        if let Some(&at) = self.places.get(&key) {
            if rank == Rank::Newest {
                self.unlink(at);
                self.link(at, rank);
            }
            if let Some(slot) = &mut self.slots[at as usize] {
                slot.value = value;
            }
            return None;
        }
        let gone = if self.len() == self.most {
            self.pop_oldest()
        } else {
            None
        };
        let slot = Slot {
            key: key.clone(),
            value,
            newer: NONE,
            older: NONE,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(slot);
        self.places.insert(key, at);
        self.link(at, rank);
        gone
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.places.remove(key)?;
        self.unlink(at);
        self.free.push(at);
        self.slots[at as usize].take().map(|slot| slot.value)
    }

    fn pop_oldest(&mut self) -> Option<(K, V)> {
        let key = self.slots.get(self.oldest as usize)?.as_ref()?.key.clone();
        let value = self.remove(&key)?;
        Some((key, value))
    }

    /// Iterates in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().flatten().map(|slot| (&slot.key, &slot.value))
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let gone: Vec<K> = self
            .iter()
            .filter(|(key, value)| !keep(key, value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Returns roughly how many bytes it holds, without what values point to.
    pub(super) fn memory(&self) -> usize {
        let slot = size_of::<Option<Slot<K, V>>>();
        let place = size_of::<(K, u32)>() + 1;
        self.slots.capacity() * slot + self.places.capacity() * place + self.free.capacity() * 4
    }

    fn unlink(&mut self, at: u32) {
        let Some((newer, older)) = self.slots[at as usize].as_ref().map(|s| (s.newer, s.older)) else {
            return;
        };
        match self.slot(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slot(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link(&mut self, at: u32, rank: Rank) {
        let (newer, older) = match rank {
            Rank::Newest => (NONE, std::mem::replace(&mut self.newest, at)),
            Rank::Oldest => (std::mem::replace(&mut self.oldest, at), NONE),
        };
        match self.slot(newer) {
            Some(slot) => slot.older = at,
            None => self.newest = at,
        }
        match self.slot(older) {
            Some(slot) => slot.newer = at,
            None => self.oldest = at,
        }
        if let Some(slot) = self.slot(at) {
            (slot.newer, slot.older) = (newer, older);
        }
    }

    fn slot(&mut self, at: u32) -> Option<&mut Slot<K, V>> {
        self.slots.get_mut(at as usize)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u16, bool),
        Touch(u8),
        Remove(u8),
        Retain(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..12, any::<u16>(), any::<bool>()).prop_map(|(k, v, warm)| Step::Insert(k, v, warm)),
            2 => (0u8..12).prop_map(Step::Touch),
            1 => (0u8..12).prop_map(Step::Remove),
            1 => (1u8..4).prop_map(Step::Retain),
        ]
    }

    proptest! {
        /// The model is a list with the newest first.
        #[test]
        fn it_does_what_a_list_does(most in 1usize..8, steps in proptest::collection::vec(step(), 0..200)) {
            let (mut lru, mut model) = (Lru::new(most), Vec::<(u8, u16)>::new());
            for step in steps {
                match step {
                    Step::Insert(key, value, warm) => {
                        let rank = if warm { Rank::Newest } else { Rank::Oldest };
                        let mut gone = None;
                        match model.iter().position(|(k, _)| *k == key) {
                            Some(at) if warm => {
                                model.remove(at);
                                model.insert(0, (key, value));
                            }
                            Some(at) => model[at].1 = value,
                            None => {
                                if model.len() == most {
                                    gone = model.pop();
                                }
                                let at = if warm { 0 } else { model.len() };
                                model.insert(at, (key, value));
                            }
                        }
                        prop_assert_eq!(lru.insert(key, value, rank), gone);
                    }
                    Step::Touch(key) => {
                        let at = model.iter().position(|(k, _)| *k == key);
                        let found = at.map(|at| model.remove(at));
                        model.splice(0..0, found);
                        prop_assert_eq!(lru.touch(&key).copied(), found.map(|(_, value)| value));
                    }
                    Step::Remove(key) => {
                        let at = model.iter().position(|(k, _)| *k == key);
                        let found = at.map(|at| model.remove(at).1);
                        prop_assert_eq!(lru.remove(&key), found);
                    }
                    Step::Retain(by) => {
                        model.retain(|(key, _)| key % by != 0);
                        lru.retain(|key, _| key % by != 0);
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                for (key, value) in &model {
                    prop_assert_eq!(lru.get(key), Some(value));
                }
            }
            while let Some(last) = model.pop() {
                prop_assert_eq!(lru.pop_oldest(), Some(last));
            }
            prop_assert_eq!(lru.pop_oldest(), None);
        }
    }
}

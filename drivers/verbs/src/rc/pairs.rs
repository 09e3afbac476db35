//! The peers of connections by the numbers of their queue pairs: what each completion is looked up in.

/// What a place has.
#[derive(Clone, Copy, Debug)]
struct Entry {
    pair: u32,
    peer: u32,
}

/// A place without an entry.
const FREE: Entry = Entry {
    pair: u32::MAX,
    peer: u32::MAX,
};
/// Places at the beginning: a power of two.
const FEWEST: usize = 16;
/// Spreads numbers that follow each other, by the golden ratio.
const SPREAD: u32 = 0x9e37_79b1;

/// A table with open addressing, at most half full, so that a look-up is one load mostly.
#[derive(Debug)]
pub(crate) struct Pairs {
    entries: Vec<Entry>,
    /// What a number is shifted by to be a place.
    shift: u32,
    count: usize,
}

impl Default for Pairs {
    fn default() -> Self {
        Self::with(FEWEST)
    }
}

impl Pairs {
    fn with(places: usize) -> Self {
        Self {
            entries: vec![FREE; places],
            shift: u32::BITS - places.trailing_zeros(),
            count: 0,
        }
    }

    /// The peer of a queue pair.
    #[inline]
    pub(crate) fn get(&self, pair: u32) -> Option<u32> {
        let mut at = self.place(pair);
        // It ends at a free place at the latest, as half of them are.
        while let Some(entry) = self.entries.get(at)
            && entry.peer != FREE.peer
        {
            if entry.pair == pair {
                return Some(entry.peer);
            }
            at = self.next(at);
        }
        None
    }

    /// Adds a queue pair, or gives it to another peer. `u32::MAX` is no peer.
    pub(crate) fn insert(&mut self, pair: u32, peer: u32) {
        if (self.count + 1) * 2 > self.entries.len() {
            self.build(self.entries.len() * 2, None);
        }
        let mut at = self.place(pair);
        while self.entries[at].peer != FREE.peer && self.entries[at].pair != pair {
            at = self.next(at);
        }
        self.count += usize::from(self.entries[at].peer == FREE.peer);
        self.entries[at] = Entry { pair, peer };
    }

    /// Takes a queue pair away.
    pub(crate) fn remove(&mut self, pair: u32) {
        if self.get(pair).is_some() {
            self.build(self.entries.len(), Some(pair));
        }
    }

    /// Any queue pair.
    #[cfg(test)]
    pub(crate) fn any(&self) -> Option<u32> {
        let mut entries = self.entries.iter();
        let used = entries.find(|entry| entry.peer != FREE.peer);
        used.map(|entry| entry.pair)
    }

    /// The peers of all queue pairs.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u32> {
        let peers = self.entries.iter().map(|entry| entry.peer);
        peers.filter(|peer| *peer != FREE.peer)
    }

    /// Builds the table again, without one queue pair.
    fn build(&mut self, places: usize, without: Option<u32>) {
        let old = std::mem::replace(self, Self::with(places));
        let kept = old.entries.iter().filter(|entry| entry.peer != FREE.peer);
        for entry in kept.filter(|entry| Some(entry.pair) != without) {
            self.insert(entry.pair, entry.peer);
        }
    }

    #[inline]
    fn place(&self, pair: u32) -> usize {
        (pair.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_is_a_map() {
        let (mut pairs, mut map) = (Pairs::default(), HashMap::new());
        let mut dice = 1u32;
        for step in 0..5_000 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Some share their place, whatever its size.
            let pair = (dice >> 24) << (dice >> 20 & 15);
            if dice >> 8 & 3 == 0 {
                pairs.remove(pair);
                map.remove(&pair);
            } else {
                pairs.insert(pair, step);
                map.insert(pair, step);
            }
            assert_eq!(pairs.get(pair), map.get(&pair).copied());
        }
        assert!(map.len() > 100);
        for pair in (0..24).flat_map(|shift| (0..256).map(move |number| number << shift)) {
            assert_eq!(pairs.get(pair), map.get(&pair).copied(), "{pair}");
        }
        let (mut peers, mut values): (Vec<_>, Vec<_>) =
            (pairs.peers().collect(), map.into_values().collect());
        peers.sort_unstable();
        values.sort_unstable();
        assert_eq!(peers, values);
    }
}

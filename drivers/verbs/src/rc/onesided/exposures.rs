//! Memory that peers may use, its keys and windows.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::memory::Counted;
use super::wire::Verdict;
use crate::sys::{Beneath, Held, Place, Window};

/// Windows that wait to be bound again at most.
const MOST_WINDOWS: usize = 64;
/// Withdrawn exposures that are remembered, so that a late access is not taken for a guess.
const MOST_WITHDRAWN: usize = 256;
/// Random numbers that are drawn at a time.
const DRAWN: usize = 64;

/// How far an exposure has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its registration has a key of its own.
    Registered,
    /// Its window is to be bound.
    Unbound,
    /// The request to bind it is under way.
    Binding,
    Bound,
    /// Its key is being ended.
    Ending,
    /// Its key has ended, and its window may be bound again.
    Ended,
}

/// The registration of exposed memory.
#[derive(Debug)]
pub(super) enum Kept {
    Pinned(Counted),
    /// A part of a region's registration.
    Region(Place),
    /// A registration for each peer that has looked it up, in its own protection domain.
    Each(Held, Vec<(u32, Counted)>),
    /// Nothing is registered for no bytes.
    Nothing,
}

/// Memory that is exposed to one peer or to all.
#[derive(Debug)]
pub(super) struct Exposed {
    // First: a window ends before the registration beneath it.
    pub(super) window: Option<Window>,
    pub(super) kept: Kept,
    pub(super) to: Option<u32>,
    /// The rights of peers.
    pub(super) access: i32,
    pub(super) key: u32,
    pub(super) state: State,
    /// It was never bound: messages wait for it.
    pub(super) is_fresh: bool,
    /// The peer waits to learn its key.
    pub(super) is_looked_up: bool,
}

impl Exposed {
    /// What a window is bound on: the registration, the place in it, and the length.
    pub(super) fn beneath(&self) -> Option<(Beneath<'_>, usize, usize)> {
        match &self.kept {
            Kept::Pinned(counted) => {
                let pinned = &counted.pinned;
                Some((Beneath::Pinned(pinned), 0, pinned.held().len()))
            }
            Kept::Region(place) => Some((Beneath::Registered(&place.memory), place.at, place.length)),
            Kept::Each(..) | Kept::Nothing => None,
        }
    }
}

/// The exposures of a rail.
#[derive(Default)]
pub(super) struct Exposures {
    by_name: FxHashMap<u64, Exposed>,
    /// Windows that are not bound.
    windows: VecDeque<Window>,
    withdrawn: VecDeque<(u64, Option<u32>)>,
    drawn: Vec<u32>,
    /// Numbers that were counted where there were none at random.
    counted: u32,
}

/// The next key of a window: its upper 24 bits, and a fresh tag.
pub(super) fn next_key(window: &Window) -> u32 {
    let last = window.key();
    last & !0xff | last.wrapping_add(1) & 0xff
}

impl Exposures {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// A name that no exposure has: the device's key, the round, and 24 random bits.
    pub(super) fn name(&mut self, key: u32, round: u64) -> u64 {
        loop {
            let name = u64::from(key) | round << 32 | u64::from(self.draw() >> 8) << 40;
            // A name of nothing would be a peer's first guess.
            if name >> 40 != 0 && !self.by_name.contains_key(&name) {
                return name;
            }
        }
    }

    fn draw(&mut self) -> u32 {
        if self.drawn.is_empty() {
            let mut bytes = [0; DRAWN * 4];
            let is_random = getrandom::fill(&mut bytes).is_ok();
            self.take_drawn(&bytes, is_random);
        }
        self.drawn.pop().unwrap_or(0)
    }

    /// Takes random numbers, or others where there are none: the device's key counts then,
    /// and no name is found twice.
    #[cold]
    fn take_drawn(&mut self, bytes: &[u8; DRAWN * 4], is_random: bool) {
        for chunk in bytes.chunks_exact(4) {
            self.counted = self.counted.wrapping_add(1);
            let drawn = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            // Its upper 24 bits count.
            self.drawn.push(if is_random { drawn } else { self.counted << 8 });
        }
    }

    pub(super) fn add(&mut self, name: u64, exposed: Exposed) {
        self.by_name.insert(name, exposed);
    }

    pub(super) fn get(&mut self, name: u64) -> Option<&mut Exposed> {
        self.by_name.get_mut(&name)
    }

    /// Removes an exposure, and remembers that it was one.
    pub(super) fn remove(&mut self, name: u64) -> Option<Exposed> {
        let exposed = self.by_name.remove(&name)?;
        if self.withdrawn.len() == MOST_WITHDRAWN {
            self.withdrawn.pop_front();
        }
        self.withdrawn.push_back((name, exposed.to));
        Some(exposed)
    }

    /// What is to be answered to a peer about a name that is none of its exposures.
    pub(super) fn verdict(&self, name: u64, peer: u32) -> Verdict {
        let was_its = |entry: &&(u64, Option<u32>)| entry.0 == name && entry.1.is_none_or(|to| to == peer);
        match self.withdrawn.iter().find(was_its) {
            Some(_) => Verdict::Withdrawn,
            None => Verdict::Unknown,
        }
    }

    /// The names of the exposures to one peer alone.
    pub(super) fn of_peer(&self, peer: u32) -> Vec<u64> {
        let all = self.by_name.iter();
        all.filter(|(_, exposed)| exposed.to == Some(peer))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Drops what a peer has of exposures to all.
    pub(super) fn drop_shares(&mut self, peer: u32) {
        for exposed in self.by_name.values_mut() {
            if let Kept::Each(_, shares) = &mut exposed.kept {
                shares.retain(|(of, _)| *of != peer);
            }
        }
    }

    /// A window that is not bound.
    pub(super) fn window(&mut self) -> Option<Window> {
        // The one that has waited longest: its tags come again as late as can be.
        self.windows.pop_front()
    }

    /// Keeps a window that is not bound.
    pub(super) fn keep(&mut self, window: Window) {
        if self.windows.len() < MOST_WINDOWS {
            self.windows.push_back(window);
        }
    }

    /// Forgets all exposures, whose windows were dropped.
    pub(super) fn clear(&mut self) {
        self.by_name.clear();
    }

    /// Drops all windows, bound or not.
    pub(super) fn drop_windows(&mut self) {
        self.windows.clear();
        for exposed in self.by_name.values_mut() {
            exposed.window = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exposures of no bytes have no key of the device's.
    #[test]
    fn names_differ_where_there_are_no_random_numbers() {
        let mut exposures = Exposures::default();
        for _ in 0..3 * DRAWN {
            if exposures.drawn.is_empty() {
                exposures.take_drawn(&[0xa5; DRAWN * 4], false);
            }
            let name = exposures.name(0, 0);
            let exposed = Exposed {
                window: None,
                kept: Kept::Nothing,
                to: None,
                access: 0,
                key: 0,
                state: State::Registered,
                is_fresh: false,
                is_looked_up: false,
            };
            assert!(exposures.get(name).is_none());
            exposures.add(name, exposed);
        }
        assert_eq!(exposures.len(), 3 * DRAWN);
    }
}

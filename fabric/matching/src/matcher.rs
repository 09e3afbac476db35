//! The matcher's public face.

use std::num::NonZeroU64;

use crate::{
    Entry, EntryHandle, List, Match, MatchError, MatchKey, Pattern, Posted, Unexpected, UnexpectedHandle,
};

/// How many entries and messages to make room for up front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Posted entries.
    pub posted: usize,
    /// Kept messages.
    pub unexpected: usize,
}

/// Kept messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Messages.
    pub messages: usize,
    /// Sum of their lengths, saturating.
    pub bytes: u64,
}

/// The matching structure of one receiver. Owned by one thread; see the crate's first page.
#[derive(Debug)]
pub struct Matcher {
    number: u64,
    posted: Vec<(EntryHandle, Entry)>,
    unexpected: Vec<Unexpected>,
}

impl Matcher {
    /// An empty matcher. `seed` must be random and unknown to the senders: it keeps chosen keys from
    /// colliding.
    #[must_use]
    pub fn new(seed: u64, capacity: Capacity) -> Self {
        let _ = seed;
        Self {
            number: 0,
            posted: Vec::with_capacity(capacity.posted),
            unexpected: Vec::with_capacity(capacity.unexpected),
        }
    }

    fn next(&mut self) -> NonZeroU64 {
        self.number += 1;
        NonZeroU64::new(self.number).expect("64 bits do not wrap")
    }

    /// Posts an entry.
    ///
    /// On the priority list the kept messages are searched first, oldest first. A message that matches is
    /// removed and returned, and the entry is not linked. A persistent entry is posted again by the caller,
    /// until it is linked (reference: portals, section 6): the loop is in the caller's hands because only
    /// the caller knows whether kept messages take room (libfabric's multi-receive: yes, by
    /// [`Entry::take`]; Portals: no, they lie in the overflow buffer).
    ///
    /// On the overflow list the entry is always linked.
    pub fn post(&mut self, entry: &Entry) -> Posted {
        if entry.list == List::Priority
            && let Some(found) = self.claim_for(entry)
        {
            return Posted::Found(found);
        }
        let handle = EntryHandle {
            number: self.next(),
            slot: 0,
        };
        self.posted.push((handle, *entry));
        Posted::Linked(handle)
    }

    /// A message of `length` bytes has arrived: the entry that takes it, or `None` when nobody waits for it
    /// (then [`Matcher::keep`] it).
    ///
    /// The earliest posted entry of the priority list that matches wins, then the earliest posted of the
    /// overflow list.
    pub fn arrive(&mut self, key: MatchKey, length: u64) -> Option<Match> {
        self.arrive_at(key, 0, length)
    }

    /// The same for a message that names its place in the entry (Portals' remote offset).
    pub fn arrive_at(&mut self, key: MatchKey, remote_offset: u64, length: u64) -> Option<Match> {
        for list in [List::Priority, List::Overflow] {
            for at in 0..self.posted.len() {
                let (handle, entry) = &mut self.posted[at];
                if entry.list != list || !entry.pattern.matches(&key) {
                    continue;
                }
                let Some(place) = entry.take(remote_offset, length) else {
                    continue;
                };
                let (handle, token) = (*handle, entry.token);
                if place.unlinked {
                    self.posted.remove(at);
                }
                let (offset, length, unlinked) = (place.offset, place.length, place.unlinked);
                return Some(Match {
                    token,
                    handle,
                    offset,
                    length,
                    unlinked,
                    list,
                });
            }
        }
        None
    }

    /// Keeps a message that nobody waited for, or that an overflow entry caught, behind all earlier ones.
    pub fn keep(&mut self, key: MatchKey, length: u64, token: u64) -> UnexpectedHandle {
        let handle = UnexpectedHandle {
            number: self.next(),
            slot: 0,
        };
        self.unexpected.push(Unexpected {
            handle,
            key,
            length,
            token,
        });
        handle
    }

    /// Looks for the earliest kept message that matches; nothing is removed (probe, `FI_PEEK`).
    pub fn peek(&mut self, pattern: &Pattern) -> Option<Unexpected> {
        self.unexpected
            .iter()
            .find(|kept| pattern.matches(&kept.key))
            .copied()
    }

    /// Takes the earliest kept message that matches out of matching (matched probe, `FI_CLAIM`,
    /// `FI_DISCARD`).
    pub fn claim(&mut self, pattern: &Pattern) -> Option<Unexpected> {
        let at = self
            .unexpected
            .iter()
            .position(|kept| pattern.matches(&kept.key))?;
        Some(self.unexpected.remove(at))
    }

    /// [`Matcher::peek`] for an entry: also skips messages that a `no_truncate` entry has no room for
    /// (Portals' search, "only").
    pub fn peek_for(&mut self, entry: &Entry) -> Option<Unexpected> {
        let fits =
            |kept: &&Unexpected| entry.pattern.matches(&kept.key) && entry.place(0, kept.length).is_some();
        self.unexpected.iter().find(fits).copied()
    }

    /// [`Matcher::claim`] for an entry (Portals' search, "delete").
    pub fn claim_for(&mut self, entry: &Entry) -> Option<Unexpected> {
        let found = self.peek_for(entry)?;
        self.remove_unexpected(found.handle).ok()
    }

    /// Takes one kept message out, by the handle that `keep` or `peek` gave.
    ///
    /// # Errors
    /// [`MatchError::StaleUnexpected`] when it is gone already.
    pub fn remove_unexpected(&mut self, handle: UnexpectedHandle) -> Result<Unexpected, MatchError> {
        let at = self.unexpected.iter().position(|kept| kept.handle == handle);
        at.map(|at| self.unexpected.remove(at))
            .ok_or(MatchError::StaleUnexpected(handle))
    }

    /// Unlinks a posted entry and returns its token.
    ///
    /// # Errors
    /// [`MatchError::StaleEntry`] when it was matched, used up or cancelled before: its completion then
    /// comes, or came, the ordinary way.
    pub fn cancel(&mut self, handle: EntryHandle) -> Result<u64, MatchError> {
        let at = self.posted.iter().position(|(posted, _)| *posted == handle);
        at.map(|at| self.posted.remove(at).1.token)
            .ok_or(MatchError::StaleEntry(handle))
    }

    /// Takes out every kept message of one source, oldest first, and returns how many (its peer died).
    pub fn drain_source(&mut self, source: u32, mut gone: impl FnMut(Unexpected)) -> usize {
        let before = self.unexpected.len();
        self.unexpected.retain(|kept| {
            let keep = kept.key.source != source;
            if !keep {
                gone(*kept);
            }
            keep
        });
        before - self.unexpected.len()
    }

    /// Unlinks every posted entry that names exactly this source (its peer died), in no particular order,
    /// hands over each token, and returns how many. Entries that leave source bits open stay.
    pub fn cancel_source(&mut self, source: u32, mut gone: impl FnMut(u64)) -> usize {
        let before = self.posted.len();
        self.posted.retain(|(_, entry)| {
            let keep = entry.pattern.source_ignore != 0 || entry.pattern.source != source;
            if !keep {
                gone(entry.token);
            }
            keep
        });
        before - self.posted.len()
    }

    /// Entries linked on both lists.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// All kept messages and their bytes.
    #[must_use]
    pub fn unexpected_load(&self) -> Load {
        load(self.unexpected.iter())
    }

    /// The kept messages of one source and their bytes.
    #[must_use]
    pub fn unexpected_load_of(&self, source: u32) -> Load {
        load(self.unexpected.iter().filter(|kept| kept.key.source == source))
    }

    /// The kept messages, earliest first (for reports; cost grows with their number).
    pub fn unexpected(&self) -> impl Iterator<Item = Unexpected> + '_ {
        self.unexpected.iter().copied()
    }

    /// The posted entries with their handles, in no particular order (for reports: who waits for what).
    pub fn posted(&self) -> impl Iterator<Item = (EntryHandle, Entry)> + '_ {
        self.posted.iter().copied()
    }
}

fn load<'a>(kept: impl Iterator<Item = &'a Unexpected>) -> Load {
    kept.fold(Load::default(), |sum, kept| Load {
        messages: sum.messages + 1,
        bytes: sum.bytes.saturating_add(kept.length),
    })
}

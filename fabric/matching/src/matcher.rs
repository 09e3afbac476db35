//! The matcher's public face.

use crate::hash::Hasher;
use crate::kept::KeptMessages;
use crate::masks::{Masked, Masks};
use crate::posted::PostedEntries;
use crate::{
    Candidate, Entry, EntryHandle, List, Match, MatchError, MatchKey, Pattern, Posted, Unexpected,
    UnexpectedHandle,
};

/// How many entries and messages to make room for up front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of posted entries.
    pub posted: usize,
    /// Number of kept messages.
    pub unexpected: usize,
}

/// Kept messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of messages.
    pub messages: usize,
    /// Sum of their lengths, saturating.
    pub bytes: u64,
}

/// The matching structure of one receiver, owned by one thread.
///
/// # Cost
/// * A fully given post or arrival (exact source, nothing ignored) is one look-up, whatever is queued.
/// * While wildcards are posted, an arrival looks once into each class of them (a class: entries that leave
///   the same bits open). Eight classes on each list are hashed; entries of further classes are searched
///   linearly. The exact class of the priority list is one of its eight.
/// * A wildcard search of kept messages uses the index of its class. Without one it tries the 16 earliest,
///   and only then builds it (in time proportional to what is kept); it lives until nothing is kept. Four
///   classes have one at a time; searches of further classes walk all kept messages.
/// * Entries that refuse what does not fit are passed one by one, if they come first on the same key.
///
/// # Memory
/// Everything lives in slabs and tables that only grow, by doubling: nothing is allocated while the numbers
/// of entries and messages stay below what [`Capacity`] or an earlier peak made room for. (The index of a
/// wildcard class takes its room at the first search that needs it, and beyond 64 sources each takes 48 bytes
/// at its first kept message.) The matcher bounds nothing: how much may be kept is the caller's policy, and
/// [`Matcher::unexpected_load`] is what it needs to know.
#[derive(Debug)]
pub struct Matcher {
    hasher: Hasher,
    posted: PostedEntries,
    kept: KeptMessages,
}

impl Matcher {
    /// An empty matcher.
    ///
    /// `seed` must be random and unknown to the senders, one for each process at least. Keys are hashed with
    /// it (two multiplications with three secrets), so that no fixed set of chosen keys lengthens the
    /// probing. The order of matches does not depend on it.
    #[must_use]
    pub fn new(seed: u64, capacity: Capacity) -> Self {
        Self {
            hasher: Hasher::new(seed),
            posted: PostedEntries::with_capacity(capacity.posted),
            kept: KeptMessages::with_capacity(capacity.unexpected),
        }
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
    #[inline(always)]
    pub fn post(&mut self, entry: &Entry) -> Posted {
        // Ordinary receives go on by value: built from constants, such an entry never exists in memory.
        if entry.is_plain() {
            let Pattern {
                table, source, bits, ..
            } = entry.pattern;
            return self.post_plain(MatchKey { table, source, bits }, entry.length, entry.token);
        }
        if entry.is_ordinary() {
            return self.post_open(entry.pattern, entry.length, entry.token);
        }
        self.post_other(entry)
    }

    /// Links an entry whatever is kept: for a caller that has already searched ([`Matcher::claim_where`]).
    #[inline]
    pub fn link(&mut self, entry: &Entry) -> EntryHandle {
        if entry.is_plain() {
            let Pattern {
                table, source, bits, ..
            } = entry.pattern;
            let key = Masked::exact(&MatchKey { table, source, bits });
            return self
                .posted
                .link_plain(&self.hasher, key, entry.length, entry.token);
        }
        self.posted.link(&self.hasher, entry)
    }

    #[inline(always)]
    fn post_plain(&mut self, key: MatchKey, length: u64, token: u64) -> Posted {
        if !self.kept.is_empty()
            && let Some(found) = self.kept.claim_exact(&self.hasher, key)
        {
            return Posted::Found(found);
        }
        Posted::Linked(
            self.posted
                .link_plain(&self.hasher, Masked::exact(&key), length, token),
        )
    }

    #[inline(always)]
    fn post_open(&mut self, pattern: Pattern, length: u64, token: u64) -> Posted {
        if !self.kept.is_empty()
            && let Some(found) = self.claim_kept(pattern)
        {
            return Posted::Found(found);
        }
        // By value, as an ordinary receive that leaves nothing open.
        let (key, masks) = (Masked::of(&pattern), Masks::of(&pattern));
        Posted::Linked(self.posted.link_open(&self.hasher, key, masks, length, token))
    }

    #[inline(never)]
    fn claim_kept(&mut self, pattern: Pattern) -> Option<Unexpected> {
        self.claim(&pattern)
    }

    #[inline(never)]
    fn post_other(&mut self, entry: &Entry) -> Posted {
        if entry.list == List::Priority
            && !self.kept.is_empty()
            && let Some(found) = self.claim_for(entry)
        {
            return Posted::Found(found);
        }
        Posted::Linked(self.posted.link(&self.hasher, entry))
    }

    /// A message of `length` bytes has arrived: the entry that takes it, or `None` when no entry matches it
    /// (then [`Matcher::keep`] it).
    ///
    /// The earliest posted entry of the priority list that matches wins, then the earliest posted of the
    /// overflow list.
    #[inline(always)]
    pub fn arrive(&mut self, key: MatchKey, length: u64) -> Option<Match> {
        self.posted.arrive(&self.hasher, &key, 0, length)
    }

    /// Matches an arrival that names its place in the entry (Portals' remote offset).
    #[inline]
    pub fn arrive_at(&mut self, key: MatchKey, remote_offset: u64, length: u64) -> Option<Match> {
        self.posted.arrive(&self.hasher, &key, remote_offset, length)
    }

    /// The entry that would take such a message; nothing is changed, so that the caller may still refuse it,
    /// and the entry stays what it was (Portals: permissions are looked at when the entry is found).
    /// [`Matcher::take`] makes it so.
    #[inline(always)]
    pub fn look(&self, key: &MatchKey, remote_offset: u64, length: u64) -> Option<Candidate> {
        self.posted.look(&self.hasher, key, remote_offset, length)
    }

    /// Returns what [`Matcher::look`] would find for a message like an earlier one: with the same key, at
    /// least as long and from the same offset, where that one was found for `handle` on the priority list.
    /// Entries that are linked keep their order, and what was too full for the earlier one has not become
    /// emptier, so it is the same one as long as it is linked. `None`: it is not, or this message would be
    /// its last. Then look.
    #[inline(always)]
    pub fn look_again(&self, handle: EntryHandle, remote_offset: u64, length: u64) -> Option<Candidate> {
        self.posted.look_again(handle, remote_offset, length)
    }

    /// The entry takes the message that [`Matcher::look`] found it for: from here on all is as after
    /// [`Matcher::arrive_at`].
    ///
    /// # Errors
    /// [`MatchError::StaleEntry`] when the entry has left its list since.
    #[inline(always)]
    pub fn take(&mut self, candidate: &Candidate) -> Result<(), MatchError> {
        if self.posted.take(candidate) {
            Ok(())
        } else {
            Err(MatchError::StaleEntry(candidate.hit.handle))
        }
    }

    /// Keeps a message that no entry matched, or that an overflow entry caught, behind all earlier ones.
    #[inline]
    pub fn keep(&mut self, key: MatchKey, length: u64, token: u64) -> UnexpectedHandle {
        self.kept.keep(&self.hasher, key, length, token)
    }

    /// Looks for the earliest kept message that matches; nothing is removed (probe, `FI_PEEK`).
    #[inline]
    pub fn peek(&mut self, pattern: &Pattern) -> Option<Unexpected> {
        let slot = self.kept.find(&self.hasher, pattern, |_, _| true)?;
        Some(self.kept.get(slot))
    }

    /// Takes the earliest kept message that matches out of matching (matched probe, `FI_CLAIM`,
    /// `FI_DISCARD`).
    #[inline]
    pub fn claim(&mut self, pattern: &Pattern) -> Option<Unexpected> {
        let slot = self.kept.find(&self.hasher, pattern, |_, _| true)?;
        Some(self.kept.remove(&self.hasher, slot))
    }

    /// [`Matcher::peek`] for an entry: also skips messages that a `no_truncate` entry has no room for, taking
    /// their offset as 0 (Portals' search, "only"). An interface that keeps messages with a remote offset
    /// gives `keep` the offset plus the length, so that what fits is judged by where a message ends.
    #[inline]
    pub fn peek_for(&mut self, entry: &Entry) -> Option<Unexpected> {
        let slot = self.find_for(entry)?;
        Some(self.kept.get(slot))
    }

    /// [`Matcher::claim`] for an entry (Portals' search, "delete").
    #[inline]
    pub fn claim_for(&mut self, entry: &Entry) -> Option<Unexpected> {
        let slot = self.find_for(entry)?;
        Some(self.kept.remove(&self.hasher, slot))
    }

    /// The earliest kept message that matches and that the caller has room for, by its length and token;
    /// nothing is removed.
    #[inline]
    pub fn peek_where(&mut self, pattern: &Pattern, fits: impl Fn(u64, u64) -> bool) -> Option<Unexpected> {
        let slot = self.kept.find(&self.hasher, pattern, fits)?;
        Some(self.kept.get(slot))
    }

    /// Takes out the first kept message that matches and fits.
    #[inline]
    pub fn claim_where(&mut self, pattern: &Pattern, fits: impl Fn(u64, u64) -> bool) -> Option<Unexpected> {
        let slot = self.kept.find(&self.hasher, pattern, fits)?;
        Some(self.kept.remove(&self.hasher, slot))
    }

    /// Takes one kept message out, by the handle that `keep` or `peek` gave.
    ///
    /// # Errors
    /// [`MatchError::StaleUnexpected`] when it is gone already.
    pub fn remove_unexpected(&mut self, handle: UnexpectedHandle) -> Result<Unexpected, MatchError> {
        let slot = self.kept.slot(handle)?;
        Ok(self.kept.remove(&self.hasher, slot))
    }

    /// Unlinks a posted entry and returns its token.
    ///
    /// # Errors
    /// [`MatchError::StaleEntry`] when it was matched, used up or cancelled before: its completion then
    /// comes, or came, the ordinary way.
    pub fn cancel(&mut self, handle: EntryHandle) -> Result<u64, MatchError> {
        self.posted.cancel(&self.hasher, handle)
    }

    /// Takes out every kept message of one source, oldest first, and returns how many (its peer died).
    pub fn drain_source(&mut self, source: u32, gone: impl FnMut(Unexpected)) -> usize {
        self.kept.drain(&self.hasher, source, gone)
    }

    /// Unlinks every posted entry that names exactly this source (its peer died), in no particular order,
    /// hands over each token, and returns how many. Entries that leave source bits open stay.
    pub fn cancel_source(&mut self, source: u32, gone: impl FnMut(u64)) -> usize {
        self.posted.cancel_source(&self.hasher, source, gone)
    }

    /// Entries linked on both lists.
    #[inline]
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// All kept messages and their bytes.
    #[inline]
    #[must_use]
    pub fn unexpected_load(&self) -> Load {
        self.kept.load()
    }

    /// The kept messages of one source and their bytes.
    #[must_use]
    pub fn unexpected_load_of(&self, source: u32) -> Load {
        self.kept.load_of(&self.hasher, source)
    }

    /// The kept messages, earliest first (for reports; cost grows with their number).
    pub fn unexpected(&self) -> impl Iterator<Item = Unexpected> + '_ {
        self.kept.iter()
    }

    /// The posted entries with their handles, in no particular order (for reports: who waits for what).
    pub fn posted(&self) -> impl Iterator<Item = (EntryHandle, Entry)> + '_ {
        self.posted.iter()
    }

    #[inline]
    fn find_for(&mut self, entry: &Entry) -> Option<u32> {
        if entry.no_truncate {
            return self.kept.find(&self.hasher, &entry.pattern, |length, _| {
                entry.place(0, length).is_some()
            });
        }
        self.kept.find(&self.hasher, &entry.pattern, |_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    /// Two keys with one hash, of all keys that a function makes.
    fn twins(make: impl Fn(u32) -> MatchKey) -> [MatchKey; 2] {
        let hasher = Hasher::new(SEED);
        let mut seen = std::collections::HashMap::new();
        (0..1_000_000)
            .find_map(|number| {
                let key = make(number);
                let earlier = seen.insert(Masked::exact(&key).hash(&hasher, 0), key)?;
                Some([earlier, key])
            })
            .expect("a million keys have 32-bit twins")
    }

    #[test]
    fn keys_with_one_hash_are_distinguished() {
        let by_bits = twins(|number| MatchKey::new(1, 2, u64::from(number)));
        let by_source = twins(|number| MatchKey::new(1, number, 5));
        let by_table = twins(|number| MatchKey::new(number, 2, 5));
        for [one, other] in [by_bits, by_source, by_table] {
            let mut matcher = Matcher::new(SEED, Capacity::default());
            matcher.post(&Entry::once(one.into(), 0, 1));
            assert_eq!(matcher.arrive(other, 0), None, "{one:?} is not {other:?}");
            matcher.post(&Entry::once(other.into(), 0, 2));
            matcher.post(&Entry::once(one.into(), 0, 3));
            let mut taker = |key| matcher.arrive(key, 0).map(|hit| hit.token);
            assert_eq!(
                [taker(one), taker(other), taker(one), taker(other)],
                [Some(1), Some(2), Some(3), None]
            );

            matcher.keep(one, 0, 1);
            assert_eq!(matcher.claim(&other.into()), None);
            matcher.keep(other, 0, 2);
            let mut claim = |key: MatchKey| matcher.claim(&key.into()).map(|kept| kept.token);
            assert_eq!([claim(other), claim(other), claim(one)], [Some(2), None, Some(1)]);
        }
    }
}

//! The deliberately slow model: plain lists, scanned from the front. Its answers define what is right.
#![allow(unreachable_pub, reason = "a module shared by test programs")]

use doorbell_matching::{
    Entry, EntryHandle, List, MatchKey, Pattern, Placement, Unexpected, UnexpectedHandle,
};

/// Posted entries and kept messages in the order they came, under the handles of the structure tested.
#[derive(Default)]
pub struct Model {
    pub posted: Vec<(EntryHandle, Entry)>,
    pub kept: Vec<Unexpected>,
}

impl Model {
    pub fn link(&mut self, handle: EntryHandle, entry: &Entry) {
        self.posted.push((handle, *entry));
    }

    pub fn arrive(
        &mut self,
        key: &MatchKey,
        offset: u64,
        length: u64,
    ) -> Option<(EntryHandle, Entry, Placement)> {
        for list in [List::Priority, List::Overflow] {
            for at in 0..self.posted.len() {
                let (handle, entry) = &mut self.posted[at];
                if entry.list != list || !matches(&entry.pattern, key) {
                    continue;
                }
                let Some(place) = place(entry, offset, length) else {
                    continue;
                };
                let found = (*handle, *entry, place);
                if place.unlinked {
                    self.posted.remove(at);
                }
                return Some(found);
            }
        }
        None
    }

    pub fn keep(&mut self, handle: UnexpectedHandle, key: MatchKey, length: u64, token: u64) {
        self.kept.push(Unexpected {
            handle,
            key,
            length,
            token,
        });
    }

    pub fn peek(&self, pattern: &Pattern) -> Option<Unexpected> {
        self.kept.iter().find(|kept| matches(pattern, &kept.key)).copied()
    }

    /// The message a posted entry would find; `no_truncate` skips what is too long.
    pub fn peek_for(&self, entry: &Entry) -> Option<Unexpected> {
        let fits = |kept: &&Unexpected| {
            matches(&entry.pattern, &kept.key) && place(&mut entry.clone(), 0, kept.length).is_some()
        };
        self.kept.iter().find(fits).copied()
    }

    pub fn remove(&mut self, handle: UnexpectedHandle) -> bool {
        let before = self.kept.len();
        self.kept.retain(|kept| kept.handle != handle);
        before != self.kept.len()
    }

    pub fn cancel(&mut self, handle: EntryHandle) -> Option<u64> {
        let at = self.posted.iter().position(|(posted, _)| *posted == handle)?;
        Some(self.posted.remove(at).1.token)
    }

    pub fn drain(&mut self, source: u32) -> Vec<u64> {
        let gone = self
            .kept
            .iter()
            .filter(|kept| kept.key.source == source)
            .map(|kept| kept.token)
            .collect();
        self.kept.retain(|kept| kept.key.source != source);
        gone
    }

    pub fn cancel_source(&mut self, source: u32) -> Vec<u64> {
        let names = |entry: &Entry| entry.pattern.source_ignore == 0 && entry.pattern.source == source;
        let gone = self
            .posted
            .iter()
            .filter(|(_, entry)| names(entry))
            .map(|(_, entry)| entry.token)
            .collect();
        self.posted.retain(|(_, entry)| !names(entry));
        gone
    }
}

/// The rule bit by bit, written apart from the crate's own.
pub fn matches(pattern: &Pattern, key: &MatchKey) -> bool {
    let source = (0..32).all(|bit| {
        pattern.source_ignore >> bit & 1 == 1 || pattern.source >> bit & 1 == key.source >> bit & 1
    });
    let bits =
        (0..64).all(|bit| pattern.ignore >> bit & 1 == 1 || pattern.bits >> bit & 1 == key.bits >> bit & 1);
    pattern.table == key.table && source && bits
}

/// Where a message lands, written apart from the crate's own; a managed entry counts it as filled.
fn place(entry: &mut Entry, remote_offset: u64, length: u64) -> Option<Placement> {
    use doorbell_matching::Space::{Managed, Remote};
    let offset = if entry.space == Remote {
        remote_offset
    } else {
        entry.filled
    };
    let room = entry.length.max(offset) - offset;
    if entry.no_truncate && room < length {
        return None;
    }
    let accepted = if length < room { length } else { room };
    let mut unlinked = entry.use_once;
    if let Managed { min_free } = entry.space {
        entry.filled += accepted;
        unlinked |= min_free > 0 && entry.length.saturating_sub(entry.filled) < min_free;
    }
    Some(Placement {
        offset,
        length: accepted,
        unlinked,
    })
}

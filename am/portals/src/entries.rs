//! List and match entries, and the headers of unexpected messages (reference: portals, sections 5 and 6).

use doorbell_fabric::ni::{Entry, EntryOptions, Event, EventKind, List, Memory, NiFail};
use doorbell_matching::{EntryHandle as Posted, Pattern};

use crate::peers::NONE;

/// What an entry is to its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The entry is not yet on its list: a trigger will append it.
    Reserved,
    /// The entry is on its list.
    Linked,
    /// The entry is off its list for good.
    Gone,
}

/// An entry of the target's memory.
#[derive(Debug)]
pub(crate) struct EntrySlot {
    pub(crate) options: EntryOptions,
    pub(crate) uid: u32,
    /// The counting event's handle; zero for none.
    pub(crate) ct: u32,
    pub(crate) pt: u32,
    pub(crate) list: List,
    pub(crate) standing: Standing,
    /// Operations in progress, and *_OVERFLOW events that are still to come.
    pub(crate) ops: u32,
    /// Unexpected headers that lie in it.
    pub(crate) headers: u32,
    /// *_OVERFLOW events among `ops`: LINK waits for them.
    pub(crate) meeting: u32,
    /// LINK was deferred, and comes when `meeting` is zero, even if the entry is used up meanwhile.
    pub(crate) owes_link: bool,
    /// A trigger will take it off its list, when no peer can be waited for: none is given its memory.
    pub(crate) leaves: bool,
    pub(crate) memory: Memory,
    pub(crate) length: u64,
    pub(crate) user_ptr: u64,
    pub(crate) posted: Option<Posted>,
    /// Neighbours on the list of an interface without matching.
    pub(crate) before: u32,
    pub(crate) behind: u32,
    pub(crate) pattern: Pattern,
    pub(crate) min_free: u64,
}

/// Options that only match entries have.
const OF_MATCHING: EntryOptions = EntryOptions(
    EntryOptions::MANAGE_LOCAL.0
        | EntryOptions::NO_TRUNCATE.0
        | EntryOptions::MAY_ALIGN.0
        | EntryOptions::LOCAL_INC_UH_RLENGTH.0,
);

impl EntrySlot {
    /// Makes an entry of what the call was given; `pattern` is that of its match fields.
    pub(crate) fn new(entry: Entry, pattern: Option<Pattern>, pt: u32, list: List, user_ptr: u64) -> Self {
        let mut options = entry.options;
        if pattern.is_none() {
            options.0 &= !OF_MATCHING.0;
        }
        Self {
            options,
            uid: entry.uid,
            ct: entry.ct.map_or(0, |ct| ct.0),
            pt,
            list,
            standing: Standing::Reserved,
            ops: 0,
            headers: 0,
            meeting: 0,
            owes_link: false,
            leaves: false,
            length: entry.memory.len() as u64,
            memory: entry.memory,
            user_ptr,
            posted: None,
            before: NONE,
            behind: NONE,
            pattern: pattern.unwrap_or(EVERYTHING),
            min_free: entry.min_free,
        }
    }

    /// Whether nothing refers to it.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.ops == 0 && self.headers == 0
    }

    /// Whether a header fits, for entries that do not cut.
    pub(crate) fn has_room(&self, filled: u64, event: &Event) -> bool {
        if !self.options.has(EntryOptions::NO_TRUNCATE) {
            return true;
        }
        let at = if self.options.has(EntryOptions::MANAGE_LOCAL) {
            filled
        } else {
            event.remote_offset
        };
        // Of no bytes nothing is cut off, wherever they are: as with what arrives.
        event.rlength == 0
            || at
                .checked_add(event.rlength)
                .is_some_and(|end| end <= self.length)
    }
}

/// The pattern of what takes everything.
pub(crate) const EVERYTHING: Pattern = Pattern {
    table: 0,
    source: 0,
    source_ignore: u32::MAX,
    bits: 0,
    ignore: u64::MAX,
};

/// The taker of an unexpected header, with what its *_OVERFLOW event needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Consumer {
    /// The entry's index, if it stays on its list.
    pub(crate) entry: u32,
    pub(crate) options: EntryOptions,
    pub(crate) ct: u32,
    pub(crate) user_ptr: u64,
    pub(crate) fail: NiFail,
}

/// An unexpected header.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// The event as the overflow entry had it.
    pub(crate) event: Event,
    /// The overflow entry's index.
    pub(crate) entry: u32,
    /// Whether its bytes have not all landed yet.
    pub(crate) pending: bool,
    /// The entry or search that has taken it meanwhile.
    pub(crate) consumer: Option<Consumer>,
}

/// Headers by number.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    slots: Vec<Option<Header>>,
    free: Vec<u32>,
    /// The headers that are not taken yet, which the limit counts.
    pub(crate) unclaimed: u32,
}

impl Headers {
    pub(crate) fn insert(&mut self, header: Header) -> u32 {
        self.unclaimed += 1;
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Some(header);
            return at;
        }
        self.slots.push(Some(header));
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn get(&self, at: u32) -> Option<&Header> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Header> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    pub(crate) fn take(&mut self, at: u32) -> Option<Header> {
        let header = self.slots.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(header)
    }
}

/// The event of an append that meets a header with this event.
pub(crate) fn met_later(kind: EventKind) -> EventKind {
    match kind {
        EventKind::Get => EventKind::GetOverflow,
        EventKind::Put => EventKind::PutOverflow,
        EventKind::Atomic => EventKind::AtomicOverflow,
        EventKind::FetchAtomic => EventKind::FetchAtomicOverflow,
        other => other,
    }
}

/// The options that an entry needs for an operation.
#[inline(always)]
pub(crate) fn needed(kind: EventKind) -> EntryOptions {
    match kind {
        EventKind::Get | EventKind::GetOverflow => EntryOptions::OP_GET,
        EventKind::FetchAtomic | EventKind::FetchAtomicOverflow => {
            EntryOptions(EntryOptions::OP_GET.0 | EntryOptions::OP_PUT.0)
        }
        _ => EntryOptions::OP_PUT,
    }
}

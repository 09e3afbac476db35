//! Records of the memory that the NIC may access, and of the owners of events.
//!
//! The library returns one word with each event, `user_ptr`. The driver puts the number of a record there, by
//! which an event finds the caller's own word, its memory, and the operation that has ended.
//!
//! | what | kept until |
//! |---|---|
//! | a descriptor's memory | it is released, and the last event of each of its operations has been read; if an operation has no events that show its end, until the interface is closed |
//! | an entry used once that reports all events | its communication event and its AUTO_UNLINK have been read |
//! | any other entry | it was unlinked by the program and its queue has been drained; one that unlinks itself: until the interface is closed (appended again with the same memory, it is the same record) |
//!
//! So memory and records grow with what is in progress and with the different buffers that were ever
//! appended, not with the operations that have completed.

use std::collections::HashMap;

use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::layout::PtlIovec;
use doorbell_fabric::ni::{Entry, EntryOptions, EqHandle, List, Md, MdOptions, Memory, Process};

use crate::sys::Pieces;

/// Memory that the NIC accesses, with its list of pieces if there are several.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Memory,
    vector: Box<[PtlIovec]>,
}

impl Held {
    pub(crate) fn new(memory: Memory) -> Self {
        let piece = |landing: &Landing| PtlIovec {
            base: landing.as_mut_ptr().expose_provenance(),
            length: landing.len() as u64,
        };
        let vector = match &memory {
            Memory::Many(pieces) => pieces.iter().map(piece).collect(),
            Memory::Empty | Memory::One(_) => Box::default(),
        };
        Self { memory, vector }
    }

    /// The memory in the form that the library takes.
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        match &self.memory {
            Memory::Empty => Pieces::one(std::ptr::null_mut(), 0),
            Memory::One(piece) => Pieces::one(piece.as_mut_ptr(), piece.len()),
            Memory::Many(_) => Pieces::many(&self.vector),
        }
    }

    /// Returns which byte of the memory an address is.
    fn place(&self, address: usize) -> Option<u64> {
        let inside = |piece: &Landing, before: u64| {
            let at = address.checked_sub(piece.as_mut_ptr().addr())?;
            (at <= piece.len()).then(|| before + at as u64)
        };
        match &self.memory {
            Memory::Empty => None,
            Memory::One(piece) => inside(piece, 0),
            Memory::Many(pieces) => {
                let mut before = 0;
                for piece in pieces {
                    if let Some(at) = inside(piece, before).filter(|at| *at < before + piece.len() as u64) {
                        return Some(at);
                    }
                    before += piece.len() as u64;
                }
                None
            }
        }
    }

    fn key(&self, user_ptr: u64, list: List) -> Alike {
        let piece = |landing: &Landing| (landing.as_mut_ptr().addr(), landing.len());
        let (first, rest) = match &self.memory {
            Memory::Empty => ((0, 0), Box::default()),
            Memory::One(one) => (piece(one), Box::default()),
            Memory::Many(pieces) => ((0, 0), pieces.iter().map(piece).collect()),
        };
        Alike {
            user_ptr,
            list: list as u8,
            one: first,
            pieces: rest,
        }
    }
}

/// What entries that share a record have in common: the caller's word, the list, and each piece of the
/// memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Alike {
    user_ptr: u64,
    list: u8,
    one: (usize, usize),
    pieces: Box<[(usize, usize)]>,
}

/// The record of one memory descriptor.
#[derive(Debug)]
struct MdRecord {
    /// Unique among all descriptors: the library reuses handles.
    serial: u64,
    held: Held,
    options: MdOptions,
    /// Whether full events of it go to a queue.
    told: bool,
    /// Operations whose end has not been read.
    under_way: u32,
    /// Whether the end of some operation is never reported.
    unsure: bool,
}

/// One of our operations.
#[derive(Clone, Copy, Debug)]
struct OpRecord {
    user_ptr: u64,
    target: Process,
    /// The descriptors that it uses: handle and serial number.
    mds: [Option<(u32, u64)>; 2],
    /// Outstanding events; zero for an operation whose end is never reported, which stays.
    events: u8,
}

/// The record of one list entry.
#[derive(Debug)]
struct EntryRecord {
    user_ptr: u64,
    held: Held,
    list: List,
    /// Outstanding events of an entry that is used once.
    events: Option<u8>,
    /// How many linked entries share this record.
    links: u32,
}

/// Which events a part of an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Sends out of a descriptor, and has a full acknowledgement or not.
    Sends {
        /// Whether an ACK event was requested.
        acked: bool,
        /// Whether another event reports the end (the reply of a fetching atomic).
        replied: bool,
    },
    /// Receives a reply.
    Receives,
}

/// The owner of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventOwner {
    /// The caller's own word.
    pub(crate) user_ptr: u64,
    /// The target of an operation.
    pub(crate) target: Option<Process>,
    /// Which byte of the entry's memory.
    pub(crate) place: u64,
}

/// All of it, for one interface.
#[derive(Debug, Default)]
pub(crate) struct NicRecords {
    /// Descriptors that were ever bound.
    bound: u64,
    mds: HashMap<u32, MdRecord>,
    /// Released, and not at rest.
    released: Vec<MdRecord>,
    ops: Slab<OpRecord>,
    /// Operations whose end is never reported: one record for all of one kind.
    endless: HashMap<(u64, Process, u64), u64>,
    entries: Slab<EntryRecord>,
    /// Entries that may be appended again.
    alike: HashMap<Alike, u64>,
    /// Entries by handle: the record, and the queue of their table entry.
    linked: HashMap<u32, (u64, Option<EqHandle>)>,
    /// Unlinked by the program; forgotten when that queue has been read to its end.
    retired: Vec<(EqHandle, u64)>,
    /// Memory that stays until the end.
    kept: Vec<Held>,
}

impl NicRecords {
    /// A descriptor is bound.
    pub(crate) fn bound(&mut self, handle: u32, md: &Md, held: Held) {
        self.bound += 1;
        let record = MdRecord {
            serial: self.bound,
            held,
            options: md.options,
            told: md.eq.is_some() && !md.options.has(MdOptions::EVENT_SUCCESS_DISABLE),
            under_way: 0,
            unsure: false,
        };
        // The handle of a descriptor that is released but still in use may be reused; both are kept.
        if let Some(old) = self.mds.insert(handle, record) {
            self.kept.push(old.held);
        }
    }

    /// A descriptor is released.
    pub(crate) fn released(&mut self, handle: u32) {
        let Some(record) = self.mds.remove(&handle) else {
            return;
        };
        if record.unsure {
            self.kept.push(record.held);
        } else if record.under_way > 0 {
            self.released.push(record);
        }
    }

    /// Whether the descriptor is known: operations of others are refused.
    pub(crate) fn knows_md(&self, handle: u32) -> bool {
        self.mds.contains_key(&handle)
    }

    /// Returns the word for the events of an operation that is about to start.
    /// [`NicRecords::cancel_operation`] drops it when the call is refused.
    pub(crate) fn start_operation(&mut self, parts: &[(u32, Part)], user_ptr: u64, target: Process) -> u64 {
        let mut events = Some(0);
        for (md, part) in parts {
            events = events
                .zip(self.mds.get(md).and_then(|md| events_of(md, *part)))
                .map(|(sum, more): (u8, u8)| sum + more);
        }
        let named = |(md, _): &(u32, Part)| Some((*md, self.mds.get(md)?.serial));
        let first = parts.first().and_then(named);
        let second = parts.get(1).and_then(named);
        let told = events.filter(|events| *events > 0);
        for (md, _) in parts {
            if let Some(md) = self.mds.get_mut(md) {
                md.under_way += u32::from(told.is_some());
                md.unsure |= told.is_none();
            }
        }
        let record = OpRecord {
            user_ptr,
            target,
            mds: [first, second],
            events: told.unwrap_or(0),
        };
        if told.is_some() {
            return self.ops.insert(record) << 1;
        }
        let key = (user_ptr, target, first.map_or(0, |(_, serial)| serial));
        let ops = &mut self.ops;
        *self.endless.entry(key).or_insert_with(|| ops.insert(record) << 1)
    }

    /// Drops the record of an operation whose call was refused.
    pub(crate) fn cancel_operation(&mut self, word: u64) {
        if self.ops.get(word >> 1).is_some_and(|op| op.events > 0) {
            self.ended(word);
        }
    }

    fn ended(&mut self, word: u64) {
        let Some(op) = self.ops.remove(word >> 1) else {
            return;
        };
        for (md, serial) in op.mds.into_iter().flatten() {
            if let Some(record) = self.mds.get_mut(&md).filter(|md| md.serial == serial) {
                record.under_way = record.under_way.saturating_sub(1);
                continue;
            }
            if let Some(at) = self.released.iter().position(|old| old.serial == serial) {
                let record = &mut self.released[at];
                record.under_way = record.under_way.saturating_sub(1);
                if record.under_way == 0 {
                    self.released.swap_remove(at);
                }
            }
        }
    }

    /// Returns the word for the events of an entry that is about to be appended, with or without an event
    /// queue.
    pub(crate) fn append_entry(
        &mut self,
        entry: &Entry,
        held: Held,
        list: List,
        user_ptr: u64,
        queued: bool,
    ) -> u64 {
        let hidden = EntryOptions::EVENT_COMM_DISABLE.0
            | EntryOptions::EVENT_SUCCESS_DISABLE.0
            | EntryOptions::EVENT_OVER_DISABLE.0
            | EntryOptions::EVENT_UNLINK_DISABLE.0;
        let once = entry.options.has(EntryOptions::USE_ONCE)
            && list == List::Priority
            && queued
            && entry.options.0 & hidden == 0;
        let key = held.key(user_ptr, list);
        if !once && let Some(word) = self.alike.get(&key).copied() {
            if let Some(record) = self.entries.get_mut(word >> 1) {
                record.links += 1;
            }
            return word;
        }
        let record = EntryRecord {
            user_ptr,
            held,
            list,
            events: once.then_some(2),
            links: 1,
        };
        let word = self.entries.insert(record) << 1 | 1;
        if !once {
            self.alike.insert(key, word);
        }
        word
    }

    /// Returns the word for the events of a search. A search that ends with its first event has a record of
    /// its own; one with any number of events shares the record of entries like it.
    pub(crate) fn start_search(&mut self, entry: &Entry, held: Held, user_ptr: u64) -> u64 {
        if !entry.options.has(EntryOptions::USE_ONCE) {
            return self.append_entry(entry, held, List::Priority, user_ptr, false);
        }
        let record = EntryRecord {
            user_ptr,
            held,
            list: List::Priority,
            events: Some(1),
            links: 1,
        };
        self.entries.insert(record) << 1 | 1
    }

    /// The memory of the entry with this word, in the form that the library takes.
    pub(crate) fn entry_pieces(&self, word: u64) -> Pieces<'_> {
        self.entries.get(word >> 1).map_or_else(
            || Pieces::one(std::ptr::null_mut(), 0),
            |record| record.held.pieces(),
        )
    }

    /// It was appended.
    pub(crate) fn appended(&mut self, handle: u32, word: u64, eq: Option<EqHandle>) {
        self.linked.insert(handle, (word, eq));
    }

    /// It was refused.
    pub(crate) fn not_appended(&mut self, word: u64) {
        self.unlink_one(word);
    }

    /// The program has unlinked it.
    pub(crate) fn unlinked(&mut self, handle: u32) {
        match self.linked.remove(&handle) {
            Some((word, Some(eq))) => self.retired.push((eq, word)),
            Some((word, None)) => self.unlink_one(word),
            None => {}
        }
    }

    /// A queue was read to its end: what was unlinked before has no events any more.
    pub(crate) fn read_to_end(&mut self, eq: EqHandle) {
        if self.retired.is_empty() {
            return;
        }
        let retired = std::mem::take(&mut self.retired);
        for (of, word) in retired {
            if of == eq {
                self.unlink_one(word);
            } else {
                self.retired.push((of, word));
            }
        }
    }

    fn unlink_one(&mut self, word: u64) {
        let Some(record) = self.entries.get_mut(word >> 1) else {
            return;
        };
        record.links = record.links.saturating_sub(1);
        if record.links > 0 {
            return;
        }
        let key = record.held.key(record.user_ptr, record.list);
        if self.alike.get(&key) == Some(&word) {
            self.alike.remove(&key);
        }
        self.entries.remove(word >> 1);
    }

    /// An event of one of our operations was read.
    pub(crate) fn of_operation(&mut self, word: u64) -> Option<EventOwner> {
        if word & 1 != 0 {
            return None;
        }
        let op = self.ops.get_mut(word >> 1)?;
        let owner = EventOwner {
            user_ptr: op.user_ptr,
            target: Some(op.target),
            place: 0,
        };
        if op.events > 0 {
            op.events -= 1;
            if op.events == 0 {
                self.ended(word);
            }
        }
        Some(owner)
    }

    /// Handles an event of an entry. `counts`: it is one of those that show the end of an entry that is used
    /// once.
    pub(crate) fn of_entry(&mut self, word: u64, start: usize, counts: bool) -> Option<EventOwner> {
        if word & 1 == 0 {
            return None;
        }
        let record = self.entries.get_mut(word >> 1)?;
        let user_ptr = record.user_ptr;
        let own = record.held.place(start);
        let last = match &mut record.events {
            Some(left) if counts => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            _ => false,
        };
        let place = own.or_else(|| self.overflow_place(start)).unwrap_or(0);
        if last {
            self.unlink_one(word);
        }
        Some(EventOwner {
            user_ptr,
            target: None,
            place,
        })
    }

    /// Returns where in the overflow entry that holds it.
    fn overflow_place(&self, start: usize) -> Option<u64> {
        let overflow = self.entries.iter().filter(|record| record.list == List::Overflow);
        overflow.filter_map(|record| record.held.place(start)).next()
    }

    /// Returns how much is kept, for tests and reports: descriptors not at rest, operations, entries, memory
    /// until the end.
    pub(crate) fn counts(&self) -> [usize; 4] {
        [
            self.released.len(),
            self.ops.len(),
            self.entries.len(),
            self.kept.len(),
        ]
    }
}

/// Returns how many events show the end of a part of an operation; `None` if none does.
fn events_of(md: &MdRecord, part: Part) -> Option<u8> {
    match part {
        Part::Receives => md.told.then_some(1),
        Part::Sends { acked, replied } => {
            let send = md.told && !md.options.has(MdOptions::EVENT_SEND_DISABLE);
            let ack = acked && md.told;
            // The memory is free with SEND; the acknowledgement follows.
            (send || replied).then_some(u8::from(send) + u8::from(ack))
        }
    }
}

/// Records by number, with their places used again.
#[derive(Debug)]
struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u64>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    fn insert(&mut self, record: T) -> u64 {
        if let Some(at) = self.free.pop() {
            self.places[at as usize] = Some(record);
            return at;
        }
        self.places.push(Some(record));
        self.places.len() as u64 - 1
    }

    fn get(&self, at: u64) -> Option<&T> {
        self.places.get(usize::try_from(at).ok()?)?.as_ref()
    }

    fn get_mut(&mut self, at: u64) -> Option<&mut T> {
        self.places.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    fn remove(&mut self, at: u64) -> Option<T> {
        let record = self.places.get_mut(usize::try_from(at).ok()?)?.take()?;
        self.free.push(at);
        Some(record)
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::memory::Region;
    use doorbell_fabric::ni::EqHandle;

    use super::*;

    fn memory(length: usize) -> Memory {
        Memory::One(Landing::Region(
            Region::new(length).unwrap().slice(0, length).unwrap(),
        ))
    }

    fn md(told: bool) -> Md {
        Md {
            memory: memory(64),
            options: MdOptions::NONE,
            eq: told.then_some(EqHandle(1)),
            ct: None,
        }
    }

    const TARGET: Process = Process::rank(7);
    const SENDS: Part = Part::Sends {
        acked: true,
        replied: false,
    };

    #[test]
    fn a_released_descriptor_stays_until_its_operations_have_ended() {
        let mut records = NicRecords::default();
        let descriptor = md(true);
        records.bound(5, &descriptor, Held::new(descriptor.memory.clone()));
        let word = records.start_operation(&[(5, SENDS)], 99, TARGET);
        records.released(5);
        assert_eq!(records.counts(), [1, 1, 0, 0]);
        // SEND, then ACK.
        assert_eq!(records.of_operation(word).unwrap().user_ptr, 99);
        assert_eq!(records.counts(), [1, 1, 0, 0]);
        assert_eq!(records.of_operation(word).unwrap().target, Some(TARGET));
        assert_eq!(records.counts(), [0, 0, 0, 0]);
        assert_eq!(records.of_operation(word), None);
    }

    #[test]
    fn a_handle_that_comes_again_is_another_descriptor() {
        let mut records = NicRecords::default();
        let descriptor = md(true);
        records.bound(5, &descriptor, Held::new(descriptor.memory.clone()));
        let old = records.start_operation(&[(5, SENDS)], 1, TARGET);
        records.released(5);
        records.bound(5, &descriptor, Held::new(descriptor.memory.clone()));
        let new = records.start_operation(&[(5, SENDS)], 2, TARGET);
        // The end of the old one's operation is not that of the new one's.
        records.of_operation(old).unwrap();
        records.of_operation(old).unwrap();
        records.released(5);
        assert_eq!(records.counts(), [1, 1, 0, 0]);
        records.of_operation(new).unwrap();
        records.of_operation(new).unwrap();
        assert_eq!(records.counts(), [0, 0, 0, 0]);
    }

    #[test]
    fn memory_whose_end_is_never_reported_stays_to_the_end_and_its_records_do_not_grow() {
        let mut records = NicRecords::default();
        let descriptor = md(false);
        records.bound(5, &descriptor, Held::new(descriptor.memory.clone()));
        let first = records.start_operation(&[(5, SENDS)], 99, TARGET);
        for _ in 0..1000 {
            assert_eq!(records.start_operation(&[(5, SENDS)], 99, TARGET), first);
        }
        records.cancel_operation(first);
        records.released(5);
        assert_eq!(records.counts(), [0, 1, 0, 1]);
        // A failure is reported all the same, and finds its owner.
        assert_eq!(records.of_operation(first).unwrap().user_ptr, 99);
    }

    #[test]
    fn a_refused_operation_leaves_nothing() {
        let mut records = NicRecords::default();
        let descriptor = md(true);
        records.bound(5, &descriptor, Held::new(descriptor.memory.clone()));
        let word = records.start_operation(&[(5, Part::Receives)], 1, TARGET);
        records.cancel_operation(word);
        records.released(5);
        assert_eq!(records.counts(), [0, 0, 0, 0]);
    }

    #[test]
    fn an_entry_that_is_used_once_goes_with_its_second_event() {
        let mut records = NicRecords::default();
        let buffer = memory(64);
        let start = buffer.address(0);
        let entry = Entry::open(buffer.clone(), EntryOptions::OP_PUT | EntryOptions::USE_ONCE);
        let word = records.append_entry(&entry, Held::new(buffer), List::Priority, 3, true);
        records.appended(20, word, Some(EqHandle(1)));
        assert_eq!(records.of_entry(word, start, false).unwrap().user_ptr, 3); // LINK
        assert_eq!(records.of_entry(word, 0, true).unwrap().user_ptr, 3); // AUTO_UNLINK
        assert_eq!(records.of_entry(word, start + 8, true).unwrap().place, 8); // PUT
        assert_eq!(records.counts(), [0, 0, 0, 0]);
        assert_eq!(records.of_entry(word, start, true), None);
    }

    #[test]
    fn a_buffer_that_is_appended_again_and_again_is_one_record() {
        let mut records = NicRecords::default();
        let buffer = memory(64);
        let entry = Entry::open(buffer.clone(), EntryOptions::OP_PUT | EntryOptions::MANAGE_LOCAL);
        let words: Vec<u64> = (0..100)
            .map(|_| records.append_entry(&entry, Held::new(buffer.clone()), List::Priority, 3, true))
            .collect();
        assert!(words.iter().all(|word| *word == words[0]));
        assert_eq!(records.counts(), [0, 0, 1, 0]);
    }

    #[test]
    fn entries_that_share_a_piece_are_not_one() {
        let mut records = NicRecords::default();
        let piece = |length: usize| Landing::Region(Region::new(length).unwrap().whole());
        let (head, bodies) = (piece(16), [piece(64), piece(64)]);
        let words = bodies.map(|body| {
            let memory = Memory::Many([head.clone(), body.clone()].into());
            let entry = Entry::open(memory.clone(), EntryOptions::OP_PUT);
            let word = records.append_entry(&entry, Held::new(memory), List::Priority, 3, true);
            let found = records
                .of_entry(word, body.as_mut_ptr().addr() + 4, false)
                .unwrap();
            assert_eq!(found.place, 20);
            word
        });
        assert_ne!(words[0], words[1]);
        assert_eq!(records.counts(), [0, 0, 2, 0]);
    }

    #[test]
    fn an_unlinked_entry_stays_until_its_queue_was_read_to_the_end() {
        let mut records = NicRecords::default();
        let buffer = memory(64);
        let start = buffer.address(0);
        let entry = Entry::open(buffer.clone(), EntryOptions::OP_PUT);
        let word = records.append_entry(&entry, Held::new(buffer), List::Priority, 3, true);
        records.appended(20, word, Some(EqHandle(1)));
        records.unlinked(20);
        records.read_to_end(EqHandle(2));
        assert_eq!(records.of_entry(word, start + 1, true).unwrap().place, 1);
        records.read_to_end(EqHandle(1));
        assert_eq!(records.counts(), [0, 0, 0, 0]);
    }

    #[test]
    fn a_search_ends_with_its_event() {
        let mut records = NicRecords::default();
        let entry = Entry::open(Memory::Empty, EntryOptions::USE_ONCE);
        let word = records.start_search(&entry, Held::new(Memory::Empty), 11);
        assert_eq!(records.of_entry(word, 0, true).unwrap().user_ptr, 11);
        assert_eq!(records.counts(), [0, 0, 0, 0]);
    }

    #[test]
    fn places_count_through_all_pieces_and_find_overflow_buffers() {
        let mut records = NicRecords::default();
        let pieces: Box<[Landing]> = [16, 32]
            .map(|length| Landing::Region(Region::new(length).unwrap().slice(0, length).unwrap()))
            .into();
        let starts = [pieces[0].as_mut_ptr().addr(), pieces[1].as_mut_ptr().addr()];
        let held = Held::new(Memory::Many(pieces));
        assert_eq!(held.place(starts[0] + 3), Some(3));
        assert_eq!(held.place(starts[1] + 3), Some(19));
        assert_eq!(held.place(1), None);
        let overflow = memory(64);
        let at = overflow.address(0) + 40;
        let entry = Entry::open(overflow.clone(), EntryOptions::OP_PUT);
        records.append_entry(&entry, Held::new(overflow), List::Overflow, 1, true);
        let entry = Entry::open(Memory::Empty, EntryOptions::OP_PUT);
        let word = records.append_entry(&entry, Held::new(Memory::Empty), List::Priority, 2, true);
        let owner = records.of_entry(word, at, true).unwrap();
        assert_eq!((owner.user_ptr, owner.place), (2, 40));
    }
}

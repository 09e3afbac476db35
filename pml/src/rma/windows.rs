//! The windows of this process, by key, and the memory that an operation names in them.

use std::collections::HashMap;
use std::num::NonZeroU32;

use doorbell_fabric::memory::{AddressRange, MutLoan, RegionSlice, SharedBytes};
use doorbell_fabric::message::Inbound;

use super::args::{
    PIECES_MOST, RemotePiece, RemotePieces, WindowAccess, WindowArgs, WindowCounts, WindowMarks, WindowMemory,
};
use crate::convertor::to_usize;
use crate::rank::Rank;
use crate::request::Outcome;

/// Pieces of borrowed memory that one window has, at most.
pub(crate) const LOANS_MOST: usize = 4;
/// Bytes copied at a time out of memory that may not be mapped, or into it.
const BLOCK: usize = 4096;

/// Where a window is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowIndex(u32);

/// An open window, or one that is being closed.
#[derive(Debug)]
struct Entry {
    base: u64,
    memory: WindowMemory,
    access: WindowAccess,
    length: u64,
    counts: WindowCounts,
    /// The owner's, for the accesses that are recorded.
    mark: Option<NonZeroU32>,
}

/// The windows that are open, and those that are being closed.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    entries: Vec<Option<Entry>>,
    /// Every place in front of this one is taken.
    free: usize,
    keys: HashMap<u64, WindowIndex>,
    /// The window that each rank named last.
    last: Vec<Option<(u64, WindowIndex)>>,
    /// Those that are being closed, with their keys.
    closing: Vec<(u64, WindowIndex)>,
}

impl Windows {
    /// Opens a window, in a job of this many ranks. Returns whether its key was free.
    pub(crate) fn open(&mut self, window: WindowArgs, ranks: u32) -> bool {
        let is_closing = self.closing.iter().any(|(key, _)| *key == window.key);
        if is_closing || self.keys.contains_key(&window.key) {
            return false;
        }
        if self.last.len() < ranks as usize {
            self.last.resize(ranks as usize, None);
        }
        let key = window.key;
        let entry = Entry {
            base: window.base,
            length: window.memory.len(),
            memory: window.memory,
            access: window.access,
            counts: WindowCounts::default(),
            mark: None,
        };
        let mut places = self.entries[self.free..].iter();
        let at = match places.position(Option::is_none) {
            Some(behind) => self.free + behind,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        self.free = at + 1;
        self.entries[at] = Some(entry);
        self.keys.insert(key, WindowIndex(at as u32));
        true
    }

    /// No operation finds the window from now on. Returns its place, also while it is being closed.
    pub(crate) fn begin_close(&mut self, key: u64) -> Option<WindowIndex> {
        if let Some(index) = self.keys.remove(&key) {
            self.last.iter_mut().for_each(|last| *last = None);
            self.closing.push((key, index));
        }
        let found = self.closing.iter().find(|(this, _)| *this == key);
        found.map(|(_, index)| *index)
    }

    /// Nothing uses the window any more.
    pub(crate) fn end_close(&mut self, index: WindowIndex) {
        self.closing.retain(|(_, this)| *this != index);
        let at = index.0 as usize;
        self.entries[at] = None;
        while self.entries.last().is_some_and(Option::is_none) {
            self.entries.pop();
        }
        self.free = self.free.min(at).min(self.entries.len());
        let most = 4 * self.entries.len() + 64;
        if self.entries.capacity() > most {
            self.entries.shrink_to(most / 2);
        }
        if self.keys.capacity() > 2 * most {
            self.keys.shrink_to(most / 2);
        }
    }

    /// What peers have done with an open window.
    pub(crate) fn counts(&self, key: u64) -> Option<WindowCounts> {
        Some(self.entry(*self.keys.get(&key)?)?.counts)
    }

    /// Counts an operation that was done.
    pub(crate) fn count(&mut self, spans: &Spans, stores: bool, returns: bool) {
        for index in spans.windows() {
            if let Some(entry) = self.entries[index.0 as usize].as_mut() {
                entry.counts.writes += u64::from(stores);
                entry.counts.reads += u64::from(returns);
            }
        }
    }

    /// Marks an open window. Returns whether there is one of this key.
    pub(crate) fn set_mark(&mut self, key: u64, mark: Option<NonZeroU32>) -> bool {
        let entry = self.keys.get(&key).map(|index| index.0 as usize);
        let entry = entry.and_then(|at| self.entries.get_mut(at)?.as_mut());
        entry.map(|entry| entry.mark = mark).is_some()
    }

    /// The mark of an open window.
    pub(crate) fn mark(&self, key: u64) -> Option<NonZeroU32> {
        self.entry(*self.keys.get(&key)?)?.mark
    }

    /// The marks of the windows of an operation.
    pub(crate) fn marks(&self, spans: &Spans) -> WindowMarks {
        spans.windows.map(|index| self.entry(index?)?.mark)
    }

    fn entry(&self, index: WindowIndex) -> Option<&Entry> {
        self.entries.get(index.0 as usize)?.as_ref()
    }

    /// The open window with this key: without hashing, where this rank named it last.
    #[inline]
    fn find(&mut self, rank: Rank, key: u64) -> Option<WindowIndex> {
        let last = self.last.get(rank.index());
        if let Some(Some((named, index))) = last
            && *named == key
        {
            return Some(*index);
        }
        self.look_up(rank, key)
    }

    /// By hashing; notes it as the last one of the rank.
    #[cold]
    fn look_up(&mut self, rank: Rank, key: u64) -> Option<WindowIndex> {
        let index = *self.keys.get(&key)?;
        // A rank of the job, which may have joined since the window was opened.
        if self.last.len() <= rank.index() {
            self.last.resize(rank.index() + 1, None);
        }
        self.last[rank.index()] = Some((key, index));
        Some(index)
    }

    /// The memory that an operation of a rank names.
    ///
    /// # Errors
    /// The first piece that is no memory, or not for this.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        rank: Rank,
        pieces: &RemotePieces,
        wanted: WindowAccess,
    ) -> Result<Spans, Outcome> {
        let mut spans = Spans::default();
        for piece in pieces.as_slice() {
            let index = self.find(rank, piece.key).ok_or(Outcome::UnknownKey)?;
            let entry = self.entry(index).ok_or(Outcome::UnknownKey)?;
            if !entry.access.allows(wanted) {
                return Err(Outcome::NoAccess);
            }
            entry.add(index, piece, &mut spans)?;
        }
        Ok(spans)
    }
}

impl Entry {
    fn add(&self, index: WindowIndex, piece: &RemotePiece, spans: &mut Spans) -> Result<(), Outcome> {
        let offset = piece.address.checked_sub(self.base).ok_or(Outcome::OutOfRange)?;
        let end = offset.checked_add(piece.length).ok_or(Outcome::OutOfRange)?;
        if end > self.length {
            return Err(Outcome::OutOfRange);
        }
        spans.note(index);
        match &self.memory {
            WindowMemory::Range(range) => spans.push(Span::Range(range.part(offset, piece.length))),
            WindowMemory::Ranges(ranges) => {
                let (mut skip, mut left) = (offset, piece.length);
                for range in ranges {
                    let part = range.part(skip, left);
                    if !part.is_empty() {
                        spans.push(Span::Range(part));
                    }
                    (skip, left) = (skip.saturating_sub(range.len()), left - part.len());
                }
            }
            WindowMemory::Region(slice) => {
                let part = slice.slice(to_usize(offset), to_usize(piece.length));
                spans.push(Span::Region(part.ok_or(Outcome::OutOfRange)?));
            }
            WindowMemory::Loans(loans) => {
                let (mut skip, mut left) = (to_usize(offset), to_usize(piece.length));
                for loan in loans {
                    let part = loan.part(skip, left);
                    if !part.is_empty() {
                        spans.push(Span::Loan(part));
                    }
                    (skip, left) = (skip.saturating_sub(loan.len()), left - part.len());
                }
            }
        }
        Ok(())
    }
}

impl WindowMemory {
    /// The bytes of all of it.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Loans(loans) => loans.iter().map(|loan| loan.len() as u64).sum(),
            Self::Region(slice) => slice.len() as u64,
            Self::Range(range) => range.len(),
            Self::Ranges(ranges) => ranges
                .iter()
                .fold(0, |sum, range| sum.saturating_add(range.len())),
        }
    }

    /// The number of its pieces.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Self::Loans(loans) => loans.len(),
            Self::Ranges(ranges) => ranges.len(),
            Self::Region(_) | Self::Range(_) => 1,
        }
    }
}

/// A piece of memory of a window.
#[derive(Clone, Debug)]
pub(crate) enum Span {
    Loan(MutLoan),
    Region(RegionSlice),
    Range(AddressRange),
}

impl Span {
    fn len(&self) -> u64 {
        match self {
            Self::Loan(loan) => loan.len() as u64,
            Self::Region(slice) => slice.len() as u64,
            Self::Range(range) => range.len(),
        }
    }

    /// Copies bytes of a message here. Returns whether they could be written.
    #[inline]
    fn write(&self, at: u64, inbound: &Inbound<'_>, from: usize, length: usize) -> bool {
        match self {
            Self::Loan(loan) => {
                inbound.copy_to_loan(from, &loan.part(to_usize(at), length), 0);
                true
            }
            Self::Region(slice) => {
                inbound.copy_to_region(from, slice, to_usize(at), length);
                true
            }
            Self::Range(range) => {
                let mut block = [0; BLOCK];
                let mut done = 0;
                while done < length {
                    let part = &mut block[..BLOCK.min(length - done)];
                    inbound.copy_to(from + done, part);
                    if !range.write(at + done as u64, part) {
                        return false;
                    }
                    done += part.len();
                }
                true
            }
        }
    }

    /// Copies bytes from here. Returns whether they could be read.
    #[inline]
    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        match self {
            Self::Loan(loan) => loan.as_shared().copy_to(to_usize(at), to) == to.len(),
            Self::Region(slice) => slice.copy_to(to_usize(at), to) == to.len(),
            Self::Range(range) => range.read(at, to),
        }
    }
}

/// Pieces of memory of windows, one behind the other: those of one operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    first: Option<Span>,
    /// All but the first.
    more: Vec<Span>,
    windows: [Option<WindowIndex>; PIECES_MOST],
}

impl Spans {
    fn push(&mut self, span: Span) {
        if self.first.is_none() {
            self.first = Some(span);
        } else {
            self.more.push(span);
        }
    }

    fn note(&mut self, index: WindowIndex) {
        if self.windows.contains(&Some(index)) {
            return;
        }
        if let Some(free) = self.windows.iter_mut().find(|window| window.is_none()) {
            *free = Some(index);
        }
    }

    /// The windows, each once.
    pub(crate) fn windows(&self) -> impl Iterator<Item = WindowIndex> {
        self.windows.into_iter().flatten()
    }

    fn iter(&self) -> impl Iterator<Item = &Span> {
        self.first.iter().chain(&self.more)
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.iter().map(Span::len).sum()
    }

    /// The memory, where it is one piece that can be reached without the kernel.
    pub(crate) fn single(&self) -> Option<&Span> {
        let first = self.first.as_ref();
        first.filter(|span| self.more.is_empty() && !matches!(span, Span::Range(_)))
    }

    /// Copies `length` bytes of a message, from its byte `from`, to offset `at`.
    ///
    /// # Errors
    /// [`Outcome::Unmapped`]; what comes before that byte is written.
    #[inline]
    pub(crate) fn write(
        &self,
        at: u64,
        inbound: &Inbound<'_>,
        from: usize,
        length: usize,
    ) -> Result<(), Outcome> {
        let (mut skip, mut done) = (at, 0);
        for span in self.iter() {
            let here = span.len().saturating_sub(skip).min((length - done) as u64);
            let here = to_usize(here);
            if here > 0 && !span.write(skip, inbound, from + done, here) {
                return Err(Outcome::Unmapped);
            }
            done += here;
            skip = skip.saturating_sub(span.len());
        }
        Ok(())
    }

    /// Copies bytes from offset `at` on.
    ///
    /// # Errors
    /// [`Outcome::Unmapped`].
    #[inline]
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Outcome> {
        let (mut skip, mut done) = (at, 0);
        for span in self.iter() {
            let here = to_usize(span.len().saturating_sub(skip).min((to.len() - done) as u64));
            if here > 0 && !span.read(skip, &mut to[done..done + here]) {
                return Err(Outcome::Unmapped);
            }
            done += here;
            skip = skip.saturating_sub(span.len());
        }
        Ok(())
    }

    /// Whether all bytes can be read now.
    pub(crate) fn is_readable(&self) -> bool {
        self.iter().all(|span| match span {
            Span::Range(range) => range.is_readable(),
            _ => true,
        })
    }

    /// Changes the element of `width` bytes at offset `at`, in one atomic step where the processor has one,
    /// and copies what it was to `old`. `change` changes it in place; its answer is whether it did.
    ///
    /// # Errors
    /// [`Outcome::Unmapped`]; [`Outcome::OutOfRange`] for an element that lies across two pieces.
    #[inline]
    pub(crate) fn update(
        &self,
        at: u64,
        old: &mut [u8],
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> Result<(), Outcome> {
        let width = old.len();
        let mut skip = at;
        for span in self.iter() {
            if skip >= span.len() {
                skip -= span.len();
                continue;
            }
            if span.len() - skip < width as u64 {
                return Err(Outcome::OutOfRange);
            }
            let loan = match span {
                Span::Loan(loan) => Some(loan.part(to_usize(skip), width)),
                // It is not kept longer than the slice.
                Span::Region(slice) => {
                    let done = slice.update(to_usize(skip), width, |word| changed(word, width, &mut change));
                    if let Some(word) = done {
                        old.copy_from_slice(&word.to_le_bytes()[..width]);
                        return Ok(());
                    }
                    None
                }
                Span::Range(range) => range.element(skip, width),
            };
            let done = loan.and_then(|loan| loan.update(0, width, |word| changed(word, width, &mut change)));
            if let Some(word) = done {
                old.copy_from_slice(&word.to_le_bytes()[..width]);
                return Ok(());
            }
            return change_by_copies(span, skip, old, change);
        }
        Err(Outcome::OutOfRange)
    }
}

/// What becomes of an element that is this number.
#[inline]
fn changed(word: u64, width: usize, change: &mut impl FnMut(&mut [u8]) -> bool) -> Option<u64> {
    let mut bytes = word.to_le_bytes();
    change(&mut bytes[..width]).then(|| u64::from_le_bytes(bytes))
}

/// An element that is wider than the processor's atomic instructions, or not aligned.
#[cold]
fn change_by_copies(
    span: &Span,
    at: u64,
    old: &mut [u8],
    mut change: impl FnMut(&mut [u8]) -> bool,
) -> Result<(), Outcome> {
    let mut bytes = [0; 32];
    let bytes = bytes.get_mut(..old.len()).ok_or(Outcome::Invalid)?;
    if !span.read(at, bytes) {
        return Err(Outcome::Unmapped);
    }
    old.copy_from_slice(bytes);
    if change(bytes) && !span.write(at, &Inbound::whole(SharedBytes::of(bytes)), 0, old.len()) {
        return Err(Outcome::Unmapped);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan(length: usize) -> MutLoan {
        MutLoan::of_static(vec![0; length].leak())
    }

    fn window(key: u64, base: u64, loans: Vec<MutLoan>, access: WindowAccess) -> WindowArgs {
        WindowArgs {
            key,
            base,
            memory: WindowMemory::Loans(loans),
            access,
        }
    }

    fn piece(key: u64, address: u64, length: u64) -> RemotePieces {
        RemotePiece { key, address, length }.into()
    }

    const ANYONE: Rank = Rank(1);

    #[test]
    fn keys_are_taken_until_they_are_closed() {
        let mut windows = Windows::default();
        let open =
            |windows: &mut Windows, key| windows.open(window(key, 0, vec![loan(8)], WindowAccess::ALL), 2);
        assert!(open(&mut windows, 7) && !open(&mut windows, 7) && open(&mut windows, u64::MAX));
        let find = |windows: &mut Windows, key| {
            windows
                .resolve(ANYONE, &piece(key, 0, 8), WindowAccess::READ)
                .err()
        };
        assert_eq!(
            (find(&mut windows, 7), find(&mut windows, u64::MAX)),
            (None, None)
        );
        assert_eq!(find(&mut windows, 8), Some(Outcome::UnknownKey));
        let index = windows.begin_close(7).unwrap();
        assert_eq!(
            find(&mut windows, 7),
            Some(Outcome::UnknownKey),
            "not even as the last one"
        );
        assert!(!open(&mut windows, 7), "a window is closed by its key");
        assert_eq!(windows.begin_close(7), Some(index));
        windows.end_close(index);
        assert!(open(&mut windows, 7), "another window may have the key");
        assert_eq!(find(&mut windows, 7), None);
        assert_eq!(windows.begin_close(9), None);
    }

    #[test]
    fn places_of_closed_windows_are_used_again_and_many_leave_nothing_behind() {
        let mut windows = Windows::default();
        let open = |windows: &mut Windows, key| {
            assert!(windows.open(window(key, 0, vec![], WindowAccess::ALL), 2));
        };
        (0..10_000).for_each(|key| open(&mut windows, key));
        for key in [5, 3, 7] {
            let index = windows.begin_close(key).unwrap();
            windows.end_close(index);
        }
        (10_000..10_003).for_each(|key| open(&mut windows, key));
        assert_eq!(windows.entries.len(), 10_000);
        for key in (0..10_003).filter(|key| ![3, 5, 7].contains(key)) {
            let index = windows.begin_close(key).unwrap();
            windows.end_close(index);
        }
        let left = (windows.entries.capacity(), windows.keys.capacity());
        assert!(left.0 < 256 && left.1 < 256, "{left:?}");
    }

    #[test]
    fn several_ranges_are_one_window() {
        let pieces = [(4096, 8192), (8192, 4096)].map(|(length, guard)| {
            let range = AddressRange::guarded(length, guard).unwrap();
            range.part(guard as u64, length as u64 + 4096)
        });
        let mut windows = Windows::default();
        windows.open(
            WindowArgs {
                memory: WindowMemory::Ranges(pieces.to_vec()),
                ..window(1, 0, vec![], WindowAccess::ALL)
            },
            2,
        );
        let mut resolve = |at, length| windows.resolve(ANYONE, &piece(1, at, length), WindowAccess::ALL);
        let bytes = Inbound::whole(SharedBytes::of(b"abcdef"));
        let second = resolve(8190, 6).unwrap();
        assert_eq!(
            second.write(0, &bytes, 0, 6),
            Err(Outcome::Unmapped),
            "its first two bytes"
        );
        let second = resolve(8192, 6).unwrap();
        second.write(0, &bytes, 0, 6).unwrap();
        let mut read = [0; 6];
        assert!(pieces[1].read(0, &mut read) && &read == b"abcdef");
        assert_eq!(resolve(20_480, 1).err(), Some(Outcome::OutOfRange));
    }

    #[test]
    fn what_is_outside_or_not_allowed_is_refused() {
        let mut windows = Windows::default();
        windows.open(window(1, 1000, vec![loan(8), loan(8)], WindowAccess::READ), 2);
        let mut resolve = |address, length, access| {
            let found = windows.resolve(ANYONE, &piece(1, address, length), access);
            found.map(|spans| (spans.len(), spans.more.len()))
        };
        assert_eq!(resolve(1000, 16, WindowAccess::READ), Ok((16, 1)));
        assert_eq!(resolve(1004, 4, WindowAccess::READ), Ok((4, 0)));
        assert_eq!(resolve(1008, 8, WindowAccess::READ), Ok((8, 0)));
        assert_eq!(resolve(1016, 0, WindowAccess::READ), Ok((0, 0)));
        for (address, length) in [
            (999, 1),
            (0, 0),
            (1000, 17),
            (1016, 1),
            (1000, u64::MAX),
            (u64::MAX, 2),
        ] {
            assert_eq!(
                resolve(address, length, WindowAccess::READ),
                Err(Outcome::OutOfRange)
            );
        }
        assert_eq!(resolve(1000, 8, WindowAccess::WRITE), Err(Outcome::NoAccess));
        let both = WindowAccess::READ.and(WindowAccess::FETCH);
        assert_eq!(resolve(1000, 8, both), Err(Outcome::NoAccess));
    }

    #[test]
    fn pieces_are_written_and_read_as_one() {
        let mut windows = Windows::default();
        let loans = vec![loan(3), loan(5)];
        windows.open(window(1, 0, loans.clone(), WindowAccess::ALL), 2);
        let spans = windows
            .resolve(ANYONE, &piece(1, 1, 6), WindowAccess::ALL)
            .unwrap();
        let bytes = Inbound::whole(SharedBytes::of(b"__abcdef"));
        spans.write(0, &bytes, 2, 6).unwrap();
        assert_eq!(
            (loans[0].as_shared().to_vec(), loans[1].as_shared().to_vec()),
            (b"\0ab".to_vec(), b"cdef\0".to_vec())
        );
        let mut read = [0; 4];
        spans.read(1, &mut read).unwrap();
        assert_eq!(&read, b"bcde");
        assert!(spans.single().is_none() && spans.windows().count() == 1);
    }

    #[test]
    fn elements_are_changed_wherever_they_lie() {
        let mut windows = Windows::default();
        windows.open(window(1, 0, vec![loan(40), loan(24)], WindowAccess::ALL), 2);
        let spans = windows
            .resolve(ANYONE, &piece(1, 0, 64), WindowAccess::ALL)
            .unwrap();
        for (at, width) in [(0, 1), (1, 8), (8, 8), (8, 32), (40, 16), (62, 2)] {
            let mut old = vec![9; width];
            let add = |bytes: &mut [u8]| {
                bytes[0] += 1;
                true
            };
            spans.update(at, &mut old, add).unwrap();
            let mut new = vec![0; width];
            spans.read(at, &mut new).unwrap();
            old[0] += 1;
            assert_eq!(old, new, "{at} {width}");
        }
        assert_eq!(
            spans.update(39, &mut [0; 2], |_| true),
            Err(Outcome::OutOfRange),
            "across"
        );
        assert_eq!(spans.update(64, &mut [0; 1], |_| true), Err(Outcome::OutOfRange));
    }
}

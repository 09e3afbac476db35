//! Completions of dedicated mode: one cache line per request, which the progress thread writes and the caller
//! polls.
//!
//! ```text
//!            caller                         progress thread
//!   FREE ──► OPEN ── command ─────────────► (owns the request)
//!   caller reads ◄────────────── DONE / FAILED / ENDED, with the outcome
//!   caller gives it back ──► FREE            after DETACH: the thread itself writes FREE
//! ```
//!
//! Slots are in chunks that are never moved or freed while the world lives, so a number is enough to address
//! one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use doorbell_job::error::Error;
use doorbell_job::types::Status;

/// The number of slots in the first chunk; each further chunk is twice as long.
const FIRST: usize = 64;
/// The number of chunks: 64 × (2^20 - 1) slots are more than a process can use.
const CHUNKS: usize = 20;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// Not in use.
    Free = 0,
    /// The progress thread has the request, or its command is in the mailbox.
    Open = 1,
    /// It succeeded: the status is in the slot.
    Done = 2,
    /// It failed: the error is in the table of errors.
    Failed = 3,
    /// It was ended by force: its memory is not accessed any more.
    Ended = 4,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            1 => Self::Open,
            2 => Self::Done,
            3 => Self::Failed,
            4 => Self::Ended,
            _ => Self::Free,
        }
    }
}

/// One cache line. Two, to keep the adjacent-line prefetcher away from the neighbour, would halve the density
/// for nothing: only one request of a world is usually being polled.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    state: AtomicU32,
    source: AtomicU32,
    tag: AtomicU64,
    len: AtomicU64,
}
const _: () = assert!(size_of::<Slot>() == 64);

/// All slots of a world.
#[derive(Default)]
pub(super) struct CompletionSlots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    errors: Mutex<HashMap<u32, Error>>,
}

impl CompletionSlots {
    /// Returns the chunk and the index of a slot: chunk k holds the numbers from 64 (2^k - 1) on.
    #[inline]
    fn place(number: u32) -> (usize, usize) {
        let from_one = number as usize / FIRST + 1;
        let chunk = from_one.ilog2() as usize;
        (chunk, number as usize - FIRST * ((1 << chunk) - 1))
    }

    #[inline]
    fn slot(&self, number: u32) -> &Slot {
        let (chunk, at) = Self::place(number);
        let chunk = self.chunks[chunk].get_or_init(|| (0..FIRST << chunk).map(|_| Slot::default()).collect());
        &chunk[at]
    }

    /// The highest possible number of slots.
    pub(super) const fn most() -> u32 {
        (FIRST * ((1 << CHUNKS) - 1)) as u32
    }

    /// Takes a free slot into use, on the caller's side.
    #[inline]
    pub(super) fn open(&self, number: u32) {
        // Relaxed: the mailbox's release makes it visible to the thread together with the command.
        self.slot(number)
            .state
            .store(State::Open as u32, Ordering::Relaxed);
    }

    /// Returns the state, as the caller sees it.
    #[inline]
    pub(super) fn state(&self, number: u32) -> State {
        // Acquire pairs with the Release of the three writers below: the outcome, and every byte that the
        // thread wrote to the caller's memory, is visible.
        State::of(self.slot(number).state.load(Ordering::Acquire))
    }

    /// Completes a slot with success, on the thread.
    #[inline]
    pub(super) fn succeed(&self, number: u32, status: Status) {
        let slot = self.slot(number);
        slot.source.store(status.source, Ordering::Relaxed);
        slot.tag.store(status.tag, Ordering::Relaxed);
        slot.len.store(status.len as u64, Ordering::Relaxed);
        // Release: see `state`.
        slot.state.store(State::Done as u32, Ordering::Release);
    }

    /// Completes a slot with an error, on the thread.
    #[cold]
    pub(super) fn fail(&self, number: u32, error: Error) {
        self.errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, error);
        // Release: see `state`.
        self.slot(number)
            .state
            .store(State::Failed as u32, Ordering::Release);
    }

    /// Completes a slot without an outcome, on the thread: ended or freed.
    #[cold]
    pub(super) fn close(&self, number: u32, state: State) {
        // Release: see `state`.
        self.slot(number).state.store(state as u32, Ordering::Release);
    }

    /// Returns the outcome, on the caller's side; `None` while the slot is open.
    #[inline]
    pub(super) fn outcome(&self, number: u32) -> Option<Result<Status, Error>> {
        match self.state(number) {
            State::Free | State::Open => None,
            State::Done => {
                let slot = self.slot(number);
                Some(Ok(Status {
                    source: slot.source.load(Ordering::Relaxed),
                    tag: slot.tag.load(Ordering::Relaxed),
                    len: slot.len.load(Ordering::Relaxed) as usize,
                }))
            }
            State::Failed => Some(Err(self.error(number))),
            State::Ended => Some(Err(Error::Cancelled)),
        }
    }

    /// Takes the error of a failed slot out of the table.
    #[cold]
    pub(super) fn error(&self, number: u32) -> Error {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.remove(&number).unwrap_or(Error::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_slot_of_its_own() {
        let places: Vec<_> = (0..1_000).map(CompletionSlots::place).collect();
        assert_eq!(places[..2], [(0, 0), (0, 1)]);
        assert_eq!(
            (places[63], places[64], places[191], places[192]),
            ((0, 63), (1, 0), (1, 127), (2, 0))
        );
        assert!(places.iter().all(|(chunk, at)| *at < FIRST << chunk));
        let (chunk, at) = CompletionSlots::place(CompletionSlots::most() - 1);
        assert_eq!((chunk, at), (CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1));
    }

    #[test]
    fn outcomes_are_read_once_by_their_number() {
        let slots = CompletionSlots::default();
        let status = Status {
            source: 3,
            tag: 7,
            len: 9,
        };
        slots.open(70);
        slots.open(71);
        assert!(slots.outcome(70).is_none());
        slots.succeed(70, status);
        slots.fail(71, Error::Busy);
        assert_eq!(slots.outcome(70).unwrap().unwrap(), status);
        assert!(matches!(slots.outcome(71), Some(Err(Error::Busy))));
        slots.close(70, State::Ended);
        assert!(matches!(slots.outcome(70), Some(Err(Error::Cancelled))));
    }
}

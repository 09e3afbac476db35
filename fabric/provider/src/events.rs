//! Events of what peers do (`FI_RMA_EVENT`): counters of endpoints and of registrations.
//!
//! | counter | counts, when it is done |
//! |---|---|
//! | `FI_REMOTE_WRITE` of an endpoint | writes through it, and atomics that return nothing |
//! | `FI_REMOTE_READ` of an endpoint | reads through it, and atomics that return what was there |
//! | `FI_REMOTE_WRITE` of a registration | what stores in it: writes, and all atomics but those that only read |
//! | `FI_REMOTE_READ` of a registration | what returns its bytes: reads, and atomics that fetch |
//!
//! What fails counts nowhere. Nothing is recorded before the first of these counters is bound.

use std::num::NonZeroU32;

use doorbell_pml::Access;
use libfabric_sys::*;

use crate::cntr::{CounterIndex, CounterObject};
use crate::domain::State;
use crate::ep::Space;
use crate::errno::{Errno, Result};
use crate::object::Held;

/// The counters of what peers do with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventCounters {
    reads: CounterIndex,
    writes: CounterIndex,
}

impl Default for EventCounters {
    fn default() -> Self {
        Self {
            reads: CounterIndex::NONE,
            writes: CounterIndex::NONE,
        }
    }
}

impl EventCounters {
    /// Binds a counter, as `FI_REMOTE_READ`, `FI_REMOTE_WRITE`, or both.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for other flags; `FI_EINVAL` for none, and where another counter is bound so.
    pub(crate) fn bind(&mut self, flags: u64, counter: CounterIndex) -> Result<()> {
        if flags & !(FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let (reads, writes) = (flags & FI_REMOTE_READ != 0, flags & FI_REMOTE_WRITE != 0);
        let is_taken =
            reads && self.reads != CounterIndex::NONE || writes && self.writes != CounterIndex::NONE;
        if flags == 0 || is_taken {
            return Err(Errno(FI_EINVAL));
        }
        if reads {
            self.reads = counter;
        }
        if writes {
            self.writes = counter;
        }
        Ok(())
    }
}

/// A registration that has counters, which cannot be closed meanwhile.
#[derive(Debug, Default)]
struct Row {
    counters: EventCounters,
    held: Vec<Held<CounterObject>>,
}

/// The registrations that have counters, by the marks of their windows.
#[derive(Debug, Default)]
pub(crate) struct Watched(Vec<Option<Row>>);

impl Watched {
    /// Adds a registration, and returns its mark.
    fn add(&mut self) -> NonZeroU32 {
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(Row::default());
        NonZeroU32::MIN.saturating_add(at as u32)
    }

    fn get_mut(&mut self, mark: NonZeroU32) -> Option<&mut Row> {
        self.0.get_mut(mark.get() as usize - 1)?.as_mut()
    }

    fn remove(&mut self, mark: NonZeroU32) {
        if let Some(place) = self.0.get_mut(mark.get() as usize - 1) {
            *place = None;
        }
    }
}

impl State {
    /// Binds a counter to a registration.
    ///
    /// # Errors
    /// Those of [`EventCounters::bind`].
    pub(crate) fn watch(&mut self, key: u64, flags: u64, counter: &CounterObject) -> Result<()> {
        let mark = self.member.pml_ref().window_mark(key);
        let bound = mark.and_then(|mark| self.watched.get_mut(mark));
        let mut counters = bound.map_or_else(EventCounters::default, |row| row.counters);
        counters.bind(flags, counter.index())?;
        let mark = mark.unwrap_or_else(|| self.watched.add());
        if let Some(row) = self.watched.get_mut(mark) {
            row.counters = counters;
            row.held.push(Held::new(counter));
        }
        self.member.pml().mark_window(key, Some(mark));
        self.member.pml().record_accesses();
        Ok(())
    }

    /// A registration is being closed: what was done with it before is counted.
    pub(crate) fn unwatch(&mut self, key: u64) {
        if let Some(mark) = self.member.pml_ref().window_mark(key) {
            self.take_accesses();
            self.member.pml().mark_window(key, None);
            self.watched.remove(mark);
        }
    }

    /// Counts what peers have done.
    #[cold]
    pub(crate) fn take_accesses(&mut self) {
        while let Some(access) = self.member.pml().next_access() {
            let endpoint = self.endpoints.get(Space::target(access.context));
            if let Some(events) = endpoint.and_then(|endpoint| endpoint.events) {
                let index = if access.returns {
                    events.reads
                } else {
                    events.writes
                };
                self.count_access(index, &access);
            }
            for mark in access.marks.into_iter().flatten() {
                let Some(events) = self.watched.get_mut(mark).map(|row| row.counters) else {
                    continue;
                };
                if access.stores {
                    self.count_access(events.writes, &access);
                }
                if access.returns {
                    self.count_access(events.reads, &access);
                }
            }
        }
    }

    fn count_access(&mut self, index: CounterIndex, access: &Access) {
        if let Some(counter) = self.counters.get_mut(index) {
            counter.count(access.length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_counter_is_bound_for_each_kind() {
        let (mut events, [one, other]) = (EventCounters::default(), [1, 2].map(CounterIndex));
        assert_eq!(events.bind(0, one), Err(Errno(FI_EINVAL)));
        assert_eq!(events.bind(FI_READ, one), Err(Errno(FI_EBADFLAGS)));
        assert_eq!(events.bind(FI_REMOTE_WRITE, one), Ok(()));
        let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
        assert_eq!(
            events.bind(both, other),
            Err(Errno(FI_EINVAL)),
            "one of them is bound"
        );
        assert_eq!(events.reads, CounterIndex::NONE);
        assert_eq!(events.bind(FI_REMOTE_READ, other), Ok(()));
        assert_eq!((events.reads, events.writes), (other, one));
    }

    #[test]
    fn marks_are_used_again() {
        let mut watched = Watched::default();
        let [first, second] = [(); 2].map(|()| watched.add());
        assert_ne!(first, second);
        watched.remove(first);
        assert!(watched.get_mut(first).is_none() && watched.get_mut(second).is_some());
        assert_eq!(watched.add(), first);
        assert!(watched.get_mut(NonZeroU32::MAX).is_none());
    }
}

//! Counters of a domain, by their numbers.

mod counter;
mod object;

pub(crate) use self::counter::{Counted, Counter};
pub(crate) use self::object::{CounterObject, open};

use libfabric_sys::FI_EMFILE;

use crate::bell::Bell;
use crate::ep::limits;
use crate::errno::{Errno, Result};

/// The number of a counter in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterIndex(pub(crate) u16);

impl CounterIndex {
    /// No counter has this number.
    pub(crate) const NONE: Self = Self(limits::COUNTERS);
}

/// The counters of a domain, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Counters(Vec<Option<Counter>>);

impl Counters {
    /// Adds a counter.
    ///
    /// # Errors
    /// `FI_EMFILE` for more than can be numbered.
    pub(crate) fn add(&mut self, counter: Counter) -> Result<CounterIndex> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let index = u16::try_from(free).ok().map(CounterIndex);
        let index = index
            .filter(|index| *index != CounterIndex::NONE)
            .ok_or(Errno(FI_EMFILE))?;
        match self.0.get_mut(free) {
            Some(place) => *place = Some(counter),
            None => self.0.push(Some(counter)),
        }
        Ok(index)
    }

    /// Removes a counter, that no endpoint is bound to.
    pub(crate) fn remove(&mut self, index: CounterIndex) {
        if let Some(place) = self.0.get_mut(usize::from(index.0)) {
            *place = None;
        }
    }

    /// A counter; `None` for a number that is not one's.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: CounterIndex) -> Option<&mut Counter> {
        self.0.get_mut(usize::from(index.0))?.as_mut()
    }

    /// The bell of a counter.
    pub(crate) fn bell(&mut self, index: CounterIndex) -> Option<&mut Bell> {
        self.get_mut(index).map(|counter| &mut counter.bell)
    }

    /// Returns the bells of all counters.
    pub(crate) fn bells(&mut self) -> impl Iterator<Item = &mut Bell> {
        self.0.iter_mut().flatten().map(|counter| &mut counter.bell)
    }
}

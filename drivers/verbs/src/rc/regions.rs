//! Registrations of regions whose bytes are used where they lie: made at first use, kept for the next ones,
//! in bounds, and given back when nothing else holds the region.

use std::sync::Arc;

use doorbell_fabric::memory::RegionSlice;

use super::onesided::Budget;
use crate::sys::{Domain, Place, Registered};

/// Registrations that are kept.
const MOST: usize = 32;

/// The regions that are registered, the one used last at the end.
pub(crate) struct Regions {
    /// `None` when the device is gone.
    domain: Option<Arc<Domain>>,
    budget: Arc<Budget>,
    access: i32,
    list: Vec<Arc<Registered>>,
    /// Registrations made, and their bytes.
    pub(crate) made: u64,
    pub(crate) bytes: u64,
    /// Why the last one was refused.
    pub(crate) refusal: Option<String>,
}

impl Regions {
    /// Registers with these rights.
    pub(crate) fn new(domain: &Arc<Domain>, budget: &Arc<Budget>, access: i32) -> Self {
        Self {
            domain: Some(Arc::clone(domain)),
            budget: Arc::clone(budget),
            access,
            list: Vec::with_capacity(MOST + 1),
            made: 0,
            bytes: 0,
            refusal: None,
        }
    }

    /// The place of a slice in its region's registration; `None` if the system refuses one.
    pub(crate) fn place(&mut self, slice: &RegionSlice) -> Option<Place> {
        let start = slice.address() - slice.offset();
        // A region that is registered stays mapped, so no other one is at its address.
        let found = self.list.iter().rposition(|one| one.memory().address() == start);
        let memory = match found {
            Some(at) => Arc::clone(&self.list[at]),
            None => self.register(slice)?,
        };
        Some(Place {
            memory,
            at: slice.offset(),
            length: slice.len(),
        })
    }

    /// Lets go of the device.
    pub(crate) fn release(&mut self) {
        self.list.clear();
        self.domain = None;
    }

    #[cold]
    fn register(&mut self, slice: &RegionSlice) -> Option<Arc<Registered>> {
        self.sweep();
        let domain = Arc::clone(self.domain.as_ref()?);
        let bytes = slice.region().len();
        if !self.budget.take(bytes) {
            self.refusal = Some(self.budget.words(bytes));
            return None;
        }
        let made = match Registered::allowing(&domain, slice.region(), self.access) {
            Ok(made) => made,
            Err(error) => {
                self.budget.give(bytes);
                self.refusal = Some(error.to_string());
                return None;
            }
        };
        self.made += 1;
        self.bytes += made.memory().len() as u64;
        self.list.push(Arc::clone(&made));
        if self.list.len() > MOST {
            self.drop_one(0);
        }
        Some(made)
    }

    fn drop_one(&mut self, at: usize) {
        let one = self.list.remove(at);
        // Requests or windows that name it may keep it for a while.
        self.budget.give(one.memory().len());
    }

    /// Gives back what nothing but this list holds.
    pub(crate) fn sweep(&mut self) {
        for at in (0..self.list.len()).rev() {
            if Arc::strong_count(&self.list[at]) == 1 && self.list[at].is_last() {
                self.drop_one(at);
            }
        }
    }
}

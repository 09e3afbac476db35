//! Registrations of regions whose bytes are sent from where they lie: made at first use, kept for the next
//! ones, in bounds.

use std::sync::Arc;

use doorbell_fabric::memory::RegionSlice;

use crate::sys::{Domain, Place, Registered};

/// Registrations that are kept.
const MOST: usize = 32;

/// The regions that are registered, the one used last at the end.
pub(crate) struct Regions {
    /// `None` when the device is gone.
    domain: Option<Arc<Domain>>,
    list: Vec<Arc<Registered>>,
    /// Registrations made, and their bytes.
    pub(crate) made: u64,
    pub(crate) bytes: u64,
}

impl Regions {
    pub(crate) fn new(domain: &Arc<Domain>) -> Self {
        Self {
            domain: Some(Arc::clone(domain)),
            list: Vec::with_capacity(MOST + 1),
            made: 0,
            bytes: 0,
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
        let made = Registered::new(self.domain.as_ref()?, slice.region()).ok()?;
        self.made += 1;
        self.bytes += made.memory().len() as u64;
        self.list.push(Arc::clone(&made));
        if self.list.len() > MOST {
            self.list.remove(0);
        }
        Some(made)
    }
}

//! Memory of this end for operations: registrations of regions, slots that short ones are copied through, and
//! registrations that last as long as one operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_fabric::limits::{Limit, Resource};
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{Body, Landing, Refused};

use super::Sizes;
use crate::error::VerbsError;
use crate::rc::regions::Regions;
use crate::sys::{Beneath, Domain, Held, Pinned, Place, Registered, Window, numbers};

/// Bytes that this process may lock, and those that the rail has.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<u64>,
    locked: AtomicU64,
}

/// Bytes that this process may lock; `None` without a limit.
pub(crate) fn memory_limit() -> Option<u64> {
    use rustix::thread::{CapabilitySet, capabilities};
    let is_exempt = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    // The kernel grants the right over its memory to those of the first user namespace alone.
    let owns_machine = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    match is_exempt && owns_machine() {
        true => None,
        false => Limit::of(Resource::RLIMIT_MEMLOCK).soft,
    }
}

impl Budget {
    /// The limit of this process, of which the rail's messages take `reserved` bytes.
    pub(crate) fn of_process(reserved: usize) -> Self {
        Self {
            limit: memory_limit(),
            locked: AtomicU64::new(reserved as u64),
        }
    }

    /// Takes bytes; `false` where they are more than the limit has left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let (bytes, locked) = (bytes as u64, self.locked.load(Ordering::Relaxed));
        let fits = self
            .limit
            .is_none_or(|limit| locked.saturating_add(bytes) <= limit);
        if fits {
            self.locked.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Gives bytes back.
    pub(crate) fn give(&self, bytes: usize) {
        self.locked.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Why nothing more is registered, in words.
    pub(crate) fn words(&self, bytes: usize) -> String {
        format!(
            "{bytes} bytes more than the {} KiB that are locked would exceed the limit of {} KiB: raise it \
             (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock of a container)",
            self.locked.load(Ordering::Relaxed) >> 10,
            self.limit.unwrap_or(0) >> 10
        )
    }
}

/// A registration that counts against the budget.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) pinned: Pinned,
    budget: Arc<Budget>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.give(self.pinned.held().len());
    }
}

/// Slots of equal length in one registration.
struct Slots {
    memory: Arc<Registered>,
    size: usize,
    free: Vec<u32>,
}

/// What a protection domain has for operations.
pub(crate) struct Memory {
    /// `None` when the device is gone.
    pub(crate) domain: Option<Arc<Domain>>,
    pub(crate) regions: Regions,
    budget: Arc<Budget>,
    slots: [Option<Slots>; 2],
    /// Why the last registration was refused.
    pub(crate) refusal: Option<String>,
    /// Registrations for one operation or exposure, and their bytes.
    pub(crate) pinned: (u64, u64),
}

/// Where the bytes of an operation are at this end.
#[derive(Debug)]
pub(crate) enum Local {
    /// There are none.
    Nothing,
    /// In a slot, of the short ones (0) or the long ones (1).
    Slot(usize, u32),
    /// In a region.
    Place(Place),
    /// In memory that is registered for this operation.
    Pinned(Counted),
}

impl Memory {
    pub(crate) fn new(domain: &Arc<Domain>, budget: &Arc<Budget>, has_windows: bool) -> Self {
        let access = if has_windows { numbers::MW_BIND } else { 0 };
        Self {
            domain: Some(Arc::clone(domain)),
            regions: Regions::new(domain, budget, numbers::LOCAL_WRITE | access),
            budget: Arc::clone(budget),
            slots: [None, None],
            refusal: None,
            pinned: (0, 0),
        }
    }

    /// Registers memory for one operation or exposure.
    ///
    /// # Errors
    /// [`Refused::Full`] if the system refuses it; the reason is kept.
    #[cold]
    pub(crate) fn pin(&mut self, held: Held, access: i32) -> Result<Counted, Refused> {
        let bytes = held.len();
        let Some(domain) = self.domain.clone() else {
            return Err(Refused::PeerDown);
        };
        if !self.budget.take(bytes) {
            self.refusal = Some(self.budget.words(bytes));
            return Err(Refused::Full);
        }
        match Pinned::new(&domain, held, access) {
            Ok(pinned) => {
                self.pinned = (self.pinned.0 + 1, self.pinned.1 + bytes as u64);
                Ok(Counted {
                    pinned,
                    budget: Arc::clone(&self.budget),
                })
            }
            Err(error) => {
                self.budget.give(bytes);
                self.refuse(&error)
            }
        }
    }

    /// A window of the rail's protection domain.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    #[cold]
    pub(crate) fn new_window(&mut self) -> Result<Window, Refused> {
        let Some(domain) = &self.domain else {
            return Err(Refused::PeerDown);
        };
        Window::new(domain).or_else(|error| self.refuse(&error))
    }

    /// Lets go of the device.
    pub(crate) fn release(&mut self) {
        self.regions.release();
        self.slots = [None, None];
        self.domain = None;
    }

    fn refuse<T>(&mut self, error: &VerbsError) -> Result<T, Refused> {
        self.refusal = Some(error.to_string());
        Err(Refused::Full)
    }

    /// The place of a region's slice.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub(crate) fn place(&mut self, slice: &doorbell_fabric::memory::RegionSlice) -> Result<Place, Refused> {
        let place = self.regions.place(slice);
        place.ok_or_else(|| {
            self.refusal = self.regions.refusal.take().or(self.refusal.take());
            Refused::Full
        })
    }

    /// A free slot of at least this length.
    ///
    /// # Errors
    /// [`Refused::Full`] if there is none now, or no memory for slots.
    fn slot(&mut self, length: usize, sizes: &Sizes) -> Result<Local, Refused> {
        let kind = usize::from(length > sizes.short.1);
        if self.slots[kind].is_none() {
            self.make_slots(
                kind,
                if kind == 0 {
                    sizes.short
                } else {
                    (sizes.long, sizes.register)
                },
            )?;
        }
        let free = self.slots[kind].as_mut().and_then(|slots| slots.free.pop());
        free.map(|slot| Local::Slot(kind, slot)).ok_or(Refused::Full)
    }

    #[cold]
    fn make_slots(&mut self, kind: usize, (count, size): (usize, usize)) -> Result<(), Refused> {
        let bytes = count * size;
        let Some(domain) = self.domain.clone() else {
            return Err(Refused::PeerDown);
        };
        if !self.budget.take(bytes) {
            self.refusal = Some(self.budget.words(bytes));
            return Err(Refused::Full);
        }
        let made = match Region::new(bytes) {
            Ok(region) => Registered::new(&domain, &region).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match made {
            Ok(memory) => {
                self.slots[kind] = Some(Slots {
                    memory,
                    size,
                    free: (0..count as u32).rev().collect(),
                });
                Ok(())
            }
            Err(words) => {
                self.budget.give(bytes);
                self.refusal = Some(words);
                Err(Refused::Full)
            }
        }
    }

    /// Finds or makes the place that a put's bytes are taken from: a copy, but for a region and a loan that
    /// is registered.
    ///
    /// # Errors
    /// [`Refused::Full`] if there is no room, or the system refuses a registration.
    #[inline]
    pub(crate) fn of_body(&mut self, body: &Body<'_>, sizes: &Sizes) -> Result<Local, Refused> {
        let length = body.len();
        if length == 0 {
            return Ok(Local::Nothing);
        }
        if let Body::Region(slice) = body
            && length >= sizes.zero_copy
        {
            return self.place(slice).map(Local::Place);
        }
        if length <= sizes.register {
            let slot = self.slot(length, sizes)?;
            let mut at = 0;
            body.for_each_part(|part| at += self.write(&slot, at, part));
            return Ok(slot);
        }
        if let Body::Loan(loan) = body
            && sizes.pins_loans
        {
            return self.pin(Held::Read(*loan), 0).map(Local::Pinned);
        }
        let copy = self.copy_of(length)?;
        let mut at = 0;
        body.for_each_part(|part| at += self.write(&copy, at, part));
        Ok(copy)
    }

    #[cold]
    fn copy_of(&mut self, length: usize) -> Result<Local, Refused> {
        match Region::new(length) {
            Ok(region) => self
                .pin(Held::Region(region.whole()), numbers::LOCAL_WRITE)
                .map(Local::Pinned),
            Err(error) => {
                self.refusal = Some(error.to_string());
                Err(Refused::Full)
            }
        }
    }

    /// Finds or makes the place that a get's bytes come to, and whether they are copied from there.
    ///
    /// # Errors
    /// As [`of_body`](Self::of_body).
    #[inline]
    pub(crate) fn of_landing(&mut self, landing: &Landing, sizes: &Sizes) -> Result<(Local, bool), Refused> {
        let length = landing.len();
        if length == 0 {
            return Ok((Local::Nothing, false));
        }
        match landing {
            Landing::Region(slice) if length >= sizes.zero_copy => {
                Ok((Local::Place(self.place(slice)?), false))
            }
            _ if length <= sizes.register => Ok((self.slot(length, sizes)?, true)),
            Landing::Region(slice) => Ok((Local::Place(self.place(slice)?), false)),
            Landing::Loan(loan) if sizes.pins_loans => {
                let pinned = self.pin(Held::Write(*loan), numbers::LOCAL_WRITE)?;
                Ok((Local::Pinned(pinned), false))
            }
            Landing::Loan(_) => Ok((self.copy_of(length)?, true)),
        }
    }

    /// Eight bytes for an atomic's old value.
    ///
    /// # Errors
    /// As [`of_body`](Self::of_body).
    pub(crate) fn of_atomic(&mut self, sizes: &Sizes) -> Result<Local, Refused> {
        self.slot(8, sizes)
    }

    fn write(&self, local: &Local, at: usize, bytes: SharedBytes<'_>) -> usize {
        match (self.beneath(local), local) {
            (Some((Beneath::Registered(memory), start)), _) => {
                memory.memory().write_shared(start + at, bytes)
            }
            (_, Local::Pinned(counted)) => match counted.pinned.held() {
                Held::Region(slice) => slice.write_shared(at, bytes),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// The bytes of a place, `length` from its beginning.
    pub(crate) fn bytes<'a>(&'a self, local: &'a Local, length: usize) -> SharedBytes<'a> {
        match local {
            Local::Pinned(counted) => counted.pinned.held().as_shared().take(length),
            _ => match self.beneath(local) {
                Some((Beneath::Registered(memory), at)) => memory.memory().as_shared().skip(at).take(length),
                _ => SharedBytes::EMPTY,
            },
        }
    }

    /// The registration of a place, and where in it that begins.
    #[inline]
    pub(crate) fn beneath<'a>(&'a self, local: &'a Local) -> Option<(Beneath<'a>, usize)> {
        match local {
            Local::Nothing => None,
            Local::Slot(kind, slot) => {
                let slots = self.slots[*kind].as_ref()?;
                Some((Beneath::Registered(&slots.memory), *slot as usize * slots.size))
            }
            Local::Place(place) => Some((Beneath::Registered(&place.memory), place.at)),
            Local::Pinned(counted) => Some((Beneath::Pinned(&counted.pinned), 0)),
        }
    }

    /// An operation has ended, and its device does not touch the place any more.
    #[inline]
    pub(crate) fn give_back(&mut self, local: Local) {
        if let Local::Slot(kind, slot) = local
            && let Some(slots) = &mut self.slots[kind]
        {
            slots.free.push(slot);
        }
    }

    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> [usize; 2] {
        [0, 1].map(|kind| self.slots[kind].as_ref().map_or(0, |slots| slots.free.len()))
    }
}

#[cfg(test)]
impl Budget {
    pub(crate) fn limited(limit: u64) -> Self {
        Self {
            limit: Some(limit),
            locked: AtomicU64::new(0),
        }
    }
}

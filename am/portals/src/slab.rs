//! Objects behind handles: an index, a generation, a class and the interface, in 32 bits.
//!
//! ```text
//! 31    29 28  27 26          index bits              0
//! │ class │ kind │ generation │ index                 │
//! ```
//!
//! A handle that is old gives nothing: its generation is another one. The index has as many bits as the limit
//! needs (twice over, because an object that is released stays while operations refer to it), the generation
//! has the rest. All ones never occurs, so none of the "no handle" numbers of the C binding is ever a handle
//! (reference: portals, section 2).

/// The class bits of handles.
pub(crate) mod class {
    pub(crate) const EQ: u32 = 1;
    pub(crate) const CT: u32 = 2;
    pub(crate) const MD: u32 = 3;
    pub(crate) const ENTRY: u32 = 4;
}

/// Bits below the class and the kind.
const BELOW: u32 = 27;

#[derive(Debug)]
struct Slot<T> {
    /// The handle of what is in it; zero for nothing, or for something that was released.
    handle: u32,
    generation: u32,
    /// The next free slot.
    next: u32,
    value: Option<T>,
}

/// Objects of one class of one interface.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    /// Objects that count against the limit.
    live: u32,
    limit: u32,
    prefix: u32,
    index_bits: u32,
    /// The index bits.
    mask: u32,
}

const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    /// A slab for this many objects at a time.
    pub(crate) fn new(class: u32, kind: u32, limit: u32) -> Self {
        let slots = u64::from(limit.max(1)) * 2;
        let index_bits = slots.next_power_of_two().trailing_zeros().min(BELOW - 5);
        Self {
            slots: Vec::new(),
            free: NONE,
            live: 0,
            limit,
            prefix: class << 29 | kind << BELOW,
            index_bits,
            mask: (1 << index_bits) - 1,
        }
    }

    /// Empties the slab, for another limit: old handles stay old.
    pub(crate) fn renew(&mut self, limit: u32) {
        let fresh = Self::new(0, 0, limit);
        if fresh.index_bits != self.index_bits {
            // Other bits are the generation's now: start where no old handle was.
            let oldest = self.slots.iter().map(|slot| slot.generation).max().unwrap_or(0);
            *self = Self {
                prefix: self.prefix,
                ..fresh
            };
            self.slots.reserve(1);
            self.insert_floor(oldest);
            return;
        }
        self.limit = limit;
        self.live = 0;
        self.free = NONE;
        for index in (0..self.slots.len()).rev() {
            let slot = &mut self.slots[index];
            slot.handle = 0;
            slot.value = None;
            slot.next = self.free;
            self.free = index as u32;
        }
    }

    fn insert_floor(&mut self, generation: u32) {
        self.slots.push(Slot {
            handle: 0,
            generation,
            next: NONE,
            value: None,
        });
        self.free = 0;
    }

    /// Puts an object in; gives it back when the limit is reached.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if self.live >= self.limit {
            return Err(value);
        }
        if self.free == NONE && !self.grow() {
            return Err(value);
        }
        let index = self.free;
        let generations = 1u32 << (BELOW - self.index_bits);
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        // The last generation is left out: no handle is all ones.
        slot.generation = (slot.generation + 1) % (generations - 1);
        slot.handle = self.prefix | slot.generation << self.index_bits | index;
        slot.value = Some(value);
        self.live += 1;
        Ok(slot.handle)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let slots = self.slots.len();
        if slots >= 1 << self.index_bits {
            return false;
        }
        // From wherever the others are: a slot that is made again after the limits changed must not repeat
        // old handles.
        let generation = self.slots.first().map_or(0, |slot| slot.generation);
        self.slots.push(Slot {
            handle: 0,
            generation,
            next: NONE,
            value: None,
        });
        self.free = slots as u32;
        true
    }

    #[inline(always)]
    fn mask(&self) -> u32 {
        self.mask
    }

    /// The index of what a handle names.
    #[inline(always)]
    pub(crate) fn index(&self, handle: u32) -> Option<u32> {
        let index = handle & self.mask();
        let slot = self.slots.get(index as usize)?;
        (slot.handle == handle && handle != 0).then_some(index)
    }

    /// The handle of what is at an index; zero for nothing, or what was released.
    #[inline(always)]
    pub(crate) fn handle(&self, index: u32) -> u32 {
        self.slots.get(index as usize).map_or(0, |slot| slot.handle)
    }

    /// Returns the object of a handle, with its index.
    #[inline(always)]
    pub(crate) fn find(&self, handle: u32) -> Option<(u32, &T)> {
        let index = handle & self.mask();
        let slot = self.slots.get(index as usize)?;
        if slot.handle != handle || handle == 0 {
            return None;
        }
        Some((index, slot.value.as_ref()?))
    }

    #[inline(always)]
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get((handle & self.mask()) as usize)?;
        if slot.handle != handle || handle == 0 {
            return None;
        }
        slot.value.as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let mask = self.mask();
        let slot = self.slots.get_mut((handle & mask) as usize)?;
        if slot.handle != handle || handle == 0 {
            return None;
        }
        slot.value.as_mut()
    }

    /// Indexes are below this.
    pub(crate) fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns an object by index, released or not: for what holds a reference.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// The handle names nothing from now on, and the object counts no more; it stays until [`Slab::take`].
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.handle != 0
        {
            slot.handle = 0;
            self.live -= 1;
        }
    }

    /// The handle names nothing from now on, but the object still counts.
    #[inline]
    pub(crate) fn forget_handle(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.handle != 0
        {
            slot.handle = 0;
        }
    }

    /// Takes an object out.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<T> {
        self.release(index);
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.next = self.free;
        self.free = index;
        Some(value)
    }

    /// Takes an object out whose handle was forgotten while it still counted.
    #[inline]
    pub(crate) fn take_counted(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.handle = 0;
        slot.next = self.free;
        self.free = index;
        self.live -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact_and_old_handles_name_nothing() {
        let mut slab = Slab::new(class::MD, 0, 3);
        let handles: Vec<u32> = (0..3).map(|n| slab.insert(n).unwrap()).collect();
        assert_eq!(slab.insert(9), Err(9));
        let index = slab.index(handles[1]).unwrap();
        assert_eq!(slab.take(index), Some(1));
        assert_eq!((slab.get(handles[1]), slab.get(handles[2])), (None, Some(&2)));
        let again = slab.insert(7).unwrap();
        assert_ne!(again, handles[1]);
        assert_eq!(slab.get(handles[1]), None);
        assert_eq!(slab.insert(9), Err(9));
    }

    #[test]
    fn a_released_object_stays_while_others_refer_to_it() {
        let mut slab = Slab::new(class::MD, 0, 1);
        let handle = slab.insert(5).unwrap();
        let index = slab.index(handle).unwrap();
        slab.release(index);
        assert_eq!((slab.get(handle), slab.at(index)), (None, Some(&5)));
        let second = slab.insert(6).unwrap();
        assert_eq!((slab.take(index), slab.get(second)), (Some(5), Some(&6)));
        assert_eq!(slab.insert(7), Err(7));
    }

    #[test]
    fn no_handle_is_one_of_the_reserved_numbers() {
        for (class, reserved) in [
            (class::EQ, 0x3fff_ffff),
            (class::CT, 0x5fff_ffff),
            (class::ENTRY, u32::MAX),
        ] {
            for limit in [1, 2, 1 << 20] {
                let mut slab = Slab::new(class, 3, limit);
                let mut seen = std::collections::HashSet::new();
                for _ in 0..200 {
                    let handle = slab.insert(()).unwrap();
                    assert!(handle != reserved && handle >> 29 == class && handle >> 27 & 3 == 3);
                    if limit < 1 << 20 {
                        assert!(seen.insert(handle), "a handle came back at once");
                    }
                    let index = slab.index(handle).unwrap();
                    slab.take(index);
                }
            }
        }
    }

    #[test]
    fn a_renewed_slab_is_empty_and_knows_no_old_handle() {
        for limit in [4, 64] {
            let mut slab = Slab::new(class::EQ, 1, 4);
            let old: Vec<u32> = (0..4).map(|n| slab.insert(n).unwrap()).collect();
            slab.renew(limit);
            let new: Vec<u32> = (0..4).map(|n| slab.insert(n).unwrap()).collect();
            assert!(
                old.iter()
                    .all(|handle| slab.get(*handle).is_none() && !new.contains(handle))
            );
        }
    }
}

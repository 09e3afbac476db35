//! All unsafe accesses to the mapped registers of a device.
//!
//! ```text
//!   region    0        0x3000   0x4000            0x8000
//!             │ mapped │ MSI-X  │ mapped          │         what is not mapped is reached by calls only
//!             └────────┴────────┴─────────────────┘
//! ```
//!
//! A [`Block`] is a place in a mapped part, typed as a structure of `volatile-register`'s cells. Offset, size
//! and alignment are checked when it is created, and nothing afterwards. Writing a register is memory-safe:
//! whatever the device does in return, the IOMMU restricts it to memory that was shared with it, which is
//! never accessed as a plain slice. (vfio-user: the emulated device has only the shared objects.)

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use volatile_register::{RO, RW, WO};

use crate::device::{Area, RegionIndex};
use crate::error::Error;
use crate::sys;

/// A structure that registers can be seen as.
///
/// # Safety
/// The type is `repr(C)` (or `transparent`) and made of nothing but `volatile-register`'s cells `RO`, `RW`
/// and `WO` of unsigned integers, arrays of such, and structures that are `Registers` themselves: any bytes
/// are a value of it, all access is volatile, and nothing happens when it is dropped.
pub unsafe trait Registers {}

macro_rules! cells {
    ($($integer:ty),*) => {$(
        // SAFETY: one cell of an integer.
        unsafe impl Registers for RO<$integer> {}
        // SAFETY: one cell of an integer.
        unsafe impl Registers for RW<$integer> {}
        // SAFETY: one cell of an integer.
        unsafe impl Registers for WO<$integer> {}
        impl Put<$integer> for RW<$integer> {
            #[inline(always)]
            fn put(&self, value: $integer) {
                // SAFETY: the cell is part of a block in a mapped region (nothing else makes one), and a
                // device reaches, whatever its registers contain, no memory but what was shared with it.
                unsafe { self.write(value) }
            }
        }
        impl Put<$integer> for WO<$integer> {
            #[inline(always)]
            fn put(&self, value: $integer) {
                // SAFETY: as for cells that can be read, too.
                unsafe { self.write(value) }
            }
        }
    )*};
}
cells!(u8, u16, u32, u64);

// SAFETY: cells in a row are cells.
unsafe impl<T: Registers, const N: usize> Registers for [T; N] {}

/// Writing a register: one store of its width.
///
/// `volatile-register` leaves it to the caller to ensure that a store is safe; behind an IOMMU it cannot
/// affect memory.
pub trait Put<T> {
    /// Stores `value`. Registers are stored to in the order of the calls; what was written to *memory* before
    /// is seen by the device only after [`before_doorbell`].
    fn put(&self, value: T);
}

/// Orders earlier writes to memory before a later write to a register, as the device sees them.
///
/// Source: Linux's `dma_wmb` and `writel`: stores are in order on x86; elsewhere the device is in another
/// domain of ordering.
#[inline(always)]
pub fn before_doorbell() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and changes nothing.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Orders later reads of memory after earlier ones, so that data is not older than the flag that announced
/// it.
///
/// Source: Linux's `dma_rmb`.
#[inline(always)]
pub fn after_completion() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and changes nothing.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags))
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}

/// A region of a device, mapped as far as possible.
///
/// Clones share one map, which lasts as long as any of them or a [`Block`]. The kernel keeps a mapped device
/// open: when it has to be released, all maps have to be dropped. While the device is reset or its memory is
/// disabled, the kernel removes the pages, and an access ends the process with SIGBUS.
#[derive(Clone)]
pub struct Bar {
    inner: Arc<Inner>,
}

struct Inner {
    device: String,
    region: RegionIndex,
    length: u64,
    parts: Vec<Part>,
}

struct Part {
    area: Area,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a map is an address range that stays valid until dropped, on whichever thread; access to its bytes
// is volatile.
unsafe impl Send for Part {}
// SAFETY: as above; `&Part` only gives out the address.
unsafe impl Sync for Part {}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: made by `sys::map` with this length, and every user of it holds the bar.
        unsafe { sys::unmap(self.start, self.length) }
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            device,
            region,
            length,
            ..
        } = &*self.inner;
        write!(f, "{region} of {device}, {length} bytes")
    }
}

impl Bar {
    /// Maps these areas of a region from a descriptor in which the region starts at offset `from`.
    pub(crate) fn new(
        device: &str,
        region: RegionIndex,
        length: u64,
        areas: &[Area],
        (descriptor, from): (BorrowedFd<'_>, u64),
    ) -> Result<Self, Error> {
        let none = |reason| Error::OutOfRegion {
            device: device.to_owned(),
            region,
            at: 0,
            length,
            reason,
        };
        if areas.is_empty() {
            return Err(none(
                "cannot be mapped: the device has no such region, or does not allow it",
            ));
        }
        let page = doorbell_fabric::map::page_size() as u64;
        let mut parts = Vec::with_capacity(areas.len());
        for &area in areas {
            let is_inside = area.at.checked_add(area.length).is_some_and(|end| end <= length);
            let at = from.checked_add(area.at).filter(|at| at.is_multiple_of(page));
            let size = usize::try_from(area.length).ok().filter(|size| *size > 0);
            let (true, true, Some(at), Some(size)) = (is_inside, area.at.is_multiple_of(page), at, size)
            else {
                return Err(Error::hostile(
                    device,
                    "offers a part of a region that cannot be mapped",
                ));
            };
            let start = sys::map(descriptor, at, size)
                .map_err(|source| Error::refused(device, "map a region", source))?;
            parts.push(Part {
                area,
                start,
                length: size,
            });
        }
        Ok(Self {
            inner: Arc::new(Inner {
                device: device.to_owned(),
                region,
                length,
                parts,
            }),
        })
    }

    /// Length of the region in bytes, also of what is not mapped of it.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Never: what has no bytes cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The parts that are mapped.
    pub fn areas(&self) -> impl Iterator<Item = Area> {
        self.inner.parts.iter().map(|part| part.area)
    }

    /// The registers at an offset of the region, as a structure of cells.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] where they are not all in one mapped part, or not aligned.
    pub fn block<T: Registers>(&self, at: u64) -> Result<Block<T>, Error> {
        let length = size_of::<T>() as u64;
        let failed = |reason| Error::OutOfRegion {
            device: self.inner.device.clone(),
            region: self.inner.region,
            at,
            length,
            reason,
        };
        if !at.is_multiple_of(align_of::<T>() as u64) {
            return Err(failed("are not aligned to the size of the register"));
        }
        let inside = |part: &&Part| {
            let within = at.checked_sub(part.area.at);
            within
                .and_then(|within| within.checked_add(length))
                .is_some_and(|end| end <= part.area.length)
        };
        let part = self.inner.parts.iter().find(inside);
        let part = part.ok_or_else(|| failed("are not mapped, or not inside it"))?;
        // Cannot wrap: it is inside of the part, whose length is a `usize`. Parts begin on pages.
        let within = (at - part.area.at) as usize;
        // SAFETY: the offset is inside the map, by the check above.
        let start = unsafe { part.start.add(within) };
        Ok(Block {
            start: start.cast(),
            bar: self.clone(),
            registers: PhantomData,
        })
    }
}

/// Registers in a mapped region: derefs to the structure.
pub struct Block<T> {
    start: NonNull<T>,
    /// Keeps the map.
    bar: Bar,
    registers: PhantomData<T>,
}

// SAFETY: registers are the same on all threads, each access is volatile; only one thread at a time has the
// block.
unsafe impl<T: Registers> Send for Block<T> {}

impl<T: Registers> Block<T> {
    /// The region that they are in.
    pub fn bar(&self) -> &Bar {
        &self.bar
    }
}

impl<T: Registers> Deref for Block<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: inside a map that `bar` keeps, aligned, and any bytes are a `T`, which is nothing but
        // cells, so that the device may change them at any time.
        unsafe { self.start.as_ref() }
    }
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of registers in {:?}", size_of::<T>(), self.bar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    use doorbell_fabric::map::Object;

    const PAGE: u64 = 4096;

    #[repr(C)]
    struct Pair {
        first: RW<u32>,
        second: RO<u32>,
        wide: RW<u64>,
    }
    // SAFETY: cells only.
    unsafe impl Registers for Pair {}

    fn index() -> RegionIndex {
        RegionIndex::bar(0).unwrap()
    }

    fn area(at: u64, length: u64) -> Area {
        Area { at, length }
    }

    fn mapped(areas: &[Area]) -> Result<Bar, Error> {
        let object = Object::new("registers", 4 * PAGE as usize).unwrap();
        Bar::new("model", index(), 4 * PAGE, areas, (object.as_fd(), 0))
    }

    #[test]
    fn registers_are_where_they_are_said_to_be() {
        let bar = mapped(&[area(0, 4 * PAGE)]).unwrap();
        let pair = bar.block::<Pair>(0x20).unwrap();
        pair.first.put(0x1122_3344);
        pair.wide.put(7);
        let same = bar.block::<[RO<u32>; 4]>(0x20).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|at: usize| same[at].read()),
            [0x1122_3344, 0, 7, 0]
        );
        assert_eq!(pair.second.read(), 0);
        drop(bar);
        assert_eq!(pair.first.read(), 0x1122_3344, "the block keeps the map");
    }

    #[test]
    fn what_is_not_mapped_or_not_aligned_is_refused() {
        let bar = mapped(&[area(0, PAGE), area(2 * PAGE, 2 * PAGE)]).unwrap();
        assert_eq!((bar.len(), bar.areas().count()), (4 * PAGE, 2));
        for good in [0, PAGE - 16, 2 * PAGE, 4 * PAGE - 16] {
            assert!(bar.block::<Pair>(good).is_ok(), "{good:#x}");
        }
        for bad in [
            PAGE - 8,
            PAGE,
            2 * PAGE - 16,
            4 * PAGE - 8,
            4 * PAGE,
            u64::MAX - 15,
            !7,
            4,
            1,
        ] {
            let error = bar.block::<Pair>(bad).unwrap_err();
            assert_eq!(error.code(), "out-of-region", "{bad:#x}");
        }
        assert!(bar.block::<RO<u32>>(4).is_ok() && bar.block::<RO<u32>>(2).is_err());
    }

    #[test]
    fn areas_that_cannot_be_are_the_models_fault() {
        for bad in [
            area(1, PAGE),
            area(0, 5 * PAGE),
            area(PAGE, u64::MAX),
            area(0, 0),
            area(!(PAGE - 1), PAGE),
        ] {
            assert_eq!(mapped(&[bad]).unwrap_err().code(), "hostile", "{bad:?}");
        }
        assert_eq!(mapped(&[]).unwrap_err().code(), "out-of-region");
    }
}

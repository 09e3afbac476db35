//! Shared memory objects and their maps: sealed memfds, guard pages, no files, nothing to clean up.
//!
//! ```text
//!   ┌──────────┬───────────────────────────────┬──────────┐
//!   │ PROT_NONE│  the object, whole pages      │ PROT_NONE│   one reservation, so that an index that runs away
//!   └──────────┴───────────────────────────────┴──────────┘   hits a wall instead of somebody's memory
//! ```
//!
//! An object is sealed against resizing before it leaves its maker, and whoever receives one checks the seals
//! first: a peer that shrinks its object could otherwise kill us with SIGBUS. With
//! [`Object::seal_against_new_writers`] the maker keeps the only writable map.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::error::RailError;

/// How a map may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Reading only; a write is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A shared memory object: a memfd whose size can never change.
#[derive(Debug)]
pub struct Object {
    descriptor: OwnedFd,
    length: usize,
}

/// The size of a page, in bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// `length` rounded up to whole pages.
pub fn whole_pages(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(page_size())
}

impl Object {
    /// Makes an object of at least `length` bytes (whole pages, zero-filled, backed now rather than at first use),
    /// named `label` for `/proc`, and seals its size.
    ///
    /// # Errors
    /// When memory or descriptors run out, with the size that was asked for.
    pub fn new(label: &str, length: usize) -> Result<Self, RailError> {
        let failed =
            |errno: Errno| RailError::memory("make a shared memory object", label, length, errno.into());
        let length = whole_pages(length.max(1)).ok_or_else(|| failed(Errno::NOMEM))?;
        let descriptor = rustix::fs::memfd_create(label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed)?;
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, length as u64).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        Ok(Self { descriptor, length })
    }

    /// Takes an object that a peer passed, after checking that it is sealed against resizing and at least
    /// `least` bytes long.
    ///
    /// # Errors
    /// When it is not, in which case mapping it would be dangerous.
    pub fn received(descriptor: OwnedFd, least: usize) -> Result<Self, RailError> {
        let seals = rustix::fs::fcntl_get_seals(&descriptor)
            .map_err(|_| RailError::hostile("passed a descriptor that is not a sealed memory object"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(RailError::hostile(
                "passed a memory object that is not sealed against resizing",
            ));
        }
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| {
            RailError::memory(
                "look at a shared memory object",
                "from a peer",
                least,
                errno.into(),
            )
        })?;
        let length = usize::try_from(stat.st_size).unwrap_or(0);
        if length < least || !length.is_multiple_of(page_size()) {
            return Err(RailError::hostile("passed a memory object of the wrong size"));
        }
        Ok(Self { descriptor, length })
    }

    /// From now on nobody can make a new writable map of it: call after the maker has mapped it, before passing it.
    ///
    /// # Errors
    /// When the kernel is older than 5.1.
    pub fn seal_against_new_writers(&self) -> Result<(), RailError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::FUTURE_WRITE)
            .map_err(|errno| RailError::memory("seal a shared memory object", "", self.length, errno.into()))
    }

    /// Its length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: an object has at least one page.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Maps all of it.
    ///
    /// # Errors
    /// When the address space or the number of maps runs out, or the object does not allow writing.
    pub fn map(&self, protection: Protection) -> Result<Map, RailError> {
        Map::new(self, protection)
    }
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A map of a whole [`Object`] between two guard pages; not inherited by `fork`. Unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    reservation: *mut u8,
    reserved: usize,
    length: usize,
    protection: Protection,
}

// SAFETY: a map is an address range that stays valid until dropped, on whichever thread; all access to its bytes
// goes through raw pointers and atomics of the modules that hold it.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` only gives out the address.
unsafe impl Sync for Map {}

impl Map {
    fn new(object: &Object, protection: Protection) -> Result<Self, RailError> {
        let failed =
            |errno: Errno| RailError::memory("map a shared memory object", "", object.length, errno.into());
        let guard = page_size();
        let reserved = object.length + 2 * guard;
        // SAFETY: a fresh private reservation at an address of the kernel's choice touches no existing memory.
        let reservation = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(failed)?
        .cast::<u8>();
        let map = Self {
            reservation,
            reserved,
            length: object.length,
            protection,
        };
        let rights = match protection {
            Protection::ReadOnly => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: MAP_FIXED replaces pages of our own reservation only: it starts one page in and ends one before its end.
        unsafe {
            rustix::mm::mmap(
                map.as_ptr().cast(),
                object.length,
                rights,
                flags,
                &object.descriptor,
                0,
            )
        }
        .map_err(failed)?;
        // SAFETY: the range is the map just made; DONTFORK changes what a child inherits, not what we see.
        unsafe { rustix::mm::madvise(map.as_ptr().cast(), object.length, Advice::LinuxDontFork) }
            .map_err(failed)?;
        Ok(map)
    }

    /// The first byte of the object. Bytes may be written by others at any time.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.reservation.wrapping_add(page_size())
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: an object has at least one page.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How it may be used.
    #[inline]
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Takes away the right to write through this map, for good.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub fn protect(&mut self) -> Result<(), RailError> {
        // SAFETY: the range is our own map; no reference to its bytes exists, only raw pointers whose users know
        // the protection they asked for.
        unsafe { rustix::mm::mprotect(self.as_ptr().cast(), self.length, MprotectFlags::READ) }
            .map_err(|errno| RailError::memory("protect a map", "", self.length, errno.into()))?;
        self.protection = Protection::ReadOnly;
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours alone, and whoever used its addresses held this value.
        let unmapped = unsafe { rustix::mm::munmap(self.reservation.cast(), self.reserved) };
        debug_assert!(unmapped.is_ok(), "munmap of our own reservation: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_shared_between_its_maps_and_cannot_be_resized() {
        let object = Object::new("test", 100).unwrap();
        assert_eq!(object.len(), page_size());
        let writer = object.map(Protection::ReadWrite).unwrap();
        let reader = object.map(Protection::ReadOnly).unwrap();
        // SAFETY: the map is at least a page long and writable.
        unsafe { writer.as_ptr().write_volatile(42) };
        // SAFETY: the map is at least a page long and readable.
        assert_eq!(unsafe { reader.as_ptr().read_volatile() }, 42);
        assert!(rustix::fs::ftruncate(&object, 0).is_err());
    }

    #[test]
    fn after_sealing_nobody_else_can_write() {
        let object = Object::new("test", 1).unwrap();
        let _mine = object.map(Protection::ReadWrite).unwrap();
        object.seal_against_new_writers().unwrap();
        assert!(object.map(Protection::ReadWrite).is_err());
        assert!(object.map(Protection::ReadOnly).is_ok());
    }

    #[test]
    fn an_unsealed_or_short_object_of_a_peer_is_refused() {
        let unsealed =
            rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(Object::received(unsealed, 1).is_err());
        let short = Object::new("test", 1).unwrap().descriptor;
        assert!(Object::received(short, page_size() + 1).is_err());
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(Object::received(pipe, 1).is_err());
    }
}

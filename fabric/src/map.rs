//! Shared memory objects and their maps: sealed memfds, guard pages, no files, nothing to clean up.
//!
//! ```text
//!   ┌──────────┬───────────────────────────────┬──────────┐
//!   │ PROT_NONE│  the object, whole pages      │ PROT_NONE│   one reservation: an index out of bounds faults
//!   └──────────┴───────────────────────────────┴──────────┘   instead of touching other memory
//! ```
//!
//! An object is sealed against resizing before it is passed on, and its receiver checks the seals first: a
//! peer that shrinks its object could otherwise kill us with SIGBUS. With
//! [`Object::seal_against_new_writers`] the creator keeps the only writable map.
//!
//! [`Words`] gives code without `unsafe` access: atomic 64-bit words by checked index, for counters and for
//! measuring a bare exchange of cache lines.

pub mod clofork;
pub mod process;

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::error::{RailError, check_file_size};

/// How a map may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Reading only; a write is a fault.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A shared memory object: a memfd whose size can never change, or a private file ([`Object::create_file`]).
#[derive(Debug)]
pub struct Object {
    descriptor: OwnedFd,
    length: usize,
    /// What it is made of, and a map of it begins on.
    page: usize,
    /// Its memory is allocated in parts, by [`Map::allocate`].
    grows: bool,
    /// Its inode number, once it was needed.
    serial: OnceLock<u64>,
}

/// Sets the length of a new object, and allocates its memory now.
fn allocate(descriptor: &OwnedFd, length: usize) -> rustix::io::Result<()> {
    // The system would end this process with SIGXFSZ, and what that does is its user's matter.
    check_file_size(length as u64).map_err(|_| Errno::FBIG)?;
    rustix::fs::fallocate(descriptor, FallocateFlags::empty(), 0, length as u64)
}

/// Sets the length of a new object, and allocates nothing.
fn set_length(descriptor: &OwnedFd, length: usize) -> rustix::io::Result<()> {
    check_file_size(length as u64).map_err(|_| Errno::FBIG)?;
    rustix::fs::ftruncate(descriptor, length as u64)
}

/// Whether the kernel has `MADV_POPULATE_WRITE`.
fn parts_can_be_allocated() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        // SAFETY: no bytes at all: the kernel judges the advice and does nothing.
        unsafe { rustix::mm::madvise(ptr::null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok()
    })
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
    /// Creates an object of at least `length` bytes (whole pages, zero-filled, allocated now rather than at
    /// first use), named `label` in `/proc`, and seals its size.
    ///
    /// # Errors
    /// When memory or descriptors run out, with the requested size.
    pub fn new(label: &str, length: usize) -> Result<Self, RailError> {
        Self::sealed(label, length, false)
    }

    /// Creates an object like [`Object::new`] whose memory its maker allocates in parts, by
    /// [`Map::allocate`], each before its use: a part that was not allocated is taken by the process that
    /// touches it first, which ends by SIGBUS where there is none. Where the kernel allocates no parts
    /// (before 5.14), the object has all of it now.
    ///
    /// # Errors
    /// When descriptors run out, or the size is more than a file may have.
    pub fn growing(label: &str, length: usize) -> Result<Self, RailError> {
        Self::sealed(label, length, parts_can_be_allocated())
    }

    fn sealed(label: &str, length: usize, grows: bool) -> Result<Self, RailError> {
        let failed =
            |errno: Errno| RailError::memory("create a shared memory object", label, length, errno.into());
        let length = whole_pages(length.max(1)).ok_or_else(|| failed(Errno::NOMEM))?;
        let descriptor = rustix::fs::memfd_create(label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed)?;
        if grows {
            set_length(&descriptor, length).map_err(failed)?;
        } else {
            allocate(&descriptor, length).map_err(failed)?;
        }
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        Ok(Self {
            descriptor,
            length,
            page: page_size(),
            grows,
            serial: OnceLock::new(),
        })
    }

    /// Creates an object of huge pages (of the kernel's default size, 2 MiB on x86-64), which have to be
    /// reserved (`/proc/sys/vm/nr_hugepages`).
    ///
    /// # Errors
    /// When fewer are free than are needed.
    pub fn huge(label: &str, length: usize) -> Result<Self, RailError> {
        let failed =
            |errno: Errno| RailError::memory("create an object of huge pages", label, length, errno.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let descriptor = rustix::fs::memfd_create(label, flags).map_err(failed)?;
        let page = page_of(&rustix::fs::fstat(&descriptor).map_err(failed)?);
        let length = length
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| failed(Errno::NOMEM))?;
        allocate(&descriptor, length).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        Ok(Self {
            descriptor,
            length,
            page,
            grows: false,
            serial: OnceLock::new(),
        })
    }

    /// Creates a file of `length` bytes (whole pages, allocated now), readable and writable by its owner
    /// alone. It must not exist. Files cannot be sealed, so this is only for a directory that no one else may
    /// write, and for a file that its owner leaves alone, since truncating it would kill this process.
    ///
    /// # Errors
    /// When it exists, or the system refuses.
    pub fn create_file(path: &Path, length: usize) -> Result<Self, RailError> {
        let failed = |errno: Errno| {
            RailError::memory("make a file", &path.display().to_string(), length, errno.into())
        };
        let length = whole_pages(length.max(1)).ok_or_else(|| failed(Errno::NOMEM))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        allocate(&descriptor, length).map_err(failed)?;
        Ok(Self {
            descriptor,
            length,
            page: page_size(),
            grows: false,
            serial: OnceLock::new(),
        })
    }

    /// Opens the object behind descriptor `number` of process `process` (one of the same user), for the uses
    /// that `protection` names, with the same checks as [`Object::received`].
    ///
    /// # Errors
    /// When the process or descriptor is not there or not ours to open, or the object is not a safe one.
    pub fn open_of(
        process: u32,
        number: RawFd,
        least: usize,
        protection: Protection,
    ) -> Result<Self, RailError> {
        let path = format!("/proc/{process}/fd/{number}");
        let rights = match protection {
            Protection::ReadOnly => OFlags::RDONLY,
            Protection::ReadWrite => OFlags::RDWR,
        };
        // Whatever the descriptor turns out to be, opening it neither waits nor takes over a terminal.
        let flags = rights | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor = rustix::fs::open(path.as_str(), flags, Mode::empty()).map_err(|errno| {
            RailError::memory("open a peer's shared memory object", &path, least, errno.into())
        })?;
        Self::received(descriptor, least)
    }

    /// Takes an object that a peer passed, after checking that it is sealed against resizing, at least
    /// `least` bytes long, and backed by memory as far as it claims to be long.
    ///
    /// # Errors
    /// When it is not, in which case mapping it would be dangerous.
    pub fn received(descriptor: OwnedFd, least: usize) -> Result<Self, RailError> {
        Self::checked(descriptor, least, false)
    }

    /// Takes an object like [`Object::received`] that may be a growing one: a map of it fills in nothing, and
    /// its reader has to leave alone what its maker has not allocated yet.
    ///
    /// # Errors
    /// Those of [`Object::received`], but for too little memory.
    pub fn received_growing(descriptor: OwnedFd, least: usize) -> Result<Self, RailError> {
        Self::checked(descriptor, least, true)
    }

    fn checked(descriptor: OwnedFd, least: usize, grows: bool) -> Result<Self, RailError> {
        let seals = rustix::fs::fcntl_get_seals(&descriptor)
            .map_err(|_| RailError::hostile("passed a descriptor that is not a sealed memory object"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(RailError::hostile(
                "passed a memory object that is not sealed against resizing",
            ));
        }
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| {
            RailError::memory("check a shared memory object", "from a peer", least, errno.into())
        })?;
        let length = usize::try_from(stat.st_size).unwrap_or(0);
        if length < least || !length.is_multiple_of(page_size()) {
            return Err(RailError::hostile("passed a memory object of the wrong size"));
        }
        // A map of it is filled in at once: the memory has to be its maker's, not ours.
        if !grows && u64::try_from(stat.st_blocks).unwrap_or(0) < stat.st_size as u64 / STAT_BLOCK {
            return Err(RailError::hostile(
                "passed a memory object with less memory than its length",
            ));
        }
        Ok(Self {
            descriptor,
            length,
            page: page_of(&stat),
            grows,
            serial: OnceLock::from(stat.st_ino),
        })
    }

    /// Seals the object against new writable maps: to be called after the creator has mapped it, before
    /// passing it on.
    ///
    /// # Errors
    /// When the kernel is older than 5.1.
    pub fn seal_against_new_writers(&self) -> Result<(), RailError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::FUTURE_WRITE)
            .map_err(|errno| RailError::memory("seal a shared memory object", "", self.length, errno.into()))
    }

    /// Returns the length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The inode number of the object, by which its descriptors are known apart; those of memfds are not
    /// reused. `None` where the system does not show it.
    pub fn serial(&self) -> Option<u64> {
        if let Some(serial) = self.serial.get() {
            return Some(*serial);
        }
        let stat = rustix::fs::fstat(&self.descriptor).ok()?;
        Some(*self.serial.get_or_init(|| stat.st_ino))
    }

    /// The size of the pages that it is made of, in bytes.
    pub fn page(&self) -> usize {
        self.page
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

/// The page size of a shared memory object; for huge pages it is the block size.
fn page_of(stat: &rustix::fs::Stat) -> usize {
    usize::try_from(stat.st_blksize).unwrap_or(0).max(page_size())
}

/// The unit of `st_blocks`, in bytes, whatever the file system's own is.
const STAT_BLOCK: u64 = 512;

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A map of a whole [`Object`] between two guard pages; not inherited by `fork`. Unmapped when dropped.
#[derive(Debug)]
pub struct Map {
    /// The first byte of the object, a guard page or more into the reservation.
    start: *mut u8,
    length: usize,
    /// The reservation, and its length.
    reserved: (*mut u8, usize),
    protection: Protection,
    /// Its maker allocates its parts.
    grows: bool,
}

// SAFETY: a map is an address range that stays valid until dropped, on whichever thread; all access to its
// bytes goes through raw pointers and atomics of the modules that hold it.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` only gives out the address.
unsafe impl Sync for Map {}

impl Map {
    fn new(object: &Object, protection: Protection) -> Result<Self, RailError> {
        let failed =
            |errno: Errno| RailError::memory("map a shared memory object", "", object.length, errno.into());
        // Huge pages need no particular offset; all others need one guard page on each side.
        let guard = object.page;
        let reserved = object.length + 2 * guard;
        // SAFETY: a fresh private reservation at an address of the kernel's choice touches no existing
        // memory.
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
        // Reservations begin on pages, so that this is a page in at least.
        let start = (reservation.addr() + 1).next_multiple_of(guard);
        let map = Self {
            start: reservation.wrapping_add(start - reservation.addr()),
            length: object.length,
            reserved: (reservation, reserved),
            protection,
            grows: object.grows,
        };
        let rights = match protection {
            Protection::ReadOnly => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let mut flags = MapFlags::SHARED | MapFlags::FIXED;
        flags.set(MapFlags::POPULATE, !object.grows);
        // SAFETY: MAP_FIXED replaces pages of our own reservation only: it starts at least one page in, at
        // most one page of the object, and ends before its end.
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
        self.start
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

    /// Whether its object's memory is allocated in parts, so that some may not be there.
    #[inline]
    pub(crate) fn grows(&self) -> bool {
        self.grows
    }

    /// Returns how it may be used.
    #[inline]
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Allocates the pages of a part of a growing object ([`Object::growing`]), and fills them in here;
    /// without effect for any other object, which has all its memory.
    ///
    /// # Errors
    /// When there is no such part, memory runs out, or the map is read-only.
    pub fn allocate(&self, part: Range<usize>) -> Result<(), RailError> {
        let failed = |errno: Errno| {
            let length = part.len();
            RailError::memory(
                "allocate more of a shared memory object",
                "",
                length,
                errno.into(),
            )
        };
        if part.end > self.length || part.is_empty() {
            return Err(failed(Errno::INVAL));
        }
        if !self.grows {
            return Ok(());
        }
        let first = part.start - part.start % page_size();
        let at = self.start.wrapping_add(first).cast();
        // SAFETY: whole pages of our own map, whose length is whole pages; what is in them already stays.
        unsafe { rustix::mm::madvise(at, part.end - first, Advice::LinuxPopulateWrite) }.map_err(failed)
    }

    /// Takes away the right to write through this map, for good.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
    pub fn protect(&mut self) -> Result<(), RailError> {
        // SAFETY: the range is our own map; no reference to its bytes exists, only raw pointers whose users
        // know the protection they requested.
        unsafe { rustix::mm::mprotect(self.as_ptr().cast(), self.length, MprotectFlags::READ) }
            .map_err(|errno| RailError::memory("protect a map", "", self.length, errno.into()))?;
        self.protection = Protection::ReadOnly;
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let (reservation, reserved) = self.reserved;
        // SAFETY: the reservation is ours alone, and every user of its addresses held this value.
        let unmapped = unsafe { rustix::mm::munmap(reservation.cast(), reserved) };
        debug_assert!(unmapped.is_ok(), "munmap of our own reservation: {unmapped:?}");
    }
}

/// A cache line of eight words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line(pub [AtomicU64; WORDS_PER_LINE]);
const _: () = assert!(size_of::<Line>() == 64);

/// Words in a [`Line`].
pub const WORDS_PER_LINE: usize = 8;

/// A map seen as atomic 64-bit words: the safe way to memory that other threads and processes write too.
///
/// Only 64-bit words, because atomics of different sizes must not meet on the same bytes. The words stay
/// mapped as long as any clone or [`Word`] of them lives.
///
/// ```
/// use doorbell_fabric::map::{Object, Protection, Words};
/// use std::sync::atomic::Ordering::Relaxed;
///
/// let object = Object::new("example", 4096)?;
/// let ours = Words::of(object.map(Protection::ReadWrite)?.into())?;
/// let theirs = Words::of(object.map(Protection::ReadWrite)?.into())?;
/// ours.get(9).unwrap().store(7, Relaxed);
/// assert_eq!(theirs.line(1).unwrap().0[1].load(Relaxed), 7);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone)]
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
    map: Arc<Map>,
}

// SAFETY: the words are atomics in a map that `map` keeps; neither cares which thread looks.
unsafe impl Send for Words {}
// SAFETY: as above; `&Words` gives out shared references to atomics only.
unsafe impl Sync for Words {}

impl Words {
    /// All words of a writable map. Its bytes are accessed as atomic words from now on; raw pointers into the
    /// same map are their users' responsibility.
    ///
    /// # Errors
    /// When the map is read-only: a store to a word would be a fault.
    pub fn of(map: Arc<Map>) -> Result<Self, RailError> {
        if map.protection() != Protection::ReadWrite {
            let denied = Errno::ACCESS.into();
            return Err(RailError::memory(
                "write words of a read-only map",
                "",
                map.len(),
                denied,
            ));
        }
        let start = NonNull::new(map.as_ptr().cast()).ok_or_else(|| {
            RailError::memory("map a shared memory object", "", map.len(), Errno::FAULT.into())
        })?;
        Ok(Self {
            start,
            count: map.len() / size_of::<AtomicU64>(),
            map,
        })
    }

    /// Number of words.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The word at `index`; `None` beyond the end.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        let word = self.start.as_ptr().wrapping_add(index);
        // SAFETY: inside the map by the check; aligned, since maps start on a page; mapped while `self.map`
        // lives.
        Some(unsafe { &*word })
    }

    /// The cache line at `index`, counted in lines; `None` when it is not wholly inside or does not start on
    /// a line.
    #[inline]
    pub fn line(&self, index: usize) -> Option<&Line> {
        let first = index.checked_mul(WORDS_PER_LINE)?;
        let end = first.checked_add(WORDS_PER_LINE)?;
        let line = self.start.as_ptr().wrapping_add(first).cast::<Line>();
        if end > self.count || !line.is_aligned() {
            return None;
        }
        // SAFETY: inside the map and aligned by the checks; mapped while `self.map` lives; atomics only.
        Some(unsafe { &*line })
    }

    /// `count` words from `first`; `None` when they are not all inside.
    #[inline]
    pub fn part(&self, first: usize, count: usize) -> Option<Self> {
        let end = first.checked_add(count)?;
        if end > self.count {
            return None;
        }
        Some(Self {
            // SAFETY: at most one past the end of the map, by the check.
            start: unsafe { self.start.add(first) },
            count,
            map: Arc::clone(&self.map),
        })
    }

    /// Returns one word, without a check at each use; `None` beyond the end.
    #[inline]
    pub fn word(&self, index: usize) -> Option<Word> {
        let at = NonNull::from(self.get(index)?);
        Some(Word {
            at,
            map: Arc::clone(&self.map),
        })
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Words({} of {:?})", self.count, self.map)
    }
}

/// An atomic word of a map, which it keeps mapped.
#[derive(Clone)]
pub struct Word {
    at: NonNull<AtomicU64>,
    map: Arc<Map>,
}

// SAFETY: as for `Words`.
unsafe impl Send for Word {}
// SAFETY: as for `Words`.
unsafe impl Sync for Word {}

impl Deref for Word {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: `Words::word` took the address from a word of `self.map`, which is mapped as long as we
        // hold it.
        unsafe { self.at.as_ref() }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Word({:?} in {:?})", **self, self.map)
    }
}

#[cfg(test)]
mod tests;

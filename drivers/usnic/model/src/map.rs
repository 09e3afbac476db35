//! Unsafe room: memory that is shared with the client. Registers of our own making, and the client's memory
//! as it lets us see it.
//!
//! Both may change at any time, by any other process that has them mapped. So nothing here gives out a
//! reference to bytes: words are atomics, and everything longer is copied, each byte once.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of a file.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an address range that stays mapped until dropped, on whichever thread; access to its bytes is
// atomic or by copy.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out nothing but copies and atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, offset: u64, length: usize, writable: bool) -> io::Result<Self> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: the kernel chooses a new range (no address is requested), which nothing else refers to.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    fn has(&self, at: usize, count: usize) -> bool {
        at.checked_add(count).is_some_and(|end| end <= self.length)
    }

    fn at(&self, at: usize, count: usize) -> NonNull<u8> {
        assert!(
            self.has(at, count),
            "{at:#x}+{count} is outside of a map of {:#x}",
            self.length
        );
        // SAFETY: inside of the map, by the line above.
        unsafe { self.start.add(at) }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        let cell = self.at(at, 4).cast::<u32>().as_ptr();
        // SAFETY: mapped as long as `self`, aligned (maps begin on pages), and accessed by atomics and copies
        // only.
        unsafe { AtomicU32::from_ptr(cell) }
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        let cell = self.at(at, 8).cast::<u64>().as_ptr();
        // SAFETY: mapped as long as `self`, aligned (maps begin on pages), and accessed by atomics and copies
        // only.
        unsafe { AtomicU64::from_ptr(cell) }
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len());
        // SAFETY: both ranges are as long as `to`; ours belongs to this call alone. Others may write the map
        // meanwhile, so this is a mixture of what was there: raw bytes, which are any value of `u8`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) }
        // Bytes that were copied once are not fetched again for a later use.
        compiler_fence(Ordering::SeqCst);
    }

    fn write(&self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len());
        // SAFETY: as for reading, the other way round; the map is writable, which its owners check.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) }
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `new`, and what refers into it borrows `self`. A failure leaves it
        // mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Registers: memory that the client maps, too. Offsets are the model's own, so one outside is a mistake here
/// and panics.
#[derive(Debug)]
pub(crate) struct Shared {
    map: Mapping,
    file: OwnedFd,
}

impl Shared {
    /// Zeroes, sealed against resizing.
    pub(crate) fn new(label: &str, length: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, length as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Mapping::new(file.as_fd(), 0, length, true)?;
        Ok(Self { map, file })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.length
    }

    /// Reads a register; what the client wrote to memory before it wrote the register is seen after.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.map.word32(at).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn get64(&self, at: usize) -> u64 {
        self.map.word64(at).load(Ordering::Acquire)
    }

    /// Writes a register, after what was written to memory before.
    #[inline]
    pub(crate) fn put(&self, at: usize, value: u32) {
        self.map.word32(at).store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn put64(&self, at: usize, value: u64) {
        self.map.word64(at).store(value, Ordering::Release);
    }

    /// Exchanges the value there for another one, atomically.
    #[inline]
    pub(crate) fn swap(&self, at: usize, value: u32) -> u32 {
        self.map.word32(at).swap(value, Ordering::AcqRel)
    }

    /// Leaves something else where this stands; false where something else has come there meanwhile.
    pub(crate) fn replace(&self, at: usize, this: u32, other: u32) -> bool {
        let word = self.map.word32(at);
        word.compare_exchange(this, other, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Any bytes of it.
    pub(crate) fn bytes(&self, at: usize, to: &mut [u8]) {
        self.map.read(at, to);
    }

    /// Puts any bytes there.
    pub(crate) fn put_bytes(&self, at: usize, from: &[u8]) {
        self.map.write(at, from);
    }

    pub(crate) fn fill(&self, byte: u8) {
        let page = [byte; 4096];
        for at in (0..self.len()).step_by(page.len()) {
            self.put_bytes(at, &page[..page.len().min(self.len() - at)]);
        }
    }
}

/// A part of the client's memory, mapped. The file cannot be cut short: the caller of `new` has checked its
/// seals.
#[derive(Debug)]
pub(crate) struct Window {
    map: Mapping,
    writable: bool,
}

impl Window {
    /// Maps a file that is sealed against shrinking, whole.
    ///
    /// # Errors
    /// Also where the file could be cut short while it is mapped, which would end this process.
    pub(crate) fn new(file: BorrowedFd<'_>, writable: bool) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let size = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        let map = Mapping::new(file, 0, size, writable)?;
        Ok(Self { map, writable })
    }

    /// Whether all these bytes are inside.
    pub(crate) fn has(&self, at: usize, count: usize) -> bool {
        self.map.has(at, count)
    }

    /// Copies bytes out; false where they are not all inside.
    #[inline]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let is_inside = self.map.has(at, to.len());
        if is_inside {
            self.map.read(at, to);
        }
        is_inside
    }

    /// Copies bytes in; false where they are not all inside, or the memory may only be read.
    #[inline]
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> bool {
        let can = self.writable && self.map.has(at, from.len());
        if can {
            self.map.write(at, from);
        }
        can
    }

    /// Stores a word after everything that was written before; false where it is not inside, not aligned, or
    /// not writable.
    #[inline]
    pub(crate) fn publish(&self, at: usize, word: u64) -> bool {
        let can = self.writable && at.is_multiple_of(8) && self.map.has(at, 8);
        if can {
            self.map.word64(at).store(word, Ordering::Release);
        }
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_words_of_the_file_and_their_size_is_final() {
        let shared = Shared::new("registers", 8192).unwrap();
        shared.put(0x10, 0x1122_3344);
        shared.put(0x14, 5);
        assert_eq!((shared.get64(0x10), shared.swap(0x14, 0)), (0x5_1122_3344, 5));
        assert!(shared.replace(0x14, 0, 9) && !shared.replace(0x14, 0, 7) && shared.get(0x14) == 9);
        assert!(rustix::fs::ftruncate(shared.file(), 0).is_err(), "sealed");
        let other = Window::new(shared.file(), false).unwrap();
        shared.put64(4096 + 8, 7);
        let mut bytes = [0; 8];
        assert!(other.read(4096 + 8, &mut bytes));
        assert_eq!(bytes, 7u64.to_le_bytes());
        assert!(!other.write(8, &bytes) && !other.publish(8, 1), "read only");
        assert!(!other.read(8185, &mut bytes) && !other.read(usize::MAX, &mut bytes));
        shared.fill(0xff);
        assert_eq!(shared.get(8188), u32::MAX);
    }

    #[test]
    fn what_could_be_cut_short_is_not_mapped() {
        let file = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        assert!(Window::new(file.as_fd(), true).is_err());
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let window = Window::new(file.as_fd(), true).unwrap();
        assert!(window.has(4096, 4096) && !window.has(4096, 4097) && !window.has(usize::MAX, 2));
        assert!(window.publish(8, 1) && !window.publish(4, 1) && !window.publish(8192, 1));
    }
}

//! Memory that may not be mapped: every access is one of the kernel's, which ends in an error where another
//! one would end the process.

use std::ptr;

use super::MutLoan;

/// Page size that is assumed where pages are probed: the smallest that there is.
const PAGE: u64 = 4096;
/// Pages probed by one system call.
const PROBES: usize = 64;

/// A range of this process's addresses, of which any part may not be mapped, or not be writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    start: u64,
    length: u64,
}

impl AddressRange {
    /// The range of `length` bytes from address `start`, cut off at the end of the address space.
    ///
    /// # Safety
    /// The code that is given it, and peers that it is opened to, may read and write every byte of this
    /// process within it: nothing there may be what Rust code relies on while they do.
    #[must_use]
    pub const unsafe fn new(start: u64, length: u64) -> Self {
        let rest = u64::MAX - start;
        Self {
            start,
            length: if length < rest { length } else { rest },
        }
    }

    /// Makes a range of which only the middle `length` bytes are mapped, and `guard` bytes in front of them
    /// and behind them are not, for ever; the middle is reached through the range alone. For tests. Both are
    /// whole pages.
    ///
    /// # Errors
    /// Those of the system.
    pub fn guarded(length: usize, guard: usize) -> std::io::Result<Self> {
        let all = length + 2 * guard;
        // SAFETY: a new mapping of its own, at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                all,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let middle = start.wrapping_byte_add(guard);
        // SAFETY: pages of the mapping that was just made, which nothing refers to.
        let opened = unsafe { libc::mprotect(middle, length, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            start: start.expose_provenance() as u64,
            length: all as u64,
        })
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The part from `at`, at most `length` bytes; shorter (or empty) at the end.
    #[must_use]
    pub fn part(&self, at: u64, length: u64) -> Self {
        let at = at.min(self.length);
        Self {
            start: self.start + at,
            length: length.min(self.length - at),
        }
    }

    /// Copies the bytes from offset `at` into `to`. Returns whether all of them could be read; otherwise `to`
    /// holds some of them.
    #[must_use]
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let length = to.len();
        let Some(from) = self.inside(at, length) else {
            return false;
        };
        length == 0 || read(to, &[from])
    }

    /// Copies bytes to offset `at`. Returns whether all of them could be written; otherwise some are.
    #[must_use]
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.inside(at, bytes.len()) else {
            return false;
        };
        bytes.is_empty() || write(bytes, &to)
    }

    /// Whether every page of the range can be read now.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let end = self.start + self.length;
        let mut next = self.start;
        while next < end {
            let mut bytes = [0; PROBES];
            let mut pages = [place(0, 1); PROBES];
            let mut count = 0;
            while count < PROBES && next < end {
                pages[count] = place(next as usize, 1);
                count += 1;
                next = (next / PAGE + 1).saturating_mul(PAGE);
            }
            if !read(&mut bytes[..count], &pages[..count]) {
                return false;
            }
        }
        true
    }

    /// The element of `width` bytes at offset `at`, as a loan for [`MutLoan::update`], if it is mapped and
    /// writable now, and aligned. For at once: its owner may unmap it.
    #[must_use]
    pub fn element(&self, at: u64, width: usize) -> Option<MutLoan> {
        let place = self.inside(at, width)?.iov_base.addr();
        if width == 0 || width > 8 || !place.is_multiple_of(width) || !is_writable(place & !3) {
            return None;
        }
        Some(MutLoan {
            start: ptr::with_exposed_provenance_mut(place),
            length: width,
        })
    }

    fn inside(&self, at: u64, length: usize) -> Option<libc::iovec> {
        let end = at.checked_add(length as u64)?;
        (end <= self.length).then_some(place(usize::try_from(self.start + at).ok()?, length))
    }
}

/// Bytes of this process for the kernel to look at.
fn place(address: usize, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::without_provenance_mut(address),
        iov_len: length,
    }
}

fn this_process() -> libc::pid_t {
    nix::unistd::Pid::this().as_raw()
}

/// Has the kernel copy bytes of this process that may not be mapped. Returns whether all were there.
fn read(to: &mut [u8], from: &[libc::iovec]) -> bool {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    // SAFETY: the kernel writes into `to` alone, which is borrowed, and checks every address that it reads.
    let read =
        unsafe { libc::process_vm_readv(this_process(), &local, 1, from.as_ptr(), from.len() as u64, 0) };
    usize::try_from(read).is_ok_and(|read| read == to.len())
}

/// Has the kernel copy bytes to a place of this process that may not be mapped. Returns whether all could be
/// written.
fn write(bytes: &[u8], to: &libc::iovec) -> bool {
    let local = place(bytes.as_ptr().addr(), bytes.len());
    // SAFETY: the kernel checks every address; `AddressRange::new` promised that what lies in the range may
    // be written at any time.
    let written = unsafe { libc::process_vm_writev(this_process(), &local, 1, to, 1, 0) };
    usize::try_from(written).is_ok_and(|written| written == bytes.len())
}

/// Whether the aligned 32-bit word at an address can be written: the kernel sets none of its bits, in one
/// atomic step, and finds out.
fn is_writable(word: usize) -> bool {
    /// FUTEX_OP_OR with zero, compared for equality with zero: nothing is stored that was not there.
    const OR_NOTHING: u32 = 2 << 28;
    let idle = 0u32;
    // SAFETY: a futex call that wakes no thread. The kernel checks the second address itself, and returns
    // EFAULT where it is not mapped or not writable; where it is, the word keeps its value, as of an atomic
    // instruction of this process.
    let done = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const idle,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            word,
            OR_NOTHING,
        )
    };
    done >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Object, Protection};

    const SPACE: AddressRange = AddressRange {
        start: 0,
        length: u64::MAX,
    };

    #[test]
    fn what_is_not_mapped_is_an_error_and_no_signal() {
        let mut bytes = [7; 16];
        for at in [0, 8, 1 << 20, 1 << 62, u64::MAX - 16, u64::MAX] {
            assert!(!SPACE.read(at, &mut bytes), "{at:#x}");
            assert!(!SPACE.write(at, &bytes), "{at:#x}");
            assert!(!SPACE.part(at, 8).is_readable() || SPACE.part(at, 8).is_empty());
            assert!(SPACE.element(at & !7, 8).is_none());
        }
        assert!(!SPACE.is_readable());
    }

    #[test]
    fn what_is_mapped_is_read_written_and_updated() {
        let map = Object::new("range", 3 * 4096)
            .unwrap()
            .map(Protection::ReadWrite)
            .unwrap();
        let start = map.as_ptr().expose_provenance() as u64;
        assert!(SPACE.write(start + 4090, b"across pages"));
        let mut bytes = [0; 12];
        assert!(SPACE.read(start + 4090, &mut bytes) && &bytes == b"across pages");
        let range = SPACE.part(start, 3 * 4096);
        assert!(range.is_readable() && !range.part(3 * 4096 - 4, 8).read(0, &mut [0; 8]));
        let element = range.element(8, 8).unwrap();
        assert_eq!(element.update(0, 8, |old| Some(old + 9)), Some(0));
        assert_eq!(element.update(0, 8, |_| None), Some(9));
        assert!(range.element(9, 2).is_none() && range.element(3 * 4096, 1).is_none());
    }

    #[test]
    fn what_may_only_be_read_is_not_written() {
        let object = Object::new("range", 4096).unwrap();
        let map = object.map(Protection::ReadOnly).unwrap();
        let start = map.as_ptr().expose_provenance() as u64;
        assert!(SPACE.read(start, &mut [0; 8]) && SPACE.part(start, 4096).is_readable());
        assert!(!SPACE.write(start, &[1; 8]) && SPACE.element(start, 8).is_none());
    }

    #[test]
    fn guards_are_not_there() {
        let range = AddressRange::guarded(8192, 4096).unwrap();
        assert_eq!(range.len(), 16384);
        assert!(range.write(4096, &[1; 8192]) && range.part(4096, 8192).is_readable());
        assert!(!range.write(12280, &[1; 16]) && !range.read(4088, &mut [0; 16]));
        assert!(range.element(12288, 1).is_none() && !range.is_readable());
    }

    #[test]
    fn nothing_can_be_read_and_written_anywhere() {
        assert!(SPACE.read(5, &mut []) && SPACE.write(5, &[]) && SPACE.part(5, 0).is_readable());
    }
}

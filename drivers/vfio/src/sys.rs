//! All unsafe system calls: those that vfio-ioctls lacks, or whose result it drops.
//!
//! Every pointer given to the kernel is made in the function that makes the call, from memory that it
//! borrows, and none is kept, except memory shared with a device: there the kernel keeps the pages
//! themselves, so unmapping early loses data but never exposes memory that has been reused.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use doorbell_fabric::memory::Region;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_TYPE,
    vfio_irq_set,
};
use vfio_ioctls::{VfioError, VfioOps};

use crate::iova::Range;

/// Numbers of calls, as `_IO(type, number)` makes them (linux/vfio.h, linux/iommufd.h).
const GET_INFO: libc::Ioctl = number(VFIO_BASE + 7);
const SET_IRQS: libc::Ioctl = number(VFIO_BASE + 10);
const RESET: libc::Ioctl = number(VFIO_BASE + 11);
const IOMMU_GET_INFO: libc::Ioctl = number(VFIO_BASE + 12);
const IOAS_IOVA_RANGES: libc::Ioctl = number(0x84);

const fn number(number: u32) -> libc::Ioctl {
    ((VFIO_TYPE as u32) << 8 | number) as libc::Ioctl
}

/// The most that a description by the kernel may take; the longest real ones have a few hundred bytes.
const LONGEST: usize = 1 << 16;

/// An ioctl on a structure of 64-bit words, which it may write.
fn call(fd: BorrowedFd<'_>, request: libc::Ioctl, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: each request that this room names reads and writes at most as many bytes as the first field of
    // its structure contains (argsz, size), which its callers set to no more than the words have.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Packs the 32-bit numbers of a structure into words.
fn words_of(numbers: &[u32]) -> Vec<u64> {
    let pair = |pair: &[u32]| {
        let bytes = [
            pair[0].to_ne_bytes(),
            pair.get(1).copied().unwrap_or(0).to_ne_bytes(),
        ];
        u64::from_ne_bytes(bytes.as_flattened().try_into().unwrap_or_default())
    };
    numbers.chunks(2).map(pair).collect()
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The flags of a device (VFIO_DEVICE_GET_INFO), which vfio-ioctls does not export.
pub(crate) fn device_flags(device: BorrowedFd<'_>) -> io::Result<u32> {
    // argsz, flags, num_regions, num_irqs.
    let mut words = words_of(&[16, 0, 0, 0]);
    call(device, GET_INFO, &mut words)?;
    Ok(u32_at(&bytes_of(&words), 4).unwrap_or(0))
}

/// Resets a device; vfio-ioctls drops the result.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // It takes nothing.
    call(device, RESET, &mut [])
}

/// Assigns an event to each vector of a kind of interrupt, or disables all; vfio-ioctls drops the error
/// number.
pub(crate) fn set_irqs(device: BorrowedFd<'_>, index: u32, events: &[BorrowedFd<'_>]) -> io::Result<()> {
    let head = size_of::<vfio_irq_set>();
    let what = if events.is_empty() {
        VFIO_IRQ_SET_DATA_NONE
    } else {
        VFIO_IRQ_SET_DATA_EVENTFD
    };
    let length = (head + 4 * events.len()) as u32;
    let mut numbers = vec![
        length,
        what | VFIO_IRQ_SET_ACTION_TRIGGER,
        index,
        0,
        events.len() as u32,
    ];
    numbers.extend(events.iter().map(|event| event.as_raw_fd() as u32));
    call(device, SET_IRQS, &mut words_of(&numbers))
}

/// Raises the event of one vector in software.
pub(crate) fn raise(device: BorrowedFd<'_>, index: u32, vector: u32) -> io::Result<()> {
    let length = size_of::<vfio_irq_set>() as u32;
    let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    call(
        device,
        SET_IRQS,
        &mut words_of(&[length, flags, index, vector, 1]),
    )
}

/// The bus addresses of a container's IOMMU (VFIO_IOMMU_GET_INFO, its capability 1), which vfio-ioctls does
/// not query. `None` if the kernel does not report them (before Linux 5.4).
pub(crate) fn container_ranges(container: BorrowedFd<'_>) -> io::Result<Option<Vec<Range>>> {
    // argsz, flags, iova_pgsizes, cap_offset and a hole.
    let mut words = words_of(&[24, 0, 0, 0, 0, 0]);
    call(container, IOMMU_GET_INFO, &mut words)?;
    let wanted = u32_at(&bytes_of(&words), 0).unwrap_or(0) as usize;
    if wanted > 24 && wanted <= LONGEST {
        words = vec![0; wanted.div_ceil(8)];
        words[0] = words_of(&[wanted as u32, 0])[0];
        call(container, IOMMU_GET_INFO, &mut words)?;
    }
    Ok(ranges_in(&bytes_of(&words)))
}

/// The ranges in what VFIO_IOMMU_GET_INFO answers.
fn ranges_in(info: &[u8]) -> Option<Vec<Range>> {
    const HAS_CAPABILITIES: u32 = 1 << 1;
    const IOVA_RANGE: u32 = 1;
    if u32_at(info, 4)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = u32_at(info, 16)? as usize;
    // A chain with a backward offset could be endless.
    let mut before = 0;
    while at > before {
        if u32_at(info, at)? & 0xffff == IOVA_RANGE {
            let count = u32_at(info, at + 8)? as usize;
            let range = |number: usize| {
                let at = at + 16 + 16 * number;
                Some(Range {
                    first: u64_at(info, at)?,
                    last: u64_at(info, at + 8)?,
                })
            };
            return (0..count.min(LONGEST / 16)).map(range).collect();
        }
        before = at;
        at = u32_at(info, at + 4)? as usize;
    }
    None
}

/// The bus addresses of an iommufd address space (IOMMU_IOAS_IOVA_RANGES), which iommufd-ioctls does not
/// query.
pub(crate) fn ioas_ranges(iommufd: BorrowedFd<'_>, ioas: u32) -> io::Result<Vec<Range>> {
    let mut most = 64;
    loop {
        let mut ranges = vec![0u64; 2 * most];
        let mut words = words_of(&[32, ioas, most as u32, 0, 0, 0, 0, 0]);
        words[2] = ranges.as_mut_ptr().expose_provenance() as u64;
        let said = call(iommufd, IOAS_IOVA_RANGES, &mut words);
        let count = u32_at(&bytes_of(&words), 8).unwrap_or(0) as usize;
        match said {
            Ok(()) => {
                let pairs = ranges.chunks_exact(2).take(count);
                return Ok(pairs
                    .map(|pair| Range {
                        first: pair[0],
                        last: pair[1],
                    })
                    .collect());
            }
            Err(error)
                if error.raw_os_error() == Some(libc::EMSGSIZE) && count > most && count <= LONGEST / 16 =>
            {
                most = count;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Maps a region at the bus addresses from `iova`.
pub(crate) fn share(ops: &dyn VfioOps, memory: &Region, iova: u64) -> Result<(), VfioError> {
    let start = memory.whole().as_mut_ptr();
    // SAFETY: the range is one whole map of a region, and no reference to its bytes ever exists: the region
    // reads and writes them by raw pointers, since others may. The kernel pins its pages until they are
    // unmapped there.
    unsafe { ops.vfio_dma_map(iova, memory.object().len(), start) }
}

/// The descriptor of what vfio-ioctls has opened.
pub(crate) fn descriptor<T: AsRawFd>(of: &T) -> BorrowedFd<'_> {
    // SAFETY: the owner of the descriptor is borrowed for as long, and closes it only when it is dropped.
    unsafe { BorrowedFd::borrow_raw(of.as_raw_fd()) }
}

/// Maps a part of a file for reading and writing; not inherited by `fork`.
pub(crate) fn map(fd: BorrowedFd<'_>, at: u64, length: usize) -> io::Result<NonNull<u8>> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh map at an address of the kernel's choice touches no existing memory.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), length, rights, MapFlags::SHARED, fd, at) }?;
    let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
    // SAFETY: the range is the map just made; DONTFORK changes what a child inherits, not what we see. Device
    // memory has it anyway, and some kernels refuse the call then.
    let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), length, Advice::LinuxDontFork) };
    Ok(start)
}

/// Unmaps a map of [`map`].
///
/// # Safety
/// `start` and `length` are one map of ours, which is no longer in use.
pub(crate) unsafe fn unmap(start: NonNull<u8>, length: usize) {
    // SAFETY: by the caller's promise.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), length) };
    debug_assert!(unmapped.is_ok(), "munmap of our own map: {unmapped:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_kernels_numbers() {
        // VFIO_DEVICE_GET_INFO, _SET_IRQS and _RESET, VFIO_IOMMU_GET_INFO; IOMMU_IOAS_IOVA_RANGES.
        let numbers = [GET_INFO, SET_IRQS, RESET, IOMMU_GET_INFO, IOAS_IOVA_RANGES];
        assert_eq!(numbers, [0x3b6b, 0x3b6e, 0x3b6f, 0x3b70, 0x3b84]);
        assert_eq!(size_of::<vfio_irq_set>(), 20);
    }

    fn info(flags: u32, capability: u32, parts: &[(u32, u32)]) -> Vec<u8> {
        let mut words = words_of(&[96, flags, 0x1000, 0, capability, 0]);
        for (id, next) in parts {
            words.extend(words_of(&[0x1_0000 | id, *next, 2, 0]));
            words.extend([0, 0xfedf_ffff, 0xfef0_0000, u64::MAX]);
        }
        bytes_of(&words)
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let both = [
            Range {
                first: 0,
                last: 0xfedf_ffff,
            },
            Range {
                first: 0xfef0_0000,
                last: u64::MAX,
            },
        ];
        assert_eq!(ranges_in(&info(3, 24, &[(1, 0)])), Some(both.to_vec()));
        assert_eq!(ranges_in(&info(3, 24, &[(3, 72), (1, 0)])), Some(both.to_vec()));
    }

    #[test]
    fn an_empty_or_invalid_answer_of_the_kernel_is_none() {
        assert_eq!(ranges_in(&info(1, 24, &[(1, 0)])), None, "no capabilities");
        assert_eq!(ranges_in(&info(3, 24, &[(3, 0)])), None, "another capability");
        assert_eq!(ranges_in(&info(3, 24, &[(3, 24)])), None, "round in a circle");
        assert_eq!(ranges_in(&info(3, 4000, &[(1, 0)])), None, "beyond the end");
        let mut cut = info(3, 24, &[(1, 0)]);
        cut.truncate(60);
        assert_eq!(ranges_in(&cut), None, "ranges are missing");
        assert_eq!(ranges_in(&[]), None);
    }

    #[test]
    fn words_hold_numbers_in_memory_order() {
        assert_eq!(bytes_of(&words_of(&[1, 2, 3])).len(), 16);
        assert_eq!(u32_at(&bytes_of(&words_of(&[1, 2, 3])), 8), Some(3));
        assert_eq!(u32_at(&[0; 4], 1), None);
        assert_eq!(u64_at(&[0; 8], usize::MAX), None);
    }

    #[test]
    fn a_file_that_is_no_device_refuses_all() {
        use std::os::fd::AsFd;
        let file = tempfile::tempfile().unwrap();
        let refused = |error: io::Error| error.raw_os_error() == Some(libc::ENOTTY);
        assert!(device_flags(file.as_fd()).is_err_and(refused));
        assert!(reset(file.as_fd()).is_err_and(refused));
        assert!(set_irqs(file.as_fd(), 2, &[]).is_err_and(refused));
        assert!(container_ranges(file.as_fd()).is_err_and(refused));
        assert!(ioas_ranges(file.as_fd(), 1).is_err_and(refused));
    }
}

//! Which of this process's memory is mapped, as the kernel lists it: for registrations, which may name what
//! is not there.
//!
//! Memory that is mapped as its registration needs it is reached by plain instructions until the registration
//! is closed, as fi_mr(3) has its owner keep it. All other memory is reached by system calls that end in an
//! error where a page is not there.

use std::fs::File;
use std::io::Read as _;

use doorbell_fabric::memory::AddressRange;

/// What is to be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// A mapping of the kernel's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
    allows: Use,
    /// Whether it is of a file, which may be shorter than its mapping.
    is_file: bool,
}

/// The mappings of this process at one time.
#[derive(Debug)]
pub(crate) struct Mappings(String);

impl Mappings {
    /// Reads the list. Where there is none, nothing counts as mapped.
    pub(crate) fn now() -> Self {
        // In one piece, which leaves the heap as it was.
        let mut list = String::with_capacity(64 << 10);
        let read = File::open("/proc/self/maps").and_then(|mut file| file.read_to_string(&mut list));
        match read {
            Ok(_) => Self(list),
            Err(_) => Self(String::new()),
        }
    }

    /// Whether every byte of `length` bytes from `start` is there, and may be used so.
    pub(crate) fn hold(&self, start: usize, length: usize, wanted: Use) -> bool {
        let Some(end) = start.checked_add(length) else {
            return false;
        };
        let (mut next, mut has_files) = (start, false);
        for mapping in self.0.lines().filter_map(Mapping::parse) {
            if next >= end || mapping.start > next {
                break;
            }
            if mapping.end <= next {
                continue;
            }
            if wanted.reads && !mapping.allows.reads || wanted.writes && !mapping.allows.writes {
                return false;
            }
            has_files |= mapping.is_file;
            next = mapping.end;
        }
        next >= end && (!has_files || is_there(start, length))
    }
}

/// Whether every page can be read now.
fn is_there(start: usize, length: usize) -> bool {
    // SAFETY: the range is only probed, and never written.
    let range = unsafe { AddressRange::new(start as u64, length as u64) };
    range.is_readable()
}

impl Mapping {
    /// Reads a line of the list: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?.as_bytes();
        let inode = fields.nth(2)?;
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            allows: Use {
                reads: permissions.first() == Some(&b'r'),
                writes: permissions.get(1) == Some(&b'w'),
            },
            is_file: inode != "0",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Use = Use {
        reads: true,
        writes: true,
    };
    const READS: Use = Use {
        reads: true,
        writes: false,
    };

    #[test]
    fn memory_is_mapped_as_far_as_its_pages_are() {
        let list = "1000-3000 rw-p 00000000 00:00 0\n\
                    3000-4000 r--p 00000000 00:00 0    [heap]\n\
                    5000-6000 rw-p 00000000 00:00 0\n";
        let mappings = Mappings(list.to_owned());
        for (start, length, wanted, holds) in [
            (0x1000, 0x2000, BOTH, true),
            (0x1001, 0x2fff, READS, true),
            (0x1001, 0x3000, READS, false),
            (0x2fff, 2, BOTH, false),
            (0x0fff, 2, READS, false),
            (0x4000, 1, READS, false),
            (0x5fff, 1, BOTH, true),
            (0x5fff, 2, BOTH, false),
            (0, usize::MAX, READS, false),
            (0x5fff, usize::MAX, READS, false),
            (0, 0, BOTH, true),
        ] {
            assert_eq!(
                mappings.hold(start, length, wanted),
                holds,
                "{start:#x} {length:#x}"
            );
        }
    }

    #[test]
    fn this_process_has_its_own_memory() {
        let (memory, mappings) = (vec![0_u8; 1 << 20], Mappings::now());
        assert!(mappings.hold(memory.as_ptr().addr(), memory.len(), BOTH));
        // A constant, which is of the program's file.
        let text = "a constant".as_ptr().addr();
        assert!(mappings.hold(text, 10, READS) && !mappings.hold(text, 10, BOTH));
        assert!(!mappings.hold(8, 8, READS) && !mappings.hold(0, usize::MAX, READS));
    }
}

//! The client's memory, by bus address: what a function may reach, and nothing else.
//!
//! ```text
//!   DMA_MAP with a file, sealed against shrinking   mapped, whole and once however many parts there are of
//!                                                   it: a guest behind an IOMMU makes one for each page.
//!                                                   A copy costs what a copy costs
//!           with another file                       read and written by calls: it could be cut short under
//!                                                   a map
//!           without a file                          reached by messages (DMA_READ, DMA_WRITE), if the
//!                                                   client answers these
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::line::Line;
use crate::map::Window;

/// How a part is reached.
#[derive(Debug)]
enum Backing {
    /// The file's window, and where in it the part begins.
    Window(Arc<Window>, usize),
    File(OwnedFd, u64),
    Messages,
}

#[derive(Debug)]
struct Part {
    first: u64,
    /// One past the last address; a part never reaches the end of the address space.
    end: u64,
    writable: bool,
    readable: bool,
    backing: Backing,
}

/// Why memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DmaError {
    /// The first address that could not be.
    pub(crate) at: u64,
    pub(crate) why: &'static str,
}

/// Why a part cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// The range has no length, or goes beyond the end of the addresses.
    Range,
    /// Some of it is mapped already.
    Overlap,
    /// There are too many parts.
    Full,
}

/// All that one function may reach.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The mapped parts, in the order of addresses.
    parts: Vec<Part>,
    /// Where the last access was.
    last: usize,
    line: Option<Arc<Line>>,
    /// Descriptions that a client may have at a time.
    most: usize,
    /// The files of which parts are mapped.
    files: Vec<(FileId, Arc<Window>)>,
}

/// What a file is, by whichever descriptor: its device and number, and whether it may be written by it.
type FileId = (u64, u64, bool);

impl Memory {
    /// A map without memory yet, and with at most `most` parts; `line` carries the messages for parts without
    /// a file.
    pub(crate) fn new(most: usize, line: Option<Arc<Line>>) -> Self {
        Self {
            parts: Vec::new(),
            last: 0,
            line,
            most,
            files: Vec::new(),
        }
    }

    /// A part of a file, by the window of all of it; `None` where it has none.
    fn window(&mut self, file: &OwnedFd, offset: u64, length: usize, writable: bool) -> Option<Backing> {
        let start = usize::try_from(offset).ok()?;
        let told = rustix::fs::fstat(file).ok()?;
        let id = (told.st_dev, told.st_ino, writable);
        let known = self.files.iter().find(|(known, _)| *known == id);
        let window = match known {
            Some((_, window)) => Arc::clone(window),
            None => {
                let window = Arc::new(Window::new(file.as_fd(), writable).ok()?);
                self.files.push((id, Arc::clone(&window)));
                window
            }
        };
        // A file that has grown since is read by calls beyond.
        window
            .has(start, length)
            .then_some(Backing::Window(window, start))
    }

    /// Lets go of files of which nothing is left.
    fn forget(&mut self) {
        self.files.retain(|(_, window)| Arc::strong_count(window) > 1);
        self.last = 0;
    }

    /// Lets the function reach `length` bytes at `first`.
    pub(crate) fn map(
        &mut self,
        first: u64,
        length: u64,
        (readable, writable): (bool, bool),
        file: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        let end = first
            .checked_add(length)
            .filter(|_| length > 0)
            .ok_or(MapError::Range)?;
        let size = usize::try_from(length).map_err(|_| MapError::Range)?;
        let place = self.parts.partition_point(|part| part.end <= first);
        if self.parts.get(place).is_some_and(|part| part.first < end) {
            return Err(MapError::Overlap);
        }
        if self.parts.len() >= self.most {
            return Err(MapError::Full);
        }
        let backing = match file {
            None => Backing::Messages,
            Some((file, offset)) => match self.window(&file, offset, size, writable) {
                Some(backing) => backing,
                None => Backing::File(file, offset),
            },
        };
        self.parts.insert(
            place,
            Part {
                first,
                end,
                writable,
                readable,
                backing,
            },
        );
        Ok(())
    }

    /// Takes back exactly what was given at `first`; false where nothing like it was.
    pub(crate) fn unmap(&mut self, first: u64, length: u64) -> bool {
        let end = first.checked_add(length);
        // A client may take back several at once, whole ones only.
        let inside = |part: &Part| part.first >= first && end.is_some_and(|end| part.end <= end);
        let before = self.parts.len();
        self.parts.retain(|part| !inside(part));
        self.forget();
        self.parts.len() < before
    }

    /// Takes back everything.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.forget();
    }

    #[inline]
    fn find(&mut self, at: u64) -> Option<usize> {
        let holds = |part: &Part| part.first <= at && at < part.end;
        if self.parts.get(self.last).is_some_and(holds) {
            return Some(self.last);
        }
        let place = self.parts.partition_point(|part| part.end <= at);
        if self.parts.get(place).is_some_and(holds) {
            self.last = place;
            return Some(place);
        }
        None
    }

    /// Copies bytes out.
    pub(crate) fn read(&mut self, mut at: u64, mut to: &mut [u8]) -> Result<(), DmaError> {
        while !to.is_empty() {
            let (part, count) = self.part(at, to.len())?;
            let (now, rest) = std::mem::take(&mut to).split_at_mut(count);
            let part = &self.parts[part];
            let failed = |why| DmaError { at, why };
            if !part.readable {
                return Err(failed("the memory may only be written"));
            }
            let within = at - part.first;
            let done = match &part.backing {
                Backing::Window(window, start) => window.read(start + within as usize, now),
                Backing::File(file, offset) => {
                    whole(rustix::io::pread(file, &mut *now, offset + within), count)
                }
                Backing::Messages => self.line.as_ref().is_some_and(|line| line.dma_read(at, now)),
            };
            if !done {
                return Err(failed("the client does not let it be read"));
            }
            at += count as u64;
            to = rest;
        }
        Ok(())
    }

    /// Copies bytes in.
    pub(crate) fn write(&mut self, mut at: u64, mut from: &[u8]) -> Result<(), DmaError> {
        while !from.is_empty() {
            let (part, count) = self.part(at, from.len())?;
            let (now, rest) = from.split_at(count);
            let part = &self.parts[part];
            let failed = |why| DmaError { at, why };
            if !part.writable {
                return Err(failed("the memory may only be read"));
            }
            let within = at - part.first;
            let done = match &part.backing {
                Backing::Window(window, start) => window.write(start + within as usize, now),
                Backing::File(file, offset) => whole(rustix::io::pwrite(file, now, offset + within), count),
                Backing::Messages => self.line.as_ref().is_some_and(|line| line.dma_write(at, now)),
            };
            if !done {
                return Err(failed("the client does not let it be written"));
            }
            at += count as u64;
            from = rest;
        }
        Ok(())
    }

    /// Writes an entry of 16 bytes so that the last eight are seen after everything else.
    #[inline]
    pub(crate) fn publish(&mut self, at: u64, entry: &[u8; 16]) -> Result<(), DmaError> {
        self.write(at, &entry[..8])?;
        let last = at + 8;
        if let Some(part) = self.find(last)
            && let Backing::Window(window, start) = &self.parts[part].backing
        {
            let mut word = [0; 8];
            word.copy_from_slice(&entry[8..]);
            if window.publish(
                start + (last - self.parts[part].first) as usize,
                u64::from_le_bytes(word),
            ) {
                return Ok(());
            }
        }
        self.write(last, &entry[8..15])?;
        self.write(last + 7, &entry[15..])
    }

    /// The part that an address is in, and how many of `wanted` bytes from there on.
    #[inline]
    fn part(&mut self, at: u64, wanted: usize) -> Result<(usize, usize), DmaError> {
        let why = "nothing is mapped there";
        let part = self.find(at).ok_or(DmaError { at, why })?;
        let left = self.parts[part].end - at;
        Ok((part, usize::try_from(left).unwrap_or(usize::MAX).min(wanted)))
    }
}

fn whole(done: rustix::io::Result<usize>, wanted: usize) -> bool {
    done == Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags};

    fn file(length: u64, seal: bool) -> OwnedFd {
        let file =
            rustix::fs::memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, length).unwrap();
        if seal {
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        file
    }

    const BOTH: (bool, bool) = (true, true);

    #[test]
    fn pages_of_one_file_share_one_window_and_end_where_they_end() {
        let mut memory = Memory::new(100, None);
        let file = file(0x10_0000, true);
        // Backwards, as a guest may have them.
        for page in 0..64_u64 {
            let part = Some((file.try_clone().unwrap(), (63 - page) * 0x1000));
            memory.map(page * 0x1000, 0x1000, BOTH, part).unwrap();
        }
        assert_eq!(memory.files.len(), 1);
        memory.write(0x1000 - 4, b"abcdefgh").unwrap();
        let mut seen = [0; 4];
        rustix::io::pread(&file, &mut seen, 62 * 0x1000).unwrap();
        assert_eq!(&seen, b"efgh");
        rustix::io::pread(&file, &mut seen, 64 * 0x1000 - 4).unwrap();
        assert_eq!(&seen, b"abcd");
        assert!(
            memory.write(64 * 0x1000 - 4, b"abcdefgh").is_err(),
            "the file goes on, the part does not"
        );
        // Beyond its end.
        let beyond = Some((file.try_clone().unwrap(), 0xf_f000));
        memory.map(0x20_0000, 0x2000, BOTH, beyond).unwrap();
        assert!(memory.read(0x20_1000, &mut seen).is_err());
        assert!(memory.unmap(0, 64 * 0x1000));
        assert!(
            memory.files.is_empty(),
            "the window is let go of with the last part"
        );
    }

    #[test]
    fn an_access_runs_over_parts_of_all_kinds_and_stops_at_a_gap() {
        let mut memory = Memory::new(8, None);
        memory
            .map(0x1000, 0x1000, BOTH, Some((file(0x1000, true), 0)))
            .unwrap();
        memory
            .map(0x2000, 0x1000, BOTH, Some((file(0x2000, false), 0x1000)))
            .unwrap();
        let data: Vec<u8> = (0..200).collect();
        memory.write(0x2000 - 100, &data).unwrap();
        let mut back = vec![0; 200];
        memory.read(0x2000 - 100, &mut back).unwrap();
        assert_eq!(back, data);
        let gap = memory.write(0x3000 - 4, &data).unwrap_err();
        assert_eq!(gap.at, 0x3000);
        assert_eq!(memory.read(0xfff, &mut back).unwrap_err().at, 0xfff);
        memory.publish(0x2000 - 8, &[7; 16]).unwrap();
        memory.publish(0x1004, &[9; 16]).unwrap();
        memory.read(0x1004, &mut back[..16]).unwrap();
        assert_eq!(back[..16], [9; 16]);
    }

    #[test]
    fn rights_overlaps_limits_and_ends_are_kept() {
        let mut memory = Memory::new(3, None);
        memory
            .map(0x1000, 0x1000, (true, false), Some((file(0x1000, true), 0)))
            .unwrap();
        assert_eq!(
            memory.write(0x1000, &[1]).unwrap_err().why,
            "the memory may only be read"
        );
        assert_eq!(memory.map(0x1800, 0x1000, BOTH, None), Err(MapError::Overlap));
        assert_eq!(memory.map(0x0, 0x1001, BOTH, None), Err(MapError::Overlap));
        assert_eq!(memory.map(u64::MAX, 2, BOTH, None), Err(MapError::Range));
        assert_eq!(memory.map(0, 0, BOTH, None), Err(MapError::Range));
        memory.map(0x2000, 0x1000, BOTH, None).unwrap();
        memory.map(0x3000, 0x1000, BOTH, None).unwrap();
        assert_eq!(memory.map(0x4000, 0x1000, BOTH, None), Err(MapError::Full));
        // There is no client to answer messages.
        assert!(memory.read(0x2000, &mut [0]).is_err());
        assert!(!memory.unmap(0x2000, 0x800), "half of one");
        assert!(memory.unmap(0x2000, 0x2000) && memory.parts.len() == 1);
        // A file that was cut short is an error, not an end.
        let cut = file(0x1000, false);
        let same = rustix::io::dup(&cut).unwrap();
        memory.map(0x8000, 0x1000, BOTH, Some((cut, 0))).unwrap();
        rustix::fs::ftruncate(&same, 0).unwrap();
        assert!(memory.read(0x8000, &mut [0; 8]).is_err());
    }
}

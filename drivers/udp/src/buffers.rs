//! The receive buffers of one channel: a ring that the kernel fills, the frames in it, and the ones that are
//! kept.
//!
//! A buffer never moves and is never freed while the rail lives. A kept one is shared with its user, and a
//! fresh one takes its place in the ring; it is reused when its reference count shows that the user has
//! dropped it. So nothing happens in a `Drop`, and no buffer is written while it can be read.

use std::sync::Arc;

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Refused;

type Buffer = Arc<Box<[u8]>>;

/// A received frame that the application keeps; dropping it frees its buffer.
#[derive(Debug)]
pub struct UdpKept {
    buffer: Buffer,
    at: u32,
    length: u32,
}

impl UdpKept {
    /// The frame's bytes.
    pub fn bytes(&self) -> SharedBytes<'_> {
        SharedBytes::of(&self.buffer[self.at as usize..][..self.length as usize])
    }
}

/// The position and the sender of a frame.
struct Entry {
    place: u32,
    at: u32,
    length: u32,
    from: u32,
    kept: bool,
}

/// Frames of one buffer for which there is room from the start: as many as the kernel merges (128 from Linux
/// 6.9).
const RUN_MAX: usize = 128;

/// One channel's buffers and frames.
pub(crate) struct Inbox {
    ring: Box<[Buffer]>,
    /// Fresh buffers that replace those of which a frame was kept.
    instead: Box<[Option<Buffer>]>,
    any_kept: bool,
    /// Buffers of the ring that are filled.
    used: usize,
    entries: Vec<Entry>,
    /// The shown frames: `shown` from `first` on. More may be queued behind them.
    first: usize,
    shown: usize,
    size: usize,
    /// Fresh buffers, and those that may still be in use.
    fresh: Vec<Buffer>,
    lent: Vec<Buffer>,
    made: usize,
    spare: usize,
}

fn buffer(size: usize) -> Buffer {
    Arc::new(vec![0; size].into())
}

impl Inbox {
    /// Creates a ring of `count` buffers of `size` bytes, of which up to `spare` can be kept.
    pub(crate) fn new(count: usize, size: usize, spare: usize) -> Self {
        let size = size.next_multiple_of(64);
        Self {
            ring: (0..count).map(|_| buffer(size)).collect(),
            instead: (0..count).map(|_| None).collect(),
            any_kept: false,
            used: 0,
            entries: Vec::with_capacity(count * RUN_MAX),
            first: 0,
            shown: 0,
            size,
            fresh: Vec::with_capacity(spare),
            lent: Vec::with_capacity(spare + count),
            made: 0,
            spare,
        }
    }

    /// Ends the last poll and frees what it showed. Returns whether more frames are queued.
    #[inline]
    pub(crate) fn end_poll(&mut self) -> bool {
        self.first += self.shown;
        self.shown = 0;
        if self.first < self.entries.len() {
            return true;
        }
        self.entries.clear();
        self.first = 0;
        if self.any_kept {
            self.swap();
        }
        self.used = 0;
        false
    }

    /// Replaces each buffer of which a frame was kept by a fresh one.
    #[cold]
    fn swap(&mut self) {
        for (place, instead) in self.ring[..self.used].iter_mut().zip(&mut self.instead) {
            if let Some(fresh) = instead.take() {
                self.lent.push(std::mem::replace(place, fresh));
            }
        }
        self.any_kept = false;
    }

    /// Frames that are queued and not shown.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.entries.len() - self.first - self.shown
    }

    /// Whether the next poll can show something without a system call.
    pub(crate) fn has_more(&self) -> bool {
        self.waiting() > 0
    }

    /// Shows up to `budget` of the queued frames.
    #[inline]
    pub(crate) fn show(&mut self, budget: usize) -> usize {
        self.shown = budget.min(self.entries.len() - self.first);
        self.shown
    }

    /// Buffers that can be filled.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.ring.len() - self.used
    }

    /// The next `n` buffers to fill. A buffer that is shared would end the list; there is none.
    #[inline]
    pub(crate) fn buffers(&mut self, n: usize) -> impl Iterator<Item = &mut [u8]> {
        let next = self.ring[self.used..].iter_mut().take(n);
        next.map_while(|buffer| Arc::get_mut(buffer).map(|buffer| &mut buffer[..]))
    }

    /// Marks the next buffer as filled without frames.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.used += 1;
    }

    /// Marks the next buffer as filled with `length` bytes in frames of `segment` bytes (the last may be
    /// shorter); returns how many.
    #[inline]
    pub(crate) fn fill(&mut self, length: usize, segment: usize, from: u32) -> u64 {
        let place = self.used as u32;
        self.used += 1;
        let entry = |at: usize, length: usize| Entry {
            place,
            at: at as u32,
            length: length as u32,
            from,
            kept: false,
        };
        if length <= segment {
            self.entries.push(entry(0, length));
            return 1;
        }
        let starts = (0..length).step_by(segment);
        let n = starts.len();
        self.entries
            .extend(starts.map(|at| entry(at, segment.min(length - at))));
        n as u64
    }

    /// The `n` frames that were filled last.
    pub(crate) fn newest(&self, n: usize) -> impl Iterator<Item = &[u8]> {
        let newest = &self.entries[self.entries.len() - n..];
        newest.iter().map(|entry| {
            let buffer = &self.ring[entry.place as usize];
            &buffer[entry.at as usize..][..entry.length as usize]
        })
    }

    /// The `i`th shown frame and its sender.
    #[inline]
    pub(crate) fn frame(&self, i: usize) -> Option<(&[u8], u32)> {
        if i >= self.shown {
            return None;
        }
        let entry = self.entries.get(self.first + i).filter(|entry| !entry.kept)?;
        let buffer = self.ring.get(entry.place as usize)?;
        Some((&buffer[entry.at as usize..][..entry.length as usize], entry.from))
    }

    /// Keeps the `i`th shown frame.
    pub(crate) fn keep(&mut self, i: usize) -> Result<UdpKept, Refused> {
        if i >= self.shown || self.entries[self.first + i].kept {
            return Err(Refused::BadMemory);
        }
        let place = self.entries[self.first + i].place as usize;
        if self.instead[place].is_none() {
            self.instead[place] = Some(self.fresh_buffer().ok_or(Refused::Full)?);
            self.any_kept = true;
        }
        let entry = &mut self.entries[self.first + i];
        entry.kept = true;
        Ok(UdpKept {
            buffer: Arc::clone(&self.ring[place]),
            at: entry.at,
            length: entry.length,
        })
    }

    /// A free buffer: one that was returned, or a new one up to the limit.
    fn fresh_buffer(&mut self) -> Option<Buffer> {
        if self.fresh.is_empty() {
            let mut at = 0;
            while at < self.lent.len() {
                if Arc::get_mut(&mut self.lent[at]).is_some() {
                    self.fresh.push(self.lent.swap_remove(at));
                } else {
                    at += 1;
                }
            }
        }
        if self.fresh.is_empty() && self.made < self.spare {
            self.made += 1;
            return Some(buffer(self.size));
        }
        self.fresh.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the next buffer with `bytes` in frames of `segment`.
    fn arrive(inbox: &mut Inbox, bytes: &[u8], segment: usize) {
        let buffer = inbox.buffers(1).next().unwrap();
        buffer[..bytes.len()].copy_from_slice(bytes);
        inbox.fill(bytes.len(), segment, 7);
    }

    #[test]
    fn a_run_is_shown_within_the_budget_and_stays_until_all_is_seen() {
        let mut inbox = Inbox::new(2, 64, 0);
        arrive(&mut inbox, b"aabbc", 2);
        let mut seen = Vec::new();
        for budget in [2, 2] {
            for i in 0..inbox.show(budget) {
                let (bytes, from) = inbox.frame(i).unwrap();
                assert_eq!(from, 7);
                seen.push(bytes.to_vec());
            }
            assert!(inbox.frame(budget).is_none());
            inbox.end_poll();
        }
        assert_eq!(seen, [&b"aa"[..], b"bb", b"c"]);
        assert_eq!((inbox.room(), inbox.waiting(), inbox.show(9)), (2, 0, 0));
    }

    #[test]
    fn a_kept_frame_is_never_written_again_and_frames_of_one_buffer_share_it() {
        let mut inbox = Inbox::new(1, 64, 2);
        arrive(&mut inbox, b"aabb", 2);
        inbox.show(8);
        let (a, b) = (inbox.keep(0).unwrap(), inbox.keep(1).unwrap());
        assert!(inbox.frame(0).is_none() && inbox.keep(0).is_err() && inbox.keep(2).is_err());
        for round in 0..5u8 {
            assert!(!inbox.end_poll());
            arrive(&mut inbox, &[round; 4], 4);
            assert_eq!(inbox.show(8), 1);
            drop(inbox.keep(0).unwrap());
        }
        assert_eq!(
            (a.bytes().to_vec(), b.bytes().to_vec()),
            (b"aa".to_vec(), b"bb".to_vec())
        );
        assert_eq!(inbox.made, 2, "dropped ones came back");
        drop(a);
        inbox.end_poll();
        arrive(&mut inbox, b"x", 1);
        inbox.show(1);
        let x = inbox.keep(0).unwrap();
        inbox.end_poll();
        arrive(&mut inbox, b"y", 1);
        inbox.show(1);
        assert_eq!(
            inbox.keep(0).unwrap_err(),
            Refused::Full,
            "one frame of the run and x are still out"
        );
        assert_eq!(inbox.frame(0).unwrap().0, b"y");
        drop(b);
        assert!(inbox.keep(0).is_ok());
        drop(x);
    }
}

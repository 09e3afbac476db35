//! The receive window of one peer: which of its segments have arrived, and what is acknowledged.
//!
//! While everything comes in order there is one number. A gap takes a bitmap of a window, which goes back to
//! a shared pool when the gap has closed.

use crate::counters::Drop;
use crate::seq::Seq;

/// Short segments that count as one long one for acknowledgements: an acknowledgement costs a frame, and
/// releases little of them.
pub(crate) const LIGHT: u32 = 4;

/// Parts of messages that count as one other long segment: they come in runs, and the last of them is
/// acknowledged soon.
pub(crate) const PARTS: u32 = 3;

/// Largest window, in segments: what a bitmap covers.
pub(crate) const MOST: u32 = 4096;
const WORDS: usize = MOST as usize / 64;

/// One bit per segment of a window, by its number modulo the window.
type Bits = [u64; WORDS];

/// Bitmaps that no peer needs now. Boxed, as they go to a peer and back without being copied.
#[allow(clippy::vec_box)]
#[derive(Debug, Default)]
pub(crate) struct Bitmaps {
    spare: Vec<Box<Bits>>,
    /// Whether one was taken since the last look: a gap has opened.
    taken: bool,
}

impl Bitmaps {
    /// Whether a gap has opened since the last call.
    #[inline]
    pub(crate) fn has_new_gap(&mut self) -> bool {
        std::mem::take(&mut self.taken)
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct RecvWindow {
    /// The first number that has not arrived.
    next: Seq,
    /// One after the highest that has.
    end: Seq,
    /// What arrived behind the gap; nothing when there is none. Bits outside of `next..end` are clear.
    bits: Option<Box<Bits>>,
    /// Segments since the last acknowledgement: a short one counts once, a long one [`LIGHT`] times.
    unacked: u32,
    /// Segments that arrived a second time.
    duplicates: u32,
    /// When the acknowledgement that waits for a frame to ride on is due (ns).
    ack_at: u64,
    /// The number of the peer's BYE.
    bye: Option<Seq>,
}

impl RecvWindow {
    /// A window whose first segment will have the number `first`.
    pub(crate) const fn new(first: Seq) -> Self {
        Self {
            next: first,
            end: first,
            bits: None,
            unacked: 0,
            duplicates: 0,
            ack_at: 0,
            bye: None,
        }
    }

    /// The last number without a gap before it: the number of an acknowledgement.
    #[inline]
    pub(crate) fn ack(&self) -> Seq {
        self.next.previous()
    }

    /// The first number that has not arrived: whose turn it is.
    #[inline]
    pub(crate) fn awaited(&self) -> Seq {
        self.next
    }

    /// Whether something is missing before what has arrived.
    #[inline]
    pub(crate) fn has_gap(&self) -> bool {
        self.bits.is_some()
    }

    /// Whether a segment is new and within a window of `window` segments.
    ///
    /// # Errors
    /// [`Drop::Duplicate`] or [`Drop::Window`].
    #[inline(always)]
    pub(crate) fn check(&self, seq: Seq, window: u32) -> Result<(), Drop> {
        let ahead = seq.after(self.next);
        if ahead < 0 {
            return Err(Drop::Duplicate);
        }
        if ahead >= window as i32 {
            return Err(Drop::Window);
        }
        let seen = |bits: &Bits| {
            let (word, bit) = place(seq);
            bits[word] >> bit & 1 == 1
        };
        match &self.bits {
            Some(bits) if seen(bits) => Err(Drop::Duplicate),
            _ => Ok(()),
        }
    }

    /// Counts a segment that [`RecvWindow::check`] refused, if it arrived a second time.
    pub(crate) fn count_refused(&mut self, why: Drop) {
        self.duplicates = self.duplicates.wrapping_add(u32::from(why == Drop::Duplicate));
    }

    /// Segments that arrived a second time.
    pub(crate) fn duplicates(&self) -> u32 {
        self.duplicates
    }

    /// A new segment, which [`RecvWindow::check`] has seen, is here. Returns whether nothing was missing
    /// before it, and nothing was there behind it.
    #[inline]
    pub(crate) fn take(&mut self, seq: Seq, bitmaps: &mut Bitmaps) -> bool {
        if self.bits.is_none() && seq == self.next {
            self.next = seq.plus(1);
            self.end = self.next;
            return true;
        }
        self.take_at_a_gap(seq, bitmaps);
        false
    }

    #[cold]
    fn take_at_a_gap(&mut self, seq: Seq, bitmaps: &mut Bitmaps) {
        let bits = self.bits.get_or_insert_with(|| {
            bitmaps.taken = true;
            bitmaps.spare.pop().unwrap_or_else(|| Box::new([0; WORDS]))
        });
        let (word, bit) = place(seq);
        bits[word] |= 1 << bit;
        if seq.after(self.end) >= 0 {
            self.end = seq.plus(1);
        }
        loop {
            let (word, bit) = place(self.next);
            if bits[word] >> bit & 1 == 0 {
                break;
            }
            bits[word] &= !(1 << bit);
            self.next = self.next.plus(1);
        }
        if self.next == self.end
            && let Some(bits) = self.bits.take()
        {
            bitmaps.spare.push(bits);
        }
    }

    /// Whether as many segments as `every` long ones have come since the last acknowledgement.
    #[inline]
    pub(crate) fn owes(&self, every: u32) -> bool {
        self.unacked >= LIGHT * every
    }

    /// Counts a segment that is to be acknowledged.
    #[inline]
    pub(crate) fn count(&mut self, long: bool) {
        self.unacked += if long { LIGHT } else { 1 };
    }

    /// An acknowledgement goes out.
    #[inline]
    pub(crate) fn acknowledged(&mut self) {
        self.unacked = 0;
    }

    /// Returns when the acknowledgement that waits for a frame to ride on is due (ns).
    pub(crate) fn ack_at(&self) -> u64 {
        self.ack_at
    }

    /// An acknowledgement waits for a frame to ride on, until then (ns).
    #[inline]
    pub(crate) fn ack_by(&mut self, at: u64) {
        self.ack_at = at;
    }

    /// Writes the bitmap of an acknowledgement: bit `i` for `awaited + i`. Returns its bytes.
    pub(crate) fn write_bitmap(&self, to: &mut [u8]) -> usize {
        let Some(bits) = &self.bits else { return 0 };
        let words = (self.end.after(self.next).max(0) as usize).div_ceil(64);
        let mut written = 0;
        for (i, bytes) in to.chunks_exact_mut(8).take(words).enumerate() {
            let (word, bit) = place(self.next.plus(64 * i as u32));
            let low = bits[word] >> bit;
            let high = match bit {
                0 => 0,
                _ => bits[(word + 1) % WORDS] << (64 - bit),
            };
            // At most a window is set, so the ring never shows a bit of the far end twice but in the last
            // word.
            let left = self.end.after(self.next.plus(64 * i as u32)).clamp(0, 64) as u32;
            let mask = if left == 64 { u64::MAX } else { (1 << left) - 1 };
            bytes.copy_from_slice(&((low | high) & mask).to_le_bytes());
            written += 8;
        }
        written
    }

    /// The peer's BYE has this number.
    pub(crate) fn set_bye(&mut self, seq: Seq) {
        self.bye = Some(seq);
    }

    /// Whether the peer has closed the connection.
    #[inline]
    pub(crate) fn has_bye(&self) -> bool {
        self.bye.is_some()
    }

    /// Whether the peer has closed the connection, and everything before its BYE has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.bye.is_some_and(|bye| self.ack().after(bye) >= 0)
    }

    /// Gives the bitmap back: the connection has ended.
    pub(crate) fn clear(&mut self, bitmaps: &mut Bitmaps) {
        if let Some(mut bits) = self.bits.take() {
            bits.fill(0);
            bitmaps.spare.push(bits);
        }
        self.end = self.next;
    }
}

#[inline]
fn place(seq: Seq) -> (usize, u32) {
    let at = seq.0 % MOST;
    ((at / 64) as usize, at % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_gives_each_segment_once_and_the_right_bitmap() {
        for first in [0, 5, 4090, u32::MAX - 70] {
            let first = Seq(first);
            let (mut arrived, mut bitmaps) = (RecvWindow::new(first), Bitmaps::default());
            let mut seen = std::collections::BTreeSet::new();
            let mut random = doorbell_testing::Random::new(1);
            for _ in 0..3000 {
                let base = (0..).find(|i| !seen.contains(i)).unwrap();
                let i = base + random.below(200) as u32;
                let seq = first.plus(i);
                assert_eq!(arrived.check(seq, 4096).is_err(), seen.contains(&i));
                if seen.insert(i) {
                    arrived.take(seq, &mut bitmaps);
                }
                let next = (0..).find(|i| !seen.contains(i)).unwrap();
                assert_eq!(arrived.ack(), first.plus(next).previous());
                assert_eq!(arrived.has_gap(), seen.range(next..).next().is_some());
                let mut bitmap = [0; 512];
                let length = arrived.write_bitmap(&mut bitmap);
                for bit in 0..300 {
                    let set = bitmap[..length]
                        .get(bit / 8)
                        .is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
                    assert_eq!(set, seen.contains(&(next + bit as u32)), "bit {bit}");
                }
            }
            assert!(arrived.check(arrived.next.plus(4096), 4096) == Err(Drop::Window));
            assert!(arrived.check(arrived.next.previous(), 4096) == Err(Drop::Duplicate));
        }
    }

    #[test]
    fn a_whole_window_behind_one_gap_is_said() {
        let first = Seq(77);
        let (mut arrived, mut bitmaps) = (RecvWindow::new(first), Bitmaps::default());
        assert!(!arrived.take(first.plus(1), &mut bitmaps) && bitmaps.has_new_gap());
        (2..4096).for_each(|i| assert!(!arrived.take(first.plus(i), &mut bitmaps)));
        assert!(!bitmaps.has_new_gap(), "there was one");
        let mut bitmap = [0; 512];
        assert_eq!(arrived.write_bitmap(&mut bitmap), 512);
        assert_eq!(bitmap[0], 0xfe);
        assert!(bitmap[1..].iter().all(|&byte| byte == 0xff));
        assert!(!arrived.take(first, &mut bitmaps), "it closes it");
        assert!(!arrived.has_gap() && arrived.ack() == first.plus(4095) && bitmaps.spare.len() == 1);
        assert!(
            bitmaps.spare[0].iter().all(|&word| word == 0),
            "a spare bitmap is clear"
        );
    }
}
